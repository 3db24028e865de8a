"""Damage and settings from before the run, in the first reading of each host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.health_runs import ANY, health_of, run_of
from tests.factories.verdicts import CPU, GPU

from accept.core.checks.health import Params
from accept.core.health_readings import Device, DeviceKind, Event, Log, Reading
from accept.core.judge.health_at_start import notes, problems, unclear_links
from accept.core.model import PlannedMachine, Problem, State

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


def found(
    *devices: Device,
    machine: PlannedMachine = H100,
    limits: Params = LIMITS,
    one_kind: bool = True,
    **more: Any,
) -> list[Problem]:
    host = Reading(devices=devices, whole=True, **more)
    return list(problems({"h1": host}, machine, limits, one_kind=one_kind))


def causes(*devices: Device, **more: Any) -> set[str]:
    return {str(problem.cause) for problem in found(*devices, **more)}


def noted(*devices: Device, **more: Any) -> list[str]:
    return list(notes({"h1": Reading(devices=devices, **more)}, H100))


class TestGpus:
    def test_a_healthy_gpu_at_rest_passes(self) -> None:
        assert causes(gpu()) == set()
        assert noted(gpu()) == []

    def test_values_that_a_gpu_does_not_report_are_neither_good_nor_bad(self) -> None:
        bare = Device(kind=DeviceKind.GPU, name="0", pci=PCI)
        assert causes(bare) == set()

    @pytest.mark.parametrize(
        ("levels", "cause"),
        [
            ({"remap__failure": 1}, "gpu-remap-failed"),
            ({"remap__pending": 1}, "gpu-reset-required"),
            ({"pages__pending": 1}, "gpu-reset-required"),
            ({"recovery__action": 1}, "gpu-reset-required"),
            ({"recovery__action": 99}, "gpu-reset-required"),
            ({"sram__threshold": 1}, "gpu-ecc"),
            ({"pcie__width": 8}, "pcie-degraded"),
            ({"ecc": 0}, "gpu-settings"),
            ({"ecc": 0, "ecc__default": -1}, "gpu-settings"),
            ({"mig": 1}, "gpu-mode"),
            ({"compute__mode": 2}, "gpu-mode"),
            ({"compute__mode": 3}, "gpu-mode"),
            ({"power__limit": 600}, "gpu-settings"),
            ({"fabric__state": 1}, "fabric-manager"),
            ({"fabric__state": 2}, "fabric-manager"),
            ({"fabric__status": 999}, "fabric-manager"),
            ({"fabric__health": 0b01}, "fabric-manager"),
            ({"fabric__health": 0b0110}, "fabric-manager"),
            ({"fabric__health": 0b011010}, "fabric-manager"),
            ({"fabric__health": 0b01101010}, "fabric-manager"),
            ({"fabric__health": 0x5AA}, "fabric-manager"),
            ({"nvlinks": 17}, "nvlink-down"),
            ({"nvlinks": 0}, "nvlink-down"),
        ],
    )
    def test_damage_and_wrong_settings_fail(self, levels: dict[str, Any], cause: str) -> None:
        (problem,) = found(gpu(**levels))
        assert (problem.cause, problem.host, problem.gpu) == (cause, "h1", "3")

    @pytest.mark.parametrize(
        "levels",
        [
            {"ecc": 0, "ecc__default": 0},
            {"power__limit": 695},
            {"power__limit": 750},
            {"power__limit__default": -1, "power__limit": 300},
            {"fabric__health": 0},
            {"pcie__generation__max": 6, "pcie__width": 8},
            {"pcie__width": 16, "pcie__width__max": 1},
        ],
    )
    def test_what_a_healthy_gpu_may_report_passes(self, levels: dict[str, Any]) -> None:
        """Delivered without ECC; rounding; fields without support; lanes at rest in PCIe 6.0."""
        assert causes(gpu(**levels)) == set()

    def test_lanes_that_an_idle_gpu_may_turn_off_are_noted(self) -> None:
        (note,) = noted(gpu(pcie__generation__max=6, pcie__width=8))
        assert "8 PCIe lanes instead of 16" in note

    @pytest.mark.parametrize(
        ("counters", "expected"),
        [
            ({"rows-remapped-uncorrected": 511}, set()),
            ({"rows-remapped-uncorrected": 512}, {"gpu-ecc"}),
            ({"pages-retired-single": 32, "pages-retired-double": 30}, set()),
            ({"pages-retired-single": 32, "pages-retired-double": 31}, {"gpu-ecc"}),
            ({"ecc-uncorrected-aggregate": 10_000}, set()),
            ({"ecc-uncorrected-aggregate": 10_001}, {"gpu-ecc"}),
            ({"ecc-corrected-aggregate": 10**6, "rows-remapped-corrected": 400}, set()),
        ],
    )
    def test_repaired_memory_counts_above_a_limit(
        self, counters: dict[str, int], expected: set[str]
    ) -> None:
        assert causes(gpu(counters=counters)) == expected

    def test_an_application_clock_below_the_default_counts_without_peers(self) -> None:
        for clock, expected in ((1200, {"gpu-settings"}), (1980, set[str]())):
            one = gpu(sm__clock__application=clock, sm__clock__default=1980)
            assert causes(one) == expected

    @pytest.mark.parametrize("on", [True, False])
    def test_persistence_mode_off_is_only_noted(self, *, on: bool) -> None:
        assert causes(gpu(persistence=on)) == set()
        assert any("nvidia-smi -pm 1" in note for note in noted(gpu(persistence=on))) is not on

    def test_repairs_below_the_limit_are_noted(self) -> None:
        (note,) = noted(gpu(counters={"rows-remapped-uncorrected": 2}))
        assert note == "before the run: rows-remapped-uncorrected 2 on gpu 3 of h1"

    def test_limits_are_parameters(self) -> None:
        counters = {"ecc-uncorrected-aggregate": 1}
        assert causes(gpu(counters=counters), limits=Params(uncorrected_errors=0)) == {"gpu-ecc"}
        assert causes(gpu(power__limit=500), limits=Params(power_limit_share=0.7)) == set()
        assert causes(gpu(compute__mode=3), limits=Params(exclusive_ok=True)) == set()
        assert causes(gpu(compute__mode=2), limits=Params(exclusive_ok=True)) == {"gpu-mode"}

    def test_gpus_do_not_count_on_a_machine_without(self) -> None:
        assert causes(gpu(ecc=0, remap__failure=1), machine=CPU) == set()

    def test_a_gpu_must_be_part_of_the_fabric_only_if_its_host_has_several(self) -> None:
        """The only GPU of a virtual machine has none."""
        machine = replace(H100, nvls=True)
        assert causes(gpu(fabric__state=0), machine=machine) == set()
        assert causes(gpu(fabric__state=1), machine=machine) == {"fabric-manager"}
        assert causes(gpu(fabric__state=0), gpu("4"), machine=machine) == {"fabric-manager"}
        assert causes(gpu(fabric__state=0), gpu("4")) == set()

    def test_faults_of_one_cause_are_one_problem(self) -> None:
        (problem,) = found(gpu(compute__mode=2, mig=1))
        assert "MIG is on, its compute mode prohibits any process" in problem.message


class TestLinks:
    """The machine states the number of links; else the GPU with most of them is the measure."""

    def test_a_loss_on_all_gpus_is_seen_only_with_the_number_of_the_machine(self) -> None:
        devices = [gpu(str(index), nvlinks=16) for index in range(8)]
        assert len(found(*devices)) == 8
        assert found(*devices, machine=ANY) == []

    def test_fewer_links_than_other_gpus_of_the_run(self) -> None:
        (problem,) = found(gpu("1"), gpu("2", nvlinks=17), machine=ANY)
        assert (problem.cause, problem.gpu) == ("nvlink-down", "2")

    def test_gpus_of_several_kinds_are_not_compared(self) -> None:
        assert not found(gpu("1"), gpu("2", nvlinks=12), machine=ANY, one_kind=False)

    def test_a_gpu_without_any_link_may_have_no_bridge(self) -> None:
        devices = (gpu("1", nvlinks=4), gpu("2", nvlinks=0))
        assert found(*devices, machine=ANY) == []
        readings = {"h1": Reading(devices=devices)}
        assert list(unclear_links(readings, ANY, one_kind=True)) == [("h1", "gpu 2")]
        assert list(unclear_links(readings, H100, one_kind=True)) == []

    def test_gpus_that_all_have_no_link_pass(self) -> None:
        devices = (gpu("1", nvlinks=0), gpu("2", nvlinks=0))
        assert found(*devices, machine=ANY) == []
        assert not list(unclear_links({"h1": Reading(devices=devices)}, ANY, one_kind=True))


class TestNics:
    @pytest.mark.parametrize(
        ("levels", "expected"),
        [
            ({}, set()),
            ({"pcie__width": 8}, {"pcie-degraded"}),
            ({"pcie__speed": 16}, {"pcie-degraded"}),
            ({"pcie__speed": 16, "rate": 200}, set()),
            ({"pcie__speed": 16, "rate": 0}, {"pcie-degraded"}),
            ({"pcie__width": 8, "active": 0}, set()),
            ({"pcie__width": 0, "pcie__speed": 0}, set()),
        ],
    )
    def test_the_pcie_link_of_an_active_port(
        self, levels: dict[str, float], expected: set[str]
    ) -> None:
        """A slower link that carries the port's rate may be set so; a virtual function has none."""
        assert causes(port(**levels)) == expected

    def test_a_slower_link_that_is_fast_enough_is_noted(self) -> None:
        (note,) = noted(port(pcie__speed=16, rate=200))
        assert "16 GT/s instead of 32" in note

    def test_the_nic_is_named(self) -> None:
        (problem,) = found(port(pcie__width=8))
        assert problem.nic == "mlx5_0/1"


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
        assert noted(gpu(), log=log) == [
            f"before the run, in the kernel log of h1: Xid {code} at {PCI}"
        ]

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
        assert noted(gpu(), log=self.log(first=7200.0)) == [
            "the kernel log of h1 begins 2 h after the boot: no earlier Xid is known"
        ]


