"""Concurrent PUTs are gathered into batches, and each gets its own answer, whatever happens to the others."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.errors import ConfigError, Corrupt, NosError, NoSpace, PreconditionFailed, Transient
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.objects import put_queue
from nos_ec.engine.objects.location_cache import LocationCache
from nos_ec.engine.objects.put_batches import Put, PutBatches
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.ports.metadata import NewObject, ObjectRow, Objects, PutRequest
from tests.rig import waiting
from tests.rig.fakes.clock import FakeClock

WAIT_S_MAX = 20.0
"""Less than a PUT waits for others at most."""
until = partial(waiting.until, wait_s=WAIT_S_MAX)


def new_put(name: str, size: int = 1, condition: Condition | None = None) -> Put:
    request = PutRequest(ObjectKey("b", name), condition=condition)
    return NewObject(request, size, size, bytes(16), None, due_ms=0), b"x" * size


@dataclass
class FakeStores:
    """A lander and the metadata's `record_puts`. They fail for the names in `not_landing` and `not_recorded`."""

    batches_max: int = 1
    batch_objects_max: int = 100
    batch_bytes_max: int = 10_000
    not_landing: dict[str, NosError] = field(default_factory=dict)
    not_recorded: dict[str, NosError] = field(default_factory=dict)
    on_land: Callable[[list[str]], object] = lambda names: None
    on_record: Callable[[list[str]], object] = lambda names: None

    def __post_init__(self) -> None:
        self.batches: list[list[str]] = []
        """Names in each batch that was landed."""
        self.landed: dict[LandingId, str] = {}
        self.given_up: list[str] = []
        self.void: list[str] = []
        self.looked_up: list[list[str]] = []
        self.not_voided: set[str] = set()
        """Return the names of objects of which a copy remains."""
        self.unsettled = 0
        self.rows: dict[ObjectKey, ObjectRow] = {}
        self.lock = threading.Lock()

    def land(self, batch: Sequence[NewCopy]) -> _Landed:
        names = [copy.key.name for copy in batch]
        with self.lock:
            self.batches.append(names)
        self.on_land(names)
        with self.lock:
            outcomes: list[LandingId | NosError] = []
            for name in names:
                landing_id = LandingId(len(self.landed).to_bytes(16, "big"))
                self.landed[landing_id] = name
                outcomes.append(self.not_landing.get(name, landing_id))
            self.unsettled += 1
        return _Landed(self, outcomes)

    def rows_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
        self.looked_up.append(sorted(key.name for key in keys))
        with self.lock:
            return {key: self.rows[key] for key in keys if key in self.rows}

    def record_puts(self, new: Sequence[NewObject], now_ms: int, *, together: bool) -> list[ObjectRow | NosError]:
        self.on_record([one.key.name for one in new])
        with self.lock:
            return [self.not_recorded.get(one.key.name) or self._row(one) for one in new]

    def _row(self, one: NewObject) -> ObjectRow:
        version = self.rows[one.key].version + 1 if one.key in self.rows else 1
        row = ObjectRow(
            1, one.key, version, one.size, one.crc32c, one.md5, ObjectState.LANDED, one.landing_id, None, version
        )
        self.rows[one.key] = row
        return row


@dataclass
class _Landed:
    stores: FakeStores
    outcomes: list[LandingId | NosError]

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:
        with self.stores.lock:
            self.stores.void += sorted(self.stores.landed[one] for one in refused)
            return [one for one in refused if self.stores.landed[one] in self.stores.not_voided]

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        with self.stores.lock:
            self.stores.given_up += sorted(self.stores.landed[one] for one in not_recorded)
            self.stores.unsettled -= 1


