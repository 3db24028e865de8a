"""Whether exactly the planned ranks answer over MPI, and how long a message takes between hosts.

Every rank prints one fact `rank` (with `rank` and `host`), whose value has `localRank`, `gpu` (UUID
or null) and `size`. Where mpi4py is, hosts then ping each other: metric `ping` for each host, the
median over its peers in us. Latency has no bound but the user's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from accept.core import record_protocol
from accept.core.checks.check import Check, param
from accept.core.judge import bounds, completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Finding, Parsed, Problem, Record, State


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `connectivity`."""

    pings: int = param(20, "round trips for each pair of hosts; 0 leaves the latency matrix out")

    def __post_init__(self) -> None:
        """Raise ValueError for a number of pings that cannot be."""
        if self.pings < 0:
            raise ValueError(f"pings must be at least 0, not {self.pings}")


def estimate(params: Params, hosts: int, _ranks: int) -> float:
    """Seconds: each of N - 1 rounds of pairs takes `pings` round trips of at most 0.5 ms."""
    return 3.0 + 0.0005 * params.pings * max(0, hosts - 1)


def parse(lines: Iterable[bytes]) -> Parsed:
    """Ranks and latencies."""
    return record_protocol.parse(lines, check="connectivity")


def _answers(record: Record) -> dict[tuple[str | None, int | None], dict[str, Any]]:
    """What each rank said, by host and rank."""
    return {
        (fact.host, fact.rank): fact.value if isinstance(fact.value, dict) else {}
        for fact in record.facts
        if fact.name == "rank"
    }


def _problems(evidence: Evidence, record: Record) -> Iterator[Problem]:
    """Ranks too few, too many or on the wrong host, and GPUs that two ranks share."""
    answers = _answers(record)
    if record.problems and not answers:
        return
    ranks = {rank for _, rank in answers}
    per_host = record.ranks // len(record.hosts) if record.hosts else 0
    answered = Counter(host for host, _ in answers)
    if len(answers) != record.ranks or ranks != set(range(record.ranks)):
        said = f"{len(answers)} ranks on {len(answered)} hosts answered, {record.ranks} on "
        said += f"{len(record.hosts)} were planned"
        yield Problem(cause="rank-count", message=said)
    for name in record.hosts:
        if answered[name] != per_host:
            said = f"{answered[name]} ranks answered on {name}, {per_host} were planned"
            yield Problem(cause="rank-count", message=said, host=name)
    owner: dict[str, str | None] = {}
    for (host, rank), value in answers.items():
        uuid = value.get("gpu")
        if isinstance(uuid, str) and uuid:
            if uuid in owner:
                said = f"rank {rank} has GPU {uuid}, which another rank on {owner[uuid]} has"
                yield Problem(cause="gpu-duplicate", message=said, host=host, rank=rank)
            owner.setdefault(uuid, host)
        elif evidence.plan.machine.gpus != 0:
            said = f"rank {rank} on {host} has no GPU"
            yield Problem(cause="gpu-missing", message=said, host=host, rank=rank)


def judge(evidence: Evidence) -> Judged:
    """Exactly the planned ranks answered, each with a GPU of its own where there are GPUs."""
    found = [
        problem
        for record in evidence.records
        if record.exit is not None
        for problem in _problems(evidence, record)
    ]
    findings = completeness.step_findings(evidence)
    findings += completeness.problem_findings(evidence, more=found)
    findings += bounds.findings(evidence)
    findings += _chosen(evidence)
    suspects = tuple(from_problems(found, "", len(evidence.hosts)))
    verdict = verdict_of(
        evidence,
        findings,
        measured=_measured(evidence),
        against="exactly the planned ranks",
    )
    return Judged(verdict, suspects)


def _chosen(evidence: Evidence) -> Iterator[Finding]:
    """What hosts talk through, and who chose it: a note for each answer there is."""
    found: dict[str, list[str]] = {}
    for record in evidence.records:
        for fact in record.facts:
            if fact.name == "network" and isinstance(fact.value, dict) and fact.host:
                value = {key: str(text)[:200] for key, text in fact.value.items()}
                said = f"interface {value.get('interface')} (by {value.get('interfaceBy')})"
                if value.get("rdma"):
                    said += f", RDMA {value['rdma'].lstrip('=')} (by {value.get('rdmaBy')})"
                found.setdefault(said, []).append(fact.host)
    for said, hosts in list(found.items())[:20]:
        named = tuple(dict.fromkeys(hosts))
        yield Finding(
            check=evidence.check,
            judgement="consistency",
            state=State.PASS,
            message=f"{said} on {completeness.host_list(named)}",
            hosts=named,
        )


def _measured(evidence: Evidence) -> str:
    answered = sum(len(_answers(record)) for record in evidence.records)
    planned = sum(record.ranks for record in evidence.records)
    pings = [m for r in evidence.records for m in r.metrics if m.name == "ping"]
    worst = max(pings, key=lambda metric: metric.value, default=None)
    text = f"{answered} of {planned} ranks answered"
    if worst is not None:
        text += f"; ping up to {number(worst.value)} us ({worst.host})"
    return text


CONNECTIVITY = Check(
    name="connectivity",
    summary="exactly the planned ranks answer over MPI; latency between every two hosts",
    template="connectivity.sh.j2",
    params=Params,
    groups=("all", "each", "pairs", "halves"),
    needs=("sh", "mpirun"),
    worth=90,
    estimate=estimate,
    parse=parse,
    judge=judge,
)

CHECKS = (CONNECTIVITY,)
