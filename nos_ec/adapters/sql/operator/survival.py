"""The survival table: counts by bucket, changed in batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, bindparam, func, insert, select

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import by_index, delete_listed, require_all
from nos_ec.adapters.sql.tables.schema import OBJECTS, SURVIVAL, utf8
from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import BUCKET_BYTES_MAX, ObjectKey
from nos_ec.core.packing.lifetimes import COUNTS_BYTES, OTHERS, Counts
from nos_ec.ports.metadata import ObjectRow
from nos_ec.ports.metadata.survival import SURVIVAL_ROWS_MAX, Died, LivingObject, SurvivalRow

_log = structlog.get_logger(__name__)

_O, _S = OBJECTS.c, SURVIVAL.c
_DAY_MS = 86_400_000
_NAMED = JsonRows("survival_buckets", bucket=BUCKET_BYTES_MAX)
_COUNTED = JsonRows("survival_counts", bucket=BUCKET_BYTES_MAX, counted_ms=0, counts=COUNTS_BYTES)

WHOLE = select(_S.bucket, _S.counted_ms, _S.counts)
LOCK = looked_up(
    select(_S.bucket, _S.counted_ms, _S.counts)
    .join_from(_NAMED.table, SURVIVAL, _S.bucket == _NAMED["bucket"])
    .with_for_update(),
    SURVIVAL,
)
UPDATE = (
    UpdateListed(SURVIVAL)
    .where(_S.bucket == _COUNTED["bucket"])
    .values(counted_ms=_COUNTED["counted_ms"], counts=_COUNTED["counts"])
)
COUNT = select(func.count()).select_from(SURVIVAL)
LAST_ID = select(func.max(_O.object_id))
LIVING = by_index(select(_O.bucket, _O.name, _O.created_ms, _O.size), OBJECTS, "PRIMARY").where(
    _O.object_id >= bindparam("first"), _O.object_id <= bindparam("last"), _O.size > 0
)


class SqlSurvival(SqlPart):
    """`Survival` of the port."""

    def watch_deaths(self, died: Died | None) -> None:
        def report(noted: list[tuple[Sequence[ObjectRow], int]]) -> None:
            for rows, now_ms in noted:
                if died is not None:
                    died(rows, now_ms)

        self._transactions.on_noted = report

    @reads
    def survival(self, connection: Connection) -> list[SurvivalRow]:
        return [found for row in connection.execute(WHOLE) if (found := _row(row)) is not None]

    def count_deaths(self, counts: Mapping[str, Counts], now_ms: int) -> None:
        if counts:
            self._write(_count_deaths, counts, now_ms)

    @writes
    def count_survey(
        self,
        connection: Connection,
        counts: Mapping[str, Counts],
        previous_ms: int | None,
        now_ms: int,
        folded: Collection[str] = (),
    ) -> bool:
        # Of two concurrent first surveys, the second one to insert fails as a duplicate and is run again.
        held = _lock(connection, {*counts, *folded, OTHERS})
        others = held.get(OTHERS)
        if (None if others is None else others.counted_ms) != previous_ms:
            return False
        of_others = Counts()  # not the one in `counts`, which must not change: this may be run again
        of_others.add(counts.get(OTHERS, Counts()))
        gone = sorted({*folded} & {*held} - {OTHERS})
        for bucket in gone:
            of_others.add(_decayed(held.pop(bucket), now_ms))
        if gone:
            statement = delete_listed(connection, SURVIVAL, _S.bucket, _NAMED, "bucket")
            require_all(connection.execute(statement, _named(gone)).rowcount, len(gone), "survival rows")
        _merge(connection, held, {**counts, OTHERS: of_others}, now_ms, now_ms)
        return True

    @reads
    def last_object_id(self, connection: Connection) -> int:
        return connection.execute(LAST_ID).scalar() or 0

    @reads
    def living_between(self, connection: Connection, first: int, last: int) -> list[LivingObject]:
        found = connection.execute(LIVING, {"first": first, "last": last})
        return [LivingObject(ObjectKey(bucket, name), created_ms, size) for bucket, name, created_ms, size in found]


def _count_deaths(connection: Connection, counts: Mapping[str, Counts], now_ms: int) -> None:
    held = _lock(connection, counts)
    others = held.get(OTHERS)
    if others is None:
        counts = {bucket: more for bucket, more in counts.items() if bucket != OTHERS}
    _merge(connection, held, counts, now_ms, now_ms if others is None else others.counted_ms)


def _lock(connection: Connection, buckets: Iterable[str]) -> dict[str, SurvivalRow]:
    """Return the rows of these buckets, locked in order of bucket. A damaged row counts as empty and is overwritten."""
    rows = connection.execute(LOCK, _named(buckets)).all()
    return {row[0]: _row(row) or SurvivalRow(row[0], row[1], Counts()) for row in rows}


def _merge(
    connection: Connection, held: Mapping[str, SurvivalRow], counts: Mapping[str, Counts], now_ms: int, others_ms: int
) -> None:
    """Add the counts to the rows `held`, which are locked. `others_ms` is the new time of OTHERS: the time of the last
    survey. If the clock was set back, a survey sets this time back as well."""
    changed, new = [], []
    for bucket, more in sorted(counts.items(), key=lambda one: utf8(one[0])):
        row = held.get(bucket)
        if row is None:
            new.append({"bucket": bucket, "counted_ms": now_ms, "counts": more.dump()})
            continue
        sums = _decayed(row, others_ms if bucket == OTHERS else now_ms)
        sums.add(more)
        counted_ms = others_ms if bucket == OTHERS else max(now_ms, row.counted_ms)
        changed.append((utf8(bucket), counted_ms, sums.dump()))
    if changed:
        require_all(connection.execute(UPDATE, _COUNTED.dump(changed)).rowcount, len(changed), "survival rows")
    if new:
        room = SURVIVAL_ROWS_MAX - connection.execute(COUNT).scalar_one()
        if room > 0:
            connection.execute(insert(SURVIVAL), new[:room])


def _decayed(row: SurvivalRow, now_ms: int) -> Counts:
    counts = Counts(list(row.counts.deaths), list(row.counts.exposure_days))
    counts.decay((now_ms - row.counted_ms) / _DAY_MS)
    return counts


def _row(row: Any) -> SurvivalRow | None:
    """Convert a row. Return None for a damaged row, whose counts will be collected again."""
    try:
        return SurvivalRow(row[0], row[1], Counts.load(row[2]))
    except Corrupt as error:
        _log.warning("metadata damaged: a row of the survival table", bucket=row[0], error=str(error))
        return None


def _named(buckets: Iterable[str]) -> dict[str, str]:
    return _NAMED.dump((one,) for one in sorted({utf8(bucket) for bucket in buckets}))
