"""The GC service: one collection a run, from cron or in a loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import structlog

from nos_ec.core.errors import LeaseLost, NosError
from nos_ec.engine.collector import CollectionPlan, CollectionResult, Collector
from nos_ec.engine.housekeeping import Housekeeping
from nos_ec.engine.leases import HeldLease
from nos_ec.engine.stripe_writer import StripeWriter
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Lease

_log = structlog.get_logger(__name__)

LEASE_NAME = "gc"
"""One GC at a time in the whole store: two would rewrite the same survivors."""


class GcService:
    """Holds the GC lease while it collects."""

    def __init__(
        self,
        collector: Collector,
        housekeeping: Housekeeping,
        new_lease: Callable[[str], HeldLease],
        new_writer: Callable[[Lease], StripeWriter],
        clock: Clock,
    ) -> None:
        self._collector = collector
        self._housekeeping = housekeeping
        self._new_lease = new_lease
        self._new_writer = new_writer
        self._clock = clock

    def plan(self) -> CollectionPlan:
        """What a run would do. Changes nothing."""
        return self._collector.plan()

    def run_once(self) -> CollectionResult:
        """Housekeeping, so that dead writers' blocks count too, then one collection.

        Raises Conflict when another GC is at work, LeaseLost, Transient; a later run goes on from there.
        """
        self._housekeeping.run_once()
        with self._new_lease(LEASE_NAME) as held:
            writer = self._new_writer(held.lease)
            try:
                result = self._collector.run(writer)
            finally:
                writer.close()
        _log.info(
            "collected",
            blocks_deleted=result.blocks_deleted,
            objects_moved=result.objects_moved,
            bytes_reclaimed=result.bytes_reclaimed,
        )
        return result

    def run(self, stop: Event, wait_ms: int) -> None:
        """Collect every `wait_ms` until `stop` is set."""
        while not stop.is_set():
            try:
                self.run_once()
            except LeaseLost:
                raise
            except NosError as error:
                _log.warning("collection failed, trying again", error=str(error))
            self._clock.wait(stop, wait_ms)
