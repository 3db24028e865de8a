"""Starting a run: its key as a Secret through the API, then the user's helm with what was rendered.

The key never passes through helm, so that it is in no release record, and never through a file that
outlives the call.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from accept import __version__, assets
from accept.backends import Say
from accept.backends.kubernetes.api import Api, ApiError
from accept.backends.kubernetes.look import LABEL, path
from accept.backends.kubernetes.place import Place
from accept.core.errors import BadInput, NotStarted
from accept.core.plaintext import plain
from accept.spec.pod import RELEASE_NAME

_SECONDS = 120.0
#: Kubernetes' own bound on names of Services and labels, and what follows a run's name in a pod's.
_LONGEST = 63
_POD = "-w-0-{last}-abcde"


@dataclass(frozen=True, kw_only=True)
class Name:
    """A run's name and its two parts."""

    release: str
    attempt: str

    @property
    def full(self) -> str:
        """The name of everything the run makes."""
        return f"{self.release}-{self.attempt}"


def named(attempt: str, release: str = "") -> Name:
    """The name of a run: what is given, and `accept-` before it where no release is.

    Without a release the whole is the release's name, so that no two runs share one, whenever they
    begin, and has one attempt. A full name may be read again: it stays what it is.
    """
    if release:
        return Name(release=release, attempt=attempt)
    whole = attempt if attempt[:1].isalpha() else f"accept-{attempt}"
    return Name(release=whole.removesuffix("-1"), attempt="1")


def check_name(name: Name, nodes: int) -> None:
    """Raise BadInput for a name that Kubernetes would refuse, with the longest it takes."""
    most = _LONGEST - len(_POD.format(last=max(0, nodes - 1)))
    if len(name.full) > most:
        raise BadInput(
            f"the name {name.full} has {len(name.full)} characters",
            hint=f"for {nodes} nodes at most {most} are possible: a shorter --release or --attempt",
        )
    if not re.fullmatch(RELEASE_NAME, name.full):
        raise BadInput(
            f"the name {plain(name.full, 100)!r} cannot be used",
            hint="--release and --attempt take a-z, 0-9 and '-', a letter first",
        )


def labels(name: Name) -> dict[str, str]:
    """The labels of what this side makes for a run."""
    return {
        "app.kubernetes.io/name": "accept",
        "app.kubernetes.io/instance": name.release,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/managed-by": "accept",
        "app.kubernetes.io/part-of": "accept",
        LABEL: name.full,
        "accept-release": name.release,
    }


def helm(place: Place, *words: str, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
    """The user's helm in a place. Raises NotStarted where there is none."""
    options, environment = place.helm()
    try:
        return subprocess.run(
            ["helm", *words, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise NotStarted(
            "there is no helm here", hint="install helm 3 or 4: https://helm.sh"
        ) from None
    except subprocess.TimeoutExpired:
        raise NotStarted(
            f"helm {words[0]} did not end within {seconds:.0f} s", hint="try: kubectl get pods"
        ) from None


def _last(text: str) -> str:
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return plain(said[-1], 600).removeprefix("Error: ") if said else "it said nothing"


def is_installed(place: Place, release: str) -> bool:
    """Whether helm knows a release of that name here."""
    return helm(place, "status", release).returncode == 0


def installed_attempt(place: Place, release: str) -> str:
    """The attempt that a release holds; empty: helm knows none of that name here."""
    done = helm(place, "get", "values", release, "--output", "json")
    if done.returncode != 0:
        if "not found" in done.stderr:
            return ""
        raise NotStarted(f"helm get values: {_last(done.stderr)}", hint="try it again")
    try:
        return str(json.loads(done.stdout)["attempt"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def install(api: Api, name: Name, values: Path, *, say: Say) -> None:
    """Make the Secret, and install the chart with `values` byte for byte.

    Raises NotStarted with helm's last line; then nothing is left behind.
    """
    if is_installed(api.place, name.release):
        raise NotStarted(
            f"there is a release {name.release} in namespace {api.place.namespace} already",
            hint="choose another --release, or remove that one: accept delete",
        )
    secret = f"{name.full}-ssh"
    _make_secret(api, name, secret)
    try:
        say(f"helm install {name.release} in namespace {api.place.namespace}")
        done = helm(
            api.place,
            "install",
            name.release,
            str(assets.chart()),
            "--values",
            str(values),
            "--set-string",
            f"attempt={name.attempt}",
            "--set-string",
            f"ssh.existingSecret={secret}",
        )
        if done.returncode != 0:
            raise NotStarted(
                f"helm install: {_last(done.stderr)}",
                hint="what was rendered is refused: accept doctor says what the cluster lacks",
            )
    except BaseException:
        helm(api.place, "uninstall", name.release)
        api.delete(path(api, "api/v1", "secrets", secret))
        raise


def uninstall(place: Place, release: str) -> None:
    """Remove a release; one that is gone already is fine. Raises NotStarted."""
    done = helm(place, "uninstall", release)
    if done.returncode != 0 and "not found" not in done.stderr:
        raise NotStarted(f"helm uninstall: {_last(done.stderr)}", hint="try it again")


def _make_secret(api: Api, name: Name, secret: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/ssh-auth",
        "metadata": {"name": secret, "labels": labels(name)},
        "data": {"ssh-privatekey": base64.b64encode(_private_key(name.full)).decode()},
    }
    try:
        api.create(path(api, "api/v1", "secrets"), body)
    except ApiError as error:
        if error.status == 404:
            message = f"there is no namespace {api.place.namespace}"
            hint = "make it: kubectl create namespace; or name another: --namespace"
            raise NotStarted(message, hint=hint) from None
        raise NotStarted(f"the run's Secret: {error.message}", hint=error.hint) from None


def _private_key(comment: str) -> bytes:
    """A fresh private key, in a form every OpenSSH reads."""
    with tempfile.TemporaryDirectory(prefix="accept-key-") as scratch:
        file = Path(scratch) / "key"
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-C", comment, "-f", str(file)]
        try:
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotStarted(
                f"ssh-keygen: {error}", hint="install the OpenSSH client here"
            ) from None
        return file.read_bytes()
