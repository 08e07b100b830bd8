"""Rows of blocks, from allocation until they are forgotten, and the queries of GC, recovery and checks."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    LargeBinary,
    Numeric,
    Select,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.types import TypeDecorator

from nos_ec.adapters.sql.blocks import leases
from nos_ec.adapters.sql.blocks.deleted_bytes import count_deleted
from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import looked_up
from nos_ec.adapters.sql.tables.rows import BLOCK_COLUMNS, IDS, block_row, by_index, by_primary, id_rows, place_of
from nos_ec.adapters.sql.tables.schema import BLOCKS, ID_BYTES, OBJECTS, SEGMENTS
from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.errors import Conflict, LeaseLost, NotFound
from nos_ec.core.gc.gc_policy import SealedBlock
from nos_ec.core.gc.share import TAIL_BYTES, WHOLE, Share
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.states import BlockEvent, BlockKind, BlockState, advance_block
from nos_ec.ports.metadata import (
    QUARANTINE,
    BlockFigures,
    BlockRow,
    Lease,
    NewLargeObject,
    Placed,
    SpaceUse,
    WaitingBlocks,
    WaitReason,
)

_B, _O, _S = BLOCKS.c, OBJECTS.c, SEGMENTS.c
_PPM = 1_000_000
_DAY_MS = 86_400_000
_BEFORE_ALL = BlockId(bytes(ID_BYTES))
"""No block has this id."""


class _Exact(TypeDecorator[float]):
    """A number that a server gets as a decimal. For a float, Vitess would write CAST(... AS DOUBLE), which MySQL before
    8.0.17 does not have."""

    impl = Numeric
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> Decimal | None:  # noqa: ARG002
        return None if value is None else Decimal(repr(float(value)))


class _OfShare:
    """A query of blocks for one share of them. The query for all blocks has no condition on their ids."""

    def __init__(self, whole: Select[Any]) -> None:
        self.whole = whole
        tail = func.substr(_B.block_id, ID_BYTES - TAIL_BYTES + 1)
        first, end = (bindparam(name, type_=LargeBinary) for name in ("first_tail", "end_tail"))
        self.part = whole.where(tail >= first, tail < end)

    def rows(self, connection: Connection, parameters: Mapping[str, Any], share: Share) -> list[BlockRow]:
        """Return the blocks of the share that the query finds."""
        if share.is_whole:
            found = connection.execute(self.whole, parameters)
        else:
            first, end = share.bounds
            found = connection.execute(self.part, {**parameters, "first_tail": first, "end_tail": end})
        return [block_row(row) for row in found]


BY_ID = select(*BLOCK_COLUMNS).where(_B.block_id == bindparam("block_id"))
LOCK_IDS = looked_up(
    select(*BLOCK_COLUMNS).join_from(IDS.table, BLOCKS, _B.block_id == IDS["id"]).with_for_update(), BLOCKS
)

# The order is that of the index on (state, waste_ppm, ...), so that no planner prefers to sort the whole table.
FENCED = select(*BLOCK_COLUMNS).where(_B.state == BlockState.FENCED).order_by(_B.waste_ppm).limit(bindparam("rows_max"))
# `waste_ppm` is rounded. It serves to find the rows by index; the exact condition is checked on the rows.
_BY_WASTE = by_index(select(*BLOCK_COLUMNS), BLOCKS, "blocks_by_waste").where(_B.state == BlockState.SEALED)
EMPTY = _OfShare(
    _BY_WASTE.where(_B.waste_ppm >= _PPM, _B.live_objects == 0)
    .order_by(_B.waste_ppm.desc())
    .limit(bindparam("rows_max"))
)
_wasted_bytes = _B.dead_bytes + _B.overhead_bytes
_holds_survivors = and_(_B.live_objects > 0, _B.kind != BlockKind.LARGE)
_is_cool = or_(
    _B.gc_not_before_ms.is_(None),
    _B.gc_not_before_ms <= bindparam("now_ms"),
    _B.gc_not_before_ms > bindparam("far_ms"),
)
_may_be_rewritten = and_(_holds_survivors, _is_cool)
_WASTEFUL = (
    _BY_WASTE.where(
        _B.waste_ppm >= bindparam("ppm_min"),
        _B.overhead_bytes >= bindparam("overhead_min", type_=_Exact()) * (_B.live_bytes + _wasted_bytes),
        _may_be_rewritten,
    )
    .order_by(_B.waste_ppm.desc())
    .limit(bindparam("rows_max"))
)
CANDIDATES = _OfShare(
    _WASTEFUL.where(_wasted_bytes >= bindparam("ratio_min", type_=_Exact()) * (_B.live_bytes + _wasted_bytes))
)
# This is a product of decimals, because bytes times milliseconds of some years exceed 63 bits.
_padding_age = (bindparam("until_ms", type_=_Exact()) - _B.created_ms) * _B.overhead_bytes
PADDED = _OfShare(_WASTEFUL.where(_padding_age >= bindparam("price_ms", type_=_Exact()) * _B.live_bytes))

# The order is that of the primary key, so that each page continues where the last one ended, and nothing is sorted.
_since_ms = func.coalesce(_B.sealed_ms, _B.created_ms)
FIGURES = (
    by_index(select(_B.block_id, _B.kind, _B.state, _B.live_bytes, _B.dead_bytes, _since_ms), BLOCKS, "PRIMARY")
    .where(_B.block_id > bindparam("after"))
    .order_by(_B.block_id)
    .limit(bindparam("rows_max"))
)
# The other states are excluded one by one, because SQLite would use its index for a single state, and sort for each
# page.
_is_sealed = _B.state.not_in([state for state in BlockState if state is not BlockState.SEALED])
WITH_HOLES = (
    by_index(select(_B.block_id, _B.live_bytes, _B.dead_bytes, _since_ms), BLOCKS, "PRIMARY")
    .where(_B.block_id > bindparam("after"), _is_sealed, _B.dead_bytes > 0, _holds_survivors)
    .where(or_(_is_cool, _B.gc_failures == 0))
    .order_by(_B.block_id)
    .limit(bindparam("rows_max"))
)
_is_empty = and_(_B.state == BlockState.SEALED, _B.live_objects == 0)
SPACE_USE = select(
    *(
        cast(func.coalesce(func.sum(of), 0), BigInteger)
        for of in (_B.live_bytes + _B.dead_bytes, _B.live_bytes, case((_is_empty, _B.dead_bytes), else_=0))
    )
).where(_B.state != BlockState.CONDEMNED)


wait_reason = case(
    (_B.state == BlockState.OPEN, WaitReason.OPEN.value),
    (_B.state == BlockState.FENCED, WaitReason.FENCED.value),
    (_B.state == BlockState.CONDEMNED, WaitReason.CONDEMNED.value),
    (or_(_B.live_objects == 0, _B.kind == BlockKind.LARGE), None),
    (
        _wasted_bytes < bindparam("ratio_min", type_=_Exact()) * (_B.live_bytes + _wasted_bytes),
        WaitReason.TOO_FULL.value,
    ),
    (
        and_(~_is_cool, or_(_B.gc_failures > 0, bindparam("ratio_min", type_=_Exact()) > 0)),
        WaitReason.SET_ASIDE.value,
    ),
    else_=None,
)
wait_until_ms = case(
    (_B.state == BlockState.CONDEMNED, _B.delete_after_ms),
    (wait_reason == WaitReason.SET_ASIDE.value, _B.gc_not_before_ms),
    else_=None,
)
_freed_bytes = case((_B.state == BlockState.CONDEMNED, _B.live_bytes + _wasted_bytes), else_=_B.dead_bytes)
_EACH = (
    select(wait_reason.label("reason"), _freed_bytes.label("dead_bytes"), wait_until_ms.label("until_ms"))
    .where(or_(_B.dead_bytes > 0, _B.state == BlockState.CONDEMNED))
    .subquery()
)
WAITING = (
    select(
        _EACH.c.reason,
        func.count().label("blocks"),
        cast(func.sum(_EACH.c.dead_bytes), BigInteger).label("dead_bytes"),
        func.min(_EACH.c.until_ms).label("until_ms"),
    )
    .where(_EACH.c.reason.is_not(None))
    .group_by(_EACH.c.reason)
)


def _condemned(until: ColumnElement[bool]) -> Select[Any]:
    return (
        by_index(select(*BLOCK_COLUMNS), BLOCKS, "blocks_by_grace")
        .where(_B.state == BlockState.CONDEMNED, until)
        .order_by(_B.delete_after_ms)
        .limit(bindparam("rows_max"))
    )


CONDEMNED = _OfShare(_condemned(_B.delete_after_ms <= bindparam("now_ms")))
# Only its time keeps a block in quarantine, so a clock that was set back must not end the quarantine.
FAR_CONDEMNED = _OfShare(_condemned(and_(_B.delete_after_ms > bindparam("far_ms"), _B.writer != QUARANTINE)))
# Blocks in quarantine are skipped row by row. Few end earlier than the others, because GC deletes due blocks first.
IN_GRACE = _condemned(_B.writer != QUARANTINE)
PLACED = union_all(
    select(
        *(_O.object_id, _O.bucket, _O.name, _O.version, _O.block_offset, _O.size.label("length"), _O.crc32c),
        *(_O.attributes, _O.trashed),
    ).where(_O.block_id == bindparam("block_id")),
    select(_S.object_id, _O.bucket, _O.name, _S.version, _S.block_offset, _S.length, _S.crc32c, null(), _O.trashed)
    .join_from(SEGMENTS, OBJECTS, and_(_O.object_id == _S.object_id, _O.version == _S.version))
    .where(_S.block_id == bindparam("block_id")),
)

_EMPTY = dict.fromkeys(("stripes", "live_bytes", "dead_bytes", "overhead_bytes", "live_objects"), 0)


def lock(connection: Connection, block_id: BlockId) -> BlockRow | None:
    """Return the block's row, locked until the transaction ends."""
    row = connection.execute(BY_ID.with_for_update(), {"block_id": block_id}).first()
    return None if row is None else block_row(row)


