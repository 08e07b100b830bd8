"""The contract of `ByteStream`: every source of the bytes of an object keeps it, and every reader copes with a read
that returns fewer bytes than were asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from random import Random
from typing import cast

import pytest

from nos_ec.cli.terminal.streams import Source as CommandSource
from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.objects.large_block import LargeBlock
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.streams import ByteStream, ReadAhead, read_up_to
from nos_ec.gateway.message.body import CheckedBody, Source
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.form_body import FormBody
from nos_ec.gateway.message.stored_body import Body, CopiedBody, store_body
from nos_ec.gateway.operations.bucket_documents import read_document
from nos_ec.library import tree
from nos_ec.library.put_source import Pieces, PutSource
from nos_ec.ports.metadata import ObjectRow, PutRequest
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Payload, Signed

SIZES = (0, 1, 2, 17, 1000)
STEPS = (1, 3, 16, 17, 18, 4096)


class SlowFile(BytesIO):
    """A file whose reads return one byte."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(1 if size else 0)


class FakeStore:
    """Remembers the bytes of PUTs."""

    def __init__(self, packed_size_max: int) -> None:
        self.packed_size_max = packed_size_max
        self.stored: list[bytes] = []

    def put_request(self, request: PutRequest, stream: ByteStream) -> ObjectRow:
        data = read_up_to(stream, 1000)
        self.stored.append(data)
        md5 = hashlib.md5(data, usedforsecurity=False).digest()
        return ObjectRow(1, request.key, 1, len(data), 0, md5, ObjectState.LANDED, None, None, 0)


class SlowClient(Source):
    """A client whose body arrives byte by byte."""

    def __init__(self, body: bytes) -> None:
        self._pieces = one_by_one(body)

    def next_piece(self) -> bytes:
        return next(self._pieces, b"")


class SlowBody:
    """A body whose reads return one byte."""

    def __init__(self, data: bytes) -> None:
        self.length = len(data)
        self._body = CheckedBody(put_request(len(data)), None, SlowClient(data))

    @property
    def computed(self) -> object:
        return self._body.computed

    def read(self, size: int, /) -> bytes:
        return self._body.read(min(size, 1))


