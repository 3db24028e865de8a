"""Load evidence or logs, and judge them by their own bounds, or by those of a user."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from accept import __version__, backends
from accept.backends.protocol import Phase
from accept.commands import order
from accept.commands.order import Claims, Verified
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.config.machine import Machine
from accept.config.tool_file import planned_checks
from accept.config.versions import supported
from accept.core import evidence
from accept.core.checks import REGISTRY, metric_spec, parse_log, with_problems_seen
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput
from accept.core.judge import judge
from accept.core.judge.summary import tolerated
from accept.core.plan import SCHEMA, BoundKind, Plan, Tool
from accept.core.records import Record
from accept.core.safe_read import BLOCK, is_file, open_regular
from accept.core.serde import Invalid, dump
from accept.core.signatures import PublicKey
from accept.core.table import Row, Table, figures
from accept.core.text import command_line, count, plain, shortened
from accept.core.verdict import Verdict
from accept.evidence import bucket, rundir, search, standard_input
from accept.evidence.untrusted import Limits
from accept.foreign_logs import to_run
from accept.report.data import Run


def is_reference(row: Row) -> bool:
    """Return True if a value can be a reference: it is of whole nodes, and its metric allows it."""
    spec = metric_spec(row.check, row.metric)
    return spec is not None and spec.baseline and not row.ranks and (row.value or 0.0) > 0


#: Logs of others do not show an interruption.
_NO_END = evidence.RunEnd(schema=SCHEMA, interruption="")


@dataclass(frozen=True, kw_only=True)
class LoadedEvidence(Claims):
    """The evidence of a run. Raw logs, if there are any, were parsed again for the records."""

    #: When the run ended, and why if it ended early.
    end: evidence.RunEnd
    #: Name of the evidence for people: PATH, or ARCHIVE:FOLDER.
    source: str = ""
    #: Number of other files beside it that may be logs.
    others: int = 0
    verified: Verified


def load(
    path: str, limits: Limits, say: Callable[[str], None], keys: Sequence[PublicKey] = ()
) -> Iterator[LoadedEvidence]:
    """Load the evidence of each run that `path` contains, one after another; none: only logs.

    If there are `keys`, one of them must have signed it. Raises BadInput if `path` names nothing,
    and BadEvidence if evidence is incomplete or modified, or does not answer the order.
    """
    if bucket.is_url(path):
        with tempfile.TemporaryDirectory(prefix="accept-judge-") as scratch:
            target = Path(scratch) / "evidence"
            bucket.fetch(path, target, partial=False)
            yield replace(_of_folder(target, keys), folder=None, source=path)
        return
    place = Path(path)
    if not rundir.names_file(path):
        place = rundir.find(path)
        if path == "last" or _is_run(place):
            name = "last" if path == "last" else place.name
            yield replace(_of_run(place, name, keys), source=path)
            return
    contents = search.search(place, limits)
    if not contents.runs and contents.others > _MANY_FILES:
        say(
            f"{place}: {contents.may_be_logs} of {contents.others} files look like logs by their "
            "names; reading them"
        )
    others = contents.may_be_logs
    loaded: set[tuple[str, str]] = set()
    for found in contents.runs:
        run = _of_found(found, limits, keys)
        loaded.add((run.plan.hash, run.attempt))
        yield replace(run, others=others)
    for found in search.packed_logs(place, limits, contents.runs):
        try:
            run = _of_log(search.content(found, limits), found.name, keys)
        except BadEvidence as error:
            # It contains only the number of its records. Evidence beside it contains them.
            if loaded and error.code is Code.EVIDENCE_TOO_LARGE_FOR_LOG:
                continue
            raise
        # A saved log of a run whose evidence is there too.
        if (run.plan.hash, run.attempt) not in loaded:
            loaded.add((run.plan.hash, run.attempt))
            yield replace(run, source=found.name, others=others - 1)


def _is_run(folder: Path) -> bool:
    """Return True if this is a run folder or evidence, and not a folder that contains some."""
    names = (
        *(evidence.PLAN, evidence.RECORDS, evidence.CHECKSUMS, evidence.VERDICT, evidence.HOSTS),
        *(rundir.RUN, rundir.JOB),
    )
    console = folder / evidence.CONSOLE
    return any((folder / name).exists() for name in names) or (
        is_file(console) and not console.is_symlink() and evidence.is_packed(console)
    )


def _of_run(folder: Path, name: str, keys: Sequence[PublicKey]) -> LoadedEvidence:
    inner = folder / rundir.EVIDENCE
    if not inner.is_dir() and (folder / rundir.JOB).is_file():
        raise _not_collected(folder, name)
    if inner.is_symlink():
        # Only a link that the user named is followed.
        raise BadEvidence(
            f"{plain(str(inner), 200)} is a link",
            code=Code.EVIDENCE_UNREADABLE,
            hint="name the folder that it leads to",
        )
    return _of_folder(inner if inner.is_dir() else folder.resolve(), keys)


def _of_found(found: search.Found, limits: Limits, keys: Sequence[PublicKey]) -> LoadedEvidence:
    if found.path is not None:
        return replace(_of_folder(found.path, keys), source=found.name)
    with search.unpacked(found, limits) as folder:
        try:
            return replace(_of_folder(folder, keys), folder=None, source=found.name)
        except BadEvidence as error:
            message = error.message.replace(str(folder), found.name)
            raise BadEvidence(message, code=error.code, hint=error.hint) from None


def _not_collected(folder: Path, name: str) -> BadEvidence:
    """Return the error for a run folder without evidence; `name` is what commands call the run."""
    if not rundir.is_own(folder):
        return BadEvidence(
            f"{folder} holds no evidence",
            code=Code.EVIDENCE_NONE,
            hint="ask whoever ran it for the folder `evidence` of the run",
        )
    progress = backends.progress_of(folder)
    if progress.phase is Phase.RUNNING:
        return BadEvidence(
            f"{folder.name} is still {progress.text}",
            code=Code.RUN_STILL_RUNNING,
            hint=f"follow it: {command_line('accept', 'watch', name)}",
        )
    if progress.phase is Phase.GONE:
        return BadEvidence(
            f"{folder.name} left no evidence", code=Code.EVIDENCE_GONE, hint="run again"
        )
    return BadEvidence(
        f"the evidence of {folder.name} was not collected",
        code=Code.EVIDENCE_NOT_COLLECTED,
        hint=f"fetch it: {command_line('accept', 'collect', name)}; if it still runs, follow it: "
        f"{command_line('accept', 'watch', name)}",
    )


def _of_log(
    blocks: Iterable[bytes], source: str, keys: Sequence[PublicKey], folder: Path | None = None
) -> LoadedEvidence:
    plan, records, verdict = evidence.unpack(evidence.lines_of(blocks), source)
    claims = Claims(plan=plan, records=records, attempt=verdict.attempt, folder=folder)
    end = evidence.RunEnd(schema=SCHEMA, interruption=verdict.interruption, end=verdict.end)
    return _loaded(claims, keys, end)


def _of_folder(folder: Path, keys: Sequence[PublicKey]) -> LoadedEvidence:
    console = folder / evidence.CONSOLE
    others = (evidence.PLAN, evidence.CHECKSUMS, evidence.RECORDS)
    if console.is_file() and not any((folder / name).exists() for name in others):
        # Only the log of the first pod was left of the run. It holds plan and records.
        with open_regular(console) as file:
            blocks = iter(partial(file.read, BLOCK), b"")
            return _of_log(blocks, str(console), keys, folder)
    claims = order.claims_of(folder)
    if (folder / evidence.CHECKSUMS).is_file():
        end = evidence.read_run_end(folder)
    else:
        reason = "the coordinator never finished: the evidence has no checksums"
        end = evidence.RunEnd(schema=SCHEMA, interruption=reason)
    loaded = _loaded(claims, keys, end)
    tools = {step.id: step.tool for step in loaded.plan.steps}
    version = loaded.plan.version
    return replace(
        loaded,
        records=tuple(
            _parse_log_again(folder, record, version, tools.get(record.step))
            for record in loaded.records
        ),
    )


def _loaded(claims: Claims, keys: Sequence[PublicKey], end: evidence.RunEnd) -> LoadedEvidence:
    match = order.matches_order(claims, keys)
    return LoadedEvidence(
        **vars(replace(claims, plan=match.plan)),
        end=end,
        verified=match.verified,
    )


def _parse_log_again(folder: Path, record: Record, version: str, tool: Tool | None) -> Record:
    """Return the record with metrics, facts and problems parsed from its raw log.

    So no value depends on the record alone. Problems that the coordinator found outside the log
    stay. Raises BadEvidence if the log is missing, or damaged: if its execution succeeded, the
    coordinator of this `version` read the same values from it.
    """
    if not record.log:
        return record
    lines = evidence.open_log(folder, record.log)
    if lines is None:
        raise BadEvidence(
            f"{folder / record.log} is missing, but the records contain {record.step}",
            code=Code.EVIDENCE_LOG_MISSING,
            hint="collect the run again",
        )
    parsed = parse_log(record.checks, lines, record.hosts, status=record.exit, tool=tool)
    # An execution that failed may leave processes that write on.
    is_final = record.exit == 0 and version == __version__
    if is_final and not (
        _is_same(parsed.metrics, record.metrics) and _is_same(parsed.facts, record.facts)
    ):
        raise BadEvidence(
            f"{folder / record.log} is damaged: its values are not those of its record in "
            f"{evidence.RECORDS}",
            code=Code.EVIDENCE_DAMAGED,
            hint="collect the run again; if that does not help, look at the disk of its first host",
        )
    problems = with_problems_seen(record.problems, parsed)
    return replace(record, metrics=parsed.metrics, facts=parsed.facts, problems=problems)


def _is_same(read: object, recorded: object) -> bool:
    # NaN is not equal to itself.
    return read == recorded or dump(read) == dump(recorded)


#: A path with more files than this is announced before it is read.
_MANY_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class Judged(to_run.RunData):
    """A verdict, and its plan and records."""

    verdict: Verdict
    #: The folder with the evidence; None: there is none on this machine.
    folder: Path | None = None
    #: `evidence.root_hash`; empty: it has no list of checksums.
    evidence_hash: str = ""
    #: Name of the evidence or logs for people.
    source: str = ""
    #: Paths of the logs of nccl-tests that were judged; none for evidence of a run.
    logs: tuple[Path, ...] = ()

    @property
    def run_folder(self) -> Path | None:
        """Return the folder of the run, if it is one of this workstation.

        It has the name of the run, also if a link or "." named it.
        """
        folder = self.folder
        return folder.parent.resolve() if folder and rundir.is_own_evidence(folder) else None

    @cached_property
    def run(self) -> Run:
        """Return what reports and explanations derive from the judgement."""
        return Run(plan=self.plan, verdict=self.verdict, records=self.records)

    @cached_property
    def figures(self) -> Table:
        """Return the values that can be compared with those of other runs."""
        return figures(self.plan.steps, self.records)


class GivenBounds(NamedTuple):
    """The machine and the thresholds that a user gives instead of those of the evidence."""

    machine: str | None = None
    expect: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Return them as options, for a command that is printed."""
        machine = () if self.machine is None else ("--machine", self.machine)
        return (*machine, *(word for bound in self.expect for word in ("--expect", bound)))


