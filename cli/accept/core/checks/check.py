"""Define what a check declares about itself. Nothing else lists checks or their metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from accept.core.catalog.metrics import MetricSpec
from accept.core.catalog.tools import Tool
from accept.core.facts import FactKind
from accept.core.judge.evidence import CheckRules
from accept.core.plan import GroupKind
from accept.core.records import Parsed
from accept.core.serde import check_limits
from accept.core.table import Table
from accept.core.text import plain, value_range

T = TypeVar("T")

#: Parses the lines of one raw log and never raises. Checks that share a launch share the function,
#: and its result is for all of them.
Parse = Callable[[Iterable[bytes]], Parsed]

#: Assumed seconds to start the ranks of one wave: a constant, and an addition per host.
_LAUNCH_SECONDS, _LAUNCH_SECONDS_PER_HOST = 4.0, 0.05
#: Assumed seconds until all ranks have their GPU and NCCL has connected them. NCCL connects 96,000
#: GPUs in 265 s, and fewer in less than their share: https://arxiv.org/abs/2510.20171.
_NCCL_SECONDS, _NCCL_SECONDS_PER_RANK = 5.0, 265 / 96_000


def launch_seconds(hosts: int) -> float:
    """Return the seconds to start one wave, which come on top of its checks' estimates."""
    return _LAUNCH_SECONDS + _LAUNCH_SECONDS_PER_HOST * hosts


def nccl_seconds(ranks: int) -> float:
    """Return the seconds in which healthy GPUs start and NCCL connects them."""
    return _NCCL_SECONDS + _NCCL_SECONDS_PER_RANK * ranks


def call_seconds(ranks: int) -> float:
    """Return the assumed time of a small message: 50 us, and 5 us more per rank."""
    return 50e-6 + 5e-6 * ranks


@dataclass(frozen=True, kw_only=True)
class CheckParams(ABC):
    """Base class of the parameters of a check; each field is made with `param`."""

    def __post_init__(self) -> None:
        """Raise ValueError, which names the parameter, for a value outside of its limits."""
        check_limits(self)

    @abstractmethod
    def estimate(self, hosts: int, ranks: int) -> float:
        """Return the seconds of work in one wave, for groups of `hosts` with `ranks` each.

        `launch_seconds` comes on top, once per launch. Time limits are a multiple of it, so it is
        an estimate for a slow machine.
        """

    def healthy_seconds(self, hosts: int, ranks: int, _algbw: float | None) -> float:
        """Return the seconds of work in one wave of a healthy machine.

        `_algbw`: the algorithm bandwidth in GB/s that the machine requires; None: unknown.
        """
        return self.estimate(hosts, ranks)

    def check_planned(self) -> None:
        """Raise ValueError for parameters that logs of others may have, but no planned run.

        The parameters of most checks have no such rule.
        """
        return

    def measures(self, _size: int) -> bool:
        """Return True if messages of this size, in bytes, are measured."""
        return True

    @classmethod
    def merged(cls, lower: Mapping[str, T], upper: Mapping[str, T]) -> dict[str, T]:
        """Return parameters by key; those of `upper` replace those of `lower`."""
        return {**lower, **upper}


@dataclass(frozen=True, kw_only=True)
class Check(CheckRules):
    """Declare one acceptance test."""

    #: One line for `accept list checks`.
    summary: str
    #: Step template under `launchers/steps`.
    template: str
    #: Name of the collective in nccl-tests, if it is not the check's name.
    runs: str = ""
    #: Program by which ranks of the resident program measure it; empty: they cannot.
    program: str = ""
    #: Parameters that its script reads from ACCEPT_NAME: a user may change them after rendering.
    changeable: tuple[str, ...] = ()
    #: Bus bandwidth of many ranks as a multiple of their algorithm bandwidth.
    bus_factor: float = 1.0
    #: True if each check of a shared step starts ranks of its own on GPUs.
    starts_ranks: bool = False
    params: type[CheckParams]
    #: Supported group kinds; the first is the default.
    groups: tuple[GroupKind, ...]
    #: Tools that it needs on a node besides sh; of each tuple, one tool is enough.
    needs: tuple[tuple[Tool, ...], ...] = ()
    #: Metrics that it has. The first is the default metric of an expectation.
    metrics: tuple[MetricSpec, ...] = ()
    #: Facts that its program prints and that are judged.
    facts: tuple[FactKind[object], ...] = ()
    #: Checks with the same launch, parameters and groups share one step; None: a separate step.
    launch: str | None = None
    #: Priority under `--budget`: checks with lower values are dropped first.
    worth: int = 0
    parse: Parse
    #: (its name, what it measured) -> lines for the log of a run; None: its metrics `in_log`.
    log_lines: Callable[[str, Table], Iterator[str]] | None = None
    #: True if each GPU or NIC is measured alone, so that the bounds also hold for a part of a node.
    devices: bool = False
    #: True if it measures RDMA devices: a machine that has none skips it.
    needs_rdma: bool = False
    #: Maker of the GPUs that it is for; None: any. A machine with other GPUs, or none, skips it.
    needs_gpus_of: str | None = None
    #: True if it only reads the state of the hosts and launches no ranks. It runs first.
    read_only: bool = False
    #: True if every run has it, before all checks that measure. The run ends after it unless all
    #: planned ranks reported the fact `rank`.
    gate: bool = False
    #: True if its facts show the GPUs of hosts. Hosts without GPUs are left out after it.
    shows_gpus: bool = False
    #: True if a suite names the script that it runs. The script has metrics of its own, and may
    #: start mpirun itself.
    user_script: bool = False
    #: Faults that its program can show in drills, each with the smallest number of ranks in a group
    #: that lets the verdict name the faulty rank.
    faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def collective(self) -> str:
        """Return its name in nccl-tests."""
        return self.runs or self.name.replace("-", "_")

    def metric(self, name: str) -> MetricSpec | None:
        """Return the declaration of one of its metrics; None if it has no such metric."""
        return next((spec for spec in self.metrics if spec.name == name), None)

    def lines(self, table: Table) -> Iterator[str]:
        """Yield the lines about what it measured in a step, for the log of a run."""
        if self.log_lines is not None:
            yield from self.log_lines(self.name, table)
            return
        metrics = table.where(lambda row: row.rank is None).by(lambda row: row.metric)
        for spec in self.metrics:
            if spec.in_log and spec.name in metrics:
                values = value_range(metrics[spec.name].values)
                yield plain(f"{self.name}: {spec.name} {values} {spec.unit}".rstrip(), 120)
