"""Write the batch script of a run, which brings its files along: no shared folder is needed."""

from __future__ import annotations

import base64
import json
from shlex import quote

from accept.core.runner.slurm import JOB_LOG, PAYLOAD, RUN, SlurmRun
from accept.core.serde import dump
from accept.plan.bundle import Bundle

#: The function is read as a whole before it runs, so nothing that it starts can read the script.
_SCRIPT = """\
#!/bin/sh
# A run of accept. It unpacks its files on the first node, and starts the coordinator there.
main() {
    umask 077
    unset ACCEPT_PYTHON
    shared=@SHARED@
    if [ -w "$shared" ]; then exec >> "$shared/@LOG@" 2>&1; fi
    # A job that was requeued finds what its first start left.
    rm -rf @WORK@
    mkdir @WORK@ && cd @WORK@ || exit 4
    payload | base64 -d > @PAYLOAD@ && tar -xf @PAYLOAD@ || exit 4
    ACCEPT_DIR=$(pwd)
    # shellcheck source=/dev/null
    . ./env.sh
    # It names the Python in the container, and this script is outside.
    if [ -e container.env ]; then ACCEPT_PYTHON=python3; fi
    # The other nodes do not have the folder that it names.
    unset TMPDIR
    if ! "$ACCEPT_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        fail "$SLURMD_NODENAME has no Python 3.10 or newer: set tools.python in the site file"
    fi
    . ./unpack.sh
    unpack programs.tar.bz2 && unpack coordinator.tar.bz2 ||
        fail "$SLURMD_NODENAME cannot unpack the programs of the run"
    PYTHONPATH=$ACCEPT_DIR/core PYTHONDONTWRITEBYTECODE=1
    export PYTHONPATH PYTHONDONTWRITEBYTECODE
    exec "$ACCEPT_PYTHON" -m accept.core.runner.slurm "$ACCEPT_DIR"
}
fail() {
    echo "problem $1"
    scontrol update "JobId=$SLURM_JOB_ID" "Comment=accept: $1"
    cd / && rm -rf @WORK@
    exit 4
}
payload() {
    cat <<'END'
@DATA@
END
}
main "$@" < /dev/null
exit
"""


def batch_script(run: SlurmRun, bundle: Bundle) -> str:
    """Return the script; it contains no secret, because Slurm and its accounting keep it."""
    files = {RUN: (json.dumps(dump(run)) + "\n").encode()}
    data = base64.encodebytes(bundle.archive(files)).decode().rstrip("\n")
    values = {
        "SHARED": quote(run.shared),
        "WORK": quote(f"{run.folder}.job"),
        "LOG": JOB_LOG,
        "PAYLOAD": PAYLOAD,
        "DATA": data,
    }
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
