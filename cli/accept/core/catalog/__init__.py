"""Closed lists with one row per entry."""
