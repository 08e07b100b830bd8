"""Packs published objects: message log -> merge list -> lanes of stripe writers -> committed offsets.

5  delivery is at least once: an offset is committed only when nothing is left to do for it
9  the merge list has a limit in objects and in bytes, the lanes in plans; beyond them partitions are paused
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event

import structlog

from nos_consumer.counters import ConsumerCounters
from nos_consumer.diary import Diary
from nos_consumer.unread import UnreadObjects
from nos_ec.core.errors import Conflict, Corrupt, NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import Extent
from nos_ec.core.killpoints import kill_point
from nos_ec.core.messages import PackRequest, decode_pack_request
from nos_ec.core.offsets import OffsetTracker
from nos_ec.core.packing.plan import MergeList
from nos_ec.engine.lanes import Lanes
from nos_ec.engine.limited_log import LimitedLog
from nos_ec.engine.packable import Packable
from nos_ec.engine.parking import BackOff
from nos_ec.engine.stripe_writer import Failure, WriteResult
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.message_log import Message, MessageConsumer
from nos_ec.ports.metadata import Metadata

_log = structlog.get_logger(__name__)

BUSY_WAIT_MS = 20
"""How long to wait for a message, or for a lane, while the other may have news."""
COMMIT_WAIT_MS = 1000
"""How long offsets that could be committed wait for others while there is work: each commit is a round trip and a
synced write of the log, and what a crash leaves uncommitted is only looked up again and found packed."""
TURN_WAIT_MS = 1000
"""Pause after a turn that failed."""
BACK_OFF = BackOff(first_ms=1000, max_ms=60_000)
"""Pauses in planning while nothing can be written: a store is away, or full. An object whose landing copy alone cannot
be read is no reason for one."""
DRAIN_FAILURES_MAX = 4
"""Failed rounds in a row after which `drain` gives up and raises; `run` goes on trying."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """poll_messages_max: messages a poll. waiting_objects_max, waiting_bytes_max: limits of the merge list; polling
    pauses above either. idle_wait_ms: longest wait for a message. drain_idle_ms: how long `drain` waits for
    partitions that another member may be about to give up."""

    poll_messages_max: int
    waiting_objects_max: int
    waiting_bytes_max: int
    idle_wait_ms: int
    drain_idle_ms: int


class ConsumerService:
    """One consumer. One thread owns it; the lanes run on threads of their own."""

    def __init__(
        self,
        messages: MessageConsumer,
        metadata: Metadata,
        lanes: Lanes,
        new_merge_list: Callable[[], MergeList],
        clock: Clock,
        options: ConsumerOptions,
        require_lease: Callable[[], None],
        unread: UnreadObjects,
    ) -> None:
        """`require_lease` raises LeaseLost when the lanes' lease was fenced. `unread` is this service's to close."""
        self._messages = messages
        self._metadata = metadata
        self._lanes = lanes
        self._new_merge_list = new_merge_list
        self._merge_list = new_merge_list()
        self._clock = clock
        self._options = options
        self._require_lease = require_lease
        self._tracker = OffsetTracker()
        self._known: dict[tuple[int, int], Packable] = {}
        """(object id, version) of what waits in the merge list or is in flight."""
        self._unchecked: list[tuple[Message, PackRequest]] = []
        """Taken from the log, but not looked up yet: the metadata store did not answer. One poll's worth at most."""
        self._unread = unread
        self._unread_moves = False
        self._errors = LimitedLog(__name__, clock)
        self._pause_until_ms = 0
        self._pause_ms = 0
        self._commit_due_ms = 0
        self._failures_in_row = 0
        self._last_cause: NosError | None = None
        self._paused = False
        self.counters = ConsumerCounters()
        messages.on_revoke(self._revoked)

    # --- running ----------------------------------------------------------------------------------
    @property
    def waiting_objects(self) -> int:
        """Objects on the merge list. This and the following three may be read by any thread."""
        return len(self._merge_list)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the objects on the merge list."""
        return self._merge_list.waiting_bytes

    @property
    def paused(self) -> bool:
        """True while the merge list is full and nothing is taken from the log."""
        return self._paused

    @property
    def unread(self) -> UnreadObjects:
        """Objects whose landing copies cannot be read now."""
        return self._unread

    @property
    def lanes(self) -> Lanes:
        """The lanes it writes with."""
        return self._lanes

    def run(self, stop: Event, beat: Beat = unwatched) -> None:
        """Pack until `stop` is set. Objects that wait then stay in the log: their offsets are not committed."""
        diary = Diary(self._clock.now_ms())
        while not stop.is_set():
            beat(self._options.idle_wait_ms)
            try:
                self.turn(flush=False)
            except Transient as error:
                _log.warning("trying again", error=str(error))
                self._clock.wait(stop, TURN_WAIT_MS)
            diary.turn(self._clock.now_ms(), self._messages.assignment(), self.counters, self.waiting_objects)
        diary.report(self.counters, self.waiting_objects)

    def drain(
        self, make_room: Callable[[], bool], watch: Callable[[ConsumerCounters], object] = lambda _: None
    ) -> None:
        """Pack everything there is, also what would not fill a stripe, until the group has no lag.

        `make_room` is asked when there is no space: true when it freed some (landing copies of what is packed
        already). `watch` sees the counters after every turn. Raises NoSpace or Transient when writing keeps failing,
        and Transient in the end when the landing copies of some objects could not be read, which are tried again until
        nothing has moved for drain_idle_ms; nothing is lost then, the log still has it or gets it again. Ends early
        when nothing has moved for drain_idle_ms: the rest belongs to other members.
        """
        idle_since_ms = self._clock.now_ms()
        while True:
            if self.turn(flush=True):
                idle_since_ms = self._clock.now_ms()
            watch(self.counters)
            if self._last_cause is not None and self._failures_in_row >= DRAIN_FAILURES_MAX:
                if not isinstance(self._last_cause, NoSpace) or not make_room():
                    raise self._last_cause
                self._failures_in_row = self._pause_until_ms = 0
            if len(self._known) > len(self._unread):
                continue
            if self._messages.lag() == 0 or self._clock.now_ms() - idle_since_ms >= self._options.drain_idle_ms:
                self._require_all_read()
                return

    def _require_all_read(self) -> None:
        for packable, parked in self._unread.parking:
            count = len(self._unread)
            raise Transient(
                f"{count} {'object is' if count == 1 else 'objects are'} not packed: the landing copy of {packable.key}"
                f" cannot be read now ({parked.reason}). All others are packed; run it again to try what is left"
            )

    def close(self) -> None:
        """Let the groups in flight finish, seal their blocks, commit what is done, leave the group."""
        try:
            self._settle(self._lanes.close())
            self._try_to_commit_offsets()
        finally:
            self._errors.report(closing=True)
            self._messages.close()
            self._unread.close()

    def turn(self, *, flush: bool) -> bool:
        """One round of collecting results, committing offsets, polling and planning. True when anything moved.

        `flush` plans short stripes as soon as a poll comes back empty. Raises LeaseLost, Transient.
        """
        self._require_lease()  # with no group to commit nothing else would tell
        results = self._lanes.collect(wait_ms=BUSY_WAIT_MS if self._paused else 0)
        self._settle(results)
        readable = self._try_unread()
        self._errors.report()
        self._commit_offsets_when_due()
        self._check_taken()
        messages = self._poll()
        self._take(messages)
        self._check_taken()
        planned = self._plan(flush=flush and not messages and not self._paused) or self._plan_one_when_stuck()
        return bool(results or readable or messages or planned)

    # --- messages ---------------------------------------------------------------------------------
    def _poll(self) -> list[Message]:
        """Poll with back-pressure: above a limit partitions are paused, and polling only keeps membership alive."""
        full = (
            len(self._merge_list) >= self._options.waiting_objects_max
            or self._merge_list.waiting_bytes >= self._options.waiting_bytes_max
        )
        if full:
            # At every poll: a rebalance may have brought partitions that are not paused yet.
            self._messages.pause(self._messages.assignment())
        elif self._paused:
            self._messages.resume(self._messages.assignment())
        self._paused = full
        return self._messages.poll(self._options.poll_messages_max, self._poll_wait_ms())

    def _poll_wait_ms(self) -> int:
        if self._paused:
            return 0
        if self._lanes.pending or self._unread_moves:
            return BUSY_WAIT_MS
        now_ms = self._clock.now_ms()
        deadline_ms = self._merge_list.next_deadline_ms()
        if deadline_ms is None:
            return self._options.idle_wait_ms
        return max(0, min(self._options.idle_wait_ms, max(deadline_ms, self._pause_until_ms) - now_ms))

    def _take(self, messages: Sequence[Message]) -> None:
        """Note what the log handed out; it does not hand it out again."""
        for message in messages:
            if not self._tracker.taken(message.partition, message.offset):
                continue
            self.counters.messages += 1
            request = self._decoded(message)
            if request is None:
                self._tracker.done(message.partition, message.offset)
            else:
                self._unchecked.append((message, request))

    def _check_taken(self) -> None:
        """Put what was taken on the merge list; what needs no packing is done at once. Raises Transient: then it is
        still to be checked, before anything more is polled."""
        if not self._unchecked:
            return
        landed = self._metadata.still_landed([request for _, request in self._unchecked])
        requests, self._unchecked = self._unchecked, []
        now_ms = self._clock.now_ms()
        for message, request in requests:
            if request not in landed or (request.object_id, request.version) in self._known:
                # Deleted, overwritten or packed already, or never so; or a copy of an event that is being worked on,
                # whose own offset is lower in the same partition and holds the commit back.
                self.counters.stale += 1
                self._tracker.done(message.partition, message.offset)
            else:
                self._wait(_packable(message, request), now_ms)

    def _decoded(self, message: Message) -> PackRequest | None:
        try:
            request = decode_pack_request(message.value)
            if request.size > self._merge_list.size_max:
                raise Corrupt(f"{request.key}: {request.size} bytes do not fit a stripe group")
        except Corrupt as error:
            # The row stays queued and comes due again, so nothing is lost by passing over the event.
            self.counters.poison += 1
            self._errors.error("message skipped", partition=message.partition, offset=message.offset, error=str(error))
            self._set_aside(message, str(error))
            return None
        return request

    def _set_aside(self, message: Message, reason: str) -> None:
        """A dead letter is for the operator: packing goes on without it when it cannot be kept."""
        try:
            self._messages.set_aside(message, reason)
        except NosError as error:
            self._errors.error(
                "message not set aside", partition=message.partition, offset=message.offset, error=str(error)
            )

    def _wait(self, packable: Packable, now_ms: int) -> None:
        self._unread.leave(packable)
        self._known[packable.object_id, packable.version] = packable
        self._merge_list.add(packable.candidate(now_ms))

    # --- packing ----------------------------------------------------------------------------------
    def _plan(self, *, flush: bool) -> bool:
        now_ms = self._clock.now_ms()
        planned = False
        while self._may_plan(now_ms) and (plan := self._merge_list.plan(now_ms, flush=flush)) is not None:
            self._lanes.submit(plan)
            planned = True
        return planned

    def _plan_one_when_stuck(self) -> bool:
        """The merge list is full by its limits but wants more for a perfect group: take the group there is."""
        now_ms = self._clock.now_ms()
        if not self._paused or self._lanes.pending or not self._may_plan(now_ms):
            return False
        plan = self._merge_list.plan(now_ms, flush=True)
        if plan is not None:
            self._lanes.submit(plan)
        return plan is not None

    def _may_plan(self, now_ms: int) -> bool:
        """After a failure one group tries it out for all."""
        if self._lanes.full or waits(self._pause_until_ms, now_ms, self._pause_ms):
            return False
        return not (self._failures_in_row and self._lanes.pending)

    def _settle(self, results: Sequence[WriteResult]) -> None:
        for result in map(self._looked_up, results):
            self._pause(result)
            self._book(result)

    def _book(self, result: WriteResult) -> None:
        for packable in (*result.packed, *result.superseded, *(failure.packable for failure in result.failed)):
            self._done(packable)
        for failure in result.failed:
            self._errors.error("object not packed", object=str(failure.packable.key), error=str(failure.error))
        for failure in result.unread:
            self._set_unread_aside(failure)
        for packable in result.retry:
            self._wait(packable, self._clock.now_ms())
        self._count(result)

    # --- objects that cannot be read ----------------------------------------------------------------
    def _set_unread_aside(self, failure: Failure) -> None:
        packable = failure.packable
        if self._unread.park(packable, failure.error):
            if self._unread.is_given_up(packable):
                self._give_up(packable)
        elif self._failures_in_row:
            # Nothing at all can be read: it is not this object's fault, and no reason to work through the whole log.
            self._wait(packable, self._clock.now_ms())
        else:
            self._give_up(packable)
            self._done(packable)

    def _give_up(self, packable: Packable) -> None:
        """Its offset is held no longer. Its row stays queued, so that the object is published again."""
        self.counters.given_up += 1
        for ticket in packable.tickets:
            self._tracker.done(*ticket)

    def _try_unread(self) -> bool:
        """Try those whose time has come; true when some could be read."""
        due = self._unread.due()
        if due:
            landed = self._still_landed(due)
            self._unread.probe(packable for packable in due if packable in landed)
            self._book(WriteResult(superseded=[packable for packable in due if packable not in landed]))
        probed = self._unread.probed()
        self._unread_moves = bool(probed)  # the next ones are not to wait for a poll that may take long
        readable = [packable for packable, error in probed if error is None]
        failures = [Failure(packable, error) for packable, error in probed if error is not None]
        if probed:
            unread = [failure for failure in failures if isinstance(failure.error, Transient)]
            failed = [failure for failure in failures if not isinstance(failure.error, Transient)]
            self._book(self._looked_up(WriteResult(unread=unread, failed=failed)))
        for packable in readable:
            self._wait(packable, self._clock.now_ms())
        return bool(readable)

    def _still_landed(self, packables: Sequence[Packable]) -> set[Packable]:
        """All of them when nobody can tell: they are looked up again when they are packed."""
        try:
            landed = self._metadata.still_landed([_request(packable) for packable in packables])
        except Transient:
            return set(packables)
        return {packable for packable in packables if _request(packable) in landed}

    def _looked_up(self, result: WriteResult) -> WriteResult:
        """A landing copy may be missing because its object was deleted or overwritten while it waited: nothing failed.

        Copies are deleted after their rows have moved on. So a row that still says `landed` after the copy was not
        found is an object whose bytes are gone.
        """
        missing = [failure.packable for failure in result.failed if isinstance(failure.error, NotFound)]
        if not missing:
            return result
        try:
            landed = self._metadata.still_landed([_request(packable) for packable in missing])
        except Transient as error:
            others = [failure for failure in result.failed if not isinstance(failure.error, NotFound)]
            return replace(result, failed=others, retry=[*result.retry, *missing], cause=result.cause or error)
        gone = {packable for packable in missing if _request(packable) not in landed}
        failed = [failure for failure in result.failed if failure.packable not in gone]
        return replace(result, failed=failed, superseded=[*result.superseded, *gone])

    def _done(self, packable: Packable) -> None:
        self._known.pop((packable.object_id, packable.version), None)
        self._unread.release(packable)
        for ticket in packable.tickets:
            self._tracker.done(*ticket)

    def _pause(self, result: WriteResult) -> None:
        """Back off when nothing could be written, or nothing at all could be read."""
        cause = result.cause or _all_unread(result)
        now_ms = self._clock.now_ms()
        if cause is not None:
            self._last_cause = cause
            if not waits(self._pause_until_ms, now_ms, self._pause_ms):  # the lanes' failures of one moment are one
                self._failures_in_row += 1
                self._pause_ms = BACK_OFF.wait_ms(self._failures_in_row)
                self._pause_until_ms = now_ms + self._pause_ms
                self._say_pause(cause)
        elif result.packed or result.superseded:
            if self._failures_in_row:
                self._unread.parking.hasten()  # what kept all of them may have been what kept those
            self._failures_in_row = 0

    def _say_pause(self, cause: NosError) -> None:
        if isinstance(cause, NoSpace):
            _log.error("no room to pack; objects stay in the landing store", error=str(cause), wait_ms=self._pause_ms)
        else:
            _log.warning("packing pauses", error=str(cause), wait_ms=self._pause_ms)

    def _count(self, result: WriteResult) -> None:
        counters = self.counters
        counters.packed += len(result.packed)
        counters.packed_bytes += sum(packable.size for packable in result.packed)
        counters.superseded += len(result.superseded)
        counters.failed += len(result.failed)
        counters.retried += len(result.retry) + len(result.unread)
        counters.stripes += result.stripe_count
        counters.groups += result.stripe_count > 0

    # --- offsets ----------------------------------------------------------------------------------
    def _commit_offsets_when_due(self) -> None:
        """Every COMMIT_WAIT_MS, and as soon as there is nothing left to work on."""
        now_ms = self._clock.now_ms()
        if not waits(self._commit_due_ms, now_ms, COMMIT_WAIT_MS) or not (self._known or self._unchecked):
            self._commit_due_ms = now_ms + COMMIT_WAIT_MS
            self._try_to_commit_offsets()

    def _try_to_commit_offsets(self) -> None:
        """Packing and polling go on without it: the same offsets are committed with later ones, or delivered again."""
        try:
            self._commit_offsets()
        except Transient as error:
            _log.warning("offsets not committed, trying again", error=str(error))

    def _commit_offsets(self) -> None:
        offsets = self._tracker.committable()
        if not offsets:
            return
        kill_point("consumer.before_offsets")
        try:
            self._messages.commit(offsets)
        except Conflict as error:
            # Thrown out of the group: the partitions' new owner delivers these again, and moves nothing twice.
            _log.warning("offsets not committed", error=str(error))
            return
        self.counters.offsets_committed += self._tracker.committed(offsets)
        kill_point("consumer.offsets_committed")

    def _revoked(self, partitions: frozenset[int]) -> None:
        """Finish what is in flight, commit, and forget what waits of these partitions: the new owner gets it."""
        try:
            while self._lanes.pending:
                self._settle(self._lanes.collect(wait_ms=BUSY_WAIT_MS))
            self._commit_offsets()
        finally:
            # They are given up in any case: offsets of theirs would make every later commit fail.
            self._forget(partitions)

    def _forget(self, partitions: frozenset[int]) -> None:
        self._tracker.drop(partitions)
        self._unchecked = [taken for taken in self._unchecked if taken[0].partition not in partitions]
        self._unread.forget(partitions)
        kept = [p for p in self._known.values() if not any(partition in partitions for partition, _ in p.tickets)]
        self._known.clear()
        self._merge_list = self._new_merge_list()
        now_ms = self._clock.now_ms()
        for packable in kept:
            if packable in self._unread:
                self._known[packable.object_id, packable.version] = packable
            else:
                self._wait(packable, now_ms)


def _packable(message: Message, request: PackRequest) -> Packable:
    return Packable(
        object_id=request.object_id,
        key=request.key,
        version=request.version,
        size=request.size,
        crc32c=request.crc32c,
        source=request.landing_id,
        tickets=((message.partition, message.offset),),
    )


def _all_unread(result: WriteResult) -> NosError | None:
    """Why, when not one source of a plan could be read: then it may be the store that is away, and not some copies."""
    if result.packed or result.superseded or result.failed or result.retry or not result.unread:
        return None
    return result.unread[0].error


def _request(packable: Packable) -> PackRequest:
    """What the log said of it."""
    assert not isinstance(packable.source, Extent), "consumers pack from the landing store"
    return PackRequest(
        object_id=packable.object_id,
        key=packable.key,
        version=packable.version,
        size=packable.size,
        crc32c=packable.crc32c,
        landing_id=packable.source,
    )
