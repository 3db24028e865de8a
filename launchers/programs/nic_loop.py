"""Measure a loop through each RDMA port of this host: from memory through the NIC into memory.

    nic_loop.py --nics =mlx5_0:1,mlx5_1:1

Server and client of perftest's `ib_write_bw` run on the same port:

* `ib-write-gpu`: with memory of the nearest GPU, if it was built with CUDA; all ports at once, as
  in azure_ib_write_bw_gdr.nhc of Azure's health checks, but never two with the same GPU;
* `ib-write-host`: with memory of the host, if there is no such loop, or no PCI bridge is above GPU
  and NIC; two ports at once, because more would share the bandwidth of that memory.

Without `ib_write_bw`, nccl-tests gather between the nearest GPU and another one (`nccl`). With P2P
and shared memory off, NCCL sends through the network even inside a host, and NCCL_IB_HCA names the
port (src/graph/paths.cc of NCCL).

Lines of a tool are printed after `nic-loop PORT LOOP| `. Facts: `nic-loop`, each try, with the exit
status, null if it took too long, and after a failure the error with which the NIC cannot be opened;
`left-out`, what could not be tried. Exit status: 0.
"""

from __future__ import annotations

import argparse
import errno
import functools
import os
import random
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import commands
import gpu_inventory
import pci
import rank_io
from health_host import leading
from pci import SYS
from rank_io import read

CHECK = "nic-loop"
DEV = Path(os.environ.get("ACCEPT_DEV", "/dev"))
GPU, HOST, NCCL = "ib-write-gpu", "ib-write-host", "nccl"
#: Bytes of each write, as in Azure's check, and of each gathering.
MESSAGE, GATHERED = 8 << 20, "256M"
#: Seconds of writing; the first and the last are not measured.
SECONDS, MARGIN = 4, 1
#: Seconds until a loop is ended, and in which the server of a loop must listen.
MOST_SECONDS, LISTEN_SECONDS = 30.0, 10.0
#: Loops with memory of the host that run at once.
HOST_LOOPS = 2
#: Names of the nccl-tests, as in `collectives.sh.j2`.
GATHERS = ("all_gather_perf", "all_gather_perf_mpi")
#: Maximum number of lines that are printed of each loop.
LINES = 400
#: Lines of NCCL's log that show the network and its NICs.
SHOWN = re.compile(r"NET/\S+ : Using|Using network|via NET/|NCCL WARN")


class Gpu(NamedTuple):
    """A GPU. Its UUID selects it, because CUDA may leave out others and then counts differently."""

    number: int
    uuid: str
    address: str


class Port(NamedTuple):
    """An RDMA port, the PCI address of its NIC, and its rate in Gbit/s (0: unknown).

    `gpus`: those of the host, the nearest first. `near`: a PCI bridge is above both
    the NIC and the first of them; virtual machines may hide it.
    """

    device: str
    number: str
    address: str
    rate: float
    gpus: tuple[Gpu, ...]
    near: bool

    @property
    def name(self) -> str:
        """Return the name that NCCL uses, with the number of a second port."""
        return self.device if self.number == "1" else f"{self.device}:{self.number}"


class Tried(NamedTuple):
    """One loop: its exit status (None: it was ended) and the lines of its tool."""

    port: Port
    loop: str
    exit: int | None
    lines: list[str]


def ports(text: str, gpus: Sequence[Gpu], root: Path = SYS) -> list[Port]:
    """Return the ports in a list such as "=mlx5_0:1,mlx5_1:1".

    Ports that are equally near to several GPUs get different ones.
    """
    used = dict.fromkeys(gpus, 0)
    found = []
    for item in filter(None, text.lstrip("=").split(",")):
        device, _, number = item.partition(":")
        folder, number = root / "class/infiniband" / device, number or "1"
        nic = (folder / "device").resolve()
        rate = leading(read(folder / "ports" / number / "rate")) or 0.0
        order = {gpu: (-shared(nic, gpu.address, root), used[gpu], gpu.number) for gpu in gpus}
        nearest = tuple(sorted(gpus, key=order.__getitem__))
        for gpu in nearest[:1]:
            used[gpu] += 1
        is_near = any(order[gpu][0] for gpu in nearest[:1])
        found.append(Port(device, number, nic.name, rate, nearest, is_near))
    return found


