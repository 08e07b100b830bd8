"""Envelopes of encrypted objects: golden bytes, sizes, refusals."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.encryption.envelope import (
    ENVELOPE_ATTRIBUTE,
    ONE_SEGMENT,
    ONE_SEGMENT_BYTES_MAX,
    PARTS,
    PARTS_OF_CUSTOMER,
    PLAIN_SEGMENT_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    Envelope,
    decode_envelope,
    envelope_of,
    plain_size,
    stored_size,
    with_envelope,
)
from nos_ec.core.errors import Corrupt
from nos_ec.core.parts import refuse_reserved, users_attributes, with_stores_attributes

GOLDEN = Path(__file__).parents[2] / "golden" / "envelope_v1.bin"
# What the golden file says; built from the table of docs/FORMAT.md.
ENVELOPE = Envelope(SEGMENTS, 258, bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48)))

FIELDS = [st.integers(1, 2**16 - 1), *[st.binary(min_size=16, max_size=16)] * 3]
own = st.builds(Envelope, st.sampled_from([ONE_SEGMENT, SEGMENTS]), st.integers(0, 2**16 - 1), *FIELDS[1:])
envelopes = own | st.builds(Envelope, st.sampled_from([PARTS, PARTS_OF_CUSTOMER]), *FIELDS, st.integers(0, 2**64 - 1))


def test_golden() -> None:
    golden = GOLDEN.read_bytes()
    assert golden == b"\x02\x02\x01" + bytes(range(48))
    assert base64.b85decode(ENVELOPE.encode()) == golden
    assert decode_envelope(base64.b85encode(golden).decode()) == ENVELOPE


def test_golden_of_parts() -> None:
    data = b"\x03\x02\x01" + bytes(range(48)) + b"\x01\x02" + bytes(6)
    envelope = Envelope(PARTS, 258, bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48)), 513)
    assert base64.b85decode(envelope.encode()) == data
    assert decode_envelope(base64.b85encode(data).decode()) == envelope
    assert envelope.plain_size(1_000_000) == 513


@given(envelopes)
def test_round_trip(envelope: Envelope) -> None:
    assert decode_envelope(envelope.encode()) == envelope


@given(own)
def test_an_envelope_takes_at_most_80_bytes(envelope: Envelope) -> None:
    others = encode_attributes({"content-type": "image/png", "x-amz-meta-a": "b"})
    assert len(with_envelope(others, envelope.encode())) - len(others) <= 80


@given(envelopes, envelopes)
def test_only_the_store_changes_it(one: Envelope, other: Envelope) -> None:
    attributes = with_envelope(with_envelope(encode_attributes({"a": "b"}), one.encode()), other.encode())
    assert envelope_of(attributes) == other
    assert users_attributes(attributes) == {"a": "b"}
    assert envelope_of(with_stores_attributes(encode_attributes({"c": "d"}), attributes)) == other
    with pytest.raises(Exception, match="the store's own"):
        refuse_reserved(attributes)


def test_none() -> None:
    assert envelope_of(b"") is None
    assert envelope_of(encode_attributes({"x-amz-meta-a": ENVELOPE_ATTRIBUTE})) is None


@given(st.text(max_size=70))
def test_other_texts_are_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        decode_envelope(text)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" + bytes(50),
        b"\x05\x01\x00" + bytes(48),
        b"\x04\x01\x00" + bytes(48),
        b"\x04\x00\x00" + bytes(56),
        b"\x03\x00\x00" + bytes(56),
        b"\x03\x01\x00" + bytes(48),
        b"\x01\x01\x00" + bytes(56),
    ],
)
def test_unknown_formats_and_numbers_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_envelope(base64.b85encode(data).decode())


@given(st.integers(0, 1 << 45))
def test_sizes(plain: int) -> None:
    stored = stored_size(plain)
    kind = ONE_SEGMENT if plain <= ONE_SEGMENT_BYTES_MAX else SEGMENTS
    assert Envelope(kind, 1, b"", b"", b"").plain_size(stored) == plain_size(stored) == plain
    assert (
        stored == plain
        if kind == ONE_SEGMENT
        else plain < stored <= plain * 1.001 + SEGMENT_BYTES - PLAIN_SEGMENT_BYTES
    )


@pytest.mark.parametrize("stored", [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES + 1, 9 * SEGMENT_BYTES + 16])
def test_impossible_sizes_are_corrupt(stored: int) -> None:
    with pytest.raises(Corrupt, match="not whole encrypted segments"):
        Envelope(SEGMENTS, 1, b"", b"", b"").plain_size(stored)
