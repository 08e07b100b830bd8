"""Derives from the facts about an object why it is where it is, as a reason and sentences for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from nos_ec.core.states import ObjectState, SegmentState
from nos_ec.engine.explain.object_facts import Copy, ObjectOptions, Publishing
from nos_ec.engine.explain.verdict import LATE_MS, Verdict, capitalised
from nos_ec.engine.texts import count_text, moment, span, when
from nos_ec.ports.metadata import ObjectRow


class ObjectReason(StrEnum):
    """The reason why an object is where it is. The first ones concern objects that wait to be packed."""

    TOO_YOUNG = "too_young"
    """It is not old enough to be published."""
    DUE = "due"
    """It is due to be published, and a producer holds its slot."""
    NO_PRODUCER = "no_producer"
    """It is due to be published, but no producer holds its slot."""
    REFUSED = "refused"
    """The message log did not take its event."""
    EVENT_WAITS = "event_waits"
    """Its event is published, but the consumer group has not processed it yet."""
    NO_CONSUMER = "no_consumer"
    """Its event waits in a partition that no consumer holds."""
    EVENT_PASSED = "event_passed"
    """The consumer group has passed its event without packing it."""
    PROGRESS_UNKNOWN = "progress_unknown"
    """Its event is published, but the message log does not report how far the consumers are."""
    NO_SPACE = "no_space"
    """Its event is published, but there is no space to pack it."""
    COPY_UNREADABLE = "copy_unreadable"
    """Its landing copy cannot be read now."""
    COPY_LOST = "copy_lost"
    """Its landing copy, its only one, is lost or damaged."""
    NOT_WAITING = "not_waiting"
    """Its bytes are a landing copy, but the metadata is damaged and does not list it among the waiting objects."""
    PACKED = "packed"
    """It is packed, and no landing copy of it is known."""
    COPY_IN_GRACE = "copy_in_grace"
    """It is packed, and its landing copy is kept for a while."""
    COPY_TO_VERIFY = "copy_to_verify"
    """It is packed, and its landing copy is deleted as soon as the packed bytes are verified."""
    COPY_VERIFIED = "copy_verified"
    """It is packed and verified, and its landing copy will be deleted soon."""
    COPY_HELD = "copy_held"
    """It is packed and verified, but its record stays in the queue until its landing segment is sealed."""
    LARGE = "large"
    """It is in blocks of its own."""
    EMPTY = "empty"
    """It has no bytes."""


@dataclass(frozen=True, slots=True)
class ObjectEvidence:
    """All facts about an object. row: its row, with its due time. is_passed: whether the consumer group has passed the
    event (core/publishing/republish.py). no_space: why nothing can be packed. places: how many segments a large object
    has, without its tail. tail: the row of its tail; None without one. chunks: how many chunks hold a packed object.
    chunks_min: the fewest chunks that an object of its size can take. shard_reads: the shard reads of a GET."""

    row: ObjectRow
    now_ms: int
    options: ObjectOptions
    copy: Copy | None
    publishing: Publishing | None
    is_passed: bool
    no_space: str | None
    places: int
    tail: ObjectRow | None = None
    chunks: int | None = None
    chunks_min: int | None = None
    shard_reads: int | None = None


def judge_object(e: ObjectEvidence) -> Verdict[ObjectReason]:
    """Return the verdict that follows from the evidence."""
    state = e.row.state
    if state is ObjectState.EMPTY:
        return Verdict(ObjectReason.EMPTY, "It has no bytes, only a row.", "There is nothing to pack.")
    if state is ObjectState.LARGE:
        blocks = count_text(e.places, "block of its own", "blocks of its own")
        return Verdict(
            ObjectReason.LARGE,
            f"It is too big to share a stripe group, so its PUT wrote it straight to {blocks}. It never had a landing"
            f" copy.{_about_tail(e.tail)}",
            "It stays there until it is deleted or overwritten. GC never moves a large object.",
        )
    if e.publishing is None:
        packed = _packed(e)
        return replace(packed, why=packed.why + _about_split(e))
    return _unpackable(e, e.publishing) or (
        _to_publish(e, e.publishing) if e.publishing.published_ms is None else _published(e, e.publishing)
    )


def _about_tail(tail: ObjectRow | None) -> str:
    if tail is None:
        return ""
    where = "packed" if tail.extent is not None else tail.state.value
    return (
        f" Its last {tail.size} bytes, which do not fill a stripe, are a separate object, {tail.key}: it is {where},"
        " and GC deletes it with the last of these blocks."
    )


# --- objects that wait ----------------------------------------------------------------------------
def _unpackable(e: ObjectEvidence, way: Publishing) -> Verdict[ObjectReason] | None:
    """Return the verdict if the object itself cannot be packed; otherwise None."""
    copy = e.copy
    if copy is not None and copy.readable is False:
        return Verdict(
            ObjectReason.COPY_LOST,
            f"Its landing copy, the only copy of its bytes, is lost or damaged: {copy.problem}.",
            "Consumers retry without success; GETs fail as well.",
            "Restore the lost disk or device of the landing log (docs/RUNBOOKS.md), or store the object again.",
        )
    if way.due_ms is None:
        return Verdict(
            ObjectReason.NOT_WAITING,
            "The metadata is damaged: the object's bytes are a landing copy, but it is not listed among the objects"
            " that wait to be packed.",
            "No producer will publish it. It can still be read.",
            "Read the object with `nos-ec get` and store it again with `nos-ec put`; then look for the cause"
            " (docs/OPERATIONS.md, Damaged metadata).",
        )
    if copy is not None and copy.problem is not None:
        return Verdict(
            ObjectReason.COPY_UNREADABLE,
            f"Its landing copy cannot be read now: {copy.problem}.",
            "A consumer that receives its event parks it and retries after 5 s, later after up to 10 minutes.",
            "Repair the store that does not answer (docs/OPERATIONS.md, While a part is away).",
        )
    return None


def _to_publish(e: ObjectEvidence, way: Publishing) -> Verdict[ObjectReason]:
    """Return the verdict on an object without an event in the message log."""
    assert way.due_ms is not None
    is_held = way.slot_held_until_ms is not None
    start = None if is_held else f"No producer holds slot {way.slot} now: start `nos-ec producer`."
    due = when(way.due_ms, e.now_ms)
    if e.row.state is ObjectState.QUEUED:
        return Verdict(
            ObjectReason.REFUSED,
            "Its event is not in the message log: the log refused it, or its partition did not answer.",
            f"The producer that holds slot {way.slot} retries {due}."
            if way.due_ms > e.now_ms
            else f"The next attempt was due {due}.",
            start or "The producer's log has the reason; see also nos_ec_producer_refused_events_total.",
            way.due_ms,
        )
    if way.due_ms > e.now_ms:
        return Verdict(
            ObjectReason.TOO_YOUNG,
            f"It is too young to be packed (put.min_age_ms): it was stored {when(e.row.created_ms, e.now_ms)}, and is"
            " not due to be published yet.",
            f"It is due {due}. Then the producer that holds slot {way.slot} publishes it, and a consumer packs it.",
            start,
            way.due_ms,
        )
    overdue_ms = e.now_ms - way.due_ms
    again = _landed_again(e, way.due_ms)
    if not is_held:
        return Verdict(
            ObjectReason.NO_PRODUCER,
            f"It has been due to be published for {span(overdue_ms)}, but no producer holds slot {way.slot}, which"
            f" contains its bucket.{again}",
            "A running producer takes the slot within a third of store.lease_ttl_ms. Without a producer, the object"
            " keeps waiting.",
            "Start `nos-ec producer`." if not way.producers else "Producers run; if it stays so, read their logs.",
            way.due_ms,
        )
    return Verdict(
        ObjectReason.DUE,
        f"It has been due to be published for {span(overdue_ms)}.{again}",
        f"The producer that holds slot {way.slot} publishes it in one of its next turns, the longest overdue first.",
        "That is late: read the producer's log, and nos_ec_producer_failures_total." if overdue_ms > LATE_MS else None,
        way.due_ms,
    )


def _landed_again(e: ObjectEvidence, due_ms: int) -> str:
    """Return a sentence about an object that came due long after its PUT; otherwise an empty string."""
    if due_ms <= e.row.created_ms + e.options.min_age_ms + LATE_MS:
        return ""
    return (
        f" It came due {span(due_ms - e.row.created_ms)} after its PUT: either the reaper has set it back to its"
        " landing copy, because its packed bytes were lost or damaged (see the log of consumers and GC runs), or"
        " put.min_age_ms was changed."
    )


def _published(e: ObjectEvidence, way: Publishing) -> Verdict[ObjectReason]:
    """Return the verdict on an object whose event is, or was, in the message log."""
    assert way.published_ms is not None
    published = f"Its event was published {when(min(way.published_ms, e.now_ms), e.now_ms)}"
    again = "" if way.due_ms is None else when(way.due_ms, e.now_ms)
    if e.is_passed:
        return Verdict(
            ObjectReason.EVENT_PASSED,
            f"{published}, and the consumer group has passed it without packing the object: its landing copy could not"
            " be read for minutes, or the consumer group was reset.",
            f"A producer publishes it again when it is due, {again}.",
            'A consumer that has parked it logs the reason; see nos_ec_parked_items{what="object"}.',
            way.due_ms,
        )
    if e.no_space is not None:
        return Verdict(
            ObjectReason.NO_SPACE,
            f"{published}, but nothing can be packed: {e.no_space}.",
            "Consumers pack it once GC has freed space above gc.reserve_bytes.",
            "Delete objects, also those in the trash, and run `nos-ec gc run --apply`, or add space (docs/RUNBOOKS.md,"
            " Space runs out).",
        )
    where = "one of the partitions" if way.spread else f"partition {way.holders[0].partition}"
    members = sorted({one.member for one in way.holders if one.member is not None})
    if way.members_known and not members:
        return Verdict(
            ObjectReason.NO_CONSUMER,
            f"{published}, and waits in {where}, which no consumer holds.",
            "It waits until a consumer runs.",
            "Start `nos-ec consumer`. One that has just started takes its partitions within seconds.",
        )
    if way.passed_ms is None:
        return Verdict(
            ObjectReason.PROGRESS_UNKNOWN,
            f"{published}. The message log does not report now how far the consumers are.",
            f"If consumers run, one of them packs it. If its event is lost, it is published again {again}, or later.",
            "Check the message log with `nos-ec config check --connect`.",
            way.due_ms,
        )
    holders = "unknown consumers" if not members else ", ".join(members)
    latest_ms = way.published_ms + max(e.options.linger_ms, e.options.linger_ms_max)
    late = e.now_ms > latest_ms + LATE_MS
    return Verdict(
        ObjectReason.EVENT_WAITS,
        f"{published}, to {where}, held by {holders}. It is not packed yet: a consumer has not read the event, or keeps"
        " the object on its merge list until other objects fill its stripe.",
        f"It is packed by {moment(latest_ms)} at the latest if consumers keep up: an object waits for others for"
        f" {span(e.options.linger_ms)} (consumer.linger_ms), or {span(e.options.linger_ms_max)} (linger_max_ms) while"
        " too few wait.",
        "That time has passed: the consumer lags or is paused, or has parked the object. Read its log and"
        ' nos_ec_parked_items{what="object"}, and see docs/RUNBOOKS.md, Lag grows.'
        if late
        else None,
        latest_ms,
    )


# --- packed objects -------------------------------------------------------------------------------
def _packed(e: ObjectEvidence) -> Verdict[ObjectReason]:
    assert e.row.extent is not None
    packed = f"It is packed, in block {e.row.extent.block_id.hex()}"
    copy = e.copy
    if copy is None or copy.delete_after_ms is None:
        return Verdict(
            ObjectReason.PACKED,
            f"{packed}. No landing copy of it is queued for deletion any more.",
            "It stays there until it is deleted or overwritten, or until GC moves it to another block.",
        )
    what, goes = _what_goes(copy)
    if copy.doomed and copy.segment_state is SegmentState.OPEN:
        return Verdict(
            ObjectReason.COPY_HELD,
            f"{packed}, and the packed bytes were verified. Its {what} is kept only because the landing segment is"
            " still open.",
            "Its entry is removed once the process that writes the segment has sealed it: when it is full,"
            " landing.segment_age_ms after its first PUT, or when the process ends.",
        )
    if copy.doomed:
        return Verdict(
            ObjectReason.COPY_VERIFIED,
            f"{packed}, and the packed bytes were verified.",
            f"The next round of a consumer or GC run {goes}.",
            "If it is still there in a few minutes, start `nos-ec consumer`, or read its log for copies that cannot be"
            " deleted.",
            copy.delete_after_ms,
        )
    if copy.delete_after_ms > e.now_ms:
        return Verdict(
            ObjectReason.COPY_IN_GRACE,
            f"{packed}. Its {what} is kept for reaper.landing_grace_ms, or until the next attempt after a failure.",
            f"{capitalised(when(copy.delete_after_ms, e.now_ms))}, a consumer or GC run reads the packed bytes back and"
            f" checks their CRC; then it {goes}.",
            None,
            copy.delete_after_ms,
        )
    overdue_ms = e.now_ms - copy.delete_after_ms
    return Verdict(
        ObjectReason.COPY_TO_VERIFY,
        f"{packed}. Its {what} has been due for deletion for {span(overdue_ms)}.",
        f"The next round of a consumer or GC run reads the packed bytes back and checks their CRC; then it {goes}.",
        "That is late: check that `nos-ec consumer` runs, and see nos_ec_store_overdue_deletion_seconds, and"
        ' nos_ec_parked_items{what="landing copy"} for copies that cannot be verified.'
        if overdue_ms > LATE_MS
        else None,
        copy.delete_after_ms,
    )


def _about_split(e: ObjectEvidence) -> str:
    if e.chunks is None or e.chunks_min is None or e.chunks <= e.chunks_min:
        return ""
    split = f" It is split: it lies in {count_text(e.chunks, 'chunk')} where {e.chunks_min} could hold it"
    if e.shard_reads != e.chunks:
        return f"{split}. This costs no extra shard read, because a read of it needs all data shards in any case."
    return (
        f"{split}, so a GET of it takes one more shard read. Otherwise its writer would have left more space empty than"
        " that read is worth (consumer.split_bytes, docs/PACKING.md)."
    )


def _what_goes(copy: Copy) -> tuple[str, str]:
    if copy.segment is None:
        return "landing copy", "deletes the copy"
    return (
        f"record in landing segment {copy.segment}",
        "removes the record's entry, and gives the segment back once no record in it is needed",
    )
