"""Concurrent PUTs on the embedded store: each reads back what it was told, whatever happens to others of its batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, NosError, NoSpace, Transient
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.engine.landing import copy_lander
from nos_ec.engine.objects import put_queue
from nos_ec.ports.landing_store import LandingPut, LandingStore
from nos_ec.ports.metadata import ObjectRow
from tests.rig.fakes.faulty import Faults, faulty
from tests.service.conftest import CHUNK, WAIT_S_MAX, Bench

pytestmark = [pytest.mark.invariant(1), pytest.mark.landing("store")]


@pytest.fixture
def one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all that wait make one batch, also on a machine that stands still for longer than `put_queue.CALM_S`."""
    monkeypatch.setattr(copy_lander, "BATCHES_MAX", 1)
    monkeypatch.setattr(put_queue, "ALONE_MAX", 0)


def gathered(system: System, objects: Sequence[tuple[str, bytes]], faults: Faults) -> list[Future[ObjectRow]]:
    """PUT all of them in one batch, after a batch of another object alone."""
    system.metadata = faulty(system.metadata, faults)
    store, hook = system.client.store(), faults.hook

    def gather(method: str) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        if method == "reserve_landing" and faults.calls[method] == 1:
            while system.client.puts.waiting < len(objects) and time.monotonic() < deadline:
                time.sleep(0.001)
        hook(method)

    faults.hook = gather
    with ThreadPoolExecutor(len(objects) + 1) as pool:
        pool.submit(store.put, ObjectKey("b", "first"), BytesIO(b"first"))
        while not faults.calls["reserve_landing"]:
            time.sleep(0.001)
        puts = []
        for name, data in objects:
            waiting = system.client.puts.waiting
            puts.append(pool.submit(store.put, ObjectKey("b", name), BytesIO(data)))
            while system.client.puts.waiting == waiting and faults.calls["record_puts"] == 0:
                time.sleep(0.001)
    assert (system.client.puts.batch_objects.sum, system.client.puts.batch_objects.cumulative()[-1]) == (
        len(objects) + 1,
        2,
    )
    return puts


class Refusing:
    """A landing store that answers for some copies of a batch with an error, before or after it has stored them."""

    def __init__(self, landing: LandingStore, errors: Callable[[bytes], NosError | None], *, stores: bool) -> None:
        self._landing = landing
        self._errors = errors
        self._stores = stores

    def __getattr__(self, name: str) -> object:
        return getattr(self._landing, name)

    def put_many(self, copies: Sequence[LandingPut]) -> dict[LandingId, NosError]:
        failed = {one: error for one, data, _ in copies if (error := self._errors(data)) is not None}
        self._landing.put_many([copy for copy in copies if self._stores or copy[0] not in failed])
        return failed


def test_many_threads_put_read_and_overwrite(bench: Bench, system: System) -> None:
    store = system.client.store()

    def run(number: int) -> dict[ObjectKey, bytes]:
        mine: dict[ObjectKey, bytes] = {}
        for index in range(12):
            key = ObjectKey(f"b-{number % 3}", f"{number}-{index % 4}")
            mine[key] = f"{number} {index}".encode() * (index * 100)
            row = store.put(key, BytesIO(mine[key]))
            assert (row.key, row.size) == (key, len(mine[key]))
            assert store.get(key) == mine[key]
        return mine

    with ThreadPoolExecutor(16) as pool:
        for mine in pool.map(run, range(16)):
            bench.acknowledged |= mine
    assert system.client.puts.batch_objects.sum == 16 * 12
    assert system.client.puts.batch_objects.cumulative()[-1] < 16 * 12, "some were gathered"
    bench.assert_readable(system)
    bench.pack(system)
    bench.assert_readable(system)
    bench.settle(system)
    bench.assert_at_rest(system)


@pytest.mark.usefixtures("one_slot")
@pytest.mark.parametrize("stores", [True, False], ids=["stored", "not stored"])
def test_a_copy_that_fails_fails_alone(bench: Bench, system: System, stores: bool) -> None:
    errors = {b"lost": Transient("no answer"), b"taken": Conflict("the id exists")}
    system.landing = Refusing(system.landing, errors.get, stores=stores)  # type: ignore[assignment]
    puts = gathered(system, [("a", b"a"), ("lost", b"lost"), ("b", b"b"), ("taken", b"taken"), ("c", b"c")], Faults())
    assert [str(put.exception()) for put in puts] == ["None", "no answer", "None", "the id exists", "None"]
    bench.acknowledged = {ObjectKey("b", name): name.encode() for name in "abc"}
    bench.acknowledged[ObjectKey("b", "first")] = b"first"
    bench.assert_readable(system)
    bench.assert_balanced(system)


@pytest.mark.usefixtures("one_slot")
def test_an_object_that_does_not_fit_is_refused_alone(bench: Bench, system: System) -> None:
    landing = faulty(system.landing, Faults())
    landing.free_bytes = lambda: 10 * CHUNK  # type: ignore[method-assign]
    system.landing = landing
    sizes = {"a": 3 * CHUNK, "large": 8 * CHUNK, "b": 3 * CHUNK, "c": 3 * CHUNK, "d": 2 * CHUNK, "e": CHUNK}
    puts = gathered(system, [(name, bytes(size)) for name, size in sizes.items()], Faults())
    refused = [name for name, put in zip(sizes, puts, strict=True) if isinstance(put.exception(), NoSpace)]
    assert refused == ["large", "d"]
    assert [put.result().size for name, put in zip(sizes, puts, strict=True) if name not in refused] == [
        sizes[name] for name in sizes if name not in refused
    ]


@pytest.mark.usefixtures("one_slot")
def test_a_put_that_took_too_long_fails_alone(bench: Bench, system: System) -> None:
    """Its copy, which nobody else deletes any more, goes at once."""
    faults, metadata = Faults(), system.metadata
    doomed: list[LandingId] = []

    def doom(method: str) -> None:
        if method == "record_puts" and not doomed and faults.calls["record_puts"] == 2:
            found = [one.landing_id for one in metadata.due_deletions(2**62, 100) if one.object_id is None]
            doomed.extend(sorted(found)[-1:])
            metadata.doom_landing(dict.fromkeys(doomed))
            metadata.forget_landing(doomed)

    faults.hook = doom
    puts = gathered(system, [(name, name.encode()) for name in "abcde"], faults)
    errors = [error for put in puts if (error := put.exception()) is not None]
    assert len(errors) == len(doomed) == 1
    assert isinstance(errors[0], Transient)
    assert "took longer than its reservation" in str(errors[0])
    assert doomed[0] not in set(system.landing.list_ids())
    assert len([put for put in puts if put.exception() is None and put.result()]) == 4
    bench.assert_balanced(system)


@pytest.mark.usefixtures("one_slot")
def test_a_batch_whose_answer_is_lost(bench: Bench, system: System) -> None:
    """All of its PUTs raise; what was recorded stays, and nothing leaks."""
    faults = Faults()

    def lose(method: str) -> None:
        if method == "record_puts" and faults.calls[method] == 2:
            faults.after["record_puts"] = [Transient("the answer is lost")]

    faults.hook = lose
    puts = gathered(system, [(name, name.encode()) for name in "abcde"], faults)
    assert [str(put.exception()) for put in puts] == ["the answer is lost"] * 5
    bench.acknowledged = {ObjectKey("b", name): name.encode() for name in "abcde"}
    bench.acknowledged[ObjectKey("b", "first")] = b"first"
    bench.assert_readable(system)
    bench.assert_balanced(system)
