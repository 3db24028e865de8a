"""The part that also runs on nodes: standard library only, Python 3.10 or newer."""
