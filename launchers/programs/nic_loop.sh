#!/bin/sh
# nic_loop.sh FOLDERS: measures a loop through each active RDMA port of this host. FOLDERS, separated by colons, may
# have nccl-tests, as may ACCEPT_NCCL_TESTS and PATH.
here=$(cd "$(dirname "$0")" && pwd)
ACCEPT_DIR=${ACCEPT_DIR:-${here%/*}}
# shellcheck source=/dev/null
. "$ACCEPT_DIR/env.sh"
# shellcheck source=/dev/null
. "$ACCEPT_DIR/interface.sh"
# shellcheck source=/dev/null
. "$here/python.sh"
# Through rank.sh, so that NCCL has the settings of a rank.
exec "$ACCEPT_SHELL" "$ACCEPT_DIR/rank.sh" --alone "${python:-python3}" "$here/nic_loop.py" "--nics=$(rdma_devices)" \
    "--nccl-tests=${ACCEPT_NCCL_TESTS:-}:$1"
