"""Each known fault of a GPU, from NVIDIA's library to the verdict, on each kind of machine.

The scenario is one more line for the stand-in of NVIDIA's library, or for the kernel log. The
programs and the bindings are the shipped ones. A fault exists from the start, or comes during the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.factories import nvml
from tests.factories.health_runs import HEALTH, recorded

from accept.config import load_machine
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.health_readings import Reading, change
from accept.core.judge import judge, to_set_aside
from accept.core.judge.health_rules import WATCHED
from accept.core.model import PlannedMachine, State, Verdict

import gpu_inventory  # isort: skip

#: The GPU with the fault.
BAD = 3
#: Chip -> the machine, and its number of GPUs.
MACHINES = {
    "recorded": "gpu",
    "h100": "h100-8",
    "b200": "b200-8",
    "gb200": "gb200-4x",
    "a100": "a100-8",
    "l4": "gpu",
}
COUNTS = {"gb200": 4, "recorded": 1}
ALL = ("h100", "b200", "gb200", "a100", "l4")
#: Chips with NVLink, with NVLink 5, with the older one, and with NVSwitches that form a fabric.
LINKED = ("h100", "b200", "gb200", "a100")
NVLINK5, NVLINK4, FABRIC = ("b200", "gb200"), ("h100", "a100"), ("h100", "b200", "gb200")
START, LATER = "from the start", "during the run"
BOTH = (START, LATER)
#: Causes of hosts that say nothing about others in a collective.
ASIDE = ("gpu-lost", "gpu-reset-required", "gpu-remap-failed", "gpu-mode", "fabric-manager")
_CALLED = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scenario, and what the verdict must say."""

    name: str
    lines: tuple[str, ...] = ()
    #: Lines of the kernel log, after their time.
    log: tuple[str, ...] = ()
    #: None: the machine is healthy.
    cause: str | None
    chips: tuple[str, ...] = ALL
    when: tuple[str, ...] = BOTH
    #: False: the host is accused, and not the GPU.
    names_gpu: bool = True
    #: The state of the check without a cause.
    state: State = State.PASS
    #: A reading that the check finds missing on the GPU.
    missing: str = ""
    #: True if all hosts have the fault, from the start.
    everywhere: bool = False
    #: The machine, if it is not that of the chip.
    machine: str = ""


def field(number: int, value: int, link: int | str = 0) -> str:
    return f"nvmlDeviceGetFieldValues {BAD} {number} {link} : 0 3 {value}"


def xid(code: int, text: str, instance: str = "") -> str:
    return f"NVRM: Xid (PCI:{nvml.address(BAD)}{instance}): {code}, {text}"


def busy(reasons: int) -> tuple[str, ...]:
    return (
        f"nvmlDeviceGetCurrentClocksEventReasons {BAD} : 0 {reasons}",
        f"nvmlDeviceGetUtilizationRates {BAD} : 0 90 10",
    )


#: Health masks of a fabric: its bandwidth is degraded, and it has no partition (nvml.h).
DEGRADED, WRONG = 0x1A9, 0x4AA
BUS = f"0000{nvml.address(BAD)}"[4:]
#: A line about a GPU whose address it does not have (scitix/sichek issue 51).
_REFUSED = (
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] "
    "(0x00000062) returned from status @ kernel_channel.c:2874"
)

