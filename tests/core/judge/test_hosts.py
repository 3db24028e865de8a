"""Judge the inventories of hosts: missing or broken GPUs, differences, clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.factories.judging import (
    EACH,
    EIGHT,
    INVENTORY,
    Cases,
    blamed,
    by_outcome,
    causes,
    gpu_plan,
    judged,
    outcome,
)
from tests.factories.verdicts import (
    CPU,
    FLOOR,
    GPU,
    gpus,
    hosts,
    hosts_record,
    inventories,
    inventory_of,
    measured,
    plan,
    record,
    slow,
    step,
)

from accept.core.facts import LEFT_OUT_HOST
from accept.core.judge.consistency import usual_number
from accept.core.judge.hosts import domains, is_device, without_gpus
from accept.core.plan import PlannedMachine
from accept.core.records import Fact, Metric
from accept.core.verdict import State, Verdict


def test_positions_that_should_be_known_and_are_not_are_reported() -> None:
    unknown, one = "; positions unknown", "; positions of 1 unknown"
    for topology, known, remark in (
        ("command", 0, unknown), ("command", 7, one), ("", 7, one), ("command", 8, ""), ("", 0, ""),
    ):  # fmt: skip
        facts = tuple(
            Fact(name="place", value=f"b/r/{host}", check="hosts", host=host)
            for host in EIGHT[:known]
        )
        planned = plan(machine=replace(GPU, topology=topology))
        (hosts, *_) = judged(planned, replace(hosts_record(EIGHT), facts=facts)).checks
        assert (hosts.check, hosts.measured) == ("hosts", f"8 of 8 nodes took part{remark}")


def test_a_card_is_another_product_than_a_module_of_the_same_chip() -> None:
    for wanted, same, *others in (
        ("NVIDIA H200", "NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H200 NV"),
        ("NVIDIA H200 NVL", "NVIDIA H200 NVL"),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
        ("nvidia a100", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"),
        ("NVIDIA B200", "NVIDIA B200", "NVIDIA GB200"),
        # Drivers before 470 print no "NVIDIA".
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "A100-SXM4-80GB"),
        ("NVIDIA B200", "B200", "GB200"),
    ):
        assert is_device(wanted, same), wanted
        assert not any(is_device(wanted, other) for other in others), wanted


# -- inventories -----------------------------------------------------------------------------------


def inventoried(
    facts: Sequence[Fact], machine: PlannedMachine = GPU, offsets: Sequence[float] = (), **more: Any
) -> Verdict:
    """Judge the inventories of hosts; `offsets`: those of their clocks in s."""
    names = [fact.host or "" for fact in facts]
    clocks = tuple(
        Metric(check="inventory", name="clock-offset", value=value, unit="s", host=host)
        for host, value in zip(names, offsets, strict=False)
    )
    listed = inventories(INVENTORY, facts, ranks=more.get("gpus_used"))
    planned = plan(INVENTORY, machine=machine, **more)
    return judged(planned, hosts_record(names, metrics=clocks), *listed)


def compared(
    common: Mapping[str, Any] | None = None,
    own: dict[str, Any] | None = None,
    names: Sequence[str] = hosts(4),
    **more: Any,
) -> Verdict:
    """Judge hosts with 8 GPUs each and `common` values; h1 has its `own` ones."""
    facts = []
    for host in names:
        usual = {"gpus": gpus(host), "pciNvidia": 0, **(common or {})}
        facts.append(inventory_of(host, **(usual | (own or {}) if host == "h1" else usual)))
    return inventoried(facts, **more)


def given(used: int | None, count: int, shown: int) -> Verdict:
    """Judge hosts of a job; h1 was given `count` of eight GPUs and shows some of them.

    `used`: the GPUs that the run uses on each host.
    """
    enough = max(count, used or 8)
    facts = [inventory_of(h, gpus=gpus(h)[:enough], **of_job(enough)) for h in hosts(4)]
    facts[1] = inventory_of("h1", gpus=gpus("h1")[:shown], pciNvidia=8, **of_job(count))
    return inventoried(facts, gpus_used=used)


def of_job(count: int) -> dict[str, Any]:
    """Return the keys of an inventory of a job that was given some GPUs of eight."""
    return {"given": {"list": "", "count": count, "shown": 8, "fault": None, "entry": ""}}


def part(shown: int, used: int | None) -> Verdict:
    """Judge a host with eight GPUs on its bus that shows some of them."""
    listed = inventory_of("h0", gpus=gpus("h0", shown), pciNvidia=8)
    return inventoried([listed], nodes=1, gpus_used=used, gpus_given=used)


def nics(*gbps: int, state: str = "active") -> dict[str, Any]:
    listed = [
        {"name": f"mlx5_{n}", "speed": rate * 1000, "state": state, "rdma": True}
        for n, rate in enumerate(gbps)
    ]
    return {"nics": listed}


def silent_gpu(key: str) -> dict[str, Any]:
    """Return the GPUs of h1; GPU 3 does not report a property."""
    return {"gpus": [g | ({key: None} if n == 3 else {}) for n, g in enumerate(gpus("h1"))]}


CONNECTED = step("connectivity")
NETWORK = {"interface": "eth0", "interfaceBy": "the route to the other nodes"}
NETWORK |= {"rdma": "=mlx5_0:1,mlx5_1:1", "rdmaBy": "the fastest that are up"}


def connected(devices: int, **network: str) -> Verdict:
    """Judge hosts that report this network, on a machine with some RDMA devices."""
    names = hosts(4)
    facts = [
        Fact(name=name, check="connectivity", host=host, rank=rank, value=value)
        for rank, host in enumerate(names)
        for name, value in (("rank", {}), ("network", {**NETWORK, **network}))
    ]
    planned = plan(CONNECTED, machine=replace(CPU, ranks=1, rdma_devices=devices))
    made = record(CONNECTED, names, facts=tuple(facts), ranks=4)
    return judged(planned, hosts_record(names), made)


def left_out() -> Verdict:
    """Judge a run that left h1 out because of the list of its GPUs."""
    others = (inventory_of(host, gpus=gpus(host)) for host in ("h0", "h2", "h3"))
    fact = Fact(name=LEFT_OUT_HOST.name, value="gpu-list", check="hosts", host="h1")
    first = replace(hosts_record(hosts(4)), facts=(fact,))
    return judged(gpu_plan(INVENTORY), first, *inventories(INVENTORY, others))


def slow_without_a_gpu() -> Verdict:
    """Judge hosts; h1 lacks a GPU and is slow."""
    counts = {host: 7 if host == "h1" else 8 for host in EIGHT}
    facts = (inventory_of(h, gpus=gpus(h, n), pciNvidia=n) for h, n in counts.items())
    made = [*inventories(INVENTORY, facts), *measured(EACH, EIGHT, slow("h1", usual=360))]
    planned = gpu_plan(INVENTORY, EACH, references=(replace(FLOOR, max_nodes=1),))
    return judged(planned, hosts_record(EIGHT), *made)


def one_inventory() -> Verdict:
    listed = record(INVENTORY, ["h0"], facts=(inventory_of("h0"),))
    return judged(plan(INVENTORY), hosts_record(hosts(2)), listed, record(INVENTORY, ["h1"]))


VERSIONS = {"mpi": "5.0.8", "python": "3.11.2"}
DOMAIN, RING = {"domain": "c/7"}, {"NCCL_ALGO": "Ring"}


def versions(**own: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return common versions, and those of a host."""
    return {"versions": VERSIONS}, {"versions": {**VERSIONS, **own}}


