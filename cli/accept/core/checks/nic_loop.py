"""Define the check `nic-loop`: a loop through each NIC of a host, without another host.

The loop goes from memory through the NIC into memory: it tests the NIC, its PCIe link and its path
to GPU memory, but no cable. `launchers/programs/nic_loop.py` describes the ways to measure it. What
they reach differs, so each is compared only with itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from accept.core import nccl_tests, record_protocol
from accept.core.by_key import by_key
from accept.core.catalog.metrics import BUSBW, WRONG, Better, MetricSpec
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams
from accept.core.facts import LEFT_OUT, NCCL_NETWORKS, FactKind, integer, mapping, number, text
from accept.core.judge import bounds
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding
from accept.core.judge.peers import LEAST_OF_UNEVEN, Outlier, compare_rows
from accept.core.judge.values import SIGMAS, limit_of
from accept.core.nccl_tests.lines import clean
from accept.core.plan import GroupKind
from accept.core.records import Metric, Parsed, Problem
from accept.core.table import Execution, Row, Table, rows_of
from accept.core.text import count, host_list, plain, value_range
from accept.core.text import number as digits
from accept.core.verdict import Finding, State

NAME = "nic-loop"
#: The ways to measure, the most telling first: with GPU memory, with memory of the host, by NCCL.
GPU_MEMORY, HOST_MEMORY, BY_NCCL = LOOPS = ("ib-write-gpu", "ib-write-host", "nccl")
#: The first of them as a share of the rate of the port, if a PCI bridge is above NIC and GPU.
SHARE = "line-share"
#: What `left-out` calls it if a host has RDMA ports, and none is active.
PORTS_DOWN = "ports-down"
#: Metrics that compare all NICs with each other.
_OF_ALL = (SHARE, HOST_MEMORY)
_UNITS = {**dict.fromkeys(LOOPS, "GB/s"), SHARE: ""}
#: A line of a tool, as the program marks it: the NIC, the loop, the line.
_MARKED = re.compile(
    rb"nic-loop ([\w.:-]{1,64}) (" + "|".join(LOOPS).encode() + rb")\| ?(.{0,1000})"
)
#: Limits of the NICs of a host and of the lines of one loop; more are damage.
_MAX_NICS, _MAX_LINES = 64, 2000
#: The head of ib_write_bw's table and a row, as in src/perftest_parameters.h of perftest.
_HEAD = b"BW average[Gb/sec]"
_ROW = re.compile(rb"\s*\d+\s+\d+\s+[\d.]+\s+(\d+\.?\d*)\s+[\d.]+\s*")
#: NCCL's line about its NICs, if it has exactly one, and the line of a channel through it.
_ONE_NIC = re.compile(rb"NET/\S{1,40} : Using \[0\]([\w.-]{1,64}):[^\[]*(?:\[RO\])?[^\[]*$")
_CHANNEL = b" via NET/"
#: Faster is damage.
_MAX_GBYTES = 1e4
#: Lines of tools that used the NIC: the data did not arrive, or the port was down (perftest and
#: NCCL). And those after which the NIC could not be opened.
_NO_DATA = re.compile(
    r"Completion with error|Failed status \d|Port number \d+ state is|Got completion"
)
_NOT_OPENED = re.compile(r"Couldn't get context for the device|Unable to find the Infiniband")
#: Errors of the driver when it opens the NIC; others come from a container or missing permissions.
_OF_DEVICE = ("EIO", "ENODEV", "ENXIO")
#: Lines that explain why a tool failed, and why it measured something else.
_FAILED = re.compile(r"couldn't|failed|unable|error|WARN|denied|cannot", re.I)
_OTHER = re.compile("Using")
#: Noise of one NIC on equal hosts: the limit is 12 % below the median.
_NOISE = 0.03


@dataclass(frozen=True, kw_only=True)
class NicLoopParams(CheckParams):
    """`nic-loop` has no parameters."""

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return the seconds of slow loops: 16 with memory of the host, two at once."""
        return 45.0

    def healthy_seconds(self, _hosts: int, _ranks: int, _algbw: float | None) -> float:
        """Return the seconds of loops with GPU memory, all at once, or of two rounds of NCCL."""
        return 22.0


# Reading


