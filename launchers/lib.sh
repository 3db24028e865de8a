# shellcheck shell=sh
# Sourced by every step script, on the first host of its group. Plain sh, because a host needs only sh and mpirun.
#
# A group is described by one line per host, "NAME MPINAME ADDRESS PORT SLOTS": its name in the run, its own hostname,
# where its sshd listens, and its number of ranks. The lines are read from ACCEPT_GROUP ("-": standard input), by
# default from the file that the coordinator wrote for all hosts.

ACCEPT_EXEC=${ACCEPT_EXEC:-by-hand}
ACCEPT_LOCAL_RANKS=${ACCEPT_LOCAL_RANKS:-}
ACCEPT_INJECT=${ACCEPT_INJECT:-}
# Channels of NCCL to each rank on another node; a step sets it for one launch.
ACCEPT_NET_CHANNELS=''
ACCEPT_PROGRESS=$ACCEPT_DIR/progress/$ACCEPT_EXEC
ACCEPT_WORK=$ACCEPT_DIR/exec/$ACCEPT_EXEC
export ACCEPT_DIR ACCEPT_EXEC ACCEPT_LOCAL_RANKS ACCEPT_INJECT ACCEPT_PROGRESS ACCEPT_NET_CHANNELS

# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
# shellcheck source=/dev/null
. "$ACCEPT_DIR/interface.sh"

say() { printf '%s\n' "$*"; }

stop() {
    # stop CAUSE MESSAGE: prints a problem record and ends the step.
    printf 'ACCEPT {"problem":"%s","message":"%s"}\n' "$1" "$2"
    exit 1
}

