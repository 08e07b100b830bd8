"""Adds the changes of metered buckets, and folds them into their sums (docs/adr/0058).

`counts` and `uncounts` are called where rows of objects are added, released, or moved into and out of the trash. What
they note is added up at the end of the transaction, and inserted as one row for each bucket. A transaction locks no row
of `bucket_usage`, so PUTs into one bucket never wait for each other.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from sqlalchemy import (
    BigInteger,
    CompoundSelect,
    Connection,
    and_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    union_all,
    update,
)

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import JsonRows
from nos_ec.adapters.sql.tables.rows import LIVE, by_index, delete_listed
from nos_ec.adapters.sql.tables.schema import (
    ACCESS_KEYS,
    BUCKET_DOCUMENTS,
    BUCKET_USAGE,
    BUCKETS,
    OBJECTS,
    USAGE_CHANGES,
    VERSIONS,
    utf8,
)
from nos_ec.core.killpoints import kill_point
from nos_ec.core.quotas.quota import account_record, limits_usage, metered_bucket
from nos_ec.core.versions import VERSION_MAX
from nos_ec.ports.metadata import ROOT_ACCOUNT, DocumentKind, ObjectRow, QuotaFacts
from nos_ec.ports.metadata.buckets import METERED_MS, NOTHING, BucketUsage, SizesPage, Sums

_BUCKETS_MAX = 10_000
"""For at most this many buckets, a process remembers whether they are metered."""
_NOTED = "nos_ec_usage"
"""A key of Connection.info, present if the store counts usage: (rows, 1 or -1) of what the transaction changes."""

_U, _C, _B, _O, _V = BUCKET_USAGE.c, USAGE_CHANGES.c, BUCKETS.c, OBJECTS.c, VERSIONS.c
_D, _K = BUCKET_DOCUMENTS.c, ACCESS_KEYS.c
_IDS = JsonRows("folded", change_id=0)
_OF_BUCKET = bindparam("bucket", type_=_U.bucket.type)


def _total(column: Any) -> Any:
    """Return a SUM as an integer: MySQL's is a decimal, and NULL without rows."""
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


