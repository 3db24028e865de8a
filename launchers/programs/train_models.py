"""The models of train.py, in plain torch: MLP, ResNet-18, ResNet-50, GPT-style transformer.

Group and layer norms are of one sample each, so results do not depend on how a batch is split;
SyncBatchNorm takes its statistics over all ranks instead, and needs CUDA.

Memory of a transformer is computed, not measured. Without FSDP, in bytes:

    18 * parameters                       float32 weight, gradient, momentum (4 each), bfloat16 copy
                                          under autocast (2), own gradient while ranks compare (4)
    34 * sequence * width * layers * micro        activations (Korthikanti et al. 2022,
                                          arXiv:2205.05198, table 2, attention not kept)
    10 * sequence * vocabulary * micro    outputs: bfloat16, and float32 with their gradient

The sizes are such that this is 70 to 90 % of the GPU: the rest is for NCCL, CUDA and fragments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rank_io import Unusable


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """Dimensions of a transformer; `micro` samples go through it at once."""

    layers: int
    width: int
    heads: int
    sequence: int = 1024
    vocabulary: int = 32768
    micro: int

    @property
    def parameters(self) -> int:
        """Weights and biases, the embedding counted once (the output shares it)."""
        block = 12 * self.width**2 + 13 * self.width
        embedded = (self.vocabulary + self.sequence) * self.width
        return self.layers * block + embedded + 2 * self.width

    @property
    def gigabytes(self) -> float:
        """Memory in 10^9 bytes, by the formula above."""
        tokens = self.sequence * self.micro
        kept = 34 * tokens * self.width * self.layers + 10 * tokens * self.vocabulary
        return (18 * self.parameters + kept) / 1e9

    def fitting(self, micro: int) -> int:
        """How many samples fit where `micro` do, at least 1, if attention is kept, in float32.

        In bytes a token and layer: 5 * heads * sequence for it (table 2, as above: its weights and
        a mask), and 12 * width for its three inputs, on top of the 34 * width without it.
        """
        flash = 34 * self.width
        return max(1, micro * flash // (flash + 12 * self.width + 5 * self.heads * self.sequence))


#: By the memory, in 10^9 bytes, of the GPU that each is for.
GPT = {
    "gpt-tiny": Gpt(layers=2, width=64, heads=4, sequence=32, vocabulary=256, micro=16),
    "gpt-16": Gpt(layers=18, width=1536, heads=12, micro=2),
    "gpt-40": Gpt(layers=24, width=2048, heads=16, micro=4),
    "gpt-80": Gpt(layers=32, width=2560, heads=20, micro=4),
    "gpt-141": Gpt(layers=32, width=4096, heads=32, micro=1),
    "gpt-192": Gpt(layers=32, width=4096, heads=32, micro=8),
}
#: Kind of block and blocks of each stage (He et al. 2015, arXiv:1512.03385, table 1).
RESNETS = {"resnet18": (False, (2, 2, 2, 2)), "resnet50": (True, (3, 4, 6, 3))}
MODELS = ("mlp", *RESNETS, *GPT)
#: Larger models are made on the device: their weights then are those of its random numbers.
_LARGE = 10**8


class Block(nn.Module):  # type: ignore[misc]
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 to four times the channels."""

    def __init__(self, given: int, width: int, stride: int, norm: str, *, deep: bool) -> None:
        super().__init__()
        made = 4 * width if deep else width
        sides = ((1, 1), (3, stride), (1, 1)) if deep else ((3, stride), (3, 1))
        widths = (given, width, width, made) if deep else (given, width, made)
        steps: list[nn.Module] = []
        for (side, by), before, after in zip(sides, widths, widths[1:], strict=False):
            steps += [_convolution(before, after, side, by), _norm(norm, after), nn.ReLU()]
        # Begins as the identity (Goyal et al. 2017, arXiv:1706.02677, 5.1): stable from the start.
        nn.init.zeros_(steps[-2].weight)
        self.steps = nn.Sequential(*steps[:-1])
        same = stride == 1 and given == made
        self.way = (
            nn.Identity()
            if same
            else nn.Sequential(_convolution(given, made, 1, stride), _norm(norm, made))
        )

    def forward(self, images: Any) -> Any:
        """Add what the steps make of the images to the images."""
        return functional.relu(self.steps(images) + self.way(images))


