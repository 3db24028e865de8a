"""Kinds of fuzzed input: how each is generated and read, and which properties must hold."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.nccl_text import COLLECTIVES, SECRET, document, json_text, split, table_text
from tests.factories.paths import TESTS
from tests.fuzz import Broken, known_lines, mutate, surfaces
from tests.fuzz.verdicts import (
    FAILED_LOG,
    PASSED_LOG,
    Input,
    Judgement,
    alone,
    compare,
    judge,
    judgement_of,
    runs,
    write,
)

from accept.commands.judged import Judged
from accept.core import evidence, nccl_tests, record_protocol
from accept.core.errors import AcceptError
from accept.core.nccl_tests.table import Log
from accept.evidence import archive, rundir
from accept.foreign_logs import json as nccl_tests_json

_LOGS = TESTS / "logs"
#: Maximum length of a message; a longer one would fill a report.
_LONGEST = 4000


class Kind(NamedTuple):
    """A reader and the generator of its inputs."""

    #: Returns an input; one without a verdict as bytes.
    make: Callable[[Random], Input | bytes]
    #: Reads an input, in an empty folder, and returns the outcome. It may raise AcceptError.
    read: Callable[[bytes, Path], str | Judgement]
    #: The first inputs, which need the most memory.
    bombs: Callable[[], list[bytes]] = list


# -- the two parsers ------------------------------------------------------------------------------


@cache
def _texts() -> list[bytes]:
    return [
        PASSED_LOG,
        FAILED_LOG,
        table_text().encode(),
        "\n".join(table_text(name, ranks=3) for name in COLLECTIVES).encode(),
        b"".join(b"[1,0]<stdout>:%s\n" % line for line in table_text().encode().splitlines()),
        *(path.read_bytes() for path in sorted(_LOGS.glob("*.log"))),
    ]


@cache
def _documents() -> list[bytes]:
    groups = document(table_text(ranks=2))
    split(groups, 6, lambda process, size: 2e-5 + size / 4e10)
    wrong = document(PASSED_LOG.decode())
    wrong["results"][0]["out_of_place"]["nwrong"] = wrong["out_of_bounds"]["count"] = 1
    wrong["out_of_bounds"]["okay"] = "false"
    return [
        json_text(document(PASSED_LOG.decode())).encode(),
        json_text(wrong).encode(),
        json_text(document(table_text())).encode(),
        json_text(document(table_text("alltoall", ranks=8, least=8, most=1 << 24))).encode(),
        json_text(groups).encode(),
    ]


def _make_text(chance: Random) -> Input:
    return _spoiled(chance, _texts(), _documents())


def _make_json(chance: Random) -> Input:
    raw = chance.choice(_documents())
    if chance.random() < 0.5:
        changed = mutate.json_of(chance, raw)
        if chance.random() < 0.5:
            return Input(changed, (raw,))
        return Input(mutate.spoiled(chance, changed, [changed]), (raw,))
    return _spoiled(chance, _documents(), _texts())


def _spoiled(chance: Random, own: list[bytes], others: list[bytes]) -> Input:
    """Spoil an input; parts of others are in some.

    None of these parts reports a failure, because it would be one.
    """
    raw = chance.choice(own)
    healthy = (text for text in (*own, *others) if b"failure" not in text)
    mixed = (raw,) if chance.random() < 0.5 else (raw, *healthy)
    return Input(mutate.spoiled(chance, raw, mixed), mixed)


def _read_log(raw: bytes, folder: Path) -> Judgement:
    is_json = nccl_tests_json.is_json(raw)
    log = nccl_tests_json.parse(raw) if is_json else nccl_tests.parse(raw)
    _believe(log)
    if is_json and SECRET in repr(log):
        raise Broken("something of the environment was kept")
    record_protocol.parse([raw], check="all-reduce")
    (folder / "a.log").write_bytes(raw)
    return judgement_of(judge(folder / "a.log"))


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


def _make_folder(chance: Random) -> Input:
    number = chance.randrange(len(runs()))
    intact = runs()[number]
    files = dict(intact)
    for _ in range(chance.choice((1, 1, 2, 4))):
        name = chance.choice(sorted(files))
        if name.endswith(".json") and chance.random() < 0.6:
            files[name] = mutate.json_of(chance, intact[name])
        elif name.endswith(".jsonl") and chance.random() < 0.6:
            lines = intact[name].splitlines(keepends=True)
            place = chance.randrange(len(lines))
            lines[place] = mutate.json_of(chance, lines[place]) + b"\n"
            files[name] = b"".join(lines)
        elif chance.random() < 0.1:
            del files[name]
        else:
            files[name] = mutate.spoiled(chance, files[name], list(intact.values()))
    odd = (chance.choice(sorted(intact)), chance.choice(("pipe", "loop", "outside", "folder")))
    is_odd, is_sealed = chance.random() < 0.2, chance.random() < 0.7
    # Of a file that was missing when the rest was sealed, an empty folder shows nothing.
    is_odd = is_odd and not (is_sealed and odd[1] == "folder" and odd[0] not in files)
    is_fetched = chance.random() < 0.2
    fetched = hashlib.sha256(intact[evidence.CHECKSUMS]).hexdigest() if is_fetched else ""
    raw = _envelope(files, odd if is_odd else None, is_sealed=is_sealed, fetched=fetched)
    # Files that were fetched otherwise, or do not match their checksums, must have no verdict.
    # Without checksums the coordinator never finished, and the failures that it found count.
    changed = {name for name in intact if files.get(name) != intact[name]} - {*_REPORTS}
    changed -= {evidence.CHECKSUMS} if is_sealed else set()
    odd_file = {odd[0]} - {*_REPORTS} if is_odd else set()
    has_sums = evidence.CHECKSUMS not in odd_file and (is_sealed or evidence.CHECKSUMS in files)
    damaged = ((set() if is_sealed else changed) | odd_file) - {evidence.CHECKSUMS}
    must_be_refused = changed | odd_file if is_fetched else damaged if has_sums else set()
    return Input(raw, () if must_be_refused else (_folder(number),))


#: Files on which no verdict depends.
_REPORTS = (evidence.VERDICT, evidence.REPORT, evidence.JUNIT)


@cache
def _folder(number: int) -> bytes:
    """Return an intact run as an input."""
    return _envelope(runs()[number])


def _envelope(
    files: dict[str, bytes],
    odd: tuple[str, str] | None = None,
    *,
    is_sealed: bool = False,
    fetched: str = "",
) -> bytes:
    """Return files as an input; `fetched`: the hash of the evidence that this workstation has."""
    texts = {name: base64.b64encode(raw).decode() for name, raw in files.items()}
    data = {"files": texts, "odd": odd, "isSealed": is_sealed, "fetched": fetched}
    return json.dumps(data).encode()


def _read_folder(raw: bytes, folder: Path) -> Judgement:
    data = json.loads(raw)
    run = folder / "runs" / "one"
    target = run / rundir.EVIDENCE if data["fetched"] else folder / "sent"
    write({name: base64.b64decode(text) for name, text in data["files"].items()}, target)
    if data["isSealed"]:
        evidence.write_checksums(target)
    if data["odd"]:
        surfaces.put(target / data["odd"][0], data["odd"][1])
    if data["fetched"]:
        job = {"schema": 1, "backend": "local", "attempt": "one", "hosts": ["h0"], "first": "h0"}
        job |= {"folder": f"{run}/node", "submitted": "", "evidence": data["fetched"]}
        (run / rundir.JOB).write_text(json.dumps(job))
    with alone(folder):
        return judgement_of(judge(target))


def _archive_bombs() -> list[bytes]:
    return [mutate.bomb(100, 1), mutate.bomb(9, 10)]


def _make_archive(chance: Random) -> Input:
    number = chance.randrange(len(runs()))
    raw = mutate.archive(chance, runs()[number])
    if chance.random() < 0.4:
        raw = mutate.spoiled(chance, raw, [raw])
    return Input(raw, (_archived(number),))


@cache
def _archived(number: int) -> bytes:
    """Return an archive of an intact run."""
    return mutate.archive_of(runs()[number])


def _read_archive(raw: bytes, folder: Path) -> Judgement:
    """Unpack evidence as `accept collect` does, and judge it; judge the archive, too."""
    place, target = folder / "a.tar", folder / "in" / "target"
    place.write_bytes(raw)
    judged: list[Judged] = []
    with suppress(AcceptError):
        try:
            archive.unpack(place, target, source="the archive")
        finally:
            _refuse_outside(folder, target)
        judged += judge(target / "evidence")
    return judgement_of([*judged, *judge(place)])


def _refuse_outside(folder: Path, target: Path) -> None:
    outside = {path for path in folder.rglob("*") if target not in (path, *path.parents)}
    if outside != {folder / "in", folder / "a.tar"}:
        raise Broken(f"written outside: {outside}")
    links = [path for path in target.rglob("*") if path.is_symlink()]
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    if links or size > 65 << 20:
        raise Broken(f"{size} bytes were written, and the links {links}")


@cache
def _consoles() -> list[bytes]:
    """Return saved logs that end with packed evidence."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, files in enumerate(runs()):
            folder = Path(scratch, str(number))
            write(files, folder)
            (one,) = judge(folder)
            packed = evidence.pack(one.plan, one.records, one.verdict)
            found.append(f"some progress\n{packed}".encode())
    return found