_CHANGED = tuple(_total(one) for one in (_C.bytes, _C.objects, _C.changed_bytes, _C.changed_objects))
_SUMS = (_U.bytes, _U.objects, _U.changed_bytes, _U.changed_objects)
METERED = select(_U.bucket).where(_U.bucket == _OF_BUCKET)
ONE: CompoundSelect[Any] = union_all(
    select(_U.bucket, *_SUMS, _U.since_ms, _U.counted_ms).where(_U.bucket == _OF_BUCKET),
    select(literal(b"", _U.bucket.type), *_CHANGED, null(), null()).where(_C.bucket == _OF_BUCKET),
)
_AFTER = bindparam("after", type_=_U.bucket.type)
_PAGE = (
    select(_U.bucket, *_SUMS, _U.since_ms, _U.counted_ms)
    .where(_U.bucket > _AFTER)
    .order_by(_U.bucket)
    .limit(bindparam("rows_max"))
    .subquery("page")
)
PAGE = union_all(
    select(_PAGE),
    select(_C.bucket, *_CHANGED, null(), null()).where(_C.bucket > _AFTER).group_by(_C.bucket),
)
_OWNER = bindparam("owner", type_=_B.owner.type)
OF_ACCOUNT = union_all(
    select(_total(_U.bytes), _total(_U.objects))
    .join_from(BUCKETS, BUCKET_USAGE, _U.bucket == _B.bucket)
    .where(_B.owner == _OWNER),
    select(_total(_C.bytes), _total(_C.objects))
    .join_from(USAGE_CHANGES, BUCKETS, _C.bucket == _B.bucket)
    .join(BUCKET_USAGE, _U.bucket == _C.bucket)
    .where(_B.owner == _OWNER),
)
QUOTA_OF = select(
    select(_B.owner).where(_B.bucket == _OF_BUCKET).scalar_subquery().label("owner"),
    select(_D.body).where(_D.bucket == _OF_BUCKET, _D.kind == DocumentKind.QUOTA).scalar_subquery().label("body"),
)
ACCOUNT_QUOTA = select(_K.secret).where(_K.access_key == bindparam("key", type_=_K.access_key.type))
OLDEST = (
    by_index(
        select(_C.change_id, _C.bucket, _C.bytes, _C.objects, _C.changed_bytes, _C.changed_objects),
        USAGE_CHANGES,
        "PRIMARY",
    )
    .order_by(_C.change_id)
    .limit(bindparam("rows_max"))
)
_CORRECT = (
    update(BUCKET_USAGE)
    .where(_U.bucket == bindparam("of_bucket", type_=_U.bucket.type))
    .values(
        bytes=_U.bytes + bindparam("more_bytes", type_=BigInteger),
        objects=_U.objects + bindparam("more_objects", type_=BigInteger),
    )
)
_ADD = _CORRECT.values(
    changed_bytes=_U.changed_bytes + bindparam("more_changed_bytes", type_=BigInteger),
    changed_objects=_U.changed_objects + bindparam("more_changed_objects", type_=BigInteger),
)
_SETTLE = _CORRECT.where(_U.since_ms == bindparam("since"), _U.counted_ms.is_(None)).values(
    counted_ms=bindparam("at_ms", type_=BigInteger)
)
_NAME = bindparam("after", type_=_O.name.type)
_CURRENT = (
    by_index(select(_O.name, _O.size), OBJECTS, "objects_by_trash_key")
    .where(_O.trashed == LIVE, _O.bucket == _OF_BUCKET, _O.name > _NAME)
    .order_by(_O.trashed, _O.bucket, _O.name)
    .limit(bindparam("rows_max"))
    .subquery("walk")
)
CURRENT = select(_total(_CURRENT.c.size), func.count(), func.max(_CURRENT.c.name)).select_from(_CURRENT)
_OLDER = (
    by_index(select(_V.name, _V.age_rank, _V.object_id), VERSIONS, "PRIMARY")
    .where(
        _V.bucket == _OF_BUCKET,
        _V.name >= _NAME,
        or_(_V.name > _NAME, and_(_V.name == _NAME, _V.age_rank > bindparam("rank", type_=BigInteger))),
    )
    .order_by(_V.bucket, _V.name, _V.age_rank)
    .limit(bindparam("rows_max"))
    .subquery("walk")
)
NONCURRENT = (
    select(_OLDER.c.name, _OLDER.c.age_rank, _O.size)
    .join_from(_OLDER, OBJECTS, _O.object_id == _OLDER.c.object_id, isouter=True)
    .order_by(_OLDER.c.name, _OLDER.c.age_rank)
)


def counts(connection: Connection, rows: Iterable[ObjectRow]) -> None:
    """Note rows that were added, or have left the trash. They must be locked."""
    noted = connection.info.get(_NOTED)
    if noted is not None:
        noted += [(row, 1) for row in rows]


def uncounts(connection: Connection, rows: Iterable[ObjectRow]) -> None:
    """Note rows that are removed, overwritten or put into the trash. They must be locked. Rows that are in the trash
    already have been noted before."""
    noted = connection.info.get(_NOTED)
    if noted is not None:
        noted += [(row, -1) for row in rows if row.trash_until_ms is None]


@dataclass(slots=True)
class _Change:
    held: Sums = NOTHING
    changed: Sums = NOTHING


