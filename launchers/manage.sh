#!/bin/sh
# manage.sh VERB FOLDER [BYTE]: what the workstation does with a run's folder on a host after the start:
#   follow   print console.log from BYTE on, until the run has ended
#   offer    print size and SHA-256 of the evidence archive
#   send     print the evidence archive from BYTE on
#   stop     end the run and keep its evidence
#   remove   end every process of the run, and remove the folder
# The workstation sends this text over stdin, so it does not depend on files that a run left, nor on the
# login shell. Exit codes: 0 done, 3 the run is still going on, 4 there is no evidence, 5 something is
# left (printed as lines "left WHAT"), 6 the folder belongs to another user.

# started PID: when a process started, in clock ticks since the boot.
started() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}

# same FILE: whether the process in FILE ("PID START") still lives; leaves its id in `pid`.
# The start time tells it from a later process with the same id.
same() {
    pid='' since=''
    [ -s "$1" ] && read -r pid since < "$1" && [ -n "$since" ] && [ "$(started "$pid")" = "$since" ]
}

guard_lives() {
    same guard.pid && grep -qzsxF -e "ACCEPT_GUARD=$here" "/proc/$pid/environ"
}

coordinator_lives() {
    [ -s coordinator.pid ] && read -r pid < coordinator.pid &&
        grep -qzsxF -e "ACCEPT_DIR=$here" "/proc/$pid/environ"
}

ended() {
    printf '\036ended %s\n' "$1"
    exit 0
}

follow() {
    at=$1 looks=0
    while :; do
        status=''
        [ ! -e status ] || { status=$(cat status) && status=${status:-5}; }
        size=$(wc -c 2>/dev/null < console.log || echo 0)
        if [ "$size" -gt "$at" ]; then
            tail -c "+$((at + 1))" console.log | head -c "$((size - at))" || exit 1
            at=$size
        fi
        [ -z "$status" ] || ended "$status"
        [ -e run ] || ended gone
        # Every 10 s is enough: only a reboot or a kill ends both without a status.
        looks=$((looks + 1))
        if [ "$((looks % 20))" = 0 ] && ! guard_lives && ! coordinator_lives; then
            # The status comes a moment after the coordinator's end.
            sleep 2
            [ -e status ] || [ ! -e run ] || ended dead
        fi
        sleep 0.5
    done
}

# The same bytes each time: after the end of the run nothing changes the evidence any more.
archive() {
    if [ -e evidence.tar ]; then cat evidence.tar; else tar -cf - evidence; fi
}

# packed: whether the guard has packed the evidence, or had no room for that.
packed() {
    [ -e evidence.tar ] || [ -e unpacked ]
}

offer() {
    if [ ! -e status ] && ! packed && { guard_lives || coordinator_lives; }; then exit 3; fi
    # The guard packs the evidence when the run has ended. Version 0.1 left no guard.pid.
    tries=600
    until packed || [ "$tries" = 0 ]; do
        [ ! -s guard.pid ] || guard_lives || break
        tries=$((tries - 1))
        sleep 0.1
    done
    if [ ! -e evidence.tar ]; then
        [ -d evidence ] || exit 4
        [ -e evidence/console.log ] || cp console.log evidence/ 2>/dev/null
    fi
    digest=$(archive | sha256sum) && size=$(archive | wc -c) || exit 1
    printf '%s %s\n' "$((size))" "${digest%% *}"
}

# What the guard does at the end, for a guard that is gone: after a reboot, or when it was killed.
end_all() {
    if coordinator_lives && [ ! -e status ]; then
        kill -TERM "$pid" 2>/dev/null
        tries=300
        while coordinator_lives && [ "$tries" != 0 ]; do
            tries=$((tries - 1))
            sleep 0.1
        done
        # The status comes a moment after the coordinator's end.
        [ -e status ] || sleep 1
    fi
    for socket in c/*; do
        [ ! -S "$socket" ] || ssh -o "ControlPath=$socket" -O exit any 2>/dev/null
    done
    ! same sshd.pid || kill "$pid" 2>/dev/null
    [ -e kill.sh ] || return 0
    for mark in "ACCEPT_RUN=$(cat run 2>/dev/null)" "ACCEPT_GUARD=$here"; do
        survivors=$(/bin/sh ./kill.sh "$mark")
        for survivor in $survivors; do
            code=5
            printf 'left process %s (%s)\n' "$survivor" "$(cat "/proc/$survivor/comm" 2>/dev/null)"
        done
    done
}

stop() {
    [ -e status ] || [ ! -p events ] || echo stop 1<>events
    tries=450
    until packed || [ ! -e run ] || [ "$tries" = 0 ]; do
        # Version 0.1 left no guard.pid.
        [ ! -s guard.pid ] || guard_lives || break
        tries=$((tries - 1))
        sleep 0.1
    done
    if packed || [ ! -e run ]; then return 0; fi
    if guard_lives; then
        # It may still be packing.
        [ -e status ] || { code=5 && echo 'left the coordinator, which does not end'; }
    else
        end_all
    fi
}

remove() {
    [ ! -p events ] || echo remove 1<>events
    n=0
    while [ -d "$here" ]; do
        # A guard needs up to a minute to end everything. One that has not written its id yet, or
        # is that of version 0.1, has 5 s to answer.
        most=50
        if guard_lives; then most=600; elif [ -s guard.pid ]; then most=0; fi
        [ "$n" -lt "$most" ] || break
        n=$((n + 1))
        sleep 0.1
    done
    [ -d "$here" ] || return 0
    end_all
    cd /
    rm -rf "$here" 2>/dev/null || { sleep 1 && rm -rf "$here" 2>/dev/null; }
    [ ! -e "$here" ] || { code=5 && printf 'left %s\n' "$here"; }
}

main() {
    verb=$1 folder=$2 code=0
    if [ ! -e "$folder" ] && [ ! -L "$folder" ]; then
        case $verb in
            follow) ended gone ;;
            offer | send) exit 4 ;;
            *) exit 0 ;;
        esac
    fi
    # A name in a folder that all may write to can be taken by anybody.
    # shellcheck disable=SC3067 # dash, bash and busybox have -O
    if [ -L "$folder" ] || [ ! -d "$folder" ] || [ ! -O "$folder" ] || ! cd "$folder"; then
        printf 'left %s, which belongs to another user\n' "$folder"
        exit 6
    fi
    here=$(pwd)
    case $verb in
        follow) follow "$3" ;;
        offer) offer ;;
        send) archive | tail -c "+$(($3 + 1))" ;;
        stop) stop ;;
        remove) remove ;;
        *) exit 2 ;;
    esac
    exit "$code"
}
main "$@" </dev/null
