"""Start a run as a job of Slurm, or in the allocation of this shell."""

from __future__ import annotations

import base64
import bz2
import contextlib
import json
import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from accept.backends.job import Job, SlurmJob
from accept.backends.protocol import Record, Say
from accept.backends.slurm.client import Answer, call
from accept.backends.slurm.nodes import Node, allocated_nodes, check_request, check_results
from accept.config.container import Runtime
from accept.config.slurm import Launcher, Slurm
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadInput, NotStarted
from accept.core.runner.host_setup import SLACK
from accept.core.runner.resume import EARLIER, copy_finished, pack_finished
from accept.core.runner.slurm import ATTEMPT, JOB_LOG, NODE, RUN
from accept.core.runner.slurm_step import PAYLOAD, Pyxis, SlurmRun, node_list
from accept.core.runner.ssh import outer_environment
from accept.core.serde import dump, escaped
from accept.core.text import count, decimal, plain, shortened
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

#: Folder in the run folder that the job writes to if the nodes see it.
SHARED = "shared"
#: Slurm warns the job this many seconds before its time limit; it may do so a minute earlier.
_WARNING_SECONDS = 120
#: `sbatch --parsable` prints the number, and the cluster if there are several.
_JOB_ID = re.compile(r"(\d{1,10})(?:;[\w.-]+)?", re.ASCII)
#: Seconds to wait for the step in an allocation to appear, or to fail.
_STEP_SECONDS = 1.0
#: Seconds for srun to end after it was interrupted.
_END_SECONDS = 10.0
#: Maximum length of its errors that are read, in bytes.
_MOST_ERRORS = 64 << 10
#: Options of Pyxis that a step uses if they exist.
_PYXIS_OPTIONS = (
    "--no-container-mount-home",
    "--no-container-remap-root",
    "--no-container-entrypoint",
    "--container-writable",
)
#: Messages of sbatch about a bad request, in lower case; the first match counts.
_REFUSALS: tuple[tuple[str, Code], ...] = (
    ("invalid account", Code.SLURM_ACCOUNT),
    ("account/partition", Code.SLURM_ACCOUNT),
    ("invalid partition", Code.SLURM_PARTITION),
    ("invalid qos", Code.SLURM_QOS),
    ("reservation", Code.SLURM_RESERVATION),
    ("invalid generic resource", Code.SLURM_GRES),
    ("invalid gres", Code.SLURM_GRES),
    ("invalid node name", Code.SLURM_NODE_UNKNOWN),
    ("invalid feature", Code.SLURM_CONSTRAINT),
    ("node configuration is not available", Code.SLURM_CONSTRAINT),
    ("more processors requested", Code.SLURM_TOO_MANY_NODES),
    ("node count specification invalid", Code.SLURM_TOO_MANY_NODES),
)


def submit(
    run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, record: Record, say: Say
) -> Job:
    """Submit the job, or start the run in the allocation of this shell."""
    _check_launcher(run)
    shared = folder.resolve() / SHARED
    shared.mkdir(mode=0o700)
    evidence.write(shared / ATTEMPT, attempt + "\n")
    if run.earlier:
        copy_finished(Path(run.earlier), shared / EARLIER, run.plan)
    where = f"{run.site.tools.scratch.rstrip('/')}/accept-{attempt}"
    allocated = allocated_nodes()
    nodes = _in_allocation(run, allocated) if allocated else run.hosts
    slurm_run = _slurm_run(run, attempt, where, shared, nodes if allocated else ())
    script = batch_script(slurm_run, bundle, _earlier_to_send(run))
    job = Job(
        schema=1,
        backend="slurm",
        attempt=attempt,
        hosts=nodes,
        first="",
        folder=where,
        # The number of a job is known when it was submitted, its name before.
        slurm=_allocation() if allocated else SlurmJob(id=0),
    )
    if allocated:
        check_results(run.site)
        record(job)
        slurm_job = _start_step(script, attempt, nodes)
        say(f"running in the allocation of job {slurm_job.id}")
    else:
        known = _check_request(run)
        words = [*_sbatch(run, attempt, known), "--parsable"]
        record(job)
        try:
            answer = call(*words, stdin=script, tries=1)
        except (KeyboardInterrupt, NotStarted):
            # Slurm may have the job although sbatch got no answer.
            _cancel_by_name(attempt)
            raise
        slurm_job = SlurmJob(id=_submitted(answer, attempt))
        say(f"submitted job {slurm_job.id}")
    return replace(job, slurm=slurm_job)


def _earlier_to_send(run: Resolved) -> Path | None:
    """Return the evidence of an earlier attempt unless its nodes saw the folder that it is in."""
    if not run.earlier or (Path(run.earlier).parent / SHARED / NODE).exists():
        return None
    return Path(run.earlier)


