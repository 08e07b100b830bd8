"""Labels of landing copies: golden bytes, round trips, refusals; footers that hold them in files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.adapters.local.landing_footer import find_label, footer_of
from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX, encode_attributes
from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.copy_label import CopyLabel, decode_label, encode_label
from nos_ec.core.ids import LandingId
from nos_ec.ports.landing_store import LABEL_SIZE_MAX

GOLDEN = Path(__file__).parents[2] / "golden"
ID = LandingId(bytes(range(16)))
DATA = b"a picture"
# What tests/golden/copy_label_v1.bin and landing_file_v1.bin say; built from the tables of docs/FORMAT.md.
LABEL = CopyLabel(
    "photos",
    "été/ü.png",
    1_763_700_000_000,
    len(DATA),
    google_crc32c.value(DATA),
    encode_attributes({"content-type": "image/png", "été": "ü"}),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
labels = st.builds(
    CopyLabel,
    texts,
    texts,
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.one_of(st.just(b""), st.binary(max_size=100), st.just(b"a" * ATTRIBUTES_SIZE_MAX)),
)


def test_golden() -> None:
    golden = (GOLDEN / "copy_label_v1.bin").read_bytes()
    assert decode_label(ID, golden) == LABEL
    assert encode_label(ID, LABEL) == golden


def test_golden_file(tmp_path: Path) -> None:
    golden = (GOLDEN / "landing_file_v1.bin").read_bytes()
    label = encode_label(ID, LABEL)
    assert _split(tmp_path, golden) == (len(DATA), label)
    assert DATA + footer_of(ID, label) == golden


@given(labels)
def test_round_trip(label: CopyLabel) -> None:
    encoded = encode_label(ID, label)
    assert decode_label(ID, encoded) == label
    with pytest.raises(Corrupt):
        decode_label(LandingId(bytes(16)), encoded)


@given(labels, st.data())
def test_damage_is_always_detected(label: CopyLabel, data: st.DataObject) -> None:
    encoded = bytearray(encode_label(ID, label))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode_label(ID, bytes(encoded))


@given(labels, st.data())
def test_damage_with_a_correct_checksum_gives_a_label_or_corrupt(label: CopyLabel, data: st.DataObject) -> None:
    rest = bytearray(encode_label(ID, label)[8:])
    at = data.draw(st.integers(0, len(rest) - 1))
    rest[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    damaged = b"NLL1" + google_crc32c.value(ID + bytes(rest)).to_bytes(4, "little") + rest
    with suppress(Corrupt):
        assert encode_label(ID, decode_label(ID, damaged)) == damaged


@given(st.binary(max_size=200))
def test_any_bytes_give_a_label_or_corrupt(data: bytes) -> None:
    with suppress(Corrupt):
        decode_label(ID, data)


@pytest.mark.parametrize(
    "changes", [{"bucket": ""}, {"put_ms": -1}, {"size": 1 << 32}, {"attributes": bytes(8193)}, {"name": "n" * 1025}]
)
def test_the_encoder_refuses_what_the_decoder_would(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"label|name record"):
        encode_label(ID, LABEL._replace(**changes))  # type: ignore[arg-type]


def test_the_longest_label_has_room() -> None:
    longest = CopyLabel("b" * 255, "n" * 1024, (1 << 64) - 1, 1, 1, bytes(ATTRIBUTES_SIZE_MAX))
    assert len(encode_label(ID, longest)) <= LABEL_SIZE_MAX
    with pytest.raises(ValueError, match="label of"):
        footer_of(ID, bytes(LABEL_SIZE_MAX + 1))


def test_files_without_a_footer_are_data(tmp_path: Path) -> None:
    footer = footer_of(ID, b"label")
    other = footer_of(LandingId(bytes(16)), b"label")
    for content in (b"", b"x", footer[:-1], footer[1:], footer + b"\0", DATA + other, DATA[:-1] + footer[:3]):
        assert _split(tmp_path, content) == (len(content), b"")
    assert _split(tmp_path, footer) == (0, b"label")
    damaged = bytearray(DATA + footer)
    damaged[len(DATA)] ^= 1
    assert _split(tmp_path, bytes(damaged)) == (len(damaged), b"")
    assert footer_of(ID, b"") == b""


def _split(folder: Path, content: bytes) -> tuple[int, bytes]:
    path = folder / "copy"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return find_label(fd, ID)
    finally:
        os.close(fd)
