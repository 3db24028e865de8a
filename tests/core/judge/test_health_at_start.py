"""Damage and settings from before the run, in the first reading of each host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.health_runs import ANY
from tests.factories.verdicts import CPU

from accept.core.checks.health import Params
from accept.core.health_readings import Device, DeviceKind, Event, Log, Reading
from accept.core.judge.findings import Problems
from accept.core.judge.health_at_start import examine
from accept.core.model import PlannedMachine, Problem

LIMITS = Params()
H100 = PlannedMachine(name="h100", gpus=8, ranks=None, nvlinks=18)
PCI = "0000:1b:00"
#: The levels of a healthy H100 at rest, as NVML reports them.
HEALTHY = {
    "temperature": 31.0,
    "memory-temperature": 42.0,
    "power": 71.5,
    "utilization": 0.0,
    "pcie-generation": 1.0,
    "pcie-generation-max": 5.0,
    "pcie-width": 16.0,
    "pcie-width-max": 16.0,
    "remap-pending": 0.0,
    "remap-failure": 0.0,
    "sram-threshold": 0.0,
    "recovery-action": 0.0,
    "nvlinks": 18.0,
    "ecc": 1.0,
    "ecc-default": 1.0,
    "mig": 0.0,
    "compute-mode": 0.0,
    "power-limit": 700.0,
    "power-limit-default": 700.0,
    "fabric-state": 3.0,
    "fabric-status": 0.0,
    "fabric-health": float(0x1AA),
}
#: An active port of 400 Gbit/s.
PORT = {"active": 1.0, "rate": 400.0, "pcie-width": 16.0, "pcie-width-max": 16.0}
PORT |= {"pcie-speed": 32.0, "pcie-speed-max": 32.0}


def gpu(name: str = "3", *, counters: dict[str, int] | None = None, **levels: float) -> Device:
    """Return a healthy GPU with other levels; __ in their names stands for -; -1 leaves one out."""
    changed = {**HEALTHY, **{key.replace("__", "-"): value for key, value in levels.items()}}
    known = {key: value for key, value in changed.items() if value >= 0}
    pci = PCI if name == "3" else f"0000:{name:0>2}:00"
    return Device(kind=DeviceKind.GPU, name=name, pci=pci, counters=counters or {}, levels=known)


def port(**levels: float) -> Device:
    changed = {key.replace("__", "-"): value for key, value in levels.items()}
    return Device(kind=DeviceKind.RDMA, name="mlx5_0/1", levels={**PORT, **changed})


def examined(
    *devices: Device,
    machine: PlannedMachine = H100,
    limits: Params = LIMITS,
    one_kind: bool = True,
    **more: Any,
) -> Problems:
    host = Reading(devices=devices, whole=True, **more)
    return examine({"h1": host}, machine, limits, one_kind=one_kind)


def found(*devices: Device, **more: Any) -> list[Problem]:
    return examined(*devices, **more).problems


def causes(*devices: Device, **more: Any) -> set[str]:
    return {str(problem.cause) for problem in found(*devices, **more)}


@pytest.mark.parametrize(
    ("levels", "cause"),
    [
        ({}, None),
        ({"recovery__action": 99}, "gpu-reset-required"),
        ({"pcie__width": 8}, "pcie-degraded"),
        ({"pcie__generation__max": 6, "pcie__width": 8}, None),
        ({"pcie__width": 16, "pcie__width__max": 1}, None),
        ({"ecc": 0, "ecc__default": -1}, "gpu-settings"),
        ({"ecc": 0, "ecc__default": 0}, None),
        ({"power__limit": 692}, "gpu-settings"),
        ({"power__limit": 695}, None),
        ({"power__limit": 750}, None),
        ({"power__limit__default": -1, "power__limit": 300}, None),
        ({"sm__clock__application": 1200, "sm__clock__default": 1980}, "gpu-settings"),
        ({"sm__clock__application": 1980, "sm__clock__default": 1980}, None),
        ({"fabric__state": 2}, "fabric-manager"),
        ({"fabric__health": 0}, None),
        *(({"fabric__health": one}, "fabric-manager") for one in (1, 6, 0x1A, 0x6A, 0x5AA)),
        ({"nvlinks": 0}, "nvlink-down"),
    ],
)
def test_levels_of_a_gpu(levels: dict[str, Any], cause: str | None) -> None:
    """Healthy: delivered without ECC, rounded, fields without support, PCIe 6.0 at rest."""
    assert [(p.cause, p.gpu) for p in found(gpu(**levels))] == ([(cause, "3")] if cause else [])


@pytest.mark.parametrize(
    ("counters", "bad"),
    [
        ({"rows-remapped-uncorrected": 511}, False),
        ({"rows-remapped-uncorrected": 512}, True),
        ({"pages-retired-single": 32, "pages-retired-double": 30}, False),
        ({"pages-retired-single": 32, "pages-retired-double": 31}, True),
        ({"ecc-corrected": 10_000}, False),
        ({"ecc-corrected": 10_001}, True),
        ({"ecc-uncorrected-aggregate": 10_000}, False),
        ({"ecc-uncorrected-aggregate": 10_001}, True),
        ({"ecc-corrected-aggregate": 10**6, "rows-remapped-corrected": 400}, False),
    ],
)
def test_repaired_memory_counts_above_a_limit(counters: dict[str, int], *, bad: bool) -> None:
    assert causes(gpu(counters=counters)) == ({"gpu-ecc"} if bad else set())


@pytest.mark.parametrize(
    ("levels", "bad"),
    [
        ({}, False),
        ({"pcie__width": 8}, True),
        ({"pcie__speed": 16}, True),
        ({"pcie__speed": 16, "rate": 200}, False),
        ({"pcie__speed": 16, "rate": 0}, True),
        ({"pcie__width": 8, "active": 0}, False),
        ({"pcie__width": 0, "pcie__speed": 0}, False),
    ],
)
def test_the_pcie_link_of_an_active_port(levels: dict[str, float], *, bad: bool) -> None:
    """A slower link that carries the port's rate may be set so; a virtual function has none."""
    assert [p.nic for p in found(port(**levels))] == (["mlx5_0/1"] if bad else [])