def usable_gpus() -> list[Gpu]:
    """Return the GPUs of this host whose place is known."""
    listed = gpu_inventory.gpus().gpus or []
    usable = [g for g in listed if g.get("pci") and g.get("uuid") and not g.get("error")]
    return [Gpu(g["index"], g["uuid"], g["pci"]) for g in usable]


def shared(nic: Path, address: str, root: Path) -> int:
    """Return the number of PCI bridges that are above both a NIC and a GPU."""
    gpu = pci.device(address, root).resolve()
    return len({*pci.above(nic)} & {*pci.above(gpu)})


# ib_write_bw


def cuda_options(tool: str) -> list[tuple[str, ...]]:
    """Return the options of a build of `ib_write_bw` for GPU memory; without CUDA, none.

    Without nvidia-peermem, GPU memory needs dma-buf.
    """
    _, text = run(LISTEN_SECONDS, tool, "--help")
    found: list[tuple[str, ...]] = []
    if "--use_cuda=" in text:
        found.append(("--use_cuda=0",))
    if "--use_cuda_dmabuf" in text:
        found.append(("--use_cuda=0", "--use_cuda_dmabuf"))
    return found


def write(tool: str, port: Port, options: Sequence[str] = ()) -> Tried:
    """Return the end of a loop with server and client of `ib_write_bw`.

    A loop that fails is repeated, because another program may have taken its TCP port meanwhile.
    """
    tried = _write(tool, port, options)
    return _write(tool, port, options) if tried.exit else tried


def _write(tool: str, port: Port, options: Sequence[str]) -> Tried:
    command = [tool, "-d", port.device, "-i", port.number, "-s", str(MESSAGE), "-F", *options]
    command += ["-D", str(SECONDS), "-f", str(MARGIN), "--report_gbits", "-p", str(free_port())]
    index = os.environ.get("NCCL_IB_GID_INDEX", "")
    command += ["-x", index] if index.isascii() and index.isdigit() else []
    if options:
        command = ["env", f"CUDA_VISIBLE_DEVICES={port.gpus[0].uuid}", *command]
    start = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(run, MOST_SECONDS, *command)
        while True:
            status, client = run(MOST_SECONDS, *command, "127.0.0.1")
            late = time.monotonic() > start + LISTEN_SECONDS
            if "Couldn't connect" not in client or late or server.done():
                break
            time.sleep(0.2)
        # The server knows the reason if the client could not even connect.
        text = client if status == 0 else server.result()[1] + client
    lines = ["# " + " ".join(command), *text.splitlines()]
    return Tried(port, GPU if options else HOST, status, lines)


def error_of(port: Port, root: Path = SYS, dev: Path = DEV) -> str:
    """Return the name of the error with which a NIC cannot be opened, or ""."""
    folder = root / "class/infiniband" / port.device / "device/infiniband_verbs"
    names = [path.name for path in folder.glob("uverbs*")]
    try:
        for name in names:
            os.close(os.open(dev / "infiniband" / name, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EIO")
    return "" if names else "ENOENT"


def inactive(root: Path = SYS) -> str:
    """Return the states of the RDMA ports of this host if none is active; "" if it has none."""
    found = sorted((root / "class/infiniband").glob("*/ports/*"))
    states = [f"{p.parts[-3]}:{p.name} {read(p / 'state').strip() or 'unknown'}" for p in found]
    return f"none of {len(found)} RDMA ports is active: {', '.join(states[:4])}" if found else ""


def free_port() -> int:
    """Return a port that nothing listens on, below those that the kernel assigns."""
    for port in random.sample(range(20000, 32768), 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise rank_io.Unusable("no free port")


def run(seconds: float, *command: str) -> tuple[int | None, str]:
    """Return the exit status and the output of a program; None if it did not end in time."""
    ran = commands.run(seconds, *command)
    return ran.exit, ran.out + ran.err


# nccl-tests


def gather_program(folders: Iterable[str]) -> str | None:
    """Return the path of the all-gather of nccl-tests in folders or on PATH, or None."""
    found = (
        shutil.which(name, path=folder) for folder in filter(None, folders) for name in GATHERS
    )
    return next(filter(None, (*found, *map(shutil.which, GATHERS))), None)


def gather(tool: str, port: Port) -> Tried:
    """Return the end of all-gathers between two GPUs through a port."""
    command = [tool, "-g", "2", "-b", GATHERED, "-e", GATHERED, "-n", "20", "-w", "5", "-c", "1"]
    # Into a file, because NCCL would break the lines of the table.
    with tempfile.NamedTemporaryFile() as log:
        settings = {
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in port.gpus[:2]),
            "NCCL_IB_HCA": f"={port.device}:{port.number}",
            **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), "1"),
            **dict.fromkeys(
                ("NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_NET_DISABLE_INTRA"), "0"
            ),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_DEBUG_FILE": log.name,
        }
        variables = [f"{name}={value}" for name, value in settings.items()]
        status, out = run(MOST_SECONDS, "env", *variables, *command)
        logged = Path(log.name).read_text(errors="replace").splitlines()
    lines = ["# " + " ".join(command), *filter(SHOWN.search, logged), *out.splitlines()]
    return Tried(port, NCCL, status, lines)