#: No others than those of the evidence.
OF_EVIDENCE = GivenBounds()


def judge_paths(
    paths: Sequence[str],
    by: GivenBounds = OF_EVIDENCE,
    *,
    collective: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    keys: Sequence[PublicKey] = (),
) -> list[Judged]:
    """Judge each run in `paths` alone, and all nccl-tests logs together.

    Paths with evidence of runs are not searched for logs. The references are those of the machine
    in `by`, if any; a run's own expectations apply in any case. `collective` is that of logs that
    do not name theirs, such as "all-reduce". If there are `keys`, one of them must have signed each
    evidence. Raises BadInput if a path names nothing, and BadEvidence if it holds neither complete
    evidence nor a log.
    """
    limits = Limits()
    other_machine = to_run.machine_of(by.machine)
    results: list[Judged] = []
    logs: dict[Path, str] = {}
    with ExitStack() as stack:
        # Path -> name for people.
        titles = {path: path for path in paths if path != standard_input.PATH}
        piped = None
        if standard_input.PATH in paths:
            piped = stack.enter_context(standard_input.saved())
            titles[str(piped)] = standard_input.NAME
        for path, title in titles.items():
            before = len(results)
            for loaded in load(path, limits, say, keys):
                results.append(_judge_run(loaded, by.expect, other_machine))
            if len(results) == before:
                # The names of files begin with it, so "my-logs/" and "./" become "my-logs" and ".".
                name = str(Path(title))
                logs[Path(path) if rundir.names_file(path) else rundir.find(path)] = name
        if logs:
            results.append(_judge_logs(logs, by.expect, other_machine, limits, collective))
    if piped is None:
        return results
    return [
        replace(one, source=standard_input.named(one.source, piped), logs=()) for one in results
    ]


