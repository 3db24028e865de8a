"""Kinds of fuzzed input: how each is generated and read, and which properties must hold."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.nccl_text import COLLECTIVES, SECRET, document, json_text, split, table_text
from tests.factories import sample_evidence
from tests.factories.paths import TESTS
from tests.fuzz import Broken, known_lines, mutate, surfaces

from accept.core import evidence, nccl_tests, record_protocol
from accept.core.checks import parse_log
from accept.core.errors import AcceptError
from accept.core.nccl_tests.table import Log
from accept.evidence import archive
from accept.foreign_logs import json as nccl_tests_json

_LOGS = TESTS / "logs"
#: Maximum length of a message; a longer one would fill a report.
_LONGEST = 4000


class Kind(NamedTuple):
    """A reader and the generator of its inputs."""

    make: Callable[[Random], bytes]
    #: Reads an input, in an empty folder, and returns the outcome. It may raise AcceptError.
    read: Callable[[bytes, Path], str]
    #: The first inputs, which need the most memory.
    bombs: Callable[[], list[bytes]] = list


# -- the two parsers ------------------------------------------------------------------------------


@cache
def _texts() -> list[bytes]:
    return [
        table_text().encode(),
        "\n".join(table_text(name, ranks=3) for name in COLLECTIVES).encode(),
        b"".join(b"[1,0]<stdout>:%s\n" % line for line in table_text().encode().splitlines()),
        *(path.read_bytes() for path in sorted(_LOGS.glob("*.log"))),
    ]


@cache
def _documents() -> list[bytes]:
    groups = document(table_text(ranks=2))
    split(groups, 6, lambda process, size: 2e-5 + size / 4e10)
    return [
        json_text(document(table_text())).encode(),
        json_text(document(table_text("alltoall", ranks=8, least=8, most=1 << 24))).encode(),
        json_text(groups).encode(),
    ]


def _make_text(chance: Random) -> bytes:
    return mutate.spoiled(chance, chance.choice(_texts()), [*_texts(), *_documents()])


def _make_json(chance: Random) -> bytes:
    raw = chance.choice(_documents())
    if chance.random() < 0.5:
        raw = mutate.json_of(chance, raw)
        if chance.random() < 0.5:
            return raw
    return mutate.spoiled(chance, raw, [*_documents(), *_texts()])


def _read_log(raw: bytes, folder: Path) -> str:
    is_json = nccl_tests_json.is_json(raw)
    log = nccl_tests_json.parse(raw) if is_json else nccl_tests.parse(raw)
    _believe(log)
    if is_json and SECRET in repr(log):
        raise Broken("something of the environment was kept")
    record_protocol.parse([raw], check="all-reduce")
    if not log.tables:
        return "no log"
    return "problems" if log.problems else "read whole"


def _believe(log: Log) -> None:
    for metric in nccl_tests.metrics(log):
        if not abs(metric.value) < float("inf"):
            raise Broken(f"a metric of {metric.value}")
    nccl_tests.facts(log)
    if not log.tables and not log.problems:
        raise Broken("no table and no problem")
    if any(len(problem.message) > _LONGEST for problem in log.problems):
        raise Broken("a message without end")


# -- the evidence reader --------------------------------------------------------------------------


@cache
def _files() -> dict[str, bytes]:
    """Return the files of an evidence folder, with a step whose logs are in an archive."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = sample_evidence.write(Path(scratch) / "evidence")
        more = folder / "logs" / "20-more"
        more.mkdir()
        for number in range(3):
            (more / f"0-{number}.log").write_bytes(_texts()[0])
        evidence.archive_logs(folder, "20-more")
        evidence.write_checksums(folder)
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _make_folder(chance: Random) -> bytes:
    files = dict(_files())
    for _ in range(chance.choice((1, 1, 2, 4))):
        name = chance.choice(sorted(files))
        if name.endswith(".json") and chance.random() < 0.6:
            files[name] = mutate.json_of(chance, _files()[name])
        elif name.endswith(".jsonl") and chance.random() < 0.6:
            lines = _files()[name].splitlines(keepends=True)
            place = chance.randrange(len(lines))
            lines[place] = mutate.json_of(chance, lines[place]) + b"\n"
            files[name] = b"".join(lines)
        elif chance.random() < 0.1:
            del files[name]
        else:
            files[name] = mutate.spoiled(chance, files[name], list(_files().values()))
    odd = [chance.choice(sorted(_files())), chance.choice(("pipe", "loop", "outside", "folder"))]
    return json.dumps(
        {
            "files": {name: base64.b64encode(raw).decode() for name, raw in files.items()},
            "odd": odd if chance.random() < 0.2 else None,
            "sums": chance.random() < 0.7,
        }
    ).encode()


def _read_folder(raw: bytes, folder: Path) -> str:
    data = json.loads(raw)
    target = folder / "evidence"
    for name, content in data["files"].items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(base64.b64decode(content))
    if data["sums"]:
        evidence.write_checksums(target)
    if data["odd"]:
        surfaces.put(target / data["odd"][0], data["odd"][1])
    return _read_evidence(target)


