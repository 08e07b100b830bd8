"""Rows of buckets, with their documents and grants.

A bucket exists if it has a row that is not marked as deleted, or holds an object. Changes to a bucket lock its row. A
bucket without a row gets one by the first change. Two concurrent first changes insert the same key, so one of them
fails as a duplicate and is run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from nos_ec.adapters.sql.objects import object_rows, usage, versions
from nos_ec.adapters.sql.objects.outbox import NotifyingPart
from nos_ec.adapters.sql.tables.base import reads
from nos_ec.adapters.sql.tables.gate import served_among
from nos_ec.adapters.sql.tables.json_rows import JsonRows, looked_up
from nos_ec.adapters.sql.tables.rows import LIVE, by_index, delete_listed
from nos_ec.adapters.sql.tables.schema import BUCKET_DOCUMENTS, BUCKET_GRANTS, BUCKETS, OBJECTS, utf8
from nos_ec.core.errors import Conflict, InvalidInput
from nos_ec.core.ids import BUCKET_BYTES_MAX, RESERVED_BUCKET
from nos_ec.ports.metadata import ROOT_ACCOUNT, AccessOf, BucketRecord, BucketRow, CannedAcl, DocumentKind, Rights
from nos_ec.ports.metadata.buckets import DOCUMENT_BYTES_MAX

_B, _D, _G, _O = BUCKETS.c, BUCKET_DOCUMENTS.c, BUCKET_GRANTS.c, OBJECTS.c

TOMBSTONE_MS = 24 * 3600 * 1000
"""How long a deleted bucket's row keeps its owner. PUTs that were running at the deletion end long before."""
_TOMBSTONES_MAX = 100
_ROW = (_B.bucket, _B.owner, _B.created_ms, _B.acl)
_NAMES = JsonRows("names", bucket=BUCKET_BYTES_MAX)

FIND = select(*_ROW, _B.deleted_ms).where(_B.bucket == bindparam("bucket"))
HOLDS_OBJECT = (
    by_index(select(_O.name), OBJECTS, "objects_by_trash_key")
    .where(_O.trashed == LIVE, _O.bucket == bindparam("bucket"))
    .limit(1)
)
LIST_OWN = (
    by_index(select(*_ROW, _B.deleted_ms), BUCKETS, "buckets_by_owner")
    .where(_B.owner == bindparam("owner"), _B.bucket > bindparam("after", type_=_B.bucket.type))
    .order_by(_B.owner, _B.bucket)
    .limit(bindparam("rows_max"))
)
LIST_ALL = (
    select(*_ROW)
    .where(_B.bucket > bindparam("after", type_=_B.bucket.type), _B.deleted_ms.is_(None))
    .order_by(_B.bucket)
    .limit(bindparam("rows_max"))
)
WITH_ROW = looked_up(select(_B.bucket).join_from(_NAMES.table, BUCKETS, _B.bucket == _NAMES["bucket"]), BUCKETS)
DOCUMENTS_OF = looked_up(
    select(_D.bucket, _D.kind, _D.body).join_from(_NAMES.table, BUCKET_DOCUMENTS, _D.bucket == _NAMES["bucket"]),
    BUCKET_DOCUMENTS,
)
GRANTS_OF = looked_up(
    select(_G.bucket, _G.account, _G.rights).join_from(_NAMES.table, BUCKET_GRANTS, _G.bucket == _NAMES["bucket"]),
    BUCKET_GRANTS,
)


