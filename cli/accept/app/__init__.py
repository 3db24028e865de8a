"""The command line: declarations of commands, typed options, and how errors end."""
