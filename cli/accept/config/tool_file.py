"""Define checks that run programs of others: in `values/tools/NAME.yaml`, your file or site file.

Everything about such a check is there: how the program is found and started, what it needs, where
its results are, and how they are judged. It becomes a `Check` like all others, and the plan of a
run contains it as a `Tool`, with the parameters of the run filled in.
"""

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Literal

from accept.config.fields import Env, Name, Url, check_env, is_secret
from accept.core import record_protocol
from accept.core.catalog.metrics import BETTER_BY_UNIT, MetricSpec
from accept.core.catalog.tools import MPIRUN
from accept.core.causes import Cause
from accept.core.checks.check import Check, CheckParams
from accept.core.error_codes import Code
from accept.core.judge import tools as judge_tools
from accept.core.plan import (
    BoundKind,
    GroupKind,
    ParamValue,
    Plan,
    Reference,
    Tool,
    ToolNeeds,
    ToolParts,
    ToolResult,
)
from accept.core.serde import Bounds, Doc, Invalid, Keys, Pattern, escaped, known, param
from accept.core.text import parse_size
from accept.core.tool_output import PLACEHOLDERS, why_ambiguous

#: Returns the error of a file of a tool.
_wrong = partial(Invalid, code=Code.TOOL_INVALID)
#: Bits of the capabilities that tools need: linux/capability.h.
_CAPABILITIES = {
    "dac-override": 1, "net-admin": 12, "net-raw": 13, "ipc-lock": 14, "sys-rawio": 17,
    "sys-admin": 21, "sys-nice": 23, "sys-resource": 24, "perfmon": 38,
}  # fmt: skip
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
#: What a host fills in: its path of the program, and the tool's own folder.
_OF_HOST = ("program", "folder", "peer", "port", "nic", "nicport", "gpu")
#: Priority of tools under `--budget`.
WORTH = 30
#: Longest value of a parameter.
_MOST_TEXT = 200

Word = Annotated[str, Pattern(r"[^\0\n]{1,500}", "one line of at most 500 characters")]
Version = Annotated[str, Pattern(r"\d{1,6}(\.\d{1,6}){1,3}", "a version such as 3.20")]
Device = Annotated[str, Pattern(r"/dev/[\w./-]{1,100}", "a path below /dev")]
Pointer = Annotated[str, Pattern(r"(/[^/\0\n]{1,80}){1,12}", "a JSON Pointer such as /jobs/0/bw")]
ToolSeconds = Annotated[float, Bounds(min=1, max=86400)]


@dataclass(frozen=True, kw_only=True)
class ToolParam:
    """A parameter of a tool, which `{NAME}` in its command stands for."""

    about: Annotated[str, Doc("One line for people.")]
    default: Annotated[
        int | float | str | None, Doc("Its default, and its type; unset: a run must give a text.")
    ] = None
    example: Annotated[str, Doc("An example, if there is no default.")] = ""

    def __post_init__(self) -> None:
        """Raise Invalid if nobody could know what to give."""
        if self.default is None and not self.example:
            raise _wrong((), "it has neither a default nor an example")


@dataclass(frozen=True, kw_only=True)
class ToolBound:
    """A limit of a result."""

    machine: Annotated[str | None, Doc("Only on this machine; unset: on all.")] = None
    least: Annotated[float | None, Doc("Lowest good value.")] = None
    most: Annotated[float | None, Doc("Highest good value.")] = None
    kind: Annotated[Literal["vendor", "spec", "measured"], Doc("Who states it.")] = "vendor"
    floor: Annotated[
        bool, Doc("Whether it shows only that something was measured, and not that it is enough.")
    ] = False
    source: Url

    def __post_init__(self) -> None:
        """Raise Invalid if it bounds nothing."""
        if self.least is None and self.most is None:
            raise _wrong((), "it has neither `least` nor `most`")