class SqlBuckets(NotifyingPart):
    """`Buckets` and `AccessChanges` of the port. Changes are reported after COMMIT."""

    def on_access_changed(self, call: Callable[[AccessOf, str], object]) -> None:
        self._access_changed = call

    def _changed(self, name: str) -> None:
        if self._events is not None:
            self._events.forget(name)
        self._access_changed(AccessOf.BUCKET, name)

    def create_bucket(self, name: str, owner: str, acl: CannedAcl, now_ms: int) -> bool:
        done = self._change_buckets(
            [name], _create_bucket, name, owner, acl, now_ms, meters=self._transactions.meter is not None
        )
        self._changed(name)
        return done

    def bucket(self, name: str) -> BucketRow | None:
        return self._read_in(name, find_bucket, name)

    def delete_bucket(self, name: str, now_ms: int) -> bool:
        done = self._change_buckets([name], _delete_bucket, name, now_ms)
        self._changed(name)
        return done

    @reads
    def buckets_of(self, connection: Connection, owner: str, after: str, limit: int) -> list[BucketRow]:
        found: list[BucketRow] = []
        while len(found) < limit:
            page, after = _own_page(connection, owner, after, limit)
            if self._gate is not None:
                served = set(served_among(connection, [row.name for row in page]))
                page = [row for row in page if row.name in served]
            found += page
            if not after:
                break
        return found[:limit]

    def set_bucket_owner(self, name: str, owner: str, now_ms: int) -> bool:
        done = self._change_buckets(
            [name], _set_bucket_owner, name, owner, now_ms, meters=self._transactions.meter is not None
        )
        self._changed(name)
        return done

    def set_bucket_acl(self, name: str, acl: CannedAcl, now_ms: int, grants: bytes | None = None) -> bool:
        done = self._change_buckets([name], _set_bucket_acl, name, acl, now_ms, grants)
        self._changed(name)
        return done

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        return self.bucket_documents(name, [kind]).get(kind)

    def bucket_documents(self, name: str, kinds: Collection[DocumentKind]) -> dict[DocumentKind, bytes]:
        return self._read_in(name, _documents, name, kinds)

    def set_bucket_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        done = self.correct_document(name, kind, body, now_ms)
        self._access_changed(AccessOf.BUCKET, name)
        return done

    def correct_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        done = self._change_buckets([name], _set_bucket_document, name, kind, body, now_ms)
        if self._events is not None:
            self._events.forget(name)
        return done

    @reads
    def documents_of(
        self, connection: Connection, kind: DocumentKind, after: str, limit: int
    ) -> list[tuple[str, bytes]]:
        found = select(_D.bucket, _D.body).where(_D.bucket > after, _D.kind == kind).order_by(_D.bucket).limit(limit)
        return [(name, body) for name, body in connection.execute(found)]

    def grant(self, name: str, account: str, rights: Rights, now_ms: int) -> bool:
        done = self._change_buckets([name], _grant, name, account, rights, now_ms)
        self._changed(name)
        return done

    def grants(self, name: str) -> dict[str, Rights]:
        return self._read_in(name, _grants_of, [name]).get(name, {})

    @reads
    def bucket_records(self, connection: Connection, after: str, limit: int) -> list[BucketRecord]:
        rows = [BucketRow(*row) for row in connection.execute(LIST_ALL, {"after": after, "rows_max": limit})]
        names = [row.name for row in rows]
        allowed, bodies = _grants_of(connection, names), defaultdict[str, dict[DocumentKind, bytes]](dict)
        for name, kind, body in connection.execute(DOCUMENTS_OF, _named(names)):
            bodies[name][kind] = body
        return [BucketRecord(row, allowed.get(row.name, {}), bodies.get(row.name, {})) for row in rows]

    def restore_buckets(self, records: Sequence[BucketRecord]) -> None:
        if records:
            self._change_buckets([one.row.name for one in records], _restore_buckets, records)


def find_bucket(connection: Connection, name: str) -> BucketRow | None:
    """Return the row of a bucket. See Buckets."""
    row, deleted = _row_of(connection.execute(FIND, {"bucket": name}).first())
    if row is not None and not deleted:
        return row
    if not _holds_object(connection, name):
        return None
    return row or BucketRow(name, ROOT_ACCOUNT, 0)


def _documents(connection: Connection, name: str, kinds: Collection[DocumentKind]) -> dict[DocumentKind, bytes]:
    found = connection.execute(select(_D.kind, _D.body).where(_D.bucket == name, _D.kind.in_(kinds)))
    return {row.kind: row.body for row in found}


