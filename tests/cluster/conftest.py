"""Hosts for the tests below this folder; where they cannot be made the tests are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from tests.cluster.hosts import Hosts, why_not

obstacle = cache(why_not)


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Hosts]]:
    """Return a function with the arguments of `Hosts`; what it makes ends with the test."""
    if reason := obstacle():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(count: int, **options: Any) -> Hosts:
            return stack.enter_context(Hosts(count, **options))

        yield make
