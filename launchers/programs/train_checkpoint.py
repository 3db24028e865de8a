"""A checkpoint on the run's storage: written, read back, compared, removed, and how fast it was.

Every rank writes its share at the same time, as sharded checkpoints are: of a model that all ranks
have whole the n-th tensor is that of rank n modulo their number; with FSDP each has its own part.
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


class Moved(NamedTuple):
    """What one rank wrote and read back: bytes, and seconds for each; `same`: it is what it was."""

    bytes: int
    write: float
    read: float
    same: bool


def save_and_load(folder: str, tensors: Sequence[Any], me: rank_io.Identity) -> Moved:
    """Write `tensors` below `folder`, read them, compare, and remove the file.

    Writing counts until the storage has it (fsync). Before reading, the kernel is asked to forget
    the file; storage that keeps it elsewhere is read from there. A full disk is a problem record
    and Ended; other errors of the storage are OSError.
    """
    import torch

    kept = [tensor.detach().cpu() for tensor in tensors]
    # torch.save writes the whole storage of a view.
    kept = [tensor.clone() if tensor.is_contiguous() else tensor.contiguous() for tensor in kept]
    execution = os.environ.get("ACCEPT_EXEC", "by-hand").replace("/", "-")
    path = Path(folder) / f"accept-checkpoint-{execution}-{me.rank}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        start = time.perf_counter()
        with path.open("wb") as file:
            torch.save(kept, file)
            file.flush()
            os.fsync(file.fileno())
        wrote = time.perf_counter() - start
        size = path.stat().st_size
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        again = torch.load(path, map_location="cpu", weights_only=True)
        read = time.perf_counter() - start
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = f"rank {me.rank} on {me.host}: no room for a checkpoint in {folder}"
        rank_io.problem("disk-full", message, check="train", host=me.host, rank=me.rank)
        raise rank_io.Ended from None
    finally:
        path.unlink(missing_ok=True)
    digests = Digests("cpu")
    same = len(again) == len(kept) and bool(digests.digest(again) == digests.digest(kept))
    return Moved(size, wrote, read, same)
