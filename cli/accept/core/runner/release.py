"""The end of a run: its hosts are held for a look where that was asked for, then let go."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable

from accept.core.runner.ssh import Host
from accept.core.runner.state import Run

#: The pipe in a host's folder on which its guard waits to be told.
EVENTS = "events"
#: Ends a hold early.
RELEASE = "release"
_OVER_SECONDS = 60.0


async def hold(state: Run, cancelled: asyncio.Event, say: Callable[[str], None]) -> None:
    """Keep the hosts for a while, so that somebody can look; `release` in the folder ends it."""
    if cancelled.is_set():
        return
    until = time.monotonic() + state.plan.hold_seconds
    say(f"held for {state.plan.hold_seconds:.0f} s. To get in, on this host:")
    for host in state.alive():
        options = f"-F {shlex.quote(str(state.folder / 'ssh_config'))} -o HostName={host.address}"
        say(
            f"  ssh -t {options} -p {host.port} {host.name}"
            if not host.local
            else f"  {host.name}: here"
        )
    say(f"to end it now: touch {shlex.quote(str(state.folder / RELEASE))}")
    released = state.folder / RELEASE
    while time.monotonic() < until and not released.exists() and not cancelled.is_set():
        await asyncio.sleep(1.0)


async def tell_over(state: Run) -> None:
    """Tell every other host that the run is over, and wait until their sshds are gone."""
    others = [h for h in state.hosts if not h.local]
    folder = shlex.quote(str(state.folder))
    await asyncio.gather(*(state.ask(h, f"echo over 1<>{folder}/{EVENTS}") for h in others))
    told = [h for h in others if h.name not in state.lost]
    until = time.monotonic() + _OVER_SECONDS
    await asyncio.gather(*(_until_gone(h, until) for h in told))


async def _until_gone(host: Host, until: float) -> None:
    # One that is silent once may be busy.
    silent = 0
    while time.monotonic() < until and silent < 2:
        try:
            connecting = asyncio.open_connection(host.address, host.port)
            _, writer = await asyncio.wait_for(connecting, 2.0)
        except asyncio.TimeoutError:
            silent += 1
            continue
        except OSError:
            return
        silent = 0
        writer.close()
        await asyncio.sleep(0.2)
