"""Define the collectors of a site: commands whose output a run keeps from its suspects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated

from accept.config.expectations import Bytes, Seconds
from accept.config.fields import is_secret
from accept.config.yaml_file import read_values
from accept.core.error_codes import Code
from accept.core.plan import Collector
from accept.core.serde import Doc, Invalid, escaped, known

#: The collectors of a new site file, and of one that names none: what support desks ask for first.
USUAL_COLLECTORS = ("nvidia-bug-report", "nvidia-smi", "dmesg", "sel", "dmi")
#: Returns the error of collectors in a site file.
_wrong = partial(Invalid, code=Code.SITE_COLLECTOR)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
#: Limits of a user's own collector that sets none.
_TIMEOUT, _MAX_BYTES = 60.0, 4 << 20
#: Maximum time of all collectors together in seconds, and maximum output of one in bytes.
_LONGEST, _LARGEST = 1800.0, 256 << 20


@dataclass(frozen=True, kw_only=True)
class SiteCollector:
    """A command whose output the run keeps from its suspects."""

    command: Annotated[
        str | None, Doc("Commands of plain sh on the host; unset: those of the known collector.")
    ] = None
    timeout: Annotated[
        Seconds | None,
        Doc("Time after which it is cut off; unset: that of the known collector, else 60s."),
    ] = None
    max_bytes: Annotated[
        Bytes | None, Doc("Output that is kept; unset: that of the known collector, else 4M.")
    ] = None


@cache
def known_collectors() -> Mapping[str, SiteCollector]:
    """Return the collectors that need no command in the site file."""
    return read_values(dict[str, dict[str, SiteCollector]], "collectors")["collectors"]


def check_collectors(collectors: Mapping[str, SiteCollector]) -> None:
    """Raise Invalid for an invalid name, a missing command, and limits that are too high."""
    for name, one in collectors.items():
        if not _NAME.fullmatch(name):
            raise _wrong(
                (name,),
                f"{escaped(name)!r} is not a valid name",
                "use a-z, 0-9 and '-'",
            )
        if is_secret(one.command or ""):
            raise Invalid(
                (name, "command"),
                "it contains a password or a token, and evidence keeps the command",
                "let the command read it from a file of the host",
                code=Code.SETTING_SECRET,
            )
        if one.command is None and name not in known_collectors():
            raise _wrong(
                (name,),
                f"the collector {escaped(name)!r} has no command",
                f"add one, or use a known name: {known(name, known_collectors())}",
            )
    planned = planned_collectors(collectors)
    large = next((one for one in planned if one.max_bytes > _LARGEST), None)
    if large is not None:
        raise _wrong(
            (large.name, "maxBytes"),
            "too many bytes",
            f"keep at most {_LARGEST >> 20}M",
        )
    if sum(one.timeout for one in planned) > _LONGEST:
        raise _wrong(
            (),
            "the collectors may take too long",
            f"their timeouts may have {_LONGEST / 60:g} minutes together",
        )


def planned_collectors(collectors: Mapping[str, SiteCollector]) -> tuple[Collector, ...]:
    """Return the collectors with all defaults resolved."""
    result = []
    for name, one in collectors.items():
        default = known_collectors().get(name, SiteCollector(command=""))
        result.append(
            Collector(
                name=name,
                command=one.command or default.command or "",
                timeout=one.timeout or default.timeout or _TIMEOUT,
                max_bytes=one.max_bytes or default.max_bytes or _MAX_BYTES,
            )
        )
    return tuple(result)
