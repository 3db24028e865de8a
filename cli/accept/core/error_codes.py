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
        "--set gives a value that the parameter does not allow. The message names what is allowed.",
    )
    PARAM_SYNTAX = (
        "E-PARAM-SYNTAX",
        "--set is not a valid setting. Write CHECK.PARAM=VALUE, such as all-reduce.max=1G.",
    )
    PARAM_UNKNOWN = (
        "E-PARAM-UNKNOWN",
        (
            "--set names a parameter that the check does not have. "
            "accept show check NAME lists the parameters."
        ),
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
    SUITE_SCRIPT = (
        "E-SUITE-SCRIPT",
        "A script of the suite cannot be read, or its first line does not start with #!.",
    )

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
    LOCAL_SURVEY_TIMEOUT = (
        "E-LOCAL-SURVEY-TIMEOUT",
        "Listing the tools and GPUs of this machine took too long. Check whether nvidia-smi hangs.",
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
            "scheduler or the kubelet. `accept doctor` shows what the cluster lacks; "
            "--start-timeout waits longer."
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
    KUBE_CLAIM = (
        "E-KUBE-CLAIM",
        "A claim of devices needs either `template` or `devices`, and not both.",
    )
    KUBE_TOPOLOGY = (
        "E-KUBE-TOPOLOGY",
        (
            "Keys of `topology` contradict each other. Give `required` or `preferred`; `slice` and "
            "`sliceSize` belong together."
        ),
    )
    KUBE_QUEUE_UNSET = (
        "E-KUBE-QUEUE-UNSET",
        "The setting only has an effect in a queue of Kueue. Name one with `queue`.",
    )
    KUBE_NODES_CONTRADICT = (
        "E-KUBE-NODES-CONTRADICT",
        "A node is in includeNodes and in excludeNodes. Remove it from one of them.",
    )
    KUBE_RESULTS_OUTSIDE = (
        "E-KUBE-RESULTS-OUTSIDE",
        (
            "`results.location` is not on `results.volume`, which would stay empty. Leave the "
            "location out, or name a folder below the mount path."
        ),
    )
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
    EVIDENCE_GONE = (
        "E-EVIDENCE-GONE",
        (
            "No evidence of the run exists on its hosts. Its retention time may be over, or it "
            "was removed; run again."
        ),
    )
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
