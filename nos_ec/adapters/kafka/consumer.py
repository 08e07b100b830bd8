"""One member of a consumer group on Kafka: cooperative rebalancing, offsets committed by hand.

Threads of librdkafka keep the session alive. `poll` proves that the work makes progress: a member that does not poll
for poll_interval_ms_max leaves the group, and a member whose process died is removed after session_ms.

Kafka lets any member commit any partition of its topic, and any client commit for a group without members. So ownership
is checked here before anything is sent. The broker checks the generation, which covers changes that this member has not
yet heard of.

Every call ends within a few request time-outs, even while no broker answers (1 and 2: commits.py; 3, 5 and 6:
stall_watch.py). A client that makes no progress is abandoned, and the member rejoins with a new one.

4  A topic that was recreated, or that lost its end, reuses offsets that were handed out already, for other messages. In
   this case, too, the member rejoins, and forgets the offsets that it took and committed. It notices the change by
   repeated offsets and by the topic's id. If the group's offset belongs to another topic, the member starts with the
   first message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as DriverMessage

from nos_ec.adapters.kafka.cluster import KafkaTopic, require_ms, translated_errors
from nos_ec.adapters.kafka.commits import EmptyEnds, GroupCommits
from nos_ec.adapters.kafka.dead_letters import DeadLetters
from nos_ec.adapters.kafka.member_client import FETCH_SETTINGS, MemberClient, group_settings
from nos_ec.adapters.kafka.offset_look_up import (
    EARLIEST,
    LATEST,
    OffsetLookUp,
    TopicWatch,
    fetch_committed,
    next_offset,
    places,
)
from nos_ec.adapters.kafka.poll_errors import PollErrors
from nos_ec.adapters.kafka.stall_watch import StallWatch
from nos_ec.core.errors import ConfigError, Conflict, NosError, Transient
from nos_ec.ports.message_log import Message

_log = structlog.get_logger(__name__)

SESSION_MS_MIN = 1000
"""With shorter sessions, a short pause of the machine ends them. Brokers have their own limit, by default 6 s."""

_WAIT_S_MIN = 0.001
_ENDS_RETRY_S = 5.0
"""The wait before a failed commit of ends is repeated."""


class KafkaConsumer:
    """A `MessageConsumer` (see the port for the contract). It joins its group at the first poll.

    Keeps at most 8 MiB of prefetched messages in memory, plus one fetch of at most the same size.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        *,
        group: str,
        member: str,
        session_ms: int = 45_000,
        poll_interval_ms_max: int = 300_000,
        instance: str = "",
    ) -> None:
        """Connect in the background; an unreachable cluster is noticed at the first poll.

        `member` is a name for operators and need not be unique. `instance` makes membership static: a member that comes
        back under the same name within session_ms gets its partitions back without a rebalance. In return, its
        partitions wait that long when it leaves for good. Raises ConfigError.
        """
        if not group:
            raise ConfigError("message log: the consumer group has no name; configure one")
        require_ms("session_ms", session_ms, SESSION_MS_MIN)
        require_ms("poll_interval_ms_max", poll_interval_ms_max, session_ms)
        self._topic = topic
        self._member = member
        self._poll_interval_s_max = poll_interval_ms_max / 1000
        callbacks: dict[str, Callable[..., None]] = {"error_cb": self._driver_error, "on_commit": self._commit_answered}
        configuration = topic.configuration(
            member,
            FETCH_SETTINGS,
            group_settings(group, session_ms, poll_interval_ms_max, instance),
        )
        self._client = MemberClient(topic, member, configuration, callbacks)
        self._revoked: Callable[[frozenset[int]], None] = _ignore
        self._joined = False
        self._closed = False
        self._polled_s = 0.0
        self._member_id: str | None = None
        self._owned: set[int] = set()
        self._paused: set[int] = set()
        self._commits = GroupCommits(topic)
        self._empty_ends = EmptyEnds(self._commits)
        self._ends_due_s = 0.0
        self._stalls = StallWatch(topic, self._poll_interval_s_max)
        self._rejoin_reason = ""
        """Why the next poll has to rejoin with a new client; "" when it need not."""
        self._batch: list[Message] = []
        self._errors = PollErrors(topic)
        self._look_up = OffsetLookUp(topic, f"{member}-lag")
        self._watch = TopicWatch(self._look_up)
        self._dead_letters = DeadLetters(topic, member)

    # --- the port ---------------------------------------------------------------------------------
    def poll(self, messages_max: int, wait_ms: int) -> list[Message]:
        """See MessageConsumer.poll. Raises ConfigError when the topic has grown or may not be read.

        Raises Transient once when the last broker is lost; the driver reconnects without help. The deletion of a topic
        that is assigned to the member raises nothing here; when the topic exists again, the member rejoins the group.

        Also raises the exception of `on_revoke`; if messages were taken in the same call, only the next call raises it.
        """
        if messages_max < 1:
            raise ValueError(f"poll for {messages_max} messages; poll for at least 1")
        self._errors.raise_first()
        self._batch = []
        if self._is_stuck():
            self._rejoin_reason = "no answer"
        if self._watch.is_another():
            self._rejoin_reason = "the topic was recreated"
        if self._rejoin_reason:
            self._rejoin()
        if not self._joined:
            self._join()
        try:
            self._fill_batch(messages_max, wait_ms / 1000)
        finally:
            self._polled_s = time.monotonic()
        if not self._batch:
            self._errors.raise_first()
            self._look_for_more()
            self._commit_empty_ends()
        batch, self._batch = self._batch, []
        return batch

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See MessageConsumer.commit. Waits two seconds for a rebalance to end, then raises Transient.

        Takes at most two request time-outs plus those two seconds. After Transient the offsets may have been committed
        nevertheless, and further calls raise Transient until a poll has received the outcome.
        """
        if not offsets:
            return
        self._require_ownership(offsets.keys())
        self._commit(self._empty_ends.included(offsets))

    def _commit(self, offsets: Mapping[int, int]) -> None:
        self._commits.commit(self._client.driver, offsets, self._owned, self._require_ownership)
        self._empty_ends.committed(offsets)

    def set_aside(self, message: Message, reason: str) -> None:
        """See MessageConsumer.set_aside, and DeadLetters."""
        self._dead_letters.keep(message, reason)

    def assignment(self) -> frozenset[int]:
        """See MessageConsumer.assignment."""
        return frozenset(self._owned)

    def pause(self, partitions: Iterable[int]) -> None:
        """See MessageConsumer.pause. A partition that was given up is no longer paused when it comes back."""
        # Pausing drops prefetched messages, so a partition that is already paused is left alone.
        new = (self._owned & set(partitions)) - self._paused
        if new:
            with translated_errors(self._topic, "pause"):
                self._client.driver.pause(self._places(new))
            self._paused |= new

    def resume(self, partitions: Iterable[int]) -> None:
        """See MessageConsumer.resume."""
        paused = self._paused & set(partitions)
        if paused:
            with translated_errors(self._topic, "resume"):
                self._client.driver.resume(self._places(paused))
            self._paused -= paused
            self._stalls.resumed()

    def on_revoke(self, callback: Callable[[frozenset[int]], None]) -> None:
        """See MessageConsumer.on_revoke. The partitions are given up even if the callback raises."""
        self._revoked = callback

    def lag(self) -> int:
        """See MessageConsumer.lag. Sends four requests, whatever the backlog. Before the group exists, counts all
        stored messages.

        Messages that retention removed before they were committed do not count, because no member will ever get them.
        Markers of transactions count until a member has reached them. Raises ConfigError, Transient.
        """
        try:
            driver, topic_id = self._client.driver, self._look_up.topic_id()
            committed = self._commits.committed(driver, range(self._topic.partitions), topic_id)
            first = self._look_up.offsets(EARLIEST)
            end = self._look_up.offsets(LATEST)
        except Transient:
            self._renew_look_ups()
            raise
        return sum(max(0, end[p] - next_offset(committed[p], first[p], end[p])) for p in end)

    def close(self) -> None:
        """See MessageConsumer.close. Idempotent. A static member stays in the group until its session ends.

        If no broker answers within a request time-out, the group notices when the member's session ends.
        """
        if self._closed:
            return
        self._closed = True
        self._revoked = _ignore
        with ExitStack() as stack:
            stack.callback(self._dead_letters.close)
            stack.callback(self._forget, frozenset(self._owned))
            self._client.leave()
        self._look_up.close(self._topic.timeout_s)

    # --- clients that make no progress --------------------------------------------------------------
    def _is_stuck(self) -> bool:
        if self._commits.doubtful_for_s() > self._stalls.patience_s:
            return True
        return self._stalls.is_cut_off(self._client.driver)

    def _look_for_more(self) -> None:
        """Check from time to time, while no messages come, whether some should have come."""
        if not self._stalls.check_is_due(owns=bool(self._owned)):
            return
        member_id = self._client.driver.memberid()
        if self._stalls.is_left_out(owns=bool(self._owned), member_id=member_id, known_id=self._member_id):
            self._rejoin_reason = "the group does not admit this member"
        try:
            wanted = self._owned - self._paused
            if self._stalls.misses_messages(wanted, self._beginnings, lambda: self._look_up.offsets(LATEST)):
                self._rejoin_reason = "no messages come, although the topic does not end at this member's position"
        except NosError:
            self._renew_look_ups()

    def _beginnings(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return {partition: offset of its first message to hand out}, for partitions from which no message was
        taken."""
        first = self._look_up.offsets(EARLIEST)
        committed = self._commits.committed(self._client.driver, partitions, self._commits.topic_id)
        return {p: max(offset, first.get(p, 0)) for p, offset in committed.items()}

    def _rejoin(self) -> None:
        """Abandon a client that makes no progress (3 to 6). The partitions are lost, as when the member is removed."""
        _log.warning(f"rejoining the group: {self._rejoin_reason}", member=self._member, brokers=self._topic.servers)
        abandoned = self._client.replace()
        self._joined = False
        self._member_id = None
        self._rejoin_reason = ""
        lost = frozenset(self._owned)
        self._owned -= lost
        self._paused -= lost
        self._commits.reset()
        self._empty_ends.forget(lost)
        self._stalls.reset()
        self._run_callback(lost)
        # This comes last, because another member gets the partitions when this one has left.
        self._client.abandon(abandoned)

    def _renew_look_ups(self) -> None:
        """Abandon the clients that only look up offsets. They may never work again (3), and no poll replaces them."""
        self._look_up.renew()
        if not self._joined and not self._closed:
            self._client.abandon(self._client.replace())

    # --- polling ----------------------------------------------------------------------------------
    def _join(self) -> None:
        self._client.subscribe(on_assign=self._assigned, on_revoke=self._give_up, on_lost=self._lose)
        self._joined = True

    def _fill_batch(self, messages_max: int, wait_s: float) -> None:
        """Take up to `messages_max` messages; wait only for the first one. The driver runs its callbacks during this
        call."""
        deadline = time.monotonic() + wait_s
        while len(self._batch) < messages_max and not self._rejoin_reason:
            # The driver truncates a wait to whole milliseconds, so a shorter one would be a busy loop.
            left_s = 0.0 if self._batch or not wait_s else max(_WAIT_S_MIN, deadline - time.monotonic())
            try:
                message = self._client.driver.poll(left_s)
            except (KafkaException, SystemError) as error:
                # The driver will not hand out messages again that were already taken, so they must not be lost with the
                # error.
                self._errors.add_poll_error(error)
                return
            if message is None:
                if self._batch or self._errors or time.monotonic() >= deadline:
                    return
            elif (event := message.error()) is None:
                self._take(message)
            elif event.code() == KafkaError._PARTITION_EOF:
                self._reached_end(message)
            else:
                self._driver_event(event)

    def _take(self, message: DriverMessage) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if partition not in self._owned:
            return  # prefetched before the group removed this member: the new owner gets it
        if not self._stalls.took(partition, offset):
            self._rejoin_reason = "its offsets start again: the topic was recreated, or lost messages"
            return
        self._empty_ends.taken(partition)
        # A null key or value was not written by us. As empty bytes it reaches the decoder, which refuses it.
        self._batch.append(Message(partition, offset, message.key() or b"", message.value() or b""))

    def _reached_end(self, message: DriverMessage) -> None:
        """Handle the driver's report that a partition has no further message now."""
        partition, end = message.partition(), message.offset()
        if partition is not None and end is not None and partition in self._owned:
            self._empty_ends.found(partition, self._stalls.reached_end(partition, end), end)

    def _driver_event(self, error: KafkaError) -> None:
        """Handle an event about the topic or the group, which the driver returned in place of a message."""
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            # The driver reports the loss of the partitions some heartbeats later, which is too late for messages handed
            # out now.
            _log.warning("removed from the group: too long between polls", member=self._member, error=error.str())
            self._lose(self._client.driver, self._places(self._owned))
            return
        self._errors.add_event(error)

    def _driver_error(self, error: KafkaError) -> None:
        """Handle an error about connections."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._stalls.lost_brokers()
        self._errors.add_connection_error(error)

    # --- membership -------------------------------------------------------------------------------
    def _assigned(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        new = {place.partition for place in places}
        self._owned |= new
        self._stalls.assigned()
        self._member_id = consumer.memberid()
        if new:
            self._begin(consumer, places)
        if new and max(new) >= self._topic.partitions:
            self._errors.add(
                ConfigError(
                    f"message log: topic {self._topic.name} has grown to at least {max(new) + 1} partitions, but the"
                    f" configuration says {self._topic.partitions}; stop all services, then set log.partitions to"
                    " the topic's current number",
                    settings=("log.partitions",),
                )
            )

    def _begin(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """Make the driver start with the first message where the group's offset belongs to another topic (4)."""
        try:
            topic_id = self._commits.topic_id = self._look_up.topic_id()
            self._watch.begin(topic_id)
            committed = fetch_committed(consumer, self._topic, (place.partition for place in places))
            valid = {partition: found.of(topic_id) for partition, found in committed.items()}
            if any(found.offset > 0 and not found.topic_id for found in committed.values()):
                end = self._look_up.offsets(LATEST)
                valid = {partition: offset if offset <= end[partition] else -1 for partition, offset in valid.items()}
        except NosError as error:
            # Starting at a wrong offset could skip messages.
            self._rejoin_reason = f"the starting offset is not known: {error}"
            return
        if stale := sorted(partition for partition, found in committed.items() if found.offset > valid[partition]):
            _log.warning("offsets belong to another topic: starting with the first message", partitions=stale)
            for place in places:
                if place.partition in stale:
                    place.offset = OFFSET_BEGINNING
            consumer.incremental_assign(list(places))
        self._commits.begin(valid)

    def _give_up(self, _consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """Run the callback. The driver gives the partitions up when this returns."""
        revoked = frozenset(place.partition for place in places) & self._owned
        self._run_callback(revoked)

    def _lose(self, _consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """Handle the loss of partitions by removal from the group. The callback notices it when it commits."""
        lost = frozenset(place.partition for place in places) & self._owned
        self._forget(lost)
        self._run_callback(lost)

    def _run_callback(self, revoked: frozenset[int]) -> None:
        # Messages taken in this poll have not been handed out, so the next owner gets them.
        self._batch = [message for message in self._batch if message.partition not in revoked]
        try:
            if revoked:
                self._revoked(revoked)
        except BaseException as error:
            # The exception must not pass through the driver, which would then lose the messages it holds.
            self._errors.add(error)
        finally:
            self._forget(revoked)

    def _forget(self, partitions: frozenset[int]) -> None:
        # Otherwise the driver would keep a partition paused when it comes back.
        if not self._closed:
            with suppress(NosError):  # a partition that the driver has already forgotten is not paused either
                self.resume(partitions)
        self._owned -= partitions
        self._paused -= partitions
        self._commits.forget(partitions)
        self._empty_ends.forget(partitions)
        self._stalls.forget(partitions)

    # --- offsets ----------------------------------------------------------------------------------
    def _require_ownership(self, partitions: Iterable[int]) -> None:
        lost = sorted(set(partitions) - self._owned)
        if lost:
            raise Conflict(f"message log: member {self._member!r} no longer owns partitions {lost}")
        silent_s = time.monotonic() - self._polled_s
        if self._polled_s and silent_s >= self._poll_interval_s_max:
            raise Conflict(
                f"message log: member {self._member!r} did not poll for {silent_s:.1f} s and is no longer in its group"
            )
        if self._client.driver.memberid() != self._member_id:
            raise Conflict(f"message log: member {self._member!r} was removed from its group")

    def _commit_empty_ends(self) -> None:
        """Commit the ends that only markers precede, because they need no processing of messages first."""
        ends = self._empty_ends.included({})
        if not ends or self._commits.doubtful_for_s() or time.monotonic() < self._ends_due_s:
            return
        # A group that is rebalancing accepts no commit, and needs polls to make progress.
        self._ends_due_s = time.monotonic() + _ENDS_RETRY_S
        with suppress(Transient, Conflict):
            self._require_ownership(ends)
            self._commit(ends)
            self._ends_due_s = 0.0

    def _commit_answered(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        if (lasting := self._commits.answered(error, places)) is not None:
            self._errors.add(lasting)

    def _places(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return places(self._topic, partitions)


def _ignore(_partitions: frozenset[int]) -> None:
    """Do nothing: the default when no callback is registered."""