CASES = (
    Case(name="healthy", cause=None, chips=tuple(MACHINES)),
    # Errors of the driver.
    Case(name="lost", lines=nvml.failed(BAD), cause="gpu-lost"),
    Case(name="lost, no handle", lines=nvml.failed(BAD, handle=False), cause="gpu-lost"),
    Case(name="unknown error", lines=nvml.failed(BAD, 999), cause="gpu-lost"),
    Case(name="unknown, no handle", lines=nvml.failed(BAD, 999, handle=False), cause="gpu-lost"),
    Case(name="timeout", lines=nvml.failed(BAD, 10), cause="gpu-lost"),
    Case(name="interrupts", lines=nvml.failed(BAD, 11), cause="gpu-lost"),
    Case(name="infoROM", lines=nvml.failed(BAD, 14), cause="gpu-lost"),
    Case(name="not found", lines=nvml.failed(BAD, 28, handle=False), cause="gpu-lost"),
    Case(name="reset", lines=nvml.failed(BAD, 16), cause="gpu-reset-required"),
    Case(
        name="reset, no handle",
        lines=nvml.failed(BAD, 16, handle=False),
        cause="gpu-reset-required",
    ),
    Case(
        name="one reading fails",
        lines=(f"nvmlDeviceGetPowerUsage {BAD} : 15",),
        cause="gpu-lost",
    ),
    *(
        Case(
            name=f"{function} hangs",
            lines=(f"{function} {BAD} : hang",),
            cause="gpu-lost",
            chips=("h100", "gb200"),
        )
        for function in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo")
    ),
    Case(
        name="one reading hangs",
        lines=(f"nvmlDeviceGetPowerUsage {BAD} : hang",),
        cause="gpu-lost",
        chips=("h100",),
    ),
    Case(
        name="all readings hang",
        lines=("nvmlDeviceGetPowerUsage * : hang",),
        cause=None,
        chips=("h100",),
        state=State.NOT_TESTED,
    ),
    Case(
        name="recovery action",
        lines=(f"nvmlDeviceGetFieldValues {BAD} 230 : 0 1 1",),
        cause="gpu-reset-required",
    ),
    # Memory.
    Case(
        name="remapping failed",
        lines=(f"nvmlDeviceGetRemappedRows {BAD} : 0 0 1 0 1",),
        cause="gpu-remap-failed",
        when=(START,),
    ),
    Case(
        name="remapping pending",
        lines=(f"nvmlDeviceGetRemappedRows {BAD} : 0 0 0 1 0",),
        cause="gpu-reset-required",
        when=(START,),
    ),
    Case(
        name="remapping during a step",
        lines=(f"nvmlDeviceGetRemappedRows {BAD} : 0 0 1 1 0",),
        cause="gpu-row-remap",
        when=(LATER,),
    ),
    Case(
        name="remapping fails during a step",
        lines=(f"nvmlDeviceGetRemappedRows {BAD} : 0 0 0 0 1",),
        cause="gpu-remap-failed",
        when=(LATER,),
    ),
    Case(
        name="12 repaired rows",
        lines=(f"nvmlDeviceGetRemappedRows {BAD} : 0 0 12 0 0",),
        cause=None,
        when=(START,),
    ),
    Case(
        name="512 repaired rows",
        lines=(f"nvmlDeviceGetRemappedRows {BAD} : 0 0 512 0 0",),
        cause="gpu-ecc",
        when=(START,),
    ),
    Case(
        name="bank without spare rows",
        lines=(f"nvmlDeviceGetRowRemapperHistogram {BAD} : 0 2559 0 0 0 1",),
        cause="gpu-remap-failed",
    ),
    Case(
        name="SRAM threshold",
        lines=(f"nvmlDeviceGetSramEccErrorStatus {BAD} : 0 1 0",),
        cause="gpu-ecc",
    ),
    Case(
        name="uncorrected errors",
        lines=(f"nvmlDeviceGetTotalEccErrors {BAD} 1 0 : 0 1",),
        cause="gpu-ecc",
        when=(LATER,),
    ),
    Case(
        name="storm of corrected errors",
        lines=(f"nvmlDeviceGetTotalEccErrors {BAD} 0 0 : 0 5000000",),
        cause="gpu-ecc",
    ),
    Case(
        name="corrected errors",
        lines=(f"nvmlDeviceGetTotalEccErrors {BAD} 0 0 : 0 4000",),
        cause=None,
    ),
    # NVLink and its fabric.
    Case(
        name="link down",
        lines=(f"nvmlDeviceGetNvLinkState {BAD} 7 : 0 0",),
        cause="nvlink-down",
        chips=LINKED,
    ),
    Case(
        name="link replays",
        lines=(f"nvmlDeviceGetNvLinkErrorCounter {BAD} 4 0 : 0 1",),
        cause="nvlink-errors",
        chips=NVLINK4,
        when=(LATER,),
    ),
    Case(
        name="link ECC error",
        lines=(f"nvmlDeviceGetNvLinkErrorCounter {BAD} 4 4 : 0 1",),
        cause="nvlink-errors",
        chips=NVLINK4,
        when=(LATER,),
    ),
    Case(
        name="link CRC errors",
        lines=(f"nvmlDeviceGetNvLinkErrorCounter {BAD} 4 2 : 0 50000000",),
        cause="nvlink-errors",
        chips=NVLINK4,
        when=(LATER,),
    ),
    *(
        Case(
            name=f"link field {number}",
            lines=(field(number, 1, 4),),
            cause="nvlink-errors",
            chips=NVLINK5,
            when=(LATER,),
        )
        for number in (206, 207, 208, 209, 210, 211, 214, 215, 219, 221)
    ),
    Case(
        name="discarded packets",
        lines=(field(212, 1000, 4), field(213, 1, 4)),
        cause=None,
        chips=NVLINK5,
    ),
    Case(name="no bit errors", lines=(field(220, 0xFFF, 4),), cause=None, chips=NVLINK5),
    Case(name="few bit errors", lines=(field(220, 0x10C, 4),), cause=None, chips=NVLINK5),
    Case(name="bit errors", lines=(field(220, 0x20C, 4),), cause="nvlink-errors", chips=NVLINK5),
    Case(name="symbol errors", lines=(field(222, 0x10D, 4),), cause="nvlink-errors", chips=NVLINK5),
    # 15e-238 is the 0 of Blackwell, as in DCGM's tests.
    Case(name="no symbol errors", lines=(field(222, 0xFEE, 4),), cause=None, chips=NVLINK5),
    Case(
        name="a symbol error", lines=(field(222, 0x2ED, 4),), cause="nvlink-errors", chips=NVLINK5
    ),
    *(
        Case(
            name=f"fabric {name}",
            lines=(
                f"nvmlDeviceGetGpuFabricInfoV {BAD} : 0 {values}",
                f"nvmlDeviceGetGpuFabricInfo {BAD} : 0 {values}",
            ),
            cause="fabric-manager",
            chips=FABRIC,
        )
        for name, values in (
            ("not supported", "0 0 0 0"),
            ("not started", "1 0 0 0"),
            ("in progress", "2 0 0 0"),
            ("insufficient resources", "3 23 0 0"),
            ("degraded", f"3 0 {DEGRADED} 0"),
            ("wrong configuration", f"3 0 {WRONG} 0"),
        )
    ),
    Case(
        name="fabric not started, driver 535",
        lines=(
            "nvmlDeviceGetGpuFabricInfoV * : 13",
            f"nvmlDeviceGetGpuFabricInfo {BAD} : 0 1 0 0 0",
        ),
        cause="fabric-manager",
        chips=("h100",),
    ),
    Case(
        name="driver 535",
        lines=(
            "nvmlDeviceGetGpuFabricInfoV * : 13",
            "nvmlDeviceGetCurrentClocksEventReasons * : 13",
            "nvmlDeviceGetSramEccErrorStatus * : 13",
            "nvmlDeviceGetFieldValues * 230 : 3",
        ),
        cause=None,
        when=(START,),
        everywhere=True,
    ),
    Case(
        name="no part in the fabric that most others have joined",
        lines=(
            f"nvmlDeviceGetGpuFabricInfoV {BAD} : 0 0 0 0 0",
            f"nvmlDeviceGetGpuFabricInfo {BAD} : 0 0 0 0 0",
        ),
        cause="fabric-manager",
        chips=FABRIC,
        machine="gpu",
    ),
    # Readings that are not supported.
    *(
        Case(
            name=f"no {missing} on {gpus}, {machine or 'its machine'}",
            lines=tuple(f"{function} {gpu} : 3" for function in functions),
            cause=None,
            chips=FABRIC,
            state=State.INCONCLUSIVE,
            missing=missing,
            machine=machine,
        )
        for gpu, gpus in ((BAD, "a GPU"), ("*", "a host"))
        for machine in ("", "gpu")
        for missing, functions in (
            ("nvlinks", ("nvmlDeviceGetNvLinkState",)),
            ("fabric-state", ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")),
            ("ecc-uncorrected", ("nvmlDeviceGetTotalEccErrors",)),
            ("mig", ("nvmlDeviceGetMigMode",)),
        )
    ),
    Case(
        name="no reading at all",
        lines=(f"* {BAD} : 3", *nvml.opened(BAD)),
        cause=None,
        state=State.INCONCLUSIVE,
        missing="ecc, ",
    ),
    *(
        Case(
            name=f"no {missing} anywhere, {state.value}",
            lines=tuple(f"{function} * : 3" for function in functions),
            cause=None,
            chips=FABRIC,
            when=(START,),
            state=state,
            missing="" if machine else missing,
            everywhere=True,
            machine=machine,
        )
        for machine, state in (("", State.INCONCLUSIVE), ("gpu", State.PASS))
        for missing, functions in (
            ("nvlinks", ("nvmlDeviceGetNvLinkState",)),
            ("fabric-state", ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")),
        )
    ),
    Case(
        name="a PCIe card without NVLink",
        lines=("nvmlDeviceGetNvLinkState * : 3",),
        cause=None,
        chips=("a100",),
        when=(START,),
        everywhere=True,
        machine="gpu",
    ),
    # Settings.
    Case(
        name="MIG",
        lines=(f"nvmlDeviceGetMigMode {BAD} : 0 1 1",),
        cause="gpu-mode",
        chips=LINKED,
    ),
    Case(
        name="ECC off",
        lines=(f"nvmlDeviceGetEccMode {BAD} : 0 0 0",),
        cause="gpu-settings",
    ),
    Case(
        name="exclusive",
        lines=(f"nvmlDeviceGetComputeMode {BAD} : 0 3",),
        cause="gpu-mode",
    ),
    Case(name="prohibited", lines=(f"nvmlDeviceGetComputeMode {BAD} : 0 2",), cause="gpu-mode"),
    Case(
        name="power limit",
        lines=(f"nvmlDeviceGetEnforcedPowerLimit {BAD} : 0 60000",),
        cause="gpu-settings",
    ),
    Case(
        name="power limit of 690 of 700 W",
        lines=(f"nvmlDeviceGetEnforcedPowerLimit {BAD} : 0 690000",),
        cause="gpu-settings",
        chips=("h100",),
    ),
    Case(
        name="application clock of 1965 of 1980 MHz",
        lines=(f"nvmlDeviceGetApplicationsClock {BAD} 1 : 0 1965",),
        cause="gpu-settings",
        chips=("h100",),
    ),
    Case(
        name="application clock",
        lines=(f"nvmlDeviceGetApplicationsClock {BAD} 1 : 0 1200",),
        cause="gpu-settings",
        chips=("h100", "a100", "l4"),
    ),
    Case(
        name="an unknown default clock",
        lines=(f"nvmlDeviceGetDefaultApplicationsClock {BAD} 1 : 0 0",),
        cause=None,
        chips=("h100", "a100", "l4"),
    ),
    Case(
        name="highest clock",
        lines=(f"nvmlDeviceGetMaxClockInfo {BAD} 1 : 0 1200",),
        cause="gpu-settings",
        when=(START,),
    ),
    Case(
        name="persistence off",
        lines=(f"nvmlDeviceGetPersistenceMode {BAD} : 0 0",),
        cause=None,
    ),
    # Clocks, heat and PCIe.
    Case(
        name="limited by heat",
        lines=(f"nvmlDeviceGetViolationStatus {BAD} 1 : 0 90000000000",),
        cause="gpu-throttled",
        chips=NVLINK4,
        when=(LATER,),
    ),
    Case(
        name="power cap",
        lines=(f"nvmlDeviceGetViolationStatus {BAD} 0 : 0 90000000000",),
        cause=None,
        chips=NVLINK4,
        when=(LATER,),
    ),
    *(
        Case(name=f"{name} while it works", lines=busy(reasons), cause=cause, chips=chips)
        for name, reasons, cause, chips in (
            ("power brake", 0x80, "gpu-throttled", ALL),
            ("power brake with hardware slowdown", 0x88, "gpu-throttled", ALL),
            ("hardware slowdown by heat", 0x40, "gpu-throttled", ALL),
            ("software slowdown by heat, counted", 0x20, None, NVLINK4),
            ("software slowdown by heat, not counted", 0x20, "gpu-throttled", NVLINK5),
            ("power cap", 0x4, None, LINKED),
            ("any hardware slowdown", 0x8, None, LINKED),
        )
    ),
    Case(
        name="8 lanes",
        lines=(f"nvmlDeviceGetCurrPcieLinkWidth {BAD} : 0 8",),
        cause="pcie-degraded",
        when=(START,),
    ),
    Case(
        name="8 lanes while it works",
        lines=(
            f"nvmlDeviceGetCurrPcieLinkWidth {BAD} : 0 8",
            f"nvmlDeviceGetUtilizationRates {BAD} : 0 90 10",
        ),
        cause="pcie-degraded",
        when=(LATER,),
    ),
    Case(
        name="slow PCIe at rest",
        lines=(f"nvmlDeviceGetCurrPcieLinkGeneration {BAD} : 0 1",),
        cause=None,
    ),
    Case(
        name="PCIe replays",
        lines=(f"nvmlDeviceGetPcieReplayCounter {BAD} : 0 5000",),
        cause="pcie-errors",
        when=(LATER,),
    ),
    # The kernel log.
    Case(name="Xid 79", log=(xid(79, "GPU has fallen off the bus."),), cause="gpu-xid"),
    *(
        Case(name=f"Xid {code}", log=(xid(code, "text"),), cause="gpu-xid", chips=("b200",))
        for code in (46, 110, 136, 157, 158, 167, 171, 172)
    ),
    Case(
        name="Xid 79 with MIG",
        log=(xid(79, "GPU has fallen off the bus.", " GPU-I:01 GPU-CI:02"),),
        cause="gpu-xid",
    ),
    Case(
        name="Xid 154 with an action",
        log=(xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)"),),
        cause="gpu-xid",
    ),
    Case(
        name="Xid 154 after a reset",
        log=(
            xid(79, "GPU has fallen off the bus."),
            xid(154, "GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"),
        ),
        cause=None,
        when=(START,),
    ),
    Case(
        name="off the bus without an Xid",
        log=(f"NVRM: The NVIDIA GPU {BUS}.0\\x0aNVRM: (PCI ID: 10de:2330) fallen off the bus and",),
        lines=nvml.failed(BAD, handle=False),
        cause="gpu-lost",
    ),
    Case(
        name="off the bus without an Xid, and not listed",
        log=(f"NVRM: GPU 0000:{nvml.address(7)[5:]}.0: GPU has fallen off the bus.",),
        lines=("nvmlDeviceGetCount * : 0 7",),
        cause="gpu-lost",
        chips=("h100", "b200", "a100", "l4"),
        when=(START,),
        names_gpu=False,
    ),
    Case(
        name="off the bus, then reset",
        log=(f"NVRM: GPU {BUS}.0: GPU has fallen off the bus.",),
        cause=None,
        when=(START,),
    ),
    Case(
        name="Xid 45 that an earlier error of NVLink caused",
        log=(xid(45, "pid=7, name=python3, Ch 00000001 caused by previous Xid 149"),),
        cause="gpu-xid",
    ),
    Case(
        name="Xid 45 that an error of a program caused",
        log=(xid(45, "pid=7, name=python3, Ch 00000001 caused by previous Xid 31"),),
        cause=None,
    ),
    Case(
        name="a GPU that needs a reset, without its address",
        log=(_REFUSED,),
        cause="gpu-reset-required",
        names_gpu=False,
    ),
    Case(
        name="a GPU that needed a reset, and was reset",
        log=(
            _REFUSED,
            xid(154, "GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"),
        ),
        cause=None,
        when=(START,),
    ),
    *(
        Case(
            name=f"Xid 155, {word}",
            log=(xid(155, f"NVLINK_SW_DEFINED_ERROR {word} XC0 i0 Link 08"),),
            cause=cause,
            chips=NVLINK5,
        )
        for word, cause in (("Nonfatal", None), ("Fatal", "gpu-xid"))
    ),
    Case(name="Xid of a program", log=(xid(31, "MMU Fault"),), cause=None),
    # Drivers that cannot be read.
    Case(
        name="no permission",
        lines=(f"nvmlDeviceGetHandleByIndex {BAD} : 4",),
        cause=None,
        state=State.NOT_TESTED,
    ),
    *(
        Case(
            name=f"no driver: {function} returns {code}",
            lines=(f"{function} * : {code}",),
            cause=None,
            state=State.NOT_TESTED,
        )
        # Uninitialized driver, no permission, driver not loaded, mismatch, unknown error.
        for function, code in (
            *(("nvmlInit", code) for code in (1, 4, 9, 18, 999)),
            ("nvmlDeviceGetCount", 999),
            ("nvmlDeviceGetHandleByIndex", 4),
        )
    ),
    Case(
        name="few readings of a virtual GPU",
        lines=("nvmlDeviceGetTotalEccErrors * : 3", "nvmlDeviceGetPcieReplayCounter * : 3"),
        cause=None,
        when=(START,),
        everywhere=True,
    ),
    Case(
        name="a value that is not available",
        lines=(f"nvmlDeviceGetTotalEccErrors {BAD} 0 0 : 0 {2**64 - 1}",),
        cause=None,
        state=State.INCONCLUSIVE,
        missing="ecc-corrected",
    ),
)


def _each() -> Iterator[object]:
    for case in CASES:
        for chip in case.chips:
            for when in case.when:
                yield pytest.param(case, chip, when, id=f"{case.name}, {chip}, {when}")


class Host:
    """One host: its files, and its GPUs in the stand-in of NVIDIA's library."""

    def __init__(self, folder: Path, chip: str) -> None:
        self.root = folder / "root"
        self.gpus = COUNTS.get(chip, 8)
        self.scenario = nvml.Scenario(folder / "scenario", chip, self.gpus)
        nvml.host(self.root, range(self.gpus))
        self.log = ["6,1,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module"]
        self.write()

    def write(self, *lines: str) -> None:
        for line in lines:
            seconds = len(self.log) * 100
            self.log.append(f"3,{seconds},{seconds * _CALLED},-;{line}")
        (self.root / "dev/kmsg").write_text("".join(f"{line}\n" for line in self.log))

    def read(self) -> Reading:
        self.scenario.load()
        return nvml.read(self.root)


def planned(machine: str) -> PlannedMachine:
    # The factory's runs have two ranks on each host.
    return replace(load_machine(machine).value.planned(), ranks=2)


def judged(folder: Path, case: Case, chip: str, when: str) -> tuple[Verdict, set[str]]:
    """Return the verdict on four hosts, and those that are set aside; `h1` has the fault."""
    host = Host(folder, chip)
    healthy = host.read()
    host.scenario.change(*case.lines)
    host.write(*case.log)
    faulty = host.read()
    machine = planned(case.machine or MACHINES[chip])
    if when == START:
        first = faulty if case.everywhere else healthy
        plan, records = recorded(machine=machine, first=first, others={"h1": faulty})
    else:
        changed = change(healthy, faulty, since=2, watched=WATCHED)
        plan, records = recorded(("h1", 3, changed), machine=machine, first=healthy)
    aside = to_set_aside(plan, HEALTH, records, checks=REGISTRY)
    return judge(plan, records, checks=REGISTRY, attempt="one"), {*aside}


@pytest.fixture(autouse=True)
def short_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvml.GPU_SECONDS", 2.0)


@pytest.mark.sampled
@pytest.mark.parametrize(("case", "chip", "when"), list(_each()))
def test_a_scenario_has_its_verdict(
    tmp_path: Path,
    case: Case,
    chip: str,
    when: str,
    record_property: Callable[[str, object], None],
) -> None:
    kind, name = ("gpu", f"h1:{BAD}") if case.names_gpu else ("node", "h1")
    expected = {(kind, name, case.cause)} if case.cause else set()
    record_property("expected", str(sorted(expected) or case.state))
    verdict, aside = judged(tmp_path, case, chip, when)
    (health,) = (check for check in verdict.checks if check.check == "health")
    accused = {(one.kind, one.name, one.cause) for one in verdict.suspects}
    record_property("got", str((health.state, sorted(accused), sorted(aside))))
    assert accused == expected
    assert health.state in ((State.DEGRADED, State.FAIL) if expected else (case.state,))
    texts = [f.message for f in health.findings if f.cause is Cause.GPU_UNREPORTED]
    lacks = [text for text in texts if "not reported" in text and case.missing in text]
    named = [text for text in lacks if f"gpu {BAD} of h1" in text]
    assert case.cause or bool(named) == bool(case.missing)
    if when == START:
        assert aside == ({"h1"} if case.cause in ASIDE else set())


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"])
def test_the_inventory_lists_a_gpu_that_hangs_with_its_index(tmp_path: Path, function: str) -> None:
    host = Host(tmp_path, "h100")
    host.scenario.change(f"{function} {BAD} : hang")
    host.scenario.load()
    found = gpu_inventory.by_nvml()["gpus"]
    assert [gpu["index"] for gpu in found] == list(range(8))
    assert {gpu["index"]: gpu["errorCode"] for gpu in found if "error" in gpu} == {BAD: 10}


@pytest.mark.parametrize(("bad", "aside"), [(1, 1), (2, 2), (3, 0)])
def test_if_most_hosts_have_faults_none_is_set_aside(tmp_path: Path, bad: int, aside: int) -> None:
    """Faults of most hosts may have one reason, such as a driver, even if each shows another."""
    faults = (nvml.failed(BAD), ("nvmlDeviceGetMigMode * : 0 1 1",), nvml.failed(BAD, 16))
    healthy = Host(tmp_path, "h100").read()
    found = {}
    for number, lines in enumerate(faults[:bad]):
        host = Host(tmp_path, "h100")
        host.scenario.change(*lines)
        found[f"h{number}"] = host.read()
    plan, records = recorded(machine=planned("h100-8"), first=healthy, others=found)
    faulty = to_set_aside(plan, HEALTH, records, checks=REGISTRY)
    assert sorted(faulty) == sorted(found)[:aside]