def test_limits_are_parameters() -> None:
    counters = {"ecc-uncorrected-aggregate": 1}
    assert causes(gpu(counters=counters), limits=Params(uncorrected_errors=0)) == {"gpu-ecc"}
    assert causes(gpu(power__limit=500), limits=Params(power_limit_share=0.7)) == set()
    assert causes(gpu(compute__mode=3), limits=Params(exclusive_ok=True)) == set()
    assert causes(gpu(compute__mode=2), limits=Params(exclusive_ok=True)) == {"gpu-mode"}


def test_gpus_do_not_count_on_a_machine_without() -> None:
    assert causes(gpu(ecc=0, remap__failure=1), machine=CPU) == set()


def test_a_gpu_must_be_part_of_the_fabric_only_if_its_host_has_several() -> None:
    """The only GPU of a virtual machine has none."""
    machine = replace(H100, nvls=True)
    assert causes(gpu(fabric__state=0), machine=machine) == set()
    assert causes(gpu(fabric__state=1), machine=machine) == {"fabric-manager"}
    assert causes(gpu(fabric__state=0), gpu("4"), machine=machine) == {"fabric-manager"}
    assert causes(gpu(fabric__state=0), gpu("4")) == set()


def test_faults_of_one_cause_are_one_problem() -> None:
    assert len(found(gpu(compute__mode=2, mig=1))) == 1


@pytest.mark.parametrize(
    "device",
    [
        gpu(pcie__generation__max=6, pcie__width=8),
        gpu(persistence=0),
        gpu(memory__temperature=95),
        gpu(counters={"rows-remapped-uncorrected": 2}),
        port(pcie__speed=16, rate=200),
    ],
)
def test_what_accuses_nothing_is_noted(device: Device) -> None:
    """Lanes at rest; counters that may restart; heat; few repairs; a link that is fast enough."""
    one = examined(device)
    assert (one.problems, len(one.notes)) == ([], 1)
    assert examined(gpu(persistence=1)).notes == []


