"""Encryption of objects: round trips, ranges, and every change of ciphertext or envelope."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.encryption.envelope import (
    ONE_SEGMENT,
    ONE_SEGMENT_BYTES_MAX,
    PLAIN_SEGMENT_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    Envelope,
    decode_envelope,
    stored_size,
)
from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.encryption.ciphers import EncryptedStream, ObjectCipher, decrypted
from nos_ec.engine.objects.streams import read_up_to

KEY = ObjectKey("photos", "été/ü.png")
STORE_KEY = bytes(range(32))
SALT = bytes(range(100, 116))
BIG = ONE_SEGMENT_BYTES_MAX + 3 * PLAIN_SEGMENT_BYTES
SIZES = [0, 1, ONE_SEGMENT_BYTES_MAX - 1, ONE_SEGMENT_BYTES_MAX, ONE_SEGMENT_BYTES_MAX + 1, 9 * PLAIN_SEGMENT_BYTES,
         9 * PLAIN_SEGMENT_BYTES + 1, 64 * PLAIN_SEGMENT_BYTES, 64 * PLAIN_SEGMENT_BYTES + 1,
         128 * PLAIN_SEGMENT_BYTES - 1, 3 << 20]  # fmt: skip


def plain_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def encrypted(plain: bytes, key: ObjectKey = KEY, salt: bytes = SALT, read: int = 1 << 30) -> tuple[bytes, Envelope]:
    stream = EncryptedStream(BytesIO(plain), STORE_KEY, 7, salt, key)
    before = stream.envelope()
    pieces = []
    while piece := stream.read(read):
        pieces.append(piece)
    assert stream.md5 == hashlib.md5(plain).digest()
    assert len(before) == len(stream.envelope())
    return b"".join(pieces), decode_envelope(stream.envelope())


def opened(
    stored: bytes,
    envelope: Envelope,
    first: int = 0,
    length: int | None = None,
    key: ObjectKey = KEY,
    store_key: bytes = STORE_KEY,
    asked: list[tuple[int, int]] | None = None,
) -> bytes:
    def read(start: int, count: int) -> Iterator[bytes]:
        if asked is not None:
            asked.append((start, count))
        end = start + count
        return iter([stored[at : min(at + 50_000, end)] for at in range(start, end, 50_000)])

    cipher = ObjectCipher.of(store_key, envelope, key)
    length = envelope.plain_size(len(stored)) - first if length is None else length
    return b"".join(decrypted(cipher, envelope, len(stored), first, length, read))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("read", [1 << 30, 70_000])
def test_round_trip(size: int, read: int) -> None:
    plain = plain_of(size)
    stored, envelope = encrypted(plain, read=read)
    assert len(stored) == stored_size(size)
    assert envelope.plain_size(len(stored)) == size
    assert opened(stored, envelope) == plain
    assert ObjectCipher.of(STORE_KEY, envelope, KEY).md5(envelope) == hashlib.md5(plain).digest()
    assert hashlib.md5(plain).digest() not in envelope.md5
    assert size < 16 or plain[:16] not in stored


def test_the_derivation_of_keys_is_fixed() -> None:
    """Computed from the text of docs/FORMAT.md, so that no change makes stored objects unreadable."""
    stored, envelope = encrypted(b"a picture")
    info = b"nos_ec sse\x01\x07\x00\x06\x00photos" + "été/ü.png".encode()
    derived = HKDF(SHA256(), 64, SALT, info).derive(STORE_KEY)
    assert AESGCM(derived[:32]).decrypt(bytes(12), stored + envelope.check, envelope.md5) == b"a picture"
    stored, envelope = encrypted(plain_of(BIG))
    info = b"nos_ec sse\x02\x07\x00\x06\x00photos" + "été/ü.png".encode()
    gcm = AESGCM(HKDF(SHA256(), 64, SALT, info).derive(STORE_KEY)[:32])
    last = (len(stored) - 1) // SEGMENT_BYTES
    second = gcm.decrypt(bytes(10) + b"\x01\x00", stored[SEGMENT_BYTES : 2 * SEGMENT_BYTES], None)
    assert second == plain_of(BIG)[PLAIN_SEGMENT_BYTES : 2 * PLAIN_SEGMENT_BYTES]
    end = gcm.decrypt(bytes(10) + bytes([last, 1]), stored[last * SEGMENT_BYTES :], None)
    assert end == plain_of(BIG)[last * PLAIN_SEGMENT_BYTES :]


BIG_STORED, BIG_ENVELOPE = encrypted(plain_of(BIG))
SMALL_STORED, SMALL_ENVELOPE = encrypted(plain_of(100))
BOTH_FORMATS = pytest.mark.parametrize(
    ("stored", "envelope"), [(SMALL_STORED, SMALL_ENVELOPE), (BIG_STORED, BIG_ENVELOPE)], ids=["whole", "segments"]
)


@settings(max_examples=200)
@given(st.data())
def test_ranges(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, BIG))
    length = data.draw(st.integers(0, BIG - first))
    asked: list[tuple[int, int]] = []
    assert opened(BIG_STORED, BIG_ENVELOPE, first, length, asked=asked) == plain_of(BIG)[first : first + length]
    read = sum(count for _, count in asked)
    assert read <= length + 2 * SEGMENT_BYTES + length // 500


@given(st.data())
def test_ranges_of_one_segment(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 100))
    length = data.draw(st.integers(0, 100 - first))
    assert opened(SMALL_STORED, SMALL_ENVELOPE, first, length) == plain_of(100)[first : first + length]


def test_each_bit_of_one_segment() -> None:
    for bit in range(100 * 8):
        with pytest.raises(Corrupt, match="was changed"):
            opened(_flipped(SMALL_STORED, bit), SMALL_ENVELOPE)


@pytest.mark.parametrize("field", ["salt", "check", "md5"])
@BOTH_FORMATS
def test_each_bit_of_an_envelope(field: str, stored: bytes, envelope: Envelope) -> None:
    for bit in range(128):
        flipped: dict[str, Any] = {field: _flipped(getattr(envelope, field), bit)}
        changed = replace(envelope, **flipped)
        with pytest.raises(Corrupt, match="was changed"):
            opened(stored, changed)


@BOTH_FORMATS
def test_other_formats_numbers_keys_and_names(stored: bytes, envelope: Envelope) -> None:
    other = SEGMENTS if envelope.format == ONE_SEGMENT else ONE_SEGMENT
    for changed in (replace(envelope, format=other), replace(envelope, number=envelope.number ^ 1)):
        with pytest.raises(Corrupt):
            opened(stored, changed)
    for key in (ObjectKey("photo", "s" + KEY.name), ObjectKey("photos", "b"), ObjectKey("videos", KEY.name)):
        with pytest.raises(Corrupt, match="belongs to another object"):
            opened(stored, envelope, key=key)
    with pytest.raises(Corrupt, match="another object or key"):
        opened(stored, envelope, store_key=bytes(32))


def test_no_byte_is_read_with_a_wrong_key() -> None:
    asked: list[tuple[int, int]] = []
    with pytest.raises(Corrupt):
        opened(BIG_STORED, BIG_ENVELOPE, store_key=bytes(32), asked=asked)
    assert not asked


@given(st.integers(0, len(BIG_STORED) * 8 - 1))
def test_a_flipped_bit_of_segments(bit: int) -> None:
    with pytest.raises(Corrupt, match="was changed"):
        opened(_flipped(BIG_STORED, bit), BIG_ENVELOPE)


def test_segments_that_are_moved_removed_or_added() -> None:
    segments = [BIG_STORED[at : at + SEGMENT_BYTES] for at in range(0, len(BIG_STORED), SEGMENT_BYTES)]
    others, _ = encrypted(plain_of(BIG), salt=bytes(16))
    changes = [
        [segments[1], segments[0], *segments[2:]],
        segments[:-1],
        segments[:-2],
        segments[1:],
        [*segments[:-2], segments[-1]],
        [*segments[:-1], segments[-2], segments[-1]],
        [*segments, segments[-1]],
        [others[:SEGMENT_BYTES], *segments[1:]],
    ]
    for change in changes:
        with pytest.raises(Corrupt):
            opened(b"".join(change), BIG_ENVELOPE)


def test_a_damaged_segment_fails_only_its_own_ranges() -> None:
    damaged = _flipped(BIG_STORED, 8 * (2 * SEGMENT_BYTES + 5))
    assert opened(damaged, BIG_ENVELOPE, 0, 2 * PLAIN_SEGMENT_BYTES) == plain_of(BIG)[: 2 * PLAIN_SEGMENT_BYTES]
    with pytest.raises(Corrupt):
        opened(damaged, BIG_ENVELOPE, 2 * PLAIN_SEGMENT_BYTES - 1, 2)


def test_a_source_that_ends_early_is_corrupt() -> None:
    cipher = ObjectCipher.of(STORE_KEY, BIG_ENVELOPE, KEY)
    pieces = decrypted(cipher, BIG_ENVELOPE, len(BIG_STORED), 0, BIG, lambda *_: iter([BIG_STORED[:SEGMENT_BYTES]]))
    with pytest.raises(Corrupt, match="lacks"):
        list(pieces)


def test_masks_differ() -> None:
    cipher = ObjectCipher.of(STORE_KEY, BIG_ENVELOPE, KEY)
    assert cipher.masked("CRC32", bytes(4)) != cipher.masked("CRC32C", bytes(4))
    assert cipher.masked("SHA512", cipher.masked("SHA512", b"x" * 64)) == b"x" * 64


def test_a_stream_that_returns_little_is_read_to_its_end() -> None:
    class Slow(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 999))

    plain = plain_of(ONE_SEGMENT_BYTES_MAX + 5)
    stream = EncryptedStream(Slow(plain), STORE_KEY, 1, SALT, KEY)
    stored = read_up_to(stream, 1 << 30)
    assert opened(stored, decode_envelope(stream.envelope())) == plain


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
