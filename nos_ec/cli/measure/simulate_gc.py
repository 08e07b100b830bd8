"""The command simulate gc."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nos_ec.bench.gc.bound import bound_write_amplification
from nos_ec.bench.gc.events import event_workload, live_blocks, read_events
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.packer import PackerOptions
from nos_ec.bench.gc.simulation import GcResult, simulate_gc
from nos_ec.bench.gc.workloads import GC_WORKLOADS, Workload, gc_workload, sized
from nos_ec.bench.workloads import WORKLOADS
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, facts, print_lines, ticking
from nos_ec.cli.terminal.values import Seed, size_option
from nos_ec.core.errors import InvalidInput
from nos_ec.core.gc.gc_policy import (
    HOLE_RATIO_MIN,
    PRICE_FLOOR_DAYS,
    SPACE_AMP,
    GcPolicy,
    Price,
    SpaceTarget,
    Threshold,
    hole_share,
)
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS, STREAMS
from nos_ec.core.packing.packer import size_max
from nos_ec.core.ratios import rounded
from nos_ec.engine.texts import size_text
from nos_ec.settings import Settings

PRICE_DAYS = 20.0
PolicyName = Literal["space-target", "price", "threshold", "greedy"]


def gc_command(
    ctx: typer.Context,
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(GC_WORKLOADS)}; docs/GC.md describes them.")] = "B",
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use events instead: a file of `export events`, or a trace; - for stdin. May be gzipped (FILE.gz).",
        ),
    ] = None,
    policy: Annotated[
        PolicyName,
        typer.Option(help="greedy: a space target that takes the blocks with the largest holes, for comparison."),
    ] = "space-target",
    space_amp: Annotated[
        float, typer.Option(help="Limit of stored / live bytes, for space-target and greedy.")
    ] = SPACE_AMP,
    floor_days: Annotated[
        float, typer.Option(min=0, help="space-target: take no block with a lower break-even price.")
    ] = PRICE_FLOOR_DAYS,
    price_days: Annotated[
        float, typer.Option(help="price: take every block with at least this break-even price.")
    ] = PRICE_DAYS,
    hole_ratio_min: Annotated[
        float, typer.Option(help="threshold: take every block in which at least this share is dead.")
    ] = HOLE_RATIO_MIN,
    streams: Annotated[
        int, typer.Option(min=1, max=len(STREAM_CUTS_DAYS), help="Streams by expected lifetime.")
    ] = STREAMS,
    min_age: Annotated[
        float, typer.Option(min=0, help="Days that objects stay in the landing store: put.min_age_ms.")
    ] = 0.0,
    sort_window: Annotated[
        int, typer.Option(min=0, help="Blocks of fresh objects that are sorted before they are packed.")
    ] = 0,
    sort_survivors: Annotated[
        bool, typer.Option(help="Sort the survivors of a cycle by stream, bucket, prefix and age.")
    ] = True,
    hints: Annotated[bool, typer.Option("--hints", help="Use the expiry times that lifecycle rules set.")] = False,
    sizes: Annotated[
        str | None,
        typer.Option(
            help=f"Draw sizes as simulate packing does: {', '.join(WORKLOADS)}; or the size of all objects, such as"
            " 70000 or 1MiB. Default: all equal."
        ),
    ] = None,
    packer: Annotated[
        bool,
        typer.Option(
            "--packer", help="Pack as the configured store does: with its window, streams, lanes and stripes."
        ),
    ] = False,
    blocks: Annotated[int, typer.Option(min=10, help="Live bytes, as a number of blocks.")] = 2000,
    block_objects: Annotated[int, typer.Option(min=1, help="Number of objects that fit into a block.")] = 128,
    block_bytes: Annotated[
        int | None,
        typer.Option(
            parser=size_option,
            metavar="SIZE",
            help="With --events: the size of a block. Default: the geometry's block size.",
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(help="Days to simulate. The second half is measured, or the last third of workload E."),
    ] = None,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Run a GC policy over simulated days without storing anything. Shows how much is written and how much space is
    used, next to a bound: the least that any policy could write at that space if it knows only bucket and age."""
    chosen = _policy(policy, space_amp, floor_days, price_days, hole_ratio_min)
    drawn_of = None if sizes is None else _sizes_of(sizes)
    settings = context(ctx).settings()
    geometry = settings.geometry.value()
    if packer:
        _refuse(ctx, "with --packer", "sort_window", "sort_survivors", "block_bytes")
        if sizes is None and events is None:
            raise InvalidInput("--packer needs objects that have sizes: give --sizes W1, --sizes 1MiB, or --events")
    if events is None:
        _refuse(ctx, "without --events", "block_bytes")
        alike = gc_workload(workload, seed)
        source = _Source(alike, workload, blocks, block_objects, counts_objects=True)
        if drawn_of is not None:
            _refuse(ctx, "with --sizes", "block_objects")
            drawn_sizes = sized(alike, drawn_of, seed, size_max(geometry))
            source = _Source(drawn_sizes, f"{workload}, sizes of {sizes}", blocks, geometry.block_size)
    else:
        _refuse(ctx, "with --events", "workload", "blocks", "block_objects", "sizes")
        source = _from_events(events, seed, days, block_bytes or geometry.block_size, size_max(geometry))
    options = GcOptions(
        policy=chosen,
        streams=streams,
        blocks=source.blocks,
        block_bytes=source.block_bytes,
        large_bytes=source.large_bytes,
        min_age_days=min_age,
        sort_window_blocks=sort_window,
        sort_survivors=sort_survivors,
        hints=hints,
        days=days,
        seed=seed,
        packer=_packer(settings) if packer else None,
    )
    drawn = source.workload
    with ticking() as tick:
        result = simulate_gc(drawn, options, lambda done, total: tick("days", done, total))
    bound = bound_write_amplification(drawn.laws(), result.space_amplification, drawn.growth, min_age)
    figures: dict[str, Any] = {
        "workload": workload if events is None else None,
        "events": source.facts,
        "seed": seed,
        "policy": policy,
        "target_space_amplification": space_amp if isinstance(chosen, SpaceTarget) else None,
        "streams": streams,
        "min_age_days": min_age,
        "sort_window_blocks": sort_window,
        "sort_survivors": sort_survivors,
        "hints": hints,
        "sizes": drawn_of,
        "packer": None if options.packer is None else options.packer.figures,
        "block_objects": block_objects if events is None and sizes is None else None,
        "block_bytes": None if events is None and sizes is None else source.block_bytes,
        "bound_write_amplification": rounded(bound),
        "raw_bytes_per_live_byte": rounded(
            (geometry.k + geometry.m)
            / geometry.k
            * (result.space_amplification_with_padding or result.space_amplification)
        ),
        **_rounded(asdict(result)),
    }
    emit(figures, as_json, lambda: _print(figures, source, result))


