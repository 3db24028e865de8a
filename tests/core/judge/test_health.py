"""Health: how a run reads its hosts between the steps, and how the readings are judged."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import verdicts
from tests.factories.health_runs import ANY, HEALTH, LATER, health_of, reading, run_of
from tests.factories.verdicts import GPU, hosts, hosts_record, plan, record

from accept.core.checks import REGISTRY
from accept.core.checks.health import Params
from accept.core.facts import mapping
from accept.core.health_readings import (
    HEALTH_CHANGE,
    Change,
    Gap,
    Log,
    Unread,
)
from accept.core.judge import judge
from accept.core.judge.health import RULES, allowed
from accept.core.model import Fact, Record, State, Verdict
from accept.core.runner.health_sweep import Watch, sweep
from accept.core.runner.ssh import Answer, Host
from accept.core.runner.state import Run
from accept.core.serde import dump

LIMITS = Params()


def grown(device: str, seconds: float = 60.0, **more: Any) -> Change:
    counters = {name.replace("_of_", "."): n for name, n in more.pop("counters").items()}
    return Change(since=2, seconds=seconds, counters={device: counters}, **more)


def blamed(verdict: Verdict) -> set[tuple[str, str, str]]:
    return {(one.kind, one.name, one.cause) for one in verdict.suspects}


def unread(record: Record) -> Gap:
    """Return the first gap of the first fact of a sweep."""
    return next(HEALTH_CHANGE.of(record))[1].unread[0]


class TestJudging:
    def test_without_changes_it_passes_and_shows_the_watched_devices(self) -> None:
        verdict = health_of(run_of())
        assert (verdict.state, verdict.findings) == (State.PASS, ())
        assert verdict.measured == "no GPU, 4 NICs on 4 hosts, 3 readings"

    @pytest.mark.parametrize(
        ("device", "counter", "allowed", "cause"),
        [
            *(
                ("gpu 3", counter, 0, RULES[counter.partition(".")[0]].cause)
                for counter in (
                    *("ecc-uncorrected", "rows-remapped-uncorrected"),
                    *("nvlink-recovery-failed.7", "nvlink-replay.7", "nvlink-symbol-errors.7"),
                )
            ),
            ("gpu 3", "limited-thermal", 600_000_000, "gpu-throttled"),
            ("gpu 3", "ecc-corrected", 10_000, "gpu-ecc"),
            ("gpu 3", "nvlink-crc-data.7", 6000, "nvlink-errors"),
            ("gpu 3", "pcie-replay", 8, "pcie-errors"),
            ("rdma mlx5_2/1", "link_downed", 0, "link-down"),
            # 400 Gbit/s for a minute allow 24.
            ("rdma mlx5_2/1", "symbol_error", 24, "nic-errors"),
            ("pcie 0000:1b:00.0", "aer-correctable", 24, "pcie-errors"),
            ("pcie 0000:1b:00.0", "aer-nonfatal", 0, "pcie-errors"),
            ("memory mc0", "ue_count", 0, "host-errors"),
            # Healthy machines have any number of these.
            *(("gpu 3", f"limited-{by}", 60 * 10**9, None) for by in ("board", "power")),
            ("gpu 3", "limited-reliability", 60 * 10**9, None),
            ("rdma mlx5_2/1", "out_of_sequence", 100_000, None),
            ("memory mc0", "ce_count", 12, None),
            ("host", "oom_kill", 1, None),
        ],
    )
    def test_a_counter_accuses_its_device_if_it_grew_by_more_than_allowed(
        self, device: str, counter: str, allowed: int, cause: str | None
    ) -> None:
        kind = {"gpu": "gpu", "rdma": "nic"}.get(device.partition(" ")[0], "node")
        name = "h1" if kind == "node" else f"h1:{device.partition(' ')[2]}"
        for growth in (allowed, allowed + 1)[: 1 + (cause is not None)]:
            change = grown(device, counters={counter: growth}, rates={device: 400.0})
            verdict = run_of(("h1", 3, change), machine=GPU)
            bad = growth > allowed
            assert blamed(verdict) == ({(kind, name, cause)} if bad else set())
            (finding,) = health_of(verdict).findings
            assert finding.state is (State.FAIL if bad else State.PASS)
            assert finding.message.startswith("during 20-script-all: ")
            assert f"on {device} of h1" in finding.message

    def test_only_interfaces_that_carry_the_run_are_blamed(self) -> None:
        change = grown("net eth7", counters={"carrier_down_count": 1, "rx_errors": 10**6})
        assert health_of(run_of(("h1", 3, change))).state is State.PASS
        own = replace(change, run=("net eth7",))
        assert blamed(run_of(("h1", 3, own))) == {("nic", "h1:eth7", "link-down")}

    def test_errors_of_a_port_of_unknown_speed_have_no_rate(self) -> None:
        change = grown("net eth0", counters={"rx_errors": 10**6}, run=("net eth0",))
        assert health_of(run_of(("h1", 3, change))).state is State.PASS

    @pytest.mark.parametrize(
        ("change", "suspect"),
        [
            (Change(since=2, gone=("gpu 3",)), ("gpu", "h1:3", "gpu-missing")),
            (Change(since=2, gone=("rdma mlx5_2/1",)), ("nic", "h1:mlx5_2/1", "link-down")),
            *(
                (
                    Change(since=2, levels={"rdma mlx5_2/1": {level: (400.0, 0.0)}}),
                    ("nic", "h1:mlx5_2/1", "link-down"),
                )
                for level in ("active", "rate")
            ),
        ],
    )
    def test_a_device_or_level_that_is_lost_is_named(
        self, change: Change, suspect: tuple[str, str, str]
    ) -> None:
        assert blamed(run_of(("h1", 3, change), machine=GPU)) == {suspect}

    def test_a_finding_on_a_gpu_shows_its_temperature_power_and_clock(self) -> None:
        state = {"temperature": 91.0, "power": 640.5, "sm-clock": 345.0}
        change = grown("gpu 3", counters={"ecc-uncorrected": 1}, states={"gpu 3": state})
        (finding,) = health_of(run_of(("h1", 3, change), machine=GPU)).findings
        assert finding.message.endswith(
            "+1 ecc-uncorrected was seen on gpu 3 of h1 (after it 91 C, 640.5 W, 345 MHz)"
        )

    def test_a_fault_that_all_hosts_share_accuses_nobody(self) -> None:
        change = grown("rdma mlx5_0/1", counters={"link_downed": 1})
        verdict = run_of(*((host, 3, change) for host in hosts(4)), machine=GPU)
        assert (health_of(verdict).state, verdict.suspects) == (State.FAIL, ())

    def test_the_steps_during_which_a_change_may_have_happened_are_named(self) -> None:
        change = grown("gpu 3", counters={"ecc-uncorrected": 1})
        late = health_of(run_of(("h1", 3, replace(change, since=1)), machine=GPU))
        assert late.findings[0].message.startswith("between 10-health-each and 20-script-all: ")

    def test_counters_that_went_backwards_are_reported(self) -> None:
        verdict = health_of(run_of(("h1", 3, Change(since=2, back=("gpu 3 pcie-replay",)))))
        assert verdict.state is State.PASS
        assert "gpu 3 pcie-replay" in verdict.findings[0].message

    def test_the_number_of_notes_is_limited(self) -> None:
        change = grown("host", counters={"oom_kill": 1})
        verdict = health_of(run_of(*((host, 3, change) for host in hosts(40)), count=40))
        assert len(verdict.findings) == 21
        assert verdict.findings[-1].message == "20 more notes"


class TestXid:
    @staticmethod
    def seen(kind: str, code: int | str, title: str = "gpu 3", fatal: str = "") -> Verdict:
        event = (title, kind, str(code), fatal, "0000:1b:00")
        return run_of(("h1", 3, Change(since=2, events=(event,))), machine=GPU)

    def test_one_of_the_hardware_accuses_the_gpu(self) -> None:
        assert blamed(self.seen("xid", 79)) == {("gpu", "h1:3", "gpu-xid")}

    def test_one_of_an_unknown_gpu_accuses_the_host(self) -> None:
        verdict = self.seen("xid", 79, title="")
        assert blamed(verdict) == {("node", "h1", "gpu-xid")}
        assert "0000:1b:00" in health_of(verdict).findings[0].message

    @pytest.mark.parametrize("code", ["²", "9" * 5000, "-1", ""])
    def test_one_with_an_invalid_number_accuses_the_gpu(self, code: str) -> None:
        assert blamed(self.seen("xid", code)) == {("gpu", "h1:3", "gpu-xid")}

    @pytest.mark.parametrize("code", [13, 31, 43, 45])
    def test_one_that_programs_cause_is_a_note(self, code: int) -> None:
        verdict = self.seen("xid", code)
        assert (health_of(verdict).state, verdict.suspects) == (State.PASS, ())
        assert f"Xid {code} on gpu 3 of h1" in health_of(verdict).findings[0].message

    def test_a_fatal_error_of_a_switch_accuses_it(self) -> None:
        assert blamed(self.seen("sxid", 20034, "", "fatal")) == {("node", "h1", "gpu-xid")}
        assert self.seen("sxid", 12028, "").suspects == ()


class TestUnreadableValues:
    def test_on_a_machine_with_gpus_their_counters_must_be_read(self) -> None:
        refused = reading(unread=(Gap(reason="no pynvml", devices=Unread.GPUS),))
        verdict = health_of(run_of(machine=GPU, first=refused))
        assert verdict.state is State.NOT_TESTED
        assert "no pynvml" in verdict.measured
        assert health_of(run_of(first=refused)).state is State.PASS, "the machine has no GPUs"

    @pytest.mark.parametrize("text", ["GPUs (no pynvml)", "GPU 0 (GPU is lost)", "anything: hangs"])
    def test_texts_of_version_0_1_never_pass(self, text: str) -> None:
        whole = dump(reading(gpus=8))
        first = run_of(machine=GPU, first={**whole, "unread": [text]})
        assert health_of(first).state is State.NOT_TESTED
        later = run_of(("h1", 3, {"since": 2, "unread": [text]}), machine=GPU)
        assert health_of(later).state is State.NOT_TESTED

    def test_a_damaged_reading_never_passes(self) -> None:
        damaged = {**dump(reading()), "unread": 5}
        assert health_of(run_of(first=damaged)).state is State.NOT_TESTED

    def test_a_machine_with_gpus_whose_driver_shows_none(self) -> None:
        assert health_of(run_of(machine=ANY, first=reading())).state is State.NOT_TESTED

    def test_on_a_machine_without_gpus_an_unreadable_kernel_log_passes(self) -> None:
        reason = "Xid in the kernel log (Permission denied)"
        refused = reading(unread=(Gap(reason=reason, devices=Unread.NONE),))
        verdict = health_of(run_of(first=refused))
        assert verdict.state is State.PASS
        assert verdict.measured.endswith(f"not readable: {reason}")

    def test_a_host_that_became_unreadable_does_not_pass(self) -> None:
        late = Change(since=2, unread=(Gap(reason="health.py hangs"),))
        verdict = run_of(("h1", 3, late))
        assert health_of(verdict).state is State.NOT_TESTED
        assert "during 20-script-all: not read on h1" in health_of(verdict).findings[0].message
        assert verdict.suspects == ()

    def test_a_host_without_any_reading_does_not_pass(self) -> None:
        names = hosts(2)
        records = [replace(hosts_record(names), wave=n) for n in (0, 1, 2)]
        records += [record(HEALTH, (name,), number=i) for i, name in enumerate(names)]
        verdict = judge(plan(HEALTH, nodes=2), records, checks=REGISTRY, attempt="one")
        assert health_of(verdict).state is State.NOT_TESTED

    def test_every_reading_must_have_left_its_record(self) -> None:
        verdict = health_of(run_of(sweeps=(1, 2)))
        assert verdict.state is State.NOT_TESTED
        assert verdict.findings[0].cause == "evidence-missing"

    @given(
        st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5)
    )
    def test_a_change_that_cannot_be_read_does_not_pass(self, value: Any) -> None:
        names = hosts(1)
        broken = Fact(name="health-change", check="health", host="h0", value=value)
        whole = Fact(name="health", check="health", host="h0", value=dump(reading()))
        records = [
            hosts_record(names),
            replace(hosts_record(names), wave=1),
            replace(hosts_record(names), wave=2, facts=(broken,)),
            record(HEALTH, names, facts=(whole,)),
        ]
        verdict = judge(plan(HEALTH, nodes=1), records, checks=REGISTRY, attempt="one")
        assert health_of(verdict).state is State.NOT_TESTED

    def test_xids_from_one_source_are_enough(self) -> None:
        watched = reading(gpus=8, log=None, watch=Log())
        refused = Gap(reason="Xid in the kernel log (Permission denied)", devices=Unread.NONE)
        verdict = health_of(run_of(machine=GPU, first=replace(watched, unread=(refused,))))
        assert verdict.state is State.PASS
        assert verdict.measured.endswith(f"not readable: {refused.reason}")

    def test_xids_that_nothing_reported_are_not_tested(self) -> None:
        blind = reading(gpus=8, log=None)
        assert health_of(run_of(machine=GPU, first=blind)).state is State.NOT_TESTED
        assert health_of(run_of(first=blind)).state is State.PASS, "the machine has no GPUs"

    def test_a_watcher_that_ended_in_a_step_leaves_it_untested(self) -> None:
        late = Change(since=2, unread=(Gap(reason="Xids", devices=Unread.XIDS),))
        verdict = run_of(("h1", 3, late), machine=GPU)
        assert health_of(verdict).state is State.NOT_TESTED
        assert verdict.suspects == ()


@given(
    st.sampled_from(sorted(RULES)), st.floats(0.1, 1e5), st.floats(0.1, 1e5), st.floats(1.0, 1000.0)
)
def test_longer_runs_never_lower_the_limit(name: str, a: float, b: float, gbps: float) -> None:
    short, long = sorted((a, b))
    rule = RULES[name]
    less, more = (allowed(rule, LIMITS, seconds=s, gbps=gbps) for s in (short, long))
    assert 0 <= less <= more


# -- reading the hosts between the steps ---------------------------------------------------------

READING = {
    "uptime": 10.0,
    "read": {"net": ["rx_errors", "rx_dropped"]},
    "devices": [{"kind": "net", "name": "eth0", "counters": {}, "levels": {"active": 1, "run": 1}}],
    "whole": True,
}


def program_of(**changes: Any) -> str:
    value = {**READING, **changes}
    return "echo 'ACCEPT " + json.dumps({"fact": "health", "value": value}) + "'"


class TestSweeps:
    @pytest.fixture
    def state(self, tmp_path: Path) -> Run:
        """Return a run on two hosts that both are this machine; the test writes their health.sh."""
        for name in ("evidence", "programs"):
            (tmp_path / name).mkdir()
        two = [
            Host(name=n, mpi_name=n, address="127.0.0.1", port=0, slots=1, local=True)
            for n in ("h0", "h1")
        ]
        self.program = tmp_path / "programs/health.sh"
        self.program.write_text(program_of())
        return Run(
            folder=tmp_path, attempt="one", plan=verdicts.plan(HEALTH, LATER), hosts=tuple(two)
        )

    def sweep(
        self, state: Run, watch: Watch, number: int, program: str, *, final: bool = False
    ) -> Record:
        self.program.write_text(program)
        asyncio.run(sweep(state, watch, number, final=final))
        return state.records[-1]

    def test_without_the_check_only_the_sign_of_life_is_requested(self, state: Run) -> None:
        state.plan = verdicts.plan(LATER)
        asyncio.run(sweep(state, Watch.of(state), 1, final=False))
        assert (state.records, state.lost) == ([], {})

    def test_without_changes_the_record_holds_no_fact(self, state: Run) -> None:
        watch = Watch.of(state)
        self.sweep(state, watch, 1, program_of())
        one = self.sweep(state, watch, 2, program_of(uptime=70.0))
        assert (one.step, one.wave, one.hosts, one.facts) == ("00-hosts", 2, ("h0", "h1"), ())

    def test_a_change_is_kept_with_the_number_of_the_reading_before(self, state: Run) -> None:
        watch = Watch.of(state)
        self.sweep(state, watch, 1, program_of())
        device = {**READING["devices"][0], "counters": {"rx_errors": 3, "rx_dropped": 8}}  # type: ignore[index]
        one = self.sweep(state, watch, 2, program_of(uptime=70.0, devices=[device]))
        assert [fact.host for fact in one.facts] == ["h0", "h1"]
        assert one.facts[0].value == {
            "since": 1,
            "seconds": 60.0,
            "counters": {"net eth0": {"rx_errors": 3}},
            "run": ["net eth0"],
        }
        last = self.sweep(state, watch, 3, program_of(uptime=90.0, devices=[device]), final=True)
        assert [fact.name for fact in last.facts] == ["health-total"] * 2
        assert mapping(last.facts[0].value)["counters"] == {"net eth0": {"rx_dropped": 8}}

    def test_a_host_whose_reading_is_killed_lives_on(self, state: Run) -> None:
        watch = Watch.of(state)
        self.sweep(state, watch, 1, program_of())
        one = self.sweep(state, watch, 2, "kill -KILL $$")
        assert state.lost == {}
        assert unread(one).devices is Unread.ALL
        again = self.sweep(state, watch, 3, program_of(uptime=70.0))
        assert again.facts == (), "the host is read again"

    def test_a_host_whose_reading_hangs_lives_on_and_is_not_asked_to_read_again(
        self, state: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accept.core.runner.health_sweep.READ_SECONDS", 0.1)
        watch = Watch.of(state)
        ask = state.ask

        async def briefly(host: Host, command: str, timeout: float = 1.0, more: float = 0.0) -> Any:
            return await ask(host, command, 1.0, more)

        monkeypatch.setattr(state, "ask", briefly)
        one = self.sweep(state, watch, 1, "sleep 600")
        assert state.lost == {}
        assert watch.hung == {"h0", "h1"}
        assert "health.py hangs" in unread(one).reason
        after = self.sweep(state, watch, 2, "echo asked > $0.asked; sleep 600")
        assert "health.py hangs" in unread(after).reason
        assert not self.program.with_name("health.sh.asked").exists()

    def test_a_host_that_is_late_once_lives_on(
        self, state: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask, asked = state.ask, []

        async def late_once(host: Host, *words: Any, **times: Any) -> Answer:
            asked.append(host.name)
            if asked.count(host.name) == 1 and host.name == "h1":
                return Answer(exit=None, out="", err="no answer within 10 s")
            return await ask(host, *words, **times)

        monkeypatch.setattr(state, "ask", late_once)
        self.sweep(state, Watch.of(state), 1, program_of())
        assert (state.lost, sorted(asked)) == ({}, ["h0", "h1", "h1"])

    def test_a_host_that_gives_no_sign_of_life_is_lost(self, state: Run) -> None:
        far = Host(name="h2", mpi_name="h2", address="127.0.0.1", port=1, slots=1)
        state.hosts = (*state.hosts, far)
        one = self.sweep(state, Watch.of(state), 1, program_of())
        assert list(state.lost) == ["h2"]
        assert [problem.cause for problem in one.problems] == ["host-died"]
        assert one.hosts == ("h0", "h1")
