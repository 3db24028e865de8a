"""Sign the checksums of evidence, and verify such signatures, with ssh-keygen.

A signature shows that the evidence did not change after the holder of a key signed it. It does not
show that the holder was honest: the hosts of a run have the key of the run.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from accept.core import bounded, evidence
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.safe_read import open_regular
from accept.core.text import plain

#: Purpose of the signatures, so that one for another purpose never counts: `ssh-keygen -Y -n`.
_NAMESPACE = "accept"
#: Kind, key in base64 and comment, as in a file `id_ed25519.pub`.
_PUBLIC_KEY = re.compile(r"([a-z0-9@.-]{1,64}) ([A-Za-z0-9+/]{16,8192}={0,3})(?: ([^\n]*))?")
#: Upper limit of a file with public keys, in bytes. One key has at most about 1,500 bytes.
_KEYS_LIMIT = 1 << 16
_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """A public key, and the name of its holder for people."""

    kind: str
    base64: str
    holder: str


def parse_public_key(line: str, *, holder: str = "") -> PublicKey | None:
    """Return the key of a line of OpenSSH's format, or None. Its comment is the default holder."""
    found = _PUBLIC_KEY.fullmatch(line.strip())
    if found is None:
        return None
    kind, base64, comment = found.groups()
    return PublicKey(kind=kind, base64=base64, holder=holder or plain(comment or kind, 80))


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """Return the keys of a file that has one per line. Raises BadInput if it has none."""
    try:
        with open_regular(path, follow=True) as file:
            text = file.read(_KEYS_LIMIT).decode("utf-8", "replace")
    except OSError as error:
        raise BadInput(
            f"{plain(str(path), 200)} cannot be read: {error.strerror}",
            code=Code.PUBLIC_KEY,
            hint="give a file such as ~/.ssh/id_ed25519.pub",
        ) from None
    keys = tuple(filter(None, map(parse_public_key, text.splitlines())))
    if not keys:
        raise BadInput(
            f"{plain(str(path), 200)} contains no public key of OpenSSH",
            code=Code.PUBLIC_KEY,
            hint="derive it from a private key: ssh-keygen -y -f KEY > KEY.pub",
        )
    return keys


def sign(checksums: str, key: Path) -> str:
    """Return the signature of the checksums of evidence by the private key in the file `key`.

    Raises BadInput if ssh-keygen cannot do it, for example because it is older than 8.1, or because
    it would have to ask for a password.
    """
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", _NAMESPACE]
    done = ssh_keygen(words, checksums.encode())
    if done.exit != 0 or not done.out:
        raise BadInput(
            f"ssh-keygen cannot sign with {plain(str(key), 200)}: "
            f"{plain(done.errors.strip(), 200)}",
            code=Code.SIGNING_FAILED,
            hint="use a key without a password, or one that ssh-agent holds; its public half must "
            "be beside it: ssh-keygen -y -f KEY > KEY.pub",
        )
    return done.text


def signer(folder: Path, signature: str, keys: tuple[PublicKey, ...]) -> PublicKey | None:
    """Return the one of `keys` that made the signature of the checksums; None if none of them did.

    Raises NotStarted if this machine has no ssh-keygen.
    """
    checksums = evidence.read_text(folder / evidence.CHECKSUMS).encode()
    with tempfile.TemporaryDirectory(prefix="accept-verify-") as scratch:
        allowed, copy = Path(scratch) / "allowed", Path(scratch) / "signature"
        copy.write_text(evidence.read_text(folder / signature), encoding="utf-8")
        for key in keys:
            allowed.write_text(f"{_NAMESPACE} {key.kind} {key.base64}\n", encoding="utf-8")
            words = ["ssh-keygen", "-q", "-Y", "verify", "-f", str(allowed), "-I", _NAMESPACE]
            done = ssh_keygen([*words, "-n", _NAMESPACE, "-s", str(copy)], checksums)
            if done.exit == 0:
                return key
    return None


def ssh_keygen(words: list[str], stdin: bytes = b"") -> bounded.Output:
    """Return what ssh-keygen printed. Raises NotStarted if it does not start or end."""
    try:
        done = bounded.run(words, stdin=stdin, timeout=_SECONDS)
        if done.exit is not None:
            return done
        failure = f"no end within {_SECONDS:.0f} s"
    except OSError as error:
        failure = str(error)
    raise keygen_failed(failure)


def keygen_failed(failure: str) -> NotStarted:
    """Return the error for an ssh-keygen that does not work."""
    return NotStarted(
        f"ssh-keygen failed: {plain(failure)}",
        code=Code.SSH_KEYGEN,
        hint="install the OpenSSH client here",
    )
