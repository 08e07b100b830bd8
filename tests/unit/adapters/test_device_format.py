"""Header pages of slots: which segment owns a slot, and when its page does not show it."""

from __future__ import annotations

import pytest

from nos_ec.adapters.local.devices.device_format import HEADER_COPY_AT, encode_slot_header, owner_of_slot
from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.landing_format import SEGMENT_HEADER_SIZE, SegmentHeader
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import new_segment_id

STORE = bytes(range(16))
SEGMENT = new_segment_id(1_000_000, 3)
HEADER = encode_slot_header(SegmentHeader(SEGMENT, 5, 9, 0, 1 << 20, STORE))
OLD_HEADER = HEADER[:HEADER_COPY_AT].ljust(PAGE, b"\0")


def flipped(page: bytes, bit: int) -> bytes:
    changed = bytearray(page)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_bit_hides_the_owner() -> None:
    assert len(HEADER) == PAGE
    for bit in range(PAGE * 8):
        assert owner_of_slot(flipped(HEADER, bit), STORE, 5) == SEGMENT


def test_no_bit_of_an_older_header_frees_its_slot() -> None:
    assert owner_of_slot(OLD_HEADER, STORE, 5) == SEGMENT
    for bit in range(SEGMENT_HEADER_SIZE * 8):
        with pytest.raises(Corrupt):
            owner_of_slot(flipped(OLD_HEADER, bit), STORE, 5)


def test_only_zeros_are_free() -> None:
    assert owner_of_slot(bytes(PAGE), STORE, 5) is None
    for bit in range(PAGE * 8):
        with pytest.raises(Corrupt):
            owner_of_slot(flipped(bytes(PAGE), bit), STORE, 5)
    for cut in (b"", bytes(PAGE - 1)):
        with pytest.raises(Corrupt):
            owner_of_slot(cut, STORE, 5)


def test_a_header_of_another_slot_or_store_does_not_tell() -> None:
    other = encode_slot_header(SegmentHeader(new_segment_id(1_000_001, 3), 5, 9, 0, 1 << 20, STORE))
    for page, store, slot in (
        (HEADER, STORE, 6),
        (HEADER, bytes(16), 5),
        (HEADER[:HEADER_COPY_AT] + other[HEADER_COPY_AT:], STORE, 5),
    ):
        with pytest.raises(Corrupt):
            owner_of_slot(page, store, slot)


@pytest.mark.parametrize("sector", [512, 1024, 2048])
def test_a_torn_page_names_its_segment_or_is_not_free(sector: int) -> None:
    """Each sector has its old or its new contents."""
    sectors = range(0, PAGE, sector)
    for written in range(1, 1 << len(sectors)):
        parts = (HEADER if written >> n & 1 else bytes(PAGE) for n in range(len(sectors)))
        page = b"".join(part[at : at + sector] for part, at in zip(parts, sectors, strict=True))
        assert owner_of_slot(page, STORE, 5) == (SEGMENT if any(page) else None)
