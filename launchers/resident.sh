#!/bin/sh
# resident.sh: starts the program that stays on this host and starts ranks, with the environment of a rank. ACCEPT_PEERS
# has addresses of other hosts.
ACCEPT_DIR=${ACCEPT_DIR:-$(cd "$(dirname "$0")" && pwd)}
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
# It runs for many executions, and each of its ranks gets a folder of its own.
unset ACCEPT_PROGRESS ACCEPT_LOCAL_RANKS
ACCEPT_NET_CHANNELS=''
export ACCEPT_DIR ACCEPT_EXEC ACCEPT_PEERS ACCEPT_NET_CHANNELS
exec "$ACCEPT_SHELL" "$ACCEPT_DIR/rank.sh" "$ACCEPT_PYTHON" "$ACCEPT_DIR/programs/resident.py"
