"""The metrics of a consumer."""

from __future__ import annotations

from collections.abc import Iterator

from nos_consumer.service import ConsumerService
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.streams import StreamedMergeList
from nos_ec.engine.packable import Packable
from nos_ec.monitoring.declarations import metrics as m
from nos_ec.monitoring.declarations import space_metrics as of_space
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.sources import parking_samples


def consumer_samples(service: ConsumerService, geometry: Geometry, now_ms: int) -> Iterator[Sample]:
    """Yield samples of a consumer's counters and of its current work."""
    counters = service.counters
    yield Sample(m.MESSAGES, counters.messages)
    yield Sample(m.STALE_MESSAGES, counters.stale)
    yield Sample(m.POISON_MESSAGES, counters.poison)
    yield Sample(m.PACKED_OBJECTS, counters.packed)
    yield Sample(m.PACKED_BYTES, counters.packed_bytes)
    yield Sample(m.SUPERSEDED_OBJECTS, counters.superseded)
    yield Sample(m.FAILED_OBJECTS, counters.failed)
    yield Sample(m.RETRIED_OBJECTS, counters.retried)
    yield Sample(m.GIVEN_UP_OBJECTS, counters.given_up)
    yield Sample(m.GROUPS_WRITTEN, counters.groups)
    yield Sample(m.STRIPES_WRITTEN, counters.stripes)
    yield Sample(m.WRITTEN_BYTES, counters.stripes * geometry.stripe_size)
    yield Sample(of_space.SPLIT_OBJECTS, counters.split)
    yield Sample(of_space.EMPTY_BYTES, counters.empty_front_bytes, ("front",))
    yield Sample(of_space.EMPTY_BYTES, counters.empty_gap_bytes, ("gap",))
    yield Sample(of_space.EMPTY_BYTES, counters.empty_end_bytes, ("end",))
    yield Sample(m.WRITTEN_UTILISATION, geometry.share(counters.packed_bytes, counters.stripes) or 0.0)
    yield Sample(m.OFFSETS_COMMITTED, counters.offsets_committed)
    yield Sample(m.MERGE_LIST_OBJECTS, service.waiting_objects)
    yield Sample(m.MERGE_LIST_BYTES, service.waiting_bytes)
    yield Sample(m.PAUSED, service.paused)
    yield from _lane_samples(service)
    yield from parking_samples([service.unread.retry_queue], now_ms)


def stream_samples(merge_list: StreamedMergeList[Packable] | None) -> Iterator[Sample]:
    """Yield samples of the streams. merge_list: None if all objects are packed in a single stream."""
    if merge_list is None:
        yield Sample(of_space.STREAMS_OPEN, 1)
        return
    yield Sample(of_space.STREAMS_OPEN, merge_list.streams_open)
    for stream, taken_bytes in enumerate(merge_list.stream_bytes):
        yield Sample(of_space.STREAM_BYTES, taken_bytes, (str(stream),))


def _lane_samples(service: ConsumerService) -> Iterator[Sample]:
    lanes = service.lanes
    yield Sample(m.LANES, lanes.count)
    yield Sample(m.LANES_BUSY, lanes.busy)
    yield Sample(m.LANE_BUSY_SECONDS, lanes.busy_s_max())
    for stripe_count, seconds in sorted(lanes.write_seconds.items()):
        yield Sample(m.GROUP_WRITE_SECONDS, seconds, (str(stripe_count),))
