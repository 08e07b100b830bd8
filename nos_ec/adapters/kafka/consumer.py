"""One member of a consumer group on Kafka: cooperative rebalancing, offsets committed by hand.

Threads of librdkafka keep the session alive. `poll` proves that the work goes on: a member that does not poll for
poll_interval_ms_max leaves the group by itself, and one whose process died is removed after session_ms.

Kafka lets any member commit any partition of its topic, and anybody commit for a group that is empty. So ownership is
checked here before anything is sent; the generation, which the broker checks, covers what this member has not yet
heard of.

Every call ends within a few request time-outs, also while no broker answers (1 and 2: commits.py; 3, 5 and 6:
stall_watch.py). A client that does not get on is given up, and the member joins again with another one.

4  a topic that was recreated, or lost its end, begins again with offsets that were handed out already: they are other
   messages. Then, too, the member joins again and forgets what was done and committed. It notices by offsets that
   come again and by the topic's id, and begins with the first message where the group's offset is of another topic
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as DriverMessage

from nos_ec.adapters.kafka.cluster import (
    KafkaTopic,
    cause_of,
    is_fatal,
    require_ms,
    translate,
    translated_errors,
    urgency,
)
from nos_ec.adapters.kafka.commits import GroupCommits
from nos_ec.adapters.kafka.dead_letters import DeadLetters
from nos_ec.adapters.kafka.member_client import MemberClient
from nos_ec.adapters.kafka.offset_look_up import (
    EARLIEST,
    LATEST,
    OffsetLookUp,
    fetch_committed,
    next_offset,
    places,
)
from nos_ec.adapters.kafka.stall_watch import StallWatch
from nos_ec.adapters.kafka.topic_watch import TopicWatch
from nos_ec.core.errors import ConfigError, Conflict, NosError, Transient
from nos_ec.ports.message_log import Message

_log = structlog.get_logger(__name__)

SESSION_MS_MIN = 1000
"""Below it a short pause of the machine ends sessions. Brokers have a bound of their own: 6 s by default."""

_HEARTBEATS_PER_SESSION = 10
"""How often a member asks whether the group rebalances: this decides how fast it settles."""
_HEARTBEAT_MS_MAX = 3000

_WAIT_S_MIN = 0.001

_NEWS = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}
"""What the driver tells of its connections and a caller must hear. One broker lost of several is no such news."""


class KafkaConsumer:
    """See MessageConsumer. It joins its group at the first poll.

    Memory: at most prefetch_bytes_max of messages fetched ahead, and one fetch of at most as much again.
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
        prefetch_bytes_max: int = 8 << 20,
    ) -> None:
        """`member` is a name for operators, and need not be unique.

        `instance` makes membership static: a member that comes back under the same name within session_ms gets its
        partitions again without a rebalance; in return its partitions wait that long when it leaves for good.

        Raises ConfigError. Connects in the background: a cluster that is down shows at the first poll.
        """
        if not group:
            raise ConfigError("message log: the consumer group has no name; give one")
        require_ms("session_ms", session_ms, SESSION_MS_MIN)
        require_ms("poll_interval_ms_max", poll_interval_ms_max, session_ms)
        self._topic = topic
        self._member = member
        self._poll_interval_s_max = poll_interval_ms_max / 1000
        fixed: dict[str, object] = {
            "group.id": group,
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": min(_HEARTBEAT_MS_MAX, session_ms // _HEARTBEATS_PER_SESSION),
            "max.poll.interval.ms": poll_interval_ms_max,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "allow.auto.create.topics": False,
        }
        if instance:
            fixed["group.instance.id"] = instance
        prefetch_kbytes = max(1, prefetch_bytes_max >> 10)
        defaults = {
            "queued.max.messages.kbytes": prefetch_kbytes,
            "fetch.max.bytes": max(prefetch_kbytes << 10, 1_000_000),
            "max.partition.fetch.bytes": 1 << 20,
        }
        callbacks: dict[str, Callable[..., None]] = {"error_cb": self._driver_error, "on_commit": self._commit_answered}
        self._client = MemberClient(topic, member, topic.configuration(member, defaults, fixed), callbacks)
        self._revoked: Callable[[frozenset[int]], None] = _ignore
        self._joined = False
        self._closed = False
        self._polled_s = 0.0
        self._member_id: str | None = None
        self._owned: set[int] = set()
        self._paused: set[int] = set()
        self._commits = GroupCommits(topic)
        self._stalls = StallWatch(topic, self._poll_interval_s_max)
        self._anew_because = ""
        """Why the next poll has to join again with another client."""
        self._batch: list[Message] = []
        self._errors: list[BaseException] = []
        self._look_up = OffsetLookUp(topic, f"{member}-lag")
        self._watch = TopicWatch(self._look_up)
        self._dead_letters = DeadLetters(topic, member)

    # --- the port ---------------------------------------------------------------------------------
    def poll(self, messages_max: int, wait_ms: int) -> list[Message]:
        """See MessageConsumer.poll. Raises ConfigError when the topic has grown or may not be read.

        Transient is raised once when the last broker is lost; the driver connects again by itself. A topic that is
        deleted under a member that has it assigned is not told here; when it is there again, the member joins anew.

        What `on_revoke` raised is raised here; when messages were taken in the same call, by the next one.
        """
        if messages_max < 1:
            raise ValueError(f"poll for {messages_max} messages; ask for at least 1")
        self._raise_first_error()
        self._batch = []
        if self._is_stuck():
            self._anew_because = "no answer"
        if self._watch.is_another():
            self._anew_because = "the topic was made anew"
        if self._anew_because:
            self._start_anew()
        if not self._joined:
            self._join()
        try:
            self._fill_batch(messages_max, wait_ms / 1000)
        finally:
            self._polled_s = time.monotonic()
        if not self._batch:
            self._raise_first_error()
            self._look_for_more()
        batch, self._batch = self._batch, []
        return batch

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See MessageConsumer.commit. Waits out a rebalance for two seconds, then raises Transient.

        Takes two request time-outs and those two seconds at most. After a Transient offsets may be committed
        all the same, and further calls raise Transient until a poll has heard how it ended.
        """
        if not offsets:
            return
        self._require_ownership(offsets.keys())
        self._commits.commit(self._client.driver, offsets, self._owned, self._require_ownership)

    def set_aside(self, message: Message, reason: str) -> None:
        """See MessageConsumer.set_aside, and DeadLetters."""
        self._dead_letters.keep(message, reason)

    def assignment(self) -> frozenset[int]:
        """See MessageConsumer.assignment."""
        return frozenset(self._owned)

    def pause(self, partitions: Iterable[int]) -> None:
        """See MessageConsumer.pause. A partition that is given up is no longer paused when it comes back."""
        # Pausing drops what was fetched ahead: one that is paused already is left alone.
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
        """See MessageConsumer.on_revoke. When it raises, the partitions are given up all the same."""
        self._revoked = callback

    def lag(self) -> int:
        """See MessageConsumer.lag. Four requests, whatever the backlog. Before the group exists: all that is stored.

        Messages that retention removed before they were committed are not counted: nobody will ever be handed them.
        Raises ConfigError, Transient.
        """
        try:
            driver, topic_id = self._client.driver, self._look_up.topic_id()
            committed = self._commits.committed(driver, range(self._topic.partitions), topic_id)
            first = self._look_up.offsets(EARLIEST)
            end = self._look_up.offsets(LATEST)
        except Transient:
            self._renew_onlookers()
            raise
        return sum(max(0, end[p] - next_offset(committed[p], first[p], end[p])) for p in end)

    def close(self) -> None:
        """See MessageConsumer.close. Idempotent. A static member stays in the group until its session ends.

        When the brokers do not take the farewell within a request time-out, the group finds out by the session.
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

    # --- clients that do not get on -----------------------------------------------------------------
    def _is_stuck(self) -> bool:
        if self._commits.doubtful_for_s() > self._stalls.patience_s:
            return True
        return self._stalls.is_cut_off(self._client.driver)

    def _look_for_more(self) -> None:
        """From time to time while nothing comes."""
        if not self._stalls.may_look():
            return
        member_id = self._client.driver.memberid()
        if self._stalls.is_left_out(owns=bool(self._owned), member_id=member_id, known_id=self._member_id):
            self._anew_because = "the group does not take this member in"
        try:
            wanted = self._owned - self._paused
            if self._stalls.misses_messages(wanted, self._beginnings, lambda: self._look_up.offsets(LATEST)):
                self._anew_because = "nothing comes, though the topic does not end where this member is"
        except NosError:
            self._renew_onlookers()

    def _beginnings(self, partitions: Iterable[int]) -> dict[int, int]:
        """{partition: offset of the first message to be handed out} of those that nothing was taken from."""
        first = self._look_up.offsets(EARLIEST)
        committed = self._commits.committed(self._client.driver, partitions, self._commits.topic_id)
        return {p: max(offset, first.get(p, 0)) for p, offset in committed.items()}

    def _start_anew(self) -> None:
        """Give up a client that does not get on any more (3 to 6). As when thrown out: the partitions are lost."""
        _log.warning(f"joining the group anew: {self._anew_because}", member=self._member, brokers=self._topic.servers)
        self._client.replace()
        self._joined = False
        self._member_id = None
        self._anew_because = ""
        lost = frozenset(self._owned)
        self._owned -= lost
        self._paused -= lost
        self._commits.reset()
        self._stalls.reset()
        self._run_callback(lost)

    def _renew_onlookers(self) -> None:
        """Give up clients that only look at offsets, which may never get on again (3) and which no poll gives up."""
        self._look_up.renew()
        if not self._joined and not self._closed:
            self._client.replace()

    # --- polling ----------------------------------------------------------------------------------
    def _join(self) -> None:
        self._client.subscribe(on_assign=self._assigned, on_revoke=self._give_up, on_lost=self._lose)
        self._joined = True

    def _fill_batch(self, messages_max: int, wait_s: float) -> None:
        """Take up to `messages_max`; wait for the first one only. Callbacks of the driver run in here."""
        deadline = time.monotonic() + wait_s
        while len(self._batch) < messages_max and not self._anew_because:
            # The driver cuts a wait to whole milliseconds: less than one would be none, again and again.
            left_s = 0.0 if self._batch or not wait_s else max(_WAIT_S_MIN, deadline - time.monotonic())
            try:
                message = self._client.driver.poll(left_s)
            except (KafkaException, SystemError) as error:
                # The driver will not hand out again what was taken already: it must not go with the error.
                cause = cause_of(error)
                self._errors.append(error if cause is None else self._translate(cause))
                return
            if message is None:
                if self._batch or self._errors or time.monotonic() >= deadline:
                    return
            elif (event := message.error()) is not None:
                self._driver_event(event)
            else:
                self._take(message)

    def _take(self, message: DriverMessage) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if partition not in self._owned:
            return  # fetched ahead, before this member was thrown out: the new owner gets it
        if not self._stalls.took(partition, offset):
            self._anew_because = "its offsets begin again: the topic was made anew, or lost messages"
            return
        # A null key or value is not ours; as empty bytes it reaches the decoder, which refuses it.
        self._batch.append(Message(partition, offset, message.key() or b"", message.value() or b""))

    def _driver_event(self, error: KafkaError) -> None:
        """Something about the topic or the group that came in place of a message."""
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            # The driver's own word that they are lost comes some heartbeats later: too late for what is handed out.
            _log.warning("thrown out of the group: too long between polls", member=self._member, error=error.str())
            self._lose(self._client.driver, self._places(self._owned))
            return
        self._errors.append(self._translate(error))

    def _driver_error(self, error: KafkaError) -> None:
        """Something about connections."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._stalls.lost_brokers()
        if is_fatal(error) or error.code() in _NEWS:
            self._errors.append(self._translate(error))

    def _translate(self, error: KafkaError) -> NosError:
        """A consumer that has a fatal error never gets another message: waiting does not cure it."""
        if is_fatal(error) or error.code() == KafkaError.FENCED_INSTANCE_ID:
            return ConfigError(
                f"message log: poll: {error.str()}; give every process an instance name of its own, and start this one"
                " again"
            )
        return translate(error, self._topic, "poll")

    def _raise_first_error(self) -> None:
        """What `on_revoke` raised goes first, then what only new settings can cure, then what may pass."""
        if not self._errors:
            return
        first = min(self._errors, key=urgency)
        # The driver says most things once: only what may have passed meanwhile is forgotten.
        self._errors = [error for error in self._errors if error is not first and not isinstance(error, Transient)]
        raise first

    # --- membership -------------------------------------------------------------------------------
    def _assigned(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        new = {place.partition for place in places}
        self._owned |= new
        self._stalls.assigned()
        self._member_id = consumer.memberid()
        if new:
            self._begin(consumer, places)
        if new and max(new) >= self._topic.partitions:
            self._errors.append(
                ConfigError(
                    f"message log: topic {self._topic.name} has grown to at least {max(new) + 1} partitions and the"
                    f" configuration says {self._topic.partitions}; stop all services, then set log.partitions to"
                    " what the topic has now"
                )
            )

    def _begin(self, consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """Let the driver begin with the first message where the group's offset is of another topic (4)."""
        try:
            topic_id = self._commits.topic_id = self._look_up.topic_id()
            self._watch.begin(topic_id)
            committed = fetch_committed(consumer, self._topic, (place.partition for place in places))
            valid = {partition: found.of(topic_id) for partition, found in committed.items()}
            if any(found.offset > 0 and not found.topic_id for found in committed.values()):
                end = self._look_up.offsets(LATEST)
                valid = {partition: offset if offset <= end[partition] else -1 for partition, offset in valid.items()}
        except NosError as error:
            # Beginning at a wrong offset could pass over messages.
            self._anew_because = f"not known where to begin: {error}"
            return
        if stale := sorted(partition for partition, found in committed.items() if found.offset > valid[partition]):
            _log.warning("offsets of another topic: beginning with the first message", partitions=stale)
            self._commits.none_counts(stale)
            for place in places:
                if place.partition in stale:
                    place.offset = OFFSET_BEGINNING
            consumer.incremental_assign(list(places))

    def _give_up(self, _consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """The driver gives the partitions up when this returns."""
        revoked = frozenset(place.partition for place in places) & self._owned
        self._run_callback(revoked)

    def _lose(self, _consumer: Consumer, places: Sequence[TopicPartition]) -> None:
        """This member was thrown out: nothing is owned any more, which the callback finds out when it commits."""
        lost = frozenset(place.partition for place in places) & self._owned
        self._forget(lost)
        self._run_callback(lost)

    def _run_callback(self, revoked: frozenset[int]) -> None:
        # What was taken in this poll has not been handed out: the next owner gets it.
        self._batch = [message for message in self._batch if message.partition not in revoked]
        try:
            if revoked:
                self._revoked(revoked)
        except BaseException as error:
            # Must not pass through the driver, which would throw away what it has at hand.
            self._errors.append(error)
        finally:
            self._forget(revoked)

    def _forget(self, partitions: frozenset[int]) -> None:
        # The driver would keep a partition paused that comes back.
        if not self._closed:
            with suppress(NosError):  # one that the driver has forgotten already is not paused either
                self.resume(partitions)
        self._owned -= partitions
        self._paused -= partitions
        self._commits.forget(partitions)
        self._stalls.forget(partitions)

    # --- offsets ----------------------------------------------------------------------------------
    def _require_ownership(self, partitions: Iterable[int]) -> None:
        lost = sorted(set(partitions) - self._owned)
        if lost:
            raise Conflict(f"message log: member {self._member!r} no longer owns partitions {lost}")
        silent_s = time.monotonic() - self._polled_s
        if self._polled_s and silent_s >= self._poll_interval_s_max:
            raise Conflict(f"message log: member {self._member!r} did not poll for {silent_s:.1f} s and is out")
        if self._client.driver.memberid() != self._member_id:
            raise Conflict(f"message log: member {self._member!r} was thrown out of its group")

    def _commit_answered(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        if (lasting := self._commits.answered(error, places)) is not None:
            self._errors.append(lasting)

    def _places(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return places(self._topic, partitions)


def _ignore(_partitions: frozenset[int]) -> None:
    """Nobody registered a callback."""