@dataclass(frozen=True, slots=True)
class _Source:
    """A workload and the blocks of its store. `title` is for people. With `counts_objects`, all objects have the same
    size, and sizes count objects. `facts` describes a file of events for JSON; None without one."""

    workload: Workload
    title: str
    blocks: int
    block_bytes: int
    large_bytes: int | None = None
    counts_objects: bool = False
    facts: dict[str, Any] | None = None


def _from_events(path: Path, seed: int, days: float | None, block_bytes: int, large_bytes: int) -> _Source:
    if path == Path("-"):
        if sys.stdin is None:
            raise InvalidInput("standard input is closed; pipe the events in, or give a file")
        log = read_events(path, sys.stdin.buffer)
    else:
        log = read_events(path)
    if log.table is None and days is not None:
        raise InvalidInput("--days is for events of an export; a trace determines its own days")
    found = event_workload(log, seed, days)
    facts = {
        "file": str(path),
        "is_export": log.table is not None,
        "one_in": log.one_in,
        "objects": len(log.objects),
        "bytes": log.size_bytes,
        "unknown_deletes": log.unknown_deletes,
        "live_bytes": round(found.live_bytes),
        "bytes_per_day": rounded(found.live_bytes / found.mean_days),
    }
    return _Source(found, str(path), live_blocks(found, block_bytes), block_bytes, large_bytes, facts=facts)


