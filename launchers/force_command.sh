#!/bin/sh
# The run's own sshd starts every command through this script (ForceCommand): in sh and not in the user's login
# shell, with this node's environment and the mark of the run. sshd gives the full path of this file.
# It starts no other process before the command, because every login passes through it.
ACCEPT_DIR=${0%/*}
read -r ACCEPT_RUN < "$ACCEPT_DIR/run"
export ACCEPT_DIR ACCEPT_RUN
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
exec /bin/sh -c "${SSH_ORIGINAL_COMMAND:-exec /bin/sh -i}"
