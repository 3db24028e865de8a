"""Resident programs, over loopback: what a rank or a program that fails costs."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories.hosts import here
from tests.factories.paths import PROGRAMS
from tests.factories.programs import missing_parts

from accept.core.checks import parse_log
from accept.core.groups import Group
from accept.core.plan import GroupKind, Step
from accept.core.records import Parsed
from accept.core.runner import residents
from accept.core.runner.residents import ResidentJob, Residents

_NAMES = ("a", "b")
_HOSTS = here(*_NAMES, slots=2)
_STEP = Step(
    id="10-pairs",
    checks=("all-gather",),
    script="steps/10-pairs.sh",
    groups=GroupKind.PAIRS,
    params={"min": "64K", "max": "64K", "factor": 2, "iters": 2, "warmup": 1, "dtype": "float"},
)
_FOREVER = 600.0


class _Lab:
    """Two hosts that are this one, with their programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The first start is that of the first host; only the other one is started again.
        (folder / "resident.sh").write_text(
            "case $ACCEPT_EXEC in *-1) ACCEPT_HOST=a ;; *) ACCEPT_HOST=b ;; esac\n"
            f"echo $$ > {shlex.quote(str(folder))}/$ACCEPT_HOST; echo greeting\n"
            "export ACCEPT_HOST GLOO_SOCKET_IFNAME=lo\n"
            f"exec {shlex.quote(sys.executable)} {shlex.quote(str(PROGRAMS / 'resident.py'))}\n"
        )
        self.residents = Residents(folder, "run")
        self.number = 0

    async def start(self, inject: str = "") -> ResidentJob:
        self.number += 1
        await self.residents.prepare("", _HOSTS, _FOREVER)
        group = Group(hosts=_NAMES)
        return await self.residents.execute(_STEP, f"run/{self.number}", group, _HOSTS, inject)

    async def measured(self, inject: str = "") -> tuple[int, Parsed]:
        """Return the exit status and the parsed log of an execution."""
        job = await self.start(inject)
        log = await job.stdout.read()
        await job.close()
        status = await job.wait()
        return status, parse_log(_STEP.checks, [log], _NAMES, status=status)

    def pid(self, host: str) -> int:
        return int((self.folder / host).read_text())


