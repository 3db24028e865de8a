"""What a site file needs and a cluster shows: machine, queues, networks, service accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.scheduling import all_nodes, machines_of, whole
from accept.backends.kubernetes.status import KUEUE, has_namespace, path
from accept.backends.protocol import Question
from accept.config import load_machine
from accept.core.text import plain

_NETWORKING = "apis/networking.gke.io/v1"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the cluster shows."""

    context: str
    namespace: str
    questions: tuple[Question, ...]
    #: Networks of pods by the machine that wants them; only where the names are not the machine's.
    networks: Mapping[str, tuple[tuple[str, str], ...]]
    jobsets: bool
    #: For people, one line each.
    notes: tuple[str, ...]

    def site_text(self, answers: Mapping[str, str]) -> str:
        """The site file, as YAML with what is still open as comments."""
        import yaml

        kubernetes: dict[str, Any] = {"namespace": self.namespace}
        if answers.get("queue") and answers["queue"] != "none":
            kubernetes["queue"] = answers["queue"]
        if answers.get("image"):
            kubernetes["image"] = answers["image"]
        if not self.jobsets:
            kubernetes["controller"] = "job"
        if answers.get("serviceAccount"):
            kubernetes["serviceAccount"] = answers["serviceAccount"]
        networks = self.networks.get(answers.get("machine", ""))
        if networks:
            kubernetes["networks"] = [{"interface": i, "network": n} for i, n in networks]
        site: dict[str, Any] = {"name": plain(self.context, 100), "backend": "kubernetes"}
        site["kubernetes"] = kubernetes
        if answers.get("results"):
            site["results"] = {"location": answers["results"]}
        text = yaml.safe_dump(site, sort_keys=False, allow_unicode=True, width=100)
        head = (
            "# Written by `accept init` from what the cluster shows; "
            "all keys: `accept schema site`.\n"
        )
        machine = answers.get("machine", "")
        head += f"# Its machine: {machine} (--machine {machine}).\n" if machine else ""
        if not answers.get("image"):
            head += "# Still to be named: kubernetes.image, with a tag or a digest.\n"
        if not answers.get("results"):
            head += "# Without results.location index 0 holds the evidence until it is collected.\n"
        return head + text


def look_around(api: Api) -> Seen:
    """Ask the cluster for everything a site file says. Raises ApiError where it does not answer."""
    api.get("/version")
    notes: list[str] = []
    _namespace(api, notes)
    nodes = _asked(notes, "nodes", lambda: all_nodes(api))
    machines = machines_of(nodes)
    gpus = sum(
        whole((n.get("status", {}).get("capacity") or {}).get("nvidia.com/gpu", 0)) for n in nodes
    )
    counted = ", ".join(f"{name}: {count} nodes" for name, count in machines.items())
    notes.append(f"{len(nodes)} nodes, {gpus} GPUs; {counted or 'no machine that is known here'}")
    candidates = tuple(machines) or (("gpu",) if gpus else ("cpu",))
    queues = _queues(api, notes)
    accounts = _names(
        _asked(notes, "service accounts", lambda: _listed(api, "api/v1", "serviceaccounts"))
    )
    networks = _networks(api, candidates, notes)
    jobsets = _asked(notes, "JobSet", lambda: [api.find("/apis/jobset.x-k8s.io")])
    own = tuple(a for a in accounts if a != "default")
    return Seen(
        context=api.place.context,
        namespace=api.place.namespace,
        questions=(
            Question(key="machine", text="Machine", option="machine", candidates=candidates),
            # One queue may be somebody's by chance; without any there is nothing to ask.
            *_if(
                bool(queues),
                Question(
                    key="queue",
                    text="LocalQueue (none: start at once)",
                    option="queue",
                    candidates=queues if len(queues) == 1 else (*queues, "none"),
                ),
            ),
            *_if(
                bool(own),
                Question(
                    key="serviceAccount",
                    text="Service account of the pods",
                    option="service-account",
                    candidates=own,
                    optional=True,
                    default=own[0] if len(own) == 1 else "",
                ),
            ),
            Question(key="image", text="Image of the run", option="image", optional=True),
            Question(
                key="results",
                text="Bucket or folder for the evidence",
                option="results",
                optional=True,
            ),
        ),
        networks=networks,
        jobsets=bool(jobsets and jobsets[0]),
        notes=tuple(notes),
    )


