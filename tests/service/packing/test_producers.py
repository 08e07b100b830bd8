"""Several producers on one store: everything is published, nothing twice while all live, nothing missed when one
dies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Event

import pytest
from structlog.testing import capture_logs

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import LEASE_MS_MAX, WAIT_MS_MAX
from nos_ec.core.errors import Transient
from nos_ec.core.formats.messages import decode_pack_request, partition_for_key
from nos_ec.core.ids import ObjectKey
from nos_ec.core.publishing.slots import LEASE_PREFIX, SLOTS, bucket_slot, is_member_lease, slot_lease
from nos_ec.engine.upkeep.recovery import Recovery
from nos_ec.ports.metadata import Metadata, ObjectRow
from nos_producer.assemble import producer_service
from nos_producer.service import ProducerOptions, ProducerService
from nos_producer.slots import ROUNDS_PER_TTL, HeldSlots
from nos_producer.spreading import SpreadOptions
from tests.rig.at_rest import end_log
from tests.rig.fakes.clock import FakeClock, SetClock
from tests.rig.waiting import until
from tests.service.cli.test_endpoints import Daemon, daemon
from tests.service.conftest import WAIT_S_MAX, Bench

TTL_MS = 30_000
REPUBLISH_MS = 600_000
BUCKETS = 100
PARTITIONS = 3


class Team:
    """Producers on one store and one clock, and all keys that they published, with the partition of each."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.clock: FakeClock = SetClock(system.clock.now_ms() + 60_000)
        self.published: list[ObjectKey] = []
        self.partitions: list[int] = []
        self.on_publish: Callable[[], None] = lambda: None
        self.refuse: Callable[[bytes, bytes], Transient | None] = lambda _key, _value: None
        self.on_passed: Callable[[], Mapping[int, int]] = lambda: dict.fromkeys(range(PARTITIONS), self.clock.now_ms())
        self.questions = 0
        self._made = 0

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, Transient]:
        failures = {i: why for i, (key, value) in enumerate(messages) if (why := self.refuse(key, value)) is not None}
        taken = [message for i, message in enumerate(messages) if i not in failures]
        self.published += [decode_pack_request(value).key for _, value in taken]
        self.partitions += [partition_for_key(key, PARTITIONS) for key, _ in taken]
        self.on_publish()
        return failures

    def passed_until(self) -> Mapping[int, int]:
        self.questions += 1
        return self.on_passed()

    def holders(self) -> Mapping[int, str]:
        return {}

    def close(self) -> None:
        """There is nothing to close."""

    def hire(
        self,
        *,
        shares: bool = True,
        batch_objects: int = 7,
        spread: SpreadOptions = SpreadOptions(),  # noqa: B008
        ttl_ms: int = TTL_MS,
    ) -> Member:
        self._made += 1
        return Member(self, f"producer-{self._made}" if shares else None, batch_objects, spread, ttl_ms)

    def put(self, system: System, count: int, prefix: str) -> list[ObjectKey]:
        keys = [ObjectKey(f"bucket-{number % BUCKETS}", f"{prefix}-{number}") for number in range(count)]
        system.client.store().put_many([(key, b"some bytes") for key in keys])
        return keys

    def rounds(self, members: Sequence[Member], count: int = 1) -> None:
        """Let all of them renew and rebalance, a third of a lease apart."""
        for _ in range(count):
            self.clock.advance(TTL_MS // 3)
            for member in members:
                member.service.turn()

    def drain(self, members: Sequence[Member]) -> None:
        while sum(member.service.turn() for member in members):
            pass


class Member:
    """One producer."""

    def __init__(self, team: Team, name: str | None, batch_objects: int, spread: SpreadOptions, ttl_ms: int) -> None:
        self.held = HeldSlots(team.system.metadata, team.clock, ttl_ms, name)
        options = ProducerOptions(REPUBLISH_MS, PARTITIONS, team.system.store_id, batch_objects, spread)
        self.service = ProducerService(team.system.metadata, team, team, team.clock, self.held, options)


@pytest.fixture
def team(system: System) -> Team:
    return Team(system)


def counts(members: Sequence[Member]) -> list[int]:
    slots = [member.held.slots() for member in members]
    assert sum(map(len, slots)) == len(frozenset().union(*slots)), "a slot has two producers"
    return [len(one) for one in slots]


def test_one_producer_publishes_everything(team: Team, system: System) -> None:
    keys = team.put(system, 200, "a")
    one = team.hire()
    team.drain([one])
    assert sorted(team.published, key=str) == sorted(keys, key=str)
    assert counts([one]) == [SLOTS]
    assert one.service.slots_of_others == 0


def test_new_producers_get_their_share_and_nothing_is_published_twice(team: Team, system: System) -> None:
    members, keys = [], []
    for number in range(4):
        members.append(team.hire())
        for turn in range(4):
            keys += team.put(system, 40, f"{number}-{turn}")
            team.rounds(members)
    assert counts(members) == [4, 4, 4, 4]
    for left in (3, 2, 1):
        members.pop(0).held.release()
        keys += team.put(system, 40, f"left-{left}")
        team.rounds(members, 2)
        assert sum(counts(members)) == SLOTS
        assert max(counts(members)) - min(counts(members)) <= 1
    team.drain(members)
    assert Counter(team.published) == Counter(keys)


def test_a_new_producer_has_its_share_within_a_lease(team: Team) -> None:
    first, second = team.hire(), team.hire()
    team.rounds([first], 3)
    assert counts([first, second]) == [16, 0]
    second.service.turn()
    team.rounds([first, second], 3)
    assert counts([first, second]) == [8, 8]


def test_the_slots_of_a_dead_producer_are_taken_over_and_nothing_is_missed(team: Team, system: System) -> None:
    members = [team.hire() for _ in range(3)]
    team.rounds(members, 4)
    assert sorted(counts(members)) == [5, 5, 6]
    dead, *alive = members
    keys = team.put(system, 300, "a")
    team.drain(alive)
    slots_of_dead = dead.held.slots()
    assert {bucket_slot(key.bucket) for key in set(keys) - set(team.published)} == slots_of_dead
    team.rounds(alive, 2)
    assert sum(counts(alive)) == SLOTS - len(slots_of_dead), "its leases still last"
    team.rounds(alive, 2)
    team.drain(alive)
    assert sorted(counts(alive)) == [8, 8]
    assert Counter(team.published) == Counter(keys)
    leases = system.metadata.list_leases(LEASE_PREFIX)
    assert len(leases) == SLOTS + 2, "the dead one's are gone"


def test_a_suspended_producer_publishes_nothing_from_slots_it_lost(team: Team, system: System) -> None:
    """It also reports it when it was suspended during a scan: then it cannot know what it lost."""
    sleeper, other = team.hire(), team.hire()
    team.rounds([sleeper, other], 3)
    assert counts([sleeper, other]) == [8, 8]
    team.rounds([other], 4)
    assert len(other.held.slots()) == SLOTS
    assert sleeper.held.slots() == frozenset(), "known without asking"
    team.put(system, 100, "a")
    assert sleeper.service.turn() == 0
    team.drain([other, sleeper])
    assert len(team.published) == 100
    team.rounds([other, sleeper], 3)
    assert counts([sleeper, other]) == [8, 8]


def test_a_producer_suspended_during_its_scan_publishes_nothing(team: Team, system: System) -> None:
    team.put(system, 100, "a")
    slow = team.hire()
    slow.service.turn()
    before = len(team.published)
    slow.service._metadata = _Slow(system.metadata, team.clock)  # type: ignore[assignment]
    with pytest.raises(Transient, match="expired"):
        slow.service.turn()
    assert len(team.published) == before


@pytest.mark.timed
def test_slots_are_kept_while_the_log_does_not_answer(team: Team, system: System) -> None:
    """Runs in real time: publishing takes as long as its time limit, here three times as long as leases last."""
    ttl_ms = 1000
    team.clock = SystemClock()  # type: ignore[assignment]
    keys = team.put(system, 100, "a")
    waiting, other = (team.hire(batch_objects=100, ttl_ms=ttl_ms) for _ in range(2))

    def turn_both() -> bool:
        return bool(waiting.service.turn() + other.service.turn()) or counts([waiting, other]) == [8, 8]

    until(lambda: turn_both() and counts([waiting, other]) == [8, 8], "each has its share")
    keys += team.put(system, 100, "b")

    def go_on_without() -> None:
        team.on_publish = lambda: None
        end_s = time.monotonic() + 3 * ttl_ms / 1000
        while time.monotonic() < end_s:
            other.service.turn()
            time.sleep(0.02)

    team.on_publish = go_on_without
    waiting.service.turn()
    assert counts([waiting, other]) == [8, 8]
    team.drain([waiting, other])
    assert Counter(team.published) == Counter(keys)


class _Slow:
    """A metadata store whose scans take longer than leases last."""

    def __init__(self, metadata: Metadata, clock: FakeClock) -> None:
        self._metadata = metadata
        self._clock = clock

    def due_objects(self, *arguments: object) -> list[ObjectRow]:
        found = self._metadata.due_objects(*arguments)  # type: ignore[arg-type]
        self._clock.advance(TTL_MS)
        return found


def test_spare_producers_hold_no_slots_and_step_in(team: Team, system: System) -> None:
    members = [team.hire() for _ in range(SLOTS + 3)]
    team.rounds(members, 3)
    assert sorted(counts(members)) == [0] * 3 + [1] * SLOTS
    keys = team.put(system, 100, "a")
    alive = [member for member in members if not member.held.slots()] + members[:3]
    team.rounds(alive, 5)
    team.drain(alive)
    assert sum(counts(alive)) == SLOTS
    assert Counter(team.published) == Counter(keys)


def test_a_row_that_is_committed_late_is_published(team: Team, system: System) -> None:
    """It was due before everything that has been published since, so it has the lowest due time of all."""
    members = [team.hire(), team.hire()]
    team.rounds(members, 3)
    late = team.put(system, 30, "late")
    rows = [system.client.store().head(key) for key in late]
    system.metadata.mark_published(rows, team.clock.now_ms() + WAIT_MS_MAX // 2)  # out of sight, as if not committed
    newer = team.put(system, 200, "newer")
    team.drain(members)
    assert Counter(team.published) == Counter(newer)
    system.metadata.mark_published(rows, 1)
    team.drain(members)
    assert Counter(team.published) == Counter(newer + late)


def test_each_lost_event_is_published_again_once(team: Team, system: System) -> None:
    members = [team.hire(), team.hire()]
    team.rounds(members, 3)
    keys = team.put(system, 100, "a")
    team.drain(members)
    for _ in range((REPUBLISH_MS - TTL_MS) // (TTL_MS // 3)):
        team.rounds(members)
    assert Counter(team.published) == Counter(keys)
    team.rounds(members, 4)
    team.drain(members)
    assert Counter(team.published) == Counter(keys * 2)


def test_a_run_with_once_takes_free_slots_and_reports_the_others(team: Team, system: System) -> None:
    keys = team.put(system, 200, "a")
    system.metadata.acquire_leases([slot_lease(slot) for slot in (3, 4, 9)], team.clock.now_ms(), TTL_MS)
    once = team.hire(shares=False)
    assert once.service.drain() == len(team.published)
    assert set(team.published) == {key for key in keys if bucket_slot(key.bucket) not in (3, 4, 9)}
    assert once.service.slots_of_others == 3
    once.held.release()
    assert len(system.metadata.list_leases(LEASE_PREFIX)) == 3
    team.clock.advance(TTL_MS)
    again = team.hire(shares=False)
    again.service.drain()
    assert Counter(team.published) == Counter(keys), "the three had expired"
    again.held.release()
    assert system.metadata.list_leases(LEASE_PREFIX) == []


def test_an_idle_producer_makes_few_queries(team: Team, system: System) -> None:
    """Three rounds per lease, of two calls each; between them only scans."""
    one = team.hire()
    team.rounds([one], 2)
    calls: Counter[str] = Counter()
    one.held._metadata = _Counting(system.metadata, calls)  # type: ignore[assignment]
    for _ in range(TTL_MS // 100):
        team.clock.advance(100)
        one.service.turn()
    assert calls == {"renew_leases": 3, "list_leases": 3}
    assert counts([one]) == [SLOTS]


class _Counting:
    def __init__(self, metadata: Metadata, calls: Counter[str]) -> None:
        self._metadata = metadata
        self._calls = calls

    def __getattr__(self, name: str) -> object:
        self._calls[name] += 1
        return getattr(self._metadata, name)


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_setting_the_clock_does_not_stop_the_renewal(team: Team, step_ms: int) -> None:
    one = team.hire()
    team.rounds([one])
    team.clock = one.held._clock = one.service._clock = SetClock(team.clock.now_ms() + step_ms)
    for _ in range(10):
        team.rounds([one])
        assert counts([one]) == [SLOTS]


class _SetBackClock(FakeClock):
    """Set back by `step_ms` during the first wait."""

    def __init__(self, now_ms: int, step_ms: int) -> None:
        super().__init__(now_ms)
        self._step_ms = step_ms

    def wait(self, stop: Event, wait_ms: int) -> bool:
        with self._lock:
            self._now_ms -= self._step_ms
            self._step_ms = 0
        return super().wait(stop, wait_ms)


@pytest.mark.parametrize("step_ms", [0, LEASE_MS_MAX, 365 * 86_400_000])
def test_slots_are_kept_during_a_batch_when_the_clock_is_set_back(team: Team, system: System, step_ms: int) -> None:
    """They are kept for as long as a batch may last by the new time, and no longer."""
    one = team.hire(ttl_ms=LEASE_MS_MAX // 2)
    one.held.keep()
    calls: Counter[str] = Counter()
    one.held._metadata = _Counting(system.metadata, calls)  # type: ignore[assignment]
    one.held._clock = _SetBackClock(team.clock.now_ms(), step_ms)
    with capture_logs() as logged, one.held.renewed():
        until(lambda: logged, "the renewal is given up")
    assert [entry["event"] for entry in logged] == ["leases no longer renewed: a batch has lasted too long"]
    rounds = LEASE_MS_MAX // (LEASE_MS_MAX // 2 // ROUNDS_PER_TTL)
    assert calls == {"renew_leases": rounds if step_ms else rounds - 1}


@pytest.mark.parametrize("call", ["renew_leases", "list_leases", "acquire_leases", "release_leases"])
def test_failures_of_the_metadata_store_are_survived(team: Team, system: System, call: str) -> None:
    """The effect of a failed call is not known; at worst a slot waits until its lease expires."""
    members = [team.hire(), team.hire()]
    team.rounds(members[:1], 2)
    for member in members:
        member.held._metadata = _Failing(system.metadata, call)  # type: ignore[assignment]
    keys = team.put(system, 100, "a")
    for _ in range(12):
        for member in members:
            with suppress(Transient):
                team.rounds([member])
    team.drain(members)
    assert counts(members) == [8, 8]
    assert Counter(team.published) == Counter(keys)


class _Failing:
    """Every second call of one method takes effect and then fails, three times in all."""

    def __init__(self, metadata: Metadata, name: str) -> None:
        self._metadata = metadata
        self._name = name
        self._calls = 0

    def __getattr__(self, name: str) -> object:
        method = getattr(self._metadata, name)

        def fail(*arguments: object) -> object:
            done = method(*arguments)
            self._calls += 1
            if self._calls in (1, 3, 5):
                raise Transient("the connection was lost")
            return done

        return fail if name == self._name else method


def test_recovery_fences_producers_without_counting_them_as_writers(team: Team, system: System) -> None:
    dead = team.hire()
    team.rounds([dead], 2)
    system.metadata.acquire_lease("a-writer", team.clock.now_ms(), TTL_MS)
    assert system.metadata.totals().leases == 1
    recovery = Recovery(system.metadata, system.blocks, team.clock)
    assert recovery.run_once().leases_fenced == 0
    team.clock.advance(TTL_MS)
    assert recovery.run_once().leases_fenced == 1
    assert system.metadata.list_leases("") == []
    team.rounds([dead], 2)
    assert counts([dead]) == [SLOTS], "it was not dead, and joins again"


def test_leases_are_given_up_when_a_producer_stops(bench: Bench, system: System) -> None:
    bench.put_some(system, 20)
    end_log(system)
    stop = Event()
    stop.set()
    with producer_service(system, shares=True) as service:
        service.run(stop)
        assert service.turn() == 20
        names = [lease.name for lease in system.metadata.list_leases(LEASE_PREFIX)]
        assert len(names) == SLOTS + 1
        assert sum(map(is_member_lease, names)) == 1
    assert system.metadata.list_leases("") == []


@pytest.mark.timed
def test_daemons_share_slots_and_a_killed_one_is_replaced(bench: Bench, system: System) -> None:
    """Three real ones with a stream of PUTs; the log is read to its end and counted."""
    ttl_ms = 10_000
    config = bench.config.read_text()
    bench.config.write_text(
        config.replace("lease_ttl_ms = 30000", f"lease_ttl_ms = {ttl_ms}").replace("republish_ms = 300000\n", "")
    )
    assert bench.settings().store.lease_ttl_ms == ttl_ms
    with ExitStack() as stack:
        daemons = [stack.enter_context(daemon(bench, "producer")) for _ in range(3)]
        _put_until(bench, system, lambda: _shares(daemons) == [5, 5, 6])
        until(lambda: system.metadata.totals().landed_objects == 0, "all is published")
        assert set(_published(system).values()) == {1}, "something was published twice although no producer died"
        daemons[0].process.kill()
        _put_until(bench, system, lambda: _shares(daemons[1:]) == [8, 8])
        until(lambda: system.metadata.totals().landed_objects == 0, "all is published")
        assert _published(system).keys() == bench.acknowledged.keys()
        assert all(one.health("/readyz")[0] == 200 for one in daemons[1:])
        assert [one.stop() for one in daemons[1:]] == [0, 0]
    assert system.metadata.list_leases(LEASE_PREFIX) == []
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def _shares(daemons: Sequence[Daemon]) -> list[int]:
    return sorted(int(one.metrics()[("nos_ec_producer_held_slots",)]) for one in daemons)


def _put_until(bench: Bench, system: System, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        bench.put_some(system, 20, prefix=f"at-{time.monotonic_ns()}")


def _published(system: System) -> Counter[ObjectKey]:
    """How often each object was published: all messages of the log. No offset is committed."""
    consumer = system.worker.log_consumer("reader")
    found: Counter[ObjectKey] = Counter()
    try:
        while messages := consumer.poll(1000, 300):
            found.update(decode_pack_request(message.value).key for message in messages)
    finally:
        consumer.close()
    return found