def _create_bucket(connection: Connection, name: str, owner: str, acl: CannedAcl, now_ms: int, *, meters: bool) -> bool:
    row, deleted = _locked(connection, name)
    if (row is not None and not deleted) or _holds_object(connection, name):
        return False
    values = {"owner": owner, "created_ms": now_ms, "acl": acl, "deleted_ms": None}
    if row is None:
        connection.execute(insert(BUCKETS).values(bucket=name, **values))
    else:
        connection.execute(update(BUCKETS).where(_B.bucket == name).values(values))
    if meters:
        usage.meter_if_limited(connection, name, owner, now_ms)
    return True


def _delete_bucket(connection: Connection, name: str, now_ms: int) -> bool:
    row, deleted = _locked(connection, name)
    if _holds_object(connection, name):
        raise Conflict(f"bucket {name} still holds objects, or versions of them; delete them first")
    if row is None or deleted:
        return False
    for table in (BUCKET_DOCUMENTS, BUCKET_GRANTS):
        connection.execute(delete(table).where(table.c.bucket == name))
    connection.execute(update(BUCKETS).where(_B.bucket == name).values(deleted_ms=now_ms))
    _settle_tombstones(connection, row.owner, now_ms)
    return True


def _settle_tombstones(connection: Connection, owner: str, now_ms: int) -> None:
    """Remove old rows of deleted buckets of this account, or unmark them if the bucket holds an object."""
    old = select(_B.bucket).where(_B.owner == owner, _B.deleted_ms < now_ms - TOMBSTONE_MS).limit(_TOMBSTONES_MAX)
    for name in connection.execute(old).scalars().all():
        if _holds_object(connection, name):
            connection.execute(update(BUCKETS).where(_B.bucket == name).values(deleted_ms=None))
        else:
            connection.execute(delete(BUCKETS).where(_B.bucket == name))


def _own_page(connection: Connection, owner: str, after: str, limit: int) -> tuple[list[BucketRow], str]:
    """Return buckets after this name, and the last name that was searched; empty if there are no more."""
    listed = connection.execute(LIST_OWN, {"owner": owner, "after": after, "rows_max": limit}).all()
    rows = [_row_of(row) for row in listed]
    ends = [listed[-1].bucket] if len(listed) == limit else []
    found = [row for row, deleted in rows if row and (not deleted or _holds_object(connection, row.name))]
    if owner == ROOT_ACCOUNT:
        holding = object_rows.list_buckets(connection, after, limit)
        ends += [holding[-1]] if len(holding) == limit else []
        others = [name for name in holding if name != RESERVED_BUCKET]
        known = set(connection.execute(WITH_ROW, _named(others)).scalars())
        found += [BucketRow(name, ROOT_ACCOUNT, 0) for name in others if name not in known]
    end = min(ends, key=utf8, default="")
    return sorted((row for row in found if not end or utf8(row.name) <= utf8(end)), key=lambda row: utf8(row.name)), end


def _set_bucket_owner(connection: Connection, name: str, owner: str, now_ms: int, *, meters: bool) -> bool:
    if not _ensure_row(connection, name, now_ms):
        return False
    connection.execute(update(BUCKETS).where(_B.bucket == name).values(owner=owner))
    connection.execute(delete(BUCKET_GRANTS).where(_G.bucket == name, _G.account == owner))
    if meters:
        usage.meter_if_limited(connection, name, owner, now_ms)
    return True


def _set_bucket_acl(connection: Connection, name: str, acl: CannedAcl, now_ms: int, grants: bytes | None) -> bool:
    if not _set_bucket_document(connection, name, DocumentKind.ACL, grants, now_ms):
        return False
    connection.execute(update(BUCKETS).where(_B.bucket == name).values(acl=acl))
    return True


