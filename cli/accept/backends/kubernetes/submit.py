"""Start a run: create its key and positions, then install the rendered values with helm.

Positions are a ConfigMap beside the release, because helm would store them twice. The key never
passes through helm, because helm would store it in the release record. No file with the key
outlives the call.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from accept.backends.job import Place
from accept.backends.kubernetes.client import ROLE_HINT, Api, ApiError, before_start
from accept.backends.kubernetes.objects import (
    CONFIG_MAP,
    SECRET,
    Controller,
    Kind,
    Object,
    value_at,
)
from accept.backends.kubernetes.status import RUN_LABEL
from accept.backends.protocol import Say
from accept.config.chart_rules import chart_rules
from accept.config.kubernetes import longest_name
from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.runner.keys import new_keys
from accept.core.runner.positions import PACKED_POSITIONS
from accept.core.text import duration, plain
from accept.plan.chart import chart_folder
from accept.plan.helm_values import pack_positions

_HELM_SECONDS = 120.0
#: How helm 3 and 4 report that there is no such release. Other errors contain "not found" as well,
#: such as the one for a credential plugin that is not installed.
_NO_RELEASE = "release: not found"
#: How the API server reports a missing permission.
_DENIED = re.compile(r'cannot (\w+) resource "([\w./-]+)" in API group "([\w.-]*)"')


@dataclass(frozen=True, kw_only=True)
class RunName:
    """The name of a run, in two parts."""

    release: str
    attempt: str

    @property
    def full(self) -> str:
        """Return the name of every object that the run makes."""
        return f"{self.release}-{self.attempt}"


def run_name(attempt: str, release: str = "") -> RunName:
    """Return the name of a run.

    Without a release, the attempt names a release of its own, after `accept-` if it does not start
    with a letter. So no two runs share a release, no matter when they start. A full name maps to
    itself.
    """
    if release:
        return RunName(release=release, attempt=attempt)
    whole = attempt if attempt[:1].isalpha() else f"accept-{attempt}"
    return RunName(release=whole.removesuffix("-1"), attempt="1")


def check_run_name(name: RunName, nodes: int) -> None:
    """Raise BadInput, with the maximum length, for a name that Kubernetes would refuse."""
    longest = longest_name(nodes)
    if len(name.full) > longest:
        raise BadInput(
            f"the name {name.full} has {len(name.full)} characters; with {nodes} nodes it may have "
            f"at most {longest}",
            code=Code.KUBE_NAME_LONG,
            hint="give a shorter --release or --attempt",
        )
    if not re.fullmatch(chart_rules().name_pattern, name.full):
        raise BadInput(
            f"invalid name {plain(name.full, 100)!r}: it must begin with a letter and contain only "
            "a-z, 0-9 and '-'",
            code=Code.KUBE_NAME,
            hint="example: --release lab --attempt one",
        )


def helm_options(place: Place) -> tuple[list[str], dict[str, str]]:
    """Return the options and the environment that send helm to a place."""
    options = ["--namespace", place.namespace]
    if place.context:
        options += ["--kube-context", place.context]
    # The environment variable may list several files, the option only one.
    return options, {"KUBECONFIG": place.kubeconfig} if place.kubeconfig else {}


def helm(place: Place, *words: str, seconds: float = _HELM_SECONDS) -> bounded.Output:
    """Run the user's helm in a place.

    Raises NotStarted if helm is missing, does not end, or prints without end.
    """
    options, environment = helm_options(place)
    try:
        done = bounded.run(
            ["helm", *words, *options], env={**os.environ, **environment}, timeout=seconds
        )
    except FileNotFoundError:
        raise NotStarted(
            "helm is not installed here",
            code=Code.HELM_MISSING,
            hint="install helm 3 or 4: https://helm.sh",
        ) from None
    if done.exit is None:
        raise NotStarted(
            f"helm {words[0]} did not end within {duration(seconds)}",
            code=Code.HELM_TIMEOUT,
            hint="try: kubectl get pods",
        )
    return done


def last_line(text: str) -> str:
    """Return the last line of helm's output, which is its error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return plain(lines[-1], 600).removeprefix("Error: ") if lines else "it printed no error"


