"""Folders with logs of real nccl-tests runs: those of the repository, and one given by the user.

`ACCEPT_TEST_LOGS=DIR` adds a folder with the layout of tests/data/nccl-logs: logs and a
`summary.csv` in `single-node`, `pairwise` and `multi-node`.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.factories.paths import TESTS

#: 21 logs of ten healthy nodes.
REPOSITORY = TESTS / "data" / "nccl-logs"
_NAMED = os.environ.get("ACCEPT_TEST_LOGS", "")
#: The folder given by the user.
MORE = Path(_NAMED) if _NAMED else None
if MORE is not None and not MORE.is_dir():
    raise NotADirectoryError(f"ACCEPT_TEST_LOGS={_NAMED}")
#: All folders with logs.
FOLDERS = (REPOSITORY,) if MORE is None else (REPOSITORY, MORE)
#: Excerpts that projects publish in their documentation, in many formats.
PUBLISHED = TESTS / "data" / "published-logs"


def folder_name(folder: Path) -> str:
    """Return the name of a folder in the name of a test, without a path of this machine."""
    return "repository" if folder == REPOSITORY else "more"
