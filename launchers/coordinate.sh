#!/bin/sh
# coordinate.sh PYTHON [FILE]: runs the coordinator on the first host, in its own session, and waits for it.
# Its output goes to FILE (default console.log), and then its exit status to the file `status`.
ACCEPT_DIR=$(cd "$(dirname "$0")" && pwd)
ACCEPT_RUN=$(cat "$ACCEPT_DIR/run")
export ACCEPT_DIR ACCEPT_RUN
cd "$ACCEPT_DIR" || exit 5
(
    # A local run starts with all files unpacked.
    if [ ! -e core/accept/__init__.py ]; then
        ACCEPT_PYTHON=$1
        # shellcheck source=unpack.sh
        . ./unpack.sh
        unpack coordinator.tar.bz2 || exit 5
    fi
    PYTHONPATH=$ACCEPT_DIR/core PYTHONDONTWRITEBYTECODE=1 exec "$1" -m accept.core.runner.coordinator "$ACCEPT_DIR"
) > "${2:-console.log}" 2>&1 &
# The start time in clock ticks since boot. A process id can be reused, but not together with its start time.
sed 's/.*) //' "/proc/$!/stat" 2>/dev/null | cut -d ' ' -f 20 > coordinator.start
echo $! > coordinator.pid
wait $!
code=$?
echo "$code" > status.new
mv status.new status
# A local run has no watchdog, and so no pipe.
[ ! -p events ] || echo over 1<>events