class Loop(NamedTuple):
    """One try of a loop: the NIC, the way, the tool's exit status, and the rate of the port."""

    nic: str
    loop: str
    #: None: it did not end in time.
    exit: int | None
    #: Gbit/s; 0: unknown.
    gbps: float
    #: True if a PCI bridge is above NIC and GPU, so that data need not cross the processor.
    near: bool
    #: Why it failed; empty if it did not.
    failed: str
    #: True if the NIC was used, and it or its port failed; else the loop may not be possible there.
    broken: bool


def _loop(value: object) -> Loop | None:
    given = mapping(value)
    nic, loop = text(given.get("nic")) or "", text(given.get("loop")) or ""
    if not re.fullmatch(r"[\w.:-]{1,64}", nic, re.ASCII) or loop not in LOOPS:
        return None
    gbps = number(given.get("gbps")) or 0.0
    near, broken = given.get("near") is True, given.get("broken") is True
    failed = plain(text(given.get("failed")) or "", 200)
    return Loop(nic, loop, integer(given.get("exit")), gbps, near, failed, broken)


#: `parse` adds why a loop failed, in the words of its tool, and whether that shows a broken NIC.
LOOP = FactKind("nic-loop", _loop)


def parse(lines: Iterable[bytes]) -> Parsed:
    """Parse the log of one host: the outputs of the tools, and the records. Never raises."""
    outputs: dict[tuple[str, str], list[bytes]] = {}
    others: list[bytes] = []
    for block in lines:
        for line in block.split(b"\n"):
            if found := _MARKED.match(line):
                key = found[1].decode(), found[2].decode()
                if key in outputs or len(outputs) < _MAX_NICS * len(LOOPS):
                    output = outputs.setdefault(key, [])
                    output += [clean(found[3])] if len(output) < _MAX_LINES else []
            elif b"ACCEPT {" in line:
                others.append(line)
    records = record_protocol.parse(others, NAME)
    metrics, facts, problems = [*records.metrics], [], [*records.problems]
    for fact in records.facts:
        loop = LOOP.parse(fact.value) if fact.name == LOOP.name else None
        if loop is None:
            facts.append(fact)
            continue
        output = outputs.get((loop.nic, loop.loop), [])
        value, wrong = (
            _nccl(output, loop.nic) if loop.loop == BY_NCCL else (_ib_write(output), False)
        )
        if wrong:
            message = f"a loop by NCCL through {loop.nic} of {fact.host} returned wrong data"
            problems.append(_problem(Cause.WRONG_DATA, message, fact.host, loop.nic))
        good = loop.exit == 0 and value is not None and 0 < value < _MAX_GBYTES
        values = {loop.loop: value} if good and value is not None else {}
        if loop.loop == GPU_MEMORY and values and loop.near and loop.gbps > 0:
            values[SHARE] = values[loop.loop] * 8 / loop.gbps
        metrics += [
            Metric(check=NAME, name=name, value=v, unit=_UNITS[name], host=fact.host, nic=loop.nic)
            for name, v in values.items()
        ]
        given = mapping(fact.value)
        failed = "" if values or wrong else _reason(output, loop.exit)
        broken = bool(failed) and _is_broken(loop, output, text(given.get("device")) or "")
        facts.append(replace(fact, value={**given, "failed": failed, "broken": broken}))
    return Parsed(metrics=tuple(metrics), facts=tuple(facts), problems=tuple(problems))


def _problem(cause: Cause, message: str, host: str | None, nic: str | None) -> Problem:
    return Problem(cause=cause, message=message, check=NAME, host=host, nic=nic)


def _ib_write(output: Sequence[bytes]) -> float | None:
    """Return the GB/s in the last row of `ib_write_bw`; None if there is none."""
    begin = next((n for n, line in enumerate(output) if _HEAD in line), len(output))
    rows = [row for line in output[begin:] if (row := _ROW.fullmatch(line))]
    return float(rows[-1][1]) / 8 if rows else None


def _nccl(output: Sequence[bytes], nic: str) -> tuple[float | None, bool]:
    """Return the GB/s that two GPUs send through a NIC together, and whether data was wrong.

    None if NCCL's log does not show that exactly this NIC carried the data.
    """
    names = {found[1].decode() for line in output if (found := _ONE_NIC.search(line))}
    used = names == {nic.partition(":")[0]} and any(_CHANNEL in line for line in output)
    metrics = nccl_tests.read(b"\n".join(output), collective="all_gather").metrics
    speeds = [metric.value for metric in metrics if metric.name == BUSBW.name]
    wrong = used and any(metric.value for metric in metrics if metric.name == WRONG.name)
    return (2 * min(speeds) if used and not wrong and speeds else None), wrong


