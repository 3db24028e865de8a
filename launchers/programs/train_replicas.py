"""Compute the same samples on all ranks, keep digests of the results, and compare them later."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from train_compare import TOLERANCES, Accused, Digests, Replica, accuse

#: Number of samples that all ranks compute for a comparison.
COMPARED = 8
#: Maximum number of comparisons with a difference that are analyzed at a time.
_CLOSER = 8


def device_of(torch: Any, device: str) -> str:
    """Return a name of the device; devices with equal names should compute equal bits."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {torch.__version__}"
    level = getattr(torch.backends.cpu, "get_cpu_capability", str)()
    about = Path("/proc/cpuinfo")
    lines = about.read_text(errors="replace").splitlines() if about.exists() else []
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return f"{name.strip()} {level}, {torch.__version__}"


def _plain_attention(torch: Any) -> AbstractContextManager[Any]:
    """Return a context with attention by matrix products, which is deterministic.

    Gradients of the fused kernels add in any order. The matrix products keep all attention weights;
    `Gpt.fitting` returns the number of samples for which there is memory.
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
    """Hold the rank's results of the comparisons, and those that are not analyzed yet."""

    def __init__(self, training: Any) -> None:
        self.training, self.torch = training, training.torch
        self.device = device_of(training.torch, training.device)
        self.digests = Digests(training.device)
        self.kept: list[tuple[int, Any]] = []
        #: True if this device computed the same bits twice; None until that is known.
        self.repeats: bool | None = None
        #: True if all ranks did, on equal devices; then digests suffice, without lengths.
        self.exact = False
        #: The first comparison: digest, 1 if this device repeats its results, number of samples.
        self.first = [0, 0, 0]
        options = training.options
        #: Step of the comparison in which an injected error shows.
        self.spoiled = (options.steps // 2) // options.every * options.every

    def compare(self) -> None:
        """Compute the samples that all ranks compute, and keep digests of state and result.

        The first comparison computes them twice, to find out if this device repeats its results.
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
        if "wrong" in training.injected and step == self.spoiled:
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
        """Find out if this device repeats its results, and if all devices do and are equal."""
        self.repeats = bool(found == again)
        kind = zlib.crc32(self.device.encode())
        both = self.torch.tensor([kind, -kind, not self.repeats])
        self.training.progress.enter("devices", 24)
        self.training.dist.all_reduce(both, op=self.training.dist.ReduceOp.MAX)
        self.exact = both.tolist() == [kind, -kind, 0]

    def _own(self, inputs: Any, labels: Any) -> list[Any]:
        """Return the loss of samples and its gradient, computed without other ranks.

        With FSDP it returns the outputs, because a rank never has its own full gradient.
        """
        training, torch = self.training, self.torch
        # Without the statistics of other ranks, and without kernels that add in any order.
        training.layers.eval()
        if training.device != "cpu":
            # CPU kernels are deterministic anyway, and this call takes seconds for imports.
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
        """Return the number of comparisons since the last call, and those in which ranks differ.

        Each of those has its step, which is the same on all ranks, and this rank's row.
        """
        kept, self.kept = self.kept, []
        rows = self.torch.stack([row for _, row in kept]).cpu()
        both = self.torch.cat([rows[:, :3], ~rows[:, :3]], dim=1)
        self.training.progress.enter("compare", 8 * both.numel())
        self.training.dist.all_reduce(both, op=self.training.dist.ReduceOp.MAX)
        # If all ranks are equal, the maximum of x is the complement of the maximum of ~x.
        differ = (both[:, :3] != ~both[:, 3:]).any(dim=1).nonzero().view(-1).tolist()
        return len(kept), [(kept[at][0], rows[at]) for at in differ]

    def accused(
        self,
        differ: list[tuple[int, Any]],
        gather: Callable[[Any], list[list[Any]]],
        devices: list[str],
    ) -> Iterator[Accused]:
        """Yield the problems that the first of these comparisons show.

        `gather` returns every rank's tensor as rows; `devices` names the device of each rank.
        """
        if not differ:
            return
        repeats = [bool(row[0]) for row in gather(self.torch.tensor([int(bool(self.repeats))]))]
        tolerance = TOLERANCES[self.training.options.precision]
        for step, mine in differ[:_CLOSER]:
            replicas = [self._replica(row) for row in gather(mine)]
            for accused in accuse(replicas, devices, repeats, tolerance):
                yield accused._replace(seen=f"{accused.seen}, at step {step}")

    def _replica(self, row: list[int]) -> Replica:
        length, total = self.torch.tensor(row[3:]).view(self.torch.float64).tolist()
        return Replica(row[0], row[1], row[2], length, total)

    def digest_fact(self, first: list[int], device: str) -> dict[str, Any] | None:
        """Return a rank's `first` for comparison with other executions, or None if unusable.

        Before the first step the weights are the same everywhere. A data set of files may differ.
        """
        digest, repeats, count = first
        options = self.training.options
        if not repeats or options.dataset != "synthetic":
            return None
        what = "outputs" if self.training.kind == "fsdp" else "gradient"
        model = f"{options.model} with {self.training.size} parameters"
        kind = f"{what} of {model}, {options.precision}, {options.norm}"
        digest &= (1 << 64) - 1
        return {"type": kind, "size": count, "random": f"{digest:016x}", "device": device}
