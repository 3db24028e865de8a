# shellcheck shell=sh
# route_interface: name of the interface that leads to the other hosts of the group (ACCEPT_PEERS).
# Empty where none can be told; then the programs choose for themselves.
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
