"""Following a run to its end, through dropped connections and an API that restarts."""

from __future__ import annotations

import queue
import re
import threading
import time
from pathlib import Path

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError, execute
from accept.backends.kubernetes.status import MAIN, State, lines, look, place_of, reasons, started
from accept.backends.protocol import Say
from accept.core import evidence
from accept.core.errors import AcceptError, BrokenOff, Exit, NotStarted
from accept.core.text import decimal
from accept.evidence import rundir

#: The run's folder in every pod.
FOLDER = "/opt/accept"
#: How often the cluster is asked, in seconds; more seldom the more pods there are.
_LOOK = 2.0
_PODS_A_SECOND = 50
#: How long the API may be silent before the command gives up; the run goes on without it.
_PATIENCE = 300.0
#: How long index 0 may take to say how it ended, after its Job has.
_GRACE = 20.0
#: How long index 0 may take to end once it is told to: its terminationGracePeriodSeconds (120, in
#: chart/templates/_pod.tpl), and what the kubelet needs to say so. On a lost node nobody ends it,
#: and its object stays in Terminating.
_LEAVING = 180.0
_LAST_LINE = b"-----END ACCEPT"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Console(threading.Thread):
    """Index 0's log, line by line into a queue; what was said is skipped after a drop."""

    def __init__(self, api: Api, pod: str) -> None:
        super().__init__(daemon=True)
        self._api, self.pod = api, pod
        self.said: queue.Queue[bytes] = queue.Queue()
        #: Set once the container has ended: what the log holds then is all of it.
        self.over = threading.Event()

    def run(self) -> None:
        """Read the log until its end."""
        seen = 0
        while True:
            final = self.over.is_set()
            try:
                for number, line in enumerate(
                    self._api.log(self.pod, MAIN, follow="true"), start=1
                ):
                    # A last line without its end was cut by a drop, unless nothing can follow.
                    if number > seen and (line.endswith(b"\n") or final):
                        seen = number
                        self.said.put(line)
            except ApiError as error:
                if final and not error.passing:
                    return
                final = False
            if final:
                return
            self.over.wait(1.0)


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Say what the run says until it ends, and return the coordinator's exit code."""
    api = Api(place_of(job))
    seconds = _start_seconds(folder)
    told: tuple[str, ...] = ()
    console: _Console | None = None
    seen = verdict = told_silent = False
    answered = begun = time.monotonic()
    ended = 0.0
    while True:
        try:
            state = look(api, job.attempt)
            if told_silent:
                say("the API answers again")
            answered, told_silent = time.monotonic(), False
        except ApiError as error:
            if not error.passing:
                raise
            if time.monotonic() - answered > _PATIENCE:
                raise BrokenOff(
                    f"{error.message}; the run goes on without it",
                    hint=f"later: accept watch {job.attempt}",
                ) from None
            if not told_silent and time.monotonic() - answered > 2 * _LOOK:
                say(f"no answer from the API; the run goes on, and so does the asking: {error}")
                told_silent = True
            verdict |= _drain(console, say, _LOOK)
            continue
        now = lines(state)
        for line in now:
            if line not in told:
                say(line)
        told = now
        seen |= state.there
        if not state.there and (seen or time.monotonic() - begun > _GRACE):
            _drain(console, say, 0.0)
            raise BrokenOff(
                f"{job.attempt} is not in namespace {api.place.namespace}",
                hint="it was deleted, or its time to be kept is over",
            )
        first = state.first
        if started(state) and first is not None and (console is None or console.pod != first.name):
            # Another one where the run was taken back and let in again: it begins anew.
            verdict |= _drain(console, say, 0.0)
            console = _Console(api, first.name)
            console.start()
        code = _code(state)
        if code is None and verdict:
            # It holds for whoever collects; its verdict stands.
            code = status(api, state)
        if code is not None:
            _finish(console, say, whole=not verdict)
            return code
        if state.ended:
            ended = ended or time.monotonic()
            if time.monotonic() - ended > _GRACE or state.first is None:
                _finish(console, say, whole=True)
                return Exit.BROKEN_OFF
        leaving = first is not None and first.phase == "leaving"
        # A queue that takes the run back suspends it first: it may come back as long as that takes.
        if state.suspended or (started(state) and not leaving):
            begun = time.monotonic()
        elif _stuck(state):
            waited = time.monotonic() - begun
            if console is None and waited > seconds:
                raise _not_started(state, seconds)
            if console is not None and waited > (_LEAVING if leaving else seconds):
                _drain(console, say, 0.0)
                raise _lost(job, state)
        verdict |= _drain(console, say, max(_LOOK, len(state.pods) / _PODS_A_SECOND))


def _code(state: State) -> int | None:
    """The exit code of the coordinator, once its container has ended."""
    first = state.first
    if first is None or first.phase != "ended":
        return None
    return Exit.BROKEN_OFF if first.code is None else first.code


def status(api: Api, state: State) -> int | None:
    """The exit code that the coordinator wrote down before its end; None: not yet, or no answer."""
    if state.first is None or state.first.phase != "running":
        return None
    try:
        done = execute(api, state.first.name, MAIN, ["cat", f"{FOLDER}/status"], timeout=20.0)
    except ApiError:
        return None
    return decimal(done.out.strip()) if done.exit == 0 else None


def _stuck(state: State) -> bool:
    """Whether index 0 will not come by itself; one that pulls its image is on its way."""
    return state.first is None or bool(state.first.why)


def _why(state: State) -> str:
    return (state.first.why if state.first else state.stuck) or "it has no pod"


def _lost(job: Job, state: State) -> BrokenOff:
    """Index 0 was measuring: that is no start that failed, and what it wrote is not to be lost.

    Neither its Job (backoffLimitPerIndex: 0) nor its JobSet (no failurePolicy) makes another.
    """
    return BrokenOff(
        f"the first pod ran, and is lost: {_why(state)}",
        hint=f"what is left of the run goes with: accept delete {job.attempt}",
    )


def _not_started(state: State, seconds: float) -> NotStarted:
    others = "".join(f"\n{line}" for line in reasons(state)[1:8])
    return NotStarted(
        f"the first pod did not start within {seconds:.0f} s: {_why(state)}{others}",
        hint="accept doctor says what the cluster lacks; --start-timeout 30m waits longer",
    )


def _drain(console: _Console | None, say: Say, seconds: float) -> bool:
    """Say what the log says for so long; whether the last line of all was among it."""
    until = time.monotonic() + seconds
    last = False
    while True:
        left = until - time.monotonic()
        try:
            if console is None:
                raise queue.Empty
            line = console.said.get(timeout=max(0.0, left)) if left > 0 else console.said.get(False)
        except queue.Empty:
            if console is None and left > 0:
                time.sleep(left)
            return last
        say(_CONTROL.sub("", line.decode(errors="replace").rstrip("\n")))
        if line.startswith(_LAST_LINE):
            # What follows is for nobody's eyes: look at once whether it has ended.
            return True


def _finish(console: _Console | None, say: Say, *, whole: bool) -> None:
    """Say the rest of the log."""
    if console is None:
        return
    if whole:
        console.over.set()
        until = time.monotonic() + _GRACE
        while console.is_alive() and time.monotonic() < until:
            _drain(console, say, 0.2)
    _drain(console, say, 0.0)


def _start_seconds(folder: Path) -> float:
    try:
        return evidence.read_plan(folder / rundir.RENDERED).start_seconds
    except AcceptError:
        return 300.0
