"""The sources of a PUT: what they give is what is stored, or they are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO, StringIO
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.errors import InvalidInput
from nos_ec.engine.objects.streams import read_up_to
from nos_ec.library.put_source import PutSource

PIECES = st.lists(st.binary(max_size=20), max_size=8)


def source(data: Any, size: int | None = None) -> PutSource:
    return PutSource(data, size, (float(number) for number in count()).__next__)


class Dribble:
    """Returns a byte or two at a time."""

    def __init__(self, data: bytes) -> None:
        self.file = BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self.file.read(min(size, 2))


def read_all(what: PutSource, step: int) -> bytes:
    parts = []
    while part := what.read(step):
        assert len(part) <= step
        parts.append(part)
    return b"".join(parts)


@given(PIECES, st.integers(1, 30), st.booleans())
def test_all_forms_give_the_same_bytes(pieces: list[bytes], step: int, known: bool) -> None:
    data = b"".join(pieces)
    views = [memoryview(piece) for piece in pieces]
    forms: list[Any] = [BytesIO(data), Dribble(data), pieces, iter(pieces), map(bytearray, pieces), views]
    for form in forms:
        assert read_all(source(form, len(data) if known else None), step) == data


@given(PIECES, st.integers(1, 30), st.integers(1, 5))
def test_another_size_is_refused(pieces: list[bytes], step: int, by: int) -> None:
    data = b"".join(pieces)
    for form in (BytesIO(data), Dribble(data), pieces):
        with pytest.raises(InvalidInput, match=f"ended after {len(data)} bytes instead of {len(data) + by}"):
            read_all(source(form, len(data) + by), step)
    if by <= len(data):
        with pytest.raises(InvalidInput, match=f"more than {len(data) - by} bytes"):
            read_all(source(pieces, len(data) - by), step)


def test_a_file_is_not_read_beyond_its_size() -> None:
    """After a body of HTTP comes the next request, or nothing for a long time."""
    file = BytesIO(b"bodynext")
    assert read_up_to(source(file, 4), 100) == b"body"
    assert file.read() == b"next"


@pytest.mark.parametrize("bad", [StringIO("text"), ["text"], [b"a", 5], [None], iter([[1]])])
def test_what_is_not_binary_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"instead of bytes; open files as binary"):
        read_all(source(bad), 3)


@pytest.mark.parametrize("bad", ["text", 5, None])
def test_what_is_no_source_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError):
        source(bad)


def test_a_source_that_would_have_to_wait_is_no_end() -> None:
    class NotYet:
        def read(self, size: int, /) -> bytes | None:
            return None

    with pytest.raises(InvalidInput, match="no bytes at present"):
        source(NotYet()).read(5)


def test_a_stream_that_does_not_wait_is_refused_and_not_cut_short() -> None:
    """A pipe with O_NONBLOCK: None where there is nothing yet."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb", buffering=0) as stream:
        os.write(writing, b"begin")
        with pytest.raises(InvalidInput, match="no bytes at present; it must be blocking"):
            read_up_to(stream, 100)
        os.write(writing, b"rest")
        os.close(writing)
        assert read_up_to(stream, 100) == b"rest"
        assert read_up_to(stream, 100) == b""


def test_a_source_that_gives_too_much_is_refused() -> None:
    class TooMuch:
        def read(self, size: int, /) -> bytes:
            return bytes(size + 1)

    with pytest.raises(InvalidInput, match="returned 6 bytes, but 5 were requested"):
        source(TooMuch()).read(5)
    with pytest.raises(InvalidInput, match="-1 bytes"):
        source([], -1)


def test_time_in_the_source_is_measured_even_if_it_fails() -> None:
    def fails() -> Iterator[bytes]:
        yield b"ab"
        raise OSError("disk")

    what = source(fails())
    assert what.read(1) == b"a"
    assert what.seconds == 1
    with pytest.raises(OSError, match="disk"):
        read_all(what, 1)
    assert what.seconds == 3
