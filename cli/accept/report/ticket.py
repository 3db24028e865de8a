"""Write a ticket for the provider or the network team: a text, logs, and a script to repeat it."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from accept.config.resources import cause_section
from accept.core.evidence import COLLECTORS, open_log
from accept.core.facts import HOSTNAMES, PLACE, Inventory
from accept.core.model import Problem, Record, Suspect
from accept.core.safe_read import is_linked, open_regular
from accept.core.text import count, duration, markdown, plain, visible
from accept.report import repro
from accept.report.data import Population, Run, share_of
from accept.report.node_commands import SavedNode
from accept.report.redaction import Redactor
from accept.report.ticket_faults import (
    PHYSICAL_HOST,
    TicketFault,
    faults,
    gpu_rows,
    host_facts,
    nic_rows,
    utc,
)

#: Returns a log in blocks, by the name that records have for it; None: there is none.
ReadLog = Callable[[str], Iterable[bytes] | None]

TEXT, SCRIPT = "ticket.md", "repro.sh"
#: Maximum number of executions and problems in the text, of logs in the archive, and of lines of a
#: log in the text.
_MOST_ROWS, _MOST_LOGS, _MOST_LINES = 40, 24, 40
#: Bytes of the beginning and of the end of a log, and of one collector's output.
_LOG_PART, _MOST_OUTPUT = 64 << 10, 32 << 20
#: Time of all files in the archive, so that it is reproducible.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """The files of a ticket by their paths in its archive."""

    #: Name of its subject, for the names of the files on disk.
    name: str
    files: Mapping[str, bytes]
    faults: tuple[TicketFault, ...]

    @property
    def text(self) -> str:
        """Return the text."""
        return self.files[TEXT].decode()

    def archive(self) -> bytes:
        """Return all files as a zip archive; the same files give the same bytes."""
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(self.files.items()):
                entry = zipfile.ZipInfo(f"{self.name}/{name}", _EPOCH)
                entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
        return target.getvalue()


@dataclass(frozen=True, kw_only=True)
class _Execution:
    """One measurement of a suspect, or of another part of the subject."""

    population: Population
    index: int
    start: float
    bad: bool

    @property
    def log(self) -> str:
        """Return the path of its log in the evidence."""
        return self.population.samples[self.index].log

    @property
    def share(self) -> float:
        """Return its value as a share of normal; 0 if nothing was measured."""
        return share_of(self.population.samples[self.index], self.population.normal) or 0.0


def ticket(
    run: Run,
    evidence: Path | None,
    suspects: Sequence[Suspect],
    *,
    node: str | None,
    nodes: Mapping[str, SavedNode],
    settings: repro.Settings,
    redact: bool,
    read_log: ReadLog | None = None,
    excluded: Sequence[str] = (),
    commands: Sequence[str] = (),
    fresh: Mapping[str, bytes] = MappingProxyType({}),
) -> Ticket:
    """Return the ticket about `node`, or about the network between nodes if that is None.

    `evidence` is the folder of the evidence; None for logs that are read with `read_log` instead.
    `suspects` are its suspects, and `nodes` the cluster's records of the run's nodes. With
    `redact`, names and addresses are replaced in all files. `excluded` is what was measured to be
    normal, and `commands` take the node out of service. `fresh` are outputs of collectors on the
    node after the run, by their names; they replace those of the evidence.
    """
    if read_log is None and evidence is not None:
        read_log = partial(open_log, evidence)
    writer = _Writer(run, evidence, read_log, tuple(suspects), node, nodes, settings, redact=redact)
    writer.excluded, writer.commands, writer.fresh = tuple(excluded), tuple(commands), fresh
    return writer.ticket()


class _Writer:
    def __init__(
        self,
        run: Run,
        evidence: Path | None,
        read_log: ReadLog | None,
        suspects: tuple[Suspect, ...],
        node: str | None,
        nodes: Mapping[str, SavedNode],
        settings: repro.Settings,
        *,
        redact: bool,
    ) -> None:
        self.run, self.evidence, self.suspects, self.node = run, evidence, suspects, node
        self.read_log = read_log
        self.nodes, self.settings = nodes, settings
        self.excluded: tuple[str, ...] = ()
        self.fresh: Mapping[str, bytes] = {}
        self.commands: tuple[str, ...] = ()
        self.faults = tuple(faults(run, suspects, nodes))
        self.redacted = redact
        self.clean = _redactor(run, nodes) if redact else str
        in_pairs = (h for s in suspects for pair in s.pairs for h in pair.hosts)
        of_network = (h for s in suspects for h in (*s.hosts, *s.others))
        #: The nodes that the ticket is about.
        self.hosts = (node,) if node else tuple(dict.fromkeys((*of_network, *in_pairs)))
        self.executions = sorted(self._executions(), key=lambda one: (not one.bad, one.share))
        self.problems = [
            (record, problem)
            for record in run.records
            for problem in record.problems
            if problem.host in self.hosts
        ]

    def ticket(self) -> Ticket:
        files = {f"logs/{log}": text for log, text in self._logs()}
        files.update(self._collected())
        script = self._script()
        cleaned = {self.clean(name): self.clean(text) for name, text in files.items()}
        if script:
            # The programs contain nothing about the run, so they are not redacted.
            cleaned |= {SCRIPT: self.clean(script), **repro.programs()}
        cleaned[TEXT] = "\n".join(self._text(sorted(cleaned), has_script=bool(script))) + "\n"
        name = self.clean(self.node) if self.node else "fabric"
        return Ticket(
            name=re.sub(r"[^A-Za-z0-9_-]+", "_", plain(name, 80)).strip("_") or "node",
            files={path: text.encode() for path, text in cleaned.items()},
            faults=tuple(map(self._cleaned, self.faults)),
        )

    def _cleaned(self, fault: TicketFault) -> TicketFault:
        """Return a fault with its texts redacted."""
        return replace(
            fault,
            node=self.clean(fault.node),
            provider_id=self.clean(fault.provider_id),
            component=self.clean(fault.component),
            location=self.clean(fault.location),
            title=self.clean(fault.title),
            action=self.clean(fault.action),
            logs=tuple(map(self.clean, fault.logs)),
        )

    # What was measured

    def _executions(self) -> Iterator[_Execution]:
        bad_pairs = {frozenset(pair.hosts) for s in self.suspects for pair in s.pairs}
        starts = {(r.step, r.hosts, r.log): r.start for r in self.run.records}
        for population in self.run.populations:
            for index, sample in enumerate(population.samples):
                of_subject = self.node in sample.hosts if self.node else True
                if not self.node and bad_pairs:
                    of_subject = frozenset(sample.hosts) in bad_pairs
                if of_subject:
                    key = population.step.id, sample.hosts, sample.log
                    yield _Execution(
                        population=population,
                        index=index,
                        start=starts.get(key, 0.0),
                        bad=sample.bad,
                    )

    def _script(self) -> str:
        """Return the script for the worst measurement that it can repeat, pairs first."""
        worst = sorted(self.executions, key=lambda one: (not one.bad, -one.population.nodes))
        for one in worst:
            sample = one.population.samples[one.index]
            if text := repro.script_of(self.run, one.population, sample, self.settings):
                return text
        return ""

    # Files

    def _logs(self) -> Iterator[tuple[str, str]]:
        """Yield path and text of the logs: bad executions, other evidence, then good ones."""
        of_bad = [one.log for one in self.executions if one.bad]
        of_problems = [record.log for record, _ in self.problems]
        named = [log for suspect in self.suspects for log in suspect.evidence]
        alone = [record.log for record in self.run.records if record.hosts == (self.node,)]
        good = [one.log for one in self.executions if not one.bad]
        logs = [log for log in dict.fromkeys((*of_bad, *of_problems, *named, *alone, *good)) if log]
        for log in logs[:_MOST_LOGS]:
            blocks = self.read_log(log) if self.read_log else None
            if blocks is not None:
                # Logs that `accept` did not write may be anywhere.
                parts = [part for part in PurePosixPath(log).parts if part not in ("/", "..")]
                yield "/".join(parts).removeprefix("logs/"), _excerpt(blocks)

    def _collected(self) -> Iterator[tuple[str, str]]:
        """Yield path and text of the collectors' output on the nodes of the ticket."""
        for name, content in self.fresh.items():
            yield _as_text(f"{COLLECTORS}/{self.node}/{name}.txt", content[:_MOST_OUTPUT])
        for host in self.hosts:
            if self.evidence is None:
                break
            folder = self.evidence / COLLECTORS / host
            if "/" in host or host.startswith(".") or not folder.is_dir():
                continue
            if is_linked(self.evidence, folder):
                continue
            for path in sorted(folder.iterdir()):
                if host == self.node and path.name.partition(".")[0] in self.fresh:
                    continue
                try:
                    with open_regular(path) as file:
                        content = file.read(_MOST_OUTPUT)
                except OSError:
                    continue
                yield _as_text(f"{COLLECTORS}/{host}/{path.name}", content)

    # The text

    def _show(self, text: object, most: int = 400) -> str:
        return markdown(self.clean(str(text)), most)

    def _text(self, files: Sequence[str], *, has_script: bool) -> Iterator[str]:
        verdict, show = self.run.verdict, self._show
        yield f"# {show(self.faults[0].title, 300)}"
        yield ""
        if verdict.is_simulated:
            yield from ("**SIMULATED: no real node was measured.**", "")
        for suspect, fault in zip(self.suspects, self.faults, strict=True):
            meaning = suspect.cause.row.meaning
            yield f"- {show(fault.component, 200)}: {meaning}; {show(suspect.why, 1000)}"
            for more in filter(None, (suspect.around, suspect.innocent)):
                yield f"  {show(more, 1000)}"
            yield f"- requested action: {fault.action} (owner: {suspect.cause.row.owner})"
            kind = f"{fault.kind}, " if fault.kind else ""
            yield f"- kind: {kind}{fault.cause}, {fault.code}; evidence: {suspect.strength}"
        yield f"- since: {self._since()}"
        yield f"- measured: {utc(verdict.start)} to {utc(verdict.end)}"
        took = f", {duration(verdict.end - verdict.start)}" if verdict.end > verdict.start else ""
        nodes = count(len(verdict.hosts) + len(verdict.missing), "node")
        suite = f"machine {show(verdict.machine, 80)}, suite {show(verdict.suite, 80)}"
        version = f"accept {show(self.run.plan.version, 40)}"
        yield f"- run: {show(verdict.attempt, 80)}, {nodes}, {suite}{took}, {version}"
        if self.run.evidence_hash:
            yield f"- evidence: SHA-256 of its list of checksums: {self.run.evidence_hash}"
        for change in verdict.edited:
            yield f"- edited after rendering: {show(change)}"
        yield from self._figures()
        yield from ("", "## Excluded", "")
        nothing = "nothing: the run measured nothing else that this could be compared with"
        yield from (f"- {show(text, 1000)}" for text in self.excluded or (nothing,))
        yield from self._reported()
        yield from self._hardware(files)
        if self.commands and not self.redacted:
            yield from (
                "",
                "## Take it out of service",
                "",
                "```sh",
                *map(plain, self.commands),
                "```",
            )
        yield from ("", "## Repeat it", "")
        if has_script:
            yield f"`sh {SCRIPT}` repeats the worst measurement with Open MPI and nccl-tests, or"
            yield "with the programs in the archive if nccl-tests is not installed. It compares the"
            yield "result with normal, and ends with REPRODUCED or NOT REPRODUCED. Its first lines"
            yield "explain how to start it, also on a control pair."
        else:
            yield "No collective on one or two nodes shows this, so there is no script. By hand:"
            for cause in dict.fromkeys(suspect.cause for suspect in self.suspects):
                yield f"- {cause}: {show(_part(cause, 'Confirm'), 1000)}"
        yield from self._excerpt_of_worst()
        yield from ("", "## Files", "", *(f"- {show(name, 300)}" for name in (TEXT, *files)))
        if self.redacted:
            yield from ("", "Names of nodes and users and network addresses were replaced.")

    def _since(self) -> str:
        starts = [one.start for one in self.executions if one.bad]
        starts += [record.start for record, _ in self.problems]
        known = [start for start in starts if 0 < start < 1e11]
        return f"{utc(min(known))} or earlier" if known else "the time is not known"

    def _figures(self) -> Iterator[str]:
        if not self.executions:
            return
        yield from ("", "## Figures", "")
        yield "| check | nodes | measured | normal | share | time (UTC) | log |"
        yield "|---|---|---|---|---|---|---|"
        for one in self.executions[:_MOST_ROWS]:
            population = one.population
            sample, normal = population.samples[one.index], population.normal
            text = population.measure.text
            value = text(sample.value) if sample.value is not None else "nothing"
            share = share_of(sample, normal)
            cells = (
                population.title,
                ", ".join(sample.hosts),
                f"{value}{f' ({sample.cause})' if sample.cause else ''}",
                f"{text(normal.value)} (of {normal.values})" if normal else "unknown",
                f"{share:.0%}{'' if one.bad else ' (good)'}" if share is not None else "-",
                utc(one.start),
                one.log,
            )
            yield f"| {' | '.join(self._show(cell, 300) for cell in cells)} |"
        if more := len(self.executions) - _MOST_ROWS:
            yield from (["", f"… and {count(more, 'more execution')}"] if more > 0 else [])
        yield from self._device_figures()

    def _device_figures(self) -> Iterator[str]:
        """Yield the figures of tools and of the node's GPUs next to the median of all nodes."""
        rows = [
            (f"{one.check} {one.metric}", f"{one.median:.4g} {one.unit}", values, one.of_gpus)
            for one in self.run.devices
            if (values := {rank: v for (host, rank), v in one.values.items() if host == self.node})
        ]
        if rows:
            yield from ("", "| check | median of all | this node, by GPU |", "|---|---|---|")
            for name, median, values, of_gpus in rows:
                own = ", ".join(
                    f"{rank}: {value:.4g}" if of_gpus else f"{value:.4g}"
                    for rank, value in sorted(values.items())
                )
                yield f"| {self._show(name)} | {self._show(median)} | {self._show(own, 1000)} |"

    def _reported(self) -> Iterator[str]:
        if not self.problems:
            return
        yield from ("", "## Reported by the programs", "")
        unique: dict[tuple[Problem, str], Record] = {}
        for record, problem in self.problems:
            unique.setdefault((problem, record.step), record)
        for (problem, step), record in list(unique.items())[:_MOST_ROWS]:
            part = problem.gpu or problem.nic or ""
            where = f"{problem.host}{f' {part}' if part else ''}, {step}, {utc(record.start)}"
            yield f"- {problem.cause}: {self._show(problem.message)} ({self._show(where)})"

    def _hardware(self, files: Sequence[str]) -> Iterator[str]:
        yield from ("", "## Hardware", "")
        for host in self.hosts[:_MOST_ROWS]:
            collected = [
                name for name in files if name.startswith(f"{COLLECTORS}/{self.clean(host)}/")
            ]
            facts = host_facts(self.run, host, self.nodes.get(host), collected)
            yield f"- {self._show(host, 120)}"
            yield from (f"  - {self._show(fact, 300)}" for fact in facts)
        inventory = self.run.inventories.get(self.node or "", Inventory())
        for rows, how in (gpu_rows(inventory), nic_rows(inventory)) if self.node else ():
            yield ""
            for index, row in enumerate(rows[: 8 * _MOST_ROWS]):
                yield f"| {' | '.join(self._show(cell, 120) or '-' for cell in row)} |"
                yield from (f"|{'---|' * len(row)}",) if index == 0 else ()
            if how:
                yield from (*[""] * bool(rows), self._show(how, 400))

    def _excerpt_of_worst(self) -> Iterator[str]:
        for path, text in self._logs():
            lines = visible(self.clean(text)).replace("`", "'").splitlines()
            yield from ("", f"## The end of {self._show(path, 200)}", "", "```text")
            yield from (line[:400] for line in lines[-_MOST_LINES:])
            yield "```"
            return


