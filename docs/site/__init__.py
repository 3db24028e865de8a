"""Generate the parts of the documentation site that the program and its data determine."""
