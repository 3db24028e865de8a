# shellcheck shell=sh
# Sourced on a host before anything of a step is started there, and asked of it after one that failed: where
# nothing can be written, it says so and ends. Open MPI's daemon does neither on a full disk, and mpirun
# waits for it as long as it may.
room=$ACCEPT_DIR/room.$$
if ! said=$({ head -c 65536 /dev/zero > "$room"; } 2>&1); then
    rm -f "$room"
    ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
    # On stderr: ssh's own output is not passed on by every mpirun.
    printf 'ACCEPT {"problem":"disk-full","host":"%s","message":"%s: nothing can be written to %s: %s"}\n' \
        "$ACCEPT_HOST" "$ACCEPT_HOST" "$ACCEPT_DIR" "$(printf '%s' "$said" | tr -d '"\\\n' | tail -c 200)" >&2
    exit 1
fi
rm -f "$room"
