"""Print the identity of every MPI rank, and measure the latency between every pair of hosts.

Started by mpirun, with at least one rank per host; needs mpi4py. Every rank reports itself (fact
`mpi-rank`), and rank 0 prints that for all. Then the first rank of each host plays ping-pong with
that of every other host, in rounds of disjoint pairs (circle method): N hosts take N - 1 rounds, or
N if N is odd. Rank 0 prints:

* metric `ping` for each host: median over its peers, in us, of the round trip of 8 bytes (for each
  pair the median of --pings);
* metric `ping-worst` for each host: the slowest of its peers;
* fact `ping-pairs` for at most 64 hosts: {"hosts": [...], "us": rows}, row i holding the round
  trips of host i with hosts 0 to i - 1.

Drills inject no faults here, because they have to get past this step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import commands
import given_gpus
import gpu_inventory
import rank_io

#: Minimum life of a rank in seconds: Open MPI 5.0 hangs at the end of one in five or ten runs over
#: several hosts whose ranks live for less than a second (open-mpi/ompi issues 10586 and 12064).
ALIVE = 1.2
#: Time limit of nvidia-smi in seconds; it is slow if the driver has to start first.
SMI_SECONDS = 90
#: Folder of the device files of GPUs.
DEV = Path("/dev")
#: Seconds before the first message of ranks that srun started. Open MPI 5.0 crashes if a message
#: reaches a rank that has not left MPI_Init, and Slurm lets ranks leave it one after another
#: (open-mpi/ompi issue 12495).
INIT = 0.5
#: Untimed round trips of a pair; the first waits until the peer has finished its previous pair.
WARMUP = 3
#: Maximum number of hosts for which every pair is printed.
MATRIX = 64


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs of range(count), each pair once, by the circle method."""
    seats = list(range(count)) + ([-1] if count % 2 else [])
    half = len(seats) // 2
    found = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in facing if min(a, b) >= 0])
        seats.insert(1, seats.pop())
    return found


def gpus_of_host(host: str) -> list[str | None]:
    """Return the UUIDs of this host's GPUs by index, without nvidia-smi from NVML.

    If nvidia-smi fails for a GPU of this job, a problem is printed, because it is not missing.
    """
    # A folder of PATH that this user may not search does not mean that nvidia-smi fails.
    program = shutil.which("nvidia-smi")
    if program is None:
        there = any(DEV.glob("nvidia[0-9]*"))
        found = gpu_inventory.gpus(of_others=True).gpus if there else None
        return [gpu["uuid"] for gpu in found or () if gpu.get("uuid")]
    ran = commands.run(SMI_SECONDS, program, "-L")
    uuids = given_gpus.uuids_of(ran.out.splitlines())
    listed = given_gpus.read(uuids)
    # Without a list, also GPUs after the last row are the job's.
    is_whole = uuids and given_gpus.is_listed() and listed.fault is not given_gpus.Fault.MISSING
    if ran.exit != 0 and not (is_whole and all(n is not None and uuids[n] for n in listed.places)):
        words = f"{ran.out}\n{ran.err}".splitlines()
        lines = [line.strip() for line in words if not line.startswith("GPU ")]
        text = "; ".join(filter(None, lines))[:300] or f"exit status {ran.exit}"
        rank_io.problem("gpu-unusable", f"nvidia-smi -L: {text}", host=host)
    return uuids


def own_gpu(uuids: Sequence[str | None], local_rank: int) -> str | None:
    """Return the GPU of a local rank, or None; CUDA_VISIBLE_DEVICES is taken into account."""
    places = given_gpus.read(uuids).places
    own = 0 if len(places) == 1 and given_gpus.is_listed() else local_rank
    place = places[own] if own < len(places) else None
    return None if place is None else uuids[place]


