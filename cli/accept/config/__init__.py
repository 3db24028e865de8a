"""Load machines, suites and sites from the YAML files under `values/` and from the user's files.

Parameters of a check are merged in this order, and later ones win: the check's defaults, the
machine, the suite, the site, `--set`. The suites of `accept` set durations and groups; the machines
set message sizes.

`serde` reads the annotations of the dataclasses that describe these files. The modules that define
them do without `from __future__ import annotations`, so annotations are objects and not text that
must be evaluated for each file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Generic, Literal, TypeVar

from accept.config import resources, site_file
from accept.config.expectations import parse_expectation
from accept.config.machine import Machine
from accept.config.site import Site
from accept.config.suite import Suite
from accept.config.tools import LoadedTool, check_exists, is_path
from accept.config.yaml_file import Document, load, with_bases
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.plan import Reference
from accept.core.safe_read import is_file
from accept.core.serde import Invalid, did_you_mean, escaped, known

__all__ = [
    "Loaded",
    "Machine",
    "Site",
    "Suite",
    "load_machine",
    "load_site",
    "load_suite",
    "names",
    "site_expectations",
    "site_tools",
    "trusted_site",
    "trusted_tools",
]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[T]):
    """A value and the file that it was read from, for errors with file and line."""

    value: T
    document: Document


def names(kind: Literal["machines", "suites"]) -> tuple[str, ...]:
    """Return the sorted names of the machines or suites that come with `accept`."""
    return tuple(sorted(path.stem for path in (resources.values() / kind).glob("*.yaml")))


def load_machine(name_or_path: str) -> Loaded[Machine]:
    """Load a machine by name or from the user's file, merged with its bases. Raises BadInput."""
    path = _path("machines", name_or_path)
    return _shipped_machine(path) if _is_shipped(path) else _machine(path)


def _machine(path: Path) -> Loaded[Machine]:
    document = with_bases(_document(path), _base, partial(_document, of_file=True))
    return Loaded(value=document.read(Machine), document=document)


def _document(path: Path, *, of_file: bool = False) -> Document:
    return _shipped_document(path) if _is_shipped(path) else load(path, of_file=of_file)


def _is_shipped(path: Path) -> bool:
    """Return True if a file comes with `accept`. Such files are cached: machines share bases."""
    return path.is_relative_to(resources.values())


_shipped_machine = cache(_machine)
_shipped_document = cache(load)


def load_suite(name_or_path: str, own: Sequence[LoadedTool] = ()) -> Loaded[Suite]:
    """Load a suite by name or from the user's file. Raises BadInput.

    `own` are the tools of the site file, which are checks as well.
    """
    document = load(_path("suites", name_or_path))
    suite = document.read(Suite)
    tools = [tool.value.check() for tool in own]
    for index, check in enumerate(entry.check for entry in suite.checks):
        try:
            if not is_path(check):
                check_exists(check, ("checks", index, "check"), tools)
        except Invalid as error:
            raise document.refusal(error) from None
    return Loaded(value=suite, document=document)


def load_site(site: str | Loaded[Site]) -> Loaded[Site]:
    """Load the user's site file, unless it was loaded before. Raises BadInput."""
    if isinstance(site, Loaded):
        return site
    document = load(site)
    return Loaded(value=document.read(Site), document=document)


def trusted_site() -> Loaded[Site] | None:
    """Return the site file of a command that names none, if this needs no question; else None.

    Raises BadInput for one that the environment names.
    """
    if named := site_file.named_site():
        return None if named == site_file.NONE else load_site(named)
    found = site_file.find_site()
    try:
        site = load_site(str(found)) if found else None
    except BadInput:
        return None  # Commands that use it report what is wrong.
    if found is None or site is None:
        return None
    state = site_file.trust_of(found, site.document.sha256)
    return site if state is site_file.Trust.TRUSTED else None


def site_tools(site: Loaded[Site] | None) -> tuple[LoadedTool, ...]:
    """Return the tools that a site file defines."""
    if site is None:
        return ()
    return tuple(
        LoadedTool(value=tool, document=site.document, path=("tools", "checks", index))
        for index, tool in enumerate(site.value.tools.checks)
    )


def trusted_tools() -> tuple[LoadedTool, ...]:
    """Return the tools of the site file that `trusted_site` returns."""
    return site_tools(trusted_site())


def site_expectations(site: Loaded[Site]) -> tuple[Reference, ...]:
    """Return the thresholds of a site; the source of each is its file and line."""
    own = [tool.check() for tool in site.value.tools.checks]
    return tuple(
        parse_expectation(text, source=site.document.where(("expect", index)), own=own)
        for index, text in enumerate(site.value.expect)
    )


def _base(name: str, folder: Path) -> Path:
    """Return the file of a base: a machine, a shared base, or a path relative to `folder`.

    Raises Invalid if the name does not exist.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return folder / name
    shared = resources.values() / "machines" / "base"
    path = shared / f"{name}.yaml"
    if is_file(path):
        return path
    listed = (*names("machines"), *sorted(path.stem for path in shared.glob("*.yaml")))
    if name not in listed:
        raise Invalid(
            (),
            f"base {escaped(name)!r} does not exist",
            known(name, listed),
            code=Code.MACHINE_BASE_UNKNOWN,
        )
    return resources.values() / "machines" / f"{name}.yaml"


def _path(kind: Literal["machines", "suites"], name_or_path: str) -> Path:
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    listed = names(kind)
    if name_or_path in listed:
        return resources.values() / kind / f"{name_or_path}.yaml"
    near = did_you_mean(name_or_path, listed)
    hint = f"{near}all {kind}: accept list {kind}; or the path of your own file"
    if is_file(Path(name_or_path)):
        hint = f"for the file with that name write ./{name_or_path}"
    raise BadInput(
        f"{kind[:-1]} {escaped(name_or_path)!r} does not exist",
        code=Code.MACHINE_UNKNOWN if kind == "machines" else Code.SUITE_UNKNOWN,
        hint=hint,
    )
