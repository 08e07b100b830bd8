"""Which buckets are being moved, from the rows of all cells."""

from __future__ import annotations

from nos_ec.console.cells.moves import CellMoves, Moving, moving
from nos_ec.ports.metadata import MoveRow, MoveState


def row(bucket: str, state: MoveState, other: str, since_ms: int) -> MoveRow:
    return MoveRow(bucket, state, other, 1, 7, since_ms)


def test_both_rows_of_a_move_are_shown_as_one_and_what_stands_still_comes_first() -> None:
    of_a = [row("mail", MoveState.ARRIVING, "b", 1), row("late", MoveState.ARRIVING, "c", 2)]
    of_b = [row("mail", MoveState.CLOSED, "a", 3), row("left", MoveState.LEAVING, "c", 4)]
    found = moving({"a": CellMoves(of_a, {"late"}), "b": CellMoves(of_b, {"left"})})
    assert found == [
        Moving("late", "c", "a", MoveState.ARRIVING, 2, is_stalled=True),
        Moving("left", "b", "c", MoveState.LEAVING, 4, is_stalled=True),
        Moving("mail", "b", "a", MoveState.CLOSED, 3, is_stalled=False),
    ]


def test_a_bucket_that_has_left_its_cell_is_not_served_before_the_other_one_serves_it() -> None:
    gone, arriving = row("mail", MoveState.GONE, "a", 3), row("mail", MoveState.ARRIVING, "b", 1)
    (not_served,) = moving({"a": CellMoves([arriving], {"mail"}), "b": CellMoves([gone], {"mail"})})
    assert (not_served.state, not_served.is_stalled) == (MoveState.GONE, True)
    (served,) = moving({"a": CellMoves(), "b": CellMoves([gone])})
    assert served.state is MoveState.HERE


def test_a_bucket_that_must_be_completed_from_its_old_copies_is_shown_once() -> None:
    gone, rebuilt = row("mail", MoveState.GONE, "a", 3), row("mail", MoveState.REBUILT, "b", 5)
    for of_b in ([gone], []):
        (found,) = moving({"a": CellMoves([rebuilt], {"mail"}), "b": CellMoves(of_b, {"mail"})})
        assert (found.source, found.target, found.state, found.is_stalled) == ("b", "a", MoveState.REBUILT, True)


def test_a_move_that_was_continued_does_not_stand_still_although_one_row_is_of_the_mover_before() -> None:
    rows = {
        "a": CellMoves([row("mail", MoveState.ARRIVING, "b", 5)]),
        "b": CellMoves([row("mail", MoveState.LEAVING, "a", 3)], {"mail"}),
    }
    assert [one.is_stalled for one in moving(rows)] == [False]
