"""PUTs and deletes with conditions, through the library, with small and large objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from time import sleep

import pytest

from nos_ec import InvalidInput, NotFound, ObjectInfo, ObjectStore, PreconditionFailed, Transient, open_store
from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState, ObjectState
from tests.service.conftest import STRIPE, Bench
from tests.service.dump.refused_put import meanwhile

SIZES = [0, 100, 20 * STRIPE]
MD5 = bytes(16)


@pytest.fixture
def store(bench: Bench) -> Iterator[ObjectStore]:
    with open_store(bench.config) as store:
        yield store


@pytest.mark.parametrize("size", SIZES)
def test_a_put_if_absent_and_a_put_if_match(store: ObjectStore, size: int) -> None:
    with pytest.raises(NotFound):
        store.put("b/n", bytes(size), if_match=MD5)
    first = store.put("b/n", bytes(size), if_absent=True)
    with pytest.raises(PreconditionFailed, match="exists already"):
        store.put("b/n", b"1" * (size + 1), if_absent=True)
    with pytest.raises(PreconditionFailed, match="instead of"):
        store.put("b/n", BytesIO(b"1" * (size + 1)), if_match=MD5)
    assert store.head("b/n") == first
    second = store.put("b/n", b"2" * size, if_match=first.md5, attributes={"a": "b"})
    assert store.get("b/n") == b"2" * size
    with pytest.raises(PreconditionFailed):
        store.delete("b/n", if_match=MD5)
    assert store.delete("b/n", if_match=second.md5) == second
    with pytest.raises(NotFound):
        store.delete("b/n", if_match=second.md5)


def test_conditions_that_make_no_sense_are_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        store.put("b/n", b"", if_absent=True, if_match=MD5)
    with pytest.raises(InvalidInput, match="16"):
        store.put("b/n", b"", if_match=MD5.hex().encode())
    assert list(store.list("b")) == []


@pytest.mark.parametrize("landing", ["store", pytest.param("log", marks=pytest.mark.landing("log"))])
def test_of_many_writers_of_one_key_one_succeeds(bench: Bench, system: System, landing: str) -> None:
    store = ObjectStore(system)

    def put(number: int) -> ObjectInfo | None:
        try:
            return store.put("b/n", b"%d" % number, if_absent=True)
        except PreconditionFailed:
            return None

    with ThreadPoolExecutor(64) as pool:
        made = [info for info in pool.map(put, range(64)) if info is not None]
    assert made == [store.head("b/n")]
    bench.acknowledged = {ObjectKey("b", "n"): store.get("b/n")}
    bench.pack(system)
    bench.assert_readable(system)
    bench.settle(system)
    bench.assert_at_rest(system)


@pytest.mark.landing("store")
def test_a_refused_put_leaves_no_copy_behind(bench: Bench, system: System) -> None:
    """It leaves no reservation behind either: if a PUT loses a race, its reservation ends with the refusal."""
    store = ObjectStore(system)
    with bench.open() as other:
        first = meanwhile(system, lambda: ObjectStore(other).put("b/n", b"first"))
        with first, pytest.raises(PreconditionFailed):
            store.put("b/n", b"late", if_absent=True)
    for number in range(3):
        with pytest.raises(PreconditionFailed):
            store.put("b/n", b"%d" % number, if_absent=True)
    current = store.head("b/n")
    assert list(system.landing.list_ids()) == [system.metadata.get(ObjectKey("b", "n")).landing_id]
    system.worker.housekeeping().run_once()
    assert system.metadata.totals().landing_deletions == 0
    assert store.head("b/n") == current


class Interrupted(BytesIO):
    """The bytes of a PUT, with something that happens while they are read."""

    def __init__(self, data: bytes, meanwhile: Callable[[], object]) -> None:
        super().__init__(data)
        self._meanwhile: Callable[[], object] | None = meanwhile

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return data


def test_a_large_put_that_loses_fails_and_leaves_dead_blocks(bench: Bench, system: System) -> None:
    store = ObjectStore(system)
    with pytest.raises(PreconditionFailed):
        store.put("b/n", Interrupted(bytes(SIZES[-1]), lambda: store.put("b/n", b"new")), if_absent=True)
    new = store.head("b/n")
    again = Interrupted(bytes(SIZES[-1]), lambda: store.put("b/n", b"new"))
    with pytest.raises(Transient, match="PUT it again"):  # what was stored meanwhile has that MD5, too
        store.put("b/n", again, if_match=new.md5)
    with pytest.raises(NotFound):
        store.put("b/n", Interrupted(bytes(SIZES[-1]), lambda: store.delete("b/n")), if_match=new.md5)
    bench.acknowledged = {}
    blocks = system.metadata.list_blocks(None, 99)
    assert blocks
    assert all(block.live_bytes == 0 < block.dead_bytes for block in blocks)
    assert {block.state for block in blocks} == {BlockState.CONDEMNED}
    assert len(list(system.blocks.list_blocks())) == len(blocks) - 3, "the last one of each is deleted at once"
    bench.assert_balanced(system)


@pytest.mark.parametrize("condition", ["if_match", "if_absent", None])
def test_a_large_put_that_a_conditional_one_overtakes_fails(
    bench: Bench, system: System, condition: str | None
) -> None:
    """No order of the two explains that both succeed: the condition would not have held after the large PUT, and what
    is stored is not the large object."""
    store = ObjectStore(system)
    old = store.put("b/n", b"old")

    def overtake() -> None:
        if condition == "if_absent":
            store.delete("b/n")
        sleep(0.002)  # the large PUT has a number of this millisecond
        if_match = old.md5 if condition == "if_match" else None
        store.put("b/n", b"new", if_absent=condition == "if_absent", if_match=if_match)

    large = Interrupted(bytes(SIZES[-1]), overtake)
    if condition is None:
        store.put("b/n", large)
    else:
        with pytest.raises(Transient, match="PUT it again"):
            store.put("b/n", large)
    assert store.get("b/n") == b"new"
    state = BlockState.SEALED if condition is None else BlockState.CONDEMNED
    assert {block.state for block in system.metadata.list_blocks(None, 99)} == {state}
    bench.acknowledged = {ObjectKey("b", "n"): b"new"}
    bench.assert_readable(system)
    bench.assert_balanced(system)


def test_a_large_put_is_refused_before_it_is_written(system: System) -> None:
    store = ObjectStore(system)
    store.put("b/n", b"old")
    source = BytesIO(bytes(SIZES[-1]))
    with pytest.raises(PreconditionFailed):
        store.put("b/n", source, if_absent=True)
    assert source.tell() < SIZES[-1]
    assert system.metadata.list_blocks(None, 99) == []
    assert store.head("b/n").state is ObjectState.LANDED
