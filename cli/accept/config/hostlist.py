"""Expand host lists: a,b,c, node[01-16], @file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.limits import MOST_HOSTS, is_host_name
from accept.core.safe_read import open_regular
from accept.core.serde import escaped

_MAX_FILE_BYTES = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,12}")
_RANGE = re.compile(r"\[([0-9,-]+)\]")
#: A host with its number of ranks, as for the option -H of mpirun and machine files of MPICH.
_WITH_SLOTS = re.compile(r"([^:]+):([0-9]{1,6})")
#: A range in the notation of the shell: node{01..16}.
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}", re.ASCII)
#: The port of ssh in a host file of Open MPI.
_PORT = re.compile(r"\bport=[0-9]{1,5}\b")


def expand(
    texts: Sequence[str], say: Callable[[str], None] = lambda _: None, *, of_file: bool = False
) -> tuple[str, ...]:
    """Return the hosts in `texts`, in order. Raises BadInput for errors and repeated hosts.

    `say` gets a remark on each setting in a file that is not used but matters. `of_file`: the texts
    are those of a site file, so what follows an @ must be a regular file and not a pipe.
    """
    hosts: list[str] = []
    for text in texts:
        for item in _items(text, say, of_file=of_file):
            hosts += _expanded(item)
            if len(hosts) > MOST_HOSTS:
                raise _too_many("the list")
    repeated = next((host for host, count in Counter(hosts).items() if count > 1), None)
    if repeated:
        raise BadInput(
            f"host {repeated} is named twice",
            code=Code.HOSTLIST_DUPLICATE,
            hint="name each host once, also in a file with a line for each rank: sort -u FILE",
        )
    return tuple(hosts)


def _too_many(what: str) -> BadInput:
    message = f"{what} names more than {MOST_HOSTS} hosts"
    return BadInput(message, code=Code.HOSTLIST_TOO_MANY, hint="check the ranges; name fewer hosts")


def _bad_file(text: str, reason: str) -> BadInput:
    hint = "write one host per line; # begins a comment"
    return BadInput(f"host file {escaped(text)}: {reason}", code=Code.HOSTLIST_FILE, hint=hint)


def _items(text: str, say: Callable[[str], None], *, of_file: bool) -> Iterator[str]:
    """Yield the names and patterns in `a,b,c` or `@file`."""
    if text.startswith("@"):
        try:
            with open_regular(Path(text[1:]), follow=True, inherited=not of_file) as file:
                content = file.read(_MAX_FILE_BYTES + 1)
            lines = content.decode("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise _bad_file(text, str(reason)) from None
        if len(content) > _MAX_FILE_BYTES:
            raise _bad_file(text, "larger than 1 MiB")
        lines = [re.sub(r"\s*=\s*", "=", line.partition("#")[0]) for line in lines]
        words = [word for line in lines for word in line.split()[:1]]
        if not words:
            raise _bad_file(text, "it names no host")
        if several := next(filter(_has_several, map(str.strip, lines)), ""):
            raise _bad_file(text, f"a line has several hosts: {escaped(several[:80])!r}")
        if port := next(filter(None, map(_PORT.search, lines)), None):
            say(f"{port[0]} in {escaped(text[1:])} is not used; write ports to ~/.ssh/config")
        yield from words
        return
    # A comma inside brackets belongs to the range.
    for item in re.split(r",(?![^\[]*\])", text):
        if not item.strip():
            raise BadInput(
                f"the host list {escaped(text)!r} has an empty name",
                code=Code.HOSTLIST_SYNTAX,
                hint="separate the names with single commas, such as node1,node2",
            )
        yield item.strip()


def _has_several(line: str) -> bool:
    """Return True if a line has more than a host, its number of ranks, and settings (`slots=8`)."""
    first, *others = line.split() or [""]
    is_list = re.search(r",(?![^\[]*\])", first) is not None
    return is_list or not all("=" in word or _NUMBER.fullmatch(word) for word in others)


def _expanded(item: str) -> list[str]:
    """Return the hosts of one name or pattern."""
    if found := _WITH_SLOTS.fullmatch(item):
        raise BadInput(
            f"{escaped(item)!r} is a host with a number of slots, ':{found[2]}'",
            code=Code.HOSTLIST_SYNTAX,
            hint=f"name only the host: {escaped(found[1])}; each GPU of a host gets a rank",
        )
    parts = _RANGE.split(item)
    choices = [[p] if i % 2 == 0 else _numbers(p, item) for i, p in enumerate(parts)]
    if math.prod(map(len, choices)) > MOST_HOSTS:
        raise _too_many(repr(escaped(item)))
    names = ["".join(combination) for combination in product(*choices)]
    for name in names:
        if not is_host_name(name):
            missing = {1: ': "]" is missing', -1: ': "[" is missing'}
            raise BadInput(
                f"{escaped(name)!r} is not a valid host name"
                f"{missing.get(name.count('[') - name.count(']'), '')}",
                code=Code.HOSTLIST_SYNTAX,
                hint=_hint(item),
            )
    return names


def _hint(item: str) -> str:
    """Return what to write instead of an invalid name or pattern."""
    shown = escaped(item)
    if "@" in item:
        place = "ssh.user in the site file, or User in ~/.ssh/config"
        return f"name only the host: {shown.rpartition('@')[2]}; the user: {place}"
    if item.count(":") > 1:
        bare = item.strip("[]")
        named = f"give it a name in ~/.ssh/config: Host node1, HostName {escaped(bare)}"
        return f"without brackets: {bare}" if is_host_name(bare) else named
    if _BRACES.search(item):
        return "write the range as " + _BRACES.sub(r"[\1-\2]", shown)
    return "valid: node1, 10.0.0.7, node[01-16]"


def _numbers(text: str, item: str) -> list[str]:
    """Return the numbers of a range such as 01-16; `item` is the whole pattern, for errors."""
    result = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        high = high if dash else low
        if not (_NUMBER.fullmatch(low) and _NUMBER.fullmatch(high)) or int(high) < int(low):
            raise BadInput(
                f"{escaped(item)!r} is not a valid host pattern",
                code=Code.HOSTLIST_SYNTAX,
                hint="valid: node[01-16], node[1,3,7-9]",
            )
        last = int(high)
        if last - int(low) > MOST_HOSTS:
            raise _too_many(repr(escaped(item)))
        result += [str(n).zfill(len(low)) for n in range(int(low), last + 1)]
    return result
