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
    OPTION_EXPECT = (
        "E-OPTION-EXPECT",
        (
            "An --expect is not a valid expectation. Write CHECK@SIZE>=VALUE or "
            "CHECK.METRIC>=VALUE, such as all-reduce@8G>=380."
        ),
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
    RUN_NOT_STARTED = (
        "E-RUN-NOT-STARTED",
        "The run was rendered, but never started. Start it with `accept submit FOLDER`.",
    )
    RUN_UNKNOWN = (
        "E-RUN-UNKNOWN",
        (
            "No run and no folder has this name. The hint lists the newest runs; `accept list "
            "runs` lists all."
        ),
    )
    RUN_NONE = (
        "E-RUN-NONE",
        (
            "There is no run yet, so `last` names none. Start a run with `accept run`, or name a "
            "folder."
        ),
    )
    RUN_NOT_OWN = (
        "E-RUN-NOT-OWN",
        (
            "The folder is not in your runs folder. A run folder can start any program, so "
            "commands that act on a run use only your own runs. Use the machine that started the "
            "run."
        ),
    )
    RUN_IS_DRILL = (
        "E-RUN-IS-DRILL",
        "The folder is a drill, which consists of several runs. Name one of its runs.",
    )
    RUNS_FOLDER = (
        "E-RUNS-FOLDER",
        (
            "The folder for runs is unknown, or a run folder cannot be made in it. Set "
            "ACCEPT_RUNS to a folder that you can write to."
        ),
    )

    # This machine.

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
    ARCHIVE_DAMAGED = (
        "E-ARCHIVE-DAMAGED",
        "The archive is damaged or incomplete. Collect the run again, or copy the archive again.",
    )
    ARCHIVE_UNSAFE = (
        "E-ARCHIVE-UNSAFE",
        (
            "The archive contains what evidence never contains: a link, a device, a path outside "
            "of the archive, or a file twice. Check that it is the right archive."
        ),
    )
    ARCHIVE_TOO_LARGE = (
        "E-ARCHIVE-TOO-LARGE",
        (
            "The archive is larger than evidence or logs ever are, or it would unpack to more. "
            "Check that it is the right archive."
        ),
    )
    ARCHIVE_DISK = (
        "E-ARCHIVE-DISK",
        (
            "The disk is full, or the archive cannot be written to it. Free space, or set "
            "ACCEPT_RUNS to another disk, then collect again."
        ),
    )
    ARCHIVE_INCOMPLETE = (
        "E-ARCHIVE-INCOMPLETE",
        (
            "The connection failed several times before the whole archive arrived. Collect again: "
            "the download continues where it ended."
        ),
    )
    ARCHIVE_CHANGED = (
        "E-ARCHIVE-CHANGED",
        "The archive that arrived differs from the announced size or SHA-256. Collect again.",
    )
    BUCKET_LIBRARY = (
        "E-BUCKET-LIBRARY",
        (
            "Reading buckets needs the Python package obstore. Install accept with its extra "
            "`storage`."
        ),
    )
    BUCKET_UNREADABLE = (
        "E-BUCKET-UNREADABLE",
        (
            "The bucket or the shared folder cannot be read. Check the URL, your credentials and "
            "your permissions."
        ),
    )
    BUCKET_NO_EVIDENCE = (
        "E-BUCKET-NO-EVIDENCE",
        (
            "The URL exists, but holds no evidence of a run. Give the URL of a run, such as "
            "gs://BUCKET/runs/ATTEMPT."
        ),
    )
    BUCKET_UNFINISHED = (
        "E-BUCKET-UNFINISHED",
        (
            "The evidence was not sent completely: its manifest is missing. `accept collect` "
            "fetches the part that was sent."
        ),
    )
    BUCKET_CHANGED = (
        "E-BUCKET-CHANGED",
        (
            "Files of the evidence are missing, cannot be read, or differ from its manifest. "
            "Fetch it again, or ask who changed it."
        ),
    )
    BUCKET_UNSAFE = (
        "E-BUCKET-UNSAFE",
        (
            "An object has a name that is a path outside of the evidence. accept never writes such "
            "names. Find out who did."
        ),
    )
    BUCKET_TOO_LARGE = (
        "E-BUCKET-TOO-LARGE",
        (
            "The URL holds more data than one run ever has. Give the URL of one run, such as "
            "gs://BUCKET/runs/ATTEMPT."
        ),
    )
    LOGS_NONE = (
        "E-LOGS-NONE",
        (
            "There is neither evidence of a run nor a log of nccl-tests. Name a run, an evidence "
            "folder, or the output of all_reduce_perf or a similar test."
        ),
    )
    LOGS_NOT_A_LOG = (
        "E-LOGS-NOT-A-LOG",
        (
            "The file is neither a log of nccl-tests nor evidence. Leave it out, or name its "
            "folder: other files in a folder are ignored."
        ),
    )
    LOGS_NOTHING_MEASURED = (
        "E-LOGS-NOTHING-MEASURED",
        (
            "No log shows which hosts and GPUs took part, so nothing was measured. The message has "
            "the first problem. A complete log has a list after `# Using devices`."
        ),
    )
    LOGS_NOT_JUDGED = (
        "E-LOGS-NOT-JUDGED",
        (
            "The logs are of collectives that no check judges. `accept list checks` shows the "
            "collectives that are judged."
        ),
    )
    LOGS_TOO_MANY = (
        "E-LOGS-TOO-MANY",
        (
            "The folder or archive has more files than a collection of logs ever has. Name the "
            "folder of the logs."
        ),
    )
    LOGS_UNREADABLE = (
        "E-LOGS-UNREADABLE",
        "The operating system cannot read the file. The message has the reason. Name another file.",
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
