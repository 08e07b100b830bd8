"""The GC service: one collection of each free worker per run, started by cron or by its own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Event
from typing import Any, TypeVar

import structlog

from nos_ec.core.errors import Conflict, LeaseLost, NosError, Transient
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.gc.share import owner
from nos_ec.core.gc.target_costs import TargetCost
from nos_ec.core.ids import BlockId
from nos_ec.engine.expiry.lifecycle_walk import LifecycleWalk
from nos_ec.engine.gc.collector import Collector
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.gc.run.note import RunState, read_run
from nos_ec.engine.gc.run.progress import CollectionResult, GcCounters
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.throttling import POLL_MS
from nos_ec.engine.gc.victims import CollectionPlan
from nos_ec.engine.gc.workers import WorkersMetadata, read_workers, running_workers, worker_lease
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.objects.trash import Purged, TrashCan
from nos_ec.engine.packing.stripe_writer import StripeWriter
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.upkeep.housekeeping import Housekeeping
from nos_ec.engine.upkeep.upload_reaper import UploadReaper
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import Lease

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class GcService:
    """Runs GC and the work that belongs before a collection. Holds the lease of a worker while it collects. Any thread
    may read `counters` and `held`."""

    def __init__(
        self,
        collector: Collector,
        control: GcControl,
        housekeeping: Housekeeping,
        trash: TrashCan,
        lifecycle: LifecycleWalk,
        uploads: UploadReaper,
        new_lease: Callable[[str], HeldLease],
        metadata: WorkersMetadata,
        workers: int,
        new_writer: Callable[[Lease], StripeWriter],
        clock: Clock,
    ) -> None:
        """workers: how many GC workers the store may have at a time."""
        self._collector = collector
        self._control = control
        self._housekeeping = housekeeping
        self._trash = trash
        self.lifecycle = lifecycle
        self._uploads = uploads
        self._new_lease = new_lease
        self._metadata = metadata
        self._workers = workers
        self._new_writer = new_writer
        self._clock = clock
        self.counters = GcCounters()
        self.held: HeldLease | None = None
        """The lease, during a run."""

    @property
    def retry_queues(self) -> tuple[RetryQueue[Any], ...]:
        """The queue of the blocks that GC has parked. Any thread may read its figures."""
        return (self._collector.parked,)

    def plan(self) -> CollectionPlan:
        """Return what a run would do. Changes nothing."""
        return self._collector.plan()

    def target_costs(self, targets: Sequence[float]) -> list[TargetCost]:
        """Return the cost of bringing the store to each target space amplification. Changes nothing."""
        return self._collector.target_costs(targets)

    def run_once(
        self, beat: Beat = unwatched, stop: Event | None = None, max_ms: int | None = None, recent_ms: int = 0
    ) -> CollectionResult:
        """Free the space of dead objects: run housekeeping, apply expiry, then run one collection of each free worker.

        Housekeeping seals the blocks of dead writers. Expiry, which belongs to worker 0, removes expired objects from
        the trash, applies lifecycle rules, and deletes the parts of aborted uploads. With several workers, the worker
        comes first that has not run for longest; workers are left out whose last run began less than `recent_ms` before
        this call, or after it. `stop` ends the run early, and so do `max_ms` of collecting and a pause.

        Raises Conflict while other processes run all workers, LeaseLost, Transient and NoSpace; a later run continues
        from there. A worker that fails does not stop the others: its failure is raised at the end.
        """
        since_ms = self._clock.now_ms() - recent_ms
        total, failure, taken = None, None, None
        try:
            self._run_housekeeping(beat)
            began_ms = self._clock.now_ms()
            for worker in self._workers_in_turn(since_ms):
                left_ms = None if max_ms is None else max_ms - (self._clock.now_ms() - began_ms)
                try:
                    result = self._run_worker(worker, beat, stop, left_ms)
                except LeaseLost:
                    raise
                except Conflict as error:
                    _log.info("worker not run", worker=worker, error=str(error))
                    taken = error
                    continue
                except NosError as error:
                    failure = failure or error
                    continue
                total = result if total is None else total + result
                if result.stopped not in (None, Stopped.SPACE):
                    break
            failure = failure or (taken if total is None else None)
            if failure is not None:
                raise failure
        except NosError:
            self.counters = replace(self.counters, failures=self.counters.failures + 1)
            raise
        return CollectionResult() if total is None else total

    def _workers_in_turn(self, since_ms: int) -> Iterator[int]:
        """Yield each worker that is free and due when its turn comes, first the one that has not run for longest. Those
        are not due whose last runs began at `since_ms` or later. Raises Conflict if other processes run all of them at
        the beginning, and Transient.

        A worker's own note is read again before its turn, because another process may have run it meanwhile. Workers
        that are not free at the beginning are tried last. A single worker is always tried, so that the error of its
        lease names the process that holds it.
        """
        if self._workers == 1:
            yield 0
            return
        known = read_workers(self._metadata, self._workers, self._clock.now_ms())[: self._workers]
        if all(one.running for one in known):
            raise Conflict(
                f"all {self._workers} GC workers run in other processes; `nos-ec gc status` names them. Let them"
                " finish, or raise gc.workers for all GC processes"
            )
        due = [one for one in known if self._is_due(one.run, since_ms)]
        for turn, one in enumerate(sorted(due, key=lambda one: (one.running, _began_ms(one.run), one.worker))):
            if turn and not self._is_due(read_run(self._metadata, one.worker), since_ms):
                continue
            if one.running and one.worker in running_workers(self._metadata, self._clock.now_ms()):
                continue
            yield one.worker

    def _is_due(self, last: RunState | None, since_ms: int) -> bool:
        return not since_ms <= _began_ms(last) <= self._clock.now_ms()

    def _run_worker(self, worker: int, beat: Beat, stop: Event | None, max_ms: int | None) -> CollectionResult:
        """Run one collection, and for worker 0 apply expiry before it. Raises what `run_once` raises."""
        expired = Purged()
        if self._workers == 1:
            expired = self._expire(beat, stop)
        with self._new_lease(worker_lease(worker)) as held:
            if worker == 0 and self._workers > 1:
                # The lease comes first, so that only one of the processes expires objects. A single worker needs no
                # lease for that, and if it is killed, no lease keeps the next one waiting.
                expired = self._expire(beat, stop)
            result = self._collect(held, worker, beat, stop, expired, max_ms)
        self.counters = replace(self.counters, runs=self.counters.runs + 1, last_run_ms=self._clock.now_ms())
        _log.info(
            "collected",
            worker=worker,
            blocks_deleted=result.blocks_deleted,
            objects_moved=result.objects_moved,
            bytes_reclaimed=result.bytes_reclaimed,
            blocks_parked=result.blocks_parked,
            unreadable_objects=result.unreadable_objects,
            space_amplification=result.space_amplification,
            target_space_amplification=result.target_space_amplification,
            behind=result.behind,
            stopped=result.stopped,
        )
        return result

    def _run_housekeeping(self, beat: Beat) -> None:
        """Run housekeeping. On a full disk it may fail for lack of the space that the collection will free."""
        try:
            self._housekeeping.run_once(beat)
        except Transient as error:
            _log.warning("housekeeping failed; collecting anyway", error=str(error))

    def _expire(self, beat: Beat, stop: Event | None) -> Purged:
        expired = self._expire_trash(beat, stop)
        self._apply_lifecycle(beat, stop)
        self._reap_uploads(beat, stop)
        return expired

    def _expire_trash(self, beat: Beat, stop: Event | None) -> Purged:
        purged = _attempt("expired objects not removed from the trash", lambda: self._trash.expire(beat, stop))
        if purged is None:
            return Purged()
        if purged.objects:
            _log.info("removed expired objects from the trash", objects=purged.objects, bytes=purged.bytes)
        return purged

    def _apply_lifecycle(self, beat: Beat, stop: Event | None) -> None:
        """Apply lifecycle rules, before `_reap_uploads` deletes the parts of the uploads that they abort."""
        expired = _attempt("lifecycle rules not applied", lambda: self.lifecycle.run_once(beat, stop))
        if expired is not None and (expired.examined or expired.uploads):
            _log.info(
                "applied lifecycle rules",
                examined=expired.examined,
                expired=expired.objects,
                versions=expired.versions,
                markers=expired.markers,
                bytes=expired.bytes,
                uploads_aborted=expired.uploads,
                buckets_failed=expired.failed,
            )

    def _reap_uploads(self, beat: Beat, stop: Event | None) -> None:
        reaped = _attempt("parts of uploads not deleted", lambda: self._uploads.run_once(beat, stop))
        if reaped is not None and (reaped.aborted or reaped.uploads):
            _log.info(
                "deleted parts of uploads",
                aborted=reaped.aborted,
                uploads=reaped.uploads,
                parts=reaped.parts,
                bytes=reaped.bytes,
            )

    def _collect(
        self, held: HeldLease, worker: int, beat: Beat, stop: Event | None, expired: Purged, max_ms: int | None
    ) -> CollectionResult:
        before = self.counters.with_run(_with_expired(CollectionResult(), expired))
        self.counters = before

        def watch(result: CollectionResult) -> None:
            beat(0)
            self.counters = before.with_run(result)

        self.held = held
        try:
            result = self._collector.run(lambda: self._new_writer(held.lease), watch, stop, max_ms, worker)
            return _with_expired(result, expired)
        finally:
            self.held = None

    def recover(self) -> None:
        """Fence the expired lease of a killed run, so that `rewrite` can take it."""
        self._housekeeping.recover()

    def rewrite(self, block_id: BlockId) -> bool:
        """Move the live objects out of one block, however little it wastes, and condemn it. Returns False if it is no
        longer a sealed block of groups.

        Raises Conflict while the worker of the block collects, Corrupt if some objects cannot be read and stay,
        LeaseLost, NoSpace, and Transient, also when the block cannot be read now.
        """
        with self._new_lease(worker_lease(owner(block_id, self._workers))) as held:
            result = self._collector.rewrite(block_id, lambda: self._new_writer(held.lease))
        return result.blocks_condemned > 0

    def run(self, stop: Event, wait_ms: int, beat: Beat = unwatched) -> None:
        """Collect every `wait_ms` until `stop` is set. Collect again at once after a pause, and after a run that had
        freed something when `gc.blocks_max_per_run` or a lack of space ended it. A worker whose last run, in any
        process, began less than half of `wait_ms` ago is not due otherwise."""
        recent_ms = wait_ms // 2
        while not stop.is_set():
            beat(0)
            result = None
            try:
                result = self.run_once(beat, stop, recent_ms=recent_ms)
            except LeaseLost:
                raise
            except NosError as error:
                _log.warning("collection failed; trying again", error=str(error))
            recent_ms = wait_ms // 2
            if result is not None and result.stopped is Stopped.PAUSED:
                self._outlast_pause(stop, wait_ms, beat)
                recent_ms = 0
            elif result is not None and _is_unfinished(result):
                recent_ms = 0
            else:
                beat(wait_ms)
                self._clock.wait(stop, wait_ms)

    def _outlast_pause(self, stop: Event, wait_ms: int, beat: Beat) -> None:
        """Wait until GC is no longer paused, at most `wait_ms`: housekeeping is due then even while GC is paused."""
        until_ms = self._clock.now_ms() + wait_ms
        while 0 < until_ms - self._clock.now_ms() <= wait_ms:
            beat(0)
            if self._clock.wait(stop, POLL_MS):
                break
            try:
                if not self._control.read().paused:
                    return
            except NosError as error:
                _log.warning("pause of GC not read; trying again", error=str(error))


def _is_unfinished(result: CollectionResult) -> bool:
    """Return whether the next run is due at once. After a lack of space it is one of worker 0 alone."""
    if result.stopped is Stopped.SPACE:
        return result.blocks_condemned > 0
    return result.behind is Behind.BLOCKS and result.objects_moved > 0


def _began_ms(last: RunState | None) -> int:
    return 0 if last is None else last.started_ms


def _attempt(failure: str, work: Callable[[], T]) -> T | None:
    """Do work that must not end the run. If it fails, log `failure` and return None.

    On a full disk it may fail for lack of the space that the collection will free. Damaged rows or a bug in it must not
    end GC either.
    """
    try:
        return work()
    except Exception as error:
        log = _log.warning if isinstance(error, NosError) else _log.exception
        log(f"{failure}; collecting anyway", error=str(error))
        return None


def _with_expired(result: CollectionResult, expired: Purged) -> CollectionResult:
    return replace(result, expired_objects=expired.objects, expired_bytes=expired.bytes)
