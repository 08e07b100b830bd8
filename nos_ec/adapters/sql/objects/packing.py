"""The transactions of packing: the checks of requests, and the commit of one stripe group.

A commit runs a fixed number of statements, however many objects the group holds.

Locks are taken in this order: object rows by id, the block, old blocks by id. Deletes and overwrites also lock rows
first and then blocks, but one of those blocks may be the one being written. Transactions that still deadlock are
retried.

The lease itself is read only to report why a commit is refused. While a block is OPEN, its writer holds the lease of
the block's epoch: the block was allocated under that lease, and a transaction that fences or releases the lease also
turns its OPEN blocks FENCED. Such a transaction waits while we hold the block's row (invariant 8).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, LargeBinary, and_, bindparam, null, or_, select, update

from nos_ec.adapters.sql.blocks import block_rows, leases
from nos_ec.adapters.sql.objects import waiting
from nos_ec.adapters.sql.objects.release_version import Burial, enter_copies, queueing
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import LIVE, OBJECT_COLUMNS, by_primary, object_row, require_all
from nos_ec.adapters.sql.tables.schema import BLOCKS, ID_BYTES, OBJECTS, WAITING, utf8
from nos_ec.core.errors import Conflict, LeaseLost, NosError, NotFound
from nos_ec.core.formats.messages import NamedVersion, PackRequest
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, BlockId, LandingId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import (
    BlockEvent,
    BlockState,
    ObjectEvent,
    ObjectState,
    advance_block,
    advance_object,
    object_sources,
)
from nos_ec.ports.metadata import BlockRow, GroupCommit, Move, ObjectRow

_O, _B, _W = OBJECTS.c, BLOCKS.c, WAITING.c
_MOVES = JsonRows(
    "moves", optional=["from_block"], object_id=0, version=0, from_block=ID_BYTES, block_offset=0, length=0, number=0
)
_FROM_LANDING = sorted(state for state in object_sources(ObjectEvent.PACK) if state.in_landing)
_PACKED = advance_object(ObjectState.PACKED, ObjectEvent.PACK)

# The states are written out, because SQLAlchemy generates the text of a statement with an IN list at each execution.
_IN_LANDING = and_(_MOVES.missing("from_block"), or_(*(_O.state == state for state in _FROM_LANDING)))
_IN_BLOCK = and_(_O.state == ObjectState.PACKED, _O.block_id == _MOVES["from_block"])

MATCH_MOVES = looked_up(
    select(_MOVES["number"], _O.size)
    .join_from(_MOVES.table, OBJECTS, _O.object_id == _MOVES["object_id"])
    .where(_O.version == _MOVES["version"], or_(_IN_LANDING, _IN_BLOCK))
    .with_for_update(),
    OBJECTS,
)
COPIES = looked_up(
    select(_O.landing_id, _O.object_id, _O.version)
    .join_from(_MOVES.table, OBJECTS, _O.object_id == _MOVES["object_id"])
    .where(_O.version == _MOVES["version"], _O.size == _MOVES["length"], _IN_LANDING)
    .with_for_update(),
    OBJECTS,
)
QUEUE_COPIES = queueing(COPIES)
"""Queues the landing copies of the moves that match, and locks their rows. If it queues one for each move, all moves
match, and no further query is needed."""
MOVE = (
    UpdateListed(OBJECTS)
    .where(_O.object_id == _MOVES["object_id"])
    .values(
        state=_PACKED,
        block_id=bindparam("to_block", type_=LargeBinary),
        block_offset=_MOVES["block_offset"],
        landing_id=null(),
    )
)
_REQUESTS = JsonRows(
    "requests",
    object_id=0,
    version=0,
    bucket=BUCKET_BYTES_MAX,
    name=NAME_BYTES_MAX,
    size=0,
    crc32c=0,
    landing_id=ID_BYTES,
    number=0,
)
NOT_AS_ASKED = looked_up(
    select(_REQUESTS["number"], _O.object_id, _O.attributes)
    .join_from(
        _REQUESTS.table,
        OBJECTS,
        and_(
            _O.object_id == _REQUESTS["object_id"],
            _O.version == _REQUESTS["version"],
            _O.bucket == _REQUESTS["bucket"],
            _O.name == _REQUESTS["name"],
            _O.size == _REQUESTS["size"],
            _O.crc32c == _REQUESTS["crc32c"],
            _O.landing_id == _REQUESTS["landing_id"],
            _O.state.in_(sorted(state for state in ObjectState if state.in_landing)),
        ),
        isouter=True,
    )
    .where(or_(_O.object_id.is_(None), _O.attributes.is_not(None))),
    OBJECTS,
)
"""Selects the requests that no longer hold, without an object id, and the requests of objects with attributes. Nearly
all requests still hold, so it returns hardly any rows."""
_NAMED = JsonRows("named", bucket=BUCKET_BYTES_MAX, name=NAME_BYTES_MAX, version=0)
WAITING_REQUESTS = looked_up(
    select(*OBJECT_COLUMNS)
    .join_from(
        _NAMED.table,
        OBJECTS,
        and_(_O.trashed == LIVE, _O.bucket == _NAMED["bucket"], _O.name == _NAMED["name"]),
    )
    .join(WAITING, _W.landing_id == _O.landing_id)
    .where(_O.version == _NAMED["version"], or_(_O.state == ObjectState.QUEUED, _W.due_ms <= bindparam("due"))),
    OBJECTS,
    "objects_by_trash_key",
    then=WAITING,
)
COUNT_GROUP = (
    by_primary(update(BLOCKS))
    .where(
        _B.block_id == bindparam("block", type_=_B.block_id.type),
        _B.state == BlockState.OPEN,
        _B.writer == bindparam("of_writer", type_=_B.writer.type),
        _B.epoch == bindparam("of_epoch", type_=BigInteger),
        _B.stripes == bindparam("at_stripe", type_=BigInteger),
    )
    .values(
        state=bindparam("state_after", type_=_B.state.type),
        sealed_ms=bindparam("sealed_at_ms", type_=BigInteger),
        stripes=_B.stripes + bindparam("more_stripes", type_=BigInteger),
        live_bytes=_B.live_bytes + bindparam("more_live", type_=BigInteger),
        overhead_bytes=_B.overhead_bytes + bindparam("more_overhead", type_=BigInteger),
        live_objects=_B.live_objects + bindparam("more_objects", type_=BigInteger),
    )
)
COUNT_LOSERS = (
    update(BLOCKS)
    .where(_B.block_id == bindparam("block", type_=_B.block_id.type))
    .values(
        live_bytes=_B.live_bytes - bindparam("lost_bytes", type_=BigInteger),
        dead_bytes=_B.dead_bytes + bindparam("lost_bytes", type_=BigInteger),
        live_objects=_B.live_objects - bindparam("lost_objects", type_=BigInteger),
    )
)


class SqlPacking(SqlPart):
    """`commit_group` of `Blocks` of the port, and `waiting_requests` and `still_landed` of `Objects`."""

    def waiting_requests(
        self, named: Sequence[NamedVersion], due_ms: int
    ) -> dict[NamedVersion, tuple[PackRequest, bytes]]:
        return self._read(_waiting_requests, named, due_ms) if named else {}

    @reads
    def still_landed(self, connection: Connection, requests: Sequence[PackRequest]) -> dict[PackRequest, bytes]:
        if not requests:
            return {}
        listed = _REQUESTS.dump(
            (r.object_id, r.version, utf8(r.key.bucket), utf8(r.key.name), r.size, r.crc32c, r.landing_id, number)
            for number, r in enumerate(requests)
        )
        found = dict.fromkeys(requests, b"")
        for number, object_id, attributes in connection.execute(NOT_AS_ASKED, listed):
            if object_id is None:
                found.pop(requests[number], None)
            else:
                found[requests[number]] = attributes
        return found

    def commit_group(self, commit: GroupCommit) -> frozenset[int]:
        return self._write(_commit_group, self._bound(), commit)


def _waiting_requests(
    connection: Connection, named: Sequence[NamedVersion], due_ms: int
) -> dict[NamedVersion, tuple[PackRequest, bytes]]:
    listed = _NAMED.dump((utf8(n.key.bucket), utf8(n.key.name), n.version) for n in dict.fromkeys(named))
    rows = [object_row(row) for row in connection.execute(WAITING_REQUESTS, {**listed, "due": due_ms})]
    return {NamedVersion(row.key, row.version): (_request(row), row.attributes) for row in rows}


def _request(row: ObjectRow) -> PackRequest:
    assert row.landing_id is not None
    return PackRequest(row.object_id, row.key, row.version, row.size, row.crc32c, row.landing_id)


def _commit_group(connection: Connection, geometry: Geometry, commit: GroupCommit) -> frozenset[int]:
    _check(geometry, commit)
    moves = _without_repeats(commit.moves)
    listed = _dump(moves)
    queued = _queue_copies(connection, commit, moves, listed)
    winners = moves if queued == len(moves) else _match(connection, moves, listed)
    require_all(queued, sum(move.from_block is None for move in winners), "landing copies to delete")
    won = listed if len(winners) == len(moves) else _dump(winners)
    if queued:
        waiting.leave_moved(connection, _MOVES, won, queued)
    _move(connection, commit.block_id, winners, won)
    _count_group(connection, geometry, commit)
    _bury(connection, winners)
    _count_losers(connection, commit, winners)
    kill_point("metadata.commit_group.before_commit")
    return frozenset(move.object_id for move in winners)


def _check(geometry: Geometry, commit: GroupCommit) -> None:
    """Raise ValueError for an impossible group, a bug in the caller that would make the block's counters wrong."""
    start = commit.at_stripe * geometry.stripe_size
    end = start + commit.stripe_count * geometry.stripe_size
    if not (0 <= commit.at_stripe < commit.at_stripe + commit.stripe_count <= geometry.stripes_per_block):
        raise ValueError(f"stripes {commit.at_stripe} + {commit.stripe_count} do not lie within a block")
    for move in commit.moves:
        if move.length < 1 or not start <= move.offset <= end - move.length:
            raise ValueError(f"object {move.object_id} at {move.offset} + {move.length} lies outside its group")
    if sum(move.length for move in commit.moves) > end - start:
        raise ValueError("the objects of a group are larger than the group")


