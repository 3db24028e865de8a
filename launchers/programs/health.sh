#!/bin/sh
# What the devices of this host have counted so far, in the record format; without a Python it says so. In
# ACCEPT_PEERS: other hosts of the run, which tell the interface that carries it.
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
[ -z "$python" ] || exec "$python" "$here/health.py" "--interface=${ACCEPT_INTERFACE:-$(route_interface)}" "$@"
printf 'ACCEPT {"fact":"health","check":"health","host":"%s","value":{"unread":["anything: no Python 3.10"],"whole":true}}\n' "$ACCEPT_HOST"
