"""Tickets: their content, redaction, and the script that repeats the fault."""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.blame_cases import BAD, case
from tests.factories.reported_runs import HOSTILE, reported
from tests.factories.shell import run_program, write_program
from tests.factories.verdicts import gpus, inventory_of

from accept.commands import ticket as commands
from accept.commands.judged import Judged
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.facts import HOSTNAMES, PLACE
from accept.core.judge.effects.explanation import Normal
from accept.core.records import Fact, Record
from accept.report.console import Terminal
from accept.report.data import Run, Sample
from accept.report.node_commands import SavedNode
from accept.report.redaction import Redactor
from accept.report.repro import Settings, _lowest_good
from accept.report.ticket import Ticket, TicketWriter

NODE = f"h{BAD}"
NODES = {
    NODE: SavedNode(
        provider_id="gce://our-project/europe-west4-b/inst-77",
        labels={"cloud.google.com/gce-topology-host": "phys-9c"},
    )
}
#: Everything that a redacted ticket about the node must not contain.
SECRETS = [
    *("our-project", "inst-77", "phys-9c", "row-blue", "rack-green", "10.20.30.40", "jane"),
    *("fe80::1234", "aa:bb:cc:dd:ee:01", "our-bucket", "pod-17-xyz", "dc1.corp"),
]
LOG = f"""{NODE}.dc1.corp 10.20.30.40 fe80::1234:5 aa:bb:cc:dd:ee:01 {NODE}_mlx5_0 {NODE}-{NODE}
/home/jane/x jane@{NODE}: gs://our-bucket/runs pod-17-xyz row-blue/rack-green 0000:3b:00.0
serial-of-{NODE} GPU-uuid 2.27.3 127.0.0.1
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with a slow node, whose logs and facts are full of names and addresses."""
    found = reported("node")
    first, *rest = found.records
    inventory = inventory_of(
        NODE, gpus=gpus(NODE, 1, serial="1654", pci="0000:3b:00.0"), serial="DMI-99"
    )
    facts = (
        Fact(name=PLACE.name, value="row-blue/rack-green", host=NODE),
        Fact(name=HOSTNAMES.name, value={NODE: "pod-17-xyz"}),
    )
    records = (
        replace(first, facts=(*first.facts, *facts)),
        *(replace(record, log=_written(tmp_path, record)) for record in rest),
        replace(first, facts=(inventory,), log=""),
    )
    for name, content in (("dmesg", LOG.encode()), ("report.gz", gzip.compress(LOG.encode()))):
        path = tmp_path / "collectors" / NODE / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return replace(found, records=records)


def _written(folder: Path, record: Record) -> str:
    """Write the log of a record under a name that has its nodes, and return its path."""
    log = record.log.replace(".log", f"-{'-'.join(record.hosts[:2])}-all-reduce.log")
    if log:
        path = folder / log
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LOG)
    return log


def made(run: Run, folder: Path, node: str | None = NODE, *, redact: bool = False) -> Ticket:
    """Return the ticket about a node, or about the network."""
    suspects = [s for s in run.verdict.suspects if (node in s.hosts if node else s.of_network)]
    writer = TicketWriter(
        run, folder, suspects, node=node, nodes=NODES, settings=Settings(), redact=redact
    )
    return writer.write()


def test_a_ticket_has_cause_time_figures_hardware_logs_and_evidence_hash(
    run: Run, tmp_path: Path
) -> None:
    one = made(run, tmp_path)
    suspect = next(s for s in run.verdict.suspects if NODE in s.hosts)
    for part in (suspect.cause, "62%", "1654", "DMI-99", "0000:3b:00.0", "inst-77", "phys-9c"):
        assert part in one.text
    assert run.evidence_hash in one.text
    assert re.search(r"since: 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ or earlier", one.text)
    assert {"ticket.md", "repro.sh", "programs/collective.py"} <= one.files.keys()
    assert {f"collectors/{NODE}/dmesg.txt", f"collectors/{NODE}/report.txt"} <= one.files.keys()
    logs = set(re.findall(r"\| (logs/\S+) \|", one.text))
    assert len(logs) > 3
    assert logs <= one.files.keys()  # also those of good figures, which exclude other parts
    assert one.archive() == made(run, tmp_path).archive()


