"""The embedded message log: Kafka's semantics on one SQLite file, for several processes and threads.

Rebalancing is cooperative. The member that changes the membership of a group writes a *target* for every partition:
a member that joins or leaves, or one that notices that another has missed its heartbeats. If a partition has no owner,
its target takes it at its next poll. If another member owns it, that member gives it up first, in its own poll and
after its `on_revoke` callback has run. So a partition has at most one owner at any moment, and every commit checks the
owner in its own transaction.

A message is removed once every group has committed past it. Each commit and each heartbeat removes some of them. The
file does not shrink, but its free pages are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from nos_ec.adapters.local.files.log_file import (
    create_log_file,
    open_log_file,
    partition_count,
    transaction,
    translated_errors,
)
from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import ConfigError, Conflict, Transient
from nos_ec.core.formats.messages import partition_for_key
from nos_ec.ports.clock import Clock
from nos_ec.ports.message_log import DeadLetter, Message

TRIM_BATCH = 10_000
"""The maximum number of messages that one commit removes per partition, so that no commit waits long for another
group's backlog."""

DEAD_LETTERS_MAX = 10_000
"""The maximum number of dead letters. The oldest are dropped first: a flood of bad messages must not fill the disk."""

SESSION_MS_MIN = 100
"""A shorter session could end between two polls of a healthy member."""

_POLL_STEP_MS = 20
"""The interval at which a waiting poll looks for messages."""

FETCH_SQL = """
    SELECT offset, key, value FROM messages WHERE partition = ? AND offset >= ? ORDER BY offset LIMIT ?
"""
LAG_SQL = """
    SELECT coalesce(sum(l.next_offset - coalesce(s.committed_offset, l.trimmed_offset)), 0)
    FROM log l LEFT JOIN shares s ON s.group_name = ? AND s.partition = l.partition
"""
OLDEST_WAITING_SQL = """
    SELECT l.partition, (
        SELECT published_ms FROM messages m
        WHERE m.partition = l.partition AND m.offset >= coalesce(s.committed_offset, l.trimmed_offset)
        ORDER BY m.offset LIMIT 1
    )
    FROM log l LEFT JOIN shares s ON s.group_name = ? AND s.partition = l.partition
"""
HOLDERS_SQL = """
    SELECT s.partition, m.name FROM shares s JOIN members m ON m.member_id = s.owner
    WHERE s.group_name = ? AND m.expires_ms > ? AND m.expires_ms <= ?
"""
TRIM_SQL = "DELETE FROM messages WHERE partition = ? AND offset >= ? AND offset < ?"
GROUP_SQL = """
    SELECT generation, (SELECT min(expires_ms) FROM members WHERE group_name = groups.name)
    FROM groups WHERE name = ?
"""
EXPIRED_SQL = "DELETE FROM members WHERE group_name = ? AND (expires_ms <= ? OR expires_ms > ?)"


class LocalMessageLog:
    """A message log in one file: one topic, with the number of partitions that it was created with."""

    def __init__(self, path: Path) -> None:
        """Open the log. Raises ConfigError when there is no log at `path`, Corrupt, Transient."""
        self.path = path
        with closing(open_log_file(path)) as connection, translated_errors(path):
            self.partitions = partition_count(connection)

    @classmethod
    def initialise(cls, path: Path, partitions: int) -> LocalMessageLog:
        """Create the log, or open it when it exists. Durable on return; safe to call from several processes.

        Raises ConfigError when the log exists with another number of partitions, because a bucket's events would move
        to another partition and lose their order.
        """
        create_log_file(path, partitions)
        log = cls(path)
        if log.partitions != partitions:
            raise ConfigError(
                f"message log: {path} has {log.partitions} partitions, but the configuration says {partitions};"
                f" set log.partitions to {log.partitions}",
                settings=("log.partitions",),
            )
        return log

    def publisher(self, clock: Clock) -> LocalPublisher:
        """Return a publisher with its own connection."""
        return LocalPublisher(self.path, clock)

    def progress(self, *, group: str, clock: Clock) -> LocalGroupProgress:
        """Return the progress of `group`."""
        return LocalGroupProgress(self.path, group, clock)

    def consumer(self, *, group: str, member: str, clock: Clock, session_ms: int) -> LocalConsumer:
        """Return a member of `group`, which joins at its first poll."""
        return LocalConsumer(self.path, group=group, member=member, clock=clock, session_ms=session_ms)

    def dead_letters(self, count_max: int = DEAD_LETTERS_MAX) -> list[DeadLetter]:
        """Return the newest `count_max` messages that were set aside, in order of arrival. Raises Corrupt,
        Transient."""
        with closing(open_log_file(self.path)) as connection, translated_errors(self.path):
            rows = connection.execute(
                "SELECT partition, offset, key, value, reason FROM dead_letters ORDER BY number DESC LIMIT ?",
                (count_max,),
            ).fetchall()
        return [DeadLetter(Message(*message), reason) for *message, reason in reversed(rows)]


