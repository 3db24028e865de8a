"""Write a rendered run as the values of the Helm chart."""

from __future__ import annotations

import hashlib
import json
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import count, zip_longest

from accept import __version__
from accept.config.chart_values import Launcher, Origin, Values
from accept.config.kubernetes import ClusterSettings, longest_name
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import Plain, dump
from accept.plan import node_code
from accept.plan.bundle import PLAN_FILE, Bundle, code
from accept.plan.placement import gpu_resource
from accept.plan.resolve import Resolved

#: Maximum size of the values in bytes, without `site.positions`. Helm keeps them with the manifest
#: in a Secret of 1 MiB.
MAX_VALUES = 64_000
#: Maximum size of the run's ConfigMap as JSON, in bytes: `kubectl apply` copies it into an
#: annotation of at most 262,144 bytes. chart/templates/validate.yaml has the same limit.
_MAX_CONFIG_MAP = 240_000
#: Maximum size of positions as JSON, in bytes; larger ones are cut. Helm's record contains them
#: twice, and random identifiers cannot be compressed.
_MAX_POSITIONS = 62_000
_HEADER = """\
# Written by `accept render`. You may change these values, or set them with --set:
#   launcher.env      the environment of all ranks. It is final: nothing replaces it.
#   launcher.scripts  the scripts of the steps
#   pod, site         what the pods look like, and where they run
# The log, the plan in the evidence and the verdict report what was changed in launcher and pod.
# The plan itself, nodes, GPUs and times cannot be changed here: render again.\
"""
#: Text that every YAML parser reads as text without quotes, except `_YAML_KEYWORDS`.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_YAML_KEYWORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def helm_values(run: Resolved, bundle: Bundle) -> str:
    """Return the Helm values of the run as YAML, with a comment for each setting of NCCL.

    Raises BadInput if they are too large.
    """
    values = dump(values_of(run, bundle))
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
    positions = run.site.kubernetes.positions
    _check_size(
        len(text.encode()) - len(_dump({"site": {"positions": dict(positions)}}).encode()),
        MAX_VALUES,
        "Helm values",
        {**launcher, "plan": str(plan)},
    )
    _check_size(
        _config_map_size(run, bundle, positions),
        _MAX_CONFIG_MAP,
        "run's ConfigMap",
        {**launcher, "plan": str(plan), "site.positions": _dump(positions)},
    )
    return text


def positions_that_fit(
    run: Resolved, bundle: Bundle, positions: Mapping[str, str]
) -> Mapping[str, str]:
    """Return positions that the run's ConfigMap and Helm's record can contain; none if too many.

    If they are large, the parts of each position are cut to the shortest beginnings that differ:
    providers name parts of a network by long random identifiers.
    """
    if len(json.dumps(dict(positions))) > _MAX_POSITIONS:
        positions = _cut(positions)
    fits = (
        len(json.dumps(dict(positions))) <= _MAX_POSITIONS
        and _config_map_size(run, bundle, positions) <= _MAX_CONFIG_MAP
    )
    return positions if fits else {}


def _cut(positions: Mapping[str, str]) -> Mapping[str, str]:
    """Cut the parts of positions to the shortest beginnings that differ, at least 4 characters."""
    levels = zip_longest(*(position.split("/") for position in positions.values()), fillvalue="")
    lengths = [
        next(n for n in count(4) if len({part[:n] for part in level}) == len(set(level)))
        for level in levels
    ]
    return {
        node: "/".join(part[:n] for part, n in zip(position.split("/"), lengths, strict=False))
        for node, position in positions.items()
    }


def _config_map_size(run: Resolved, bundle: Bundle, positions: Mapping[str, str]) -> int:
    """Return the size of the run's ConfigMap as JSON, in bytes."""
    labels = run.site.kubernetes.position_labels
    placed = json.dumps({"labels": labels, "positions": dict(positions)}, separators=(",", ":"))
    plan, scripts = bundle.files[PLAN_FILE].decode(), dict(bundle.scripts)
    return len(json.dumps([plan, {"env": {}, "scripts": scripts}, placed]))


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


def _check_size(size: int, limit: int, what: str, parts: Mapping[str, str]) -> None:
    """Raise BadInput if something is too large for Helm or for `kubectl apply`."""
    if size > limit:
        largest = max(parts, key=lambda name: len(parts[name]))
        raise BadInput(
            f"the {what} would have {size} bytes, and at most {limit} are possible; the largest "
            f"part is {largest} with {len(parts[largest].encode())}",
            code=Code.HELM_TOO_LARGE,
            hint="put large scripts and their data into the image, or on a volume of the pods",
        )


def values_of(run: Resolved, bundle: Bundle) -> Values:
    """Return the Helm values of the run."""
    plan = bundle.plan
    scripts = bundle.scripts
    # As text, because Helm writes a number of seven digits with an exponent.
    pod = replace(run.pod, env={key: str(value) for key, value in run.pod.env.items()})
    return Values(
        accept=Origin(
            version=__version__,
            run=plan.hash,
            machine=plan.machine.name,
            code=node_code.digest(code()),
            plan=_sha256(bundle.files[PLAN_FILE].decode()),
            pod=_sha256(_go_json(dump(replace(pod, source=None)))),
            scripts={name: _sha256(text) for name, text in scripts.items()},
        ),
        nodes=plan.nodes or 0,
        gpus_per_node=plan.gpus_used if plan.gpus_used is not None else plan.machine.gpus,
        longest_name=longest_name(plan.nodes or 1),
        one_pod_per_node=run.gpus_per_pod is not None or not gpu_resource(pod.resources),
        pod=pod,
        site=ClusterSettings(
            **{
                item.name: getattr(run.site.kubernetes, item.name)
                for item in fields(ClusterSettings)
            }
        ),
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
