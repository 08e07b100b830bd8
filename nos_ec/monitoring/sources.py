"""Samples of the counters of the engine and the ports. The counters of a service are read in the service's package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.gc.raw_cost import RAW_PARTS
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import time_of
from nos_ec.core.placement import GroupState
from nos_ec.core.ratios import ratio
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.dump.stored import newest_dump_ms
from nos_ec.engine.figures.header_survey import HeadersFound
from nos_ec.engine.figures.log_figures import LogFigures
from nos_ec.engine.figures.requests import Requests
from nos_ec.engine.figures.usage import Usage
from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.engine.retry_queue import RetryQueue
from nos_ec.engine.upkeep.housekeeping import Housekeeping
from nos_ec.monitoring.declarations import device_metrics as of_devices
from nos_ec.monitoring.declarations import library_metrics as of_library
from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations import space_metrics as of_space
from nos_ec.monitoring.declarations import trash_metrics as of_trash
from nos_ec.monitoring.exposition import Sample
from nos_ec.ports.block_store import ReadCounters
from nos_ec.ports.metadata import Metadata, Totals


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The state of the whole store. Sizes are in bytes. `totals` is as of `at_ms`, which may be a while ago; the other
    figures are current. free_bytes (of the block store) and landing_free_bytes (of the landing store) are None while
    they cannot be determined, for example because a shard is missing; lag is None while the message log does not
    answer; landing_log is None for a store without one."""

    totals: Totals
    at_ms: int
    geometry: Geometry
    free_bytes: int | None
    landing_free_bytes: int | None
    lag: int | None
    landing_log: LogFigures | None = None
    usage: Mapping[str, Usage | None] = field(default_factory=dict)
    """Usage by the name of the span (`engine/figures/usage.py`)."""
    behind: str | None = None
    """The reason why the last run of GC did less than its policy asks for; None if it did everything."""
    headers: HeadersFound | None = None
    """The result of the last survey of headers; None before the first."""


def store_samples(figures: StoreFigures, now_ms: int) -> Iterator[Sample]:
    """Yields the figures of the whole store."""
    totals = figures.totals
    yield Sample(m.STORE_FIGURES_AGE_SECONDS, max(0, now_ms - figures.at_ms) / 1000)
    for kind, state in product(BlockKind, BlockState):
        yield Sample(m.STORE_BLOCKS, totals.blocks.get((kind, state), 0), (kind.value, state.value))
    yield Sample(m.STORE_STRIPES, totals.stripes)
    yield Sample(m.STORE_LIVE_BYTES, totals.live_bytes)
    yield Sample(m.STORE_DEAD_BYTES, totals.dead_bytes)
    yield Sample(m.STORE_OVERHEAD_BYTES, totals.overhead_bytes)
    yield Sample(of_space.STORE_SPACE_AMPLIFICATION, totals.space_amplification or 0.0)
    yield from _cost_samples(figures)
    yield Sample(m.STORE_UTILISATION, totals.utilisation(figures.geometry) or 0.0)
    yield Sample(m.STORE_LANDED_OBJECTS, totals.landed_objects)
    yield Sample(m.STORE_LANDED_BYTES, totals.landed_bytes)
    yield Sample(m.STORE_QUEUED_OBJECTS, totals.queued_objects)
    yield Sample(m.STORE_QUEUED_BYTES, totals.queued_bytes)
    yield Sample(of_trash.STORE_TRASH_OBJECTS, totals.trash_objects)
    yield Sample(of_trash.STORE_TRASH_BYTES, totals.trash_bytes)
    yield Sample(m.STORE_LANDING_DELETIONS, totals.landing_deletions)
    yield Sample(m.STORE_LEASES, totals.leases)
    if figures.free_bytes is not None:
        yield Sample(m.STORE_FREE_BYTES, figures.free_bytes)
    if figures.landing_free_bytes is not None:
        yield Sample(of_space.STORE_LANDING_FREE_BYTES, figures.landing_free_bytes)
    if figures.lag is not None:
        yield Sample(m.LAG_MESSAGES, figures.lag)
    if figures.landing_log is not None:
        yield from _log_samples(figures.landing_log)