def _read_evidence(folder: Path) -> str:
    evidence.read_plan(folder)
    wrong = evidence.check_checksums(folder)
    evidence.read_verdict(folder)
    for record in evidence.read_records(folder):
        parse_log(("all-reduce",), evidence.open_log(folder, record.log) or ())
    for number in range(3):
        parse_log(("all-reduce",), evidence.open_log(folder, f"logs/20-more/0-{number}.log") or ())
    return "changed" if wrong else "read whole"


def _archive_bombs() -> list[bytes]:
    return [mutate.bomb(100, 1), mutate.bomb(9, 10)]


def _make_archive(chance: Random) -> bytes:
    raw = mutate.archive(chance, _files())
    return mutate.spoiled(chance, raw, [raw]) if chance.random() < 0.4 else raw


def _read_archive(raw: bytes, folder: Path) -> str:
    target = folder / "in" / "target"
    try:
        archive.unpack(io.BytesIO(raw), target, source="the archive")
    finally:
        outside = [path for path in folder.rglob("*") if target not in (path, *path.parents)]
        if outside != [folder / "in"]:
            raise Broken(f"written outside: {outside}")
        links = [path for path in target.rglob("*") if path.is_symlink()]
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        if links or size > 65 << 20:
            raise Broken(f"{size} bytes were written, and the links {links}")
    return _read_evidence(target / "evidence")


@cache
def _console() -> tuple[bytes, bytes]:
    """Return a saved log and its packed contents."""
    text = sample_evidence.console(sample_evidence.record()).encode()
    lines = text.partition(b"EVIDENCE-----")[2].splitlines()[1:-1]
    return text, zlib.decompress(base64.b64decode(b"".join(lines)))


def _make_packed(chance: Random) -> bytes:
    text, packed = _console()
    if chance.random() < 0.5:
        return mutate.spoiled(chance, text, [text, _texts()[0]])
    raw = mutate.json_of(chance, packed)
    if chance.random() < 0.3:
        raw = mutate.spoiled(chance, raw, [raw])
    return _crafted(raw)


def _packed_bombs() -> list[bytes]:
    return [_crafted(b"[" + b"[]," * (5 << 20) + b"[]]"), _crafted(b" " * (200 << 20))]


def _crafted(raw: bytes) -> bytes:
    """Return malicious packed lines with a correct checksum."""
    coded = base64.b64encode(zlib.compress(raw)).decode()
    digest = hashlib.sha256(raw).hexdigest()
    lines = [coded[i : i + 4096] for i in range(0, len(coded), 4096)]
    begin, end = "-----BEGIN ACCEPT EVIDENCE----- ", "-----END ACCEPT EVIDENCE-----"
    return "\n".join([begin + digest, *lines, end]).encode()


def _read_packed(raw: bytes, folder: Path) -> str:
    evidence.unpack(io.BytesIO(raw), "pod.log")
    return "read whole"


KINDS: dict[str, Kind] = {
    "text": Kind(_make_text, _read_log),
    "json": Kind(_make_json, _read_log),
    "folder": Kind(_make_folder, _read_folder),
    "archive": Kind(_make_archive, _read_archive, cache(_archive_bombs)),
    "packed": Kind(_make_packed, _read_packed, cache(_packed_bombs)),
    "corpus": Kind(surfaces.make_corpus, surfaces.read_corpus),
    "bucket": Kind(surfaces.make_bucket, surfaces.read_bucket),
    "answers": Kind(surfaces.make_answers, surfaces.read_answers),
    "screen": Kind(surfaces.make_screen, surfaces.read_screen),
    "command line": Kind(surfaces.make_words, surfaces.read_words),
    "job.json": Kind(surfaces.make_job, surfaces.read_job),
    "known line": Kind(known_lines.make, known_lines.read),
}


def attempt(name: str, seed: int, number: int) -> tuple[bytes, str]:
    """Generate an input and read it; return it and the outcome.

    Raises Broken, or an exception that the reader should not have raised.
    """
    raw = input_of(name, seed, number)
    with tempfile.TemporaryDirectory(prefix="accept-fuzz-") as scratch:
        try:
            return raw, KINDS[name].read(raw, Path(scratch))
        except AcceptError as error:
            if not (error.hint or error.details) or len(str(error)) > _LONGEST:
                raise Broken(f"an error without advice, or without end: {error}") from None
            return raw, "refused"


def input_of(name: str, seed: int, number: int) -> bytes:
    """Generate the input with this number again."""
    kind = KINDS[name]
    bombs = kind.bombs()
    if number < len(bombs):
        return bombs[number]
    return kind.make(Random(f"{seed} {name} {number}"))


__all__ = ["KINDS", "Broken", "Kind", "attempt", "input_of"]
