"""What a host says that is made ready for a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from accept.backends.ssh.ready import Ready, set_up, understood
from accept.core.model import Problem
from accept.remoting import Reply


def said(text: str) -> Ready | Problem:
    return understood("h1", Reply(exit=0, out=text.encode(), err=""))


def test_a_host_that_is_ready_says_its_port_and_python() -> None:
    found = said("port 40001\npython 3.11.2\naddress 10.0.0.1\nready\n")
    assert isinstance(found, Ready)
    assert (found.port, found.python, found.addresses) == (40001, (3, 11, 2), ("10.0.0.1",))


@pytest.mark.parametrize("port", ["²", "0", "65536", "99999", "9" * 5000, "-1", ""])
def test_what_is_no_port_is_no_host_that_is_ready(port: str) -> None:
    assert isinstance(said(f"port {port}\npython 3.11\nready\n"), Problem)


def test_parts_of_a_version_that_are_no_numbers_are_left_out() -> None:
    found = said(f"port 22\npython 3.²{'.' + '9' * 5000}\nready\n")
    assert isinstance(found, Ready)
    assert found.python == (3,)


def test_the_name_of_a_folder_is_never_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "q'; touch made; echo '"
    folder.mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", set_up(str(folder), 1, 1)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"problem launch-failed {folder} is there already: do hosts share it?" in done.stdout
    assert not (tmp_path / "made").exists()
