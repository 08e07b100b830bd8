"""A collection plan as data: what `gc plan --json` prints and what the API answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nos_ec.core.ids import BlockId
from nos_ec.engine.gc.victims import BlockDecision, CollectionPlan
from nos_ec.ports.metadata import Totals

_DIGITS = 4


def plan_data(plan: CollectionPlan, totals: Totals) -> dict[str, Any]:
    """The plan as JSON values. Sizes are in bytes, times in ms of Unix time. The sums cover all blocks examined; what
    is in the trash is live until it expires."""
    victims = victim_ids(plan)
    return {
        "blocks": [_block(decision, collect=decision.block.block_id in victims) for decision in plan.decisions],
        "bytes_to_rewrite": sum(block.live_bytes for block in plan.victims),
        "bytes_to_reclaim": sum(d.size_bytes for d in plan.decisions if d.block.block_id in victims),
        "header_bytes_read": sum(decision.header_bytes_read for decision in plan.decisions),
        "block_bytes_examined": sum(decision.size_bytes for decision in plan.decisions),
        "waiting": [asdict(waiting) for waiting in plan.waiting],
        "trash_objects": totals.trash_objects,
        "trash_bytes": totals.trash_bytes,
    }


def victim_ids(plan: CollectionPlan) -> set[BlockId]:
    """The ids of the blocks that a run would collect."""
    return {block.block_id for block in plan.victims}


def _block(decision: BlockDecision, *, collect: bool) -> dict[str, Any]:
    return {
        "block": decision.block.block_id.hex(),
        "hole_ratio": round(decision.block.hole_ratio, _DIGITS),
        "waste_ratio": round(decision.block.waste_ratio, _DIGITS),
        "size_bytes": decision.size_bytes,
        "live_objects": decision.live_objects,
        "live_bytes": decision.block.live_bytes,
        "unconfirmed": decision.unconfirmed,
        "header_bytes_read": decision.header_bytes_read,
        "collect": collect,
    }
