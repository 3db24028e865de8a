"""Define the check `connectivity`: exactly the planned ranks answer over MPI; ping between hosts.

Every rank prints one fact `rank` (with `rank` and `host`), whose value has `localRank`, `gpu` (UUID
or null) and `size`. If mpi4py is installed, hosts then ping each other: metric `ping` for each
host, the median over its peers in us. Only users can set bounds for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from accept.core import record_protocol
from accept.core.catalog.metrics import MetricSpec
from accept.core.catalog.tools import MPIRUN
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams
from accept.core.facts import RANK, FactKind, RankIdentity
from accept.core.judge.conclusion import conclude
from accept.core.judge.consistency import host_of_shared_gpu
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding
from accept.core.plan import GroupKind
from accept.core.records import Problem, Record
from accept.core.serde import param
from accept.core.text import count, host_list, number
from accept.core.verdict import Finding, State


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of `connectivity`."""

    pings: int = param(20, "round trips for each pair of hosts; 0: no latency matrix", least=0)

    def estimate(self, hosts: int, _ranks: int) -> float:
        """Return seconds; each of N - 1 rounds of pairs takes `pings` round trips of 0.5 ms."""
        return 3.0 + 0.0005 * self.pings * max(0, hosts - 1)


#: Text that `programs/rank_identity.sh` prints if the settings name the RDMA devices.
_BY_SETTINGS = "the settings"


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network of a host's ranks."""

    #: The chosen interface and RDMA devices, and what chose them, for people.
    text: str
    #: The RDMA devices that the host chose itself; None if the settings name them.
    devices: tuple[str, ...] | None


def _network(value: object) -> Network | None:
    if not isinstance(value, dict):
        return None
    texts = {str(key): str(item)[:400] for key, item in value.items()}
    text = f"interface {texts.get('interface')} (by {texts.get('interfaceBy')})"
    rdma = texts.get("rdma", "").lstrip("=")
    if rdma:
        text += f", RDMA {rdma} (by {texts.get('rdmaBy')})"
    chosen = rdma and texts.get("rdmaBy") != _BY_SETTINGS
    return Network(text=text, devices=tuple(rdma.split(",")) if chosen else None)


#: The network of a host's ranks.
NETWORK = FactKind("network", _network)


def _answers(record: Record) -> dict[tuple[str | None, int | None], RankIdentity]:
    """Return the identity of each rank that answered, by host and rank."""
    return {(fact.host, fact.rank): rank for fact, rank in RANK.of(record)}


def _problems(evidence: Evidence, record: Record) -> Iterator[Problem]:
    """Yield missing, additional and misplaced ranks, and GPUs that two ranks share."""
    answers = _answers(record)
    if record.problems and not answers:
        return
    ranks = {rank for _, rank in answers}
    per_host = record.ranks // len(record.hosts) if record.hosts else 0
    answered = Counter(host for host, _ in answers)
    if len(answers) != record.ranks or ranks != set(range(record.ranks)):
        ranks_seen = f"{count(len(answers), 'rank')} on {count(len(answered), 'node')}"
        message = f"{ranks_seen} answered, {record.ranks} on "
        message += f"{len(record.hosts)} planned"
        yield Problem(cause=Cause.RANK_COUNT, message=message)
    for name in record.hosts:
        if answered[name] != per_host:
            message = f"{count(answered[name], 'rank')} answered on {name}, {per_host} planned"
            yield Problem(cause=Cause.RANK_COUNT, message=message, host=name)
    owners: dict[str, str | None] = {}
    for (host, rank), identity in answers.items():
        if uuid := identity.gpu:
            if uuid in owners:
                message = f"rank {rank} on {host} uses GPU {uuid}, and so does another rank on "
                message += str(owners[uuid])
                where = host_of_shared_gpu(owners[uuid], host)
                yield Problem(cause=Cause.GPU_DUPLICATE, message=message, host=where, rank=rank)
            owners.setdefault(uuid, host)
        elif evidence.plan.machine.gpus != 0 and identity.beyond_list:
            message = f"CUDA_VISIBLE_DEVICES gives no GPU to rank {rank} on {host}"
            yield Problem(cause=Cause.GPU_LIST, message=message, rank=rank)
        elif evidence.plan.machine.gpus != 0:
            message = f"rank {rank} on {host} has no GPU"
            yield Problem(cause=Cause.GPU_MISSING, message=message, host=host, rank=rank)
    planned = evidence.plan.machine.rdma_devices
    for fact, network in NETWORK.of(record):
        if network.devices is not None and len(network.devices) < planned:
            message = f"{fact.host} has {len(network.devices)} of {planned} RDMA devices for its "
            message += f"GPUs: {', '.join(network.devices)}; others are down, slower or far away"
            yield Problem(cause=Cause.INVENTORY_MISMATCH, message=message, host=fact.host)


def judge(evidence: Evidence) -> Judged:
    """Pass if exactly the planned ranks answered, each with its own GPU on GPU machines."""
    ended = (record for record in evidence.records if record.exit is not None)
    return conclude(
        evidence,
        problems=(problem for record in ended for problem in _problems(evidence, record)),
        findings=_network_notes(evidence),
        measured=_measured(evidence),
        required="exactly the planned ranks",
    )


def _network_notes(evidence: Evidence) -> Iterator[Finding]:
    """Yield a note for each choice of network, with its hosts and with what chose it."""
    hosts_by_choice: dict[str, dict[str, None]] = {}
    for fact, network in NETWORK.of(*evidence.records):
        if fact.host:
            hosts_by_choice.setdefault(network.text, {})[fact.host] = None
    for choice, hosts in list(hosts_by_choice.items())[:20]:
        text = f"{choice} on {host_list([*hosts])}"
        yield finding(evidence.check, Judgement.CONSISTENCY, State.PASS, text, hosts=hosts)


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
    summary="exactly the planned ranks answer over MPI; latency between every pair of hosts",
    template="connectivity.sh.j2",
    params=Params,
    groups=(GroupKind.ALL, GroupKind.BLOCKS, GroupKind.EACH, GroupKind.PAIRS, GroupKind.HALVES),
    needs=((MPIRUN,),),
    metrics=(
        # A few round trips of busy processes: healthy runs differ by a factor of hundreds.
        MetricSpec(name="ping", unit="us", in_log=True),
        MetricSpec(name="ping-worst", unit="us"),
    ),
    facts=(RANK, NETWORK),
    gate=True,
    shows_gpus=True,
    worth=90,
    parse=partial(record_protocol.parse, check="connectivity"),
    judge=judge,
)

CHECKS = (CONNECTIVITY,)
