"""Parse the command line of train.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch_io

MODELS = (
    "mlp", "resnet18", "resnet50",
    "gpt-tiny", "gpt-16", "gpt-40", "gpt-80", "gpt-141", "gpt-192", "gpt-fit",
)  # fmt: skip
DATASETS = ("synthetic", "fashion-mnist", "cifar-10", "cifar-100", "image-folder")
PRECISIONS = ("fp32", "autocast", "bf16")
#: With fewer, the loss of a healthy run may not fall by half. With these, it fell below 0.12 of
#: the first loss for each of the seeds 1 to 5 (mlp, default rate and width).
LEAST_STEPS, LEAST_BATCH = 20, 16
#: Learning rates at which the loss falls smoothly from the start. Not tested: transformers above
#: gpt-tiny. That of gpt-fit follows from its width: train.py.
RATES = {"mlp": 0.05, "resnet18": 0.02, "resnet50": 0.02, "gpt-tiny": 0.05, "gpt-fit": 0.0}
RATE = 0.01


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description="A seeded data-parallel training run (gloo on CPU, NCCL on CUDA). "
        "torchrun --nproc-per-node 4 train.py",
    )

    def add(name: str, default: Any, text: str, **more: Any) -> None:
        kind: dict[str, Any] = {} if "choices" in more else {"type": type(default)}
        shown = f" (default {default})" if default != "" else ""
        parser.add_argument(name, default=default, help=text + shown, **kind, **more)

    add("--model", "mlp", "gpt-N fills a GPU of N GB, gpt-fit loads any", choices=MODELS)
    add("--precision", "fp32", "autocast: bf16 except weights", choices=PRECISIONS)
    add(
        "--parallel",
        "auto",
        "flat: one all-reduce of all gradients; auto: ddp on CUDA, flat on CPU",
        choices=("auto", "ddp", "fsdp", "flat"),
    )
    add("--norm", "group", "norm layers of ResNets; sync: SyncBatchNorm", choices=("group", "sync"))
    add("--steps", 60, "optimizer steps")
    add("--minutes", 0.0, "run for this long instead of --steps")
    add("--batch", 64, "samples per step, over all ranks")
    add("--micro", 0, "samples per forward pass; 0: the default of the model")
    add("--ratio", 0.5, "maximum of last loss over first")
    add("--by", 0, "step by which the loss must have fallen to --ratio; 0: the last")
    add("--every", 100, "steps between comparisons of the ranks")
    add("--report", 300.0, "seconds between intermediate reports")
    add("--seed", 1, "seed of data and model")
    add("--width", 256, "width of an mlp's layers")
    add("--image", 64, "pixels along a side of images, synthetic or of a folder")
    add("--rate", 0.0, "learning rate; 0: the default of the model")
    add("--dataset", "synthetic", "data set to learn", choices=DATASETS)
    add("--path", "", "folder of the data set")
    parser.add_argument("--download", action="store_true", help="fetch it with torchvision")
    add("--checkpoint", "", "folder for a checkpoint, written at the end and read back")
    add("--peak", 0.0, "TFLOP/s of one device at this precision, for `mfu`; 0: unknown")
    torch_io.add_options(parser)
    options = parser.parse_args(arguments)
    if options.steps < LEAST_STEPS or options.batch < LEAST_BATCH:
        parser.error(
            f"--steps must be at least {LEAST_STEPS} and --batch at least {LEAST_BATCH}: "
            "with fewer, the loss may not fall even on healthy hardware"
        )
    for name in ("width", "timeout", "every", "report", "image"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be above 0")
    for name in ("rate", "micro", "minutes", "peak", "by"):
        if not getattr(options, name) >= 0:
            parser.error(f"--{name} must not be below 0")
    if not 0 < options.ratio < 1:
        parser.error("--ratio must be above 0 and below 1, so that the loss has to fall")
    if not options.minutes and options.by > options.steps:
        parser.error(f"--by {options.by} is after the last of {options.steps} steps")
    if (options.dataset == "synthetic") == bool(options.path):
        parser.error("--path and a --dataset other than synthetic must be given together")
    if options.download and options.dataset in ("synthetic", "image-folder"):
        parser.error("--download fetches fashion-mnist, cifar-10 or cifar-100")
    options.rate = options.rate or RATES.get(options.model, RATE)
    return options
