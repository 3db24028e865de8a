"""Write a ticket for the provider or the network team: a text, logs, and a script to repeat it."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from accept.config.resources import cause_section
from accept.core.evidence import COLLECTORS, open_log
from accept.core.facts import HOSTNAMES, PLACE, Inventory
from accept.core.records import Problem, Record
from accept.core.report.markdown import table
from accept.core.safe_read import is_linked, open_regular
from accept.core.text import count, duration, markdown, plain, visible
from accept.core.verdict import Suspect
from accept.report import repro
from accept.report.data import Population, Run, Sample, share_of
from accept.report.node_commands import SavedNode
from accept.report.redaction import Redactor
from accept.report.ticket_faults import (
    PHYSICAL_HOST,
    TicketFault,
    faults,
    gpu_rows,
    host_facts,
    iso,
    nic_rows,
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


#: An execution of the subject, and the population that it belongs to.
_Execution = tuple[Population, Sample]


@dataclass(frozen=True)
class TicketWriter:
    """Write the ticket about a node, or about the network between nodes."""

    run: Run
    #: The folder of the evidence; None: the logs are read with `read_log` instead.
    evidence: Path | None
    suspects: Sequence[Suspect]
    _: KW_ONLY
    #: None: the ticket is about the network.
    node: str | None
    #: Name of its subject, for its files.
    title: str = "fabric"
    #: The cluster's records of the run's nodes.
    nodes: Mapping[str, SavedNode]
    settings: repro.Settings
    #: True: names and addresses are replaced in all files.
    redact: bool
    read_log: ReadLog | None = None
    #: What was measured to be normal.
    excluded: Sequence[str] = ()
    #: Commands that take the node out of service.
    commands: Sequence[str] = ()
    #: Outputs of collectors on the node after the run, by their names; they replace those of the
    #: evidence.
    fresh: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def _clean(self) -> Callable[[str], str]:
        return _redactor(self.run, self.nodes) if self.redact else str

    @cached_property
    def _faults(self) -> Sequence[TicketFault]:
        return faults(self.run, self.suspects, self.nodes)

    @cached_property
    def _hosts(self) -> tuple[str, ...]:
        """Return the nodes that the ticket is about."""
        if self.node:
            return (self.node,)
        in_pairs = (h for s in self.suspects for pair in s.pairs for h in pair.hosts)
        of_network = (h for s in self.suspects for h in (*s.hosts, *s.others))
        return tuple(dict.fromkeys((*of_network, *in_pairs)))

    @cached_property
    def _executions(self) -> list[_Execution]:
        """Return the executions of the subject, bad ones and the slowest first."""
        bad_pairs = {frozenset(pair.hosts) for s in self.suspects for pair in s.pairs}

        def is_of_subject(sample: Sample) -> bool:
            if self.node:
                return self.node in sample.hosts
            return not bad_pairs or frozenset(sample.hosts) in bad_pairs

        found = [
            (population, sample)
            for population in self.run.populations
            for sample in population.samples
            if is_of_subject(sample)
        ]
        return sorted(found, key=lambda e: (not e[1].bad, share_of(e[1], e[0].normal) or 0.0))

    @cached_property
    def _problems(self) -> list[tuple[Record, Problem]]:
        return [
            (record, problem)
            for record in self.run.records
            for problem in record.problems
            if problem.host in self._hosts
        ]

    def write(self) -> Ticket:
        """Return the ticket."""
        files = {f"logs/{log}": text for log, text in self._logs()}
        files.update(self._collected())
        script = self._script()
        cleaned = {self._clean(name): self._clean(text) for name, text in files.items()}
        if script:
            # The programs contain nothing about the run, so they are not redacted.
            cleaned |= {SCRIPT: self._clean(script), **repro.programs()}
        cleaned[TEXT] = "\n".join(self._text(sorted(cleaned), has_script=bool(script))) + "\n"
        name = self._clean(self.node or self.title)
        return Ticket(
            name=re.sub(r"[^A-Za-z0-9_-]+", "_", plain(name, 80)).strip("_") or "node",
            files={path: text.encode() for path, text in cleaned.items()},
            faults=tuple(map(self._cleaned, self._faults)),
        )

    def _cleaned(self, fault: TicketFault) -> TicketFault:
        """Return a fault with its texts redacted."""
        return replace(
            fault,
            node=self._clean(fault.node),
            provider_id=self._clean(fault.provider_id),
            component=self._clean(fault.component),
            location=self._clean(fault.location),
            title=self._clean(fault.title),
            action=self._clean(fault.action),
            logs=tuple(map(self._clean, fault.logs)),
        )

    def _script(self) -> str:
        """Return the script for the worst measurement that it can repeat, pairs first."""
        worst = sorted(self._executions, key=lambda one: (not one[1].bad, -one[0].nodes))
        bad = [sample for _, sample in worst if sample.bad]
        scripts = (repro.script_of(self.run, *one, self.settings, bad) for one in worst)
        return next(filter(None, scripts), "")

    # Files

    def _logs(self) -> Iterator[tuple[str, str]]:
        """Yield path and text of the logs: bad executions, other evidence, then good ones."""
        of_bad = [sample.log for _, sample in self._executions if sample.bad]
        of_problems = [record.log for record, _ in self._problems]
        named = [log for suspect in self.suspects for log in suspect.evidence]
        alone = [record.log for record in self.run.records if record.hosts == (self.node,)]
        good = [sample.log for _, sample in self._executions if not sample.bad]
        logs = [log for log in dict.fromkeys((*of_bad, *of_problems, *named, *alone, *good)) if log]
        for log in logs[:_MOST_LOGS]:
            blocks = self._read(log)
            if blocks is not None:
                # Logs that `accept` did not write may be anywhere.
                parts = [part for part in PurePosixPath(log).parts if part not in ("/", "..")]
                yield "/".join(parts).removeprefix("logs/"), _excerpt(blocks)

    def _read(self, log: str) -> Iterable[bytes] | None:
        if self.read_log:
            return self.read_log(log)
        return open_log(self.evidence, log) if self.evidence else None

    def _collected(self) -> Iterator[tuple[str, str]]:
        """Yield path and text of the collectors' output on the nodes of the ticket."""
        for name, content in self.fresh.items():
            yield _as_text(f"{COLLECTORS}/{self.node}/{name}.txt", content[:_MOST_OUTPUT])
        for host in self._hosts:
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
        return markdown(self._clean(str(text)), most)

    def _text(self, files: Sequence[str], *, has_script: bool) -> Iterator[str]:
        verdict, show = self.run.verdict, self._show
        yield f"# {show(self._faults[0].title, 300)}"
        yield ""
        if verdict.is_simulated:
            yield from ("**SIMULATED: no real node was measured.**", "")
        for suspect, fault in zip(self.suspects, self._faults, strict=True):
            meaning = suspect.cause.row.meaning
            yield f"- {show(fault.component, 200)}: {meaning}; {show(suspect.why, 1000)}"
            innocent = suspect.innocent and f"NOT {suspect.innocent}"
            for more in filter(None, (suspect.around, innocent)):
                yield f"  {show(more, 1000)}"
            yield f"- requested action: {fault.action} (owner: {suspect.cause.row.owner})"
            kind = f"{fault.kind}, " if fault.kind else ""
            yield f"- kind: {kind}{fault.cause}, {fault.code}; evidence: {suspect.strength}"
        yield f"- since: {self._since()}"
        yield f"- measured: {iso(verdict.start)} to {iso(verdict.end)}"
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
        if self.commands and not self.redact:
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
        if self.redact:
            yield from ("", "Names of nodes and users and network addresses were replaced.")

    def _since(self) -> str:
        starts = [sample.start for _, sample in self._executions if sample.bad]
        starts += [record.start for record, _ in self._problems]
        known = [start for start in starts if 0 < start < 1e11]
        return f"{iso(min(known))} or earlier" if known else "the time is not known"

    def _figures(self) -> Iterator[str]:
        if not self._executions:
            return
        header = ("check", "nodes", "measured", "normal", "share", "time (UTC)", "log")
        rows = map(self._figure, self._executions[:_MOST_ROWS])
        yield from ("", "## Figures", "", *table((header, *rows)))
        if more := len(self._executions) - _MOST_ROWS:
            yield from (["", f"… and {count(more, 'more execution')}"] if more > 0 else [])
        yield from self._device_figures()

    def _figure(self, execution: _Execution) -> list[str]:
        population, sample = execution
        normal, text = population.normal, population.measure.text
        value = text(sample.value) if sample.value is not None else "nothing"
        share = share_of(sample, normal)
        cells = (
            population.title,
            ", ".join(sample.hosts),
            f"{value}{f' ({sample.cause})' if sample.cause else ''}",
            f"{text(normal.value)} (of {normal.values})" if normal else "unknown",
            f"{share:.0%}{'' if sample.bad else ' (good)'}" if share is not None else "-",
            iso(sample.start),
            sample.log,
        )
        return [self._show(cell, 300) for cell in cells]

    def _device_figures(self) -> Iterator[str]:
        """Yield the figures of tools and of the node's GPUs next to the median of all nodes."""
        rows = []
        for one in self.run.devices:
            own = sorted(one.of_host(self.node or "").items())
            values = (f"{n}: {value:.4g}" if one.of_gpus else f"{value:.4g}" for n, value in own)
            cells = one.title, f"{one.median:.4g} {one.unit}"
            if own:
                rows.append([*map(self._show, cells), self._show(", ".join(values), 1000)])
        if rows:
            header = ("check", "median of all", "this node, by GPU")
            yield from ("", *table((header, *rows)))

    def _reported(self) -> Iterator[str]:
        if not self._problems:
            return
        yield from ("", "## Reported by the programs", "")
        unique: dict[tuple[Problem, str], Record] = {}
        for record, problem in self._problems:
            unique.setdefault((problem, record.step), record)
        for (problem, step), record in list(unique.items())[:_MOST_ROWS]:
            part = problem.gpu or problem.nic or ""
            where = f"{problem.host}{f' {part}' if part else ''}, {step}, {iso(record.start)}"
            yield f"- {problem.cause}: {self._show(problem.message)} ({self._show(where)})"

    def _hardware(self, files: Sequence[str]) -> Iterator[str]:
        yield from ("", "## Hardware", "")
        for host in self._hosts[:_MOST_ROWS]:
            collected = [
                name for name in files if name.startswith(f"{COLLECTORS}/{self._clean(host)}/")
            ]
            facts = host_facts(self.run, host, self.nodes.get(host), collected)
            yield f"- {self._show(host, 120)}"
            yield from (f"  - {self._show(fact, 300)}" for fact in facts)
        inventory = self.run.inventories.get(self.node or "", Inventory())
        for rows, how in (gpu_rows(inventory), nic_rows(inventory)) if self.node else ():
            yield ""
            yield from table(
                [self._show(cell, 120) or "-" for cell in row] for row in rows[: 8 * _MOST_ROWS]
            )
            if how:
                yield from (*[""] * bool(rows), self._show(how, 400))

    def _excerpt_of_worst(self) -> Iterator[str]:
        for path, text in self._logs():
            lines = visible(self._clean(text)).replace("`", "'").splitlines()
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
