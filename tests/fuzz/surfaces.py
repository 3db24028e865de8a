"""Hostile input for whole commands: folders of logs, buckets, answers of hosts, words, jobs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import re
import string
import unicodedata
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock
from xml.etree import ElementTree

from benchmarks.nccl_text import COLLECTIVES, table_text
from tests.factories import command_line, sample_evidence
from tests.factories.paths import CLI
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME
from tests.fuzz import Broken, mutate
from tests.fuzz.verdicts import (
    FAILED_LOG,
    PASSED_LOG,
    Input,
    Judgement,
    alone,
    judge,
    judgement_of,
    runs,
    write,
)

from accept.app import command_line as line
from accept.app import commands
from accept.backends import load_job, progress_of
from accept.backends.requirements import answers, count, machine_of
from accept.commands.judged import Judged
from accept.commands.report import screen
from accept.core import evidence
from accept.core.errors import Exit
from accept.core.plan import Plan
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.report.text import MOST_LINES, table
from accept.core.runner import discovery
from accept.core.runner.ssh import Answer
from accept.core.serde import dump, read
from accept.core.verdict import Verdict
from accept.evidence import bucket
from accept.report.console import Terminal

#: Characters that control a terminal, change the direction of text, or are invisible.
_HOSTILE = (
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\r",
    "\b" * 8,
    "\x00",
    "\u202e",
    "\u200b",
    "\u2028",
    "\n\nerror[E-X]: y",
    "<script>",
    "](javascript:x)",
    "| a | b |",
    "]]>",
    "&amp;",
    "\ufffe",
    "x" * 3000,
)


def _refuse_controls(text: str, what: str) -> None:
    for char in set(text):
        if char != "\n" and unicodedata.category(char)[0] == "C":
            raise Broken(f"{what} contains {char!r}: {text[:200]!r}")


def _encoded(files: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(raw).decode() for name, raw in files.items()}


def _call(*words: str) -> str:
    """Call `accept`, check what it prints, and return the outcome."""
    done = command_line.accept(*words)
    known = {int(code) for code in Exit} - {int(Exit.INTERNAL), int(Exit.CTRL_C)}
    if done.code not in known:
        raise Broken(f"exit code {done.code}")
    _refuse_controls(done.out, "stdout")
    _refuse_controls(done.err, "stderr")
    if done.code == Exit.USAGE and not done.error and not done.err.startswith("Usage: "):
        raise Broken(f"no error code: {done.err[:300]!r}")
    return f"exit {done.code}"


# -- folders of logs ------------------------------------------------------------------------------


_INNER_NAMES = ("a.log", "d/node3.log", "../x.log", "/etc/x.log", "evidence/plan.json")
_LOG_NAMES = (
    "node1_node2.log",
    "node1.log",
    "\x1b[31mred.log",
    "node\u202e1.log",
    "all_reduce_perf-node2.txt",
    "a/b/c/job.out",
    "slurm-12.out",
    "dmesg_node1.log",
    "nvidia-smi_node1.log",
    "README.md",
    "results.csv",
    "plan.json",
    "evidence/plan.json",
    "evidence/records.jsonl",
    "x.json",
    "-rf.log",
    "logs.tar",
    "logs.tar.gz",
    "logs.zip",
    "run.log.gz",
)


@cache
def _logs() -> list[bytes]:
    small, other = (
        table_text(name, ranks=2, least=1 << 22, most=1 << 23).encode() for name in COLLECTIVES[:2]
    )
    wrong = small.replace(b"      0 ", b"      3 ")
    fallen = b"[  1.0] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n" * 9
    return [small, other, wrong, PASSED_LOG, FAILED_LOG, fallen, b""]


def make_corpus(chance: Random) -> Input:
    """Return a few files: logs, parts of evidence, archives of both, and files of other kinds."""
    files: dict[str, bytes] = {}
    intact: dict[str, bytes] = {}
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        name, raw = chance.choice(_LOG_NAMES), chance.choice(_logs())
        intact[name] = files[name] = raw
        if chance.random() < 0.6:
            files[name] = mutate.spoiled(chance, raw, [raw])[: 1 << 14]
        if name.endswith((".tar", ".gz", ".zip")) and chance.random() < 0.8:
            inner = chance.choice(_INNER_NAMES)
            pack = _zip if name.endswith(".zip") else mutate.archive_of
            intact[name] = pack({inner: raw})
            files[name] = _packed(chance, name, {inner: files[name]})
    odd = (chance.choice(_LOG_NAMES), chance.choice(("pipe", "loop", "outside", "folder")))
    is_odd = chance.random() < 0.2
    # A file that is not a log any more is left out.
    alone = (_corpus({name: raw}, None) for name, raw in intact.items())
    return Input(_corpus(files, odd if is_odd else None), (_corpus(intact, None), *alone))


def _corpus(files: dict[str, bytes], odd: tuple[str, str] | None) -> bytes:
    return json.dumps({"files": _encoded(files), "odd": odd}).encode()


def _packed(chance: Random, name: str, files: dict[str, bytes]) -> bytes:
    return _zip(files) if name.endswith(".zip") else mutate.archive(chance, files)


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, raw in files.items():
            archive.writestr(zipfile.ZipInfo(name), raw)
    return buffer.getvalue()


def read_corpus(raw: bytes, folder: Path) -> Judgement:
    """Judge the files."""
    data = json.loads(raw)
    logs = folder / "logs"
    logs.mkdir()
    write({name: base64.b64decode(text) for name, text in data["files"].items()}, logs)
    if data["odd"]:
        put(logs / data["odd"][0], data["odd"][1])
    with alone(folder):
        judged = judge(logs)
        for one in judged:
            _refuse_controls(screen(one, Terminal()), "the output")
    made = {path.name for path in folder.iterdir()} - {"logs"}
    if made:
        raise Broken(f"written outside: {made}")
    return judgement_of(judged)


def put(path: Path, what: str) -> None:
    """Replace a file by a pipe, a folder or a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if what == "loop" else "/etc/hostname")


