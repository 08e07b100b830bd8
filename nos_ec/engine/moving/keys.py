"""Iterates over the keys of a bucket with all their versions, over its trash, or over the parts of an upload, and
compares them in two cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import parts_bucket, parts_prefix
from nos_ec.ports.metadata import ObjectRow, Objects, Trash, TrashMark, UploadRow, VersionEntry, Versions

PAGE_VERSIONS = 1000
"""How many versions a page of a listing has at most."""
FIRST_VERSIONS = 16
"""How many versions of a single key are read at first. Most keys have fewer."""
PAGE_PARTS = 1000
"""How many parts of an upload a page has at most."""
PAGE_MS_MAX = 60_000
"""How long reading a page may take before the page ends early."""
VERSIONS_MAX = 10_000
"""A key with more versions is not moved, because all versions of a key are in memory at once."""


class Key(NamedTuple):
    """A name, and its versions and delete markers, the newest first."""

    name: str
    versions: Sequence[VersionEntry]

    @property
    def contents(self) -> list[tuple[object, ...]]:
        """The properties of each version that users can see, the newest version first. Two cells have the same key if
        these lists are equal."""
        return [_contents(one) for one in self.versions]


def _contents(one: VersionEntry) -> tuple[object, ...]:
    about = one.version, one.created_ms, one.is_null
    row = one.row
    return about if row is None else (*about, row.size, row.crc32c, row.md5, row.attributes, row.is_noncurrent)


def walk(metadata: Versions, bucket: str) -> Iterator[Key]:
    """Yield the keys of a bucket in the byte order of their names. Raises InvalidInput for a key with more than
    VERSIONS_MAX versions, Transient."""
    name, versions = "", list[VersionEntry]()
    after: tuple[str, int | None] | None = ("", None)
    while after is not None:
        page = metadata.list_versions(bucket, "", "", after, PAGE_VERSIONS, PAGE_MS_MAX)
        for one in page.entries:
            assert isinstance(one, VersionEntry), "a listing without delimiter has no folders"
            if versions and one.key.name != name:
                yield Key(name, versions)
                versions = []
            name = one.key.name
            versions.append(one)
            _require_few(versions)
        after = page.next_after
    if versions:
        yield Key(name, versions)


def key_of(metadata: Versions, bucket: str, name: str) -> Key | None:
    """Return one key of a bucket as `walk` yields it, or None if it has no version. The cost depends only on the number
    of its versions. Raises what `walk` raises."""
    versions = list[VersionEntry]()
    after: tuple[str, int | None] | None = ("", None)
    limit = FIRST_VERSIONS
    while after is not None:
        page = metadata.list_versions(bucket, name, "", after, limit, PAGE_MS_MAX)
        for one in page.entries:
            assert isinstance(one, VersionEntry), "a listing without delimiter has no folders"
            if one.key.name != name:  # a longer name that begins with this one
                return Key(name, versions) if versions else None
            versions.append(one)
        _require_few(versions)
        after, limit = page.next_after, PAGE_VERSIONS
    return Key(name, versions) if versions else None


def _require_few(versions: Sequence[VersionEntry]) -> None:
    if len(versions) > VERSIONS_MAX:
        raise InvalidInput(f"object {versions[0].key} has more than {VERSIONS_MAX} versions; delete old ones first")


def differing(source: Versions, target: Versions, bucket: str) -> Iterator[tuple[Key | None, Key | None]]:
    """Yield (key of the source, key of the target) for each name whose versions differ between two cells. A cell that
    has no version of the name has None. Raises what `walk` raises."""
    left, right = walk(source, bucket), walk(target, bucket)
    mine, theirs = next(left, None), next(right, None)
    while mine is not None or theirs is not None:
        if theirs is None or (mine is not None and mine.name < theirs.name):
            yield mine, None
            mine = next(left, None)
        elif mine is None or theirs.name < mine.name:
            yield None, theirs
            theirs = next(right, None)
        else:
            if mine.contents != theirs.contents:
                yield mine, theirs
            mine, theirs = next(left, None), next(right, None)


def trash_of(metadata: Trash, bucket: str) -> Iterator[Sequence[ObjectRow]]:
    """Yield the versions of a bucket in the trash in pages, latest expiry first. The cost grows with the whole trash of
    the cell. Raises Transient."""
    before: TrashMark | None = None
    while True:
        page = metadata.trash_page(before, PAGE_VERSIONS, bucket)
        if page.rows:
            yield page.rows
        if page.before is None:
            return
        before = page.before


def trash_differing(
    source: Trash, target: Trash, bucket: str
) -> Iterator[tuple[Sequence[ObjectRow], Sequence[ObjectRow]]]:
    """Compare the trash of a bucket in two cells, by expiry times. For each time at which they differ, yields the
    versions that only the source has, and the versions that only the target has.

    All versions with one expiry time, which were deleted in one millisecond, are in memory at once. Raises Transient.
    """
    left, right = _by_time(source, bucket), _by_time(target, bucket)
    mine, theirs = next(left, _END), next(right, _END)
    while mine is not _END or theirs is not _END:
        until_ms = max(mine[0], theirs[0])
        here = mine[1] if mine[0] == until_ms else {}
        there = theirs[1] if theirs[0] == until_ms else {}
        only_here = [row for about, row in here.items() if about not in there]
        only_there = [row for about, row in there.items() if about not in here]
        if only_here or only_there:
            yield only_here, only_there
        mine = next(left, _END) if mine[0] == until_ms else mine
        theirs = next(right, _END) if theirs[0] == until_ms else theirs


_Trashed = tuple[int, dict[tuple[object, ...], ObjectRow]]
_END: _Trashed = -1, {}


def _by_time(metadata: Trash, bucket: str) -> Iterator[_Trashed]:
    """Yield each expiry time, latest first, with its versions: {what users see of a version: its row}."""
    rows = (row for page in trash_of(metadata, bucket) for row in page)
    for until_ms, of_time in groupby(rows, lambda row: row.trash_until_ms or 0):
        yield until_ms, {_trashed(row): row for row in of_time}


def _trashed(row: ObjectRow) -> tuple[object, ...]:
    return row.key.name, row.version, row.created_ms, row.size, row.crc32c, row.md5, row.attributes, row.trashed_ms


PartPair = tuple[ObjectRow | None, ObjectRow | None]
"""A part in the source and in the target, or None in a cell that does not have it."""


def parts_of(metadata: Objects, upload: UploadRow) -> dict[ObjectKey, ObjectRow]:
    """Return all parts of an upload that a cell has, by key, in the order of their numbers. Raises Transient."""
    bucket, prefix, after = parts_bucket(upload.key.bucket), parts_prefix(upload.upload_id), ""
    found: dict[ObjectKey, ObjectRow] = {}
    while page := metadata.list_objects(bucket, prefix, after, PAGE_PARTS):
        found |= {row.key: row for row in page}
        after = page[-1].key.name
    return found


def differing_parts(mine: Mapping[ObjectKey, ObjectRow], theirs: Mapping[ObjectKey, ObjectRow]) -> list[PartPair]:
    """Return those of these parts that differ between the source and the target."""
    pairs = [(mine.get(key), theirs.get(key)) for key in sorted(mine.keys() | theirs.keys())]
    return [(here, there) for here, there in pairs if (here and _of_part(here)) != (there and _of_part(there))]


def _of_part(row: ObjectRow) -> tuple[object, ...]:
    return row.version, row.created_ms, row.size, row.crc32c, row.md5, row.attributes