def settings(chosen: Sequence[str] = (), **own: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return common settings, and those of a host; `chosen`: by the host itself."""
    return {"env": RING}, {"env": {**RING, **own}, "chosen": [*chosen]}


BUSY = {"gpus": gpus("h1", processes=["77 python"])}
#: A machine with two NICs, and ones that need unlimited locked memory, or name no number of GPUs.
TWO_NICS = replace(GPU, rdma_devices=2, rdma_gbps=400.0)
DIRECT, ANY = replace(GPU, transport="any", gpu_direct=True), replace(GPU, gpus=None, ranks=None)
NO_GPUS: dict[str, Any] = {"gpus": []}

#: What the findings of some cases show.
SHOWN = {
    "another value of a setting": "NCCL_ALGO is Tree, on 3 of 4 hosts it is Ring",
    "no value of a setting": "NCCL_ALGO is nothing, on 3 of 4 hosts it is Ring",
    "a setting more": "NCCL_PROTO is LL, on 3 of 4 hosts it is nothing",
    "a GPU of another host": "GPU GPU-h2-0 is on h1 and on h2",
    "two hosts of four differ": "kernel differs: 6.0 on h[0,2]; 6.1 on h[1,3]",
    "NICs that are down": "h[0-3]: 0 RDMA devices of 400 Gbit/s are up, the machine has 2; "
    "as on all nodes: does --machine name another machine?",
    "NICs near the GPUs": "interface eth0 (by the route to the other nodes), RDMA mlx5_0:1,"
    "mlx5_1:1 (by the fastest that are up) on h0, h1, h2, h3",
}
CASES: Cases = {
    "pass": {
        "equal hosts": compared,
        "one domain": lambda: compared(DOMAIN),
        "a domain of one host": lambda: compared({}, DOMAIN),
        "GPUs that may be busy": lambda: compared({}, BUSY, busy_ok=True),
        "no speed target": lambda: compared(NO_GPUS, {"kernel": "5.4"}, machine=CPU),
        "a memory limit that does not apply": lambda: compared(
            {"memlock": 64, "ipcLock": True}, machine=DIRECT
        ),
        "a setting of others than NCCL": lambda: compared(*settings(UCX_TLS="tcp")),
        "a setting that the node chose": lambda: compared(
            *settings(NCCL_IB_HCA="=mlx5_9:1", chosen=["NCCL_IB_HCA"])
        ),
        "a slower NIC more": lambda: compared(nics(400, 400, 100), machine=TWO_NICS),
        "NICs of two devices each": lambda: compared(nics(*[200] * 4), machine=TWO_NICS),
        "NICs of four devices each": lambda: compared(nics(*[100] * 8), machine=TWO_NICS),
        "NICs near the GPUs": lambda: connected(2),
        "NICs that the settings name": lambda: connected(3, rdmaBy="the settings"),
        "a part of the GPUs": lambda: part(4, used=4),
        "all GPUs of the job": lambda: given(4, 4, 4),
        "a part of the GPUs of the job": lambda: given(2, 4, 4),
        "all GPUs of the node": lambda: given(None, 8, 8),
        "CPUs of a job with GPUs": lambda: compared(
            NO_GPUS | of_job(4), machine=replace(GPU, gpus=0)
        ),
    },
    "not-tested: no-measurement": {
        "an unknown version": lambda: compared(*versions(mpi=None)),
    },
    "not-tested: gpu-list": {
        "a host that was left out because of its list": left_out,
        "a job with a part of a full node": lambda: given(None, 4, 4),
        "a job with fewer GPUs than the run uses": lambda: given(4, 2, 2),
    },
    "fail: gpu-duplicate": {"a GPU of another host": lambda: compared({}, {"gpus": gpus("h2")})},
    "fail: inventory-mismatch": {
        "two hosts of four differ": lambda: inventoried(
            [inventory_of(h, gpus=gpus(h), kernel=f"6.{n % 2}") for n, h in enumerate(hosts(4))]
        ),
        "NICs that are down": lambda: compared(nics(400, 400, state="down"), machine=TWO_NICS),
        "NICs of all hosts that are far from the GPUs": lambda: connected(3),
    },
    "fail: memlock-limited": {"a memory limit": lambda: compared({"memlock": 64}, machine=DIRECT)},
    "fail: no-measurement": {"no inventory of a host": one_inventory},
    "fail: gpu-missing, gpu-unusable, node h0 gpu-missing": {
        "a part of a full node": lambda: part(4, used=None),
    },
    "fail: gpu-missing, node h0 gpu-missing": {"a missing GPU of a part": lambda: part(3, used=4)},
    "degraded: gpu-missing, inventory-mismatch, node h1 gpu-missing": {
        "a missing GPU": lambda: compared({}, {"gpus": gpus("h1", 7)}),
        "a GPU less than most, no number": lambda: compared(
            {}, {"gpus": gpus("h1", 7)}, EIGHT, machine=ANY
        ),
    },
    "degraded: gpu-missing, gpu-unusable, inventory-mismatch, node h1 gpu-missing": {
        "a missing GPU of the job": lambda: given(4, 4, 3),
        "a missing GPU of the node": lambda: given(None, 8, 7),
        "one GPU of two": lambda: given(1, 2, 1),
    },
    "degraded: below-reference, gpu-missing, inventory-mismatch, node h1 gpu-missing": {
        "a missing GPU explains why a host is slow": slow_without_a_gpu,
    },
    "degraded: gpu-ecc, gpu h1:0 gpu-ecc": {
        "ECC errors": lambda: compared({}, {"gpus": gpus("h1", eccUncorrected=2)}),
    },
    "degraded: gpu-duplicate, node h1 gpu-duplicate": {
        "a GPU twice": lambda: compared({}, {"gpus": gpus("h1", uuid="GPU-h1-3")}),
    },
    "degraded: gpu-busy, gpu h1:0 gpu-busy": {"a busy GPU": lambda: compared({}, BUSY)},
    "degraded: gpu-unusable, node h1 gpu-unusable": {
        "a GPU without a driver": lambda: compared({}, {"pciNvidia": 9}),
        # Its GPUs are unknown and not missing.
        "a driver that did not answer": lambda: compared({"pciNvidia": 8}, {"gpus": None}),
    },
    "degraded: clock-skew, node h2 clock-skew": {
        "a clock": lambda: inventoried([*map(inventory_of, hosts(3))], CPU, [0.0, 0.01, 45.0]),
    },
    "degraded: inventory-mismatch, node h1 inventory-mismatch": {
        "another GPU": lambda: compared({}, {"gpus": gpus("h1", name="NVIDIA H200")}),
        "half of the memory": lambda: compared({}, {"memoryBytes": 32 << 30}),
        "another version": lambda: compared(*versions(mpi="4.1.4")),
        "no version": lambda: compared({"versions": VERSIONS}, {"versions": {"python": "3.11.2"}}),
        "no domain": lambda: compared(DOMAIN, {"domain": None}),
        "a GPU without name": lambda: compared({}, silent_gpu("name")),
        "a GPU without driver version": lambda: compared({}, silent_gpu("driver")),
        "a GPU without memory": lambda: compared({}, silent_gpu("memoryMiB")),
        "another value of a setting": lambda: compared(*settings(NCCL_ALGO="Tree")),
        "no value of a setting": lambda: compared({"env": RING}, {"env": {}}),
        "a setting more": lambda: compared(*settings(NCCL_PROTO="LL")),
        **{
            f"NICs of {', '.join(map(str, own))} Gbit/s": partial(
                compared, nics(400, 400), nics(*own), machine=TWO_NICS
            )
            for own in ((400,), (400, 200), (), (200,) * 3, (400, 200, 200), (100,) * 7)
        },
    },
    # A host is still compared by the properties that it reports.
    "degraded: inventory-mismatch, no-measurement, node h1 inventory-mismatch": {
        "another kernel and an unknown number of CPUs": lambda: compared(
            {}, {"cpus": None, "kernel": "5.4"}
        ),
    },
}


@by_outcome(CASES)
def test_inventories_have_their_verdict(expected: str, case: Callable[[], Verdict]) -> None:
    assert outcome(case()) == expected


@pytest.mark.parametrize("name", SHOWN)
def test_a_finding_shows_what_differs(name: str) -> None:
    (case,) = (own[name] for own in CASES.values() if name in own)
    messages = [f.message for check in case().checks for f in check.findings]
    assert any(SHOWN[name] in message for message in messages), messages


def test_a_part_of_a_node_is_in_the_headline() -> None:
    assert part(4, used=4).headline == "pass (4 of the 8 GPUs of each node)"


NIC = {"name": "mlx5_0", "rdma": True, "state": "active", "speed": 400_000}
UNKNOWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("number of CPUs", {"cpus": None}),
    ("memory in GiB", {"memoryBytes": None}),
    ("kernel", {"kernel": None}),
    ("memlock", {"memlock": None}),
    ("GPU driver", {"gpu": {"driver": None}}),
    ("GPU memory in MiB", {"gpu": {"memoryMiB": None}}),
    ("GPU name", {"gpu": {"name": None}}),
    ("RDMA devices", {"nics": [NIC | {"speed": None}]}),
)


def properties_of(host: str, gpu: dict[str, Any] | None = None, **changes: Any) -> Fact:
    listed = [one | (gpu or {}) for one in gpus(host)]
    return inventory_of(host, **{"gpus": listed, "pciNvidia": 8, "nics": [NIC]} | changes)


@pytest.mark.parametrize(
    "damage",
    [
        *({name: 1e308} for name in ("cpus", "kernel", "memlock", "memoryBytes", "gpus", "nics")),
        *({"gpu": {name: {}}} for name in ("driver", "memoryMiB", "name", "vbios", "processes")),
        *({"kernel": text} for text in ("\ud800", "\x00", "x" * 5000)),
        *({"gpus": devices} for devices in ("", [0], [*gpus("h2"), None])),
        *({name: [""]} for name in ("env", "versions")),
        *({name: {"mpi": 7}} for name in ("env", "versions")),
    ],
)
def test_a_damaged_inventory_blames_nobody_and_does_not_pass(damage: dict[str, Any]) -> None:
    whole = [properties_of(host) for host in ("h0", "h1")]
    verdict = inventoried([*whole, properties_of("h2", **damage)])
    assert (blamed(verdict), verdict.state is State.PASS) == (set(), False)


@pytest.mark.parametrize(("name", "changes"), UNKNOWN)
def test_a_property_that_one_host_does_not_report_blames_nobody_and_is_not_tested(
    name: str, changes: dict[str, Any]
) -> None:
    known = [properties_of(host) for host in ("h0", "h1")]
    verdict = inventoried([*known, properties_of("h2", **changes)])
    assert blamed(verdict) == set()
    assert verdict.checks[-1].state is State.NOT_TESTED
    (finding,) = (f for f in verdict.checks[-1].findings if f.state is State.NOT_TESTED)
    assert finding.hosts == ("h2",)
    assert name in finding.message


@pytest.mark.parametrize(("name", "changes"), UNKNOWN)
def test_properties_that_no_host_reports_are_listed(name: str, changes: dict[str, Any]) -> None:
    none = [properties_of(host, **changes) for host in ("h0", "h1")]
    verdict = inventoried(none)
    assert (blamed(verdict), causes(verdict)) == (set(), set())
    assert verdict.checks[-1].measured.endswith(f"; not reported: {name}")


def test_an_inventory_without_a_host_is_that_of_an_execution_on_one_host() -> None:
    facts = [replace(inventory_of(h, domain="c/7"), host=None) for h in ("h0", "h1")]
    alone = [record(INVENTORY, [h], facts=(f,)) for h, f in zip(("h0", "h1"), facts, strict=True)]
    together = record(INVENTORY, ["h0", "h1"], facts=tuple(facts))
    assert without_gpus(gpu_plan(INVENTORY), alone) == dict.fromkeys(("h0", "h1"), "gpu-missing")
    assert domains(alone) == (frozenset(("h0", "h1")),)
    assert (without_gpus(gpu_plan(INVENTORY), [together]), domains([together])) == ({}, ())


def test_the_number_of_ranks_is_that_of_most_hosts() -> None:
    usual = {(8,) * 63 + (7,): 8, (8, 8, 3): 8, (8, 4): 4, (4, 4, 8, 8): 4, (): 1, (0, 0): 1}
    assert {numbers: usual_number(numbers) for numbers in usual} == usual
