"""Packs published objects: message log -> merge list -> lanes of stripe writers -> committed offsets.

5  delivery is at least once: the offset of a message is committed only when the message needs no more work (offsets.py)
9  the merge list has a limit in objects and in bytes; beyond either, partitions are paused. Lanes limit their plans
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event

import structlog

from nos_consumer.backlog import Backlog
from nos_consumer.counters import ConsumerCounters, ProgressLog
from nos_consumer.offsets import Offsets
from nos_consumer.pause import Pause
from nos_consumer.unread import UnreadObjects
from nos_ec.core.errors import ConfigError, Corrupt, NosError, NoSpace, NotFound, Transient
from nos_ec.core.formats.messages import NamedVersion, PackRequest, decode_pack_request
from nos_ec.core.packing.plan import MergeList
from nos_ec.engine.log_throttle import ThrottledLog
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.lanes import Lanes
from nos_ec.engine.packing.stripe_writer import Failure, WriteResult
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.message_log import Message, MessageConsumer
from nos_ec.ports.metadata import Objects

_log = structlog.get_logger(__name__)

POLL_MESSAGES_MAX = 1000
"""The most messages per poll: the default window of the packer."""
BUSY_WAIT_MS = 20
"""The longest wait for a message while a lane may finish, and for a lane while a message may arrive."""
TURN_WAIT_MS = 1000
"""The wait after a failed turn."""
DRAIN_FAILURES_MAX = 4
"""After this many failed rounds in a row, `drain` raises. `run` keeps trying."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a consumer."""

    waiting_objects_max: int
    """The limit of the merge list. Polling pauses when this limit or the next one is reached."""
    waiting_bytes_max: int
    idle_wait_ms: int
    """The longest wait for a message when there is nothing else to do."""
    drain_idle_ms: int
    """How long `drain` waits for partitions that another member may be about to give up."""
    store_id: str
    """The id of the store. Events of other stores are refused."""


