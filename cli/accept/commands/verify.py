"""Verify that evidence is unmodified, and name who signed it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accept.commands.order import claims_of, explained, matches_order
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput, Exit
from accept.core.signatures import read_public_keys, sign
from accept.core.text import count, plain
from accept.core.verdict import Verification
from accept.evidence import bucket, rundir, search, standard_input
from accept.evidence.untrusted import Limits
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of `accept verify`; evidence that was modified is an error instead."""

    attempt: str
    outcome: Verification
    #: `evidence.root_hash`.
    hash: str
    #: The holders of the keys that signed it.
    signed_by: tuple[str, ...]
    #: True if this workstation started the run, and the evidence answers that order.
    ordered: bool
    #: What was checked of the files and of the order, and what was not; for people.
    explanation: tuple[str, ...]


def do_verify(path: str, terminal: Terminal, *, keys: Sequence[Path], own_key: Path | None) -> int:
    """Print whether evidence is unmodified, and who signed it.

    `keys` are files with public keys. `own_key` is the file of a private key: evidence that is not
    modified is then signed with it. Raises BadEvidence if it was modified since it was signed or
    fetched, and BadInput if the path contains no evidence, or that of several runs.
    """
    known = tuple(key for file in keys for key in read_public_keys(file))
    with _folder_of(path) as (folder, is_lasting):
        if own_key and not is_lasting:
            raise BadInput(
                f"{plain(path, 200)} is not a folder on this machine, so it cannot be signed here",
                code=Code.SIGNING_FAILED,
                hint="unpack or fetch it, and sign the folder",
            )
        if not evidence.root_hash(folder):
            raise BadEvidence(
                f"{plain(str(folder), 200)} has no {evidence.CHECKSUMS}: the run never finished it",
                code=Code.EVIDENCE_CHANGED,
                hint="fetch it again, or ask who removed that file",
            )
        verified = matches_order(claims_of(folder), known).verified
        is_open = verified.outcome is Verification.NOT_VERIFIABLE
        if own_key and is_open and not verified.ordered:
            raise BadInput(
                f"nobody vouches for {plain(path, 200)}, so it is not signed",
                code=Code.SIGNING_FAILED,
                hint="give the public key of its run, or sign it where the run was started",
            )
        if own_key:
            checksums = evidence.read_text(folder / evidence.CHECKSUMS)
            evidence.write(folder / evidence.USER_SIGNATURE, sign(checksums, own_key))
            terminal.progress(f"signed: {folder / evidence.USER_SIGNATURE}")
    facts = {name: value for name, value in vars(verified).items() if name != "unsigned"}
    report = Report(**facts, explanation=explained(verified))
    terminal.result(report, *_lines(report))
    return Exit.INCONCLUSIVE if is_open else Exit.PASS


@contextmanager
def _folder_of(path: str) -> Iterator[tuple[Path, bool]]:
    """Return the folder of the evidence at `path`, and whether it stays after this command."""
    if bucket.is_url(path):
        with tempfile.TemporaryDirectory(prefix="accept-verify-") as scratch:
            target = Path(scratch) / rundir.EVIDENCE
            bucket.fetch(path, target, partial=False)
            yield target, False
        return
    if path == standard_input.PATH:
        with standard_input.saved() as file, _folder_of(str(file)) as (folder, _):
            yield folder, False
        return
    place = Path(path)
    if not rundir.names_file(path):
        place = rundir.find(path)
        inner = place / rundir.EVIDENCE
        for folder in (place, inner) if (place / rundir.JOB).is_file() else (place,):
            if (folder / evidence.CHECKSUMS).is_file():
                yield folder, True
                return
    limits = Limits()
    runs = search.search(place, limits).runs
    if len(runs) != 1:
        raise BadInput(
            f"{plain(path, 200)} contains the evidence of {count(len(runs), 'run')}"
            if runs
            else f"{plain(path, 200)} contains no evidence",
            code=Code.EVIDENCE_SEVERAL if runs else Code.EVIDENCE_NONE,
            hint="name the folder or archive of one run; your runs: accept list runs",
        )
    if runs[0].path is not None:
        yield runs[0].path, True
        return
    with search.unpacked(runs[0], limits) as folder:
        yield folder, False


def _lines(report: Report) -> tuple[str, ...]:
    what = {
        Verification.SIGNED: f"signed by {', '.join(map(plain, report.signed_by))}; unmodified",
        Verification.UNMODIFIED: "unmodified since this workstation fetched it",
        Verification.NOT_VERIFIABLE: "not verifiable: give --public-key, or verify it where the "
        "run was started",
    }
    return (
        f"{plain(report.attempt, 80)}: {what[report.outcome]}",
        f"SHA-256 {report.hash}",
        "",
        *report.explanation,
    )
