"""Health: which readings of hosts accuse which part, before the run and between its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.health_runs import ANY, HEALTH, health_of, reading, run_of
from tests.factories.judging import blamed, judged
from tests.factories.verdicts import CPU, GPU, hosts, hosts_record, plan, record

from accept.core.causes import RESET_REQUIRED
from accept.core.checks.health import Params
from accept.core.health_readings import (
    Change,
    Device,
    DeviceKind,
    DriverError,
    Event,
    Gap,
    Log,
    Reading,
    Unread,
)
from accept.core.judge.health_at_start import examine
from accept.core.judge.health_rules import LEVELS, RULES, allowed
from accept.core.plan import PlannedMachine
from accept.core.records import Fact
from accept.core.serde import dump
from accept.core.verdict import State, Verdict

LIMITS = Params()
H100 = PlannedMachine(name="h100", gpus=8, ranks=None, nvlinks=18)
NVLS = replace(H100, nvls=True)
PCI = "0000:1b:00"
#: The levels of a healthy H100 at rest, as NVML reports them.
HEALTHY = {
    "temperature": 31.0, "memory-temperature": 42.0, "power": 71.5, "utilization": 0.0,
    "pcie-generation": 1.0, "pcie-generation-max": 5.0, "pcie-width": 16.0, "pcie-width-max": 16.0,
    "remap-pending": 0.0, "remap-failure": 0.0, "sram-threshold": 0.0, "recovery-action": 0.0,
    "nvlinks": 18.0, "ecc": 1.0, "ecc-default": 1.0, "mig": 0.0, "compute-mode": 0.0,
    "power-limit": 700.0, "power-limit-default": 700.0, "sm-clock-max": 1980.0,
    "fabric-state": 3.0, "fabric-status": 0.0, "fabric-health": float(0x1AA),
}  # fmt: skip
#: An active port of 400 Gbit/s.
PORT = {"active": 1.0, "rate": 400.0, "pcie-width": 16.0, "pcie-width-max": 16.0}
PORT |= {"pcie-speed": 32.0, "pcie-speed-max": 32.0}


def named(levels: dict[str, float]) -> dict[str, float]:
    """Return levels by name: __ stands for -, and -1 leaves one out."""
    return {key.replace("__", "-"): value for key, value in levels.items()}


def gpu(name: str = "3", counters: Iterable[tuple[str, int]] = (), /, **levels: Any) -> Device:
    errors = levels.pop("errors", ())
    known = {k: v for k, v in {**HEALTHY, **named(levels)}.items() if v >= 0}
    pci = PCI if name == "3" else f"0000:{name:0>2}:00"
    return Device(
        kind=DeviceKind.GPU, name=name, pci=pci, counters=dict(counters), levels=known,
        errors=errors,
    )  # fmt: skip


def port(**levels: float) -> Device:
    return Device(kind=DeviceKind.RDMA, name="p", levels={**PORT, **named(levels)})


def event(kind: str, code: int = 0, at: float = 60.0, pci: str = PCI, **more: Any) -> Event:
    return Event(at=at, kind=kind, code=code, pci=pci, **more)  # type: ignore[arg-type]


def counted(**counters: int) -> Device:
    return gpu("3", [(name.replace("_", "-"), n) for name, n in counters.items()])


#: What devices of one host show: causes with the GPU or NIC, if any; after "?" what is unclear, and
#: after "+" the number of notes.
AT_START: list[tuple[str, tuple[Device, ...], dict[str, Any]]] = [
    ("", (gpu(), port()), {}),
    ("gpu-reset-required 3", (gpu(recovery__action=99),), {}),
    *(("gpu-reset-required 3", (gpu(**{n: 1}),), {}) for n in ("remap__pending", "pages__pending")),
    *(("gpu-remap-failed 3", (gpu(**{n: 1}),), {})
      for n in ("remap__failure", "banks__without__spares")),
    ("gpu-ecc 3", (gpu(sram__threshold=1),), {}),
    ("nvlink-errors 3", (gpu(nvlink__effective__ber=1e-11),), {}),
    ("", (gpu(nvlink__effective__ber=1e-12, nvlink__symbol__ber=1.5e-237),), {}),
    ("gpu-mode 3", (gpu(mig=1),), {}),
    ("gpu-mode 3", (gpu(mig=1, compute__mode=2),), {}),
    *(("gpu-mode 3", (gpu(compute__mode=n),), {}) for n in (1, 2, 3)),
    ("", (gpu(compute__mode=3),), {"limits": Params(exclusive_ok=True)}),
    ("gpu-mode 3", (gpu(compute__mode=2),), {"limits": Params(exclusive_ok=True)}),
    # Idle links: narrow only from PCIe 6.0 on, then a note.
    ("pcie-degraded 3", (gpu(pcie__width=8),), {}),
    ("+1", (gpu(pcie__generation__max=6, pcie__width=8),), {}),
    ("", (gpu(pcie__width=16, pcie__width__max=1),), {}),
    # Some GPUs are delivered without ECC.
    ("gpu-settings 3", (gpu(ecc=0),), {}),
    ("gpu-settings 3", (gpu(ecc=0, ecc__default=-1),), {}),
    ("", (gpu(ecc=0, ecc__default=0),), {}),
    # 1 % of the power limit is rounding.
    ("gpu-settings 3", (gpu(power__limit=692),), {}),
    ("", (gpu(power__limit=695),), {}),
    ("", (gpu(power__limit=750),), {}),
    ("", (gpu(power__limit__default=-1, power__limit=300),), {}),
    ("", (gpu(power__limit=500),), {"limits": Params(power_limit_share=0.7)}),
    ("gpu-settings 3", (gpu(sm__clock__application=1200, sm__clock__default=1980),), {}),
    ("", (gpu(sm__clock__application=1980, sm__clock__default=1980),), {}),
    ("gpu-settings 3", (gpu("1"), gpu("2"), gpu(sm__clock__max=1900)), {}),
    ("", (gpu("1"), gpu(sm__clock__max=1900)), {}),
    # Heat and power brake count for a busy GPU; that of the software only without its counter.
    *(("gpu-throttled 3", (gpu(utilization=90, reasons=n),), {}) for n in (0x20, 0x40, 0x80)),
    ("", (gpu(utilization=0, reasons=0x40),), {}),
    ("", (gpu(utilization=90, reasons=0x20),), {"read": {"gpu": ("limited-thermal",)}}),
    # Fabric: a part in it is required on hosts with several GPUs.
    *(("fabric-manager 3", (gpu(fabric__state=n),), {}) for n in (1, 2)),
    ("fabric-manager 3", (gpu(fabric__status=5),), {}),
    *(("fabric-manager 3", (gpu(fabric__health=n),), {}) for n in (1, 6, 0x1A, 0x6A, 0x5AA)),
    ("", (gpu(fabric__health=0),), {}),
    ("", (gpu(fabric__state=0),), {"machine": NVLS}),
    ("fabric-manager 3", (gpu(fabric__state=0), gpu("4")), {"machine": NVLS}),
    ("", (gpu(fabric__state=0), gpu("4")), {}),
    ("fabric-manager 3", (gpu(fabric__state=0), gpu("4"), gpu("5")), {}),
    # Repairs count above a limit; those below it are notes.
    ("+1", (counted(rows_remapped_uncorrected=511),), {}),
    ("gpu-ecc 3 +1", (counted(rows_remapped_uncorrected=512),), {}),
    ("+1", (counted(pages_retired_single=32, pages_retired_double=30),), {}),
    ("gpu-ecc 3 +1", (counted(pages_retired_single=32, pages_retired_double=31),), {}),
    ("", (counted(ecc_corrected=10_000),), {}),
    ("gpu-ecc 3", (counted(ecc_corrected=10_001),), {}),
    ("+1", (counted(ecc_uncorrected_aggregate=10_000),), {}),
    ("gpu-ecc 3 +1", (counted(ecc_uncorrected_aggregate=10_001),), {}),
    ("gpu-ecc 3 +1", (counted(ecc_uncorrected_aggregate=1),),
     {"limits": Params(uncorrected_errors=0)}),
    ("", (counted(ecc_corrected_aggregate=10**6, rows_remapped_corrected=400),), {}),
    ("+1", (gpu(persistence=0),), {}),
    ("", (gpu(persistence=1),), {}),
    ("+1", (gpu(memory__temperature=95),), {}),
    # Links: the machine states the number; else the GPU with most of them is the measure.
    ("nvlink-down 3", (gpu(nvlinks=0),), {}),
    ("nvlink-down 1, nvlink-down 2", (gpu("1", nvlinks=16), gpu("2", nvlinks=16)), {}),
    ("", (gpu("1", nvlinks=16), gpu("2", nvlinks=16)), {"machine": ANY}),
    ("nvlink-down 2", (gpu("1"), gpu("2", nvlinks=17)), {"machine": ANY}),
    ("", (gpu("1"), gpu("2", nvlinks=17)), {"machine": ANY, "one_kind": False}),
    ("? nvlink-down", (gpu("1", nvlinks=4), gpu("2", nvlinks=0)), {"machine": ANY}),
    ("", (gpu("1", nvlinks=0), gpu("2", nvlinks=0)), {"machine": ANY}),
    # A reading is required if the machine promises it to several GPUs, or most GPUs report it.
    ("? gpu-unreported 2", (gpu("1"), gpu("2", nvlinks=-1)), {}),
    ("", (gpu(nvlinks=-1),), {}),
    ("", (gpu("1"), gpu("2", mig=-1)), {}),
    ("? gpu-unreported 2", (gpu("1"), gpu("2", mig=-1), gpu("4")), {}),
    ("", (gpu("1"), gpu("2", mig=-1), gpu("4")), {"one_kind": False}),
    ("gpu-lost 2", (gpu("1"), gpu("2", mig=-1, errors=(DriverError(code=15),)), gpu("4")), {}),
    # GPUs do not count on a machine without.
    ("", (gpu(ecc=0, remap__failure=1),), {"machine": CPU}),
    # The PCIe link of an active port; a slower one may be set so if it carries the port's rate.
    ("pcie-degraded p", (port(pcie__width=8),), {}),
    ("pcie-degraded p", (port(pcie__width=8, rate=100),), {}),
    ("pcie-degraded p", (port(pcie__speed=16),), {}),
    ("+1", (port(pcie__speed=16, rate=200),), {}),
    ("pcie-degraded p", (port(pcie__speed=16, rate=0),), {}),
    ("", (port(pcie__width=8, active=0),), {}),
    ("", (port(pcie__width=0, pcie__speed=0),), {}),
    # The kernel log: fatal Xids without a later reset of that GPU.
    *(("gpu-xid 3", (gpu(),), {"log": (event("xid", n),)})
      for n in (48, 62, 64, 74, 79, 95, 119, 120, 140, 143)),
    *(("+1", (gpu(),), {"log": (event("xid", n),)})
      for n in (13, 31, 43, 45, 63, 94, 109, 145, 154, 155)),
    *(("gpu-xid 3", (gpu(),), {"log": (event("xid", n, fatal=True),)}) for n in (149, 154, 155)),
    ("+1", (gpu(),), {"log": (event("xid", 13, fatal=True),)}),
    ("+1", (gpu(),), {"log": (event("xid", 79), event("reset", 154, 100.0))}),
    ("gpu-xid 3", (gpu(),), {"log": (event("reset", 154, 50.0), event("xid", 79))}),
    ("gpu-xid 3", (gpu(),), {"log": (event("xid", 79), event("reset", at=99.0, pci="0:2c:0"))}),
    ("gpu-xid ", (gpu(),), {"log": (event("sxid", 20034, pci="0000:c1:00", fatal=True),)}),
    ("+1", (gpu(),), {"log": (event("sxid", 20034),)}),
    # A lost GPU that works again was reset.
    ("+1", (gpu(),), {"log": (event("lost", 15),)}),
    ("gpu-lost ", (), {"log": (event("lost", 15),)}),
    ("gpu-reset-required ", (), {"log": (event("lost", RESET_REQUIRED, pci=""),)}),
    ("+1", (), {"log": (event("lost", 15, pci=""), event("reset", at=100.0))}),
    ("", (gpu(),), {"log": (event("mce"),)}),
    ("kernel-crashed ", (gpu(),), {"log": (event("crash"), event("reset", at=100.0))}),
    ("kernel-crashed ", (gpu(),), {"log": (event("crash"),), "machine": CPU}),
    ("+1", (gpu(),), {"log": (event("xid", 79),), "machine": CPU}),
    ("+1", (gpu(),), {"log": (), "first": 7200.0}),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "devices", "more"), AT_START)
def test_a_reading_before_the_run_accuses_its_device_by_its_rule(
    expected: str, devices: tuple[Device, ...], more: dict[str, Any]
) -> None:
    machine, limits = more.get("machine", H100), more.get("limits", LIMITS)
    log = Log(first=more.get("first", 0.0), last=9e3, events=more["log"]) if "log" in more else None
    of = Reading(devices=devices, whole=True, log=log, read=more.get("read", {}))
    found = examine({"h1": of}, machine, limits, one_kind=more.get("one_kind", True))
    shown = ", ".join(sorted(f"{p.cause} {p.gpu or p.nic or ''}" for p in found.problems))
    shown += "".join(f" ? {p.cause} {p.gpu or ''}" for p in found.unclear)
    shown += f" +{len(found.notes)}" if found.notes else ""
    assert " ".join(shown.split()) == " ".join(expected.split())
    assert {p.host for p in (*found.problems, *found.unclear)} <= {"h1"}


# -- changes between the steps ---------------------------------------------------------------------


def grown(device: str, counter: str, growth: int, **more: Any) -> Change:
    return Change(since=2, seconds=60.0, counters={device: {counter: growth}}, **more)


def changed(change: Change | dict[str, Any], machine: PlannedMachine = GPU) -> Verdict:
    """Judge a run of four hosts, in which h1 changed during the second step."""
    return run_of(("h1", 3, change), machine=machine)


#: Counter -> the growth in a minute at 400 Gbit/s that is tolerated.
ALLOWED = {
    **dict.fromkeys(RULES, 0),
    **{name: 24 for name, rule in RULES.items() if rule.growth == "bit_error_ratio"},
    "limited-thermal": 600_000_000,
    "ecc-corrected": 10_000,
    "pcie-replay": 8,
    **dict.fromkeys(("nvlink-crc-data", "nvlink-crc-flit"), 6000),
}
DEVICES = {"nvlink": "gpu 3", "aer": "pcie 0000:1b:00.0", "ue": "memory mc0"}
GPU_COUNTERS = ("ecc", "rows", "pages", "limited", "pcie")


def device_of(counter: str) -> str:
    first = counter.replace("_", "-").partition("-")[0]
    return "gpu 3" if first in GPU_COUNTERS else DEVICES.get(first, "rdma mlx5_2/1")


@pytest.mark.parametrize("counter", RULES)
def test_a_counter_accuses_its_device_if_it_grew_by_more_than_allowed(counter: str) -> None:
    device, name = device_of(counter), f"{counter}.7" if counter.startswith("nvl") else counter
    of, _, number = device.partition(" ")
    kind = {"gpu": "gpu", "rdma": "nic"}.get(of, "node")
    part = "h1" if kind == "node" else f"h1:{number}"
    for growth in (ALLOWED[counter], ALLOWED[counter] + 1):
        verdict = changed(grown(device, name, growth, rates={device: 400.0}))
        bad = growth > ALLOWED[counter]
        assert blamed(verdict) == ({(kind, part, RULES[counter].cause)} if bad else set())
        (finding,) = health_of(verdict).findings
        assert finding.state is (State.FAIL if bad else State.PASS)
        assert finding.message.startswith("during 20-script-all: ")
        assert f"{device} of h1" in finding.message


def test_limits_grow_with_the_step_and_few_errors_are_never_a_rate() -> None:
    def most(name: str, seconds: float, gbps: float | None = 400.0) -> float:
        return allowed(RULES[name], LIMITS, seconds=seconds, gbps=gbps)

    # A short step may have the replays of a full minute, and ten errors of a port.
    assert (most("pcie-replay", 1.0), most("pcie-replay", 120.0)) == (8.0, 16.0)
    assert (most("rx_errors", 1.0), most("rx_errors", 600.0)) == (10, 240.0)
    assert most("rx_errors", 60.0, None) == float("inf")
    for name in RULES:
        assert 0 <= most(name, 1.0) <= most(name, 600.0)


XID, LOST = ("gpu 3", "xid"), ("gpu 3", "lost")
DOWN = ("nic", "h1:eth7", "link-down")


@pytest.mark.parametrize(
    ("change", "suspects"),
    [
        # Healthy machines have any number of these.
        *((grown("gpu 3", f"limited-{by}", 60 * 10**9), set())
          for by in ("board", "power", "reliability")),
        (grown("rdma mlx5_2/1", "out_of_sequence", 10**5), set()),
        (grown("memory mc0", "ce_count", 12), set()),
        (grown("host", "oom_kill", 1), set()),
        # Of interfaces, only those that carry the run count.
        (grown("net eth7", "carrier_down_count", 1), set()),
        (grown("net eth7", "carrier_down_count", 1, run=("net eth7",)), {DOWN}),
        (grown("net eth7", "rx_errors", 10**6, run=("net eth7",)), set()),
        (Change(since=2, levels={"net eth7": {"active": (1.0, 0.0)}}), set()),
        (Change(since=2, rebooted=True), {("node", "h1", "host-died")}),
        (Change(since=2, gone=("gpu 3",)), {("gpu", "h1:3", "gpu-missing")}),
        (Change(since=2, gone=("rdma mlx5_2/1",)), {("nic", "h1:mlx5_2/1", "link-down")}),
        (Change(since=2, gone=("net eth7",)), set()),
        (Change(since=2, errors={"gpu 3": (DriverError(code=15),)}), {("gpu", "h1:3", "gpu-lost")}),
        # Levels that got better, or stay within their limit.
        (Change(since=2, levels={"gpu 3": {"power-limit": (700.0, 695.0)}}), set()),
        (Change(since=2, levels={"gpu 3": {"nvlink-effective-ber": (0.0, 1e-12)}}), set()),
        (Change(since=2, levels={"gpu 3": {"compute-mode": (3.0, 0.0)}}), set()),
        (Change(since=2, levels={"gpu 3": {"ecc": (0.0,)}}), set()),
        *((Change(since=2, levels={"gpu 3": {name: (700.0, 1.0)}}), {("gpu", "h1:3", rule.cause)})
          for name, rule in LEVELS.items()),
        # Events: those that programs cause are notes.
        *((Change(since=2, events=((*XID, str(code), "", PCI),)), set())
          for code in (13, 31, 43, 45, 68, 109, 155)),
        *((Change(since=2, events=((*XID, code, fatal, PCI),)), {("gpu", "h1:3", "gpu-xid")})
          for code, fatal in (("79", ""), ("155", "fatal"), ("²", ""), ("9" * 5000, ""), ("", ""))),
        (Change(since=2, events=(("", "xid", "79", "", PCI),)), {("node", "h1", "gpu-xid")}),
        (Change(since=2, events=(("", "sxid", "20034", "fatal", PCI),)),
         {("node", "h1", "gpu-xid")}),
        (Change(since=2, events=(("", "sxid", "12028", "", PCI),)), set()),
        (Change(since=2, events=(("host", "mce", "", "", ""),)), set()),
        (Change(since=2, events=(("Kernel panic", "crash", "0", "", ""),)),
         {("node", "h1", "kernel-crashed")}),
        (Change(since=2, events=((*LOST, "15", "", PCI),)), {("gpu", "h1:3", "gpu-lost")}),
        (Change(since=2, events=(("", "lost", str(RESET_REQUIRED), "", ""),)),
         {("node", "h1", "gpu-reset-required")}),
        (Change(since=2, back=("gpu 3 pcie-replay",)), set()),
        (Change(since=2, cut=3), set()),
    ],
)  # fmt: skip
def test_a_change_accuses_its_part_or_is_noted(
    change: Change, suspects: set[tuple[str, str, str]]
) -> None:
    verdict = changed(change)
    assert blamed(verdict) == suspects
    found = health_of(verdict).findings
    assert len(found) == ((not change.levels and change.gone != ("net eth7",)) or bool(suspects))
    assert {f.state for f in found} <= {State.FAIL if suspects else State.PASS}


def test_a_level_that_is_no_longer_reported_is_unclear_on_machines_with_gpus() -> None:
    change = Change(since=2, vanished={"gpu 3": ("mig", "power"), "gpu 4": ("power",)})
    states = [(f.state, f.cause) for f in health_of(changed(change)).findings]
    assert states == [(State.INCONCLUSIVE, "gpu-unreported")]
    assert health_of(changed(change, CPU)).state is State.PASS
    links = Change(since=2, vanished={"gpu 3": ("nvlinks", "nvlink-replay")})
    (finding,) = health_of(changed(links)).findings
    assert "nvlink-replay" not in finding.message


def test_faults_of_one_cause_are_one_problem_that_shows_the_state_of_the_gpu() -> None:
    change = Change(
        since=1,
        counters={"gpu 3": {"ecc-uncorrected": 1, "ecc-uncorrected-aggregate": 1}},
        states={"gpu 3": {"temperature": 91.0, "power": 640.5, "sm-clock": 345.0}},
    )
    (finding,) = health_of(changed(change)).findings
    assert finding.message.startswith("between 10-health-each and 20-script-all: ")
    assert finding.message.endswith("of h1 (after it 91 C, 640.5 W, 345 MHz)")


def test_a_fault_that_all_hosts_share_accuses_nobody_and_notes_are_limited() -> None:
    down = grown("rdma mlx5_0/1", "link_downed", 1)
    verdict = run_of(*((host, 3, down) for host in hosts(4)), machine=GPU)
    assert (health_of(verdict).state, verdict.suspects) == (State.FAIL, ())
    killed = grown("host", "oom_kill", 1)
    verdict = run_of(*((host, 3, killed) for host in hosts(40)), count=40)
    assert len(health_of(verdict).findings) == 21


# -- what could not be read ------------------------------------------------------------------------

NO_LOG = Gap(reason="Xid in the kernel log (Permission denied)", devices=Unread.NONE)
NO_GPUS = Gap(reason="no pynvml", devices=Unread.GPUS)
BLIND = Gap(reason="Xids", devices=Unread.XIDS)
WHOLE = dump(reading(gpus=8))


@pytest.mark.parametrize(
    ("machine", "first", "change", "state"),
    [
        (CPU, reading(), None, State.PASS),
        (GPU, reading(unread=(NO_GPUS,)), None, State.NOT_TESTED),
        (CPU, reading(unread=(NO_GPUS,)), None, State.PASS),
        (CPU, reading(unread=(NO_LOG,)), None, State.PASS),
        # A driver that shows no GPU, damaged readings, and the texts of version 0.1.
        (ANY, reading(), None, State.NOT_TESTED),
        (CPU, {**dump(reading()), "unread": 5}, None, State.NOT_TESTED),
        *((GPU, {**WHOLE, "unread": [text]}, None, State.NOT_TESTED)
          for text in ("GPUs (no pynvml)", "GPU 0 (GPU is lost)", "anything: hangs")),
        (GPU, WHOLE, {"since": 2, "unread": ["GPUs (no pynvml)"]}, State.NOT_TESTED),
        # Xids from one source are enough.
        (GPU, reading(gpus=8, log=None, watch=Log(), unread=(NO_LOG,)), None, State.PASS),
        (GPU, reading(gpus=8, log=None), None, State.NOT_TESTED),
        (CPU, reading(log=None), None, State.PASS),
        (GPU, WHOLE, Change(since=2, unread=(BLIND,)), State.NOT_TESTED),
        (CPU, reading(), Change(since=2, unread=(BLIND,)), State.PASS),
        (CPU, reading(), Change(since=2, unread=(Gap(reason="it hangs"),)), State.NOT_TESTED),
    ],
)  # fmt: skip
def test_what_a_machine_with_gpus_cannot_read_is_not_tested_and_accuses_nobody(
    machine: PlannedMachine, first: Any, change: Any, state: State
) -> None:
    changes = [] if change is None else [("h1", 3, change)]
    verdict = run_of(*changes, machine=machine, first=first)
    assert (health_of(verdict).state, verdict.suspects) == (state, ())


def test_readings_without_a_record_do_not_pass() -> None:
    missing = health_of(run_of(sweeps=(1, 2)))
    assert (missing.state, missing.findings[0].cause) == (State.NOT_TESTED, "evidence-missing")
    names = hosts(2)
    records = [replace(hosts_record(names), wave=n) for n in (0, 1, 2)]
    records += [record(HEALTH, (name,), number=i) for i, name in enumerate(names)]
    verdict = judged(plan(HEALTH, nodes=2), *records)
    assert health_of(verdict).state is State.NOT_TESTED


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5),
    st.dictionaries(st.sampled_from(sorted({*HEALTHY, *PORT})), st.floats(-1e18, 1e18)),
    st.sampled_from(sorted(DeviceKind)),
    st.sampled_from(["xid", "sxid", "mce", "reset", "lost", "crash"]),
    st.floats(-1e12, 1e12),
    st.integers(-5, 10**6),
)
def test_any_reading_can_be_judged_and_a_damaged_one_does_not_pass(
    value: Any, levels: dict[str, float], kind: DeviceKind, what: str, at: float, code: int
) -> None:
    log = Log(first=at, events=(event(what, code, at, fatal=code % 2 == 0),))
    device = Device(kind=kind, name="0", pci=PCI, levels=levels)
    for machine in (NVLS, ANY):
        examine({"h1": Reading(devices=(device,), log=log)}, machine, LIMITS, one_kind=True)
    names = hosts(1)
    broken = Fact(name="health-change", check="health", host="h0", value=value)
    whole = Fact(name="health", check="health", host="h0", value=dump(reading()))
    records = [
        hosts_record(names),
        replace(hosts_record(names), wave=1),
        replace(hosts_record(names), wave=2, facts=(broken,)),
        record(HEALTH, names, facts=(whole,)),
    ]
    verdict = judged(plan(HEALTH, nodes=1), *records)
    assert health_of(verdict).state is State.NOT_TESTED
