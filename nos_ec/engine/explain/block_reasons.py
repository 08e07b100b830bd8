"""Derives from the facts about a block why it is not collected, as a reason and sentences for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nos_ec.core.deadlines import WAIT_MS_MAX
from nos_ec.core.states import BlockKind
from nos_ec.engine.explain.verdict import LATE_MS, Verdict, capitalised
from nos_ec.engine.gc.options import CollectorOptions
from nos_ec.engine.texts import count_text, moment, span, when
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import QUARANTINE, BlockFacts, WaitReason


class BlockReason(StrEnum):
    """The reason why a block is not collected, or what the next GC run does with it."""

    OPEN = "open"
    """Its writer is appending to it."""
    WRITER_DEAD = "writer_dead"
    """It is open, and its writer's lease has run out."""
    FENCED = "fenced"
    """It was taken from a dead writer; recovery has to seal it."""
    TOO_FULL = "too_full"
    """Too little of it is wasted."""
    WITHIN_TARGET = "within_target"
    """The store takes no more space than its target allows."""
    TOO_DEAR = "too_dear"
    """Copying its live objects costs more than the space is worth."""
    SET_ASIDE = "set_aside"
    """GC could not collect it, and leaves it alone for a while."""
    DENSE = "dense"
    """It wastes enough, but its objects are packed densely."""
    LARGE = "large"
    """It holds a segment of a large object that is live."""
    EMPTY = "empty"
    """It holds no live object: the next run condemns it."""
    VICTIM = "victim"
    """The next run rewrites it."""
    REPACK = "repack"
    """The next run rewrites it, because its objects would leave less padding if they were packed anew."""
    PAYS_NOT = "pays_not"
    """Rewriting it together with all other candidates frees hardly any stripe."""
    LATER_RUN = "later_run"
    """The next run has more wasteful blocks than it rewrites at a time."""
    UNDECIDED = "undecided"
    """It is a candidate; whether rewriting it pays depends on too many other blocks to examine here."""
    CONDEMNED = "condemned"
    """It is empty, and its grace period is not over."""
    QUARANTINED = "quarantined"
    """Nothing refers to it. It is kept for a while, so that it can be released."""
    GRACE_OVER = "grace_over"
    """It is empty, and its grace period is over; the next run deletes it."""


@dataclass(frozen=True, slots=True)
class BlockEvidence:
    """All facts about a block. writer_until_ms: the end of its writer's lease; None if the lease is over or gone.
    gc_runs: whether a GC run is active. candidate: what GC would do with a candidate; None for other blocks. needs: the
    least number of stripes that its objects need, if it was computed. wait_ms: milliseconds between the runs of a GC
    daemon."""

    facts: BlockFacts
    now_ms: int
    options: CollectorOptions
    wait_ms: int
    writer_until_ms: int | None
    gc_runs: bool
    candidate: BlockReason | None
    needs: float | None


def cools_down(facts: BlockFacts, options: CollectorOptions, now_ms: int) -> bool:
    """Return whether GC has set the block aside for a time that is not over yet."""
    until_ms = facts.gc_not_before_ms
    return until_ms is not None and waits(until_ms, now_ms, options.cool_down_ms_max)


def judge_block(e: BlockEvidence) -> Verdict[BlockReason]:
    """Return the verdict that follows from the evidence."""
    match e.facts.waits:
        case WaitReason.OPEN:
            return _open(e)
        case WaitReason.FENCED:
            return Verdict(
                BlockReason.FENCED,
                "Its writer died or lost its lease, or an append to it failed. Only sealed blocks are collected.",
                "Recovery, in the next round of a consumer or GC run, seals it and counts its live objects.",
                "If it stays fenced, start `nos-ec consumer`, or read its log: a block that does not answer is parked"
                ' (nos_ec_parked_items{what="fenced block"}).',
            )
        case WaitReason.CONDEMNED:
            return _condemned(e)
        case WaitReason.SET_ASIDE:
            return _set_aside(e)
        case WaitReason.TOO_FULL:
            return Verdict(
                BlockReason.TOO_FULL,
                f"{e.facts.row.waste_ratio:.1%} of it is waste (dead bytes, headers, padding). GC collects a block from"
                f" {e.options.waste_ratio_min:.1%} on (gc.hole_ratio_min).",
                "GC collects it once enough of its objects have been deleted or overwritten.",
            )
    return _sealed(e)


