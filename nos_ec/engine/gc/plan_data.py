"""A collection plan as JSON values, for `gc plan --json` and the API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nos_ec.core.gc.gc_policy import StoredBytes
from nos_ec.core.ratios import ratio, rounded
from nos_ec.engine.gc.victims import BlockDecision, ChosenBlock, CollectionPlan
from nos_ec.ports.metadata import Totals

_DIGITS = 4


def plan_data(plan: CollectionPlan, totals: Totals) -> dict[str, Any]:
    """Return the plan as JSON values. Sizes are in bytes, times in ms of Unix time.

    The sums cover all blocks examined. Objects in the trash are live until they expire. Collecting a block reads its
    live bytes and frees the whole block. `padding_bytes_to_free` counts only the blocks that are repacked to free it.
    """
    victims = {victim.block.block_id: victim for victim in plan.victims}
    outlook = plan.outlook
    return {
        "blocks": [_block(decision, victims.get(decision.block.block_id)) for decision in plan.decisions],
        "space_amplification": _amplification(outlook.before),
        "space_amplification_after": _amplification(outlook.after),
        "target_space_amplification": outlook.target,
        "behind": outlook.behind,
        "bytes_to_rewrite": sum(victim.block.live_bytes for victim in plan.victims),
        "bytes_to_write": sum(bytes_to_write(victim) for victim in plan.victims),
        "padding_bytes_to_free": sum(victim.padding_freed_bytes for victim in plan.victims),
        "bytes_to_reclaim": sum(d.size_bytes for d in plan.decisions if d.block.block_id in victims),
        "header_bytes_read": sum(decision.header_bytes_read for decision in plan.decisions),
        "block_bytes_examined": sum(decision.size_bytes for decision in plan.decisions),
        "waiting": [asdict(waiting) for waiting in plan.waiting],
        "trash_objects": totals.trash_objects,
        "trash_bytes": totals.trash_bytes,
    }


def bytes_to_write(victim: ChosenBlock) -> int:
    """Estimate how many bytes the live objects of a victim will take in new stripes, including headers and padding."""
    block = victim.block
    return round(block.size_bytes / block.stripes * victim.needs) if block.stripes else 0


def _amplification(store: StoredBytes) -> float | None:
    return rounded(ratio(store.stored_bytes, store.live_bytes))


def _block(decision: BlockDecision, victim: ChosenBlock | None) -> dict[str, Any]:
    return {
        "block": decision.block.block_id.hex(),
        "hole_ratio": round(decision.block.hole_ratio, _DIGITS),
        "waste_ratio": round(decision.block.waste_ratio, _DIGITS),
        "size_bytes": decision.size_bytes,
        "live_objects": decision.live_objects,
        "live_bytes": decision.block.live_bytes,
        "unconfirmed": decision.unconfirmed,
        "header_bytes_read": decision.header_bytes_read,
        "price_days": rounded(decision.price_days),
        "bytes_to_write": None if victim is None else bytes_to_write(victim),
        "padding_bytes_to_free": 0 if victim is None else victim.padding_freed_bytes,
        "collect": victim is not None,
    }
