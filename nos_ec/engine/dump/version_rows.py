"""Delete markers as pages of a dump, and back; and what a rebuild makes of noncurrent versions.

Until all objects are known, noncurrent versions are kept as rows in the trash whose times are not known. Then each
becomes noncurrent again, and each key gets the current version that its order asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nos_ec.core.dump_format import DumpPage
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata import MarkerRow, Metadata, ObjectRow, Versions

MARKERS = "delete_markers"
PAGE_ROWS = 1000


def marker_pages(metadata: Versions) -> Iterator[DumpPage]:
    """All delete markers. Raises Transient."""
    after: tuple[ObjectKey, int] | None = None
    while page := metadata.markers_after(after, PAGE_ROWS):
        yield DumpPage(
            MARKERS,
            {
                "bucket": [row.key.bucket for row in page],
                "name": [row.key.name for row in page],
                "version": [row.version for row in page],
                "created_ms": [row.created_ms for row in page],
                "is_null": [int(row.is_null) for row in page],
            },
        )
        after = page[-1].key, page[-1].version


def markers_of(page: DumpPage) -> Iterator[MarkerRow]:
    """The markers of such a page. Raises Corrupt."""
    for bucket, name, version, created_ms, is_null in page.tuples(
        bucket=..., name=..., version=..., created_ms=..., is_null=...
    ):
        yield MarkerRow(ObjectKey(bucket, name), version, created_ms, bool(is_null))


def load_page(page: DumpPage, metadata: Versions) -> None:
    """Write what a page of markers says; nothing of any other page. Running it again changes nothing. Raises Corrupt,
    Transient."""
    if page.table == MARKERS:
        metadata.restore_markers(list(markers_of(page)))


def without_noncurrent(rows: Sequence[ObjectRow], metadata: Metadata) -> list[ObjectRow]:
    """Make those of these replaced versions noncurrent that stay: what has an id, and what one that has an id has
    replaced. Returns the others. Raises Transient."""
    found = metadata.rows_of({row.key for row in rows})
    stay: list[ObjectRow] = []
    rest: list[ObjectRow] = []
    for row in rows:
        current = found.get(row.key)
        stays = row.is_of_versions or (current is not None and current.is_of_versions)
        (stay if stays else rest).append(row)
    metadata.settle_versions(stay)
    return rest


def order_all(metadata: Metadata) -> None:
    """Give each key that has noncurrent versions, or markers, the current version of its order. Raises Transient."""
    after: tuple[ObjectKey, int] | None = None
    while page := metadata.noncurrent_after(after, PAGE_ROWS):
        after = page[-1][0], page[-1][1]
        metadata.order_versions(sorted({key for key, _, _ in page}, key=str))
