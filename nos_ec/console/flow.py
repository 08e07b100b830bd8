"""The page on the flow: what each stage from PUT to the reaper holds, its oldest item, and who works on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System
from nos_ec.console.panels import Panels, Source
from nos_ec.console.view import View
from nos_ec.core.ids import ObjectKey, time_of
from nos_ec.core.publishing.slots import SLOTS, is_member_lease, is_producer_lease, leased_slot, member_of
from nos_ec.core.states import BlockState, ObjectState, SegmentState
from nos_ec.engine.figures.log_figures import StateFigures
from nos_ec.ports.metadata import Lease, Metadata, ObjectRow, Totals, WaitingRow

OLDEST_ROWS = 1000
"""How many of the oldest waiting objects are read."""
OLDEST_SHOWN = 20
LATE_MS = 900_000
"""A message that waits for so much longer than an object should wait to be packed is late, as in the alert rule
NosEcPackingStandsStill."""
LEASES_SHOWN = 200
SECOND_MS = 1000
"""A message is as good as taken if it waits for less than this."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The content of the stages, from the rows. Ages are None where nothing waits."""

    landed_objects: int
    landed_bytes: int
    queued_objects: int
    queued_bytes: int
    oldest_ms: int | None
    open_blocks: Mapping[str, int]
    fenced_blocks: int
    landing_deletions: int
    overdue_ms: int
    segments: Mapping[SegmentState, StateFigures]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the message log. `holder` is None if no consumer owns it; `waits_ms` is the age of the oldest
    message that waits for the group, None if it is unknown, and 0 if none waits. `is_late`: it waits for too long."""

    number: int
    holder: str | None
    waits_ms: int | None
    is_late: bool


@dataclass(frozen=True, slots=True)
class Stuck:
    """A consumer that holds late partitions, or None for late partitions that no consumer holds."""

    holder: str | None
    partitions: Sequence[int]
    waits_ms: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """An object that waits to be packed. `key` is None if it was deleted meanwhile."""

    key: ObjectKey | None
    age_ms: int
    size: int
    state: ObjectState
    is_due: bool


@dataclass(frozen=True, slots=True)
class Oldest:
    """The objects that wait longest. `buckets` counts them by bucket; `examined` is how many rows were read."""

    objects: Sequence[Waiting]
    buckets: Sequence[tuple[str, int]]
    examined: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease of a writer, and the time until it expires; negative if its process has not renewed it."""

    name: str
    epoch: int
    left_ms: int


@dataclass(frozen=True, slots=True)
class Leases:
    """Who writes and who publishes. `more` is the number of leases that are left out."""

    producers: Sequence[str]
    held_slots: int
    slots: int
    writers: Sequence[Holder]
    more: int


def stages(
    totals: Totals, oldest_ms: int | None, overdue_ms: int, segments: Mapping[SegmentState, StateFigures]
) -> Stages:
    """Return what the stages hold, given the age of the oldest waiting object and of the most overdue deletion."""
    blocks = {kind.value: count for (kind, state), count in totals.blocks.items() if state is BlockState.OPEN and count}
    return Stages(
        totals.landed_objects,
        totals.landed_bytes,
        totals.queued_objects,
        totals.queued_bytes,
        oldest_ms,
        blocks,
        sum(count for (_, state), count in totals.blocks.items() if state is BlockState.FENCED),
        totals.landing_deletions,
        overdue_ms,
        segments,
    )


def partitions(
    count: int, holders: Mapping[int, str], passed_until: Mapping[int, int], now_ms: int, late_ms: int
) -> Sequence[Partition]:
    """Return the partitions in order. A message that waits for longer than `late_ms` is late."""
    waits = {number: max(0, now_ms - until_ms) for number, until_ms in passed_until.items()}
    return [
        Partition(number, holders.get(number), waits.get(number), waits.get(number, 0) > late_ms)
        for number in range(count)
    ]


def stuck(found: Sequence[Partition]) -> Sequence[Stuck]:
    """Return who holds late partitions, and which ones, the longest wait first."""
    late = [one for one in found if one.is_late]
    groups = {holder: [one for one in late if one.holder == holder] for holder in {one.holder for one in late}}
    every = [
        Stuck(holder, [one.number for one in its], max(one.waits_ms or 0 for one in its))
        for holder, its in groups.items()
    ]
    return sorted(every, key=lambda one: (-one.waits_ms, one.partitions))


