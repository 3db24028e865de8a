#!/bin/sh
# manage.sh VERB FOLDER [BYTE]: work on a run's folder on a host after the start, for the workstation:
#   follow   print console.log from BYTE on until the run has ended, then a line "ended HOW": its exit
#            status, "gone", "dead", or "foreign" if the folder belongs to another user. A line with
#            only the byte 036 every 5 s shows that the host still answers
#   offer    print size and SHA-256 of the evidence archive
#   send     print the evidence archive from BYTE on
#   abandoned  succeed if nothing is connected to the run's sshd: the host has lost the coordinator
#   stop     end the run and keep its evidence
#   remove   end every process of the run, and remove the folder
# The workstation sends this script over stdin, so it depends neither on files of a run nor on the login
# shell. Exit codes: 0 done, 3 the run has not ended, 4 no evidence, 5 something is left (printed as lines
# "left WHAT"), 6 the folder belongs to another user (not for follow).

# started PID: print the start time of a process in clock ticks since boot.
started() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}

# same_process FILE: succeed if the process in FILE ("PID START") still lives, and set `pid` to its id.
# The start time distinguishes it from a later process with the same id.
same_process() {
    pid='' since=''
    [ -s "$1" ] && read -r pid since < "$1" && [ -n "$since" ] && [ "$(started "$pid")" = "$since" ]
}

watchdog_lives() {
    same_process guard.pid && grep -qzsxF -e "ACCEPT_GUARD=$here" "/proc/$pid/environ"
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
    offset=$1 polls=0
    while :; do
        status=''
        [ ! -e status ] || { status=$(cat status) && status=${status:-5}; }
        size=$(wc -c 2>/dev/null < console.log || echo 0)
        if [ "$size" -gt "$offset" ]; then
            tail -c "+$((offset + 1))" console.log | head -c "$((size - offset))" || exit 1
            offset=$size
        fi
        [ -z "$status" ] || ended "$status"
        [ -e run ] || ended gone
        [ "$((polls % 10))" != 9 ] || printf '\036\n'
        # Every 10 s is enough, because only a reboot or a kill ends both without a status.
        polls=$((polls + 1))
        if [ "$((polls % 20))" = 0 ] && ! watchdog_lives && ! coordinator_lives; then
            # The status is written shortly after the coordinator's end.
            sleep 2
            [ -e status ] || [ ! -e run ] || ended dead
        fi
        sleep 0.5
    done
}

# Every call prints the same bytes, because evidence does not change after the end of the run.
archive() {
    if [ -e evidence.tar ]; then cat evidence.tar; else tar -cf - evidence; fi
}

# packed: succeed if the watchdog has packed the evidence, or had no space for the archive.
packed() {
    [ -e evidence.tar ] || [ -e unpacked ]
}

offer() {
    if [ ! -e status ] && ! packed && { watchdog_lives || coordinator_lives; }; then exit 3; fi
    # The watchdog packs the evidence after the run. It may not have written guard.pid yet.
    tries=600
    until packed || [ "$tries" = 0 ]; do
        [ ! -s guard.pid ] || watchdog_lives || break
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

# end_all: clean up like the watchdog, if a reboot or a kill has ended the watchdog.
end_all() {
    if coordinator_lives && [ ! -e status ]; then
        kill -TERM "$pid" 2>/dev/null
        tries=300
        while coordinator_lives && [ "$tries" != 0 ]; do
            tries=$((tries - 1))
            sleep 0.1
        done
        # The status is written shortly after the coordinator's end.
        [ -e status ] || sleep 1
    fi
    for socket in c/*; do
        [ ! -S "$socket" ] || ssh -o "ControlPath=$socket" -O exit any 2>/dev/null
    done
    ! same_process sshd.pid || kill "$pid" 2>/dev/null
    [ -e kill.sh ] || return 0
    survivors=$(
        # A run of the same name, such as a local run on this host, has another folder.
        # Behind a symbolic link, the folder has two names.
        for name in "$here" "$(pwd -P)"; do
            /bin/sh ./kill.sh "ACCEPT_RUN=$(cat run 2>/dev/null)" "ACCEPT_DIR=$name"
        done
        /bin/sh ./kill.sh "ACCEPT_GUARD=$here"
    )
    for survivor in $survivors; do
        code=5
        printf 'left process %s (%s)\n' "$survivor" "$(cat "/proc/$survivor/comm" 2>/dev/null)"
    done
}

abandoned() {
    same_process sshd.pid && sessions=$(cat "/proc/$pid/task/$pid/children") && [ -z "$sessions" ]
}

stop() {
    [ -e status ] || [ ! -p events ] || echo stop 1<>events
    tries=450
    until packed || [ ! -e run ] || [ "$tries" = 0 ]; do
        # The watchdog may not have written guard.pid yet.
        [ ! -s guard.pid ] || watchdog_lives || break
        tries=$((tries - 1))
        sleep 0.1
    done
    if packed || [ ! -e run ]; then return 0; fi
    if watchdog_lives; then
        # With a status, the watchdog may still be packing.
        [ -e status ] || { code=5 && echo 'left the coordinator, which does not end'; }
    else
        end_all
    fi
}

remove() {
    [ ! -p events ] || echo remove 1<>events
    waited=0
    while [ -d "$here" ]; do
        # In units of 0.1 s: a watchdog needs up to a minute to end everything. If it has not written
        # its id yet, it has 5 s to react.
        limit=50
        if watchdog_lives; then limit=600; elif [ -s guard.pid ]; then limit=0; fi
        [ "$waited" -lt "$limit" ] || break
        waited=$((waited + 1))
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
    # In a folder that everyone can write to, another user may have created this name.
    # shellcheck disable=SC3067 # dash, bash and busybox have -O
    if [ -L "$folder" ] || [ ! -d "$folder" ] || [ ! -O "$folder" ] || ! cd "$folder"; then
        [ "$verb" != follow ] || ended foreign
        printf 'left %s, which belongs to another user\n' "$folder"
        exit 6
    fi
    here=$(pwd)
    case $verb in
        follow) follow "$3" ;;
        offer) offer ;;
        send) archive | tail -c "+$(($3 + 1))" ;;
        abandoned) abandoned || code=3 ;;
        stop) stop ;;
        remove) remove ;;
        *) exit 2 ;;
    esac
    exit "$code"
}
main "$@" </dev/null
