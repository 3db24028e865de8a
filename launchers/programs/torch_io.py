"""Join the ranks of a torch program into a process group, and pick their devices.

Used by the programs that measure with torch.distributed, in the same folder. The ranks use gloo on
CPU. On CUDA they use NCCL, and gloo for exchanging results.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import given_gpus
import gpu_inventory
from rank_io import (
    EXIT_WRONG,
    Ended,
    Identity,
    Progress,
    Rank,
    Unusable,
    cause_of,
    injected_faults,
    one_line,
    problem,
)

#: An index in CUDA_VISIBLE_DEVICES is lower.
_MAX_GPUS = 1024
#: Seconds that each rank adds to the timeout, because connecting takes longer with many.
_SECONDS_PER_RANK = 0.5
#: Messages of torch and CUDA -> what they mean: cudaErrorInsufficientDriver, 35, and
#: cudaErrorSystemNotReady, 802, which GPUs with NVSwitches report until their fabric works
#: (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html).
REASONS = {
    "driver on your system is too old": "driver-too-old",
    "driver version is insufficient": "driver-too-old",
    "system not yet initialized": "fabric-manager",
    "Error 802": "fabric-manager",
    # cudaErrorNoKernelImageForDevice, 209: the build has no kernels for this GPU.
    "no kernel image": "tool-missing",
    # Builds for CPUs, and for GPUs of AMD.
    "not compiled with CUDA": "tool-missing",
    "No HIP GPUs": "tool-missing",
}
#: Longer than the time limit of any step.
_PATIENCE = datetime.timedelta(days=7)


def rendezvous(me: Identity) -> str:
    """Return the init_method URL for torch's process group.

    Under torchrun it is torchrun's own. Otherwise it comes from ACCEPT_MASTER_ADDR and
    ACCEPT_MASTER_PORT, or is the loopback if all ranks are on this host. Raises Unusable if none of
    these applies.
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
        # Otherwise gloo resolves the hostname, which may fail or take a DNS timeout.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if me.launcher == "torchrun":
        # torchrun's agent already listens there, and only this form connects to it.
        return "env://"
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def import_torch() -> None:
    """Import torch without garbage collection, which would take an eighth of the import.

    torch creates a million objects and none is garbage. They are frozen, so that later collections
    skip them.
    """
    gc.disable()
    try:
        import torch
        import torch.distributed  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def pick_device(me: Identity, wanted: str) -> str:
    """Return torch's name of this rank's device; `wanted` is "cpu", "cuda" or "auto".

    "auto" picks the GPU if this host has an NVIDIA GPU, else the CPU. A GPU that does not work is
    never replaced by the CPU: then a problem is printed and Ended is raised.
    """
    import_torch()
    import torch

    # Number the GPUs as nvidia-smi and the inventory do. CUDA reads this when it starts.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    there = Path("/proc/driver/nvidia/version").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
    if wanted == "cpu" or (wanted == "auto" and not there and not torch.cuda.is_available()):
        return "cpu"
    labels = {"host": me.host, "rank": me.rank}
    if not torch.cuda.is_available():
        _end_if_list_is_short(0, me)
        cause, message = _why_unavailable()
        problem(cause, f"torch {torch.__version__} on {me.host}: {message}", **labels)
        raise Ended
    count = torch.cuda.device_count()
    # A launcher may show each process only its own GPU, which then has number 0.
    own = 0 if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") else me.local_rank
    if own >= count:
        _end_if_list_is_short(count, me)
        problem("gpu-missing", f"local rank {me.local_rank} and only {count} GPUs", **labels)
        raise Ended
    device = f"cuda:{own}"
    try:
        torch.cuda.set_device(own)
        # This creates the context and runs a first kernel.
        float(torch.ones(1, device=device))
    except RuntimeError as error:
        gpu = gpu_number(own, me.local_rank)
        message = f"torch {torch.__version__} cannot use GPU {gpu} of {me.host} "
        message += f"({torch.cuda.get_device_name(own)}): {one_line(error)}"
        cause = cause_of_start(error)
        problem(cause, message, **labels, **({} if cause == "tool-missing" else {"gpu": gpu}))
        raise Ended from error
    return device


def _end_if_list_is_short(count: int, me: Identity) -> None:
    """Print a problem and raise Ended if the host's GPUs are not to blame that CUDA shows `count`.

    The problem names no host, because the list of the job's GPUs gives no more.
    """
    given = gpu_inventory.gpus(of_others=True).given if given_gpus.is_listed() else None
    if given is not None and given["shown"] and given["count"] <= count:
        listed = f"{given_gpus.VARIABLE}={given['list']!r} gives {count} GPUs on {me.host}"
        problem("gpu-list", f"{listed}, and it is local rank {me.local_rank}", rank=me.rank)
        raise Ended


def _why_unavailable() -> tuple[str, str]:
    """Return the cause, and the reason, why torch cannot use any GPU of this host."""
    import torch

    try:
        # This repeats the failed start of CUDA, with an error instead of a warning.
        torch.cuda.init()
        reason = "torch.cuda.is_available() is false, without a reason"
        cause = "gpu-unusable"
    except Exception as error:
        reason, cause = one_line(error), cause_of_start(error)
    if cause == "gpu-unusable" and not Path("/dev/nvidia-uvm").exists():
        reason += "; /dev/nvidia-uvm is missing: load the kernel module nvidia-uvm, and start the "
        reason += "container with NVIDIA's runtime"
    return cause, reason


