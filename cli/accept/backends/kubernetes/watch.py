"""Follow a run to its end, even across dropped connections and restarts of the API."""

from __future__ import annotations

import queue
import re
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.exec import execute
from accept.backends.kubernetes.objects import MAIN_CONTAINER, PodPhase
from accept.backends.kubernetes.status import (
    State,
    has_started,
    place_of,
    query_state,
    state_lines,
    waiting_reasons,
)
from accept.backends.protocol import Say
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, Exit, Interrupted, NotStarted
from accept.core.text import decimal, duration
from accept.core.verdict import WORST_EXITS
from accept.evidence import rundir

#: The run's folder in every pod.
FOLDER = "/opt/accept"
#: File in the run's folder here with the finished steps of an earlier attempt, which index 0 needs.
FINISHED = "earlier.tar.bz2"
#: File in the run's folder here with the log of index 0 as far as it was read. The object of a pod
#: that is deleted takes its log with it.
FOLLOWED = "followed.log"
#: Maximum number of bytes of that log that are kept.
_MOST_KEPT = 64 << 20
#: Attempts to send these steps, seconds for each, and seconds between two attempts.
_SEND_TRIES, _SEND_SECONDS, _SEND_PAUSE = 3, 200.0, 5.0
#: Seconds between two queries of the cluster, and the same after the verdict, when index 0 ends
#: soon. The first is longer for many pods.
_LOOK, _LAST_LOOK = 2.0, 0.25
_PODS_A_SECOND = 50
#: Seconds without an answer of the API after which the command gives up; the run continues.
_PATIENCE = 300.0
#: Seconds that index 0 may take to end after its Job has ended.
_GRACE = 20.0
#: Seconds that the kubelet may take to report the end of index 0 after its grace period. On a lost
#: node its object stays in Terminating.
_LEAVING = 60.0
#: Starts of the last lines of a log: after the packed evidence, and if the coordinator was killed.
_LAST_LINES = (b"-----END ACCEPT", b"evidence is kept here ")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Console(threading.Thread):
    """Read the log of index 0 into a queue and a file.

    Known lines are skipped after a dropped connection.
    """

    def __init__(self, api: Api, pod: str, copy: Path) -> None:
        super().__init__(daemon=True)
        self._api, self.pod, self._copy = api, pod, copy
        self.lines: queue.Queue[bytes] = queue.Queue()
        #: Set when the container has ended, so that the log is complete.
        self.over = threading.Event()
        self._abandoned = threading.Event()

    def run(self) -> None:
        """Read the log until its end."""
        self._copy.unlink(missing_ok=True)
        seen = kept = 0
        while not self._abandoned.is_set():
            final = self.over.is_set()
            try:
                for number, line in enumerate(
                    self._api.log(self.pod, MAIN_CONTAINER, follow=True), start=1
                ):
                    if self._abandoned.is_set():
                        return
                    # A last line without its end was cut off, unless the log is complete.
                    if number > seen and (line.endswith(b"\n") or final):
                        seen = number
                        kept += len(line)
                        if kept <= _MOST_KEPT:
                            self._keep(line)
                        self.lines.put(line)
            except ApiError as error:
                if final and not error.passing:
                    return
                final = False
            if final:
                return
            self.over.wait(1.0)

    def _keep(self, line: bytes) -> None:
        # On a full disk the run is followed without a copy.
        with suppress(OSError), self._copy.open("ab") as copy:
            copy.write(line)

    def abandon(self) -> None:
        """Stop reading: at the next line, or after the time limit of the connection."""
        self._abandoned.set()
        self.over.set()


def watch(job: Job, *, folder: Path, say: Say, log: Say) -> int:
    """Report the state and the log of a run until it ends; return the coordinator's exit code."""
    with ExitStack() as readers:
        return _follow(job, readers, folder=folder, say=say, log=log)


def _follow(job: Job, readers: ExitStack, *, folder: Path, say: Say, log: Say) -> int:
    """Follow a run; `readers` ends the threads that read logs."""
    api = Api(place_of(job))
    seconds = _start_seconds(folder)
    reported: tuple[str, ...] = ()
    console: _Console | None = None
    seen = verdict = silence_reported = False
    answered = begun = time.monotonic()
    ended = 0.0
    while True:
        try:
            state = query_state(api, job.attempt)
            if silence_reported:
                say("the API answers again")
            answered, silence_reported = time.monotonic(), False
        except ApiError as error:
            if not error.passing:
                raise
            if time.monotonic() - answered > _PATIENCE:
                raise Interrupted(
                    f"{error.message}; the run goes on without it",
                    code=Code.KUBE_UNREACHABLE,
                    hint=f"later: accept watch {job.attempt}",
                ) from None
            if not silence_reported and time.monotonic() - answered > 2 * _LOOK:
                say(f"no answer from the API; the run goes on; retrying: {error}")
                silence_reported = True
            verdict |= _drain(console, log, _LOOK)
            continue
        lines = state_lines(state)
        for line in lines:
            if line not in reported:
                say(line)
        reported = lines
        seen |= state.exists
        if not state.exists and (seen or time.monotonic() - begun > _GRACE):
            _drain(console, log, 0.0)
            raise Interrupted(
                f"{job.attempt} is not in namespace {api.place.namespace}",
                code=Code.RUN_GONE,
                hint="it was deleted, or its time to be kept is over",
            )
        first = state.first
        if (
            has_started(state)
            and first is not None
            and (console is None or console.pod != first.name)
        ):
            # A queue may evict the run and admit it again, with a new pod and a new log.
            verdict |= _drain(console, log, 0.0)
            readers.close()
            console = _Console(api, first.name, folder / FOLLOWED)
            console.start()
            readers.callback(console.abandon)
            if (folder / FINISHED).is_file():
                _send_finished(api, first.name, (folder / FINISHED).read_bytes(), say)
        code = _code(state)
        if code is None and verdict:
            # It stays only to let its evidence be collected; the verdict is final.
            code = written_exit_code(api, state)
        if code is not None:
            _finish(console, log, whole=not verdict)
            return code
        if state.ended:
            ended = ended or time.monotonic()
            if time.monotonic() - ended > _GRACE or state.first is None:
                _finish(console, log, whole=True)
                return Exit.INTERRUPTED
        leaving = first is not None and first.phase == PodPhase.LEAVING
        # A queue that evicts the run suspends it. The time limit for the start begins at admission.
        if state.suspended or (has_started(state) and not leaving):
            begun = time.monotonic()
        elif _is_stuck(state):
            waited = time.monotonic() - begun
            if console is None and waited > seconds:
                raise _not_started(state, seconds)
            limit = first.grace + _LEAVING if first is not None and leaving else seconds
            if console is not None and waited > limit:
                _drain(console, log, 0.0)
                raise _lost(job, state)
        pause = _LAST_LOOK if verdict else _LOOK
        verdict |= _drain(console, log, max(pause, len(state.pods) / _PODS_A_SECOND))