def test_the_programs_of_a_ticket_need_no_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    for name, content in made(run, tmp_path).files.items():
        if name.startswith("programs/"):
            (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", "import collective"]
    subprocess.run(command, cwd=tmp_path / "programs", check=True)


@pytest.mark.rare
def test_no_file_of_a_redacted_ticket_has_a_name_or_address(run: Run, tmp_path: Path) -> None:
    one = made(run, tmp_path, redact=True)
    with zipfile.ZipFile(io.BytesIO(one.archive())) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert len(files) > 10
    for name, text in files.items():
        if "/programs/" in name:
            continue
        assert not [secret for secret in SECRETS if secret in (name + text).lower()], name
        hosts = "|".join(run.verdict.hosts)
        assert not re.search(rf"(?<![a-z0-9])({hosts})(?![a-z0-9])", name + text, re.I), name
    # The same node has the same name in all files, and ids of hardware are kept.
    token = f"node-{run.verdict.hosts.index(NODE) + 1}"
    with_node = [n for n, text in files.items() if re.search(rf"{token}(?!\d)", text)]
    assert len(with_node) == sum("/programs/" not in name for name in files)
    assert all(part in one.text for part in ("1654", "DMI-99", "0000:3b:00.0"))


def test_a_redacted_name_of_a_file_keeps_its_end_and_loses_domains() -> None:
    text = "all_gather_gpu05_gpu06.log gpu05.json.gz gpu05.dc1.corp.log gpu05.log.corp log.gz .log"
    expected = "all_gather_node-1_node-2.log node-1.json.gz node-1.log node-1 log.gz .log"
    assert Redactor(["gpu05", "gpu06"])(text) == expected


WORD = st.text("abcxyz0189", min_size=2, max_size=6).filter(lambda word: not word.isdigit())
NAME = st.lists(WORD, min_size=1, max_size=3).map("-".join)


@given(st.lists(NAME, min_size=1, max_size=5, unique=True), st.data())
def test_a_redacted_text_has_no_name_however_names_are_joined(
    names: list[str], data: st.DataObject
) -> None:
    joints = st.sampled_from([" ", ":", "-", "_", ".", "/", "=", ", ", "\n", "|", ".corp.net "])
    drawn = [data.draw(st.tuples(st.sampled_from(names), joints)) for _ in range(6)]
    text = Redactor(names)("".join(name + joint for name, joint in drawn))
    for name in names:
        assert not re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", text), text


@pytest.mark.parametrize(
    "endless", ["a-" * 100_000, "x" * 200_000, "gpu17." * 40_000, "00:11:22:33:44:55 " * 10_000]
)
def test_no_output_of_a_host_makes_redaction_slow(endless: str) -> None:
    # Each took hours when a word was searched for names from each of its pieces on.
    addresses = "".join(f"10.{n >> 8}.{n & 255}.1 " for n in range(20_000))
    text = Redactor(["gpu17"])(f"{endless} gpu17 {addresses}")
    assert "gpu17" not in text
    assert "address-20000 " in text


#: The exit status of `repro.sh`.
NOT_REPRODUCED, REPRODUCED, NOT_MEASURED = 0, 1, 3


class Script:
    """The files of a ticket, whose script runs with stand-ins for the programs of a node."""

    def __init__(self, folder: Path, ticket: Ticket, **stand_ins: str) -> None:
        self.folder, self.tools = folder / "ticket", folder / "bin"
        for name, content in ticket.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.tools.mkdir()
        usual = {
            "all_reduce_perf": "",
            "alltoall_perf": "",
            "getent": "echo 10.0.0.2",
            "ip": "echo 10.0.0.2 dev eth7 src 10.0.0.1",
            "ssh": 'shift; sh -c "$*"',
        }
        for name, script in {**usual, **stand_ins}.items():
            write_program(self.tools / name, script)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run_program(
            ["sh", "repro.sh", *args],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"},
        )


def test_the_script_is_plain_sh_with_the_parameters_of_the_worst_pair(
    run: Run, tmp_path: Path
) -> None:
    script = Script(tmp_path, made(run, tmp_path), mpirun='echo "$@"')
    checked = ["shellcheck", "--shell=sh", str(script.folder / "repro.sh")]
    assert subprocess.run(checked, capture_output=True, text=True, check=False).stdout == ""
    done = script.run()
    assert (done.returncode, done.stderr) == (NOT_MEASURED, "")
    words = done.stdout.split()
    pair = words[words.index("--host") + 1]
    assert re.fullmatch(r"h\d+:8,h\d+:8", pair)
    assert f"{NODE}:8" in pair.split(",")
    assert words[words.index("btl_tcp_if_include") + 1] == "eth7"
    assert "# the run measured 261 GB/s" in done.stdout


@pytest.mark.parametrize(
    ("busbw", "wrong", "status", "exit_", "word"),
    [
        (258.0, 0, 0, REPRODUCED, "REPRODUCED: 258.0 of 480.4 GB/s (normal)"),
        (479.0, 0, 0, NOT_REPRODUCED, "NOT REPRODUCED: 479.0 of 480.4 GB/s (normal)"),
        (479.0, 2, 1, REPRODUCED, "REPRODUCED: 2 wrong elements"),
        (None, 0, 1, NOT_MEASURED, "NOT MEASURED: status 1"),
    ],
)
def test_the_script_compares_its_result_with_normal_and_measures_a_control_pair(
    run: Run, tmp_path: Path, busbw: float | None, wrong: int, status: int, exit_: int, word: str
) -> None:
    row = f"  4194304 1048576 float sum -1 20.1 208.2 {busbw} {wrong} 20 209 250.1 0\n"
    table = row if busbw is not None else ""
    (tmp_path / "table").write_text(f"{table}# Out of bounds values : {wrong} OK\n")
    mpirun = f"cat '{tmp_path}/table'; exit {status}"
    script = Script(tmp_path, made(run, tmp_path), mpirun=mpirun)
    done = script.run()
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last.startswith(word)) == (exit_, True), done.stdout + done.stderr
    with_control = script.run("h17", "h3", "h5")
    assert with_control.returncode == exit_
    assert with_control.stdout.count("CONTROL: ") == 1
    assert with_control.stdout.splitlines()[-1] == last


