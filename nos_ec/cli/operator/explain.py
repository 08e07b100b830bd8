"""The command explain."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from nos_ec.cli.commands.listing import row_data
from nos_ec.cli.terminal.context import AsJson, context, parse_object
from nos_ec.cli.terminal.output import count_text, emit, facts, out
from nos_ec.composition.explaining import block_explainer, object_explainer
from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.packing.lifetimes import AGE_EDGES_DAYS
from nos_ec.core.states import ObjectState
from nos_ec.engine.explain.blocks import BlockExplanation, BlockLayout
from nos_ec.engine.explain.object_facts import Copy, Holder, ItsParts, Publishing
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.engine.texts import printable, size_text, span, when

_BLOCK = re.compile("[0-9a-f]{32}")
_PLACES_SHOWN = 10


def explain(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="BUCKET/NAME|BLOCK", help="An object, or the id of a block (32 hex digits).")
    ],
    as_json: AsJson = False,
) -> None:
    """Explain why an object or block is still there.

    For an object, it shows why the object is where it is; for a block, why it is not collected; and what happens next.
    For a deleted object in the trash, it shows until when it is kept. Reads rows, leases, the progress of the
    consumers, the landing copy of a waiting object, and the headers of a block. Changes nothing.
    """
    if "/" not in target:
        if not _BLOCK.fullmatch(target.lower()):
            raise InvalidInput(f"{target!r}: write an object as BUCKET/NAME, or a block as its 32 hexadecimal digits")
        with context(ctx).system() as system:
            block = block_explainer(system).explain(BlockId(bytes.fromhex(target)))
        policy = context(ctx).settings().gc.policy
        emit(asdict(block), as_json, lambda: _print_block(block, policy))
        return
    key = parse_object(target)
    with context(ctx).home(key.bucket, key.name) as system:
        try:
            found = object_explainer(system).explain(key)
        except NotFound as error:
            _explain_trash(system, key, error, as_json)
            return
    emit(asdict(found), as_json, lambda: _print_object(found))


def _explain_trash(system: System, key: ObjectKey, error: NotFound, as_json: bool) -> None:
    try:
        row = system.client.trash().find(key)
    except NotFound:
        raise NotFound(
            f"object {key} does not exist, and it is not in the trash: it was never stored, it was deleted permanently,"
            " or its time in the trash is over",
            key=key,
        ) from error
    now_ms, until_ms, trashed_ms = system.clock.now_ms(), row.trash_until_ms or 0, row.trashed_ms or 0
    times = {"trashed_ms": trashed_ms, "trash_until_ms": until_ms, "explained_ms": now_ms}
    data = row_data(row) | {"reason": "in_trash"} | times
    shown = {
        "state": f"{row.state.value} (in_trash)",
        "size": f"{row.users_size} ({size_text(row.users_size)}), version {row.version}",
        "stored": when(row.created_ms, now_ms),
        "deleted": when(trashed_ms, now_ms),
        "kept until": when(until_ms, now_ms),
    }
    if until_ms > now_ms:
        then = f"GC removes it {when(until_ms, now_ms)}. Until then, `nos-ec undelete` brings it back."
    else:
        then = "It has expired: the next GC run removes it. Until then, `nos-ec undelete` brings it back."

    def show() -> None:
        facts(printable(str(key)), shown)
        out.print()
        out.print("why: It was deleted, and the trash keeps it.")
        out.print(f"next: {then}", markup=False)

    emit(data, as_json, show)


def _print_sentences(one: ObjectExplanation | BlockExplanation) -> None:
    sentences = {"why": one.why, "next": one.next, "what to do": one.advice}
    out.print()
    for name, text in sentences.items():
        if text is not None:
            out.print(f"{name}: {printable(text)}", markup=False)


def _print_object(one: ObjectExplanation) -> None:
    now_ms = one.explained_ms
    rows: dict[str, object] = {
        "state": f"{one.state.value} ({one.reason.value})",
        "size": f"{one.size} ({size_text(one.size)}), version {one.version}",
        "stored": when(one.created_ms, now_ms),
    }
    if one.lock is not None:
        rows["locked"] = one.lock
    if one.landing_copy is not None:
        rows |= _copy_rows(one.landing_copy, now_ms)
    elif one.state is ObjectState.PACKED:
        rows["landing copy"] = "none is queued"
    if one.publishing is not None:
        rows |= _publishing_rows(one.publishing, now_ms)
    for number, place in enumerate(one.places[:_PLACES_SHOWN]):
        where = f"{place.block} at {place.offset}, {size_text(place.length)}"
        rows["block" if len(one.places) == 1 else f"block {number}"] = where
    more = len(one.places[_PLACES_SHOWN:]) + one.places_left_out
    if more:
        rows["more blocks"] = f"{more}; `nos-ec stat` lists all"
    if one.block is not None:
        block = one.block
        rows["its block"] = f"{block.kind.value}, {block.state.value}, made {when(block.created_ms, now_ms)}"
        rows["written by"] = block.writer
    if one.chunks is not None and one.shard_reads is not None:
        fewest = "the fewest possible" if one.chunks == one.chunks_min else f"split: {one.chunks_min} could hold it"
        rows["chunks"] = f"{one.chunks}, {fewest}; a read of it takes {count_text(one.shard_reads, 'shard read')}"
    if one.its_parts is not None:
        rows["parts"] = _parts_text(one.its_parts)
    if one.half_life_days is not None:
        rows["lifetime"] = _lifetime_text(one.half_life_days, one.stream)
    for text in one.unknown:
        rows["not known"] = f"{rows['not known']}; {text}" if "not known" in rows else text
    facts(printable(f"{one.bucket}/{one.name}"), {name: printable(str(value)) for name, value in rows.items()})
    _print_sentences(one)


def _parts_text(its: ItsParts) -> str:
    counts = {"packed": its.packed, "large": its.large, "queued": its.queued, "landed": its.landed}
    there = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    missing = f"; at least {its.parts - its.there} of them gone" if its.there < its.parts else ""
    waiting = "" if its.waiting is None else f"; `nos-ec explain {its.waiting}` explains why that part waits"
    return (
        f"{its.parts}, stored as separate objects: {there or 'none is left'}{missing}{waiting}. The other lines are"
        " about their list"
    )


def _lifetime_text(half_life_days: float, stream: int | None) -> str:
    if half_life_days > AGE_EDGES_DAYS[-1]:
        return f"years, or not known yet; stream {stream}"
    return f"half of such objects are dead in {half_life_days:.3g} days; stream {stream}"


def _copy_rows(copy: Copy, now_ms: int) -> dict[str, object]:
    rows: dict[str, object] = {"landing copy": f"{copy.landing}, in the landing {copy.medium}{_read_text(copy)}"}
    if copy.segment is not None:
        state = "given back" if copy.segment_state is None else copy.segment_state.value
        opened = "" if copy.segment_opened_ms is None else f", opened {when(copy.segment_opened_ms, now_ms)}"
        rows["landing segment"] = f"{copy.segment}, {state}{opened}"
    if copy.delete_after_ms is not None:
        verified = ", verified" if copy.doomed else ""
        rows["deletion"] = f"queued, due {when(copy.delete_after_ms, now_ms)}{verified}"
    return rows


def _read_text(copy: Copy) -> str:
    if copy.problem is not None:
        return f": {copy.problem}"
    return "" if copy.readable is None else "; its bytes are good"


def _publishing_rows(way: Publishing, now_ms: int) -> dict[str, object]:
    held = way.slot_held_until_ms
    holder = (
        "no producer holds its lease"
        if held is None
        else f"its lease is held, and ends {when(held, now_ms)} unless renewed"
    )
    rows: dict[str, object] = {
        "slot": f"{way.slot}; {holder}",
        "producers alive": ", ".join(way.producers) or "none",
        "due": "-" if way.due_ms is None else when(way.due_ms, now_ms),
    }
    if way.published_ms is None:
        rows["partition"] = ", ".join(str(one.partition) for one in way.holders)
        return rows
    rows["published"] = when(min(way.published_ms, now_ms), now_ms) + (", spread" if way.spread else "")
    rows["partition"] = ", ".join(_holder_text(one) if way.members_known else str(one.partition) for one in way.holders)
    rows["consumers passed"] = (
        "-" if way.passed_ms is None else f"messages published before {when(way.passed_ms, now_ms)}"
    )
    return rows


def _holder_text(one: Holder) -> str:
    return f"{one.partition} ({'no consumer' if one.member is None else one.member})"


def _written_text(layout: BlockLayout) -> str:
    unread = layout.unread_stripes
    more = f"; {count_text(unread, 'stripe')} without a readable header, or unfinished" if unread else ""
    objects = count_text(layout.objects, "object")
    return f"{objects}, {layout.split_objects:,} of them split, in {count_text(layout.groups, 'group')}{more}"


def _print_block(one: BlockExplanation, policy: str) -> None:
    now_ms, until_ms = one.explained_ms, one.writer_until_ms
    lease = "is over" if until_ms is None else f"ends {when(until_ms, now_ms)}"
    needed = "" if one.stripes_needed is None else f", need {one.stripes_needed:.1f} stripes"
    collected = f"; GC collects from {one.waste_ratio_min:.1%} on" if policy == "threshold" else ""
    rows = {
        "state": f"{one.kind.value}, {one.state.value} ({one.reason.value})",
        "size": f"{count_text(one.stripes, 'stripe')}, {size_text(one.size_bytes)}",
        "live": f"{count_text(one.live_objects, 'object')}, {size_text(one.live_bytes)}{needed}",
        "dead": f"{size_text(one.dead_bytes)}, hole ratio {one.hole_ratio:.1%}",
        "waste": f"{one.waste_ratio:.1%} with headers and padding{collected}",
        "made": f"{when(one.created_ms, now_ms)} by {one.writer}, epoch {one.epoch}; its lease {lease}",
        "sealed": "-" if one.sealed_ms is None else when(one.sealed_ms, now_ms),
    }
    if one.layout is not None:
        rows["written"] = _written_text(one.layout)
        rows["empty"] = (
            f"{size_text(one.layout.front_bytes)} in front of objects, {size_text(one.layout.gap_bytes)} between them,"
            f" {size_text(one.layout.end_bytes)} at the ends of groups"
        )
    if one.unknown:
        rows["not known"] = "; ".join(one.unknown)
    if one.gc_not_before_ms is not None:
        rows["GC looks again"] = when(one.gc_not_before_ms, now_ms)
    if one.gc_failures:
        rows["failures of GC"] = str(one.gc_failures)
    if one.delete_after_ms is not None:
        rows["grace period ends"] = when(one.delete_after_ms, now_ms)
    if one.grace_ms:
        rows["grace left"] = span(one.grace_ms)
    if one.would_collect is not None:
        rows["a GC run now"] = "would collect it" if one.would_collect else "would leave it"
    rows["GC"] = "a run is at work" if one.gc_runs else "no run is at work"
    facts(f"block {one.block}", {name: printable(value) for name, value in rows.items()})
    _print_sentences(one)