def _cost_samples(figures: StoreFigures) -> Iterator[Sample]:
    totals, headers = figures.totals, figures.headers
    cost = totals.raw_cost(figures.geometry, None if headers is None else headers.share)
    yield Sample(of_space.STORE_LANDING_PER_LIVE_BYTE, ratio(totals.waiting_bytes, totals.live_bytes) or 0.0)
    for part in RAW_PARTS:
        yield Sample(of_space.STORE_RAW_BYTES_PER_LIVE_BYTE, 0.0 if cost is None else cost.parts[part], (part,))
    for span, used in figures.usage.items():
        written, stored = (None, None) if used is None else (used.write_amplification, used.space_amplification)
        yield Sample(of_space.STORE_WRITE_AMPLIFICATION, written or 0.0, (span,))
        yield Sample(of_space.STORE_MEAN_SPACE_AMPLIFICATION, stored or 0.0, (span,))
    for reason in Behind:
        yield Sample(of_space.GC_BEHIND, int(figures.behind == reason), (reason.value,))


def _log_samples(log: LogFigures) -> Iterator[Sample]:
    for state, segments in log.segments.items():
        yield Sample(m.STORE_LANDING_SEGMENTS, segments.count, (state.value,))
        yield Sample(m.STORE_LANDING_SEGMENT_BYTES, segments.bytes, (state.value,))
    if log.free_bytes is not None:
        yield Sample(m.STORE_LANDING_LOG_FREE_BYTES, log.free_bytes)
    if log.devices is not None:
        yield Sample(of_devices.STORE_LANDING_LOG_DEVICES, log.devices.working, ("working",))
        yield Sample(of_devices.STORE_LANDING_LOG_DEVICES, len(log.devices.lost), ("lost",))
        yield Sample(of_devices.STORE_LANDING_LOG_UNREADABLE_SLOTS, len(log.devices.unreadable))


def waiting_samples(metadata: Metadata, now_ms: int) -> Iterator[Sample]:
    """Yields how long the oldest object has waited to be packed, and how long a landing copy to be deleted. Raises
    Transient."""
    oldest, due_ms = metadata.oldest_landing_id(), metadata.first_deletion_ms()
    yield Sample(m.STORE_OLDEST_WAITING_SECONDS, _seconds_since(None if oldest is None else time_of(oldest), now_ms))
    yield Sample(m.STORE_OVERDUE_DELETION_SECONDS, _seconds_since(due_ms, now_ms))


def dump_samples(metadata: Metadata, now_ms: int) -> Iterator[Sample]:
    """Yields the time at which the newest dump of the metadata in the store began, and the age of the oldest row of the
    journal of deletes that is not written into the store. Raises Transient."""
    yield Sample(m.STORE_LAST_DUMP, (newest_dump_ms(metadata, now_ms) or 0) / 1000)
    yield Sample(m.STORE_JOURNAL_SECONDS, _seconds_since(metadata.oldest_journal_ms(), now_ms))


def _seconds_since(then_ms: int | None, now_ms: int) -> float:
    """Return the seconds since a time; 0 for a time in the future, and for None."""
    return 0.0 if then_ms is None else max(0, now_ms - then_ms) / 1000


def group_samples(states: Mapping[str, Mapping[GroupState, int]]) -> Iterator[Sample]:
    """Yields the placement groups by their contents and by state; nothing for a store without placement groups."""
    for holds, counts in states.items():
        for state, count in counts.items():
            yield Sample(m.STORE_PLACEMENT_GROUPS, count, (holds, state.value))


def limit_samples(reserve_bytes: int, waiting_ms_max: int, target_space_amp: float | None) -> Iterator[Sample]:
    """Yields the configured limits with which alerts and people compare figures of the store."""
    yield Sample(of_space.STORE_SPACE_AMPLIFICATION_TARGET, target_space_amp or 0.0)
    yield Sample(m.STORE_RESERVE_BYTES, reserve_bytes)
    yield Sample(m.STORE_WAITING_SECONDS_MAX, waiting_ms_max / 1000)