def _count_group(connection: Connection, geometry: Geometry, commit: GroupCommit) -> None:
    """Add the group to the block's counters as if every move won. Then live + dead + overhead bytes equal the size of
    its stripes (invariant 6).

    The same statement locks and checks the block. Only if it matches no row, the reason is looked up.
    """
    live = sum(move.length for move in commit.moves)
    full = commit.at_stripe + commit.stripe_count == geometry.stripes_per_block
    counters = {
        "block": commit.block_id,
        "of_writer": commit.lease.name,
        "of_epoch": commit.lease.epoch,
        "at_stripe": commit.at_stripe,
        "more_stripes": commit.stripe_count,
        "more_live": live,
        "more_overhead": commit.stripe_count * geometry.stripe_size - live,
        "more_objects": len(commit.moves),
        "state_after": advance_block(BlockState.OPEN, BlockEvent.SEAL if full else BlockEvent.APPEND),
        "sealed_at_ms": commit.written_ms if full else None,
    }
    if not connection.execute(COUNT_GROUP, counters).rowcount:
        # A lost lease is reported first, whatever has happened to the block since.
        leases.require(connection, commit.lease)
        raise _refused(block_rows.lock(connection, commit.block_id), commit)


def _count_losers(connection: Connection, commit: GroupCommit, winners: Sequence[Move]) -> None:
    """Count the bytes of moves that did not win as dead."""
    if len(winners) < len(commit.moves):
        lost_bytes = sum(move.length for move in commit.moves) - sum(move.length for move in winners)
        lost = {"lost_bytes": lost_bytes, "lost_objects": len(commit.moves) - len(winners)}
        connection.execute(COUNT_LOSERS, {"block": commit.block_id, **lost})


