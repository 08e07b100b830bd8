"""`bench scan` measures how many rows per second a producer finds, publishes and marks, with few and with many waiting
rows.

The rows are copied on the server. They have no landing copies, because a producer never reads those.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Engine, LargeBinary, and_, bindparam, func, insert, select, text

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.objects import waiting
from nos_ec.adapters.sql.tables.rows import LIVE, OBJECT_COLUMNS, object_row
from nos_ec.adapters.sql.tables.schema import OBJECTS, WAITING
from nos_ec.bench.bare import Timer
from nos_ec.bench.objects import key_of
from nos_ec.composition.wiring import System
from nos_ec.core.states import ObjectEvent, advance_object
from nos_producer.assemble import producer_service

SEED_ROWS = 10_000
"""Rows created by this process; the others are copies of them under other names."""
OBJECT_BYTES = 20_000
WRITE_OUT_S_MAX = 120.0
DIRTY_MAX = 0.01
"""Share of the server's buffer pool that may still be dirty when the measurement starts."""
_PAGES = text("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_%'")
_O, _W = OBJECTS.c, WAITING.c
_COPIED = [name for name in OBJECTS.c.keys() if name not in ("object_id", "name", "landing_id")]  # noqa: SIM118
_SUFFIX = bindparam("suffix", type_=LargeBinary)

COPY = insert(OBJECTS).from_select(
    [*_COPIED, "name", "landing_id"],
    select(
        *(_O[name] for name in _COPIED),
        func.concat(_O.name, _SUFFIX),
        func.unhex(func.md5(func.concat(_O.name, _SUFFIX))),
    ).where(_O.object_id <= bindparam("last_id", type_=BigInteger)),
)
"""Makes one copy of the rows that this process created."""
_COPIES = OBJECTS.alias("copies")
COPY_WAITING = insert(WAITING).from_select(
    _W.keys(),
    select(_COPIES.c.landing_id, _COPIES.c.object_id, _W.slot, _W.due_ms, _COPIES.c.state, _COPIES.c.size)
    .join_from(OBJECTS, WAITING, _W.landing_id == _O.landing_id)
    .join(
        _COPIES,
        and_(
            _COPIES.c.trashed == LIVE,
            _COPIES.c.bucket == _O.bucket,
            _COPIES.c.name == func.concat(_O.name, _SUFFIX),
        ),
    )
    .where(_O.object_id <= bindparam("last_id", type_=BigInteger)),
)
"""Adds waiting entries for the rows that COPY has made with the same parameters."""


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of `bench scan`. `few_rows` and `many_rows` wait during the two measurements. `batches` of the producer
    are measured."""

    few_rows: int
    many_rows: int
    batches: int
    seed: int


def scan(system: System, options: ScanOptions, timer: Timer) -> dict[str, Any]:
    """Run both measurements, and return the figures (docs/BENCH.md explains them). Raises NosError."""
    engine = make_engine(system.settings.store.url())
    try:
        with engine.begin() as connection:
            last_id = _make_rows(connection, system.clock.now_ms(), random.Random(options.seed))
        rates: list[float] = []
        made = 1
        for rows in (options.few_rows, options.many_rows):
            wanted = -(-rows // SEED_ROWS)
            for copy in range(made, wanted):
                with engine.begin() as connection:
                    asked = {"suffix": b"-%d" % copy, "last_id": last_id}
                    connection.execute(COPY, asked)
                    connection.execute(COPY_WAITING, asked)
            made = wanted
            _await_written(engine)
            rates.append(_rate(system, options.batches, timer))
    finally:
        engine.dispose()
    return {
        "few_rows": options.few_rows,
        "many_rows": options.many_rows,
        "rows_per_s_few": rates[0],
        "rows_per_s_many": rates[1],
        "many_over_few": rates[1] / rates[0],
    }


def _await_written(engine: Engine) -> None:
    """Wait until the server has written the pages that copying has made dirty. In practice, waiting rows were written
    long ago, so the measurement must not include this work."""
    deadline_s = time.monotonic() + WRITE_OUT_S_MAX
    while time.monotonic() < deadline_s:
        with engine.connect() as connection:
            status = {name: int(value) for name, value in connection.execute(_PAGES)}
        if status["Innodb_buffer_pool_pages_dirty"] <= DIRTY_MAX * status["Innodb_buffer_pool_pages_total"]:
            return
        time.sleep(0.5)


def _make_rows(connection: Connection, now_ms: int, rng: random.Random) -> int:
    """Create SEED_ROWS landed objects that are due. Returns their highest id."""
    connection.execute(insert(OBJECTS), [_row(number, now_ms, rng) for number in range(SEED_ROWS)])
    rows = [object_row(row) for row in connection.execute(select(*OBJECT_COLUMNS))]
    waiting.enter(connection, [(row, now_ms) for row in rows])
    return max(row.object_id for row in rows)


def _row(number: int, now_ms: int, rng: random.Random) -> dict[str, Any]:
    key = key_of(number)
    return {
        "bucket": key.bucket,
        "name": key.name,
        "version": now_ms * 1000,
        "size": OBJECT_BYTES,
        "crc32c": 0,
        "md5": bytes(16),
        "state": advance_object(None, ObjectEvent.LAND),
        "landing_id": rng.randbytes(16),
        "block_id": None,
        "block_offset": None,
        "created_ms": now_ms,
    }


def _rate(system: System, batches: int, timer: Timer) -> float:
    """Return the rows per second of a producer over this many batches, after a warm-up batch."""
    with producer_service(system) as producer:
        producer.turn()
        started_s = timer()
        published = sum(producer.turn() for _ in range(batches))
        return published / (timer() - started_s)
