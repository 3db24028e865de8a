"""What is to be said of NCCL settings before a run: unknown ones, and those against the machine.

`values/nccl.yaml` holds the names there are and the values that turn something off, with sources.
Nothing here is refused: a plugin may read what this list does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from accept.config import resources
from accept.config.fields import Url
from accept.config.machine import Machine
from accept.config.yaml_file import read_file
from accept.core.serde import escaped, nearest
from accept.core.text import decimal

_PREFIX = "NCCL_"
_WITHOUT = {
    "nvlink": "the GPUs of a node no longer reach each other over NVLink",
    "domain": "NVLink between nodes is no longer used",
    "nics": "its network is no longer used: plain sockets are",
    "gpuDirect": "data go through host memory, past what the NICs could read",
}


@dataclass(frozen=True, kw_only=True)
class Others:
    """Settings that somebody else than NCCL reads; `*` at the end: all that begin so."""

    names: tuple[str, ...]
    source: Url


@dataclass(frozen=True, kw_only=True)
class Off:
    """Values of a setting that turn off a path."""

    name: str
    values: tuple[str, ...]
    path: Literal["nvlink", "domain", "nics", "gpuDirect"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The file of settings."""

    source: Url
    names: tuple[str, ...]
    others: tuple[Others, ...]
    turns_off: tuple[Off, ...]
    turns_off_source: Url


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings that come with `accept`."""
    return read_file(Settings, resources.values() / "nccl.yaml")


def without(path: str) -> dict[str, str]:
    """Settings that turn a path off, all that are known to: the first value of each."""
    return {one.name: one.values[0] for one in settings().turns_off if one.path == path}


def remarks(given: Mapping[str, str], machine: Machine, profile: str) -> tuple[str, ...]:
    """One line for each setting of the user's that is unknown, or contradicts the machine.

    `given`: the user's own, on top of the profile; what the profile itself says is meant so.
    """
    lines = [*_unknown(given), *_off(given, machine, profile), *_channels(given, machine)]
    transport = machine.planned(profile).transport
    network = given.get("NCCL_NET", "")
    if transport and network and transport.lower() not in network.lower():
        lines.append(
            f"NCCL_NET={escaped(network)}: {machine.name} promises the network {transport}"
        )
    level = given.get("NCCL_DEBUG", "INFO").upper()
    if transport and level not in ("INFO", "TRACE"):
        said = "nothing will say which network NCCL used, and the verdict is inconclusive"
        lines.append(f"NCCL_DEBUG={escaped(level)}: {said}")
    return tuple(dict.fromkeys(lines))


def _unknown(given: Mapping[str, str]) -> Iterator[str]:
    data = settings()
    theirs = [name for others in data.others for name in others.names]
    begin = tuple(name[:-1] for name in theirs if name.endswith("*"))
    there = (*data.names, *(name for name in theirs if not name.endswith("*")))
    for name in given:
        if not name.upper().startswith(_PREFIX) or name in there or name.startswith(begin):
            continue
        close = nearest(name.upper(), there)
        hint = f"did you mean {close}?" if close else "is it a plugin's?"
        yield f"{escaped(name)} is no setting that NCCL is known to read: {hint}"


def _off(given: Mapping[str, str], machine: Machine, profile: str) -> Iterator[str]:
    planned, uses = machine.planned(profile), machine.nccl.profiles[profile].uses
    has = {
        "nvlink": planned.peer_to_peer,
        "domain": machine.nvlink is not None and machine.nvlink.nodes > 1 and "domain" in uses,
        "nics": bool(planned.transport) and planned.transport == machine.nccl.transport,
        "gpuDirect": planned.gpu_direct,
    }
    for one in settings().turns_off:
        value = given.get(one.name, "")
        if value in one.values and has[one.path]:
            yield f"{one.name}={value} contradicts {machine.name}: {_WITHOUT[one.path]}"


def _channels(given: Mapping[str, str], machine: Machine) -> Iterator[str]:
    """Channels are spread over the NICs: one that gets none, or several that share one."""
    nics = machine.nics
    for name, wrong in (("NCCL_MIN_NCHANNELS", 1), ("NCCL_MAX_NCHANNELS", -1)):
        channels = decimal(given.get(name, ""))
        if nics is None or channels is None:
            continue
        if wrong * (channels - nics.count) > 0:
            side = "more than" if wrong > 0 else "fewer than"
            what = "several share a NIC" if wrong > 0 else "some NICs carry nothing"
            yield f"{name}={channels}: {side} the {nics.count} NICs of {machine.name}, {what}"
