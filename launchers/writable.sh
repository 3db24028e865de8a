# shellcheck shell=sh
# Sourced on a host before anything of a step is started there: where nothing can be written, it says so
# and ends. Open MPI's daemon does neither on a full disk, and mpirun waits for it as long as it may.
room=$ACCEPT_DIR/room.$$
if ! head -c 65536 /dev/zero > "$room" 2>/dev/null; then
    rm -f "$room"
    ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
    # On stderr: ssh's own output is not passed on by every mpirun.
    printf 'ACCEPT {"problem":"disk-full","host":"%s","message":"%s: nothing can be written to %s"}\n' \
        "$ACCEPT_HOST" "$ACCEPT_HOST" "$ACCEPT_DIR" >&2
    exit 1
fi
rm -f "$room"
