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

    # Configuration files: machines, suites, sites.

    # Plans, steps and rendered runs.
    EXPECT_CHECK = (
        "E-EXPECT-CHECK",
        (
            "--expect names a check that the suite does not run. Use a suite that runs it, or "
            "correct the name."
        ),
    )
    LOCAL_HOSTS = (
        "E-LOCAL-HOSTS",
        (
            "The back end local tests only this machine. For other hosts, give --hosts, or "
            "choose another --backend."
        ),
    )
    MACHINE_GPU_COUNT = (
        "E-MACHINE-GPU-COUNT",
        (
            "Pods must request a number of GPUs, and the machine file has none. Give "
            "--gpus-per-node, or name a machine with a number."
        ),
    )
    NODES_ALL = (
        "E-NODES-ALL",
        (
            "--nodes all takes every free node of a cluster. It works only with a cluster, and "
            "without --hosts."
        ),
    )
    NODES_EXCLUDED = (
        "E-NODES-EXCLUDED",
        (
            "A requested node is in the excludeNodes list of the site file. Remove it from one "
            "of the two lists."
        ),
    )
    NODES_MISMATCH = (
        "E-NODES-MISMATCH",
        (
            "The number of nodes differs from the number of hosts or nodes that are named. "
            "Leave --nodes out, or change the list."
        ),
    )
    NODES_NAME = (
        "E-NODES-NAME",
        (
            "A node name contains characters that Kubernetes does not allow. kubectl get nodes "
            "lists the valid names."
        ),
    )
    NODES_NUMBER = (
        "E-NODES-NUMBER",
        "The number of nodes is too small or too large. The message shows the limits.",
    )
    NODES_TOO_MANY_NAMES = (
        "E-NODES-TOO-MANY-NAMES",
        (
            "A run on Kubernetes can name only a limited number of nodes. Label the nodes and "
            "select the label, or request a number of nodes."
        ),
    )
    NODES_UNKNOWN = (
        "E-NODES-UNKNOWN",
        "Neither the options nor the site file give the number of nodes. Give --nodes or --hosts.",
    )
    OPTION_BACKEND = (
        "E-OPTION-BACKEND",
        "The named back end does not exist. The message lists the back ends.",
    )
    OPTION_BUDGET = (
        "E-OPTION-BUDGET",
        (
            "Every step of the suite takes longer than --budget. Give a longer budget, or use a "
            "shorter suite."
        ),
    )
    OPTION_EXPECT = (
        "E-OPTION-EXPECT",
        "--expect cannot be read. Write CHECK.METRIC>=VALUE, such as all-reduce.busbw@8G>=380.",
    )
    OPTION_GPUS = (
        "E-OPTION-GPUS",
        (
            "The machine cannot run with this number of GPUs per node. The message lists the "
            "possible numbers."
        ),
    )
    OPTION_NCCL = (
        "E-OPTION-NCCL",
        "--nccl is not a valid setting. Write KEY=VALUE, such as NCCL_ALGO=Ring.",
    )
    OPTION_ROUNDS = (
        "E-OPTION-ROUNDS",
        "--rounds is not a valid number of rounds. Write a number from 1 to 64, or auto.",
    )
    PARAM_CHECK = (
        "E-PARAM-CHECK",
        (
            "--set names a check that no step of the suite runs. Correct the name, or use a "
            "suite that runs it."
        ),
    )
    PARAM_INVALID = (
        "E-PARAM-INVALID",
        (
            "--set gives a parameter that the check does not have, or a value that it does not "
            "allow. accept show check NAME lists the parameters."
        ),
    )
    PARAM_SYNTAX = (
        "E-PARAM-SYNTAX",
        "--set is not a valid setting. Write CHECK.PARAM=VALUE, such as all-reduce.max=1G.",
    )
    RUN_CHANGED = (
        "E-RUN-CHANGED",
        (
            "A file of a rendered run was changed. A run uses the files unmodified: change the "
            "options or the site file, and render again."
        ),
    )
    RUN_NOT_RENDERED = (
        "E-RUN-NOT-RENDERED",
        "The run folder has no rendered files. Render the run again.",
    )
    RUN_NO_BZ2 = (
        "E-RUN-NO-BZ2",
        (
            "The Python of accept lacks the module bz2, which packs the code for the nodes. "
            "Install a Python with libbz2."
        ),
    )
    RUN_OTHER_VERSION = (
        "E-RUN-OTHER-VERSION",
        "Another version of accept rendered the run. Render it again with this version.",
    )
    SITE_GPUS_PER_POD = (
        "E-SITE-GPUS-PER-POD",
        (
            "More GPUs are to be tested on each node than a pod requests. Make gpusPerNode and "
            "kubernetes.gpusPerPod equal."
        ),
    )
    SITE_NCCL_PROFILE = (
        "E-SITE-NCCL-PROFILE",
        (
            "The site file selects an NCCL profile that the machine does not have. The message "
            "lists the profiles."
        ),
    )
    SITE_NO_IMAGE = (
        "E-SITE-NO-IMAGE",
        (
            "A run on Kubernetes needs a container image. Name it in the site file, under "
            "kubernetes.image."
        ),
    )
    SITE_RESULTS_IN_POD = (
        "E-SITE-RESULTS-IN-POD",
        (
            "results.location is a folder inside the pod, which is deleted with the pod. Name a "
            "bucket, or mount a volume."
        ),
    )

    # Runs and run folders.
    GPUS_IN_USE = (
        "E-GPUS-IN-USE",
        "Programs use the GPUs. Wait until they end, or give --busy-ok to measure beside them.",
    )
    RUN_COORDINATOR_DIED = (
        "E-RUN-COORDINATOR-DIED",
        (
            "The coordinator was killed, or its host was restarted, so the run has no exit "
            "status. accept collect fetches what was measured."
        ),
    )
    RUN_FOREIGN_FOLDER = (
        "E-RUN-FOREIGN-FOLDER",
        (
            "job.json names another folder than the one in the run folder. If the run folder "
            "was renamed or copied, use the original one."
        ),
    )
    RUN_NOT_RECORDED = (
        "E-RUN-NOT-RECORDED",
        (
            "job.json could not be written after the start, so later commands could not find "
            "the run. The run was ended. Free space on the disk, or set ACCEPT_RUNS to another "
            "folder, and start the run again."
        ),
    )
    RUN_STILL_RUNNING = (
        "E-RUN-STILL-RUNNING",
        (
            "The run has not ended, so its evidence cannot be fetched yet. Follow it with "
            "accept watch, or end it with accept cancel."
        ),
    )

    # This machine.
    LOCAL_NO_GPU = (
        "E-LOCAL-NO-GPU",
        (
            "The machine of the run has GPUs, and this host shows none. Check the driver, or "
            "give --machine cpu."
        ),
    )
    LOCAL_NO_MPIRUN = (
        "E-LOCAL-NO-MPIRUN",
        (
            "mpirun of Open MPI is missing here. Install it, or name it in the site file under "
            "tools.mpirun."
        ),
    )

    # Hosts over ssh.
    SSH_END_UNCONFIRMED = (
        "E-SSH-END-UNCONFIRMED",
        (
            "The first host did not confirm that the run ended, so the other hosts were not "
            "changed. accept delete removes everything."
        ),
    )
    SSH_EVIDENCE_UNREADABLE = (
        "E-SSH-EVIDENCE-UNREADABLE",
        (
            "The first host could not send the evidence. Check that the host can be reached, "
            "and collect again."
        ),
    )
    SSH_FOREIGN_FOLDER = (
        "E-SSH-FOREIGN-FOLDER",
        (
            "The folder of the run on the host belongs to another user. The run's own folder is "
            "gone; run again."
        ),
    )
    SSH_HOSTS_UNUSABLE = (
        "E-SSH-HOSTS-UNUSABLE",
        (
            "Too few hosts can be used. The message has the reasons; accept doctor shows what "
            "each host lacks."
        ),
    )
    SSH_KEYGEN = (
        "E-SSH-KEYGEN",
        (
            "ssh-keygen could not make the keys of the run. Install the OpenSSH client on this "
            "machine."
        ),
    )
    SSH_MISSING = ("E-SSH-MISSING", "This machine has no ssh. Install the OpenSSH client.")
    SSH_NOT_REMOVED = (
        "E-SSH-NOT-REMOVED",
        (
            "Some hosts did not confirm that the run was removed. Processes or files may be "
            "left there; the message names them. accept delete tries again."
        ),
    )
    SSH_NO_ANSWER = (
        "E-SSH-NO-ANSWER",
        (
            "No host could be reached, or the first host has not answered for minutes. A "
            "started run goes on. Check the connection with ssh HOST."
        ),
    )
    SSH_NO_COORDINATOR = (
        "E-SSH-NO-COORDINATOR",
        (
            "The coordinator could not be started on the first host. accept doctor shows what "
            "the host lacks."
        ),
    )
    SSH_NO_HOSTS = (
        "E-SSH-NO-HOSTS",
        "A run over ssh needs hosts. Give --hosts, or ssh.hosts in the site file.",
    )
    SSH_NO_PYTHON = (
        "E-SSH-NO-PYTHON",
        (
            "No host has a Python that can run the coordinator. Install Python 3.10 or newer on "
            "one host, or set tools.python."
        ),
    )
    SSH_OPTION = (
        "E-SSH-OPTION",
        (
            "A setting for ssh could act as an option or a command. The message names the "
            "setting and the allowed form."
        ),
    )
    SSH_RUN_GONE = (
        "E-SSH-RUN-GONE",
        (
            "The run is no longer on its first host. A command removed it, or its retention "
            "time is over."
        ),
    )

    # Kubernetes.

    # Evidence, archives, buckets and logs.
    EVIDENCE_GONE = (
        "E-EVIDENCE-GONE",
        (
            "No evidence of the run exists on its hosts. Its retention time may be over, or it "
            "was removed; run again."
        ),
    )
    EVIDENCE_MODIFIED = (
        "E-EVIDENCE-MODIFIED",
        (
            "Files of the evidence differ from the checksums that the coordinator wrote. The "
            "copy on the host is kept; collect again."
        ),
    )
    EVIDENCE_NO_PLAN = (
        "E-EVIDENCE-NO-PLAN",
        "The evidence archive contains no plan, so it cannot be judged. Collect again.",
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