def _convolution(given: int, made: int, side: int, stride: int) -> Any:
    return nn.Conv2d(given, made, side, stride, padding=side // 2, bias=False)


def _norm(kind: str, channels: int) -> Any:
    return nn.SyncBatchNorm(channels) if kind == "sync" else nn.GroupNorm(32, channels)


def resnet(name: str, channels: int, classes: int, norm: str) -> Any:
    """ResNet-18 or -50; the stride of a deep block is in its 3x3 convolution."""
    deep, stages = RESNETS[name]
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
        _norm(norm, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    given = 64
    for stage, count in enumerate(stages):
        width = 64 << stage
        for place in range(count):
            stride = 2 if stage and not place else 1
            layers.append(Block(given, width, stride, norm, deep=deep))
            given = 4 * width if deep else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, classes))


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention."""

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.heads = gpt.heads
        self.ask = nn.Linear(gpt.width, 3 * gpt.width)
        self.out = nn.Linear(gpt.width, gpt.width)

    def forward(self, text: Any) -> Any:
        """[samples, tokens, width] to the same."""
        samples, tokens, width = text.shape
        split = self.ask(text).view(samples, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and a two-layer network of four times the width, norms before each."""

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(gpt.width), Attention(gpt))
        self.think = nn.Sequential(
            nn.LayerNorm(gpt.width),
            nn.Linear(gpt.width, 4 * gpt.width),
            nn.GELU(),
            nn.Linear(4 * gpt.width, gpt.width),
        )

    def forward(self, text: Any) -> Any:
        """[samples, tokens, width] to the same."""
        text = text + self.attend(text)
        return text + self.think(text)


class Transformer(nn.Module):  # type: ignore[misc]
    """Tokens [samples, tokens] to the logits of each next one, [samples, tokens, vocabulary]."""

    def __init__(self, gpt: Gpt) -> None:
        if not hasattr(functional, "scaled_dot_product_attention"):
            raise Unusable(f"transformers need torch 2.0 or newer, this is {torch.__version__}")
        super().__init__()
        self.tokens = nn.Embedding(gpt.vocabulary, gpt.width)
        self.places = nn.Parameter(torch.zeros(gpt.sequence, gpt.width))
        self.layers = nn.ModuleList(Layer(gpt) for _ in range(gpt.layers))
        self.norm = nn.LayerNorm(gpt.width)
        self.out = nn.Linear(gpt.width, gpt.vocabulary, bias=False)
        self.out.weight = self.tokens.weight
        for name, weight in self.named_parameters():
            if weight.dim() > 1 and name != "places":
                # Those that end a residual branch smaller by their number (GPT-2).
                last = name.endswith(("out.weight", "think.3.weight"))
                nn.init.normal_(weight, std=0.02 / ((2 * gpt.layers) ** 0.5 if last else 1))

    def forward(self, text: Any) -> Any:
        """The logits."""
        found = self.tokens(text) + self.places[: text.shape[1]]
        for layer in self.layers:
            found = layer(found)
        return self.out(self.norm(found))


def build(name: str, shape: tuple[int, ...], classes: int, *, norm: str, width: int) -> Any:
    """The model called `name` for samples of `shape`, its weights from torch's generator.

    Raises Unusable where such samples are none for it.
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


def made_on(name: str, device: str) -> str:
    """Where a model is made: on the CPU, equal for all devices, unless it is too large for that."""
    return device if name in GPT and GPT[name].parameters > _LARGE else "cpu"


def flops_of(model: Any, sample: Any) -> float:
    """Floating-point operations of a step for each of the samples, forward and backward.

    2 for each multiply-add of linear layers, convolutions and attention (2 * 2 * tokens^2 * width,
    causality not deducted), and backward twice of forward: the 6 N + 12 L H Q T a token of
    Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B). Norms and sums are not counted.
    """
    total = 0

    def count(layer: Any, _: Any, made: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += 2 * made.numel() * layer.in_features
        elif isinstance(layer, nn.Conv2d):
            total += 2 * made.numel() * layer.weight[0].numel()
        elif isinstance(layer, Attention):
            total += 4 * made.numel() * made.shape[1]

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    training = model.training
    with torch.no_grad():
        model.eval()(sample)
    model.train(training)
    for hook in hooks:
        hook.remove()
    return 3.0 * total / len(sample)
