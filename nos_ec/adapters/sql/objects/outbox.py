"""Adds events of changes to the outbox, and hands them to producers (docs/adr/0059).

An event is inserted under the lock of its key's row, or after the checks that stand in for that lock, as the last step
of a change. So the events of a key get ascending ids in the order of their changes: a later change waits for the
transaction of the earlier one before it can add its own event.

The sequencer of an event is the number of the version that was stored. A removal has max(version + 1, now x 1000). A
later PUT must have a greater one, also within the same millisecond, or with a clock that is behind. So removals of null
versions raise the floor of the key (floors.py), above which PUTs are numbered in buckets with notifications.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock as ThreadLock
from typing import Any

from sqlalchemy import BigInteger, Connection, SmallInteger, and_, bindparam, delete, func, insert, select

from nos_ec.adapters.sql.objects import floors
from nos_ec.adapters.sql.tables.base import SqlPart, reads
from nos_ec.adapters.sql.tables.rows import by_index
from nos_ec.adapters.sql.tables.schema import BUCKET_DOCUMENTS, OUTBOX
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.notifications.configuration import Notification, decode
from nos_ec.core.notifications.message import ObjectEvent, encode_event, encode_gap
from nos_ec.core.notifications.origin import LIFECYCLE, Origin, current_origin
from nos_ec.core.publishing.slots import bucket_slot
from nos_ec.core.tails import hidden_prefix
from nos_ec.ports.metadata import DocumentKind, ObjectRow
from nos_ec.ports.metadata.outbox import OutboxEvent, OutboxOptions

CONFIGURATION_MS = 10_000
"""How long a process uses the notification configuration of a bucket before it reads it again."""
_BUCKETS_MAX = 10_000
"""Buckets whose configurations are cached."""
_GAPS_AT_A_TIME = 50
_NEAR_PERCENT = 80
"""When the outbox is this full, in percent of its bound, it is counted, at most every CONFIGURATION_MS."""

_E, _D = OUTBOX.c, BUCKET_DOCUMENTS.c
_OF_QUEUE = (
    _E.topic == bindparam("topic", type_=_E.topic.type),
    _E.slot == bindparam("slot", type_=SmallInteger),
)
_QUEUES = by_index(select(_E.topic, _E.slot), OUTBOX, "outbox_by_queue").order_by(_E.topic, _E.slot).limit(1)
NEXT_SLOT = _QUEUES.where(
    _E.topic == bindparam("topic", type_=_E.topic.type), _E.slot > bindparam("slot", type_=SmallInteger)
)
NEXT_TOPIC = _QUEUES.where(_E.topic > bindparam("topic", type_=_E.topic.type))
_OF_TOPIC = by_index(select(_E.event_id), OUTBOX, "outbox_by_queue").where(
    _E.topic == bindparam("topic", type_=_E.topic.type)
)
COUNT_OF_TOPIC = select(func.count()).select_from(_OF_TOPIC.limit(bindparam("rows_max")).subquery("events_of_topic"))
PAGE = (
    by_index(select(_E.event_id, _E.message_key, _E.sequencer, _E.body), OUTBOX, "outbox_by_queue")
    .where(*_OF_QUEUE)
    .order_by(_E.topic, _E.slot, _E.event_id)
    .limit(bindparam("rows_max"))
)
LEAST = select(func.min(_E.event_id))
GREATEST = select(func.max(_E.event_id))
OLDEST = select(_E.created_ms).where(_E.event_id == LEAST.scalar_subquery())
_FORGET = delete(OUTBOX).where(_E.event_id == bindparam("sent", type_=BigInteger))
_CONFIGURATION = select(_D.body).where(
    and_(_D.bucket == bindparam("bucket", type_=_D.bucket.type), _D.kind == DocumentKind.NOTIFICATION)
)

CONFIGURATIONS = (
    select(_D.bucket, _D.body)
    .where(_D.bucket > bindparam("after", type_=_D.bucket.type), _D.kind == DocumentKind.NOTIFICATION)
    .order_by(_D.bucket)
    .limit(_GAPS_AT_A_TIME)
)


@dataclass(frozen=True, slots=True)
class Removal:
    """A version, or delete marker, that was removed, or a marker that was added to `key`: then `is_marker`. `version`
    is its number. `is_null` for a null version."""

    key: ObjectKey
    version: int
    is_null: bool
    is_marker: bool = False
    of_versions: bool = True


def plain_removal(row: ObjectRow) -> Removal:
    """Return the removal of an object whose key never had versions."""
    return Removal(row.key, row.version, is_null=True, of_versions=False)


def marker_added(key: ObjectKey, number: int, *, is_null: bool = True) -> Removal:
    """Return the delete marker with this number that was added."""
    return Removal(key, number, is_null=is_null, is_marker=True)


class EventWriter:
    """Adds the events of one call to the outbox. `watched` are the notifications of the buckets that have some."""

    def __init__(self, watched: Mapping[str, Sequence[Notification]], region: str) -> None:
        self._watched = watched
        self._region = region
        self._origin = current_origin()

    def watches(self, key: ObjectKey) -> bool:
        """Return whether the bucket of this key has notifications."""
        return key.bucket in self._watched

    def stored(self, connection: Connection, rows: Iterable[tuple[ObjectRow, Origin]], now_ms: int) -> None:
        """Add events for versions that were stored. Their rows must be locked."""
        events = [
            (_stored(row, origin.event or "s3:ObjectCreated:Put", row.version, now_ms), origin)
            for row, origin in rows
            if self.watches(row.key)
        ]
        self._add(connection, events, now_ms)

    def stored_large(self, connection: Connection, row: ObjectRow, origin: Origin, now_ms: int) -> None:
        """Add the event for a large object. Its number may be smaller than the floor of its key, because it was chosen
        when the PUT began. Then the event gets a greater sequencer, and so will later ones of the key."""
        if not self.watches(row.key):
            return
        number = row.version
        if not row.has_version_id:
            number = max(number, floors.floor_of(connection, row.key) + 1)
        if number > row.version:
            floors.raise_to(connection, row.key, number, now_ms)
        self._add(connection, [(_stored(row, origin.event or "s3:ObjectCreated:Put", number, now_ms), origin)], now_ms)

    def removed(self, connection: Connection, removals: Iterable[Removal], now_ms: int) -> None:
        """Add events for what was removed, and for markers. The rows of their keys must be locked."""
        listed = [one for one in removals if self.watches(one.key)]
        if not listed:
            return
        known = floors.floors_of(connection, {one.key for one in listed if one.is_null and not one.is_marker})
        events = []
        for one in listed:
            number = one.version
            if not one.is_marker:
                number = max(one.version + 1, now_ms * 1000, known.get(one.key, 0) + 1)
            if one.is_null and not one.is_marker:
                floors.raise_to(connection, one.key, number, now_ms)
            family = LIFECYCLE if self._origin.event == LIFECYCLE else "s3:ObjectRemoved"
            name = f"{family}:{'DeleteMarkerCreated' if one.is_marker else 'Delete'}"
            version_id = ("null" if one.is_null else f"{one.version:016x}") if one.of_versions else None
            events.append((ObjectEvent(name, one.key, number, now_ms, version_id=version_id), self._origin))
        self._add(connection, events, now_ms)

    def changed(self, connection: Connection, row: ObjectRow) -> None:
        """Add the event of changed attributes, if the request changes tags, or copies an object to itself. The row must
        be locked."""
        name = self._origin.event
        if self.watches(row.key) and name.startswith(("s3:ObjectTagging:", "s3:ObjectCreated:Copy")):
            now_ms = time.time_ns() // 1_000_000
            self._add(connection, [(_stored(row, name, row.version, now_ms), self._origin)], now_ms)

    def _add(self, connection: Connection, events: Iterable[tuple[ObjectEvent, Origin]], now_ms: int) -> None:
        rows = [
            _row(
                one.topic,
                event.key.bucket,
                f"{event.key.bucket}/{event.key.name}".encode(),
                event.sequencer,
                now_ms,
                encode_event(event, one.id, self._region, origin),
            )
            for event, origin in events
            for one in self._watched[event.key.bucket]
            if one.wants(event.name, event.key.name)
        ]
        if rows:
            _add_rows(connection, rows)
            kill_point("metadata.events_added.before_commit")


def _stored(row: ObjectRow, name: str, sequencer: int, now_ms: int) -> ObjectEvent:
    etag = None
    if row.envelope is None:
        md5, parts = row.tag
        etag = md5.hex() if parts is None else f"{md5.hex()}-{parts}"
    version_id = None
    if row.is_of_versions:
        version_id = f"{row.version:016x}" if row.has_version_id else "null"
    return ObjectEvent(name, row.key, sequencer, now_ms, row.users_size, etag, version_id)


class EventSource:
    """What a process knows about notifications: the cached configurations of buckets, and how full the outbox may be.
    Safe to call from several threads."""

    def __init__(self, options: OutboxOptions) -> None:
        self.options = options
        self._lock = ThreadLock()
        self._cached: OrderedDict[str, tuple[float, tuple[Notification, ...]]] = OrderedDict()
        self._counted, self._counted_to = 0, 0
        self._next_look_s = 0.0
        self.full_topics: Collection[str] = ()
        """The topics for which no more events are taken."""

    def cached(self, bucket: str) -> tuple[Notification, ...] | None:
        """Return the notifications of a bucket; None if they must be read."""
        with self._lock:
            found = self._cached.get(bucket)
        return None if found is None or found[0] <= time.monotonic() else found[1]

    def keep(self, bucket: str, notifications: tuple[Notification, ...]) -> None:
        """Cache the notifications of a bucket."""
        with self._lock:
            self._cached[bucket] = time.monotonic() + CONFIGURATION_MS / 1000, notifications
            self._cached.move_to_end(bucket)
            while len(self._cached) > _BUCKETS_MAX:
                self._cached.popitem(last=False)

    def forget(self, bucket: str) -> None:
        """Forget the notifications of a bucket, which were changed."""
        with self._lock:
            self._cached.pop(bucket, None)

    def look_is_due(self) -> bool:
        """Return whether this thread should look how full the outbox is."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._next_look_s:
                return False
            self._next_look_s = now_s + CONFIGURATION_MS / 1000
            return True

    def look(self, connection: Connection) -> None:
        """Look how full the outbox is.

        Ids are unique, so there are at most as many events as ids between the least and the greatest, and at most as
        many as were counted last and ids were given since. The events are counted only if that is near the bound.

        A topic is full if it has its share of the bound: a topic that nobody reads would otherwise stop the changes of
        buckets that send to others. Others may still get as many, so there are at most twice as many events in all.
        """
        most = self.options.events_max
        least, greatest = connection.execute(LEAST).scalar() or 0, connection.execute(GREATEST).scalar() or 0
        bound = min(greatest - least + 1, self._counted + greatest - self._counted_to)
        if not self._counted_to:
            bound = greatest - least + 1
        if bound * 100 >= most * _NEAR_PERCENT:
            bound = count(connection, most)
            self._counted, self._counted_to = bound, greatest
        self.full_topics = topics_over_share(connection, most) if bound >= most else ()