class Forgotten(LocationCache):
    """Notes which keys are forgotten."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), 0, 0)
        self.names: list[str] = []

    def forget_rows(self, keys: Any) -> None:
        self.names += [key.name for key in keys]


class Bench:
    """A queue over fake stores, and threads that PUT."""

    def __init__(self) -> None:
        self.stores = FakeStores()
        self.locations = Forgotten()
        self.now_s = 0.0
        batches = PutBatches(self.stores, cast(Objects, self.stores), FakeClock(), self.locations)
        self.queue = PutQueue(batches, lambda: self.now_s)
        self.pool = ThreadPoolExecutor(80)
        self.halted: dict[str, threading.Event] = {}

    def put(self, name: str, size: int = 1) -> Future[ObjectRow]:
        return self.pool.submit(self.queue.put, *new_put(name, size))

    def halt(self, name: str) -> threading.Event:
        """Let the batch that has this object halt until the event is set."""
        self.halted[name] = threading.Event()
        self.stores.on_land = self._halt
        return self.halted[name]

    def _halt(self, names: list[str]) -> None:
        for name in names:
            if name in self.halted:
                assert self.halted[name].wait(WAIT_S_MAX)

    def put_halted(self, name: str) -> tuple[threading.Event, Future[ObjectRow]]:
        """Return a PUT whose batch is under way, and an event that lets it continue."""
        go_on = self.halt(name)
        leading = self.put(name)
        until(lambda: [name] in self.stores.batches, f"{name} leads")
        return go_on, leading

    def put_waiting(self, *names: str, size: int = 1) -> list[Future[ObjectRow]]:
        """PUTs that wait, in this order."""
        puts = []
        for name in names:
            waiting = self.queue.waiting
            puts.append(self.put(name, size))
            until(lambda waiting=waiting: self.queue.waiting == waiting + 1, f"{name} waits")  # type: ignore[misc]
        return puts

    def assert_idle(self) -> None:
        """Nothing waits, all slots are free, and the next PUT succeeds at once."""
        assert (self.queue.waiting, self.queue._waiting_bytes) == (0, 0)
        until(lambda: not self.queue._leaders and not self.queue._alone, "all leaders end")
        assert self.stores.unsettled == 0
        batches = len(self.stores.batches)
        assert self.queue.put(*new_put("next")).key.name == "next"
        assert self.stores.batches[batches:] == [["next"]]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for event in bench.halted.values():
        event.set()
    bench.pool.shutdown()


def test_a_lone_put_waits_for_nobody(bench: Bench) -> None:
    for name in ("a", "b"):
        row = bench.queue.put(*new_put(name, 5))
        assert (row.key.name, row.size) == (name, 5)
    assert bench.stores.batches == [["a"], ["b"]]
    assert bench.locations.names == ["a", "b"]
    bench.assert_idle()


def test_those_that_come_while_a_batch_is_under_way_make_the_next(bench: Bench) -> None:
    go_on, leading = bench.put_halted("first")
    names = [f"{number}" for number in range(20)]
    waiting = bench.put_waiting(*names)
    go_on.set()
    assert [put.result(WAIT_S_MAX).key.name for put in waiting] == names
    assert leading.result().key.name == "first"
    assert bench.stores.batches == [["first"], names], "oldest first"
    assert bench.queue.batch_objects.cumulative()[-1] == 2
    assert bench.queue.batch_objects.sum == 21
    assert sorted(bench.locations.names) == sorted(["first", *names])
    bench.assert_idle()


@pytest.mark.parametrize(("slots", "objects_max", "bytes_max"), [(2, 4, 99), (1, 99, 4), (3, 1, 99), (1, 4, 4)])
def test_batches_are_limited(bench: Bench, slots: int, objects_max: int, bytes_max: int) -> None:
    stores = bench.stores
    stores.batches_max, stores.batch_objects_max, stores.batch_bytes_max = slots, objects_max, bytes_max
    halted = [bench.put_halted(f"first {slot}") for slot in range(slots)]
    waiting = bench.put_waiting(*(f"{number}" for number in range(9)))
    for go_on, _ in halted:
        go_on.set()
    assert [put.result(WAIT_S_MAX).key.name for put in waiting] == [f"{number}" for number in range(9)]
    sizes = [len(batch) for batch in stores.batches[slots:]]
    assert max(sizes) <= min(objects_max, bytes_max)
    assert sum(sizes) == 9
    if slots == 1:
        assert sizes == [4, 4, 1]
    bench.assert_idle()


def test_a_large_object_is_a_batch_of_its_own(bench: Bench) -> None:
    go_on, _ = bench.put_halted("first")
    waiting = bench.put_waiting("small") + bench.put_waiting("large", size=10_001) + bench.put_waiting("another", "one")
    go_on.set()
    assert [put.result(WAIT_S_MAX).size for put in waiting] == [1, 10_001, 1, 1]
    assert bench.stores.batches[1:] == [["small"], ["large"], ["another", "one"]]


def test_empty_objects_land_as_well(bench: Bench) -> None:
    go_on, _ = bench.put_halted("first")
    waiting = bench.put_waiting("a") + bench.put_waiting("empty", size=0) + bench.put_waiting("b")
    go_on.set()
    assert [put.result(WAIT_S_MAX).size for put in waiting] == [1, 0, 1]
    assert bench.stores.batches[1:] == [["a", "empty", "b"]]
    bench.assert_idle()


def test_each_gets_its_own_answer(bench: Bench) -> None:
    stores = bench.stores
    stores.not_landing = {"too large": NoSpace("no room for too large"), "lost": Transient("lost")}
    stores.not_recorded = {"late": Transient("late")}
    go_on, _ = bench.put_halted("first")
    names = ["too large", "a", "late", "b", "lost", "c"]
    waiting = bench.put_waiting(*names)
    go_on.set()
    errors = [put.exception(WAIT_S_MAX) for put in waiting]
    assert [None if error is None else str(error) for error in errors] == [
        "no room for too large",
        None,
        "late",
        None,
        "lost",
        None,
    ]
    assert [waiting[index].result().key.name for index in (1, 3, 5)] == ["a", "b", "c"]
    assert stores.given_up == ["late"]
    bench.assert_idle()


def test_conditions_are_judged_before_anything_lands(bench: Bench) -> None:
    """That takes one look-up per batch, and none for a batch without conditions."""
    bench.queue.put(*new_put("there"))
    assert bench.stores.looked_up == []
    batches = len(bench.stores.batches)
    with pytest.raises(PreconditionFailed):
        bench.queue.put(*new_put("there", condition=ABSENT))
    assert (len(bench.stores.batches), bench.stores.looked_up) == (batches, [["there"]])
    puts = [new_put("there", condition=ABSENT), new_put("new", condition=ABSENT), new_put("other")]
    answers = bench.queue.batches.store_puts(puts)
    assert [type(answer) for answer in answers] == [PreconditionFailed, ObjectRow, ObjectRow]
    assert (bench.stores.batches[-1], bench.stores.looked_up[-1]) == (["new", "other"], ["new", "there"])
    bench.assert_idle()


def test_two_conditional_puts_of_one_key_are_not_in_one_batch(bench: Bench) -> None:
    go_on, _ = bench.put_halted("first")
    waiting = [bench.pool.submit(bench.queue.put, *new_put("lock", condition=ABSENT))]
    until(lambda: bench.queue.waiting == 1)
    waiting.append(bench.pool.submit(bench.queue.put, *new_put("lock", condition=ABSENT)))
    until(lambda: bench.queue.waiting == 2)
    go_on.set()
    errors = [put.exception(WAIT_S_MAX) for put in waiting]
    assert [type(error) for error in errors] == [type(None), PreconditionFailed]
    assert bench.stores.batches == [["first"], ["lock"]]
    bench.assert_idle()


def test_what_is_refused_is_void_before_it_is_answered(bench: Bench) -> None:
    stores = bench.stores
    stores.not_recorded = {
        "refused": PreconditionFailed("no"),
        "kept": PreconditionFailed("no"),
        "unknown": Transient("not now"),
    }
    stores.not_voided = {"kept"}
    answers = bench.queue.batches.store_puts([new_put(name) for name in ("refused", "stored", "kept", "unknown")])
    assert [type(answer) for answer in answers] == [PreconditionFailed, ObjectRow, Transient, Transient]
    assert "send it again" in str(answers[2])
    assert (sorted(stores.void), stores.given_up) == (["kept", "refused"], ["kept", "refused", "unknown"])


def test_what_landed_with_a_batch_that_failed_is_not_answered_as_refused(bench: Bench) -> None:
    """It lands once more, alone, but what landed before may be there as well."""
    stores = bench.stores

    def fail(names: list[str]) -> None:
        if len(names) > 1:
            raise Corrupt("the row of one of them")

    stores.on_record = fail
    stores.not_recorded = {"refused": PreconditionFailed("no")}
    go_on, _ = bench.put_halted("first")
    waiting = bench.put_waiting("refused", "a")
    go_on.set()
    errors = [put.exception(WAIT_S_MAX) for put in waiting]
    assert [type(error) for error in errors] == [Transient, type(None)]
    assert "send it again" in str(errors[0])
    bench.assert_idle()


@pytest.mark.parametrize("step", ["on_land", "on_record"])
def test_a_failure_of_the_whole_batch_is_each_ones_own(bench: Bench, step: str) -> None:
    def fail(names: list[str]) -> object:
        if names != ["first"]:
            raise NoSpace("full", settings=("gc.reserve_bytes",))
        return None

    go_on, leading = bench.put_halted("first")
    waiting = bench.put_waiting("a", "b", "c")
    if step == "on_record":
        bench.stores.on_record = fail
    else:
        halting = bench.stores.on_land
        bench.stores.on_land = lambda names: halting(names) or fail(names)
    go_on.set()
    errors = [put.exception(WAIT_S_MAX) for put in waiting]
    assert [(type(error), str(error)) for error in errors] == [(NoSpace, "full")] * 3
    assert all(isinstance(error, NoSpace) and error.settings == ("gc.reserve_bytes",) for error in errors)
    assert len({id(error) for error in errors}) == 3, "an error that several threads raise gets all their traces"
    assert leading.result().key.name == "first"
    assert bench.stores.given_up == (["a", "b", "c"] if step == "on_record" else [])
    assert set(bench.locations.names) >= ({"a", "b", "c"} if step == "on_record" else set())
    bench.stores.on_land = bench.stores.on_record = lambda names: None
    bench.assert_idle()


@pytest.mark.parametrize("error", [ConfigError("damaged"), ZeroDivisionError("a bug")])
def test_one_bad_object_fails_alone(bench: Bench, error: Exception) -> None:
    """An error that is not Transient means that nothing of the batch is stored."""

    def fail(names: list[str]) -> None:
        if "bad" in names:
            raise error

    bench.stores.on_record = fail
    go_on, _ = bench.put_halted("first")
    waiting = bench.put_waiting("a", "bad", "b")
    go_on.set()
    assert waiting[0].result(WAIT_S_MAX).key.name == "a"
    assert waiting[2].result(WAIT_S_MAX).key.name == "b"
    assert waiting[1].exception() is error
    bench.assert_idle()


@pytest.mark.parametrize("step", ["on_land", "on_record"])
def test_the_leader_is_interrupted(bench: Bench, step: str) -> None:
    def interrupt(names: list[str]) -> None:
        if "leader" in names:
            raise KeyboardInterrupt

    go_on, _ = bench.put_halted("first")
    waiting = bench.put_waiting("leader", "a", "b")
    setattr(bench.stores, step, interrupt)
    go_on.set()
    assert isinstance(waiting[0].exception(WAIT_S_MAX), KeyboardInterrupt)
    for put, name in zip(waiting[1:], "ab", strict=True):
        error = put.exception(WAIT_S_MAX)
        assert isinstance(error, Transient)
        assert "was interrupted; PUT it again" in str(error)
        assert error.key == ObjectKey("b", name)
    bench.assert_idle()


def test_one_that_waits_is_interrupted(bench: Bench) -> None:
    go_on, _ = bench.put_halted("first")
    (before,) = bench.put_waiting("before")

    def interrupt() -> None:
        until(lambda: bench.queue.waiting == 2, "the main thread waits")
        bench.put_waiting("after")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupting = bench.pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.queue.put(*new_put("interrupted"))
        interrupting.result(WAIT_S_MAX)
    finally:
        signal.signal(signal.SIGINT, handler)
    go_on.set()
    assert before.result(WAIT_S_MAX).key.name == "before"
    until(lambda: len(bench.stores.batches) == 2 and not bench.queue._leaders, "the others are stored")
    assert bench.stores.batches[1] == ["before", "after"]
    bench.assert_idle()


def is_signalled(frame: FrameType) -> bool:
    """Whether CPython may handle a signal before this line. It does so at calls and jumps, so never between the end of
    a `with` block and the call that releases its lock, which a tracer sees as one more line."""
    return not linecache.getline(put_queue.__file__, frame.f_lineno).lstrip().startswith("with ")


@pytest.mark.parametrize("leads", [True, False], ids=["leads", "waits"])
def test_an_interrupt_at_any_line_holds_up_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch, leads: bool) -> None:
    """Some of these lines are between two steps that belong together."""
    monkeypatch.setattr(put_queue, "CALM_S", 0.02)
    bench.stores.on_land = lambda names: time.sleep(0.001)
    for line in range(1, 400):
        interrupted = threading.Event()

        def put_interrupted(line: int = line, interrupted: threading.Event = interrupted) -> None:
            left = line

            def trace(frame: FrameType, event: str, argument: object) -> Any:
                nonlocal left
                if frame.f_code.co_filename != put_queue.__file__:
                    return None
                left -= event == "line" and is_signalled(frame)
                if left == 0:
                    left = -1
                    interrupted.set()
                    raise KeyboardInterrupt
                return trace

            sys.settrace(trace)
            try:
                bench.queue.put(*new_put("interrupted"))
            except KeyboardInterrupt:
                assert interrupted.is_set()
            except Transient:
                pass  # an earlier round was interrupted while it led
            finally:
                sys.settrace(None)

        others = [bench.put(f"{number}") for number in range(0 if leads else 2)]
        victim = bench.pool.submit(put_interrupted)
        others += [bench.put(f"{number}") for number in range(2, 5)]
        victim.result(WAIT_S_MAX)
        for put in others:
            error = put.exception(WAIT_S_MAX)
            assert error is None or "was interrupted" in str(error), f"line {line}"
        bench.assert_idle()
        if not interrupted.is_set():
            break
    assert line > (30 if leads else 20), "every line of a PUT was interrupted"


def test_a_second_interrupt_at_any_line_holds_up_no_other(bench: Bench) -> None:
    """It comes while the leader that was interrupted gives up."""

    def interrupt(names: list[str]) -> None:
        if "interrupted" in names:
            raise KeyboardInterrupt

    for line in range(1, 200):
        go_on, first = bench.put_halted(f"first {line}")
        interrupts: list[int] = []

        def put_interrupted(line: int = line, interrupts: list[int] = interrupts) -> None:
            left = line

            def trace(frame: FrameType, event: str, argument: object) -> Any:
                nonlocal left
                if frame.f_code.co_filename != put_queue.__file__:
                    return None
                if event == "line" and "interrupted" in bench.stores.batches[-1] and is_signalled(frame):
                    left -= 1
                    if left == 0:
                        interrupts.append(frame.f_lineno)
                        raise KeyboardInterrupt
                return trace

            sys.settrace(trace)
            try:
                bench.queue.put(*new_put("interrupted"))
            finally:
                sys.settrace(None)

        victim = bench.pool.submit(put_interrupted)
        until(lambda: bench.queue.waiting == 1, "it waits")
        others = bench.put_waiting("a", "b")
        bench.stores.on_land = interrupt
        go_on.set()
        first.result(WAIT_S_MAX)
        assert isinstance(victim.exception(WAIT_S_MAX), KeyboardInterrupt)
        for put in others:
            assert isinstance(put.exception(WAIT_S_MAX), Transient), interrupts
        bench.assert_idle()
        if not interrupts:
            break
    assert line > 15, "every line of giving up was interrupted"


def test_while_all_slots_hang_others_lead_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "ALONE_MAX", 2)
    bench.stores.batches_max = 2
    first, hanging = bench.put_halted("first")
    second, _ = bench.put_halted("second")
    waiting = bench.put_waiting("a")
    bench.now_s = put_queue.CALM_S + 0.001
    assert bench.queue.put(*new_put("b")).key.name == "b", "it sees that both hang"
    assert waiting[0].result(WAIT_S_MAX).key.name == "a", "it finds out"
    third, _ = bench.put_halted("third")
    fourth, _ = bench.put_halted("fourth")
    others = bench.put_waiting("c", "d")
    assert all(len(batch) == 1 for batch in bench.stores.batches)
    third.set()
    assert sorted(put.result(WAIT_S_MAX).key.name for put in others) == ["c", "d"]
    assert not hanging.done()
    for event in (first, second, fourth):
        event.set()
    until(lambda: not bench.queue._leaders and not bench.queue._alone, "all end")
    bench.assert_idle()


def test_one_whose_batch_hangs_waits_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not stored twice."""
    monkeypatch.setattr(put_queue, "CALM_S", 0.01)
    go_on, _ = bench.put_halted("first")
    second = bench.halt("second")
    waiting = bench.put_waiting("second", "a")
    go_on.set()
    until(lambda: ["second", "a"] in bench.stores.batches, "they are under way")
    bench.now_s = 1.0
    time.sleep(0.2)
    second.set()
    assert [put.result(WAIT_S_MAX).key.name for put in waiting] == ["second", "a"]
    assert bench.stores.batches == [["first"], ["second", "a"]]
    bench.assert_idle()


