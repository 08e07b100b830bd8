"""Dumps: what is written is read, whatever else is refused, and a further column needs no new version."""

from __future__ import annotations

import io
import struct
import zlib

import google_crc32c
import msgspec
import pytest

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats import dump_format
from nos_ec.core.formats.dump_format import (
    DumpEnd,
    DumpHead,
    DumpPage,
    decode_payload,
    dump_frames,
    page_rows,
    read_dump,
    read_payloads,
    verify_dump,
)
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.engine.dump import dumper, rows
from nos_ec.ports.metadata import BlockRow, ObjectRow, Rebuilt, Segment

HEAD = DumpHead("ab" * 16, 1_700_000_000_000, {"k": 8, "m": 3})
PAGES = [
    DumpPage("blocks", {"block_id": [bytes(16), b"\x01" * 16], "stripes": [1, 2]}),
    DumpPage("objects", {"bucket": ["b"], "name": ["n/\u00e4"], "parts": [[(bytes(16), 0, 5, 7)]]}),
    DumpPage("objects", {"bucket": [], "name": [], "parts": []}),
]


def dumped(head: DumpHead = HEAD, pages: list[DumpPage] = PAGES) -> bytes:
    return b"".join(dump_frames(head, pages))


def test_a_dump_is_read_as_it_was_written() -> None:
    head, *pages, end = read_dump(io.BytesIO(dumped()).read)
    assert head == HEAD
    assert [msgspec.msgpack.encode(page) for page in pages] == [msgspec.msgpack.encode(page) for page in PAGES]
    assert end == DumpEnd(5, {"blocks": 2, "objects": 1})
    assert verify_dump(io.BytesIO(dumped()).read) == (HEAD, {"blocks": 2, "objects": 1})


def test_a_dump_built_from_the_tables_is_read() -> None:
    """docs/FORMAT.md has these tables. This never changes: another layout is another version."""
    payloads = [
        {"type": "head", "nos_ec_dump": 1, "store_id": "ab", "begun_ms": 5, "geometry": {"k": 8}},
        {"type": "page", "table": "objects", "columns": {"object_id": [1, 2], "md5": [b"\x01" * 16, b"\x02" * 16]}},
        {"type": "end", "frames": 3, "rows": {"objects": 2}},
    ]
    raw = b""
    for number, payload in enumerate(payloads):
        packed = zlib.compress(msgspec.msgpack.encode(payload))
        fields = struct.pack("<II", number, len(packed))
        raw += b"NSDF" + fields + struct.pack("<I", google_crc32c.value(fields + packed)) + packed
    head, page, end = read_dump(io.BytesIO(raw).read)
    assert head == DumpHead("ab", 5, {"k": 8})
    assert isinstance(page, DumpPage)
    assert list(page.tuples(md5=..., object_id=...)) == [(b"\x01" * 16, 1), (b"\x02" * 16, 2)]
    assert end == DumpEnd(3, {"objects": 2})


def test_payloads_are_the_pages() -> None:
    raw = dumped()
    pages = [decode_payload(payload) for payload in read_payloads(io.BytesIO(raw).read)]
    assert [msgspec.msgpack.encode(page) for page in pages] == [msgspec.msgpack.encode(page) for page in PAGES]
    assert list(read_payloads(io.BytesIO(dumped(pages=[])).read)) == []
    for size in range(len(raw)):
        with pytest.raises(Corrupt):
            list(read_payloads(io.BytesIO(raw[:size]).read))
    for at in range(len(raw)):
        with pytest.raises(Corrupt):
            list(read_payloads(io.BytesIO(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]).read))
    (payload,) = read_payloads(io.BytesIO(dumped(pages=PAGES[:1])).read)
    with pytest.raises(Corrupt, match="incomplete"):
        decode_payload(payload[:-1])


def test_it_is_read_in_pieces_of_any_size() -> None:
    raw = io.BytesIO(dumped())
    assert len(list(read_dump(lambda length: raw.read(min(3, length))))) == 5


