"""The model of versions, and the search for an order: a check of histories that accepts all would prove nothing."""

from __future__ import annotations

from itertools import permutations

import pytest

from nos_ec.core.versions import Versioning
from tests.rig.sql.version_histories import STEPS_MAX, Event, Explanation, explain, told
from tests.rig.sql.version_model import (
    ENABLED,
    LOST,
    SUSPENDED,
    Answer,
    Delete,
    Expire,
    Found,
    Get,
    GetVersion,
    Impossible,
    Kind,
    Mark,
    Put,
    PutLarge,
    Remove,
    RemoveLoneMarker,
    State,
    Step,
    Undelete,
    Version,
)

Taken = tuple[Step, Answer]


def put(number: int, versioning: Versioning | None = ENABLED, over: int | None = None) -> Taken:
    """A PUT that was given this number, which is its tag too."""
    return Put(versioning, number, over), Found(number, number)


def mark(number: int, versioning: Versioning = ENABLED, *, in_trash: bool = False) -> Taken:
    return Mark(versioning, None, in_trash), Found(number, 0)


def remove(number: int | None, found: int, *, tag: int | None = None, in_trash: bool = False) -> Taken:
    return Remove(number, in_trash), Found(found, found if tag is None else tag)


def version(number: int, kind: Kind = Kind.OWN_ID) -> Version:
    return Version(number, kind, 0 if kind in (Kind.MARKER, Kind.NULL_MARKER) else number)


def state(current: Version | None, *others: Version, trash: tuple[Version, ...] = ()) -> State:
    return State(current, frozenset(others), frozenset(trash))


def after(*taken: Taken) -> State:
    """Return what, according to the model, can be found after these steps. Raises Impossible."""
    found = State()
    for step, answer in taken:
        found = step.follow(found, answer)
    return found.shown


def at(times: tuple[int, int], taken: Taken, call: int = 0) -> Event:
    """A step that was called and answered at these times. call: 0 for one of its own."""
    return Event(*taken, *times, call or -times[0] - 1)


def one_after_the_other(*taken: Taken) -> list[Event]:
    return [at((10 * i, 10 * i + 5), one) for i, one in enumerate(taken)]


def at_once(*taken: Taken) -> list[Event]:
    return [at((i, 100), one) for i, one in enumerate(taken)]


# --- the model ----------------------------------------------------------------------------------------
NULL, PLAIN, MARKER, NULL_MARKER = Kind.NULL, Kind.PLAIN, Kind.MARKER, Kind.NULL_MARKER


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ([put(1), put(2)], state(version(2), version(1))),
        ([put(1, None), put(2, None)], state(version(2, PLAIN))),
        ([put(1, None), put(2), put(3, SUSPENDED)], state(version(3, NULL), version(2))),
        ([put(1), put(2, None)], state(version(2, NULL), version(1))),
        ([put(1), mark(2)], state(None, version(1), version(2, MARKER))),
        ([put(1, SUSPENDED), mark(2, SUSPENDED)], state(None, version(2, NULL_MARKER))),
        ([mark(1, SUSPENDED), put(2), mark(3, SUSPENDED)], state(None, version(2), version(3, NULL_MARKER))),
        (
            [put(1, SUSPENDED), mark(2, SUSPENDED, in_trash=True)],
            state(None, version(2, NULL_MARKER), trash=(version(1, NULL),)),
        ),
        ([put(1), put(2), remove(2, 2)], state(version(1))),
        ([put(1), mark(2), remove(2, 2, tag=0)], state(version(1))),
        ([put(1), mark(2), mark(3), remove(3, 3, tag=0)], state(None, version(1), version(2, MARKER))),
        ([put(1, None), put(2), remove(None, 1, in_trash=True)], state(version(2), trash=(version(1, PLAIN),))),
        ([put(1, None), (Delete(False, 0), Found(1, 1))], State()),
        ([put(1), (Delete(True, 0), Found(1, 1))], state(None, version(1), version(2, NULL_MARKER))),
        (
            [put(1, SUSPENDED), (Delete(True, 2), Found(1, 1))],
            state(None, version(2000, NULL_MARKER), trash=(version(1, NULL),)),
        ),
        ([put(2), (PutLarge(ENABLED, 1, 1), Found(1, 1))], state(version(2), version(1))),
        ([put(1), (PutLarge(ENABLED, 2, 2), Found(2, 2))], state(version(2), version(1))),
        ([put(2, None), (PutLarge(None, 1, 1), Found(LOST, 1)), put(3, None)], state(version(3, PLAIN))),
        ([put(2, SUSPENDED), (PutLarge(SUSPENDED, 1, 1), Found(LOST, 1))], state(version(2, NULL))),
        ([put(1), remove(1, 1, in_trash=True), (Undelete(1), Found(1, 1))], state(version(1))),
        (
            [put(1), remove(1, 1, in_trash=True), put(2), (Undelete(1), None)],
            state(version(2), trash=(version(1),)),
        ),
        ([put(1), put(2), put(3), (Expire(1, 1, 1, False), Found(1, 1))], state(version(3), version(2))),
        ([put(1), put(2), (Expire(1, 1, 0, False), None)], state(version(2), version(1))),
        ([mark(1), (RemoveLoneMarker(1), Found(1, 0))], State()),
        ([put(1), (Get(), Found(1, 1)), mark(2), (Get(), None)], state(None, version(1), version(2, MARKER))),
        ([put(1), mark(2), (GetVersion(1), Found(1, 1)), (GetVersion(None), None), remove(1, 1)], after(mark(2))),
    ],
)  # fmt: skip
def test_what_is_left(taken: list[Taken], left: State) -> None:
    assert after(*taken) == left