def unheld(found: Sequence[Partition]) -> Stuck | None:
    """Return the partitions that no consumer holds although messages wait in them. None if there are none, or if some
    of them are late: then `stuck` names these."""
    its = [one for one in found if one.holder is None and one.waits_ms is not None and one.waits_ms >= SECOND_MS]
    if not its or any(one.is_late for one in its):
        return None
    return Stuck(None, [one.number for one in its], max(one.waits_ms or 0 for one in its))


def oldest(rows: Sequence[WaitingRow], objects: Mapping[int, ObjectRow], now_ms: int) -> Oldest:
    """Return the objects that wait longest, given the first waiting rows and the rows of their objects."""
    shown = [
        Waiting(
            objects[row.object_id].key if row.object_id in objects else None,
            max(0, now_ms - time_of(row.landing_id)),
            row.size,
            row.state,
            row.due_ms <= now_ms,
        )
        for row in rows[:OLDEST_SHOWN]
    ]
    buckets = Counter(objects[row.object_id].key.bucket for row in rows if row.object_id in objects)
    return Oldest(shown, buckets.most_common(10), len(rows))


def oldest_waiting(metadata: Metadata) -> tuple[Sequence[WaitingRow], Mapping[int, ObjectRow]]:
    """Return the OLDEST_ROWS objects that wait longest, and their rows by object id. Raises Transient."""
    rows = metadata.waiting_after(None, OLDEST_ROWS)
    return rows, metadata.objects_with([row.object_id for row in rows])


def leases(found: Iterable[Lease], now_ms: int) -> Leases:
    """Return who writes and who publishes, given all leases."""
    every = list(found)
    alive = [one for one in every if one.expires_ms > now_ms]
    writers = [Holder(one.name, one.epoch, one.expires_ms - now_ms) for one in every if not is_producer_lease(one.name)]
    return Leases(
        [member_of(one.name) for one in alive if is_member_lease(one.name)],
        sum(1 for one in alive if leased_slot(one.name) is not None),
        SLOTS,
        writers[:LEASES_SHOWN],
        len(writers) - len(writers[:LEASES_SHOWN]),
    )


class Readings:
    """Reads the store for the page. All raise Transient."""

    def __init__(self, system: System) -> None:
        self._system = system

    def stages(self) -> Stages:
        """Return what the stages hold."""
        metadata, now_ms = self._system.metadata, self._system.clock.now_ms()
        first, due_ms = metadata.oldest_landing_id(), metadata.first_deletion_ms()
        return stages(
            self._system.operator.store_totals().read().totals,
            None if first is None else max(0, now_ms - time_of(first)),
            0 if due_ms is None else max(0, now_ms - due_ms),
            {state: StateFigures(*sums) for state, sums in metadata.segment_totals().items()},
        )

    def partitions(self) -> Sequence[Partition]:
        """Return the partitions of the message log."""
        with closing(self._system.worker.group_progress("console")) as progress:
            # The time before: where nothing waits, the group has passed the time of the request, which may take long.
            holders, now_ms, passed_until = progress.holders(), self._system.clock.now_ms(), progress.passed_until()
        consumer = self._system.settings.consumer
        late_ms = max(consumer.linger_ms, consumer.linger_max_ms) + LATE_MS
        return partitions(self._system.settings.log.partitions, holders, passed_until, now_ms, late_ms)

    def oldest(self) -> Oldest:
        """Return the objects that wait longest."""
        return oldest(*oldest_waiting(self._system.metadata), self._system.clock.now_ms())

    def leases(self) -> Leases:
        """Return who writes and who publishes."""
        return leases(self._system.metadata.list_leases(""), self._system.clock.now_ms())


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the route of the page."""
    readings = Readings(system)
    sources: dict[str, Source[Any]] = {
        "stages": panels.source(readings.stages, FIGURES_MS),
        "lag": panels.source(system.operator.lag, FIGURES_MS),
        "partitions": panels.source(readings.partitions, FIGURES_MS),
        "oldest": panels.source(readings.oldest, FIGURES_MS),
        "leases": panels.source(readings.leases, FIGURES_MS),
    }

    def flow(request: Request) -> Response:
        panels.wait_for(*sources.values())
        shown: dict[str, Any] = {name: panels.shown(source) for name, source in sources.items()}
        return view.page(
            request, "flow.html", "Flow", group=system.settings.consumer.group, stuck=stuck, unheld=unheld, **shown
        )

    return [Route("/flow", flow)]
