"""Attributes of objects as bytes: round trips, one encoding, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX, decode_attributes, encode_attributes
from nos_ec.core.errors import Corrupt, InvalidInput

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
mappings = st.dictionaries(texts.filter(bool), texts, max_size=8)


@given(mappings)
def test_round_trip(attributes: dict[str, str]) -> None:
    encoded = encode_attributes(attributes)
    assert decode_attributes(encoded) == attributes
    assert encode_attributes(dict(reversed(attributes.items()))) == encoded


def test_no_attributes_are_no_bytes() -> None:
    assert encode_attributes({}) == b""
    assert decode_attributes(b"") == {}


@given(mappings.filter(bool), st.data())
def test_damage_gives_attributes_of_these_bytes_or_corrupt(attributes: dict[str, str], data: st.DataObject) -> None:
    encoded = bytearray(encode_attributes(attributes))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    _only_if_encoded_so(bytes(encoded))


@given(st.binary(max_size=200))
def test_any_bytes_give_attributes_or_corrupt(data: bytes) -> None:
    _only_if_encoded_so(data)


def _only_if_encoded_so(data: bytes) -> None:
    try:
        found = decode_attributes(data)
    except Corrupt:
        return
    assert encode_attributes(found) == data


def test_the_most() -> None:
    fits = {"a": "x" * (ATTRIBUTES_SIZE_MAX - 4)}
    assert decode_attributes(encode_attributes(fits)) == fits
    with pytest.raises(InvalidInput, match="8193 bytes; the maximum is 8192"):
        encode_attributes({"a": "x" * (ATTRIBUTES_SIZE_MAX - 3)})
    with pytest.raises(Corrupt, match="8193"):
        decode_attributes(bytes(ATTRIBUTES_SIZE_MAX + 1))


@pytest.mark.parametrize("attributes", [{"": "x"}, {"n" * 256: ""}, {"\ud800": ""}, {"n": "\ud800"}])
def test_the_encoder_refuses_what_does_not_fit(attributes: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="attribute"):
        encode_attributes(attributes)


@pytest.mark.parametrize(
    "data", [b"\1", b"\1\0\0", b"\0\0\0", b"\1\0\0b\1\0\0a", b"\1\0\0a\1\0\0a", b"\1\0\0\xff", b"\1\1\0a\xff"]
)
def test_bad_entries_are_refused(data: bytes) -> None:
    with pytest.raises(Corrupt, match="attributes"):
        decode_attributes(data)
