"""The output of gc plan and gc run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from nos_ec.cli.terminal.output import count_text, emit, out, print_more, time_text
from nos_ec.core.gc.gc_policy import Behind
from nos_ec.core.gc.target_costs import TargetCost
from nos_ec.engine.gc.plan_data import bytes_to_write, plan_data
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.gc.run.stop import Stopped
from nos_ec.engine.gc.space import Outlook
from nos_ec.engine.gc.victims import BlockDecision, ChosenBlock, CollectionPlan
from nos_ec.engine.texts import size_text
from nos_ec.ports.metadata import Totals, WaitingBlocks, WaitReason


def show_plan(plan: CollectionPlan, totals: Totals, as_json: bool, costs: Sequence[TargetCost] | None = None) -> None:
    """Print what a run would do. `costs` are the costs of other space targets, if requested."""
    data = plan_data(plan, totals)
    if costs is not None:
        data["targets"] = [asdict(one) for one in costs]

    def human() -> None:
        victims = {victim.block.block_id: victim for victim in plan.victims}
        for decision in plan.decisions:
            out.print(_decision_text(decision, victims.get(decision.block.block_id)))
        out.print(
            f"{count_text(len(plan.victims), 'block')}: {size_text(data['bytes_to_reclaim'])} to reclaim,"
            f" {size_text(data['bytes_to_rewrite'])} to rewrite; decided from"
            f" {size_text(data['header_bytes_read'])} of headers"
        )
        repacked = sum(victim.padding_freed_bytes > 0 for victim in plan.victims)
        if repacked:
            out.print(
                f"{count_text(repacked, 'block')} of them repacked, which frees"
                f" {size_text(data['padding_bytes_to_free'])} of headers and padding"
            )
        out.print(_space_text(plan.outlook))
        for cost in costs or ():
            out.print(_cost_text(cost))
        if plan.outlook.behind is not None:
            out.print(f"less than the policy asks for: {_BEHIND[plan.outlook.behind]}")
        for waiting in plan.waiting:
            out.print(_waiting_text(waiting))
        if totals.trash_objects:
            objects = count_text(totals.trash_objects, "object")
            out.print(
                f"not now: {size_text(totals.trash_bytes)} of {objects} in the trash: live until they expire;"
                " `nos-ec trash empty` deletes them at once"
            )

    emit(data, as_json, human)


def _cost_text(cost: TargetCost) -> str:
    text = f"target {cost.target:g}: copy {size_text(cost.copied_bytes)}, free {size_text(cost.freed_bytes)}"
    if cost.price_days is not None:
        text += f", down to {cost.price_days:.1f} days"
    reached = "" if cost.is_reached else f"; ends at {cost.space_amplification:.3f} for the floor of the price"
    return text + reached


def _decision_text(decision: BlockDecision, victim: ChosenBlock | None) -> str:
    block = decision.block
    mark = "keep   " if victim is None else "collect"
    live = count_text(decision.live_objects, "object")
    text = f"{mark} {block.block_id.hex()}  waste {block.waste_ratio:.1%}  live {live}"
    if decision.price_days is not None:
        text += f"  price {decision.price_days:.1f} days"
    if victim is not None:
        text += (
            f"  read {size_text(block.live_bytes)}, write {size_text(bytes_to_write(victim))}, free"
            f" {size_text(decision.size_bytes)}"
        )
        if victim.padding_freed_bytes:
            text += f"; repacked for {size_text(victim.padding_freed_bytes)} of headers and padding"
    return text


def _space_text(outlook: Outlook) -> str:
    target = "" if outlook.target is None else f"; target {outlook.target:g}"
    before, after = outlook.before.space_amplification, outlook.after.space_amplification
    return f"space amplification: {before:.3f} now, {after:.3f} after a run{target}"


_BEHIND = {
    Behind.BUDGET: "a run rewrites at most gc.copy_bytes_max; the next run continues",
    Behind.BLOCKS: "a run rewrites at most gc.blocks_max_per_run blocks; the next run continues",
    Behind.PRICE: "the other blocks are not sealed, or not worth copying yet (gc.price_days)",
    Behind.SET_ASIDE: "other blocks could not be collected, and are set aside for a while",
    Behind.SPACE: "there is not enough free space to write survivors",
    Behind.STOPPED: "the run was ended early; the next run continues",
    Behind.GAIN: "rewriting the other blocks would take as much space as it frees",
}

_STOPPED = {
    Stopped.SIGNAL: "ended early by a signal",
    Stopped.PAUSED: "GC is paused (`nos-ec gc resume`)",
    Stopped.MAX_DURATION: "ended early after --max-duration",
    Stopped.SPACE: "space is short, so worker 0 collects alone",
}

_WHEN_FREED = {
    WaitReason.OPEN: "dead in {blocks} still open: sealed when full, or when the writer ends",
    WaitReason.FENCED: "dead in {blocks} of dead writers: sealed by the next consumer or GC run",
    WaitReason.SET_ASIDE: "dead in {blocks} set aside, the first until {until} (gc run --apply --retry: now)",
    WaitReason.TOO_FULL: "dead in {blocks} that waste less than gc.hole_ratio_min",
    WaitReason.CONDEMNED: "in {blocks} emptied before: deleted by a run after the grace period, the first from {until}",
}


def _waiting_text(waiting: WaitingBlocks) -> str:
    until = "-" if waiting.until_ms is None else time_text(waiting.until_ms)
    when = _WHEN_FREED[waiting.reason].format(blocks=count_text(waiting.blocks, "block"), until=until)
    return f"not now: {size_text(waiting.dead_bytes)} {when}"


def show_result(result: CollectionResult, block_grace_ms: int, as_json: bool) -> None:
    """Print what a run has done."""

    def human() -> None:
        moved = f"{count_text(result.objects_moved, 'live object')}, {size_text(result.bytes_moved)}, rewritten"
        if result.expired_objects:
            expired = count_text(result.expired_objects, "expired object")
            out.print(f"{expired}, {size_text(result.expired_bytes)}, removed from the trash")
        out.print(f"{count_text(result.blocks_condemned, 'block')} emptied: {moved}")
        out.print(f"decided from {size_text(result.header_bytes_read)} of headers")
        out.print(
            f"{count_text(result.blocks_deleted, 'block')} deleted: {size_text(result.bytes_reclaimed)} reclaimed"
        )
        if result.blocks_condemned and block_grace_ms:
            out.print(
                f"the first run after a grace period of {block_grace_ms / 60_000:g} minutes deletes the emptied blocks"
            )
        _print_space(result)
        if result.stopped is not None:
            out.print(f"{_STOPPED[result.stopped]}; the next run continues from here")
        for unreadable in result.unreadable:
            out.print(f"its block is kept, because this object cannot be read: {unreadable}", markup=False)
        print_more(result.unreadable_objects - len(result.unreadable), "object")
        for parked in result.parked:
            out.print(f"not collected, will be retried later: {parked}", markup=False)
        print_more(result.blocks_parked - len(result.parked), "block")

    emit(asdict(result), as_json, human)


def _print_space(result: CollectionResult) -> None:
    if result.space_amplification is not None:
        target = result.target_space_amplification
        against = "" if target is None else f"; target {target:g}"
        out.print(f"space amplification: {result.space_amplification:.3f}{against}")
    if result.behind is not None:
        out.print(f"less than the policy asks for: {_BEHIND[result.behind]}")