class LocalPublisher:
    """A `MessagePublisher` (see the port for the contract). Safe to call from several threads; a batch is one
    transaction, all or nothing."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Open the log. Raises ConfigError when there is no log at `path`, Corrupt, Transient."""
        self._path = path
        self._clock = clock
        self._lock = Lock()
        self._connection = open_log_file(path)
        with translated_errors(path):
            self._partitions = partition_count(self._connection)

    def publish(self, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, Transient]:
        """See MessagePublisher.publish. Appends all of the messages or none."""
        if not messages:
            return {}
        by_partition: dict[int, list[tuple[bytes, bytes]]] = {}
        partitions: dict[bytes, int] = {}
        for key, value in messages:
            partition = partitions.get(key)
            if partition is None:
                partition = partitions[key] = partition_for_key(key, self._partitions)
            by_partition.setdefault(partition, []).append((key, value))
        with self._lock, transaction(self._connection, self._path):
            published_ms = self._clock.now_ms()
            for partition, batch in by_partition.items():
                self._append(partition, batch, published_ms)
        return {}

    def _append(self, partition: int, batch: Sequence[tuple[bytes, bytes]], published_ms: int) -> None:
        execute = self._connection.execute
        (first,) = execute("SELECT next_offset FROM log WHERE partition = ?", (partition,)).fetchone()
        self._connection.executemany(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
            ((partition, offset, key, value, published_ms) for offset, (key, value) in enumerate(batch, first)),
        )
        execute("UPDATE log SET next_offset = ? WHERE partition = ?", (first + len(batch), partition))

    def close(self) -> None:
        """Release the file. Idempotent."""
        with self._lock:
            self._connection.close()


