"""Logs of nccl-tests that no run of ours left: told from evidence, and loaded as if it had."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accept import config, nccl_logs
from accept.config import floors
from accept.config.machine import Machine
from accept.core import evidence
from accept.core.errors import BadEvidence
from accept.core.model import Plan, Record
from accept.core.runner.coordinator import HOSTS
from accept.core.text import plain
from accept.evidence import archive, bucket, rundir

#: What of a run's own lies in a folder of evidence, or of a run.
_OURS = (
    evidence.PLAN,
    evidence.RECORDS,
    evidence.CHECKSUMS,
    evidence.VERDICT,
    HOSTS,
    rundir.RUN,
    rundir.JOB,
    rundir.EVIDENCE,
)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Logs as the plan and records of a run, and what is to be said of them."""

    plan: Plan
    records: tuple[Record, ...]
    #: As the logs show it, which may be less than the file says.
    machine: Machine
    #: One line each.
    notes: tuple[str, ...]
    #: Files that are no logs, and why not.
    skipped: tuple[tuple[str, str], ...]
    #: Collectives that no check judges, and in how many tables.
    unjudged: dict[str, int]


def is_foreign(path: str) -> bool:
    """Whether `path` is no evidence of ours. Raises BadInput where it is not there at all."""
    if bucket.is_url(path) or path == "last":
        return False
    if rundir.kind(Path(path)) == "file":
        return not _is_our_file(Path(path))
    folder = rundir.find(path)
    if any((folder / name).exists() for name in _OURS):
        return False
    console = folder / evidence.CONSOLE
    return not (console.is_file() and evidence.is_packed(console))


def _is_our_file(path: Path) -> bool:
    try:
        if archive.is_tar(path):
            with tarfile.open(path) as tar:
                first = tar.next()
            return first is None or Path(first.name).parts[:1] == ("evidence",)
        return not zipfile.is_zipfile(path) and evidence.is_packed(path)
    except EOFError:
        return False
    except OSError as error:
        raise BadEvidence(f"{plain(path)}: {error.strerror}", hint="name another file") from None
    except Exception:
        # Whoever reads it as an archive of ours says what is wrong with it.
        return True


def load(paths: Sequence[str], machine: Machine | None) -> Foreign:
    """Read the logs that `paths` name. `machine`: theirs; None: by what they call their GPUs.

    Raises BadEvidence where there are none, or one that was named is none.
    """
    found = nccl_logs.gather([_place(path) for path in paths])
    executions = nccl_logs.completed(found)
    notes: list[str] = []
    if machine is None:
        most = max((one.count for one in executions), default=0)
        guessed = nccl_logs.guess(found.devices, most)
        machine = guessed.machine
        notes.append(f"machine {machine.name}: {guessed.why}")
    notes += filter(None, [nccl_logs.different(found)])
    bounds = floors.bounds(machine)
    names = {bound.metric for bound in bounds}
    made = nccl_logs.found(found, executions, machine.planned(), names)
    notes += [
        f"{count} table{'s' * (count != 1)} of {name}: no check judges that"
        for name, count in made.unjudged.items()
    ]
    if not made.plan.steps:
        raise BadEvidence(
            f"{plain(paths[0], 200)}: nothing but {', '.join(made.unjudged)} was measured",
            hint="accept list checks names the collectives that are judged",
        )
    return Foreign(
        plan=replace(made.plan, references=bounds),
        records=made.records,
        machine=machine,
        notes=tuple(notes),
        skipped=found.skipped,
        unjudged=made.unjudged,
    )


def _place(path: str) -> Path:
    return Path(path) if rundir.kind(Path(path)) == "file" else rundir.find(path)


def machine_of(name: str | None) -> Machine | None:
    """The machine that the user names, if any. Raises BadInput."""
    return config.load_machine(name).value if name else None