def _unpacked(text: bytes) -> bytes:
    lines = text.partition(b"EVIDENCE-----")[2].splitlines()[1:-1]
    return zlib.decompress(base64.b64decode(b"".join(lines)))


def _make_packed(chance: Random) -> Input:
    text = chance.choice(_consoles())
    if chance.random() < 0.5:
        return Input(mutate.spoiled(chance, text, [text]), (text,))
    intact = _unpacked(text)
    changed = _contradicted(json.loads(intact), json.loads(mutate.json_of(chance, intact)))
    return Input(_crafted([json.dumps(changed).encode()]), (text,))


def _contradicted(intact: Any, changed: Any, *, is_fact: bool = False) -> Any:
    """Return changed evidence with those facts of before that a host could report otherwise.

    There are no logs, so nothing shows that another text, number or list, or none, is damage.
    """
    if isinstance(intact, dict) and isinstance(changed, dict):
        names = intact if is_fact else {name for name in intact if name in changed}
        same = {n: (intact[n], changed.get(n), is_fact or n == "facts") for n in names}
        return changed | {n: _contradicted(a, b, is_fact=fact) for n, (a, b, fact) in same.items()}
    if isinstance(intact, list) and isinstance(changed, list) and not is_fact:
        return [_contradicted(_before(intact, at, one), one) for at, one in enumerate(changed)]
    if isinstance(intact, list) and isinstance(changed, list) and len(intact) == len(changed):
        pairs = zip(intact, changed, strict=True)
        return [_contradicted(a, b, is_fact=is_fact) for a, b in pairs]
    is_same_type = changed is None or type(changed) is type(intact)
    return intact if is_fact and is_same_type else changed


