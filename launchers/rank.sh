#!/bin/sh
# Starts one rank on its node: this node's environment, then the program. Ranks never inherit a
# dumped environment: ssh gives them a clean one, and each node's own may differ.
ACCEPT_DIR=${ACCEPT_DIR:-$(cd "$(dirname "$0")" && pwd)}
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
# shellcheck source=/dev/null
. "$ACCEPT_DIR/interface.sh"
ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
export ACCEPT_DIR ACCEPT_HOST
[ -z "${ACCEPT_PROGRESS:-}" ] || mkdir -p "$ACCEPT_PROGRESS"

# What this node picks for itself, by name of the setting: what others pick may differ.
ACCEPT_CHOSEN=''
# A group of one host (no peers) stays on the loop-back; what launches nothing needs none.
interface=lo interface_by='one host alone'
if [ -n "${ACCEPT_PEERS:-}" ]; then
    interface=$ACCEPT_INTERFACE interface_by='the machine'
    [ -n "$interface" ] || interface=$(route_interface) interface_by='the route to the other hosts'
elif [ "${1:-}" = --alone ]; then
    interface=''
    shift
fi
if [ -n "$interface" ]; then
    # Interfaces may be named differently on each host: what this node found wins here.
    [ -z "${OMPI_MCA_btl_tcp_if_include:-}" ] || export OMPI_MCA_btl_tcp_if_include="$interface"
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
    [ -n "${NCCL_SOCKET_IFNAME:-}" ] || ACCEPT_CHOSEN=NCCL_SOCKET_IFNAME
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}"
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

if [ -n "${ACCEPT_LOCAL_RANKS:-}" ]; then
    # A rail: the n-th rank on this host uses the n-th GPU of the list.
    n=${OMPI_COMM_WORLD_LOCAL_RANK:-0}
    # shellcheck disable=SC2086 # split on purpose: a comma list to words
    ACCEPT_LOCAL_RANK=$(IFS=,; set -- $ACCEPT_LOCAL_RANKS; shift "$n"; echo "$1")
    export ACCEPT_LOCAL_RANK
    export NCCL_TESTS_DEVICE="$((ACCEPT_LOCAL_RANK - n))"
else
    export ACCEPT_LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-0}"
fi
if [ -z "${NCCL_DEBUG:-}" ] || [ -z "${ACCEPT_PROGRESS:-}" ]; then
    exec "$@"
fi

# NCCL's own words go to a file for each rank, where they cannot break the lines of a table. Which ways
# it chose is brought back into the log, each kind of way once for each host.
export NCCL_DEBUG_FILE="$ACCEPT_PROGRESS/nccl.%h.%p.log"
"$@"
status=$?
if [ "${OMPI_COMM_WORLD_LOCAL_RANK:-0}" = 0 ]; then
    grep -hE 'Using network|via (NET|SHM)/|P2P is disabled' "$ACCEPT_PROGRESS"/nccl.*.log 2>/dev/null |
        awk '{ kind = $0; sub(/^.*(Using |via )/, "", kind); gsub(/[0-9]+/, "", kind) }
            !seen[kind]++ { print; if (++lines == 16) exit }'
fi
exit "$status"