def median_ping(comm: Any, peer: int, *, first: bool, pings: int) -> float:
    """Return the median round trip with MPI rank `peer` in us. The rank with `first` begins."""
    ball = bytearray(8)
    times = []
    for _ in range(WARMUP + pings):
        start = time.perf_counter()
        if first:
            comm.Send(ball, peer)
        comm.Recv(ball, peer)
        if not first:
            comm.Send(ball, peer)
        times.append((time.perf_counter() - start) * 1e6)
    return rank_io.median(times[WARMUP:])


def ping_all(comm: Any, leaders: Sequence[int], pings: int) -> dict[tuple[int, int], float]:
    """Return round trips in us by pair of hosts (indices in `leaders`); empty except on rank 0."""
    mine: dict[tuple[int, int], float] = {}
    if comm.rank in leaders:
        own = leaders.index(comm.rank)
        for pairs in rounds(len(leaders)):
            for a, b in pairs:
                if own == a:
                    mine[a, b] = median_ping(comm, leaders[b], first=True, pings=pings)
                elif own == b:
                    median_ping(comm, leaders[a], first=False, pings=pings)
    every = comm.gather(mine, root=0) or []
    return {pair: value for found in every for pair, value in found.items()}


def report(hosts: Sequence[str], pairs: dict[tuple[int, int], float]) -> None:
    """Print the results of `ping_all`."""
    by_host: list[list[float]] = [[] for _ in hosts]
    for (a, b), value in pairs.items():
        by_host[a].append(value)
        by_host[b].append(value)
    for host, values in zip(hosts, by_host, strict=True):
        labels: dict[str, Any] = {"check": "connectivity", "host": host}
        rank_io.metric("ping", round(rank_io.median(values), 2), "us", **labels)
        rank_io.metric("ping-worst", round(max(values), 2), "us", **labels)
    if len(hosts) <= MATRIX:
        rows = [[round(pairs[j, i], 1) for j in range(i)] for i in range(len(hosts))]
        rank_io.fact("ping-pairs", {"hosts": list(hosts), "us": rows}, check="connectivity")


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Print the identity of every MPI rank, then measure round trips between all "
        "pairs of hosts. mpirun -n 4 python ping.py",
    )
    parser.add_argument(
        "--pings", type=int, default=20, help="round trips for each pair of hosts (default 20)"
    )
    options = parser.parse_args(arguments)
    if options.pings < 1:
        parser.error("--pings must be at least 1")
    return options


def main() -> None:
    """Print identities, then latencies. An MPI failure ends all ranks, which is MPI's default."""
    started = time.monotonic()
    options = options_of()
    try:
        from mpi4py import MPI
    except ImportError as error:
        host = rank_io.host_name()
        rank_io.problem("tool-missing", f"{host}: {rank_io.one_line(error)}", host=host)
        sys.exit(rank_io.EXIT_CRASHED)

    if "SLURM_PROCID" in os.environ:
        time.sleep(INIT)
    comm = MPI.COMM_WORLD
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    host = rank_io.host_name()
    local_rank = int(os.environ.get("ACCEPT_LOCAL_RANK") or node.rank)
    uuids = node.bcast(gpus_of_host(host) if node.rank == 0 else None, root=0)
    mine = {
        "rank": comm.rank,
        "host": host,
        "localRank": local_rank,
        "gpu": own_gpu(uuids, local_rank),
        "size": comm.size,
    }
    ranks = comm.allgather(mine)
    leaders: dict[str, int] = {}
    for rank in ranks:
        leaders.setdefault(rank["host"], rank["rank"])
    if comm.rank == 0:
        rank_io.fact("began", time.time(), check="connectivity")
        for rank in ranks:
            labels = {"host": rank["host"], "rank": rank["rank"]}
            rank_io.fact("mpi-rank", rank, check="connectivity", **labels)
    pairs = ping_all(comm, list(leaders.values()), options.pings)
    if comm.rank == 0 and len(leaders) > 1:
        report(list(leaders), pairs)
    time.sleep(max(0.0, ALIVE - (time.monotonic() - started)))
    MPI.Finalize()


if __name__ == "__main__":
    main()