def _sizes_of(text: str) -> str | int:
    """Parse --sizes: the name of a workload of simulate packing, or the size of all objects in bytes. Raises
    InvalidInput."""
    if text in WORKLOADS:
        return text
    try:
        return size_option(text)
    except typer.BadParameter as error:
        raise InvalidInput(f"--sizes {text!r}: give one of {', '.join(WORKLOADS)}, or a size such as 1MiB") from error


def _packer(settings: Settings) -> PackerOptions:
    """Return the packer of a store with these settings."""
    return PackerOptions(settings.geometry.value(), settings.consumer)


def _refuse(ctx: typer.Context, when: str, *names: str) -> None:
    """Refuse options that would be ignored. Raises InvalidInput."""
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(f"--{name.replace('_', '-')} does nothing {when}")


def _policy(
    name: PolicyName, space_amp: float, floor_days: float, price_days: float, hole_ratio_min: float
) -> GcPolicy:
    if name == "price":
        return Price(price_days)
    if name == "threshold":
        return Threshold(hole_ratio_min)
    if name == "greedy":
        return SpaceTarget(space_amp, floor_days=0, rank=hole_share)
    return SpaceTarget(space_amp, floor_days=floor_days)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return rounded(value) if isinstance(value, float) else value


def _print(figures: Mapping[str, Any], source: _Source, result: GcResult) -> None:
    bound = figures["bound_write_amplification"]
    target = figures["target_space_amplification"]
    of_bound = "no bound is known" if bound is None else f"bound: {bound:.3f}"
    padding = "without" if result.space_amplification_with_padding is None else "with"
    rows = {
        "space amplification": f"{result.space_amplification:.3f}" + (f"  (target {target})" if target else ""),
        "write amplification": f"{result.write_amplification:.3f}  ({of_bound})",
        "raw bytes per live byte": f"{figures['raw_bytes_per_live_byte']:.3f}  {padding} headers and padding",
        "never packed": f"{result.never_packed:.1%} of what users wrote died in the landing store",
        "landing store": f"{result.landing_ratio:.2%} of the live bytes wait there",
        "live": f"{count_text(result.live_blocks, 'block')} of "
        + (count_text(source.block_bytes, "object") if source.counts_objects else size_text(source.block_bytes)),
        "measured": f"the last {count_text(result.measured_days, 'day')}",
        "cycles": f"{result.cycles:,}"
        + "".join(f"; {count:,} missed the target: {reason}" for reason, count in result.behind.items()),
    }
    if source.facts is not None:
        rows |= _event_rows(source.facts)
    facts(f"{source.title}, policy {figures['policy']}, streams {figures['streams']}", rows)
    print_lines(["", "  until day       live   space amp.   write amp."])
    print_lines(
        f"{period.until_day:11,.0f} {period.live_blocks:10,.0f} {period.space_amplification:12.3f}"
        f" {period.write_amplification:12.3f}"
        for period in result.periods
    )


def _event_rows(facts: Mapping[str, Any]) -> dict[str, str]:
    sample = f", one in {facts['one_in']:,} of the store" if facts["one_in"] > 1 else ""
    lost = facts["unknown_deletes"]
    return {
        "events": f"{count_text(facts['objects'], 'object')}, {size_text(facts['bytes'])}{sample}"
        + (f"; {count_text(lost, 'delete')} of objects that no line has stored" if lost else ""),
        "arrivals": f"{size_text(facts['bytes_per_day'])} a day, "
        + ("expected from what was stored lately" if facts["is_export"] else "as in the trace"),
    }
