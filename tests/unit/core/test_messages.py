"""Event payloads and the partitioner."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.formats.messages import (
    NamedVersion,
    PackRequest,
    decode_pack_request,
    encode_pack_request,
    murmur2,
    partition_for,
    partition_for_key,
)
from nos_ec.core.ids import LandingId, ObjectKey

GOLDEN = (
    b'{"v":1,"object_id":7,"bucket":"photos","name":"caf\xc3\xa9/a.jpg","version":1700000000000000,"size":512,'
    b'"crc32c":4294967295,"landing_id":"000102030405060708090a0b0c0d0e0f"}'
)
REQUEST = PackRequest(
    object_id=7,
    key=ObjectKey("photos", "café/a.jpg"),
    version=1_700_000_000_000_000,
    size=512,
    crc32c=0xFFFFFFFF,
    landing_id=LandingId(bytes(range(16))),
)


def encode(request: PackRequest) -> bytes:
    return encode_pack_request(
        object_id=request.object_id,
        key=request.key,
        version=request.version,
        size=request.size,
        crc32c=request.crc32c,
        landing_id=request.landing_id,
        store=request.store,
    )


def altered(**fields: object) -> bytes:
    return json.dumps({**json.loads(GOLDEN), **fields}).encode()


def is_key(bucket: str, name: str) -> bool:
    try:
        ObjectKey(bucket, name)
    except InvalidInput:
        return False
    return True


def test_version_1_has_these_bytes() -> None:
    assert encode(REQUEST) == GOLDEN
    assert decode_pack_request(GOLDEN) == REQUEST
    assert REQUEST.key == ObjectKey("photos", "café/a.jpg")


@given(
    st.integers(1, 2**63 - 1),
    st.tuples(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40)).filter(lambda k: is_key(*k)),
    st.integers(1, 2**63 - 1),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=16, max_size=16),
)
def test_encoded_requests_decode_unchanged(
    object_id: int, key: tuple[str, str], version: int, size: int, crc32c: int, landing_id: bytes
) -> None:
    request = PackRequest(object_id, ObjectKey(*key), version, size, crc32c, LandingId(landing_id))
    assert decode_pack_request(encode(request)) == request


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        GOLDEN[:-1],
        GOLDEN + b"x",
        altered(size=0),
        altered(size=2**32),
        altered(size=1.5),
        altered(size="512"),
        altered(crc32c=-1),
        altered(crc32c=2**32),
        altered(version=0),
        altered(version=2**63),
        altered(version=10**400),
        altered(object_id=0),
        altered(object_id=True),
        altered(landing_id="00"),
        altered(landing_id="0" * 33),
        altered(landing_id="0" * 32 + "\n"),
        altered(landing_id="G" * 32),
        altered(bucket=""),
        altered(bucket="a/b"),
        altered(bucket="\ud800"),
        altered(name="a/../b"),
        altered(name="n" * 1025),
        altered(name="a\0b"),
        altered(name=None),
        altered(more=1),
        altered(**{"x" * 1_000_000: 1}),
        json.dumps({k: v for k, v in json.loads(GOLDEN).items() if k != "crc32c"}).encode(),
        GOLDEN.replace(b"caf\xc3\xa9", b"caf\xc3"),
    ],
)
def test_anything_else_is_corrupt_and_the_reason_is_short(data: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_pack_request(data)
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize("data", [altered(v=4), altered(v=4, colour="blue"), b'{"v":4}', altered(v=0)])
def test_unknown_versions_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"pack request of version [04]; this program knows versions 1 to 3 only"):
        decode_pack_request(data)


def test_version_3_says_whose_it_is() -> None:
    store = "ab" * 16
    golden = GOLDEN.replace(b'"v":1', b'"v":3').replace(b"}", f',"store":"{store}"}}'.encode())
    request = replace(REQUEST, store=store)
    assert encode(request) == golden
    assert decode_pack_request(golden) == request
    for wrong in (golden.replace(b"abab", b"ABAB"), golden.replace(b"abab", b"ab"), altered(v=3), altered(store=store)):
        with pytest.raises(Corrupt):
            decode_pack_request(wrong)


GOLDEN_V2 = b'{"v":2,"bucket":"photos","name":"caf\xc3\xa9/a.jpg","version":1700000000000000}'


def test_version_2_names_a_version() -> None:
    assert decode_pack_request(GOLDEN_V2) == NamedVersion(REQUEST.key, REQUEST.version)


@pytest.mark.parametrize(
    "data",
    [
        altered(v=2),
        b'{"v":2}',
        GOLDEN_V2[:-1],
        GOLDEN_V2.replace(b"}", b',"size":1}'),
        GOLDEN_V2.replace(b"photos", b"a/b"),
        GOLDEN_V2.replace(b"1700000000000000", b"0"),
        GOLDEN_V2.replace(b"1700000000000000", b"9223372036854775808"),
    ],
)
def test_version_2_has_these_fields_and_no_other(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"not a pack request of version 2|truncated"):
        decode_pack_request(data)


@given(st.binary(max_size=300))
def test_decoding_is_total(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_pack_request(data)


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_decoding_is_total_near_valid_bytes(at: int, byte: int) -> None:
    data = GOLDEN[:at] + bytes([byte]) + GOLDEN[at + 1 :]
    try:
        request = decode_pack_request(data)
    except Corrupt:
        return
    assert isinstance(request, PackRequest)
    assert encode_pack_request(
        object_id=request.object_id,
        key=request.key,
        version=request.version,
        size=request.size,
        crc32c=request.crc32c,
        landing_id=request.landing_id,
    )


@pytest.mark.parametrize(
    ("data", "signed_hash"),
    [
        # The vectors of Kafka's own UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_kafka(data: bytes, signed_hash: int) -> None:
    assert murmur2(data) == signed_hash % 2**32


def test_partition_clears_the_sign_bit() -> None:
    assert partition_for("foobar", 12) == (-790332482 & 0x7FFFFFFF) % 12
    assert partition_for("é", 7) == partition_for_key("é".encode(), 7)


@given(st.text(max_size=30).filter(lambda t: t.isprintable()), st.integers(1, 1000))
def test_partition_is_in_range(bucket: str, partitions: int) -> None:
    assert 0 <= partition_for(bucket, partitions) < partitions


def test_no_partitions_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        partition_for("b", 0)
