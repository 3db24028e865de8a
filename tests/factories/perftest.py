"""A stand-in for perftest's `ib_write_bw` that prints recorded outputs, and NICs in sysfs.

As a program, it behaves as a server, which listens, or as a client, which connects to it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RECORDED = Path(__file__).resolve().parents[1] / "data/perftest"
#: GPU or host memory -> the rate in Gbit/s of a loop with it, or the name of a recorded failure.
Loops = Mapping[str, float | str]
#: The options of `ib_write_bw --help` of builds with CUDA (src/perftest_parameters.c).
_CUDA_HELP = (
    "      --use_cuda=<cuda device id> Use CUDA specific device for GPUDirect RDMA testing\n"
    "      --use_cuda_dmabuf Use CUDA DMA-BUF for GPUDirect RDMA testing\n"
)


def recorded(name: str) -> str:
    """Return a recorded output."""
    return (_RECORDED / f"{name}.txt").read_text()


def printed(device: str, gbits: float, size: int = 8 << 20) -> str:
    """Return the recorded output of a loop with another device, rate and a single size."""
    head, _, tail = recorded("gpu").partition("MsgRate[Mpps]\n")
    end = tail[tail.index("-----") :]
    row = f" {size:<7}    {1000:<10}       {0:<7.2f}            {gbits:<7.2f}\t\t     0.001000\n"
    return re.sub("mlx5_3", device, f"{head}MsgRate[Mpps]\n{row}{end}")


def host(root: Path, nics: int, *, gbits: int = 400) -> None:
    """Create the NICs of a host below `root`, each behind a PCI bridge with the GPU of its number.

    `tests.factories.nvml.host` creates the GPUs before.
    """
    buses = sorted((root / "sys/bus/pci/devices").glob("*"))
    for number in range(nics):
        bridge = root / f"sys/devices/pci0000:{number:02x}/0000:{number:02x}:01.0"
        nic = bridge / f"00{number:02x}:0a:00.0"
        nic.mkdir(parents=True)
        if number < len(buses):
            gpu = buses[number]
            gpu.rename(bridge / gpu.name)
            gpu.symlink_to(bridge / gpu.name)
        port = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port.parents[1] / "device").symlink_to(nic)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text(f"{gbits} Gb/sec (4X NDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")


def hidden(folder: Path, path: str) -> str:
    """Return a PATH with the same programs, but without perftest, which this machine may have."""
    places = []
    for number, place in enumerate(path.split(os.pathsep)):
        if not Path(place, "ib_write_bw").exists():
            places.append(place)
            continue
        links = folder / str(number)
        links.mkdir(parents=True)
        for program in Path(place).iterdir():
            if not program.name.startswith("ib_"):
                (links / program.name).symlink_to(program)
        places.append(str(links))
    return os.pathsep.join(places)


def write(folder: Path, loops: Mapping[str, Loops], *, cuda: bool = True) -> dict[str, str]:
    """Write the program into `folder`; return the environment with it on PATH.

    `loops`: device -> its loops. Without `cuda`, the program cannot use GPU memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scenario = folder / "ib_write_bw.json"
    scenario.write_text(json.dumps({"loops": loops, "cuda": cuda}))
    program = folder / "ib_write_bw"
    command = f"PERFTEST_SCENARIO='{scenario}' exec '{sys.executable}' -IS '{__file__}'"
    program.write_text(f'#!/bin/sh\n{command} "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def main(arguments: list[str]) -> int:
    """Run the stand-in, and return its exit status."""
    scenario: dict[str, Any] = json.loads(Path(os.environ["PERFTEST_SCENARIO"]).read_text())
    if "--help" in arguments:
        sys.stdout.write("Usage:\n" + (_CUDA_HELP if scenario["cuda"] else ""))
        return 0
    values = dict(itertools.pairwise(arguments))
    device, port = values["-d"], int(values["-p"])
    memory = "gpu" if any(one.startswith("--use_cuda=") for one in arguments) else "host"
    client = arguments[-1] == "127.0.0.1"
    time.sleep(0 if client else 0.1)
    try:
        if client:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        else:
            with socket.create_server(("", port)) as server:
                server.accept()
    except OSError:
        print(f"Couldn't connect to 127.0.0.1:{port}", file=sys.stderr)
        return 1
    rate = scenario["loops"][device][memory]
    if rate == "hang":
        time.sleep(3600)
    sys.stdout.write(recorded(rate) if isinstance(rate, str) else printed(device, rate))
    return 1 if isinstance(rate, str) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
