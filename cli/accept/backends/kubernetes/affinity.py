"""Whether a node is one that a pod's nodeAffinity asks for, as the scheduler reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]

_HARD = "requiredDuringSchedulingIgnoredDuringExecution"


def matches(affinity: Object, node: Object) -> bool:
    """Whether a node answers what an `affinity` requires of nodes; preferences rule nothing out.

    What is no affinity rules out nothing either: the API refuses it, in words of its own.
    Terms are alternatives, the rules of one hold together, and a term without any matches nothing:
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
    """
    required = _mapping(_mapping(affinity.get("nodeAffinity")).get(_HARD))
    terms = required.get("nodeSelectorTerms")
    if not isinstance(terms, list | tuple):
        return True
    meta = node.get("metadata", {})
    labels, fields = meta.get("labels") or {}, {"metadata.name": meta.get("name", "")}
    for term in map(_mapping, terms):
        rules, named = _rules(term, "matchExpressions"), _rules(term, "matchFields")
        if not rules and not named:
            continue
        if all(_holds(r, labels) for r in rules) and all(_holds(r, fields) for r in named):
            return True
    return False


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _rules(term: Object, key: str) -> list[Object]:
    found = term.get(key)
    return [_mapping(rule) for rule in found] if isinstance(found, list | tuple) else []


def _holds(rule: Object, values: Mapping[str, str]) -> bool:
    key, operator = str(rule.get("key")), rule.get("operator")
    given = rule.get("values")
    wanted = [str(v) for v in given] if isinstance(given, list | tuple) else []
    there = values.get(key)
    if operator == "Exists":
        return there is not None
    if operator == "DoesNotExist":
        return there is None
    if operator == "In":
        return there in wanted
    if operator == "NotIn":
        return there not in wanted
    if operator in ("Gt", "Lt") and there is not None and len(wanted) == 1:
        try:
            one, other = int(there), int(wanted[0])
        except ValueError:
            return False
        return one > other if operator == "Gt" else one < other
    return False
