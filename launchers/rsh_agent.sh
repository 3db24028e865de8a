#!/bin/sh
# What mpirun starts its daemons with, instead of ssh: the run's own keys and ports, and the mark by
# which everything of this execution can be found on the other side. There ACCEPT_DIR is the run's folder.
host=$1
shift
exec ssh -F "$ACCEPT_WORK/ssh_config" "$host" "ACCEPT_EXEC='$ACCEPT_EXEC'; export ACCEPT_EXEC; . \"\$ACCEPT_DIR/check_writable.sh\"; $*"
