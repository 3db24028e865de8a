"""Complete names on the command line: machines, suites, checks, causes, codes, runs and hosts.

The shell starts `accept` whenever the user presses Tab. So each function imports only what it
needs, and none contacts another machine: hosts are those of earlier runs and of the site file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, TypeGuard, get_args

import typer

from accept.commands.choices import Schema, Shown

#: The shell inserts a name without quoting it, and evidence can come from anybody.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
#: Newest runs whose hosts are completed.
_MOST_RUNS = 30


def _list(names: Iterable[str], incomplete: str) -> list[str]:
    """Return what can follow in a list such as a,b,c: `names` without those before it."""
    before, comma, _ = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in names if name not in given]


def machines() -> list[str]:
    """Return the machines that come with `accept`."""
    from accept import config

    return [*config.names("machines")]


def nccl_profiles(parsed: typer.Context) -> list[str]:
    """Return the NCCL profiles of the machine that the words before name, or of all machines."""
    from accept import config

    named = parsed.params.get("machine")
    names = [str(named)] if named else config.names("machines")
    found = (profile for name in names for profile in config.load_machine(name).value.nccl.profiles)
    return [*dict.fromkeys(found)]


def suites() -> list[str]:
    """Return the suites that come with `accept`."""
    from accept import config

    return [*config.names("suites")]


def checks() -> list[str]:
    """Return all checks, with the tools of the site file."""
    from accept import config
    from accept.config import tools

    return [*tools.check_names(tool.value.name for tool in config.trusted_tools())]


def check_list(incomplete: str) -> list[str]:
    """Return what can follow in a list of checks."""
    return _list(checks(), incomplete)


def faults() -> list[str]:
    """Return the faults of a drill."""
    from accept.core.catalog.faults import FAULTS

    return [*FAULTS]


def fault_list(incomplete: str) -> list[str]:
    """Return what can follow in a list of faults."""
    return _list(faults(), incomplete)


def causes() -> list[str]:
    """Return all causes."""
    from accept.core.causes import Cause

    return [*Cause]


def error_codes() -> list[str]:
    """Return the codes of errors, warnings, rows of `accept doctor` and findings."""
    from accept.config.explanations import explanations
    from accept.core.causes import Cause

    return [*explanations(), *(cause.code for cause in Cause)]


def backends() -> list[str]:
    """Return the back ends."""
    from accept.config.site import BackendName

    return [*get_args(BackendName)]


def commands() -> list[str]:
    """Return the words that `accept help` takes."""
    from accept.app.help import COMMANDS

    return ["all", *COMMANDS]


def runs() -> list[str]:
    """Return `last` and the runs on this machine, newest first."""
    from accept.evidence import rundir

    names = [folder.name for folder in rundir.listed()[::-1] if rundir.is_name(folder.name)]
    return ["last", *names]


def run_hosts(parsed: typer.Context) -> list[str]:
    """Return the hosts of the run that the words before name."""
    from accept.evidence import rundir

    return [*hosts_of(rundir.find(str(parsed.params.get("run") or "last")))]


def hosts(incomplete: str) -> list[str]:
    """Return what can follow in a list of hosts: those of earlier runs and of the site file.

    A site file that was not trusted is left out: its list can name any file of this user.
    """
    from accept import config
    from accept.config.hostlist import expand
    from accept.evidence import rundir

    names: list[str] = []
    if site := config.trusted_site():
        names += expand(site.value.ssh.hosts, of_file=True)
    for folder in rundir.listed()[: -_MOST_RUNS - 1 : -1]:
        names += hosts_of(folder)
    return _list(dict.fromkeys(names), incomplete)


def hosts_of(folder: Path) -> Iterator[str]:
    """Yield the hosts of a run: from its evidence, or else from its job."""
    from accept.core import evidence
    from accept.core.errors import AcceptError
    from accept.core.safe_read import read_whole
    from accept.evidence import rundir

    names: Iterable[object] = ()
    try:
        names = evidence.read_verdict(folder / rundir.EVIDENCE).hosts
    except AcceptError:
        job = folder / rundir.JOB
        if job.is_file():
            found = json.loads(read_whole(job)).get("hosts")
            names = found if isinstance(found, list) else ()
    yield from (name for name in islice(names, 1 << 14) if _is_safe(name))


def bad_hosts_of(folder: Path) -> Iterator[str]:
    """Yield the hosts that the verdict of a run accuses."""
    from accept.core import evidence
    from accept.evidence import rundir

    verdict = json.loads(evidence.read_text(folder / rundir.EVIDENCE / evidence.VERDICT))
    suspects = verdict.get("suspects") if isinstance(verdict, dict) else ()
    for suspect in suspects if isinstance(suspects, list) else ():
        names = suspect.get("hosts") if isinstance(suspect, dict) else ()
        yield from (name for name in names if _is_safe(name)) if isinstance(names, list) else ()


def _is_safe(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and _SAFE.fullmatch(name) is not None


def shown(parsed: typer.Context) -> list[str]:
    """Return the names that `accept show` takes after the word before."""
    try:
        what = Shown(str(parsed.params.get("what")))
    except ValueError:
        return []
    return SHOWN[what]()


def sites() -> list[str]:
    """Return the word for the example; the shell completes files."""
    return ["example"]


def schemas() -> list[str]:
    """Return the names of the JSON Schemas."""
    return [*Schema]


#: The names of each kind that `accept show` takes.
SHOWN: Final[dict[Shown, Callable[[], list[str]]]] = {
    Shown.MACHINE: machines,
    Shown.SUITE: suites,
    Shown.CHECK: checks,
    Shown.CAUSE: causes,
    Shown.FAULT: faults,
    Shown.BACKEND: backends,
    Shown.ERROR: error_codes,
    Shown.SITE: sites,
    Shown.RUN: runs,
    Shown.NODES: runs,
    Shown.SCHEMA: schemas,
}
