"""`accept ticket RUN NODE --collect`: the collectors of the site run on the node of a run, now."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from tests.factories.command_line import accept
from tests.factories.jobs import over_ssh, submitted
from tests.factories.standin_slurm import StandinSlurm
from tests.factories.standin_ssh import StandinSsh, standin_ssh

from accept.commands import demo
from accept.evidence import rundir

SITE = """\
backend: ssh
collectors:
  dmi: {command: "echo serial 7ABC; pwd; ls -d $ACCEPT_DIR/tmp"}
  broken: {command: "echo no tool >&2; exit 127"}
  endless: {command: "yes", timeout: 5s, maxBytes: 1000}
  bomb: {command: "head -c 100000000 /dev/zero | gzip"}
  escapes:
    command: |
      printf '\\033]52;c;x\\007\\n../../etc/x\\n::add-mask::y\\n'; printf 'z\\033[2Jz\\n'; exit 3
"""


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """Return the folder of a run over ssh that this workstation started."""
    folder = demo.unpack_demo()
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    words = ("-m", "h100-8", "--hosts", "gpu[01-32]", "--site", site)
    assert accept("render", *words, "--out", tmp_path / "rendered").code == 0
    (tmp_path / "rendered" / rundir.RUN).rename(folder / rundir.RUN)
    hosts = tuple(f"gpu{number:02}" for number in range(1, 33))
    return submitted(folder, over_ssh(folder, hosts=hosts, first="gpu16"))


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSsh:
    return standin_ssh(tmp_path / "ssh", monkeypatch)


@pytest.mark.rare
def test_the_outputs_are_in_the_archive_and_bounded(run: Path, ssh: StandinSsh) -> None:
    ssh.greet("welcome\n")
    done = accept("ticket", "demo", "gpu17", "--collect")
    assert (done.code, done.error) == (0, ""), done.err
    assert "broken on gpu17: 8 B, exit status 127: no tool" in done.err
    assert "endless on gpu17: 1 kB, printed too much and was cut off" in done.err
    called = [call.partition(" -- ")[2].split()[0] for call in ssh.calls if " -- " in call]
    assert called == ["gpu17"] * 5
    with zipfile.ZipFile(run / "tickets" / "gpu17.zip") as archive:
        texts = {name.partition("/")[2]: archive.read(name).decode() for name in archive.namelist()}
    serial, _, temporary = texts["collectors/gpu17/dmi.txt"].splitlines()
    assert serial == "serial 7ABC"
    assert not Path(temporary).exists()
    assert texts["collectors/gpu17/endless.txt"] == "y\n" * 500
    assert "serial: see collectors/gpu17/dmi.txt" in texts["ticket.md"]


def test_a_node_that_does_not_answer_is_an_error_with_the_way_without_it(
    run: Path, ssh: StandinSsh
) -> None:
    ssh.take_down("gpu17")
    done = accept("ticket", "demo", "gpu17", "--collect")
    assert (done.code, done.error) == (4, "E-NODE-UNREACHABLE")
    assert "accept ticket demo gpu17" in done.err
    assert accept("ticket", "demo", "gpu17").code == 0


def test_commands_come_from_this_workstation_and_never_from_evidence(
    run: Path, ssh: StandinSsh
) -> None:
    (run / rundir.JOB).unlink()
    assert accept("ticket", "demo", "gpu17", "--collect").error == "E-NODE-UNREACHABLE"
    assert ssh.calls == []


@pytest.mark.rare
def test_on_slurm_it_is_a_job_with_the_account_of_the_run_and_a_drained_node_names_what_to_do(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = StandinSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.folder}:/bin")
    planned = json.loads((run / rundir.RUN).read_text())
    planned["run"]["site"]["slurm"] |= {"partition": "gpu", "account": "infra", "qos": "high"}
    (run / rundir.RUN).write_text(json.dumps(planned))
    job = json.loads((run / rundir.JOB).read_text())
    job |= {"backend": "slurm", "slurm": {"id": 7}}
    (run / rundir.JOB).write_text(json.dumps(job))
    last = 'for last; do :; done; sh -c "$last"'
    slurm.set("srun", f'echo "$*" > {slurm.folder}/called; {last}')
    assert accept("ticket", "demo", "gpu17", "--collect").code == 0
    called = (slurm.folder / "called").read_text()
    assert called.startswith("--partition=gpu --account=infra --qos=high --nodelist=gpu17 ")
    # What srun of Slurm 22.05 prints with --immediate about a drained node.
    slurm.fail("srun", "srun: error: Unable to allocate resources: Requested nodes are busy")
    done = accept("ticket", "demo", "gpu17", "--collect")
    assert (done.code, done.error) == (4, "E-NODE-UNREACHABLE")
    assert "before you drain it" in done.err
    assert "accept ticket demo gpu17" in done.err


def test_what_a_hostile_node_prints_stays_in_its_file(
    run: Path, ssh: StandinSsh, tmp_path: Path
) -> None:
    before = {path for path in tmp_path.rglob("*") if ssh.control not in path.parents}
    done = accept("ticket", "demo", "gpu17", "--collect")
    assert (done.code, done.error) == (0, ""), done.err
    assert "\033" not in done.out + done.err
    assert not any(line.startswith("::") for line in (done.out + done.err).splitlines())
    written = {path for path in tmp_path.rglob("*") if ssh.control not in path.parents} - before
    tickets = run / "tickets"
    assert written == {tickets, tickets / "gpu17.md", tickets / "gpu17.zip"}
    assert not any(ord(sign) < 32 for sign in (tickets / "gpu17.md").read_text().replace("\n", ""))
    with zipfile.ZipFile(tickets / "gpu17.zip") as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    assert sizes["gpu17/collectors/gpu17/bomb.txt"] <= 32 << 20
    assert all(name.startswith("gpu17/") and ".." not in name for name in sizes)


def test_a_reply_without_end_is_an_error_and_no_ticket(run: Path, ssh: StandinSsh) -> None:
    ssh.greet("x" * (2 << 20))
    done = accept("ticket", "demo", "gpu17", "--collect")
    assert (done.code, done.error) == (4, "E-OUTPUT-TOO-LONG"), done.err
    assert not (run / "tickets").exists()
