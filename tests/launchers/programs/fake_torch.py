"""A fake of torch on a machine with GPUs: its versions and the properties of the GPUs.

It computes nothing. It tests the decisions of our programs, never torch itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def fake_torch(
    version: str = "2.5.1",
    *,
    capability: tuple[int, int] = (9, 0),
    fp8_returns: int | None = 1,
    count: int = 8,
    first_kernel: Callable[[], float] = lambda: 1.0,
    uuid: str | None = "12ab",
    cuda: str | None = "13.2",
    init: Callable[[], None] | None = None,
) -> Any:
    """Make a module like torch; `fp8_returns` are the results of its product of fp8.

    `first_kernel` is called when a GPU is first used. With `init`, CUDA is not available, and
    `init` is called to start it. `cuda` is the version of CUDA that torch was built for.
    """
    fake = SimpleNamespace(__version__=version, ones=lambda *_, device: first_kernel())
    fake.version = SimpleNamespace(cuda=cuda)
    fake.cuda = SimpleNamespace(
        is_available=lambda: init is None,
        init=init,
        device_count=lambda: count,
        set_device=lambda _: None,
        get_device_name=lambda _: "NVIDIA H100 80GB HBM3",
        get_device_capability=lambda _: capability,
        get_device_properties=lambda _: SimpleNamespace(**({"uuid": uuid} if uuid else {})),
    )
    if fp8_returns is not None:
        schema = SimpleNamespace(returns=[object()] * fp8_returns)
        product = SimpleNamespace(default=SimpleNamespace(_schema=schema))
        fake.float8_e4m3fn = fake._scaled_mm = object()
        fake.ops = SimpleNamespace(aten=SimpleNamespace(_scaled_mm=product))
    return fake
