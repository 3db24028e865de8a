"""Check NCCL settings before a run: foreign and unknown names, values that contradict the machine.

`values/nccl.yaml` lists the known names and the values that turn a path off, with sources. A name
that neither begins with NCCL_ nor is on the list is refused. The others are only remarks: a plugin
may read settings that the list lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from accept.config.fields import Url
from accept.config.machine import Machine
from accept.config.yaml_file import read_values
from accept.core.error_codes import Code
from accept.core.errors import BadInput, warning
from accept.core.serde import did_you_mean, escaped
from accept.core.text import command_line, decimal

#: Names of all settings of NCCL begin with this.
NCCL_PREFIX = "NCCL_"
#: The effect of turning a path off.
_EFFECTS = {
    "nvlink": "the GPUs of a node no longer reach each other over NVLink",
    "nvls": "the switches between the GPUs of a node no longer reduce",
    "domain": "NVLink between nodes is no longer used",
    "nics": "plain sockets replace its network",
    "plugin": "its network is a plugin",
    "gpuDirect": "data goes through host memory, although the NICs can access GPU memory",
}


@dataclass(frozen=True, kw_only=True)
class Others:
    """Settings that others than NCCL read; `*` at the end of a name stands for any suffix."""

    names: tuple[str, ...]
    source: Url

    def contains(self, name: str) -> bool:
        """Return True if a setting is one of them."""
        prefixes = tuple(known[:-1] for known in self.names if known.endswith("*"))
        return name in self.names or name.startswith(prefixes)


@dataclass(frozen=True, kw_only=True)
class Off:
    """Values of a setting that turn off a path."""

    name: str
    values: tuple[str, ...]
    path: Literal["nvlink", "nvls", "domain", "nics", "plugin", "gpuDirect"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The content of `values/nccl.yaml`."""

    source: Url
    names: tuple[str, ...]
    others: tuple[Others, ...]
    turns_off: tuple[Off, ...]
    turns_off_source: Url
    #: The networks that need no plugin.
    built_in: tuple[str, ...]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the settings that come with `accept`."""
    return read_values(Settings, "nccl")


def without(path: str) -> dict[str, str]:
    """Return all known settings that turn a path off, each with its first value."""
    return {off.name: off.values[0] for off in settings().turns_off if off.path == path}


def remarks(given: Mapping[str, str], machine: Machine, profile: str) -> tuple[str, ...]:
    """Return one warning for each setting that is unknown or contradicts the machine.

    `given` holds only the user's settings, because the settings of the profile are intended.
    """
    if not given:
        return ()
    lines = [*_unknown(given), *_turned_off(given, machine, profile), *_channels(given, machine)]
    transport = machine.planned(profile).transport
    network = given.get("NCCL_NET", "")
    if transport and network and transport.lower() not in network.lower():
        message = f"NCCL_NET={escaped(network)}: {machine.name} should use the network {transport}"
        lines.append(warning(Code.NCCL_CONTRADICTION, message))
    for name, value in _hides_network(given) if transport else ():
        effect = "the logs will not show which network NCCL used: the verdict is inconclusive"
        lines.append(warning(Code.NCCL_DEBUG, f"{name}={escaped(value)}: {effect}"))
    if "NCCL_DEBUG_FILE" in given:
        effect = "has no effect, because NCCL's log of each rank is part of the evidence"
        lines.append(warning(Code.NCCL_DEBUG, f"NCCL_DEBUG_FILE {effect}"))
    return tuple(dict.fromkeys(lines))


def _hides_network(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings by which NCCL does not log its network, in INFO lines of INIT and NET.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-subsys
    """
    level, parts = given.get("NCCL_DEBUG", "INFO"), given.get("NCCL_DEBUG_SUBSYS", "ALL")
    if level.upper() not in ("INFO", "TRACE"):
        yield "NCCL_DEBUG", level
    named = {part.strip().upper() for part in parts.removeprefix("^").split(",")}
    hidden = named >= {"INIT", "NET"} if parts.startswith("^") else not named & {"INIT", "NET"}
    if "ALL" in named:
        hidden = parts.startswith("^")
    if hidden:
        yield "NCCL_DEBUG_SUBSYS", parts


