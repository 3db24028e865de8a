"""Between the steps of a run, every host is read again, and what changed is recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import verdicts
from tests.factories.health_runs import HEALTH, LATER
from tests.factories.hosts import here

from accept.core.facts import mapping
from accept.core.health_readings import HEALTH_CHANGE, Gap, Unread
from accept.core.records import Record
from accept.core.runner.health_sweep import Watch, sweep
from accept.core.runner.ssh import Answer, Host
from accept.core.runner.state import Run


def unread(record: Record) -> Gap:
    """Return the first gap of the first fact of a sweep."""
    return next(HEALTH_CHANGE.of(record))[1].unread[0]


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
        self.program = tmp_path / "programs/health.sh"
        self.program.write_text(program_of())
        return Run(
            folder=tmp_path,
            attempt="one",
            plan=verdicts.plan(HEALTH, LATER),
            hosts=here("h0", "h1"),
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
                return Answer(exit=None, err=b"no answer within 10 s")
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