class TestLinks:
    """The machine states the number of links; else the GPU with most of them is the measure."""

    def test_a_loss_on_all_gpus_is_seen_only_with_the_number_of_the_machine(self) -> None:
        devices = [gpu(str(index), nvlinks=16) for index in range(8)]
        assert len(found(*devices)) == 8
        assert found(*devices, machine=ANY) == []

    def test_fewer_links_than_other_gpus_of_the_run(self) -> None:
        devices = (gpu("1"), gpu("2", nvlinks=17))
        assert [(p.cause, p.gpu) for p in found(*devices, machine=ANY)] == [("nvlink-down", "2")]
        assert not found(*devices, machine=ANY, one_kind=False)

    @pytest.mark.parametrize(("other", "unclear"), [(4, ["nvlink-down"]), (0, [])])
    def test_a_gpu_without_any_link_may_have_no_bridge(
        self, other: int, unclear: list[str]
    ) -> None:
        one = examined(gpu("1", nvlinks=other), gpu("2", nvlinks=0), machine=ANY)
        assert (one.problems, [p.cause for p in one.unclear]) == ([], unclear)


class TestXids:
    @staticmethod
    def log(*events: Event, first: float = 0.0) -> Log:
        return Log(first=first, last=9000.0, events=events)

    @staticmethod
    def xid(code: int, at: float = 60.0, **more: Any) -> Event:
        return Event(at=at, kind="xid", pci=PCI, code=code, **more)

    RESET = Event(at=100.0, kind="reset", pci=PCI, code=154)

    @pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 119, 120, 140, 143])
    def test_a_fatal_one_since_boot_fails(self, code: int) -> None:
        (problem,) = found(gpu(), log=self.log(self.xid(code)))
        assert (problem.cause, problem.gpu) == ("gpu-xid", "3")

    @pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 94, 109, 145, 154])
    def test_any_other_is_noted(self, code: int) -> None:
        log = self.log(self.xid(code))
        assert found(gpu(), log=log) == []
        assert len(examined(gpu(), log=log).notes) == 1

    def test_one_of_nvlink_5_counts_if_the_driver_calls_it_fatal(self) -> None:
        assert causes(gpu(), log=self.log(self.xid(149, fatal=True))) == {"gpu-xid"}

    def test_a_later_reset_of_that_gpu_clears_it(self) -> None:
        assert found(gpu(), log=self.log(self.xid(79), self.RESET)) == []

    @pytest.mark.parametrize(
        "reset",
        [
            Event(at=50.0, kind="reset", pci=PCI, code=154),
            Event(at=100.0, kind="reset", pci="0000:2c:00", code=154),
        ],
    )
    def test_an_earlier_reset_or_one_of_another_gpu_does_not(self, reset: Event) -> None:
        assert causes(gpu(), log=self.log(reset, self.xid(79))) == {"gpu-xid"}

    def test_a_fatal_sxid_names_the_host(self) -> None:
        event = Event(at=60.0, kind="sxid", pci="0000:c1:00", code=20034, fatal=True)
        (problem,) = found(gpu(), log=self.log(event))
        assert (problem.cause, problem.gpu) == ("gpu-xid", None)

    @pytest.mark.parametrize("reports", [True, False])
    def test_a_driver_that_reports_no_resets_needs_a_reboot(self, *, reports: bool) -> None:
        (problem,) = found(gpu(recovery__action=reports - 1), log=self.log(self.xid(79)))
        assert ("reboot" in problem.message) is not reports

    def test_a_log_that_lost_its_beginning_is_noted(self) -> None:
        assert len(examined(gpu(), log=self.log(first=7200.0)).notes) == 1


@given(
    st.dictionaries(st.sampled_from(sorted({*HEALTHY, *PORT})), st.floats(-1e18, 1e18)),
    st.sampled_from(sorted(DeviceKind)),
    st.builds(
        Event,
        at=st.floats(-1e12, 1e12),
        kind=st.sampled_from(["xid", "sxid", "mce", "reset"]),
        pci=st.sampled_from([PCI, ""]),
        code=st.integers(-5, 10**6),
        fatal=st.booleans(),
    ),
)
def test_any_reading_can_be_judged(
    levels: dict[str, float], kind: DeviceKind, event: Event
) -> None:
    device = Device(kind=kind, name="0", pci=PCI, levels=levels)
    readings = {"h1": Reading(devices=(device,), log=Log(first=event.at, events=(event,)))}
    for machine in (H100, ANY):
        examine(readings, machine, LIMITS, one_kind=True)
