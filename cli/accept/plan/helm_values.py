"""Write a rendered run as the values of the Helm chart."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import fields, replace

from accept import __version__
from accept.config.chart_values import Origin, Values
from accept.config.kubernetes import ClusterSettings, longest_name
from accept.core.serde import dump
from accept.plan.bundle import PLAN_FILE, Bundle
from accept.plan.placement import gpu_resource
from accept.plan.resolve import Resolved

#: Text that every YAML parser reads as text without quotes, except `_YAML_KEYWORDS`.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_YAML_KEYWORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
#: The keys of a site file that are not part of the pod settings.
_CLUSTER_KEYS = tuple(item.name for item in fields(ClusterSettings))


def helm_values(run: Resolved, bundle: Bundle) -> str:
    """Return the Helm values of the run as YAML, with the bundle last."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        # Helm reads more words as numbers and booleans than PyYAML quotes, such as y and 1e3.
        plain = _PLAIN_TEXT.fullmatch(value) and value.lower() not in _YAML_KEYWORDS
        style = "|" if "\n" in value else None if plain else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    values = values_of(run, bundle)
    others = {key: value for key, value in dump(values).items() if key != "bundle"}
    head = yaml.dump(others, Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
    # The dumper would write the same, but it examines half a million characters one by one.
    return f"{head}bundle: |\n" + "".join(f"  {line}\n" for line in values.bundle.splitlines())


def values_of(run: Resolved, bundle: Bundle) -> Values:
    """Return the Helm values of the run."""
    plan = bundle.plan
    archive = base64.b64encode(bundle.archive()).decode()
    pod = run.pod
    return Values(
        accept=Origin(version=__version__, run=plan.hash, machine=plan.machine.name),
        nodes=plan.nodes or 0,
        gpus_per_node=plan.gpus_used if plan.gpus_used is not None else plan.machine.gpus,
        longest_name=longest_name(plan.nodes or 1),
        one_pod_per_node=run.gpus_per_pod is not None or not gpu_resource(pod.resources),
        # As text, because Helm writes a number of seven digits with an exponent.
        pod=replace(pod, env={key: str(value) for key, value in pod.env.items()}),
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
        plan=bundle.files[PLAN_FILE].decode(),
        bundle="\n".join(archive[i : i + 120] for i in range(0, len(archive), 120)) + "\n",
    )
