"""Define the stable codes of errors and warnings, one row each.

Scripts, tests and support tickets refer to a code; the wording of a message may change at any
time. `accept show error CODE` prints the row.
"""

from __future__ import annotations

from accept.core.text import TextEnum


class Code(TextEnum):
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

    # Command line and host lists.
    OPTION_RANGE = ("E-OPTION-RANGE", "The value of an option is outside its range.")
    EXPECT_SYNTAX = (
        "E-EXPECT-SYNTAX",
        (
            "An expectation is not written as CHECK[.METRIC][@SIZE][/NODES]>=NUMBER or <=NUMBER. "
            "Example: all-reduce@8G>=380."
        ),
    )
    METRIC_UNKNOWN = (
        "E-METRIC-UNKNOWN",
        "The check does not have this metric, or has no default metric. Name one of its metrics.",
    )
    EXPECT_SIZE = (
        "E-EXPECT-SIZE",
        "The metric depends on the message size. Name a size, such as all-reduce@8G>=380.",
    )
    METRIC_UNIT = (
        "E-METRIC-UNIT",
        "The metric has another unit. Expectations need no unit.",
    )
    EXPECT_ALWAYS_MET = (
        "E-EXPECT-ALWAYS-MET",
        "Every measurement meets this bound, so it would only disable the bound of the machine.",
    )
    FAULT_SYNTAX = (
        "E-FAULT-SYNTAX",
        "A fault to inject is unknown or has the wrong form. The hint lists the valid forms.",
    )
    FAULT_HOST = ("E-FAULT-HOST", "A fault names a host that is not part of the run.")
    FAULT_UNKNOWN = (
        "E-FAULT-UNKNOWN",
        "--faults names no fault, or one that accept cannot inject. See docs/drill.md.",
    )
    DRILL_NOTHING = (
        "E-DRILL-NOTHING",
        "No fault can be injected here. accept drill --dry-run shows the reason for each fault.",
    )
    BASELINE_FILE = (
        "E-BASELINE-FILE",
        "The file for accept baseline needs a name of a-z, 0-9, dots and hyphens, and .yaml.",
    )
    BASELINE_EXISTS = (
        "E-BASELINE-EXISTS",
        "accept baseline does not replace an existing file without --force.",
    )
    BASELINE_UNWRITABLE = (
        "E-BASELINE-UNWRITABLE",
        "The file for accept baseline cannot be written. The message shows the reason.",
    )
    BASELINE_NOT_ACCEPTED = (
        "E-BASELINE-NOT-ACCEPTED",
        "Only an accepted run is a good reference. Use another run, or --force.",
    )
    BASELINE_EMPTY = (
        "E-BASELINE-EMPTY",
        "The run has no measurement for a reference. Use a run of whole nodes with a collective.",
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
    NCCL_SETTING_UNKNOWN = (
        "W-NCCL-SETTING-UNKNOWN",
        "NCCL and the known plugins read no setting with this name. Check the spelling.",
    )
    NCCL_CONTRADICTION = (
        "W-NCCL-CONTRADICTION",
        (
            "An NCCL setting turns off or replaces a path that the machine should use, so the run "
            "measures something else. Remove the setting, or select a profile without the path."
        ),
    )
    NCCL_CHANNELS = (
        "W-NCCL-CHANNELS",
        "The number of channels does not fit the number of NICs of the machine.",
    )
    NCCL_DEBUG = (
        "W-NCCL-DEBUG",
        (
            "With this NCCL_DEBUG the logs do not show the network, so the verdict is "
            "inconclusive. Use INFO or TRACE."
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
    LOCAL_SURVEY_TIMEOUT = (
        "E-LOCAL-SURVEY-TIMEOUT",
        "Listing the tools and GPUs of this machine took too long. Check whether nvidia-smi hangs.",
    )

    # Hosts over ssh.

    # Kubernetes.
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
    EVIDENCE_NONE = (
        "E-EVIDENCE-NONE",
        (
            "The path names no evidence. Evidence is a folder that `accept collect` or `accept "
            "run` fetched, its archive, a saved log of the first host, or logs of nccl-tests."
        ),
    )
    EVIDENCE_RUNNING = (
        "E-EVIDENCE-RUNNING",
        "The run has not ended, so there is no evidence to judge yet. Follow it with accept watch.",
    )
    EVIDENCE_NOT_COLLECTED = (
        "E-EVIDENCE-NOT-COLLECTED",
        "The run's evidence is still where it ran. Fetch it with accept collect.",
    )
    EVIDENCE_CHANGED = (
        "E-EVIDENCE-CHANGED",
        (
            "Files differ from the checksums that the run wrote, or are missing or not listed. "
            "Collect the run again, or find out who changed them."
        ),
    )
    EVIDENCE_LOG_MISSING = (
        "E-EVIDENCE-LOG-MISSING",
        (
            "The records name a raw log that is missing. Every figure is read from the logs, so "
            "nothing can be judged without it. Collect the run again."
        ),
    )
    EVIDENCE_NO_FOLDER = (
        "E-EVIDENCE-NO-FOLDER",
        (
            "Reports are written beside the evidence, and an archive, a log or a bucket has no "
            "such folder. Print one report with --format md or --format junit."
        ),
    )
    DIFF_NOTHING_IN_COMMON = (
        "E-DIFF-NOTHING-IN-COMMON",
        (
            "The two runs have no measurement of the same check, size and number of nodes, so "
            "nothing can be compared. Compare runs of the same suite."
        ),
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
