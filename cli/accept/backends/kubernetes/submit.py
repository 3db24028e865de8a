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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accept import __version__
from accept.backends.kubernetes.client import Api, ApiError, Place
from accept.backends.kubernetes.status import LABEL, path
from accept.backends.protocol import Say
from accept.config import resources
from accept.config.kubernetes import RELEASE_NAME
from accept.core.errors import BadInput, NotStarted
from accept.core.text import plain

_SECONDS = 120.0
#: Kubernetes' own bound on names of Services and labels, and what follows a run's name in a pod's.
_LONGEST = 63
_POD = "-w-0-{last}-abcde"
#: How helm 3 and 4 report that there is no such release. Other errors contain "not found" as well,
#: such as the one for a credential plugin that is not installed.
_NO_RELEASE = "release: not found"


@dataclass(frozen=True, kw_only=True)
class Name:
    """A run's name and its two parts."""

    release: str
    attempt: str

    @property
    def full(self) -> str:
        """The name of everything the run makes."""
        return f"{self.release}-{self.attempt}"


def release_names(attempt: str, release: str = "") -> Name:
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


def release_values(place: Place, release: str) -> dict[str, object] | None:
    """Return the values a release was installed with, or None if helm has no such release here.

    Raises NotStarted if helm cannot tell, for example because the API does not answer.
    """
    done = helm(place, "get", "values", release, "--output", "json")
    if done.returncode != 0:
        if _NO_RELEASE in done.stderr:
            return None
        raise NotStarted(
            f"helm get values: {_last(done.stderr)}",
            hint=f"try: helm status {release} --namespace {place.namespace}",
        )
    try:
        values = json.loads(done.stdout)
    except (ValueError, RecursionError):
        values = None
    return values if isinstance(values, dict) else {}


def installed_attempt(place: Place, release: str) -> str:
    """Return the attempt that a release holds; empty if there is none. Raises NotStarted."""
    return str((release_values(place, release) or {}).get("attempt", ""))


def install_release(api: Api, name: Name, values: Path, *, say: Say) -> None:
    """Make the Secret, and install the chart with `values` byte for byte.

    Raises NotStarted with helm's last line. Then nothing of this attempt is left behind, or the
    message says what is. A release that this call did not make is never removed.
    """
    if release_values(api.place, name.release) is not None:
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
            str(resources.chart()),
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
    except BaseException as error:
        left = _undo(api, name, secret)
        if left is None:
            raise
        if not isinstance(error, NotStarted):
            say(str(left))
            raise
        raise NotStarted(f"{error.message}; {left.message}", hint=left.hint) from None


def _undo(api: Api, name: Name, secret: str) -> NotStarted | None:
    """Remove what a failed install made; return what is left and what to do about it, if any.

    The API stores only one Secret of a name, and this attempt made it. So a release that names both
    the attempt and this Secret is its own. Every other release of that name is somebody else's.
    """
    place = api.place
    here = f"--namespace {place.namespace}"
    remove_release = f"helm uninstall {name.release} {here}"
    remove_secret = f"kubectl delete secret {secret} {here}"
    left, hints = [], []
    try:
        values = release_values(place, name.release)
    except NotStarted as error:
        return NotStarted(
            f"release {name.release} and Secret {secret} may be left: {error.message}",
            hint=f"if helm status {name.release} {here} shows it: {remove_release}; "
            f"then: {remove_secret}",
        )
    if values is not None and _is_own(values, name, secret):
        try:
            uninstall(place, name.release)
        except NotStarted as error:
            left.append(f"release {name.release} is left: {error.message}")
            hints.append(remove_release)
    elif values is not None:
        left.append(f"release {name.release} is not of this attempt, and was not modified")
        hints.append("choose another --release")
    try:
        api.delete(path(api, "api/v1", "secrets", secret))
    except ApiError as error:
        left.append(f"Secret {secret} is left: {error.message}")
        hints.append(remove_secret)
    return NotStarted("; ".join(left), hint="; ".join(hints)) if left else None


def _is_own(values: Mapping[str, object], name: Name, secret: str) -> bool:
    """Return True if these are the values of a release that this attempt installed."""
    ssh = values.get("ssh")
    named_secret = ssh.get("existingSecret") if isinstance(ssh, dict) else None
    return values.get("attempt") == name.attempt and named_secret == secret


def uninstall(place: Place, release: str) -> None:
    """Remove a release; one that is gone already is fine. Raises NotStarted."""
    done = helm(place, "uninstall", release)
    if done.returncode != 0 and _NO_RELEASE not in done.stderr:
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
