#!/bin/sh
# watchdog.sh SECONDS KEEP SSHD: start the run's sshd, wait for the end of the run on this host, and clean up.
# It blocks on the pipe `events`, so it uses no CPU during measurements. Events:
#   coordinate  start the coordinator: this is the first host
#   over        the run has ended on this host
#   stop        end the run now, as a cancel does, but keep its evidence
#   expired     SECONDS have passed
#   remove      remove everything, also the evidence
# After the end the first host keeps the evidence, without sshd, until `remove` or for KEEP seconds.
seconds=$1 keep=$2 sshd=$3
ACCEPT_DIR=$(pwd)
run=$(cat run)
# shellcheck source=sshd.sh
. ./sshd.sh

# started PID: print the start time of a process in clock ticks since boot. The id alone is not unique.
started() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}
echo "$$ $(started $$)" > guard.pid.new && mv guard.pid.new guard.pid

# Open for reading and writing, so that writers never wait for a reader.
exec 3<>events
tries=50 daemon=''
while [ "$tries" -gt 0 ]; do
    tries=$((tries - 1))
    port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12768))
    if listen "$sshd" "$port"; then break; fi
done
[ -n "$daemon" ] || exit 1
echo "$daemon $(started "$daemon")" > sshd.pid
echo "$port" > port.new && mv port.new port

start_timer "$seconds"

next
if [ "$event" = coordinate ]; then
    # The coordinator handles TERM, which Slurm sends to all processes of a job. The shell waits for it.
    (
        unset ACCEPT_GUARD
        # shellcheck source=/dev/null
        . ./env.sh
        trap '' TERM
        setsid /bin/sh ./coordinate.sh "$ACCEPT_PYTHON" </dev/null >/dev/null 2>&1 3>&-
    ) &
    next
fi
if [ "$event" != over ] && [ -s coordinator.pid ] && [ ! -e status ]; then
    # The coordinator writes its results so far and ends the run on the other hosts.
    stop_coordinator
fi
kill "$daemon" 2>/dev/null
end_timer
# Close the coordinator's shared connections to the other hosts.
closing=''
for socket in c/*; do
    [ -S "$socket" ] || continue
    ssh -o "ControlPath=$socket" -O exit any 2>/dev/null &
    closing="$closing $!"
done
# shellcheck disable=SC2086 # a list of process ids
[ -z "$closing" ] || wait $closing
# A run of the same name, such as a local run on this host, has another folder.
# Behind a symbolic link, the folder has two names.
for name in "$ACCEPT_DIR" "$(pwd -P)"; do
    /bin/sh ./kill.sh "ACCEPT_RUN=$run" "ACCEPT_DIR=$name"
done

if [ "$event" != remove ] && [ -d evidence ]; then
    # Remove the other files first, because a full disk has no space for the archive.
    for entry in *; do
        case $entry in
            evidence | console.log | status | events | run | timer | guard.pid | kill.sh) ;;
            *) rm -rf "./$entry" ;;
        esac
    done
    cp console.log evidence/ 2>/dev/null
    if tar -cf evidence.tar.new evidence && mv evidence.tar.new evidence.tar; then
        rm -rf evidence
    else
        rm -f evidence.tar.new
        : > unpacked
    fi
    : > kept
    start_timer "$keep"
    # Ignore earlier events, such as the coordinator's own `over` after a `stop`.
    event=''
    until [ "$event" = remove ] || [ "$event" = expired ]; do next; done
    end_timer
fi
cd / && rm -rf "$ACCEPT_DIR"
