"""Decide whether evidence answers an order of this workstation, and who vouches for it.

Every command that fetches, judges or shows a run goes through `matches_order`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept import backends
from accept.backends.job import Job
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.safe_read import open_regular, read_whole
from accept.core.serde import read
from accept.core.signatures import PublicKey, parse_public_key, signer
from accept.core.text import count, plain, shortened
from accept.core.verdict import Verification
from accept.evidence import rundir
from accept.plan.resolve import Resolved

#: Clocks of hosts may be wrong by this many seconds: also by a time zone.
_CLOCK_SECONDS = 86400.0
#: Only this much of the end of a console log is searched for the reason of a missing signature.
_CONSOLE_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The plan, records and name of a run, as its evidence has them."""

    plan: Plan
    records: tuple[Record, ...]
    attempt: str
    #: None: it is packed in a log, without a list of checksums.
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The facts about evidence that nothing contradicts; a contradiction is an error."""

    attempt: str
    outcome: Verification
    #: `evidence.root_hash`; empty: it has no list of checksums.
    hash: str
    #: The holders of the keys that signed it.
    signed_by: tuple[str, ...]
    #: True if this workstation started the run, and the evidence answers that order.
    ordered: bool
    #: Why the run did not sign it, by its own log; empty: it did, or its key is not known here.
    unsigned: str = ""


@dataclass(frozen=True, kw_only=True)
class Match:
    """The result of `matches_order`."""

    verified: Verified
    #: The plan to judge by: as this workstation rendered it, else that of the evidence.
    plan: Plan


def claims_of(folder: Path) -> Claims:
    """Read plan, records and name of a run from a folder with evidence.

    Raises BadEvidence if it differs from its checksums, or cannot be read.
    """
    has_checksums = (folder / evidence.CHECKSUMS).is_file()
    if has_checksums and (wrong := evidence.check_checksums(folder)):
        raise _changed(f"{folder}: {shortened(wrong, 3, '; ')}")
    return Claims(
        plan=evidence.read_plan(folder),
        records=tuple(evidence.read_records(folder)),
        attempt=attempt_of(folder),
        folder=folder,
    )


def attempt_of(folder: Path) -> str:
    """Return the attempt that evidence names as its own, else the name of the folder."""
    try:
        return evidence.read_attempt(folder)
    except BadEvidence:
        return folder.name


def matches_order(claims: Claims, keys: Sequence[PublicKey] = ()) -> Match:
    """Return what is known about evidence, and the plan to judge it by.

    If this workstation started the run, the evidence must be of that attempt, plan, hosts and day,
    signed by its key, and the one that was fetched. If there are `keys`, one must have signed it.
    Every log that a record names must be sealed. Raises BadEvidence for everything else.
    """
    root = evidence.root_hash(claims.folder) if claims.folder else ""
    if claims.folder and root:
        _refuse_unsealed(claims.folder, claims.records)
    signed = _signed_by(claims.folder, keys) if root and claims.folder else ()
    if keys and not signed:
        raise _not_signed(f"none of the {count(len(keys), 'given key')} signed this evidence")
    run = _run_of(claims)
    job = backends.known_job(run) if run else None
    of_run = parse_public_key(job.signer, holder="the run") if job else None
    if claims.folder and not rundir.is_own_evidence(claims.folder) and signed:
        # Somebody else's run may have the name of one that was started here.
        job = job if of_run and of_run.base64 in {key.base64 for key in signed} else None
    if run is None or job is None:
        outcome = Verification.SIGNED if signed else Verification.NOT_VERIFIABLE
        holders = tuple(key.holder for key in signed)
        verified = Verified(
            attempt=claims.attempt, outcome=outcome, hash=root, signed_by=holders, ordered=False
        )
        return Match(verified=verified, plan=claims.plan)
    _refuse_other_evidence(claims, root, job)
    plan = _ordered_plan(run)
    if claims.folder:
        _refuse_other_scripts(claims.folder, run / rundir.RENDERED, job)
    _refuse_other_run(claims, job, _order_of(run), plan)
    unsigned, outcome = "", Verification.NOT_VERIFIABLE
    if of_run and root and claims.folder:
        unsigned = _refuse_not_signed(claims.folder, of_run)
        signed = signed if unsigned else (of_run, *(k for k in signed if k.base64 != of_run.base64))
    if signed:
        outcome = Verification.SIGNED
    elif root and root == job.evidence and of_run is None:
        outcome = Verification.UNMODIFIED
    verified = Verified(
        attempt=claims.attempt,
        outcome=outcome if plan else Verification.NOT_VERIFIABLE,
        hash=root,
        signed_by=tuple(key.holder for key in signed),
        ordered=plan is not None,
        unsigned=unsigned,
    )
    return Match(verified=verified, plan=plan or claims.plan)


def _run_of(claims: Claims) -> Path | None:
    """Return the folder of the run that the evidence is of, if this workstation started it."""
    if claims.folder and rundir.is_own_evidence(claims.folder):
        return claims.folder.parent
    try:
        own = filter(rundir.is_own, rundir.by_attempt(claims.attempt))
        return next(filter(backends.known_job, own), None)
    except BadInput:
        # Without a folder of runs, nothing was started here.
        return None


def read_run(folder: Path) -> Resolved:
    """Return the run of a run folder. Raises BadInput."""
    path = folder / rundir.RUN
    try:
        return read(Resolved, json.loads(read_whole(path))["run"])
    except FileNotFoundError:
        raise BadInput(
            f"{folder.name} has no {rundir.RUN}, so it cannot be repeated",
            code=Code.RUN_UNREADABLE,
            hint="the demo and copied evidence can be judged; start a run of your own: accept run",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}",
            code=Code.RUN_UNREADABLE,
            hint="render the run again",
        ) from None


def _order_of(run: Path) -> Resolved | None:
    """Return the order of a run; None if it cannot be read."""
    try:
        return read_run(run)
    except BadInput:
        return None


def _ordered_plan(run: Path) -> Plan | None:
    """Return the plan as this workstation rendered it; None if it is gone."""
    rendered = run / rundir.RENDERED
    return evidence.read_plan(rendered) if (rendered / evidence.PLAN).is_file() else None


def _refuse_other_evidence(claims: Claims, root: str, job: Job) -> None:
    """Raise BadEvidence if it is not what this workstation fetched. A log has only a part of it."""
    is_part = claims.folder is None or (not root and not rundir.is_own_evidence(claims.folder))
    if job.evidence and job.evidence != root and not is_part:
        raise BadEvidence(
            f"this is not the evidence of {job.attempt} that this workstation fetched: its SHA-256 "
            f"is {root or 'missing'}, not {job.evidence}",
            code=Code.EVIDENCE_CHANGED,
            hint="it was changed, or it is of somebody else's run of the same name: ask who sent "
            "it, or give the public key of that run",
        )


def _refuse_other_scripts(folder: Path, rendered: Path, job: Job) -> None:
    """Raise BadEvidence if a script in evidence is not the one that this workstation rendered."""
    scripts = [path for path in folder.glob("steps/*") if path.is_file()]
    for script in (*scripts, folder / "env.sh", folder / "settings.sh"):
        name = script.relative_to(folder)
        is_here = (rendered / evidence.PLAN).is_file() and script.is_file()
        if is_here and not _is_copy(script, rendered / name):
            raise BadEvidence(
                f"the evidence of {job.attempt} is of other scripts: {plain(name, 100)} is not the "
                "one that this workstation rendered",
                code=Code.EVIDENCE_PLAN_CHANGED,
                hint="collect the run again, or ask who has access to its first host",
            )


def _is_copy(path: Path, original: Path) -> bool:
    try:
        return read_whole(path) == read_whole(original)
    except OSError:
        return False


def _named(record: Record) -> Iterator[str]:
    """Yield each host that a record is about."""
    yield from record.hosts
    yield from (problem.host for problem in record.problems if problem.host)
    yield from (fact.host for fact in record.facts if fact.host)
    yield from (metric.host for metric in record.metrics if metric.host)


def _times(record: Record) -> Iterator[float]:
    """Yield the times of a record by the first host's clock. One that was executed has a start."""
    if record.start or record.exit is not None:
        yield record.start
    if record.end:
        yield record.end