# -- buckets --------------------------------------------------------------------------------------


_OBJECTS = (
    "../outside",
    "/etc/outside",
    "a/../../outside",
    "logs",
    "logs/",
    "",
    ".",
    "plan.json/x",
    "a\0b",
    "n" * 300,
    "\x1b[31m",
    "pods/../x",
)


class _Bucket:
    """A bucket that lists and returns whatever an input contains."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def look(self) -> dict[str, tuple[int, str]]:
        return {name: (size, tag) for name, size, tag in self.data["listed"]}

    def read(self, name: str) -> Iterator[bytes]:
        if name not in self.data["objects"]:
            raise FileNotFoundError(name)
        raw = base64.b64decode(self.data["objects"][name])
        yield from (raw[i : i + 4096] for i in range(0, len(raw), 4096))


def make_bucket(chance: Random) -> bytes:
    """Return a listing and objects that may contradict each other."""
    files = dict(runs()[-1])
    store = bucket._object_store()
    sums = {name: store.digests([raw])[:2] for name, raw in files.items()}
    entries = {name: {"size": size, "sha256": sha} for name, (size, sha) in sums.items()}
    files[store.MANIFEST] = store.manifest(entries, [])
    for _ in range(chance.choice((0, 1, 1, 2))):
        name = chance.choice(sorted(files))
        if name.endswith(".json") and chance.random() < 0.6:
            files[name] = mutate.json_of(chance, files[name]) if files[name] else b""
        else:
            files[name] = mutate.spoiled(chance, files[name], [*runs()[-1].values()])
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(files[name])
            continue
        if name.endswith(".json"):
            break
    listed: list[list[Any]] = [[name, len(raw), ""] for name, raw in files.items()]
    for _ in range(chance.choice((0, 0, 1, 2))):
        entry = chance.choice(listed)
        way = chance.randrange(4)
        if way == 0:
            listed.append([chance.choice(_OBJECTS), chance.choice((0, 1, 1 << 50)), ""])
        elif way == 1:
            entry[1] = chance.choice((0, 1, -1, 1 << 50))
        elif way == 2:
            listed.remove(entry)
        else:
            files.pop(entry[0], None)
    return json.dumps({"listed": listed, "objects": _encoded(files)}).encode()


def read_bucket(raw: bytes, folder: Path) -> str:
    """Fetch the evidence, as `accept collect` does, and read it."""
    place = _Bucket(json.loads(raw))
    target = folder / "in" / "evidence"
    target.parent.mkdir()
    store = bucket._object_store()
    try:
        # No time is left for retries.
        with (
            mock.patch.object(store, "place_of", return_value=place),
            mock.patch.object(bucket, "_SECONDS", 0.0),
            mock.patch.object(bucket, "_FIRST", 0.0),
            mock.patch.object(bucket, "_AT_ONCE", 1),
        ):
            whole = bucket.fetch("gs://bucket/runs/one", target)
    finally:
        inside = {target.parent, *target.parent.rglob("*")}
        if outside := set(folder.rglob("*")) - inside:
            raise Broken(f"written outside: {outside}")
        if any(path.is_symlink() for path in inside):
            raise Broken("a link was written")
    evidence.read_plan(target)
    list(evidence.read_records(target))
    return "read whole" if whole else "a part"


# -- answers of hosts -----------------------------------------------------------------------------


_LINES = (
    "1764000000.25",
    "h0",
    "h1",
    "rack1/host2",
    "8",
    "0",
    "-1",
    "9" * 400,
    "1e999",
    "h0; rm -rf /",
    "-oProxyCommand=x",
    "gpus 8",
    "pci 99999999999999999999",
    "gpus -1",
    "busy GPU-1, 1, x",
    "scratch exec /tmp",
    "python 3.11.2",
)


def make_answers(chance: Random) -> bytes:
    """Return the answers of two hosts: exit status, output and errors."""
    found = []
    for host in ("h0", "h1"):
        lines = ["1764000000.25", host, host, "rack/a", "8", host, ""]
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            at = chance.randrange(len(lines) + 1)
            lines[at : at + chance.randint(0, 1)] = [
                chance.choice((*_LINES, *_HOSTILE, "".join(chance.choices(string.printable, k=9))))
            ]
        errors = chance.choice(("", "", "Permission denied (publickey).", *_HOSTILE))
        found.append([chance.choice((0, 0, 0, 0, 1, 255, None)), "\n".join(lines), errors])
    return json.dumps(found).encode()


#: Starting an event loop and its thread takes longer than an input.
_RUNNER = cache(asyncio.Runner)


def read_answers(raw: bytes, folder: Path) -> str:
    """Discover the hosts, and read their lists."""
    replies = {
        f"h{i}": Answer(exit=e, out=o.encode(errors="replace"), err=r.encode(errors="replace"))
        for i, (e, o, r) in enumerate(json.loads(raw))
    }

    async def run(argv: list[str], **_: object) -> Answer:
        return replies.pop(next(iter(replies))) if replies else Answer(exit=255)

    kept = [*replies.values()]
    candidates = [discovery.Candidate(name=name, local=True) for name in replies]
    # Nothing is waited for.
    with (
        mock.patch.object(discovery, "run", run),
        mock.patch.object(discovery, "_LOOK_SECONDS", 0.0),
    ):
        found = _RUNNER().run(
            discovery.discover(
                candidates, folder=folder, attempt="one", ranks=None, topology="", seconds=0
            )
        )
    for host in found.hosts:
        if any(re.search(r"^[-.]|\s", name) for name in (host.name, host.mpi_name)):
            raise Broken(f"a host named {host.name!r}, {host.mpi_name!r}")
        if not 0 < host.slots < 10_000:
            raise Broken(f"{host.slots} ranks")
    for problem in found.problems:
        if len(problem.message) > 4000:
            raise Broken("a message without end")
    for metric in found.metrics:
        if not abs(metric.value) < float("inf"):
            raise Broken(f"a metric of {metric.value}")
    for reply in kept:
        values = answers(reply.text)
        count(values, "gpus"), count(values, "pci"), machine_of(values)
    return f"{len(found.hosts)} hosts"


# -- the screen -----------------------------------------------------------------------------------


@cache
def _verdict() -> str:
    records = [sample_evidence.record(log) for log in (sample_evidence.LOG, "")]
    verdicts = [dump(sample_evidence.verdict_of(record)) for record in records]
    divided = run_of(BY_NAME["w7"].cluster(8, 4, 1), 4)
    return json.dumps([*verdicts, dump(divided.verdict)])


def make_screen(chance: Random) -> bytes:
    """Return a verdict with hostile texts."""
    verdict = chance.choice(json.loads(_verdict()))
    places = [*_texts(verdict)]
    for holder, key in chance.sample(places, min(len(places), chance.choice((1, 3, 10)))):
        text = holder[key]
        at = chance.randint(0, len(text))
        holder[key] = text[:at] + chance.choice(_HOSTILE) + text[at:]
    return json.dumps(verdict).encode()


def _texts(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the holder and the key of each text, recursively."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, str):
            yield node, key
        elif isinstance(value, dict | list):
            yield from _texts(value)


def read_screen(raw: bytes, folder: Path) -> str:
    """Show the verdict in all forms."""
    try:
        verdict = read(Verdict, json.loads(raw))
    except ValueError:
        return "refused"
    plan: Plan = sample_evidence.PLAN
    judged = Judged(verdict=verdict, plan=plan, records=(), notes=verdict.advice, folder=folder)
    _refuse_controls(screen(judged, Terminal()), "the text")
    for width in (-5, 80):
        shown = table(verdict, width)
        _refuse_controls(shown, "the table")
        lines = shown.splitlines()
        if len(lines) > MOST_LINES or not lines[-1].startswith("VERDICT "):
            raise Broken(f"not a screen: {len(lines)} lines, the last is {lines[-1]!r}")
    page = render_markdown(verdict, plan)
    _refuse_controls(page, "the page")
    if "<script" in page:
        raise Broken("the page contains HTML")
    ElementTree.fromstring(junit(verdict))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        Terminal(json=True).result(verdict)
        Terminal().progress(verdict.headline)
    _refuse_controls(out.getvalue(), "the JSON")
    _refuse_controls(err.getvalue(), "the progress")
    if read(Verdict, json.loads(out.getvalue())) != verdict:
        raise Broken("the JSON is another verdict")
    return verdict.state


# -- the command line -----------------------------------------------------------------------------


@cache
def _words() -> tuple[list[str], list[str]]:
    """Return the names of the commands and of all options."""
    source = "".join(path.read_text(encoding="utf-8") for path in (CLI / "accept/app").glob("*.py"))
    return [*commands.COMMANDS], sorted(set(re.findall(r"\"(--?[a-z][a-z-]*)\"", source)))


_VALUES = (
    "last",
    "a,b,c",
    "node[01-16]",
    "node[1-",
    "node[1-999999999]",
    "0",
    "-1",
    "1",
    "1e999",
    "nan",
    "9" * 60,
    "all-reduce>=1",
    "all-reduce@8G>=300",
    ">=",
    "cpu",
    "a4-highgpu-8g",
    "quick",
    "wrong@node1",
    "health.limitedShare=0.02",
    "NCCL_DEBUG=INFO",
    "x=y=z",
    "/dev/null",
    ".",
    "file:///nowhere/runs/one",
    "machines",
    "checks",
    "E-USAGE",
    "é",
    "\udcff",
)


def make_words(chance: Random) -> bytes:
    """Return a command line of known and random words."""
    names, options = _words()
    words = [chance.choice(names)] if chance.random() < 0.95 else []
    for _ in range(chance.choice((0, 1, 2, 3, 6))):
        kind = chance.random()
        if kind < 0.45:
            word = chance.choice(options)
            word += f"={chance.choice(_VALUES)}" if chance.random() < 0.4 else ""
        elif kind < 0.85:
            word = chance.choice(_VALUES)
        elif kind < 0.95:
            word = chance.choice(_HOSTILE).replace("\0", "")
        else:
            word = "".join(chance.choices(string.printable, k=chance.randrange(1, 12)))
        # A path must not name the whole disk or the folder of other inputs.
        words.append("x" if word.strip().strip("/.") == "" and word.strip() != "." else word)
    if words[:1] == ["run"]:
        words.append("--dry-run")
    return json.dumps(words).encode()


def read_words(raw: bytes, folder: Path) -> str:
    """Call `accept` with the words."""
    words = json.loads(raw)
    parser = mock.patch.object(line, "_parser", return_value=command_line.parsers())
    with alone(folder), parser:
        return _call(*words)


# -- job.json -------------------------------------------------------------------------------------


def _jobs(folder: Path) -> list[dict[str, Any]]:
    common = {"schema": 1, "attempt": "one", "submitted": "2026-11-22T10:00:00Z"}
    return [
        {**common, "backend": "local", "hosts": ["h0"], "first": "", "folder": f"{folder}/node"},
        {
            **common,
            "backend": "ssh",
            "hosts": ["h0", "h1"],
            "first": "h0",
            "folder": "/tmp/accept-one",
            "sshAccess": {"user": "me", "port": 22, "jumpHost": "gate"},
        },
        {
            **common,
            "backend": "kubernetes",
            "hosts": [],
            "first": "",
            "folder": "",
            "place": {"namespace": "default", "release": "one", "results": "gs://b/x"},
        },
        {
            **common,
            "backend": "ssh",
            "hosts": ["h0"],
            "first": "h0",
            "folder": "/tmp/accept-one",
            "ssh": ["-l", "me", "-p", "22"],
        },
    ]


_JOB_VALUES = ("-oProxyCommand=x", "h0 -oX=y", "/tmp/../etc/accept-one", "$(id)", "a\nb", *_HOSTILE)


def make_job(chance: Random) -> bytes:
    """Return the text of a job file."""
    job = chance.choice(_jobs(Path("/nowhere")))
    if chance.random() < 0.6:
        places = [*_texts(job)]
        holder, key = chance.choice(places)
        holder[key] = chance.choice(_JOB_VALUES)
    raw = json.dumps(job).encode()
    if chance.random() < 0.6:
        raw = mutate.json_of(chance, raw)
    return mutate.spoiled(chance, raw, [raw]) if chance.random() < 0.3 else raw


def read_job(raw: bytes, folder: Path) -> str:
    """Read the job, and list and judge its run. No command that acts on a run is called."""
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    (run / "job.json").write_bytes(raw)
    with alone(folder):
        if len(raw) % 32 == 0:
            _call("judge", "one")
            _call("list", "runs")
        phase = progress_of(run).phase
        job = load_job(run)
        for word in job.ssh_access.options():
            _refuse_controls(word, "an ssh option")
        if job.backend == "ssh" and any(host.startswith("-") for host in (*job.hosts, job.first)):
            raise Broken(f"hosts that are options: {job.hosts}")
    return f"{job.backend} {phase}"
