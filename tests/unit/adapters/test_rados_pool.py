"""How a pool handles defects of the Python binding of Ceph, without a cluster."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from nos_ec.adapters.rados.client import binding
from nos_ec.adapters.rados.client import pool as pool_module
from nos_ec.adapters.rados.client.binding import Completion, Ioctx, ListedObject, Rados
from nos_ec.adapters.rados.client.pool import (
    READ_BYTES_IN_FLIGHT_MAX,
    READS_IN_FLIGHT_MAX,
    WRITE_BYTES_IN_FLIGHT_MAX,
    WRITES_IN_FLIGHT_MAX,
    Pool,
)
from nos_ec.adapters.rados.client.steps import Step, write_full
from tests.unit.adapters.test_mysql_connection import Clock

OP_TIMEOUT_S = 1


class BindingError(Exception):
    """Like `rados.Error`."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.errno = code


class Listing:
    """An object listing of the binding: `None` is an end, or a failure that looks like one. A number lets this
    many seconds pass."""

    def __init__(self, steps: Sequence[str | float | None], clock: Clock) -> None:
        self._steps = list(steps)
        self._clock = clock

    def __iter__(self) -> Iterator[ListedObject]:
        return self

    def __next__(self) -> ListedObject:
        step = self._steps.pop(0) if self._steps else None
        if isinstance(step, float):
            self._clock.now_s += step
        if not isinstance(step, str):
            raise StopIteration
        if step == "not text":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return cast(ListedObject, SimpleNamespace(key=step))