class TestVerdict:
    def test_one_damaged_gpu_is_named(self) -> None:
        bad = {"h1": Reading(uptime=9.0, devices=(gpu(remap__failure=1),), log=Log(), whole=True)}
        good = Reading(uptime=9.0, devices=(gpu(),), log=Log(), whole=True)
        verdict = run_of(machine=GPU, first=good, others=bad)
        assert [(s.kind, s.name, s.cause) for s in verdict.suspects] == [
            ("gpu", "h1:3", "gpu-remap-failed")
        ]
        assert verdict.state is State.DEGRADED

    def test_a_setting_that_all_hosts_share_fails_and_names_nobody(self) -> None:
        first = Reading(uptime=9.0, devices=(gpu(ecc=0),), log=Log(), whole=True)
        verdict = run_of(machine=GPU, first=first)
        assert (health_of(verdict).state, verdict.suspects) == (State.FAIL, ())

    def test_a_gpu_that_may_have_no_bridge_is_inconclusive(self) -> None:
        devices = (gpu("1", nvlinks=4), gpu("2", nvlinks=0))
        first = Reading(uptime=9.0, devices=devices, log=Log(), whole=True)
        verdict = run_of(machine=ANY, first=first)
        assert (health_of(verdict).state, verdict.suspects) == (State.INCONCLUSIVE, ())


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
        list(problems(readings, machine, LIMITS, one_kind=True))
        list(notes(readings, machine))
        list(unclear_links(readings, machine, one_kind=True))
