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
    OPTION_RANGE = ("E-OPTION-RANGE", "The value of an option is outside its range.")
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

    # Configuration files: machines, suites, sites.

    # Plans, steps and rendered runs.

    # Runs and run folders.

    # This machine.
    LOCAL_SURVEY_TIMEOUT = (
        "E-LOCAL-SURVEY-TIMEOUT",
        "Listing the tools and GPUs of this machine took too long. Check whether nvidia-smi hangs.",
    )

    # Hosts over ssh.

    # Kubernetes.

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
