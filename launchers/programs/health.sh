#!/bin/sh
# Print the error counters of this host as a record; without Python, print a problem record. The interface
# to the hosts in ACCEPT_PEERS is the one that carries the run. In a run, a watcher for Xids is started too; it ends
# with the run.
here=$(cd "$(dirname "$0")" && pwd)
ACCEPT_DIR=${ACCEPT_DIR:-${here%/*}}
# shellcheck source=/dev/null
[ -n "${ACCEPT_SHELL:-}" ] || . "$ACCEPT_DIR/env.sh"
# shellcheck source=/dev/null
. "$ACCEPT_DIR/interface.sh"
ACCEPT_HOST=$(cat "$ACCEPT_DIR/host" 2>/dev/null || hostname)
export ACCEPT_HOST
# shellcheck source=/dev/null
. "$here/python.sh"
[ -z "${ACCEPT_RUN:-}" ] || set -- "--watch=$ACCEPT_DIR/xids" "$@"
[ -z "$python" ] || exec "$python" "$here/health.py" "--interface=${ACCEPT_INTERFACE:-$(route_interface)}" "$@"
printf 'ACCEPT {"fact":"health","check":"health","host":"%s","value":{"unread":[{"reason":"no Python 3.10","devices":"all"}],"whole":true}}\n' "$ACCEPT_HOST"