def _open(e: BlockEvidence) -> Verdict[BlockReason]:
    row = e.facts.row
    if e.writer_until_ms is None:
        return Verdict(
            BlockReason.WRITER_DEAD,
            f"It is open, but its writer {row.writer} no longer holds its lease: the writer has died or hangs.",
            "The next consumer or GC run fences the writer, then seals the block. From then on GC may collect it.",
            "If nothing happens within a minute, start `nos-ec consumer` or `nos-ec gc run --apply`.",
        )
    return Verdict(
        BlockReason.OPEN,
        f"Its writer {row.writer} is appending to it; the writer's lease ends {when(e.writer_until_ms, e.now_ms)}"
        " unless it is renewed. Only sealed blocks are collected.",
        "The writer seals it when it is full, or when the process ends.",
    )


def _condemned(e: BlockEvidence) -> Verdict[BlockReason]:
    until_ms = e.facts.until_ms
    assert until_ms is not None
    if e.facts.row.writer == QUARANTINE and waits(until_ms, e.now_ms, WAIT_MS_MAX):
        return Verdict(
            BlockReason.QUARANTINED,
            "No row referred to it, so `nos-ec apply` or a rebuild put it into quarantine.",
            f"The first GC run after {moment(until_ms)} deletes it, not earlier, even if space is short.",
            "If it may hold missing objects, keep it with `nos-ec quarantine release`.",
            until_ms,
        )
    if waits(until_ms, e.now_ms, WAIT_MS_MAX):
        return Verdict(
            BlockReason.CONDEMNED,
            "It is empty: it holds no object. It is kept for gc.block_grace_ms, for reads that began earlier.",
            f"The first GC run after its grace period, which ends {when(until_ms, e.now_ms)}, deletes it. When space is"
            " short, a run deletes it a minute after it was emptied.",
            None,
            until_ms,
        )
    overdue_ms = max(0, e.now_ms - until_ms)
    return Verdict(
        BlockReason.GRACE_OVER,
        f"It is empty, and its grace period ended {span(overdue_ms)} ago.",
        f"{_next_run(e)} deletes it.",
        "That is late: start `nos-ec gc run --apply`, or read its log for blocks that could not be deleted."
        if overdue_ms > LATE_MS + e.wait_ms
        else None,
        until_ms,
    )


def _set_aside(e: BlockEvidence) -> Verdict[BlockReason]:
    failures = e.facts.row.gc_failures
    if failures == 0:
        return _dense(e)
    times = "once" if failures == 1 else f"{failures} times"
    return Verdict(
        BlockReason.SET_ASIDE,
        f"GC failed {times} to collect it, because it did not answer or holds an object that cannot be read. GC leaves"
        " it alone for a while.",
        _looked_at_again(e),
        "The log of GC has the reason. After a repair, `nos-ec gc run --apply --retry` retries it at once.",
        e.facts.gc_not_before_ms,
    )


def _dense(e: BlockEvidence) -> Verdict[BlockReason]:
    """Return the verdict on a block that was set aside without a failure."""
    return Verdict(
        BlockReason.DENSE,
        f"{e.facts.row.waste_ratio:.1%} of it is waste, but its objects are packed densely: rewriting it would free"
        " little or nothing.",
        _looked_at_again(e),
        None,
        e.facts.gc_not_before_ms,
    )


def _looked_at_again(e: BlockEvidence) -> str:
    assert e.facts.gc_not_before_ms is not None
    again = capitalised(when(e.facts.gc_not_before_ms, e.now_ms))
    return f"{again}, GC looks at it again. If its last object is deleted earlier, GC collects it."


