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

    #: MODULE:CLASS in `accept`. It is imported when needed, because the shell completes the names.
    path: str

    def __new__(cls, name: str, path: str = "") -> Schema:
        """Make a name that has a type."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.path = path
        return member

    MACHINE = "machine", "config.machine:Machine"
    SITE = "site", "config.site:Site"
    SUITE = "suite", "config.suite:Suite"
    TOOL = "tool", "config.tool_file:ToolFile"
    PLAN = "plan", "core.plan:Plan"
    RECORD = "record", "core.records:Record"
    VERDICT = "verdict", "core.verdict:Verdict"
    DRILL = "drill", "commands.drill_faults:Drill"
    REPEAT = "repeat", "report.repeated:Repeated"
    VALUES = "values", "config.chart_values:Values"
    DRY_RUN = "dry-run", "commands.plan:PlannedRun"
    RENDER = "render", "commands.plan:RenderedRun"
    SUBMIT = "submit", "backends.job:Job"
    COLLECT = "collect", "commands.collect:Collected"
    JUDGE = "judge", "commands.judge:JudgedVerdict"
    REPORT = "report", "commands.report:Reports"
    DIFF = "diff", "commands.diff:Diff"
    BASELINE = "baseline", "commands.baseline:BaselineFile"
    CANCEL = "cancel", "commands.collect:Cancelled"
    CLEAN = "clean", "commands.collect:Cleaned"
    CLEAN_FOLDERS = "clean-folders", "commands.collect:Pruned"
    DRILL_DRY_RUN = "drill-dry-run", "commands.drill:PlannedDrill"
    DOCTOR = "doctor", "commands.doctor:Requirements"
    RBAC = "rbac", "commands.doctor:Role"
    NODES = "nodes", "commands.cluster:FreeNodes"
    NODE_LISTS = "node-lists", "core.judge.summary:NodeLists"
    EXPLAIN = "explain", "commands.explain:Explanation"
    TICKET = "ticket", "commands.ticket:TicketFiles"
    RETEST = "retest", "commands.retest:RetestResult"
    VERIFY = "verify", "commands.verify:Report"
    GATE = "gate", "commands.gate:Gated"
    PICK = "pick", "commands.pick:Picked"
    INIT = "init", "commands.cluster:SiteFile"
    LIST = "list", "commands.catalog:Listed"
    RUNS = "runs", "commands.runs:ListedRuns"
    RUN = "run", "commands.runs:RunPage"
    CHECK = "check", "commands.check_page:CheckPage"
    CAUSE = "cause", "commands.catalog:CausePage"
    FAULT = "fault", "commands.catalog:FaultPage"
    ERROR = "error", "commands.catalog:Entry"
    CHART = "chart", "commands.catalog:ChartPath"

    @property
    def value_type(self) -> type:
        """Return the dataclass of the file or output."""
        from pkgutil import resolve_name

        found: type = resolve_name(f"accept.{self.path}")
        return found
