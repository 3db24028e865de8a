"""Keys of runs."""

from __future__ import annotations

import re
from pathlib import Path

from accept.backends.keys import KeyPair

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
