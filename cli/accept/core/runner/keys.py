"""Make the key pair of a run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from accept.core.signatures import keygen_failed, ssh_keygen

#: Type of the key. Every version of OpenSSH supports it, even in FIPS mode.
_TYPE = "ecdsa"


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A private key in OpenSSH's format, and the line of its public key."""

    private: bytes
    public: str


def new_keys(comment: str) -> KeyPair:
    """Return a new key pair.

    No file with a key is left behind. Raises NotStarted if ssh-keygen is missing or fails.
    """
    with tempfile.TemporaryDirectory(prefix="accept-key-") as scratch:
        file = Path(scratch) / "key"
        words = ["ssh-keygen", "-q", "-t", _TYPE, "-N", "", "-C", comment, "-f", str(file)]
        done = ssh_keygen(words)
        if done.exit != 0:
            raise keygen_failed(done.errors.strip() or f"exit status {done.exit}")
        public = file.with_suffix(".pub").read_text(encoding="utf-8")
        return KeyPair(private=file.read_bytes(), public=public)