def one_by_one(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def put_request(length: int, **headers: str) -> Request:
    sent = {"content-length": str(length)} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("PUT", b"/b/k", b"", [(name.encode(), value.encode()) for name, value in sent.items()])


def put_source(source: object, size: int | None) -> PutSource:
    return PutSource(source, size, lambda: 0.0)  # type: ignore[arg-type]


def chunked(data: bytes, length: int) -> CheckedBody:
    """Return a body in aws-chunked encoding, with three bytes per chunk."""
    parts = [data[at : at + 3] for at in range(0, len(data), 3)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    request = put_request(len(framed), x_amz_decoded_content_length=str(length))
    return CheckedBody(
        request, Signed("AKID", Payload.CHUNKED_UNSIGNED_TRAILER, None, b"", "", "", ""), SlowClient(framed)
    )


def form(data: bytes) -> FormBody:
    head = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body = head + data + b"\r\n--x--\r\n"
    request = put_request(len(body), content_type="multipart/form-data; boundary=x")
    return FormBody(request, SlowClient(body), lambda: None)


OF_ANY_LENGTH: dict[str, Callable[[bytes], ByteStream]] = {
    "a file": SlowFile,
    "what was read ahead": lambda data: ReadAhead(data[:2], SlowFile(data[2:])),
    "pieces": lambda data: Pieces(one_by_one(data)),
    "one piece": lambda data: Pieces([data]),
    "a PUT from a file": lambda data: put_source(SlowFile(data), None),
    "a PUT from pieces": lambda data: put_source(one_by_one(data), None),
    "a form": form,
}
OF_KNOWN_LENGTH: dict[str, Callable[[bytes, int], ByteStream]] = {
    "a PUT from a file of known size": lambda data, size: put_source(SlowFile(data), size),
    "a PUT from pieces of known size": lambda data, size: put_source(one_by_one(data), size),
    "a body": lambda data, size: CheckedBody(put_request(size), None, SlowClient(data)),
    "a body in chunks": chunked,
    "a copy": lambda data, size: CopiedBody(one_by_one(data), size, None),
    "a copy of one piece": lambda data, size: CopiedBody(iter([data]), size, None),
}


def stream_of(name: str, data: bytes) -> ByteStream:
    if name in OF_ANY_LENGTH:
        return OF_ANY_LENGTH[name](data)
    return OF_KNOWN_LENGTH[name](data, len(data))


# --- streams ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*OF_ANY_LENGTH, *OF_KNOWN_LENGTH])
@pytest.mark.parametrize("size", SIZES)
def test_reads_return_at_most_what_was_asked_for_and_nothing_only_at_the_end(name: str, size: int) -> None:
    data = Random(size).randbytes(size)
    for step in STEPS:
        stream, found = stream_of(name, data), b""
        while piece := stream.read(step):
            assert len(piece) <= step
            found += piece
        assert found == data, step
        assert [stream.read(step), stream.read(1)] == [b"", b""], "the end stays the end"


@pytest.mark.parametrize("name", [*OF_ANY_LENGTH, *OF_KNOWN_LENGTH])
def test_whole_reads(name: str) -> None:
    data = Random(1).randbytes(100)
    stream = stream_of(name, data)
    assert [read_up_to(stream, step) for step in (0, 60, 60, 60)] == [b"", data[:60], data[60:], b""]


@pytest.mark.parametrize("name", OF_KNOWN_LENGTH)
@pytest.mark.parametrize("size", [0, 1, 99])
def test_a_source_that_ends_early_is_an_error_and_not_the_end(name: str, size: int) -> None:
    stream = OF_KNOWN_LENGTH[name](Random(1).randbytes(size), 100)
    with pytest.raises((Corrupt, InvalidInput, S3Error)):
        read_up_to(stream, 101)


@pytest.mark.parametrize("name", [name for name in OF_KNOWN_LENGTH if "file" not in name])
def test_a_source_that_goes_on_behind_its_length_is_an_error(name: str) -> None:
    with pytest.raises((Corrupt, InvalidInput, S3Error)):
        read_up_to(OF_KNOWN_LENGTH[name](bytes(101), 100), 102)


def test_files_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "FileIO", lambda fd, mode: SlowOpened(fd))
    path = tmp_path / "file"
    path.write_bytes(data := Random(1).randbytes(100))
    with CommandSource(path) as source, tree._SourceFile(path) as file:
        assert read_up_to(source, 60) == read_up_to(file, 60) == data[:60]
        assert read_up_to(source, 60) == read_up_to(file, 60) == data[60:]


class SlowOpened:
    """An opened file whose reads return one byte."""

    def __init__(self, fd: int) -> None:
        self._file = open(fd, "rb", buffering=0)  # noqa: SIM115
        self.fileno, self.close = self._file.fileno, self._file.close

    def read(self, size: int) -> bytes | None:
        return self._file.read(min(size, 1))


# --- readers ----------------------------------------------------------------------------------------------
BODIES: dict[str, Callable[[bytes], Body]] = {
    "slow": lambda data: cast(Body, SlowBody(data)),
    "a body": lambda data: CheckedBody(put_request(len(data)), None, SlowClient(data)),
    "a form": form,
    "a copy": lambda data: CopiedBody(one_by_one(data), len(data), None),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("packed_size_max", [10, 10_000])
@pytest.mark.parametrize("size", [0, 1, 100])
def test_bodies_are_stored_whole(name: str, packed_size_max: int, size: int) -> None:
    data = Random(1).randbytes(size)
    body, store = BODIES[name](data), FakeStore(packed_size_max)
    store_body(cast(Store, store), PutRequest(ObjectKey("b", "k")), body, {})
    assert store.stored == [data]
    assert body.computed is not None


def test_blocks_are_filled() -> None:
    geometry = Geometry(k=2, m=1, chunk_size=16384, stripes_per_block=4)
    data = Random(1).randbytes(geometry.block_size)
    block = LargeBlock(geometry, ObjectKey("b", "k"), 0, 100)
    stream = ReadAhead(data[:5], SlowFile(data[5:]))
    assert b"".join(block.fill(stream)) == data[:-100]
    assert not stream.at_end()
    assert read_up_to(stream, 1000) == data[-100:]
    assert stream.at_end()


def test_documents_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    read = CheckedBody.read
    monkeypatch.setattr(CheckedBody, "read", lambda self, size: read(self, min(size, 1)))
    body = b"<Tagging></Tagging>"
    call = Call(put_request(len(body)), "PutObjectTagging", "b", "k", None, None, SlowClient(body), None)
    assert read_document(call) == body
