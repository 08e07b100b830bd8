"""The header codec: golden bytes, round trips, refusals (invariant 7)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import process_time

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import (
    ENTRY_SIZE,
    PREAMBLE_SIZE,
    Entry,
    GroupHeader,
    decode_header,
    encode_header,
    header_length,
    peek_length,
)
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId

pytestmark = pytest.mark.invariant(7)

GOLDEN = Path(__file__).parents[2] / "golden"
BLOCK = BlockId(bytes(range(16)))
OTHER_BLOCK = BlockId(bytes(range(16, 32)))
CRC_AT = PREAMBLE_SIZE - 4


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode()).digest()


# What tests/golden/header_v1.bin says, written field by field from the format's table, not by this codec.
# A codec that no longer gives these bytes has changed the format of blocks that exist: add a version instead.
HEADER = GroupHeader(
    block_id=BLOCK,
    first_stripe=5,
    stripe_count=2,
    writer_epoch=77,
    written_at_ms=1_700_000_000_123,
    chunk_size=128 * 1024,
    k=8,
    m=3,
    data_length=1_731_072,
    entries=(
        Entry(_md5("photos/2024/a.jpg"), 1_700_000_000_000_001, 8192, 100_000, 0x11223344),
        Entry(_md5("photos/été/ü.png"), 1_700_000_000_000_002, 131_072, 131_072, 0),
        Entry(_md5("logs/big.tar"), (1 << 64) - 1, 262_144, 1_500_000, 0xFFFFFFFF),
    ),
    names_offset=4096,
    names_length=69,
    names_crc32c=0,
)
TWO_PAGES = GroupHeader(
    block_id=OTHER_BLOCK,
    first_stripe=0,
    stripe_count=1,
    writer_epoch=1,
    written_at_ms=1,
    chunk_size=16 * 1024,
    k=4,
    m=2,
    data_length=11_200,
    entries=tuple(Entry(_md5(f"b/{i}"), 1000 + i, 8192 + 100 * i, 100, i) for i in range(112)),
    names_offset=0,
    names_length=0,
    names_crc32c=0,
)


def _golden_header() -> GroupHeader:
    names = (GOLDEN / "names_v1.bin").read_bytes()
    return replace(HEADER, names_length=len(names), names_crc32c=google_crc32c.value(names))


def _resealed(data: bytes | bytearray) -> bytes:
    """The same header with a correct checksum, to reach the checks after it."""
    blank = bytes(data[:CRC_AT]) + bytes(4) + bytes(data[PREAMBLE_SIZE:])
    crc32c: int = google_crc32c.value(blank)
    return blank[:CRC_AT] + crc32c.to_bytes(4, "little") + blank[PREAMBLE_SIZE:]


def _patched(data: bytes, offset: int, value: bytes) -> bytes:
    return _resealed(data[:offset] + value + data[offset + len(value) :])


class TestGolden:
    def test_one_page(self) -> None:
        golden = (GOLDEN / "header_v1.bin").read_bytes()
        assert encode_header(_golden_header()) == golden
        assert decode_header(golden, BLOCK, 5) == _golden_header()

    def test_two_pages_without_names(self) -> None:
        golden = (GOLDEN / "header_v1_two_pages.bin").read_bytes()
        assert encode_header(TWO_PAGES) == golden
        assert decode_header(golden, OTHER_BLOCK, 0) == TWO_PAGES

    @pytest.mark.parametrize(
        ("file", "sha256"),
        [
            ("header_v1.bin", "33440a3cd24abf78f77b8f90d0957010e9bc4d37def84feeb15b9deea17a2bf2"),
            ("header_v1_two_pages.bin", "e56c21f92f43de1b1a0eac3cbc7980e79aab0284ecc3d86c54c73a395757d355"),
            ("names_v1.bin", "f253f96e354b76b82100be5d67d8cc9b87e356b89e785c6f4ca238a599a673a0"),
        ],
    )
    def test_the_golden_files_are_unchanged(self, file: str, sha256: str) -> None:
        assert hashlib.sha256((GOLDEN / file).read_bytes()).hexdigest() == sha256


# --- round trips --------------------------------------------------------------------------------------


@st.composite
def headers(draw: st.DrawFn) -> GroupHeader:
    """Any valid header: entries in slots of random width, in any order, names in a separate slot or absent."""
    k, m = draw(st.sampled_from([(8, 3), (8, 4), (4, 2), (1, 1), (32, 8)]))
    chunk_size = draw(st.sampled_from([16 * 1024, 128 * 1024]))
    stripe_count = draw(st.integers(1, 1024))
    stripe_count = min(stripe_count, (1 << 30) // (k * chunk_size))
    size = stripe_count * k * chunk_size
    count = draw(st.integers(0, 130 if size >= 64 * 1024 else 40))
    start = header_length(count)
    cuts = sorted(draw(st.sets(st.integers(start, size), min_size=2, max_size=count + 3)))
    slots = draw(st.permutations(list(pairwise(cuts))))
    names = slots.pop() if draw(st.booleans()) else None
    u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
    # Fewer slots than `count` are fine: they lie after the header that `count` entries would need.
    entries = tuple(
        Entry(draw(st.binary(min_size=16, max_size=16)), draw(u64), a, b - a, draw(u32)) for a, b in slots[:count]
    )
    return GroupHeader(
        block_id=BlockId(draw(st.binary(min_size=16, max_size=16))),
        first_stripe=draw(st.integers(0, 1024 - stripe_count)),
        stripe_count=stripe_count,
        writer_epoch=draw(u64),
        written_at_ms=draw(u64),
        chunk_size=chunk_size,
        k=k,
        m=m,
        data_length=sum(entry.length for entry in entries),
        entries=entries,
        names_offset=names[0] if names else 0,
        names_length=names[1] - names[0] if names else 0,
        names_crc32c=draw(u32) if names else 0,
    )


@settings(deadline=None)
@given(headers())
def test_round_trip(header: GroupHeader) -> None:
    encoded = encode_header(header)
    assert len(encoded) == header.header_length == header_length(len(header.entries))
    assert decode_header(encoded, header.block_id, header.first_stripe) == header
    assert peek_length(encoded[:PAGE], header.block_id, header.first_stripe) == len(encoded)


@settings(deadline=None)
@given(headers(), st.binary(max_size=100))
def test_bytes_after_the_header_are_ignored(header: GroupHeader, rest: bytes) -> None:
    assert decode_header(encode_header(header) + rest, header.block_id, header.first_stripe) == header


def test_a_large_objects_group_of_a_whole_block() -> None:
    header = replace(
        TWO_PAGES, stripe_count=1024, data_length=60 << 20, entries=(Entry(_md5("b/x"), 1, 4096, 60 << 20, 9),)
    )
    assert decode_header(encode_header(header), OTHER_BLOCK, 0) == header


# --- refusals -----------------------------------------------------------------------------------------

BAD_FIELDS = [
    ("magic", 0, b"NSED"),
    ("version 2", 4, b"\x02\x00"),
    ("version 0", 4, b"\x00\x00"),
    ("unknown flag", 6, b"\x03\x00"),
    ("flag without names", 6, b"\x00\x00"),
    ("header_length too long", 8, (8192).to_bytes(4, "little")),
    ("header_length zero", 8, bytes(4)),
    ("no stripes", 12, bytes(4)),
    ("too many stripes", 12, (1020).to_bytes(4, "little")),
    ("far too many stripes", 12, b"\xff" * 4),
    ("too many entries", 16, b"\xff" * 4),
    ("an entry too many", 16, (4).to_bytes(4, "little")),
    ("an entry too few", 16, (2).to_bytes(4, "little")),
    ("data_length", 20, bytes(4)),
    ("names in the header", 24, (4095).to_bytes(4, "little")),
    ("names on an entry", 24, (8190).to_bytes(4, "little")),
    ("names past the end", 24, (2 << 20).to_bytes(4, "little")),
    ("block_id", 36, OTHER_BLOCK),
    ("first_stripe", 52, (6).to_bytes(4, "little")),
    ("chunk_size 0", 72, bytes(4)),
    ("chunk_size odd", 72, (131_073).to_bytes(4, "little")),
    ("chunk_size huge", 72, (8 << 20).to_bytes(4, "little")),
    ("k 0", 76, bytes(2)),
    ("k 33", 76, b"\x21\x00"),
    ("m 0", 78, bytes(2)),
    ("m 9", 78, b"\x09\x00"),
    ("reserved", 80, b"\x01"),
    ("reserved, last byte", 91, b"\x01"),
    ("entry in the header", PREAMBLE_SIZE + 24, (4000).to_bytes(4, "little")),
    ("entries overlap", PREAMBLE_SIZE + 24, (131_000).to_bytes(4, "little")),
    ("entry past the end", PREAMBLE_SIZE + 2 * ENTRY_SIZE + 24, ((2 << 20) - 1_499_999).to_bytes(4, "little")),
    ("padding", PREAMBLE_SIZE + 3 * ENTRY_SIZE, b"\x01"),
    ("last byte of the padding", PAGE - 1, b"\x01"),
]


@pytest.mark.parametrize(("offset", "value"), [row[1:] for row in BAD_FIELDS], ids=[row[0] for row in BAD_FIELDS])
def test_a_bad_field_is_refused_even_with_a_correct_checksum(offset: int, value: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_header(_patched(encode_header(_golden_header()), offset, value), BLOCK, 5)


def test_an_empty_entry_is_refused() -> None:
    encoded = _patched(encode_header(_golden_header()), PREAMBLE_SIZE + 28, bytes(4))
    encoded = _patched(encoded, 20, (1_631_072).to_bytes(4, "little"))
    with pytest.raises(Corrupt, match="no length"):
        decode_header(encoded, BLOCK, 5)


def test_absent_names_have_no_position() -> None:
    with pytest.raises(Corrupt, match="absent names"):
        decode_header(_patched(encode_header(TWO_PAGES), 24, b"\x00\x20"), OTHER_BLOCK, 0)


def test_a_wrong_checksum_is_refused() -> None:
    encoded = bytearray(encode_header(_golden_header()))
    encoded[CRC_AT] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        decode_header(bytes(encoded), BLOCK, 5)
    assert peek_length(bytes(encoded), BLOCK, 5) == PAGE, "a peek cannot check it"


@pytest.mark.parametrize("length", [0, 1, 95, 96, 4095, 4096, 8191])
def test_a_header_cut_short_is_refused(length: int) -> None:
    with pytest.raises(Corrupt, match="cut short"):
        decode_header(encode_header(TWO_PAGES)[:length], OTHER_BLOCK, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"block_id": b"short"},
        {"stripe_count": 0},
        {"stripe_count": 1020},
        {"first_stripe": -1},
        {"data_length": 1},
        {"names_length": 0},
        {"names_offset": 0},
        {"k": 0},
        {"writer_epoch": -1},
        {"written_at_ms": 1 << 64},
        {"entries": (*HEADER.entries[:2], HEADER.entries[2]._replace(key_md5=b"short"))},
        {"entries": (*HEADER.entries[:2], HEADER.entries[2]._replace(crc32c=1 << 32))},
        {"entries": (*HEADER.entries[:2], HEADER.entries[2]._replace(offset=-4096))},
    ],
)
def test_the_encoder_refuses_what_the_decoder_would(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="header of group"):
        encode_header(replace(_golden_header(), **change))  # type: ignore[arg-type]


# --- totality -----------------------------------------------------------------------------------------


def _decoded(data: bytes, header: GroupHeader) -> GroupHeader | None:
    try:
        return decode_header(data, header.block_id, header.first_stripe)
    except Corrupt:
        return None


@settings(deadline=None)
@given(headers(), st.data())
def test_damage_is_always_detected(header: GroupHeader, data: st.DataObject) -> None:
    encoded = bytearray(encode_header(header))
    original = bytes(encoded)
    at = data.draw(st.integers(0, len(encoded) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "splice", "move"])):
        case "flip":
            encoded[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del encoded[at:]
        case "splice":
            encoded[at:] = data.draw(st.binary(min_size=1, max_size=200)) + bytes(encoded[at:])
        case _:
            encoded = encoded[at:] + encoded[:at]
    decoded = _decoded(bytes(encoded), header)
    if bytes(encoded).startswith(original):
        assert decoded == header
    else:
        assert decoded is None


@settings(deadline=None)
@given(headers(), st.data())
def test_damage_with_a_correct_checksum_gives_a_header_or_corrupt(header: GroupHeader, data: st.DataObject) -> None:
    encoded = bytearray(encode_header(header))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, PREAMBLE_SIZE + ENTRY_SIZE * 3))] = data.draw(st.integers(0, 255))
    resealed = _resealed(encoded)
    decoded = _decoded(resealed, header)
    if decoded is not None:
        assert encode_header(decoded) == resealed, "one header has one encoding"


@settings(deadline=None)
@given(st.binary(max_size=300) | st.binary(min_size=PAGE, max_size=PAGE + 50))
def test_any_bytes_give_corrupt(data: bytes) -> None:
    for prefix in (b"", b"NSEC\x01\x00", b"NSEC\x01\x00\x01\x00\x00\x10\x00\x00"):
        with pytest.raises(Corrupt):
            decode_header(prefix + data, BLOCK, 0)
        with pytest.raises(Corrupt):
            peek_length(prefix + data, BLOCK, 0)


def test_a_header_of_2000_entries_takes_a_few_ms() -> None:
    entries = tuple(Entry(_md5(str(i)), i, (1 << 17) + 500 * i, 500, i) for i in range(2000))
    header = replace(
        HEADER, data_length=1_000_000, entries=entries, names_offset=PAGE * 19, names_length=9, names_crc32c=1
    )
    encode_ms, decode_ms = [], []
    for _ in range(5):
        start = process_time()  # work, which a busy machine does not change, not waiting
        encoded = encode_header(header)
        middle = process_time()
        assert decode_header(encoded, BLOCK, 5) == header
        encode_ms.append((middle - start) * 1000)
        decode_ms.append((process_time() - middle) * 1000)
    # The bound is loose because machines differ; about 1 to 3 ms each is usual.
    assert min(encode_ms) < 20
    assert min(decode_ms) < 20
