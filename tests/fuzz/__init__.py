"""Hostile input for all readers of untrusted data: `make fuzz`, and a small part in the tests.

Each input is made from a seed, its kind and its number alone, so that any can be made again.
"""


class Broken(Exception):
    """A property that must hold does not."""
