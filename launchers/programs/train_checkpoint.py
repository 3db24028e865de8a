"""Write a checkpoint to the run's storage, read it back, compare it, and time both.

All ranks write their shares at the same time, as for a sharded checkpoint. If every rank has the
full model, tensor n belongs to rank n modulo the number of ranks. With FSDP each has its own part.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rank_io
from train_compare import Digests


class Transfer(NamedTuple):
    """One rank's bytes, seconds to write and to read them; `same` if they came back unchanged."""

    bytes: int
    write: float
    read: float
    same: bool


def save_and_load(folder: str, tensors: Sequence[Any], me: rank_io.Identity) -> Transfer:
    """Write `tensors` below `folder`, read them back, compare them, and remove the file.

    The time of writing includes fsync. Before reading, the kernel drops the file from its page
    cache; the storage may still have caches of its own. On a full disk, print a problem and raise
    Ended; other errors of the storage raise OSError.
    """
    import torch

    copies = [tensor.detach().cpu() for tensor in tensors]
    # torch.save writes the full storage of a view.
    copies = [copy.clone() if copy.is_contiguous() else copy.contiguous() for copy in copies]
    execution = os.environ.get("ACCEPT_EXEC", "by-hand").replace("/", "-")
    path = Path(folder) / f"accept-checkpoint-{execution}-{me.rank}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        start = time.perf_counter()
        with path.open("wb") as file:
            torch.save(copies, file)
            file.flush()
            os.fsync(file.fileno())
        write_seconds = time.perf_counter() - start
        size = path.stat().st_size
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        read_seconds = time.perf_counter() - start
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = f"rank {me.rank} on {me.host}: no room for a checkpoint in {folder}"
        rank_io.problem("disk-full", message, check="train", host=me.host, rank=me.rank)
        raise rank_io.Ended from None
    finally:
        path.unlink(missing_ok=True)
    digests = Digests("cpu")
    same = len(loaded) == len(copies) and bool(digests.digest(loaded) == digests.digest(copies))
    return Transfer(size, write_seconds, read_seconds, same)
