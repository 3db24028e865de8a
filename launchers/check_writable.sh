# shellcheck shell=sh
# Sourced on a host before a step starts there, and after a step has failed. If the run's folder cannot be written to,
# it reports a problem and exits. On a full disk, Open MPI's daemon fails silently but keeps running, and mpirun would
# wait until its timeout.
probe=$ACCEPT_DIR/probe.$$
if ! error=$({ head -c 65536 /dev/zero > "$probe"; } 2>&1); then
    rm -f "$probe"
    ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
    # To stderr, because not every mpirun passes on the standard output of its agent.
    printf 'ACCEPT {"problem":"disk-full","host":"%s","message":"%s: cannot write to %s: %s"}\n' \
        "$ACCEPT_HOST" "$ACCEPT_HOST" "$ACCEPT_DIR" "$(printf '%s' "$error" | tr -d '"\\\n' | tail -c 200)" >&2
    exit 1
fi
rm -f "$probe"
