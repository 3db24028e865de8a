"""Each known fault of a GPU, from NVIDIA's library to the verdict, on each kind of machine.

The scenarios are data: tests/data/gpu-scenarios.yaml. Each is one more line for the stand-in of
NVIDIA's library, or for the kernel log. The programs and the bindings are the shipped ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.factories import nvml
from tests.factories.health_runs import HEALTH, recorded
from tests.factories.paths import TESTS

from accept.config import load_machine
from accept.config.yaml_file import read_file
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.health_readings import Reading, change
from accept.core.judge import judge, to_set_aside
from accept.core.judge.health_rules import WATCHED
from accept.core.plan import PlannedMachine
from accept.core.text import TextEnum
from accept.core.verdict import State, Verdict

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
#: Causes of hosts that say nothing about others in a collective.
ASIDE = ("gpu-lost", "gpu-reset-required", "gpu-remap-failed", "gpu-mode", "fabric-manager")
_CALLED = 1_000_000


class When(TextEnum):
    """The time at which a fault begins."""

    START = "from the start"
    LATER = "during the run"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scenario, and what the verdict must say: a row of the file, which explains the keys."""

    name: str
    lines: tuple[str, ...] = ()
    failed: int | None = None
    handle: bool = True
    log: tuple[str, ...] = ()
    #: None: the machine is healthy.
    cause: Cause | None = None
    chips: tuple[str, ...] = ALL
    when: tuple[When, ...] = (When.START, When.LATER)
    names_gpu: bool = True
    state: State = State.PASS
    missing: str = ""
    everywhere: bool = False
    #: Empty: that of the chip.
    machine: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Return the lines for the stand-in of NVIDIA's library."""
        if self.failed is None:
            return self.lines
        return (*self.lines, *nvml.failed(BAD, self.failed, handle=self.handle))


@dataclass(frozen=True, kw_only=True)
class _File:
    scenarios: tuple[Case, ...]


CASES = read_file(_File, TESTS / "data" / "gpu-scenarios.yaml").scenarios


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


def judged(folder: Path, case: Case, chip: str, when: When) -> tuple[Verdict, set[str]]:
    """Return the verdict on four hosts, and those that are set aside; `h1` has the fault."""
    host = Host(folder, chip)
    healthy = host.read()
    host.scenario.change(*case.faults)
    host.write(*case.log)
    faulty = host.read()
    machine = planned(case.machine or MACHINES[chip])
    if when is When.START:
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
    when: When,
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
    if when is When.START:
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
