"""Judge evidence again: of a run, or in a folder, archive, saved log or bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from accept import __version__, backends, config
from accept.backends.protocol import Phase
from accept.commands import order
from accept.commands.order import Claims, Verified
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.config.machine import Machine
from accept.config.tool_file import planned_checks
from accept.config.versions import supported
from accept.core import checks, evidence
from accept.core.checks import REGISTRY, parse_log, with_problems_seen
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput, Exit
from accept.core.judge import judge
from accept.core.judge.summary import node_lists, tolerated
from accept.core.model import (
    BoundKind,
    GroupKind,
    Plan,
    Record,
    Reference,
    State,
    Suspect,
    SuspectKind,
    Tool,
    Verdict,
    Verification,
    worst_exit,
)
from accept.core.report import judgement
from accept.core.report import text as reports
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.report.text import Place
from accept.core.safe_read import BLOCK, open_regular
from accept.core.serde import Invalid, dump
from accept.core.signatures import PublicKey, read_public_keys
from accept.core.table import Row, Table, figures, table_of
from accept.core.text import command_line, count, plain, shortened
from accept.evidence import bucket, rundir, search, standard_input
from accept.evidence.untrusted import Limits
from accept.foreign_logs import to_run
from accept.foreign_logs.answer import Answer
from accept.foreign_logs.corpus import NothingMeasured
from accept.foreign_logs.tables import SkippedFile
from accept.report.console import Terminal
from accept.report.data import Run as ReportedRun
from accept.report.html import render_html
from accept.report.node_commands import node_commands, saved_provider_ids


@dataclass(frozen=True, kw_only=True)
class MeasuredValue:
    """One value that one group of hosts measured, in the output of `accept judge --json`."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    hosts: tuple[str, ...]
    #: Local ranks that took part on each host; empty: all.
    ranks: tuple[int, ...]
    #: Requested message size in bytes; None: the metric has no size.
    size: int | None
    value: float
    log: str


def is_reference(row: Row) -> bool:
    """Return True if a value can be a reference: it is of whole nodes, and its metric allows it."""
    spec = checks.metric_spec(row.check, row.metric)
    return spec is not None and spec.baseline and not row.ranks and (row.value or 0.0) > 0


@dataclass(frozen=True, kw_only=True)
class LoadedEvidence:
    """The evidence of a run. Raw logs, if there are any, were parsed again for the records."""

    plan: Plan
    records: tuple[Record, ...]
    attempt: str
    #: Why the run ended early; empty: it did not.
    interruption: str
    folder: Path | None = None
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
    if path == "last" or not rundir.is_file(place):
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
        rundir.is_file(console) and not console.is_symlink() and evidence.is_packed(console)
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
    return _loaded(claims, keys, verdict.interruption)


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
        interruption = evidence.read_interruption(folder)
    else:
        interruption = "the coordinator never finished: the evidence has no checksums"
    loaded = _loaded(claims, keys, interruption)
    tools = {step.id: step.tool for step in loaded.plan.steps}
    version = loaded.plan.version
    return replace(
        loaded,
        records=tuple(
            _parse_log_again(folder, record, version, tools.get(record.step))
            for record in loaded.records
        ),
    )


