#!/bin/sh
# rsh_agent.sh HOST COMMAND...: starts an mpirun daemon on HOST. It replaces plain ssh: it uses the run's own keys
# and ports, and sets the mark by which kill.sh finds the processes of this execution on HOST.
# $ACCEPT_DIR is expanded on HOST, because force_command.sh sets it there.
host=$1
shift
exec ssh -F "$ACCEPT_WORK/ssh_config" "$host" "ACCEPT_EXEC='$ACCEPT_EXEC'; export ACCEPT_EXEC; . \"\$ACCEPT_DIR/check_writable.sh\"; $*"