class SqlBlocks(SqlPart):
    """`Blocks` of the port."""

    @reads
    def block(self, connection: Connection, block_id: BlockId) -> BlockRow:
        row = connection.execute(BY_ID, {"block_id": block_id}).first()
        if row is None:
            raise NotFound(f"block {block_id.hex()} has no row", block_id=block_id)
        return block_row(row)

    @reads
    def list_blocks(self, connection: Connection, after: BlockId | None, limit: int) -> list[BlockRow]:
        found = select(*BLOCK_COLUMNS).order_by(_B.block_id).limit(limit)
        if after is not None:
            found = found.where(_B.block_id > after)
        return [block_row(row) for row in connection.execute(found)]

    @reads
    def list_block_figures(self, connection: Connection, after: BlockId | None, limit: int) -> list[BlockFigures]:
        page = {"after": after or _BEFORE_ALL, "rows_max": limit}
        return [BlockFigures(*row) for row in connection.execute(FIGURES, page)]

    @reads
    def placed_in(self, connection: Connection, block_id: BlockId) -> list[Placed]:
        # One statement, so that it sees a single point in time.
        placed = [
            Placed(
                object_id,
                ObjectKey(bucket, name),
                version,
                Extent(block_id, offset, length),
                crc32c,
                attributes,
                place_of(trashed)[0] or None if trashed else None,
            )
            for object_id, bucket, name, version, offset, length, crc32c, attributes, trashed in connection.execute(
                PLACED, {"block_id": block_id}
            )
        ]
        return sorted(placed, key=lambda one: (one.extent.offset, one.object_id))

    @writes
    def allocate_block(
        self, connection: Connection, lease: Lease, block_id: BlockId, kind: BlockKind, now_ms: int
    ) -> None:
        leases.require(connection, lease)
        found = lock(connection, block_id)
        if found is not None:
            same = (found.writer, found.epoch, found.kind, found.state, found.stripes)
            if same == (lease.name, lease.epoch, kind, BlockState.OPEN, 0):
                return
            raise Conflict(f"block {block_id.hex()} already exists; an id is never used again", block_id=block_id)
        state = advance_block(None, BlockEvent.ALLOCATE)
        made: dict[str, Any] = {"block_id": block_id, "kind": kind, "state": state, "created_ms": now_ms}
        connection.execute(insert(BLOCKS), made | _EMPTY | {"writer": lease.name, "epoch": lease.epoch})

    @writes
    def seal_block(self, connection: Connection, lease: Lease, block_id: BlockId, now_ms: int) -> None:
        leases.require(connection, lease)
        found = lock(connection, block_id)
        if found is None:
            raise NotFound(f"block {block_id.hex()} has no row", block_id=block_id)
        if not _is_of(found, lease) or found.state is BlockState.FENCED:
            raise LeaseLost(
                f"block {block_id.hex()} was taken from writer {lease.name!r}, which must not write to it",
                block_id=block_id,
            )
        if found.state is BlockState.OPEN:
            sealed = {"state": advance_block(found.state, BlockEvent.SEAL), "sealed_ms": now_ms}
            connection.execute(update(BLOCKS).where(_B.block_id == block_id).values(sealed))

    @writes
    def fence_block(self, connection: Connection, lease: Lease, block_id: BlockId) -> None:
        mine = and_(
            _B.block_id == block_id, _B.writer == lease.name, _B.epoch == lease.epoch, _B.state == BlockState.OPEN
        )
        fenced = {"state": advance_block(BlockState.OPEN, BlockEvent.FENCE)}
        connection.execute(by_primary(update(BLOCKS)).where(mine).values(fenced))

    @writes
    def forget_unwritten(self, connection: Connection, lease: Lease, block_id: BlockId) -> bool:
        found = lock(connection, block_id)
        if found is None or not _is_of(found, lease) or found.state is not BlockState.OPEN or found.stripes:
            return False
        connection.execute(delete(BLOCKS).where(_B.block_id == block_id))
        return True

    @reads
    def fenced_blocks(self, connection: Connection, limit: int) -> list[BlockRow]:
        return [block_row(row) for row in connection.execute(FENCED, {"rows_max": limit})]

    def seal_reconciled(
        self, block_id: BlockId, stripes: int, live_bytes: int, dead_bytes: int, live_objects: int, now_ms: int
    ) -> bool:
        found = (stripes, live_bytes, dead_bytes, live_objects)
        return self._write(_seal_reconciled, self._bound(), block_id, *found, now_ms)

    @reads
    def empty_blocks(self, connection: Connection, limit: int, share: Share = WHOLE) -> list[BlockRow]:
        return EMPTY.rows(connection, {"rows_max": limit}, share)

    @reads
    def gc_candidates(
        self,
        connection: Connection,
        waste_ratio_min: float,
        now_ms: int,
        cool_down_ms_max: int,
        limit: int,
        share: Share = WHOLE,
        *,
        overhead_ratio_min: float = 0.0,
    ) -> list[BlockRow]:
        limits = {"ppm_min": int(waste_ratio_min * _PPM), "ratio_min": waste_ratio_min, "rows_max": limit}
        limits["overhead_min"] = overhead_ratio_min
        return _most_wasteful(connection, CANDIDATES, limits, now_ms, cool_down_ms_max, share)

    @reads
    def padded_blocks(
        self,
        connection: Connection,
        overhead_ratio_min: float,
        price_days: float,
        now_ms: int,
        cool_down_ms_max: int,
        limit: int,
        share: Share = WHOLE,
    ) -> list[BlockRow]:
        limits = {"ppm_min": int(overhead_ratio_min * _PPM), "overhead_min": overhead_ratio_min, "rows_max": limit}
        limits |= {"until_ms": float(now_ms), "price_ms": price_days * _DAY_MS}
        return _most_wasteful(connection, PADDED, limits, now_ms, cool_down_ms_max, share)

    @reads
    def space_use(self, connection: Connection) -> SpaceUse:
        row = connection.execute(SPACE_USE).one()
        return SpaceUse(row[0], row[1], row[2])

    @reads
    def blocks_with_holes(
        self, connection: Connection, after: BlockId | None, now_ms: int, cool_down_ms_max: int, limit: int
    ) -> list[SealedBlock]:
        page = {"after": after or _BEFORE_ALL, "now_ms": now_ms, "far_ms": now_ms + cool_down_ms_max, "rows_max": limit}
        return [
            SealedBlock(block_id, live_bytes, dead_bytes, (now_ms - since_ms) / _DAY_MS)
            for block_id, live_bytes, dead_bytes, since_ms in connection.execute(WITH_HOLES, page)
        ]

    @reads
    def waiting_blocks(
        self, connection: Connection, waste_ratio_min: float, now_ms: int, cool_down_ms_max: int
    ) -> list[WaitingBlocks]:
        limits = {"ratio_min": waste_ratio_min, "now_ms": now_ms, "far_ms": now_ms + cool_down_ms_max}
        found = {row.reason: row for row in connection.execute(WAITING, limits)}
        return [
            WaitingBlocks(reason, row.blocks, row.dead_bytes, row.until_ms)
            for reason in WaitReason
            if (row := found.get(reason.value)) is not None
        ]

    @writes
    def cool_down_block(self, connection: Connection, block_id: BlockId, not_before_ms: int, *, failed: bool) -> None:
        sealed = and_(_B.block_id == block_id, _B.state == BlockState.SEALED)
        later = {"gc_not_before_ms": not_before_ms, "gc_failures": _B.gc_failures + 1 if failed else 0}
        connection.execute(by_primary(update(BLOCKS)).where(sealed).values(later))

    @writes
    def condemn_block(self, connection: Connection, block_id: BlockId, delete_after_ms: int) -> bool:
        # Once the row is locked and SEALED, no commit can put an object into the block.
        found = lock(connection, block_id)
        if found is None or found.state is not BlockState.SEALED:
            return False
        used = select(exists().where(_O.block_id == block_id), exists().where(_S.block_id == block_id))
        if any(connection.execute(used).one()):
            return False
        doomed = {"state": advance_block(found.state, BlockEvent.CONDEMN), "delete_after_ms": delete_after_ms}
        connection.execute(update(BLOCKS).where(_B.block_id == block_id).values(doomed))
        return True

    @reads
    def condemned_blocks(self, connection: Connection, now_ms: int, limit: int, share: Share = WHOLE) -> list[BlockRow]:
        found = CONDEMNED.rows(connection, {"now_ms": now_ms, "rows_max": limit}, share)
        if len(found) < limit:
            far = {"far_ms": now_ms + WAIT_MS_MAX, "rows_max": limit - len(found)}
            found += FAR_CONDEMNED.rows(connection, far, share)
        return found

    @reads
    def blocks_in_grace(self, connection: Connection, limit: int) -> list[BlockRow]:
        return [block_row(row) for row in connection.execute(IN_GRACE, {"rows_max": limit})]

    @writes
    def forget_block(self, connection: Connection, block_id: BlockId) -> None:
        # A block that was not condemned raises Conflict, because its data may be in use.
        found = lock(connection, block_id)
        if found is None:
            return
        if found.state is not BlockState.CONDEMNED:
            raise Conflict(
                f"block {block_id.hex()} is {found.state.value}; only a condemned block may be forgotten",
                block_id=block_id,
            )
        count_deleted(connection, found.kind, found.live_bytes + found.dead_bytes)
        connection.execute(delete(BLOCKS).where(_B.block_id == block_id))


