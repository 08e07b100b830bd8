"""The embedded message log: the contract, and what can be tested only on a file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.adapters.local import message_log
from nos_ec.adapters.local.files import log_file
from nos_ec.adapters.local.message_log import (
    LocalConsumer,
    LocalGroupProgress,
    LocalMessageLog,
    LocalPublisher,
    share_out,
)
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NoSpace, Transient
from nos_ec.ports.message_log import DeadLetter, GroupProgress, Message, MessageConsumer, MessagePublisher
from tests.contract.suites.message_log_contract import MessageLogContract, ends, keys_of_partitions, settle, take
from tests.rig.fakes.clock import FakeClock

PARTITIONS = 6
SESSION_MS = 30_000


class LocalHarness:
    """A log in a temporary folder, on a fake clock."""

    partitions = PARTITIONS
    session_ms = SESSION_MS

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.log = LocalMessageLog.initialise(path, PARTITIONS)
        self._open: list[LocalPublisher | LocalConsumer | LocalGroupProgress] = []

    def publisher(self) -> MessagePublisher:
        publisher = self.log.publisher(self.clock)
        self._open.append(publisher)
        return publisher

    def consumer(self, group: str, *, short_session: bool = False) -> MessageConsumer:
        consumer = self.log.consumer(
            group=group, member=f"m{len(self._open)}", clock=self.clock, session_ms=self.session_ms
        )
        self._open.append(consumer)
        return consumer

    def progress(self, group: str) -> GroupProgress:
        progress = self.log.progress(group=group, clock=self.clock)
        self._open.append(progress)
        return progress

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def dead_letters(self) -> list[DeadLetter]:
        return self.log.dead_letters()

    def pass_time(self, time_ms: int) -> None:
        self.clock.advance(time_ms)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """What a second process sees in the file."""
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()

    def close(self) -> None:
        for opened in self._open:
            opened.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path / "log.sqlite")
    yield harness
    harness.close()


class TestLocalMessageLog(MessageLogContract):
    """The suite that every adapter must pass."""


# --- clocks ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("ahead_ms", [1, LEASE_MS_MAX])
def test_a_member_that_died_while_the_clock_was_ahead_loses_its_partitions(tmp_path: Path, ahead_ms: int) -> None:
    """Its session seems to end later than any setting allows, so it counts as over, even for a live member."""
    log, clock = LocalMessageLog.initialise(tmp_path / "log.sqlite", PARTITIONS), FakeClock()
    ahead = FakeClock(clock.now_ms() + LEASE_MS_MAX - SESSION_MS + ahead_ms)
    with (
        closing(log.consumer(group="g", member="here", clock=clock, session_ms=SESSION_MS)) as here,
        closing(log.progress(group="g", clock=clock)) as progress,
        closing(log.consumer(group="g", member="dead", clock=ahead, session_ms=SESSION_MS)) as dead,
    ):
        dead.poll(1, 0)
        assert dead.assignment() == frozenset(range(PARTITIONS))
        assert progress.holders() == {}
        here.poll(1, 0)
        assert here.assignment() == frozenset(range(PARTITIONS))
        assert set(progress.holders().values()) == {"here"}


def test_a_session_of_the_longest_length_counts(tmp_path: Path) -> None:
    log, clock = LocalMessageLog.initialise(tmp_path / "log.sqlite", PARTITIONS), FakeClock()
    with (
        closing(log.consumer(group="g", member="long", clock=clock, session_ms=LEASE_MS_MAX)) as long,
        closing(log.consumer(group="g", member="new", clock=clock, session_ms=SESSION_MS)) as new,
    ):
        long.poll(1, 0)
        new.poll(1, 0)
        assert long.assignment() == frozenset(range(PARTITIONS))
        assert new.assignment() == frozenset()


# --- the file -------------------------------------------------------------------------------------
def test_initialise_is_idempotent_and_keeps_the_partition_count(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.sqlite"
    assert LocalMessageLog.initialise(path, 3).partitions == 3
    assert LocalMessageLog.initialise(path, 3).partitions == 3
    with pytest.raises(ConfigError, match=r"has 3 partitions, but the configuration says 4; set log\.partitions to 3"):
        LocalMessageLog.initialise(path, 4)
    assert sorted(p.name for p in path.parent.iterdir() if "-" not in p.name) == ["log.sqlite"]


@pytest.mark.parametrize("partitions", [0, -1, 1025])
def test_an_invalid_partition_count_is_refused(tmp_path: Path, partitions: int) -> None:
    with pytest.raises(ConfigError, match="use 1 to 1024"):
        LocalMessageLog.initialise(tmp_path / "log.sqlite", partitions)


def test_one_of_many_initialisers_wins_and_all_succeed(tmp_path: Path) -> None:
    path, counts = tmp_path / "log.sqlite", []
    threads = [
        threading.Thread(target=lambda: counts.append(LocalMessageLog.initialise(path, 5).partitions)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [5] * 8
    assert not list(tmp_path.glob(".*"))


def test_a_missing_or_foreign_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; run `nos-ec init`"):
        LocalPublisher(tmp_path / "none.sqlite", FakeClock())
    foreign = tmp_path / "foreign.sqlite"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(ConfigError, match="is not a message log"):
        LocalMessageLog(foreign)
    with pytest.raises(ConfigError, match="cannot create"):
        LocalMessageLog.initialise(foreign / "log.sqlite", 3)


def test_nothing_is_published_to_a_file_that_was_replaced(tmp_path: Path) -> None:
    path, clock = tmp_path / "log.sqlite", FakeClock()
    with closing(LocalMessageLog.initialise(path, 1).publisher(clock)) as publisher:
        publisher.publish([(b"k", b"1")])
        path.rename(tmp_path / "moved.sqlite")
        LocalMessageLog.initialise(path, 1)
        with pytest.raises(Transient, match="replaced while this process had it open"):
            publisher.publish([(b"k", b"2")])


def test_a_file_of_format_2_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its messages count as very old, so that none is published again before the group has passed it."""
    path, clock = tmp_path / "log.sqlite", FakeClock()
    log = LocalMessageLog.initialise(path, 1)
    with closing(log.publisher(clock)) as publisher:
        publisher.publish([(b"k", b"1")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE messages DROP COLUMN published_ms")
        connection.execute("PRAGMA user_version = 2")
    log = LocalMessageLog(path)
    with closing(log.progress(group="g", clock=clock)) as progress:
        assert progress.passed_until() == {0: 0}
        with closing(log.publisher(clock)) as publisher:
            publisher.publish([(b"k", b"2")])
        with closing(log.consumer(group="g", member="m", clock=clock, session_ms=SESSION_MS)) as consumer:
            got = take(consumer, 2)
            assert [message.value for message in got] == [b"1", b"2"]
            consumer.commit({0: got[1].offset})
        clock.advance(1000)
        assert progress.passed_until() == {0: clock.now_ms() - 1000}


def test_an_unknown_format_is_refused(log: LocalHarness) -> None:
    with closing(sqlite3.connect(log.path)) as connection:
        connection.execute("PRAGMA user_version = 4")
    with pytest.raises(ConfigError, match="has format version 4, not 3: use the release that wrote it"):
        LocalMessageLog(log.path)


def test_garbage_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(os.urandom(8192))
    with pytest.raises(Corrupt, match="damaged"):
        LocalMessageLog(path)


def test_damage_below_the_header_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with closing(LocalMessageLog.initialise(path, 1).publisher(FakeClock())) as publisher:
        publisher.publish([(b"k", b"v" * 500)] * 100)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(Corrupt, match="damaged"), closing(LocalPublisher(path, FakeClock())) as publisher:
        publisher.publish([(b"k", b"v")])


def test_a_locked_file_is_transient(log: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_BUSY_TIMEOUT_S", 0.05)
    publisher = log.publisher()
    with closing(sqlite3.connect(log.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Transient, match="locked by another process"):
            publisher.publish([(b"k", b"v")])
        other.execute("ROLLBACK")
    publisher.publish([(b"k", b"v")])
    assert len(take(log.consumer("g"), 1)) == 1


def test_a_full_disk_is_no_space_and_appends_nothing(log: LocalHarness) -> None:
    publisher = log.log.publisher(log.clock)
    (pages,) = publisher._connection.execute("PRAGMA page_count").fetchone()
    publisher._connection.execute(f"PRAGMA max_page_count = {pages + 10}")
    publisher.publish([(b"a", b"v")])
    with pytest.raises(NoSpace, match="no space left"):
        publisher.publish([(b"a", b"v" * 1000)] * 1000)
    publisher.publish([(b"a", b"w")])
    publisher.close()
    assert [m.value for m in take(log.consumer("g"), 2)] == [b"v", b"w"]


def test_every_commit_is_synced(log: LocalHarness) -> None:
    """2 is FULL: in WAL mode, NORMAL would lose the last commits in a power failure."""
    for opened in (
        log.log.publisher(log.clock),
        log.log.consumer(group="g", member="m", clock=log.clock, session_ms=1000),
    ):
        with closing(opened):
            assert opened._connection.execute("PRAGMA synchronous").fetchone() == (2,)
            assert opened._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- cost -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        (message_log.FETCH_SQL, (0, 0, 10)),
        (message_log.TRIM_SQL, (0, 0, 10)),
        (message_log.LAG_SQL, ("g",)),
        (message_log.GROUP_SQL, ("g",)),
    ],
)
def test_no_statement_scans_messages_or_members(log: LocalHarness, sql: str, parameters: tuple[object, ...]) -> None:
    with closing(sqlite3.connect(log.path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    assert plan
    assert not [step for step in plan if step.startswith("SCAN") and step != "SCAN l"], plan
    assert not [step for step in plan if "TEMP B-TREE" in step], plan


def test_a_large_backlog_takes_bounded_memory_and_constant_cost(log: LocalHarness) -> None:
    """Invariant 9, at 200,000 messages; the same test passes at 1,000,000 (BACKLOG_MESSAGES=1000000)."""
    count = int(os.environ.get("BACKLOG_MESSAGES", "200000"))
    publisher, consumer = log.publisher(), log.consumer("g")
    keys = keys_of_partitions(PARTITIONS)
    started = time.perf_counter()
    for first in range(0, count, 1000):
        publisher.publish([(keys[n % PARTITIONS], b"%200d" % n) for n in range(first, first + 1000)])
    publish_s = time.perf_counter() - started
    assert consumer.lag() == count

    tracemalloc.start()
    seen, slices_s = 0, []
    while seen < count:
        started = time.process_time()  # work, which a busy machine does not change, not waiting
        until = seen + count // 10
        while seen < until:
            messages = consumer.poll(1000, 0)
            assert messages, f"nothing after {seen}"
            seen += len(messages)
            consumer.commit(ends(messages))
        slices_s.append(time.process_time() - started)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"published {count / publish_s:.0f}/s, taken and committed {count / sum(slices_s):.0f}/s, {peak_bytes=}")
    assert consumer.lag() == 0
    assert peak_bytes < 8 << 20
    assert sorted(slices_s)[-3] < 8 * sorted(slices_s)[2], f"cost grows or shrinks along the backlog: {slices_s}"
    assert log.rows("SELECT count(*) FROM messages") == [(0,)]


# --- trimming -------------------------------------------------------------------------------------
def test_messages_are_removed_when_the_last_group_committed_them(log: LocalHarness) -> None:
    publisher, one, two = log.publisher(), log.consumer("g1"), log.consumer("g2")
    publisher.publish([(b"k", b"%d" % n) for n in range(10)])
    got_one, got_two = take(one, 10), take(two, 10)
    partition = got_one[0].partition
    one.commit({partition: 8})
    assert log.rows("SELECT count(*) FROM messages") == [(10,)]
    two.commit({partition: 5})
    assert log.rows("SELECT min(offset) FROM messages") == [(5,)]
    one.commit(ends(got_one))
    two.commit(ends(got_two))
    assert log.rows("SELECT count(*) FROM messages") == [(0,)]
    publisher.publish([(b"k", b"next")])
    assert [m.offset for m in take(one, 1)] == [10], "offsets are never used again"
    assert [m.offset for m in take(log.consumer("g3"), 1)] == [10]


def test_trimming_goes_in_bounded_batches(log: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_log, "TRIM_BATCH", 4)
    consumer = log.consumer("g")
    log.publisher().publish([(b"k", b"v")] * 10)
    consumer.commit(ends(take(consumer, 10)))
    assert log.rows("SELECT count(*) FROM messages") == [(6,)]
    for left in (2, 0):
        log.pass_time(SESSION_MS // 2)
        consumer.poll(1, 0)
        assert log.rows("SELECT count(*) FROM messages") == [(left,)]


# --- dead letters ---------------------------------------------------------------------------------
def test_the_newest_dead_letters_are_kept(log: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_log, "DEAD_LETTERS_MAX", 3)
    consumer = log.log.consumer(group="g", member="m", clock=log.clock, session_ms=SESSION_MS)
    with closing(consumer):
        for number in range(5):
            consumer.set_aside(Message(1, number, b"k", b"v"), f"reason {number}")
    assert [letter.reason for letter in log.log.dead_letters()] == ["reason 2", "reason 3", "reason 4"]
    assert log.log.dead_letters(1) == [DeadLetter(Message(1, 4, b"k", b"v"), "reason 4")]


# --- callers' bugs --------------------------------------------------------------------------------
def test_a_commit_past_the_end_is_refused(log: LocalHarness) -> None:
    consumer = log.consumer("g")
    log.publisher().publish([(b"k", b"v")])
    (message,) = take(consumer, 1)
    with pytest.raises(ValueError, match="ends at 1"):
        consumer.commit({message.partition: 2})
    assert consumer.lag() == 1
    with pytest.raises(ValueError, match="at least 1"):
        consumer.poll(0, 0)


@pytest.mark.parametrize(("group", "session_ms"), [("", 1000), ("g", 99)])
def test_invalid_membership_is_refused(log: LocalHarness, group: str, session_ms: int) -> None:
    with pytest.raises(ConfigError, match="give the group a name"):
        log.log.consumer(group=group, member="m", clock=log.clock, session_ms=session_ms)


# --- sharing out ----------------------------------------------------------------------------------
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8, unique=True),
    st.lists(st.none() | st.integers(1, 20), min_size=1, max_size=24),
)
def test_shares_are_even_and_move_little(members: list[int], held: list[int | None]) -> None:
    holders = dict(enumerate(held))
    shared = share_out(holders, members)
    assert shared.keys() == holders.keys()
    counts = sorted(list(shared.values()).count(member) for member in members)
    assert sum(counts) == len(held)
    assert counts[-1] - counts[0] <= 1
    stayed = sum(shared[p] == member for p, member in holders.items())
    share, extra = divmod(len(held), len(members))
    held_counts = sorted((held.count(member) for member in members), reverse=True)
    assert stayed == sum(min(n, share + (rank < extra)) for rank, n in enumerate(held_counts)), "the most there can be"


def test_without_members_no_partition_has_an_owner() -> None:
    assert share_out({0: 1, 1: None}, []) == {0: None, 1: None}


# --- any order of events --------------------------------------------------------------------------
class Group:
    """Members of one group on a fake clock, checked after every step against what each of them may believe.

    A member's belief counts while its session cannot have ended: heartbeats are written every third of a session, so
    for two thirds of one after its last poll.
    """

    def __init__(self, harness: LocalHarness) -> None:
        self.harness = harness
        self.publisher = harness.publisher()
        self.keys = keys_of_partitions(PARTITIONS)
        self.published = [0] * PARTITIONS
        self.committed = [0] * PARTITIONS
        self.members: dict[int, LocalConsumer] = {}
        self.polled_ms: dict[int, int] = {}
        self.next_offsets: dict[int, dict[int, int]] = {}

    def publish(self, partition: int) -> None:
        batch = [(self.keys[partition], b"v")] * 3
        self.publisher.publish(batch)
        self.published[partition] += len(batch)

    def poll(self, slot: int) -> None:
        if slot not in self.members:
            self._join(slot)
        member, now_ms = self.members[slot], self.harness.clock.now_ms()
        before, was_sure = member.assignment(), self._sure(slot)
        self._revoke_seen: list[frozenset[int]] = []
        self._conflict_allowed = not was_sure
        messages = member.poll(4, 0)
        self.polled_ms[slot] = now_ms
        given_up = frozenset().union(*self._revoke_seen)
        assert before - member.assignment() <= given_up, "nothing is lost without a word"
        for partition in (member.assignment() - before) | (member.assignment() & given_up):
            self.next_offsets[slot][partition] = self.committed[partition]
        for message in messages:
            assert message.offset == self.next_offsets[slot][message.partition]
            self.next_offsets[slot][message.partition] += 1
        self.check()

    def commit(self, slot: int) -> None:
        if slot in self.members:
            member = self.members[slot]
            self._commit(slot, member.assignment(), conflict_allowed=not self._sure(slot))

    def leave(self, slot: int) -> None:
        if slot in self.members:
            self.members.pop(slot).close()

    def die(self, slot: int) -> None:
        """As after kill -9: the connection is gone, and the member did not leave the group."""
        if slot in self.members:
            self.members.pop(slot)._connection.close()

    def check(self) -> None:
        owned = [p for slot in self.members if self._sure(slot) for p in self.members[slot].assignment()]
        assert len(owned) == len(set(owned)), f"two owners: {sorted(owned)}"
        rows = self.harness.rows("SELECT committed_offset FROM shares ORDER BY partition")
        assert not rows or [offset for (offset,) in rows] == self.committed

    def finish(self) -> None:
        """All members leave; the next one gets exactly what was not committed."""
        for slot in list(self.members):
            self.leave(slot)
        self.harness.clock.advance(2 * SESSION_MS)
        heir = self.harness.consumer("g")
        expected = sum(self.published) - sum(self.committed)
        assert heir.lag() == expected
        got = take(heir, expected)
        assert [sum(m.partition == p for m in got) for p in range(PARTITIONS)] == [
            end - start for end, start in zip(self.published, self.committed, strict=True)
        ]
        heir.commit(ends(got))
        assert heir.lag() == 0

    def _join(self, slot: int) -> None:
        member = self.members[slot] = self.harness.log.consumer(
            group="g", member=str(slot), clock=self.harness.clock, session_ms=SESSION_MS
        )
        self.next_offsets[slot] = {}
        self.polled_ms[slot] = self.harness.clock.now_ms()

        def revoked(partitions: frozenset[int]) -> None:
            self._revoke_seen.append(partitions)
            if slot % 2:
                self._commit(slot, partitions, conflict_allowed=self._conflict_allowed)

        member.on_revoke(revoked)

    def _commit(self, slot: int, partitions: frozenset[int], *, conflict_allowed: bool) -> None:
        offsets = {p: self.next_offsets[slot][p] for p in partitions if p in self.next_offsets[slot]}
        try:
            self.members[slot].commit(offsets)
        except Conflict:
            assert conflict_allowed, "an owner in good standing was refused"
            return
        for partition, offset in offsets.items():
            self.committed[partition] = max(self.committed[partition], offset)

    def _sure(self, slot: int) -> bool:
        return self.harness.clock.now_ms() - self.polled_ms[slot] < SESSION_MS * 2 // 3


SLOTS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("poll"), SLOTS),
    st.tuples(st.just("poll"), SLOTS),
    st.tuples(st.just("commit"), SLOTS),
    st.tuples(st.just("publish"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("leave"), SLOTS),
    st.tuples(st.just("die"), SLOTS),
    st.tuples(st.just("pass"), st.integers(1, 6)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=60))
@pytest.mark.invariant(5)
def test_in_any_order_of_events_a_partition_has_one_owner_and_nothing_is_lost(steps: list[tuple[str, int]]) -> None:
    """Joins, leaves, deaths, silences, publishing and commits in any order."""
    with tempfile.TemporaryDirectory() as folder:
        harness = LocalHarness(Path(folder) / "log.sqlite")
        try:
            group = Group(harness)
            for what, argument in steps:
                if what == "pass":
                    harness.pass_time(argument * SESSION_MS // 5)
                else:
                    getattr(group, what)(argument)
                group.check()
            group.finish()
        finally:
            harness.close()


# --- several processes ----------------------------------------------------------------------------
_MEMBER = """
    import sys
    from pathlib import Path
    from nos_ec.adapters.local.message_log import LocalConsumer
    from nos_ec.adapters.system_clock import SystemClock

    consumer = LocalConsumer(Path(sys.argv[1]), group="g", member="victim", clock=SystemClock(), session_ms=1500)
    while True:
        for message in consumer.poll(5, 50):
            print(message.partition, message.offset, flush=True)
"""


def test_partitions_of_a_killed_process_move_after_its_session(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    log = LocalMessageLog.initialise(path, 4)
    with closing(log.publisher(SystemClock())) as publisher:
        publisher.publish([(key, b"v") for key in keys_of_partitions(4)])
    command = [sys.executable, "-c", textwrap.dedent(_MEMBER), str(path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            first = [victim.stdout.readline().split() for _ in range(4)]
            victim.send_signal(signal.SIGKILL)
        finally:
            victim.kill()
    with closing(sqlite3.connect(path)) as connection:
        ((expires_ms,),) = connection.execute("SELECT expires_ms FROM members")
    clock = SystemClock()
    assert expires_ms <= clock.now_ms() + 1500
    with closing(log.consumer(group="g", member="heir", clock=clock, session_ms=SESSION_MS)) as heir:
        again = take(heir, 4)
        assert clock.now_ms() >= expires_ms
        assert heir.assignment() == frozenset(range(4))
    assert sorted((m.partition, m.offset) for m in again) == sorted((int(p), int(o)) for p, o in first)


_PUBLISHER = """
    import sys
    from pathlib import Path
    from nos_ec.adapters.local.message_log import LocalPublisher
    from nos_ec.adapters.system_clock import SystemClock

    publisher = LocalPublisher(Path(sys.argv[1]), SystemClock())
    for batch in range(10**9):
        publisher.publish([(b"k", b"%d" % (100 * batch + n)) for n in range(100)])
        print(batch, flush=True)
"""


def test_a_killed_publisher_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """Batches are whole or absent, in order, without gaps in the offsets."""
    path = tmp_path / "log.sqlite"
    log = LocalMessageLog.initialise(path, 1)
    acknowledged = -1
    command = [sys.executable, "-c", textwrap.dedent(_PUBLISHER), str(path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            for _ in range(50):
                acknowledged = int(victim.stdout.readline())
        finally:
            victim.kill()
        acknowledged = max([acknowledged, *(int(line) for line in victim.stdout.read().split())])
    with closing(log.consumer(group="g", member="m", clock=FakeClock(), session_ms=SESSION_MS)) as consumer:
        stored = consumer.lag()
        got = take(consumer, stored, messages_max=1000)
    assert stored % 100 == 0
    assert stored >= 100 * (acknowledged + 1)
    assert [(m.offset, m.value) for m in got] == [(n, b"%d" % n) for n in range(stored)]


P = ParamSpec("P")
T = TypeVar("T")


def again(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Where syncing takes 150 ms, one of several publishers gets no turn for longer than SQLite waits, and gets an
    error."""
    while True:
        try:
            return call(*args, **kwargs)
        except Transient as error:
            if "locked by another process; try again" not in str(error):
                raise


def test_threads_publish_and_consume_concurrently_and_lose_nothing(tmp_path: Path) -> None:
    """Two members that commit what they took, a third that joins and leaves, and two publishers on one connection."""
    log = LocalMessageLog.initialise(tmp_path / "log.sqlite", 4)
    sent = [(key, b"%d" % n) for n in range(300) for key in keys_of_partitions(4)]
    seen: set[tuple[bytes, bytes]] = set()
    failures: list[BaseException] = []
    deadline = time.monotonic() + 180

    def consume(name: str, turns: int) -> None:
        try:
            # Of a member that cannot say good-bye the session ends, in good time; of one that is alive it must not.
            consumer = log.consumer(group="g", member=name, clock=SystemClock(), session_ms=SESSION_MS)
            with suppress(Transient), closing(consumer):
                while (consumer.lag() or len(seen) < len(sent)) and turns and time.monotonic() < deadline:
                    messages = again(consumer.poll, 50, 20)
                    seen.update((m.key, m.value) for m in messages)
                    again(consumer.commit, ends(messages))
                    turns -= 1
        except BaseException as error:
            failures.append(error)

    with closing(log.publisher(SystemClock())) as publisher:

        def publish(half: int) -> None:
            mine = sent[half::2]
            for first in range(0, len(mine), 40):
                again(publisher.publish, mine[first : first + 40])

        threads = [threading.Thread(target=publish, args=(half,)) for half in (0, 1)]
        threads += [threading.Thread(target=consume, args=args) for args in (("a", -1), ("b", -1), ("c", 3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert seen == set(sent)


def test_settled_members_poll_without_writing(log: LocalHarness) -> None:
    """An idle group costs no synced writes except its heartbeats."""
    one, two = log.consumer("g"), log.consumer("g")
    settle([one, two], PARTITIONS)
    with closing(sqlite3.connect(log.path)) as watcher:
        before = watcher.execute("PRAGMA data_version").fetchone()
        for _ in range(20):
            one.poll(10, 0)
            two.poll(10, 0)
        assert watcher.execute("PRAGMA data_version").fetchone() == before