def refuse_foreign(given: Mapping[str, str], profiles: Collection[str], origin: str) -> None:
    """Raise BadInput for a name that is not a setting of NCCL, a plugin or a transport.

    It would be a variable that nothing reads, and the run would not measure what was requested.
    `profiles` are those of the machine.
    """
    for name, value in given.items():
        if name.startswith(NCCL_PREFIX) or any(
            others.contains(name) for others in settings().others
        ):
            continue
        hint = ""
        if value in profiles:
            hint = f"did you mean --nccl-profile {value}?"
        elif name.lower().endswith("profile"):
            hint = f"to choose a profile: --nccl-profile NAME; known: {', '.join(profiles)}"
        raise BadInput(
            f"{origin} {escaped(name)}: this is not a setting of NCCL, a plugin or a transport",
            code=Code.NCCL_SETTING_FOREIGN,
            hint=hint
            or (_option_for(name, value) if origin == "--nccl" else _did_you_mean(name))
            or "their names begin with NCCL_, such as NCCL_DEBUG",
        )


def _option_for(name: str, value: str) -> str:
    """Return the option with the setting that an unknown name means; or what it may mean."""
    known_names, start = _known_names(), _with_prefix(name)
    if start in known_names:
        return f"did you mean: {command_line('--nccl', f'{start}={value}')}"
    return did_you_mean(start, known_names).rstrip()


def _did_you_mean(name: str) -> str:
    """Return the known settings that an unknown name may mean, as a question; or ""."""
    known_names, start = _known_names(), _with_prefix(name)
    return f"did you mean {start}?" if start in known_names else did_you_mean(start, known_names)


def _with_prefix(name: str) -> str:
    return f"{NCCL_PREFIX}{name.upper().removeprefix(NCCL_PREFIX)}"


def _known_names() -> tuple[str, ...]:
    plugin_names = (name for others in settings().others for name in others.names)
    return (*settings().names, *(name for name in plugin_names if not name.endswith("*")))


def _unknown(given: Mapping[str, str]) -> Iterator[str]:
    data = settings()
    for name in given:
        if name in data.names or any(others.contains(name) for others in data.others):
            continue
        hint = _did_you_mean(name).rstrip() or "does a plugin read it?"
        message = f"{escaped(name)} is not a known NCCL setting: {hint}"
        yield warning(Code.NCCL_SETTING_UNKNOWN, message)


def _turned_off(given: Mapping[str, str], machine: Machine, profile: str) -> Iterator[str]:
    planned, uses = machine.planned(profile), machine.nccl.profiles[profile].uses
    has = {
        "nvlink": planned.peer_to_peer,
        "nvls": planned.nvls,
        "domain": machine.nvlink is not None and machine.nvlink.nodes > 1 and "domain" in uses,
        "nics": bool(planned.transport) and planned.transport == machine.nccl.transport,
        "plugin": planned.transport not in ("", *settings().built_in),
        "gpuDirect": planned.gpu_direct,
    }
    for off in settings().turns_off:
        value = given.get(off.name, "")
        if value in off.values and has[off.path]:
            message = f"{off.name}={value} contradicts {machine.name}: {_EFFECTS[off.path]}"
            yield warning(Code.NCCL_CONTRADICTION, message)


def _channels(given: Mapping[str, str], machine: Machine) -> Iterator[str]:
    """Yield a line if there are too few channels for the NICs.

    More channels than NICs are usual: two for each NIC keep it busy, and NVLink needs even more.
    """
    nics, name = machine.nics, "NCCL_MAX_NCHANNELS"
    channels = decimal(given.get(name, ""))
    if nics is not None and channels is not None and channels < nics.count:
        message = f"{name}={channels}: fewer than the {nics.count} NICs of {machine.name}, "
        yield warning(Code.NCCL_CHANNELS, f"{message}some NICs carry nothing")
