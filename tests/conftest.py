"""The order of all suites."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real servers last: others fail sooner, and meanwhile .ci/run installs the servers."""
    items.sort(key=lambda item: item.get_closest_marker("real") is not None)