def helm_failure(what: str, errors: str, *, hint: str) -> NotStarted:
    """Return the error of a helm that failed; for a missing permission, with the advice on it."""
    message, code = last_line(errors), Code.HELM_FAILED
    if denied := _DENIED.search(message):
        verb, resource, group = denied.groups()
        message = f"you may not {verb} {resource}{'.' * bool(group)}{group}: {message}"
        code, hint = Code.KUBE_FORBIDDEN, ROLE_HINT
    return NotStarted(f"{what}: {message}", code=code, hint=hint)


def release_values(place: Place, release: str) -> dict[str, object] | None:
    """Return the values a release was installed with, or None if helm has no such release here.

    Raises NotStarted if helm cannot tell, for example because the API does not answer.
    """
    done = helm(place, "get", "values", release, "--output", "json")
    if done.exit != 0:
        if _NO_RELEASE in done.errors:
            return None
        hint = f"try: helm status {release} --namespace {place.namespace}"
        raise helm_failure("helm get values", done.errors, hint=hint)
    try:
        values = json.loads(done.text)
    except (ValueError, RecursionError):
        values = None
    return values if isinstance(values, dict) else {}


def installed_attempt(place: Place, release: str) -> str:
    """Return the attempt that a release holds; empty if there is none. Raises NotStarted."""
    return str((release_values(place, release) or {}).get("attempt", ""))


def install_release(
    api: Api,
    name: RunName,
    values: Path,
    *,
    positions: Mapping[str, str] = MappingProxyType({}),
    exclude: Sequence[str] = (),
    record: Callable[[], None] = lambda: None,
    say: Say,
) -> tuple[Controller, str]:
    """Make the Secret and the positions, and install the chart with the unmodified `values`.

    `exclude` replaces the list of nodes not to use, unless it is empty. Returns the JobSet or Job
    that the chart made, and the public half of the run's key. Raises NotStarted with helm's last
    line. Then nothing of this attempt is left behind, or the message names the remains. A release
    that this call did not make is never removed. `record` is called before anything is made.
    """
    if release_values(api.place, name.release) is not None:
        raise NotStarted(
            f"namespace {api.place.namespace} already has a release {name.release}",
            code=Code.HELM_RELEASE_EXISTS,
            hint="choose another --release, or remove the run that made it: accept clean RUN",
        )
    record()
    secret = f"{name.full}-ssh"
    signer = _make_secret(api, name, secret)
    made: list[tuple[Kind[Object], str]] = [(SECRET, secret)]
    try:
        if positions:
            config_map = f"{name.full}-positions"
            _make_positions(api, name, config_map, positions)
            made.append((CONFIG_MAP, config_map))
        say(f"helm install {name.release} in namespace {api.place.namespace}")
        done = helm(
            api.place,
            "install",
            name.release,
            str(chart_folder()),
            "--values",
            str(values),
            "--set-string",
            f"attempt={name.attempt}",
            "--set-string",
            f"ssh.existingSecret={secret}",
            "--set",
            "logEvents=true",
            *(("--set-json", f"site.excludeNodes={json.dumps(exclude)}") if exclude else ()),
            "--output",
            "json",
        )
        if done.exit != 0:
            hint = "what the cluster lacks: accept doctor, with the options of the run"
            raise helm_failure("helm install", done.errors, hint=hint)
        return _controller(done.text), signer
    except BaseException as error:
        left = _undo(api, name, made)
        if left is None:
            raise
        if not isinstance(error, NotStarted):
            say(str(left))
            raise
        raise NotStarted(
            f"{error.message}; {left.message}", code=error.code, hint=left.hint
        ) from None