def _refuse_other_run(claims: Claims, job: Job, order: Resolved | None, plan: Plan | None) -> None:
    """Raise BadEvidence if attempt, plan, hosts or times are not those that were ordered."""
    if claims.attempt != job.attempt:
        raise _other_run(job, f"it is of the run {plain(claims.attempt, 80)}")
    if plan and claims.plan.hash != plan.hash:
        raise BadEvidence(
            f"the evidence of {job.attempt} is of another plan: its SHA-256 is "
            f"{claims.plan.hash[:12]}, and this workstation rendered {plan.hash[:12]}",
            code=Code.EVIDENCE_PLAN_CHANGED,
            hint="steps, bounds or settings were changed: collect the run again, or ask who has "
            "access to its first host",
        )
    planned = {HOSTS_STEP, *(step.id for step in plan.steps)} if plan else set()
    if plan and (others := sorted({record.step for record in claims.records} - planned)):
        raise _other_run(job, f"it has other steps: {plain(shortened(others, 3), 200)}")
    hosts = {host for record in claims.records for host in _named(record)}
    most = plan.nodes if plan else None
    if most is not None and len(hosts) > most:
        raise _other_run(job, f"it is about {count(len(hosts), 'host')}, and {most} were ordered")
    if order:
        known = _hosts_of(job, order)
        if len(known) >= (most or 1) and (others := sorted(hosts - known)):
            raise _other_run(job, f"it is about other hosts: {plain(shortened(others, 3), 200)}")
        kept = {record.attempt for record in claims.records if record.attempt}
        if others := sorted(kept - _earlier_runs(order)):
            raise _other_run(job, f"steps were kept from {plain(shortened(others, 3), 200)}")
    times = [at for record in claims.records if not record.attempt for at in _times(record)]
    began, now = job.began, time.time()
    if times and began is not None:
        first, last = min(times), max(times)
        if first < began - _CLOCK_SECONDS or last > now + _CLOCK_SECONDS:
            raise _other_run(
                job,
                f"it was measured from {_day(first)} to {_day(last)}, and the run was started on "
                f"{_day(began)} (or a clock is wrong by more than a day)",
            )


