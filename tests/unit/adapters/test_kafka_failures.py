"""What the Kafka adapter does with rebalances and errors that come in the middle of a poll or a batch.

The driver is scripted: a real broker does not do these things on demand.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as DriverMessage

from nos_ec.adapters.kafka import member_client, offset_look_up, stall_watch
from nos_ec.adapters.kafka import publisher as publisher_module
from nos_ec.adapters.kafka.cluster import TIMEOUT_MS_MIN, KafkaTopic, translate
from nos_ec.adapters.kafka.consumer import KafkaConsumer
from nos_ec.adapters.kafka.offset_look_up import EARLIEST, OffsetLookUp, TopicWatch
from nos_ec.adapters.kafka.publisher import KafkaPublisher
from nos_ec.core.errors import ConfigError, Conflict, Transient
from tests.rig import waiting

Step = DriverMessage | Callable[[], None] | None
until = partial(waiting.until, wait_s=30)


class ScriptedDriver:
    """Answers `poll` step by step, as the driver does: callbacks run inside of it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.member_id = "m-1"
        self.stored: dict[int, tuple[int, str]] = {}
        """Per partition: the group's offset and its metadata."""
        self.begins: dict[int, int] = {}

    def poll(self, timeout: float = -1) -> DriverMessage | None:
        while self.steps:
            step = self.steps.pop(0)
            if not callable(step):
                return step
            step()
        return None

    def subscribe(self, topics: list[str], **callbacks: object) -> None:
        """The test makes the callbacks itself."""

    def memberid(self) -> str:
        return self.member_id

    def committed(self, wanted: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [
            TopicPartition(p.topic, p.partition, *self.stored.get(p.partition, (OFFSET_INVALID, ""))) for p in wanted
        ]

    def incremental_assign(self, assigned: list[TopicPartition]) -> None:
        self.begins = {place.partition: place.offset for place in assigned}

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def consumer(driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaConsumer]:
    monkeypatch.setattr(member_client, "Consumer", lambda _configuration: driver)
    made = KafkaConsumer(KafkaTopic("broker:9092", "t", 4), group="g", member="m")
    monkeypatch.setattr(made._look_up, "topic_id", lambda: "one")
    made.poll(1, 0)
    made._assigned(made._client.driver, places(0, 1))
    yield made
    made.close()


def places(*partitions: int) -> list[TopicPartition]:
    return [TopicPartition("t", partition) for partition in partitions]


def message(partition: int, offset: int) -> DriverMessage:
    return DriverMessage(topic="t", partition=partition, offset=offset, key=b"k", value=b"v")


def event(code: int, *, fatal: bool = False) -> DriverMessage:
    return DriverMessage(topic="t", error=KafkaError(code, "said by the broker", fatal))


def taken(consumer: KafkaConsumer) -> list[tuple[int, int]]:
    return [(m.partition, m.offset) for m in consumer.poll(10, 0)]


@pytest.mark.invariant(5)
def test_messages_of_a_partition_revoked_in_the_same_poll_are_not_handed_out(
    consumer: KafkaConsumer, driver: ScriptedDriver
) -> None:
    """Their offsets could not be committed, and the next owner gets them."""
    revoke = partial(consumer._give_up, consumer._client.driver, places(0))
    driver.steps = [message(0, 7), message(1, 3), revoke, message(1, 4)]
    assert taken(consumer) == [(1, 3), (1, 4)]
    assert consumer.assignment() == {1}


def test_an_error_of_the_callback_loses_no_messages(consumer: KafkaConsumer, driver: ScriptedDriver) -> None:
    def fail(_partitions: frozenset[int]) -> None:
        raise RuntimeError("the engine broke")

    consumer.on_revoke(fail)
    driver.steps = [message(1, 3), partial(consumer._give_up, consumer._client.driver, places(0)), message(1, 4)]
    assert taken(consumer) == [(1, 3), (1, 4)]
    with pytest.raises(RuntimeError, match="the engine broke"):
        consumer.poll(10, 0)
    assert taken(consumer) == []


def test_an_error_of_the_driver_loses_no_messages(consumer: KafkaConsumer, driver: ScriptedDriver) -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    driver.steps = [message(1, 3), fail]
    assert taken(consumer) == [(1, 3)]
    with pytest.raises(Transient):
        consumer.poll(10, 0)


def test_a_member_that_was_silent_too_long_owns_nothing_at_once(
    consumer: KafkaConsumer, driver: ScriptedDriver
) -> None:
    """The driver reports the loss later. Messages it prefetched until then belong to another member, and the loss is
    reported once."""
    revoked: list[frozenset[int]] = []
    consumer.on_revoke(revoked.append)
    driver.steps = [message(0, 7), event(KafkaError._MAX_POLL_EXCEEDED), message(0, 8)]
    assert taken(consumer) == []
    with pytest.raises(Conflict, match="no longer owns"):
        consumer.commit({0: 8})
    driver.steps = [partial(consumer._lose, consumer._client.driver, places(0, 1))]
    assert taken(consumer) == []
    assert revoked == [{0, 1}]


def test_a_look_up_of_offsets_that_is_never_answered_times_out(
    consumer: KafkaConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon looks them up in its own loop, which must not hang."""

    class SilentAdmin:
        def __init__(self, _configuration: object) -> None:
            pass

        def list_offsets(
            self, wanted: dict[TopicPartition, object], **_options: object
        ) -> dict[TopicPartition, object]:
            return {place: Future[object]() for place in wanted}

        def __exit__(self, *_error: object) -> None:
            """Nothing to close."""

    monkeypatch.setattr(offset_look_up, "AdminClient", SilentAdmin)
    topic = KafkaTopic("broker:9092", "t", 4, request_timeout_ms=TIMEOUT_MS_MIN)
    silent = OffsetLookUp(topic, "m")
    monkeypatch.setattr(silent, "topic_id", lambda: "one")
    monkeypatch.setattr(consumer, "_look_up", silent)
    monkeypatch.setattr(consumer._commits, "committed", lambda _driver, _partitions, _topic_id: {})
    with pytest.raises(Transient, match="no answer"):
        consumer.lag()


def test_a_member_rejoins_when_the_offsets_of_a_partition_start_again(
    consumer: KafkaConsumer, driver: ScriptedDriver
) -> None:
    """The offset tracker has seen those offsets already, and would skip the new messages for ever."""
    revoked: list[frozenset[int]] = []
    consumer.on_revoke(revoked.append)
    driver.steps += [message(0, 7), message(1, 8), message(0, 0), message(0, 8)]
    assert taken(consumer) == [(0, 7), (1, 8)]
    assert revoked == []
    assert taken(consumer) == []
    assert revoked == [{0, 1}]
    assert consumer.assignment() == frozenset()
    consumer._assigned(consumer._client.driver, places(0))
    driver.steps[:] = [message(0, 0), message(0, 1)]
    assert taken(consumer) == [(0, 0), (0, 1)]


def test_a_member_does_not_start_at_offsets_of_another_topic(consumer: KafkaConsumer, driver: ScriptedDriver) -> None:
    """Such offsets do not hold commits back either."""
    driver.stored = {2: (10_000, "topic-id=another"), 3: (7, "topic-id=one")}
    consumer._assigned(consumer._client.driver, places(2, 3))
    assert driver.begins == {2: OFFSET_BEGINNING, 3: OFFSET_INVALID}
    assert {partition: consumer._commits.reached(partition, 1) for partition in (2, 3)} == {2: False, 3: True}


@pytest.mark.parametrize(("end", "begins"), [(5, OFFSET_BEGINNING), (10, None)])
def test_offsets_without_an_id_are_trusted_unless_they_are_past_the_end(
    consumer: KafkaConsumer, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch, end: int, begins: int | None
) -> None:
    """Older versions committed such offsets."""
    driver.stored = {2: (10, "")}
    monkeypatch.setattr(consumer._look_up, "offsets", lambda _which: dict.fromkeys(range(4), end))
    consumer._assigned(consumer._client.driver, places(2))
    assert driver.begins.get(2) == begins
    assert consumer._commits.reached(2, 10) == (begins is None)


def test_a_member_that_cannot_look_up_where_to_start_rejoins(
    consumer: KafkaConsumer, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise Transient("no answer")

    monkeypatch.setattr(consumer._look_up, "topic_id", fail)
    consumer._assigned(consumer._client.driver, places(2))
    driver.steps = [message(2, 7)]
    assert taken(consumer) == []
    assert consumer.assignment() == frozenset()


def test_the_driver_writes_no_lines_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """They would not be JSON. This uses the real driver and an address where nothing listens."""
    topic = KafkaTopic("127.0.0.1:1", "t", 4, request_timeout_ms=TIMEOUT_MS_MIN)
    publisher = KafkaPublisher(topic, delivery_timeout_ms=TIMEOUT_MS_MIN)
    with closing(publisher), pytest.raises(Transient, match="Connection refused"):
        publisher.publish([(b"key", b"value")])
    assert capfd.readouterr().err == ""


def test_an_abandoned_client_is_closed_although_an_exception_references_it() -> None:
    """The garbage collector would close it in any thread, and a client that lost its brokers may never close. This uses
    the real driver, and an address where no broker listens."""
    topic = KafkaTopic("127.0.0.1:1", "t", 4, request_timeout_ms=TIMEOUT_MS_MIN, options={"log_level": 0})
    gc.disable()
    try:
        with closing(KafkaConsumer(topic, group="g", member="m")) as consumer:
            first, looks = consumer._client.driver, consumer._look_up._client()
            consumer._assigned(first, places(0))
            while consumer._client.driver is first:
                with suppress(Transient):  # no broker answers
                    consumer.poll(1, 0)
            until(lambda: is_closed(first.memberid))
            consumer._look_up.renew()
            until(lambda: is_closed(partial(looks.list_topics, timeout=0.1)))
    finally:
        gc.enable()


def is_closed(call: Callable[[], object]) -> bool:
    """Whether the driver refuses a call because its client has been closed."""
    try:
        call()
    except RuntimeError as error:
        return "closed" in str(error)
    except KafkaException:
        return False
    return False


def test_callbacks_of_an_abandoned_client_are_ignored(
    consumer: KafkaConsumer, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing makes callbacks, on another thread, for partitions that the next client may have received again."""
    configuration: dict[str, Callable[..., None]] = {}

    def new_driver(settings: dict[str, Callable[..., None]]) -> ScriptedDriver:
        configuration.update(settings)
        return ScriptedDriver()

    monkeypatch.setattr(member_client, "Consumer", new_driver)
    before = consumer._client.while_current(consumer._lose)
    consumer._rejoin_reason = "a test"
    consumer.poll(1, 0)
    consumer._assigned(consumer._client.driver, places(0, 1))
    before(driver, places(0))
    assert consumer.assignment() == {0, 1}
    consumer._client.while_current(consumer._lose)(driver, places(0))
    assert consumer.assignment() == {1}
    configuration["error_cb"](KafkaError(KafkaError._AUTHENTICATION))
    with pytest.raises(ConfigError):
        consumer.poll(1, 0)


@pytest.mark.parametrize(
    ("answers", "another"),
    [
        (["one", "one"], False),
        (["one", "two"], True),
        (["", "one"], False),
        (["one", None, "one"], True),
        (["one", KafkaError(KafkaError._TIMED_OUT), "one"], False),
    ],
    ids=["same", "another", "unknown", "was-missing", "no-answer"],
)
def test_a_recreated_topic_is_noticed(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | KafkaError | None], another: bool
) -> None:
    class Found:
        def __init__(self, topic_id: str) -> None:
            self.topic_id = topic_id

    def ask() -> Future[object]:
        answer, answered = answers.pop(0), Future[object]()
        if isinstance(answer, str):
            answered.set_result(Found(answer))
        else:
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if answer is None else answer
            answered.set_exception(KafkaException(error))
        return answered

    monkeypatch.setattr(offset_look_up, "WATCH_S", 0)
    look_up = OffsetLookUp(KafkaTopic("broker:9092", "t", 4), "m")
    monkeypatch.setattr(look_up, "ask_topic", ask)
    watch = TopicWatch(look_up)
    watch.begin(str(answers.pop(0)))
    noticed = [watch.is_another() for _ in range(2 * len(answers))]
    assert noticed == [False] * (len(noticed) - 1) + [another]


@pytest.mark.parametrize(("end", "revoked"), [(8, []), (9, [{0, 1}]), (3, [{0, 1}])], ids=["none", "more", "less"])
def test_a_member_that_misses_messages_rejoins(
    consumer: KafkaConsumer,
    driver: ScriptedDriver,
    monkeypatch: pytest.MonkeyPatch,
    end: int,
    revoked: list[frozenset[int]],
) -> None:
    """The driver does this with a recreated topic: it fetches in vain for ever, and reports nothing."""
    monkeypatch.setattr(consumer._stalls, "patience_s", 0)
    monkeypatch.setattr(consumer._look_up, "offsets", lambda _which: {0: end, 1: 100})
    monkeypatch.setattr(consumer._commits, "committed", lambda _driver, partitions, _id: dict.fromkeys(partitions, -1))
    given_up: list[frozenset[int]] = []
    consumer.on_revoke(given_up.append)
    driver.steps += [message(0, 7)]
    assert taken(consumer) == [(0, 7)]
    for _ in range(3):
        assert given_up == []
        assert taken(consumer) == []
    assert given_up == revoked


@pytest.mark.parametrize(
    ("committed", "first", "end", "revoked"),
    [(5, 0, 8, [{0, 1}]), (-1, 0, 8, [{0, 1}]), (8, 0, 8, []), (-1, 0, 0, []), (5, 8, 8, [])],
    ids=["committed", "never-committed", "all-done", "empty", "all-removed"],
)
def test_a_member_that_gets_nothing_from_its_partitions_rejoins(
    consumer: KafkaConsumer,
    monkeypatch: pytest.MonkeyPatch,
    committed: int,
    first: int,
    end: int,
    revoked: list[frozenset[int]],
) -> None:
    """The driver does this when it learns, while it looks up where to start, that another broker coordinates the
    group."""
    monkeypatch.setattr(consumer._stalls, "patience_s", 0)
    monkeypatch.setattr(
        consumer._commits, "committed", lambda _driver, partitions, _id: dict.fromkeys(partitions, committed)
    )
    monkeypatch.setattr(
        consumer._look_up, "offsets", lambda which: dict.fromkeys((0, 1), first if which is EARLIEST else end)
    )
    given_up: list[frozenset[int]] = []
    consumer.on_revoke(given_up.append)
    assert taken(consumer) == []
    consumer._assigned(consumer._client.driver, places(1))  # what has just come is not judged by what was there before
    for _ in range(3):
        assert given_up == []
        assert taken(consumer) == []
    assert given_up == revoked


@pytest.mark.parametrize(
    ("known_id", "member_id", "silent_s_max", "clients"),
    [(None, "", 300, 2), ("m-1", "m-1", 0, 1), ("m-0", "m-1", 0, 2), ("m-0", "m-1", 300, 1)],
    ids=["unheard", "idle", "left-out", "rebalancing"],
)
def test_a_member_that_is_not_admitted_tries_another_client(
    monkeypatch: pytest.MonkeyPatch, known_id: str | None, member_id: str, silent_s_max: int, clients: int
) -> None:
    """The driver may be waiting for metadata that it already has. A member without partitions keeps waiting, and so
    does one whose group rebalances."""
    made: list[ScriptedDriver] = []

    def new_driver(_configuration: object) -> ScriptedDriver:
        made.append(ScriptedDriver())
        made[-1].member_id = member_id
        return made[-1]

    monkeypatch.setattr(member_client, "Consumer", new_driver)
    monkeypatch.setattr(KafkaConsumer, "_is_stuck", lambda _consumer: False)
    with closing(KafkaConsumer(KafkaTopic("broker:9092", "t", 4), group="g", member="m")) as consumer:
        monkeypatch.setattr(consumer._stalls, "_join_patience_s", 0)
        monkeypatch.setattr(consumer, "_member_id", known_id)
        monkeypatch.setattr(consumer._stalls, "_poll_interval_s_max", silent_s_max)
        assert taken(consumer) == []
        assert len(made) == 1, "it may be on its way"
        for _ in range(4):
            assert taken(consumer) == []
        assert len(made) == clients


@pytest.mark.parametrize("owns", [False, True])
def test_a_member_that_has_not_joined_is_looked_at_sooner(monkeypatch: pytest.MonkeyPatch, owns: bool) -> None:
    """One that joins late, and whose driver waits for metadata that it already has, would otherwise do nothing for
    minutes."""
    topic, now_s = KafkaTopic("broker:9092", "t", 4, request_timeout_ms=30_000), [0.0]
    monkeypatch.setattr(stall_watch, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    watch, looks_s = stall_watch.StallWatch(topic, 300), []
    while now_s[0] < 200:
        now_s[0] += 1
        if watch.check_is_due(owns=owns):
            looks_s.append(now_s[0])
    assert looks_s[:2] == ([90, 180] if owns else [30, 60])


def test_a_commit_under_another_member_id_is_a_conflict(consumer: KafkaConsumer, driver: ScriptedDriver) -> None:
    """The driver lost its membership and has not reported it yet: the broker would let it commit to an empty group."""
    driver.steps = [message(0, 7)]
    assert taken(consumer) == [(0, 7)]
    driver.member_id = ""
    with pytest.raises(Conflict, match="removed from its group"):
        consumer.commit({0: 8})


def test_an_error_that_waiting_does_not_cure_is_raised_first_and_never_forgotten(
    consumer: KafkaConsumer, driver: ScriptedDriver
) -> None:
    driver.steps = [
        event(KafkaError._ALL_BROKERS_DOWN),
        event(KafkaError.TOPIC_AUTHORIZATION_FAILED),
        event(KafkaError._FATAL, fatal=True),
    ]
    with pytest.raises(ConfigError, match="ACLs"):
        consumer.poll(10, 0)
    with pytest.raises(ConfigError, match="instance name"):
        consumer.poll(10, 0)
    assert taken(consumer) == []


def test_a_message_without_key_and_value_reaches_the_decoder(consumer: KafkaConsumer, driver: ScriptedDriver) -> None:
    driver.steps = [DriverMessage(topic="t", partition=0, offset=1)]
    (got,) = consumer.poll(10, 0)
    assert (got.key, got.value) == (b"", b"")


class FailingProducer:
    """Meets a fatal error in its first `flush`, the way the driver raises it: a callback ran on meanwhile."""

    def __init__(self, _configuration: object) -> None:
        self.queued = 0
        self.reports: list[Callable[[KafkaError, None], None]] = []

    def produce(self, *_arguments: object, on_delivery: Callable[[KafkaError, None], None], **_named: object) -> None:
        self.queued += 1
        self.reports.append(on_delivery)

    def flush(self, _timeout: float) -> int:
        try:
            raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no producer id", True))
        except KafkaException as error:
            raise SystemError("returned a result with an exception set") from error

    def __len__(self) -> int:
        return self.queued

    def purge(self) -> None:
        self.queued = 0

    def close(self) -> None:
        assert self.queued == 0, "closing would continue to send them"
        for report in self.reports:  # as the driver does for what was purged
            report(KafkaError(KafkaError._PURGE_QUEUE), None)


def test_a_producer_with_a_fatal_error_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FailingProducer] = []

    def make(configuration: object) -> FailingProducer:
        made.append(FailingProducer(configuration))
        return made[-1]

    monkeypatch.setattr(publisher_module, "Producer", make)
    publisher = KafkaPublisher(KafkaTopic("broker:9092", "t", 4))
    for count in (1, 2):
        with pytest.raises(ConfigError, match="ACLs"):
            publisher.publish([(b"k", b"v")])
        assert len(made) == count
    publisher.close()
    with pytest.raises(ValueError, match="after close"):
        publisher.publish([(b"k", b"v")])


def test_a_consumer_that_only_reads_the_lag_uses_another_client_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not poll, so it would never find out that its client has lost its brokers. A member keeps its client."""
    made: list[ScriptedDriver] = []

    class BrokenDriver(ScriptedDriver):
        def committed(self, _places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def new_driver(_configuration: object) -> ScriptedDriver:
        made.append(BrokenDriver())
        return made[-1]

    monkeypatch.setattr(member_client, "Consumer", new_driver)
    monkeypatch.setattr(OffsetLookUp, "topic_id", lambda _look_up: "one")
    with closing(KafkaConsumer(KafkaTopic("broker:9092", "t", 4), group="g", member="m")) as consumer:
        for count in (2, 3):
            with pytest.raises(Transient):
                consumer.lag()
            assert len(made) == count
        consumer.poll(1, 0)
        with pytest.raises(Transient):
            consumer.lag()
        assert len(made) == 3


def test_a_refused_timestamp_is_a_matter_of_clocks() -> None:
    error = translate(KafkaError(KafkaError.INVALID_TIMESTAMP), KafkaTopic("127.0.0.1:1", "t", 1), "publish")
    assert type(error) is Transient
    assert "set the clocks" in str(error)