def seal_large(
    connection: Connection,
    geometry: Geometry,
    new: NewLargeObject,
    lease: Lease,
    now_ms: int,
    *,
    live: bool,
    condemned: bool,
) -> BlockState:
    """Seal the blocks of a large object, and count its bytes as live or dead. If `condemned`, condemn them at once: no
    row has ever referred to them, so they need no grace period. Return their state before the call: OPEN, or the state
    that an earlier call has set.

    Raises LeaseLost when one of the blocks was taken from the writer, NotFound when one was never allocated.
    """
    found = _lock_listed(connection, [segment.extent.block_id for segment in new.segments])
    if any(not _is_of(row, lease) or row.state is BlockState.FENCED for row in found.values()):
        raise LeaseLost(
            f"a block of {new.key} was taken from writer {lease.name!r}; write the object again", key=new.key
        )
    for row in found.values():
        if row.state is not BlockState.OPEN:
            return row.state
    sealed = advance_block(BlockState.OPEN, BlockEvent.SEAL)
    for segment, stripes in zip(new.segments, new.block_stripes, strict=True):
        data = segment.extent.length
        counters = {
            "state": advance_block(sealed, BlockEvent.CONDEMN) if condemned else sealed,
            "delete_after_ms": now_ms if condemned else None,
            "sealed_ms": now_ms,
            "stripes": stripes,
            "live_bytes": data if live else 0,
            "dead_bytes": 0 if live else data,
            "overhead_bytes": stripes * geometry.stripe_size - data,
            "live_objects": int(live),
        }
        connection.execute(update(BLOCKS).where(_B.block_id == segment.extent.block_id).values(counters))
    return BlockState.OPEN


