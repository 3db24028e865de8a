"""Define field types and their validation for machines, suites and sites."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from accept.config.chart_rules import chart_rules
from accept.core.error_codes import Code
from accept.core.limits import MachineName, is_variable
from accept.core.serde import Doc, Invalid, Pattern, escaped, read

Name = Annotated[MachineName, Doc("Name; usually the name of the file without .yaml.")]
Url = Annotated[str, Pattern(r"https?://\S+", "a URL"), Doc("Source of the figure or setting.")]
#: Environment variables.
Env = dict[str, str | int]
#: A mapping whose content is checked elsewhere: by a check, or by Kubernetes.
Plain = dict[str, object]


def is_secret(text: str) -> bool:
    """Return True if a text contains a token of a known form, or a URL with a password."""
    return re.search(chart_rules().secret_values, text) is not None


def check_env(env: Env, path: tuple[str, ...]) -> None:
    """Raise Invalid for a name that no shell accepts, a value that is not one line, or a secret."""
    for name, value in env.items():
        if not is_variable(name):
            message = "this is not a valid name of an environment variable"
            raise Invalid((*path, name), message, code=Code.ENV_INVALID)
        if not str(value).isprintable():
            message = "the value must be one line of printable text"
            raise Invalid((*path, name), message, code=Code.ENV_INVALID)
        if _is_secret_variable(name, str(value)):
            raise _secret(
                (*path, name),
                "on Kubernetes, take it from a Secret: kubernetes.extraEnvFrom; elsewhere, set it "
                "on the hosts",
            )


def _is_secret_variable(name: str, value: str) -> bool:
    rules = chart_rules()
    is_named = re.search(rules.secret_names, name) and not re.search(rules.secret_files, name)
    return bool(is_named) or is_secret(value)


def _secret(path: tuple[str | int, ...], hint: str) -> Invalid:
    message = "it looks like a secret, and settings are not secret"
    return Invalid(path, message, hint, code=Code.SETTING_SECRET)


def check_capabilities(context: Plain, path: tuple[str | int, ...]) -> None:
    """Raise Invalid if a capability in a securityContext starts with CAP_.

    Container runtimes add CAP_ to each name themselves, and then fail on the unknown name:
    https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
    """
    given = context.get("capabilities")
    for kind in ("add", "drop"):
        names = given.get(kind) if isinstance(given, dict) else None
        for name in names if isinstance(names, list | tuple) else ():
            if str(name).upper().startswith("CAP_"):
                raise Invalid(
                    (*path, "capabilities", kind),
                    f"{name}: Kubernetes names capabilities without CAP_",
                    f"write {str(name)[4:]}",
                    code=Code.KUBE_CAPABILITY,
                )


def check_containers(containers: tuple[Plain, ...], path: str) -> None:
    """Raise Invalid if a container has a capability that starts with CAP_, or a secret in it."""
    for index, container in enumerate(containers):
        context = container.get("securityContext")
        for name, value in _container_texts(container):
            if _is_secret_variable(name, value):
                raise _secret(
                    (path, index, name), "take it from a Secret: env.valueFrom.secretKeyRef"
                )
        if isinstance(context, dict):
            check_capabilities(context, (path, index, "securityContext"))


def _container_texts(container: Plain) -> Iterator[tuple[str, str]]:
    """Yield variables with a value, and the words of command and arguments as one text each."""
    for key in ("env", "command", "args"):
        given = container.get(key)
        items = given if isinstance(given, list | tuple) else ()
        if key != "env":
            yield key, " ".join(map(str, items))
        for one in items:
            if isinstance(one, dict) and "value" in one:
                yield str(one.get("name", "")), str(one["value"])


@dataclass(frozen=True, kw_only=True)
class _Toleration:
    """A toleration as Kubernetes accepts it."""

    key: str | None = None
    operator: Literal["Exists", "Equal", "Lt", "Gt"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


def check_tolerations(tolerations: Sequence[Plain]) -> None:
    """Raise Invalid for a toleration that Kubernetes refuses."""
    for index, toleration in enumerate(tolerations):
        read(_Toleration, toleration, path=("tolerations", index))


#: Folders of a host whose content controls it. Those below them are refused, too.
_CONTROLS = ("/etc", "/proc", "/run", "/var/run")


def check_mount(folder: str, path: tuple[str | int, ...]) -> None:
    """Raise Invalid for a folder or socket of the host by which a container could control it."""
    # POSIX keeps two slashes at the start.
    place = posixpath.normpath(f"/{folder.lstrip('/')}")
    is_parent = any(f"{control}/".startswith(f"{place.rstrip('/')}/") for control in _CONTROLS)
    is_below = any(place.startswith(f"{control}/") for control in _CONTROLS)
    if is_parent or is_below or place.endswith(".sock"):
        raise Invalid(
            path,
            f"{escaped(folder)}: a container could control the host by it",
            "mount only the folder that the run needs, such as /data",
            code=Code.SITE_MOUNT,
        )
