"""What every message log must do. The suite uses only the port and a harness, so that it can run on a real broker.

An adapter's test module subclasses `MessageLogContract` and defines a fixture `log` that yields a fresh
`MessageLogHarness` (an empty topic) for each test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import pytest

from nos_ec.core.errors import Conflict
from nos_ec.core.formats.messages import partition_for_key
from nos_ec.ports.message_log import DeadLetter, GroupProgress, Message, MessageConsumer, MessagePublisher

POLL_MS = 50
TURNS_MAX = 1200
"""The number of polls, POLL_MS each, that a test waits for something: a minute with a real broker. What has not come by
then never will, because even a member whose client lost its brokers has rejoined by then."""


class MessageLogHarness(Protocol):
    """An empty topic with at least 4 partitions, and the clock of its sessions.

    The harness closes what it created; tests may close things earlier.
    """

    partitions: int
    session_ms: int
    """How long a member with a short session may go without a poll. Must be several seconds, because a test's members
    poll in turn."""

    def publisher(self) -> MessagePublisher:
        """Return a new publisher."""
        ...

    def consumer(self, group: str, *, short_session: bool = False) -> MessageConsumer:
        """Return a new member of a group. A new group starts with the first stored message.

        A member with a short session is removed after session_ms without a poll. Other members have long sessions,
        which survive a stall of the machine.
        """
        ...

    def progress(self, group: str) -> GroupProgress:
        """Return the progress of a group."""
        ...

    def now_ms(self) -> int:
        """The current time of the publishers' clock."""
        ...

    def dead_letters(self) -> Sequence[DeadLetter]:
        """The messages of this topic that were set aside, in the order in which that happened."""
        ...

    def pass_time(self, time_ms: int) -> None:
        """Let this much time pass for sessions. A harness with a fake clock advances it; others wait."""
        ...


