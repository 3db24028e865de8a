"""Closed lists and the types of their rows, for checks, the runner and the workstation."""
