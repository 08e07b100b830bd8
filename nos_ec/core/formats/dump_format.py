"""The format of metadata dumps, version 1 (docs/FORMAT.md): pages of rows, with the names of their columns.

A dump is a sequence of frames. Integers are little-endian.

    offset  size  frame
         0     4  magic, b"NSDF"
         4     4  number of the frame, from 0
         8     4  length of the payload, bytes
        12     4  crc32c of bytes 4 to 11 and of the payload
        16        payload: a zlib stream of one MessagePack map

The first frame is the head and the last one the end. Each of the others is a page of one table: a list of values for
each column, by name. A reader skips tables and columns that it does not know, and uses a default for a missing column,
so a new column needs no new version. The end holds the number of frames and the number of rows of each table, so that a
truncated dump is detected. Any input that is not a whole dump raises Corrupt.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import google_crc32c
import msgspec

from nos_ec.core.errors import Corrupt

VERSION = 1
MAGIC = b"NSDF"
PAYLOAD_BYTES_MAX = 64 << 20
"""Maximum size of a payload, both compressed and uncompressed. Pages are much smaller."""

_FRAME_HEADER = struct.Struct("<4sIII")
_CHECKED_FIELDS = struct.Struct("<II")
"""The fields of the header that the CRC covers: number and length."""
_ZLIB_LEVEL = 1
"""Level 6 takes twice as long for 2 % fewer bytes (docs/adr/0024)."""

Read = Callable[[int], bytes]
"""Returns the next bytes of a dump, at most as many as requested; empty at the end of the input."""


class DumpHead(msgspec.Struct, frozen=True, tag="head"):
    """The head of a dump: the id and geometry (by field) of the store, and when the dump began, in Unix milliseconds.
    Each row is as it was at that time or later. `nos_ec_dump` is the version of the format."""

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


class PackedPage(msgspec.Struct, frozen=True):
    """A page whose payload is already encoded: everything of its frame that does not depend on the pages before it."""

    table: str
    rows: int
    payload: bytes


class DumpEnd(msgspec.Struct, frozen=True, tag="end"):
    """The end of a dump: the number of frames, including this one, and the number of rows of each table."""

    frames: int
    rows: dict[str, int]


DumpContent = DumpHead | DumpPage | DumpEnd
"""The content of a frame."""

_decoder = msgspec.msgpack.Decoder(DumpContent)


def encode_page(page: DumpPage) -> bytes:
    """Encode a single page as a separate frame."""
    return _frame(0, page)


def pack_page(page: DumpPage) -> PackedPage:
    """Encode a page for `dump_frames`. Raise ValueError for one that `read_dump` would refuse."""
    return PackedPage(page.table, page.rows, _payload(page))


def decode_page(data: bytes) -> DumpPage:
    """Decode what `encode_page` returned. Bytes after the frame are ignored. Raises Corrupt."""
    content = _read_frame(BytesIO(data).read, 0)
    if not isinstance(content, DumpPage):
        raise Corrupt("dump: a single frame that is not a page")
    return content


def dump_frames(head: DumpHead, pages: Iterable[DumpPage | PackedPage]) -> Iterator[bytes]:
    """Yield the frames of a dump. Raise ValueError for a page that `read_dump` would refuse."""
    rows = Counter[str]()
    yield _frame(0, head)
    number = 0
    for number, page in enumerate(pages, 1):
        rows[page.table] += page.rows
        yield _framed(number, page.payload if isinstance(page, PackedPage) else _payload(page))
    yield _frame(number + 1, DumpEnd(number + 2, dict(rows)))


def read_dump(read: Read) -> Iterator[DumpContent]:
    """Yield the head, the pages and the end of a dump. Raise Corrupt only where it is damaged or ends early, when the
    pages before have been yielded. So verify the whole dump before you use a page of it."""
    rows = Counter[str]()
    number, ended = 0, False
    while not ended:
        content = _read_frame(read, number)
        if number == 0:
            _require_head(content)
        elif isinstance(content, DumpHead):
            raise Corrupt(f"dump: frame {number} is a second head")
        if isinstance(content, DumpPage):
            rows[content.table] += content.rows
        if isinstance(content, DumpEnd):
            if content != DumpEnd(number + 1, dict(rows)):
                raise Corrupt("dump: it does not have the numbers of frames and rows that its end states")
            ended = True
        yield content
        number += 1
    if read(1):
        raise Corrupt("dump: bytes follow its end")


def read_payloads(read: Read) -> Iterator[bytes]:
    """Yield the payloads of the pages of a verified dump, for `decode_payload`. Raise Corrupt where its frames are
    damaged, or it ends early."""
    _next_payload(read, 0)
    yield from _pages_and_end(read)


def _pages_and_end(read: Read) -> Generator[bytes, None, DumpEnd]:
    """Yield the payloads of the pages that follow the head, and return the end."""
    number, last = 1, b""
    while (payload := _next_payload(read, number)) is not None:
        if number > 1:
            yield last
        number, last = number + 1, payload
    end = _decoded(last, number - 1)
    if not isinstance(end, DumpEnd) or end.frames != number:
        raise Corrupt("dump: it ends early")
    return end


def decode_payload(payload: bytes) -> DumpPage:
    """Decode what `read_payloads` yielded. Raises Corrupt."""
    content = _decoded(payload, None)
    if not isinstance(content, DumpPage):
        raise Corrupt("dump: a frame between its head and its end is not a page")
    return content


def page_rows(payload: bytes) -> tuple[str, int]:
    """Decode a page of a dump, and return its table and its number of rows. Raises Corrupt."""
    page = decode_payload(payload)
    return page.table, page.rows


Counted = Callable[[Iterable[bytes]], Iterable[tuple[str, int]]]
"""Returns what `page_rows` returns for each of these payloads, in their order. Other processes may do so."""


def _counted_here(payloads: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    return map(page_rows, payloads)


def verify_dump(read: Read, counted: Counted = _counted_here) -> tuple[DumpHead, Mapping[str, int]]:
    """Read a whole dump and decode its pages, and return its head and how many rows of each table it has. Raise
    Corrupt."""
    head, end = _require_head(_read_frame(read, 0)), None

    def pages() -> Iterator[bytes]:
        nonlocal end
        end = yield from _pages_and_end(read)

    rows = Counter[str]()
    for table, count in counted(pages()):
        rows[table] += count
    if end is None or end.rows != dict(rows):
        raise Corrupt("dump: it does not have the numbers of frames and rows that its end states")
    return head, end.rows


def _require_head(content: DumpContent) -> DumpHead:
    if not isinstance(content, DumpHead):
        raise Corrupt("dump: no head at its beginning")
    if content.nos_ec_dump != VERSION:
        raise Corrupt(f"dump: format version {content.nos_ec_dump} is not known; this program knows {VERSION}")
    return content


def _frame(number: int, content: DumpContent) -> bytes:
    return _framed(number, _payload(content))


def _payload(content: DumpContent) -> bytes:
    raw = msgspec.msgpack.encode(content)
    payload = zlib.compress(raw, _ZLIB_LEVEL)
    if max(len(raw), len(payload)) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"dump: a frame has {len(raw)} bytes, too many for a reader")
    return payload


def _framed(number: int, payload: bytes) -> bytes:
    return _FRAME_HEADER.pack(MAGIC, number, len(payload), _crc(number, payload)) + payload


def _read_frame(read: Read, number: int) -> DumpContent:
    payload = _next_payload(read, number)
    if payload is None:
        raise Corrupt(f"dump: it ends before frame {number} is complete")
    return _decoded(payload, number)


def _next_payload(read: Read, number: int) -> bytes | None:
    """Return the payload of the next frame, whose checksum fits; None at the end of the input. Raises Corrupt."""
    begin = read(_FRAME_HEADER.size)
    if not begin:
        return None
    header = begin + _read_exactly(read, _FRAME_HEADER.size - len(begin), number)
    magic, stored_number, length, crc = _FRAME_HEADER.unpack(header)
    if magic != MAGIC:
        raise Corrupt("this is not a dump of nos_ec" if number == 0 else f"dump: frame {number} has no magic")
    if stored_number != number:
        raise Corrupt(f"dump: frame {stored_number} where frame {number} was expected")
    if length > PAYLOAD_BYTES_MAX:
        raise Corrupt(f"dump: frame {number} has {length} bytes, more than {PAYLOAD_BYTES_MAX}")
    payload = _read_exactly(read, length, number)
    if _crc(number, payload) != crc:
        raise Corrupt(f"dump: checksum of frame {number} does not match")
    return payload


def _decoded(payload: bytes, number: int | None) -> DumpContent:
    name = "a frame" if number is None else f"frame {number}"
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(payload, PAYLOAD_BYTES_MAX)
        if not stream.eof or stream.unused_data:
            raise Corrupt(f"dump: the payload of {name} is too large, incomplete, or followed by other bytes")
        content: DumpContent = _decoder.decode(raw)
    except (zlib.error, msgspec.DecodeError) as error:
        raise Corrupt(f"dump: {name}: {error}") from error
    return content


def _crc(number: int, payload: bytes) -> int:
    fields_crc = google_crc32c.value(_CHECKED_FIELDS.pack(number, len(payload)))
    return int(google_crc32c.extend(fields_crc, payload))


def _read_exactly(read: Read, length: int, number: int) -> bytes:
    parts: list[bytes] = []
    remaining = length
    while remaining:
        part = read(remaining)
        if not part:
            raise Corrupt(f"dump: it ends before frame {number} is complete")
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)