def keys_of_partitions(partitions: int) -> list[bytes]:
    """Return one key for each partition, in order of partition."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < partitions:
        key = f"bucket-{number}".encode()
        found.setdefault(partition_for_key(key, partitions), key)
        number += 1
    return [found[partition] for partition in range(partitions)]


def take(consumer: MessageConsumer, count: int, messages_max: int = 100) -> list[Message]:
    """Poll until `count` messages have come. Fails if they do not."""
    messages: list[Message] = []
    for _ in range(TURNS_MAX):
        messages += consumer.poll(messages_max, POLL_MS)
        if len(messages) >= count:
            return messages
    raise AssertionError(f"{len(messages)} messages came, {count} were expected")


def settle(members: Sequence[MessageConsumer], partitions: int) -> list[list[Message]]:
    """Poll all members in turn until each partition has one owner and shares are even. Returns what each got."""
    got: list[list[Message]] = [[] for _ in members]
    for _ in range(TURNS_MAX):
        for member, messages in zip(members, got, strict=True):
            messages += member.poll(100, POLL_MS)
        shares = [member.assignment() for member in members]
        for number, share in enumerate(shares):
            assert not any(share & other for other in shares[:number]), f"a partition has two owners: {shares}"
        sizes = [len(share) for share in shares]
        if sum(sizes) == partitions and max(sizes) - min(sizes) <= 1:
            return got
    raise AssertionError(f"the group did not settle: {[sorted(m.assignment()) for m in members]}")


def ends(messages: Iterable[Message]) -> dict[int, int]:
    """The offsets to commit when all of these messages are done."""
    return {message.partition: message.offset + 1 for message in messages}


def assert_between(passed: Mapping[int, int], first_ms: int, end_ms: int, partitions: int) -> None:
    """Assert that this number of partitions have a time, each at or after `first_ms` and before `end_ms`."""
    assert len(passed) == partitions
    assert first_ms <= min(passed.values()) <= max(passed.values()) < end_ms


class MessageLogContract:
    """The suite. It checks only the order of offsets, not their values, because a broker may leave gaps."""

    # --- publishing and polling -------------------------------------------------------------------
    def test_messages_arrive_as_published_in_order_per_key(self, log: MessageLogHarness) -> None:
        keys = keys_of_partitions(log.partitions)
        sent = [(key, b"%d" % number) for number in range(50) for key in keys]
        publisher = log.publisher()
        publisher.publish(sent[:77])
        publisher.publish([])
        publisher.publish(sent[77:])
        got = take(log.consumer("g"), len(sent))
        assert sorted((m.key, m.value) for m in got) == sorted(sent)
        for partition, key in enumerate(keys):
            mine = [m for m in got if m.partition == partition]
            assert [(m.key, m.value) for m in mine] == [pair for pair in sent if pair[0] == key]
            assert [m.offset for m in mine] == sorted({m.offset for m in mine})

    def test_any_bytes_pass_unchanged(self, log: MessageLogHarness) -> None:
        sent = [(b"\xff\x00key", bytes(range(256))), (b"k", b""), (b"k", b"x" * 100_000)]
        log.publisher().publish(sent)
        assert sorted((m.key, m.value) for m in take(log.consumer("g"), 3)) == sorted(sent)

    def test_poll_returns_no_more_messages_than_asked_for(self, log: MessageLogHarness) -> None:
        log.publisher().publish([(key, b"v") for key in keys_of_partitions(log.partitions) for _ in range(10)])
        consumer = log.consumer("g")
        seen = 0
        for _ in range(TURNS_MAX):
            messages = consumer.poll(7, POLL_MS)
            assert len(messages) <= 7
            seen += len(messages)
            if seen == 10 * log.partitions:
                return
        raise AssertionError(f"{seen} messages came")

    def test_an_empty_topic_gives_an_empty_list(self, log: MessageLogHarness) -> None:
        consumer = log.consumer("g")
        settle([consumer], log.partitions)
        assert consumer.poll(10, 0) == []
        assert consumer.poll(10, POLL_MS) == []

    # --- commits ----------------------------------------------------------------------------------
    def test_the_next_owner_starts_at_the_committed_offset(self, log: MessageLogHarness) -> None:
        key = keys_of_partitions(log.partitions)[1]
        log.publisher().publish([(key, b"%d" % number) for number in range(10)])
        first = log.consumer("g")
        got = take(first, 10)
        first.commit({1: got[4].offset})
        first.close()
        assert [m.value for m in take(log.consumer("g"), 6)] == [b"4", b"5", b"6", b"7", b"8", b"9"]

    def test_uncommitted_messages_are_delivered_again(self, log: MessageLogHarness) -> None:
        log.publisher().publish([(b"k", b"1"), (b"k", b"2")])
        first = log.consumer("g")
        take(first, 2)
        first.close()
        assert [m.value for m in take(log.consumer("g"), 2)] == [b"1", b"2"]

    def test_offsets_never_move_backwards(self, log: MessageLogHarness) -> None:
        log.publisher().publish([(b"k", b"%d" % number) for number in range(5)])
        first = log.consumer("g")
        got = take(first, 5)
        partition = got[0].partition
        first.commit({partition: got[3].offset})
        first.commit({partition: got[1].offset})
        assert first.lag() == 2
        first.close()
        assert [m.value for m in take(log.consumer("g"), 2)] == [b"3", b"4"]

    def test_commit_of_a_foreign_partition_is_a_conflict_and_commits_nothing(self, log: MessageLogHarness) -> None:
        keys = keys_of_partitions(log.partitions)
        log.publisher().publish([(key, b"v") for key in keys])
        one, two = log.consumer("g"), log.consumer("g")
        settle([one, two], log.partitions)
        lag = one.lag()
        mine, foreign = min(one.assignment()), min(two.assignment())
        with pytest.raises(Conflict):
            one.commit({mine: 1, foreign: 1})
        assert one.lag() == lag

    def test_commit_before_the_first_poll_is_a_conflict(self, log: MessageLogHarness) -> None:
        log.publisher().publish([(b"k", b"v")])
        with pytest.raises(Conflict):
            log.consumer("g").commit({partition_for_key(b"k", log.partitions): 1})

    def test_groups_do_not_see_each_others_commits(self, log: MessageLogHarness) -> None:
        one, two = log.consumer("g1"), log.consumer("g2")
        settle([one], log.partitions)
        settle([two], log.partitions)
        log.publisher().publish([(b"k", b"1")])
        one.commit(ends(take(one, 1)))
        assert [m.value for m in take(two, 1)] == [b"1"]
        assert (one.lag(), two.lag()) == (0, 1)

    def test_lag_counts_what_the_whole_group_has_not_committed(self, log: MessageLogHarness) -> None:
        publisher, consumer = log.publisher(), log.consumer("g")
        settle([consumer], log.partitions)
        assert consumer.lag() == 0
        publisher.publish([(key, b"v") for key in keys_of_partitions(log.partitions) for _ in range(3)])
        assert consumer.lag() == 3 * log.partitions
        got = take(consumer, 3 * log.partitions)
        assert consumer.lag() == 3 * log.partitions, "handed out is not done"
        part = [m for m in got if m.partition == 0]
        consumer.commit(ends(part))
        assert consumer.lag() == 3 * (log.partitions - 1)
        consumer.commit(ends(got))
        assert consumer.lag() == 0

    # --- progress ---------------------------------------------------------------------------------
    def test_progress_is_the_time_of_the_oldest_waiting_message(self, log: MessageLogHarness) -> None:
        """Before the group exists, while it reads, and when it has read everything."""
        publisher, progress, keys = log.publisher(), log.progress("g"), keys_of_partitions(log.partitions)
        asked_ms = log.now_ms()
        assert min(progress.passed_until().values()) >= asked_ms, "nothing waits"
        assert progress.passed_until().keys() == set(range(log.partitions))
        times = []
        for number in range(3):
            times.append(log.now_ms())
            publisher.publish([(key, b"%d" % number) for key in keys])
            log.pass_time(1500)
        assert_between(progress.passed_until(), times[0], times[1], log.partitions)
        consumer = log.consumer("g")
        got = take(consumer, 3 * log.partitions)
        assert_between(progress.passed_until(), times[0], times[1], log.partitions)
        consumer.commit(ends(m for m in got if m.value == b"0"))
        assert_between(progress.passed_until(), times[1], times[2], log.partitions)
        consumer.commit(ends(m for m in got if m.partition == 2))
        passed = dict(progress.passed_until())
        assert passed.pop(2) >= times[2] + 1500
        assert_between(passed, times[1], times[2], log.partitions - 1)
        consumer.close()
        assert times[1] <= progress.passed_until()[0] < times[2], "offsets last when the members are gone"

    def test_each_group_makes_separate_progress(self, log: MessageLogHarness) -> None:
        consumer, other = log.consumer("g1"), log.consumer("g2")
        for member in (consumer, other):
            settle([member], log.partitions)
        log.publisher().publish([(key, b"v") for key in keys_of_partitions(log.partitions)])
        log.pass_time(100)
        consumer.commit(ends(take(consumer, log.partitions)))
        one, two = log.progress("g1"), log.progress("g2")
        asked_ms = log.now_ms()
        assert max(two.passed_until().values()) < asked_ms <= min(one.passed_until().values())
        for _ in range(2):
            one.close()
            two.close()

    def test_the_holders_of_partitions_are_members(self, log: MessageLogHarness) -> None:
        progress = log.progress("g")
        assert progress.holders() == {}, "the group has no member yet"
        one = log.consumer("g")
        settle([one], log.partitions)
        holders = progress.holders()
        assert holders.keys() == set(range(log.partitions))
        assert len(set(holders.values())) == 1
        assert all(holders.values())
        assert log.progress("another").holders() == {}
        one.close()
        assert progress.holders() == {}

    # --- dead letters -----------------------------------------------------------------------------
    def test_a_message_set_aside_is_kept_with_its_reason_and_commits_nothing(self, log: MessageLogHarness) -> None:
        log.publisher().publish([(b"k", b"\xff rubbish"), (b"", b""), (b"k", b"x" * 100_000)])
        consumer = log.consumer("g")
        got = take(consumer, 3)
        assert list(log.dead_letters()) == []
        for message in got:
            consumer.set_aside(message, f"not a pack request: \u00e9 at {message.offset}")
        assert list(log.dead_letters()) == [DeadLetter(m, f"not a pack request: \u00e9 at {m.offset}") for m in got]
        assert consumer.lag() == 3
        consumer.commit(ends(got))
        assert consumer.lag() == 0
        assert len(log.dead_letters()) == 3

    def test_a_message_of_nearly_a_megabyte_is_set_aside_whole(self, log: MessageLogHarness) -> None:
        """The largest message that a Kafka publisher sends by default, with bytes that cannot be compressed."""
        log.publisher().publish([(b"k", random.Random(1).randbytes(999_000))])
        consumer = log.consumer("g")
        (message,) = take(consumer, 1)
        consumer.set_aside(message, "too large for a pack request")
        assert list(log.dead_letters()) == [DeadLetter(message, "too large for a pack request")]

    # --- pausing ----------------------------------------------------------------------------------
    def test_paused_partitions_return_nothing_and_keep_their_position(self, log: MessageLogHarness) -> None:
        keys = keys_of_partitions(log.partitions)
        publisher, consumer = log.publisher(), log.consumer("g")
        settle([consumer], log.partitions)
        publisher.publish([(keys[0], b"0"), (keys[1], b"1")])
        take(consumer, 2)
        consumer.pause([0])
        publisher.publish([(keys[0], b"2"), (keys[1], b"3")])
        assert [m.value for m in take(consumer, 1)] == [b"3"]
        assert consumer.poll(10, 4 * POLL_MS) == []
        assert consumer.assignment() == frozenset(range(log.partitions))
        consumer.resume([0])
        assert [m.value for m in take(consumer, 1)] == [b"2"]

    def test_a_reassigned_partition_is_no_longer_paused(self, log: MessageLogHarness) -> None:
        one, two = log.consumer("g"), log.consumer("g")
        settle([one], log.partitions)
        one.pause(one.assignment())
        settle([one, two], log.partitions)
        moved = min(two.assignment())
        two.close()
        settle([one], log.partitions)
        log.publisher().publish([(keys_of_partitions(log.partitions)[moved], b"v")])
        assert [m.partition for m in take(one, 1)] == [moved]

    # --- groups -----------------------------------------------------------------------------------
    def test_members_share_the_partitions_evenly(self, log: MessageLogHarness) -> None:
        members = [log.consumer("g") for _ in range(3)]
        settle(members, log.partitions)

    def test_more_members_than_partitions_leave_some_idle(self, log: MessageLogHarness) -> None:
        members = [log.consumer("g") for _ in range(log.partitions + 1)]
        settle(members, log.partitions)

    def test_every_message_reaches_the_owner_of_its_partition(self, log: MessageLogHarness) -> None:
        members = [log.consumer("g") for _ in range(2)]
        settle(members, log.partitions)
        keys = keys_of_partitions(log.partitions)
        log.publisher().publish([(key, b"v") for key in keys for _ in range(5)])
        for member in members:
            got = take(member, 5 * len(member.assignment()))
            assert {m.partition for m in got} == member.assignment()

    def test_a_joining_member_takes_partitions_only_after_they_were_given_up(self, log: MessageLogHarness) -> None:
        one, two = log.consumer("g"), log.consumer("g")
        log.publisher().publish([(key, b"v") for key in keys_of_partitions(log.partitions)])
        got = take(one, log.partitions)
        given_up: list[frozenset[int]] = []

        def commit_what_is_done(partitions: frozenset[int]) -> None:
            assert partitions <= one.assignment(), "still owned while the callback runs"
            assert not partitions & two.assignment()
            one.commit({p: offset for p, offset in ends(got).items() if p in partitions})
            given_up.append(partitions)

        one.on_revoke(commit_what_is_done)
        one_got, two_got = settle([one, two], log.partitions)
        assert frozenset().union(*given_up) >= two.assignment()
        assert not [m for m in one_got + two_got if m.partition in two.assignment()], "committed before it moved"

    def test_a_leaving_member_hands_over_at_once(self, log: MessageLogHarness) -> None:
        one, two = log.consumer("g"), log.consumer("g")
        settle([one, two], log.partitions)
        one.close()
        settle([two], log.partitions)

    def test_a_silent_member_is_removed_from_the_group_and_cannot_commit(self, log: MessageLogHarness) -> None:
        keys = keys_of_partitions(log.partitions)
        zombie, heir = log.consumer("g", short_session=True), log.consumer("g")
        settle([zombie, heir], log.partitions)
        log.publisher().publish([(key, b"v") for key in keys])
        got = take(zombie, len(zombie.assignment()))
        lag = heir.lag()
        self._outlive(log, heir)
        settle([heir], log.partitions)
        with pytest.raises(Conflict):
            zombie.commit(ends(got))
        assert heir.lag() == lag

    def test_a_removed_member_is_notified_and_rejoins(self, log: MessageLogHarness) -> None:
        zombie, heir = log.consumer("g", short_session=True), log.consumer("g")
        settle([zombie, heir], log.partitions)
        lost, revoked = zombie.assignment(), []
        conflicts = []

        def commit_too_late(partitions: frozenset[int]) -> None:
            revoked.append(partitions)
            with pytest.raises(Conflict) as conflict:
                zombie.commit(dict.fromkeys(partitions, 0))
            conflicts.append(conflict)

        zombie.on_revoke(commit_too_late)
        self._outlive(log, heir)
        settle([heir], log.partitions)
        zombie.poll(1, POLL_MS)
        assert revoked == [lost]
        assert len(conflicts) == 1
        zombie.on_revoke(lambda _partitions: None)
        settle([zombie, heir], log.partitions)

    def test_messages_of_a_silent_member_are_delivered_again(self, log: MessageLogHarness) -> None:
        zombie, heir = log.consumer("g", short_session=True), log.consumer("g")
        settle([zombie, heir], log.partitions)
        log.publisher().publish([(key, b"v") for key in keys_of_partitions(log.partitions)])
        theirs = take(zombie, len(zombie.assignment()))
        mine = take(heir, len(heir.assignment()))
        again = self._outlive(log, heir)
        again += take(heir, len(theirs) - len(again)) if len(again) < len(theirs) else []
        assert {(m.partition, m.offset) for m in again} == {(m.partition, m.offset) for m in theirs}
        assert len(mine) + len(theirs) == log.partitions

    def test_partitions_are_given_up_even_if_the_callback_fails(self, log: MessageLogHarness) -> None:
        one, two = log.consumer("g"), log.consumer("g")
        settle([one], log.partitions)

        def fail(_partitions: frozenset[int]) -> None:
            raise RuntimeError("the engine broke")

        one.on_revoke(fail)
        two.poll(1, 0)
        with pytest.raises(RuntimeError, match="the engine broke"):
            self._turns(lambda: one.poll(1, POLL_MS))
        one.on_revoke(lambda _partitions: None)
        settle([one, two], log.partitions)

    def test_close_does_not_run_the_callback(self, log: MessageLogHarness) -> None:
        consumer = log.consumer("g")
        revoked: list[frozenset[int]] = []
        consumer.on_revoke(revoked.append)
        settle([consumer], log.partitions)
        consumer.close()
        assert revoked == []
        assert consumer.assignment() == frozenset()

    def test_close_is_idempotent(self, log: MessageLogHarness) -> None:
        publisher, consumer = log.publisher(), log.consumer("g")
        consumer.poll(1, 0)
        for _ in range(2):
            consumer.close()
            publisher.close()

    @staticmethod
    def _outlive(log: MessageLogHarness, survivor: MessageConsumer) -> list[Message]:
        """Let more than one session pass, in which only `survivor` polls. Returns what it received."""
        got: list[Message] = []
        for _ in range(10):
            log.pass_time(log.session_ms // 8)
            got += survivor.poll(100, POLL_MS)
        return got

    @staticmethod
    def _turns(turn: Callable[[], object]) -> None:
        for _ in range(TURNS_MAX):
            turn()
