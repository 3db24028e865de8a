"""Make hints for installing the optional parts of this package."""

from __future__ import annotations

from enum import StrEnum

from accept import __version__


class Extra(StrEnum):
    """The extras of the package, as pyproject.toml names them."""

    DATA = "data"
    RUN = "run"
    KUBERNETES = "kubernetes"
    STORAGE = "storage"


def install_hint(extra: Extra) -> str:
    """Return the commands that install an extra from a checkout or a wheel.

    No package index has this package, so its name alone installs nothing, or another package.
    """
    wheel = f"gpu_accept-{__version__}-py3-none-any.whl"
    name = extra.value
    checkout = f"uv pip install '.[{name}]'"
    return f"in the checkout: {checkout}; with the wheel: pip install '{wheel}[{name}]'"
