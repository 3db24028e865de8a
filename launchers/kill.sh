#!/bin/sh
# kill.sh NAME=VALUE [NAME=VALUE]: end every process on this host that was started with these variables in
# its environment (TERM, 5 s, KILL). If processes survive, print their ids and exit 1.
mark=$1 other=${2:-$1}
marked() {
    # This shell and its children do not have the mark in their environment.
    grep -lzsxF -e "$mark" /proc/[0-9]*/environ 2>/dev/null |
        while read -r file; do grep -lzsxF -e "$other" "$file" 2>/dev/null; done |
        sed 's|/proc/\([0-9]*\)/.*|\1|'
}
gone() {
    tries=$1
    while [ "$tries" -gt 0 ]; do
        [ -n "$(marked)" ] || return 0
        tries=$((tries - 1))
        sleep 0.1
    done
    return 1
}
left=$(marked)
[ -n "$left" ] || exit 0
# shellcheck disable=SC2086 # a list of process ids
kill -TERM $left 2>/dev/null
gone 50 && exit 0
# shellcheck disable=SC2046 # a list of process ids
kill -KILL $(marked) 2>/dev/null
gone 20 && exit 0
marked
exit 1
