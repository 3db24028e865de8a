"""`accept pick` on real hosts: the command starts on the good ones only, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.network import bits
from tests.cluster.runs import CONNECT, PAIRS, Done, Lab, Started, until

from accept.core.causes import Cause
from accept.core.evidence import read_records

Make = Callable[..., Lab]
#: A time limit that a busy machine does not reach.
_LONG = "20m"
#: A hanging pair costs its time limit, which is shorter than that of ranks that wait for others.
_CHECKS = (*CONNECT, PAIRS[0].replace("timeout: 4m", "timeout: 60s"))
#: Its ranks live for seconds.
_LONG_PAIRS = _CHECKS[-1].replace("iters: 8", "iters: 8, min: 1K, factor: 2")


def stops(lab: Lab, name: str) -> bool:
    """Stop a rank on a host, and return True; False: there is none."""
    ranks = lab.hosts.ranks(name)
    return (
        bool(ranks)
        and not lab.hosts.run(name, f"kill -STOP {ranks[0].pid}", check=False).returncode
    )


def pick(lab: Lab, need: int, *words: str, checks: Iterable[str] = _CHECKS) -> Started:
    """Start `accept pick` on all hosts; words after -- are the command."""
    suite = lab.suite(checks)
    return lab.command(
        *("pick", "--need", str(need), "--hosts", ",".join(lab.names), "--suite", str(suite)),
        *("--machine", str(lab.machine), "--site", str(lab.site)),
        *(() if "--time" in words else ("--time", _LONG)),
        *words,
    )


def reasons(done: Done) -> dict[str, str]:
    """Return the nodes left out and why, as people see it."""
    lines = (line.partition(" left out ")[2].partition(": ") for line in done.err.splitlines())
    return {name: reason for name, _, reason in lines if name}


def test_the_command_runs_on_the_good_hosts_and_its_status_counts(make_lab: Make) -> None:
    lab = make_lab(5)
    lab.hosts.shape("h2", f"{bits(lab.hosts.rate or '') * 6 // 10_000}kbit")
    out, list_ = lab.folder / "good.txt", lab.folder / "pick.json"
    words = ("--hostfile", str(out), "--json", "--out", str(list_), "--")
    script = (
        'cat "$ACCEPT_HOSTFILE"; env | grep ^SLURM; echo "$ACCEPT_NODELIST $MASTER_ADDR"; exit 9'
    )
    done = pick(lab, 3, *words, "sh", "-c", script).wait()
    assert done.exit == 9, done.err
    lines = "h1 slots=1\nh3 slots=1\nh4 slots=1\n"
    assert done.out == f"{lines}h1,h3,h4 h1\n"
    assert out.read_text() == lines
    left_out = reasons(done)
    assert [*left_out] == ["h2", "h5"]
    assert left_out["h2"].startswith("slow-outlier")
    assert "GB/s" in left_out["h2"]
    assert left_out["h5"] == "spare"
    picked = json.loads(list_.read_text())
    assert (picked["chosen"], picked["isLate"]) == (["h1", "h3", "h4"], False)
    assert lab.do("ticket", "last", "h2").exit == 0
    lab.nothing_is_left()
    # Too few are good: no command, and no hostfile of an earlier choice.
    none = pick(lab, 5, *words, "touch", str(lab.folder / "started")).wait()
    assert none.exit == 3, none.err
    assert "only 4 of the 5 nodes needed are good" in none.err
    assert "no spare nodes" in none.err
    assert not out.exists()
    assert not (lab.folder / "started").exists()
    lab.nothing_is_left()
    # No GPU was found, and no machine without GPUs was named.
    hosts = ("--hosts", ",".join(lab.names), "--site", str(lab.site))
    refused = lab.do("pick", "--need", "3", *hosts)
    assert refused.exit == 4, refused.err
    assert "E-LOCAL-NO-GPU" in refused.err


def test_a_rank_that_hangs_and_a_host_that_dies_cost_only_these_hosts(make_lab: Make) -> None:
    lab = make_lab(6)
    started = pick(lab, 4, checks=(*CONNECT, _LONG_PAIRS))
    until(lambda: stops(lab, "h5") or started.process.poll() is not None)
    lab.hosts.kill("h6")
    done = started.wait()
    assert (done.exit, done.out.split()) == (0, ["h1", "h2", "h3", "h4"]), done.err
    assert {*reasons(done)} == {"h5", "h6"}
    assert reasons(done)["h6"].startswith("host-died"), done.err
    # The pair that hangs has its record, with both hosts; pairs of others lose nothing.
    records = [r for r in read_records(lab.evidence(lab.attempt())) if r.step.endswith("-pairs")]
    late = [r for r in records if Cause.TIMED_OUT in {problem.cause for problem in r.problems}]
    assert [len({*r.hosts}) == 2 and "h5" in r.hosts for r in late] == [True], records
    assert all(r.exit == 0 for r in records if {"h5", "h6"}.isdisjoint(r.hosts)), records
    lab.nothing_is_left()


def test_the_first_host_may_die(make_lab: Make) -> None:
    lab = make_lab(5)
    started = pick(lab, 3)
    until(lambda: "pairs: all-reduce" in started.progress and lab.measures("h1"))
    lab.hosts.kill("h1")
    done = started.wait()
    assert (done.exit, done.out.split()) == (0, ["h2", "h3", "h4"]), done.err
    assert "h1" in reasons(done)
    lab.nothing_is_left()


def test_the_time_limit_and_ctrl_c_end_a_pick(make_lab: Make, tmp_path: Path) -> None:
    lab = make_lab(4)
    late = pick(lab, 2, "--time", "1s", "--", "touch", str(tmp_path / "started")).wait()
    assert (late.exit, late.out) == (3, ""), late.err
    assert "nothing was measured within 1 s" in late.err or "was not measured" in late.err
    started = pick(lab, 2, "--", "touch", str(tmp_path / "started"))
    until(lambda: lab.measures("h4"))
    started.interrupt()
    assert started.wait().exit == 130
    assert not (tmp_path / "started").exists()
    lab.nothing_is_left()
