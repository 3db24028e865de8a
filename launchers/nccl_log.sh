# shellcheck shell=sh
# Functions for the logs that NCCL writes: one file per process, nccl.LOCALRANK.HOST.PID.log.

# print_nccl_warnings FILE...: prints the first three and the last three different warnings of each file.
print_nccl_warnings() {
    for log in "$@"; do
        awk '
            index($0, " NCCL WARN ") {
                text = $0
                sub(/^.* NCCL WARN /, "", text)
                if (!seen[text]++) line[++lines] = substr($0, 1, 400)
            }
            END { for (i = 1; i <= lines; i++) if (i <= 3 || i > lines - 3) print line[i] }
        ' "$log"
    done
}

# print_nccl_choices FILE...: prints the versions of NCCL and its plugin, and the transports that NCCL chose: each NIC
# and kind once per GPU, with the names of the NICs.
print_nccl_choices() {
    grep -hE 'NCCL version |NET/.* Initializing |Using network|NET/[^/]* : Using \[0\]|via (NET|SHM)/|P2P is disabled|NVLS multicast support is|MNNVL [01]( |$)' \
        "$@" 2>/dev/null |
        awk '{ gpu = ""; kind = $0; sub(/^.*(Using |via )/, "", kind) }
            / via NET\// { gpu = $0; sub(/ NCCL .*$/, "", gpu); sub(/^.* /, "", gpu) }
            / MNNVL / { sub(/^.* MNNVL/, "MNNVL", kind); sub(/ cliqueId [^ ]*/, "", kind) }
            !/ via NET\// { gsub(/[0-9]+/, "", kind) }
            !seen[gpu kind]++ { print; if (++lines == 80) exit }'
}

# print_new_nccl_warnings FILE...: prints the warnings of each file, unless an earlier launch has printed them.
print_new_nccl_warnings() {
    for log in "$@"; do
        if [ -e "$log" ] && [ ! -e "$log.printed" ]; then
            : > "$log.printed"
            print_nccl_warnings "$log"
        fi
    done
}

# print_nccl_logs FOLDER: prints both for all ranks of a host.
print_nccl_logs() {
    print_nccl_choices "$1"/nccl.*.log
    print_new_nccl_warnings "$1"/nccl.*.log
}

# collect_nccl_logs FOLDER LIMIT: prints the warnings of ranks that were ended before they could print them, then a
# line "=", then all logs in about LIMIT bytes. Of a longer log it prints the beginning and the end.
collect_nccl_logs() (
    limit=$2
    cd "$1" 2>/dev/null || exit 0
    set -- nccl.*.log
    [ -e "$1" ] || exit 0
    for log in "$@"; do
        [ -e "$log.printed" ] || print_nccl_warnings "$log"
    done
    echo '='
    half=$((limit / $# / 2))
    for log in "$@"; do
        size=$(wc -c < "$log")
        echo "### $log ($((size)) bytes)"
        if [ "$size" -le $((half * 2)) ]; then
            cat "$log"
        else
            head -c "$half" "$log"
            printf '\n### (%d bytes left out)\n' $((size - half * 2))
            tail -c "$half" "$log"
        fi
    done
)
