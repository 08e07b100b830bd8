"""Which cases of a test marked `one_in` run in a turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rig.sampling import of_other_turns

pytest_plugins = ["pytester"]

Collect = Callable[[str], list[pytest.Item]]
PAIRS = """
import pytest

pytestmark = pytest.mark.one_in(2)

@pytest.fixture(params=["mariadb", "mysql"])
def server(request):
    return request.param

@pytest.mark.parametrize("existing", ["new", "old"])
@pytest.mark.parametrize(("point", "of"), [("a", 1), ("b", 2), ("c", 3), ("d", 4)])
def test_pairs(existing, point, of):
    pass

@pytest.mark.parametrize("role", range(4))
def test_servers(server, role):
    pass
"""

SUITES = """
import pytest

class Cases:
    @pytest.mark.parametrize("number", range(4))
    def test_it(self, number):
        pass

@pytest.mark.one_in(2)
class TestOne(Cases):
    pass

@pytest.mark.one_in(2, first=1)
class TestOther(Cases):
    pass
"""


@pytest.fixture
def collect(pytester: pytest.Pytester) -> Collect:
    pytester.makeini("[pytest]\nmarkers = one_in(count, first=0): see pyproject.toml")
    return lambda source: pytester.getitems(source)


def in_turn(items: list[pytest.Item], turn: int) -> list[str]:
    left = of_other_turns(items, turn=turn)
    return [item.name for item in items if item not in left]


def test_each_case_runs_in_one_of_the_turns(collect: Collect) -> None:
    """So a failure that one case alone finds is found within that many days."""
    tests = "".join(f"def test_{number}(): pass\n" for number in range(7))
    items = collect(f"import pytest\npytestmark = pytest.mark.one_in(3)\n{tests}")
    turns = [in_turn(items, turn) for turn in range(3)]
    assert sorted(name for names in turns for name in names) == [f"test_{number}" for number in range(7)]
    assert sorted(map(len, turns)) == [2, 2, 3]
    assert in_turn(items, 3) == turns[0]


def test_of_each_pair_of_variants_one_runs(collect: Collect) -> None:
    items = collect(PAIRS)
    for turn in range(2):
        names = in_turn(items, turn)
        assert len(names) == len(items) / 2 == 8
        assert {name.partition("[")[2].partition("-")[0] for name in names if "pairs" in name} == {"a", "b", "c", "d"}
        assert sum("new" in name for name in names) == 2
        assert {name[-2] for name in names if "servers" in name} == {"0", "1", "2", "3"}
        assert sum("mysql" in name for name in names) == 2


def test_suites_with_the_same_cases_share_them(collect: Collect) -> None:
    items = collect(SUITES)
    for turn in range(2):
        assert sorted(in_turn(items, turn)) == [f"test_it[{number}]" for number in range(4)]


def test_what_is_not_marked_or_named_runs_always(collect: Collect) -> None:
    items = collect("def test_a(): pass\ndef test_b(): pass\n")
    assert of_other_turns(items) == []
    marked = collect(PAIRS)
    assert of_other_turns(marked, named={marked[0].path}) == []