def rehearse(run: Resolved) -> str:
    """Return when Slurm would start the job; nothing is submitted. Raises like `submit`."""
    _check_launcher(run)
    if allocated := allocated_nodes():
        _in_allocation(run, allocated)
        return f"the run would start now, in the allocation of job {os.environ['SLURM_JOB_ID']}"
    known = _check_request(run)
    script = "#!/bin/sh\nexit\n"
    answer = call(*_sbatch(run, "test", known), "--test-only", stdin=script, tries=1)
    if answer.exit != 0:
        refusal = _refusal(answer)
        unusable = [node.text for node in known if not node.usable]
        # A job waits for such nodes, but a test of it fails.
        if refusal.code is not Code.SLURM_CONSTRAINT or len(known) - len(unusable) >= run.nodes:
            raise refusal
        return (
            f"the job would wait: {count(run.nodes, 'node')} requested; Slurm gives these to no "
            f"job: {shortened(unusable, 4)}"
        )
    return answer.reason


def _check_request(run: Resolved) -> tuple[Node, ...]:
    minutes, enough = _minutes(run), run.plan.enough_minutes
    return check_request(run.site, run.hosts, run.nodes, minutes=minutes, enough=enough)


def _minutes(run: Resolved) -> int:
    """Return the time limit of the job."""
    longest = run.plan.longest_seconds + 2 * SLACK + run.site.results.hold_seconds
    return math.ceil((run.site.slurm.time or longest) / 60)


def _slurm_run(
    run: Resolved, attempt: str, where: str, shared: Path, nodes: tuple[str, ...]
) -> SlurmRun:
    plan, launcher = run.plan, run.site.slurm.launcher
    return SlurmRun(
        attempt=attempt,
        folder=where,
        shared=str(shared),
        nodes=nodes,
        lost=run.lost,
        earlier=str(shared / EARLIER) if run.earlier else "",
        start_seconds=plan.start_seconds,
        life_seconds=plan.longest_seconds + SLACK,
        enough_minutes=plan.enough_minutes,
        keep_seconds=plan.keep_seconds,
        hold_seconds=run.site.results.hold_seconds,
        gpus=plan.machine.gpus != 0,
        busy_ok=plan.busy_ok,
        in_container=bool(run.site.container.image),
        pyxis=find_pyxis(run),
        launcher="" if launcher in (None, Launcher.MPIRUN) else launcher,
    )


def _check_launcher(run: Resolved) -> None:
    """Raise BadInput if srun should start ranks in a container, which has no commands of Slurm."""
    launcher = run.site.slurm.launcher
    if launcher not in (None, Launcher.MPIRUN) and run.site.container.image:
        raise BadInput(
            f"slurm.launcher {launcher} cannot start ranks in a container",
            code=Code.SLURM_LAUNCHER,
            hint="remove slurm.launcher, so that mpirun starts them; or run without an image",
        )


def find_pyxis(run: Resolved) -> Pyxis | None:
    """Return the container of the run if Pyxis runs it; None for another runtime, or none at all.

    Raises NotStarted if the site file names Pyxis and the cluster does not have it.
    """
    container = run.site.container
    if not container.image or container.runtime not in (None, Runtime.PYXIS):
        return None
    known = call("srun", "--help").text
    if "--container-image" not in known:
        if container.runtime is None:
            return None
        raise NotStarted(
            "this cluster has no Pyxis: srun has no option --container-image",
            code=Code.CONTAINER_RUNTIME_MISSING,
            hint="set container.runtime to apptainer or podman",
        )
    scratch = run.site.tools.scratch
    return Pyxis(
        image=enroot_image(container.image),
        mounts=(f"{scratch}:{scratch}", *container.full_mounts),
        options=tuple(option for option in _PYXIS_OPTIONS if option in known),
    )


def enroot_image(image: str) -> str:
    """Return an image in the notation of Enroot, which writes `#` after the registry."""
    name = image.removeprefix("docker://")
    registry, slash, rest = name.partition("/")
    is_registry = slash and registry and re.search(r"[.:]|^localhost$", registry)
    return f"{registry}#{rest}" if is_registry and "#" not in name else name


def allocation_options(slurm: Slurm) -> dict[str, str | None]:
    """Return the options for the place and the account of a job; None: the default of Slurm."""
    return {
        "partition": slurm.partition,
        "reservation": slurm.reservation,
        "account": slurm.account,
        "qos": slurm.qos,
    }


def _sbatch(run: Resolved, attempt: str, known: Sequence[Node]) -> list[str]:
    """Return the sbatch command of a run, without the options for its output."""
    slurm = run.site.slurm
    options = {
        "job-name": f"accept-{attempt}",
        "nodes": run.nodes,
        "nodelist": node_list(run.hosts),
        "exclude": ",".join(slurm.exclude),
        **allocation_options(slurm),
        "constraint": slurm.constraint,
        "time": _minutes(run),
        "gres": _gres(run, known),
        # The nodes may not see the folder of this run, and the script prints to it if they do.
        "output": "/dev/null",
        "chdir": "/",
        "signal": f"B:USR1@{_WARNING_SECONDS}",
    }
    words = [f"--{name}={value}" for name, value in options.items() if value]
    fixed = ("--ntasks-per-node=1", "--exclusive", "--mem=0", "--no-kill", "--no-requeue")
    return ["sbatch", *fixed, *words, *slurm.sbatch_args]


