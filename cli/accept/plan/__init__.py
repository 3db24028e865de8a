"""From configuration to a run: resolve it, plan its steps, place it, render what runs."""
