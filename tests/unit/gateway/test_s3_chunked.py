"""Bodies in aws-chunked encoding: however they are split, what was sent comes out, or the right error."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum

from nos_ec.s3.chunked import (
    LINE_SIZE_MAX,
    ChunkedBody,
    content_encoding_of,
    decoded_length_of,
    trailers_announced,
)
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Payload, Signed, signing_key

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
DATE, SCOPE = "20130524T000000Z", "20130524/us-east-1/s3/aws4_request"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CRC32C = "x-amz-checksum-crc32c"


def signed(payload: Payload, seed: str = SEED) -> Signed:
    key = signing_key(SECRET, "20130524", "us-east-1")
    return Signed("AKID", payload, None, key, DATE, SCOPE, seed)


@dataclass
class Encoder:
    """Writes signed bodies, as the reference says."""

    payload: Payload
    seed: str = SEED
    signatures: list[str] = field(default_factory=list)

    def sign(self, kind: str, *digests: str) -> str:
        previous = self.signatures[-1] if self.signatures else self.seed
        text = "\n".join([kind, DATE, SCOPE, previous, *digests])
        key = signing_key(SECRET, "20130524", "us-east-1")
        self.signatures.append(hmac.new(key, text.encode(), hashlib.sha256).hexdigest())
        return self.signatures[-1]

    def chunk(self, data: bytes) -> bytes:
        head = f"{len(data):x}"
        if self.payload is not Payload.CHUNKED_UNSIGNED_TRAILER:
            empty, digest = hashlib.sha256().hexdigest(), hashlib.sha256(data).hexdigest()
            head += ";chunk-signature=" + self.sign("AWS4-HMAC-SHA256-PAYLOAD", empty, digest)
        return head.encode() + b"\r\n" + data + (b"\r\n" if data else b"")

    def trailers(self, trailers: dict[str, str], like_the_reference: bool = False) -> bytes:
        lines = "".join(f"{name}:{value}\n" for name, value in sorted(trailers.items()))
        digest = hashlib.sha256(lines.encode()).hexdigest()
        sent = lines + "\r\n" if like_the_reference else lines.replace("\n", "\r\n")
        if self.payload is Payload.CHUNKED_TRAILER:
            sent += f"x-amz-trailer-signature:{self.sign('AWS4-HMAC-SHA256-TRAILER', digest)}\r\n"
        return sent.encode()

    def body(self, chunks: Iterable[bytes], trailers: dict[str, str] | None = None) -> bytes:
        body = b"".join([self.chunk(data) for data in [*chunks, b""]])
        if self.payload is not Payload.CHUNKED:
            body += self.trailers(trailers or {})
        return body + b"\r\n"


def decoded(
    body: bytes, payload: Payload, length: int, names: Iterable[str] = (), splits: Iterable[int] = (), seed: str = SEED
) -> tuple[bytes, dict[str, str]]:
    parser = ChunkedBody(signed(payload, seed), length, frozenset(names))
    found, before = b"", 0
    for split in [*splits, len(body)]:
        found += b"".join(parser.feed(body[before:split]))
        before = split
    return found, parser.finish()


def error_of(body: bytes, payload: Payload, length: int, names: Iterable[str] = ()) -> str:
    with pytest.raises(S3Error) as caught:
        decoded(body, payload, length, names)
    return caught.value.code


FORMS = [Payload.CHUNKED, Payload.CHUNKED_TRAILER, Payload.CHUNKED_UNSIGNED_TRAILER]
BIG = Random(1).randbytes(8192)


def example(payload: Payload) -> tuple[bytes, bytes, dict[str, str]]:
    """A body, what it has, its trailers."""
    trailers = {} if payload is Payload.CHUNKED else {CRC32C: "sOO8/Q=="}
    return Encoder(payload).body([BIG, b"tail"], trailers), BIG + b"tail", trailers


def test_the_example_of_the_reference() -> None:
    encoder = Encoder(Payload.CHUNKED)
    body = encoder.body([b"a" * 65536, b"a" * 1024])
    assert len(body) == 66824
    assert encoder.signatures == [
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ]
    assert decoded(body, Payload.CHUNKED, 66560) == (b"a" * 66560, {})


@pytest.mark.parametrize("like_the_reference", [False, True])
def test_the_example_with_a_trailer(like_the_reference: bool) -> None:
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    encoder = Encoder(Payload.CHUNKED_TRAILER, seed)
    body = b"".join([encoder.chunk(data) for data in (b"a" * 65536, b"a" * 1024, b"")])
    body += encoder.trailers({CRC32C: "sOO8/Q=="}, like_the_reference) + b"\r\n"
    assert encoder.signatures == [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435",
    ]
    assert decoded(body, Payload.CHUNKED_TRAILER, 66560, [CRC32C], seed=seed) == (b"a" * 66560, {CRC32C: "sOO8/Q=="})


@pytest.mark.parametrize("payload", FORMS)
def test_a_body_may_be_split_anywhere(payload: Payload) -> None:
    body, data, trailers = example(payload)
    assert decoded(body, payload, len(data), trailers, range(1, len(body))) == (data, trailers)
    near_the_data = [*range(1, 120), *range(len(body) - 400, len(body))]
    for split in near_the_data:
        assert decoded(body, payload, len(data), trailers, [split]) == (data, trailers)
    dice = Random(2)
    for _ in range(100):
        splits = sorted(dice.sample(range(len(body)), 5))
        assert decoded(body, payload, len(data), trailers, splits) == (data, trailers)


@pytest.mark.parametrize("chunk_size", [1, 7, 1000, None])
@pytest.mark.parametrize("size", [0, 1, 7, 4000])
def test_what_botocore_writes(chunk_size: int | None, size: int) -> None:
    data = Random(size).randbytes(size)
    wrapper = AwsChunkedWrapper(
        io.BytesIO(data), checksum_cls=Crc32Checksum, checksum_name="x-amz-checksum-crc32", chunk_size=chunk_size
    )
    body = wrapper.read()
    checksum = Crc32Checksum()
    checksum.update(data)
    expected = (data, {"x-amz-checksum-crc32": checksum.b64digest()})
    names = ["x-amz-checksum-crc32"]
    assert decoded(body, Payload.CHUNKED_UNSIGNED_TRAILER, size, names) == expected
    assert decoded(body, Payload.CHUNKED_UNSIGNED_TRAILER, size, names, range(1, len(body))) == expected
    plain = AwsChunkedWrapper(io.BytesIO(data), chunk_size=chunk_size).read()
    assert decoded(plain, Payload.CHUNKED_UNSIGNED_TRAILER, size) == (data, {})


@pytest.mark.parametrize("payload", FORMS)
def test_a_body_cut_anywhere_is_incomplete(payload: Payload) -> None:
    body, data, trailers = example(payload)
    for end in [*range(120), *range(len(body) - 400, len(body))]:
        assert error_of(body[:end], payload, len(data), trailers) == "IncompleteBody"


@pytest.mark.parametrize("payload", FORMS)
def test_a_byte_changed_anywhere_is_refused_or_is_data_of_an_unsigned_body(payload: Payload) -> None:
    body, data, trailers = example(payload)
    codes = set()
    for at in [*range(100), *range(4000, 4010), *range(len(body) - 400, len(body))]:
        other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        try:
            found, names = decoded(other, payload, len(data), trailers)
        except S3Error as error:
            codes.add(error.code)
        else:
            assert payload is Payload.CHUNKED_UNSIGNED_TRAILER
            assert found != data or names != trailers
    expected = {"IncompleteBody"}
    if payload is not Payload.CHUNKED_UNSIGNED_TRAILER:
        expected |= {"SignatureDoesNotMatch"}
    if payload is not Payload.CHUNKED:
        expected |= {"MalformedTrailerError"}
    assert codes == expected


@pytest.mark.parametrize("payload", FORMS)
def test_the_length_is_the_one_that_was_declared(payload: Payload) -> None:
    body, data, trailers = example(payload)
    for length in (0, 1, len(data) - 1, len(data) + 1, 1 << 40):
        assert error_of(body, payload, length, trailers) == "IncompleteBody"
    parser = ChunkedBody(signed(payload), 8195, trailers)
    found: list[memoryview] = []
    with contextlib.suppress(S3Error):
        for at in range(len(body)):
            found += parser.feed(body[at : at + 1])
    assert sum(map(len, found)) <= 8195


@pytest.mark.parametrize("payload", FORMS)
def test_nothing_may_follow(payload: Payload) -> None:
    body, data, trailers = example(payload)
    assert error_of(body + b"\r\n", payload, len(data), trailers) == "IncompleteBody"
    assert error_of(body + b"\n", payload, len(data), trailers) == "IncompleteBody"
    assert error_of(body + b"x" * 700, payload, len(data), trailers) == "IncompleteBody"


def test_the_end_of_an_unsigned_trailer_as_minio_go_writes_it() -> None:
    """The line ends with LF, and a blank line more follows."""
    body, names = b"1\r\na\r\n0\r\nx-a:1\n\r\n\r\n", ["x-a"]
    assert decoded(body, Payload.CHUNKED_UNSIGNED_TRAILER, 1, names) == (b"a", {"x-a": "1"})
    assert decoded(body, Payload.CHUNKED_UNSIGNED_TRAILER, 1, names, range(1, len(body))) == (b"a", {"x-a": "1"})
    assert decoded(body[:-2], Payload.CHUNKED_UNSIGNED_TRAILER, 1, names) == (b"a", {"x-a": "1"})
    for more in (b"\r\n", b"x", b"\n"):
        assert error_of(body + more, Payload.CHUNKED_UNSIGNED_TRAILER, 1, names) == "IncompleteBody"
    assert error_of(body[:-1], Payload.CHUNKED_UNSIGNED_TRAILER, 1, names) == "IncompleteBody"


def test_swapped_chunks_are_refused() -> None:
    encoder = Encoder(Payload.CHUNKED)
    one, two, end = encoder.chunk(BIG), encoder.chunk(BIG[::-1]), encoder.chunk(b"") + b"\r\n"
    assert decoded(one + two + end, Payload.CHUNKED, 16384)[0] == BIG + BIG[::-1]
    for body in (two + one + end, one + one + end):
        assert error_of(body, Payload.CHUNKED, 16384) == "SignatureDoesNotMatch"


def test_only_the_last_signed_chunk_may_be_small() -> None:
    body = Encoder(Payload.CHUNKED).body([b"a" * 8191, b"b"])
    assert error_of(body, Payload.CHUNKED, 8192) == "InvalidChunkSizeError"
    body = Encoder(Payload.CHUNKED_UNSIGNED_TRAILER).body([b"a", b"b"])
    assert decoded(body, Payload.CHUNKED_UNSIGNED_TRAILER, 2) == (b"ab", {})


@pytest.mark.parametrize(
    ("end", "names"),
    [
        (b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n", []),
        (b"\r\n", ["x-amz-checksum-crc32"]),
        (b"x-amz-checksum-crc32c:AAAAAA==\r\n\r\n", ["x-amz-checksum-crc32"]),
        (b"x-amz-checksum-crc32:A\r\nx-amz-checksum-crc32:A\r\n\r\n", ["x-amz-checksum-crc32"]),
        (b"x-amz-checksum-crc32 AAAAAA==\r\n\r\n", ["x-amz-checksum-crc32"]),
        (b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:0\r\n\r\n", ["x-amz-checksum-crc32"]),
    ],
)
def test_trailers_are_the_ones_that_were_announced(end: bytes, names: list[str]) -> None:
    body = b"1\r\na\r\n0\r\n" + end
    assert error_of(body, Payload.CHUNKED_UNSIGNED_TRAILER, 1, names) == "MalformedTrailerError"


def test_a_signed_trailer_needs_its_signature() -> None:
    encoder = Encoder(Payload.CHUNKED_TRAILER)
    start = encoder.chunk(b"")
    assert error_of(start + b"\r\n\r\n", Payload.CHUNKED_TRAILER, 0) == "MalformedTrailerError"
    other = b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n\r\n"
    assert error_of(start + other, Payload.CHUNKED_TRAILER, 0) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "body",
    [
        b"1\na\n",
        b"+1\r\n",
        b" 1\r\n",
        b"0x1\r\n",
        b"1;a=b\r\n",
        b"-1\r\n",
        b"\r\n",
        b"1" * 17 + b"\r\n",
        b"f" * 16 + b"\r\n",
    ],
)
def test_other_framings_are_refused(body: bytes) -> None:
    assert error_of(body, Payload.CHUNKED_UNSIGNED_TRAILER, 1) == "IncompleteBody"


def test_memory_is_bounded() -> None:
    parser = ChunkedBody(signed(Payload.CHUNKED), 1, ())
    parser.feed(b"0" * LINE_SIZE_MAX)
    with pytest.raises(S3Error, match="line"):
        parser.feed(b"0")
    with pytest.raises(S3Error):
        parser.feed(b"0\r\n")
    parser = ChunkedBody(signed(Payload.CHUNKED_UNSIGNED_TRAILER), 0, [f"name-{n}" for n in range(100)])
    parser.feed(b"0\r\n")
    lines = b"".join(b"name-%d:%b\r\n" % (number, b"x" * 100) for number in range(100))
    with pytest.raises(S3Error, match="trailer"):
        parser.feed(lines)


def test_any_bytes_are_a_body_or_refused() -> None:
    dice = Random(3)
    body, _, trailers = example(Payload.CHUNKED_UNSIGNED_TRAILER)
    body = body.replace(BIG, BIG[:16]).replace(b"2000", b"10")
    for _ in range(3000):
        at = dice.randrange(len(body))
        other = body[:at] + dice.randbytes(dice.randint(0, 3)) + body[at + dice.randint(0, 3) :]
        try:
            found, _ = decoded(other, Payload.CHUNKED_UNSIGNED_TRAILER, 20, trailers)
        except S3Error:
            continue
        assert len(found) == 20


def test_the_headers() -> None:
    request = Request(
        "PUT", b"/", b"", [(b"x-amz-decoded-content-length", b"12"), (b"x-amz-trailer", b"X-Amz-Checksum-CRC32 ,x-b")]
    )
    assert decoded_length_of(request) == 12
    for payload in Payload:
        assert trailers_announced(Request("PUT", b"/", b"", []), payload) == frozenset()
        if payload in (Payload.CHUNKED_TRAILER, Payload.CHUNKED_UNSIGNED_TRAILER):
            assert trailers_announced(request, payload) == {"x-amz-checksum-crc32", "x-b"}
        else:
            with pytest.raises(S3Error, match="TRAILER"):
                trailers_announced(request, payload)
    for headers, code in [
        ([], "MissingContentLength"),
        ([(b"x-amz-decoded-content-length", b"-1")], "InvalidArgument"),
    ]:
        with pytest.raises(S3Error) as caught:
            decoded_length_of(Request("PUT", b"/", b"", headers))
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([], None),
        (["aws-chunked"], None),
        (["gzip"], "gzip"),
        (["aws-chunked,gzip"], "gzip"),
        (["gzip, AWS-Chunked , br"], "gzip, br"),
        (["deflate, gzip"], "deflate, gzip"),
        (["deflate,gzip"], "deflate,gzip"),
        (["deflate", "gzip"], "deflate, gzip"),
        ([" , "], None),
        (["\u00e0,aws-chunked , gzip\u00a0"], "\u00e0, gzip\u00a0"),
        (["aws-chunked", "gzip"], "gzip"),
        ([""], None),
    ],
)
def test_the_encoding_of_the_transfer_is_not_that_of_the_object(sent: list[str], kept: str | None) -> None:
    headers = [(b"content-encoding", value.encode()) for value in sent]
    request = Request("PUT", b"/", b"", headers)
    assert content_encoding_of(request, Payload.CHUNKED_UNSIGNED_TRAILER) == kept
    assert content_encoding_of(request, Payload.UNSIGNED) == kept
    framed = Request("PUT", b"/", b"", [*headers, (b"x-amz-decoded-content-length", b"1")])
    if any("chunked" in value.lower() for value in sent):
        with pytest.raises(S3Error, match="STREAMING"):
            content_encoding_of(framed, Payload.UNSIGNED)