def cause_of_start(error: BaseException) -> str:
    """Return the cause of a failure to start a GPU; a fault of the software accuses no GPU."""
    text = str(error)
    cause = next((cause for sign, cause in REASONS.items() if sign in text), "")
    return cause or ("out-of-memory" if cause_of(error) == "out-of-memory" else "gpu-unusable")


def uuid_of(device: str) -> str:
    """Return NVML's UUID of torch's device; "" if it is not a GPU."""
    import torch

    if not device.startswith("cuda"):
        return ""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def gpu_number(index: int, otherwise: int) -> str:
    """Return nvidia-smi's number of torch's GPU `index`, from CUDA_VISIBLE_DEVICES.

    Returns `otherwise` if the variable is unset or does not show it.
    """
    uuids: Sequence[str | None] = [None] * _MAX_GPUS
    if given_gpus.has_uuids():
        uuids = [gpu.get("uuid") for gpu in gpu_inventory.gpus(of_others=True).gpus or ()]
    places = given_gpus.read(uuids).places if given_gpus.is_listed() else []
    place = places[index] if index < len(places) else None
    return str(otherwise if place is None else place)


def join(me: Identity, device: str, timeout: float, store: Callable[[], Any] | None = None) -> None:
    """Create the process group of all ranks: gloo, and also NCCL if `device` is a GPU.

    The ranks meet in the store that `store` connects to, or else by `rendezvous`.

    Every wait in it fails after `timeout` seconds, and half a second more for each rank. The first
    one, until all ranks have connected, takes up to five times as long.
    """
    import torch
    import torch.distributed

    # Otherwise gloo connects every rank with every other one, which fails with about a thousand.
    # This connects only ranks that exchange data. Releases without it ignore the variable.
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    # One thread per rank: more would compete for the cores with the other ranks of this host.
    torch.set_num_threads(1)
    make = partial(
        torch.distributed.init_process_group,
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        **({"store": store()} if store else {"init_method": rendezvous(me)}),
        rank=me.rank,
        world_size=me.size,
        timeout=datetime.timedelta(seconds=timeout + _SECONDS_PER_RANK * me.size),
    )
    try:
        make()
    except RuntimeError as error:
        # torch requests libuv by default, even in builds without it, such as Debian's.
        if "without libuv" not in str(error):
            raise
        os.environ["USE_LIBUV"] = "0"
        make()
    # Only now do ranks connect to each other.
    wait_for_all()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `begin` needs."""
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds to wait for other ranks (default 60)"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto"
    )


def begin(
    me: Identity,
    progress: Progress,
    options: argparse.Namespace,
    store: Callable[[], Any] | None = None,
) -> Rank:
    """Return this rank after it has joined all others."""
    injected = injected_faults(me)
    device = pick_device(me, options.device)
    progress.enter("rendezvous")
    join(me, device, options.timeout, store)
    return Rank(me=me, progress=progress, injected=injected, device=device)


def finish(rank: Rank, *, well: bool) -> int:
    """Wait for all ranks; return the exit status of this rank.

    Only rank 0, which has printed everything, fails without `well`, because a launcher ends the
    other ranks on an error.
    """
    rank.progress.enter("barrier")
    wait_for_all()
    rank.progress.enter("done")
    return 0 if well or rank.me.rank else EXIT_WRONG


def gather(mine: Any) -> list[list[Any]]:
    """Return every rank's one-dimensional CPU tensor, as rows of numbers, on every rank."""
    import torch
    import torch.distributed

    every = torch.empty(torch.distributed.get_world_size(), len(mine), dtype=mine.dtype)
    # all_gather_into_tensor is missing in gloo with torch 2.1.
    torch.distributed.all_gather(list(every), mine)
    rows: list[list[Any]] = every.tolist()
    return rows


def gather_text(text: str, width: int) -> list[str]:
    """Return every rank's `text`, cut to `width` bytes, on every rank; gathers CPU tensors."""
    import torch

    cut = text.encode()[:width]
    rows = gather(torch.tensor(list(cut.ljust(width, b"\0")), dtype=torch.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


def wait_for_all(group: Any = None) -> None:
    """Return after every rank has called this; a barrier over gloo, also on GPUs."""
    import torch
    import torch.distributed

    torch.distributed.all_reduce(torch.zeros(1), group=group)


def patient() -> Any:
    """Return a group of all ranks for `wait_for_all` whose waits practically never time out.

    It is for work that ranks do alone and whose duration is unknown. The launcher ends the program
    if it takes too long, and a rank that dies is still noticed immediately. All ranks must create
    the group before that work, because creating it waits with the usual timeout.
    """
    import torch.distributed

    return torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)


def most(value: float) -> float:
    """Return the largest `value` of all ranks, on every rank, over gloo."""
    import torch
    import torch.distributed

    held = torch.tensor([value], dtype=torch.float64)
    torch.distributed.all_reduce(held, op=torch.distributed.ReduceOp.MAX)
    return float(held)
