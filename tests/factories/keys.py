"""Keys of runs."""

from __future__ import annotations

import re
from pathlib import Path

from accept.core import evidence
from accept.core.runner.keys import KeyPair
from accept.core.signatures import sign

#: For tests that only pass keys on: no program accepts them.
KEYS = KeyPair(private=b"private", public="ssh-ed25519 public")
#: The first line of a private key. Known lines of programs have its words, too.
PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY")


def write_keys(folder: Path, pair: KeyPair, name: str = "key") -> Path:
    """Write a key pair as ssh-keygen does, and return the path of the private key."""
    path = folder / name
    path.touch(mode=0o600)
    path.write_bytes(pair.private)
    path.with_suffix(".pub").write_text(pair.public)
    return path


def sign_evidence(folder: Path, key: Path, name: str) -> None:
    """Sign the checksums of evidence, as whoever has the key can."""
    evidence.write(folder / name, sign(evidence.read_text(folder / evidence.CHECKSUMS), key))
