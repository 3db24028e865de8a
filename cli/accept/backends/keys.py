"""Make the key pair of a run."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.runner.ssh import KEY_TYPE
from accept.core.text import plain


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
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotStarted(
                f"ssh-keygen failed: {plain(error)}",
                code=Code.SSH_KEYGEN,
                hint="install the OpenSSH client here",
            ) from None
        public = file.with_suffix(".pub").read_text(encoding="utf-8")
        return KeyPair(private=file.read_bytes(), public=public)
