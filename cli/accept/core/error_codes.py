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

    # Configuration files: machines, suites, sites.

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
            "scheduler or the kubelet. `accept doctor` shows what the cluster lacks; --start- "
            "timeout waits longer."
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

    # Evidence, archives, buckets and logs.

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
