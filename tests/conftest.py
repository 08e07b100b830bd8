"""The order of all suites, and how property tests run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# Both measure the machine: by itself an example may take 200 ms, and ten of them may be made in a second.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real servers last: others fail sooner, and meanwhile .ci/run installs the servers."""
    items.sort(key=lambda item: item.get_closest_marker("real") is not None)


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A test of the command line configures logging for the whole process; the next test must not notice."""
    yield
    structlog.reset_defaults()
