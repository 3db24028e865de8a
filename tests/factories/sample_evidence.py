"""Evidence of an invented run, written with the functions of the product."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

from tests.factories import verdicts

from accept.core import evidence
from accept.core.checks import REGISTRY, parse_log
from accept.core.judge import judge
from accept.core.plan import GroupKind, Plan, Step
from accept.core.records import Record
from accept.core.report import write_judgement
from accept.core.serde import dump
from accept.core.verdict import Verdict
from accept.evidence.untrusted import OTHER_SUFFIXES

STEP = Step(id="10-script", checks=("script",), script="steps/10-script.sh", groups=GroupKind.ALL)


def hashed(plan: Plan) -> Plan:
    """Return a plan with its hash."""
    return replace(plan, hash=evidence.plan_hash(dump(plan)))


#: A plan with the hash of the other files that rendering adds.
PLAN: Plan = hashed(replace(verdicts.plan(STEP, nodes=1), files_hash="f" * 64))
LOG = 'ACCEPT {"metric":"speed","value":7.5,"unit":"m/s"}\nsome text\n'


def record(log: str = LOG, *, status: int = 0) -> Record:
    """Return the record of the only step, parsed from its log."""
    parsed = parse_log(STEP.checks, log.encode().splitlines(keepends=True), ("h0",))
    return Record(
        step=STEP.id,
        checks=STEP.checks,
        wave=0,
        group=0,
        hosts=("h0",),
        ranks=2,
        exit=status,
        # As older versions named it.
        log=f"logs/{STEP.id}/0-0.log",
        metrics=parsed.metrics,
        facts=parsed.facts,
        problems=parsed.problems,
    )


def verdict_of(*records: Record, interruption: str = "", attempt: str = "one") -> Verdict:
    """Return the coordinator's verdict."""
    kept = (verdicts.hosts_record(("h0",)), *records)
    return judge(PLAN, kept, checks=REGISTRY, attempt=attempt, interruption=interruption)


def write(
    folder: Path,
    log: str = LOG,
    *,
    plan: Plan = PLAN,
    status: int = 0,
    whole: bool = True,
    interruption: str = "",
    attempt: str = "one",
) -> Path:
    """Write an evidence folder; without `whole`, as if the coordinator died before the end.

    Like the evidence of a real run, it has files whose names are not those of logs.
    """
    records = (verdicts.hosts_record(("h0",)), record(log, status=status))
    path = folder / records[1].log
    path.parent.mkdir(parents=True)
    path.write_text(log)
    evidence.write(folder / evidence.PLAN, json.dumps(dump(plan)))
    evidence.write(folder / "hosts.json", json.dumps({"attempt": attempt}))
    for written in records:
        evidence.append_record(folder, written)
    for suffix in sorted(OTHER_SUFFIXES):
        attachment = folder / evidence.COLLECTORS / "h0" / f"attachment.{suffix}"
        attachment.parent.mkdir(parents=True, exist_ok=True)
        attachment.write_text(f"of {suffix}\n")
    if whole:
        evidence.write_run_end(folder, interruption)
        verdict = verdict_of(records[1], interruption=interruption)
        write_judgement(folder, plan, verdict)
        evidence.write_checksums(folder)
    return folder


def archive(folder: Path, target: Path) -> Path:
    """Pack a folder into an archive like the one of the first host; return the archive."""
    with tarfile.open(target, "w") as tar:
        tar.add(folder, arcname="evidence")
    return target


def console(*records: Record, interruption: str = "", attempt: str = "one") -> str:
    """Return the log of a coordinator that ends with the packed evidence."""
    kept = (verdicts.hosts_record(("h0",)), *records)
    verdict = verdict_of(*records, interruption=interruption, attempt=attempt)
    packed = evidence.pack(PLAN, kept, verdict)
    return f"some progress\nverdict of the coordinator:\n{packed}"
