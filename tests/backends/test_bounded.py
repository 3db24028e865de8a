"""Output of hosts and servers is bounded before it is kept."""

from __future__ import annotations

import sys

import pytest
from tests.factories.clock import PATIENCE

from accept.backends import bounded, manage, remote
from accept.core.error_codes import Code

ENDLESS = "while printf '%65536s' x; do :; done"
REACH = remote.Reach(
    arguments=lambda host, command: ["sh", "-c", command], missing=Code.SSH_MISSING, hint=""
)


def test_output_errors_and_input_are_passed_on() -> None:
    done = bounded.run(["sh", "-c", "cat; echo e >&2; exit 3"], stdin=b"a" * 200_000, timeout=60)
    assert done == bounded.Output(exit=3, out=b"a" * 200_000, err=b"e\n")


def test_a_reply_without_end_is_refused_at_once() -> None:
    reply = remote.call(REACH, "h1", ENDLESS, timeout=PATIENCE)
    assert (reply.exit, reply.out) == (None, b"")
    assert "too long" in reply.err


def test_errors_without_end_keep_their_beginning() -> None:
    script = "import sys; sys.stderr.write('x' * 10_000_000)"
    done = bounded.run([sys.executable, "-c", script], timeout=PATIENCE)
    assert (done.exit, len(done.err)) == (0, 64 << 10)


def test_a_program_without_answer_ends_with_its_time() -> None:
    for script in ("sleep 1000", "exec >&- 2>&-; sleep 1000"):
        assert bounded.run(["sh", "-c", script], timeout=0.5).exit is None


def test_many_hosts_share_the_room_for_their_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_MOST_TOTAL", 1 << 20)
    for hosts, exit_status in ((4, 0), (64, None)):
        replies = bounded.on_all(
            map(str, range(hosts)),
            lambda host: remote.call(REACH, host, "printf '%131072s' x", timeout=PATIENCE),
        )
        assert {reply.exit for reply in replies.values()} == {exit_status}


def test_a_line_of_the_console_without_end_is_printed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = manage._ENDED + b"0\n"
    stream = (b"x" * (1 << 16) for _ in range(64))

    def follow(*_: object) -> object:
        yield from stream
        yield b"\n" + ended

    monkeypatch.setattr(manage, "_follow", follow)
    lines: list[str] = []
    assert manage.Console(lines.append).follow(REACH, "h1", "folder") == "0"
    assert sum(map(len, lines)) == 64 << 16
    assert max(map(len, lines)) <= 2 << 16
