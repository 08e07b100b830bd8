"""The format of the landing log: golden bytes, round trips, damage, and the scan over holes (invariants 1 and 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.landing_format import (
    DATA_SIZE_MAX,
    FOOTER_ENTRY_SIZE,
    NAMES_SIZE_MAX,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    TYPE_FOOTER,
    TYPE_PUT,
    FooterEntry,
    LaidBatch,
    NewRecord,
    RecordNames,
    SegmentHeader,
    batch_size,
    decode_footer,
    decode_names,
    decode_record_header,
    decode_segment_header,
    encode_names,
    encode_segment_header,
    footer_size,
    lay_out,
    lay_out_footer,
    new_record,
    scan,
    segment_found,
)
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId, new_segment_id, record_id, record_offset, segment_of

pytestmark = pytest.mark.invariant(1, 7)

GOLDEN = Path(__file__).parents[2] / "golden" / "landing_segment_v1.bin"
OPENED_MS = 1_700_000_000_123
SEGMENT = new_segment_id(OPENED_MS, 3)
OTHER = new_segment_id(OPENED_MS + 1, 3)
PUT_MS = 1_700_000_000_456
ALIGN = 512
START = 4096

# What the golden file says. It was written field by field from the tables of FORMAT.md, not by this codec. A codec that
# no longer gives these bytes has changed the format of segments that exist: add a version instead.
HEADER = SegmentHeader(SEGMENT, slot=5, epoch=77, first_lsn=1000, segment_bytes=64 << 20, store_id=bytes(range(16)))
PUTS = [
    (ObjectKey("photos", "2024/a.jpg"), b"a picture", b""),
    (ObjectKey("photos", "été/ü.png"), bytes(range(256)), b'{"type":"png"}'),
    (ObjectKey("b", "n"), b"12345678", b""),
]
NONCES = b"\x01\x02\x03\x04\xff\xfe\xfd\xfc\0\0\0\0"


def crc_of(data: bytes) -> int:
    found: int = google_crc32c.value(data)
    return found


def records_of(puts: list[tuple[ObjectKey, bytes, bytes]]) -> list[NewRecord]:
    return [new_record(key, data, crc_of(data), attributes) for key, data, attributes in puts]


def laid_at(offset: int, records: list[NewRecord], segment: SegmentId = SEGMENT, align: int = ALIGN) -> LaidBatch:
    nonces = hashlib.sha512(offset.to_bytes(8, "big")).digest() * len(records)
    return lay_out(segment, offset, 1000, PUT_MS, records, nonces, align)


def written(buffers: list[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(buffers)


def reader(data: bytes, base: int = 0) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset - base : offset - base + length]


class TestGolden:
    def test_the_codec_writes_these_bytes(self) -> None:
        batch = lay_out(SEGMENT, START, 1000, PUT_MS, records_of(PUTS), NONCES, ALIGN)
        end = START + batch.size
        footer = lay_out_footer(SEGMENT, end, 1003, 1_700_000_060_000, batch.entries, b"foot", ALIGN)
        head = encode_segment_header(HEADER)
        assert head + bytes(START - len(head)) + written(batch.buffers) + written(footer) == GOLDEN.read_bytes()

    def test_the_codec_reads_them(self) -> None:
        golden = GOLDEN.read_bytes()
        assert decode_segment_header(golden) == HEADER
        found = list(scan(reader(golden), SEGMENT, START, len(golden)))
        assert [one.header.type for one in found] == [TYPE_PUT, TYPE_PUT, TYPE_PUT, TYPE_FOOTER]
        assert [(found[i].data, decode_names(found[i].names)) for i in range(3)] == [
            (data, RecordNames(key.bucket, key.name, attributes)) for key, data, attributes in PUTS
        ]
        assert [one.header.lsn for one in found] == [1000, 1001, 1002, 1003]
        assert {one.header.put_ms for one in found[:3]} == {PUT_MS}
        end = record_offset(found[-1].header.landing_id)
        assert decode_footer(golden[end:], SEGMENT, end) == [
            FooterEntry(one.header.landing_id, len(one.data), crc_of(one.data), one.header.lsn, key.md5)
            for one, (key, _, _) in zip(found[:3], PUTS, strict=True)
        ]

    def test_the_file_is_unchanged(self) -> None:
        assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == (
            "52d8b48242cc120b5000cce543cdc2b7b332938ee92e4385245fb1a203d0e0e9"
        )


# --- round trips --------------------------------------------------------------------------------------

u48 = st.integers(0, (1 << 48) - 1)
u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0."), min_size=1, max_size=40)
keys = st.builds(ObjectKey, texts, texts)
puts = st.lists(st.tuples(keys, st.binary(min_size=1, max_size=300), st.binary(max_size=40)), min_size=1, max_size=8)


@given(
    st.builds(SegmentHeader, st.binary(min_size=8, max_size=8), u32, u32, u64, u64, st.binary(min_size=16, max_size=16))
)
def test_segment_headers_round_trip(header: SegmentHeader) -> None:
    encoded = encode_segment_header(header)
    assert len(encoded) == SEGMENT_HEADER_SIZE
    assert decode_segment_header(encoded + b"more") == header


@given(puts, st.integers(0, 1 << 20), u48.filter(lambda lsn: lsn < (1 << 48) - 8), u48, st.sampled_from([8, 512, 4096]))
def test_batches_round_trip(
    new: list[tuple[ObjectKey, bytes, bytes]], page: int, first_lsn: int, put_ms: int, align: int
) -> None:
    records, offset = records_of(new), page * align
    batch = lay_out(SEGMENT, offset, first_lsn, put_ms, records, bytes(range(4 * len(records))), align)
    data = written(batch.buffers)
    assert len(data) == batch.size == batch_size(records, align)
    assert batch.size % align == 0
    found = list(scan(reader(data, offset), SEGMENT, offset, offset + len(data)))
    assert [one.header.landing_id for one in found] == batch.ids
    assert [one.header.lsn for one in found] == list(range(first_lsn, first_lsn + len(new)))
    for one, (key, content, attributes) in zip(found, new, strict=True):
        at = record_offset(one.header.landing_id) - offset
        assert decode_record_header(data[at:], one.header.landing_id) == one.header
        assert data[at + RECORD_HEADER_SIZE :][: len(content)] == content == one.data
        assert (one.header.put_ms, one.header.key_md5) == (put_ms, key.md5)
        assert decode_names(one.names) == RecordNames(key.bucket, key.name, attributes)


@given(puts, puts, st.sampled_from([8, 512, 4096]))
def test_footers_round_trip(
    first: list[tuple[ObjectKey, bytes, bytes]], second: list[tuple[ObjectKey, bytes, bytes]], align: int
) -> None:
    one = laid_at(4096, records_of(first), align=align)
    two = laid_at(4096 + one.size, records_of(second), align=align)
    end = 4096 + one.size + two.size
    footer = written(lay_out_footer(SEGMENT, end, 9, PUT_MS, one.entries + two.entries, b"rand", align))
    assert len(footer) == footer_size(len(first) + len(second), align)
    entries = decode_footer(footer, SEGMENT, end)
    assert [entry.landing_id for entry in entries] == one.ids + two.ids
    assert [(entry.length, entry.crc32c, entry.key_md5) for entry in entries] == [
        (len(data), crc_of(data), key.md5) for key, data, _ in first + second
    ]


def test_no_data_is_copied() -> None:
    records = records_of(PUTS)
    buffers = laid_at(START, records).buffers
    assert [buffer for buffer in buffers if any(buffer is record.data for record in records)] == [
        record.data for record in records
    ]


# --- what does not fit --------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    key = ObjectKey("b", "n")
    with pytest.raises(ValueError, match="0 bytes of data"):
        new_record(key, b"", 0)
    with pytest.raises(ValueError, match="names of"):
        new_record(key, b"x", 0, bytes(NAMES_SIZE_MAX))
    assert len(new_record(key, b"x", 0, bytes(NAMES_SIZE_MAX - 14)).names) == NAMES_SIZE_MAX
    with pytest.raises(ValueError, match="does not fit"):
        laid_at(START, [new_record(key, b"x", 1 << 32)])
    with pytest.raises(ValueError, match="number"):
        lay_out(SEGMENT, START, 1 << 48, PUT_MS, records_of(PUTS), NONCES, ALIGN)
    with pytest.raises(ValueError, match="its id has"):
        lay_out(SEGMENT, START, 1, PUT_MS, records_of(PUTS), NONCES[:-1], ALIGN)
    with pytest.raises(ValueError, match="footer of"):
        lay_out_footer(SEGMENT, START, 1, PUT_MS, b"", NONCES[:4], ALIGN)
    with pytest.raises(ValueError, match="does not fit"):
        encode_segment_header(SegmentHeader(SEGMENT, 1 << 32, 0, 0, 0, bytes(16)))
    with pytest.raises(ValueError, match="8 and 16"):
        encode_segment_header(SegmentHeader(SEGMENT, 0, 0, 0, 0, bytes(15)))
    assert DATA_SIZE_MAX == (1 << 32) - 1


# --- damage -------------------------------------------------------------------------------------------


def damaged(data: bytes, draw: st.DataObject) -> bytes:
    changed = bytearray(data)
    at = draw.draw(st.integers(0, len(changed) - 1))
    match draw.draw(st.sampled_from(["flip", "cut", "splice", "move", "zero"])):
        case "flip":
            changed[at] ^= draw.draw(st.integers(1, 255))
        case "cut":
            del changed[at:]
        case "splice":
            changed[at:] = draw.draw(st.binary(min_size=1, max_size=200)) + bytes(changed[at:])
        case "zero":
            end = draw.draw(st.integers(at + 1, len(changed)))
            changed[at:end] = bytes(end - at)
        case _:
            changed = changed[at:] + changed[:at]
    return bytes(changed)


@settings(deadline=None)
@given(puts, st.data())
def test_damage_never_gives_another_records_data(
    new: list[tuple[ObjectKey, bytes, bytes]], draw: st.DataObject
) -> None:
    """Whatever becomes of a batch: a scan finds only what was written under that id, and a read of an id either fails
    or has the header that was written for it."""
    batch = laid_at(START, records_of(new))
    data = damaged(written(batch.buffers), draw)
    by_id = dict(zip(batch.ids, new, strict=True))
    for one in scan(reader(data, START), SEGMENT, START, START + len(data)):
        key, content, attributes = by_id[one.header.landing_id]
        assert (one.data, one.header.key_md5) == (content, key.md5)
        with suppress(Corrupt):
            assert decode_names(one.names) == RecordNames(key.bucket, key.name, attributes)
    for landing_id, (key, content, _) in by_id.items():
        at = record_offset(landing_id) - START
        with suppress(Corrupt):
            header = decode_record_header(data[at:], landing_id)
            assert (header.data_length, header.data_crc32c) == (len(content), crc_of(content))
            assert header.key_md5 == key.md5


@settings(deadline=None)
@given(puts, st.data())
def test_damaged_footers_give_corrupt(new: list[tuple[ObjectKey, bytes, bytes]], draw: st.DataObject) -> None:
    batch = laid_at(START, records_of(new))
    end = START + batch.size
    footer = written(lay_out_footer(SEGMENT, end, 9, PUT_MS, batch.entries, b"rand", ALIGN))
    changed = damaged(footer, draw)
    used = RECORD_HEADER_SIZE + FOOTER_ENTRY_SIZE * len(new)
    if changed[:used] == footer[:used]:
        assert [entry.landing_id for entry in decode_footer(changed, SEGMENT, end)] == batch.ids
    else:
        with pytest.raises(Corrupt):
            decode_footer(changed, SEGMENT, end)
    with pytest.raises(Corrupt, match="no footer"):
        decode_footer(footer, SEGMENT, end + 8)
    with pytest.raises(Corrupt, match="no footer"):
        decode_footer(footer, OTHER, end)


@given(st.binary(max_size=200), st.sampled_from([b"", b"NLR1", b"NLS1"]))
def test_any_bytes_give_corrupt(data: bytes, magic: bytes) -> None:
    any_id = record_id(SEGMENT, 0, bytes(4))
    for sealed in (data, crc_of(data[:56]).to_bytes(4, "little") + data):
        with suppress(Corrupt):
            decode_segment_header(magic + sealed)
        with suppress(Corrupt):
            decode_record_header(magic + sealed, any_id)
        with suppress(Corrupt):
            decode_footer(magic + sealed, SEGMENT, 0)
        with suppress(Corrupt):
            decode_names(sealed)
        for one in scan(reader(magic + sealed), SEGMENT, 0, 300):
            assert segment_of(one.header.landing_id) == SEGMENT


def test_the_names_of_a_record_are_checked() -> None:
    names = encode_names(RecordNames("b", "n", b"abc"))
    for at in range(len(names)):
        with pytest.raises(Corrupt):
            decode_names(names[:at] + bytes([names[at] ^ 1]) + names[at + 1 :])
        with pytest.raises(Corrupt):
            decode_names(names[:at])
    with pytest.raises(Corrupt):
        decode_names(names + bytes(8))


def test_a_record_of_another_id_is_refused() -> None:
    batch = laid_at(START, records_of(PUTS))
    data = written(batch.buffers)
    other = LandingId(batch.ids[0][:-1] + bytes([batch.ids[0][-1] ^ 1]))
    with pytest.raises(Corrupt, match="in its place"):
        decode_record_header(data, other)
    assert segment_found(data) == SEGMENT
    assert segment_found(written(laid_at(START, records_of(PUTS), OTHER).buffers)) == OTHER
    assert segment_found(data[8:]) is None


# --- scan ---------------------------------------------------------------------------------------------


def three_batches() -> tuple[list[LaidBatch], bytes]:
    """Three batches of three records, one after the other."""
    batches, offset = [], START
    for _ in range(3):
        batches.append(laid_at(offset, records_of(PUTS)))
        offset += batches[-1].size
    return batches, bytes(START) + b"".join(written(batch.buffers) for batch in batches)


def scanned(data: bytes, window: int | None = None, end: int | None = None) -> list[LandingId]:
    end = len(data) if end is None else end
    return [one.header.landing_id for one in scan(reader(data), SEGMENT, START, end, window)]


class TestScan:
    def test_a_hole_hides_only_what_was_in_it(self) -> None:
        (first, second, third), data = three_batches()
        hole = START + first.size
        holed = data[:hole] + bytes(second.size) + data[hole + second.size :]
        assert scanned(holed) == first.ids + third.ids

    def test_a_damaged_record_hides_only_itself(self) -> None:
        batches, data = three_batches()
        ids = [landing_id for batch in batches for landing_id in batch.ids]
        for landing_id in ids:
            for into in (5, RECORD_HEADER_SIZE + 2):
                at = record_offset(landing_id) + into
                torn = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
                assert scanned(torn) == [other for other in ids if other != landing_id]

    def test_what_another_life_of_the_place_left_is_not_found(self) -> None:
        (first, _, third), data = three_batches()
        old = written(laid_at(START + first.size, records_of(PUTS), OTHER).buffers)
        assert (
            scanned(data[: START + first.size] + old + data[START + first.size + len(old) :]) == first.ids + third.ids
        )

    def test_a_copy_of_a_record_at_another_place_is_not_found(self) -> None:
        (first, *_), data = three_batches()
        assert scanned(data[: START + first.size] * 2) == first.ids

    def test_data_that_looks_like_a_record_is_not_searched(self) -> None:
        """An object may hold the bytes of a record that would lie where it lies itself."""
        at = START + RECORD_HEADER_SIZE
        inner = written(lay_out(SEGMENT, at, 1, PUT_MS, records_of(PUTS[:1]), NONCES[:4], 8).buffers)
        outer = laid_at(START, records_of([(PUTS[0][0], inner, b"")]))
        assert scanned(bytes(START) + written(outer.buffers)) == outer.ids

    @pytest.mark.parametrize(("missing", "found"), [(0, True), (8, False)])
    def test_the_window_ends_the_scan(self, missing: int, found: bool) -> None:
        (first, second, third), data = three_batches()
        hole = START + first.size
        holed = data[:hole] + bytes(second.size) + data[hole + second.size :]
        padding = START + first.size - (record_offset(first.ids[-1]) + records_of(PUTS)[-1].size)
        # The window is counted from the end of the last record; the first magic after the hole begins just past it.
        assert scanned(holed, padding + second.size + 8 - missing) == first.ids + (third.ids if found else [])

    def test_a_segment_that_ends_early_is_no_error(self) -> None:
        batches, data = three_batches()
        ids = [landing_id for batch in batches for landing_id in batch.ids]
        assert scanned(data, end=1 << 24) == ids
        cut = record_offset(ids[-1]) + 80
        assert scanned(data[:cut], end=1 << 24) == ids[:-1]

    def test_records_longer_than_a_piece_are_found(self) -> None:
        long = [(ObjectKey("b", str(i)), bytes([i]) * size, b"") for i, size in enumerate([5 << 20, 1, 3 << 20, 9])]
        batch = laid_at(START, records_of(long))
        data = bytes(START) + written(batch.buffers)
        lengths: list[int] = []

        def read(offset: int, length: int) -> bytes:
            lengths.append(length)
            return data[offset : offset + length]

        assert [len(one.data) for one in scan(read, SEGMENT, START, len(data))] == [5 << 20, 1, 3 << 20, 9]
        assert max(lengths) <= (5 << 20) + 64
        assert sum(lengths) <= 2 * len(data)

    def test_every_byte_is_read_once(self) -> None:
        """Row A3 of docs/MEASUREMENTS.md."""
        batch = laid_at(START, records_of([(ObjectKey("b", str(i)), bytes(4096), b"") for i in range(4000)]))
        data = bytes(START) + written(batch.buffers)
        lengths: list[int] = []

        def read(offset: int, length: int) -> bytes:
            lengths.append(length)
            return data[offset : offset + length]

        assert [one.header.landing_id for one in scan(read, SEGMENT, START, len(data))] == batch.ids
        assert sum(lengths) < 1.01 * len(data)

    def test_a_record_at_the_border_of_two_pieces_is_found(self) -> None:
        """It is found after a hole as long as these; a magic may lie in two pieces."""
        for number in (1, 2, 3):
            for beside in range(-16, 24, 8):
                at = START + number * (4 << 20) + beside
                batch = laid_at(at, records_of(PUTS))
                assert scanned(bytes(at) + written(batch.buffers)) == batch.ids