@pytest.mark.parametrize(
    "taken",
    [
        [put(1), (Delete(False, 0), None)],
        [put(1), (Get(), None)],
        [put(1), put(2), (Get(), Found(1, 1))],
        [put(1), (Get(), Found(1, 7))],
        [put(1), (Remove(1, False), None)],
        [put(1), mark(2), (GetVersion(2), None)],
        [put(2), mark(2)],
        [put(2), mark(1)],
        [put(3), mark(4), put(2)],
        [put(1), put(1)],
        [put(1, over=7)],
        [put(1), put(2, over=0)],
        [put(1), (Put(ENABLED, 2, 1), None)],
        [put(1), (Mark(ENABLED, 7, False), Found(2, 0))],
        [put(1), (PutLarge(ENABLED, 2, 2), None)],
        [put(1), put(3, over=1), (PutLarge(ENABLED, 2, 2), Found(2, 2))],
        [put(1, SUSPENDED), put(3, SUSPENDED, over=1), (PutLarge(SUSPENDED, 2, 2), Found(LOST, 2))],
        [put(1, SUSPENDED), put(3, SUSPENDED), (PutLarge(SUSPENDED, 2, 2), Found(2, 2))],
        [put(2, None), (PutLarge(None, 1, 1), Found(1, 1))],
        [put(2), (PutLarge(SUSPENDED, 2, 1), Found(LOST, 1))],
        [put(2), (PutLarge(None, 2, 1), Found(LOST, 1))],
        [put(1), (PutLarge(ENABLED, 2, 2, 7), Found(2, 2))],
        [put(1), put(3), (PutLarge(ENABLED, 2, 2, 3), Found(2, 2))],
        [put(1), (Undelete(2), Found(2, 2))],
        [put(1), (Expire(1, 1, 0, False), Found(1, 1))],
        [put(1), put(2), (Expire(1, 1, 1, False), Found(1, 1))],
        [put(1), mark(2), (Expire(2, 0, 0, False), Found(2, 0))],
        [put(1), mark(2), (RemoveLoneMarker(2), Found(2, 0))],
        [mark(1), mark(2), (RemoveLoneMarker(1), Found(1, 0))],
        [put(1), put(2), remove(2, 2), put(2)],
        [put(1), put(2), remove(2, 2), mark(2)],
        [put(1), remove(1, 1), put(1)],
        [put(1), put(2), put(3), (Expire(2, 2, 0, False), Found(2, 2)), remove(3, 3), remove(1, 1), put(2)],
        [mark(2), (RemoveLoneMarker(2), Found(2, 0)), put(1)],
        [put(1), put(2), remove(2, 2), (PutLarge(ENABLED, 2, 7), Found(2, 7))],
        [put(1), remove(1, 1, in_trash=True), mark(5), (Undelete(1), Found(1, 1)), put(5)],
    ],
)
def test_what_cannot_be(taken: list[Taken]) -> None:
    after(*taken[:-1])
    with pytest.raises(Impossible):
        after(*taken)


def test_a_marker_gives_way_to_a_version_of_its_number() -> None:
    assert after(mark(5), put(5, None), put(6)) == state(version(6), version(5, PLAIN))


