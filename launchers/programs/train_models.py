"""Build the models of train.py in plain torch: MLP, ResNet-18, ResNet-50, GPT-style transformer.

Group and layer norms normalize each sample by itself, so results do not depend on how a batch is
split. SyncBatchNorm takes its statistics over all ranks, and needs CUDA.

The memory of a transformer is computed, not measured. Without FSDP, in bytes:

    18 * parameters                       float32 weight, gradient, momentum (4 each), bfloat16 copy
                                          under autocast (2), own gradient while ranks compare (4)
    34 * sequence * width * layers * micro        activations (Korthikanti et al. 2022,
                                          arXiv:2205.05198, table 2, attention not kept)
    10 * sequence * vocabulary * micro    outputs: bfloat16, and float32 with their gradient

The sizes are chosen to fill 70 to 90 % of the GPU; NCCL, CUDA and fragmentation need the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rank_io import Unusable


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """The dimensions of a transformer, which takes `micro` samples at a time."""

    layers: int
    width: int
    heads: int
    sequence: int = 1024
    vocabulary: int = 32768
    micro: int

    @property
    def parameters(self) -> int:
        """Return the number of weights and biases; embedding and output share one matrix."""
        block = 12 * self.width**2 + 13 * self.width
        embedded = (self.vocabulary + self.sequence) * self.width
        return self.layers * block + embedded + 2 * self.width

    @property
    def gigabytes(self) -> float:
        """Return the memory in 10^9 bytes, by the formula of the module."""
        tokens = self.sequence * self.micro
        activations = 34 * tokens * self.width * self.layers
        outputs = 10 * tokens * self.vocabulary
        return (18 * self.parameters + activations + outputs) / 1e9

    def fitting(self, micro: int) -> int:
        """Return how many samples fit, at least 1, in the memory of `micro` if attention is kept.

        Attention that is kept, in float32, adds these bytes for each token and layer to the
        34 * width of the others: 5 * heads * sequence for its weights and a mask (table 2, as
        above), and 12 * width for its three inputs.
        """
        without = 34 * self.width
        attention = 12 * self.width + 5 * self.heads * self.sequence
        return max(1, micro * without // (without + attention))


#: A model that loads a GPU: wide layers, because large matrices are fast everywhere. `load_gpu`
#: chooses the number of layers, at most MAX_LAYERS, for a share of the memory.
FIT = "gpt-fit"
LOADING = Gpt(layers=1, width=4096, heads=32, sequence=2048, micro=4)
MAX_LAYERS, LOADED_SHARE = 16, 0.65

#: The number in a name is the memory of the GPU that the model fills, in 10^9 bytes. The dimensions
#: of FIT are those for a CPU, until `load_gpu` replaces them.
GPT = {
    "gpt-tiny": Gpt(layers=2, width=64, heads=4, sequence=32, vocabulary=256, micro=16),
    "gpt-16": Gpt(layers=18, width=1536, heads=12, micro=2),
    "gpt-40": Gpt(layers=24, width=2048, heads=16, micro=4),
    "gpt-80": Gpt(layers=32, width=2560, heads=20, micro=4),
    "gpt-141": Gpt(layers=32, width=4096, heads=32, micro=1),
    "gpt-192": Gpt(layers=32, width=4096, heads=32, micro=8),
    FIT: Gpt(layers=2, width=64, heads=4, sequence=32, vocabulary=256, micro=16),
}
#: True for deep blocks, then blocks per stage (He et al. 2015, arXiv:1512.03385, table 1).
RESNETS = {"resnet18": (False, (2, 2, 2, 2)), "resnet50": (True, (3, 4, 6, 3))}
#: Models with more parameters are built on the device, with its own random numbers.
_MAX_PARAMETERS_ON_CPU = 10**8


def load_gpu(gigabytes: float) -> None:
    """Choose the dimensions of FIT for a GPU with this much memory in total.

    All GPUs of a kind get the same ones. Raises Unusable if not even a small one fits.
    """
    room = LOADED_SHARE * gigabytes
    for micro in (LOADING.micro, 2, 1):
        models = [replace(LOADING, layers=n, micro=micro) for n in range(1, MAX_LAYERS + 1)]
        if fitting := [gpt for gpt in models if gpt.gigabytes <= room]:
            GPT[FIT] = fitting[-1]
            return
    raise Unusable(f"{FIT} needs a GPU with more memory than {gigabytes:.0f} GB")


class Block(nn.Module):  # type: ignore[misc]
    """A residual block: two 3x3 convolutions; if deep, 1x1, 3x3, 1x1 to four times the channels."""

    def __init__(self, inputs: int, width: int, stride: int, norm: str, *, deep: bool) -> None:
        super().__init__()
        outputs = 4 * width if deep else width
        kernels = ((1, 1), (3, stride), (1, 1)) if deep else ((3, stride), (3, 1))
        widths = (inputs, width, width, outputs) if deep else (inputs, width, outputs)
        steps: list[nn.Module] = []
        for (side, by), before, after in zip(kernels, widths, widths[1:], strict=False):
            steps += [_convolution(before, after, side, by), _norm(norm, after), nn.ReLU()]
        # A block that starts as the identity is stable (Goyal et al. 2017, arXiv:1706.02677, 5.1).
        nn.init.zeros_(steps[-2].weight)
        self.steps = nn.Sequential(*steps[:-1])
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(norm, outputs))
        )

    def forward(self, images: Any) -> Any:
        """Return the sum of the steps' output and the shortcut's, rectified."""
        return functional.relu(self.steps(images) + self.shortcut(images))


def _convolution(inputs: int, outputs: int, side: int, stride: int) -> Any:
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)


def _norm(kind: str, channels: int) -> Any:
    return nn.SyncBatchNorm(channels) if kind == "sync" else nn.GroupNorm(32, channels)


def resnet(name: str, channels: int, classes: int, norm: str) -> Any:
    """Return ResNet-18 or -50; a deep block has its stride in the 3x3 convolution."""
    deep, stages = RESNETS[name]
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
        _norm(norm, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    inputs = 64
    for stage, count in enumerate(stages):
        width = 64 << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(Block(inputs, width, stride, norm, deep=deep))
            inputs = 4 * width if deep else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention."""

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.heads = gpt.heads
        self.query_key_value = nn.Linear(gpt.width, 3 * gpt.width)
        self.out = nn.Linear(gpt.width, gpt.width)

    def forward(self, text: Any) -> Any:
        """Return the attention's output for [samples, tokens, width], in the same shape."""
        samples, tokens, width = text.shape
        shape = (samples, tokens, 3, self.heads, width // self.heads)
        q, k, v = self.query_key_value(text).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))


