"""From records to a verdict: pure functions, the same answer wherever and whenever they run."""
