"""How the suites are distributed among processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GROUPS, group_of

REAL = Path(__file__).parents[2] / "real"


def test_every_module_of_a_group_exists() -> None:
    named = [module for modules in GROUPS.values() for module in modules]
    assert [module for module in named if not (REAL / f"{module}.py").is_file()] == []
    assert len(named) == len(set(named))


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in ("ceph", "faults", "stack")])
def test_only_the_tests_that_share_it_start_ceph(group: str) -> None:
    asking = [m for m in GROUPS[group] if "ceph: CephCluster" in (REAL / f"{m}.py").read_text()]
    assert asking == []


def test_tests_without_servers_go_to_any_free_worker() -> None:
    assert group_of("tests/real/test_mysql_metadata.py::TestMySQL::test_it[a/b]") == "sql"
    assert group_of("tests/real/test_scrub.py::test_it") == "ceph"
    assert group_of("tests/unit/bench/test_bench.py::test_it") == "tests/unit/bench/test_bench.py::test_it"