class ConsumerService:
    """One consumer. One thread owns it; the lanes run on threads of their own."""

    def __init__(
        self,
        messages: MessageConsumer,
        metadata: Objects,
        lanes: Lanes,
        new_merge_list: Callable[[], MergeList[Packable]],
        clock: Clock,
        options: ConsumerOptions,
        require_lease: Callable[[], None],
        unread: UnreadObjects,
    ) -> None:
        """require_lease: raises LeaseLost if the lease of the lanes was fenced. unread: the service closes it."""
        self.counters = ConsumerCounters()
        self._messages = messages
        self._lanes = lanes
        self._clock = clock
        self._options = options
        self._require_lease = require_lease
        self._backlog = Backlog(metadata, new_merge_list, unread, clock)
        self._offsets = Offsets(messages, clock, self.counters)
        self._pause = Pause(clock)
        self._errors = ThrottledLog(__name__, clock)
        self._unread_moves = False
        self._paused = False
        messages.on_revoke(self._revoked)

    # --- running ----------------------------------------------------------------------------------
    @property
    def waiting_objects(self) -> int:
        """The number of objects on the merge list. Any thread may read this property and the following ones."""
        return self._backlog.waiting_objects

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the objects on the merge list."""
        return self._backlog.waiting_bytes

    @property
    def paused(self) -> bool:
        """Whether the merge list is full, so that no messages are taken from the log."""
        return self._paused

    @property
    def unread(self) -> UnreadObjects:
        """Objects whose landing copies cannot be read now."""
        return self._backlog.unread

    @property
    def lanes(self) -> Lanes:
        """The lanes that write the groups."""
        return self._lanes

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Pack until `stop` is set. Objects that are not packed by then are delivered again, because their offsets are
        not committed."""
        progress_log = ProgressLog(self._clock.now_ms())
        while not stop.is_set():
            beat(self._options.idle_wait_ms)
            try:
                self.turn(flush=False)
            except Transient as error:
                _log.warning("packing failed; trying again", error=str(error))
                self._clock.wait(stop, TURN_WAIT_MS)
            progress_log.turn(self._clock.now_ms(), self._messages.assignment(), self.counters, self.waiting_objects)
        progress_log.report(self.counters, self.waiting_objects)

    def drain(
        self, make_room: Callable[[], bool], watch: Callable[[ConsumerCounters], object] = lambda _: None
    ) -> None:
        """Pack all objects, in groups that need not be full, until the consumer group has no lag.

        `make_room` is called when the store is full. It returns whether it freed space by deleting landing copies of
        packed objects. `watch` is called with the counters after every turn. Ends early if there was no progress for
        `drain_idle_ms`, because the remaining messages belong to other members.

        Raises NoSpace or Transient when writing keeps failing. Raises Transient at the end if the landing copies of
        some objects could not be read. These objects are not lost: the log still has their events, or they are
        published again.
        """
        idle_since_ms = self._clock.now_ms()
        while True:
            if self.turn(flush=True):
                idle_since_ms = self._clock.now_ms()
            watch(self.counters)
            if self._pause.cause is not None and self._pause.failures_in_row >= DRAIN_FAILURES_MAX:
                if not isinstance(self._pause.cause, NoSpace) or not make_room():
                    raise self._pause.cause
                self._pause.end()
            if not self._backlog.only_unread_left:
                continue
            lag, idle_ms = self._messages.lag(), self._options.drain_idle_ms
            if lag == 0 or not waits(idle_since_ms + idle_ms, self._clock.now_ms(), idle_ms):
                if lag:
                    _log.warning("messages are left: other consumers hold their partitions", messages=lag)
                self._require_all_read()
                return

    def _require_all_read(self) -> None:
        for packable, parked in self.unread.retry_queue:
            count = len(self.unread)
            raise Transient(
                f"{count} {'object is' if count == 1 else 'objects are'} not packed: the landing copy of {packable.key}"
                f" cannot be read now ({parked.reason}). All others are packed; run the consumer again to retry"
            )

    def close(self) -> None:
        """Let the stripe groups in flight finish, seal their blocks, commit offsets, and leave the consumer group."""
        try:
            self._settle(self._lanes.close())
            self._offsets.try_to_commit()
        finally:
            self._errors.report(closing=True)
            self._messages.close()
            self.unread.close()

    def turn(self, *, flush: bool) -> bool:
        """Collect results, commit offsets, poll and plan once. Returns whether any of these made progress.

        With `flush`, groups that are not full are planned as soon as a poll returns no message. Raises LeaseLost and
        Transient.
        """
        self._require_lease()  # otherwise a consumer without groups to commit would not notice a lost lease
        results = self._lanes.collect(wait_ms=BUSY_WAIT_MS if self._paused else 0)
        self._settle(results)
        readable = self._retry_unread()
        self._errors.report()
        self._offsets.commit_when_due(idle=self._backlog.idle)
        self._check_taken()
        messages = self._poll()
        self._take(messages)
        self._check_taken()
        planned = self._plan(flush=flush and not messages and not self._paused) or self._plan_one_when_stuck()
        return bool(results or readable or messages or planned)

    # --- messages ---------------------------------------------------------------------------------
    def _poll(self) -> list[Message]:
        """Poll with back-pressure. While the merge list is full, partitions are paused, and polling only keeps the
        membership alive."""
        full = (
            self._backlog.waiting_objects >= self._options.waiting_objects_max
            or self._backlog.waiting_bytes >= self._options.waiting_bytes_max
        )
        if full:
            # Pause before every poll, because a rebalance may have assigned partitions that are not paused.
            self._messages.pause(self._messages.assignment())
        elif self._paused:
            self._messages.resume(self._messages.assignment())
        self._paused = full
        return self._messages.poll(POLL_MESSAGES_MAX, self._poll_wait_ms())

    def _poll_wait_ms(self) -> int:
        if self._lanes.pending and self._paused:
            return 0  # the turn has waited for a lane
        if self._lanes.pending or self._unread_moves:
            return BUSY_WAIT_MS
        now_ms = self._clock.now_ms()
        # With a full merge list there is a group to plan at once, unless a failure pauses planning.
        deadline_ms = now_ms if self._paused else self._backlog.next_deadline_ms()
        if deadline_ms is None:
            return self._options.idle_wait_ms
        return max(0, min(self._options.idle_wait_ms, max(deadline_ms, self._pause.until_ms) - now_ms))

    def _take(self, messages: Sequence[Message]) -> None:
        """Keep the messages of a poll, because the log does not deliver them to this member again."""
        for message in messages:
            if not self._offsets.take(message):
                continue
            self.counters.messages += 1
            request = self._decoded(message)
            if request is None:
                self._offsets.done([(message.partition, message.offset)])
            else:
                self._backlog.add_message(message, request)

    def _check_taken(self) -> None:
        """Look up the objects of the taken messages, and mark stale messages as done. Raises Transient."""
        for message in self._backlog.look_up():
            self.counters.stale += 1
            self._offsets.done([(message.partition, message.offset)])

    def _decoded(self, message: Message) -> PackRequest | NamedVersion | None:
        try:
            request = decode_pack_request(message.value)
            if isinstance(request, PackRequest) and request.size > self._backlog.size_max:
                raise Corrupt(f"{request.key}: {request.size} bytes do not fit a stripe group", key=request.key)
        except Corrupt as error:
            # No object is lost by skipping the message: its row stays QUEUED and comes due again.
            self.counters.poison += 1
            self._errors.error("message skipped", partition=message.partition, offset=message.offset, error=str(error))
            self._set_aside(message, str(error))
            return None
        if isinstance(request, PackRequest) and request.store not in ("", self._options.store_id):
            # The other store would keep publishing it, while this store counts it as done.
            raise ConfigError(
                f"message log: partition {message.partition}, offset {message.offset}: an event of another store,"
                f" {request.store}; this one is {self._options.store_id}. Give each store a topic of its own. A topic"
                " with events of both may be deleted and created again with `nos-ec init`: objects that are not packed"
                " are then published again",
                settings=("kafka.topic",),
            )
        return request

    def _set_aside(self, message: Message, reason: str) -> None:
        """Keep the message as a dead letter for the operator. Packing continues even if that fails."""
        try:
            self._messages.set_aside(message, reason)
        except NosError as error:
            self._errors.error(
                "message not set aside", partition=message.partition, offset=message.offset, error=str(error)
            )

    # --- packing ----------------------------------------------------------------------------------
    def _plan(self, *, flush: bool) -> bool:
        planned = False
        while self._may_plan() and (plan := self._backlog.plan(flush=flush)) is not None:
            self._lanes.submit(plan)
            planned = True
        return planned

    def _plan_one_when_stuck(self) -> bool:
        """Plan a group that is not full when the merge list is at its limit but waits for more objects."""
        if not self._paused or self._lanes.pending or not self._may_plan():
            return False
        plan = self._backlog.plan(flush=True)
        if plan is not None:
            self._lanes.submit(plan)
        return plan is not None

    def _may_plan(self) -> bool:
        """Whether a group may be planned now. After a failure, one group at a time is tried until one succeeds."""
        if self._lanes.full or self._pause.holds():
            return False
        return not (self._pause.failures_in_row and self._lanes.pending)

    def _settle(self, results: Sequence[WriteResult]) -> None:
        for result in map(self._resolve_missing, results):
            self._note_failure(result)
            self._record(result)

    def _note_failure(self, result: WriteResult) -> None:
        """Pause planning if a group could not be written, or if none of its sources could be read. Groups that no
        lane has begun are planned again after the pause."""
        cause = result.cause or _all_unread(result)
        if cause is not None:
            self._pause.failed(cause)
            for plan in self._lanes.withdraw():
                for placed in plan.placed:
                    self._backlog.add_to_merge_list(placed.candidate.payload)
        elif (result.packed or result.superseded) and self._pause.succeeded():
            self.unread.retry_queue.hasten()  # the cause that blocked all objects may have blocked the parked ones too

    def _record(self, result: WriteResult) -> None:
        for packable in (*result.packed, *result.superseded, *(failure.packable for failure in result.failed)):
            self._done(packable)
        for failure in result.failed:
            self._errors.error("object not packed", object=str(failure.packable.key), error=str(failure.error))
        for failure in result.unread:
            self._set_unread_aside(failure)
        for packable in result.retry:
            self._backlog.add_to_merge_list(packable)
        if result.retry_short:
            self._backlog.shorten()
        self._count(result)

    # --- objects that cannot be read ----------------------------------------------------------------
    def _set_unread_aside(self, failure: Failure) -> None:
        packable = failure.packable
        if self.unread.park(packable, failure.error):
            if self.unread.is_given_up(packable):
                self._give_up(packable)
        elif self._pause.failures_in_row:
            # No source at all can be read. Giving up objects now would give up all objects in the log, one by one.
            self._backlog.add_to_merge_list(packable)
        else:
            self._give_up(packable)
            self._done(packable)

    def _give_up(self, packable: Packable) -> None:
        """Stop holding back the offset of an object. Its row stays QUEUED, so the object is published again."""
        self.counters.given_up += 1
        self._offsets.done(packable.tickets)

    def _retry_unread(self) -> bool:
        """Start the tries that are due, and handle those that ended. Returns whether a copy could be read."""
        due = self.unread.due()
        if due:
            landed = self._still_landed(due)
            self.unread.probe(packable for packable in due if packable in landed)
            self._record(WriteResult(superseded=[packable for packable in due if packable not in landed]))
        probed = self.unread.probed()
        self._unread_moves = bool(probed)  # do not let the next tries wait for a long poll
        readable = [packable for packable, error in probed if error is None]
        failures = [Failure(packable, error) for packable, error in probed if error is not None]
        if probed:
            unread = [failure for failure in failures if isinstance(failure.error, Transient)]
            failed = [failure for failure in failures if not isinstance(failure.error, Transient)]
            self._record(self._resolve_missing(WriteResult(unread=unread, failed=failed)))
        for packable in readable:
            self._backlog.add_to_merge_list(packable)
        return bool(readable)

    def _still_landed(self, packables: Sequence[Packable]) -> set[Packable]:
        """Return the objects that must still be packed. Returns all of them if the metadata store does not answer,
        because the commit checks their rows in any case."""
        try:
            return self._backlog.still_landed(packables)
        except Transient:
            return set(packables)

    def _resolve_missing(self, result: WriteResult) -> WriteResult:
        """Return the result, with objects that were deleted, overwritten or packed meanwhile counted as superseded.

        Their landing copies are missing, which is not a failure. A copy is deleted only after its row has changed. So
        if the row still refers to a missing copy, the bytes of the object are lost.
        """
        missing = [failure.packable for failure in result.failed if isinstance(failure.error, NotFound)]
        if not missing:
            return result
        try:
            landed = self._backlog.still_landed(missing)
        except Transient as error:
            others = [failure for failure in result.failed if not isinstance(failure.error, NotFound)]
            return replace(result, failed=others, retry=[*result.retry, *missing], cause=result.cause or error)
        gone = set(missing) - landed
        failed = [failure for failure in result.failed if failure.packable not in gone]
        return replace(result, failed=failed, superseded=[*result.superseded, *gone])

    def _done(self, packable: Packable) -> None:
        self._backlog.release(packable)
        self._offsets.done(packable.tickets)

    def _count(self, result: WriteResult) -> None:
        counters = self.counters
        counters.packed += len(result.packed)
        counters.packed_bytes += sum(packable.size for packable in result.packed)
        counters.superseded += len(result.superseded)
        counters.failed += len(result.failed)
        counters.retried += len(result.retry) + len(result.unread)
        counters.stripes += result.stripe_count
        counters.split += result.split_objects
        counters.empty_front_bytes += result.empty.front
        counters.empty_gap_bytes += result.empty.gap
        counters.empty_end_bytes += result.empty.end
        counters.groups += result.stripe_count > 0

    # --- rebalancing --------------------------------------------------------------------------------
    def _revoked(self, partitions: frozenset[int]) -> None:
        """Finish the groups in progress, commit, and forget the objects of these partitions, which the new owner packs.
        Objects of the other partitions wait again, including those of groups that no lane has begun."""
        try:
            self._lanes.withdraw()
            while self._lanes.pending:
                self._settle(self._lanes.collect(wait_ms=BUSY_WAIT_MS))
            self._offsets.commit()
        finally:
            # Forget the partitions even after a failure, because a commit that includes their offsets would fail.
            self._offsets.drop(partitions)
            self._backlog.forget(partitions)


def _all_unread(result: WriteResult) -> NosError | None:
    """Return the first error if no source of a plan could be read, because the whole store may be unavailable;
    otherwise None."""
    if result.packed or result.superseded or result.failed or result.retry or not result.unread:
        return None
    return result.unread[0].error
