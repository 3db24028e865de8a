"""What people see on the workstation."""
