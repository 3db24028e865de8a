"""Run a plan on hosts: discovery, groups, execution, supervision, fault injection."""
