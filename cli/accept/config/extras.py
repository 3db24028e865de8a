"""Make hints for installing the optional parts of this package."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from accept import __version__
from accept.core.text import command_line

_WHEEL = f"gpu_accept-{__version__}-py3-none-any.whl"


class Extra(StrEnum):
    """The extras of the package, as pyproject.toml names them."""

    DATA = "data"
    RUN = "run"
    KUBERNETES = "kubernetes"
    STORAGE = "storage"


def install_hint(extra: Extra) -> str:
    """Return the command that installs an extra, with the program that installed the package.

    No package index has this package, so its name alone installs nothing, or another package.
    """
    installer, source = _installed()
    return command_line(*_program(installer), f"{source}[{extra.value}]")


def _program(installer: str) -> tuple[str, ...]:
    """Return the command that installs into the environment of this process."""
    place = Path(sys.prefix).parts
    if "pipx" in place:
        return "pipx", "install", "--force"
    if place[-3:-1] == ("uv", "tools"):
        return "uv", "tool", "install", "--force"
    if installer == "uv":
        return "uv", "pip", "install", "--python", sys.executable
    return sys.executable, "-m", "pip", "install"


def _installed() -> tuple[str, str]:
    """Return the program that installed the package, and the checkout or wheel that it is of."""
    try:
        package = metadata.distribution("gpu-accept")
        installer = (package.read_text("INSTALLER") or "").strip()
        url = urlsplit(json.loads(package.read_text("direct_url.json") or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        return "", _WHEEL
    path = unquote(url.path)
    return installer, path if url.scheme == "file" and Path(path).exists() else _WHEEL