def _hosts_of(job: Job, order: Resolved) -> set[str]:
    """Return the ordered hosts by their names in the run; nothing if they are not known here."""
    lost = (problem.host for problem in order.lost if problem.host)
    # In pods, the job has no host, or that of index 0 under its own name.
    return {*order.hosts, *lost, *(job.hosts if not job.on_cluster else ())}


def _earlier_runs(order: Resolved | None) -> set[str]:
    """Return the names of the runs whose finished steps an order continues."""
    names: set[str] = set()
    while order and order.earlier and (run := Path(order.earlier).parent).name not in names:
        names.add(run.name)
        order = _order_of(run)
    return names


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(min(max(seconds, 0.0), 1e11)))


def _refuse_unsealed(folder: Path, records: Sequence[Record]) -> None:
    """Raise BadEvidence if a log that a judgement reads is not in the list of checksums."""
    sealed = evidence.sealed_names(folder)
    for record in records:
        is_sealed = not record.log or evidence.is_sealed(record.log, sealed)
        if not is_sealed and os.path.lexists(folder / record.log):
            raise _changed(f"{plain(record.log, 200)} is not in {evidence.CHECKSUMS}")


def _signed_by(folder: Path, keys: Sequence[PublicKey]) -> tuple[PublicKey, ...]:
    """Return those of `keys` that signed the evidence."""
    names = (evidence.RUN_SIGNATURE, evidence.USER_SIGNATURE)
    files = [name for name in names if keys and (folder / name).is_file()]
    return tuple(filter(None, (signer(folder, name, tuple(keys)) for name in files)))


def _refuse_not_signed(folder: Path, key: PublicKey) -> str:
    """Raise BadEvidence if the key of the run did not sign the evidence, and the run hides why.

    Return the reason that the run gave; empty: it signed the evidence.
    """
    if (folder / evidence.RUN_SIGNATURE).is_file():
        if signer(folder, evidence.RUN_SIGNATURE, (key,)) is None:
            raise _not_signed(f"{evidence.RUN_SIGNATURE} is not a signature of the run's key")
        return ""
    if reason := next(_reasons(folder), ""):
        return reason
    raise _not_signed(
        f"{evidence.RUN_SIGNATURE} is missing, and the run did not report that it cannot sign"
    )


def _reasons(folder: Path) -> Iterator[str]:
    """Yield why the run did not sign its evidence, from its console."""
    try:
        with open_regular(folder / evidence.CONSOLE) as file:
            file.seek(max(0, file.seek(0, 2) - _CONSOLE_BYTES))
            lines = file.read(_CONSOLE_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, found, reason = line.partition(f"{evidence.NOT_SIGNED}: ")
        if found:
            yield plain(reason, 200)


def _changed(what: str) -> BadEvidence:
    return BadEvidence(
        what,
        code=Code.EVIDENCE_CHANGED,
        hint="collect the run again, or ask who changed it",
    )


def _other_run(job: Job, what: str) -> BadEvidence:
    return BadEvidence(
        f"this is not the evidence of {job.attempt} that was ordered: {what}",
        code=Code.EVIDENCE_OTHER_RUN,
        hint=f"the order is {rundir.RUN} in the folder of the run: ask who has access to its first "
        "host, or who sent this",
    )


def _not_signed(what: str) -> BadEvidence:
    return BadEvidence(
        what,
        code=Code.EVIDENCE_SIGNATURE,
        hint="it was changed after it was signed, or another key signed it: ask who sent it",
    )


def explained(verified: Verified) -> tuple[str, str, str]:
    """Return three sentences: what was checked of the files and of the order, and what was not."""
    files = "Every file that the verdict rests on has the checksum of its list"
    if verified.signed_by:
        holders = ", ".join(plain(holder, 80) for holder in verified.signed_by)
        files += f", and that list was signed by {holders}."
    elif verified.outcome is Verification.UNMODIFIED:
        files += ", and that list is the one that this workstation fetched."
    elif verified.unsigned:
        files += f", but the run did not sign that list: {verified.unsigned}."
    else:
        files += ", but no known key signed that list: a change would not be seen."
    ordered = (
        "Run, plan with its steps and bounds, hosts and day are as this workstation ordered them."
        if verified.ordered
        else "This workstation did not start the run, so it does not know what was ordered: "
        "compare steps, bounds and hosts with your order."
    )
    figures = (
        "The figures were not checked: who is root on a host of the run can make up any figure."
    )
    return files, ordered, figures
