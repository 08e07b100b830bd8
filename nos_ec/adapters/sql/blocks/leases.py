"""Leases, which show which process may write. Every transaction that depends on a lease checks it (invariant 8)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    insert,
    literal,
    or_,
    select,
    update,
)

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import IDS, id_rows
from nos_ec.adapters.sql.tables.schema import BLOCKS, COUNTERS, LEASES, STORE_INFO, WRITER_BYTES_MAX, utf8
from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import Conflict, InvalidInput, LeaseLost
from nos_ec.core.states import BlockEvent, BlockState, advance_block
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import Lease

_L, _B, _C, _I = LEASES.c, BLOCKS.c, COUNTERS.c, STORE_INFO.c
_EPOCH = _C.name == "lease_epoch"
_NAMES = JsonRows("names", name=WRITER_BYTES_MAX)
_LOCK_NAMED = looked_up(
    select(_L.name).join_from(_NAMES.table, LEASES, _L.name == _NAMES["name"]).with_for_update(), LEASES
)
_IS = and_(_L.name == bindparam("held", type_=_L.name.type), _L.epoch == bindparam("in_epoch"))
"""The condition that a row is this lease. `_of` makes its parameters."""
_HOLD = select(_L.epoch).where(_IS).with_for_update(read=True)
_FENCED = advance_block(BlockState.OPEN, BlockEvent.FENCE)
_FENCE = (
    UpdateListed(BLOCKS)
    .where(_B.block_id == IDS["id"])
    .values(state=case((_B.state == BlockState.OPEN, _FENCED), else_=_B.state))
)


class SqlLeases(SqlPart):
    """`Leases` of the port."""

    @writes
    def acquire_lease(self, connection: Connection, name: str, now_ms: int, ttl_ms: int, holder: str = "") -> Lease:
        taken = acquire_free(connection, [name], now_ms, ttl_ms)
        if not taken:
            raise _taken(connection, name, now_ms)
        if holder:
            # The note has no column in the lease's row. Its epoch shows whether it is about the present holder.
            connection.execute(delete(STORE_INFO).where(_I.name == _holder_row(name)))
            note = {"name": _holder_row(name), "value": f"{taken[0].epoch} {holder}"}
            connection.execute(insert(STORE_INFO), note)
        return taken[0]

    @writes
    def renew_lease(self, connection: Connection, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
        expires_ms = now_ms + ttl_ms
        if connection.execute(update(LEASES).where(_IS).values(expires_ms=expires_ms), _of(lease)).rowcount == 0:
            raise _lost(lease)
        return Lease(lease.name, lease.epoch, expires_ms)

    @writes
    def release_lease(self, connection: Connection, lease: Lease) -> None:
        release_all(connection, [lease])

    def acquire_leases(self, names: Sequence[str], now_ms: int, ttl_ms: int) -> list[Lease]:
        return self._write(acquire_free, names, now_ms, ttl_ms) if names else []

    def renew_leases(self, held: Sequence[Lease], now_ms: int, ttl_ms: int) -> list[Lease]:
        return self._write(_renew_leases, held, now_ms, ttl_ms) if held else []

    def release_leases(self, held: Sequence[Lease]) -> None:
        if held:
            self._write(release_all, held)

    @reads
    def list_leases(self, connection: Connection, prefix: str) -> list[Lease]:
        return _listed(connection, begins_with(prefix))

    @reads
    def expired_leases(self, connection: Connection, now_ms: int) -> list[Lease]:
        found = select(_L.name, _L.epoch, _L.expires_ms).where(_over(now_ms)).order_by(_L.expires_ms)
        return [Lease(*row) for row in connection.execute(found)]

    @writes
    def fence_lease(self, connection: Connection, lease: Lease, now_ms: int) -> bool:
        gone = connection.execute(delete(LEASES).where(_IS, _over(now_ms)), _of(lease)).rowcount
        if gone:
            _fence_blocks(connection, lease)
        return bool(gone)


def _taken(connection: Connection, name: str, now_ms: int) -> Conflict:
    epoch, expires_ms = connection.execute(select(_L.epoch, _L.expires_ms).where(_L.name == name)).one()
    note = connection.execute(select(_I.value).where(_I.name == _holder_row(name))).scalar() or ""
    whose, _, holder = str(note).partition(" ")
    by = f" by {holder}" if holder and whose == str(epoch) else ""
    until = datetime.fromtimestamp(expires_ms / 1000, UTC).isoformat(timespec="seconds")
    if not waits(expires_ms, now_ms, LEASE_MS_MAX):
        return Conflict(
            f"lease {name!r} was held{by} until {until} and has run out; the next consumer or GC run fences it, and"
            " then it is free: try again"
        )
    return Conflict(
        f"lease {name!r} is held{by} until {until}, {(expires_ms - now_ms) / 1000:.0f} s from now, and longer while its"
        " holder is alive and renews it: let the holder finish, or stop it; if it died, try again after that time"
    )


def _holder_row(name: str) -> str:
    return f"holder of {name}"[:32]


def acquire_free(connection: Connection, names: Sequence[str], now_ms: int, ttl_ms: int) -> list[Lease]:
    """Acquire the free leases among these names, and return them. Raises InvalidInput for an invalid name."""
    for name in names:
        if not 0 < len(utf8(name)) <= WRITER_BYTES_MAX:
            raise InvalidInput(f"a lease's name must have 1 to {WRITER_BYTES_MAX} bytes of UTF-8; this one is {name!r}")
    # The counter's row is locked, so concurrent calls take turns, and the query below sees the leases of earlier calls.
    connection.execute(update(COUNTERS).where(_EPOCH).values(value=_C.value + len(names)))
    held = set(connection.execute(_LOCK_NAMED, _NAMES.dump((name,) for name in sorted(map(utf8, names)))).scalars())
    free = [name for name in dict.fromkeys(names) if name not in held]
    if not free:
        return []
    last = connection.execute(select(_C.value).where(_EPOCH)).scalar_one()
    leases = [Lease(name, epoch, now_ms + ttl_ms) for epoch, name in enumerate(free, last - len(names) + 1)]
    rows = [{"name": one.name, "epoch": one.epoch, "expires_ms": one.expires_ms} for one in leases]
    connection.execute(insert(LEASES), rows)
    return leases


def _renew_leases(connection: Connection, held: Sequence[Lease], now_ms: int, ttl_ms: int) -> list[Lease]:
    connection.execute(update(LEASES).where(_among(held)).values(expires_ms=now_ms + ttl_ms))
    return _listed(connection, _among(held))


def release_all(connection: Connection, held: Sequence[Lease]) -> None:
    """Release these leases as far as they are held, and fence their OPEN blocks."""
    # Each lease has its own statement, because planners would read all leases, or all blocks, for several at once.
    for lease in sorted(held, key=lambda lease: lease.name):
        connection.execute(delete(LEASES).where(_IS), _of(lease))
    for lease in held:
        _fence_blocks(connection, lease)


def begins_with(prefix: str) -> ColumnElement[bool]:
    """Return the condition that a lease's name begins with `prefix`. It is a range of the primary key."""
    # UTF-8 has no byte 0xFF, so every name with this prefix sorts below the end of the range.
    first, end = (literal(value, _L.name.type) for value in (utf8(prefix), utf8(prefix) + b"\xff"))
    return and_(_L.name >= first, _L.name < end)


