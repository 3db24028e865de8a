"""Generate output of nccl-tests, for the benchmark of its reader and for the tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from accept.core.nccl_tests.table import UNCHECKED_IN_PLACE, bus_factor

HOSTS = ("node1", "node2")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")


def fixed(value: float, width: int) -> str:
    """Return a number as nccl-tests prints it: with up to two decimals that fit, else 1.0e+07."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}"


def devices(ranks: int, hosts: Sequence[str] = HOSTS) -> list[str]:
    """Return the lines of "Using devices", with the ranks in blocks over the hosts."""
    each = max(1, ranks // len(hosts))
    return [
        f"#  Rank {rank:2d} Group  0 Pid {41000 + rank:6d} on "
        f"{hosts[min(rank // each, len(hosts) - 1)]:>10} device {rank % each:2d} "
        f"[0000:{27 + rank % each:02x}:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]


def row_text(
    collective: str,
    ranks: int,
    size: int,
    *,
    speed: float = 40.0,
    wrong: tuple[str, str] | None = None,
) -> str:
    """Return a row: size / (20 us + size / speed) out of place, 1 % slower in place."""
    factor = bus_factor(collective, ranks) or 0.0
    out, inp = wrong or ("0", "N/A" if collective in UNCHECKED_IN_PLACE else "0")
    text = f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}"
    for slower, bad in ((1.0, out), (1.01, inp)):
        time = (20 + size / speed / 1e3) * slower
        algbw = size / time / 1e3
        text += f"  {fixed(time, 7)}  {fixed(algbw, 6)}  {fixed(algbw * factor, 6)}  {bad:>6}"
    return text


def table_text(
    collective: str = "all_reduce",
    *,
    ranks: int = 4,
    least: int = 1 << 20,
    most: int = 1 << 23,
    speed: float = 40.0,
    hosts: Sequence[str] = HOSTS,
    row: Callable[..., str] = row_text,
    bounds: str = "0 OK",
) -> str:
    """Return a full table as nccl-tests 2.17 prints it."""
    sizes = [least << i for i in range((most // least).bit_length())]
    rows = [row(collective, ranks, size, speed=speed) for size in sizes]
    buses = [float(cell) for line in rows for cell in (line.split()[7], line.split()[11])]
    mean = sum(buses) / len(buses)
    lines = [
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        f"# Collective test starting: {collective}_perf",
        (
            f"# nThread 1 nGpus 1 minBytes {least} maxBytes {most} step: 2(factor) "
            "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
        ),
        "#",
        "# Using devices",
        *devices(ranks, hosts),
        "#",
        f"#{'out-of-place':>73}{'in-place':>31}          ",
        f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}"
        + f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>8}" * 2
        + " ",
        f"#{'(B)':>11}{'(elements)':>14}{'(us)':>35}{'(GB/s)':>8}{'(GB/s)':>8}",
        *rows,
        f"# Out of bounds values : {bounds}",
        f"# Avg bus bandwidth    : {mean:g} ",
        "#",
        f"# Collective test concluded: {collective}_perf",
        "#",
        "",
    ]
    return "\n".join(lines) + "\n"


_DEVICE = re.compile(
    r"#  Rank +(\d+) Group +(\d+) Pid +(\d+) on +(\S+) device +(\d+) \[(.+?)\] (.+)"
)
#: Must never be kept: `-J` writes the full environment.
SECRET = "hf_not_a_real_token"


def document(text: str) -> dict[str, Any]:
    """Return the JSON that nccl-tests 2.19 writes with `-J` for a table."""

    def size(name: str) -> int:
        match = re.search(rf"{name} (\d+)", text)
        assert match
        return int(match[1])

    def side(time: str, algbw: str, busbw: str, wrong: str) -> dict[str, Any]:
        count = None if wrong == "N/A" else float(wrong)
        return {
            "time": float(time),
            "alg_bw": float(algbw),
            "bus_bw": float(busbw),
            "nwrong": count,
        }

    names = ("rank", "group", "pid", "hostname", "device", "device_hex", "device_info")
    numbers = ("rank", "group", "pid", "device")
    listed = [dict(zip(names, values, strict=True)) for values in _DEVICE.findall(text)]
    rows = [line.split() for line in text.splitlines() if line.startswith(" ")]
    program = text.partition("Collective test starting: ")[2].partition("\n")[0]
    bounds = int(text.partition("Out of bounds values : ")[2].split()[0])
    return {
        "version": 3,
        "start_time": "2026-07-10 12:00:00",
        "args": [f"/opt/nccl-tests/build/{program}", "-J", "out.json"],
        "env": [f"HF_TOKEN={SECRET}", 'ODD=a,inf,{"[', "PATH=/usr/bin"],
        "nccl_version": 22902,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": size("minBytes"),
            "maximum_bytes": size("maxBytes"),
            "step_factor": 2,
            "warmup_iters": 1,
            "iterations": 20,
            "validation": 1,
            "blocking_collectives": "false",
            "devices": [
                {key: int(value) if key in numbers else value for key, value in device.items()}
                for device in listed
            ],
        },
        "results": [
            {
                "size": int(row[0]),
                "count": int(row[1]),
                "type": row[2],
                "redop": row[3],
                "root": f"{row[4]:>6}",
                "out_of_place": side(*row[5:9]),
                "in_place": side(*row[9:13]),
                "actual_iterations": 20,
                "experiment_name": "",
            }
            for row in rows
        ],
        "out_of_bounds": {"count": bounds, "okay": "false" if bounds else "true"},
        "average_bus_bandwidth": {
            "bandwidth": float(text.partition("Avg bus bandwidth    : ")[2].split()[0]),
            "okay": "unchecked",
        },
        "errors": [],
        "end_time": "2026-07-10 12:00:09",
    }


def json_text(document: dict[str, Any]) -> str:
    """Return a document as nccl-tests writes it: one line, escaped slashes, infinities as inf."""
    text = json.dumps(document, separators=(",", ":")).replace("/", "\\/")
    return re.sub(r"(-?)Infinity", r"\1inf", text.replace("NaN", '"nan"'))


def split(document: dict[str, Any], hosts: int, seconds: Callable[[int, int], float]) -> None:
    """Change a document to 1 rank per host and 2 hosts per group, with the times of iterations.

    `seconds(process, size)` returns the seconds of an iteration on a process.
    """
    device = document["config"]["devices"][0]
    document["config"]["devices"] = [
        {**device, "rank": rank, "group": rank // 2, "hostname": f"node{rank}", "device": 0}
        for rank in range(hosts)
    ]
    for row in document["results"]:
        for place in ("out_of_place", "in_place"):
            times = [
                [seconds(p, row["size"]) * 1e6 * f for f in (5.0, 0.9, 1.0, 1.1)]
                for p in range(hosts)
            ]
            row[f"{place}_per_iter"] = {
                "skipped_iterations": 1,
                "times_us": [max(column) for column in zip(*times, strict=True)],
                "per_process_max_times_us": times,
            }