def test_a_slot_that_does_not_hang_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "CALM_S", 0.01)
    bench.stores.batches_max = 2
    first, _ = bench.put_halted("first")
    bench.now_s = 1.0
    second, _ = bench.put_halted("second")
    waiting = bench.put_waiting("a", "b")
    time.sleep(0.1)
    assert bench.queue.waiting == 2
    second.set()
    assert [put.result(WAIT_S_MAX).key.name for put in waiting] == ["a", "b"]
    assert bench.stores.batches[-1] == ["a", "b"]
    first.set()


def test_a_put_waits_for_its_turn_for_a_limited_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "CALM_S", 0.01)
    monkeypatch.setattr(put_queue, "WAIT_S_MAX", 0.05)
    go_on, leading = bench.put_halted("first")
    with pytest.raises(Transient, match="does not answer; check both, and try again"):
        bench.queue.put(*new_put("late"))
    assert bench.queue.waiting == 0
    go_on.set()
    leading.result(WAIT_S_MAX)
    bench.assert_idle()
    assert "late" not in [name for batch in bench.stores.batches for name in batch]


def test_bytes_are_not_read_while_too_many_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "WAITING_BYTES_MAX", 100)
    bench.queue.wait_for_room()
    go_on, _ = bench.put_halted("first")
    waiting = bench.put_waiting("a", size=100)
    bench.queue.wait_for_room()
    waiting += bench.put_waiting("b")
    entering = bench.pool.submit(bench.queue.wait_for_room)
    time.sleep(5 * put_queue.DOOR_S)
    assert not entering.done()
    monkeypatch.setattr(put_queue, "WAIT_S_MAX", 0.05)
    with pytest.raises(Transient, match="2 PUTs have waited"):
        bench.queue.wait_for_room()
    monkeypatch.undo()
    go_on.set()
    entering.exception(WAIT_S_MAX)
    for put in waiting:
        put.result(WAIT_S_MAX)
    bench.queue.wait_for_room()