def _redactor(run: Run, nodes: Mapping[str, SavedNode]) -> Redactor:
    verdict = run.verdict
    facts = [fact for record in run.records for fact in record.facts]
    others = [piece for _, place in PLACE.among(facts) for piece in place.split("/")]
    others += [piece for node in nodes.values() for piece in node.provider_id.split("/")[2:]]
    others += [node.labels.get(name, "") for node in nodes.values() for name in PHYSICAL_HOST]
    hosts = (*verdict.hosts, *verdict.missing)
    redactor = Redactor(hosts, (name for name in others if name not in hosts))
    for _, names in HOSTNAMES.among(facts):
        for host, name in names.items():
            redactor.alias(host, name)
    return redactor


def _excerpt(blocks: Iterable[bytes]) -> str:
    """Return a log; the beginning and the end of a long one, in whole lines."""
    first, last, left_out = b"", b"", 0
    for block in blocks:
        for line in block.splitlines(keepends=True):
            if not last and len(first) + len(line) <= _LOG_PART:
                first += line
                continue
            last += line
            if len(last) > 2 * _LOG_PART:
                cut = last.find(b"\n", len(last) - _LOG_PART) + 1 or len(last)
                left_out += cut
                last = last[cut:]
    middle = f"\n… {left_out} bytes were left out …\n".encode() if left_out else b""
    return (first + middle + last).decode("utf-8", errors="replace")


def _as_text(name: str, content: bytes) -> tuple[str, str]:
    """Return path and text of a collector's output, unpacked if it is compressed."""
    if content[:2] == b"\x1f\x8b":
        # Otherwise names and addresses inside it could not be replaced.
        name = name.removesuffix(".txt").removesuffix(".gz") + ".txt"
        try:
            content = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(content, _MOST_OUTPUT)
        except zlib.error:
            return name, "(this output is damaged, and was left out)\n"
    return name, content.decode("utf-8", errors="replace")


def _part(cause: str, name: str) -> str:
    """Return what docs/causes.md shows about a cause after "- Confirm:"."""
    text = cause_section(cause).partition(f"- {name}:")[2]
    return " ".join(text.partition("\n- ")[0].split())