def _before(intact: list[Any], at: int, changed: Any) -> Any:
    """Return what an element was before; others before it, such as records, may be gone."""
    if isinstance(changed, dict) and {"step", "hosts"} <= changed.keys():
        place = changed["step"], changed["hosts"]
        same = (one for one in intact if (one["step"], one["hosts"]) == place)
        return next(same, changed)
    return intact[at] if at < len(intact) else changed


def _packed_bombs() -> list[bytes]:
    lists = [b"[", *[b"[]," * (1 << 20)] * 5, b"[]]"]
    return [_crafted(lists), _crafted([b" " * (1 << 20)] * 200)]


def _crafted(parts: Sequence[bytes]) -> bytes:
    """Return malicious packed lines of these parts, with a correct checksum."""
    packer, checksum = zlib.compressobj(), hashlib.sha256()
    packed = bytearray()
    for part in parts:
        packed += packer.compress(part)
        checksum.update(part)
    coded, digest = base64.b64encode(packed + packer.flush()).decode(), checksum.hexdigest()
    lines = [coded[i : i + 4096] for i in range(0, len(coded), 4096)]
    begin, end = "-----BEGIN ACCEPT EVIDENCE----- ", "-----END ACCEPT EVIDENCE-----"
    return "\n".join([begin + digest, *lines, end]).encode()


def _read_packed(raw: bytes, folder: Path) -> Judgement:
    (folder / "pod.log").write_bytes(raw)
    return judgement_of(judge(folder / "pod.log"))


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
    raw, intact = input_of(name, seed, number)
    found = _read(name, raw)
    if isinstance(found, Judgement):
        if found.accused or found.passes:
            compare(found, (_judgement(name, one) for one in intact))
        return raw, found.outcome
    return raw, found


def _read(name: str, raw: bytes) -> str | Judgement:
    with tempfile.TemporaryDirectory(prefix="accept-fuzz-") as scratch:
        try:
            return KINDS[name].read(raw, Path(scratch))
        except AcceptError as error:
            if not (error.hint or error.details) or len(str(error)) > _LONGEST:
                raise Broken(f"an error without advice, or without end: {error}") from None
            return "refused"


@lru_cache(maxsize=64)
def _judgement(name: str, intact: bytes) -> Judgement:
    """Return the judgement of an intact input; of one that is refused, an empty one."""
    found = _read(name, intact)
    return found if isinstance(found, Judgement) else Judgement()


def input_of(name: str, seed: int, number: int) -> Input:
    """Generate the input with this number again."""
    kind = KINDS[name]
    bombs = kind.bombs()
    if number < len(bombs):
        return Input(bombs[number])
    made = kind.make(Random(f"{seed} {name} {number}"))
    return made if isinstance(made, Input) else Input(made)


__all__ = ["KINDS", "Broken", "Kind", "attempt", "input_of"]