def _set_bucket_document(
    connection: Connection, name: str, kind: DocumentKind, body: bytes | None, now_ms: int
) -> bool:
    if body is not None and len(body) > DOCUMENT_BYTES_MAX:
        raise InvalidInput(f"the {kind} of bucket {name} have {len(body)} bytes; the limit is {DOCUMENT_BYTES_MAX}")
    if not _ensure_row(connection, name, now_ms):
        return False
    connection.execute(delete(BUCKET_DOCUMENTS).where(_D.bucket == name, _D.kind == kind))
    if body is not None:
        connection.execute(insert(BUCKET_DOCUMENTS).values(bucket=name, kind=kind, body=body))
    return True


def _grant(connection: Connection, name: str, account: str, rights: Rights, now_ms: int) -> bool:
    if not _ensure_row(connection, name, now_ms):
        return False
    connection.execute(delete(BUCKET_GRANTS).where(_G.bucket == name, _G.account == account))
    if rights:
        connection.execute(insert(BUCKET_GRANTS).values(bucket=name, account=account, rights=rights.value))
    return True


def _restore_buckets(connection: Connection, found: Sequence[BucketRecord]) -> None:
    names = _named([one.row.name for one in found])
    for table in (BUCKETS, BUCKET_DOCUMENTS, BUCKET_GRANTS):
        connection.execute(delete_listed(connection, table, table.c.bucket, _NAMES, "bucket"), names)
    _insert(
        connection,
        BUCKETS,
        (
            {"bucket": row.name, "owner": row.owner, "created_ms": row.created_ms, "acl": row.acl, "deleted_ms": None}
            for row in (one.row for one in found)
        ),
    )
    _insert(
        connection,
        BUCKET_GRANTS,
        (
            {"bucket": one.row.name, "account": account, "rights": rights.value}
            for one in found
            for account, rights in one.grants.items()
        ),
    )
    _insert(
        connection,
        BUCKET_DOCUMENTS,
        ({"bucket": one.row.name, "kind": kind, "body": body} for one in found for kind, body in one.documents.items()),
    )


def _insert(connection: Connection, table: Any, rows: Iterable[dict[str, Any]]) -> None:
    listed = list(rows)
    if listed:
        connection.execute(insert(table), listed)


def _grants_of(connection: Connection, names: Sequence[str]) -> dict[str, dict[str, Rights]]:
    found = defaultdict[str, dict[str, Rights]](dict)
    for name, account, rights in connection.execute(GRANTS_OF, _named(names)):
        found[name][account] = Rights(rights)
    return found


def _ensure_row(connection: Connection, name: str, now_ms: int) -> bool:
    """Lock the row of an existing bucket, or add it if it is missing. Return False if there is no such bucket."""
    row, deleted = _locked(connection, name)
    if row is not None and not deleted:
        return True
    if not _holds_object(connection, name):
        return False
    if row is None:
        values = {"owner": ROOT_ACCOUNT, "created_ms": now_ms, "acl": CannedAcl.PRIVATE}
        connection.execute(insert(BUCKETS).values(bucket=name, **values))
    else:
        connection.execute(update(BUCKETS).where(_B.bucket == name).values(deleted_ms=None))
    return True


def _locked(connection: Connection, name: str) -> tuple[BucketRow | None, bool]:
    return _row_of(connection.execute(FIND.with_for_update(), {"bucket": name}).first())


def _row_of(row: Any) -> tuple[BucketRow | None, bool]:
    """Return the row, and whether it is marked as deleted."""
    return (None, False) if row is None else (BucketRow(*row[:-1]), row[-1] is not None)


def _holds_object(connection: Connection, name: str) -> bool:
    """Return whether the bucket has any version, current or noncurrent, or a delete marker."""
    if connection.execute(HOLDS_OBJECT, {"bucket": name}).first() is not None:
        return True
    return versions.holds_version(connection, name)


def _named(names: Iterable[str]) -> dict[str, str]:
    return _NAMES.dump((name,) for name in sorted(map(utf8, names)))
