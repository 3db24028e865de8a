"""The closed sets of names that commands take as arguments."""

from __future__ import annotations

from enum import StrEnum


class Listing(StrEnum):
    """The names that `accept list` takes."""

    MACHINES = "machines"
    PROFILES = "profiles"
    SUITES = "suites"
    CHECKS = "checks"
    CAUSES = "causes"
    SIGNS = "signs"
    FAULTS = "faults"
    BACKENDS = "backends"
    ERRORS = "errors"
    SITES = "sites"
    SCHEMAS = "schemas"
    RUNS = "runs"
    #: The free nodes of a cluster.
    NODES = "nodes"


class Shown(StrEnum):
    """The names that `accept show` takes first."""

    MACHINE = "machine"
    SUITE = "suite"
    CHECK = "check"
    CAUSE = "cause"
    FAULT = "fault"
    BACKEND = "backend"
    ERROR = "error"
    SITE = "site"
    RUN = "run"
    #: The nodes of a run.
    NODES = "nodes"
    SCHEMA = "schema"


class OnTimeout(StrEnum):
    """The answer of `accept gate` about checks that did not finish in time."""

    PASS = "pass"
    FAIL = "fail"


class Schema(StrEnum):
    """The names that `accept show schema` takes: files, and the output of commands with --json."""

    MACHINE = "machine"
    SITE = "site"
    SUITE = "suite"
    TOOL = "tool"
    PLAN = "plan"
    RECORD = "record"
    VERDICT = "verdict"
    DRILL = "drill"
    REPEAT = "repeat"
    VALUES = "values"
    DRY_RUN = "dry-run"
    RENDER = "render"
    SUBMIT = "submit"
    COLLECT = "collect"
    JUDGE = "judge"
    REPORT = "report"
    DIFF = "diff"
    BASELINE = "baseline"
    CANCEL = "cancel"
    CLEAN = "clean"
    CLEAN_FOLDERS = "clean-folders"
    DRILL_DRY_RUN = "drill-dry-run"
    DOCTOR = "doctor"
    RBAC = "rbac"
    NODES = "nodes"
    NODE_LISTS = "node-lists"
    EXPLAIN = "explain"
    TICKET = "ticket"
    RETEST = "retest"
    VERIFY = "verify"
    GATE = "gate"
    PICK = "pick"
    INIT = "init"
    LIST = "list"
    RUNS = "runs"
    RUN = "run"
    CHECK = "check"
    CAUSE = "cause"
    FAULT = "fault"
    ERROR = "error"
    CHART = "chart"
