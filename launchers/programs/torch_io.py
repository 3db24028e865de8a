"""How the ranks of a torch program find each other and their devices.

Used by the programs that measure with torch.distributed; it lies beside them. gloo on CPU, NCCL on
CUDA with gloo beside it for what is said about the measurement.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

from rank_io import Ended, Identity, Plant, Progress, Unusable, one_line, planted, problem

#: CUDA's words (cudaErrorNoKernelImageForDevice) where a build has nothing that a GPU can run.
_NO_KERNELS = "no kernel image"
#: Longer than any step may last.
_PATIENCE = datetime.timedelta(days=7)


def rendezvous(me: Identity) -> str:
    """Where torch's processes meet, as an init_method URL.

    torchrun's own place under torchrun; else ACCEPT_MASTER_ADDR and ACCEPT_MASTER_PORT, else, when
    all ranks are on this host, its loopback. Raises Unusable where none of these applies.
    """
    own = "" if me.launcher == "torchrun" else "ACCEPT_"
    address = os.environ.get(f"{own}MASTER_ADDR", "")
    port = os.environ.get(f"{own}MASTER_PORT", "")
    if not address or not port:
        if me.local_size != me.size:
            raise Unusable(f"several hosts: set {own}MASTER_ADDR and {own}MASTER_PORT (of rank 0)")
        address, port = "127.0.0.1", "29511"
    interfaces = [name for _, name in socket.if_nameindex()]
    if address in ("127.0.0.1", "localhost") and "lo" in interfaces:
        # Else gloo resolves this host's own name, which may not be known or take a DNS timeout.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if me.launcher == "torchrun":
        # Its agent listens there already, and only this form uses what it serves.
        return "env://"
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def import_torch() -> None:
    """Import torch. Of the million objects that it makes none is garbage, so Python does not look
    for any meanwhile, which takes an eighth of the import, and never again among these.
    """
    gc.disable()
    try:
        import torch
        import torch.distributed  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def pick_device(me: Identity, wanted: str) -> str:
    """The device of this rank as torch names it: `wanted` is "cpu", "cuda" or "auto".

    "auto" takes the GPU where this host has an NVIDIA one, else the CPU. A GPU that is there and
    cannot be used is never replaced by the CPU: that is a problem record, and Ended.
    """
    import_torch()
    import torch

    # GPUs are then numbered as nvidia-smi and the inventory number them; read when CUDA starts.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    there = Path("/proc/driver/nvidia/version").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
    if wanted == "cpu" or (wanted == "auto" and not there and not torch.cuda.is_available()):
        return "cpu"
    labels = {"host": me.host, "rank": me.rank}
    if not torch.cuda.is_available():
        problem("gpu-unusable", "torch cannot use the GPU of this host", **labels)
        raise Ended
    count = torch.cuda.device_count()
    # A launcher may show each process only its own GPU; then that is number 0 for all of them.
    own = 0 if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") else me.local_rank
    if own >= count:
        problem("gpu-missing", f"local rank {me.local_rank} and only {count} GPUs", **labels)
        raise Ended
    device = f"cuda:{own}"
    try:
        torch.cuda.set_device(own)
        # The context is made at last, and a first kernel run.
        float(torch.ones(1, device=device))
    except RuntimeError as error:
        if _NO_KERNELS in str(error):
            said = f"torch {torch.__version__} was built without kernels for the GPU of this host "
            said += f"({torch.cuda.get_device_name(own)}): install a build for it"
            problem("tool-missing", said, **labels)
        else:
            gpu = gpu_number(own, me.local_rank)
            said = f"GPU {gpu} of {me.host} cannot be used: {one_line(error)}"
            problem("gpu-unusable", said, gpu=gpu, **labels)
        raise Ended from error
    return device


def gpu_number(index: int, otherwise: int) -> str:
    """What nvidia-smi calls torch's GPU `index`, where CUDA_VISIBLE_DEVICES lists numbers.

    `otherwise`: the number where it is unset, or says it by UUID.
    """
    listed = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(listed) and all(one.isdigit() for one in listed):
        return listed[index]
    return str(otherwise)


def join(me: Identity, device: str, timeout: float) -> None:
    """Make the process group of all ranks: gloo, and NCCL beside it for tensors on a GPU.

    Every wait in it ends after `timeout` seconds with an error.
    """
    import torch
    import torch.distributed

    # One thread a rank: several would fight for the cores with the other ranks of this host.
    torch.set_num_threads(1)
    make = partial(
        torch.distributed.init_process_group,
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=rendezvous(me),
        rank=me.rank,
        world_size=me.size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    try:
        make()
    except RuntimeError as error:
        # It asks for libuv by default, also where it was built without, as Debian's is.
        if "without libuv" not in str(error):
            raise
        os.environ["USE_LIBUV"] = "0"
        make()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that `begin` needs."""
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds to wait for other ranks (default 60)"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto"
    )


def begin(me: Identity, progress: Progress, options: argparse.Namespace) -> tuple[Plant, str]:
    """The faults planted on this rank and its device, once all ranks have joined."""
    plant = planted(me)
    device = pick_device(me, options.device)
    progress.enter("rendezvous")
    join(me, device, options.timeout)
    return plant, device


def gather(mine: Any) -> list[list[Any]]:
    """A tensor on the CPU, of one dimension, as a row of numbers of every rank, on every rank."""
    import torch
    import torch.distributed

    every = torch.empty(torch.distributed.get_world_size(), len(mine), dtype=mine.dtype)
    # Not all_gather_into_tensor, which gloo has not in torch 2.1.
    torch.distributed.all_gather(list(every), mine)
    rows: list[list[Any]] = every.tolist()
    return rows


def gather_text(text: str, width: int) -> list[str]:
    """`text` of every rank, on every rank, cut to `width` bytes; over the process group, on CPU."""
    import torch

    cut = text.encode()[:width]
    rows = gather(torch.tensor(list(cut.ljust(width, b"\0")), dtype=torch.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


def wait_for_all(group: Any = None) -> None:
    """Return when every rank has called this; over gloo, also where the tensors are on GPUs."""
    import torch
    import torch.distributed

    torch.distributed.all_reduce(torch.zeros(1), group=group)


def patient() -> Any:
    """A group of all ranks that waits as long as it takes, for `wait_for_all`.

    For work that each rank does by itself and whose length nobody knows. Whoever started the
    program ends that where it takes too long; a rank that dies is noticed at once all the same.
    Every rank makes the group before that work, as making it is a wait like any other.
    """
    import torch.distributed

    return torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)


def most(value: float) -> float:
    """The largest `value` of all ranks, on every rank, over gloo."""
    import torch
    import torch.distributed

    held = torch.tensor([value], dtype=torch.float64)
    torch.distributed.all_reduce(held, op=torch.distributed.ReduceOp.MAX)
    return float(held)
