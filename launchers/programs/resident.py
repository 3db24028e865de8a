"""Start ranks on this host without a new start of Python and torch for each execution.

The coordinator starts this program once on each host, over ssh. It imports torch, prints
`{"torch": VERSION}`, and then obeys lines of JSON on its standard input until that ends:

* `{"listen": JOB, "address": A}`: it opens a port for an execution whose rank 0 is here, and prints
  `{"job": JOB, "port": N}`;
* `{"run": JOB, ...}`, with the fields of `Order`: it forks a process for each rank of the execution
  on this host, which joins the others, measures, and ends;
* `{"kill": JOB}`: it kills these processes.

What the ranks print becomes `{"job": JOB, "text": T}`, byte for byte as Latin-1, and
`{"job": JOB, "exit": N}` follows when they have ended. So a rank that hangs or crashes costs its
own execution only: the next one gets new processes. This program itself never uses a GPU.

The port is open on one address, from `listen` to the end of the execution, and the names of all
entries behind it begin with a secret, which comes over ssh. Whoever else reaches it can disturb or
end the execution, which then counts as failed, but cannot run anything. As with mpirun and
nccl-tests, the data between the ranks are not encrypted.

Exit status: 0 done, 1 no torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import collective
import devices
import rank_io
import torch_io

if TYPE_CHECKING:
    from torch.distributed import Store

#: What ranks can measure.
PROGRAMS: dict[str, ModuleType] = {"collective": collective, "devices": devices}
#: Bytes of output in one line, which is longer as JSON.
_BLOCK = 8 << 10
#: PR_SET_PDEATHSIG of prctl(2).
_SET_PDEATHSIG = 1
#: Prints what the ranks of this host wrote to NCCL's own logs.
_PRINT_LOGS = '. "$ACCEPT_DIR/nccl_log.sh" && print_nccl_logs "$ACCEPT_PROGRESS"'


@dataclass(frozen=True, kw_only=True)
class Order:
    """One execution on this host."""

    run: int
    #: It marks the files of the execution.
    mark: str
    #: One of PROGRAMS, and its options.
    program: str
    arguments: list[str]
    #: Rank of each local rank that takes part; JSON has text as keys.
    ranks: dict[str, int]
    #: Number of ranks on all hosts.
    size: int
    #: Where rank 0 listens.
    address: str
    port: int
    secret: str
    #: Faults that a drill injects.
    inject: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of all its processes."""
        folder = f"{os.environ['ACCEPT_DIR']}/progress/{self.mark}"
        return {"ACCEPT_PROGRESS": folder, "ACCEPT_INJECT": self.inject}


@dataclass(kw_only=True)
class Job:
    """The processes of an execution."""

    order: Order
    #: Read end of the pipe into which they print.
    output: int
    input: int
    #: Process id -> rank; -1 is the printer of NCCL's logs.
    processes: dict[int, int] = field(default_factory=dict)
    status: int = 0
    killed: bool = False
    printed: bool = False

    def ended(self, pid: int, status: int) -> None:
        """Take note of the end of a process, and report a rank that a signal has ended."""
        rank = self.processes.pop(pid)
        if rank < 0:
            return
        self.status = self.status or (status if status >= 0 else 128 - status)
        if status < 0 and not self.killed:
            host = rank_io.host_name()
            record = {
                "problem": "crashed",
                "message": f"rank {rank} on {host} was ended by signal {-status}",
                "host": host,
                "rank": rank,
            }
            os.write(self.input, f"ACCEPT {json.dumps(record)}\n".encode())


