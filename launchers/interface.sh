# shellcheck shell=sh
# route_interface: prints the name of the interface that leads to the other hosts of the group (ACCEPT_PEERS).
# Prints nothing if it cannot find one; then the programs choose an interface themselves.
route_interface() {
    for peer in ${ACCEPT_PEERS:-}; do
        address=$(getent ahosts "$peer" 2>/dev/null | sed -n '1s/ .*//p')
        found=$(ip -o route get "${address:-$peer}" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
        if [ -n "$found" ] && [ "$found" != lo ]; then
            printf '%s\n' "$found"
            return
        fi
    done
}

# rdma_devices: prints the active RDMA ports of this host with the highest rate, in the format of NCCL_IB_HCA
# ("=mlx5_0:1,mlx5_1:1"). Slower ports are left out, because they serve storage or control traffic.
rdma_devices() {
    for port in "${ACCEPT_SYS:-/sys}"/class/infiniband/*/ports/*; do
        state='' rate=''
        { read -r state < "$port/state" && read -r rate < "$port/rate"; } 2>/dev/null
        case $state in *ACTIVE*) ;; *) continue ;; esac
        device=${port%/ports/*}
        printf '%s %s:%s\n' "${rate%%[!0-9]*}" "${device##*/}" "${port##*/}"
    done | sort -k1,1nr -k2,2 |
        awk 'NR == 1 { most = $1 } $1 == most { printf "%s%s", NR == 1 ? "=" : ",", $2 }'
}