def _send_finished(api: Api, pod: str, content: bytes, say: Say) -> None:
    """Send the finished steps of an earlier attempt to index 0, which waits for them.

    If that fails, report it: index 0 runs every step then.
    """
    size = len(content)
    command = (
        f"cd {FOLDER} && head -c {size} >earlier.part && "
        f'[ "$(wc -c <earlier.part)" -eq {size} ] && mv earlier.part {FINISHED}'
    )
    reason = ""
    for left in reversed(range(_SEND_TRIES)):
        try:
            # It has these steps, or has stopped waiting for them.
            started = execute(api, pod, ["test", "-e", f"{FOLDER}/{evidence.HOSTS}"], timeout=20.0)
            if started.exit == 0:
                return
            sent = execute(api, pod, ["sh", "-c", command], timeout=_SEND_SECONDS, stdin=content)
        except ApiError as error:
            reason = error.message
        else:
            if sent.exit == 0:
                say(f"sent the finished steps to {pod} ({size / 1e6:.1f} MB)")
                return
            reason = "the connection ended" if sent.exit is None else f"exit {sent.exit}"
        if left:
            time.sleep(_SEND_PAUSE)
    say(f"the finished steps were not sent to {pod}, which runs every step: {reason}")


def _code(state: State) -> int | None:
    """Return the exit code of the coordinator; None until its container has ended."""
    first = state.first
    if first is None or first.phase != PodPhase.ENDED:
        return None
    return Exit.INTERRUPTED if first.code is None else first.code


def written_exit_code(api: Api, state: State) -> int | None:
    """Return the exit code that the coordinator wrote to a file; None if there is none yet."""
    if state.first is None or state.first.phase != PodPhase.RUNNING:
        return None
    try:
        done = execute(api, state.first.name, ["cat", f"{FOLDER}/status"], timeout=20.0)
    except ApiError:
        return None
    code = decimal(done.text.strip()) if done.exit == 0 else None
    # As in `pod_entrypoint.sh`: any other status is that of a coordinator that was killed.
    return code if code is None or code in WORST_EXITS else Exit.INTERRUPTED


def _is_stuck(state: State) -> bool:
    """Return whether index 0 cannot start by itself. A pod that pulls its image can."""
    return state.first is None or bool(state.why(state.first))


def _why_not_running(state: State) -> str:
    return (state.why(state.first) if state.first else state.stuck) or "it has no pod"


def _lost(job: Job, state: State) -> Interrupted:
    """Return the error for an index 0 that was lost after it had started.

    This is not a failed start, because it may have written results. Neither its Job
    (backoffLimitPerIndex: 0) nor its JobSet (no failurePolicy) replaces the pod.
    """
    return Interrupted(
        f"the first pod ran and was lost: {_why_not_running(state)}",
        code=Code.KUBE_POD_LOST,
        hint=f"remove the rest of the run: accept clean {job.attempt}",
    )


def _not_started(state: State, seconds: float) -> NotStarted:
    others = "".join(f"\n{line}" for line in waiting_reasons(state)[1:8])
    return NotStarted(
        f"the first pod did not start within {duration(seconds)}: "
        f"{_why_not_running(state)}{others}",
        code=Code.KUBE_POD_NOT_STARTED,
        hint="what the cluster lacks: accept doctor --backend kubernetes --nodes 2, "
        "with the other options of the run; --start-timeout 30m of `accept run`, or "
        "`startTimeout: 30m` in the site file, waits longer",
    )


def _drain(console: _Console | None, log: Say, seconds: float) -> bool:
    """Report lines of the log for some seconds; return whether a run's last line was among them."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        try:
            if console is None:
                raise queue.Empty
            line = (
                console.lines.get(timeout=max(0.0, left)) if left > 0 else console.lines.get(False)
            )
        except queue.Empty:
            if console is None and left > 0:
                time.sleep(left)
            return False
        log(_CONTROL.sub("", line.decode(errors="replace").rstrip("\n")))
        if line.startswith(_LAST_LINES):
            # Check now whether the coordinator has ended.
            return True


def _finish(console: _Console | None, log: Say, *, whole: bool) -> None:
    """Report the rest of the log."""
    if console is None:
        return
    if whole:
        console.over.set()
        until = time.monotonic() + _GRACE
        while console.is_alive() and time.monotonic() < until:
            _drain(console, log, 0.2)
    _drain(console, log, 0.0)


def _start_seconds(folder: Path) -> float:
    try:
        return evidence.read_plan(folder / rundir.RENDERED).start_seconds
    except AcceptError:
        return 300.0