def _controller(record: str) -> Controller:
    """Return the JobSet or Job in helm's record of an installed release. Raises NotStarted.

    The chart decides which of the two it makes, and what the names of its pods are.
    """
    import yaml

    try:
        manifest = str(value_at(json.loads(record), "manifest"))
    except (ValueError, RecursionError):
        manifest = ""
    for document in manifest.split("\n---\n"):
        # The others are large, and YAML is slow.
        if re.search("^kind: Job(Set)?$", document, re.MULTILINE):
            return Controller.read(yaml.safe_load(document))
    raise NotStarted(
        "helm install printed no record of a Job or JobSet",
        code=Code.HELM_FAILED,
        hint="install helm 3 or 4: https://helm.sh",
    )


def _undo(api: Api, name: RunName, made: Sequence[tuple[Kind[Object], str]]) -> NotStarted | None:
    """Remove what a failed install made; return what is left and what to do about it, if any.

    The API stores only one Secret of a name, and this attempt made it. So a release that names both
    the attempt and this Secret is its own. Every other release of that name belongs to another run.
    """
    place = api.place
    here = f"--namespace {place.namespace}"
    remove_release = f"helm uninstall {name.release} {here}"
    secret = made[0][1]
    removals = [f"kubectl delete {kind.name.lower()} {one} {here}" for kind, one in made]
    left, hints = [], []
    try:
        values = release_values(place, name.release)
    except NotStarted as error:
        return NotStarted(
            f"release {name.release} and Secret {secret} may be left: {error.message}",
            code=error.code,
            hint=f"if helm status {name.release} {here} shows it: {remove_release}; "
            f"then: {'; '.join(removals)}",
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
    for (kind, one), removal in zip(made, removals, strict=True):
        try:
            api.delete(kind, one)
        except ApiError as error:
            left.append(f"{kind.name} {one} is left: {error.message}")
            hints.append(removal)
    if not left:
        return None
    return NotStarted("; ".join(left), code=Code.HELM_FAILED, hint="; ".join(hints))


def _is_own(values: Mapping[str, object], name: RunName, secret: str) -> bool:
    """Return True if these are the values of a release that this attempt installed."""
    ssh = values.get("ssh")
    named_secret = ssh.get("existingSecret") if isinstance(ssh, dict) else None
    return values.get("attempt") == name.attempt and named_secret == secret


def uninstall(place: Place, release: str) -> None:
    """Remove a release. Do nothing if it does not exist. Raises NotStarted."""
    done = helm(place, "uninstall", release)
    if done.exit != 0 and _NO_RELEASE not in done.errors:
        hint = f"try it again: helm uninstall {release} --namespace {place.namespace}"
        raise helm_failure("helm uninstall", done.errors, hint=hint)


def _make_positions(api: Api, name: RunName, own: str, positions: Mapping[str, str]) -> None:
    """Make the ConfigMap of the positions, which the pods of the run mount."""
    packed = base64.b64encode(pack_positions(positions)).decode()
    content = {"binaryData": {PACKED_POSITIONS: packed}}
    with before_start(f"ConfigMap {own}: "):
        api.create(CONFIG_MAP, own, {RUN_LABEL: name.full}, content)


def _make_secret(api: Api, name: RunName, secret: str) -> str:
    """Make the Secret with the key of the run, and return its public half."""
    keys = new_keys(name.full)
    private = {"ssh-privatekey": keys.private.decode()}
    content = {"type": "kubernetes.io/ssh-auth", "stringData": private}
    with before_start("the run's Secret: "):
        try:
            api.create(SECRET, secret, {RUN_LABEL: name.full}, content)
        except ApiError as error:
            if not error.gone:
                raise
            raise NotStarted(
                f"namespace {api.place.namespace} does not exist",
                code=Code.KUBE_NAMESPACE_MISSING,
                hint=f"kubectl create namespace {api.place.namespace}, or name another: "
                "--namespace",
            ) from None
    return keys.public.strip()
