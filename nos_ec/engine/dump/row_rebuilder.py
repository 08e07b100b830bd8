"""Decides which recovered entries and records are the newest versions of their objects, and writes their rows.

The bytes of objects that were put since the dump are read, because a row needs their MD5, which no header has. The last
group of each block is read as well, because the power may have failed while it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nos_ec.core.deadlines import EMPTY_COPY_MS
from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.ids import BlockId, LandingId, ObjectKey, SegmentId, in_log, record_offset, segment_of
from nos_ec.core.locking.lock import lock_of
from nos_ec.core.parts import upload_of_part
from nos_ec.core.states import ObjectEvent, ObjectState, advance_object
from nos_ec.core.versions import is_of_versions, numbered
from nos_ec.engine.dump.rebuild_input import PUT_MS_MAX, RebuildInput
from nos_ec.engine.dump.recovered_entries import (
    RecoveredEntry,
    RecoveredRecord,
    recovered_size,
    recovered_tail,
    whole_parts,
)
from nos_ec.engine.packable import combine_crc32c, crc_checked
from nos_ec.ports.metadata import ObjectRow, QueueEntry, Rebuilt, Segment

UNREADABLE_NAMED_MAX = 1000
"""At most this many unreadable objects are named; all of them are counted."""
READ_BYTES_MAX = 4 << 20
"""Bytes of small objects to read at a time."""

_LANDED, _LARGE, _EMPTY = (
    advance_object(None, event) for event in (ObjectEvent.LAND, ObjectEvent.STORE, ObjectEvent.KEEP)
)
_PACKED = advance_object(ObjectState.LANDED, ObjectEvent.PACK)


@dataclass(slots=True)
class RowFigures:
    """Counts rows and reads. moved: objects of the dump that are in another place now. adopted: versions from blocks
    that are newer than the dump; landed: the same from landing copies. data_bytes: bytes read for these. unreadable:
    versions in headers whose bytes cannot be read."""

    moved: int = 0
    adopted: int = 0
    landed: int = 0
    data_bytes: int = 0
    unreadable: int = 0


class RowRebuilder:
    """Writes the rows of recovered objects. Used by one thread. new_ids: the first object id for a version without a
    row.

    Only the version numbers, which come from clocks, show the order of two versions of a key, and an older version may
    have been undeleted. So the version with the greatest number becomes current. With `keep_replaced`, the others go
    into the trash if they can be read; without it, they are dead. Some versions always stay: versions with ids and the
    versions that these have replaced; versions with a lock; replaced parts of uploads, until the parts of the composed
    objects are known; and a version because of which the PUT of the current one may have been refused.
    """

    def __init__(self, stores: RebuildInput, now_ms: int, new_ids: int, *, keep_replaced: bool) -> None:
        self._stores = stores
        self._metadata = metadata = stores.metadata
        self._blocks = stores.blocks
        self._now_ms = now_ms
        self._keep_replaced = keep_replaced
        self._next_id = max(new_ids, metadata.last_object_id() + 1)
        self.figures = RowFigures()
        self.unreadable: list[str] = []
        self.unread: set[BlockId] = set()
        """Blocks that hold versions which cannot be read."""

    # --- blocks ---------------------------------------------------------------------------------------
    def place_small(self, entries: Iterable[RecoveredEntry], last_at: int) -> None:
        """Place the small objects of one block. last_at: where its last group begins, in bytes. Raises Transient."""
        # 1. Find the entries that are rows in the trash; sort the others by key and version.
        versions: dict[ObjectKey, dict[int, RecoveredEntry]] = {}
        recovered = list(entries)
        trashed = self._metadata.trash_of({(entry.key, entry.version) for entry in recovered})
        trash_to_move: dict[int, tuple[ObjectRow, RecoveredEntry]] = {}
        for entry in recovered:
            row = trashed.get((entry.key, entry.version))
            if row is not None and _is_same(row, entry):
                if row.extent != entry.extent:
                    trash_to_move[row.object_id] = row, entry
                continue
            versions.setdefault(entry.key, {})[entry.version] = entry
        # 2. Decide for each key: the entry of its row may have moved, a newer entry becomes current, and the others are
        #    replaced versions.
        found = self._metadata.rows_of(versions.keys())
        to_move = list(trash_to_move.values())
        current: list[RecoveredEntry] = []
        replaced: list[RecoveredEntry] = []
        for key, by_version in versions.items():
            row = found.get(key)
            own = None if row is None else by_version.pop(row.version, None)
            if row is not None and own is not None and _is_same(row, own) and row.extent != own.extent:
                to_move.append((row, own))
            others = sorted(by_version.values(), key=lambda entry: entry.version)
            newest = b"" if row is None else row.attributes
            if others and (row is None or row.version < others[-1].version):
                current.append(others.pop())
                newest = current[-1].attributes
            # An entry with the version of a row in the trash, but other bytes, cannot go there as well.
            kept = (one for one in others if self._keeps(key, one.attributes, newest))
            replaced += [one for one in kept if (one.key, one.version) not in trashed]
        # 3. Move rows to their new places. This comes first, because this block may also hold a version that replaces a
        #    moved one.
        moved = self._moved(to_move, last_at)
        self.figures.moved += len(moved)
        self._metadata.place(moved, self._now_ms)
        found |= {one.row.key: one.row for one in moved if one.row.trash_until_ms is None}
        # 4. Write rows for the new current versions, and for replaced versions, which go into the trash.
        adopted: list[Rebuilt] = []
        for entry, data in self._read_entries(current):
            adopted += self._in_place_of(found.get(entry.key), self._packed(entry, data))
            self.figures.adopted += 1
        for entry, data in self._read_entries(replaced, name=False):
            adopted.append(Rebuilt(_trashed(self._packed(entry, data))))
        self._metadata.place(adopted, self._now_ms)

    def _moved(self, to_move: Sequence[tuple[ObjectRow, RecoveredEntry]], last_at: int) -> list[Rebuilt]:
        """Return these rows in their new places. If an object cannot be read in the last group of the block, but can be
        read in its old place, it stays there: the group was never committed."""
        last = [entry for _, entry in to_move if entry.extent.offset >= last_at]
        intact = {entry.extent for entry, _ in self._read_entries(last, name=False)}
        return [
            Rebuilt(replace(row, state=_PACKED, landing_id=None, extent=entry.extent), instead_of=row)
            for row, entry in to_move
            if entry.extent.offset < last_at or entry.extent in intact or not self._is_readable(row)
        ]

    def _is_readable(self, row: ObjectRow) -> bool:
        try:
            self._bytes_of_row(row)
        except (Corrupt, NotFound):
            return False
        return True

    def place_large(self, key: ObjectKey, version: int, parts: Sequence[RecoveredEntry], known: set[BlockId]) -> bool:
        """Place a large object, given its segments and the blocks that exist; its tail must have a row. Returns False
        if segments or the tail are missing: the PUT did not finish, or the object is half deleted. Raises Transient."""
        # 1. Decide whether this version is needed: it has a row, or another version has replaced it and it is not kept.
        found = self._metadata.rows_of([key]).get(key)
        is_replaced = found is not None and found.version > version
        if (found is not None and found.version == version) or self._metadata.trash_of({(key, version)}):
            return True
        whole = whole_parts(parts)
        attributes = b"" if whole is None else whole[-1].attributes
        is_kept = (
            found is None or self._keeps(key, attributes, found.attributes) or _at_the_same_time(version // 1000, found)
        )
        if is_replaced and not is_kept:
            return True
        # 2. Check that all segments and the tail exist. A replaced version that is incomplete does not matter.
        if whole is None:
            return is_replaced
        tail = None
        if recovered_tail(whole) is not None:
            tail = self._choose_tail(whole, parts)
            if tail is None:
                return is_replaced
        if any(part.extent.block_id not in known for part in whole):
            return is_replaced
        # 3. Read everything, for the MD5 and the CRC.
        md5 = hashlib.md5(usedforsecurity=False)
        crc32c = 0
        try:
            for part in whole:
                md5.update(self._bytes_of_entry(part))
                crc32c = combine_crc32c(crc32c, part.crc32c, part.extent.length)
            if tail is not None:
                md5.update(self._bytes_of_row(tail))
                crc32c = combine_crc32c(crc32c, tail.crc32c, tail.size)
        except (Corrupt, NotFound) as error:
            if not is_replaced:
                self._cannot_read(whole[0], error)
                self.unread |= {part.extent.block_id for part in whole}
            return True
        # 4. Write the row.
        row = ObjectRow(
            object_id=self._new_id(),
            key=key,
            version=version,
            size=recovered_size(whole),
            crc32c=crc32c,
            md5=md5.digest(),
            state=_LARGE,
            landing_id=None,
            extent=None,
            created_ms=version // 1000,
            attributes=whole[-1].attributes,
        )
        segments = [Segment(part.extent, part.crc32c) for part in whole]
        if is_replaced:
            self._metadata.place([Rebuilt(_trashed(row), segments)], self._now_ms)
        else:
            self.figures.adopted += 1
            self._metadata.place(self._in_place_of(found, row, segments), self._now_ms)
        return True

    def _choose_tail(self, whole: list[RecoveredEntry], parts: Sequence[RecoveredEntry]) -> ObjectRow | None:
        """Return the row of the tail; None without one. The last segment may have been written to several blocks, and
        the tail belongs to only one of them: the segment in that block becomes the last one of `whole`."""
        for last in (
            one for one in parts if one.part == whole[-1].part and one.extent.length == whole[-1].extent.length
        ):
            place = recovered_tail([*whole[:-1], last])
            tail = None if place is None else self._metadata.rows_of([place[0]]).get(place[0])
            if place is not None and tail is not None and tail.size == place[1]:
                whole[-1] = last
                return tail
        return None

    def _bytes_of_row(self, row: ObjectRow) -> bytes:
        data = self._stores.bytes_of(row)
        self.figures.data_bytes += len(data)
        return data

    def _in_place_of(
        self, found: ObjectRow | None, row: ObjectRow, segments: Sequence[Segment] = ()
    ) -> Sequence[Rebuilt]:
        """Return the changes that make `row` the current version in place of `found`."""
        if found is None:
            return [Rebuilt(row, segments)]
        if not (self._keeps(row.key, found.attributes, row.attributes) or is_in_doubt(found, row)):
            return [Rebuilt(replace(row, object_id=found.object_id), segments, found)]
        trashed = _trashed(found)
        if found.state.in_landing or found.state is _EMPTY:
            # If a key was deleted and stored again within a millisecond, the trash has a version with this number too.
            (trashed,) = self._numbered([trashed], {(row.key, row.version)})
        return [Rebuilt(trashed, self._segments_of(found), found), Rebuilt(row, segments)]

    def _segments_of(self, row: ObjectRow) -> list[Segment]:
        parts = self._metadata.segments_of([row.object_id]).get(row.object_id, [])
        return [segment for version, segment in parts if version == row.version]

    def _keeps(self, key: ObjectKey, older: bytes, newer: bytes) -> bool:
        """Return whether a version with the attributes `older` is kept after a version with `newer` has replaced it."""
        stays = is_of_versions(older) or is_of_versions(newer) or lock_of(older) is not None
        return self._keep_replaced or _is_part(key) or stays

    def _packed(self, entry: RecoveredEntry, data: bytes) -> ObjectRow:
        return ObjectRow(
            object_id=self._new_id(),
            key=entry.key,
            version=entry.version,
            size=entry.extent.length,
            crc32c=entry.crc32c,
            md5=hashlib.md5(data, usedforsecurity=False).digest(),
            state=_PACKED,
            landing_id=None,
            extent=entry.extent,
            created_ms=entry.version // 1000,
            attributes=entry.attributes,
        )

    def _read_entries(
        self, entries: Sequence[RecoveredEntry], *, name: bool = True
    ) -> Iterable[tuple[RecoveredEntry, bytes]]:
        """Yield each entry that can be read, with its bytes, reading in runs. With `name`, the entries that cannot be
        read are counted and named."""
        run: list[RecoveredEntry] = []
        size = 0
        for entry in entries:
            if run and size + entry.extent.length > READ_BYTES_MAX:
                yield from self._read_run(run, name=name)
                run, size = [], 0
            run.append(entry)
            size += entry.extent.length
        yield from self._read_run(run, name=name)

    def _read_run(self, run: Sequence[RecoveredEntry], *, name: bool) -> Iterable[tuple[RecoveredEntry, bytes]]:
        if not run:
            return
        extents = [(entry.extent.offset, entry.extent.length) for entry in run]
        try:
            pieces = self._blocks.read_many(run[0].extent.block_id, extents)
        except Corrupt:
            pieces = None
        for at, entry in enumerate(run):
            try:
                yield entry, self._bytes_of_entry(entry, None if pieces is None else pieces[at])
            except Corrupt as error:
                if name:
                    self._cannot_read(entry, error)

    def _bytes_of_entry(self, entry: RecoveredEntry, data: bytes | None = None) -> bytes:
        extent = entry.extent
        if data is None:
            data = self._blocks.read(extent.block_id, extent.offset, extent.length)
        self.figures.data_bytes += len(data)
        return crc_checked(data, extent.length, entry.crc32c, entry.key, f"{entry.key} v{entry.version}")

    def _cannot_read(self, entry: RecoveredEntry, error: Exception) -> None:
        self.figures.unreadable += 1
        self.unread.add(entry.extent.block_id)
        if len(self.unreadable) < UNREADABLE_NAMED_MAX:
            self.unreadable.append(f"{entry.key} v{entry.version}: {error}")

    def place_empty(self, parts: Mapping[ObjectKey, ObjectRow]) -> None:
        """Write rows for empty parts, each given with the composed object whose manifest lists it. Raises Transient."""
        rows = [
            ObjectRow(
                object_id=self._new_id(),
                key=key,
                version=whole.version,
                size=0,
                crc32c=0,
                md5=hashlib.md5(usedforsecurity=False).digest(),
                state=_EMPTY,
                landing_id=None,
                extent=None,
                created_ms=whole.created_ms,
            )
            for key, whole in parts.items()
        ]
        self._metadata.place([Rebuilt(row) for row in rows], self._now_ms)

    def exchange(self, current: ObjectRow | None, chosen: ObjectRow) -> ObjectRow | None:
        """Make a version in the trash the current version of its key, in place of `current`. Returns the row that the
        latter gets in the trash. Raises Transient."""
        back = replace(chosen, trash_until_ms=None, trashed_ms=None)
        exchanged = [Rebuilt(back, self._segments_of(chosen), chosen)]
        trashed = None
        if current is not None:
            (trashed,) = self._numbered([_trashed(current)], set())
            exchanged.append(Rebuilt(trashed, self._segments_of(current), current))
        self._metadata.place(exchanged, self._now_ms)
        return trashed

    # --- landing copies -------------------------------------------------------------------------------
    def place_landed(self, records: Sequence[RecoveredRecord], segments: Container[SegmentId]) -> list[QueueEntry]:
        """Place records of one landing segment, in order, or copies of the landing store. A record has the time of its
        PUT, but not the version of its object. `segments` has the landing segments that exist. Returns the copies to
        queue for deletion: second copies of packed objects, which the reaper reads back first, and copies of empty
        objects, which are due after EMPTY_COPY_MS. Raises Transient.

        A copy of the landing store that another version has replaced is left to the caller, unless it is a part, or in
        doubt."""
        # 1. Skip the records that the metadata knows, and find the newest record of each key, and those of versions in
        #    the trash.
        known = self._metadata.landing_known([record.landing_id for record in records])
        unknown = [record for record in records if record.landing_id not in known]
        trashed = self._metadata.trash_of([one for record in unknown for one in _own_numbers(record)])
        newest: dict[ObjectKey, RecoveredRecord] = {}
        others: list[RecoveredRecord] = []
        of_rows: list[tuple[RecoveredRecord, ObjectRow]] = []
        for record in unknown:
            rows = [trashed[one] for one in _own_numbers(record) if one in trashed]
            own = next((row for row in rows if _is_of(record, row)), None)
            if own is not None:
                of_rows.append((record, own))
                continue
            before = newest.get(record.key)
            if before is None or before.put_ms <= record.put_ms:
                newest[record.key] = record
            if before is not None and not _is_same_put(before, record):
                others.append(record if newest[record.key] is before else before)
        # 2. Move rows whose records were copied forward. This comes first, because another record may replace a moved
        #    version.
        found = self._metadata.rows_of(newest.keys())
        moved = self._copied_forward(unknown, found, segments)
        self._metadata.place(moved, self._now_ms)
        found |= {one.row.key: one.row for one in moved}
        self.figures.moved += len(moved)
        # 3. Make rows for records that are newer than the row of their key, and for replaced records that are kept.
        second: list[QueueEntry] = []
        made: dict[ObjectKey, ObjectRow] = {}
        for key, record in newest.items():
            row = found.get(key)
            if row is None or _is_newer(record, row):
                made[key] = self._landed(record, row)
            else:
                others.append(record)
        kept: list[ObjectRow] = []
        for record in others:
            row = found.get(record.key)
            if row is not None and _is_of(record, row):
                of_rows.append((record, row))
            elif self._stays(record, made.get(record.key, row), newest[record.key]):
                kept.append(_trashed(self._landed(record, None)))
        # 4. Number the versions. Two PUTs of one millisecond have the same number so far, but versions of a key must
        #    differ. The new current versions are numbered last, because they are newer than all others.
        taken = {(row.key, row.version) for row in found.values()}
        kept = self._numbered(kept, taken)
        for row in kept:
            if row.key in made and made[row.key].version <= row.version:
                made[row.key] = replace(made[row.key], version=row.version + 1)
        adopted = [Rebuilt(row) for row in kept]
        for new in self._numbered(made.values(), taken):
            adopted += self._in_place_of(found.get(new.key), new)
            self.figures.landed += 1
            if new.state is _EMPTY:
                until_ms = self._now_ms + EMPTY_COPY_MS
                second.append(QueueEntry(newest[new.key].landing_id, new.object_id, new.version, until_ms, False))
        # 5. A record of an existing version is a second copy if the version is packed, or replaces a trimmed record.
        moved = []
        for record, row in of_rows:
            if in_log(record.landing_id):
                if row.state is _PACKED:
                    second.append(QueueEntry(record.landing_id, row.object_id, row.version, self._now_ms, False))
                elif _is_trimmed(row.landing_id, segments):
                    moved.append(Rebuilt(replace(row, landing_id=record.landing_id), instead_of=row))
        self.figures.moved += len(moved)
        self._metadata.place(adopted + moved, self._now_ms)
        return second

    def _copied_forward(
        self, records: Sequence[RecoveredRecord], current: Mapping[ObjectKey, ObjectRow], segments: Container[SegmentId]
    ) -> list[Rebuilt]:
        """Return the current versions whose own records were trimmed, each with its copied record instead."""
        moved: dict[ObjectKey, Rebuilt] = {}
        for record in records:
            row = current.get(record.key)
            if row is None or row.state is _PACKED or not in_log(record.landing_id):
                continue
            if _is_trimmed(row.landing_id, segments) and _is_of(record, row):
                moved[row.key] = Rebuilt(replace(row, landing_id=record.landing_id), instead_of=row)
        return list(moved.values())

    def _stays(self, record: RecoveredRecord, row: ObjectRow | None, newest: RecoveredRecord) -> bool:
        """Return whether the version of a record is kept although a row, or the newest record of its key, has replaced
        it."""
        attributes = (record.attributes, newest.attributes, b"" if row is None else row.attributes)
        if _is_part(record.key) or any(map(is_of_versions, attributes)) or lock_of(record.attributes) is not None:
            return True
        if row is not None and _at_the_same_time(record.put_ms, row) and not _is_copy(record, row):  # `is_in_doubt`
            return True
        return self._keep_replaced and in_log(record.landing_id)

    def _numbered(self, rows: Iterable[ObjectRow], taken: set[tuple[ObjectKey, int]]) -> list[ObjectRow]:
        """Return these rows, which are not in blocks, with version numbers that no other version of their key has in
        the trash or in `taken`. Adds the numbers to `taken`."""
        listed = list(rows)
        in_trash = set(self._metadata.trash_of([(row.key, row.version) for row in listed]))
        numbered: list[ObjectRow] = []
        for row in listed:
            while (named := (row.key, row.version)) in taken or named in in_trash:
                row = replace(row, version=row.version + 1)
                in_trash |= self._metadata.trash_of([(row.key, row.version)]).keys()
            taken.add(named)
            numbered.append(row)
        return numbered

    def _landed(self, record: RecoveredRecord, found: ObjectRow | None) -> ObjectRow:
        version = record.put_ms * 1000
        return ObjectRow(
            object_id=self._new_id(),
            key=record.key,
            version=version if found is None else max(version, found.version + 1),
            size=len(record.data),
            crc32c=record.crc32c,
            md5=hashlib.md5(record.data, usedforsecurity=False).digest(),
            state=_LANDED if record.data else _EMPTY,
            landing_id=record.landing_id if record.data else None,
            extent=None,
            created_ms=record.put_ms,
            attributes=record.attributes,
        )

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def is_in_doubt(older: ObjectRow, current: ObjectRow) -> bool:
    """Return whether the PUT of the current version may have been refused because of an older version: both PUTs ran at
    about the same time, and the current version is not packed, so it may never have been recorded. If it is a copy of
    the older one, which was sent again or copied forward, there is no doubt."""
    is_copy = (older.size, older.crc32c, older.md5, older.attributes) == (
        current.size,
        current.crc32c,
        current.md5,
        current.attributes,
    )
    return not is_copy and _at_the_same_time(older.created_ms, current)


def _at_the_same_time(older_ms: int, current: ObjectRow) -> bool:
    return current.state is not _PACKED and 0 <= current.created_ms - older_ms <= PUT_MS_MAX


def _is_part(key: ObjectKey) -> bool:
    """Return whether only a manifest decides which version is right (`upload_rows.choose_parts`)."""
    return upload_of_part(key) is not None


def _trashed(row: ObjectRow) -> ObjectRow:
    """Return the row in the trash. Its times are set at the end (`Rebuilding.settle_trash`)."""
    return replace(row, trash_until_ms=0)


def _is_same(row: ObjectRow, entry: RecoveredEntry) -> bool:
    return (row.version, row.size, row.crc32c) == (entry.version, entry.extent.length, entry.crc32c)


def _is_of(record: RecoveredRecord, row: ObjectRow) -> bool:
    """Return whether the record is a copy of the row's version: its own, or one that was copied forward, with the time
    of the version (`put_ms_of`). Its attributes may differ if those of the version were changed."""
    return record.put_ms == row.version // 1000 and _has_bytes_of(record, row)


def _is_copy(record: RecoveredRecord, row: ObjectRow) -> bool:
    return record.attributes == row.attributes and _has_bytes_of(record, row)


def _has_bytes_of(record: RecoveredRecord, row: ObjectRow) -> bool:
    if (len(record.data), record.crc32c) != (row.size, row.crc32c):
        return False
    return hashlib.md5(record.data, usedforsecurity=False).digest() == row.md5


def _own_numbers(record: RecoveredRecord) -> list[tuple[ObjectKey, int]]:
    """Return the versions that a PUT at the time of the record gets, without and with a condition, if the key had no
    version that was as new."""
    return [(record.key, numbered(record.put_ms * 1000, conditional=conditional)) for conditional in (False, True)]


def _is_trimmed(copy: LandingId | None, segments: Container[SegmentId]) -> bool:
    return copy is not None and in_log(copy) and segment_of(copy) not in segments


def _is_same_put(one: RecoveredRecord, other: RecoveredRecord) -> bool:
    """Return whether both are copies of one version: it was copied forward, maybe after a change of its attributes."""
    return (one.put_ms, one.crc32c, len(one.data)) == (other.put_ms, other.crc32c, len(other.data))


def _is_newer(record: RecoveredRecord, row: ObjectRow) -> bool:
    """Return whether the record is from a later PUT than the row. The version of a PUT is at least the time of its
    record. Records of one millisecond are in the order of their landing segment."""
    if record.put_ms * 1000 > row.version:
        return True
    if row.landing_id is None or row.version // 1000 != record.put_ms:
        return False
    if not in_log(row.landing_id) or not in_log(record.landing_id):
        return False
    same_segment = segment_of(row.landing_id) == segment_of(record.landing_id)
    return same_segment and record_offset(row.landing_id) < record_offset(record.landing_id)
