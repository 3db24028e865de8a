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
    USAGE = (
        "E-USAGE",
        (
            "The command line has an unknown command or option, lacks an argument, or has a "
            "value of the wrong kind. --help after the command shows its options with an "
            "example."
        ),
    )
    OPTION_EMPTY = (
        "E-OPTION-EMPTY",
        (
            "A value on the command line is empty, most likely because a shell variable is not "
            "set. Give a value, or leave the option out."
        ),
    )
    OPTION_DURATION = (
        "E-OPTION-DURATION",
        "The option needs a time span above zero, such as 90s, 15m or 1h30m.",
    )
    NODES_SYNTAX = (
        "E-NODES-SYNTAX",
        (
            "--nodes takes a number, a list of names such as node[01-16], @FILE with one name a "
            "line, or all for every free node of a cluster."
        ),
    )
    NODES_ALL_OFFLINE = (
        "E-NODES-ALL-OFFLINE",
        (
            "--nodes all needs a connection to a cluster, but render makes none. Write the free "
            "nodes to a file with `accept nodes > FILE` and give --nodes @FILE."
        ),
    )
    MACHINE_MISSING = (
        "E-MACHINE-MISSING",
        (
            "No machine is given, and this command contacts no hosts to detect it. Give "
            "--machine; `accept list machines` lists the names."
        ),
    )
    PLAN_FIXED = (
        "E-PLAN-FIXED",
        (
            "The run was rendered before, so options that would change its plan have no effect. "
            "Leave them out, or render the run again with them."
        ),
    )
    CAUSE_UNKNOWN = (
        "E-CAUSE-UNKNOWN",
        "No cause has this name. The message lists all names.",
    )
    CODE_UNKNOWN = (
        "E-CODE-UNKNOWN",
        "No error or warning has this code. `accept list errors` lists all codes.",
    )
    OUTPUT_EXISTS = (
        "E-OUTPUT-EXISTS",
        (
            "The file exists already, or the folder is not empty, and accept does not overwrite "
            "them. Name another one, or remove it first."
        ),
    )
    OUTPUT_WRITE = (
        "E-OUTPUT-WRITE",
        (
            "The output file or folder cannot be written. Check its owner and the free space, or"
            " name another one."
        ),
    )
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
    ATTEMPT_NAME = (
        "E-ATTEMPT-NAME",
        "A run needs a name of at most 63 characters of a-z, 0-9 and '-', which is not `last`.",
    )
    ATTEMPT_EXISTS = (
        "E-ATTEMPT-EXISTS",
        (
            "A run with this name exists already. Choose another --attempt, or leave it out to "
            "get a generated name."
        ),
    )
    RUN_WHICH = (
        "E-RUN-WHICH",
        "accept delete needs either the names of runs or --older-than, and not both.",
    )
    RUN_NOT_STARTED = (
        "E-RUN-NOT-STARTED",
        "The run was rendered, but never started. Start it with `accept submit FOLDER`.",
    )
    RUN_UNREADABLE = (
        "E-RUN-UNREADABLE",
        (
            "A file of the run folder is missing, was changed, or comes from another version of "
            "accept. Render the run again, or use the version that made it."
        ),
    )
    BACKEND_UNKNOWN = (
        "E-BACKEND-UNKNOWN",
        "No back end has this name, or it is not a cluster. `accept list backends` lists all.",
    )

    # This machine.

    # Hosts over ssh.

    # Kubernetes.
    KUBE_NAME = (
        "E-KUBE-NAME",
        (
            "The name of a namespace or Helm release is invalid. Use a-z, 0-9 and '-', such as "
            "gpu-tests."
        ),
    )
    HELM_BACKEND = (
        "E-HELM-BACKEND",
        (
            "Helm values exist only for runs on Kubernetes. Render other runs to a folder with "
            "--out, then start them with `accept submit FOLDER`."
        ),
    )
    SITE_QUESTION = (
        "E-SITE-QUESTION",
        (
            "accept init found no or several answers for a value of the site file, and cannot "
            "ask. Give the option that the message names."
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
    BUCKET_RUN = (
        "E-BUCKET-RUN",
        "The URL does not end in the name of a run. Give a URL such as gs://BUCKET/runs/ATTEMPT.",
    )
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
