"""Find the parts of a cluster that a site file names: machine, queues, networks, accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from accept.backends.host_survey import IMAGE, RESULTS
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.nodes import count_gpus, count_machines, gpus_of_most
from accept.backends.kubernetes.objects import (
    DEVICE_CLASSES,
    JOBSET,
    LOCAL_QUEUES,
    NAMESPACE,
    NETWORK,
    NETWORK_PARAMETERS,
    NODE,
    SERVICE_ACCOUNT,
    TOPOLOGIES,
    Object,
    list_at,
    text_at,
)
from accept.backends.kubernetes.status import has_namespace
from accept.backends.protocol import Question
from accept.config import load_machine
from accept.config.images import checks_with, images_for, public_images
from accept.config.kubernetes import Claim
from accept.core.serde import dump
from accept.core.text import count, plain

Item = TypeVar("Item")

_HOST = "kubernetes.io/hostname"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The findings in a cluster that a site file needs."""

    context: str
    namespace: str
    questions: tuple[Question, ...]
    #: Interfaces and networks by machine, for machines whose networks have other names here.
    networks: Mapping[str, tuple[tuple[str, str], ...]]
    #: Claims of NICs by machine, for machines whose networks do not exist here.
    claims: Mapping[str, tuple[Claim, ...]]
    #: GPUs of most nodes, for machines that have no number of GPUs.
    gpus: int = 0
    jobsets: bool
    notes: tuple[str, ...]

    def site_text(self, answers: Mapping[str, str]) -> str:
        """Return the site file as YAML, with comments on the open questions."""
        import yaml

        kubernetes: dict[str, object] = {"namespace": self.namespace}
        if answers.get("queue") and answers["queue"] != "none":
            kubernetes["queue"] = answers["queue"]
            if answers.get("topology") and answers["topology"] != "none":
                kubernetes["topology"] = {"required": answers["topology"]}
        if answers.get("image"):
            kubernetes["image"] = answers["image"]
        if not self.jobsets:
            kubernetes["controller"] = "job"
        if answers.get("serviceAccount"):
            kubernetes["serviceAccount"] = answers["serviceAccount"]
        machine = answers.get("machine", "")
        if machine and self.gpus and load_machine(machine).value.gpus.count == "detect":
            kubernetes["gpusPerPod"] = self.gpus
        networks = self.networks.get(machine)
        if networks:
            kubernetes["networks"] = [{"interface": i, "network": n} for i, n in networks]
        if claims := self.claims.get(machine):
            kubernetes["resourceClaims"] = [
                {"name": claim.name, "devices": dump(claim.devices)} for claim in claims
            ]
        site: dict[str, object] = {"name": plain(self.context, 100), "backend": "kubernetes"}
        if machine:
            site["machine"] = machine
        site["kubernetes"] = kubernetes
        if answers.get("results"):
            site["results"] = {"location": answers["results"]}
        text = yaml.safe_dump(site, sort_keys=False, allow_unicode=True, width=100)
        head = (
            "# Written by `accept init` from the objects of the cluster. "
            "Every key, with examples: accept show site example\n"
        )
        head += _image_text(answers.get("image", ""))
        if not answers.get("results"):
            head += (
                "# Without results.location, index 0 keeps the evidence until it is collected.\n"
            )
        return head + text