class Layer(nn.Module):  # type: ignore[misc]
    """Attention, then a two-layer network of four times the width, with a norm before each."""

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(gpt.width), Attention(gpt))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(gpt.width),
            nn.Linear(gpt.width, 4 * gpt.width),
            nn.GELU(),
            nn.Linear(4 * gpt.width, gpt.width),
        )

    def forward(self, text: Any) -> Any:
        """Return the layer's output for [samples, tokens, width], in the same shape."""
        text = text + self.attention(text)
        return text + self.feed_forward(text)


class Transformer(nn.Module):  # type: ignore[misc]
    """A transformer that predicts the next token."""

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.tokens = nn.Embedding(gpt.vocabulary, gpt.width)
        self.positions = nn.Parameter(torch.zeros(gpt.sequence, gpt.width))
        self.layers = nn.ModuleList(Layer(gpt) for _ in range(gpt.layers))
        self.norm = nn.LayerNorm(gpt.width)
        self.out = nn.Linear(gpt.width, gpt.vocabulary, bias=False)
        self.out.weight = self.tokens.weight
        for name, weight in self.named_parameters():
            if weight.dim() > 1 and name != "positions":
                # GPT-2: weights at the end of a residual branch shrink with the number of branches.
                ends_branch = name.endswith(("out.weight", "feed_forward.3.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * gpt.layers) ** 0.5 if ends_branch else 1))

    def forward(self, text: Any) -> Any:
        """Return the logits [samples, tokens, vocabulary] of tokens [samples, tokens]."""
        hidden = self.tokens(text) + self.positions[: text.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return self.out(self.norm(hidden))


def build(name: str, shape: tuple[int, ...], classes: int, *, norm: str, width: int) -> Any:
    """Return the model `name` for samples of `shape`, with weights from torch's generator.

    Raises Unusable if the model cannot take such samples.
    """
    if (name in GPT) != (len(shape) == 1 and classes == 0):
        raise Unusable(f"{name} cannot learn such data: transformers read text, the others do not")
    if name in GPT:
        return Transformer(GPT[name])
    if name in RESNETS:
        return resnet(name, shape[0], classes, norm)
    features = 1
    for side in shape:
        features *= side
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def build_device(name: str, device: str) -> str:
    """Return the device to build a model on: the CPU, for equal weights everywhere, if it fits."""
    return device if name in GPT and GPT[name].parameters > _MAX_PARAMETERS_ON_CPU else "cpu"


def flops_of(model: Any, sample: Any) -> float:
    """Return the floating-point operations per sample of a step, forward and backward.

    Counts 2 for each multiply-add of linear layers, convolutions and attention (2 * 2 * tokens^2 *
    width, causality not deducted), and backward as twice forward: 6 N + 12 L H Q T per token, as in
    Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B). Norms and sums are not counted.
    """
    total = 0

    def count(layer: Any, _: Any, output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += 2 * output.numel() * layer.in_features
        elif isinstance(layer, nn.Conv2d):
            total += 2 * output.numel() * layer.weight[0].numel()
        elif isinstance(layer, Attention):
            total += 4 * output.numel() * output.shape[1]

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    was_training = model.training
    with torch.no_grad():
        model.eval()(sample)
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    return 3.0 * total / len(sample)
