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
        return self.value

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

    # Configuration files: machines, suites, sites.

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

    # Evidence, archives, buckets and logs.
    BUCKET_RUN = (
        "E-BUCKET-RUN",
        "The URL does not end in the name of a run. Give a URL such as gs://BUCKET/runs/ATTEMPT.",
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