def survey_cluster(api: Api) -> Survey:
    """Query everything that a site file names. Raises ApiError if the cluster does not answer."""
    api.version()
    notes: list[str] = []
    _namespace(api, notes)
    unlisted: list[str] = []
    nodes = _list_or_note(unlisted, "nodes", lambda: api.find_all(NODE))
    machines = count_machines(nodes)
    gpus = count_gpus(nodes)
    others = machines.pop("", 0)
    known = [f"{name}: {count(number, 'node')}" for name, number in machines.items()]
    if known and others:
        known.append(f"no known machine: {count(others, 'node')} with GPUs")
    counted = ", ".join(known)
    totals = f"{count(len(nodes), 'node')}, {count(gpus, 'GPU')}"
    notes += unlisted or [f"{totals}; {counted or 'no known machine'}"]
    candidates = tuple(machines) or (("gpu",) if gpus else () if unlisted else ("cpu",))
    queues = _queues(api, notes)
    levels = _levels(api) if queues else ()
    accounts = _names(
        _list_or_note(notes, "service accounts", lambda: api.find_all(SERVICE_ACCOUNT))
    )
    claims = _claims(api, candidates, notes)
    networks = _networks(api, [name for name in candidates if name not in claims], notes)
    jobsets = _list_or_note(notes, "JobSet", lambda: api.versions(JOBSET.group))
    questions = [Question(key="machine", text="Machine", option="machine", candidates=candidates)]
    if queues:
        questions.append(
            Question(
                key="queue",
                text="LocalQueue (none: start at once)",
                option="queue",
                # A single queue may belong to another team.
                candidates=queues if len(queues) == 1 else (*queues, "none"),
            )
        )
    if levels:
        questions.append(
            Question(
                key="topology",
                text="Label whose value all pods must share, for Kueue (none: nodes anywhere)",
                option="topology",
                candidates=(*levels, "none"),
                optional=True,
                default="none",
            )
        )
    if own := tuple(account for account in accounts if account != "default"):
        questions.append(
            Question(
                key="serviceAccount",
                text="Service account of the pods",
                option="service-account",
                candidates=own,
                # Its rights are unknown: the only account may be that of another program.
                optional=True,
            )
        )
    images = {name: tuple(one.image for one in images_for(name)) for name in candidates}
    return Survey(
        context=api.place.context,
        namespace=api.place.namespace,
        questions=(*questions, replace(IMAGE, by_machine=images), RESULTS),
        networks=networks,
        claims=claims,
        gpus=gpus_of_most(nodes),
        jobsets=bool(jobsets),
        notes=tuple(notes),
    )


def _image_text(image: str) -> str:
    """Return comments on the image: that none is set, or what is known of a public one."""
    if not image:
        return (
            "# Still missing: kubernetes.image, with a tag or a digest. To build one: "
            "docker/README.md\n"
        )
    for known in public_images():
        if known.image == image:
            return (
                f"# The image is public: {known.source}\n"
                f"# It has {', '.join(sorted(known.has))}. Not known, and named in the log if "
                f"missing: {', '.join(sorted(known.unknown))}.\n"
                f"# If it has python3, these checks run: {', '.join(checks_with(known.has))}.\n"
            )
    return ""


def _namespace(api: Api, notes: list[str]) -> None:
    """Add a note if the namespace does not exist, with those that do."""
    if (name := api.place.namespace) and has_namespace(api) is False:
        # No note if this user may not list them: the advice is the same.
        others = _names(_list_or_note([], "", lambda: api.find_all(NAMESPACE)))[:12]
        available = f"; available: {', '.join(others)}" if others else ""
        do = f"kubectl create namespace {name}, or --namespace"
        text = f"namespace {name} does not exist: {do}{available}"
        notes.append(text)


def _list_or_note(notes: list[str], what: str, ask: Callable[[], Iterable[Item]]) -> list[Item]:
    """Return a list; if this user may not read it, return none and add a note."""
    try:
        return list(ask())
    except ApiError as error:
        if error.passing:
            raise
        if not error.gone:
            notes.append(f"{what} cannot be listed: {error.message}")
        return []


def _names(objects: Iterable[Object]) -> tuple[str, ...]:
    return tuple(sorted(plain(o.name, 253) for o in objects))


