"""Converts buckets and access keys to pages of a dump and to records, and back. Secrets stay encrypted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import Conflict, Corrupt, NotFound
from nos_ec.core.formats.dump_format import DumpPage, decode_page
from nos_ec.core.ids import ACCESS_BUCKET
from nos_ec.engine.dump.rebuild_input import DumpSource, RebuildInput
from nos_ec.engine.dump.rows import OBJECTS, objects_of, rows_page, selected, word
from nos_ec.ports.metadata import (
    AccessKey,
    AccessKeys,
    AccessOf,
    BucketRecord,
    BucketRow,
    Buckets,
    CannedAcl,
    DocumentKind,
    KeyState,
    Metadata,
    MoveRow,
    Moves,
    MoveState,
    Rights,
)

BUCKETS = "buckets"
ACCESS_KEYS = "access_keys"
MOVES = "moves"
PAGE_ROWS = 500


def bucket_pages(metadata: Buckets) -> Iterator[DumpPage]:
    """Yield all buckets that have a row. Raises Transient."""
    after = ""
    while page := metadata.bucket_records(after, PAGE_ROWS):
        yield _buckets_page(page)
        after = page[-1].row.name


def _buckets_page(records: Sequence[BucketRecord]) -> DumpPage:
    rows = [one.row for one in records]
    return DumpPage(
        BUCKETS,
        {
            "bucket": [row.name for row in rows],
            "owner": [row.owner for row in rows],
            "created_ms": [row.created_ms for row in rows],
            "acl": [row.acl.value for row in rows],
            "grants": [
                {account: rights.value for account, rights in sorted(one.grants.items())} or None for one in records
            ],
            "documents": [
                {kind.value: body for kind, body in sorted(one.documents.items())} or None for one in records
            ],
        },
    )


def buckets_of(page: DumpPage) -> Iterator[BucketRecord]:
    """Yield the buckets of such a page. Raises Corrupt."""
    columns = page.tuples(bucket=..., owner=..., created_ms=..., acl=..., grants=None, documents=None)
    for name, owner, created_ms, acl, grants, documents in columns:
        yield BucketRecord(
            BucketRow(name, owner, created_ms, word(CannedAcl, acl)),
            {account: Rights(rights) for account, rights in (grants or {}).items()},
            {word(DocumentKind, kind): body for kind, body in (documents or {}).items()},
        )


def access_key_pages(metadata: AccessKeys) -> Iterator[DumpPage]:
    """Yield all access keys. Raises Transient."""
    after = ""
    while page := metadata.access_keys(after, PAGE_ROWS):
        yield _access_keys_page(page)
        after = page[-1].access_key


def _access_keys_page(keys: Sequence[AccessKey]) -> DumpPage:
    return rows_page(ACCESS_KEYS, keys, "access_key", "account", "secret", "state.value", "created_ms", "note")


def access_keys_of(page: DumpPage) -> Iterator[AccessKey]:
    """Yield the access keys of such a page. Raises Corrupt."""
    columns = page.tuples(access_key=..., account=..., secret=..., state=..., created_ms=..., note="")
    for access_key, account, secret, state, created_ms, note in columns:
        yield AccessKey(access_key, account, secret, word(KeyState, state), created_ms, note)


def move_pages(metadata: Moves) -> Iterator[DumpPage]:
    """Yield the moves after which this cell serves a bucket. A rebuilt cell that lacks such a row was rebuilt from a
    dump that may lack what was copied. Other states are left out: what a mover had done by the time of the dump is not
    what it has done since. Raises Transient."""
    after = ""
    while page := metadata.move_rows(after, PAGE_ROWS):
        after = page[-1].bucket
        here = [row for row in page if row.state is MoveState.HERE]
        yield rows_page(MOVES, here, "bucket", "other", "number", "mover", "since_ms")


def moves_of(page: DumpPage) -> Iterator[MoveRow]:
    """Yield the moves of such a page. Raises Corrupt."""
    columns = page.tuples(bucket=..., other=..., number=..., mover=..., since_ms=...)
    for bucket, other, number, mover, since_ms in columns:
        yield MoveRow(bucket, MoveState.HERE, other, number, mover, since_ms)


def load_page(page: DumpPage, metadata: Metadata) -> None:
    """Load a page of buckets, access keys or moves; ignore any other page. Running it again changes nothing. Raises
    Corrupt, Transient."""
    if page.table == BUCKETS:
        metadata.restore_buckets(list(buckets_of(page)))
    elif page.table == ACCESS_KEYS:
        for key in access_keys_of(page):
            metadata.add_access_key(key)
    elif page.table == MOVES:
        for row in moves_of(page):
            metadata.set_move(row, None)


# --- records ------------------------------------------------------------------------------------------
class AccessMetadata(Buckets, AccessKeys, Protocol):
    """The parts of the metadata that records describe."""


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """The record of a bucket or access key (nos_ec.engine.dump.access_records). `page` has its state, and no row if it
    was removed; None if the record cannot be read."""

    of: AccessOf
    name: str
    page: DumpPage | None

    def __str__(self) -> str:
        return f"{self.of} {self.name}"


def page_of(of: AccessOf, name: str, metadata: AccessMetadata) -> DumpPage:
    """Return a page with the current state of this bucket or access key; without rows if it does not exist. Raises
    Transient."""
    if of is AccessOf.KEY:
        key = metadata.access_key(name)
        return _access_keys_page([] if key is None else [key])
    row = metadata.bucket(name)
    if row is None:
        return _buckets_page([])
    return _buckets_page(
        [BucketRecord(row, metadata.grants(name), metadata.bucket_documents(name, list(DocumentKind)))]
    )


def records_since(stores: RebuildInput, source: DumpSource | None) -> Iterator[AccessRecord]:
    """Yield the records of changes that the dump may lack. Call this when all objects are known. Raises Transient.

    The dump has a change if the record is among the objects that come before its buckets and access keys. In older
    dumps these come first, so all records are loaded again, which does no harm."""
    dumped: dict[str, int] = {}
    read: dict[str, int] = {}
    for of_dump in () if source is None else source.pages():
        if of_dump.table == OBJECTS:
            records = (bucket == ACCESS_BUCKET for bucket in of_dump.columns.get("bucket", ()))
            found = [one.row for one in objects_of(selected(of_dump, records))]
            read |= {row.key.name: row.version for row in found}
        elif of_dump.table in (BUCKETS, ACCESS_KEYS):
            dumped = read
            break
    after = ""
    while rows := stores.metadata.list_objects(ACCESS_BUCKET, "", after, PAGE_ROWS):
        after = rows[-1].key.name
        for row in rows:
            of, _, name = row.key.name.partition("/")
            if dumped.get(row.key.name) == row.version or of not in tuple(AccessOf):
                continue
            page: DumpPage | None = None
            with suppress(Corrupt, NotFound):
                decoded = decode_page(stores.bytes_of(row))
                list(access_keys_of(decoded) if of == AccessOf.KEY else buckets_of(decoded))  # raises Corrupt
                page = decoded
            yield AccessRecord(AccessOf(of), name, page)


def load_records(stores: RebuildInput, source: DumpSource | None, now_ms: int) -> int:
    """Apply to buckets and access keys the records that may be newer than the dump. A removed bucket stays if it
    contains objects again. Returns how many records were loaded. Running it again changes nothing. Raises Transient."""
    loaded = 0
    for record in records_since(stores, source):
        if record.page is not None:
            _load(record, record.page, stores.metadata, now_ms)
            loaded += 1
    return loaded


def _load(record: AccessRecord, page: DumpPage, metadata: AccessMetadata, now_ms: int) -> None:
    if record.of is AccessOf.KEY:
        keys = list(access_keys_of(page))
        metadata.remove_access_key(record.name)
        for key in keys:
            metadata.add_access_key(key)
    elif found := list(buckets_of(page)):
        metadata.restore_buckets(found)
    else:
        with suppress(Conflict):
            metadata.delete_bucket(record.name, now_ms)
