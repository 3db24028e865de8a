"""Versions that their makers support together: which are named, and that no host is blamed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.factories.judging import judged as judge_all
from tests.factories.verdicts import (
    gpus,
    hosts,
    hosts_record,
    inventories,
    inventory_of,
    plan,
    record,
    step,
    table,
)

from accept.config import load_machine
from accept.config.versions import rows, supported
from accept.core.causes import Cause
from accept.core.facts import inventories_of
from accept.core.judge.versions import NOT_SUPPORTED, shown, unsupported
from accept.core.nccl_tests import nccl_facts, parse
from accept.core.nccl_tests.table import Log
from accept.core.plan import PlannedMachine, Supported
from accept.core.verdict import Finding, State

#: Machines with each plugin of the table, and one that has none of them.
A4X, A4X_MAX, A4, EFA = (
    "a4x-highgpu-4g",
    "a4x-maxgpu-4g-metal",
    "a4-highgpu-8g",
    "p5.48xlarge",
)
#: The oldest versions that A4X supports.
GOOD = {"gIB": "1.1.2", "NCCL": "2.25.0", "driver": "580.95.05", "CUDA": "13.0"}


def table_of(machine: str) -> tuple[Supported, ...]:
    """Return the rows of a machine."""
    return supported(load_machine(machine).value)


def older(version: str) -> str:
    """Return a version just below another one."""
    *head, last = version.split(".")
    return ".".join((*head, str(int(last) - 1))) if int(last) else older(".".join(head)) + ".99"


#: Each requirement of the table.
CASES = {
    (repr(row), component): row
    for machine in (A4X, A4X_MAX, EFA)
    for row in table_of(machine)
    for component in row.needs
}


@pytest.mark.parametrize(("row", "component"), [(row, name) for (_, name), row in CASES.items()])
def test_the_oldest_version_is_supported_and_no_older_one(row: Supported, component: str) -> None:
    rows = plan(supported=(row,))
    least = row.needs[component]
    versions = {row.component: row.since, **row.needs}
    for same in (least, f"{least}.0", least.removesuffix(".0")):
        assert not [*unsupported(rows, {**versions, component: same})]
    bad = {**versions, component: older(least)}
    (text,) = unsupported(rows, bad)
    assert all(word in text for word in (row.component, component, least, older(least), row.source))
    # Nothing follows from versions that the table does not list, or that are not known.
    for other in (row.before, older(row.since), "", "git-c8a3df2"):
        assert not [*unsupported(rows, {**bad, row.component: other})]
    for other in ("", "git-c8a3df2"):
        assert not [*unsupported(rows, {**bad, component: other})]


def test_every_row_of_the_table_concerns_a_machine() -> None:
    listed = {(row.component, row.since, row.device) for row in rows()}
    assert len(listed) == len(rows())
    assert {row.device for row in rows()} == {None, "NVIDIA GB200", "NVIDIA GB300"}
    assert not table_of("cpu")
    assert [r.component for r in table_of(A4X)].count("gIB") == 1
    assert table_of(A4X) != table_of(A4X_MAX)
    assert "gIB" not in {row.component for row in table_of(A4)}


def lines(versions: Mapping[str, str], host: str = "h0") -> bytes:
    """Return NCCL's lines about the versions that a process loads."""
    texts = [f"NCCL version {versions['NCCL']}+cuda{versions['CUDA']}"]
    if "gIB" in versions:
        texts.append(f"NET/gIB : Initializing gIB v{versions['gIB']}")
    if "aws-ofi-nccl" in versions:
        texts.append(f"NET/OFI Initializing aws-ofi-nccl {versions['aws-ofi-nccl']}")
    return "".join(f"{host}:1:2 [0] NCCL INFO {text}\n" for text in texts).encode()


def log(*hosts: Mapping[str, str]) -> Log:
    """Return the log of ranks that load these versions."""
    return parse(b"".join(lines(own, f"h{n}") for n, own in enumerate(hosts)))


@pytest.mark.parametrize("nccl", ["2.25.0", "2.24.3"])
def test_the_log_shows_once_what_was_loaded_and_what_is_not_supported(nccl: str) -> None:
    versions = {**GOOD, "NCCL": nccl}
    facts = tuple(nccl_facts(log(versions)))
    records = [record(step(), ("h0",), facts=facts), record(step(), ("h1",)), hosts_record(["h0"])]
    drivers = [{**gpu, "driver": versions["driver"]} for gpu in gpus("h0")]
    inventory = record(
        step("inventory", "each"), ("h0",), facts=(inventory_of("h0", gpus=drivers),)
    )
    lines = shown(plan(supported=table_of(A4X)), records * 2, inventories_of([inventory], ["h0"]))
    assert lines[0] == f"loaded: NCCL {nccl}, CUDA 13.0, gIB 1.1.2, driver 580.95.05"
    assert [line.startswith(NOT_SUPPORTED) for line in lines[1:]] == [True] * (nccl == "2.24.3")


def judged(machine: str, *ranks: Mapping[str, str]) -> list[Finding]:
    """Judge a good run on healthy hosts that each load these versions; none is blamed."""
    names = hosts(len(ranks))
    all_reduce, inventory = step(), step("inventory", "each", number=5)
    facts = tuple(nccl_facts(log(*ranks)))
    listed = (
        inventory_of(name, gpus=[{**gpu, "driver": own["driver"]} for gpu in gpus(name)])
        for name, own in zip(names, ranks, strict=True)
    )
    fast = table("all-reduce", 300.0)
    records = [hosts_record(names), *inventories(inventory, listed)]
    records += [record(all_reduce, names, *fast, facts=facts, wave=n) for n in range(3)]
    of = plan(
        inventory,
        all_reduce,
        machine=PlannedMachine(name="m", gpus=8, ranks=2, speed_promised=False),
        supported=table_of(machine),
    )
    verdict = judge_all(of, *records)
    assert not verdict.suspects
    found = [f for check in verdict.checks for f in check.findings]
    found = [f for f in found if f.cause is Cause.UNSUPPORTED_VERSIONS]
    assert all((f.state, f.hosts) == (State.INCONCLUSIVE, ()) for f in found)
    assert (verdict.state is State.INCONCLUSIVE) is bool(found)
    return found


@pytest.mark.parametrize("component", ["", "NCCL", "driver", "CUDA"])
def test_a_version_that_is_too_old_is_inconclusive_and_named_once(component: str) -> None:
    bad = GOOD | ({component: older(GOOD[component])} if component else {})
    for finding in (found := judged(A4X, bad, bad)):
        assert f"{component} {bad[component]}" in finding.message
        assert finding.evidence
    assert len(found) == bool(component)
    # Versions that differ between hosts are not combined.
    assert not judged(A4X, {**GOOD, "NCCL": "2.24.2"}, {**GOOD, "NCCL": "2.24.3"})
