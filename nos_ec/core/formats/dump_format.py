"""Dumps of the metadata: rows of tables in pages that name their columns, on-disk format version 1 (docs/FORMAT.md).

A dump is a sequence of frames. Integers are little-endian.

    offset  size  frame
         0     4  magic, b"NSDF"
         4     4  number of the frame, from 0
         8     4  length of the payload, bytes
        12     4  crc32c of bytes 4 to 11 and of the payload
        16        payload: a zlib stream of one MessagePack map

The first frame is the head, the last one the end, and each of the others a page of one table: a list of values for each
column, by name. A reader skips tables and columns that it does not know, and a missing column has its default. So
another column needs no new version. The end counts the frames and the rows of each table, so that a truncated dump is
detected. Decoding is total: any other input raises Corrupt.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import google_crc32c
import msgspec

from nos_ec.core.errors import Corrupt

VERSION = 1
MAGIC = b"NSDF"
PAYLOAD_BYTES_MAX = 64 << 20
"""Bytes of a payload, before and after it is compressed. A page is much smaller."""

_FRAME = struct.Struct("<4sIII")
_CHECKED = struct.Struct("<II")
_LEVEL = 1
"""Level 6 takes twice as long for 2 % fewer bytes (docs/adr/0024)."""

Read = Callable[[int], bytes]
"""Returns the next bytes of a dump, at most as many as requested; no bytes at its end."""


class DumpHead(msgspec.Struct, frozen=True, tag="head"):
    """The head of a dump: the id and geometry (by field) of the store, and when the dump began, in Unix milliseconds.
    All rows are as they were then or later."""

    store_id: str
    begun_ms: int
    geometry: dict[str, int]
    nos_ec_dump: int = VERSION


class DumpPage(msgspec.Struct, frozen=True, tag="page"):
    """Rows of one table. `columns` has the values of each column, one for each row."""

    table: str
    columns: dict[str, list[Any]]

    @property
    def rows(self) -> int:
        """Return the number of rows in the page."""
        return max(map(len, self.columns.values()), default=0)

    def tuples(self, **defaults: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows, each with the named columns, in that order. A missing column has the default in every row; a
        column with the default `...` must exist. Raise Corrupt."""
        rows = self.rows
        found: list[Sequence[Any]] = []
        for name, default in defaults.items():
            if name not in self.columns and default is ...:
                raise Corrupt(f"dump: a page of {self.table} has no column {name}")
            found.append(self.columns.get(name, [default] * rows))
        if any(len(values) != rows for values in found):
            raise Corrupt(f"dump: the columns of a page of {self.table} have different lengths")
        return zip(*found, strict=True)


class DumpEnd(msgspec.Struct, frozen=True, tag="end"):
    """The end of a dump: the number of frames, including this one, and the number of rows of each table."""

    frames: int
    rows: dict[str, int]


_decoder = msgspec.msgpack.Decoder(DumpHead | DumpPage | DumpEnd)


def encode_page(page: DumpPage) -> bytes:
    """Encode a single page as a separate frame."""
    return _frame(0, page)


def decode_page(data: bytes) -> DumpPage:
    """Decode what `encode_page` returned. Bytes after the frame are ignored. Raises Corrupt."""
    found = _decoded(BytesIO(data).read, 0)
    if not isinstance(found, DumpPage):
        raise Corrupt("dump: a frame of another kind is in the place of a page")
    return found


def dump_frames(head: DumpHead, pages: Iterable[DumpPage]) -> Iterator[bytes]:
    """Yield the frames of a dump. Raise ValueError for a page that `read_dump` would refuse."""
    rows = Counter[str]()
    yield _frame(0, head)
    number = 0
    for number, page in enumerate(pages, 1):
        rows[page.table] += page.rows
        yield _frame(number, page)
    yield _frame(number + 1, DumpEnd(number + 2, dict(rows)))


def read_dump(read: Read) -> Iterator[DumpHead | DumpPage | DumpEnd]:
    """Yield the head, the pages and the end of a dump. Raise Corrupt at the place where it is damaged or ends early:
    read all of it before you use the first page."""
    rows = Counter[str]()
    number, ended = 0, False
    while not ended:
        found = _decoded(read, number)
        if isinstance(found, DumpHead) != (number == 0):
            raise Corrupt(f"dump: frame {number} is not what belongs there")
        if isinstance(found, DumpHead) and found.nos_ec_dump != VERSION:
            raise Corrupt(f"dump: format version {found.nos_ec_dump} is not known; this program knows {VERSION}")
        if isinstance(found, DumpPage):
            rows[found.table] += found.rows
        if isinstance(found, DumpEnd):
            if found != DumpEnd(number + 1, dict(rows)):
                raise Corrupt("dump: its end counts other frames or rows than there are")
            ended = True
        yield found
        number += 1
    if read(1):
        raise Corrupt("dump: bytes follow its end")


def verify_dump(read: Read) -> tuple[DumpHead, Mapping[str, int]]:
    """Read a whole dump, and return its head and how many rows of each table it has. Raise Corrupt."""
    head: DumpHead | None = None
    rows: Mapping[str, int] = {}
    for found in read_dump(read):
        if isinstance(found, DumpHead):
            head = found
        elif isinstance(found, DumpEnd):
            rows = found.rows
    assert head is not None
    return head, rows


def _frame(number: int, content: DumpHead | DumpPage | DumpEnd) -> bytes:
    raw = msgspec.msgpack.encode(content)
    payload = zlib.compress(raw, _LEVEL)
    if max(len(raw), len(payload)) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"dump: frame {number} of {len(raw)} bytes could not be read again")
    crc = google_crc32c.extend(google_crc32c.value(_CHECKED.pack(number, len(payload))), payload)
    return _FRAME.pack(MAGIC, number, len(payload), crc) + payload


def _decoded(read: Read, number: int) -> DumpHead | DumpPage | DumpEnd:
    fields = _exactly(read, _FRAME.size, number)
    magic, found, length, crc = _FRAME.unpack(fields)
    if magic != MAGIC:
        raise Corrupt("this is not a dump of nos_ec" if number == 0 else f"dump: frame {number} has no magic")
    if found != number or length > PAYLOAD_BYTES_MAX:
        raise Corrupt(f"dump: frame {found} of {length} bytes is in the place of frame {number}")
    payload = _exactly(read, length, number)
    if google_crc32c.extend(google_crc32c.value(_CHECKED.pack(number, length)), payload) != crc:
        raise Corrupt(f"dump: checksum of frame {number} does not match")
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(payload, PAYLOAD_BYTES_MAX)
        if not stream.eof or stream.unused_data:
            raise Corrupt(f"dump: frame {number} is too large, or followed by other bytes")
        content: DumpHead | DumpPage | DumpEnd = _decoder.decode(raw)
    except (zlib.error, msgspec.DecodeError) as error:
        raise Corrupt(f"dump: frame {number}: {error}") from error
    return content


def _exactly(read: Read, length: int, number: int) -> bytes:
    parts: list[bytes] = []
    left = length
    while left:
        part = read(left)
        if not part:
            raise Corrupt(f"dump: cut off in frame {number}; it was not written to its end")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
