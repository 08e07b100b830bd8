"""Buckets that are being moved between the cells of a store, from the rows that both cells keep (docs/CELLS.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from nos_ec.engine.upkeep.move_recovery import MovesMetadata, all_unfinished_moves, stalled_among
from nos_ec.ports.metadata import MoveRow, Moves, MoveState

SHOWN_MAX = 50
STATE_TEXTS = {
    MoveState.LEAVING: "being copied; everything works",
    MoveState.CLOSED: "closed: the last changes are being copied; it can be read, and changes get 503",
    MoveState.ARRIVING: "the new cell has copies, which it does not serve yet",
    MoveState.REBUILT: "not served: the database of its cell was rebuilt, and must be completed from the old copies",
    MoveState.GONE: "not served: it has left its cell, and the new one does not serve it yet",
    MoveState.HERE: "served by the new cell; the old one still has its documents",
}
"""What the state of a move means for the users of the bucket."""


@dataclass(frozen=True, slots=True)
class CellMoves:
    """The rows of a cell's moves that are not complete. Nothing moves the `stalled` buckets."""

    rows: Sequence[MoveRow] = ()
    stalled: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Moving:
    """A bucket that is being moved. `state` is LEAVING or CLOSED as the cell that gives it away says. If that cell says
    GONE, it is REBUILT if the other one was rebuilt without the move, GONE while that one does not serve the bucket for
    another reason, and else HERE. It is ARRIVING or REBUILT if only the cell that gets the bucket has a row.
    `since_ms`: when the state began, or the command that moves it was started again."""

    bucket: str
    source: str
    target: str
    state: MoveState
    since_ms: int
    is_stalled: bool


def read_moves(metadata: MovesMetadata) -> CellMoves:
    """Return which moves from or to a cell are not complete. Raises Transient."""
    rows = all_unfinished_moves(metadata)
    return CellMoves(rows, {row.bucket for row in stalled_among(metadata, rows)})


def read_move(metadata: Moves, bucket: str) -> MoveRow | None:
    """Return the row of a bucket that is being moved from or to a cell, or was moved away from it; None if the cell
    serves it as usual. Raises Transient."""
    row = metadata.move_row(bucket)
    return None if row is None or row.state is MoveState.HERE else row


def moving(by_cell: Mapping[str, CellMoves]) -> Sequence[Moving]:
    """Return the moves that the rows of the cells describe, each once: first those that nothing moves, and the one with
    the oldest state before others."""
    stalled = {(cell, bucket) for cell, moves in by_cell.items() for bucket in moves.stalled}
    rows = [(cell, row) for cell, moves in by_cell.items() for row in moves.rows]
    arriving = {(row.bucket, row.other, cell): row for cell, row in rows if row.arrives}
    found = []
    for cell, row in rows:
        if row.arrives:
            continue
        arrives = arriving.pop((row.bucket, cell, row.other), None)
        state = row.state
        if state is MoveState.GONE and (arrives is None or arrives.state is MoveState.REBUILT):
            state = MoveState.HERE if arrives is None else MoveState.REBUILT
        # Only the row that is set last has the number of a mover that continues.
        is_stalled = (cell, row.bucket) in stalled and (arrives is None or (row.other, row.bucket) in stalled)
        found.append(Moving(row.bucket, cell, row.other, state, row.since_ms, is_stalled))
    found += [
        Moving(bucket, source, cell, row.state, row.since_ms, (cell, bucket) in stalled)
        for (bucket, source, cell), row in arriving.items()
    ]
    return sorted(found, key=lambda one: (not one.is_stalled, one.since_ms, one.bucket))