def rounds(wanted: Iterable[Port], used: int) -> Iterator[list[Port]]:
    """Yield the ports in rounds. A loop uses the nearest GPUs, and no GPU is in two of a round."""
    left = list(wanted)
    while left:
        now: list[Port] = []
        for port in left:
            if not {gpu for one in now for gpu in one.gpus[:used]}.intersection(port.gpus[:used]):
                now.append(port)
        yield now
        left = [port for port in left if port not in now]


# The program


def at_once(most: int, work: Callable[[Port], Tried], wanted: Sequence[Port]) -> list[Tried]:
    """Run a loop on each port, at most `most` at once, and print them."""

    def on_near_cpus(port: Port) -> Tried:
        with pci.on(pci.near(port.address)):
            return work(port)

    with ThreadPoolExecutor(max(1, most)) as pool:
        tried = list(pool.map(on_near_cpus, wanted))
    for one in tried:
        for line in [*one.lines[: LINES // 2], *one.lines[LINES // 2 :][-LINES // 2 :]]:
            rank_io.say(f"nic-loop {one.port.name} {one.loop}| {line.rstrip()[:1000]}")
        gpus = [gpu.number for gpu in one.port.gpus[: {GPU: 1, NCCL: 2}.get(one.loop, 0)]]
        value: dict[str, object] = {"nic": one.port.name, "loop": one.loop, "exit": one.exit}
        value |= {"gpus": gpus, "near": one.port.near, "gbps": one.port.rate}
        value |= {"device": error_of(one.port)} if one.exit != 0 else {}
        rank_io.fact("nic-loop", value, check=CHECK, host=rank_io.host_name())
    return tried


def measure(wanted: Sequence[Port], folders: Sequence[str] = ()) -> dict[str, str]:
    """Run the loops; return what could not be tried, and why."""
    if tool := shutil.which("ib_write_bw"):
        by_gpu, hung = set[Port](), set[Port]()
        for options in cuda_options(tool):
            able = [port for port in wanted if port.gpus and port not in by_gpu | hung]
            for now in rounds(able, 1):
                tried = at_once(len(now), functools.partial(write, tool, options=options), now)
                by_gpu |= {one.port for one in tried if one.exit == 0}
                hung |= {one.port for one in tried if one.exit is None}
        # What a distant GPU reaches depends on where it is, and not only on the NIC.
        rest = [port for port in wanted if port not in by_gpu or not port.near]
        at_once(HOST_LOOPS, functools.partial(write, tool), [p for p in rest if p not in hung])
        return {}
    reasons = {"ib-write": "no ib_write_bw (perftest) on PATH"}
    program = gather_program(folders)
    if program is None:
        return reasons | {NCCL: "no all_gather_perf (nccl-tests)"}
    able = [port for port in wanted if len(port.gpus) > 1]
    if len(able) < len(wanted):
        reasons[NCCL] = "fewer than two GPUs"
    for now in rounds(able, 2):
        at_once(len(now), functools.partial(gather, program), now)
    return reasons


def main() -> None:
    """Print a loop through each port."""
    parser = argparse.ArgumentParser(description="Measure a loop through each RDMA port.")
    parser.add_argument("--nics", default="", help="active ports, such as =mlx5_0:1,mlx5_1:1")
    parser.add_argument("--nccl-tests", default="", help="folders, separated by colons")
    options = parser.parse_args()
    rank_io.fact("began", time.time())
    if options.nics.lstrip("="):
        reasons = measure(ports(options.nics, usable_gpus()), options.nccl_tests.split(":"))
    else:
        down = inactive()
        reasons = (
            {"ports-down": down} if down else {"nics": "no RDMA port in /sys/class/infiniband"}
        )
    if reasons:
        rank_io.fact("left-out", reasons, check=CHECK, host=rank_io.host_name())


if __name__ == "__main__":
    main()
