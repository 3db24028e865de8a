#!/bin/sh
# resident.sh: starts the program that stays on this host and starts ranks, with the environment of a rank. ACCEPT_PEERS
# has addresses of two other hosts. The interface that leads to them serves all executions, as it does for a step on all
# hosts. If other hosts are behind another interface, the machine must name it, or nccl-tests must measure.
ACCEPT_DIR=${ACCEPT_DIR:-$(cd "$(dirname "$0")" && pwd)}
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
# It runs for many executions, and each of its ranks gets a folder of its own.
unset ACCEPT_PROGRESS ACCEPT_LOCAL_RANKS
ACCEPT_NET_CHANNELS=''
export ACCEPT_DIR ACCEPT_EXEC ACCEPT_PEERS ACCEPT_NET_CHANNELS
exec "$ACCEPT_SHELL" "$ACCEPT_DIR/rank.sh" "$ACCEPT_PYTHON" "$ACCEPT_DIR/programs/resident.py"
