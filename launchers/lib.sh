# shellcheck shell=sh
# Sourced by every step script, on the first host of its group. Plain sh, because a host needs only sh and mpirun.
#
# A group is described by one line per host, "NAME MPINAME ADDRESS PORT SLOTS": its name in the run, its own hostname,
# where its sshd listens, and its number of ranks. The lines are read from ACCEPT_GROUP ("-": standard input), by
# default from the file that the coordinator wrote for all hosts.

ACCEPT_EXEC=${ACCEPT_EXEC:-by-hand}
ACCEPT_LOCAL_RANKS=${ACCEPT_LOCAL_RANKS:-}
ACCEPT_INJECT=${ACCEPT_INJECT:-}
ACCEPT_PROGRESS=$ACCEPT_DIR/progress/$ACCEPT_EXEC
ACCEPT_WORK=$ACCEPT_DIR/exec/$ACCEPT_EXEC
export ACCEPT_DIR ACCEPT_EXEC ACCEPT_LOCAL_RANKS ACCEPT_INJECT ACCEPT_PROGRESS

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
    export ACCEPT_PEERS ACCEPT_WORK
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

# launch PER_HOST COMMAND...: starts COMMAND as PER_HOST ranks on each host of the group, and prints the mpirun line.
# Supports Open MPI 4.1 and 5.0 (PRRTE), whose parameters have different names.
launch() {
    per_host=$1
    shift
    version=$(mpirun --version 2>/dev/null | sed -n '1s/.*) \([0-9]*\)\..*/\1/p')
    [ -n "$version" ] || stop tool-missing "no Open MPI mpirun on PATH ($PATH)"
    pick_interface
    set -- "$ACCEPT_SHELL" "$ACCEPT_DIR/rank.sh" "$@"
    for name in DIR EXEC RUN PEERS INJECT PROGRESS LOCAL_RANKS MASTER_ADDR MASTER_PORT; do
        eval "value=\${ACCEPT_$name:-}"
        # shellcheck disable=SC2154 # set by the eval
        [ -z "$value" ] || set -- -x "ACCEPT_$name" "$@"
    done
    # The agent runs through sh, because the run's folder may be mounted noexec. mpirun splits this value at blanks and
    # colons; the site file does not allow them in tools.scratch.
    agent="/bin/sh $ACCEPT_DIR/rsh_agent.sh"
    if [ "$version" -ge 5 ]; then
        [ -z "$control" ] || set -- --prtemca prte_if_include "$control" "$@"
        [ "$hosts" -le 64 ] || set -- --prtemca plm_ssh_no_tree_spawn 1 "$@"
        set -- --prtemca plm_ssh_agent "$agent" --prtemca plm_ssh_num_concurrent 128 "$@"
    else
        [ -z "$control" ] || set -- --mca oob_tcp_if_include "$control" "$@"
        [ "$hosts" -le 64 ] || set -- --mca plm_rsh_no_tree_spawn 1 "$@"
        set -- --mca plm_rsh_agent "$agent" --mca plm_rsh_num_concurrent 128 \
            --mca orte_keep_fqdn_hostnames 1 "$@"
    fi
    [ -z "$interface" ] || set -- --mca btl_tcp_if_include "$interface" "$@"
    [ "$(id -u)" != 0 ] || set -- --allow-run-as-root "$@"
    set -- mpirun -np "$((hosts * per_host))" --hostfile "$hostfile" --map-by "ppr:$per_host:node" \
        --bind-to none --mca pml ob1 --mca btl tcp,self --mca coll ^hcoll,ucc "$@"
    printf '# Open MPI %s:' "$version"
    printf " '%s'" "$@"
    printf '\n'
    "$@"
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