def _refused(block: BlockRow | None, commit: GroupCommit) -> NosError:
    name = commit.block_id.hex()
    if block is None:
        return NotFound(f"block {name} has no row; allocate it before writing", block_id=commit.block_id)
    if block.state is BlockState.FENCED or (block.writer, block.epoch) != (commit.lease.name, commit.lease.epoch):
        return LeaseLost(
            f"block {name} was taken from writer {commit.lease.name!r}; do not seal it, but start a new block",
            block_id=commit.block_id,
        )
    if block.state is not BlockState.OPEN:
        return Conflict(f"block {name} is {block.state.value}; nothing can be added to it", block_id=commit.block_id)
    return Conflict(f"block {name} ends at stripe {block.stripes}, not at {commit.at_stripe}", block_id=commit.block_id)


def _without_repeats(moves: Sequence[Move]) -> list[Move]:
    """Return the moves in order of object. If a group has a move twice, only the first one can win.

    A group may also have two versions of an object, or one version from two places. At most one of them matches the
    row.
    """
    first: dict[tuple[int, int, BlockId | None], Move] = {}
    for move in moves:
        first.setdefault((move.object_id, move.version, move.from_block), move)
    return sorted(first.values(), key=lambda move: (move.object_id, move.version))


def _queue_copies(connection: Connection, commit: GroupCommit, moves: Sequence[Move], listed: dict[str, str]) -> int:
    """Queue the winners' landing copies for deletion, before their rows lose the ids. Return the number of copies. If
    it is the number of moves, all moves win."""
    if all(move.from_block is not None for move in moves):
        return 0
    parameters = {**listed, "not_before_ms": commit.landing_not_before_ms}
    return enter_copies(
        connection, QUEUE_COPIES, parameters, lambda: [LandingId(row[0]) for row in connection.execute(COPIES, listed)]
    )


def _match(connection: Connection, moves: Sequence[Move], listed: dict[str, str]) -> list[Move]:
    """Return the moves whose rows still match, in order of object, and lock these rows. `listed` is the dump of
    `moves`."""
    found: list[Move] = []
    for number, size in connection.execute(MATCH_MOVES, listed):
        if size != moves[number].length:
            raise ValueError(
                f"object {moves[number].object_id} has {size} bytes, but its move has {moves[number].length}"
            )
        found.append(moves[number])
    return sorted(found, key=lambda move: move.object_id)


def _move(connection: Connection, block_id: BlockId, winners: Sequence[Move], listed: dict[str, str]) -> None:
    moved = connection.execute(MOVE, {**listed, "to_block": block_id}).rowcount
    require_all(moved, len(winners), "objects")


def _dump(moves: Sequence[Move]) -> dict[str, str]:
    return _MOVES.dump(
        (move.object_id, move.version, move.from_block, move.offset, move.length, number)
        for number, move in enumerate(moves)
    )


def _bury(connection: Connection, winners: Sequence[Move]) -> None:
    """Count the bytes of the winners in their old blocks as dead."""
    burial = Burial()
    for move in winners:
        if move.from_block is not None:
            burial.add(move.from_block, move.length)
    burial.apply(connection)
