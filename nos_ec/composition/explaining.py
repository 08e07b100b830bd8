"""Makes the explainers of objects and blocks, with the same settings as producers, consumers and GC."""

from __future__ import annotations

from nos_ec.composition.packing import collector_options
from nos_ec.composition.wiring import System
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS
from nos_ec.engine.explain.blocks import BlockExplainer
from nos_ec.engine.explain.object_facts import ObjectOptions
from nos_ec.engine.explain.objects import ObjectExplainer
from nos_ec.engine.space_reserve import PACKING_RESERVES


def object_explainer(system: System) -> ObjectExplainer:
    """Return an explainer of the objects of an open store."""
    settings = system.settings
    options = ObjectOptions(
        min_age_ms=settings.put.min_age_ms,
        republish_ms=settings.producer.republish_ms,
        partitions=settings.log.partitions,
        linger_ms=settings.consumer.linger_ms,
        linger_ms_max=settings.consumer.linger_max_ms,
        packing_reserve_bytes=PACKING_RESERVES * settings.gc.reserve_bytes,
        put_ms_max=settings.put.reservation_ms,
        stream_cuts_days=STREAM_CUTS_DAYS[settings.gc.streams - 1],
    )
    return ObjectExplainer(
        system.metadata,
        system.landing,
        system.blocks,
        system.clock,
        lambda: system.worker.group_progress("explain"),
        options,
    )


def block_explainer(system: System) -> BlockExplainer:
    """Return an explainer of the blocks of an open store."""
    options = collector_options(system.settings)
    return BlockExplainer(system.metadata, system.blocks, system.clock, options, system.settings.gc.wait_ms)