def _namespace(api: Api, notes: list[str]) -> None:
    """Say it where the namespace that the file names is not there, with those that are."""
    if (name := api.place.namespace) and has_namespace(api) is False:
        # Who may not list them need not be told so: what to do is the same.
        others = _names(_asked([], "", lambda: api.items("/api/v1/namespaces")))[:12]
        there = f"; there are: {', '.join(others)}" if others else ""
        do = f"kubectl create namespace {name}, or --namespace"
        notes.append(f"namespace {name} is not there: {do}{there}")


def _if(there: bool, question: Question) -> tuple[Question, ...]:  # noqa: FBT001 - reads as it is said
    return (question,) if there else ()


def _asked(notes: list[str], what: str, ask: Any) -> list[Any]:
    """A list; empty, with a note, where this user may not see it."""
    try:
        return list(ask())
    except ApiError as error:
        if error.passing:
            raise
        if not error.gone:
            notes.append(f"{what} cannot be seen: {error.message}")
        return []


def _listed(api: Api, group: str, kind: str) -> list[dict[str, Any]]:
    return api.items(path(api, group, kind))


def _names(objects: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted(plain(o["metadata"]["name"], 253) for o in objects))


def _queues(api: Api, notes: list[str]) -> tuple[str, ...]:
    """The queues of the namespace; those of others are said."""
    for group in KUEUE:
        try:
            found = api.items(f"/{group}/localqueues")
        except ApiError as error:
            if error.gone:
                continue
            if error.passing:
                raise
            # Those of one namespace may be seen by who may not see all.
            try:
                return _names(_listed(api, group, "localqueues"))
            except ApiError as own:
                if own.passing:
                    raise
                if own.gone:
                    continue
                notes.append(f"queues cannot be seen: {own.message}")
                return ()
        here = [q for q in found if q["metadata"].get("namespace") == api.place.namespace]
        elsewhere = sorted(
            {str(q["metadata"].get("namespace")) for q in found} - {api.place.namespace}
        )
        if elsewhere:
            notes.append(f"queues are in namespaces {', '.join(elsewhere)}, too: --namespace")
        return _names(here)
    return ()


def _networks(
    api: Api, machines: Sequence[str], notes: list[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Interface and network for the machines whose networks have other names here."""
    there = _names(_asked(notes, "networks", lambda: api.items(f"/{_NETWORKING}/networks")))
    if there:
        notes.append(f"networks: {', '.join(there)}")
    elif sets := _names(_asked([], "", lambda: api.items(f"/{_NETWORKING}/gkenetworkparamsets"))):
        # Pods name Networks, which may be called otherwise: these are a hint for people alone.
        notes.append(f"network parameters (not networks that pods can name): {', '.join(sets)}")
    result = {}
    for name in machines:
        wanted = load_machine(name).value.kubernetes.networks
        if not wanted or {n.network for n in wanted} <= set(there):
            continue
        matched = match_networks(tuple((n.interface, n.network) for n in wanted), there)
        if matched is None:
            shown = ", ".join(n.network for n in wanted)
            notes.append(f"{name} wants the networks {shown}: give kubernetes.networks by hand")
        else:
            result[name] = matched
    return result


def match_networks(
    wanted: Sequence[tuple[str, str]], there: Sequence[str]
) -> tuple[tuple[str, str], ...] | None:
    """The cluster's networks for the machine's interfaces, in the order of their numbers.

    None where they are not as many: then which is which cannot be seen.
    """
    others = [n for n in there if n != "default"]
    data = [one for one in wanted if one[1] != "default"]
    # Only those that end as the machine's do: rdma-0 is my-rdma-sub-0, and gvnic-1 none of them.
    kinds = {network.rstrip("0123456789").strip("-") for _, network in data}
    alike = [n for n in others if any(kind in n for kind in kinds)] or others
    if len(alike) != len(data):
        return None
    ordered = sorted(alike, key=_number)
    named = dict(zip((interface for interface, _ in data), ordered, strict=True))
    return tuple((interface, named.get(interface, network)) for interface, network in wanted)


def _number(name: str) -> tuple[int, str]:
    digits = name[len(name.rstrip("0123456789")) :]
    return (int(digits) if digits else -1, name)
