"""Call `accept` as a user does, in this process or as a separate program."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest
import typer.main
from tests.factories.clock import PATIENCE
from tests.factories.paths import CLI
from tests.factories.shell import run_program
from typer.core import TyperGroup

from accept.__main__ import main
from accept.app.command_line import command_line
from accept.config import site_file

#: PYTHONPATH for calls of `python -m accept` from another folder.
SOURCE = CLI

#: What the calls in this process are started by: a path, or a name.
PROGRAM = "accept"

#: A suite that takes seconds.
SMALL = """\
name: small
description: Ours.
deadline: 5m
checks:
- check: inventory
- check: connectivity
- {check: all-reduce, params: {min: 4K, max: 64K, iters: 3, warmup: 1}}
"""


@dataclass(frozen=True, kw_only=True)
class Done:
    """The exit code and the output of a call."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Return the code of the one error on stderr, such as E-RUN-NONE; "" without an error."""
        codes = re.findall(r"^error\[([A-Z0-9-]+)\]: ", self.err, re.MULTILINE)
        assert len(codes) <= 1, self.err
        return codes[0] if codes else ""


@cache
def parsers() -> TyperGroup:
    """Return the parsers of all commands, in `commands` by name; to declare them takes long."""
    group = typer.main.get_command(command_line())
    assert isinstance(group, TyperGroup)
    return group


def accept(*args: object) -> Done:
    """Call `accept` in this process; a defect raises here instead of exiting with code 70."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", [PROGRAM, *map(str, args)]),
        mock.patch("accept.__main__._crashed", side_effect=_raise),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return Done(code=int(code), out=out.getvalue(), err=err.getvalue())


def _raise(error: Exception) -> NoReturn:
    raise error


def program(*args: object, **environment: str) -> Done:
    """Start `accept` as a separate program, with additional environment variables."""
    env = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    done = run_program([sys.executable, "-m", "accept", *args], env=env)
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def killed_when(happened: Callable[[], bool], *args: object) -> None:
    """Start `accept` as a separate program, and kill it when something has happened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "accept", *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(50 * PATIENCE):
        if happened():
            break
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def trust(path: Path, text: str) -> None:
    """Write a site file that the user trusts."""
    path.write_text(text)
    site_file.trust(path, hashlib.sha256(text.encode()).hexdigest())


def installed(name: str) -> Path:
    """Return the installed script with this name; skip the test if there is none."""
    script = Path(sys.executable).with_name(name)
    if not script.is_file():
        pytest.skip(f"{name} is not installed beside this Python")
    return script


def refused(*args: object, code: int = 2, error: str = "") -> str:
    """Call `accept`, expect one error and an empty stdout; return stderr.

    `error` is the expected code, such as E-RUN-NONE; empty: any.
    """
    done = accept(*args)
    assert done.code == code, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.error == (error or done.error) != "", done
    return done.err
