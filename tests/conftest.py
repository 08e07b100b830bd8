"""What all suites share: their order and their processes under `pytest -n 3`, folders, how property tests run."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.rig.sampling import IS_WHOLE, TURN, of_other_turns
from tests.rig.sql.compiled_statements import share_compiled_statements

# The limits that are left out measure the machine: by itself an example may take 200 ms, and ten of them may be made in
# a second. A run of a part has the same examples each time: a merge must not be refused for what it did not change.
settings.register_profile("busy", derandomize=not IS_WHOLE, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

share_compiled_statements()

# The tests start a thousand processes, and a process that has to compile all modules takes half as long again to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# With it, Python would pass on at once what a program forgets to flush.
os.environ.pop("PYTHONUNBUFFERED", None)
# A shell's background job ignores SIGINT, and so would the programs that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

COMPILED = Path(__file__).parent / "__pycache__" / "compiled"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30

GROUPS = ("ceph", "faults", "machine", "kafka", "sql", "stack", "programs")
"""The folders of tests/real. The tests of a folder share servers, and therefore a process. Tests on Ceph take longest,
so they come first, in two groups of about the same length, each with a cluster."""


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process, one after the other. A test without servers is a group by itself."""
    folder = PurePath(nodeid.partition("::")[0]).parent
    return folder.name if folder.parent == PurePath("tests/real") else nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--invariant", type=int, help="run only the tests that try to break this invariant")


def numbers_of(item: pytest.Item) -> set[int]:
    """The invariants that a test tries to break."""
    return {number for mark in item.iter_markers("invariant") for number in mark.args}


def is_in_turns(item: pytest.Item) -> bool:
    """Return whether the test is in a folder of which only an eighth runs each day."""
    return item.path.relative_to(item.config.rootpath).parts[:2] in (("tests", "service"), ("tests", "real"))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a fresh clone, let one of several processes compile the tests for all. Exclude modules and tests from garbage
    collection, because they stay alive. Without this, the collector took a fifth of the CPU time of the tests, and more
    of the time in which they are loaded."""
    gc.disable()
    try:
        with compiled_once(COMPILED) if hasattr(session.config, "workerinput") else nullcontext():
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@contextmanager
def compiled_once(mark: Path) -> Iterator[None]:
    """Let the first process that comes here do the block while the others wait, and then these at the same time.
    Nobody waits any more when the first one has done it.

    The first process keeps what it has compiled, which takes longer than all else that a process does to collect the
    tests. Without this, each process would compile everything, because they go through the files side by side.
    """
    mark.parent.mkdir(exist_ok=True)
    with mark.open("a") as file:
        is_first = False
        if not file.tell():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_first = True
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)
        yield
        if is_first:
            file.write("The tests have been compiled.\n")


def pytest_report_header() -> str:
    """Say how to run the same cases again."""
    return "all cases" if IS_WHOLE else f"the cases of NOS_EC_DEV_TURN={TURN}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that were not asked for, and cases that another day runs. Tests on real servers run last, because
    the others fail sooner. With several processes they come first, because they mostly wait while the others run."""
    if (wanted := config.getoption("--invariant")) is not None:
        left_out = [item for item in items if wanted not in numbers_of(item)]
    elif IS_WHOLE:
        left_out = []
    else:
        files = {Path(config.invocation_params.dir, arg.partition("::")[0]) for arg in config.args}
        left_out = of_other_turns((item for item in items if is_in_turns(item)), named=files)
    if left_out:
        without = set(left_out)
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        rank = {group: number for number, group in enumerate(GROUPS)}
        items.sort(key=lambda item: rank.get(group_of(item.nodeid), len(GROUPS)))
    else:
        items.sort(key=lambda item: item.get_closest_marker("real") is not None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Any free process takes the next group."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group_of
    return scheduler


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """A test of the command line configures logging for the whole process; this must not affect the next test."""
    handlers = list(logging.getLogger().handlers)
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    for handler in set(logging.getLogger().handlers) - set(handlers):
        logging.getLogger().removeHandler(handler)


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """In memory for a test without servers, because stores sync all the time and the servers of other tests keep the
    disk busy. The content is removed with the test. With TMPDIR set, or too little memory, it is pytest's own
    folder."""
    if request.node.get_closest_marker("real") or _memory_place() is None:
        yield tmp_path
        return
    with memory_folder() as folder:
        yield folder


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yield a folder that is removed afterwards: in memory, or in TMPDIR or the usual place as for `tmp_path`."""
    with TemporaryDirectory(prefix="nos-ec-test-", dir=_memory_place()) as folder:
        yield Path(folder)


def _memory_place() -> Path | None:
    """Return MEMORY; None with TMPDIR set, or if there is too little memory."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return None
    room = os.statvfs(MEMORY)
    return MEMORY if room.f_bavail * room.f_frsize >= MEMORY_BYTES_MIN else None


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line at once. The report of a failure contains it too, because the output of one of several processes is
    not shown."""

    def both(line: str) -> None:
        print(line)
        with capsys.disabled():
            print(line)

    return both
