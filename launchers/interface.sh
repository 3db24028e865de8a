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

# root_ports DEVICE...: prints the PCI root port above each device; nothing for devices without one.
root_ports() {
    readlink -f "$@" 2>/dev/null | sed -n 's|.*/\(pci[^/]*/[^/]*\)/.*|\1|p'
}

# gpu_root_ports: prints the root ports above the NVIDIA GPUs of this host.
gpu_root_ports() {
    for device in "${ACCEPT_SYS:-/sys}"/bus/pci/devices/*; do
        vendor='' class=''
        { read -r vendor < "$device/vendor" && read -r class < "$device/class"; } 2>/dev/null
        case $vendor$class in 0x10de0x03*) root_ports "$device" ;; esac
    done
}

# rdma_devices: prints the active RDMA ports of this host for traffic between GPUs, in the format of NCCL_IB_HCA
# ("=mlx5_0:1,mlx5_1:1"). Left out, because they serve storage or control traffic:
# - slower ports;
# - ports of the rarer link layer, because NCCL cannot connect InfiniBand with Ethernet. The rarer one has fewer ports
#   near GPUs or, if these are equally many, fewer ports;
# - ports that share no PCI root port with a GPU, if more than half of the machine's ACCEPT_RDMA_DEVICES do. On other
#   hosts NICs are not below the GPUs' switches, or a virtual machine hides them.
rdma_devices() {
    near_gpus=" $(gpu_root_ports | tr '\n' ' ')"
    for port in "${ACCEPT_SYS:-/sys}"/class/infiniband/*/ports/*; do
        state='' rate='' layer=''
        { read -r state < "$port/state" && read -r rate < "$port/rate"; } 2>/dev/null
        case $state in *ACTIVE*) ;; *) continue ;; esac
        { read -r layer < "$port/link_layer"; } 2>/dev/null
        device=${port%/ports/*} near=0
        root=$(root_ports "$device/device")
        case $near_gpus in *" ${root:-none} "*) near=1 ;; esac
        printf '%s %s %s:%s %s\n' "${rate%%[!0-9]*}" "$near" "${device##*/}" "${port##*/}" "${layer:-unknown}"
    done | sort -k1,1nr -k3,3 | awk -v planned="${ACCEPT_RDMA_DEVICES:-1}" '
        NR == 1 { most = $1 }
        $1 == most { near[NR] = $2; name[NR] = $3; layer[NR] = $4; all[$4]++; close_by[$4] += $2; last = NR }
        END {
            for (l in all)
                if (best == "" || close_by[l] > close_by[best] ||
                    (close_by[l] == close_by[best] && (all[l] > all[best] || (all[l] == all[best] && l > best))))
                    best = l
            for (n = 1; n <= last; n++)
                if (layer[n] == best && (near[n] || 2 * close_by[best] <= planned))
                    printf "%s%s", shown++ ? "," : "=", name[n]
        }'
}
