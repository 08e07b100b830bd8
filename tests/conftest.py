"""What all suites share: their order, their folders, how property tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import structlog
from hypothesis import HealthCheck, settings

# Both measure the machine: by itself an example may take 200 ms, and ten of them may be made in a second.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real servers last: others fail sooner, and meanwhile .ci/run installs the servers."""
    items.sort(key=lambda item: item.get_closest_marker("real") is not None)


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A test of the command line configures logging for the whole process; the next test must not notice."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """In memory for a test without servers: stores sync all the time, and servers of other tests keep the disk busy.
    What is there is removed with the test. With TMPDIR set, or too little memory, it is pytest's own folder."""
    if request.node.get_closest_marker("real") or "TMPDIR" in os.environ or not _memory_has_room():
        yield tmp_path
        return
    with TemporaryDirectory(prefix="nos-ec-test-", dir=MEMORY) as folder:
        yield Path(folder)


def _memory_has_room() -> bool:
    if not MEMORY.is_dir():
        return False
    room = os.statvfs(MEMORY)
    return room.f_bavail * room.f_frsize >= MEMORY_BYTES_MIN
