"""Changes between two readings: only growth counts, and only of counters in both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.core.health_readings import (
    MOST,
    Change,
    Device,
    DeviceKind,
    Event,
    Gap,
    Log,
    Reading,
    Unread,
    change,
    reading_of,
)
from accept.core.judge.health_rules import WATCHED
from accept.core.records import Fact
from accept.core.serde import dump, read

NAMES = ("ecc-uncorrected", "pcie-replay", "nvlink-replay", "limited-power", "ecc-corrected")
COUNTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1 << 40))


def gpu(name: str = "0", pci: str = "0000:1b:00", **more: Any) -> Device:
    return Device(kind=DeviceKind.GPU, name=name, pci=pci, **more)


def reading(*devices: Device, **more: Any) -> Reading:
    known = {"gpu": NAMES, "rdma": ("link_downed", "symbol_error"), "net": ("rx_errors",)}
    values: dict[str, Any] = {"uptime": 10.0, "read": known, "devices": devices, "whole": True}
    return Reading(**values | more)


def moved(before: Reading, after: Reading, *, others: bool = False) -> Change:
    return change(before, after, since=1, watched=WATCHED, others=others)


@given(COUNTS, COUNTS)
def test_growth_is_exact_and_at_least_one(was: dict[str, int], now: dict[str, int]) -> None:
    before, after = reading(gpu(counters=was)), reading(gpu(counters=now))
    watched, rest = moved(before, after), moved(before, after, others=True)
    grown = {n: now.get(n, 0) - was.get(n, 0) for n in NAMES if now.get(n, 0) > was.get(n, 0)}
    changed = watched.counters.get("gpu 0", {}) | rest.counters.get("gpu 0", {})
    assert changed == grown
    assert set(watched.counters.get("gpu 0", {})) <= WATCHED
    assert not set(rest.counters.get("gpu 0", {})) & WATCHED
    back = {f"gpu 0 {n}" for n in WATCHED if now.get(n, 0) < was.get(n, 0)}
    assert set(watched.back) == back


@given(COUNTS)
def test_a_reading_does_not_differ_from_itself(counters: dict[str, int]) -> None:
    one = reading(gpu(counters=counters, levels={"temperature": 60.0}))
    assert not moved(one, replace(one, uptime=99.0))


@given(st.integers(0, 200))
def test_changes_of_one_host_are_limited_and_the_rest_is_counted(count: int) -> None:
    devices = [gpu(str(i), pci=f"0000:{i:02x}:00") for i in range(count)]
    grown = [replace(device, counters={"pcie-replay": 5}) for device in devices]
    changed = moved(reading(*devices), reading(*grown))
    assert len(changed.counters) == min(count, MOST)
    assert changed.cut == max(0, count - MOST)


def test_a_counter_that_could_not_be_read_did_not_grow() -> None:
    blind = gpu(missing=("ecc-uncorrected",))
    seen = gpu(counters={"ecc-uncorrected": 9})
    assert not moved(reading(blind), reading(seen)).counters
    assert not moved(reading(seen), reading(blind)).back
    assert not moved(reading(gpu(), read={}), reading(seen)).counters


def test_parts_of_a_reading_show_what_one_gpu_lacks_and_another_has() -> None:
    parts = [
        {"read": {"gpu": ["a", "b"]}, "devices": [{"kind": "gpu", "name": "0"}]},
        {"read": {"gpu": ["b"]}, "devices": [{"kind": "gpu", "name": "1", "missing": ["b"]}]},
    ]
    whole = reading_of(Fact(name="health", value=part) for part in parts)
    assert [device.missing for device in whole.devices] == [(), ("a", "b")]


def test_links_of_one_device_are_distinguished() -> None:
    changed = moved(reading(gpu()), reading(gpu(counters={"nvlink-replay.3": 2})))
    assert changed.counters == {"gpu 0": {"nvlink-replay.3": 2}}


def test_after_a_reboot_nothing_is_compared() -> None:
    before = reading(gpu(counters={"pcie-replay": 9}), boot="a")
    assert moved(before, reading(gpu(), boot="b")) == Change(since=1, rebooted=True)


def test_gpus_are_recognized_by_their_address_if_their_numbers_change() -> None:
    before = reading(gpu("0"), gpu("1", "0000:2c:00"))
    changed = moved(before, reading(gpu("0", "0000:2c:00", counters={"pcie-replay": 1})))
    assert changed.gone == ("gpu 0",)
    assert changed.counters == {"gpu 1": {"pcie-replay": 1}}, "by the name it had"


def test_unread_gpus_did_not_disappear() -> None:
    assert not moved(reading(gpu()), reading(whole=False)).gone


def test_the_state_of_a_changed_gpu_is_kept() -> None:
    hot = {"temperature": 91.0, "power": 640.0, "sm-clock": 345.0, "utilization": 3.0}
    kept = {name: hot[name] for name in ("temperature", "power", "sm-clock")}
    counted = moved(reading(gpu()), reading(gpu(counters={"pcie-replay": 1}, levels=hot)))
    assert counted.states == {"gpu 0": kept}
    log = Log(last=5.0, events=(Event(at=4.0, kind="xid", pci="0000:1b:00", code=79),))
    struck = moved(reading(gpu(), log=Log(last=3.0)), reading(gpu(levels=hot), log=log))
    assert struck.states == {"gpu 0": kept}
    others = reading(gpu(), gpu("1", "0000:2c:00"))
    now = reading(gpu(levels=hot), gpu("1", "0000:2c:00", levels=hot, counters={"pcie-replay": 1}))
    assert list(moved(others, now).states) == ["gpu 1"], "of the others nothing is"


class TestLevels:
    @staticmethod
    def lost(kind: Any, was: dict[str, float], now: dict[str, float]) -> dict[str, Any]:
        one = Device(kind=DeviceKind(kind), name="x", levels=was)
        changed = moved(reading(one), reading(replace(one, levels=now)))
        return changed.levels.get(f"{kind} x", {})

    def test_a_port_that_is_no_longer_active_or_slower(self) -> None:
        was = {"active": 1.0, "rate": 400.0, "pcie-width": 16.0}
        assert self.lost("rdma", was, {**was, "active": 0.0}) == {"active": (1.0, 0.0)}
        assert self.lost("rdma", was, {**was, "rate": 200.0}) == {"rate": (400.0, 200.0)}
        assert self.lost("rdma", was, {**was, "pcie-width": 8.0}) == {"pcie-width": (16.0, 8.0)}
        assert self.lost("rdma", {**was, "rate": 200.0}, was) == {}, "a faster link is not a loss"

    def test_a_gpu_at_rest_may_have_a_slow_and_narrow_link(self) -> None:
        full = {"pcie-width": 16.0, "pcie-width-max": 16.0, "pcie-generation": 5.0}
        full["pcie-generation-max"] = 5.0
        idle = {**full, "pcie-width": 8.0, "pcie-generation": 1.0, "utilization": 0.0}
        assert self.lost("gpu", full, idle) == {}
        busy = self.lost("gpu", full, {**idle, "utilization": 90.0})
        assert busy == {"pcie-width": (16.0, 8.0), "pcie-generation": (5.0, 1.0)}

    def test_a_slowdown_by_software_counts_only_without_a_counter(self) -> None:
        was, now = {"utilization": 90.0}, {"utilization": 90.0, "reasons": float(0x4 | 0x20)}
        assert self.lost("gpu", was, now) == {"reasons": (0.0, float(0x20))}
        before, after = reading(gpu(levels=was)), reading(gpu(levels=now))
        read_: dict[str, tuple[str, ...]] = {"gpu": ("limited-thermal",)}
        assert not moved(replace(before, read=read_), replace(after, read=read_)).levels

    @pytest.mark.parametrize(
        ("level", "now"),
        [("remap-pending", 1.0), ("ecc", 0.0), ("ecc", 1.0), ("temperature", None)],
    )
    def test_repairs_and_settings_of_a_gpu(self, level: str, now: float | None) -> None:
        was = 1.0 - (now or 0.0)
        expected = {} if now is None else {level: (was, now)}
        assert self.lost("gpu", {level: was}, {level: 80.0 if now is None else now}) == expected

    def test_an_unused_port_is_ignored(self) -> None:
        down = Device(kind=DeviceKind.RDMA, name="x", levels={"active": 0.0})
        flapped = replace(down, counters={"link_downed": 4})
        assert not moved(reading(down), reading(flapped))


class TestLog:
    EVENT = Event(at=12.0, kind="xid", pci="0000:1b:00", code=79)

    def test_new_lines_are_those_after_the_last_one_seen(self) -> None:
        old = Log(last=12.0, events=(self.EVENT,))
        new = Log(last=13.0, events=(self.EVENT, replace(self.EVENT, at=12.5, code=48)))
        changed = moved(reading(gpu("3"), log=old), reading(gpu("3"), log=new))
        assert changed.events == (("gpu 3", "xid", "48", "", "0000:1b:00"),)

    def test_a_log_that_could_not_be_read_before_has_no_new_lines(self) -> None:
        assert not moved(reading(gpu()), reading(gpu(), log=Log(last=13.0, events=(self.EVENT,))))


class TestFacts:
    def test_facts_of_one_host_make_one_reading(self) -> None:
        gap = {"reason": "a", "devices": "none"}
        parts = [{"uptime": 5.0, "unread": [gap]}, {"devices": [dump(gpu())], "whole": True}]
        found = reading_of([Fact(name="health", value=part) for part in parts])
        assert (found.uptime, found.devices, found.unread) == (5.0, (gpu(),), (read(Gap, gap),))

    def test_a_reading_without_its_last_part_has_no_gpus(self) -> None:
        found = reading_of([Fact(name="health", value={"uptime": 5.0})])
        assert [gap.devices for gap in found.unread] == [Unread.GPUS]

    @pytest.mark.parametrize("kind", ["counters", "levels"])
    @given(st.text() | st.lists(st.integers()) | st.none() | st.booleans())
    def test_a_value_of_a_wrong_type_costs_only_itself(self, kind: str, value: Any) -> None:
        bad: Any = dump(gpu(counters={"pcie-replay": 1}, levels={"power": 70.0}))
        bad[kind]["ecc-default"] = value
        devices = [bad, dump(gpu("1", "0000:2c:00"))]
        found = reading_of([Fact(name="health", value={"devices": devices, "whole": True})])
        assert [d.counters for d in found.devices] == [{"pcie-replay": 1}, {}]
        assert found.devices[0].levels == {"power": 70.0}
        assert [gap.devices for gap in found.unread] == [Unread.NONE]
        assert "ecc-default of gpu 0" in found.unread[0].reason

    def test_a_device_of_an_unknown_form_leaves_the_others(self) -> None:
        devices = [5, {"kind": "tpu", "name": "0"}, dump(gpu())]
        found = reading_of([Fact(name="health", value={"devices": devices, "whole": True})])
        assert found.devices == (gpu(),)
        assert {gap.devices for gap in found.unread} == {Unread.ALL}

    @pytest.mark.parametrize("unread", ["GPUs", [["GPUs"]], [{"reason": "x", "devices": "tpus"}]])
    def test_gaps_of_an_unknown_form_leave_all_devices_unread(self, unread: object) -> None:
        found = reading_of([Fact(name="health", value={"unread": unread, "whole": True})])
        assert found.unread[0].devices is Unread.ALL

    @given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
    def test_any_other_value_is_an_unread_host(self, value: Any) -> None:
        assert reading_of([Fact(name="health", value=value)]).unread


class TestXids:
    """Two sources report Xids: the kernel log and the driver's events."""

    XID = Event(at=4.0, kind="xid", pci="0000:1b:00", code=79)
    SEEN = ("gpu 0", "xid", "79", "", "0000:1b:00")

    @staticmethod
    def pair(**sources: Log | None) -> tuple[Reading, Reading]:
        empty = {name: None if log is None else Log(last=3.0) for name, log in sources.items()}
        return reading(gpu(), **empty), reading(gpu(), **sources)

    @pytest.mark.parametrize("sources", [("log",), ("watch",), ("log", "watch")])
    def test_an_xid_counts_once_from_any_source(self, sources: tuple[str, ...]) -> None:
        log = Log(last=4.0, events=(self.XID,))
        changed = moved(*self.pair(**dict.fromkeys(sources, log)))
        assert changed.events == (self.SEEN,)
        assert changed.unread == ()

    def test_the_clock_of_one_source_does_not_hide_events_of_the_other(self) -> None:
        before = reading(gpu(), log=Log(last=3.0), watch=Log(last=9.0))
        log = Log(last=4.0, events=(self.XID,))
        assert moved(before, replace(before, log=log)).events == (self.SEEN,)

    def test_a_gap_in_both_sources_is_unread(self) -> None:
        watched, logged = reading(gpu(), watch=Log()), reading(gpu(), log=Log())
        for before, after in ((watched, reading(gpu())), (watched, logged), (logged, watched)):
            assert [gap.devices for gap in moved(before, after).unread] == [Unread.XIDS]
        assert moved(reading(gpu()), reading(gpu())).unread == (), "it was unread before"

    def test_a_reset_does_not_count_as_an_event(self) -> None:
        reset = replace(self.XID, kind="reset", code=154)
        assert not moved(*self.pair(log=Log(last=4.0, events=(reset,)))).events
