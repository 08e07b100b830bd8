"""The names of a group: golden bytes, round trips, refusals (invariant 7). For attributes see test_attributes.py."""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX, decode_attributes
from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import (
    ATTRIBUTES_FIXED,
    NAME_RECORD_FIXED,
    NameRecord,
    decode_names,
    encode_names,
    name_record_size,
    names_size_max,
)

GOLDEN = Path(__file__).parents[2] / "golden"
# What tests/golden/names_v1.bin says; built field by field from the format's table, not by this codec.
NAMES = [
    NameRecord("photos", "2024/a.jpg"),
    NameRecord("photos", "été/ü.png"),
    NameRecord("logs", "big.tar", (32 << 20, 100 << 20)),
]
# The same for tests/golden/names_v2.bin.
NAMES_V2 = [
    NameRecord("photos", "2024/a.jpg", None, b"\x0c\x0a\0content-typeimage/jpeg\x05\0\0" + "été".encode()),
    NameRecord("photos", "été/ü.png"),
    NameRecord("logs", "big.tar", (0, 0)),
    NameRecord("logs", "big.tar", (32 << 20, 100 << 20), b"\x07\x0e\0expires" + "2027-01-01 €".encode()),
]


def _decode(data: bytes, entry_count: int) -> list[NameRecord]:
    return decode_names(data, google_crc32c.value(data), entry_count)


def _record(bucket: bytes, name: bytes, kind: int = 0, more: bytes = b"") -> bytes:
    return len(bucket).to_bytes(1, "little") + len(name).to_bytes(2, "little") + bytes([kind]) + more + bucket + name


def test_golden() -> None:
    golden = (GOLDEN / "names_v1.bin").read_bytes()
    assert _decode(golden, 3) == NAMES
    # Builds of zlib may compress differently; what is compressed is the format.
    assert zlib.decompress(encode_names(NAMES)) == zlib.decompress(golden)


def test_golden_with_attributes() -> None:
    golden = (GOLDEN / "names_v2.bin").read_bytes()
    assert _decode(golden, 4) == NAMES_V2
    assert zlib.decompress(encode_names(NAMES_V2)) == zlib.decompress(golden)
    assert [decode_attributes(record.attributes) for record in NAMES_V2] == [
        {"content-type": "image/jpeg", "été": ""},
        {},
        {},
        {"expires": "2027-01-01 €"},
    ]


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
u63 = st.integers(0, (1 << 63) - 1)
parts = st.none() | st.tuples(u63, st.just(0)) | st.tuples(u63, u63).map(lambda pair: (pair[0], pair[0] + pair[1] + 1))
attributes = st.one_of(st.just(b""), st.binary(max_size=100), st.just(b"a" * ATTRIBUTES_SIZE_MAX))
records = st.builds(NameRecord, texts, texts, parts, attributes)


@given(st.lists(records, max_size=200))
def test_round_trip(names: list[NameRecord]) -> None:
    encoded = encode_names(names)
    assert _decode(encoded, len(names)) == names
    size = sum(name_record_size(*name) for name in names)
    assert len(zlib.decompress(encoded)) == size
    assert len(encoded) <= names_size_max(size)


@given(st.binary(max_size=200_000))
def test_names_size_max_holds(raw: bytes) -> None:
    assert len(zlib.compress(raw)) <= names_size_max(len(raw))


def test_a_whole_record_has_its_fixed_bytes() -> None:
    assert name_record_size("b", "né") == NAME_RECORD_FIXED + 1 + 3
    assert name_record_size("b", "né", None, b"abc") == NAME_RECORD_FIXED + 1 + 3 + ATTRIBUTES_FIXED + 3


def test_the_longest_names() -> None:
    names = [NameRecord("b" * 255, "n" * 1024, (0, 1), bytes(ATTRIBUTES_SIZE_MAX))] * 3
    assert _decode(encode_names(names), 3) == names


@given(st.lists(records, min_size=1, max_size=20), st.data())
def test_damage_is_always_detected(names: list[NameRecord], data: st.DataObject) -> None:
    encoded = bytearray(encode_names(names))
    crc32c = google_crc32c.value(bytes(encoded))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt, match="checksum"):
        decode_names(bytes(encoded), crc32c, len(names))


@given(st.lists(records, min_size=1, max_size=20), st.data())
def test_damage_with_a_correct_checksum_gives_names_or_corrupt(names: list[NameRecord], data: st.DataObject) -> None:
    raw = bytearray(zlib.decompress(encode_names(names)))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        decoded = _decode(zlib.compress(raw), len(names))
    except Corrupt:
        return
    assert zlib.decompress(encode_names(decoded)) == raw


@given(st.binary(max_size=400), st.integers(0, 50), st.booleans())
def test_any_bytes_give_names_or_corrupt(raw: bytes, entry_count: int, compress: bool) -> None:
    data = zlib.compress(raw) if compress else raw
    with suppress(Corrupt):
        assert len(_decode(data, entry_count)) == entry_count


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        _record(b"b", b"n")[:3],
        _record(b"b", b"name")[:-1],
        _record(b"b", b"n") * 2,
        _record(b"b", b"n") + b"\0",
        _record(b"", b"n"),
        _record(b"b", b""),
        _record(b"b", b"n" * 1025),
        _record(b"b", b"n", kind=2),
        _record(b"b", b"n", 2, b"\0\0"),
        _record(b"b", b"n", 2, b"\1\0"),
        _record(b"b", b"n", 2, b"\1\x20") + bytes(8193),
        _record(b"b", b"n", 3, b"\1" * 16 + b"\1\0") + b"a",
        _record(b"b", b"n", kind=4),
        _record(b"b", b"n", 6, b"\1\0") + b"a",
        _record(b"b", b"n", kind=1),
        _record(b"b", b"n", 1, b"\1" * 16),
        _record(b"\xff", b"n"),
        _record(b"b", b"\xc3"),
    ],
)
def test_bad_records_are_refused(raw: bytes) -> None:
    with pytest.raises(Corrupt, match="names"):
        _decode(zlib.compress(raw), 1)


def test_a_decompression_bomb_is_refused_without_being_unpacked() -> None:
    bomb = zlib.compress(bytes(64 << 20))
    with pytest.raises(Corrupt, match="too large"):
        _decode(bomb, 1)


def test_a_truncated_stream_or_one_with_trailing_bytes_is_refused() -> None:
    encoded = encode_names(NAMES)
    for data in (encoded[:-1], encoded[:10], b"", encoded + b"\0", b"\0" + encoded):
        with pytest.raises(Corrupt, match="names"):
            _decode(data, 3)


@pytest.mark.parametrize(
    "record",
    [
        NameRecord("", "n"),
        NameRecord("b", ""),
        NameRecord("b" * 256, "n"),
        NameRecord("b", "é" * 513),
        NameRecord("b", "n", (5, 5)),
        NameRecord("b", "n", (-1, 5)),
        NameRecord("b", "n", (0, 1 << 64)),
        NameRecord("b", "\ud800"),
        NameRecord("b", "n", None, bytes(8193)),
    ],
)
def test_the_encoder_refuses_what_the_decoder_would(record: NameRecord) -> None:
    with pytest.raises(ValueError, match=r"name record|surrogates"):
        encode_names([record])
