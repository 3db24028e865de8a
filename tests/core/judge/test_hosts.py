"""Judge the inventories of hosts: missing or broken GPUs, differences, clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.factories.judging import EACH, EIGHT, INVENTORY, blamed, causes, gpu_plan, judged
from tests.factories.verdicts import (
    FLOOR,
    GPU,
    gpus,
    hosts_record,
    inventory_of,
    measured,
    plan,
    record,
    slow,
)

from accept.core.facts import LEFT_OUT_HOST
from accept.core.judge.consistency import usual_number
from accept.core.judge.hosts import is_device
from accept.core.model import Fact, Metric, Plan, State, Verdict


def inventoried(machine_plan: Plan, facts: list[Fact], metrics: tuple[Metric, ...] = ()) -> Verdict:
    of = machine_plan.steps[0]
    names = [fact.host or "" for fact in facts]
    records = [
        record(of, [name], facts=(fact,), number=i)
        for i, (name, fact) in enumerate(zip(names, facts, strict=True))
    ]
    return judged(machine_plan, hosts_record(names, metrics=metrics), *records)


@pytest.mark.parametrize(
    ("topology", "known", "remark"),
    [
        ("command", 0, "; positions unknown"),
        ("command", 7, "; positions of 1 unknown"),
        ("", 7, "; positions of 1 unknown"),
        ("command", 8, ""),
        ("", 0, ""),
    ],
)
def test_positions_that_should_be_known_and_are_not_are_reported(
    topology: str, known: int, remark: str
) -> None:
    facts = tuple(
        Fact(name="place", value=f"b/r/{host}", check="hosts", host=host) for host in EIGHT[:known]
    )
    machine = replace(GPU, topology=topology)
    verdict = judged(plan(machine=machine), replace(hosts_record(EIGHT), facts=facts))
    (hosts,) = (check for check in verdict.checks if check.check == "hosts")
    assert hosts.measured == f"8 of 8 nodes took part{remark}"


@pytest.mark.parametrize(
    ("wanted", "name", "same"),
    [
        ("NVIDIA H200", "NVIDIA H200", True),
        ("NVIDIA H200", "NVIDIA H200 NVL", False),
        ("NVIDIA H200", "NVIDIA H200 NV", False),
        ("NVIDIA H200 NVL", "NVIDIA H200 NVL", True),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100", "NVIDIA H100 PCIe", False),
        ("nvidia a100", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100", "NVIDIA A100-PCIE-40GB", False),
        ("NVIDIA B200", "NVIDIA GB200", False),
    ],
)
def test_a_card_is_another_product_than_a_module_of_the_same_chip(
    *, wanted: str, name: str, same: bool
) -> None:
    assert is_device(wanted, name) is same


MISMATCH = ("node", "h1", "inventory-mismatch")
VERSIONS = {"mpi": "5.0.8", "python": "3.11.2"}
DOMAIN = {"domain": "c/7"}


@pytest.mark.parametrize(
    ("common", "own", "suspect"),
    [
        ({}, {}, None),
        ({}, {"gpus": gpus("h1", 7)}, ("node", "h1", "gpu-missing")),
        ({}, {"gpus": gpus("h1", eccUncorrected=2)}, ("gpu", "h1:0", "gpu-ecc")),
        ({}, {"gpus": gpus("h1", uuid="GPU-h1-3")}, ("node", "h1", "gpu-duplicate")),
        ({}, {"gpus": gpus("h1", name="NVIDIA H200")}, MISMATCH),
        ({}, {"gpus": gpus("h1", processes=["77 python"])}, ("gpu", "h1:0", "gpu-busy")),
        ({}, {"memoryBytes": 32 << 30}, MISMATCH),
        ({}, {"pciNvidia": 9}, ("node", "h1", "gpu-unusable")),
        # The driver did not answer in time: its GPUs are unknown and not missing.
        ({"pciNvidia": 8}, {"gpus": None}, ("node", "h1", "gpu-unusable")),
        # A version that is missing differs, and an unknown one does not.
        ({"versions": VERSIONS}, {"versions": {**VERSIONS, "mpi": None}}, None),
        ({"versions": VERSIONS}, {"versions": {"python": "3.11.2"}}, MISMATCH),
        ({"versions": VERSIONS}, {"versions": {**VERSIONS, "mpi": "4.1.4"}}, MISMATCH),
        (DOMAIN, {}, None),
        (DOMAIN, {"domain": None}, MISMATCH),
        # One GPU reports less than its peers.
        *(
            ({}, {"gpus": [g | ({key: None} if n == 3 else {}) for n, g in enumerate(gpus("h1"))]},
             MISMATCH)
            for key in ("name", "driver", "memoryMiB")
        ),
        # A host is still compared by the properties that it reports.
        ({}, {"cpus": None, "kernel": "5.4"}, MISMATCH),
    ],
)  # fmt: skip
def test_a_host_that_differs_from_three_others_is_named_with_its_cause(
    common: dict[str, Any], own: dict[str, Any], suspect: tuple[str, str, str] | None
) -> None:
    facts = [
        inventory_of(h, **{"gpus": gpus(h), "pciNvidia": 0, **common, **(own if h == "h1" else {})})
        for h in ("h0", "h1", "h2", "h3")
    ]
    verdict = inventoried(gpu_plan(INVENTORY), facts)
    assert blamed(verdict) == ({suspect} if suspect else set())
    assert "gpu-missing" not in causes(verdict) or suspect == ("node", "h1", "gpu-missing")


def test_a_gpu_on_two_hosts_rejects_the_run_and_accuses_neither() -> None:
    names = {"h0": "h0", "h1": "h1", "h2": "h1", "h3": "h3"}
    facts = [inventory_of(h, gpus=gpus(name), pciNvidia=0) for h, name in names.items()]
    verdict = inventoried(gpu_plan(INVENTORY), facts)
    assert (verdict.state, blamed(verdict)) == (State.FAIL, set())
    messages = " ".join(f.message for check in verdict.checks for f in check.findings)
    assert "GPU GPU-h1-0 is on h1 and on h2" in messages


@pytest.mark.parametrize(
    ("made", "own", "expected"),
    [
        # Half of the hosts differ; only one reports a domain; all GPUs may be in use.
        (gpu_plan(INVENTORY), lambda n: {"kernel": f"6.{n % 2}"}, {"inventory-mismatch"}),
        (gpu_plan(INVENTORY), lambda n: DOMAIN if n == 3 else {}, set()),
        (gpu_plan(INVENTORY, busy_ok=True),
         lambda n: {"gpus": gpus(f"h{n}", processes=["77 python"])}, set()),
        # Hosts of a machine without a speed target need not be equal.
        (plan(INVENTORY), lambda n: {"gpus": [], "kernel": f"6.{n // 3}"}, set()),
        (gpu_plan(INVENTORY), lambda n: {"memlock": 64}, {"memlock-limited"}),
        # The limit does not apply to a process that may lock any amount of memory.
        (gpu_plan(INVENTORY), lambda n: {"memlock": 64, "ipcLock": True}, set()),
    ],
)  # fmt: skip
def test_what_most_hosts_share_accuses_nobody(
    made: Plan, own: Callable[[int], dict[str, Any]], expected: set[str]
) -> None:
    facts = [inventory_of(h, **{"gpus": gpus(h)} | own(n)) for n, h in enumerate(EIGHT[:4])]
    machine = replace(made.machine, transport="any", gpu_direct="memlock-limited" in expected)
    verdict = inventoried(replace(made, machine=machine), facts)
    assert (blamed(verdict), causes(verdict)) == (set(), expected)


def of_job(count: int) -> dict[str, Any]:
    """Return the keys of an inventory of a job that was given some GPUs of eight."""
    return {"given": {"list": "", "count": count, "shown": 8, "fault": None, "entry": ""}}


@pytest.mark.parametrize(
    ("used", "given", "shown", "cause"),
    [
        (4, 4, 4, None),
        (2, 4, 4, None),
        (4, 4, 3, "gpu-missing"),
        (None, 8, 8, None),
        (None, 8, 7, "gpu-missing"),
        (1, 2, 1, "gpu-missing"),
        # The job has fewer than the run uses.
        (4, 2, 2, "gpu-list"),
        (None, 4, 4, "gpu-list"),
    ],
)
def test_a_host_must_show_the_gpus_that_the_job_was_given(
    used: int | None, given: int, shown: int, cause: str | None
) -> None:
    enough = max(given, used or 8)
    others = [inventory_of(h, gpus=gpus(h)[:enough], **of_job(enough)) for h in ("h0", "h2", "h3")]
    host = inventory_of("h1", gpus=gpus("h1")[:shown], pciNvidia=8, **of_job(given))
    verdict = inventoried(
        replace(gpu_plan(INVENTORY), gpus_used=used), [*others[:1], host, *others[1:]]
    )
    assert {host for _, host, _ in blamed(verdict)} == ({"h1"} if cause == "gpu-missing" else set())
    assert (cause in causes(verdict)) is (cause is not None)
    assert cause is None or verdict.state is not State.PASS


def test_a_host_that_was_left_out_because_of_its_list_is_not_bad() -> None:
    facts = [inventory_of(h, gpus=gpus(h)) for h in ("h0", "h2", "h3")]
    listed = [record(INVENTORY, [str(f.host)], facts=(f,)) for f in facts]
    left_out = Fact(name=LEFT_OUT_HOST.name, value="gpu-list", check="hosts", host="h1")
    asked = hosts_record(["h0", "h1", "h2", "h3"])
    verdict = judged(gpu_plan(INVENTORY), replace(asked, facts=(left_out,)), *listed)
    assert (verdict.state, blamed(verdict)) == (State.NOT_TESTED, set())


def test_a_run_on_cpus_needs_none_of_the_gpus_that_the_job_was_given() -> None:
    plan = gpu_plan(INVENTORY)
    facts = [inventory_of(h, gpus=[], **of_job(4)) for h in ("h0", "h1")]
    on_cpus = replace(plan, machine=replace(plan.machine, gpus=0))
    assert blamed(inventoried(on_cpus, facts)) == set()


def test_a_missing_gpu_is_the_cause_and_slowness_follows_from_it() -> None:
    facts = [inventory_of(h, gpus=gpus(h), pciNvidia=8) for h in EIGHT]
    facts[1] = inventory_of("h1", gpus=gpus("h1", 7), pciNvidia=7)
    listed = [record(INVENTORY, [h], facts=(f,)) for h, f in zip(EIGHT, facts, strict=True)]
    one_node = replace(FLOOR, max_nodes=1)
    verdict = judged(
        gpu_plan(INVENTORY, EACH, references=(one_node,)),
        hosts_record(EIGHT),
        *listed,
        *measured(EACH, EIGHT, slow("h1", usual=360)),
    )
    assert blamed(verdict) == {("node", "h1", "gpu-missing")}
    assert {"gpu-missing", "below-reference"} <= causes(verdict)
    assert verdict.state is State.DEGRADED


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
    verdict = inventoried(gpu_plan(INVENTORY), [*whole, properties_of("h2", **damage)])
    assert (blamed(verdict), verdict.state is State.PASS) == (set(), False)


@pytest.mark.parametrize(("name", "changes"), UNKNOWN)
def test_a_property_that_one_host_does_not_report_blames_nobody_and_is_not_tested(
    name: str, changes: dict[str, Any]
) -> None:
    known = [properties_of(host) for host in ("h0", "h1")]
    verdict = inventoried(gpu_plan(INVENTORY), [*known, properties_of("h2", **changes)])
    assert blamed(verdict) == set()
    assert verdict.checks[-1].state is State.NOT_TESTED
    (finding,) = (f for f in verdict.checks[-1].findings if f.state is State.NOT_TESTED)
    assert finding.hosts == ("h2",)
    assert name in finding.message


@pytest.mark.parametrize(("name", "changes"), UNKNOWN)
def test_properties_that_no_host_reports_are_listed(name: str, changes: dict[str, Any]) -> None:
    none = [properties_of(host, **changes) for host in ("h0", "h1")]
    verdict = inventoried(gpu_plan(INVENTORY), none)
    assert (blamed(verdict), causes(verdict)) == (set(), set())
    assert verdict.checks[-1].measured.endswith(f"; not reported: {name}")


def test_a_host_with_a_wrong_clock_is_named() -> None:
    facts = [inventory_of(h) for h in ("h0", "h1", "h2")]
    offsets = tuple(
        Metric(check="inventory", name="clock-offset", value=value, unit="s", host=host)
        for host, value in (("h0", 0.0), ("h1", 0.01), ("h2", 45.0))
    )
    assert blamed(inventoried(plan(INVENTORY), facts, offsets)) == {("node", "h2", "clock-skew")}


def test_a_host_without_an_inventory_fails() -> None:
    records = [record(INVENTORY, ["h0"], facts=(inventory_of("h0"),)), record(INVENTORY, ["h1"])]
    verdict = judged(plan(INVENTORY), hosts_record(["h0", "h1"]), *records)
    assert causes(verdict) == {"no-measurement"}


@pytest.mark.parametrize(
    ("numbers", "usual"),
    [([8] * 63 + [7], 8), ([8, 8, 3], 8), ([8, 4], 4), ([4, 4, 8, 8], 4), ([], 1), ([0, 0], 1)],
)
def test_the_number_of_ranks_is_that_of_most_hosts(numbers: list[int], usual: int) -> None:
    assert usual_number(numbers) == usual


def test_a_host_with_fewer_gpus_than_most_lacks_a_gpu_also_if_the_machine_names_no_number() -> None:
    planned = gpu_plan(INVENTORY)
    planned = replace(planned, machine=replace(planned.machine, gpus=None, ranks=None))
    facts = [inventory_of(h, gpus=gpus(h, 7 if h == "h5" else 8)) for h in EIGHT]
    listed = [record(INVENTORY, [h], facts=(f,)) for h, f in zip(EIGHT, facts, strict=True)]
    verdict = judged(planned, hosts_record(EIGHT), *listed)
    assert blamed(verdict) == {("node", "h5", "gpu-missing")}
