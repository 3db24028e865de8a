"""Write the batch script of a run. It contains the run's files, so no shared folder is needed."""

from __future__ import annotations

import base64
import bz2
import json
from pathlib import Path
from shlex import quote

from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.runner.resume import pack_finished
from accept.core.runner.slurm import JOB_LOG, PAYLOAD, RUN, SlurmRun
from accept.core.serde import dump
from accept.plan.bundle import Bundle

#: Largest script that Slurm accepts by default (`max_script_size` in slurm.conf), in bytes.
_MAX_SCRIPT = 4 << 20
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
    unpack_programs && unpack coordinator.tar.bz2 ||
        fail "$SLURMD_NODENAME cannot unpack the programs of the run"
    earlier | base64 -d > earlier.tar.bz2
    if [ -s earlier.tar.bz2 ]; then
        unpack earlier.tar.bz2 || fail "$SLURMD_NODENAME cannot unpack the finished steps"
    fi
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
earlier() {
    cat <<'END'
@EARLIER@
END
}
main "$@" < /dev/null
exit
"""


def batch_script(run: SlurmRun, bundle: Bundle, earlier: Path | None = None) -> str:
    """Return the script; it contains no secret, because Slurm and its accounting keep it.

    It brings along the finished steps of the evidence in `earlier`. Raises NotStarted if it is then
    too large for Slurm.
    """
    files = {RUN: (json.dumps(dump(run)) + "\n").encode()}
    finished = bz2.compress(pack_finished(earlier, bundle.plan)) if earlier else b""
    values = {
        "SHARED": quote(run.shared),
        "WORK": quote(f"{run.folder}.job"),
        "LOG": JOB_LOG,
        "PAYLOAD": PAYLOAD,
        "DATA": _base64(bundle.archive(files)),
        "EARLIER": _base64(finished),
    }
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    if finished and len(text) > _MAX_SCRIPT:
        raise NotStarted(
            f"the finished steps have {len(finished) / 1e6:.1f} MB, so the script of the job would "
            f"have {len(text) / 1e6:.1f} MB, and at most {_MAX_SCRIPT / 1e6:.1f} MB are possible",
            code=Code.RESUME_NOT_SENT,
            hint="start the run again without --resume; the finished steps of a run in a folder "
            "that the nodes see need no script: set ACCEPT_RUNS",
        )
    return text


def _base64(data: bytes) -> str:
    return base64.encodebytes(data).decode().rstrip("\n")
