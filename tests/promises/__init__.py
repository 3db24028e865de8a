"""State promises for every run, whatever made it, over the pool of runs in `pool.py`."""