# --- the search ---------------------------------------------------------------------------------------
def test_a_history_has_the_order_of_its_answers() -> None:
    first, second, deleted = put(1), put(2), (Delete(False, 0), Found(2, 2))
    final = after(first, second, deleted)
    for some in permutations([first, second, deleted]):
        found = explain(at_once(*some), final)
        assert found.is_whole
        assert [(event.step, event.answer) for event in found.order] == [first, second, deleted]
        assert found.state == final
    assert explain([], State()).is_whole


def test_a_delete_finds_a_version_that_is_there_all_the_time() -> None:
    final = state(None, version(1), version(2, MARKER))
    gone = (Remove(1, False), None)
    assert not explain(one_after_the_other(put(1), mark(2), gone), final).is_whole
    assert explain(one_after_the_other(gone, put(1), mark(2)), final).is_whole, "it was not there yet"
    history = [at((0, 5), put(1)), at((10, 20), mark(2)), at((12, 18), gone)]
    assert not explain(history, final).is_whole, "it changes from current to noncurrent, and is there all the same"


def test_a_key_has_one_null_version() -> None:
    both = at_once(put(1, SUSPENDED), put(2, SUSPENDED))
    assert explain(both, state(version(2, NULL))).is_whole
    assert not explain(both, state(version(2, NULL), version(1, NULL))).is_whole
    marked = at_once(put(1, SUSPENDED), mark(2, SUSPENDED))
    assert explain(marked, state(None, version(2, NULL_MARKER))).is_whole
    assert not explain(marked, state(version(1, NULL), version(2, NULL_MARKER))).is_whole


def test_the_number_of_a_marker_is_above_all() -> None:
    low, high = mark(1), mark(2)
    both = state(None, version(1, MARKER), version(2, MARKER))
    assert explain(at_once(high, low), both).is_whole, "in the other order"
    assert not explain(one_after_the_other(high, low), both).is_whole


def test_a_large_put_comes_just_before_the_one_that_overtakes_it() -> None:
    lost, stored = (PutLarge(None, 3, 2), Found(LOST, 2)), (PutLarge(None, 2, 2), Found(2, 2))
    old, large = at((0, 1), put(1, None)), at((2, 9), lost)
    final = state(version(3, PLAIN))
    assert explain([old, large, at((3, 4), put(3, None))], final).is_whole, "of the same number"
    assert not explain([old, large, at((3, 4), put(3, None, over=1))], final).is_whole
    assert not explain([old, at((5, 9), lost), at((3, 4), put(3, None))], final).is_whole
    assert explain([old, at((2, 9), stored), at((3, 4), put(3, None, over=2))], final).is_whole, "it was replaced"


def test_what_was_answered_before_comes_before() -> None:
    old, seen = put(1), (Get(), None)
    assert explain([at((0, 10), old), at((5, 8), seen)], after(old)).is_whole
    assert not explain([at((0, 10), old), at((11, 12), seen)], after(old)).is_whole
    assert explain([at((0, 10), old), at((10, 12), seen)], after(old)).is_whole, "at the same time"


def test_a_step_that_may_come_now_may_come_later_too() -> None:
    """The version is current, so undeleting it could come first, and would change nothing."""
    thrown, back = remove(1, 1, in_trash=True), (Undelete(1), Found(1, 1))
    history = [at((0, 1), put(1)), at((2, 9), back), at((3, 9), thrown)]
    assert explain(history, after(put(1))).is_whole
    assert explain(history, state(None, trash=(version(1),))).is_whole


def test_the_steps_of_a_call_come_in_their_order() -> None:
    first, second = mark(1), (GetVersion(1), None)
    assert explain([at((0, 9), second, 1), at((0, 9), first, 1)], after(first)).is_whole
    assert not explain([at((0, 9), first, 1), at((0, 9), second, 1)], after(first)).is_whole


def test_what_a_failure_tells() -> None:
    history = one_after_the_other(put(1), put(2), (Get(), Found(1, 1)))
    final = after(put(1), put(2))
    found = explain(history, final)
    assert found == Explanation(history[:2], final, False)
    text = told(history, final)
    assert "explained are 2 of 3 steps" in text
    assert text.count("Get() -> Found(number=1, tag=1)") == 1


def test_the_search_is_bounded() -> None:
    """All steps overlap, all could come first, and no order ends in what was found."""
    steps: list[Taken] = [(Get(), None)] * (STEPS_MAX - 8) + [put(number) for number in range(1, 9)]
    assert not explain(at_once(*steps), State()).is_whole
    with pytest.raises(ValueError, match="meant for"):
        explain(at_once(*steps, put(9)), State())
