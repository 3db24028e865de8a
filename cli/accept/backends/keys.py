"""Make the key pair of a run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.runner.ssh import KEY_TYPE
from accept.core.text import plain

_SECONDS = 60.0


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
        words = ["ssh-keygen", "-q", "-t", KEY_TYPE, "-N", "", "-C", comment, "-f", str(file)]
        try:
            done = bounded.run(words, timeout=_SECONDS)
            failure = "" if done.exit == 0 else done.errors.strip() or f"exit status {done.exit}"
        except OSError as error:
            failure = str(error)
        if failure:
            raise NotStarted(
                f"ssh-keygen failed: {plain(failure)}",
                code=Code.SSH_KEYGEN,
                hint="install the OpenSSH client here",
            )
        public = file.with_suffix(".pub").read_text(encoding="utf-8")
        return KeyPair(private=file.read_bytes(), public=public)