def test_a_value_as_low_as_several_that_accused_the_node_is_reproduced(run: Run) -> None:
    found = next(p for p in run.populations if p.nodes == 2 and p.normal)
    normal = found.normal
    assert normal is not None
    accused = [replace_value(found.samples[0], normal, sigmas) for sigmas in (1.0, 2.5, 4.5)]
    population = replace(found, samples=(*accused, *found.samples[1:]))
    limit = _lowest_good(population, accused[1:])
    assert limit is not None
    assert accused[1].value is not None
    assert accused[1].value < limit < 1.0001 * accused[1].value
    # No value that one of six healthy pairs has is called bad.
    assert _lowest_good(population, accused) == normal.value * (1 - 2 * normal.sigma)
    assert _lowest_good(population, ()) == population.lowest_good


def replace_value(sample: Sample, normal: Normal, sigmas: float) -> Sample:
    """Return a bad sample that many sigma below normal."""
    return sample._replace(value=normal.value * (1 - sigmas * normal.sigma), bad=True, cause=None)


def test_hostile_names_stay_quoted_in_the_script_and_escaped_in_the_text(tmp_path: Path) -> None:
    found = reported("hostile")
    node = next(s.hosts[0] for s in found.verdict.suspects if s.hosts)
    one = made(found, tmp_path, node)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", one.name)
    assert "<script>" not in one.text
    subprocess.run(["sh", "-n"], input=one.files["repro.sh"], check=True)
    redacted = made(found, tmp_path, node, redact=True)
    assert HOSTILE.encode() not in b"".join(redacted.files.values())


@pytest.mark.parametrize(
    ("case", "node", "fabric", "code"),
    [
        ("node", "h1", False, Code.NODE_NOT_BAD),
        ("node", "h999", False, Code.NODE_UNKNOWN),
        ("health", None, True, Code.RUN_NO_SUSPECT),
        ("node", None, False, Code.USAGE),
        ("pass", "h1", False, Code.RUN_NO_SUSPECT),
        ("fabric", "h1", False, Code.NODE_NOT_BAD),
    ],
)
def test_there_is_no_ticket_about_what_is_not_accused(
    case: str, node: str | None, *, fabric: bool, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reported(case)
    judged = Judged(verdict=found.verdict, plan=found.plan, records=found.records)
    monkeypatch.setattr(commands, "judge_path", lambda *_, **__: judged)
    with pytest.raises(BadInput) as refused:
        commands.do_ticket("last", node, Terminal(), fabric=fabric, redact=False)
    assert refused.value.code is code


@pytest.mark.rare
def test_a_ticket_about_a_part_takes_the_name_that_the_screen_prints_in_either_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = case("border")
    judged = Judged(
        verdict=found.verdict, plan=found.plan, records=found.records, folder=tmp_path / "e"
    )
    monkeypatch.setattr(commands, "judge_path", lambda *_, **__: judged)
    monkeypatch.chdir(tmp_path)
    sides = found.verdict.suspects[0].name.split(" | ")
    name = f"border {sides[1]} | {sides[0]}"
    assert commands.do_ticket("last", name, Terminal(), fabric=False, redact=False) == 0
    (text,) = Path(tmp_path).rglob("*.md")
    assert text.read_text().startswith(f"# {' | '.join(sides)}".replace("|", "\\|"))


def test_a_ticket_about_the_network_lists_its_bad_pairs(tmp_path: Path) -> None:
    found = reported("fabric")
    one = made(found, tmp_path, None)
    worst = next(s for s in found.verdict.suspects if s.of_network).pairs[0]
    assert one.name == "fabric"
    assert all(host in one.text for host in worst.hosts)
    assert "repro.sh" in one.files