class LocalGroupProgress:
    """A `GroupProgress` (see the port for the contract)."""

    def __init__(self, path: Path, group: str, clock: Clock) -> None:
        """Open the log. Raises ConfigError when there is no log at `path`, Corrupt, Transient."""
        self._path = path
        self._group = group
        self._clock = clock
        self._connection = open_log_file(path)

    def passed_until(self) -> Mapping[int, int]:
        """See GroupProgress.passed_until. Takes one statement, which looks up one message per partition."""
        now_ms = self._clock.now_ms()
        with translated_errors(self._path):
            found = self._connection.execute(OLDEST_WAITING_SQL, (self._group,)).fetchall()
        return {partition: now_ms if oldest_ms is None else oldest_ms for partition, oldest_ms in found}

    def holders(self) -> Mapping[int, str]:
        """See GroupProgress.holders."""
        with translated_errors(self._path):
            now_ms = self._clock.now_ms()
            found = self._connection.execute(HOLDERS_SQL, (self._group, now_ms, now_ms + LEASE_MS_MAX)).fetchall()
            return dict(found)

    def close(self) -> None:
        """Release the file. Idempotent."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Membership:
    """The result of one synchronisation. `committed` maps the owned partitions to their starting offsets."""

    was_removed: bool
    committed: Mapping[int, int]
    to_give_up: frozenset[int]


class LocalConsumer:
    """A `MessageConsumer` (see the port for the contract).

    `poll` writes a heartbeat at most once per third of session_ms, so that an idle member costs three synced writes per
    session. A member that does not poll for session_ms is removed from the group by the next member that polls. A
    removed member notices this at its next poll, runs its `on_revoke` callback, and joins again as a new member.
    """

    def __init__(self, path: Path, *, group: str, member: str, clock: Clock, session_ms: int) -> None:
        """Open the log. `member` is a name for operators and need not be unique. Raises ConfigError, Corrupt,
        Transient."""
        if not group or session_ms < SESSION_MS_MIN:
            raise ConfigError(
                f"message log: group {group!r} with session_ms {session_ms} is refused; give the group a name, and the"
                f" session at least {SESSION_MS_MIN} ms"
            )
        self._path = path
        self._group = group
        self._name = member
        self._clock = clock
        self._session_ms = session_ms
        self._heartbeat_every_ms = session_ms // 3
        self._stop = Event()
        self._revoked: Callable[[frozenset[int]], None] = _ignore
        self._member_id: int | None = None
        self._generation = -1
        self._heartbeat_ms = 0
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()
        self._turn = 0
        self._connection = open_log_file(path)

    # --- the port ---------------------------------------------------------------------------------
    def poll(self, messages_max: int, wait_ms: int) -> list[Message]:
        """See MessageConsumer.poll."""
        if messages_max < 1:
            raise ValueError(f"poll for {messages_max} messages; poll for at least 1")
        left_ms = wait_ms
        while True:
            self._take_part()
            with translated_errors(self._path):
                messages = self._fetch(messages_max)
            if messages or left_ms <= 0:
                return messages
            step_ms = min(left_ms, _POLL_STEP_MS)
            self._clock.wait(self._stop, step_ms)
            left_ms -= step_ms

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See MessageConsumer.commit. Raises ValueError for an offset past the end of its partition, which is a bug in
        the caller."""
        if not offsets:
            return
        with transaction(self._connection, self._path):
            ends = dict(
                self._connection.execute(
                    "SELECT partition, next_offset FROM shares JOIN log USING (partition)"
                    " WHERE group_name = ? AND owner = ?",
                    (self._group, self._member_id),
                )
            )
            lost = sorted(offsets.keys() - ends.keys())
            if lost:
                raise Conflict(f"message log: member {self._name!r} no longer owns partitions {lost}")
            for partition, offset in offsets.items():
                if offset > ends[partition]:
                    raise ValueError(f"commit of offset {offset}, but partition {partition} ends at {ends[partition]}")
            self._connection.executemany(
                "UPDATE shares SET committed_offset = max(committed_offset, ?) WHERE group_name = ? AND partition = ?",
                [(offset, self._group, partition) for partition, offset in offsets.items()],
            )
            self._trim(offsets)

    def set_aside(self, message: Message, reason: str) -> None:
        """See MessageConsumer.set_aside. The newest DEAD_LETTERS_MAX are kept."""
        with transaction(self._connection, self._path):
            number = self._connection.execute(
                "INSERT INTO dead_letters (partition, offset, key, value, reason) VALUES (?, ?, ?, ?, ?)",
                (message.partition, message.offset, message.key, message.value, reason),
            ).lastrowid
            assert number is not None
            self._connection.execute("DELETE FROM dead_letters WHERE number <= ?", (number - DEAD_LETTERS_MAX,))

    def assignment(self) -> frozenset[int]:
        """See MessageConsumer.assignment."""
        return frozenset(self._positions)

    def pause(self, partitions: Iterable[int]) -> None:
        """See MessageConsumer.pause. A partition that was given up is no longer paused when it comes back."""
        self._paused.update(self._positions.keys() & set(partitions))

    def resume(self, partitions: Iterable[int]) -> None:
        """See MessageConsumer.resume."""
        self._paused.difference_update(partitions)

    def on_revoke(self, callback: Callable[[frozenset[int]], None]) -> None:
        """See MessageConsumer.on_revoke. The partitions are given up even if the callback raises."""
        self._revoked = callback

    def lag(self) -> int:
        """See MessageConsumer.lag. Reads one row per partition. Before the group exists, counts all stored messages."""
        with translated_errors(self._path):
            return int(self._connection.execute(LAG_SQL, (self._group,)).fetchone()[0])

    def close(self) -> None:
        """See MessageConsumer.close."""
        self._stop.set()
        try:
            if self._member_id is not None:
                with transaction(self._connection, self._path):
                    self._connection.execute("DELETE FROM members WHERE member_id = ?", (self._member_id,))
                    self._share_out()
        finally:
            self._member_id = None
            self._positions.clear()
            self._connection.close()

    # --- messages ---------------------------------------------------------------------------------
    def _fetch(self, messages_max: int) -> list[Message]:
        """Return an even share of messages from each partition that has some. The partition to start with rotates."""
        if not self._positions.keys() - self._paused:
            return []
        ready = [
            partition
            for partition, end in self._connection.execute("SELECT partition, next_offset FROM log")
            if partition not in self._paused and self._positions.get(partition, end) < end
        ]
        self._turn += 1
        start = self._turn % len(ready) if ready else 0
        messages: list[Message] = []
        for done, partition in enumerate(ready[start:] + ready[:start]):
            limit = -(-(messages_max - len(messages)) // (len(ready) - done))
            if limit:
                messages += self._fetch_partition(partition, limit)
        return messages

    def _fetch_partition(self, partition: int, limit: int) -> list[Message]:
        rows = self._connection.execute(FETCH_SQL, (partition, self._positions[partition], limit))
        messages = [Message(partition, offset, key, value) for offset, key, value in rows]
        if messages:
            self._positions[partition] = messages[-1].offset + 1
        return messages

    def _trim(self, partitions: Iterable[int]) -> None:
        """Remove messages that every group has committed, up to TRIM_BATCH per partition. Must run in a transaction."""
        for partition in partitions:
            trimmed, lowest = self._connection.execute(
                "SELECT trimmed_offset, (SELECT min(committed_offset) FROM shares WHERE partition = log.partition)"
                " FROM log WHERE partition = ?",
                (partition,),
            ).fetchone()
            until = min(lowest, trimmed + TRIM_BATCH)
            if until > trimmed:
                self._connection.execute(TRIM_SQL, (partition, trimmed, until))
                self._connection.execute("UPDATE log SET trimmed_offset = ? WHERE partition = ?", (until, partition))

    # --- membership -------------------------------------------------------------------------------
    def _take_part(self) -> None:
        """Keep the membership alive, and follow the changes of the group that concern this member."""
        while self._must_synchronise():
            if self._member_id is None:
                self._join()
            found = self._synchronise()
            if found.was_removed:
                self._handle_removal()
                continue
            for partition, committed in found.committed.items():
                self._positions.setdefault(partition, committed)
            if found.to_give_up:
                self._give_up(found.to_give_up)

    def _must_synchronise(self) -> bool:
        now_ms = self._clock.now_ms()
        if self._member_id is None or not 0 <= now_ms - self._heartbeat_ms < self._heartbeat_every_ms:
            return True
        with translated_errors(self._path):
            row = self._connection.execute(GROUP_SQL, (self._group,)).fetchone()
        if row is None:
            return True
        generation, expires_ms = row
        return bool(generation != self._generation or expires_ms is None or expires_ms <= now_ms)

    def _join(self) -> None:
        execute = self._connection.execute
        with transaction(self._connection, self._path):
            execute("INSERT OR IGNORE INTO groups VALUES (?, 0)", (self._group,))
            execute(
                "INSERT OR IGNORE INTO shares (group_name, partition, committed_offset)"
                " SELECT ?, partition, trimmed_offset FROM log",
                (self._group,),
            )
            cursor = execute(
                "INSERT INTO members (group_name, name, expires_ms) VALUES (?, ?, ?)",
                (self._group, self._name, self._clock.now_ms() + self._session_ms),
            )
            self._share_out()
        self._member_id = cursor.lastrowid

    def _synchronise(self) -> _Membership:
        """Write a heartbeat, remove expired members, take free partitions, and read the owned ones, all in one
        transaction."""
        execute = self._connection.execute
        now_ms = self._clock.now_ms()
        with transaction(self._connection, self._path):
            alive = execute(
                "UPDATE members SET expires_ms = ? WHERE member_id = ?", (now_ms + self._session_ms, self._member_id)
            ).rowcount
            if not alive:
                return _Membership(True, {}, frozenset())
            if execute(EXPIRED_SQL, (self._group, now_ms, now_ms + LEASE_MS_MAX)).rowcount:
                self._share_out()
            execute(
                "UPDATE shares SET owner = target WHERE group_name = ? AND target = ? AND owner IS NULL",
                (self._group, self._member_id),
            )
            owned = execute(
                "SELECT partition, committed_offset, target IS owner FROM shares WHERE group_name = ? AND owner = ?",
                (self._group, self._member_id),
            ).fetchall()
            self._trim(partition for partition, _, _ in owned)
            (generation,) = execute("SELECT generation FROM groups WHERE name = ?", (self._group,)).fetchone()
        self._generation = generation
        self._heartbeat_ms = now_ms
        committed = {partition: offset for partition, offset, _ in owned}
        return _Membership(False, committed, frozenset(partition for partition, _, keep in owned if not keep))

    def _give_up(self, partitions: frozenset[int]) -> None:
        """Let the callback finish its work on the partitions, then release them to their targets."""
        try:
            self._revoked(partitions)
        finally:
            self._forget(partitions)
            with transaction(self._connection, self._path):
                self._connection.executemany(
                    "UPDATE shares SET owner = NULL WHERE group_name = ? AND partition = ? AND owner = ?",
                    [(self._group, partition, self._member_id) for partition in partitions],
                )
                self._next_generation()

    def _handle_removal(self) -> None:
        """Handle the removal of this member. It owns no partition any more, which the callback notices when it
        commits."""
        lost = self.assignment()
        self._member_id = None
        self._forget(lost)
        if lost:
            self._revoked(lost)

    def _forget(self, partitions: frozenset[int]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)
        self._paused -= partitions

    def _share_out(self) -> None:
        """Write the new target of each partition, and free the partitions of members that are gone. Must run in a
        transaction."""
        execute = self._connection.execute
        members = [
            member_id
            for (member_id,) in execute(
                "SELECT member_id FROM members WHERE group_name = ? ORDER BY member_id", (self._group,)
            )
        ]
        execute(
            "UPDATE shares SET owner = NULL WHERE group_name = ? AND owner IS NOT NULL"
            " AND owner NOT IN (SELECT member_id FROM members)",
            (self._group,),
        )
        holders = dict(
            execute(
                "SELECT partition, coalesce(owner, target) FROM shares WHERE group_name = ? ORDER BY partition",
                (self._group,),
            ).fetchall()
        )
        self._connection.executemany(
            "UPDATE shares SET target = ? WHERE group_name = ? AND partition = ?",
            [(member, self._group, partition) for partition, member in share_out(holders, members).items()],
        )
        self._next_generation()

    def _next_generation(self) -> None:
        self._connection.execute("UPDATE groups SET generation = generation + 1 WHERE name = ?", (self._group,))


def share_out(holders: Mapping[int, int | None], members: Sequence[int]) -> dict[int, int | None]:
    """Return {partition: member to own it}: even shares, and as few moves as even shares allow.

    `holders` has the current owner of each partition; None, or an id of no member, means that it has no owner. Without
    members, no partition gets an owner.
    """
    if not members:
        return dict.fromkeys(holders)
    held = {member: [p for p, holder in holders.items() if holder == member] for member in members}
    share, extra = divmod(len(holders), len(members))
    most_first = sorted(members, key=lambda member: -len(held[member]))
    quota = {member: share + (rank < extra) for rank, member in enumerate(most_first)}
    shared: dict[int, int | None] = {p: member for member in members for p in held[member][: quota[member]]}
    room = [member for member in members for _ in range(quota[member] - len(held[member]))]
    free = [partition for partition in holders if partition not in shared]
    return shared | dict(zip(free, room, strict=True))


def _ignore(_partitions: frozenset[int]) -> None:
    """Do nothing: the default when no callback is registered."""
