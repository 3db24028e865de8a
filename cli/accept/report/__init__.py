"""Print results, tables and progress on the workstation."""
