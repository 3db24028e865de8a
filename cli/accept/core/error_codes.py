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
