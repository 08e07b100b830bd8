"""How the suites are distributed among processes."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.conftest import GROUPS, compiled_once, group_of

REAL = Path(__file__).parents[2] / "real"


def test_each_folder_of_tests_on_real_servers_is_a_group() -> None:
    assert {path.parent.name for path in REAL.rglob("test_*.py")} == set(GROUPS)


def test_servers_stop_after_the_last_test_that_may_need_them() -> None:
    """A server of the whole session would run until the last unit test has ended."""
    assert (REAL / "__init__.py").exists()
    assert [path.name for path in REAL.rglob("*.py") if 'scope="session"' in path.read_text()] == []


@pytest.mark.parametrize("group", sorted({*GROUPS} - {"ceph", "faults", "stack"}))
def test_only_the_tests_that_share_it_start_ceph(group: str) -> None:
    asking = [path.name for path in (REAL / group).glob("*.py") if "ceph: CephCluster" in path.read_text()]
    assert asking == []


def test_tests_without_servers_go_to_any_free_worker() -> None:
    assert group_of("tests/real/sql/test_mysql_metadata.py::TestMySQL::test_it[a/b]") == "sql"
    assert group_of("tests/real/ceph/test_scrub.py::test_it") == "ceph"
    assert group_of("tests/unit/bench/test_bench.py::test_it") == "tests/unit/bench/test_bench.py::test_it"


def test_others_wait_while_the_first_process_compiles_the_tests(tmp_path: Path) -> None:
    mark = tmp_path / "new" / "mark"

    def fail() -> None:
        with compiled_once(mark):
            assert others_wait(mark)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with compiled_once(mark):
        assert others_wait(mark)
    with compiled_once(mark):
        assert not others_wait(mark)


def others_wait(mark: Path) -> bool:
    with mark.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