def _queues(api: Api, notes: list[str]) -> tuple[str, ...]:
    """Return the queues of the namespace; add a note about those of other namespaces."""
    try:
        found = api.find_served(LOCAL_QUEUES, everywhere=True)
    except ApiError as error:
        if error.passing:
            raise
        # A user who may not list all queues may be allowed to list those of the namespace.
        return _names(_list_or_note(notes, "queues", lambda: api.find_served(LOCAL_QUEUES)))
    elsewhere = sorted({q.namespace for q in found} - {api.place.namespace})
    if elsewhere:
        text = f"queues are in namespaces {', '.join(elsewhere)}, too: --namespace"
        notes.append(text)
    return _names(q for q in found if q.namespace == api.place.namespace)


def _levels(api: Api) -> tuple[str, ...]:
    """Return the labels of Kueue's Topologies, the largest part of the network first.

    No two nodes share the last one, the name of a node.
    """
    labels = [
        plain(text_at(level, "nodeLabel"), 253)
        for topology in _list_or_note([], "", lambda: api.find_served(TOPOLOGIES))
        for level in list_at(topology.document, "spec", "levels")
    ]
    return tuple(dict.fromkeys(label for label in labels if label not in ("", _HOST)))


def _claims(api: Api, machines: Sequence[str], notes: list[str]) -> dict[str, tuple[Claim, ...]]:
    """Return the claims of machines whose NICs this cluster provides by DRA."""
    by_name = {name: load_machine(name).value.kubernetes for name in machines}
    if not any(pods.nic_claims for pods in by_name.values()):
        return {}
    if any(n.name != "default" for n in _list_or_note([], "", lambda: api.find_all(NETWORK))):
        return {}
    classes = _names(_list_or_note([], "", lambda: api.find_served(DEVICE_CLASSES)))
    result = {}
    for name, pods in by_name.items():
        wanted = {class_name for claim in pods.nic_claims for class_name in claim.classes}
        if wanted and wanted <= set(classes):
            result[name] = pods.nic_claims
            text = f"NICs of {name} come from the device class {', '.join(sorted(wanted))}"
            notes.append(text)
    return result


def _networks(
    api: Api, machines: Sequence[str], notes: list[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return interfaces and networks for the machines whose networks have other names here."""
    available = _names(_list_or_note(notes, "networks", lambda: api.find_all(NETWORK)))
    if available:
        notes.append(f"networks: {', '.join(available)}")
    elif sets := _names(_list_or_note([], "", lambda: api.find_all(NETWORK_PARAMETERS))):
        # Pods refer to Networks, which may have other names, so these are only a hint for people.
        text = f"network parameters (not networks that pods can name): {', '.join(sets)}"
        notes.append(text)
    result = {}
    for name in machines:
        wanted = load_machine(name).value.kubernetes.networks
        if not wanted or {n.network for n in wanted} <= set(available):
            continue
        matched = match_networks(tuple((n.interface, n.network) for n in wanted), available)
        if matched is None:
            shown = ", ".join(n.network for n in wanted)
            text = f"{name} wants the networks {shown}: write kubernetes.networks by hand"
            notes.append(text)
        else:
            result[name] = matched
    return result


def match_networks(
    wanted: Sequence[tuple[str, str]], available: Sequence[str]
) -> tuple[tuple[str, str], ...] | None:
    """Assign the cluster's networks to the machine's interfaces, in the order of their numbers.

    Returns None if their numbers differ, because the assignment is then ambiguous.
    """
    others = [n for n in available if n != "default"]
    data = [one for one in wanted if one[1] != "default"]
    # Only names of the same kind: my-rdma-sub-0 may be the machine's rdma-0, gvnic-1 may not.
    kinds = {network.rstrip("0123456789").strip("-") for _, network in data}
    alike = [n for n in others if any(kind in n for kind in kinds)] or others
    if len(alike) != len(data):
        return None
    ordered = sorted(alike, key=_name_order)
    named = dict(zip((interface for interface, _ in data), ordered, strict=True))
    return tuple((interface, named.get(interface, network)) for interface, network in wanted)


def _name_order(name: str) -> tuple[int, str]:
    digits = name[len(name.rstrip("0123456789")) :]
    return (int(digits) if digits else -1, name)