# read_group: reads the group; sets hosts, ranks_per_host, master_address and ACCEPT_PEERS, and writes a hostfile and
# an ssh configuration.
read_group() {
    umask 077
    # shellcheck source=check_writable.sh
    . "$ACCEPT_DIR/check_writable.sh"
    mkdir -p "$ACCEPT_WORK" || stop disk-full "cannot make $ACCEPT_WORK"
    hostfile=$ACCEPT_WORK/hostfile
    group=${ACCEPT_GROUP:-$ACCEPT_DIR/group}
    if [ "$group" = - ]; then
        group=$ACCEPT_WORK/group
        cat > "$group" || stop disk-full "cannot write $group"
    fi
    [ -s "$group" ] || stop launch-failed "no hosts: $group is empty or missing"
    hosts=0 ACCEPT_PEERS='' ranks_per_host=1
    : > "$hostfile"
    sed "s|@FOLDER@|$ACCEPT_DIR|" "$ACCEPT_DIR/ssh_config.in" > "$ACCEPT_WORK/ssh_config"
    while read -r _name mpi_name address port slots; do
        hosts=$((hosts + 1)) ranks_per_host=$slots
        [ "$hosts" -gt 2 ] || ACCEPT_PEERS="$ACCEPT_PEERS $address"
        [ "$hosts" -gt 1 ] || master_address=$address
        printf '%s slots=%s\n' "$mpi_name" "$slots" >> "$hostfile"
        printf 'Host %s\n  HostName %s\n  Port %s\n' "$mpi_name" "$address" "$port" >> "$ACCEPT_WORK/ssh_config"
    done < "$group"
    if [ -n "$ACCEPT_LOCAL_RANKS" ]; then
        # shellcheck disable=SC2034,SC2086 # used by the step scripts; splits a comma list into words
        ranks_per_host=$(IFS=,; set -- $ACCEPT_LOCAL_RANKS; echo $#)
    fi
    [ "$hosts" -gt 1 ] || master_address=127.0.0.1 ACCEPT_PEERS=''
    # A script of the user may read the group again.
    ACCEPT_GROUP=$group
    export ACCEPT_PEERS ACCEPT_WORK ACCEPT_GROUP
}

# perf NAME: prints the path of a program of nccl-tests, from `folders` or PATH; some images build it with the suffix
# _mpi.
perf() {
    for name in "$1_perf" "$1_perf_mpi"; do
        # shellcheck disable=SC2154 # the step scripts set `folders`
        for folder in ${ACCEPT_NCCL_TESTS:+"$ACCEPT_NCCL_TESTS"} $folders; do
            if [ -x "$folder/$name" ]; then
                printf '%s\n' "$folder/$name"
                return
            fi
        done
        command -v "$name" && return
    done
}

# take_sizes MIN MAX FACTOR ITERS WARMUP: sets these for a collective, unless the run was started with others.
take_sizes() {
    # shellcheck disable=SC2034 # used by the step scripts
    min=${ACCEPT_MIN:-$1} max=${ACCEPT_MAX:-$2} factor=${ACCEPT_FACTOR:-$3} iters=${ACCEPT_ITERS:-$4} warmup=${ACCEPT_WARMUP:-$5}
}

# export_group: exports the group to a script of the user, and settings with which any mpirun of Open MPI starts ranks
# on all its hosts, without options.
export_group() {
    ACCEPT_HOSTFILE=$hostfile ACCEPT_HOSTS=$hosts ACCEPT_RANKS_PER_HOST=$ranks_per_host
    ACCEPT_MASTER_ADDR=$master_address
    export ACCEPT_HOSTFILE ACCEPT_HOSTS ACCEPT_RANKS_PER_HOST ACCEPT_MASTER_ADDR
    find_mpi || return 0
    export OMPI_MCA_orte_default_hostfile="$hostfile" PRTE_MCA_prte_default_hostfile="$hostfile"
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    while read -r layer name value; do
        export "${layer}_MCA_$name=$value"
    done <<SETTINGS
$(mpi_settings)
SETTINGS
}

# pick_master: picks a free port on this host, the first of the group, for torch's rendezvous. torch binds it only
# seconds later, so it is below the range from which the kernel assigns ports.
pick_master() {
    ACCEPT_MASTER_ADDR=$master_address
    ACCEPT_MASTER_PORT=$("$ACCEPT_PYTHON" -c 'import random, socket
s = socket.socket()
for port in random.sample(range(20000, 32768), 1000):
    try:
        s.bind(("", port))
    except OSError:
        continue
    print(port)
    break') || stop tool-missing "no Python on the first host of the group"
    export ACCEPT_MASTER_ADDR ACCEPT_MASTER_PORT
}

# find_mpi: sets `version` to the major version of Open MPI, and the interfaces; fails if there is no Open MPI.
find_mpi() {
    version=$(mpirun --version 2>/dev/null | sed -n '1s/.*) \([0-9]*\)\..*/\1/p')
    [ -n "$version" ] || return 1
    pick_interface
}

# mpi_settings: prints the settings of Open MPI for the group, one per line: LAYER NAME VALUE. The layer that starts
# the ranks is PRTE in Open MPI 5.0; 4.1 has other names.
mpi_settings() {
    # The agent runs through sh, because the run's folder may be mounted noexec. mpirun splits this value at blanks and
    # colons; the site file does not allow them in tools.scratch.
    agent="/bin/sh $ACCEPT_DIR/rsh_agent.sh"
    if [ "$version" -ge 5 ]; then
        layer=PRTE plm=plm_ssh control_include=prte_if_include
    else
        layer=OMPI plm=plm_rsh control_include=oob_tcp_if_include
        echo 'OMPI orte_keep_fqdn_hostnames 1'
        # Open MPI 4 resolves the name of each host once for each other host. The names are the hosts' own, so it
        # recognizes its own host without that.
        echo 'OMPI if_base_do_not_resolve 1'
    fi
    echo "$layer ${plm}_agent $agent"
    echo "$layer ${plm}_num_concurrent 128"
    [ "$hosts" -le 64 ] || echo "$layer ${plm}_no_tree_spawn 1"
    [ -z "$control" ] || echo "$layer $control_include $control"
    rank_settings
}

# rank_settings: prints the settings that the ranks need, no matter if mpirun or srun starts them.
rank_settings() {
    [ -z "$interface" ] || echo "OMPI btl_tcp_if_include $interface"
    echo 'OMPI pml ob1'
    echo 'OMPI btl tcp,self'
    echo 'OMPI coll ^hcoll,ucc'
}

# launch PER_HOST COMMAND...: starts COMMAND as PER_HOST ranks on each host of the group, and prints the command line.
launch() {
    per_host=$1
    shift
    set -- "$ACCEPT_SHELL" "$ACCEPT_DIR/rank.sh" "$@"
    passed='DIR EXEC RUN PEERS PROFILE INJECT PROGRESS LOCAL_RANKS MASTER_ADDR MASTER_PORT NET_CHANNELS'
    case $ACCEPT_LAUNCHER in
        srun-*) launch_by_srun "$@" ;;
        *) launch_by_mpirun "$@" ;;
    esac
}