class FakeIoctx:
    """A pool with one object, which has `size` bytes of 1; reads end when they are waited for."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.clock = Clock()
        self.steps: list[str | float | None] = []
        self.stat_code = errno.ENOENT
        self.read_code = 0
        self.under_way: list[int] = []
        self.ops_max = self.bytes_max = 0
        self.write_codes: dict[str, int] = {}
        self.written: dict[str, bytes] = {}

    def get_pool_id(self) -> int:
        return 7

    def list_objects(self) -> Listing:
        return Listing(self.steps, self.clock)

    def stat(self, key: str) -> tuple[int, object]:
        raise BindingError(self.stat_code)

    def aio_read(self, name: str, length: int, offset: int, oncomplete: object) -> Completion:
        self.under_way.append(length)
        self.ops_max = max(self.ops_max, len(self.under_way))
        self.bytes_max = max(self.bytes_max, sum(self.under_way))
        code = self.read_code or max(0, min(length, self.size - offset))

        def end() -> int:
            self.under_way.remove(length)
            # As the binding: cut to what was read, unless nothing was.
            data = None if code < 0 else b"1" * code or b"x" * length
            oncomplete(completion, data)  # type: ignore[operator]
            return 0

        completion = SimpleNamespace(wait_for_complete_and_cb=end, get_return_value=lambda: code)
        return cast(Completion, completion)

    def operate_aio_write_op(self, operation: FakeWriteOp, name: str, *, flags: int) -> Completion:
        length, code = len(operation.data), self.write_codes.get(name, 0)
        self.under_way.append(length)
        self.ops_max = max(self.ops_max, len(self.under_way))
        self.bytes_max = max(self.bytes_max, sum(self.under_way))

        def end() -> None:
            self.under_way.remove(length)
            if not code:
                self.written[name] = operation.data

        return cast(Completion, SimpleNamespace(wait_for_complete=end, get_return_value=lambda: code))


class FakeWriteOp:
    """A transaction that writes one object."""

    data = b""

    def __enter__(self) -> FakeWriteOp:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write_full(self, data: bytes) -> None:
        self.data = data


@pytest.fixture
def ioctx(monkeypatch: pytest.MonkeyPatch) -> FakeIoctx:
    monkeypatch.setattr(binding, "load", lambda: SimpleNamespace(Error=BindingError, WriteOpCtx=FakeWriteOp))
    ioctx = FakeIoctx()
    monkeypatch.setattr(pool_module, "time", ioctx.clock)
    return ioctx


@pytest.fixture
def pool(ioctx: FakeIoctx) -> Pool:
    rados = SimpleNamespace(pool_lookup=lambda name: 7)
    return Pool(cast(Rados, rados), cast(Ioctx, ioctx), "blocks", "", OP_TIMEOUT_S)


def test_a_listing_that_ends_is_whole(ioctx: FakeIoctx, pool: Pool) -> None:
    ioctx.steps = ["a", "not text", "b"]
    assert list(pool.names()) == ["a", "b"]


@pytest.mark.parametrize(
    "steps",
    [["a", None, "b"], ["a", None, "not text", "b"], [None, "a"], ["a", None, float(OP_TIMEOUT_S)]],
    ids=["continues", "continues after a foreign name", "at once", "times out again"],
)
def test_a_failed_listing_is_not_mistaken_for_a_short_one(
    ioctx: FakeIoctx, pool: Pool, steps: list[str | float | None]
) -> None:
    ioctx.steps = steps
    with pytest.raises(OSError) as failed:  # noqa: PT011
        list(pool.names())
    assert failed.value.errno == errno.ETIMEDOUT


@pytest.mark.parametrize("code", [errno.EPERM, errno.ESHUTDOWN])
def test_nor_is_a_listing_by_a_client_without_permission(ioctx: FakeIoctx, pool: Pool, code: int) -> None:
    ioctx.stat_code = code
    with pytest.raises(OSError) as failed:  # noqa: PT011
        list(pool.names())
    assert failed.value.errno == code


def test_a_read_past_the_end_gives_nothing_and_not_old_memory(ioctx: FakeIoctx, pool: Pool) -> None:
    ioctx.size = 10
    assert pool.read_many("a", [(0, 4), (8, 4), (10, 4), (99, 4), (0, 0)]) == [b"1111", b"11", b"", b"", b""]


@pytest.mark.parametrize("extent", [(-1, 4), (0, -1), (-5, 0)])
def test_an_invalid_range_is_refused_before_anything_is_read(
    ioctx: FakeIoctx, pool: Pool, extent: tuple[int, int]
) -> None:
    for act in (
        lambda: pool.read("a", *extent),
        lambda: pool.read_many("a", [extent]),
        lambda: pool.read_many("a", [(0, 4), (4, 4), extent]),
    ):
        with pytest.raises(ValueError, match=f"range of {extent[1]} bytes at {extent[0]}"):
            act()
    assert ioctx.ops_max == 0


def test_reads_in_flight_are_bounded(ioctx: FakeIoctx, pool: Pool) -> None:
    ioctx.size = 100 * READS_IN_FLIGHT_MAX
    extents = [(at, 100) for at in range(0, ioctx.size, 100)] * 3
    assert b"".join(pool.read_many("a", extents)) == b"1" * ioctx.size * 3
    assert ioctx.ops_max == READS_IN_FLIGHT_MAX
    third = READ_BYTES_IN_FLIGHT_MAX // 3
    ioctx.size = 2 * READ_BYTES_IN_FLIGHT_MAX
    lengths = [third, third, third, third, 1, ioctx.size, third]
    assert [len(part) for part in pool.read_many("a", [(0, length) for length in lengths])] == lengths
    assert ioctx.bytes_max == ioctx.size, "a range longer than the limit is read alone"


def test_nothing_is_in_flight_after_a_failed_read(ioctx: FakeIoctx, pool: Pool) -> None:
    ioctx.read_code = -errno.EIO
    with pytest.raises(OSError) as failed:  # noqa: PT011
        pool.read_many("a", [(at, 1) for at in range(10)])
    assert failed.value.errno == errno.EIO
    assert ioctx.under_way == []


@pytest.mark.parametrize("size", [0, 100, 1 << 20, WRITE_BYTES_IN_FLIGHT_MAX, WRITE_BYTES_IN_FLIGHT_MAX + 1])
def test_writes_in_flight_are_bounded(ioctx: FakeIoctx, pool: Pool, size: int) -> None:
    count = 3 if size > 1 << 20 else 3 * WRITES_IN_FLIGHT_MAX
    data = bytes(size)
    assert pool.write_many((f"{number}", [write_full(data)], size) for number in range(count)) == {}
    assert ioctx.written == {f"{number}": data for number in range(count)}
    assert ioctx.ops_max == max(1, min(WRITES_IN_FLIGHT_MAX, WRITE_BYTES_IN_FLIGHT_MAX // max(1, size)))
    assert ioctx.bytes_max <= max(WRITE_BYTES_IN_FLIGHT_MAX, size)


def test_a_write_that_fails_does_not_stop_the_others(ioctx: FakeIoctx, pool: Pool) -> None:
    ioctx.write_codes = {"3": -errno.EEXIST, "99": -errno.ETIMEDOUT}
    failed = pool.write_many((f"{number}", [write_full(b"x")], 1) for number in range(100))
    assert {name: error.errno for name, error in failed.items()} == {"3": errno.EEXIST, "99": errno.ETIMEDOUT}
    assert ioctx.written.keys() == {f"{number}" for number in range(100)} - failed.keys()
    assert not ioctx.under_way


def test_a_failure_to_begin_a_write_leaves_none_in_flight(ioctx: FakeIoctx, pool: Pool) -> None:
    def broken(_: object) -> None:
        raise TypeError("no bytes")

    writes: list[tuple[str, list[Step], int]] = [("a", [write_full(b"a")], 1), ("b", [broken], 1)]
    with pytest.raises(TypeError, match="no bytes"):
        pool.write_many(writes)
    assert (ioctx.under_way, ioctx.written) == ([], {"a": b"a"})