def _is_broken(loop: Loop, output: Sequence[bytes], device: str) -> bool:
    """Return True if a failed loop shows that the NIC or its port failed.

    `device`: the error with which the NIC could not be opened afterwards; empty if it could. Writes
    that do not arrive end in an error, and those of a NIC that does not answer may never end.
    """
    if device:
        return device in _OF_DEVICE
    if loop.exit is None and loop.loop != BY_NCCL:
        return True
    texts = [line.decode(errors="replace") for line in output]
    return any(_NO_DATA.search(one) or _NOT_OPENED.search(one) for one in texts)


def _reason(output: Sequence[bytes], status: int | None) -> str:
    """Return why a loop has no value, in the words of its tool."""
    texts = [line.decode(errors="replace").strip() for line in output if not line.startswith(b"#")]
    words = [one for one in texts if one.strip("-* ")]
    if status is None:
        return next(iter(words[-1:]), "it did not end in time")
    sign = _FAILED if status else _OTHER
    return next((one for one in [*filter(sign.search, words), *words[-1:]]), f"status {status}")


# Judging


class Nic(NamedTuple):
    """One NIC of a host in one execution."""

    execution: Execution
    host: str
    name: str
    #: True if a PCI bridge is above it and the GPU.
    near: bool
    #: Metric -> its value, of the ways that worked.
    rows: Mapping[str, Row]
    #: Way -> why it failed.
    failed: Mapping[str, str]
    #: True if one of these failures shows that the NIC or its port failed.
    broken: bool

    def is_compared(self, metric: str) -> bool:
        """Return True if the value depends on the NIC and not on where the GPU is."""
        return metric in self.rows and (self.near or metric == HOST_MEMORY)


def _nics(evidence: Evidence) -> list[Nic]:
    found = []
    for execution in evidence.executions:
        host = execution.record.hosts[0] if execution.record.hosts else ""
        rows: dict[str, dict[str, Row]] = {}
        for row in rows_of(execution, evidence.check, _UNITS):
            if row.nic and row.is_plausible:
                rows.setdefault(row.nic, {})[row.metric] = row
        tried = [loop for _, loop in LOOP.of(execution.record)]
        near = {loop.nic for loop in tried if loop.near}
        broken = {loop.nic for loop in tried if loop.broken}
        failed: dict[str, dict[str, str]] = {}
        for loop in tried:
            if loop.failed and loop.loop not in rows.get(loop.nic, ()):
                failed.setdefault(loop.nic, {})[loop.loop] = loop.failed
        for name in dict.fromkeys([*rows, *failed]):
            own, why = rows.get(name, {}), failed.get(name, {})
            found.append(Nic(execution, host, name, name in near, own, why, name in broken))
    return found


def judge(evidence: Evidence) -> Judged:
    """Pass if a loop through each NIC works and is as fast as those of its peers."""
    nics = _nics(evidence)
    promised = evidence.plan.machine.speed_promised
    problems = [*_broken(nics), *(_slow(evidence, nics) if promised else ())]
    failing = [*_failing(evidence, nics, problems), *_untested(evidence, nics, problems)]
    peers = f"as fast as peers: {1 - SIGMAS * _noise(evidence):.0%} of normal for the same NIC"
    peers += f", {LEAST_OF_UNEVEN:.0%} of the median of all NICs"
    judged = conclude(
        evidence,
        problems=problems,
        findings=failing,
        measured="; ".join(_measured(evidence.table)),
        required=peers if promised else "no speed target",
    )
    # What works only on some NICs, or shows broken ones, is not excused.
    if any(one.state is State.INCONCLUSIVE for one in failing):
        judged = judged._replace(verdict=replace(judged.verdict, optional=False))
    return judged


