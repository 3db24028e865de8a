"""Turn configuration into a run: resolve it, plan its steps, place its pods, render its files."""
