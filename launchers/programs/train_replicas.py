"""The same samples on all ranks: what each rank has and gets, noted, and compared later."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from train_compare import TOLERANCES, Accused, Digests, Replica, accuse

#: Samples that all ranks compute to be compared.
COMPARED = 8
#: Comparisons that are looked at closer at a time, where any showed a difference.
_CLOSER = 8


def device_of(torch: Any, device: str) -> str:
    """What computes: equal names promise equal bits."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {torch.__version__}"
    level = getattr(torch.backends.cpu, "get_cpu_capability", str)()
    about = Path("/proc/cpuinfo")
    lines = about.read_text(errors="replace").splitlines() if about.exists() else []
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return f"{name.strip()} {level}, {torch.__version__}"


def _plain_attention(torch: Any) -> AbstractContextManager[Any]:
    """Attention by matrix products: gradients of the fused kernels add in any order.

    It keeps all weights of attention: `Gpt.fitting` says for how many samples there is room.
    """
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        # torch before 2.3.
        older: AbstractContextManager[Any] = torch.backends.cuda.sdp_kernel(
            enable_flash=False, enable_mem_efficient=False
        )
        return older
    plain: AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH)
    return plain


class Replicas:
    """This rank's side of the comparisons of a training, and those not yet looked at."""

    def __init__(self, training: Any) -> None:
        self.training, self.torch = training, training.torch
        self.device = device_of(training.torch, training.device)
        self.digests = Digests(training.device)
        self.kept: list[tuple[int, Any]] = []
        #: Whether this device got the same bits twice; None: not asked yet.
        self.repeats: bool | None = None
        #: Whether all ranks did, on equal devices: then bits are enough, and lengths not needed.
        self.exact = False
        #: Of the first comparison: its digest, whether this device repeats it, of how many samples.
        self.first = [0, 0, 0]
        options = training.options
        #: The comparison in which a planted error shows.
        self.spoiled = (options.steps // 2) // options.every * options.every

    def compare(self) -> None:
        """Compute what all ranks compute, and note what this one has and got.

        The first time twice, to see whether this device repeats its own results.
        """
        training, digests = self.training, self.digests
        count = min(COMPARED, training.alike, training.batch)
        step = training.step_now
        inputs, labels = training.take(step * training.batch, count)
        got = self._own(inputs, labels)
        found = digests.digest(got)
        first = self.repeats is None
        if first:
            self._ask(found, digests.digest(self._own(inputs, labels)))
        if "wrong" in training.plant and step == self.spoiled:
            got[-1].view(-1)[0] += 1e-3
            found = digests.digest(got)
        if first:
            self.first = [int(found), int(bool(self.repeats)), count]
        whole = training.kind != "fsdp"
        held = digests.digest(training.parameters if whole else ())
        exact = self.torch.stack([digests.digest([inputs, labels]), held, found])
        measured = digests.measure(got if whole and not self.exact else ()).view(self.torch.int64)
        self.kept.append((step, self.torch.cat([exact, measured])))

    def _ask(self, found: Any, again: Any) -> None:
        """Learn whether this device repeats itself, and whether all do and are equal."""
        self.repeats = bool(found == again)
        kind = zlib.crc32(self.device.encode())
        both = self.torch.tensor([kind, -kind, not self.repeats])
        self.training.progress.enter("devices", 24)
        self.training.dist.all_reduce(both, op=self.training.dist.ReduceOp.MAX)
        self.exact = both.tolist() == [kind, -kind, 0]

    def _own(self, inputs: Any, labels: Any) -> list[Any]:
        """The loss of samples and its gradient, which no other rank has touched.

        With FSDP the outputs instead: its gradients exist only as communicated.
        """
        training, torch = self.training, self.torch
        # Statistics of other ranks are no part of this, nor are kernels that add in any order.
        training.layers.eval()
        if training.device != "cpu":
            # On CPU kernels are so anyway, and this call imports seconds of torch.
            torch.use_deterministic_algorithms(True, warn_only=True)
        if training.kind == "fsdp":
            training.progress.enter("compare")
            with torch.no_grad(), training.precise():
                got = [training.parallel.model(inputs)]
        else:
            with nullcontext() if training.device == "cpu" else _plain_attention(torch):
                loss = training.loss_of(training.layers, inputs, labels)
            got = [loss.detach(), *torch.autograd.grad(loss, training.parameters)]
        if training.device != "cpu":
            torch.use_deterministic_algorithms(False)
        training.layers.train()
        return got

    def differing(self) -> tuple[int, list[tuple[int, Any]]]:
        """How many comparisons there were since the last call, and in which the ranks differ.

        All ranks get the same: the step of each, and this rank's own row of it.
        """
        kept, self.kept = self.kept, []
        rows = self.torch.stack([row for _, row in kept]).cpu()
        both = self.torch.cat([rows[:, :3], ~rows[:, :3]], dim=1)
        self.training.progress.enter("compare", 8 * both.numel())
        self.training.dist.all_reduce(both, op=self.training.dist.ReduceOp.MAX)
        # The greatest of x and the greatest of not x belong together where all are equal.
        differ = (both[:, :3] != ~both[:, 3:]).any(dim=1).nonzero().view(-1).tolist()
        return len(kept), [(kept[at][0], rows[at]) for at in differ]

    def accused(
        self,
        differ: list[tuple[int, Any]],
        gather: Callable[[Any], list[list[Any]]],
        devices: list[str],
    ) -> Iterator[Accused]:
        """Whom the first of these comparisons accuse.

        `gather`: a tensor of every rank, as rows; `devices`: what computes on each.
        """
        if not differ:
            return
        repeats = [bool(row[0]) for row in gather(self.torch.tensor([int(bool(self.repeats))]))]
        tolerance = TOLERANCES[self.training.options.precision]
        for step, mine in differ[:_CLOSER]:
            replicas = [self._replica(row) for row in gather(mine)]
            for one in accuse(replicas, devices, repeats, tolerance):
                yield one._replace(seen=f"{one.seen}, at step {step}")

    def _replica(self, row: list[int]) -> Replica:
        length, total = self.torch.tensor(row[3:]).view(self.torch.float64).tolist()
        return Replica(row[0], row[1], row[2], length, total)

    def told(self, first: list[int], device: str) -> dict[str, Any] | None:
        """What a rank's `first` says, to be compared with other executions; None: nothing.

        Before the first step all have the same weights. A data set of files may be another there.
        """
        digest, repeats, count = first
        options = self.training.options
        if not repeats or options.dataset != "synthetic":
            return None
        what = "outputs" if self.training.kind == "fsdp" else "gradient"
        kind = f"{what} of {options.model}, {options.precision}, {options.norm}"
        digest &= (1 << 64) - 1
        return {"type": kind, "size": count, "random": f"{digest:016x}", "device": device}
