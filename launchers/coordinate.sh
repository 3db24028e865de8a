#!/bin/sh
# coordinate.sh PYTHON [FILE]: runs the coordinator to its end, on the first host, in a session of its own.
# What it says goes to FILE (console.log); its exit status to `status`, which is there only when all is said.
ACCEPT_DIR=$(cd "$(dirname "$0")" && pwd)
ACCEPT_RUN=$(cat "$ACCEPT_DIR/run")
export ACCEPT_DIR ACCEPT_RUN
cd "$ACCEPT_DIR" || exit 5
(
    "$1" -W ignore -m tarfile -e core.tar.bz2 core || exit 5
    PYTHONPATH=$ACCEPT_DIR/core PYTHONDONTWRITEBYTECODE=1 exec "$1" -m accept.core.coordinator "$ACCEPT_DIR"
) > "${2:-console.log}" 2>&1 &
# When the process started, in clock ticks since boot: with its id it names the process for good.
sed 's/.*) //' "/proc/$!/stat" 2>/dev/null | cut -d ' ' -f 20 > coordinator.start
echo $! > coordinator.pid
wait $!
code=$?
echo "$code" > status.new
mv status.new status
# Without a guard (the machine itself is the one host) there is nobody to tell.
[ ! -p events ] || echo over 1<>events
