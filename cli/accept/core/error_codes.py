"""Define the stable codes of errors and warnings, one row each.

Scripts, tests and support tickets refer to a code; the wording of a message may change at any
time. `accept show error CODE` prints the row.
"""

from __future__ import annotations

from enum import Enum


class Code(str, Enum):
    """A stable code: `E-` for an error that ends a command, `W-` for a warning.

    Codes have the form E-AREA-PROBLEM. A code keeps its meaning for ever: a new problem gets a new
    code.
    """

    #: What happened, and what to do about it, in one to three sentences.
    explanation: str

    def __new__(cls, code: str, explanation: str) -> Code:
        """Create the member `code`, a plain string with an explanation."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.explanation = explanation
        return member

    def __str__(self) -> str:
        return str(self.value)

    # Command line and host lists.
    HOSTLIST_SYNTAX = (
        "E-HOSTLIST-SYNTAX",
        (
            "The host list has an invalid or empty name, or an invalid range. Valid: node1, "
            "10.0.0.7, node[01-16], node[1,3,7-9], @FILE."
        ),
    )
    HOSTLIST_DUPLICATE = (
        "E-HOSTLIST-DUPLICATE",
        "The host list names a host twice. Name each host once.",
    )
    HOSTLIST_TOO_MANY = (
        "E-HOSTLIST-TOO-MANY",
        "The host list expands to more hosts than accept supports. Check the ranges.",
    )
    HOSTLIST_FILE = (
        "E-HOSTLIST-FILE",
        (
            "The file of a host list (@FILE) is unreadable, empty or too large. Write one host "
            "per line; # begins a comment."
        ),
    )
    GPUS_PER_NODE = (
        "E-GPUS-PER-NODE",
        (
            "The machine cannot use this number of GPUs per node. The number must divide the "
            "GPUs of a node, so that all groups have the same size."
        ),
    )
    SCHEMA_UNKNOWN = (
        "E-SCHEMA-UNKNOWN",
        "No JSON Schema has this name. The message lists the names.",
    )

    # Configuration files: machines, suites, sites.
    YAML_UNREADABLE = (
        "E-YAML-UNREADABLE",
        "The file is missing or cannot be read. Check the path and the permissions.",
    )
    YAML_TOO_LARGE = (
        "E-YAML-TOO-LARGE",
        "The file is larger than 1 MiB, so it is probably not the intended one.",
    )
    YAML_ENCODING = ("E-YAML-ENCODING", "The file is not UTF-8 text. Save it as UTF-8.")
    YAML_SYNTAX = (
        "E-YAML-SYNTAX",
        (
            "The file is not valid YAML. Check the indentation (spaces, not tabs), and put text "
            "with special characters into quotes."
        ),
    )
    YAML_FORM = (
        "E-YAML-FORM",
        "The file is empty, or is not a mapping. Write `key: value` lines.",
    )
    YAML_UNSUPPORTED = (
        "E-YAML-UNSUPPORTED",
        (
            "The file uses an alias, an anchor, a tag or a second document. Repeat the value "
            "instead, and use one file per document."
        ),
    )
    YAML_DUPLICATE_KEY = (
        "E-YAML-DUPLICATE-KEY",
        "A mapping has the same key twice. Remove one of them.",
    )
    YAML_TOO_DEEP = ("E-YAML-TOO-DEEP", "The file is nested too deeply. Use a flatter structure.")
    KEY_UNKNOWN = (
        "E-KEY-UNKNOWN",
        (
            "A mapping has a key that accept does not know. The message names the nearest key "
            "and lists all keys."
        ),
    )
    KEY_MISSING = ("E-KEY-MISSING", "A required key is missing. Add the keys in the message.")
    KEY_TYPE = ("E-KEY-TYPE", "A key is not text. Write it in quotes.")
    VALUE_INVALID = (
        "E-VALUE-INVALID",
        (
            "A value has the wrong type or form, or is outside its limits. The message names the "
            "key, the value and what was expected."
        ),
    )
    ENV_INVALID = (
        "E-ENV-INVALID",
        "An environment variable has a name that no shell accepts, or a value of several lines.",
    )
    CHECK_UNKNOWN = (
        "E-CHECK-UNKNOWN",
        "No check has this name. `accept list checks` lists them.",
    )
    MACHINE_UNKNOWN = (
        "E-MACHINE-UNKNOWN",
        (
            "No machine has this name. Use a name that `accept list machines` shows, or the path "
            "of your own file (with a slash or .yaml)."
        ),
    )
    MACHINE_BASE_UNKNOWN = (
        "E-MACHINE-BASE-UNKNOWN",
        "A base of the machine does not exist. Use a machine, a shared base or a path.",
    )
    MACHINE_BASE_CHAIN = (
        "E-MACHINE-BASE-CHAIN",
        "The chain of bases is too long. Check that no base refers to itself.",
    )
    MACHINE_CONTRADICTION = (
        "E-MACHINE-CONTRADICTION",
        "Keys of the machine contradict each other. Change or remove one of them.",
    )
    MACHINE_NO_BOUND = (
        "E-MACHINE-NO-BOUND",
        "A reference figure has no bound. Add `share`, `lower` or `upper`.",
    )
    MACHINE_SOURCE = (
        "E-MACHINE-SOURCE",
        "NCCL settings of a machine need a source. Add `source:` with a URL.",
    )
    NCCL_PROFILE_UNKNOWN = (
        "E-NCCL-PROFILE-UNKNOWN",
        (
            "The machine has no NCCL profile with this name. `accept show machine NAME` lists "
            "its profiles; `default` must exist."
        ),
    )
    SUITE_UNKNOWN = (
        "E-SUITE-UNKNOWN",
        (
            "No suite has this name. Use a name that `accept list suites` shows, or the path of "
            "your own file (with a slash or .yaml)."
        ),
    )
    SUITE_CONTRADICTION = (
        "E-SUITE-CONTRADICTION",
        (
            "Keys of a check in the suite do not fit together, such as `rounds` without `groups: "
            "pairs`, or `script` without the check `script`."
        ),
    )

    # Plans, steps and rendered runs.

    # Runs and run folders.

    # This machine.

    # Hosts over ssh.

    # Kubernetes.
    KUBE_CLIENT_MISSING = (
        "E-KUBE-CLIENT-MISSING",
        "The Kubernetes client for Python is not installed. Install the extra `kubernetes`.",
    )
    KUBE_CONFIG_MISSING = (
        "E-KUBE-CONFIG-MISSING",
        "No kubeconfig was found. Set KUBECONFIG or give --kubeconfig, as for kubectl.",
    )
    KUBE_CONFIG_INVALID = (
        "E-KUBE-CONFIG-INVALID",
        "The kubeconfig cannot be read. Check it with `kubectl config get-contexts`.",
    )
    KUBE_CONTEXT = (
        "E-KUBE-CONTEXT",
        "The kubeconfig has no context of this name. `kubectl config get-contexts` lists them.",
    )
    KUBE_UNREACHABLE = (
        "E-KUBE-UNREACHABLE",
        (
            "The API server does not answer, or its answer is unusable. Check the network and the "
            "context, for example with `kubectl get pods`."
        ),
    )
    KUBE_LOGIN = (
        "E-KUBE-LOGIN",
        "The API server does not accept the credentials. Log in again, as for kubectl.",
    )
    KUBE_FORBIDDEN = (
        "E-KUBE-FORBIDDEN",
        "Your user lacks a permission. `accept doctor --rbac` prints the Role that a run needs.",
    )
    KUBE_NOT_FOUND = (
        "E-KUBE-NOT-FOUND",
        "An object, its kind or its namespace does not exist in the cluster.",
    )
    KUBE_CONFLICT = (
        "E-KUBE-CONFLICT",
        (
            "An object of this name exists already or was changed meanwhile. Try again, or choose "
            "another name."
        ),
    )
    KUBE_REFUSED = (
        "E-KUBE-REFUSED",
        "The API server refused a request. The message is its own.",
    )
    KUBE_NODES_TOO_FEW = (
        "E-KUBE-NODES-TOO-FEW",
        (
            "Fewer nodes than requested match the run and are free, and nothing will add more. "
            "Wait, request fewer nodes, or name a queue. `accept doctor` shows every node."
        ),
    )
    KUBE_NODES_NONE_FREE = (
        "E-KUBE-NODES-NONE-FREE",
        (
            "No node matches the machine and the site file and has all its GPUs free. `accept "
            "doctor` shows why."
        ),
    )
    KUBE_NODES_AFFINITY = (
        "E-KUBE-NODES-AFFINITY",
        (
            "The site file requires a node affinity, which only the scheduler evaluates. Use "
            "nodeSelector, or name the nodes."
        ),
    )
    KUBE_MACHINES = (
        "E-KUBE-MACHINES",
        "The cluster has nodes of several machine types. Name one with --machine.",
    )
    KUBE_MACHINE_UNKNOWN = (
        "E-KUBE-MACHINE-UNKNOWN",
        (
            "No node shows a GPU, so the machine cannot be detected. Name it with --machine, or "
            "check the device plugin."
        ),
    )
    KUBE_NAME_LONG = (
        "E-KUBE-NAME-LONG",
        (
            "Kubernetes limits the names of pods to 63 characters. Give a shorter --release or "
            "--attempt."
        ),
    )
    KUBE_NAME_INVALID = (
        "E-KUBE-NAME-INVALID",
        "The name cannot be used for Kubernetes objects. Use a-z, 0-9 and '-', a letter first.",
    )
    KUBE_NAMESPACE_MISSING = (
        "E-KUBE-NAMESPACE-MISSING",
        "The namespace does not exist. Create it, or name another with --namespace.",
    )
    KUBE_SSH_KEYGEN = (
        "E-KUBE-SSH-KEYGEN",
        "`ssh-keygen` could not make the key of the run. Install the OpenSSH client.",
    )
    KUBE_POD_NOT_STARTED = (
        "E-KUBE-POD-NOT-STARTED",
        (
            "The pod of index 0 did not start in time. The message has the reason of the "
            "scheduler or the kubelet. `accept doctor` shows what the cluster lacks; "
            "--start-timeout waits longer."
        ),
    )
    KUBE_POD_LOST = (
        "E-KUBE-POD-LOST",
        (
            "The pod of index 0 ran and is lost, for example with its node. Remove the rest of "
            "the run with `accept delete`, and run again."
        ),
    )
    KUBE_RUN_GONE = (
        "E-KUBE-RUN-GONE",
        "The cluster has no objects of the run any more: it was deleted, or its ttlSeconds passed.",
    )
    KUBE_RUN_RUNNING = (
        "E-KUBE-RUN-RUNNING",
        "The run has not ended. Follow it with `accept watch`, or end it with `accept cancel`.",
    )
    KUBE_OBJECTS_LEFT = (
        "E-KUBE-OBJECTS-LEFT",
        (
            "Objects of the run were not deleted in time. A pod on a lost node stays until its "
            "object is removed with `kubectl delete pod --force`."
        ),
    )
    KUBE_OBJECTS_HIDDEN = (
        "E-KUBE-OBJECTS-HIDDEN",
        (
            "Your user may not list some kinds, so objects of the run may be left. `accept doctor "
            "--rbac` prints the Role that is needed."
        ),
    )
    KUBE_EVIDENCE_UNSAVED = (
        "E-KUBE-EVIDENCE-UNSAVED",
        "The run was ended, but nothing of its evidence could be saved.",
    )
    KUBE_EVIDENCE_ELSEWHERE = (
        "E-KUBE-EVIDENCE-ELSEWHERE",
        (
            "The run reached a verdict, but its records cannot be read from here. The message "
            "names their place."
        ),
    )
    KUBE_ARCHIVE_CUT = (
        "E-KUBE-ARCHIVE-CUT",
        "The evidence did not arrive from the pod in time. Collect the run again.",
    )
    KUBE_ARCHIVE_DAMAGED = (
        "E-KUBE-ARCHIVE-DAMAGED",
        "The evidence from the pod is incomplete or was modified. Collect the run again.",
    )
    HELM_MISSING = ("E-HELM-MISSING", "helm is not installed. Install helm 3 or 4.")
    HELM_TIMEOUT = (
        "E-HELM-TIMEOUT",
        "helm did not end in time. Check the connection to the cluster.",
    )
    HELM_FAILED = (
        "E-HELM-FAILED",
        (
            "helm refused or could not finish. The message has its last line, and what is left of "
            "the run, if anything."
        ),
    )
    HELM_RELEASE_EXISTS = (
        "E-HELM-RELEASE-EXISTS",
        "A release of this name exists. Choose another --release, or delete that run.",
    )
    HELM_NO_PLAN = (
        "E-HELM-NO-PLAN",
        "The chart was installed without a plan. Install the values that `accept render` prints.",
    )
    HELM_NO_IMAGE = (
        "E-HELM-NO-IMAGE",
        "The values name no container image. Set kubernetes.image in the site file, or site.image.",
    )
    HELM_VERSION = (
        "E-HELM-VERSION",
        (
            "Values and chart have different versions of accept. Use the chart that "
            "`accept chart` names."
        ),
    )
    HELM_NAME = (
        "E-HELM-NAME",
        "The release has a name that pods cannot have. Use a-z, 0-9 and '-', a letter first.",
    )
    HELM_NAME_LONG = (
        "E-HELM-NAME-LONG",
        "Kubernetes limits the names of pods to 63 characters. Choose a shorter release name.",
    )
    HELM_RUNNING = (
        "E-HELM-RUNNING",
        "A run cannot be changed. Wait for its end, or uninstall the release before an upgrade.",
    )
    HELM_ATTEMPT_USED = (
        "E-HELM-ATTEMPT-USED",
        "The release already ran this attempt. Give another attempt, or none.",
    )
    HELM_NO_CLAIMS = (
        "E-HELM-NO-CLAIMS",
        (
            "The machine claims devices (DRA), but the cluster serves no API for claims. "
            "Kubernetes 1.34 or newer does."
        ),
    )
    KUBE_CLAIM = (
        "E-KUBE-CLAIM",
        "A claim of devices needs either `template` or `devices`, and not both.",
    )
    KUBE_TOPOLOGY = (
        "E-KUBE-TOPOLOGY",
        (
            "Keys of `topology` contradict each other. Give `required` or `preferred`; `slice` and "
            "`sliceSize` belong together."
        ),
    )
    KUBE_QUEUE_UNSET = (
        "E-KUBE-QUEUE-UNSET",
        "The setting only has an effect in a queue of Kueue. Name one with `queue`.",
    )
    KUBE_NODES_CONTRADICT = (
        "E-KUBE-NODES-CONTRADICT",
        "A node is in includeNodes and in excludeNodes. Remove it from one of them.",
    )
    KUBE_RESULTS_OUTSIDE = (
        "E-KUBE-RESULTS-OUTSIDE",
        (
            "`results.location` is not on `results.volume`, which would stay empty. Leave the "
            "location out, or name a folder below the mount path."
        ),
    )
    KUBE_CAPABILITY = (
        "E-KUBE-CAPABILITY",
        (
            "A capability of a container starts with CAP_. Kubernetes names it without, such as "
            "SYS_ADMIN."
        ),
    )

    # Evidence, archives, buckets and logs.
    EVIDENCE_UNREADABLE = (
        "E-EVIDENCE-UNREADABLE",
        "A file of the evidence is missing or cannot be read. Collect the run again.",
    )
    EVIDENCE_DAMAGED = (
        "E-EVIDENCE-DAMAGED",
        "A file of the evidence is damaged. Collect the run, or fetch its log, again.",
    )
    EVIDENCE_PLAN_CHANGED = (
        "E-EVIDENCE-PLAN-CHANGED",
        (
            "The plan was changed after it was rendered, so the evidence proves nothing. Collect "
            "the run again, or find out who changed the plan."
        ),
    )
    EVIDENCE_NOT_PACKED = (
        "E-EVIDENCE-NOT-PACKED",
        "The file contains no packed evidence. Use the log of the pod with index 0.",
    )
    EVIDENCE_CUT_OFF = (
        "E-EVIDENCE-CUT-OFF",
        "The packed evidence in the log is incomplete. Fetch the log again.",
    )
    EVIDENCE_TOO_LARGE_FOR_LOG = (
        "E-EVIDENCE-TOO-LARGE-FOR-LOG",
        "The log has no records, because they were too many. Judge the evidence folder instead.",
    )

    # The program itself.
    UNCODED = ("E-UNCODED", "An error without a code of its own. The message says what is wrong.")
    INTERNAL = (
        "E-INTERNAL",
        "accept itself failed. Run the command again with -v and report the traceback.",
    )
    SYSTEM = (
        "E-SYSTEM",
        "The operating system refused a file operation. The message names the file and the reason.",
    )
    TOO_DEEP = ("E-INPUT-TOO-DEEP", "The input is nested too deeply. Use a flatter file or folder.")
    MEMORY = ("E-MEMORY", "accept ran out of memory. Use smaller input, or free memory.")
    STDOUT_CLOSED = (
        "E-STDOUT-CLOSED",
        "Standard output is closed. Send it to a file, or to /dev/null to discard it.",
    )
