"""One shard of one block, as a file of the embedded block store. Version 1 (see docs/FORMAT.md).

    offset         size              content
    0              48                head: magic b"NSSH", version u16, shard u16, block_id 16, chunk_size u32, k u16,
                                     m u16, stripes_per_block u32, zeros 8, crc32c u32 of the above; little-endian
    512            12                mark [1]: b"SEAL" or b"GONE", stripes u32, crc32c u32 over these 8 and the id;
                                     zeros while the block is open
    4096           4 per page        checksums [2] of the data's pages, room for stripes_per_block
    then, paged    chunk_size each   the chunks of this shard, in stripe order

[1] The mark has its own sector, in a page that is written at creation, so sealing needs no space on a full disk.
[2] Each is the CRC32C of block_id, shard u16, page number u32 and the page. So a page verifies only where it was
written; this holds even for a page of zeros, which a power cut may leave. Checksums of acknowledged pages share a page
of the file with later ones. Like every append to a file, this trusts the disk not to damage the bytes next to the ones
that it writes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import google_crc32c

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.files.durable import write_at
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId

_HEAD = struct.Struct("<4sHH16sIHHI8s")
_MARK = struct.Struct("<4sI")
_CRC = struct.Struct("<I")
_PLACE = struct.Struct("<HI")
_MARK_AT = 512
_SEAL = b"SEAL"
_GONE = b"GONE"


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark that ends a block's appends. `stripes` is None when the mark is damaged."""

    gone: bool
    stripes: int | None


class Pages(NamedTuple):
    """Consecutive pages of a shard: the number of the first, their bytes (zeros where none could be read), and the
    numbers of the bad ones. `read_bytes` is the number of bytes that were read from the file. `unwritten` are the bad
    pages that lie past the end of the file or have no checksum, as an interrupted append leaves them."""

    first: int
    data: bytes | bytearray
    bad: frozenset[int]
    read_bytes: int
    unwritten: frozenset[int] = frozenset()

    def part(self, first: int, count: int) -> bytes | None:
        """Return `count` pages from number `first` on; None unless all of them are here and good."""
        start = (first - self.first) * PAGE
        if start < 0 or start + count * PAGE > len(self.data) or not self.bad.isdisjoint(range(first, first + count)):
            return None
        return bytes(self.data[start : start + count * PAGE])