@pytest.fixture
def do(tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs a story, a coroutine over a lab, and ends its programs."""
    if missing := missing_parts():
        pytest.skip(f"the extra `run` is not installed: no {', '.join(missing)}")

    def run(story: Callable[[_Lab], object]) -> None:
        async def main() -> None:
            lab = _Lab(tmp_path)
            try:
                await story(lab)  # type: ignore[misc]
            finally:
                await lab.residents.close()

        asyncio.run(main())

    return run


@pytest.mark.real
def test_ranks_that_hang_die_or_lie_cost_their_own_execution_only(do: Callable[..., None]) -> None:
    async def story(lab: _Lab) -> None:
        status, log = await lab.measured()
        assert (status, log.problems) == (0, ())
        assert {metric.name for metric in log.metrics} >= {"busbw", "wrong"}
        assert [fact.value for fact in log.facts if fact.name == "program"] == ["resident.py"]
        first = [lab.pid(name) for name in _NAMES]

        status, log = await lab.measured("die@b:0")
        assert status != 0
        assert {(p.cause, p.host, p.rank) for p in log.problems if p.host} == {("crashed", "b", 2)}

        status, log = await lab.measured("wrong@b:0")
        assert status == 7
        assert {p.cause for p in log.problems} == {"wrong-data"}
        assert {p.host for p in log.problems if p.host} == {"b"}

        job = await lab.start("hang@b:0")
        assert b"INJECTED hang" in await job.stdout.readuntil(b"hang on b:0\n")
        assert await job.kill(lost=(), seconds=_FOREVER) == {}
        await job.close()
        assert (await lab.measured())[0] == 0
        assert [lab.pid(name) for name in _NAMES] == first, "no program was started again"

    do(story)


@pytest.mark.rare
@pytest.mark.real
def test_a_program_that_ends_is_started_once_more(do: Callable[..., None]) -> None:
    async def story(lab: _Lab) -> None:
        for _ in range(2):
            assert (await lab.measured())[0] == 0
            job = await lab.start("hang@a:0")
            await job.stdout.readuntil(b"hang on a:0\n")
            os.kill(lab.pid("b"), signal.SIGKILL)
            assert b'"problem":"launch-failed","message":"b: ' in await job.stdout.read()
            assert await job.wait() == 1
            await job.close()
        status, log = await lab.measured()
        assert (status, log.problems[0].cause) == (1, "launch-failed")

    do(story)


@pytest.mark.real
def test_a_program_that_does_not_obey_is_reported(do: Callable[..., None]) -> None:
    async def story(lab: _Lab) -> None:
        job = await lab.start("hang@a:0")
        await job.stdout.readuntil(b"hang on a:0\n")
        os.kill(lab.pid("b"), signal.SIGSTOP)
        stuck = await job.kill(lost=(), seconds=0.2)
        assert stuck[_HOSTS[1]] == "run/resident-2"
        # A host that is known to be lost is not waited for.
        assert await job.kill(lost=("b",), seconds=_FOREVER) == {}
        os.kill(lab.pid("b"), signal.SIGKILL)

    do(story)


def test_a_program_that_does_not_start_costs_the_others_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "_LEAST_SECONDS", 0.1)

    async def story() -> None:
        lab = _Lab(tmp_path)
        (tmp_path / "resident.sh").write_text(
            'case $ACCEPT_EXEC in *-1) echo \'{"torch": "2"}\' ;; esac; exec cat > /dev/null\n'
        )
        clock = asyncio.get_running_loop().time
        begun = clock()
        job = await lab.start()
        assert clock() - begun < residents._START_SECONDS
        assert b"b: the resident program does not run: it did not start" in await job.stdout.read()
        await lab.residents.close()

    asyncio.run(story())


def test_without_torch_nothing_is_started(tmp_path: Path) -> None:
    async def story() -> str:
        lab = _Lab(tmp_path)
        (tmp_path / "resident.sh").write_text('echo \'{"unusable": "no torch on a"}\'\n')
        await lab.residents.prepare("", _HOSTS, _FOREVER)
        assert not lab.residents.serves(_STEP)
        await lab.residents.close()
        return lab.residents.refusal

    assert asyncio.run(story()) == "no torch on a"


#: A program that needs no torch.
_STANDIN = """\
import json, sys, time
def say(**words): print(json.dumps(words), flush=True)
{start}
say(torch="2")
for line in sys.stdin:
    order = json.loads(line)
    job = order.get("listen") or order.get("run") or order.get("kill")
    if "listen" in order:
        {listen}
    elif "run" in order:
        {run}
    else:
        for _ in range(50): say(job=job, text="late\\n")
        say(job=job, exit=137)
"""
_GOOD = {
    "start": "",
    "listen": "say(job=job, port=4242)",
    "run": "assert 0 < order['port'] < 65536; say(job=job, text='x' * 5000 + '\\n', exit=0)",
}
#: The parts in which a hostile program differs, and the exit status of the execution if it is on
#: the first host, and on the second; None: its ranks do not end by themselves.
_HOSTILE: dict[str, tuple[dict[str, str], int | None, int | None]] = {
    "a line without end": ({"start": "print('x' * 200_000)"}, 0, 0),
    "deep JSON": ({"start": "print('[' * 30_000)"}, 0, 0),
    "text before the start": (
        {"listen": "[say(job=job, text='x' * 60_000) for _ in range(2000)]; say(job=job, port=5)"},
        0,
        0,
    ),
    "text after the end": (
        {"run": "say(job=job, exit=1); [say(job=job, text='x') for _ in range(50)]"},
        1,
        1,
    ),
    "an impossible port": ({"listen": "say(job=job, port=10**12)"}, 1, 0),
    "an impossible status": ({"run": "say(job=job, exit=10**40)"}, None, None),
    "an end": ({"run": "time.sleep(0.1); sys.exit()"}, 1, 1),
}


@pytest.mark.parametrize("liar", _NAMES)
@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_program_ends_its_own_execution_only(
    name: str, liar: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "_PORT_SECONDS", 5.0 if "port" in name else _FOREVER)
    differences, *ends = _HOSTILE[name]
    programs = {host: _STANDIN.format(**_GOOD) for host in _NAMES}
    programs[liar] = _STANDIN.format(**{**_GOOD, **differences})
    for host, text in programs.items():
        (tmp_path / f"{host}.py").write_text(text)

    async def story() -> None:
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        lab = _Lab(tmp_path)
        cases = "".join(f"*-{n}) exec {sys.executable} {tmp_path}/{host}.py ;;\n" for n, host in
                        enumerate(_NAMES, start=1))  # fmt: skip
        (tmp_path / "resident.sh").write_text(f"case $ACCEPT_EXEC in {cases}esac\n")
        job = await lab.start()
        end = ends[_NAMES.index(liar)]
        if end is None:
            assert await job.stdout.readuntil(b"\n")
            assert [*(await job.kill(lost=(), seconds=_FOREVER))] == []
        else:
            size = len(await job.stdout.read())
            assert (await job.wait(), size < 1 << 20) == (end, True)
        await job.close()
        # The other program still measures.
        good = next(host for host in _HOSTS if host.name != liar)
        group = Group(hosts=(good.name,))
        job = await lab.residents.execute(_STEP, "run/alone", group, (good,), "")
        assert await job.stdout.read() == b"x" * 5000 + b"\n"
        assert await job.wait() == 0
        await lab.residents.close()
        assert failed == []

    asyncio.run(story())
