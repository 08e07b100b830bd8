"""Facts and sums about the whole store."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import BigInteger, Connection, cast, func, insert, select

from nos_ec.adapters.sql import leases
from nos_ec.adapters.sql.rows import by_index
from nos_ec.adapters.sql.schema import BLOCKS, LANDING_DELETIONS, OBJECTS, SEGMENTS, STORE_INFO
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry
from nos_ec.core.lifecycle import BlockKind, ObjectState
from nos_ec.core.slots import ALL_SLOTS, LEASE_PREFIX
from nos_ec.ports.metadata import Totals

_B, _O = BLOCKS.c, OBJECTS.c


def bind_geometry(connection: Connection, geometry: Geometry) -> None:
    """See `Metadata.bind_geometry`."""
    bound = find_geometry(connection)
    if bound is None:
        connection.execute(insert(STORE_INFO).values(name="geometry", value=json.dumps(asdict(geometry))))
    elif bound != geometry:
        raise ConfigError(
            f"this store was created with {bound}, but {geometry} is configured;"
            " correct the configuration, or create another store for that geometry"
        )


def find_geometry(connection: Connection) -> Geometry | None:
    """The geometry that the store is bound to, if any."""
    value = connection.execute(select(STORE_INFO.c.value).where(STORE_INFO.c.name == "geometry")).scalar()
    return None if value is None else Geometry(**json.loads(value))


def find_store_id(connection: Connection) -> str | None:
    """The id that distinguishes this store from all others, if there is one."""
    found = connection.execute(select(STORE_INFO.c.value).where(STORE_INFO.c.name == "store_id")).scalar()
    return None if found is None else str(found)


def claim_store_id(connection: Connection, store_id: str) -> str:
    """Return the store's id. If there is none yet, `store_id` becomes it. If two calls do this at once, both return the
    winner's id."""
    found = find_store_id(connection)
    if found is None:
        connection.execute(insert(STORE_INFO).values(name="store_id", value=store_id))
    return found or store_id


def totals(connection: Connection) -> Totals:
    """See `Metadata.totals`."""
    blocks = connection.execute(_BLOCK_SUMS).all()
    landed = {row.state: (row.objects, row.bytes) for row in connection.execute(_LANDED_SUMS)}
    return Totals(
        blocks={(row.kind, row.state): row.blocks for row in blocks},
        stripes=sum(row.stripes for row in blocks),
        live_bytes=sum(row.live_bytes for row in blocks),
        dead_bytes=sum(row.dead_bytes for row in blocks),
        overhead_bytes=sum(row.overhead_bytes for row in blocks),
        packed_objects=sum(row.live_objects for row in blocks if row.kind is not BlockKind.LARGE),
        large_objects=connection.execute(_LARGE_OBJECTS).scalar_one(),
        large_bytes=sum(row.live_bytes for row in blocks if row.kind is BlockKind.LARGE),
        landed_objects=landed.get(ObjectState.LANDED, (0, 0))[0],
        landed_bytes=landed.get(ObjectState.LANDED, (0, 0))[1],
        queued_objects=landed.get(ObjectState.QUEUED, (0, 0))[0],
        queued_bytes=landed.get(ObjectState.QUEUED, (0, 0))[1],
        landing_deletions=connection.execute(select(func.count()).select_from(LANDING_DELETIONS)).scalar_one(),
        leases=connection.execute(_WRITER_LEASES).scalar_one(),
    )


def _sum(of: Any, name: str) -> Any:
    """SUM as an integer, because MySQL's SUM is a decimal."""
    return cast(func.sum(of), BigInteger).label(name)


_WRITER_LEASES = select(func.count()).where(~leases.begins_with(LEASE_PREFIX))
_BLOCK_SUMS = select(
    _B.kind,
    _B.state,
    func.count().label("blocks"),
    _sum(_B.stripes, "stripes"),
    _sum(_B.live_bytes, "live_bytes"),
    _sum(_B.dead_bytes, "dead_bytes"),
    _sum(_B.overhead_bytes, "overhead_bytes"),
    _sum(_B.live_objects, "live_objects"),
).group_by(_B.kind, _B.state)
# Reads as many rows as large objects have blocks, which is no more work than the sums over blocks.
_LARGE_OBJECTS = select(func.count()).where(SEGMENTS.c.part == 0)
# The slots are listed so that the index of due objects, which starts with them, can be used.
_LANDED_SUMS = (
    by_index(select(_O.state, func.count().label("objects"), _sum(_O.size, "bytes")), OBJECTS, "objects_due_by_slot")
    .where(_O.slot.in_(sorted(ALL_SLOTS)), _O.due_ms.is_not(None))
    .group_by(_O.state)
)
