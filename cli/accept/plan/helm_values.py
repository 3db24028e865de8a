"""Write a rendered run as the values of the Helm chart."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from accept import __version__
from accept.config.chart_values import Launcher, Origin, Values
from accept.config.kubernetes import ClusterSettings, CodeSource, longest_name
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import Plain, dump
from accept.plan import node_code
from accept.plan.bundle import PLAN_FILE, Bundle, code
from accept.plan.chart import chart_folder
from accept.plan.placement import gpu_resource, pod_security_context
from accept.plan.resolve import Resolved

#: Maximum size of the values in bytes, without `site.positions`.
MAX_VALUES = 64_000
#: Maximum size of a ConfigMap of the chart as JSON, in bytes: `kubectl apply` copies it into an
#: annotation of at most 262,144 bytes. chart/templates/validate.yaml has the same limit.
_MAX_CONFIG_MAP = 240_000
#: Maximum size of Helm's record of a release, which is a Secret. Sizes that are computed here are
#: never below those of Helm.
MAX_RECORD = 1024 * 1024
#: What the manifest and the record contain besides the values and the code, in bytes of the record.
_RECORD_FRAME = 5_000
#: The part of values and of the record with the positions of nodes.
_POSITIONS = "site.positions"
#: Maximum size of positions as YAML in the values; larger ones are compressed.
_MAX_READABLE_POSITIONS = 32_000
#: Keys of `site` that decide what the processes of a run are. Other keys decide where they run.
_REPORTED = ("image", "extraEnvFrom", "podSecurityContext", "runtimeClassName")
_RESULTS = ("location", "volume", "holdSeconds")
_HEADER = """\
# Written by `accept render`. You may change these values, or set them with --set:
#   launcher.env      the environment of all ranks. It is final: nothing replaces it.
#   launcher.scripts  the scripts of the steps
#   collectives       message sizes and repetitions, such as collectives.max=16G
#   pod, site         what the pods look like, and where they run
#   debugHoldSeconds, deadlineSeconds (only longer)
# The log, the plan in the evidence and the verdict report what was changed.
# The plan itself, nodes and GPUs cannot be changed here: render again.\
"""
_PACKED_COMMENT = "# Positions of many nodes, instead of site.positions: base64 -d | gunzip\n"
#: Text that every YAML parser reads as text without quotes, except `_YAML_KEYWORDS`.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_YAML_KEYWORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def helm_values(run: Resolved, bundle: Bundle) -> str:
    """Return the Helm values of the run as YAML, with a comment for each setting of NCCL.

    Raises BadInput if they are too large.
    """
    found = values_of(run, bundle)
    packed, positions = found.packed_positions, dict(found.site.positions)
    values = dump(found)
    values.pop("packedPositions")
    plan, launcher = values.pop("plan"), bundle.scripts
    env = {name: setting.value for name, setting in sorted(run.env.items())}
    # The dumper writes no comments, so the lines of `env` must be the last ones of a document.
    lines = _dump({**values, "launcher": {"env": env}}).splitlines()
    first = len(lines) - len(env)
    for index, setting in enumerate((run.env[name] for name in env), first):
        lines[index] += f"  # {setting.origin}"
    if run.script:
        lines.insert(first - 1, f"  # The script of NCCL's plugin comes before: {run.script}")
    scripts = textwrap.indent(_dump({"scripts": dict(launcher)}), "  ")
    text = "\n".join([_HEADER, *lines, scripts + _dump({"plan": plan})])
    placed = _PACKED_COMMENT + _dump({"packedPositions": packed})
    text += placed
    placed += _dump({"site": {"positions": positions}})
    sizes = {name: len(script.encode()) for name, script in launcher.items()}
    sizes["plan"] = len(str(plan).encode())
    _check_size("Helm values", len(text.encode()) - len(placed.encode()), MAX_VALUES, sizes)
    # As JSON, like `kubectl apply` copies it.
    data = json.dumps([plan, {"env": {}, "scripts": dict(launcher)}])
    _check_size("run's ConfigMap", len(data), _MAX_CONFIG_MAP, sizes)
    data = json.dumps([run.site.kubernetes.position_labels, positions, packed])
    _check_size("ConfigMap of site.positions", len(data), _MAX_CONFIG_MAP, {_POSITIONS: len(data)})
    parts = record_parts(text, placed, code_source(run))
    _check_size("record that Helm keeps of the release", sum(parts.values()), MAX_RECORD, parts)
    return text


def code_source(run: Resolved) -> CodeSource:
    """Return where the pods find the code: in the image if the site or the image's tag shows it.

    The pods compare the code in the image with that of the values before they start anything.
    """
    site = run.site.kubernetes
    if site.code != "auto":
        return site.code
    tagged, _, _ = (site.image or "").partition("@")
    return "image" if tagged.endswith(f"code-{node_code.digest(code())[:12]}") else "chart"


def record_parts(values: str, positions: str, source: CodeSource) -> Mapping[str, int]:
    """Return the parts of Helm's record of a release and their sizes in bytes.

    Helm stores the chart, the values and the manifest as JSON, compressed with gzip and encoded
    with base64. It leaves out the chart inside the chart, which has the code. The manifest contains
    the values again, and the code if it comes from the chart.
    `values` and `positions`, which is a part of `values`, are YAML.
    """
    of_positions = 2 * _in_record(positions.encode())
    of_values = 2 * _in_record(values.encode()) - of_positions
    return {
        "the chart": _chart_in_record(chart_folder()) + _RECORD_FRAME,
        "the code in ConfigMaps (site.code)": _code_in_record(chart_folder()) * (source != "image"),
        "the plan, scripts and settings": of_values,
        _POSITIONS: of_positions,
    }


def _in_record(data: bytes) -> int:
    return len(base64.b64encode(gzip.compress(data)))


@cache
def _chart_in_record(chart: Path) -> int:
    """Return how much of Helm's record the chart is: each file is in base64 there."""
    inside = chart / "charts"
    files = (path for path in sorted(chart.rglob("*")) if path.is_file())
    files = (path for path in files if inside not in path.parents)
    return _in_record(b"".join(base64.b64encode(path.read_bytes()) for path in files))


