"""Define the names and the ranges of numbers in plans and records, which may come from anybody.

`accept.core.serde` checks them when a file is read, so that nothing behind it loops over 2^62 GPUs,
writes an unquoted name into a script, or opens a file that evidence names.
"""

from __future__ import annotations

import re
from typing import Annotated

from accept.core.serde import Bounds, Keys, Pattern

#: Maximum number of GPUs and of ranks in a node, and of hosts. Longer lists of hosts are probably
#: typing errors.
MOST_GPUS, MOST_RANKS, MOST_HOSTS = 64, 256, 16384

#: Name of a machine or suite.
NAME = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
#: Name or address of a host. This is strict, because names become part of file names, command lines
#: and ssh configurations.
_HOST = r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"

MachineName = Annotated[str, Pattern(NAME, "a name of a-z, 0-9, '.' and '-'")]
HostName = Annotated[str, Pattern(_HOST, "the name or address of a host")]
#: It ends with the name of a profile, which users choose.
StepName = Annotated[str, Pattern(r"[^/.\n][^/\n]{0,199}", "the name of a step")]
#: Path of a raw log: names of files have at most 255 characters.
LogPath = Annotated[str, Bounds(max=600)]
#: Marks a mapping of environment variables.
VARIABLES = Keys(_VARIABLE, "the name of an environment variable")

Gpus = Annotated[int, Bounds(min=0, max=MOST_GPUS)]
Ranks = Annotated[int, Bounds(min=0, max=MOST_RANKS)]
RanksOfAll = Annotated[int, Bounds(min=0, max=MOST_RANKS * MOST_HOSTS)]
#: Waves and groups of a step, and parts of a host such as NICs and NVLinks.
Hosts = Annotated[int, Bounds(min=0, max=MOST_HOSTS)]
Parts = Annotated[int, Bounds(min=0, max=1024)]
Share = Annotated[float, Bounds(min=0, max=1)]
#: At most three years.
Seconds = Annotated[float, Bounds(min=0, max=1e8)]


def is_host_name(text: str) -> bool:
    """Return True if a text can be the name or address of a host."""
    return re.fullmatch(_HOST, text) is not None


def is_variable(text: str) -> bool:
    """Return True if a text can be the name of an environment variable."""
    return re.fullmatch(_VARIABLE, text) is not None