def require(connection: Connection, lease: Lease) -> None:
    """Raise LeaseLost unless the lease is held. It stays held until this transaction ends: fencing waits for it.

    The lock is shared, so that commits of one writer to several blocks do not wait for each other.
    """
    if connection.execute(_HOLD, _of(lease)).first() is None:
        raise _lost(lease)


def _over(now_ms: int) -> ColumnElement[bool]:
    """Return the condition for expired leases (see `waits`). It needs no index, because there are about as many leases
    as processes."""
    return or_(_L.expires_ms <= now_ms, _L.expires_ms > now_ms + LEASE_MS_MAX)


def _of(lease: Lease) -> dict[str, str | int]:
    return {"held": lease.name, "in_epoch": lease.epoch}


def _among(held: Sequence[Lease]) -> ColumnElement[bool]:
    """Return the condition that a row is one of these leases. An epoch belongs to one name for ever, so names and
    epochs need not be compared in pairs."""
    return and_(_L.name.in_([one.name for one in held]), _L.epoch.in_([one.epoch for one in held]))


def _listed(connection: Connection, which: ColumnElement[bool]) -> list[Lease]:
    found = select(_L.name, _L.epoch, _L.expires_ms).where(which).order_by(_L.name)
    return [Lease(*row) for row in connection.execute(found)]


def _fence_blocks(connection: Connection, lease: Lease) -> None:
    """Fence the OPEN blocks of a lease that this transaction has removed. No new ones can appear.

    One statement only reads, and another changes the blocks by their ids alone. A single statement for both may walk an
    index on the state, and miss a block that a concurrent commit moves to a place that it has passed (sql_races.py).
    """
    mine = and_(_B.writer == lease.name, _B.epoch == lease.epoch, _B.state == BlockState.OPEN)
    found = connection.execute(select(_B.block_id).where(mine)).scalars().all()
    if found:
        connection.execute(_FENCE, id_rows(found))


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"writer {lease.name!r} no longer holds its lease of epoch {lease.epoch}; it must stop writing")
