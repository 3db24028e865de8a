"""Names and marks of the tests over the pool."""

from __future__ import annotations

import pytest
from tests.promises.pool import PooledRun


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return the name of a run of the pool."""
    return val.name if isinstance(val, PooledRun) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test over the pool as one to sample, and as the test that left its run behind."""
    for item in items:
        spec = getattr(item, "callspec", None)
        for name, value in spec.params.items() if spec else ():
            if isinstance(value, PooledRun):
                item.add_marker(pytest.mark.sampled(name))
                if value.mark:
                    item.add_marker(value.mark)
