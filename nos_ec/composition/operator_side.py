"""The side of a store for operators: monitoring and figures, checks and repairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from nos_ec.adapters.file_system import misfits
from nos_ec.composition.adapters import Adapters
from nos_ec.composition.developer_values import FIGURES_MS, STALL_MS
from nos_ec.composition.processes import process_name
from nos_ec.core.errors import Transient
from nos_ec.core.expiry import DAY_MS
from nos_ec.engine.check.checker import Checked
from nos_ec.engine.figures.header_survey import read_headers_found
from nos_ec.engine.figures.log_figures import LogFigures, log_figures
from nos_ec.engine.figures.store_totals import DatedTotals, OwnSums, StoreTotals
from nos_ec.engine.figures.usage import usage_spans
from nos_ec.engine.gc.control import GcControl
from nos_ec.engine.gc.workers import last_behind
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.engine.operator_changes import OperatorChanges
from nos_ec.engine.scrub.planned import PlannedMending
from nos_ec.engine.scrub.scrubber import FirstLooks, Scrubber, ScrubOptions
from nos_ec.engine.upkeep.shard_rebuild import ShardRebuild
from nos_ec.monitoring.declarations.metrics import AUDIT_FAILURES
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.gc_samples import (
    interval_samples,
    move_samples,
    nothing_counted,
    pass_samples,
    rebuild_counts,
    scrub_counts,
    worker_samples,
)
from nos_ec.monitoring.monitor import Cached, Monitor
from nos_ec.monitoring.sources import (
    StoreFigures,
    dump_samples,
    group_samples,
    limit_samples,
    read_samples,
    store_samples,
    waiting_samples,
)
from nos_ec.monitoring.stored_counts import StoredCounts
from nos_ec.settings import Settings
from nos_ec.settings.section import DAY


class OperatorSide:
    """Makes what watches, checks and repairs the store."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self.counts = StoredCounts(adapters.metadata, nothing_counted())
        """The counts of GC, scrubs and shard rebuilds, which are kept in the store."""
        self._own_sums = OwnSums()

    # --- monitoring -------------------------------------------------------------------------------
    def monitor(self, service: str, *, writes: bool, publishes: bool = True) -> Monitor:
        """Return a monitor of this process, with its own registry.

        The process is ready while the metadata and, if it publishes or consumes, the message log answer. For a process
        that writes, the block store and the landing store must also answer a probe that does a small piece of work.
        """
        adapters = self._adapters
        stall_ms = stall_ms_max(adapters.settings)
        monitor = Monitor(service, adapters.store_id, CollectorRegistry(), adapters.clock, stall_ms)
        monitor.health.require("metadata", lambda: adapters.metadata.expired_leases(0))
        monitor.health.require("metadata locks", adapters.metadata.require_unblocked)
        if publishes:
            monitor.health.require("message log", self.lag)
        if writes:
            monitor.health.require("block store", adapters.blocks.probe)
            monitor.health.require("landing store", adapters.landing.probe)
            monitor.metrics.add("audit trail", lambda: [Sample(AUDIT_FAILURES, adapters.trail.failures)])
        monitor.metrics.add("reads", lambda: read_samples(adapters.blocks.counters()))
        return monitor

    def watch_store(self, monitor: Monitor) -> None:
        """Make a monitor also show the figures of the whole store."""
        adapters, settings = self._adapters, self._adapters.settings
        put, consumer, gc = settings.put, settings.consumer, settings.gc
        figures = Cached(self.figures, adapters.clock, FIGURES_MS)
        monitor.metrics.add("store", lambda: store_samples(figures(), adapters.clock.now_ms()))
        monitor.metrics.add("waiting", lambda: waiting_samples(adapters.metadata, adapters.clock.now_ms()))
        monitor.metrics.add("dumps", lambda: dump_samples(adapters.metadata, adapters.clock.now_ms()))
        monitor.metrics.add("placement groups", lambda: group_samples(adapters.groups.states()))
        waiting_ms_max = put.min_age_ms + max(consumer.linger_ms, consumer.linger_max_ms)
        monitor.metrics.add("limits", lambda: limit_samples(gc.reserve_bytes, waiting_ms_max, gc.target_space_amp))
        monitor.metrics.add("intervals", lambda: interval_samples(gc.wait_ms, settings.scrub.pass_days * DAY))
        monitor.metrics.add("gc", self.counts.samples)
        if gc.workers > 1:
            monitor.metrics.add("gc workers", lambda: worker_samples(adapters.metadata, gc.workers, adapters.clock))
        if settings.cell is not None:
            monitor.metrics.add("moves", lambda: move_samples(adapters.metadata))
        monitor.metrics.add("passes", lambda: pass_samples(adapters.metadata, DAY_MS))

    def lag(self) -> int:
        """Return how many messages the configured group has not committed yet, without joining it. Raises Transient."""
        return self._adapters.lag_probe.value()

    def store_totals(self) -> StoreTotals:
        """Return the reader of the sums over the whole store, which also keeps the stored sums up to date."""
        return StoreTotals(self._adapters.metadata, self._adapters.clock, FIGURES_MS, self._own_sums)

    def figures(self) -> StoreFigures:
        """Return figures of the whole store, whose sums may be older than the rest. Raises Transient."""
        free_bytes = unless_away(self._adapters.blocks.free_bytes)
        landing_free_bytes = unless_away(self._adapters.landing.free_bytes)
        lag = unless_away(self.lag)
        return self.figures_of(self.store_totals().read(), free_bytes, landing_free_bytes, lag)

    def figures_of(
        self, dated: DatedTotals, free_bytes: int | None, landing_free_bytes: int | None, lag: int | None = None
    ) -> StoreFigures:
        """Return these figures of the whole store together with the others, which are read now. Raises Transient."""
        metadata = self._adapters.metadata
        return StoreFigures(
            dated.totals,
            dated.at_ms,
            self._adapters.geometry,
            free_bytes,
            landing_free_bytes,
            lag,
            self.log_figures(),
            usage_spans(metadata, dated.totals, dated.at_ms),
            last_behind(metadata, self._adapters.settings.gc.workers),
            read_headers_found(metadata),
        )

    def log_figures(self) -> LogFigures | None:
        """Return figures of the landing log; None for a store without one. Raises Transient."""
        adapters = self._adapters
        if adapters.medium is None:
            return None
        return log_figures(adapters.metadata, adapters.medium, in_use=adapters.settings.landing.mode == "log")

    # --- checks and repairs -----------------------------------------------------------------------
    def shard_rebuild(self, bytes_per_s: int | None = None) -> ShardRebuild | None:
        """Return a rebuild of shards at the configured rate or at `bytes_per_s`, where 0 means no limit; None if the
        store rebuilds its shards itself (Ceph)."""
        adapters = self._adapters
        if adapters.shards is None:
            return None
        rate = adapters.settings.shards.rebuild_bytes_per_s if bytes_per_s is None else bytes_per_s
        stripe_size = adapters.geometry.stripe_size
        rebuild = ShardRebuild(adapters.shards, adapters.metadata, adapters.clock, stripe_size, rate, adapters.trail)
        self.counts.add(lambda: rebuild_counts(rebuild.counters))
        return rebuild

    def scrubber(
        self,
        bytes_per_s: int | None = None,
        *,
        repair: bool | None = None,
        first_looks: FirstLooks | None = None,
    ) -> Scrubber:
        """Return a scrubber, with the configured rate and repair or with other values. first_looks: see Scrubber."""
        adapters, settings = self._adapters, self._adapters.settings
        options = ScrubOptions(
            self.scrub_rate(bytes_per_s),
            settings.scrub.repair if repair is None else repair,
            settings.put.reservation_ms,
        )
        scrubber = Scrubber(
            self.checked(),
            adapters.shards,
            adapters.contended_lease,
            options,
            adapters.trail,
            process_name(),
            first_looks,
        )
        self.counts.add(lambda: scrub_counts(scrubber.counters))
        return scrubber

    def scrub_rate(self, bytes_per_s: int | None) -> int:
        """Return how many bytes a scrub reads and writes per second: the configured rate, or another one."""
        return self._adapters.settings.scrub.bytes_per_s if bytes_per_s is None else bytes_per_s

    def planned_mending(self) -> PlannedMending:
        """Return the mender that makes the repairs which a check or scrub has planned."""
        adapters = self._adapters
        return PlannedMending(self.checked(), adapters.shards, adapters.settings.put.reservation_ms, adapters.trail)

    def changes(self) -> OperatorChanges:
        """Return what makes the changes of operators and records them."""
        adapters = self._adapters
        return OperatorChanges(
            GcControl(adapters.metadata), TrashCan(adapters.metadata, adapters.clock), adapters.trail
        )

    def checked(self) -> Checked:
        """Return the parts of the store that a check or a scrub examines."""
        adapters, store = self._adapters, self._adapters.settings.store
        checked = Checked(adapters.metadata, adapters.blocks, adapters.landing, adapters.medium, adapters.clock)
        return replace(checked, misfits=partial(misfits, store.root)) if store.backend == "local" else checked


def stall_ms_max(settings: Settings) -> int:
    """Return how long a loop may take for a turn until its process counts as stuck, in milliseconds: longer than an
    operation on Ceph that is tried again."""
    return max(STALL_MS, 3 * settings.ceph.op_timeout_ms if settings.store.backend == "ceph" else 0)


def unless_away(figure: Callable[[], int]) -> int | None:
    """Return the figure, or None if it cannot be read now, so that the other figures are still shown."""
    try:
        return figure()
    except Transient:
        return None
