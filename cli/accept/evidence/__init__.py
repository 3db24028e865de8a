"""Run folders, evidence archives, and evidence in buckets."""