def _sealed(e: BlockEvidence) -> Verdict[BlockReason]:
    """Return the verdict on a sealed block that waits for nothing."""
    row = e.facts.row
    wasted = f"{row.waste_ratio:.1%} of it is waste"
    if e.options.policy is None:
        wasted += f", and GC collects a block from {e.options.waste_ratio_min:.1%} on"
    apply = None if e.gc_runs else "To do it now, run `nos-ec gc run --apply`."
    if e.candidate is None and row.live_objects and row.kind is BlockKind.LARGE:
        return Verdict(
            BlockReason.LARGE,
            "It holds a segment of a large object that is live. Such a block is either all live or all dead.",
            "It is collected when the object is deleted or overwritten.",
        )
    match e.candidate:
        case BlockReason.VICTIM:
            needs = "" if e.needs is None else f", of which it needs about {e.needs:.1f}"
            return Verdict(
                BlockReason.VICTIM,
                f"{wasted}: it will be collected.",
                f"{_next_run(e)} moves its live objects out of its {count_text(row.stripes, 'stripe')}{needs}, condemns"
                f" it, and deletes it {span(e.options.block_grace_ms)} later (gc.block_grace_ms).",
                apply,
            )
        case BlockReason.REPACK:
            return Verdict(
                BlockReason.REPACK,
                f"{wasted}; packed anew, its objects would take about {e.needs:.1f} of its"
                f" {count_text(row.stripes, 'stripe')}.",
                f"{_next_run(e)} repacks it: moves its live objects out, condemns it, and deletes it"
                f" {span(e.options.block_grace_ms)} later (gc.block_grace_ms).",
                apply,
            )
        case BlockReason.TOO_FULL:
            return Verdict(
                BlockReason.TOO_FULL,
                f"{row.hole_ratio:.1%} of its object bytes are dead, so rewriting it would hardly free a stripe.",
                "GC collects it once enough of its objects have been deleted or overwritten.",
            )
        case BlockReason.WITHIN_TARGET:
            return Verdict(
                BlockReason.WITHIN_TARGET,
                f"{wasted}; but the store is within its target of space (gc.space_amp).",
                "Once the store exceeds the target, GC collects blocks again, first those where copying gains most.",
            )
        case BlockReason.TOO_DEAR:
            return Verdict(
                BlockReason.TOO_DEAR,
                f"{wasted}; but copying its live objects still costs more than the space is worth"
                f" (gc.price_days is {e.options.price_days_min:g}).",
                "GC collects it when it is older or more of it is dead, once its turn comes.",
                "`nos-ec gc plan` shows the prices of the blocks that a run would collect.",
            )
        case BlockReason.DENSE if cools_down(e.facts, e.options, e.now_ms):
            return _dense(e)
        case BlockReason.DENSE:
            return Verdict(
                BlockReason.DENSE,
                f"{wasted}; but its objects are packed densely: rewriting it would free little or nothing.",
                f"{_next_run(e)} sets it aside for a day. If its last object is deleted, GC collects it.",
            )
        case BlockReason.PAYS_NOT:
            return Verdict(
                BlockReason.PAYS_NOT,
                f"{wasted}; but rewriting it together with all other such blocks would take about as many stripes as"
                " it frees.",
                "It is collected once more of it, or of other blocks, is dead.",
            )
        case BlockReason.LATER_RUN:
            return Verdict(
                BlockReason.LATER_RUN,
                f"{wasted}; but a run examines a limited number of blocks (gc.blocks_max_per_run:"
                f" {e.options.blocks_max}), and others waste more.",
                "A later run collects it.",
                apply,
            )
        case BlockReason.UNDECIDED:
            return Verdict(
                BlockReason.UNDECIDED,
                f"{wasted}. Whether rewriting it pays depends on many other blocks.",
                f"{_next_run(e)} decides.",
                "`nos-ec gc plan` shows what a run would do.",
            )
    return Verdict(
        BlockReason.EMPTY,
        "It holds no live object any more.",
        f"{_next_run(e)} condemns it, and deletes it {span(e.options.block_grace_ms)} later (gc.block_grace_ms).",
        apply,
    )


def _next_run(e: BlockEvidence) -> str:
    if e.gc_runs:
        return "The current GC run, or the next one,"
    return f"The next GC run (cron, or every {span(e.wait_ms)} with --loop)"
