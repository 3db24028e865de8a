"""Hostile input for all readers: `python -m tests.fuzz`, and a small part in the tests.

Each input depends only on a seed, its kind and its number, so any input can be generated again.
"""


class Broken(Exception):
    """A property that must hold does not."""
