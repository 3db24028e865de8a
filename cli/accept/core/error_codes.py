"""Define stable codes with an explanation, and those of errors and warnings, one row each.

Scripts, tests and support tickets refer to a code; the wording of a message may change at any
time. `accept show error CODE` prints the row.
"""

from __future__ import annotations

from accept.core.text import TextEnum


class ExplainedCode(TextEnum):
    """A stable code with an explanation.

    A code keeps its meaning for ever: a new problem gets a new code.
    """

    #: The problem and the next step, in one to three sentences.
    explanation: str

    def __new__(cls, code: str, explanation: str) -> ExplainedCode:
        """Create the member `code`, a plain string with an explanation."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.explanation = explanation
        return member


class Code(ExplainedCode):
    """The code of an error that ends a command (`E-`), or of a warning (`W-`): E-AREA-PROBLEM."""

    # Command line: options, host lists, expectations, faults, output files.
    BASELINE_DIVIDED = (
        "E-BASELINE-DIVIDED",
        (
            "The results are not of one population: some hosts, pairs or groups differ, so the "
            "median is neither theirs nor that of the others. Remove or repair what the message "
            "names, or use another run; --force does not change this."
        ),
    )
    BASELINE_EMPTY = (
        "E-BASELINE-EMPTY",
        (
            "The run has no measurement that can become a reference. Use a run of whole nodes "
            "that measured a collective."
        ),
    )
    BASELINE_FILE = (
        "E-BASELINE-FILE",
        (
            "The name of the file is not a valid name of a machine. Use a-z, 0-9, '.' and '-', "
            "and end it with .yaml."
        ),
    )
    BASELINE_LOW = (
        "W-BASELINE-LOW",
        (
            "A reference requires less than 80 % of the median, because the results vary widely or "
            "--share is low. Slow nodes may pass with it. Use a steadier run, or a higher --share."
        ),
    )
    BASELINE_NOT_ACCEPTED = (
        "E-BASELINE-NOT-ACCEPTED",
        (
            "The run was not accepted, and only an accepted run is a good reference, or one that "
            "lacks nothing but references. Use another run, or give --force."
        ),
    )
    CAUSE_UNKNOWN = (
        "E-CAUSE-UNKNOWN",
        "No cause has this name. Use one of the names in the message.",
    )
    CODE_UNKNOWN = (
        "E-CODE-UNKNOWN",
        "No error or warning has this code. `accept list errors` lists all codes.",
    )
    DRILL_NOTHING = (
        "E-DRILL-NOTHING",
        (
            "None of the faults can be injected here. `accept drill --dry-run` shows the reason "
            "for each fault."
        ),
    )
    EXPECT_ALWAYS_MET = (
        "E-EXPECT-ALWAYS-MET",
        (
            "Every measurement meets this bound, so it would only disable the bound of the "
            "machine. Give a bound that a measurement can miss."
        ),
    )
    EXPECT_CHECK = (
        "E-EXPECT-CHECK",
        (
            "--expect names a check that the suite does not run. Correct the name, or use a suite "
            "that runs it."
        ),
    )
    EXPECT_SIZE = (
        "E-EXPECT-SIZE",
        (
            "The metric depends on the message size, and the expectation names none. Name a size, "
            "such as all-reduce@8G>=380."
        ),
    )
    EXPECT_SYNTAX = (
        "E-EXPECT-SYNTAX",
        (
            "An expectation does not have a valid form. Write "
            "CHECK[.METRIC][@SIZE][/NODES]>=NUMBER or <=NUMBER, such as all-reduce@8G>=380."
        ),
    )
    FAULT_HOST = (
        "E-FAULT-HOST",
        "A fault names a host that is not part of the run. Name one of the run's hosts.",
    )
    FAULT_SYNTAX = (
        "E-FAULT-SYNTAX",
        (
            "A fault for --inject does not exist or does not have a valid form. Use one of the "
            "forms in the message."
        ),
    )
    FAULT_UNKNOWN = (
        "E-FAULT-UNKNOWN",
        "--faults is empty, or names a fault that does not exist. docs/drill.md lists the faults.",
    )
    GPUS_PER_NODE = (
        "E-GPUS-PER-NODE",
        (
            "The machine cannot use this number of GPUs per node. Give a number that divides the "
            "GPUs of a node, so that all groups have the same size."
        ),
    )
    HOSTLIST_DUPLICATE = (
        "E-HOSTLIST-DUPLICATE",
        "The host list names a host twice. Name each host once.",
    )
    HOSTLIST_FILE = (
        "E-HOSTLIST-FILE",
        (
            "The file of a host list (@FILE) is unreadable, empty or too large. Write one host "
            "per line; # begins a comment."
        ),
    )
    HOSTLIST_SYNTAX = (
        "E-HOSTLIST-SYNTAX",
        (
            "The host list has an invalid or empty name, or an invalid range. Write it in one of "
            "the forms node1, 10.0.0.7, node[01-16], node[1,3,7-9] or @FILE."
        ),
    )
    HOSTLIST_TOO_MANY = (
        "E-HOSTLIST-TOO-MANY",
        "The host list expands to more hosts than accept supports. Check the ranges.",
    )
    METRIC_UNIT = (
        "E-METRIC-UNIT",
        "The metric has another unit than the expectation. Leave the unit out.",
    )
    METRIC_UNKNOWN = (
        "E-METRIC-UNKNOWN",
        "The check does not have this metric, or has no default metric. Name one of its metrics.",
    )
    NODE_UNKNOWN = (
        "E-NODE-UNKNOWN",
        "The run has no node of this name. `accept show nodes RUN` lists its nodes.",
    )
    NODE_NOT_BAD = (
        "E-NODE-NOT-BAD",
        (
            "The verdict does not accuse this node, so there is nothing to report about it. "
            "`accept show nodes RUN --bad` lists the bad nodes; `accept explain RUN NODE` shows "
            "what was measured on this one."
        ),
    )
    NODES_ALL = (
        "E-NODES-ALL",
        (
            "--nodes all takes every free node of a cluster, so it needs a cluster and excludes "
            "--hosts. Give a number, or leave --hosts out."
        ),
    )
    NODES_ALL_OFFLINE = (
        "E-NODES-ALL-OFFLINE",
        (
            "--nodes all needs a connection to a cluster, but `accept render` makes none. Write "
            "the free nodes to a file with `accept nodes > FILE` and give --nodes @FILE."
        ),
    )
    NODES_EXCLUDED = (
        "E-NODES-EXCLUDED",
        (
            "A requested node is in the list excludeNodes of the site file. Remove it from one of "
            "the two lists."
        ),
    )
    NODES_MISMATCH = (
        "E-NODES-MISMATCH",
        (
            "The number of nodes differs from the number of named hosts or nodes. Leave --nodes "
            "out, or change the list."
        ),
    )
    NODES_NAME = (
        "E-NODES-NAME",
        (
            "A node name contains characters that Kubernetes does not allow. `kubectl get nodes` "
            "lists the valid names."
        ),
    )
    NODES_NUMBER = (
        "E-NODES-NUMBER",
        (
            "The number of nodes is too small or too large. Give a number within the limits in "
            "the message."
        ),
    )
    NODES_SYNTAX = (
        "E-NODES-SYNTAX",
        (
            "--nodes does not have a valid form. Give a number, a list of names such as "
            "node[01-16], @FILE with one name per line, or `all` for every free node of a "
            "cluster."
        ),
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
        (
            "The back end does not exist, or cannot do what the command needs. Use one of the "
            "names in the message."
        ),
    )
    OPTION_BUDGET = (
        "E-OPTION-BUDGET",
        (
            "Every step of the suite takes longer than --budget. Give a longer budget, or use a "
            "shorter suite."
        ),
    )
    OPTION_CHECK = (
        "E-OPTION-CHECK",
        (
            "--only or --skip names a check or step that the suite does not have, or --skip one "
            "that every run needs. Use the names of the plan: accept run --dry-run."
        ),
    )
    OPTION_CHECK_NONE = (
        "E-OPTION-CHECK-NONE",
        (
            "--only and --skip leave no check to run. Name fewer checks after --skip, or others "
            "after --only."
        ),
    )
    OPTION_DEADLINE = (
        "E-OPTION-DEADLINE",
        (
            "By its estimate the run takes longer than the deadline that you set, so it would be "
            "ended before its verdict. Give a longer --deadline, --budget, or a shorter suite."
        ),
    )
    OPTION_HOLD = (
        "E-OPTION-HOLD",
        (
            "A hold needs a time above zero: 30m keeps the hosts after a failed run, always:30m "
            "after every run."
        ),
    )
    OPTION_DURATION = (
        "E-OPTION-DURATION",
        (
            "The value of the option is not a time span above zero. Give one such as 90s, 15m or "
            "1h30m."
        ),
    )
    OPTION_EMPTY = (
        "E-OPTION-EMPTY",
        (
            "A value on the command line is empty, most likely because a shell variable is not "
            "set. Give a value, or leave the option out."
        ),
    )
    OPTION_NCCL = (
        "E-OPTION-NCCL",
        "--nccl does not have a valid form. Write KEY=VALUE, such as NCCL_ALGO=Ring.",
    )
    OPTION_RANGE = (
        "E-OPTION-RANGE",
        (
            "The value of an option is outside its range. Give a value within the limits in the "
            "message."
        ),
    )
    OPTION_ROUNDS = (
        "E-OPTION-ROUNDS",
        "--rounds is not a valid number of rounds. Give a number from 1 to 64, or auto.",
    )
    OUTPUT_EXISTS = (
        "E-OUTPUT-EXISTS",
        (
            "The file exists already, or the folder is not empty, and accept does not overwrite "
            "them. Name another one, remove it first, or give --force if the command has it."
        ),
    )
    OUTPUT_WRITE = (
        "E-OUTPUT-WRITE",
        (
            "The output file or folder cannot be written. Check its owner and the free space, or "
            "name another one."
        ),
    )
    PARAM_CHECK = (
        "E-PARAM-CHECK",
        (
            "--set names a check that no step of the suite runs. Correct the name, or use a suite "
            "that runs it."
        ),
    )
    PARAM_INVALID = (
        "E-PARAM-INVALID",
        (
            "--set gives a value that the parameter does not allow. Give a value that the message "
            "describes."
        ),
    )
    PARAM_SYNTAX = (
        "E-PARAM-SYNTAX",
        "--set does not have a valid form. Write CHECK.PARAM=VALUE, such as all-reduce.max=1G.",
    )
    PARAM_UNKNOWN = (
        "E-PARAM-UNKNOWN",
        (
            "--set names a parameter that the check does not have. `accept show check NAME` lists "
            "its parameters."
        ),
    )
    USAGE = (
        "E-USAGE",
        (
            "The command line has an unknown command or option, lacks an argument, or has a value "
            "of the wrong kind. Add --help to the command to see its options and an example."
        ),
    )

    PUBLIC_KEY = (
        "E-PUBLIC-KEY",
        (
            "The file of --public-key cannot be read or contains no public key of OpenSSH. Such a "
            "file has one key per line, as ~/.ssh/id_ed25519.pub has."
        ),
    )
    SIGNING_FAILED = (
        "E-SIGNING-FAILED",
        (
            "The evidence could not be signed. It must be a folder on this machine, ssh-keygen "
            "must be version 8.1 or newer, and the key must have no password or be in ssh-agent."
        ),
    )
    # Configuration files: machines, suites, sites.
    CHECK_UNKNOWN = (
        "E-CHECK-UNKNOWN",
        "No check has this name. `accept list checks` lists the names.",
    )
    ENV_INVALID = (
        "E-ENV-INVALID",
        (
            "An environment variable has a name that no shell accepts, or a value of several "
            "lines. Correct the name, or write the value in one line."
        ),
    )
    KEY_MISSING = ("E-KEY-MISSING", "A required key is missing. Add the keys in the message.")
    KEY_TYPE = ("E-KEY-TYPE", "A key is not text. Write it in quotes.")
    KEY_UNKNOWN = (
        "E-KEY-UNKNOWN",
        (
            "A mapping has a key that accept does not know. Use the nearest key, or another key "
            "in the message."
        ),
    )
    MACHINE_BASE_CHAIN = (
        "E-MACHINE-BASE-CHAIN",
        "The chain of bases is too long. Check that no base refers to itself.",
    )
    MACHINE_BASE_UNKNOWN = (
        "E-MACHINE-BASE-UNKNOWN",
        "A base of the machine does not exist. Use a machine, a shared base or a path.",
    )
    MACHINE_CONTRADICTION = (
        "E-MACHINE-CONTRADICTION",
        "Keys of the machine contradict each other. Change or remove one of them.",
    )
    MACHINE_GPU_COUNT = (
        "E-MACHINE-GPU-COUNT",
        (
            "Pods must request a number of GPUs, and the machine file has none. Give "
            "--gpus-per-node, or name a machine with a number."
        ),
    )
    MACHINE_MISSING = (
        "E-MACHINE-MISSING",
        (
            "No machine is given, and this command contacts no hosts to detect it. Give "
            "--machine; `accept list machines` lists the names."
        ),
    )
    MACHINE_NO_BOUND = (
        "E-MACHINE-NO-BOUND",
        "A reference figure has no bound. Add `share`, `lower` or `upper`.",
    )
    MACHINE_SOURCE = (
        "E-MACHINE-SOURCE",
        "NCCL settings of a machine have no source. Add `source:` with a URL.",
    )
    MACHINE_UNKNOWN = (
        "E-MACHINE-UNKNOWN",
        (
            "No machine has this name. Use a name that `accept list machines` shows, or the path "
            "of your own file (with a slash or .yaml)."
        ),
    )
    NCCL_CHANNELS = (
        "W-NCCL-CHANNELS",
        (
            "The number of channels does not fit the number of NICs of the machine. Use a "
            "multiple of it, or remove the setting."
        ),
    )
    NCCL_CONTRADICTION = (
        "W-NCCL-CONTRADICTION",
        (
            "An NCCL setting turns off or replaces a path that the machine should use, so the run "
            "measures something else. Remove the setting, or select a profile without the path."
        ),
    )
    NCCL_DEBUG = (
        "W-NCCL-DEBUG",
        (
            "With this NCCL_DEBUG the logs do not show the network, so the verdict is "
            "inconclusive. Use INFO or TRACE."
        ),
    )
    NCCL_PROFILE_UNKNOWN = (
        "E-NCCL-PROFILE-UNKNOWN",
        (
            "The machine has no NCCL profile with this name. `accept show machine NAME` lists its "
            "profiles; `default` must exist."
        ),
    )
    NCCL_SETTING_UNKNOWN = (
        "W-NCCL-SETTING-UNKNOWN",
        "NCCL and the known plugins read no setting with this name. Check the spelling.",
    )
    SETTING_SECRET = (
        "E-SETTING-SECRET",
        (
            "A setting looks like a secret, but the run folder, hosts, evidence and the records of "
            "clusters contain settings in plain text. On Kubernetes, take a variable from a Secret "
            "by kubernetes.extraEnvFrom; elsewhere, set it on the hosts. For a bucket, use an "
            "identity."
        ),
    )
    SITE_COLLECTOR = (
        "E-SITE-COLLECTOR",
        (
            "A collector of the site file has an invalid name, no command, or limits that are too "
            "high. values/collectors.yaml has the known collectors, which need no command."
        ),
    )
    SITE_GPUS_PER_POD = (
        "E-SITE-GPUS-PER-POD",
        (
            "More GPUs are to be tested on each node than a pod requests. Make gpusPerNode and "
            "kubernetes.gpusPerPod equal."
        ),
    )
    SITE_NO_IMAGE = (
        "E-SITE-NO-IMAGE",
        (
            "The run needs a container image, and nothing names one. Give --image, set "
            "kubernetes.image in the site file, or site.image in the values."
        ),
    )
    SITE_QUESTION = (
        "E-SITE-QUESTION",
        (
            "`accept init` found no or several answers for a value of the site file, and cannot "
            "ask. Give the option that the message names."
        ),
    )
    SITE_RESULTS_IN_POD = (
        "E-SITE-RESULTS-IN-POD",
        (
            "results.location is a folder inside the pod, which is deleted with the pod. Name a "
            "bucket, or mount a volume."
        ),
    )
    SUITE_CONTRADICTION = (
        "E-SUITE-CONTRADICTION",
        (
            "Keys of a check in the suite do not fit together, such as `rounds` without `groups: "
            "pairs`, or `script` without the check `script`. Change or remove one of them."
        ),
    )
    SUITE_SCRIPT = (
        "E-SUITE-SCRIPT",
        (
            "A script of the suite cannot be read, or its first line does not start with #!. "
            "Check the path and the first line, such as #!/bin/sh."
        ),
    )
    SUITE_UNKNOWN = (
        "E-SUITE-UNKNOWN",
        (
            "No suite has this name. Use a name that `accept list suites` shows, or the path of "
            "your own file (with a slash or .yaml)."
        ),
    )
    VALUE_INVALID = (
        "E-VALUE-INVALID",
        (
            "A value has the wrong type or form, or is outside its limits. Write a value that the "
            "message describes."
        ),
    )
    YAML_DUPLICATE_KEY = (
        "E-YAML-DUPLICATE-KEY",
        "A mapping has the same key twice. Remove one of them.",
    )
    YAML_ENCODING = ("E-YAML-ENCODING", "The file is not UTF-8 text. Save it as UTF-8.")
    YAML_FORM = ("E-YAML-FORM", "The file is empty, or is not a mapping. Write `key: value` lines.")
    YAML_SYNTAX = (
        "E-YAML-SYNTAX",
        (
            "The file is not valid YAML. Check the indentation (spaces, not tabs), and put text "
            "with special characters into quotes."
        ),
    )
    YAML_TOO_DEEP = ("E-YAML-TOO-DEEP", "The file is nested too deeply. Use a flatter structure.")
    YAML_TOO_LARGE = (
        "E-YAML-TOO-LARGE",
        "The file is larger than 1 MiB, so it is probably not the intended one. Check the path.",
    )
    YAML_UNREADABLE = (
        "E-YAML-UNREADABLE",
        "The file is missing or cannot be read. Check the path and the permissions.",
    )
    YAML_UNSUPPORTED = (
        "E-YAML-UNSUPPORTED",
        (
            "The file uses an alias, an anchor, a tag or a second document. Repeat the value "
            "instead, and write one document per file."
        ),
    )

    # Runs and run folders.
    ATTEMPT_EXISTS = (
        "E-ATTEMPT-EXISTS",
        (
            "A run of this name exists already. Choose another --attempt, or leave it out to get "
            "a generated name."
        ),
    )
    ATTEMPT_NAME = (
        "E-ATTEMPT-NAME",
        (
            "The name of the run is invalid. Use at most 63 characters of a-z, 0-9 and '-', but "
            "not `last`."
        ),
    )
    GPUS_IN_USE = (
        "E-GPUS-IN-USE",
        "Programs use the GPUs. Wait until they end, or give --busy-ok to measure beside them.",
    )
    PLAN_FIXED = (
        "E-PLAN-FIXED",
        (
            "The run is already rendered, so options that would change its plan have no effect. "
            "Leave them out, or render the run again with them."
        ),
    )
    RUNS_FOLDER = (
        "E-RUNS-FOLDER",
        (
            "The folder for runs is unknown, or a run folder cannot be made in it. Set "
            "ACCEPT_RUNS to a folder that you can write to."
        ),
    )
    RUN_CHANGED = (
        "E-RUN-CHANGED",
        (
            "A file of a rendered run was changed, and a run uses its files unmodified. Change "
            "the options or the site file instead, and render again."
        ),
    )
    RUN_COORDINATOR_DIED = (
        "E-RUN-COORDINATOR-DIED",
        (
            "The coordinator was killed, or its host was restarted, so the run has no exit "
            "status. `accept collect` fetches what was measured."
        ),
    )
    RUN_FOREIGN_FOLDER = (
        "E-RUN-FOREIGN-FOLDER",
        (
            "job.json names another folder than the one in the run folder. If the run folder was "
            "renamed or copied, use the original one."
        ),
    )
    RUN_GONE = (
        "E-RUN-GONE",
        (
            "The run no longer exists where it ran: it was deleted, or its retention time is "
            "over. If it was not collected before, run again."
        ),
    )
    RESUME_DIFFERENT = (
        "E-RESUME-DIFFERENT",
        (
            "The options do not give the run that --resume names, so its finished steps "
            "prove nothing about this one. Give no other options, or start without --resume."
        ),
    )
    RESUME_NOT_SENT = (
        "E-RESUME-NOT-SENT",
        (
            "The evidence of the finished steps could not be copied to the first host, or is too "
            "large for the script of a job. Check the free space of that host, or start the run "
            "again without --resume."
        ),
    )
    RESUME_NODES = (
        "E-RESUME-NODES",
        (
            "The run that --resume names did not find all of its nodes, so their names are not "
            "known, and others may take their place. Start the run again without --resume."
        ),
    )
    RESUME_NOTHING = (
        "E-RESUME-NOTHING",
        (
            "The run that --resume names has finished all steps or none. Judge it, or start it "
            "again without --resume."
        ),
    )
    RUN_IS_DRILL = (
        "E-RUN-IS-DRILL",
        (
            "The folder is a drill or a repeated run, which consists of several runs. Name one of "
            "its runs."
        ),
    )
    RUN_NONE = (
        "E-RUN-NONE",
        "No run exists yet, so `last` names none. Start one with `accept run`, or name a folder.",
    )
    RUN_NO_SUSPECT = (
        "E-RUN-NO-SUSPECT",
        (
            "The verdict of the run accuses nothing of this kind, so there is nothing to report or "
            "to measure again. `accept judge RUN` shows its verdict."
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
    RUN_NOT_RECORDED = (
        "E-RUN-NOT-RECORDED",
        (
            "job.json could not be written after the start, so the run was ended: later commands "
            "could not find it. Free space on the disk, or set ACCEPT_RUNS to another folder, and "
            "start the run again."
        ),
    )
    RUN_NOT_RENDERED = (
        "E-RUN-NOT-RENDERED",
        "The run folder has no rendered files. Render the run again.",
    )
    RUN_NOT_STARTED = (
        "E-RUN-NOT-STARTED",
        "The run was rendered, but never started. Start it with `accept submit FOLDER`.",
    )
    RUN_NO_BZ2 = (
        "E-RUN-NO-BZ2",
        (
            "The Python of accept lacks the module bz2, which packs the code for the nodes. "
            "Install a Python with libbz2."
        ),
    )
    RUN_NVML_BINDINGS = (
        "E-RUN-NVML-BINDINGS",
        (
            "The Python of accept lacks the package nvidia-ml-py in the required version. Chart, "
            "values and nodes must have the same code. Install the version that the error names."
        ),
    )
    RUN_OTHER_VERSION = (
        "E-RUN-OTHER-VERSION",
        "Another version of accept rendered the run. Render it again with this version.",
    )
    RUN_STILL_RUNNING = (
        "E-RUN-STILL-RUNNING",
        (
            "The run has not ended, so its evidence cannot be collected or judged yet. Follow it "
            "with `accept watch`, or end it with `accept cancel`."
        ),
    )
    RUN_UNKNOWN = (
        "E-RUN-UNKNOWN",
        "No run and no folder has this name. `accept list runs` lists all runs.",
    )
    RUN_UNREADABLE = (
        "E-RUN-UNREADABLE",
        (
            "A file of the run folder is missing, was changed, or comes from another version of "
            "accept. Render the run again, or use the version that made it."
        ),
    )
    RUN_WHICH = (
        "E-RUN-WHICH",
        (
            "`accept delete` needs either the names of runs or --older-than, and not both. Give "
            "one of them."
        ),
    )

    # Containers on hosts, in jobs of Slurm, and here.
    CONTAINER_FOLDER = (
        "E-CONTAINER-FOLDER",
        (
            "The folder of the run cannot be mounted into a container, because its path has a "
            "colon, comma or blank. Set ACCEPT_RUNS to another folder."
        ),
    )
    CONTAINER_IMAGE = (
        "E-CONTAINER-IMAGE",
        (
            "The container does not start: the image cannot be pulled, or the runtime refuses an "
            "option. Run the same image by hand."
        ),
    )
    CONTAINER_IMAGE_LACKS = (
        "E-CONTAINER-IMAGE-LACKS",
        (
            "The image lacks a program that every run needs. docker/README.md lists what an image "
            "needs, and builds one."
        ),
    )
    CONTAINER_IMAGE_NAME = (
        "E-CONTAINER-IMAGE-NAME",
        "--image is not the name of an image. Give one such as registry.example/accept:1.0.",
    )
    CONTAINER_NO_IMAGE = (
        "E-CONTAINER-NO-IMAGE",
        (
            "The site file names a container runtime, and there is no image. Give --image, or set "
            "container.image."
        ),
    )
    CONTAINER_RUNTIME = (
        "E-CONTAINER-RUNTIME",
        (
            "The back end does not have this container runtime. Set container.runtime in the site "
            "file to another one."
        ),
    )
    CONTAINER_RUNTIME_MISSING = (
        "E-CONTAINER-RUNTIME-MISSING",
        (
            "The container runtime is missing, or this user may not use it. Install it, or set "
            "container.runtime in the site file to another one."
        ),
    )

    # This machine.
    LOCAL_HOSTS = (
        "E-LOCAL-HOSTS",
        (
            "The back end `local` tests only this machine. For other hosts, give --hosts or "
            "choose another --backend."
        ),
    )
    LOCAL_NO_GPU = (
        "E-LOCAL-NO-GPU",
        (
            "The machine of the run has GPUs, and this host shows none. Check the driver, or give "
            "--machine cpu."
        ),
    )
    LOCAL_NO_MPIRUN = (
        "E-LOCAL-NO-MPIRUN",
        (
            "mpirun of Open MPI is missing here. Install it, or name it in the site file under "
            "tools.mpirun."
        ),
    )
    LOCAL_SURVEY_TIMEOUT = (
        "E-LOCAL-SURVEY-TIMEOUT",
        "Listing the tools and GPUs of this machine took too long. Check whether nvidia-smi hangs.",
    )

    # Slurm.
    SLURM_ACCOUNT = (
        "E-SLURM-ACCOUNT",
        (
            "Slurm does not know the account, or you may not use it in this partition. `sacctmgr "
            "show assoc user=$USER` lists yours."
        ),
    )
    SLURM_CANCELLED = (
        "E-SLURM-CANCELLED",
        (
            "Somebody ended the job of the run with scancel. `accept collect` fetches what was "
            "measured."
        ),
    )
    SLURM_CONSTRAINT = (
        "E-SLURM-CONSTRAINT",
        (
            "No node has the features, or no set of nodes meets all requests together. `sinfo -o "
            '"%N %f %G"` lists features and GPUs.'
        ),
    )
    SLURM_CONTROLLER = (
        "E-SLURM-CONTROLLER",
        (
            "The controller of Slurm (slurmctld) does not answer. Try `scontrol ping`; a job that"
            " was submitted goes on."
        ),
    )
    SLURM_GRES = (
        "E-SLURM-GRES",
        (
            'Slurm does not know the GPUs that the job requests. `sinfo -o "%N %G"` lists them; '
            "set slurm.gres in the site file, or none."
        ),
    )
    SLURM_JOB_ENDED = (
        "E-SLURM-JOB-ENDED",
        (
            "Slurm ended the job of the run for the reason in the message. Ask the administrator "
            "of the cluster, or run again."
        ),
    )
    SLURM_JOB_FAILED = (
        "E-SLURM-JOB-FAILED",
        (
            "The job of the run ended before the coordinator could start, for the reason in the "
            "message."
        ),
    )
    SLURM_LAUNCHER = (
        "E-SLURM-LAUNCHER",
        (
            "srun cannot start MPI ranks as slurm.launcher of the site file requests, or the run is"
            " in a container, which srun-pmix and srun-pmi2 do not enter. `srun --mpi=list` shows "
            "what the cluster has; without slurm.launcher, mpirun starts the ranks."
        ),
    )
    SLURM_MISSING = (
        "E-SLURM-MISSING",
        (
            "This machine has no sbatch, srun, sinfo, squeue or scontrol. Run accept on a login "
            "node of the cluster."
        ),
    )
    SLURM_MUNGE = (
        "E-SLURM-MUNGE",
        (
            "Slurm cannot authenticate you here, because munge does not work on this machine. Try"
            " `munge -n | unmunge`, and ask the administrator."
        ),
    )
    SLURM_NEVER_STARTS = (
        "E-SLURM-NEVER-STARTS",
        (
            "The job waits for something that only a person can change, so it was removed. "
            "Correct the request, or ask the administrator of the cluster."
        ),
    )
    SLURM_NODE_LOST = (
        "E-SLURM-NODE-LOST",
        (
            "Slurm lost the first node of the job, on which the coordinator was. The finished "
            "steps were kept if the nodes see the folder of the run. `accept run` starts again "
            "once without this node; otherwise run again with --exclude."
        ),
    )
    SLURM_NODE_UNKNOWN = (
        "E-SLURM-NODE-UNKNOWN",
        (
            "Slurm has no node with this name in the partition. `sinfo -N` lists the names; they "
            "may differ from hostnames."
        ),
    )
    SLURM_NODE_UNUSABLE = (
        "E-SLURM-NODE-UNUSABLE",
        ("A node that you named is drained, down or reserved. Leave it out, or have it resumed."),
    )
    SLURM_NONE_IDLE = (
        "E-SLURM-NONE-IDLE",
        (
            "No node of the partition is idle. `sinfo` shows their states; give --nodes NUMBER to"
            " wait for nodes."
        ),
    )
    SLURM_NO_JOB_ID = (
        "E-SLURM-NO-JOB-ID",
        (
            "sbatch did not print the number of a job, so nothing can follow it. Any job that it "
            "made was cancelled. Look for a wrapper around sbatch."
        ),
    )
    SLURM_OPTION = (
        "E-SLURM-OPTION",
        ("A setting for Slurm is not in the form that the message describes."),
    )
    SLURM_OUT_OF_MEMORY = (
        "E-SLURM-OUT-OF-MEMORY",
        (
            "Slurm ended the job because a program used more memory than a node has. End other "
            "programs there, or give the checks smaller sizes. `accept collect` fetches what was "
            "measured."
        ),
    )
    SLURM_PARTITION = (
        "E-SLURM-PARTITION",
        (
            "Slurm has no partition with this name, or you may not use it. `sinfo -s` lists the "
            "partitions."
        ),
    )
    SLURM_PREEMPTED = (
        "E-SLURM-PREEMPTED",
        (
            "Slurm ended the job in favor of one with a higher priority. Run again, or use "
            "another --qos or --partition."
        ),
    )
    SLURM_QOS = (
        "E-SLURM-QOS",
        ("Slurm does not know the quality of service, or you may not use it."),
    )
    SLURM_RANKS = (
        "E-SLURM-RANKS",
        (
            "srun started two ranks, and the MPI library did not see them as ranks 0 and 1 of 2. "
            "Usually every rank believes that it is rank 0 of 1, because the library was built "
            "without the interface that srun offers: Open MPI 5 has only PMIx. Use the other "
            "slurm.launcher, or remove it: then mpirun starts the ranks."
        ),
    )
    SLURM_REFUSED = (
        "E-SLURM-REFUSED",
        ("sbatch refused the job, for the reason in the message. Correct the options for Slurm."),
    )
    SLURM_RESERVATION = (
        "E-SLURM-RESERVATION",
        (
            "Slurm has no reservation with this name, or you may not use it. `scontrol show "
            "reservation` lists them."
        ),
    )
    SLURM_RESULTS = (
        "E-SLURM-RESULTS",
        (
            "The results location of the site file cannot be written to on this machine. Create "
            "it, or correct results.location."
        ),
    )
    SLURM_TIME_LIMIT = (
        "E-SLURM-TIME-LIMIT",
        (
            "The job reached its time limit before the run had ended. Give a longer --time, or a "
            "shorter suite."
        ),
    )
    SLURM_TOO_MANY_NODES = (
        "E-SLURM-TOO-MANY-NODES",
        (
            "The run needs more nodes than the partition or the allocation has. Request fewer "
            "--nodes."
        ),
    )

    # Hosts over ssh.
    SSH_END_UNCONFIRMED = (
        "E-SSH-END-UNCONFIRMED",
        (
            "The first host did not confirm that the run ended, so the other hosts were not "
            "changed. `accept delete` removes everything."
        ),
    )
    SSH_EVIDENCE_UNREADABLE = (
        "E-SSH-EVIDENCE-UNREADABLE",
        (
            "The first host could not send the evidence. Check that the host can be reached, and "
            "collect again."
        ),
    )
    SSH_FIRST_HOST_LOST = (
        "E-SSH-FIRST-HOST-LOST",
        (
            "The first host has not answered for minutes, or it was restarted, and the other hosts "
            "have lost the coordinator on it. `accept run` starts again once without it; if that "
            "run loses its first host, too, run again without both."
        ),
    )
    SSH_FOREIGN_FOLDER = (
        "E-SSH-FOREIGN-FOLDER",
        (
            "The folder of the run on the host belongs to another user, so the run's own folder "
            "is gone. Run again."
        ),
    )
    SSH_HOSTS_UNUSABLE = (
        "E-SSH-HOSTS-UNUSABLE",
        (
            "Too few hosts can be used, for the reasons in the message. `accept doctor` shows "
            "what each host lacks."
        ),
    )
    SSH_KEYGEN = (
        "E-SSH-KEYGEN",
        (
            "`ssh-keygen` could not make the keys of the run, or could not check a signature. "
            "Install the OpenSSH client on this machine."
        ),
    )
    SSH_MISSING = ("E-SSH-MISSING", "This machine has no ssh. Install the OpenSSH client.")
    SSH_NOT_REMOVED = (
        "E-SSH-NOT-REMOVED",
        (
            "Some hosts did not confirm that the run was removed, so processes or files may be "
            "left there. `accept delete` tries again."
        ),
    )
    SSH_NO_ANSWER = (
        "E-SSH-NO-ANSWER",
        (
            "No host could be reached, or the first host has not answered for minutes. A started "
            "run goes on. Check the connection with `ssh HOST`."
        ),
    )
    SSH_NO_COORDINATOR = (
        "E-SSH-NO-COORDINATOR",
        (
            "The coordinator could not be started on the first host. `accept doctor` shows what "
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
            "A setting for ssh could act as an option or a command. Write it in the form that the "
            "message shows."
        ),
    )

    # Kubernetes and Helm.
    HELM_BACKEND = (
        "E-HELM-BACKEND",
        (
            "Helm values exist only for runs on Kubernetes. Render other runs to a folder with "
            "--out, then start them with `accept submit FOLDER`."
        ),
    )
    HELM_ENV = (
        "E-HELM-ENV",
        (
            "The values set the same variable differently in `pod.env` and in `launcher.env`. Set "
            "it in `launcher.env`, whose values are final."
        ),
    )
    HELM_FAILED = (
        "E-HELM-FAILED",
        (
            "helm refused the run or could not finish. The message has its last line, and names "
            "what is left of the run."
        ),
    )
    HELM_MISSING = ("E-HELM-MISSING", "helm is not installed. Install helm 3 or 4.")
    HELM_NO_CLAIMS = (
        "E-HELM-NO-CLAIMS",
        (
            "The machine claims devices (DRA), but the cluster serves no API for claims. Use "
            "Kubernetes 1.34 or newer."
        ),
    )
    HELM_NO_CODE = (
        "E-HELM-NO-CODE",
        (
            "The chart is the source in a checkout, which lacks the code for the nodes. Use the "
            "chart that `accept chart` names."
        ),
    )
    HELM_NO_PLAN = (
        "E-HELM-NO-PLAN",
        "The chart was installed without a plan. Install the values that `accept render` prints.",
    )
    HELM_PLAN = (
        "E-HELM-PLAN",
        (
            "The values contradict the plan in them, because it, or a number of nodes, GPUs or "
            "seconds was changed. Change the options of `accept render`, and render again."
        ),
    )
    HELM_RELEASE_EXISTS = (
        "E-HELM-RELEASE-EXISTS",
        "A release of this name exists already. Choose another --release, or delete that run.",
    )
    HELM_RUNNING = (
        "E-HELM-RUNNING",
        (
            "The run of the release has not ended, and a run cannot be changed. Wait for its end, "
            "or uninstall the release before an upgrade."
        ),
    )
    HELM_SCRIPTS = (
        "E-HELM-SCRIPTS",
        (
            "The values lack a script that the plan needs, or have one that no step runs. You may "
            "change scripts, but not add, rename or remove them."
        ),
    )
    HELM_SECRET_FOREIGN = (
        "E-HELM-SECRET-FOREIGN",
        (
            "A Secret in the namespace looks like the key of this release, but the release did not "
            "create it. Remove that Secret, or name your own with ssh.existingSecret."
        ),
    )
    HELM_SECRET_KEY = (
        "E-HELM-SECRET-KEY",
        (
            "A variable in the values looks like a secret, and everybody who may read the release "
            "could read it. Take it from a Secret, with site.extraEnvFrom."
        ),
    )
    HELM_TIMEOUT = (
        "E-HELM-TIMEOUT",
        "helm did not end in time. Check the connection to the cluster.",
    )
    HELM_TOO_LARGE = (
        "E-HELM-TOO-LARGE",
        (
            "The values are too large for Helm or for kubectl apply, mostly because of a script. "
            "Put large scripts and their data into the image, or on a volume of the pods."
        ),
    )
    HELM_VERSION = (
        "E-HELM-VERSION",
        (
            "Values and chart come from different versions of accept. Use the chart that `accept "
            "chart` names."
        ),
    )
    KUBE_CAPABILITY = (
        "E-KUBE-CAPABILITY",
        (
            "A capability of a container starts with CAP_. Write it as Kubernetes names it, such "
            "as SYS_ADMIN."
        ),
    )
    KUBE_CLAIM = (
        "E-KUBE-CLAIM",
        "A claim of devices has both `template` and `devices`, or neither. Give one of them.",
    )
    KUBE_CLIENT_MISSING = (
        "E-KUBE-CLIENT-MISSING",
        "The Kubernetes client for Python is not installed. Install the extra `kubernetes`.",
    )
    KUBE_CONFIG_INVALID = (
        "E-KUBE-CONFIG-INVALID",
        "The kubeconfig cannot be read. Check it with `kubectl config get-contexts`.",
    )
    KUBE_CONFIG_MISSING = (
        "E-KUBE-CONFIG-MISSING",
        "No kubeconfig was found. Set KUBECONFIG or give --kubeconfig, as for kubectl.",
    )
    KUBE_CONFLICT = (
        "E-KUBE-CONFLICT",
        (
            "An object of this name exists already or was changed meanwhile. Try again, or choose "
            "another name."
        ),
    )
    KUBE_CONTEXT = (
        "E-KUBE-CONTEXT",
        "The kubeconfig has no context of this name. `kubectl config get-contexts` lists them.",
    )
    KUBE_COORDINATOR = (
        "E-KUBE-COORDINATOR",
        (
            "A coordinator with a pod of its own needs a JobSet. `coordinatorPod` needs "
            "`coordinator: separate`."
        ),
    )
    KUBE_EVIDENCE_ELSEWHERE = (
        "E-KUBE-EVIDENCE-ELSEWHERE",
        (
            "The run reached a verdict, but its records cannot be read from here. Judge them in "
            "the place that the message names."
        ),
    )
    KUBE_EVIDENCE_UNSAVED = (
        "E-KUBE-EVIDENCE-UNSAVED",
        "The run was ended, but nothing of its evidence could be saved. Run again.",
    )
    KUBE_FORBIDDEN = (
        "E-KUBE-FORBIDDEN",
        "Your user lacks a permission. `accept doctor --rbac` prints the Role that a run needs.",
    )
    KUBE_LOGIN = (
        "E-KUBE-LOGIN",
        "The API server does not accept the credentials. Log in again, as for kubectl.",
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
    KUBE_NAME = (
        "E-KUBE-NAME",
        (
            "The name of a namespace or of a Helm release is invalid. Use a-z, 0-9 and '-', with "
            "a letter first, such as gpu-tests."
        ),
    )
    KUBE_NAMESPACE_MISSING = (
        "E-KUBE-NAMESPACE-MISSING",
        "The namespace does not exist. Create it, or name another with --namespace.",
    )
    KUBE_NAME_LONG = (
        "E-KUBE-NAME-LONG",
        (
            "Kubernetes limits the names of pods to 63 characters, and the name of the run leaves "
            "too few. Choose a shorter release or attempt name."
        ),
    )
    KUBE_NODES_AFFINITY = (
        "E-KUBE-NODES-AFFINITY",
        (
            "The site file requires a node affinity, which only the scheduler evaluates. Use "
            "nodeSelector, or name the nodes."
        ),
    )
    KUBE_NODES_NONE_FREE = (
        "E-KUBE-NODES-NONE-FREE",
        (
            "No node matches the machine and the site file and has all its GPUs free. `accept "
            "doctor` shows why."
        ),
    )
    KUBE_NODES_TOO_FEW = (
        "E-KUBE-NODES-TOO-FEW",
        (
            "Fewer nodes than requested match the run and are free, and nothing will add more. "
            "Wait, request fewer nodes, or name a queue. `accept doctor` shows every node."
        ),
    )
    KUBE_NOT_FOUND = (
        "E-KUBE-NOT-FOUND",
        (
            "An object, its kind or its namespace does not exist in the cluster. Check --context "
            "and --namespace."
        ),
    )
    KUBE_OBJECTS_HIDDEN = (
        "E-KUBE-OBJECTS-HIDDEN",
        (
            "Your user may not list some kinds, so objects of the run may be left. `accept doctor "
            "--rbac` prints the Role that is needed."
        ),
    )
    KUBE_OBJECTS_LEFT = (
        "E-KUBE-OBJECTS-LEFT",
        (
            "Objects of the run were not deleted in time. A pod on a lost node stays until its "
            "object is removed with `kubectl delete pod --force`."
        ),
    )
    KUBE_POD_LOST = (
        "E-KUBE-POD-LOST",
        (
            "The pod of index 0 ran and was lost, for example with its node. Remove the rest of "
            "the run with `accept delete`, and run again."
        ),
    )
    KUBE_POD_NOT_STARTED = (
        "E-KUBE-POD-NOT-STARTED",
        (
            "The pod of index 0 did not start in time, for the reason in the message. `accept "
            "doctor` shows what the cluster lacks; --start-timeout waits longer."
        ),
    )
    KUBE_PLUGIN = (
        "E-KUBE-PLUGIN",
        "The machine does not support this source of NCCL's plugin. Leave `kubernetes.plugin` out.",
    )
    KUBE_QUEUE_UNSET = (
        "E-KUBE-QUEUE-UNSET",
        "The setting only has an effect in a queue of Kueue. Name one with `queue`.",
    )
    KUBE_REFUSED = (
        "E-KUBE-REFUSED",
        "The API server refused a request. The message shows the server's reason.",
    )
    KUBE_RESULTS_OUTSIDE = (
        "E-KUBE-RESULTS-OUTSIDE",
        (
            "`results.location` is not on `results.volume`, which would stay empty. Leave the "
            "location out, or name a folder below the mount path."
        ),
    )
    KUBE_TOPOLOGY = (
        "E-KUBE-TOPOLOGY",
        (
            "Keys of `topology` contradict each other, or one needs another. Give `required` or "
            "`preferred`; `slice` and `sliceSize` belong together."
        ),
    )
    KUBE_UNREACHABLE = (
        "E-KUBE-UNREACHABLE",
        (
            "The API server does not answer, or its answer is unusable. Check the network and the "
            "context, for example with `kubectl get pods`."
        ),
    )

    # Evidence, archives, buckets and logs.
    ARCHIVE_CHANGED = (
        "E-ARCHIVE-CHANGED",
        "The archive that arrived differs from the announced size or SHA-256. Collect again.",
    )
    ARCHIVE_DAMAGED = (
        "E-ARCHIVE-DAMAGED",
        "The archive is damaged or incomplete. Collect the run again, or copy the archive again.",
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
            "The connection failed several times, or the time was over, before the whole archive "
            "arrived. Collect again: the download continues where it ended."
        ),
    )
    ARCHIVE_TOO_LARGE = (
        "E-ARCHIVE-TOO-LARGE",
        (
            "The archive is larger than evidence or logs ever are, or it would unpack to more. "
            "Check that it is the right archive."
        ),
    )
    ARCHIVE_UNSAFE = (
        "E-ARCHIVE-UNSAFE",
        (
            "The archive contains what evidence never contains: a link, a device, a path outside "
            "of the archive, or a file twice. Check that it is the right archive."
        ),
    )
    BUCKET_LIBRARY = (
        "E-BUCKET-LIBRARY",
        (
            "The Python package obstore, which reads buckets, is not installed. Install accept "
            "with its extra `storage`."
        ),
    )
    BUCKET_NO_EVIDENCE = (
        "E-BUCKET-NO-EVIDENCE",
        (
            "The URL exists, but contains no evidence of a run. Give the URL of a run, such as "
            "gs://BUCKET/runs/ATTEMPT."
        ),
    )
    BUCKET_RUN = (
        "E-BUCKET-RUN",
        "The URL does not end in the name of a run. Give a URL such as gs://BUCKET/runs/ATTEMPT.",
    )
    BUCKET_TOO_LARGE = (
        "E-BUCKET-TOO-LARGE",
        (
            "The URL contains more data than one run ever has. Give the URL of one run, such as "
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
    BUCKET_UNREADABLE = (
        "E-BUCKET-UNREADABLE",
        (
            "The bucket or the shared folder cannot be read. Check the URL, your credentials and "
            "your permissions."
        ),
    )
    BUCKET_UNSAFE = (
        "E-BUCKET-UNSAFE",
        (
            "An object has a name that is a path outside of the evidence, which accept never "
            "writes. Find out who did."
        ),
    )
    DIFF_NOTHING_IN_COMMON = (
        "E-DIFF-NOTHING-IN-COMMON",
        (
            "The two runs have no measurement of the same check, size and number of nodes. "
            "Compare runs of the same suite."
        ),
    )
    EVIDENCE_CHANGED = (
        "E-EVIDENCE-CHANGED",
        (
            "Files of the evidence differ from the checksums that the run wrote, or are missing, "
            "unreadable or not listed. Fetch the evidence again, or find out who changed them."
        ),
    )
    EVIDENCE_CUT_OFF = (
        "E-EVIDENCE-CUT-OFF",
        "The packed evidence in the log is incomplete. Fetch the log again.",
    )
    EVIDENCE_DAMAGED = (
        "E-EVIDENCE-DAMAGED",
        "A file of the evidence is damaged. Collect the run again, or fetch its log again.",
    )
    EVIDENCE_GONE = (
        "E-EVIDENCE-GONE",
        "The run ended and left no evidence. Look at the files in its folder, and run again.",
    )
    EVIDENCE_LOG_MISSING = (
        "E-EVIDENCE-LOG-MISSING",
        (
            "The records name a raw log that is missing, and every figure is read from the logs. "
            "Collect the run again."
        ),
    )
    EVIDENCE_NONE = (
        "E-EVIDENCE-NONE",
        (
            "There is neither evidence of a run nor a log of nccl-tests. Name a run, its evidence "
            "folder, an archive of it, a saved log of the first host, or the output of "
            "all_reduce_perf or a similar test."
        ),
    )
    EVIDENCE_NOT_COLLECTED = (
        "E-EVIDENCE-NOT-COLLECTED",
        "The evidence of the run is still where it ran. Fetch it with `accept collect`.",
    )
    EVIDENCE_NOT_PACKED = (
        "E-EVIDENCE-NOT-PACKED",
        "The file contains no packed evidence. Use the log of the pod with index 0.",
    )
    EVIDENCE_NO_FOLDER = (
        "E-EVIDENCE-NO-FOLDER",
        (
            "Reports are written beside the evidence, and an archive, a log or a bucket has no "
            "such folder. Print one report with --format md or --format junit."
        ),
    )
    EVIDENCE_PLAN_CHANGED = (
        "E-EVIDENCE-PLAN-CHANGED",
        (
            "The plan was changed after it was rendered, so the evidence proves nothing. Collect "
            "the run again, or find out who changed the plan."
        ),
    )
    EVIDENCE_SEVERAL = (
        "E-EVIDENCE-SEVERAL",
        (
            "The folder or archive contains the evidence of several runs, and the command takes "
            "one. Name one of them; `accept judge` judges all."
        ),
    )
    EVIDENCE_SIGNATURE = (
        "E-EVIDENCE-SIGNATURE",
        (
            "The evidence is not signed by the key of its run, or by none of the keys that "
            "--public-key gives. It was changed after it was signed, or somebody else signed it. "
            "Do not trust it before you know which."
        ),
    )
    EVIDENCE_TOO_LARGE_FOR_LOG = (
        "E-EVIDENCE-TOO-LARGE-FOR-LOG",
        "The log has no records, because they were too many. Judge the evidence folder instead.",
    )
    EVIDENCE_UNREADABLE = (
        "E-EVIDENCE-UNREADABLE",
        "A file of the evidence is missing or cannot be read. Collect the run again.",
    )
    LOGS_NOTHING_MEASURED = (
        "E-LOGS-NOTHING-MEASURED",
        (
            "No log has a table with results, so nothing was measured. Find out why from the first "
            "problem in the message."
        ),
    )
    LOGS_NOT_A_LOG = (
        "E-LOGS-NOT-A-LOG",
        (
            "The file is neither a log of nccl-tests nor evidence. Leave it out, or name its "
            "folder: other files in a folder are ignored."
        ),
    )
    LOGS_NOT_JUDGED = (
        "E-LOGS-NOT-JUDGED",
        (
            "The logs are of collectives that no check judges. `accept list checks` shows the "
            "collectives that are judged."
        ),
    )
    LOGS_UNKNOWN_COLLECTIVE = (
        "E-LOGS-UNKNOWN-COLLECTIVE",
        (
            "Builds before June 2025 do not print the collective. Neither the name of the file "
            "nor a command line shows it, and the figures fit several. Name it with "
            "`--collective`."
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
        (
            "The operating system cannot read the file, for the reason in the message. Name "
            "another file."
        ),
    )

    # The program itself.
    INPUT_TOO_DEEP = (
        "E-INPUT-TOO-DEEP",
        "The input is nested too deeply. Use a flatter file or folder.",
    )
    INTERNAL = (
        "E-INTERNAL",
        "accept itself failed. Run the command again with -v and report the traceback.",
    )
    MEMORY = ("E-MEMORY", "accept ran out of memory. Use smaller input, or free memory.")
    STDOUT_CLOSED = (
        "E-STDOUT-CLOSED",
        "Standard output is closed. Send it to a file, or to /dev/null to discard it.",
    )
    SYSTEM = (
        "E-SYSTEM",
        "The operating system refused a file operation. The message names the file and the reason.",
    )
