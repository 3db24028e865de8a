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
    OPTION_EXPECT = (
        "E-OPTION-EXPECT",
        (
            "An --expect is not a valid expectation. Write CHECK@SIZE>=VALUE or "
            "CHECK.METRIC>=VALUE, such as all-reduce@8G>=380."
        ),
    )

    # Configuration files: machines, suites, sites.

    # Plans, steps and rendered runs.

    # Runs and run folders.

    # This machine.

    # Hosts over ssh.

    # Kubernetes.

    # Evidence, archives, buckets and logs.
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