class ShardLayout:
    """The layout of the shard files of one geometry. Offsets are in bytes."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.chunk_pages = geometry.chunk_size // PAGE
        checksums_size = _CRC.size * self.chunk_pages * geometry.stripes_per_block
        self.checksums_offset = PAGE
        self.data_offset = PAGE + -(-checksums_size // PAGE) * PAGE

    def size(self, stripes: int) -> int:
        """Return the size in bytes of a shard file with this number of stripes."""
        return self.data_offset + stripes * self.geometry.chunk_size if stripes else PAGE

    def stripes(self, size: int) -> int:
        """Return the number of whole chunks in a shard file of this size in bytes."""
        return max(0, size - self.data_offset) // self.geometry.chunk_size


class ShardFile:
    """An open shard file. Every method may raise OSError. Only `sync` may be called from several threads at once."""

    def __init__(self, path: Path, fd: int, layout: ShardLayout, block_id: BlockId, shard: int) -> None:
        self.path = path
        self.shard = shard
        self._fd = fd
        self._layout = layout
        self._block_id = block_id

    @classmethod
    def open(cls, path: Path, layout: ShardLayout, block_id: BlockId, shard: int, *, write: bool) -> Self:
        """Open an existing shard file."""
        flags = os.O_RDWR if write else os.O_RDONLY
        return cls(path, os.open(path, flags | os.O_CLOEXEC), layout, block_id, shard)

    @classmethod
    def create(cls, path: Path, layout: ShardLayout, block_id: BlockId, shard: int) -> Self:
        """Create a shard file without stripes, exclusively. Syncs neither the file nor its folder entry."""
        file = cls(path, open_new(path, os.O_RDWR | os.O_EXCL), layout, block_id, shard)
        try:
            write_at(file._fd, [file._head().ljust(PAGE, b"\0")], 0)
        except OSError:
            file.close()
            path.unlink()
            raise
        return file

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def sync(self) -> None:
        """Make all writes so far durable."""
        os.fsync(self._fd)

    def drop_cached(self) -> None:
        """Drop the file from the page cache, so that the next reads come from the disk, as far as the system allows.
        Call `sync` first."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def intact_head(self) -> bool:
        """Return whether the head names this shard, this block and this geometry."""
        head = self._head()
        return os.pread(self._fd, len(head), 0) == head

    def mark(self) -> Mark | None:
        """Return the block's mark on this shard; None while there is none."""
        data = os.pread(self._fd, _MARK.size + _CRC.size, _MARK_AT)
        if not any(data):
            return None
        if len(data) < _MARK.size + _CRC.size or data != self._marked(*_MARK.unpack_from(data)):
            return Mark(gone=False, stripes=None)
        kind, stripes = _MARK.unpack_from(data)
        return Mark(gone=kind == _GONE, stripes=stripes)

    def write_seal(self, stripes: int) -> None:
        """Mark the block as sealed with this number of stripes."""
        write_at(self._fd, [self._marked(_SEAL, stripes)], _MARK_AT)

    def write_gone(self) -> None:
        """Mark the block as being deleted."""
        write_at(self._fd, [self._marked(_GONE, 0)], _MARK_AT)

    def extend(self, stripes: int) -> None:
        """Extend the file to its size with this number of stripes. Pages that were not written have no checksum."""
        os.ftruncate(self._fd, self._layout.size(stripes))

    def write_chunks(self, at_stripe: int, chunks: Sequence[memoryview]) -> None:
        """Write the chunks of consecutive stripes and their checksums."""
        self.write_pages(at_stripe * self._layout.chunk_pages, chunks)

    def write_pages(self, first: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write whole pages from number `first` on, and their checksums. Each part consists of whole pages."""
        sums: list[int] = []
        for part in parts:
            sums += self._checksums(first + len(sums), bytes(part))
        write_at(self._fd, parts, self._layout.data_offset + first * PAGE)
        packed = struct.pack(f"<{len(sums)}I", *sums)
        write_at(self._fd, [packed], self._layout.checksums_offset + first * _CRC.size)

    def read_pages(self, first: int, count: int) -> Pages:
        """Read and verify `count` pages from number `first` on. Pages past the end are bad, without an error."""
        data = os.pread(self._fd, count * PAGE, self._layout.data_offset + first * PAGE)
        read_bytes = len(data)
        sums = os.pread(self._fd, count * _CRC.size, self._layout.checksums_offset + first * _CRC.size)
        stored = struct.unpack(f"<{count}I", sums.ljust(count * _CRC.size, b"\0"))
        whole = read_bytes // PAGE
        actual = self._checksums(first, data[: whole * PAGE])
        bad = [first + i for i in range(whole) if actual[i] != stored[i]]
        unwritten = [page for page in bad if not stored[page - first]]
        missing = range(first + whole, first + count)
        return Pages(
            first,
            data.ljust(count * PAGE, b"\0"),
            frozenset(bad).union(missing),
            read_bytes,
            frozenset(unwritten).union(missing),
        )

    def _checksums(self, first: int, data: bytes) -> list[int]:
        crc_of, extend, place, block_id, shard = (
            google_crc32c.value,
            google_crc32c.extend,
            _PLACE.pack,
            self._block_id,
            self.shard,
        )
        return [
            extend(crc_of(block_id + place(shard, first + i)), data[i * PAGE : (i + 1) * PAGE])
            for i in range(len(data) // PAGE)
        ]

    def _head(self) -> bytes:
        geometry = self._layout.geometry
        shape = (geometry.chunk_size, geometry.k, geometry.m, geometry.stripes_per_block)
        head = _HEAD.pack(b"NSSH", 1, self.shard, self._block_id, *shape, bytes(8))
        return head + _CRC.pack(google_crc32c.value(head))

    def _marked(self, kind: bytes, stripes: int) -> bytes:
        mark = _MARK.pack(kind, stripes)
        return mark + _CRC.pack(google_crc32c.value(mark + self._block_id))