def _broken(nics: Sequence[Nic]) -> Iterator[Problem]:
    """Yield what the most telling way fails on, while it works on most NICs of the run.

    That is a NIC, or a host if it fails on each of several NICs. If it fails on the same NIC of at
    least half of the other hosts, and of two, they share a reason.
    """
    working = Counter(metric for nic in nics for metric in nic.rows)
    loop = next((loop for loop in LOOPS if 2 * working[loop] > len(nics)), "")
    by_host = by_key((nic.host, nic) for nic in nics)
    bad = {host: [nic for nic in of if loop in nic.failed] for host, of in by_host.items()}
    whole = {host for host, of in bad.items() if len(of) == len(by_host[host]) > 1}
    # A NIC of a host without any working one shows nothing about the same NIC of other hosts.
    hosts = Counter(nic.name for nic in nics if nic.host not in whole)
    failing = Counter(nic.name for host, of in bad.items() if host not in whole for nic in of)
    works = f"; it works on {working[loop]} of {len(nics)} NICs"
    for host, of in bad.items():
        if host in whole:
            by_memory = all(HOST_MEMORY in nic.rows for nic in of)
            why = "; host memory works: nvidia-peermem or dma-buf" if by_memory else ""
            text = f"no loop ({loop}) through {len(of)} of {len(of)} NICs of {host}{why}: "
            text += f"{of[0].failed[loop]}{works}"
            yield _problem(Cause.NIC_LOOP_FAILED, text, host, None)
            continue
        for nic in of:
            if failing[nic.name] < 2 or 2 * failing[nic.name] < hosts[nic.name]:
                text = f"no loop ({loop}) through {nic.name} of {host}: {nic.failed[loop]}{works}"
                yield _problem(Cause.NIC_LOOP_FAILED, text, host, nic.name)


def _failing(
    evidence: Evidence, nics: Sequence[Nic], problems: Sequence[Problem]
) -> Iterator[Finding]:
    """Yield how many NICs a way fails on that no problem explains, while some loop works.

    GPU memory that fails on all NICs of a machine without GPUDirect is only noted.
    """
    named = {(problem.host, problem.nic) for problem in problems}
    for loop in LOOPS if any(nic.rows for nic in nics) else ():
        failed = [nic for nic in nics if loop in nic.failed]
        rest = [nic for nic in failed if not {(nic.host, nic.name), (nic.host, None)} & named]
        if not rest:
            continue
        message = f"{loop} fails on {len(failed)} of {count(len(nics), 'NIC')}, such as "
        message += f"{rest[0].name} of {rest[0].host}: {rest[0].failed[loop]}"
        absent = loop == GPU_MEMORY and not any(loop in nic.rows for nic in nics)
        if absent:
            message += "; GPUDirect RDMA works on none of them"
        noted = absent and not evidence.plan.machine.gpu_direct and all(nic.rows for nic in rest)
        state = State.PASS if noted else State.INCONCLUSIVE
        hosts = (nic.host for nic in rest)
        yield finding(NAME, Judgement.POPULATION, state, plain(message, 400), hosts=hosts)


def _noise(evidence: Evidence) -> float:
    return max(evidence.plan.machine.noise, _NOISE)


def _slow(evidence: Evidence, nics: Sequence[Nic]) -> Iterator[Problem]:
    """Yield NICs below a bound or slower than their peers.

    Peers are the same NIC of the other hosts and, with half of the median as the limit, all NICs.
    What a distant GPU reaches is not compared, because it depends on where the GPU is.
    """
    noise = _noise(evidence)
    slow: dict[tuple[str, str], Problem] = {}
    for metric, unit in _UNITS.items():
        measured = [nic for nic in nics if nic.is_compared(metric)]
        bound = bounds.lowest_of_devices(evidence, metric)
        bad: list[Outlier] = []
        if metric in _OF_ALL:
            rows = [nic.rows[metric] for nic in measured]
            bad += compare_rows(rows, noise, bound, uneven=True)[0]
        for name in {nic.name: None for nic in measured} if metric in LOOPS else ():
            same = [nic.rows[metric] for nic in measured if nic.name == name]
            bad += compare_rows(same, noise)[0]
        for outlier in bad:
            nic = next(nic for nic in measured if nic.rows[metric] is outlier.row)
            message = f"{metric} through {nic.name} of {nic.host}: "
            message += _speed(nic, metric, unit, outlier)
            below = outlier.cause is Cause.BELOW_REFERENCE
            limit = bound if below else outlier.normal and limit_of(outlier.normal)
            message += f"; required: at least {digits(limit or 0.0)} {unit}".rstrip()
            problem = _problem(outlier.cause, message, nic.host, nic.name)
            slow.setdefault((nic.host, nic.name), problem)
    yield from slow.values()