def read_samples(counters: ReadCounters) -> Iterator[Sample]:
    """Yields the block reads of this process so far."""
    yield Sample(m.SHARD_READS, counters.shard_reads)
    yield Sample(m.SHARD_READ_BYTES, counters.shard_bytes)
    yield Sample(m.DEGRADED_READS, counters.degraded_reads)
    yield Sample(m.TIMED_OUT_READS, counters.timed_out_reads)


def batch_samples(puts: PutQueue) -> Iterator[Sample]:
    """Yields the batches of PUTs of this process, and the counters of its landing log."""
    yield Sample(of_library.PUT_BATCH_OBJECTS, puts.batch_objects)
    lander = puts.batches.lander
    if isinstance(lander, LogBypass):
        yield Sample(of_library.LOG_PASSED_FULL, lander.passed_full)
        lander = lander.log
    if isinstance(lander, LandingLog):
        counters = lander.counters
        yield Sample(of_library.LOG_BATCHES, counters.batches)
        yield Sample(of_library.LOG_RECORDS, counters.records)
        yield Sample(of_library.LOG_BYTES, counters.bytes)
        yield Sample(of_library.LOG_FAILED_APPENDS, counters.failed)
        yield Sample(of_library.LOG_OPENED, counters.opened)
        yield Sample(of_library.LOG_SEALED, counters.sealed)


def request_samples(requests: Requests) -> Iterator[Sample]:
    """Yields the requests of a store's users in this process."""
    for operation, counters in requests.tallies.items():
        yield Sample(of_library.REQUEST_SECONDS, counters.seconds, (operation,))
        for kind, count in counters.failures.items():
            yield Sample(of_library.REQUEST_FAILURES, count, (operation, kind))
    for operation in ("put", "get"):
        yield Sample(of_library.REQUEST_BYTES, requests.tallies[operation].sizes, (operation,))
    yield Sample(of_library.REQUESTS_UNDER_WAY, len(requests.under_way))


def housekeeping_samples(housekeeping: Housekeeping, now_ms: int) -> Iterator[Sample]:
    """Yields the counters of recovery and reaper in this process, and with a landing log, of trimmer and copy
    forward."""
    done = housekeeping.done
    yield Sample(m.HOUSEKEEPING_FAILURES, housekeeping.failures)
    yield Sample(m.REAPER_DELETED, done.reaper.deleted)
    yield Sample(m.REAPER_VERIFIED_BYTES, done.reaper.verified_bytes)
    yield Sample(m.REAPER_REVERTED, done.reaper.reverted)
    yield Sample(m.REAPER_POSTPONED, done.reaper.postponed)
    yield Sample(m.LEASES_FENCED, done.recovery.leases_fenced)
    yield Sample(m.BLOCKS_RECOVERED, done.recovery.blocks_sealed)
    yield Sample(m.SEGMENTS_RECOVERED, done.recovery.segments_sealed)
    yield Sample(m.TRIMMER_RELEASED, done.trimmer.released)
    yield Sample(m.TRIMMER_RELEASED_BYTES, done.trimmer.released_bytes)
    yield Sample(m.FORWARD_OBJECTS, done.forward.objects)
    yield Sample(m.FORWARD_BYTES, done.forward.bytes)
    yield from parking_samples(housekeeping.retry_queues, now_ms)


def lease_samples(held: HeldLease, label: str) -> Iterator[Sample]:
    """Yields the remaining time of a lease. `label` is the same in every run, unlike the lease's name."""
    yield Sample(m.LEASE_LEFT_SECONDS, held.left_ms() / 1000, (label,))


def parking_samples(retry_queues: Sequence[RetryQueue[Any]], now_ms: int) -> Iterator[Sample]:
    """Yields the parked items of each type, and how long the oldest has been parked."""
    for retry_queue in retry_queues:
        figures = retry_queue.figures()
        oldest_ms = now_ms if figures.oldest_since_ms is None else figures.oldest_since_ms
        yield Sample(m.PARKED_ITEMS, figures.items, (retry_queue.what,))
        yield Sample(m.PARKED_OLDEST_SECONDS, max(0, now_ms - oldest_ms) / 1000, (retry_queue.what,))
