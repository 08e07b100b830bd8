"""Leases: who may write, and the proof of it inside every transaction that depends on it (invariant 8)."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from nos_ec.adapters.sql.schema import BLOCKS, COUNTERS, LEASES, WRITER_BYTES_MAX, utf8
from nos_ec.core.errors import Conflict, InvalidInput, LeaseLost
from nos_ec.core.lifecycle import BlockState
from nos_ec.ports.metadata import Lease

_L, _B, _C = LEASES.c, BLOCKS.c, COUNTERS.c
_EPOCH = _C.name == "lease_epoch"


def acquire(connection: Connection, name: str, now_ms: int, ttl_ms: int) -> Lease:
    """See `Metadata.acquire_lease`."""
    if not 0 < len(utf8(name)) <= WRITER_BYTES_MAX:
        raise InvalidInput(f"a writer's name must have 1 to {WRITER_BYTES_MAX} bytes of UTF-8; this one is {name!r}")
    # The counter's row lock makes concurrent calls take turns, so the look for the lease below sees the winner's.
    connection.execute(update(COUNTERS).where(_EPOCH).values(value=_C.value + 1))
    held = connection.execute(select(_L.expires_ms).where(_L.name == name).with_for_update()).first()
    if held is not None:
        raise Conflict(f"lease {name!r} is taken until {held.expires_ms} ms; once expired it must be fenced first")
    epoch = connection.execute(select(_C.value).where(_EPOCH)).scalar_one()
    lease = Lease(name, epoch, now_ms + ttl_ms)
    connection.execute(insert(LEASES).values(name=name, epoch=epoch, expires_ms=lease.expires_ms))
    return lease


def renew(connection: Connection, lease: Lease, now_ms: int, ttl_ms: int) -> Lease:
    """See `Metadata.renew_lease`."""
    expires_ms = now_ms + ttl_ms
    if connection.execute(update(LEASES).where(_is(lease)).values(expires_ms=expires_ms)).rowcount == 0:
        raise _lost(lease)
    return Lease(lease.name, lease.epoch, expires_ms)


def release(connection: Connection, lease: Lease) -> None:
    """See `Metadata.release_lease`."""
    connection.execute(delete(LEASES).where(_is(lease)))
    _fence_blocks(connection, lease)


def expired(connection: Connection, now_ms: int) -> list[Lease]:
    """See `Metadata.expired_leases`."""
    found = select(_L.name, _L.epoch, _L.expires_ms).where(_L.expires_ms <= now_ms).order_by(_L.expires_ms)
    return [Lease(*row) for row in connection.execute(found)]


def fence(connection: Connection, lease: Lease, now_ms: int) -> bool:
    """See `Metadata.fence_lease`."""
    gone = connection.execute(delete(LEASES).where(_is(lease), _L.expires_ms <= now_ms)).rowcount
    if gone:
        _fence_blocks(connection, lease)
    return bool(gone)


def require(connection: Connection, lease: Lease) -> None:
    """Raises LeaseLost unless the lease is held. It stays held until this transaction ends: fencing waits for it.

    Shared, so that commits of one writer to several blocks do not wait for each other.
    """
    if connection.execute(select(_L.epoch).where(_is(lease)).with_for_update(read=True)).first() is None:
        raise _lost(lease)


def _is(lease: Lease) -> ColumnElement[bool]:
    return and_(_L.name == lease.name, _L.epoch == lease.epoch)


def _fence_blocks(connection: Connection, lease: Lease) -> None:
    mine = and_(_B.writer == lease.name, _B.epoch == lease.epoch, _B.state == BlockState.OPEN)
    connection.execute(update(BLOCKS).where(mine).values(state=BlockState.FENCED))


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"writer {lease.name!r} no longer holds its lease of epoch {lease.epoch}; it must stop writing")
