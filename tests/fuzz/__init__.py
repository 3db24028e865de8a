"""Hostile input for everything that reads what others wrote: `make fuzz`, and a slice in the tests.

Each input is made from a seed, its kind and its number alone, so that any can be made again.
"""
