"""Where runs and their evidence are: run folders, archives, buckets."""
