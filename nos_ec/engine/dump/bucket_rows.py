"""Buckets and access keys as pages of a dump, and back. Secrets stay encrypted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nos_ec.core.dump_format import DumpPage
from nos_ec.engine.dump.rows import word
from nos_ec.ports.metadata import (
    AccessKey,
    AccessKeys,
    BucketRecord,
    BucketRow,
    Buckets,
    CannedAcl,
    DocumentKind,
    KeyState,
    Metadata,
    Rights,
)

BUCKETS = "buckets"
ACCESS_KEYS = "access_keys"
PAGE_ROWS = 500


def bucket_pages(metadata: Buckets) -> Iterator[DumpPage]:
    """All buckets that have a row. Raises Transient."""
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
            "grants": [{account: rights.value for account, rights in one.grants.items()} or None for one in records],
            "documents": [{kind.value: body for kind, body in one.documents.items()} or None for one in records],
        },
    )


def buckets_of(page: DumpPage) -> Iterator[BucketRecord]:
    """The buckets of such a page. Raises Corrupt."""
    columns = page.tuples(bucket=..., owner=..., created_ms=..., acl=..., grants=None, documents=None)
    for name, owner, created_ms, acl, grants, documents in columns:
        yield BucketRecord(
            BucketRow(name, owner, created_ms, word(CannedAcl, acl)),
            {account: Rights(rights) for account, rights in (grants or {}).items()},
            {word(DocumentKind, kind): body for kind, body in (documents or {}).items()},
        )


def access_key_pages(metadata: AccessKeys) -> Iterator[DumpPage]:
    """All access keys. Raises Transient."""
    after = ""
    while page := metadata.access_keys(after, PAGE_ROWS):
        yield DumpPage(
            ACCESS_KEYS,
            {
                "access_key": [key.access_key for key in page],
                "account": [key.account for key in page],
                "secret": [key.secret for key in page],
                "state": [key.state.value for key in page],
                "created_ms": [key.created_ms for key in page],
                "note": [key.note for key in page],
            },
        )
        after = page[-1].access_key


def access_keys_of(page: DumpPage) -> Iterator[AccessKey]:
    """The keys of such a page. Raises Corrupt."""
    columns = page.tuples(access_key=..., account=..., secret=..., state=..., created_ms=..., note="")
    for access_key, account, secret, state, created_ms, note in columns:
        yield AccessKey(access_key, account, secret, word(KeyState, state), created_ms, note)


def load_page(page: DumpPage, metadata: Metadata) -> None:
    """Write what a page of buckets or access keys says; nothing of any other page. Running it again changes nothing.
    Raises Corrupt, Transient."""
    if page.table == BUCKETS:
        metadata.restore_buckets(list(buckets_of(page)))
    elif page.table == ACCESS_KEYS:
        for key in access_keys_of(page):
            metadata.add_access_key(key)