def test_columns_are_found_by_name_and_may_be_missing() -> None:
    page = DumpPage("blocks", {"stripes": [1, 2], "a_later_column": [True, False], "block_id": [b"x", b"y"]})
    assert list(page.tuples(block_id=..., stripes=..., gc_failures=0)) == [(b"x", 1, 0), (b"y", 2, 0)]
    with pytest.raises(Corrupt, match="no column writer"):
        list(page.tuples(writer=...))
    with pytest.raises(Corrupt, match="lengths"):
        list(DumpPage("blocks", {"a": [1], "b": [1, 2]}).tuples(a=..., b=...))


def test_a_dump_that_was_cut_off_is_refused() -> None:
    whole = dumped()
    for kept in range(len(whole)):
        with pytest.raises(Corrupt):
            verify_dump(io.BytesIO(whole[:kept]).read)


def test_a_dump_with_a_wrong_byte_is_refused() -> None:
    whole = dumped()
    for at in range(len(whole)):
        raw = bytearray(whole)
        raw[at] ^= 0x20
        with pytest.raises(Corrupt):
            verify_dump(io.BytesIO(raw).read)


def test_frames_out_of_their_places_are_refused() -> None:
    head, first, second, third, end = dump_frames(HEAD, PAGES)
    for frames in (
        [head, second, first, third, end],
        [head, first, second, end],
        [first, second, third, end],
        [head, first, second, third, end, end],
        [head, first, second, third, end, b"more"],
    ):
        with pytest.raises(Corrupt):
            verify_dump(io.BytesIO(b"".join(frames)).read)


def test_the_rows_of_pages_that_others_have_decoded_must_be_those_of_the_end() -> None:
    read = [io.BytesIO(dumped()).read for _ in range(3)]
    assert verify_dump(read[0], lambda payloads: map(page_rows, list(payloads))) == verify_dump(read[1])
    with pytest.raises(Corrupt, match="its end states"):
        verify_dump(read[2], lambda payloads: [page_rows(payload) for payload in payloads][1:])


def test_another_version_is_refused() -> None:
    with pytest.raises(Corrupt, match="version 2"):
        verify_dump(io.BytesIO(dumped(DumpHead("a", 1, {}, nos_ec_dump=2), [])).read)


def test_other_files_are_refused() -> None:
    for raw in (b"", b"-- MariaDB dump 10.19", bytes(100)):
        with pytest.raises(Corrupt):
            verify_dump(io.BytesIO(raw).read)


def test_a_payload_that_expands_too_far_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = dumped(pages=[DumpPage("objects", {"name": ["a" * 100_000]})])
    monkeypatch.setattr(dump_format, "PAYLOAD_BYTES_MAX", 50_000)
    with pytest.raises(Corrupt, match="too large"):
        verify_dump(io.BytesIO(raw).read)


def test_rows_of_a_newer_version_are_refused_where_they_cannot_be_told() -> None:
    row = BlockRow(BlockId(bytes(16)), BlockKind.LARGE, BlockState.OPEN, "w", 1, 0, 0, 0, 0, 0, 5, 6)
    page = rows.blocks_page([row])
    page.columns["a_later_column"] = [1]
    assert [row.state for row in rows.blocks_of(page)] == [BlockState.OPEN]
    page.columns["state"] = ["frozen"]
    with pytest.raises(Corrupt, match="newer version"):
        list(rows.blocks_of(page))


def test_a_page_that_could_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_format, "PAYLOAD_BYTES_MAX", 1000)
    with pytest.raises(ValueError, match="too many for a reader"):
        dumped(pages=[DumpPage("objects", {"md5": [bytes(1001)]})])


def test_pages_are_cut_by_the_segments_of_large_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumper, "PAGE_PARTS", 5)
    extent = Extent(BlockId(bytes(16)), 0, 1)
    key = ObjectKey("b", "n")

    def large(number: int, parts: int) -> Rebuilt:
        row = ObjectRow(number, key, 1, parts, 0, bytes(16), ObjectState.LARGE, None, None, 0)
        return Rebuilt(row, [Segment(extent, 0)] * parts)

    pages = list(dumper._split_page([large(n, parts) for n, parts in enumerate([2, 3, 1, 9, 0, 5])]))
    assert [[one.row.object_id for one in page] for page in pages] == [[0, 1], [2], [3], [4, 5]]