launch_by_mpirun() {
    find_mpi || stop tool-missing "no Open MPI mpirun on PATH ($PATH)"
    for name in $passed; do
        eval "value=\${ACCEPT_$name:-}"
        # shellcheck disable=SC2154 # set by the eval
        [ -z "$value" ] || set -- -x "ACCEPT_$name" "$@"
    done
    while read -r layer name value; do
        case $layer in
            PRTE) set -- --prtemca "$name" "$value" "$@" ;;
            *) set -- --mca "$name" "$value" "$@" ;;
        esac
    done <<SETTINGS
$(mpi_settings)
SETTINGS
    [ "$(id -u)" != 0 ] || set -- --allow-run-as-root "$@"
    # accept-mpirun -N may start more ranks than the run does.
    [ "$per_host" -le "$ranks_per_host" ] || sed -i "s/slots=.*/slots=$per_host/" "$hostfile"
    set -- mpirun -np "$((hosts * per_host))" --hostfile "$hostfile" --map-by "ppr:$per_host:node" --bind-to none "$@"
    print_command "Open MPI $version" "$@"
    "$@"
}

# launch_by_srun: starts the ranks as a step of the run's job of Slurm. The file of tasks gives rank 0 to the first host
# of the group; by default, Slurm sorts the nodes.
launch_by_srun() {
    command -v srun >/dev/null || stop tool-missing "no srun on PATH ($PATH)"
    pick_interface
    # As over ssh, ranks do not inherit the environment of this node.
    exported=HOME,USER,LOGNAME,SHELL,LANG
    for name in $passed; do
        eval "value=\${ACCEPT_$name:-}"
        [ -z "$value" ] || exported=$exported,ACCEPT_$name
        export "ACCEPT_$name"
    done
    while read -r layer name value; do
        export "${layer}_MCA_$name=$value"
        exported=$exported,${layer}_MCA_$name
    done <<SETTINGS
$(rank_settings)
SETTINGS
    while read -r name _; do
        each=0
        while [ "$each" -lt "$per_host" ]; do
            echo "$name"
            each=$((each + 1))
        done
    done < "$group" > "$ACCEPT_WORK/tasks"
    set -- "--job-name=accept-$ACCEPT_EXEC" "--export=$exported" "$@"
    set -- --overlap --mem=0 --cpu-bind=none --kill-on-bad-exit=1 --input=none --chdir=/ "$@"
    set -- "--ntasks=$((hosts * per_host))" --distribution=arbitrary "$@"
    set -- srun "--jobid=$ACCEPT_SLURM_JOB" "--mpi=${ACCEPT_LAUNCHER#srun-}" "$@"
    print_command srun "$@"
    SLURM_HOSTFILE=$ACCEPT_WORK/tasks "$@"
}

# print_command LAUNCHER COMMAND...: prints the command line of a launch.
print_command() {
    {
        printf '# %s:' "$1"
        shift
        printf " '%s'" "$@"
        printf '\n'
    } >&"${commands_to:-1}"
}

# pick_interface: sets the interfaces of MPI's data and control traffic: the machine's, else that of the route to
# another host of the group. A single host uses the loopback for data. It is not set for control traffic, because
# Open MPI 5 accepts the loopback there only if it finds no other interface.
pick_interface() {
    interface=lo control=''
    if [ "$hosts" -gt 1 ]; then
        interface=${ACCEPT_INTERFACE:-$(route_interface)}
        control=$interface
    fi
}
