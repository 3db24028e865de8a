"""Verify that evidence is unmodified, and name who signed it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from accept import backends
from accept.backends.job import Job
from accept.commands import judge
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput, Exit
from accept.core.signatures import PublicKey, parse_public_key, read_public_keys, sign, signer
from accept.core.text import command_line, count, plain
from accept.evidence import bucket, rundir, search, standard_input
from accept.evidence.untrusted import Limits
from accept.report.console import Terminal


class Verification(StrEnum):
    """The result of a verification."""

    #: A key that the user or the run folder names has signed it.
    SIGNED = "signed"
    #: It is what this workstation fetched after the run; no known key has signed it.
    UNMODIFIED = "unmodified"
    #: Its checksums match, but whoever changed it could have written new ones.
    NOT_VERIFIABLE = "not-verifiable"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of `accept verify`; evidence that was modified is an error instead."""

    attempt: str
    outcome: Verification
    #: `evidence.root_hash`.
    hash: str
    #: The holders of the keys that signed it.
    signed_by: tuple[str, ...]


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
        verified = verify(folder, known)
        if own_key:
            sign(folder, own_key, evidence.USER_SIGNATURE)
            terminal.progress(f"signed: {folder / evidence.USER_SIGNATURE}")
    terminal.result(verified, *_lines(verified))
    is_open = verified.outcome is Verification.NOT_VERIFIABLE
    return Exit.INCONCLUSIVE if is_open else Exit.PASS


def verify(folder: Path, known: tuple[PublicKey, ...]) -> Verified:
    """Verify the evidence in a folder, with the `known` keys and what this workstation keeps of it.

    Raises BadEvidence if it was modified, or if there are `known` keys and none of them signed it.
    """
    root = evidence.root_hash(folder)
    if not root:
        raise BadEvidence(
            f"{plain(str(folder), 200)} has no {evidence.CHECKSUMS}: the run never finished it",
            code=Code.EVIDENCE_CHANGED,
            hint="fetch it again, or ask who removed that file",
        )
    judge.refuse_changed(folder)
    attempt = judge.attempt_of(folder)
    job = _job_of(folder, attempt)
    if job and job.evidence not in ("", root):
        raise BadEvidence(
            f"this is not the evidence of {attempt} that this workstation fetched: its SHA-256 is "
            f"{root}, not {job.evidence}",
            code=Code.EVIDENCE_CHANGED,
            hint=f"compare it with that of the run folder: "
            f"{command_line('accept', 'verify', attempt)}",
        )
    signed_by = []
    of_run = parse_public_key(job.signer, holder="the run") if job else None
    if of_run and (folder / evidence.RUN_SIGNATURE).is_file():
        if signer(folder, evidence.RUN_SIGNATURE, (of_run,)) is None:
            raise _not_signed(f"{evidence.RUN_SIGNATURE} is not a signature of the run's key")
        signed_by.append(of_run.holder)
    if known:
        names = (evidence.RUN_SIGNATURE, evidence.USER_SIGNATURE)
        found = [signer(folder, name, known) for name in names if (folder / name).is_file()]
        holders = [key.holder for key in found if key]
        if not holders:
            raise _not_signed(f"none of the {count(len(known), 'given key')} signed this evidence")
        signed_by += holders
    outcome = Verification.NOT_VERIFIABLE
    if signed_by:
        outcome = Verification.SIGNED
    elif job and job.evidence == root:
        outcome = Verification.UNMODIFIED
    return Verified(attempt=attempt, outcome=outcome, hash=root, signed_by=tuple(signed_by))


def _job_of(folder: Path, attempt: str) -> Job | None:
    """Return what this workstation keeps of the run that the evidence is of, if it started it."""
    if judge.is_own(folder):
        return backends.known_job(folder.parent)
    return backends.known_job(rundir.runs() / attempt) if rundir.is_name(attempt) else None


def _not_signed(what: str) -> BadEvidence:
    return BadEvidence(
        what,
        code=Code.EVIDENCE_SIGNATURE,
        hint="it was changed after it was signed, or another key signed it: ask who sent it",
    )


@contextmanager
def _folder_of(path: str) -> Iterator[tuple[Path, bool]]:
    """Return the folder of the evidence at `path`, and whether it stays after this command."""
    if bucket.is_url(path):
        with tempfile.TemporaryDirectory(prefix="accept-verify-") as scratch:
            target = Path(scratch) / rundir.EVIDENCE
            bucket.fetch(path, target)
            yield target, False
        return
    if path == standard_input.PATH:
        with standard_input.saved() as file, _folder_of(str(file)) as (folder, _):
            yield folder, False
        return
    place = Path(path)
    if path == "last" or not rundir.is_file(place):
        place = rundir.find(path)
        if (place / evidence.CHECKSUMS).is_file():
            yield place, True
            return
    limits = Limits()
    runs = search.search(place, limits).runs
    if len(runs) != 1:
        raise BadInput(
            f"{plain(path, 200)} contains the evidence of {count(len(runs), 'run')}",
            code=Code.EVIDENCE_SEVERAL if runs else Code.EVIDENCE_NONE,
            hint="name the folder or archive of one run",
        )
    if runs[0].path is not None:
        yield runs[0].path, True
        return
    with search.unpacked(runs[0], limits) as folder:
        yield folder, False


def _lines(verified: Verified) -> tuple[str, ...]:
    what = {
        Verification.SIGNED: f"signed by {', '.join(map(plain, verified.signed_by))}; unmodified",
        Verification.UNMODIFIED: "unmodified since this workstation fetched it",
        Verification.NOT_VERIFIABLE: (
            "not verifiable: the checksums match, but no known key signed them; "
            "give --public-key, or verify it where the run was started"
        ),
    }
    return (
        f"{verified.attempt}: {what[verified.outcome]}",
        f"SHA-256 {verified.hash}",
    )
