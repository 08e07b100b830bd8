"""Keeps dumps in the store itself, as large objects of a reserved bucket, each named by the time at which it began.

A large object lies in blocks of its own, and the header of each block describes its content (docs/adr/0012). So a dump
is found without any row. It is complete if its last segment exists, which records its size, and if its last frame does.

A dump from the future was made while a clock was ahead. It counts as older than all others: dumps that were made since
are newer, and contain more deletions.

9  one block of a dump is in memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.formats.dump_format import DumpHead, DumpPage, PackedPage, Read, dump_frames, verify_dump
from nos_ec.core.formats.header import decode_header, decode_names, peek_length
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import RESERVED_BUCKET, BlockId, Extent, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import ObjectState
from nos_ec.engine.dump.rebuild_input import DumpSource, prefetched
from nos_ec.engine.dump.recovered_entries import RecoveredEntry, whole_parts
from nos_ec.engine.objects.large import LargeObjects
from nos_ec.engine.objects.store import Store
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import Metadata, PutRequest

_log = structlog.get_logger(__name__)

PREFIX = "metadata-dump-"
_JOURNAL = "nos_ec:journal"
"""The attribute with `StoredDump.journal`."""
PAGE_OBJECTS = 1000
AHEAD_MS_MAX = 3_600_000
"""Clocks may differ by up to this many milliseconds."""
_FRONT = 2 * PAGE
"""The first bytes of a block of a large object, which contain its header and its name."""


@dataclass(frozen=True, slots=True)
class StoredDump:
    """A dump as its row describes it: when it began (Unix milliseconds), its size in bytes, and the number of the first
    object of the journal that it needs, which is 0 for a dump of an earlier release."""

    key: ObjectKey
    begun_ms: int
    size: int
    journal: int = 0


class StoredDumps:
    """Writes, lists and removes the dumps of an open store."""

    def __init__(self, store: Store, large: LargeObjects) -> None:
        self._store = store
        self._large = large

    def write(
        self,
        head: DumpHead,
        pages: Iterable[DumpPage | PackedPage],
        journal: int = 0,
        verify: Callable[[Read], tuple[DumpHead, Mapping[str, int]]] = verify_dump,
    ) -> tuple[StoredDump, dict[str, int]]:
        """Store a dump and read it back. journal: the number of the next object of the journal, read before the pages
        are; with 0, no object of the journal is deleted while the dump exists. verify: `verify_dump`, which may share
        its work. Returns the dump, and how many rows of each table it has. Raises NoSpace, Corrupt, Transient."""
        key = ObjectKey(RESERVED_BUCKET, f"{PREFIX}{head.begun_ms:015}")
        row = self._large.put(
            PutRequest(key, encode_attributes({_JOURNAL: str(journal)})), b"", _Frames(dump_frames(head, pages))
        )
        kill_point("dump.stored")
        _, segments = self._store.open(key)
        _, rows = verify(_reader(segments))
        return StoredDump(key, head.begun_ms, row.size, journal), dict(rows)

    def all(self, now_ms: int) -> list[StoredDump]:
        """Return all dumps, oldest first, except that dumps from the future precede the others. Raises Transient."""
        found: list[StoredDump] = []
        after = ""
        while page := self._store.list_objects(RESERVED_BUCKET, PREFIX, after, PAGE_OBJECTS):
            after = page[-1].key.name
            for row in page:
                begun_ms = _begun_ms(row.key.name)
                if row.state is ObjectState.LARGE and begun_ms is not None:
                    number = decode_attributes(row.attributes).get(_JOURNAL, "0")
                    found.append(StoredDump(row.key, begun_ms, row.size, int(number)))
        return sorted(found, key=lambda one: (not is_ahead(one.begun_ms, now_ms), one.begun_ms))

    def keep(self, newest: int, now_ms: int) -> int:
        """Delete all dumps except the `newest` ones. GC frees their blocks. Returns how many were deleted."""
        surplus = self.all(now_ms)[:-newest]
        for dump in surplus:
            try:
                self._store.delete(dump.key, permanently=True)
            except NotFound:
                continue  # another process has deleted it
            kill_point("dump.deleted")
        return len(surplus)


def is_ahead(begun_ms: int, now_ms: int) -> bool:
    """Return whether a dump is from the future."""
    return begun_ms > now_ms + AHEAD_MS_MAX


def newest_dump_ms(metadata: Metadata, now_ms: int) -> int | None:
    """Return when the newest dump in the store began (Unix milliseconds), ignoring dumps from the future; None if there
    is none. Raises Transient."""
    newest, after = None, ""
    while page := metadata.list_names(RESERVED_BUCKET, PREFIX, after, PAGE_OBJECTS):
        after = page[-1]
        times = (ms for name in page if (ms := _begun_ms(name)) is not None and not is_ahead(ms, now_ms))
        newest = max(times, default=newest)
    return newest


def _begun_ms(name: str) -> int | None:
    """Return the time in the name of a dump; None for another name."""
    begun = name.removeprefix(PREFIX)
    return int(begun) if begun.isdecimal() else None


# --- without any row ----------------------------------------------------------------------------------
def newest_dump(blocks: BlockStore, now_ms: int, tick: Callable[[str, int, int | None], None]) -> DumpSource | None:
    """Find the newest complete dump in the block store. Returns None if there is none. Raises Transient.

    Block ids begin with the time, so this reads only the fronts of the blocks that were begun since the dump, and of
    few others. Damaged dumps are logged and skipped. A dump from the future is used if there is no other.
    """
    parts: dict[ObjectKey, list[RecoveredEntry]] = {}
    from_future: DumpSource | None = None
    listed = sorted(blocks.list_blocks(), reverse=True)
    for done, (_, entry) in enumerate(prefetched(lambda block_id: _front(blocks, block_id), listed), 1):
        tick("blocks looked through for a dump", done, len(listed))
        if entry is None or entry.key.bucket != RESERVED_BUCKET:
            continue
        found = parts.setdefault(entry.key, [])
        if any(known.part == entry.part for known in found):
            continue  # an earlier attempt to write this segment, which failed
        found.append(entry)
        whole = whole_parts(found)
        if whole is not None:
            source = _source(blocks, entry.key, whole)
            if source is not None and not is_ahead(source.head.begun_ms, now_ms):
                return source
            if source is not None:
                _log.warning("dump is from the future; looking for another one", dump=source.name)
                from_future = from_future or source
    return from_future


def _front(blocks: BlockStore, block_id: BlockId) -> RecoveredEntry | None:
    """Return the segment of a large object in the block; None if it holds something else, or cannot be read."""
    try:
        front = blocks.read(block_id, 0, _FRONT)
        if peek_length(front, block_id, 0) > _FRONT:
            return None  # many objects are in it
        header = decode_header(front, block_id, 0)
        if len(header.entries) != 1 or header.names_offset + header.names_length > _FRONT:
            return None
        names = front[header.names_offset : header.names_offset + header.names_length]
        (name,) = decode_names(names, header.names_crc32c, 1)
        key = ObjectKey(name.bucket, name.name)
    except NotFound:
        return None
    except Corrupt as error:
        _log.error("cannot read block; it may hold a newer dump", block=block_id.hex(), error=str(error))
        return None
    if name.segment is None:
        return None
    (entry,) = header.entries
    extent = Extent(block_id, entry.offset, entry.length)
    return RecoveredEntry(key, entry.object_version, extent, entry.crc32c, name.segment, name.attributes)


def _source(blocks: BlockStore, key: ObjectKey, parts: Sequence[RecoveredEntry]) -> DumpSource | None:
    @contextmanager
    def reading() -> Iterator[Read]:
        yield _reader(_bytes_of(blocks, part) for part in parts)

    try:
        with reading() as read:
            head, rows = verify_dump(read)
    except (Corrupt, NotFound) as error:
        _log.warning("cannot use dump; looking for an older one", dump=str(key), error=str(error))
        return None
    return DumpSource(str(key), head, dict(rows), reading)


def _bytes_of(blocks: BlockStore, part: RecoveredEntry) -> bytes:
    extent = part.extent
    data = blocks.read(extent.block_id, extent.offset, extent.length)
    return crc_checked(data, extent.length, part.crc32c, part.key, str(part.key))


class _Frames:
    """A stream of the frames of a dump."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self.read = _reader(frames)


def _reader(pieces: Iterable[bytes]) -> Read:
    """Return a function that reads from pieces in order."""
    iterator = iter(pieces)
    rest = b""

    def read(size: int) -> bytes:
        nonlocal rest
        while not rest:
            following = next(iterator, None)
            if following is None:
                return b""
            rest = following
        piece, rest = rest[:size], rest[size:]
        return piece

    return read