def judge_path(path: str, by: GivenBounds = OF_EVIDENCE) -> Judged:
    """Judge the run or the logs at `path`. Raises BadInput if it contains several runs."""
    results = judge_paths((path,), by)
    if len(results) > 1:
        raise BadInput(
            f"{plain(path)} contains {len(results)} runs: "
            f"{shortened([plain(judged.source) for judged in results], 3)}",
            code=Code.EVIDENCE_SEVERAL,
            hint="name one of them",
        )
    return results[0]


def _judge_run(loaded: LoadedEvidence, expect: Sequence[str], machine: Machine | None) -> Judged:
    plan = loaded.plan
    if machine is not None:
        expectations = (bound for bound in plan.references if bound.kind is BoundKind.EXPECTATION)
        references = (*expectations, *bounds(machine, gpus_per_node=plan.gpus_used))
        plan = replace(
            plan,
            machine=machine.planned(),
            references=references,
            supported=supported(machine),
        )
    plan, verdict = _judged(plan, loaded.records, expect, loaded.attempt, loaded.end)
    others = f"{count(loaded.others, 'other file')} beside the evidence: not judged"
    return Judged(
        verdict=replace(verdict, verified=loaded.verified.outcome),
        plan=plan,
        records=loaded.records,
        folder=loaded.folder,
        evidence_hash=loaded.verified.hash,
        notes=(others,) if loaded.others else (),
        source=loaded.source,
    )


