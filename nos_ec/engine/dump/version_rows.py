"""Converts delete markers and floors of version numbers to pages of a dump and back, and orders noncurrent versions in
a rebuild.

Until all objects are known, noncurrent versions are kept as rows in the trash without times. Then each becomes
noncurrent again, and the newest version of each key becomes current.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nos_ec.core.formats.dump_format import DumpPage
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.dump.rebuild_input import PUT_MS_MAX
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.metadata import MarkerRow, Metadata, ObjectRow, Versions

MARKERS = "delete_markers"
FLOORS = "version_floors"
PAGE_ROWS = 1000


def marker_pages(metadata: Versions) -> Iterator[DumpPage]:
    """Yield all delete markers. Raises Transient."""
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
    """Yield the markers of such a page. Raises Corrupt."""
    for bucket, name, version, created_ms, is_null in page.tuples(
        bucket=..., name=..., version=..., created_ms=..., is_null=...
    ):
        yield MarkerRow(ObjectKey(bucket, name), version, created_ms, bool(is_null))


def floor_pages(metadata: Versions) -> Iterator[DumpPage]:
    """Yield the version numbers that must not be assigned again. Raises Transient."""
    after: ObjectKey | None = None
    while page := metadata.floors_after(after, PAGE_ROWS):
        yield DumpPage(
            FLOORS,
            {
                "bucket": [key.bucket for key, _ in page],
                "name": [key.name for key, _ in page],
                "version": [version for _, version in page],
            },
        )
        after = page[-1][0]


def floors_of(page: DumpPage) -> Iterator[tuple[ObjectKey, int]]:
    """Yield the keys and numbers of such a page. Raises Corrupt."""
    for bucket, name, version in page.tuples(bucket=..., name=..., version=...):
        yield ObjectKey(bucket, name), version


def load_page(page: DumpPage, metadata: Versions) -> None:
    """Load a page of markers or floors; ignore any other page. Running it again changes nothing. Raises Corrupt,
    Transient."""
    if page.table == MARKERS:
        metadata.restore_markers(list(markers_of(page)))
    elif page.table == FLOORS:
        metadata.restore_floors(list(floors_of(page)))


def without_noncurrent(rows: Sequence[ObjectRow], metadata: Metadata, now_ms: int) -> list[ObjectRow]:
    """Make the replaced versions among these noncurrent that must stay: versions with an id, versions that a version
    with an id has replaced, and versions with a lock. Returns the others. A version that was recovered twice, from its
    block and from its landing copy, is kept once. Raises Transient."""
    found = metadata.rows_of({row.key for row in rows})
    doubles = _doubles(rows, found, metadata)
    metadata.remove(doubles, now_ms)
    gone = {row.object_id for row in doubles}
    stay: list[ObjectRow] = []
    rest: list[ObjectRow] = []
    for row in rows:
        if row.object_id in gone:
            continue
        current = found.get(row.key)
        stays = row.is_of_versions or row.lock is not None or (current is not None and current.is_of_versions)
        (stay if stays else rest).append(row)
    metadata.settle_versions(stay)
    return rest


def _doubles(rows: Sequence[ObjectRow], current: Mapping[ObjectKey, ObjectRow], metadata: Metadata) -> list[ObjectRow]:
    """Return the rows among these that were recovered from landing copies although blocks have the same versions. Their
    numbers differ: a row from a copy has the time of the PUT, and a version gets its number up to PUT_MS_MAX later."""
    landed = [row for row in rows if row.state is ObjectState.LANDED]
    others: dict[ObjectKey, list[ObjectRow]] = {row.key: [] for row in landed}
    for key, found in others.items():
        found += [row for row in rows if row.key == key]
        found += [current[key]] if key in current else []
        for page in noncurrent_of(key, metadata):
            found += page
    return [row for row in landed if any(_is_copy_of(row, one) for one in others[row.key])]


def _is_copy_of(copy: ObjectRow, version: ObjectRow) -> bool:
    if (copy.size, copy.crc32c, copy.md5) != (version.size, version.crc32c, version.md5):
        return False
    # A version with another lock is another one: of two PUTs of the same bytes, only one may be locked.
    if copy.lock is not None and (version.lock is None or replace(version.lock, note=copy.lock.note) != copy.lock):
        return False
    return version.state is ObjectState.PACKED and 0 <= version.version // 1000 - copy.created_ms <= PUT_MS_MAX


def order_all(metadata: Metadata, now_ms: int, until_ms: int) -> None:
    """Make the newest version current, and keep only one null version, for each key that has noncurrent versions or
    markers. The null versions that it has replaced go into the trash until `until_ms`. Raises Transient."""
    after: tuple[ObjectKey, int] | None = None
    while page := metadata.noncurrent_after(after, PAGE_ROWS):
        after = page[-1][0], page[-1][1]
        metadata.order_versions(sorted({key for key, _, _ in page}, key=str), now_ms, until_ms)