@dataclass(frozen=True, kw_only=True)
class ResultPlace:
    """A number that the tool prints, and how it is judged."""

    json: Annotated[
        Pointer | None,
        Doc(
            "Its JSON Pointer (RFC 6901) in the output; `*` means every element, `name=x` those "
            "whose name is x."
        ),
    ] = None
    gpus: Annotated[
        bool,
        Doc(
            "Whether the last `*` of its JSON Pointer is the number of a GPU. In a line: whether "
            "what begins at the first placeholder is there once for each GPU, with ` - ` between."
        ),
    ] = False
    line: Annotated[
        Word | None,
        Doc(
            "The beginning of its line: text, `{value}`, `{unit}` if it is printed, and `{_}` for "
            "any word, such as 'Triad: {value}'."
        ),
    ] = None
    last: Annotated[
        bool, Doc("Whether only the last such line counts, as of progress that is printed anew.")
    ] = False
    unit: Annotated[str, Doc("Its unit, which also decides if more is better.")]
    scale: Annotated[float, Doc("Factor from the printed number to the unit.")] = 1.0
    noise: Annotated[
        Annotated[float, Bounds(min=0, max=0.3)],
        Doc(
            "Standard deviation of healthy hosts, as a share of their median: hosts that are far "
            "below it are bad. 0: hosts are not compared."
        ),
    ] = 0.0
    bounds: Annotated[tuple[ToolBound, ...], Doc("Limits of good values, with sources.")] = ()

    def __post_init__(self) -> None:
        """Raise Invalid for an unknown unit, and unless there is exactly one place."""
        if self.unit not in BETTER_BY_UNIT:
            message = f"{escaped(self.unit)!r} is not a known unit"
            hint = known(self.unit, BETTER_BY_UNIT)
            raise _wrong(("unit",), message, hint)
        if (self.json is None) == (self.line is None):
            raise _wrong((), "a result needs either `json` or `line`")
        names = _PLACEHOLDER.findall(self.line or "{value}")
        words = [_PLACEHOLDER.findall(word) for word in (self.line or "").split()]
        if names.count("value") != 1 or any(len(word) > 2 for word in words):
            message = "a line needs `{value}` once; others are `{unit}` and, as a word, `{_}`"
            raise _wrong(("line",), message)
        if reason := why_ambiguous(self.line or ""):
            raise _wrong(("line",), reason)
        if self.gpus and "*" not in (self.json or "*").split("/"):
            raise _wrong(("gpus",), "numbers of GPUs need `*` in the JSON Pointer")
        if self.scale <= 0:
            raise _wrong(("scale",), "it must be above 0")


@dataclass(frozen=True, kw_only=True)
class PartsPlace:
    """Good or bad results of single parts, such as GPUs."""

    json: Annotated[
        Pointer | None, Doc("JSON Pointer to the objects with one result each; or `line`.")
    ] = None
    state: Annotated[str, Doc("With `json`: the key with the state in each.")] = ""
    line: Annotated[
        Word | None,
        Doc("The beginning of a line with one result: `{state}`, and `{gpu}` for a GPU's number."),
    ] = None
    good: Annotated[tuple[str, ...], Bounds(min=1, max=20), Doc("Its good values.")]
    bad: Annotated[
        tuple[str, ...], Bounds(max=20), Doc("Its bad values; unset: all that are not good.")
    ] = ()
    gpu: Annotated[tuple[str, ...], Doc("Keys that may have the number of the GPU.")] = ()
    gpu_where: Annotated[
        dict[str, str],
        Doc("Keys and their values in the objects of GPUs, if others have such numbers as well."),
    ] = field(default_factory=dict)
    text: Annotated[Pointer | None, Doc("Where, from the object, a text explains a bad one.")] = (
        None
    )
    errors: Annotated[
        str,
        Doc(
            "With `line`: the text before the number of errors of each GPU, with ` - ` between, in "
            "other lines. A GPU with errors is bad."
        ),
    ] = ""
    kind: Annotated[
        Pointer | None, Doc("Where, from the object, the kinds of errors of a bad one are.")
    ] = None
    untested: Annotated[
        tuple[str, ...],
        Doc("Kinds that say nothing about the part: if all are, it was not tested."),
    ] = ()

    def __post_init__(self) -> None:
        """Raise Invalid unless there is exactly one place of a state."""
        names = set(_PLACEHOLDER.findall(self.line or ""))
        places = [self.json is not None and bool(self.state), "state" in names]
        if places.count(True) != 1 or names - set(PLACEHOLDERS):
            raise _wrong((), "it needs either `json` and `state`, or a `line` with `{state}`")
        if reason := why_ambiguous(self.line or ""):
            raise _wrong(("line",), reason)