def count(connection: Connection, limit: int) -> int:
    """Return the number of events, or `limit` if there are more."""
    first = by_index(select(_E.event_id), OUTBOX, "outbox_by_queue").limit(limit).subquery("first_events")
    return int(connection.execute(select(func.count()).select_from(first)).scalar_one())


def topics_over_share(connection: Connection, most: int) -> list[str]:
    """Return the topics that have as many events as each may have of `most`. Reads that many entries of an index."""
    topics: list[str] = []
    while (row := connection.execute(NEXT_TOPIC, {"topic": topics[-1] if topics else ""}).first()) is not None:
        topics.append(row.topic)
    share = max(1, most // max(1, len(topics)))
    counts = ((topic, connection.execute(COUNT_OF_TOPIC, {"topic": topic, "rows_max": share})) for topic in topics)
    return [topic for topic, counted in counts if counted.scalar_one() >= share]


def configuration(connection: Connection, bucket: str) -> tuple[Notification, ...]:
    """Return the notifications of a bucket."""
    body = connection.execute(_CONFIGURATION, {"bucket": bucket}).scalar()
    return decode(body) if body else ()


class NotifyingPart(SqlPart):
    """A part whose changes add events."""

    _events: EventSource | None = None

    def _writer(self, buckets: Iterable[str], *, refuses: bool = True) -> EventWriter | None:
        """Return what adds events of changes in these buckets; None if none of them has notifications. Raises Transient
        if one has, and the outbox is full, unless the change was admitted before (`refuses` is False)."""
        return None if self._events is None else self._find_writer(self._events, set(buckets), refuses=refuses)

    def _find_writer(self, source: EventSource, buckets: Collection[str], *, refuses: bool) -> EventWriter | None:
        watched: dict[str, Sequence[Notification]] = {}
        for bucket in buckets:
            if hidden_prefix(bucket) is not None:
                continue
            found = source.cached(bucket)
            if found is None:
                found = tuple(one for one in self._read(configuration, bucket) if source.options.allows(one.topic))
                source.keep(bucket, found)
            if found:
                watched[bucket] = found
        if not watched:
            return None
        if refuses and source.look_is_due():
            self._read(source.look)
        full = {one.topic for found in watched.values() for one in found}.intersection(source.full_topics)
        if refuses and full:
            raise Transient(
                f"the outbox has {source.options.events_max} events, too many of them for {', '.join(sorted(full))}, so"
                " buckets with notifications to there take no changes; see why producers do not send them"
                " (s3.notification_events_max)"
            )
        return EventWriter(watched, source.options.region)


class SqlOutbox(NotifyingPart):
    """`Outbox` of the port."""

    def send_events(self, options: OutboxOptions) -> None:
        self._events = EventSource(options)

    def require_event_room(self, buckets: Collection[str]) -> None:
        self._writer(buckets)

    @reads
    def outbox_queues(self, connection: Connection, slots: Collection[int]) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        row = connection.execute(NEXT_TOPIC, {"topic": ""}).first()
        while row is not None:
            topic, slot = row
            if slot in slots:
                found.append((topic, slot))
            row = connection.execute(NEXT_SLOT, {"topic": topic, "slot": slot}).first()
            if row is None:
                row = connection.execute(NEXT_TOPIC, {"topic": topic}).first()
        return found

    @reads
    def outbox_events(self, connection: Connection, topic: str, slot: int, limit: int) -> list[OutboxEvent]:
        rows = connection.execute(PAGE, {"topic": topic, "slot": slot, "rows_max": limit})
        return [OutboxEvent(*row) for row in rows]

    def forget_events(self, event_ids: Sequence[int]) -> None:
        if event_ids:
            self._write(_forget_events, event_ids)

    def add_gaps(self, now_ms: int) -> int:
        added, after = 0, ""
        while page := self._read(_configurations, after):
            after = page[-1][0]
            rows = [
                _row(one.topic, bucket, f"{bucket}/".encode(), 0, now_ms, encode_gap(bucket, one.id, now_ms))
                for bucket, notifications in page
                for one in notifications
                if self._events is None or self._events.options.allows(one.topic)
            ]
            if rows:
                self._write(_add_rows, rows)
            added += len(rows)
        return added

    @reads
    def outbox_size(self, connection: Connection, limit: int) -> int:
        return count(connection, limit)

    @reads
    def oldest_event_ms(self, connection: Connection) -> int | None:
        found: int | None = connection.execute(OLDEST).scalar()
        return found


def _configurations(connection: Connection, after: str) -> list[tuple[str, tuple[Notification, ...]]]:
    return [(bucket, decode(body)) for bucket, body in connection.execute(CONFIGURATIONS, {"after": after})]


def _add_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(insert(OUTBOX), list(rows))


def _row(topic: str, bucket: str, key: bytes, sequencer: int, now_ms: int, body: bytes) -> dict[str, Any]:
    return {
        "topic": topic,
        "slot": bucket_slot(bucket),
        "message_key": key,
        "sequencer": sequencer,
        "created_ms": now_ms,
        "body": body,
    }


def _forget_events(connection: Connection, event_ids: Sequence[int]) -> None:
    connection.execute(_FORGET, [{"sent": event_id} for event_id in sorted(event_ids)])