def _gres(run: Resolved, known: Sequence[Node]) -> str:
    """Return the GPUs to request: those of the site file, or else all that every node has."""
    given = run.site.slurm.gres
    if given is not None:
        return "" if given == "none" else given
    fewest = min((node.gpus for node in known if node.gpus), default=0)
    return f"gpu:{fewest}" if fewest and run.plan.machine.gpus != 0 else ""


def _submitted(answer: Answer, attempt: str) -> int:
    """Return the number of the job. Raises an AcceptError if there is none."""
    if answer.exit != 0:
        raise _refusal(answer)
    # Wrappers may print text before the number.
    for line in reversed(answer.text.splitlines()):
        if match := _JOB_ID.fullmatch(line.strip()):
            return int(match[1])
    _cancel_by_name(attempt)
    raise NotStarted(
        f"sbatch printed no number of a job, but {plain(answer.text or 'nothing', 200)!r}",
        code=Code.SLURM_NO_JOB_ID,
        hint="is sbatch a wrapper here? type: type -a sbatch",
    )


def _cancel_by_name(attempt: str) -> None:
    """End a job whose number is not known, if there is one."""
    with contextlib.suppress(AcceptError):
        call("scancel", f"--name=accept-{attempt}")


def _refusal(answer: Answer) -> AcceptError:
    """Return the error for a job that sbatch refused."""
    lowered = answer.errors.lower()
    code = next((code for text, code in _REFUSALS if text in lowered), Code.SLURM_REFUSED)
    return BadInput(
        f"sbatch refused the job: {answer.reason}",
        code=code,
        hint=f"accept show error {code}",
    )


def _in_allocation(run: Resolved, allocated: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes of this shell's allocation that the run uses. Raises BadInput."""
    if unknown := [name for name in run.hosts if name not in allocated]:
        raise BadInput(
            f"this shell's allocation has no node {escaped(', '.join(unknown[:4]))}",
            code=Code.SLURM_NODE_UNKNOWN,
            hint=f"its nodes: {', '.join(allocated[:8])}",
        )
    wanted = len(run.hosts) or run.plan.nodes or len(allocated)
    if wanted > len(allocated):
        raise BadInput(
            f"{count(wanted, 'node')} requested, and this shell's allocation has {len(allocated)}",
            code=Code.SLURM_TOO_MANY_NODES,
            hint=f"give --nodes {len(allocated)} or fewer",
        )
    return run.hosts or allocated[:wanted]


def _allocation() -> SlurmJob:
    """Return the job of this shell's allocation."""
    number = decimal(os.environ["SLURM_JOB_ID"])
    assert number is not None
    return SlurmJob(id=number, allocation=True)


def _start_step(script: str, attempt: str, nodes: Sequence[str]) -> SlurmJob:
    """Run the script as a step on the first node of this shell's allocation."""
    allocation = _allocation()
    words = (
        *("srun", f"--jobid={allocation.id}", f"--nodelist={nodes[0]}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--mem=0", "--mpi=none", "--cpu-bind=none", "--chdir=/", "--quiet"),
        *(f"--job-name={step_name(attempt)}", "/bin/sh"),
    )
    # Nobody reads what srun prints later, so it must not wait in a pipe.
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=outer_environment(),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise NotStarted(
                "srun is not installed here", code=Code.SLURM_MISSING, hint="load Slurm's commands"
            ) from None
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(script.encode())
                process.stdin.close()
            time.sleep(_STEP_SECONDS)
        except KeyboardInterrupt:
            # srun is in a session of its own. It forwards the signal to the script.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            raise
        if process.poll():
            errors.seek(0)
            answer = Answer(exit=process.returncode, err=errors.read(_MOST_ERRORS))
            raise NotStarted(
                f"srun could not start in job {allocation.id}: {answer.reason}",
                code=Code.SLURM_REFUSED,
                hint="does the allocation still exist? squeue --me",
            )
    return allocation


def step_name(attempt: str) -> str:
    """Return the name of the step that is the batch script of a run in an allocation."""
    return f"accept-{attempt}-first"


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
    # `accept cancel` may come before Python, which removes the folder then.
    trap 'cd / && rm -rf @WORK@; exit 5' TERM
    mkdir @WORK@ && cd @WORK@ && payload | base64 -d > @PAYLOAD@ && tar -xf @PAYLOAD@ ||
        fail "$SLURMD_NODENAME cannot write: $(df -hP "$(dirname @WORK@)" | tail -n 1)"
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
