"""Admit the key of a run from the addresses of its hosts only, with `from=` of sshd."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Iterator, Sequence

from accept.core import evidence
from accept.core.runner.ssh import Host, command_elsewhere
from accept.core.runner.state import Run
from accept.core.text import plain

#: sshd reads it at every login.
_KEYS = "authorized_keys"
#: The first of the options that bootstrap_host.sh and the job of Slurm give to the key.
_OPTIONS = "restrict,"
#: sshd accepts a key by the first line that admits it. Old versions cut lines after 8 KiB.
_LINE_LIMIT = 4096

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


async def restrict(state: Run, addresses: Iterable[str]) -> str:
    """Make every host admit the key from `addresses` only, and return a line for the log.

    Behind address translation, a host appears under another address. To detect this, each host then
    logs in to the next one. If a login is refused, all hosts admit the key from everywhere again,
    because no host is to blame for it.
    """
    if all(host.local for host in state.hosts):
        return ""
    original = (state.folder / _KEYS).read_text(encoding="utf-8")
    key = _OPTIONS + original.partition(_OPTIONS)[2].strip()
    known = [*addresses, *(host.address for host in state.hosts), "127.0.0.1", "::1"]
    lines = [f'from="{part}",{key}' for part in _parts(exact(known))]
    await _write(state, lines)
    following = (*state.hosts[1:], state.hosts[0])
    refused = await asyncio.gather(
        *(_is_refused(state, host, to) for host, to in zip(state.hosts, following, strict=True))
    )
    if pairs := [
        (h, to) for h, to, bad in zip(state.hosts, following, refused, strict=True) if bad
    ]:
        await _write(state, [key])
        host, to = pairs[0]
        return (
            f"the run's key is admitted from everywhere: {plain(to.name, 80)} sees "
            f"{plain(host.name, 80)} under an address that is not its own"
        )
    return f"the run's key is admitted from the addresses of its {len(state.hosts)} hosts only"


def exact(addresses: Iterable[str]) -> tuple[Network, ...]:
    """Return the fewest networks that contain `addresses` and nothing else.

    Hosts report the addresses, so anything that is not numeric is left out.
    """
    v4: list[ipaddress.IPv4Network] = []
    v6: list[ipaddress.IPv6Network] = []
    for address in addresses:
        try:
            # Parse a single address, so that a host cannot get a whole network admitted.
            network = ipaddress.ip_network(ipaddress.ip_address(address.partition("%")[0]))
        except ValueError:
            continue
        if isinstance(network, ipaddress.IPv4Network):
            v4.append(network)
        else:
            v6.append(network)
    return (*ipaddress.collapse_addresses(v4), *ipaddress.collapse_addresses(v6))


def _parts(networks: Sequence[Network]) -> Iterator[str]:
    """Yield the networks as lists that are short enough for one line each."""
    part = ""
    for network in map(str, networks):
        if part and len(part) + len(network) > _LINE_LIMIT:
            yield part
            part = ""
        part += f"{',' * bool(part)}{network}"
    yield part


async def _write(state: Run, lines: Sequence[str]) -> None:
    """Replace the file on all hosts. A host that does not answer keeps its old file."""
    evidence.write(state.folder / _KEYS, "\n".join(lines) + "\n")
    others = (host for host in state.hosts if not host.local)
    await asyncio.gather(*(state.put(host, state.folder / _KEYS) for host in others))


async def _is_refused(state: Run, host: Host, to: Host) -> bool:
    """Return True if `to` refuses a new login from `host`."""
    answer = await state.ask(host, f"{command_elsewhere(state.folder, to, 'true')} 2>&1")
    return "permission denied" in answer.text.lower()