@dataclass(frozen=True, kw_only=True)
class ToolVersion:
    """The command that prints a version, and the oldest good one."""

    command: Annotated[tuple[Word, ...], Bounds(min=1, max=8), Doc("Prints it.")]
    least: Annotated[Version, Doc("The oldest one that works.")]


class GpuMaker(StrEnum):
    """The makers of GPUs, by the first word of the names of their GPUs."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a host, without which the check is not tested there."""

    gpus_of: Annotated[
        GpuMaker | None, Doc("The maker of its GPUs: other machines skip the check.")
    ] = None
    root: Annotated[bool, Doc("Whether it must run as root.")] = False
    devices: Annotated[tuple[Device, ...], Doc("Devices that it must be able to open.")] = ()
    capabilities: Annotated[tuple[str, ...], Doc("Capabilities of Linux, such as ipc-lock.")] = ()
    space: Annotated[str, Doc("Free space in its folder, such as 8G or `{size}`.")] = ""

    def __post_init__(self) -> None:
        """Raise Invalid for an unknown capability."""
        for index, name in enumerate(self.capabilities):
            if name not in _CAPABILITIES:
                message = f"{escaped(name)!r} is not a known capability"
                hint = known(name, _CAPABILITIES)
                raise _wrong(("capabilities", index), message, hint)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The meaning of a status other than 0, and of no end in time."""

    cause: Annotated[Cause, Doc("The cause of the finding.")] = Cause.TOOL_FAILED
    meaning: Annotated[str, Doc("One line for people.")] = ""

    def __post_init__(self) -> None:
        """Raise Invalid for a cause other than a failure."""
        if self.cause.row.not_tested or self.cause.row.not_judged:
            message = f"{self.cause} is not the cause of a failure"
            raise _wrong(("cause",), message, "such as tool-failed")


@dataclass(frozen=True, kw_only=True)
class Others:
    """The beginning and the results of outputs of others, which `accept judge` reads."""

    starts: Annotated[
        tuple[Word, ...], Bounds(min=1, max=8), Doc("One of them is in the first 16 KiB.")
    ]
    ends: Annotated[
        str, Doc("The beginning of a line near its end: an output without it is cut.")
    ] = ""
    results: Annotated[
        dict[str, ResultPlace],
        Doc("Results, if other commands print other ones; zeros are left out."),
    ] = field(default_factory=dict)
    parts: Annotated[PartsPlace | None, Doc("Parts, if a run does not need them.")] = None


@dataclass(frozen=True, kw_only=True)
class ToolFile:
    """A program of others as a check."""

    name: Name
    summary: Annotated[str, Doc("One line for `accept list checks`.")]
    source: Annotated[Url, Doc("The tool's own documentation.")]
    install: Annotated[str, Doc("How to install it.")] = ""
    command: Annotated[
        tuple[Word, ...],
        Bounds(min=1, max=100),
        Doc(
            "The program and its arguments, started without a shell. `{PARAMETER}` is a parameter, "
            "`{folder}` the tool's own folder, `{peer}` the address of the other host of a pair. A "
            "word with an empty parameter is left out. For a shell: [sh, -c, ...]."
        ),
    ]
    server: Annotated[
        tuple[Word, ...],
        Bounds(max=100),
        Doc(
            "For pairs: the command on the second host; unset: `command` without the words that "
            "have `{peer}`. `command` starts on the first host when this listens on `{port}`. "
            "Afterwards it is ended, if it has not ended itself."
        ),
    ] = ()
    port: Annotated[
        Annotated[int, Bounds(min=1024, max=32000)],
        Doc("For pairs: the TCP port of `server`; the next one connects the two hosts as well."),
    ] = 18515
    per: Annotated[
        Literal["host", "nic"],
        Doc(
            "nic: it runs once for each RDMA port that GPUs use, one after the other; `{nic}` is "
            "its device, `{nicport}` its number, and `{gpu}` the UUID of the nearest GPU."
        ),
    ] = "host"
    env: Annotated[Env, Doc("Environment variables.")] = field(default_factory=dict)
    version: ToolVersion | None = None
    groups: Annotated[
        tuple[Literal["each", "alone", "pairs", "all"], ...],
        Bounds(min=1, max=3),
        Doc(
            "Where it may run; the first one is the default. each: on every host, at the same "
            "time. alone: on one host after the other. pairs: on disjoint pairs. all: it starts "
            "on the first host, and reaches the others itself, as with accept-mpirun."
        ),
    ] = ("each",)
    params: Annotated[
        dict[str, ToolParam],
        Keys(r"[a-z]{1,20}", "a word of a-z"),
        Doc("Its parameters by name, for a suite and --set."),
    ] = field(default_factory=dict)
    folder: Annotated[
        str, Doc("Where the tool gets a folder of its own, which is removed; such as `{path}`.")
    ] = ""
    needs: Needs = field(default_factory=Needs)
    seconds: Annotated[ToolSeconds, Doc("Expected duration in seconds.")]
    seconds_of: Annotated[
        dict[str, dict[str, ToolSeconds]],
        Doc("Expected duration for values of parameters, by parameter and value."),
    ] = field(default_factory=dict)
    timeout: Annotated[ToolSeconds, Doc("Longest duration in seconds.")]
    results: Annotated[
        dict[str, ResultPlace],
        Keys(r"[a-z0-9][a-z0-9-]{0,40}", "a name of a-z, 0-9 and '-'"),
        Doc("The numbers that are read, by name."),
    ] = field(default_factory=dict)
    parts: PartsPlace | None = None
    failure: Failure = field(default_factory=Failure)
    others: Others | None = None

    def __post_init__(self) -> None:
        """Raise Invalid for placeholders without a parameter, and for secrets."""
        check_env(self.env, ("env",))
        for name in self.params:
            if keyword.iskeyword(name) or hasattr(CheckParams, name):
                raise _wrong(("params", name), f"a parameter cannot be called {name}")
        texts = {"command": self.command, "folder": (self.folder,), "needs": (self.needs.space,)}
        texts["server"] = self.server
        texts["env"] = tuple(map(str, self.env.values()))
        texts["results"] = tuple(one.line or "" for one in self.results.values())
        for key, values in texts.items():
            names = [*self.params, *(PLACEHOLDERS if key == "results" else _OF_HOST)]
            for name in (one for text in values for one in _PLACEHOLDER.findall(text)):
                if name not in names:
                    message = f"{{{escaped(name)}}} is not a parameter"
                    raise _wrong((key,), message, known(name, names))
        if any("{folder}" in text for text in self.command) and not self.folder:
            raise _wrong(("command",), "{folder} in the command needs the key `folder`")
        has_peer = any("{peer}" in word for word in self.command)
        if (has_peer or bool(self.server)) != self.of_pairs or "{peer}" in self.command[0]:
            message = "`groups: [pairs]` needs `{peer}` in the command, and only that has it"
            raise _wrong(("command",), message)
        if is_secret(" ".join((*self.command, *self.server))):
            message = "it contains a password or a token, and evidence keeps the command"
            raise Invalid(("command",), message, code=Code.SETTING_SECRET)

    @property
    def of_pairs(self) -> bool:
        """Return True if it needs two hosts."""
        return self.groups == ("pairs",)

    def bounds(self, machine: str) -> Iterator[Reference]:
        """Yield the limits of its results on a machine."""
        for name, result in self.results.items():
            for bound in result.bounds:
                if bound.machine in (None, machine):
                    yield Reference(
                        check=self.name,
                        metric=name,
                        unit=result.unit,
                        kind=BoundKind(bound.kind),
                        source=bound.source,
                        lower=bound.least,
                        upper=bound.most,
                    )

    def planned(self, params: Mapping[str, ParamValue], timeout: float | None) -> Tool:
        """Return the tool with the parameters of a run. Raises Invalid."""

        def filled(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: str(params.get(found[1], found[0])), text)

        def words(command: tuple[str, ...]) -> tuple[str, ...]:
            """Return a command without the words whose parameter is empty."""
            empty = [f"{{{name}}}" for name, value in params.items() if value == ""]
            return tuple(filled(w) for w in command if not any(name in w for name in empty))

        try:
            space = parse_size(filled(self.needs.space)) if self.needs.space else 0
        except ValueError as error:
            raise _wrong(("needs", "space"), str(error)) from None
        folder = filled(self.folder)
        if folder and not folder.startswith("/"):
            message = f"{escaped(folder)!r} is not an absolute path, such as /mnt/nvme"
            raise _wrong(("folder",), message)
        server = self.server or tuple(word for word in self.command if "{peer}" not in word)
        return Tool(
            name=self.name,
            command=words(self.command),
            server=words(server) if self.of_pairs else (),
            port=self.port if self.of_pairs else 0,
            per_nic=self.per == "nic",
            env={name: filled(str(value)) for name, value in self.env.items()},
            version=self.version.command if self.version else (),
            least=self.version.least if self.version else "",
            install=self.install,
            folder=folder,
            needs=ToolNeeds(
                root=self.needs.root,
                devices=self.needs.devices,
                capabilities={name: _CAPABILITIES[name] for name in self.needs.capabilities},
                space=space,
            ),
            timeout=timeout or self.timeout,
            results=tuple(
                ToolResult(
                    name=name,
                    unit=one.unit,
                    json=one.json or "",
                    of_gpu=one.gpus,
                    line=filled(one.line or ""),
                    last=one.last,
                    scale=one.scale,
                    noise=one.noise,
                    floor=any(bound.floor for bound in one.bounds),
                )
                for name, one in self.results.items()
            ),
            # A plan has empty texts for the places that are not used.
            parts=ToolParts(
                **{"json": "", **{k: v for k, v in vars(self.parts).items() if v is not None}}
            )
            if self.parts
            else None,
            cause=self.failure.cause,
            meaning=self.failure.meaning,
            of_gpus=self.needs.gpus_of is not None,
        )

    def check(self) -> Check:
        """Return it as a check."""
        return replace(
            _check(self.name, {name: one.unit for name, one in self.results.items()}),
            summary=self.summary,
            params=self._params(),
            groups=tuple(map(GroupKind, self.groups)),
            needs=((MPIRUN,),) if self.of_pairs else (),
            needs_rdma=self.per == "nic",
            needs_gpus_of=self.needs.gpus_of,
        )

    def _seconds(self, params: CheckParams) -> float:
        """Return the expected duration with these parameters."""
        known = (of.get(str(getattr(params, name, ""))) for name, of in self.seconds_of.items())
        return next((seconds for seconds in known if seconds), self.seconds)

    def _params(self) -> type[CheckParams]:
        """Return the class of its parameters; those without a default must be given."""
        given = self.params

        def check_planned(params: CheckParams) -> None:
            for name, one in given.items():
                value = str(getattr(params, name))
                if one.default is None and not value:
                    raise ValueError(f"{name} is required, such as {name}={one.example}")
                if not value.isprintable() or len(value) > _MOST_TEXT or value[:1] == "-":
                    expected = f"at most {_MOST_TEXT} printable characters, the first one not '-'"
                    raise ValueError(f"{name}: {escaped(value)!r} is not valid: {expected}")

        fields = []
        for name, one in given.items():
            about = one.about + (f", such as {one.example}" if one.example else "")
            default = "" if one.default is None else one.default
            kind = type(default) if default != "" else int | float | str
            fields.append((name, kind, param(default, about)))
        body = {
            "estimate": lambda params, *_: self._seconds(params),
            "check_planned": check_planned,
        }
        return make_dataclass(
            "ToolParams", fields, bases=(CheckParams,), namespace=body, frozen=True, kw_only=True
        )


@dataclass(frozen=True, kw_only=True)
class _NoParams(CheckParams):
    """The parameters of a tool whose file is unknown."""

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return 0: it does not run."""
        return 0.0


def _check(name: str, units: Mapping[str, str]) -> Check:
    """Return a check with these results, by name, and nothing else."""
    return Check(
        name=name,
        summary="",
        template="tool.sh.j2",
        params=_NoParams,
        groups=(GroupKind.EACH,),
        metrics=tuple(
            MetricSpec(name=result, unit=unit, better=BETTER_BY_UNIT[unit])
            for result, unit in units.items()
        ),
        worth=WORTH,
        parse=record_protocol.parse,
        judge=judge_tools.judge,
        devices=True,
    )


def planned_checks(plan: Plan) -> tuple[Check, ...]:
    """Return the checks of the tools in a plan, whose files may be unknown here."""
    tools = {step.tool.name: step.tool for step in plan.steps if step.tool}
    return tuple(
        _check(name, {r.name: r.unit for r in tool.results if r.unit in BETTER_BY_UNIT})
        for name, tool in tools.items()
    )
