"""Checksums of S3 bodies: right values, wrong ones refused, none dropped."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from random import Random

import google_crc32c
import pytest
from botocore.httpchecksum import Crc32Checksum, Sha1Checksum, Sha256Checksum

from nos_ec.s3.checksums import (
    Algorithm,
    BodyCheck,
    ChecksumType,
    Computed,
    algorithm_named,
    checksum_of,
    composite,
    expected_of,
    in_base64,
    joined,
    new_digest,
    type_of_upload,
)
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request

DATA = Random(1).randbytes(100_000)
PARTS = [DATA[:5], b"", DATA[5:70_000], DATA[70_000:]]


def request(headers: dict[str, str]) -> Request:
    return Request("PUT", b"/b/k", b"", [(name.encode(), value.encode()) for name, value in headers.items()])


def digest_of(algorithm: Algorithm, data: bytes) -> bytes:
    digest = new_digest(algorithm)
    digest.update(data)
    return digest.digest()


def outcome(headers: dict[str, str], trailers: dict[str, str] | None = None, sha256: str | None = None) -> Computed:
    check = BodyCheck(expected_of(request(headers), frozenset(trailers or ()), sha256))
    for part in PARTS:
        check.update(memoryview(part))
    return check.finish(trailers or {})


def code_of(headers: dict[str, str], trailers: dict[str, str] | None = None, sha256: str | None = None) -> str:
    with pytest.raises(S3Error) as caught:
        outcome(headers, trailers, sha256)
    return caught.value.code


@pytest.mark.parametrize(
    ("algorithm", "hexadecimal"),
    [
        (Algorithm.CRC32, "cbf43926"),
        (Algorithm.CRC32C, "e3069283"),
        (Algorithm.CRC64NVME, "ae8b14860a799888"),
        (Algorithm.SHA1, hashlib.sha1(b"123456789").hexdigest()),
        (Algorithm.SHA256, hashlib.sha256(b"123456789").hexdigest()),
        (Algorithm.MD5, "25f9e794323b453885f5181f1b624d0b"),
        (Algorithm.SHA512, hashlib.sha512(b"123456789").hexdigest()),
        (Algorithm.XXHASH64, "8cb841db40e6ae83"),
        (Algorithm.XXHASH3, "72dcb18b67a17dff"),
        (Algorithm.XXHASH128, "33119477ede5dcd5e9716427681d5860"),
    ],
)
def test_the_check_values_of_the_catalogue(algorithm: Algorithm, hexadecimal: str) -> None:
    assert digest_of(algorithm, b"123456789").hex() == hexadecimal
    assert len(hexadecimal) == 2 * algorithm.size


@pytest.mark.parametrize(
    ("algorithm", "hexadecimal"),
    [
        (Algorithm.XXHASH64, "ef46db3751d8e999"),
        (Algorithm.XXHASH3, "2d06800538d394c2"),
        (Algorithm.XXHASH128, "99aa06d3014798d86001c324468d497f"),
    ],
)
def test_the_xxhashes_of_no_bytes_in_its_specification(algorithm: Algorithm, hexadecimal: str) -> None:
    """They are in the canonical form, which is big-endian."""
    assert digest_of(algorithm, b"").hex() == hexadecimal


def test_the_same_as_other_libraries() -> None:
    assert digest_of(Algorithm.CRC32, DATA) == zlib.crc32(DATA).to_bytes(4, "big")
    assert digest_of(Algorithm.CRC32C, DATA) == google_crc32c.value(DATA).to_bytes(4, "big")
    for algorithm, theirs in [
        (Algorithm.CRC32, Crc32Checksum()),
        (Algorithm.SHA1, Sha1Checksum()),
        (Algorithm.SHA256, Sha256Checksum()),
    ]:
        theirs.update(DATA)
        assert in_base64(digest_of(algorithm, DATA)) == theirs.b64digest()


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("in_trailer", [False, True])
def test_a_checksum_in_a_header_or_trailer(algorithm: Algorithm, in_trailer: bool) -> None:
    right = {algorithm.header: in_base64(digest_of(algorithm, DATA))}
    named = {"x-amz-sdk-checksum-algorithm": algorithm.value}
    computed = outcome(named, right) if in_trailer else outcome(named | right)
    assert computed == Computed(algorithm, digest_of(algorithm, DATA))
    wrong = {algorithm.header: in_base64(digest_of(algorithm, b""))}
    assert code_of({}, wrong) == code_of(wrong) == "BadDigest"
    for bad in ("", "bad", "AAAA", right[algorithm.header] + "=", right[algorithm.header].rstrip("="), "ü" * 8):
        if bad != right[algorithm.header]:
            assert code_of({algorithm.header: bad}) == "InvalidRequest"
            assert code_of({}, {algorithm.header: bad}) == "InvalidRequest"


def test_content_md5() -> None:
    right = b64encode(hashlib.md5(DATA).digest()).decode()
    assert outcome({"content-md5": right}) == Computed(None, None)
    assert code_of({"content-md5": b64encode(bytes(16)).decode()}) == "BadDigest"
    for bad in ("", "bad", right[:-1], right + "A", b64encode(bytes(15)).decode(), "\u00e4" * 24):
        assert code_of({"content-md5": bad}) == "InvalidDigest"


@pytest.mark.parametrize("headers", [{}, {Algorithm.SHA256.header: in_base64(digest_of(Algorithm.SHA256, DATA))}])
def test_the_sha256_of_the_signature(headers: dict[str, str]) -> None:
    outcome(headers, sha256=hashlib.sha256(DATA).hexdigest())
    assert code_of(headers, sha256=hashlib.sha256(b"").hexdigest()) == "XAmzContentSHA256Mismatch"


def test_nothing_is_computed_that_was_not_asked_for() -> None:
    assert outcome({}) == Computed(None, None)


@pytest.mark.parametrize(
    ("headers", "trailers"),
    [
        ({"x-amz-checksum-crc16": "AAAA"}, {}),
        ({}, {"x-amz-checksum-crc16": "AAAA"}),
        ({}, {"x-amz-meta-a": "b"}),
        ({"x-amz-sdk-checksum-algorithm": "CRC16"}, {}),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, {}),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="}, {}),
        ({"x-amz-checksum-crc32": "bad", "x-amz-checksum-crc32c": "AAAAAA=="}, {}),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, {"x-amz-checksum-crc32": "AAAAAA=="}),
        ({}, {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-crc32c": "AAAAAA=="}),
    ],
)
def test_unknown_and_several_are_refused(headers: dict[str, str], trailers: dict[str, str]) -> None:
    assert code_of(headers, trailers) == "InvalidRequest"


def test_another_algorithm_than_named_is_refused() -> None:
    headers = {"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": "AAAAAA=="}
    assert code_of(headers) == "BadDigest"


def test_headers_that_are_no_checksum_of_the_body() -> None:
    headers = {
        "x-amz-checksum-type": "COMPOSITE",
        "x-amz-checksum-algorithm": "CRC32",
        "x-amz-checksum-mode": "ENABLED",
    }
    assert checksum_of(request(headers)) is None
    assert algorithm_named("crc64nvme") is Algorithm.CRC64NVME


@pytest.mark.parametrize("algorithm", [Algorithm.CRC32, Algorithm.CRC32C, Algorithm.CRC64NVME])
def test_the_crc_of_an_object_from_those_of_its_parts(algorithm: Algorithm) -> None:
    parts = [(digest_of(algorithm, part), len(part)) for part in PARTS]
    assert joined(algorithm, parts) == digest_of(algorithm, DATA)
    assert joined(algorithm, []) == digest_of(algorithm, b"")


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_composite_checksums(algorithm: Algorithm) -> None:
    checksums = [digest_of(algorithm, part) for part in PARTS]
    assert composite(algorithm, checksums) == digest_of(algorithm, b"".join(checksums))


@pytest.mark.parametrize(
    ("algorithm", "name", "expected"),
    [
        ("CRC32", None, "COMPOSITE"),
        ("CRC32", "FULL_OBJECT", "FULL_OBJECT"),
        ("CRC32C", "COMPOSITE", "COMPOSITE"),
        ("CRC64NVME", None, "FULL_OBJECT"),
        ("CRC64NVME", "COMPOSITE", None),
        ("SHA1", None, "COMPOSITE"),
        ("SHA256", "FULL_OBJECT", None),
        ("MD5", None, "COMPOSITE"),
        ("MD5", "FULL_OBJECT", None),
        ("SHA512", None, "COMPOSITE"),
        ("XXHASH64", None, "COMPOSITE"),
        ("XXHASH3", "COMPOSITE", "COMPOSITE"),
        ("XXHASH3", "FULL_OBJECT", None),
        ("XXHASH128", "FULL_OBJECT", None),
        ("SHA256", "other", None),
    ],
)
def test_types_of_uploads(algorithm: str, name: str | None, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(S3Error, match="InvalidRequest"):
            type_of_upload(Algorithm(algorithm), name)
    else:
        assert type_of_upload(Algorithm(algorithm), name) is ChecksumType(expected)
