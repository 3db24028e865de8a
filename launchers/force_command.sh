#!/bin/sh
# Every command that arrives through the run's own sshd goes through here (ForceCommand): in sh,
# whatever the user's login shell is, with this node's environment and the mark of the run.
# sshd names this file by its whole path; without processes, since every login passes here.
ACCEPT_DIR=${0%/*}
read -r ACCEPT_RUN < "$ACCEPT_DIR/run"
export ACCEPT_DIR ACCEPT_RUN
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
exec /bin/sh -c "${SSH_ORIGINAL_COMMAND:-exec /bin/sh -i}"