class UsageMeter:
    """Inserts what transactions have noted, and remembers which buckets are metered. Safe to call from several
    threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def begin(self, connection: Connection) -> None:
        """Begin to note the changes of a transaction."""
        connection.info[_NOTED] = []

    def finish(self, connection: Connection) -> None:
        """Insert the changes of metered buckets, as the last step before COMMIT."""
        noted: list[tuple[ObjectRow, int]] = connection.info.pop(_NOTED, [])
        by_bucket: dict[str, _Change] = {}
        for row, sign in noted:
            bucket = metered_bucket(row.key.bucket)
            if bucket is not None:
                one = by_bucket.setdefault(bucket, _Change())
                one.held += Sums(sign * row.size, sign)
                one.changed += Sums(row.size, 1)
        listed = [
            {
                "bucket": bucket,
                "bytes": one.held.bytes,
                "objects": one.held.objects,
                "changed_bytes": one.changed.bytes,
                "changed_objects": one.changed.objects,
            }
            for bucket, one in sorted(by_bucket.items())
            if self._is_metered(connection, bucket)
        ]
        if listed:
            connection.execute(insert(USAGE_CHANGES), listed)
            kill_point("metadata.usage_changed.before_commit")

    def forget(self, bucket: str) -> None:
        """Forget whether a bucket is metered, which was changed."""
        with self._lock:
            self._known.pop(bucket, None)

    def _is_metered(self, connection: Connection, bucket: str) -> bool:
        now_s = time.monotonic()
        with self._lock:
            found = self._known.get(bucket)
        if found is not None and found[0] > now_s:
            return found[1]
        is_metered = connection.execute(METERED, {"bucket": bucket}).first() is not None
        with self._lock:
            self._known[bucket] = now_s + METERED_MS / 1000, is_metered
            self._known.move_to_end(bucket)
            while len(self._known) > _BUCKETS_MAX:
                self._known.popitem(last=False)
        return is_metered


class _FoldedMeanwhile(Exception):
    """Another process has folded some of these changes."""


class SqlUsage(SqlPart):
    """`Usage` of the port."""

    _meter: UsageMeter | None = None

    def count_usage(self) -> None:
        self._transactions.meter = self._meter = UsageMeter()

    def meter_bucket(self, bucket: str, now_ms: int) -> bool:
        done = self._write(_meter_bucket, bucket, now_ms)
        self._forget(bucket)
        return done

    def unmeter_bucket(self, bucket: str) -> bool:
        done = self._write(_unmeter_bucket, bucket)
        self._forget(bucket)
        return done

    def _forget(self, bucket: str) -> None:
        if self._meter is not None:
            self._meter.forget(bucket)

    @reads
    def bucket_usage(self, connection: Connection, bucket: str) -> BucketUsage | None:
        found = _usages(connection.execute(ONE, {"bucket": bucket}).all(), named=bucket)
        return found[0] if found else None

    @reads
    def bucket_usages(self, connection: Connection, after: str, limit: int) -> list[BucketUsage]:
        return _usages(connection.execute(PAGE, {"after": after, "rows_max": limit}).all())

    @reads
    def account_usage(self, connection: Connection, account: str) -> Sums:
        return sum((Sums(*one) for one in connection.execute(OF_ACCOUNT, {"owner": account})), NOTHING)

    @reads
    def quota_facts(self, connection: Connection, bucket: str) -> QuotaFacts:
        row = connection.execute(QUOTA_OF, {"bucket": bucket}).one()
        account, body = row.owner or ROOT_ACCOUNT, row.body or None
        stored = connection.execute(ACCOUNT_QUOTA, {"key": account_record(account)}).scalar()
        used = of_account = None
        if body is not None:
            found = _usages(connection.execute(ONE, {"bucket": bucket}).all(), named=bucket)
            used = found[0].held if found and found[0].counted_ms is not None else None
        if stored is not None and limits_usage(stored):
            of_account = sum((Sums(*one) for one in connection.execute(OF_ACCOUNT, {"owner": account})), NOTHING)
        return QuotaFacts(bucket, account, body, stored, used, of_account)

    def fold_usage(self, limit: int) -> int:
        rows = self._read(_oldest, limit)
        if rows:
            with suppress(_FoldedMeanwhile):
                self._write(_fold, rows)
                return len(rows)
        return 0

    @writes
    def settle_usage(self, connection: Connection, bucket: str, since_ms: int, correction: Sums, now_ms: int) -> bool:
        more = {"more_bytes": correction.bytes, "more_objects": correction.objects, "at_ms": now_ms}
        return connection.execute(_SETTLE, {"of_bucket": bucket, "since": since_ms, **more}).rowcount == 1

    @reads
    def current_sizes(self, connection: Connection, bucket: str, after: str, limit: int) -> SizesPage:
        size, objects, last = connection.execute(CURRENT, {"bucket": bucket, "after": after, "rows_max": limit}).one()
        return SizesPage(Sums(size, objects), (last, 0) if objects == limit else None)

    @reads
    def noncurrent_sizes(
        self, connection: Connection, bucket: str, after: tuple[str, int] | None, limit: int
    ) -> SizesPage:
        name, rank = ("", -1) if after is None else (after[0], VERSION_MAX - after[1])
        bounds = {"bucket": bucket, "after": name, "rank": rank, "rows_max": limit}
        rows = connection.execute(NONCURRENT, bounds).all()
        sizes = [size for _, _, size in rows if size is not None]
        last = (rows[-1].name, VERSION_MAX - rows[-1].age_rank) if len(rows) == limit else None
        return SizesPage(Sums(sum(sizes), len(sizes)), last)


def meter_if_limited(connection: Connection, bucket: str, owner: str, now_ms: int) -> None:
    """Meter a bucket if bytes or objects of its new owner are limited."""
    stored = connection.execute(ACCOUNT_QUOTA, {"key": account_record(owner)}).scalar()
    if stored is not None and limits_usage(stored):
        _meter_bucket(connection, bucket, now_ms)


def _meter_bucket(connection: Connection, bucket: str, now_ms: int) -> bool:
    if connection.execute(METERED, {"bucket": bucket}).first() is not None:
        return False
    values = {"bytes": 0, "objects": 0, "changed_bytes": 0, "changed_objects": 0, "since_ms": now_ms}
    connection.execute(insert(BUCKET_USAGE).values(bucket=bucket, **values))
    return True


def _unmeter_bucket(connection: Connection, bucket: str) -> bool:
    return connection.execute(delete(BUCKET_USAGE).where(_U.bucket == bucket)).rowcount == 1


def _usages(rows: Sequence[Any], named: str | None = None) -> list[BucketUsage]:
    """Return the usage of each bucket that has a row of sums, with its rows of changes. `named` is the bucket of rows
    that do not name it."""
    found: dict[str, BucketUsage] = {}
    for bucket, size, objects, changed_size, changed, since_ms, counted_ms in rows:
        if since_ms is not None:
            found[bucket] = BucketUsage(bucket, Sums(size, objects), Sums(changed_size, changed), since_ms, counted_ms)
    for bucket, size, objects, changed_size, changed, since_ms, _ in rows:
        one = found.get(named or bucket)
        if since_ms is None and one is not None:
            held, more = one.held + Sums(size, objects), one.changed + Sums(changed_size, changed)
            found[one.bucket] = BucketUsage(one.bucket, held, more, one.since_ms, one.counted_ms)
    return sorted(found.values(), key=lambda one: utf8(one.bucket))


def _oldest(connection: Connection, limit: int) -> Sequence[Any]:
    return connection.execute(OLDEST, {"rows_max": limit}).all()


def _fold(connection: Connection, rows: Sequence[Any]) -> None:
    """Remove exactly these changes, and add them to the sums. A smaller id may be committed later than a greater one,
    so a range of ids would remove changes that were never added up."""
    listed = _IDS.dump((row.change_id,) for row in rows)
    gone = delete_listed(connection, USAGE_CHANGES, _C.change_id, _IDS, "change_id")
    if connection.execute(gone, listed).rowcount != len(rows):
        raise _FoldedMeanwhile
    kill_point("metadata.usage_folded.before_sums")
    by_bucket: dict[str, _Change] = {}
    for row in rows:
        one = by_bucket.setdefault(row.bucket, _Change())
        one.held += Sums(row.bytes, row.objects)
        one.changed += Sums(row.changed_bytes, row.changed_objects)
    connection.execute(
        _ADD,
        [
            {
                "of_bucket": bucket,
                "more_bytes": one.held.bytes,
                "more_objects": one.held.objects,
                "more_changed_bytes": one.changed.bytes,
                "more_changed_objects": one.changed.objects,
            }
            for bucket, one in sorted(by_bucket.items())
        ],
    )
    kill_point("metadata.usage_folded.before_commit")
