"""The closed sets of names that commands take as arguments."""

from __future__ import annotations

from enum import StrEnum


class Listing(StrEnum):
    """What `accept list` can list."""

    MACHINES = "machines"
    SUITES = "suites"
    CHECKS = "checks"
    BACKENDS = "backends"
    RUNS = "runs"
    ERRORS = "errors"


class Shown(StrEnum):
    """What `accept show` can show."""

    MACHINE = "machine"
    SUITE = "suite"
    SITE = "site"
    CAUSE = "cause"
    ERROR = "error"


class Schema(StrEnum):
    """What `accept schema` can describe: files, and what commands print with --json."""

    MACHINE = "machine"
    SITE = "site"
    SUITE = "suite"
    PLAN = "plan"
    RECORD = "record"
    VERDICT = "verdict"
    DRILL = "drill"
    VALUES = "values"
    DRY_RUN = "dry-run"
    RENDER = "render"
    SUBMIT = "submit"
    WATCH = "watch"
    COLLECT = "collect"
    CANCEL = "cancel"
    DELETE = "delete"
    DRILL_DRY_RUN = "drill-dry-run"
    DOCTOR = "doctor"
    RBAC = "rbac"
    NODES = "nodes"
    INIT = "init"
    LIST = "list"
    CAUSE = "cause"
    ERROR = "error"
    CHART = "chart"
