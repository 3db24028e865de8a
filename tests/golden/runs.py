"""The runs with golden verdicts, in families: recorded evidence, real logs, simulated clusters."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path

from tests.factories import health_runs, nccl_logs, sample_evidence, simulated_fabric
from tests.factories.blame_cases import CASES, case
from tests.factories.injected_faults import HOSTS, NODE, Change, bad_pairs, gpu, judged, node, only
from tests.factories.judging import ALL, EACH, EIGHT, INVENTORY, PAIRS, gpu_inventory, gpu_plan
from tests.factories.judging import judged as judged_run
from tests.factories.paths import TESTS
from tests.factories.real_logs import PUBLISHED, REPOSITORY
from tests.factories.simulated_fabric import Fabric, whole
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import WORLDS, World
from tests.factories.verdicts import (
    FLOOR,
    GPU,
    gpus,
    hosts,
    hosts_record,
    inventory_of,
    measured,
    of_gpu,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.commands.judged import GivenBounds, judge_path
from accept.config.resources import demo
from accept.core.causes import Cause
from accept.core.health_readings import Change as HealthChange
from accept.core.plan import Step
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.verdict import Verdict

#: Makes a run and returns its verdict.
Make = Callable[[], Verdict]
Made = Iterator[tuple[str, Make]]


# -- recorded evidence -----------------------------------------------------------------------------


def _recorded() -> Made:
    data = TESTS / "data"
    yield "demo", partial(_archived, demo())
    for path in sorted((data / "gpu").glob("*/run-*.tar.gz")):
        yield f"{path.parent.name} {path.name.removesuffix('.tar.gz')}", partial(_archived, path)
    yield "a script", _script
    yield "a script that failed", partial(_script, status=3)
    yield "an interrupted script", partial(_script, interruption="the user ended it")


def _judged(path: Path, *, machine: str | None = None) -> Verdict:
    return judge_path(str(path), GivenBounds(machine)).verdict


def _archived(archive: Path) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        return _judged(Path(folder))


def _script(status: int = 0, interruption: str = "") -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        evidence = sample_evidence.write(
            Path(folder, "evidence"), status=status, interruption=interruption
        )
        return _judged(evidence)


# -- real logs -------------------------------------------------------------------------------------


def _logs() -> Made:
    yield "ten nodes", partial(_judged, REPOSITORY)
    yield "ten nodes, h100-8", partial(_judged, REPOSITORY, machine="h100-8")
    for path in sorted(PUBLISHED.glob("*.log")):
        if path.name not in _UNREADABLE:
            yield f"published {path.stem}", partial(_judged, path)
    for path in sorted((TESTS / "logs").glob("*.log")):
        if path.name not in _UNREADABLE:
            yield f"written {path.stem}", partial(_judged, path)
    faults: Mapping[str, Sequence[Change]] = {
        **{f"only {part}": (only(part),) for part in ("N1_", "N2_G8", "N10")},
        **{f"a node at {n} %": (node(NODE(4), n / 100),) for n in (97, 93, 60, 6)},
        **{f"a node at {n} %, pairs": (only("N2_"), node(NODE(9), n / 100)) for n in (93, 60, 6)},
        "two nodes at 93 %": (node(NODE(2), 0.93), node(NODE(7), 0.93)),
        "two nodes at 60 %": (node(NODE(2), 0.6), node(NODE(7), 0.6)),
        "a GPU at 80 %": (gpu(NODE(5), 3, 0.8),),
        "a pair at 6 %": (bad_pairs([(NODE(3), NODE(7))], 0.06),),
        "three pairs at 70 %": (
            bad_pairs([(NODE(3), NODE(7)), (NODE(2), NODE(5)), (NODE(4), NODE(6))], 0.7),
        ),
        "a log that ends early": (_cut("nccl_N2_G8_cnode3-003_cnode3-007.log", 2000),),
        "an empty log": (_cut("nccl_N2_G8_cnode3-003_cnode3-007.log", 0),),
        "a log of all nodes that ends early": (_cut("nccl_N10_G8.log", 9000),),
    }
    for name, changes in faults.items():
        yield name, partial(_changed, changes)
    yield "all pairs of a node crash", _crashed
    yield "rails, one of them slow", partial(_invented, partial(nccl_logs.rails, bad=2))
    sets = (range(8), (0, 1, 2, 3), (4, 5, 6, 7), (3,), (5,))
    yield (
        "a GPU in some sets of GPUs",
        partial(
            _invented,
            partial(nccl_logs.corpus, speed=nccl_logs.slow("node3", gpu=3), gpus=sets),
        ),
    )
    yield "eight nodes", partial(_invented, nccl_logs.corpus)
    two = nccl_logs.NODES[:2]
    for share in (1.0, 0.5):
        speed = nccl_logs.slow("node2", share=share)
        yield (
            f"two nodes, one at {share:.0%}",
            partial(_invented, partial(nccl_logs.corpus, speed=speed, nodes=two)),
        )


#: Files beside the logs without a result that can be judged.
_UNREADABLE = ("aws-nccom-slurm.log", "no-mpi.log", "ways.log")


def _cut(log: str, length: int) -> Change:
    return lambda name, text: text[:length] if name == log else text


def _changed(changes: Sequence[Change]) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        return judged(REPOSITORY, Path(folder), *changes)


def _crashed() -> Verdict:
    text = (REPOSITORY / "pairwise" / "nccl_N2_G8_cnode3-003_cnode3-007.log").read_text()
    with tempfile.TemporaryDirectory() as folder:
        for pair in combinations(HOSTS[:5], 2):
            own = text.replace(NODE(3), "one").replace(NODE(7), pair[1]).replace("one", pair[0])
            if NODE(4) in pair:
                error = f"{NODE(4)}: Test NCCL failure all_reduce.cu:95 'system error'"
                own = f"{own[:900]}\n{error}\n"
            Path(folder, f"nccl_N2_G8_{'_'.join(pair)}.log").write_text(own)
        return _judged(Path(folder))


def _invented(write: Callable[[Path], object]) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "logs"))
        return _judged(Path(folder, "logs"))


# -- simulated clusters ----------------------------------------------------------------------------


def _pairs() -> Made:
    for world in WORLDS:
        yield world.name, partial(_world, world)
    for name, count, rounds in (
        ("w0", 2, 4),
        ("node-50", 2, 4),
        ("node-50", 3, 4),
        ("node-50", 10, 4),
        ("two-nodes", 64, 8),
        ("leaf", 64, 8),
        ("border-50", 64, 8),
        ("gpu", 64, 8),
        ("pairs-5-70", 64, 8),
    ):
        (world,) = (world for world in WORLDS if world.name == name)
        yield (
            f"{name}, {count} nodes, {rounds} rounds",
            partial(_world, world, count=count, rounds=rounds),
        )


def _world(world: World, *, count: int = 24, rounds: int = 5) -> Verdict:
    return run_of(world.cluster(count, rounds, seed=1), rounds).verdict


def _suites() -> Made:
    for name in CASES:
        yield f"64 nodes, {name}", partial(_case, name)
    rails = {(f"h{i}", rank): 0.7 for i, rank in product(range(16), range(4))}
    fabrics = {
        "healthy": Fabric(count=8),
        "two nodes": Fabric(count=2),
        "one node": Fabric(count=1),
        "one node, a NIC at 40 %": Fabric(count=1, slow={("h0", 2): 0.4}),
        "a NIC at 70 %": Fabric(count=16, slow={("h3", 0): 0.7}),
        "two NICs of a node": Fabric(count=16, slow={("h3", 0): 0.7, ("h3", 5): 0.7}),
        "NICs of three nodes": Fabric(
            count=16, slow={("h3", 0): 0.7, ("h7", 2): 0.7, ("h9", 5): 0.7}
        ),
        "a rack": Fabric(count=16, slow=whole(range(4), 0.7)),
        "all NICs": Fabric(count=8, slow=whole(range(8), 0.7)),
        "half of the rails": Fabric(count=16, slow=rails),
        "most rails crowded": Fabric(count=8, crowded=dict.fromkeys(range(5), 0.7)),
        "no ladder": Fabric(count=4, slow={("h1", 3): 0.7}, without="ladder"),
        "quick, one node": Fabric(suite="quick", count=1),
        "GB200, no NICs": Fabric(machine="gb200-4x", suite="quick", count=4, uses_nics=False),
        "GB200": Fabric(machine="gb200-4x", count=4),
    }
    for name, fabric in fabrics.items():
        yield f"NICs: {name}", partial(simulated_fabric.run, fabric, again=False)


def _case(name: str) -> Verdict:
    return case(name, again=False).verdict


# -- runs of a few records -------------------------------------------------------------------------


def _small() -> Made:
    yield "healthy", partial(_collectives, {})
    yield "a node at half speed", partial(_collectives, {"h3": 0.5})
    yield "a node at 93 %", partial(_collectives, {"h3": 0.93})
    yield "two nodes at 60 %", partial(_collectives, {"h2": 0.6, "h5": 0.6})
    yield "all below the bound", partial(_collectives, dict.fromkeys(EIGHT, 0.5))
    yield "all failed", partial(_collectives, dict.fromkeys(EIGHT, 0.0))
    yield "a node always fails", partial(_collectives, {"h3": 0.0})
    yield "a pair fails", _dead_link
    yield "wrong data of a node", partial(_wrong, "h5")
    yield "wrong data of all", partial(_wrong, *EIGHT)
    for cause in (Cause.HOST_DIED, Cause.RANK_HUNG, Cause.TIMED_OUT, Cause.CRASHED):
        yield f"one problem: {cause}", partial(_problem, cause)
    yield "a node did not answer", _absent
    yield "fewer nodes than planned", _fewer
    yield "no records of a step", _without_step
    yield "an interrupted run", _interrupted
    yield "no records", lambda: judged_run(gpu_plan(ALL, PAIRS))
    changes: Mapping[str, Mapping[str, object]] = {
        "a GPU is missing": {"gpus": gpus("h1", 7)},
        "ECC errors": {"gpus": gpus("h1", eccUncorrected=2)},
        "another GPU": {"gpus": gpus("h1", name="NVIDIA H200")},
        "half of the memory": {"gpus": gpus("h1"), "memoryBytes": 32 << 30},
    }
    for name, change in changes.items():
        yield f"inventory: {name}", partial(_inventories, change)
    for name, grown in {
        "ECC": HealthChange(since=2, seconds=60.0, counters={"gpu 3": {"ecc-uncorrected": 1}}),
        "an Xid": HealthChange(
            since=2, seconds=60.0, events=(("gpu 3", "xid", "48", "fatal", "0000:03:00"),)
        ),
        "a link": HealthChange(
            since=2, seconds=60.0, counters={"rdma mlx5_2/1": {"link_downed": 1}}
        ),
        "a reboot": HealthChange(since=2, rebooted=True),
    }.items():
        yield f"health: {name}", partial(health_runs.run_of, ("h1", 3, grown), machine=GPU)
    yield "health: nothing", partial(health_runs.run_of, machine=GPU)
    for share in (1.0, 0.95, 0.7):
        yield f"gemm: a GPU at {share:.0%}", partial(_gemm, share)
    yield "gemm: wrong results of a GPU", partial(_gemm, 1.0, wrong=3)
    yield "gemm: a node at 80 %", partial(_gemm, 0.8, *range(8))
    for last in (0.4, 1.5):
        yield f"train: the loss falls from 2 to {last}", partial(_train, last)


def _records(speeds: Mapping[str, float], *steps: Step) -> list[Record]:
    """Return the records of eight hosts, each at a share of the normal speed; 0: it fails."""
    _, listed = gpu_inventory()
    made = [hosts_record(EIGHT), *listed]
    for of in steps:
        made += measured(
            of,
            EIGHT,
            lambda group: 380.0 * min(speeds.get(host, 1.0) for host in group.hosts) or None,
        )
    return made


def _collectives(speeds: Mapping[str, float]) -> Verdict:
    inventory, _ = gpu_inventory()
    planned = gpu_plan(inventory, ALL, EACH, PAIRS, references=(FLOOR,))
    return judged_run(planned, *_records(speeds, ALL, EACH, PAIRS))


def _dead_link() -> Verdict:
    inventory, _ = gpu_inventory()
    kept = _records({}, PAIRS)
    pair = kept[-1].hosts
    kept = [
        replace(r, exit=1, metrics=()) if r.step == PAIRS.id and r.hosts == pair else r
        for r in kept
    ]
    return judged_run(gpu_plan(inventory, PAIRS, references=(FLOOR,)), *kept)


def _wrong(*bad: str) -> Verdict:
    inventory, _ = gpu_inventory()
    kept = [
        replace(r, metrics=table("all-reduce", 380.0, wrong=64))
        if r.step == PAIRS.id and set(bad) & set(r.hosts)
        else r
        for r in _records({}, PAIRS)
    ]
    return judged_run(gpu_plan(inventory, PAIRS, references=(FLOOR,)), *kept)


def _problem(cause: Cause) -> Verdict:
    problem = Problem(cause=cause, message="h3", check="all-reduce", host="h3")
    failed = record(ALL, EIGHT, status=None, problems=(problem,))
    return judged_run(gpu_plan(ALL, PAIRS), hosts_record(EIGHT), failed)


def _absent() -> Verdict:
    gone = Problem(cause=Cause.UNREACHABLE_TIMEOUT, message="h7", check="hosts", host="h7")
    rest = EIGHT[:7]
    return judged_run(gpu_plan(ALL), hosts_record(rest, gone), *measured(ALL, rest, slow()))


def _fewer() -> Verdict:
    return judged_run(gpu_plan(ALL, nodes=9), *_records({}, ALL))


def _without_step() -> Verdict:
    return judged_run(gpu_plan(ALL, EACH, PAIRS), *_records({}, ALL, PAIRS))


def _interrupted() -> Verdict:
    return judged_run(gpu_plan(ALL, EACH, PAIRS), *_records({}, ALL), interruption="ended")


def _inventories(change: Mapping[str, object]) -> Verdict:
    facts = [inventory_of(h, gpus=gpus(h), pciNvidia=0) for h in ("h0", "h2", "h3")]
    facts.insert(1, inventory_of("h1", **change))
    names = [fact.host or "" for fact in facts]
    made = [
        record(INVENTORY, [name], facts=(fact,), number=i)
        for i, (name, fact) in enumerate(zip(names, facts, strict=True))
    ]
    return judged_run(gpu_plan(INVENTORY), hosts_record(names), *made)


def _gemm(share: float, *slow_gpus: int, wrong: int = 0) -> Verdict:
    """Return the verdict on the GPUs of eight hosts; some GPUs of one host are slow or wrong."""
    of = step("gemm", "each", params={})
    bad = {("h3", gpu) for gpu in slow_gpus or (2,)}
    made = []
    for number, host in enumerate(EIGHT):
        metrics: list[Metric] = []
        facts: list[Fact] = []
        for rank in range(8):
            is_bad = (host, rank) in bad
            usual = 1400.0 * (1 + 0.001 * ((3 * rank + number) % 5))
            for name, value, unit in (
                ("bf16", usual * (share if is_bad else 1.0), "TFLOP/s"),
                ("bf16-wrong", float(wrong if is_bad else 0), "count"),
            ):
                metrics.append(of_gpu("gemm", name, value, unit, host, rank))
            digest = {"type": "bf16", "size": 8192, "exact": "aa", "random": "bb"}
            digest |= {"device": "NVIDIA B200", "software": "torch 2.9, CUDA 13.0"}
            facts.append(Fact(name="digest", value=digest, check="gemm", host=host, rank=rank))
        made.append(record(of, (host,), *metrics, number=number, ranks=8, facts=tuple(facts)))
    inventory, listed = gpu_inventory()
    bound = replace(FLOOR, check="gemm", metric="bf16", unit="TFLOP/s", lower=1200.0, peak=2250.0)
    listed = [replace(r, ranks=8) for r in listed]
    planned = plan(inventory, of, machine=replace(GPU, ranks=8), references=(bound,))
    return judged_run(planned, hosts_record(EIGHT), *listed, *made)


def _train(last: float) -> Verdict:
    of = step("train", params={"ratio": 0.5})
    values = {"loss-first": 2.0, "loss-last": last, "throughput": 900.0}
    metrics = [Metric(check="train", name=k, value=v, unit="") for k, v in values.items()]
    compared = Fact(name="compared", value={"times": 4, "differed": 0}, check="train")
    made = record(of, hosts(8), *metrics, facts=(compared,))
    return judged_run(plan(of), hosts_record(EIGHT), made)


#: The runs of each family, by name.
FAMILIES: Mapping[str, Mapping[str, Make]] = {
    "recorded": dict(_recorded()),
    "logs": dict(_logs()),
    "pairs": dict(_pairs()),
    "suites": dict(_suites()),
    "small": dict(_small()),
}
