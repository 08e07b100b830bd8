"""`make test` runs a part of the cases in each turn: which cases that are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rig.sampling import TURNS, of_other_turns

pytest_plugins = ["pytester"]

Collect = Callable[[str], list[pytest.Item]]
VARIANTS = """
import pytest

@pytest.fixture(params=["galera", "mariadb", "mysql", "vitess", "sqlite", "other", "old", "new"])
def server(request):
    return request.param

@pytest.mark.parametrize("kind", ["new", "old", "gone", "lost", "late", "early", "long", "short"])
@pytest.mark.parametrize(("point", "of"), [(point, 1) for point in "abcdefgh"])
def test_points(kind, point, of):
    pass

@pytest.mark.parametrize("role", range(8))
def test_servers(server, role):
    pass
"""

SUITES = """
import pytest

class Cases:
    @pytest.mark.parametrize("number", range(16))
    def test_it(self, number):
        pass

@pytest.mark.turn(0)
class TestOne(Cases):
    pass

@pytest.mark.turn(1)
class TestOther(Cases):
    pass
"""


@pytest.fixture
def collect(pytester: pytest.Pytester) -> Collect:
    pytester.makeini("[pytest]\nmarkers =\n    turn(number): see pyproject.toml\n    every_time: see there\n")
    return lambda source: pytester.getitems(source)


def in_turn(items: list[pytest.Item], turn: int) -> list[str]:
    left = of_other_turns(items, turn=turn)
    return [item.name for item in items if item not in left]


def test_each_case_runs_in_one_of_the_turns(collect: Collect) -> None:
    """A failure that only one case finds is therefore found within TURNS days."""
    items = collect("".join(f"def test_{number}(): pass\n" for number in range(10)))
    turns = [in_turn(items, turn) for turn in range(TURNS)]
    assert sorted(name for names in turns for name in names) == [f"test_{number}" for number in range(10)]
    assert sorted(map(len, turns)) == [1, 1, 1, 1, 1, 1, 2, 2]
    assert in_turn(items, TURNS) == turns[0]


def test_a_turn_has_variants_of_each_kind(collect: Collect) -> None:
    items = collect(VARIANTS)
    for turn in range(TURNS):
        points = [name[len("test_points[") : -1].split("-") for name in in_turn(items, turn) if "points" in name]
        assert [{words[place] for words in points} for place in (0, 2)] == [
            set("abcdefgh"),
            {"new", "old", "gone", "lost", "late", "early", "long", "short"},
        ]
        servers = [name[len("test_servers[") : -1].split("-") for name in in_turn(items, turn) if "servers" in name]
        assert len(points) == len(servers) == 8
        assert len({server for server, _ in servers}) == 8
        assert {role for _, role in servers} == set("01234567")


def test_suites_with_the_same_cases_run_different_ones(collect: Collect) -> None:
    items = collect(SUITES)
    for turn in range(TURNS):
        names = in_turn(items, turn)
        assert len(names) == len(set(names)) == 4


def test_a_marked_case_runs_every_time(collect: Collect) -> None:
    items = collect("import pytest\n@pytest.mark.every_time\ndef test_a(): pass\n" + SUITES)
    assert all("test_a" in in_turn(items, turn) for turn in range(TURNS))


def test_the_cases_of_a_named_file_run_every_time(collect: Collect) -> None:
    items = collect(VARIANTS)
    assert of_other_turns(items) != []
    assert of_other_turns(items, named={items[0].path}) == []
