"""Compare what ranks computed: with each other, and the loss curve with a reference.

Averaging hides which rank computed wrong gradients. So from time to time all ranks compute the same
samples, and their own results, before any communication, are compared: bit for bit if the devices
are equal and repeat their own results, else within a tolerance.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

#: Maximum number of ranks that a problem names.
NAMED = 8
#: Largest distance between gradients that rounding explains, as a share of the gradient's length.
TOLERANCES = {"fp32": 1e-3, "autocast": 0.05, "bf16": 0.05}
_CHUNK = 1 << 18
#: Odd numbers: 2^64 over the golden ratio (Knuth, The Art of Computer Programming 3, 6.4), and a
#: prime. Sums are taken modulo 2^64.
_STEP, _PRIME = -7046029254386353131, 1099511628211
_BITS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
#: The first and the last loss are means over this many steps.
ENDS = 5
#: Number of samples that all ranks compute for a comparison.
COMPARED = 8
#: Maximum number of comparisons with a difference that are analyzed at a time.
_CLOSER = 8
_REFERENCES = Path(__file__).with_name("train_reference.json")


class Replica(NamedTuple):
    """The state and the result of one rank, for samples that all ranks compute.

    The integers are digests: of the samples, of the parameters, and of loss and gradient. The
    floats allow a comparison within a tolerance: the gradient's length, and its sum under fixed
    signs. A value that is not compared is 0.
    """

    samples: int
    parameters: int
    gradient: int
    length: float = 0.0
    sum: float = 0.0


class Accused(NamedTuple):
    """A problem: its cause, the ranks that it names (possibly none), and the observation."""

    cause: str
    ranks: tuple[int, ...]
    seen: str


class Digests:
    """Compute digests of tensors on their device, at the speed of its memory.

    A digest is the sum of the elements' bits times odd numbers, modulo 2^64. It does not depend on
    the order of the additions, and it differs if a single element differs.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        weights = torch.arange(1, _CHUNK + 1, dtype=torch.int64, device=device) * _STEP
        self.weights = weights | 1
        self.signs = ((weights >> 40) & 1).to(torch.float32) * 2 - 1

    def digest(self, tensors: Iterable[Any]) -> Any:
        """Return the digest of all the tensors, as one int64 in a tensor on their device."""
        total = self.torch.zeros((), dtype=self.torch.int64, device=self.weights.device)
        for flat in self._joined(tensors):
            size = flat.element_size()
            # Eight bytes at a time if they are aligned; the remaining elements one by one.
            cut = 0 if flat.data_ptr() % 8 else len(flat) // (8 // size) * (8 // size)
            for part, width in ((flat[:cut], 8), (flat[cut:], size)):
                words = part.view(getattr(self.torch, _BITS[width]))
                for chunk in words.split(_CHUNK) if len(words) else ():
                    total = total * _PRIME + (chunk * self.weights[: len(chunk)]).sum()
        return total

    def _joined(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """Yield the tensors flattened; join small ones of one type, as each call has a cost."""
        held: list[Any] = []
        for tensor in tensors:
            flat = tensor.detach().reshape(-1)
            alike = held and flat.dtype == held[0].dtype
            if held and not (alike and sum(map(len, held)) + len(flat) <= _CHUNK):
                yield self.torch.cat(held)
                held = []
            held.append(flat)
        if held:
            yield held[0] if len(held) == 1 else self.torch.cat(held)

    def measure(self, tensors: Iterable[Any]) -> Any:
        """Return length and signed sum of all elements, as two float64 on their device."""
        found = self.torch.zeros(2, dtype=self.torch.float64, device=self.weights.device)
        for tensor in tensors:
            for chunk in tensor.detach().reshape(-1).split(_CHUNK):
                values = chunk.to(self.torch.float64)
                found[0] += (values * values).sum()
                found[1] += (values * self.signs[: len(chunk)]).sum()
        found[0].sqrt_()
        return found


def odd_ones(digests: Sequence[object]) -> list[int] | None:
    """Return the ranks whose digest differs from the majority's; None without a majority."""
    digest, count = Counter(digests).most_common(1)[0]
    if 2 * count <= len(digests):
        return None
    return [rank for rank, other in enumerate(digests) if other != digest]


def accuse(
    replicas: Sequence[Replica], devices: Sequence[str], repeats: Sequence[bool], tolerance: float
) -> list[Accused]:
    """Return problems that name the ranks that differ from the others.

    `devices` names the device of each rank. `repeats` is True for a rank that got the same bits
    when it computed the same samples twice. A rank with other samples or other parameters is named
    for that, and its gradient is not compared.
    """
    found: list[Accused] = []
    left = list(range(len(replicas)))
    for cause, what in (("wrong-data", "samples"), ("parameters-differ", "parameters")):
        odd = odd_ones([getattr(replicas[rank], what) for rank in left])
        if odd is None or len(odd) > NAMED:
            kinds = len({getattr(replicas[rank], what) for rank in left})
            seen = f"{kinds} different sets of {what} on {len(left)} ranks, none can be blamed"
            return [*found, Accused(cause, (), seen)]
        if odd:
            names = tuple(left[place] for place in odd)
            found.append(Accused(cause, names, f"has other {what} than most"))
            left = [rank for rank in left if rank not in names]
    return found + _gradients(replicas, left, devices, repeats, tolerance)


def _gradients(
    replicas: Sequence[Replica],
    left: Sequence[int],
    devices: Sequence[str],
    repeats: Sequence[bool],
    tolerance: float,
) -> list[Accused]:
    cause = "gradients-differ"
    steady = [rank for rank in left if repeats[rank]]
    fickle = tuple(rank for rank in left if not repeats[rank])
    found: list[Accused] = []
    # If most ranks do not repeat their results, kernels add in any order. A few are broken.
    if fickle and 2 * len(fickle) < len(left):
        found.append(Accused(cause, fickle[:NAMED], "got two results for the same samples"))
    for device in dict.fromkeys(devices[rank] for rank in steady):
        equal = [rank for rank in steady if devices[rank] == device]
        if 2 * len(steady) <= len(left):
            break
        odd = odd_ones([replicas[rank].gradient for rank in equal])
        if odd is None or len(odd) > NAMED:
            kinds = len({replicas[rank].gradient for rank in equal})
            seen = f"{kinds} different gradients of the same samples on {len(equal)} equal devices"
            found.append(Accused(cause, (), f"{seen} ({device}), none can be blamed"))
        elif odd:
            names = tuple(equal[place] for place in odd)
            found.append(
                Accused(cause, names, "got another gradient of the same samples than most")
            )
    return found or _far(replicas, left, tolerance)


def _far(replicas: Sequence[Replica], left: Sequence[int], tolerance: float) -> list[Accused]:
    """Return a problem if a gradient is further from the median one than rounding explains."""
    middles = []
    for measure in ("length", "sum"):
        ordered = sorted(getattr(replicas[rank], measure) for rank in left)
        middles.append(ordered[len(ordered) // 2])
    length, total = middles
    limit = tolerance * length
    far = tuple(
        rank
        for rank in left
        # `not <=` also catches NaN.
        if not (abs(replicas[rank].length - length) <= limit)
        or not (abs(replicas[rank].sum - total) <= limit)
    )
    if not far:
        return []
    seen = f"got a gradient more than {tolerance:g} of its length away from the others'"
    many = 2 * len(far) >= len(left) or len(far) > NAMED
    if many:
        seen = f"{len(far)} of {len(left)} ranks {seen}, none can be blamed"
    return [Accused("gradients-differ", () if many else far, seen)]


def went_wrong(when: Sequence[int]) -> Accused | None:
    """Return a problem that names the ranks whose numbers were the first not to be finite, or None.

    `when` has `first_bad` of every rank: 2 * step for a loss, 1 more for a gradient, -1 for never.
    """
    bad = [at for at in when if at >= 0]
    if not bad:
        return None
    earliest = min(bad)
    what = "gradient" if earliest % 2 else "loss"
    seen = f"{what} not finite at step {earliest // 2}"
    guilty = tuple(rank for rank, at in enumerate(when) if at == earliest)
    if len(guilty) > NAMED or len(guilty) == len(when) > 1:
        return Accused("not-finite", (), f"{seen}, on {len(guilty)} of {len(when)} ranks at once")
    return Accused("not-finite", guilty, f"{seen}, before any other rank")


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and of the last losses."""
    return sum(losses[:ENDS]) / ENDS, sum(losses[-ENDS:]) / ENDS


def deviation(curve: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest distance of two curves, as a share of the reference's first loss.

    The longer curve is cut to the length of the other. The result is NaN if a distance is NaN.
    """
    distances = [abs(a - b) for a, b in zip(curve, reference, strict=False)]
    return max(distances, key=lambda distance: (distance != distance, distance)) / reference[0]


def settings(options: Any, batch: int) -> dict[str, Any]:
    """Return the settings for which a reference curve is valid."""
    kept = ("model", "dataset", "norm", "seed", "rate", "width", "image")
    return {"batch": batch, **{name: getattr(options, name) for name in kept}}


def reference_of(wanted: dict[str, Any], precision: str) -> tuple[list[float], float] | None:
    """Return the curve from train_reference.json and its tolerance; None without a match."""
    for curve in json.loads(_REFERENCES.read_text(encoding="utf-8"))["curves"]:
        if curve["settings"] == wanted and precision in curve["tolerance"]:
            return curve["losses"], curve["tolerance"][precision]
    return None


def device_of(torch: Any, device: str) -> str:
    """Return a name of the device; devices with equal names should compute equal bits."""
    if device != "cpu":
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {torch.__version__}"
    level = getattr(torch.backends.cpu, "get_cpu_capability", str)()
    about = Path("/proc/cpuinfo")
    lines = about.read_text(errors="replace").splitlines() if about.exists() else []
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return f"{name.strip()} {level}, {torch.__version__}"


def _plain_attention() -> AbstractContextManager[Any]:
    """Return a context with attention by matrix products, which is deterministic.

    Gradients of the fused kernels add in any order. The matrix products keep all attention weights;
    `Gpt.fitting` returns the number of samples for which there is memory.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

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
            with nullcontext() if training.device == "cpu" else _plain_attention():
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
