"""Make the samples for train.py: seeded synthetic data, or a data set of the user.

Sample n of a run is the same on every rank and for every number of ranks. Synthetic data need no
files and can be learned: points, images and text follow a seeded rule with seeded noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

import rank_io
import torch_io
import train_files
from train_models import GPT, RESNETS

FEATURES, CLASSES, POOL = 64, 10, 4096
#: Text: number of symbols, number of sequences, and probability that a symbol is random.
_SYMBOLS, _SEQUENCES, _NOISE = 16, 512, 0.1
#: Number of noise patterns for images.
_NOISES = 61


class Samples:
    """Samples 0, 1, 2 ... on `device`; they repeat after `len(labels)`.

    `shape` is the shape of one sample, `classes` the number of classes (0 for text).
    """

    def __init__(self, inputs: Any, labels: Any, classes: int, device: str) -> None:
        self.inputs, self.labels = inputs.to(device), labels.to(device)
        self.shape, self.classes = tuple(inputs.shape[1:]), classes
        self.device = device

    def where(self, first: int, count: int) -> Any:
        """Return the stored indices of samples `first` to `first + count`."""
        index = torch.arange(first, first + count, device=self.labels.device)
        return index % len(self.labels)

    def take(self, first: int, count: int) -> tuple[Any, Any]:
        """Return `count` samples from `first` on, and their labels."""
        index = self.where(first, count)
        return self.inputs[index], self.labels[index]


class Images(Samples):
    """Synthetic images: the pattern of their class plus one of a few noise patterns."""

    def __init__(self, side: int, seeded: torch.Generator, device: str) -> None:
        coarse = torch.randn(CLASSES, 3, 8, 8, generator=seeded)
        labels = torch.randint(CLASSES, (POOL,), generator=seeded)
        super().__init__(
            torch.nn.functional.interpolate(coarse, size=side), labels, CLASSES, device
        )
        self.noises = torch.randn(_NOISES, 3, side, side, generator=seeded).to(device)

    def take(self, first: int, count: int) -> tuple[Any, Any]:
        """Return `count` images [count, 3, side, side] from `first` on, and their classes."""
        index = self.where(first, count)
        labels = self.labels[index]
        return self.inputs[labels] + self.noises[index % _NOISES], labels


class Stored(Samples):
    """A data set from files, in a seeded order; bytes are scaled to numbers around 0."""

    def __init__(self, pixels: Any, labels: Any, seeded: torch.Generator, device: str) -> None:
        order = torch.randperm(len(labels), generator=seeded)
        super().__init__(pixels[order], labels[order], int(labels.max()) + 1, device)

    def take(self, first: int, count: int) -> tuple[Any, Any]:
        """Return `count` images [count, channels, height, width] from `first` on, with classes."""
        pixels, labels = super().take(first, count)
        return (pixels.float() / 255 - 0.5) / 0.25, labels


class Folder(Samples):
    """Image files, each read when it is needed."""

    def __init__(
        self, files: Sequence[tuple[str, int]], side: int, seeded: torch.Generator, device: str
    ) -> None:
        order = torch.randperm(len(files), generator=seeded).tolist()
        self.files, self.side = [files[at][0] for at in order], side
        labels = torch.tensor([files[at][1] for at in order])
        super().__init__(torch.empty(0, 3, side, side), labels, int(labels.max()) + 1, "cpu")
        self.device = device

    def take(self, first: int, count: int) -> tuple[Any, Any]:
        """Return `count` images [count, 3, side, side] from `first` on, and their classes."""
        index = self.where(first, count)
        pixels = torch.stack(
            [train_files.read_image(self.files[at], self.side) for at in index.tolist()]
        )
        wide = (pixels.to(self.device).float() / 255 - 0.5) / 0.25
        return wide, self.labels[index].to(self.device)


def points(count: int, seeded: torch.Generator, device: str) -> Samples:
    """Return points [count, 64] around the centers of ten classes."""
    centres = torch.randn(CLASSES, FEATURES, generator=seeded)
    labels = torch.randint(CLASSES, (count,), generator=seeded)
    noise = torch.randn(count, FEATURES, generator=seeded)
    return Samples(centres[labels] + noise, labels, CLASSES, device)


def text(tokens: int, seeded: torch.Generator, device: str) -> Samples:
    """Return sequences [512, tokens] and their next tokens, which mostly follow a fixed rule."""
    after = torch.randperm(_SYMBOLS, generator=seeded)
    written = torch.randint(_SYMBOLS, (_SEQUENCES, tokens + 1), generator=seeded)
    noisy = torch.rand(_SEQUENCES, tokens + 1, generator=seeded) < _NOISE
    for place in range(tokens):
        follows = after[written[:, place]]
        written[:, place + 1] = torch.where(noisy[:, place + 1], written[:, place + 1], follows)
    return Samples(written[:, :-1], written[:, 1:], 0, device)


def fetch(options: argparse.Namespace, me: rank_io.Identity, progress: rank_io.Progress) -> None:
    """Download the data set on rank 0, and then on one rank of each host that lacks it.

    The other ranks wait without a timeout, because the download takes as long as the network does.
    """
    waiting = torch_io.patient()
    for mine in (me.rank == 0, me.local_rank == 0):
        progress.enter("download")
        if mine and not train_files.is_present(options.dataset, options.path):
            progress.work(options.timeout)
            train_files.download(options.dataset, options.path)
        progress.enter("downloaded")
        torch_io.wait_for_all(waiting)


def load(options: argparse.Namespace, batch: int, device: str) -> Samples:
    """Return the samples that `options` request. Raises Unusable if the files do not fit."""
    seeded = torch.Generator().manual_seed(options.seed)
    if options.dataset == "synthetic":
        if options.model in GPT:
            return text(GPT[options.model].sequence, seeded, device)
        if options.model in RESNETS:
            return Images(options.image, seeded, device)
        return points(max(POOL, batch), seeded, device)
    if options.dataset == "image-folder":
        return Folder(train_files.image_files(options.path), options.image, seeded, device)
    pixels, labels = train_files.read(options.dataset, options.path)
    return Stored(pixels, labels, seeded, device)
