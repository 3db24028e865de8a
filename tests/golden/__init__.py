"""Golden verdicts: what the judge decides about runs of all kinds, without its prose.

`python -m tests.golden` judges all runs, prints what differs from `tests/data/golden`, and
writes the files.
The records of each run are fixed: no measurement depends on what the judge found before.
"""