CHOSEN = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 40), st.sampled_from(["", "", "", "landing", "recording"])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHOSEN, min_size=1, max_size=8), st.integers(1, 3), st.integers(1, 10), st.integers(1, 100))
def test_every_put_gets_its_own_answer(
    threads: list[list[tuple[str, int, str]]], slots: int, objects_max: int, bytes_max: int
) -> None:
    """Threads PUT some keys of their own and some that they share."""
    bench = Bench()
    stores = bench.stores
    stores.batches_max, stores.batch_objects_max, stores.batch_bytes_max = slots, objects_max, bytes_max
    stores.on_record = lambda names: time.sleep(0)
    versions: list[int] = []

    def run(number: int, chosen: list[tuple[str, int, str]]) -> None:
        for index, (letter, size, failing) in enumerate(chosen):
            name = f"{letter}-{number}-{index}" if failing or letter > "b" else letter
            if failing == "landing" and size:
                stores.not_landing[name] = NoSpace(f"{name} does not land")
            elif failing:
                stores.not_recorded[name] = Transient(f"{name} is not recorded")
            acknowledged = max((row.version for row in [stores.rows.get(ObjectKey("b", name))] if row), default=0)
            if failing:
                said = f"{name} {'does not land' if failing == 'landing' and size else 'is not recorded'}"
                with pytest.raises(Transient, match=said):
                    bench.queue.put(*new_put(name, size))
                continue
            row = bench.queue.put(*new_put(name, size))
            assert (row.key.name, row.size, row.crc32c) == (name, size, size)
            assert row.version > acknowledged
            versions.append(row.version)

    try:
        for running in [bench.pool.submit(run, number, chosen) for number, chosen in enumerate(threads)]:
            running.result(WAIT_S_MAX)
        stored = sum(not failing for chosen in threads for _, _, failing in chosen)
        assert len(versions) == stored
        assert sum(row.version for row in stores.rows.values()) >= len(stores.rows)
        assert all(len(batch) <= objects_max for batch in stores.batches)
        assert sum(map(len, stores.batches)) == sum(len(chosen) for chosen in threads)
        bench.assert_idle()
    finally:
        bench.pool.shutdown()