def _loaded(claims: Claims, keys: Sequence[PublicKey], interruption: str) -> LoadedEvidence:
    match = order.matches_order(claims, keys)
    return LoadedEvidence(
        plan=match.plan,
        records=claims.records,
        attempt=claims.attempt,
        interruption=interruption,
        folder=claims.folder,
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
#: Most files without results that a terminal shows; --json has all.
_MAX_SKIPPED = 3


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, and its plan and records."""

    verdict: Verdict
    plan: Plan
    records: tuple[Record, ...]
    #: The folder with the evidence; None: there is none on this machine.
    folder: Path | None = None
    #: `evidence.root_hash`; empty: it has no list of checksums.
    evidence_hash: str = ""
    #: The machine that nccl-tests logs show; None for evidence of a run.
    machine: Machine | None = None
    #: Names of the machines that the logs may be of, if they do not show which.
    candidates: tuple[str, ...] = ()
    #: Remarks for people, one line each.
    notes: tuple[str, ...] = ()
    #: Files that were left out.
    skipped: tuple[SkippedFile, ...] = ()
    #: Collectives without a check, with the number of their tables.
    unjudged: dict[str, int] = field(default_factory=dict)
    #: Why a job failed, as its log shows it; None: none did, or it is evidence of a run.
    answer: Answer | None = None
    #: Name of the evidence or logs for people.
    source: str = ""
    #: Paths of the logs of nccl-tests that were judged; none for evidence of a run.
    logs: tuple[Path, ...] = ()

    @cached_property
    def figures(self) -> Table:
        """Return the values that can be compared with those of other runs."""
        return figures(self.plan.steps, self.records)


def judge_paths(
    paths: Sequence[str],
    *,
    expect: Sequence[str],
    machine: str | None = None,
    collective: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    keys: Sequence[PublicKey] = (),
) -> list[Judged]:
    """Judge each run in `paths` alone, and all nccl-tests logs together.

    Paths with evidence of runs are not searched for logs. The references are those of `machine` if
    it is given; a run's own expectations apply in any case. `collective` is that of logs that do
    not name theirs, such as "all-reduce". If there are `keys`, one of them must have signed each
    evidence. Raises BadInput if a path names nothing, and BadEvidence
    if it holds neither complete evidence nor a log.
    """
    judge_titled = partial(
        _judge_paths, expect=expect, machine=machine, collective=collective, say=say, keys=keys
    )
    if standard_input.PATH not in paths:
        return judge_titled({path: path for path in paths})
    with standard_input.saved() as file:
        titles = {path: path for path in paths if path != standard_input.PATH}
        judged = judge_titled({**titles, str(file): standard_input.NAME})
        return [
            replace(one, source=standard_input.named(one.source, file), logs=()) for one in judged
        ]


def _judge_paths(
    paths: Mapping[str, str],
    *,
    expect: Sequence[str],
    machine: str | None,
    collective: str | None,
    say: Callable[[str], None],
    keys: Sequence[PublicKey],
) -> list[Judged]:
    """Judge as `judge_paths` does; the values of `paths` are their names for people."""
    limits = Limits()
    other_machine = to_run.machine_of(machine)
    results: list[Judged] = []
    logs: dict[Path, str] = {}
    for path, title in paths.items():
        before = len(results)
        for loaded in load(path, limits, say, keys):
            results.append(_judge_run(loaded, expect, other_machine))
        if len(results) == before:
            # The names of files begin with it, so "my-logs/" and "./" become "my-logs" and ".".
            name = str(Path(title))
            logs[Path(path) if rundir.is_file(Path(path)) else rundir.find(path)] = name
    if logs:
        results.append(_judge_logs(logs, expect, other_machine, limits, collective))
    return results


def judge_path(path: str, *, expect: Sequence[str], machine: str | None = None) -> Judged:
    """Judge the run or the logs at `path`. Raises BadInput if it contains several runs."""
    results = judge_paths((path,), expect=expect, machine=machine)
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
    plan, verdict = _judged(plan, loaded.records, expect, loaded.attempt, loaded.interruption)
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
    attempt = next(iter(paths)).name if len(paths) == 1 else f"{len(paths)} paths"
    plan, verdict = _judged(logs.plan, logs.records, expect, attempt, "")
    return Judged(
        verdict=verdict,
        plan=plan,
        records=logs.records,
        machine=logs.machine,
        candidates=logs.candidates,
        notes=logs.notes,
        skipped=logs.skipped,
        unjudged=logs.unjudged,
        answer=logs.answer,
        source=", ".join([*paths.values()][:3]),
        logs=tuple(paths),
    )


def _judged(
    plan: Plan, records: tuple[Record, ...], expect: Sequence[str], attempt: str, interruption: str
) -> tuple[Plan, Verdict]:
    try:
        own = planned_checks(plan)
        expectations = tuple(parse_expectation(t, source="--expect", own=own) for t in expect)
    except Invalid as error:
        raise BadInput(f"--expect: {error.message}", code=error.code, hint=error.hint) from None
    plan = replace(plan, references=(*expectations, *plan.references))
    verdict = judge(plan, records, checks=REGISTRY, attempt=attempt, interruption=interruption)
    return plan, replace(verdict, version=__version__)


def with_max_bad(judged: Judged, most: int) -> Judged:
    """Return the judgement if the user accepts a run with at most `most` bad nodes."""
    return replace(judged, verdict=tolerated(judged.verdict, most))


def _refuse_unverified(judged: Judged) -> Judged:
    """Return the judgement with exit code 7, or a worse one, unless somebody vouches for it."""
    if judged.verdict.verified in (Verification.SIGNED, Verification.UNMODIFIED):
        return judged
    code = worst_exit((judged.verdict.exit, Exit.INCONCLUSIVE))
    return replace(judged, verdict=replace(judged.verdict, exit=code))


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


def text(judged: Judged, terminal: Terminal, by: GivenBounds = OF_EVIDENCE) -> str:
    """Return the verdict, judged `by` a user's bounds, as text for the terminal."""
    place = replace(_place(judged, by), as_called=terminal.as_called)
    notes = [*judged.notes]
    if judged.skipped:
        files = [f"{skipped.file} ({skipped.reason})" for skipped in judged.skipped]
        left_out = f"Left out: {count(len(files), 'file')} without results: "
        notes.append(left_out + shortened(files, _MAX_SKIPPED))
    return reports.table(
        judged.verdict,
        width=min(terminal.width, 80),
        color=terminal.color,
        place=replace(place, notes=tuple(notes)),
    )


@dataclass(frozen=True, kw_only=True)
class NotTested:
    """A check that did not run or was not planned, or a collective without a check."""

    check: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class JudgedVerdict(Verdict):
    """The output of `accept judge --json`: a verdict, and what it rests on."""

    #: One value for each execution.
    metrics: tuple[MeasuredValue, ...]
    #: References and expectations of the checks that ran.
    references: tuple[Reference, ...]
    not_tested: tuple[NotTested, ...]
    #: Only if logs of nccl-tests were judged.
    skipped: tuple[SkippedFile, ...]
    #: Remarks for people, one line each.
    notes: tuple[str, ...]
    #: Why a job failed, as its log shows it; None: none did, or it is evidence of a run.
    answer: Answer | None


@dataclass(frozen=True, kw_only=True)
class NoVerdict:
    """The output of `accept judge --json` for logs that measured nothing: why they did not."""

    #: Nothing was measured, so there is none.
    state: None
    exit: Exit
    code: Code
    headline: str
    answer: Answer
    #: The answers of the other logs.
    also_failed: tuple[Answer, ...]
    #: As in a verdict, and always empty.
    suspects: tuple[Suspect, ...] = ()
    metrics: tuple[MeasuredValue, ...] = ()


def with_measurements(judged: Judged) -> JudgedVerdict:
    """Return the verdict with its measurements and references."""
    judged_checks = {check for step in judged.plan.steps for check in step.checks}
    return JudgedVerdict(
        **vars(judged.verdict),
        metrics=tuple(_measured_values(judged)),
        references=tuple(ref for ref in judged.plan.references if ref.check in judged_checks),
        not_tested=tuple(_not_tested(judged, judged_checks)),
        skipped=judged.skipped,
        notes=judged.notes,
        answer=judged.answer,
    )


def _measured_values(judged: Judged) -> Iterator[MeasuredValue]:
    figures: Iterable[Row] = judged.figures
    if judged.plan.origin:
        # Figures of other programs have a size and a NIC.
        others = table_of(judged.plan.steps, judged.records)
        figures = (*figures, *(row for row in others if row.check == "script"))
    for row in figures:
        if row.value is not None:
            yield MeasuredValue(
                check=row.check,
                metric=row.metric,
                unit=row.unit,
                groups=row.step.groups,
                hosts=row.hosts,
                ranks=row.ranks,
                size=row.nominal_size,
                value=row.value,
                log=row.log,
            )


def _not_tested(judged: Judged, judged_checks: set[str]) -> Iterator[NotTested]:
    for check in judged.verdict.checks:
        if check.state is State.NOT_TESTED:
            reason = next((f.message for f in check.findings if f.state is check.state), "")
            yield NotTested(check=check.check, reason=reason)
    not_planned = "the logs do not show it" if judged.plan.origin else "not part of the run"
    planned = judged_checks | {check.check for check in judged.verdict.checks}
    for name in dict.fromkeys((*checks.REGISTRY, *judged.unjudged)):
        has_own = name in REGISTRY and REGISTRY[name].user_script
        if name not in planned and not has_own:
            reason = "no check judges that" if name in judged.unjudged else not_planned
            yield NotTested(check=name, reason=reason)


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The output of `accept report --json`: the files that it wrote, or the one that it printed."""

    files: tuple[str, ...] | None = None
    html: str | None = None
    md: str | None = None
    junit: str | None = None


def write_reports(judged: Judged, terminal: Terminal) -> tuple[str, ...]:
    """Write the verdict, the lists of nodes and all reports, and return the paths.

    Those of an own run replace those in its evidence. Raises BadInput if there is no folder.
    """
    if judged.folder is None:
        raise BadInput(
            "there is no folder to write to",
            code=Code.EVIDENCE_NO_FOLDER,
            hint="give --format html, md or junit",
        )
    try:
        written = write_verdict(judged, judged.folder)
        page = rundir.write_about(judged.folder, rundir.REPORT, html_page(judged, terminal))
    except OSError as error:
        raise not_written(error) from None
    return (*written, str(page))


def write_verdict(judged: Judged, folder: Path) -> tuple[str, ...]:
    """Write the verdict, its short reports and the lists of nodes, and return the paths.

    `folder` is that of the evidence. The lists are never in it, because its checksums cover all
    files. In the folder of a run they show that this workstation has judged it.
    """
    files = judgement(judged.plan, judged.verdict, judged.records)
    if rundir.is_own_evidence(folder):
        written = [evidence.write(folder / name, text) for name, text in files.items()]
    else:
        written = [rundir.write_about(folder, *file) for file in files.items()]
    for name, hosts in vars(node_lists(judged.verdict)).items():
        text = "".join(f"{plain(host)}\n" for host in hosts)
        written.append(rundir.write_about(folder, f"{rundir.NODES}/{name}.txt", text))
    return tuple(map(str, written))


def not_written(error: OSError) -> BadInput:
    """Return the error for a file about evidence that cannot be written."""
    return BadInput(
        f"{plain(error.filename, 200)} cannot be written: {error.strerror}",
        code=Code.OUTPUT_WRITE,
        hint="free space there, or copy the evidence to another folder",
    )


def html_page(judged: Judged, terminal: Terminal) -> str:
    """Return the report as a page, with commands that work in the shell of this user."""
    run = reported(judged)
    commands = tuple((terminal.as_called(command), purpose) for command, purpose in run.commands)
    return render_html(replace(run, commands=commands))


def reported(judged: Judged) -> ReportedRun:
    """Return what a report shows of a judgement."""
    return ReportedRun(
        plan=judged.plan,
        verdict=judged.verdict,
        records=judged.records,
        evidence_hash=judged.evidence_hash,
        commands=_place(judged).commands,
    )


#: Hosts in one command; the list in `nodes/bad.txt` has all.
_MOST_EXCLUDED = 8


def _place(judged: Judged, by: GivenBounds = OF_EVIDENCE) -> Place:
    """Return where the report is, and what to type next with the back end of the run."""
    folder = judged.folder
    knows_machine = judged.verdict.machine in config.names("machines")
    commands: list[tuple[str, str]] = []

    def add(purpose: str, *words: str) -> None:
        commands.append((command_line("accept", *words), purpose))

    if folder is None or not rundir.is_own_evidence(folder):
        if judged.candidates and judged.logs and judged.verdict.state is not State.PASS:
            machine = ("--machine", judged.candidates[0])
            add(
                "if it is your machine: with its references",
                "judge",
                *map(str, judged.logs),
                *machine,
            )
        return Place(commands=tuple(commands), knows_machine=knows_machine)
    run = folder.parent
    report = run / rundir.REPORT
    bad = node_lists(judged.verdict).bad
    if bad and not judged.verdict.injected:
        left = len(bad) - _MOST_EXCLUDED
        purpose = f"and {left} more: nodes/bad.txt" if left > 0 else "keep new work away"
        drain = _drain(judged, bad[:_MOST_EXCLUDED])
        commands += zip(drain, (purpose, "after the repair"), strict=False)
    if by != OF_EVIDENCE:
        # The other commands judge without them.
        if bad and not judged.verdict.injected:
            add("evidence for and against", "explain", run.name, bad[0], *by.words)
        return Place(commands=tuple(commands), knows_machine=knows_machine)
    if bad and not judged.verdict.injected:
        if can_retest(judged):
            add("measure it again, with good nodes", "retest", run.name)
            if _asks_for_rails(judged):
                add("is it one NIC? each rail by itself", "retest", run.name, "--rails")
        add("evidence for and against", "explain", run.name, bad[0])
        if can_write_ticket(judged, bad[0]):
            add("text and logs for the provider", "ticket", run.name, bad[0])
        add("the list, one per line", "show", "nodes", run.name, "--bad")
        if node_commands(judged.verdict, saved_provider_ids(folder)):
            purpose = "label them, report their hosts"
            add(purpose, "show", "nodes", run.name, "--commands")
    of_network = [suspect for suspect in judged.verdict.suspects if suspect.of_network]
    if of_network and not judged.verdict.injected:
        if can_retest(judged) and any(suspect.pairs for suspect in of_network):
            add("measure its bad pairs again", "retest", run.name, "--pairs")
        add("pairs and logs for the network", "ticket", run.name, "--fabric")
    can_refer = any(map(is_reference, judged.figures))
    # Without a GPU, the next run on a busier machine would be below its own references.
    is_steady = judged.verdict.gpu_tested
    if judged.verdict.state is State.PASS and knows_machine and can_refer and is_steady:
        add("tighter bounds next time", "baseline", run.name, "--out", "my.yaml")
    return Place(
        report=str(report) if report.is_file() else "",
        commands=tuple(commands),
        normal=_normal(judged),
        knows_machine=knows_machine,
    )


def _normal(judged: Judged) -> dict[str, str]:
    """Return, for each node that is slow only with others, how near its GPUs are to the median."""
    run = ReportedRun(plan=judged.plan, verdict=judged.verdict, records=judged.records)
    suspects = judged.verdict.suspects
    texts = {}
    for suspect in _slow_with_others(judged.verdict) if run.verdict.gpu_tested else ():
        host = suspect.hosts[0]
        own = {
            (one.check, one.metric, rank): abs(value / one.median - 1)
            for one in run.devices
            for (name, rank), value in one.values.items()
            if name == host and one.median and len({at for at, _ in one.values}) > 1
        }
        alone = all(host not in s.hosts for s in suspects if s.kind is SuspectKind.GPU)
        if own and alone:
            gpus = count(len({rank for *_, rank in own}), "GPU")
            names = " and ".join(dict.fromkeys(check for check, *_ in own))
            texts[suspect.name] = (
                f"its {gpus}: within {max(own.values()):.1%} of the median ({names})"
            )
    return texts


def _slow_with_others(verdict: Verdict) -> Iterator[Suspect]:
    """Yield the nodes that are slow in their pairs."""
    for suspect in verdict.suspects:
        if suspect.kind is SuspectKind.NODE and suspect.cause.row.slow and suspect.pairs:
            yield suspect


def _asks_for_rails(judged: Judged) -> bool:
    """Return True if a node is slow in its pairs, and no step measured its rails one by one."""
    return (
        any(_slow_with_others(judged.verdict))
        and all(step.groups is not GroupKind.RAIL_PAIRS for step in judged.plan.steps)
        and ranks_per_host(judged.records) > 1
    )


def ranks_per_host(records: Iterable[Record]) -> int:
    """Return the highest number of ranks on a host; 0 if no record shows it."""
    return max((r.ranks // len(r.hosts) for r in records if r.hosts), default=0)


def _drain(judged: Judged, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the command of the run's back end that takes hosts out of use, and its reverse."""
    folder = judged.folder
    if (
        folder is None
        or not rundir.is_own_evidence(folder)
        or not (folder.parent / rundir.JOB).is_file()
    ):
        return ()
    backend = backends.load_job(folder.parent).backend
    return backends.load(backend).drain(hosts, _reason(judged.verdict, hosts[0]))


def out_of_service(judged: Judged, node: str | None = None) -> tuple[str, ...]:
    """Return commands that take a bad node, or all, out of use, and report it to its provider.

    `accept` never executes them.
    """
    if judged.verdict.injected:
        return ()
    bad = [host for host in node_lists(judged.verdict).bad if node in (None, host)]
    ids = saved_provider_ids(judged.folder) if judged.folder else {}
    of_cluster = node_commands(judged.verdict, {host: ids[host] for host in bad if host in ids})
    return of_cluster or (_drain(judged, bad)[:1] if bad else ())


def can_retest(judged: Judged) -> bool:
    """Return True if `accept retest` can repeat the run: one of this machine, with a suspect."""
    folder, verdict = judged.folder, judged.verdict
    is_repeatable = (
        folder is not None
        and rundir.is_own_evidence(folder)
        and (folder.parent / rundir.RUN).is_file()
    )
    return is_repeatable and bool(verdict.suspects) and not verdict.injected


def can_write_ticket(judged: Judged, node: str) -> bool:
    """Return True if `accept ticket` has something to report about a node, and its logs."""
    has_logs = judged.folder is not None or bool(judged.logs)
    return has_logs and not judged.verdict.injected and bool(suspects_at(judged.verdict, node))


def suspects_at(verdict: Verdict, node: str) -> tuple[Suspect, ...]:
    """Return the suspects that are a node or a part of it, and not of the network."""
    return tuple(s for s in verdict.suspects if node in s.hosts and not s.of_network)


def _reason(verdict: Verdict, host: str) -> str:
    """Return why a bad host is taken out of use, for the records of a cluster."""
    suspects = (f"{s.cause} {{}} ({s.strength})" for s in verdict.suspects if host in s.hosts)
    return next(suspects, "{}").format(verdict.attempt)


def write_page(judged: Judged, terminal: Terminal) -> None:
    """Write the verdict and the reports of a run of this workstation, instead of its host's.

    The verdict matters more than its report: if that cannot be written, progress shows why.
    """
    if judged.folder is None or not rundir.is_own_evidence(judged.folder):
        return
    try:
        write_reports(judged, terminal)
    except BadInput as error:
        terminal.progress(f"report.html was not written: {error.message}")


def do_judge(
    paths: tuple[str, ...],
    terminal: Terminal,
    *,
    by: GivenBounds = OF_EVIDENCE,
    collective: str | None = None,
    max_bad: int = 0,
    keys: tuple[Path, ...] = (),
    must_be_verified: bool = False,
) -> int:
    """Judge evidence or nccl-tests logs, and return the worst exit code.

    `keys` are files with public keys. With `must_be_verified`, evidence that nobody vouches for is
    inconclusive.
    """
    try:
        results = judge_paths(
            paths or ("last",),
            expect=by.expect,
            machine=by.machine,
            collective=collective,
            say=terminal.progress,
            keys=tuple(key for file in keys for key in read_public_keys(file)),
        )
    except NothingMeasured as error:
        if terminal.json:
            terminal.result(_no_verdict(error), "")
        raise
    results = [with_max_bad(judged, max_bad) for judged in results]
    if must_be_verified:
        results = [_refuse_unverified(judged) for judged in results]
    for judged in results if by == OF_EVIDENCE else ():
        write_page(judged, terminal)
    if terminal.json:
        values = [with_measurements(judged) for judged in results]
        terminal.result(values if len(values) > 1 else values[0], "")
    else:
        if len(results) > 1:
            sources = (f"  {plain(judged.source)}" for judged in results)
            terminal.progress("\n".join([f"{len(results)} verdicts:", *sources]))
        for judged in results:
            heading = f"{plain(judged.source)}:\n" if len(results) > 1 else ""
            screen = text(judged, terminal, by)
            terminal.result(judged.verdict, heading + screen)
    is_lasting = standard_input.PATH not in paths
    if is_lasting and len(results) == len(paths) == 1 and results[0].folder is None:
        # There is no run folder that could have report.html already.
        page = command_line("accept", "report", paths[0], *by.words, "--format", "html")
        terminal.suggest(f"{page} > report.html")
    return worst_exit(judged.verdict.exit for judged in results)


def _no_verdict(error: NothingMeasured) -> NoVerdict:
    first, *others = error.answers
    return NoVerdict(
        state=None,
        exit=error.exit,
        code=error.code,
        headline=error.message,
        answer=first,
        also_failed=tuple(others),
    )


def _add_page(url: str, terminal: Terminal) -> str:
    """Write report.html beside the evidence in a bucket, and return its URL.

    The other reports are there already, because the coordinator wrote them.
    """
    with tempfile.TemporaryDirectory(prefix="accept-report-") as scratch:
        folder = Path(scratch) / rundir.EVIDENCE
        bucket.fetch(url, folder, partial=False)
        page = Path(scratch) / rundir.REPORT
        page.write_text(html_page(judge_path(str(folder), expect=()), terminal), encoding="utf-8")
        error = bucket.send(page, url, attempt="", partial=True)
    if error:
        raise BadInput(
            f"{rundir.REPORT} was not written to {plain(url, 200)}: {error}",
            code=Code.OUTPUT_WRITE,
            hint=f"{command_line('accept', 'report', url, '--format', 'html')} > {rundir.REPORT}",
        )
    return f"{url.rstrip('/')}/{rundir.REPORT}"


def do_report(name: str, terminal: Terminal, *, form: str, by: GivenBounds) -> int:
    """Write the reports, or print one of them.

    Those beside the evidence are by its own bounds. Raises BadInput if others are to be written.
    """
    if form == "files" and by != OF_EVIDENCE:
        page = command_line("accept", "report", name, *by.words, "--format", "html")
        raise BadInput(
            "the reports beside the evidence have its own machine and thresholds",
            code=Code.USAGE,
            hint=f"print one with yours: {page} > report.html",
        )
    if form == "files" and bucket.is_url(name):
        page = _add_page(name, terminal)
        terminal.result(Reports(files=(page,)), page)
        return Exit.PASS
    judged = judge_path(name, expect=by.expect, machine=by.machine)
    if form == "files":
        files = write_reports(judged, terminal)
        terminal.result(Reports(files=files), "\n".join(files))
        terminal.suggest("open report.html in a browser, or send it: it needs no other file")
    elif form == "html":
        html = html_page(judged, terminal)
        terminal.document(Reports(html=html), html)
    elif form == "md":
        page = render_markdown(judged.verdict, judged.plan, judged.records)
        terminal.document(Reports(md=page), page)
    else:
        xml = junit(judged.verdict, judged.records)
        terminal.document(Reports(junit=xml), xml)
    return Exit.PASS