def _judge_logs(
    paths: Mapping[Path, str],
    expect: Sequence[str],
    machine: Machine | None,
    limits: Limits,
    collective: str | None,
) -> Judged:
    name = collective.replace("-", "_") if collective else None
    logs = to_run.load(paths, machine, limits, collective=name)
    attempt = next(iter(paths)).resolve().name if len(paths) == 1 else f"{len(paths)} paths"
    plan, verdict = _judged(logs.plan, logs.records, expect, attempt, _NO_END)
    return Judged(
        **vars(replace(logs, plan=plan)),
        verdict=verdict,
        source=", ".join([*paths.values()][:3]),
        logs=tuple(paths),
    )


def _judged(
    plan: Plan,
    records: tuple[Record, ...],
    expect: Sequence[str],
    attempt: str,
    end: evidence.RunEnd,
) -> tuple[Plan, Verdict]:
    try:
        own = planned_checks(plan)
        expectations = tuple(parse_expectation(t, source="--expect", own=own) for t in expect)
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", code=error.code, hint=error.hint) from None
    # What is expected must be measured, also if the run left its check out.
    expected = {one.check for one in expectations}.difference(plan.checks)
    plan = replace(
        plan,
        references=(*expectations, *plan.references),
        skipped=tuple(one for one in plan.skipped if one.check not in expected),
    )
    verdict = judge(
        plan,
        records,
        checks=REGISTRY,
        attempt=attempt,
        interruption=end.interruption,
        end=end.end,
    )
    return plan, replace(verdict, version=__version__)


def with_max_bad(judged: Judged, most: int) -> Judged:
    """Return the judgement if the user accepts a run with at most `most` bad nodes."""
    return replace(judged, verdict=tolerated(judged.verdict, most))


def ranks_per_host(records: Iterable[Record]) -> int:
    """Return the highest number of ranks on a host; 0 if no record shows it."""
    return max((r.ranks // len(r.hosts) for r in records if r.hosts), default=0)