@cache
def _code_in_record(chart: Path) -> int:
    """Return how much of Helm's record the ConfigMaps of the code are."""
    files = sorted((chart / node_code.CHART_FOLDER).iterdir())
    archives = (path.read_bytes() for path in files if path.suffix == ".bz2")
    scripts = (path.read_bytes() for path in files if path.suffix == ".sh")
    return _in_record(b"".join((*map(base64.b64encode, archives), *scripts)))


def pack_positions(positions: Mapping[str, str], labels: Sequence[str] = ()) -> bytes:
    """Return positions as the compressed file that index 0 reads."""
    data = {"labels": list(labels), "positions": dict(positions)}
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0)


def _dump(values: Mapping[str, object]) -> str:
    """Return values as YAML that Helm reads like PyYAML does."""
    import yaml

    # libyaml is fast, and every wheel of PyYAML has it.
    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        # Helm reads more words as numbers and booleans than PyYAML quotes, such as y and 1e3.
        plain = _PLAIN_TEXT.fullmatch(value) and value.lower() not in _YAML_KEYWORDS
        style = "|" if "\n" in value else None if plain else "'"
        if style == "|" and value.endswith("\n\n"):
            # libyaml writes `...` after such a block, which Helm does not read.
            style = '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    dumped = yaml.dump(values, Dumper=Dumper, sort_keys=False, width=1 << 20, allow_unicode=True)
    return str(dumped)


def _check_size(what: str, size: int, limit: int, parts: Mapping[str, int]) -> None:
    """Raise BadInput if something is too large for Helm or for `kubectl apply`."""
    if size > limit:
        largest = sorted(parts, key=lambda name: -parts[name])[:4]
        listed = ", ".join(f"{name} {parts[name]}" for name in largest if parts[name])
        hints: tuple[str, ...] = (
            "take the code from the image (kubernetes.code)",
            "put large scripts and their data into the image or on a volume of the pods",
        )
        if largest and largest[0] == _POSITIONS:
            own = "leave out kubernetes.positions: with kubernetes.readNodes index 0 reads the "
            hints = (f"{own}labels of the nodes itself, and `accept run` reads them for it",)
        raise BadInput(
            f"the {what} would have {size} bytes, and at most {limit} are possible"
            + (f": {listed}" if listed else ""),
            code=Code.HELM_TOO_LARGE,
            hint=", or ".join(hints),
        )


def values_of(run: Resolved, bundle: Bundle) -> Values:
    """Return the Helm values of the run."""
    plan = bundle.plan
    scripts = bundle.scripts
    # As text, because Helm writes a number of seven digits with an exponent.
    pod = replace(run.pod, env={key: str(value) for key, value in run.pod.env.items()})
    cluster = run.site.kubernetes
    is_large = len(_dump(dict(cluster.positions))) > _MAX_READABLE_POSITIONS
    packed = pack_positions(cluster.positions, cluster.position_labels) if is_large else b""
    site = ClusterSettings(
        **{
            **{item.name: getattr(cluster, item.name) for item in fields(ClusterSettings)},
            "code": code_source(run),
            "positions": {} if is_large else cluster.positions,
            "pod_security_context": pod_security_context(run.pod, cluster.pod_security_context),
        }
    )
    return Values(
        accept=Origin(
            version=__version__,
            run=plan.hash,
            machine=plan.machine.name,
            code=node_code.digest(code()),
            plan=_sha256(bundle.files[PLAN_FILE].decode()),
            waits_for_capacity=cluster.waits_for_capacity,
            settings={
                path: _sha256(_go_json(setting or ""))
                for path, setting in (
                    ("pod", dump(replace(pod, source=None))),
                    *((f"results.{key}", dump(run.site.results).get(key)) for key in _RESULTS),
                    *((f"site.{key}", dump(site).get(key)) for key in _REPORTED),
                )
            },
            scripts={name: _sha256(text) for name, text in scripts.items()},
        ),
        nodes=plan.nodes or 0,
        gpus_per_node=plan.gpus_used if plan.gpus_used is not None else plan.machine.gpus,
        longest_name=longest_name(plan.nodes or 1),
        one_pod_per_node=run.gpus_per_pod is not None or not gpu_resource(pod.resources),
        pod=pod,
        site=site,
        packed_positions=base64.b64encode(packed).decode(),
        results=run.site.results,
        deadline_seconds=math.ceil(plan.deadline_seconds),
        start_seconds=math.ceil(plan.start_seconds),
        debug_hold_seconds=math.ceil(plan.hold_seconds),
        debug_hold_always=plan.hold_always,
        resumed=bool(run.earlier),
        launcher=Launcher(
            env={name: setting.value for name, setting in run.env.items()}, scripts=dict(scripts)
        ),
        plan=bundle.files[PLAN_FILE].decode(),
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _go_json(value: Plain) -> str:
    """Return data as the JSON that the chart's `toRawJson` writes after reading it as YAML."""

    def numbers(data: Plain) -> Plain:
        if isinstance(data, dict):
            return {key: numbers(item) for key, item in data.items()}
        if isinstance(data, list | tuple):
            return [numbers(item) for item in data]
        return int(data) if isinstance(data, float) and data.is_integer() else data

    return json.dumps(numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
