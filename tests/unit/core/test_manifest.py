"""Manifests of composed objects: golden bytes, sizes, refusals."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.encryption.envelope import stored_size
from nos_ec.core.errors import Corrupt
from nos_ec.core.parts import PARTS_MAX, Manifest, ManifestPart, UploadId, decode_manifest, encode_manifest

UPLOAD = UploadId(bytes(range(16)))
CHECK = bytes(range(16, 32))
HEAD = struct.pack("<I", 2) + UPLOAD
PLAIN = b"NOSECMP1" + HEAD + struct.pack("<HQIHQI", 1, 7, 9, 258, 2**33, 2**32 - 1)
ENCRYPTED = b"NOSECMP2" + HEAD + struct.pack("<HQI16sHQI16s", 1, 200_000, 9, CHECK, 258, 7, 5, CHECK[::-1])
"""Built from the table of docs/FORMAT.md."""

lists = st.lists(st.tuples(st.integers(1, PARTS_MAX), st.integers(0, 5 << 30), st.binary(min_size=16, max_size=16)),
                 min_size=1, max_size=20, unique_by=lambda part: part[0]).map(sorted)  # fmt: skip


def test_golden() -> None:
    plain = Manifest(UPLOAD, [ManifestPart(1, 7, 9), ManifestPart(258, 2**33, 2**32 - 1)])
    assert encode_manifest(plain) == PLAIN
    assert decode_manifest(PLAIN) == plain
    encrypted = Manifest(UPLOAD, [ManifestPart(1, 200_000, 9, CHECK), ManifestPart(258, 7, 5, CHECK[::-1])])
    assert encode_manifest(encrypted) == ENCRYPTED
    assert decode_manifest(ENCRYPTED) == encrypted
    assert encrypted.starts == [0, 200_000 - 13 * 16, 200_000 - 13 * 16 + 7]
    assert (encrypted.stored_size, encrypted.is_encrypted, plain.is_encrypted) == (200_007, True, False)


@given(lists, st.booleans())
def test_round_trip(parts: list[tuple[int, int, bytes]], encrypted: bool) -> None:
    made = [
        ManifestPart(number, stored_size(size) if encrypted else size, number, check if encrypted else b"")
        for number, size, check in parts
    ]
    manifest = Manifest(UPLOAD, made)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert [part.users_size for part in manifest.parts] == [size for _, size, _ in parts]
    assert manifest.size == sum(size for _, size, _ in parts)


def test_each_part_counts_for_the_digest() -> None:
    parts = [ManifestPart(1, 5, 6, CHECK), ManifestPart(2, 5, 6, CHECK)]
    others = [ManifestPart(2, 5, 7, CHECK), ManifestPart(2, 6, 6, CHECK), ManifestPart(2, 5, 6, CHECK[::-1])]
    digests = {Manifest(UPLOAD, [parts[0], last]).digest for last in [parts[1], *others]}
    digests |= {Manifest(UPLOAD, parts[:1]).digest, Manifest(UploadId(bytes(16)), parts).digest}
    assert len(digests) == 6


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:-1],
        ENCRYPTED[:-1],
        b"NOSECMP3" + PLAIN[8:],
        b"NOSECMP2" + PLAIN[8:],
        b"NOSECMP1" + ENCRYPTED[8:],
        PLAIN[:8] + bytes(4) + UPLOAD,
        ENCRYPTED.replace(struct.pack("<Q", 200_000), struct.pack("<Q", (16 << 10) * 9 + 3)),
    ],
)
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_manifest(data)


def test_all_parts_are_encrypted_or_none() -> None:
    with pytest.raises(Corrupt, match="others are not"):
        Manifest(UPLOAD, [ManifestPart(1, 5, 6, CHECK), ManifestPart(2, 5, 6)])
