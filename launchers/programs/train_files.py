"""Read data sets from files: FashionMNIST, CIFAR-10, CIFAR-100, and folders of images.

Nothing in a file is executed: the pickles of CIFAR's Python version are read with stand-ins for
everything that they name. A damaged file raises Unusable, with the folder or file in its message.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from rank_io import Unusable, one_line

#: Number of labels before the 3,072 bytes of an image; the last label is used.
_LABELS = {"cifar-10": 1, "cifar-100": 2}
_IMAGE = 3 * 32 * 32
#: Folders that may contain the files, below the folder that the user gives.
_FOLDERS = {
    "fashion-mnist": ("", "FashionMNIST/raw"),
    "cifar-10": ("", "cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar-100": ("", "cifar-100-binary", "cifar-100-python"),
}
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_FILES: dict[str, tuple[tuple[str, ...], ...]] = {
    "fashion-mnist": (("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),),
    "cifar-10": (tuple(f"{name}.bin" for name in _BATCHES), _BATCHES),
    "cifar-100": (("train.bin",), ("train",)),
}
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}
#: At most this many bytes of a file are read; every file of these data sets is smaller.
_MAX_BYTES = 1 << 30


def _paths(dataset: str, folder: str) -> list[Path]:
    """Return the files of the first complete form of a data set; empty if there is none."""
    for subfolder in _FOLDERS[dataset]:
        for names in _FILES[dataset]:
            paths = [Path(folder, subfolder, name) for name in names]
            if all(path.is_file() for path in paths):
                return paths
    return []


def is_present(dataset: str, folder: str) -> bool:
    """Return True if `folder` contains the data set."""
    return bool(_paths(dataset, folder))


def read(dataset: str, folder: str) -> tuple[Any, Any]:
    """Return pixels, uint8 [samples, channels, height, width], and labels, int64 [samples].

    Raises Unusable if the files are missing or damaged.
    """
    paths = _paths(dataset, folder)
    if not paths:
        names = " or ".join(", ".join(files) for files in _FILES[dataset])
        raise Unusable(f"no {dataset} in {folder}: there should be {names}; or say --download")
    try:
        if dataset == "fashion-mnist":
            pixels, labels = (_idx(path) for path in paths)
            pixels = pixels.unsqueeze(1)
        else:
            reader = _binary if paths[0].suffix == ".bin" else _pickled
            parts = [reader(path, _LABELS[dataset]) for path in paths]
            pixels, labels = (torch.cat(batches) for batches in zip(*parts, strict=True))
    # A damaged file can raise anything.
    except Exception as error:
        raise Unusable(f"{dataset} in {paths[0].parent} is damaged: {one_line(error)}") from None
    if pixels.dim() != 4 or len(pixels) != len(labels) or not len(labels):
        shape = tuple(pixels.shape)
        raise Unusable(f"{dataset} in {folder}: {shape} pixels do not fit {len(labels)} labels")
    return pixels, labels.long()


def _idx(path: Path) -> Any:
    """Return the tensor of a gzipped idx file of bytes: 0, 0, 8, dimensions, lengths, data.

    Each length has 4 bytes, big-endian. Raises ValueError or struct.error for another file.

    Format: http://yann.lecun.com/exdb/mnist/, "the IDX file format".
    """
    with gzip.open(path) as file:
        data = file.read(_MAX_BYTES)
    zero, kind, dimensions = struct.unpack_from(">HBB", data)
    if zero or kind != 8 or not dimensions:
        raise ValueError(f"{path.name} is not an idx file of bytes")
    sides = struct.unpack_from(f">{dimensions}I", data, 4)
    values = torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8)
    return values.view(*sides)


def _binary(path: Path, labels: int) -> tuple[Any, Any]:
    """Return pixels and labels of CIFAR's binary version: labels and 3,072 bytes for each image.

    Format: https://www.cs.toronto.edu/~kriz/cifar.html, "binary version".
    """
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, labels + _IMAGE)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


class _Array:
    """A stand-in for a NumPy array that keeps its bytes."""

    data = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.data = state[-1]


class _Ignored:
    """A stand-in for the other objects that an array is pickled with."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def _array(*_: Any) -> _Array:
    return _Array()


def _latin(text: str, *_: Any) -> bytes:
    return text.encode("latin-1")


class _Reader(pickle.Unpickler):
    """Read pickles of dictionaries, lists, texts and NumPy arrays without running their code."""

    _KNOWN: dict[str, Callable[..., Any]] = {
        "_reconstruct": _array,
        "ndarray": _Ignored,
        "dtype": _Ignored,
        "encode": _latin,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name. Raises UnpicklingError for an unknown name."""
        if name not in self._KNOWN or module.partition(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self._KNOWN[name]


def _pickled(path: Path, _: int) -> tuple[Any, Any]:
    """Return pixels and labels of a pickled dictionary: `data`, and `labels` or `fine_labels`."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    table = _Reader(io.BytesIO(data), encoding="bytes").load()
    labels = table.get(b"labels", table.get(b"fine_labels"))
    pixels = torch.frombuffer(bytearray(table[b"data"].data), dtype=torch.uint8)
    return pixels.view(-1, 3, 32, 32), torch.tensor(labels)


def image_files(folder: str) -> list[tuple[str, int]]:
    """Return the image files of FOLDER/CLASS/ with the number of their class, sorted by name.

    Raises Unusable if there are none, or if Pillow is missing.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise Unusable("image-folder needs Pillow on every host: pip install pillow") from None
    files = list(_image_files(Path(folder)))
    if not files:
        raise Unusable(f"no images in {folder}: there should be a folder for each class")
    return files


def _image_files(folder: Path) -> Iterator[tuple[str, int]]:
    classes = sorted(path for path in folder.glob("*") if path.is_dir())
    for number, path in enumerate(classes):
        for file in sorted(path.rglob("*")):
            if file.suffix.lower() in _SUFFIXES:
                yield str(file), number


def read_image(path: str, side: int) -> Any:
    """Return the middle square of an image as uint8 [3, side, side].

    Raises Unusable for a file that is not a readable image.
    """
    import PIL.Image
    import PIL.ImageOps

    try:
        with PIL.Image.open(path) as image:
            square = PIL.ImageOps.fit(image.convert("RGB"), (side, side))
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise Unusable(f"{path} is not a readable image: {one_line(error)}") from None
    pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
    return pixels.view(side, side, 3).permute(2, 0, 1)


def download(dataset: str, folder: str) -> None:
    """Download a data set into `folder` with torchvision."""
    try:
        from torchvision import datasets
    except ImportError:
        raise Unusable("--download needs torchvision: pip install torchvision") from None
    names = {"fashion-mnist": "FashionMNIST", "cifar-10": "CIFAR10", "cifar-100": "CIFAR100"}
    getattr(datasets, names[dataset])(folder, download=True)