def _speed(nic: Nic, metric: str, unit: str, outlier: Outlier) -> str:
    """Return the speed of a NIC, with its line rate if it is judged by that."""
    value = nic.rows[metric].value or 0.0
    share = f", {outlier.text}" if outlier.text else ""
    speed = nic.rows[GPU_MEMORY].value if GPU_MEMORY in nic.rows else None
    if metric != SHARE or speed is None or value <= 0:
        return f"{digits(value)} {unit}".rstrip() + share
    return f"{digits(speed)} GB/s, {digits(value)} of {digits(speed * 8 / value)} Gbit/s{share}"


def _untested(
    evidence: Evidence, nics: Sequence[Nic], problems: Sequence[Problem]
) -> Iterator[Finding]:
    """Yield a finding on the NICs without any loop, and on hosts without NICs; one each reason."""
    named = {(problem.host, problem.nic) for problem in problems}
    some_work = any(nic.rows for nic in nics)
    used = _hosts_with_traffic(evidence)
    reasons: dict[tuple[str, State], dict[str, str]] = {}
    for nic in nics:
        if (nic.host, nic.name) in named or any(map(nic.is_compared, _UNITS)):
            continue
        why = "speed not judged: no PCI bridge is visible above the NIC and a GPU"
        state = State.NOT_TESTED
        if not nic.rows:
            if some_work:
                continue  # see `_failing`
            why = "; ".join(f"no loop: {loop}: {text}" for loop, text in nic.failed.items())
            if nic.broken and nic.host in used:
                why += "; it works between hosts, so this host may not allow loops"
            elif nic.broken:
                state = State.INCONCLUSIVE
                why += "; no loop works anywhere in this run: broken NICs, or loops are not allowed"
        reasons.setdefault((why, state), {})[f"{nic.host}:{nic.name}"] = nic.host
    seen = {nic.host for nic in nics}
    for record in evidence.records:
        if record.exit == 0 and not seen.intersection(record.hosts):
            left_out = {name: why for _, left in LEFT_OUT.of(record) for name, why in left.items()}
            why = f"no loop: {'; '.join(left_out.values()) or 'the program reported no NIC'}"
            down = PORTS_DOWN in left_out and (some_work or evidence.plan.machine.rdma_devices > 0)
            state = State.INCONCLUSIVE if down else State.NOT_TESTED
            reasons.setdefault((why, state), {}).update({host: host for host in record.hosts})
    for (why, state), names in reasons.items():
        text = f"{host_list([*names])}: {plain(why, 300)}"
        cause = Cause.NIC_LOOP_FAILED if state is State.INCONCLUSIVE else None
        yield finding(NAME, Judgement.COMPLETENESS, state, text, cause, hosts=names.values())


def _hosts_with_traffic(evidence: Evidence) -> set[str]:
    """Return the hosts whose RDMA ports carried the data of a collective to other hosts."""
    return {
        host
        for records in evidence.step_records.values()
        for record in records
        if record.exit == 0 and len(record.hosts) > 1
        if any("IB" in network for _, users in NCCL_NETWORKS.of(record) for network in users)
        for host in record.hosts
    }


def _measured(table: Table) -> Iterator[str]:
    """Yield the bandwidths of all NICs for each way."""
    by_metric = table.by(lambda row: row.metric)
    for loop in LOOPS:
        if values := by_metric[loop].values if loop in by_metric else []:
            yield f"{loop} {value_range(values)} GB/s ({count(len(values), 'NIC')})"


NIC_LOOP = Check(
    name=NAME,
    summary="a loop through each NIC of a host, with GPU memory: bandwidth, without another host",
    template="nic-loop.sh.j2",
    params=NicLoopParams,
    groups=(GroupKind.EACH,),
    metrics=tuple(
        MetricSpec(name=name, unit=unit, better=Better.HIGHER, in_log=True)
        for name, unit in _UNITS.items()
    ),
    facts=(LOOP, LEFT_OUT),
    worth=35,
    parse=parse,
    judge=judge,
    devices=True,
    needs_rdma=True,
)

CHECKS = (NIC_LOOP,)
