"""Implement the commands that `accept.app` declares."""
