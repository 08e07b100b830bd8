"""Recovers objects from blocks, landing segments and landing copies alone, without any row.

If a later format version records more than keys, versions, places and checksums, it is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nos_ec.core.errors import Corrupt, InvalidInput, NotFound
from nos_ec.core.formats.header import GroupHeader, NameRecord
from nos_ec.core.formats.landing_format import FoundRecord, decode_footer, is_void
from nos_ec.core.formats.landing_format import decode_names as decode_record_names
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey, SegmentId
from nos_ec.core.tails import tail_place
from nos_ec.engine.dump.rebuild_input import RebuildInput
from nos_ec.engine.header_scan import read_names, scan_headers
from nos_ec.engine.landing.landing_labels import labels_of, puts_in_segment
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import ObjectRow
from nos_ec.ports.segment_medium import SegmentMedium


@dataclass(frozen=True, slots=True)
class RecoveredEntry:
    """An object in a block, or a segment of a large object. `part` is, for a segment, (its offset in the object, size
    of the object), as in `NameRecord`; the last segment has the attributes."""

    key: ObjectKey
    version: int
    extent: Extent
    crc32c: int
    part: tuple[int, int] | None
    attributes: bytes


@dataclass(frozen=True, slots=True)
class RecoveredBlock:
    """The contents of a block.

    data_bytes: the bytes of all objects written to it; stripes without a readable header, and stripes of an unfinished
    group, count in full. entries: the objects of the requested groups. An unfinished group has no entries: some of its
    objects were never written, and no row ever referred to the others. nameless: how many more objects are in groups
    whose names cannot be read. epoch: the greatest epoch of its writers; written_ms: when the first group was written
    (Unix milliseconds); both are None without a readable header. is_read: whether everything requested was read.
    unfinished: whether it ends with an unfinished group. last_at: where the last other group begins, in bytes.
    """

    block_id: BlockId
    stripes: int
    data_bytes: int
    header_bytes: int
    entries: tuple[RecoveredEntry, ...]
    nameless: int
    epoch: int | None
    written_ms: int | None
    is_read: bool = True
    unfinished: bool = False
    last_at: int = 0


@dataclass(frozen=True, slots=True)
class RecoveredRecord:
    """A landing copy with its data. put_ms: the time of its PUT (Unix milliseconds)."""

    key: ObjectKey
    landing_id: LandingId
    put_ms: int
    data: bytes
    crc32c: int
    attributes: bytes


def recover_block(blocks: BlockStore, block_id: BlockId, stripes: int, first_stripe: int) -> RecoveredBlock:
    """Read the headers of a block of `stripes` stripes, and the names of its groups from `first_stripe` on. Raises
    NotFound, Transient."""
    geometry = blocks.geometry
    scan = scan_headers(blocks, block_id, stripes)
    asked = [header for header in scan.headers if header.first_stripe >= first_stripe and header.entries]
    entries: list[RecoveredEntry] = []
    nameless = 0
    for header in asked:
        named = _entries(blocks, header)
        entries += named
        nameless += len(header.entries) - len(named)
    headers = scan.headers if scan.unfinished is None else (*scan.headers, scan.unfinished)
    return RecoveredBlock(
        block_id,
        stripes,
        sum(header.data_length for header in scan.headers) + len(scan.stripes_outside_groups) * geometry.stripe_size,
        scan.bytes_read,
        tuple(entries),
        nameless,
        max((header.writer_epoch for header in headers), default=None),
        headers[0].written_at_ms if headers else None,
        not nameless and all(stripe < first_stripe for stripe in scan.damaged_stripes),
        scan.unfinished is not None,
        scan.headers[-1].first_stripe * geometry.stripe_size if scan.headers else 0,
    )


def recover_unfinished(blocks: BlockStore, block_id: BlockId) -> list[RecoveredEntry] | None:
    """Return the complete objects in the unfinished group at the end of a sealed block; None if some names of the group
    cannot be read. Raises NotFound, Transient."""
    stripes = blocks.stripes(block_id)
    header = scan_headers(blocks, block_id, stripes).unfinished
    if header is None:
        return []
    named = _entries(blocks, header)
    if len(named) < len(header.entries):
        return None
    end = stripes * blocks.geometry.stripe_size
    return [entry for entry in named if entry.extent.offset + entry.extent.length <= end]


def recover_segment(
    medium: SegmentMedium, segment: SegmentId, end: int, damaged: set[LandingId]
) -> Iterator[RecoveredRecord]:
    """Yield the PUTs in a sealed landing segment, in order, each once, from any copy of the segment that has it intact.
    At the end, `damaged` receives the PUTs that are not intact in any copy, if a record header or the footer of the
    segment lists them. Raises NotFound, Transient."""
    seen = set[LandingId]()
    broken = _in_footer(medium, segment, end)
    for found in puts_in_segment(medium, segment, end):
        landing_id = found.header.landing_id
        try:
            record = _record(found)
        except Corrupt:
            broken.add(landing_id)
            continue
        if landing_id not in seen:
            seen.add(landing_id)
            if record is not None:
                yield record
    damaged |= broken - seen


def recover_copies(landing: LandingStore, copies: Sequence[LandingId]) -> Iterator[RecoveredRecord]:
    """Yield the PUTs of copies in the landing store, in order. Copies without a label, or whose bytes do not match it,
    are skipped. Raises Transient."""
    for copy, label in labels_of(landing, copies).items():
        try:
            key = ObjectKey(label.bucket, label.name)
            data = crc_checked(landing.read(copy), label.size, label.crc32c, key, f"landing copy of {key}")
        except (Corrupt, InvalidInput, NotFound):
            continue
        yield RecoveredRecord(key, copy, label.put_ms, data, label.crc32c, label.attributes)


def whole_parts(parts: Sequence[RecoveredEntry]) -> list[RecoveredEntry] | None:
    """Return the segments of a large object in order, one for each offset; None if some are missing. If a tail follows,
    their sum is less than the object size that the last segment records (core.tails)."""
    by_offset: dict[int, RecoveredEntry] = {}
    end = 0
    for part in parts:
        assert part.part is not None
        offset, object_size = part.part
        by_offset[offset] = part
        if object_size:
            end = max(end, offset + part.extent.length)
    at = 0
    whole = []
    while at < end:
        if at not in by_offset:
            return None
        whole.append(by_offset[at])
        at += by_offset[at].extent.length
    return whole if whole and at == end else None


def recovered_size(whole: Sequence[RecoveredEntry]) -> int:
    """Return the size of a large object in bytes, including its tail, as its last segment records it."""
    last = whole[-1].part
    assert last is not None
    return last[1]


def recovered_tail(whole: Sequence[RecoveredEntry]) -> tuple[ObjectKey, int] | None:
    """Return the key and the size of the tail of a large object with these segments, in order; None without a tail."""
    return tail_place(recovered_size(whole), [(part.extent.block_id, part.extent.length) for part in whole])


def _entries(blocks: BlockStore, header: GroupHeader) -> list[RecoveredEntry]:
    """Return the objects of a header whose names can be read."""
    entries: list[RecoveredEntry] = []
    for entry, name in zip(header.entries, _names(blocks, header) or (), strict=False):
        key = _key(name.bucket, name.name, entry.key_md5)
        if key is not None:
            at = header.first_stripe * blocks.geometry.stripe_size + entry.offset
            extent = Extent(header.block_id, at, entry.length)
            entries.append(
                RecoveredEntry(key, entry.object_version, extent, entry.crc32c, name.segment, name.attributes)
            )
    return entries


def _names(blocks: BlockStore, header: GroupHeader) -> list[NameRecord] | None:
    try:
        return read_names(blocks, header) or None
    except Corrupt:
        return None


def _in_footer(medium: SegmentMedium, segment: SegmentId, end: int) -> set[LandingId]:
    """Return the records that the footer of a segment lists; none without an intact footer. Only the writer of a
    segment writes a footer."""
    for copy in range(medium.limits.copies):
        (data,) = medium.read(segment, [(end, medium.limits.segment_bytes - end)], copy)
        with suppress(Corrupt):
            return {entry.landing_id for entry in decode_footer(data, segment, end)}
    return set()


def _record(found: FoundRecord) -> RecoveredRecord | None:
    """Return the record of a PUT; None if it is void or its key is not valid by today's rules. Raises Corrupt when its
    names are damaged."""
    header = found.header
    if is_void(found.names):
        return None
    names = decode_record_names(found.names)
    key = _key(names.bucket, names.name, header.key_md5)
    if key is None:
        return None
    return RecoveredRecord(key, header.landing_id, header.put_ms, found.data, header.data_crc32c, names.attributes)


def _key(bucket: str, name: str, key_md5: bytes) -> ObjectKey | None:
    """Return the key; None if it is not valid by today's rules, or does not match the MD5 of the entry."""
    try:
        key = ObjectKey(bucket, name)
    except InvalidInput:
        return None
    return key if key.md5 == key_md5 else None


