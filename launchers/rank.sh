#!/bin/sh
# rank.sh [--alone] PROGRAM ARGS...: starts one rank with the environment of its own node. Ranks do not inherit the
# environment of the first host, because nodes may differ. --alone: the program talks to no other rank.
ACCEPT_DIR=${ACCEPT_DIR:-$(cd "$(dirname "$0")" && pwd)}
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
# shellcheck source=/dev/null
. "$ACCEPT_DIR/interface.sh"
ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
export ACCEPT_DIR ACCEPT_HOST
[ -z "${ACCEPT_PROGRESS:-}" ] || mkdir -p "$ACCEPT_PROGRESS"
case $ACCEPT_LAUNCHER in
    srun-*)
        # The programs read where they are from the variables of Open MPI's mpirun.
        export OMPI_COMM_WORLD_RANK="$SLURM_PROCID" OMPI_COMM_WORLD_SIZE="$SLURM_STEP_NUM_TASKS"
        export OMPI_COMM_WORLD_LOCAL_RANK="$SLURM_LOCALID" OMPI_COMM_WORLD_LOCAL_SIZE="${SLURM_STEP_TASKS_PER_NODE%%[(,]*}"
        ;;
esac

alone=''
if [ "${1:-}" = --alone ]; then
    alone=yes
    shift
fi
# Names of the settings that this node chooses for itself; other nodes may choose other values.
ACCEPT_CHOSEN=''
# A group of one host (no peers) uses the loopback. With --alone no interface is needed.
interface=lo interface_by='one host alone'
if [ -n "${ACCEPT_PEERS:-}" ]; then
    interface=$ACCEPT_INTERFACE interface_by='the machine'
    [ -n "$interface" ] || interface=$(route_interface) interface_by='the route to the other nodes'
elif [ -n "$alone" ]; then
    interface=''
fi
if [ -n "$interface" ]; then
    # Interface names may differ between hosts, so this node's own choice replaces that of the first host.
    [ -z "${OMPI_MCA_btl_tcp_if_include:-}" ] || export OMPI_MCA_btl_tcp_if_include="$interface"
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
    [ -n "${NCCL_SOCKET_IFNAME:-}" ] || ACCEPT_CHOSEN=NCCL_SOCKET_IFNAME
    # NCCL takes a name without "=" as a prefix: eth1 would also mean eth10.
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-=$interface}"
fi
if [ -n "${ACCEPT_FIND_DEVICES:-}" ] && [ -z "${NCCL_IB_HCA:-}" ]; then
    devices=$(rdma_devices)
    if [ -n "$devices" ]; then
        export NCCL_IB_HCA="$devices"
        ACCEPT_CHOSEN="$ACCEPT_CHOSEN NCCL_IB_HCA"
    fi
fi
ACCEPT_INTERFACE_BY=$interface_by
export ACCEPT_CHOSEN ACCEPT_INTERFACE_BY

if [ -n "${ACCEPT_NET_CHANNELS:-}" ]; then
    export NCCL_NCHANNELS_PER_NET_PEER="${NCCL_NCHANNELS_PER_NET_PEER:-$ACCEPT_NET_CHANNELS}"
fi
if [ -n "${ACCEPT_LOCAL_RANKS:-}" ]; then
    # In a rail group the n-th rank of a host uses the n-th GPU of the list.
    n=${OMPI_COMM_WORLD_LOCAL_RANK:-0}
    # shellcheck disable=SC2086 # splits a comma list into words
    ACCEPT_LOCAL_RANK=$(IFS=,; set -- $ACCEPT_LOCAL_RANKS; shift "$n"; echo "$1")
    export ACCEPT_LOCAL_RANK
    export NCCL_TESTS_DEVICE="$((ACCEPT_LOCAL_RANK - n))"
else
    export ACCEPT_LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-0}"
fi
# Google's TCPX gives the other cores to the threads of its NICs. A container may have only some of these cores.
if [ -n "${ACCEPT_PEERS:-}" ] && [ -n "${ACCEPT_CPUS:-}" ] && taskset -c "$ACCEPT_CPUS" true 2>/dev/null; then
    set -- taskset -c "$ACCEPT_CPUS" "$@"
fi
if [ -z "${NCCL_DEBUG:-}" ] || [ -z "${ACCEPT_PROGRESS:-}" ]; then
    exec "$@"
fi

# NCCL writes its log to one file per process, where it cannot break the lines of a table. Afterwards each rank copies
# its warnings into the step's log, and the first rank of a host what else is of interest there.
# shellcheck source=nccl_log.sh
. "$ACCEPT_DIR/nccl_log.sh"
export NCCL_DEBUG_FILE="$ACCEPT_PROGRESS/nccl.$ACCEPT_LOCAL_RANK.%h.%p.log"
"$@"
status=$?
[ "${OMPI_COMM_WORLD_LOCAL_RANK:-0}" != 0 ] || print_nccl_choices "$ACCEPT_PROGRESS"/nccl.*.log
print_new_nccl_warnings "$ACCEPT_PROGRESS/nccl.$ACCEPT_LOCAL_RANK."*.log
exit "$status"
