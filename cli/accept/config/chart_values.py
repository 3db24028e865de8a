"""Define the values of the Helm chart, which `accept render` prints."""

from dataclasses import dataclass, field
from typing import Annotated

from accept.config.kubernetes import ClusterSettings, PodSettings, Results
from accept.core.checks.collectives import CollectiveChanges
from accept.core.serde import Bounds, Doc, Pattern, schema


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of the values."""

    version: Annotated[str, Doc("Version of accept that rendered them.")] = ""
    run: Annotated[str, Doc("Hash of the run, which identifies its content.")] = ""
    machine: Annotated[str, Doc("Name of the machine.")] = ""
    code: Annotated[
        str, Doc("SHA-256 of the code for the nodes, which must be that of the chart.")
    ] = ""
    plan: Annotated[str, Doc("SHA-256 of `plan`, which must be unmodified.")] = ""
    waits_for_capacity: Annotated[
        bool, Doc("Whether the plan waits for nodes that flexStart or autoscaling create.")
    ] = False
    settings: Annotated[
        dict[str, str],
        Doc("SHA-256 of settings as JSON, such as `pod`; changes of them are reported."),
    ] = field(default_factory=dict)
    scripts: Annotated[
        dict[str, str],
        Doc("SHA-256 of each script in `launcher.scripts`; changes of them are reported."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The part of the run's files that differs between runs, for you to read and to change."""

    env: Annotated[
        dict[str, str | int | None],
        Doc(
            "Environment variables of all ranks, most of them settings of NCCL. These are final: "
            "nothing replaces them."
        ),
    ] = field(default_factory=dict)
    scripts: Annotated[
        dict[str, str],
        Doc(
            "Shell scripts by their path in the run's folder: `env.sh` prepares every process, and "
            "`steps/` has one for each step."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SshValues:
    """The sshd of the run; its pods start ranks on each other through it."""

    existing_secret: Annotated[
        str, Doc("A Secret of type kubernetes.io/ssh-auth; empty: the chart creates a key.")
    ] = ""
    port: Annotated[int, Bounds(min=1, max=65535), Doc("Port of sshd in every pod.")] = 2222


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of the chart; `accept render` prints all but those of an attempt."""

    accept: Origin = field(default_factory=Origin)
    nodes: Annotated[int, Bounds(min=0), Doc("Number of pods, one for each node.")] = 0
    gpus_per_node: Annotated[int | None, Doc("GPUs to test on each node; unset: all.")] = None
    attempt: Annotated[
        str,
        Pattern(r"(?:[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?)?", "at most 40 of a-z, 0-9 and '-'"),
        Doc(
            "Name of this launch: objects are called RELEASE-ATTEMPT. "
            "Empty: the time and four random characters."
        ),
    ] = ""
    longest_name: Annotated[
        int, Bounds(min=0), Doc("Longest name of the run's objects, RELEASE-ATTEMPT.")
    ] = 0
    one_pod_per_node: Annotated[
        bool,
        Doc(
            "Whether a rule keeps the pods on different nodes, because they do not use all GPUs of "
            "their node."
        ),
    ] = False
    pod: PodSettings = field(default_factory=PodSettings)
    site: ClusterSettings = field(default_factory=ClusterSettings)
    packed_positions: Annotated[
        str,
        Pattern(r"[A-Za-z0-9+/]*={0,2}", "the base64 of a gzip file"),
        Doc(
            "`site.positions` of many nodes, with `site.positionLabels`, as JSON, compressed with "
            "gzip and encoded with base64."
        ),
    ] = ""
    results: Results = field(default_factory=Results)
    ssh: SshValues = field(default_factory=SshValues)
    deadline_seconds: Annotated[
        int,
        Bounds(min=0),
        Doc("Longest run after all hosts are found, in seconds; you may make it longer."),
    ] = 0
    start_seconds: Annotated[
        int, Bounds(min=0), Doc("Longest wait for hosts to answer, in seconds.")
    ] = 0
    debug_hold_seconds: Annotated[
        int, Bounds(min=0), Doc("How long pods stay for debugging after a failed run, in seconds.")
    ] = 0
    debug_hold_always: Annotated[
        bool, Doc("Whether pods also stay for debugging after a run that was accepted.")
    ] = False
    collectives: Annotated[
        CollectiveChanges,
        Doc(
            "Other message sizes and repetitions of the bandwidth tests on all nodes or on blocks "
            "of them; null: as in the plan."
        ),
    ] = field(default_factory=CollectiveChanges)
    resumed: Annotated[
        bool,
        Doc(
            "Whether the coordinator waits for the finished steps of an earlier attempt, which "
            "`--resume` sends."
        ),
    ] = False
    log_events: Annotated[
        bool,
        Doc(
            "Whether the log of index 0 also has records of the progress, which `accept run` "
            "reads. Without it they are in the pod, in /opt/accept/progress.jsonl."
        ),
    ] = False
    launcher: Launcher = field(default_factory=Launcher)
    plan: Annotated[
        str, Doc("The plan as JSON: steps, references, and what was rendered. It is not editable.")
    ] = ""


def chart_schema() -> dict[str, object]:
    """Return the schema of the values in draft-07, which every version of Helm supports."""

    def renamed(data: object) -> object:
        if isinstance(data, list):
            return [renamed(item) for item in data]
        if not isinstance(data, dict):
            return data
        ref = data.get("$ref")
        if isinstance(ref, str):
            # Draft-07 ignores other keys beside `$ref`.
            return {"$ref": ref.replace("#/$defs/", "#/definitions/")}
        return {key: renamed(value) for key, value in data.items()}

    result = schema(Values)
    result["$schema"] = "http://json-schema.org/draft-07/schema#"
    result["definitions"] = result.pop("$defs")
    # Helm adds values for the chart of the code inside the chart, which takes none.
    of_code = {
        "description": "Left to Helm: the chart of the code inside the chart takes no values.",
        "type": "object",
        "properties": {"global": {}},
        "additionalProperties": False,
    }
    properties = {**result["properties"], "code": of_code}
    return {key: renamed(value) for key, value in {**result, "properties": properties}.items()}