def maybe_committed(stores: RebuildInput, blocks: Iterable[BlockId]) -> set[BlockId]:
    """Return the blocks whose unfinished group may have been committed: it holds a complete object of which no row has
    this version or a later one, or its names cannot be read. Call this when everything else has its rows. Raises
    Transient.

    A committed group whose last stripes are lost looks like a group that its writer did not finish, if no row of its
    block records how many stripes were committed. But objects that were never committed still exist where they were
    before, unless they were deleted.
    """
    found: set[BlockId] = set()
    for block_id in blocks:
        try:
            entries = recover_unfinished(stores.blocks, block_id)
        except NotFound:
            continue
        if entries is None:
            found.add(block_id)
            continue
        known = stores.metadata.rows_of({entry.key for entry in entries})
        trashed = stores.metadata.trash_of({(entry.key, entry.version) for entry in entries})
        if not all((one.key, one.version) in trashed or _is_known(one, known.get(one.key)) for one in entries):
            found.add(block_id)
    return found


def _is_known(entry: RecoveredEntry, row: ObjectRow | None) -> bool:
    """Return whether the row of its key, if any, is of this version or a later one. A row that was rebuilt from a
    landing copy has only the time of its PUT as its version, so a row with the same bytes counts as well."""
    if row is None:
        return False
    has_its_bytes = (row.size, row.crc32c) == (entry.extent.length, entry.crc32c)
    return has_its_bytes or row.version // 1000 >= entry.version // 1000
