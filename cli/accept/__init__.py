"""Acceptance of GPU nodes: is the machine good, and if not, which part of it is bad."""

__version__ = "0.2.0"