class Server:
    """Obey the coordinator."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.listeners: dict[int, socket.socket] = {}
        self.jobs: dict[int, Job] = {}
        self.rest = b""
        children, self.wake = socket.socketpair()
        for end in (children, self.wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wake.fileno())
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self.children = children
        self.selector.register(children, selectors.EVENT_READ, self.reap)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self.orders)
        self.open = True

    def serve(self) -> None:
        """Obey until standard input ends; then kill what still runs."""
        while self.open:
            for key, _ in self.selector.select():
                act: Callable[[], None] = key.data
                act()
        for job in self.jobs.values():
            self.kill(job)

    def orders(self) -> None:
        """Read and obey lines."""
        block = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self.rest = (self.rest + block).split(b"\n")
        self.open = bool(block)
        for line in lines:
            order = json.loads(line)
            if "listen" in order:
                self.listen(order["listen"], order["address"])
            elif "run" in order:
                self.run(Order(**order))
            elif job := self.jobs.get(order["kill"]):
                self.kill(job)
            else:
                self.forget(order["kill"])

    def listen(self, number: int, address: str) -> None:
        """Open the port of an execution."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.bind((address, 0))
        except OSError:
            # The host has another address inside its container.
            listener.bind(("", 0))
        listener.listen(64)
        self.listeners[number] = listener
        report(job=number, port=listener.getsockname()[1])

    def forget(self, number: int) -> None:
        """Close the port of an execution."""
        if listener := self.listeners.pop(number, None):
            listener.close()

    def run(self, order: Order) -> None:
        """Start the ranks of this host."""
        output, into = os.pipe()
        os.set_blocking(output, False)
        job = self.jobs[order.run] = Job(order=order, output=output, input=into)
        sys.stdout.flush()
        for local, rank in order.ranks.items():
            pid = os.fork()
            if not pid:
                self.become(job, int(local), rank)
            job.processes[pid] = rank
        self.forget(order.run)
        self.selector.register(output, selectors.EVENT_READ, lambda: self.pass_on(job))

    def become(self, job: Job, local: int, rank: int) -> None:
        """Be a rank, in a new process; does not return."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            _end_with_parent()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (job.input, 1), (job.input, 2)):
                os.dup2(source, target)
            measure(job.order, local, rank, self.listeners.get(job.order.run))
        finally:
            rank_io.end(rank_io.EXIT_CRASHED)

    def kill(self, job: Job) -> None:
        """Kill the processes of a job."""
        job.killed = job.printed = True
        for pid in job.processes:
            # A process that was just forked may have no group yet.
            for end in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    end(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Take note of processes that have ended, and of jobs that thereby end."""
        with contextlib.suppress(BlockingIOError):
            while self.children.recv(1 << 12):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found[0], os.waitstatus_to_exitcode(found[1])
                for job in [job for job in self.jobs.values() if pid in job.processes]:
                    job.ended(pid, status)
                    if not job.processes and not self.prints_logs(job):
                        self.end(job)

    def prints_logs(self, job: Job) -> bool:
        """Return True if a process was started that prints what is in NCCL's own logs."""
        if job.printed or not os.environ.get("NCCL_DEBUG"):
            return False
        job.printed = True
        printer = subprocess.Popen(
            ["/bin/sh", "-c", _PRINT_LOGS],
            env={**os.environ, **job.order.environment},
            stdin=subprocess.DEVNULL,
            stdout=job.input,
            stderr=job.input,
            start_new_session=True,
        )
        job.processes[printer.pid] = -1
        # It is waited for like the ranks.
        printer.returncode = 0
        return True

    def pass_on(self, job: Job) -> None:
        """Print what a job has printed so far."""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(job.output, _BLOCK):
                report(job=job.order.run, text=block.decode("latin-1"))

    def end(self, job: Job) -> None:
        """Print the rest of a job's output, and its exit status."""
        self.pass_on(job)
        self.selector.unregister(job.output)
        os.close(job.output)
        os.close(job.input)
        del self.jobs[job.order.run]
        report(job=job.order.run, exit=job.status)


def _end_with_parent() -> None:
    """Let the kernel kill this process when the program ends, however that happens."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)


def report(**line: object) -> None:
    """Print a line for the coordinator."""
    rank_io.say(json.dumps(line, separators=(",", ":")))


def measure(order: Order, local: int, rank: int, listener: socket.socket | None) -> None:
    """Measure as a rank. Ends the process."""
    os.environ.update(order.environment)
    os.environ["ACCEPT_LOCAL_RANK"] = str(local)
    if "NCCL_DEBUG" in os.environ:
        # The libraries of CUDA and NCCL are loaded, but have read no variables.
        name = f"nccl.{local}.%h.%p.log"
        os.environ["NCCL_DEBUG_FILE"] = str(Path(order.environment["ACCEPT_PROGRESS"]) / name)
    me = rank_io.Identity(
        rank=rank,
        size=order.size,
        local_rank=local,
        local_size=len(order.ranks),
        host=rank_io.host_name(),
    )
    progress = rank_io.Progress(rank)
    program = PROGRAMS[order.program]
    options = program.options_of(order.arguments)

    def store() -> Store:
        from torch.distributed import PrefixStore, TCPStore

        tcp = TCPStore(
            order.address,
            order.port,
            order.size,
            is_master=not rank,
            timeout=timedelta(seconds=options.timeout),
            wait_for_workers=False,
            master_listen_fd=listener.fileno() if listener and not rank else None,
            # Only the other implementation takes an open port in all releases.
            use_libuv=False,
        )
        return PrefixStore(order.secret, tcp)

    def work() -> int:
        return int(program.measure(options, me, progress, program="resident.py", store=store))

    rank_io.guarded(me, progress, work)


def main() -> int:
    """Import torch, and serve the coordinator."""
    try:
        torch_io.import_torch()
        import torch
    except Exception as error:
        report(unusable=f"no torch on {rank_io.host_name()}: {rank_io.one_line(error)}")
        return 1
    server = Server()
    report(torch=torch.__version__)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