def _lock_listed(connection: Connection, block_ids: list[BlockId]) -> dict[BlockId, BlockRow]:
    found = {row.block_id: row for row in map(block_row, connection.execute(LOCK_IDS, id_rows(block_ids)))}
    missing = [block_id.hex() for block_id in block_ids if block_id not in found]
    if missing:
        raise NotFound(f"blocks {', '.join(missing)} have no row; allocate a block before writing it")
    return found


def _seal_reconciled(
    connection: Connection,
    geometry: Geometry,
    block_id: BlockId,
    stripes: int,
    live_bytes: int,
    dead_bytes: int,
    live_objects: int,
    now_ms: int,
) -> bool:
    overhead_bytes = stripes * geometry.stripe_size - live_bytes - dead_bytes
    if min(stripes, live_bytes, dead_bytes, live_objects, overhead_bytes) < 0:
        raise ValueError(f"block {block_id.hex()}: {live_bytes} + {dead_bytes} bytes do not fit into {stripes} stripes")
    as_found = and_(_B.block_id == block_id, _B.state == BlockState.FENCED, _B.live_bytes == live_bytes)
    counters = {
        "state": advance_block(BlockState.FENCED, BlockEvent.SEAL),
        "sealed_ms": now_ms,
        "stripes": stripes,
        "dead_bytes": dead_bytes,
        "overhead_bytes": overhead_bytes,
        "live_objects": live_objects,
    }
    return connection.execute(by_primary(update(BLOCKS)).where(as_found).values(counters)).rowcount == 1


def _most_wasteful(
    connection: Connection,
    query: _OfShare,
    limits: Mapping[str, float],
    now_ms: int,
    cool_down_ms_max: int,
    share: Share,
) -> list[BlockRow]:
    times = {"now_ms": now_ms, "far_ms": now_ms + cool_down_ms_max}
    found = query.rows(connection, {**limits, **times}, share)
    return sorted(found, key=lambda row: row.waste_ratio, reverse=True)


def _is_of(row: BlockRow, lease: Lease) -> bool:
    return row.writer == lease.name and row.epoch == lease.epoch
