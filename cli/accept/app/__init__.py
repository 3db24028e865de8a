"""Declare the command line: commands and typed options."""
