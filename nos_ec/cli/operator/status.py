"""The command status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, err, facts, figure_text, short_text, time_text
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Transient
from nos_ec.core.ratios import ratio
from nos_ec.engine.dump.stored import newest_dump_ms
from nos_ec.engine.figures.store_totals import DatedTotals
from nos_ec.engine.texts import size_text
from nos_ec.monitoring.store_data import osds_down, store_data, sum_data
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.landing_store import LandingStore

SHOWN_AGE_MS = 1000
"""The age of sums is shown from this age on; younger sums were computed just now."""


def status(
    ctx: typer.Context,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compute all figures now, which may take seconds in a large store.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show utilisation, blocks and backlog. Also shows the parts of the waste, and the objects that wait in the landing
    store.

    In a large store it shows the sums that a daemon computed last, and their age.
    """
    with context(ctx).system() as system:
        data, age_ms = status_data(system, exact=exact)
        whose = " in the whole pool" if system.settings.store.backend == "ceph" else ""
    context(ctx).keep(data)
    emit(data, as_json, lambda: _print(data, whose, age_ms))


def status_of_cells(cells: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sums over the cells, for programs and for people."""
    data = sum_data(list(cells.values()))
    live, dead = data["live_bytes"], data["dead_bytes"]
    raw = data["raw_bytes_per_user_byte"]
    waiting_bytes = data["landed_bytes"] + data["queued_bytes"]
    return data, {
        "utilisation": f"{_percent(live, live + dead + data['overhead_bytes'])}  of"
        f" {count_text(data['stripes'], 'stripe')} is live",
        "dead": f"{_percent(dead, live + dead + data['overhead_bytes'])}  {size_text(dead)}",
        "raw bytes per user byte": "-" if raw is None else f"{raw:.3f}  {size_text(data['raw_bytes'])} on all shards",
        "in stripes": f"{count_text(data['packed_objects'], 'packed object')},"
        f" {size_text(live - data['large_bytes'])} live",
        "in own blocks": f"{count_text(data['large_objects'], 'large object')}, {size_text(data['large_bytes'])} live",
        "to be packed": f"{count_text(data['landed_objects'] + data['queued_objects'], 'object')},"
        f" {size_text(waiting_bytes)}",
    }


def status_data(system: System, *, exact: bool) -> tuple[dict[str, Any], int]:
    """Return the data that `status` prints, and the age in milliseconds of the sums over rows: the data of `store_data`
    and these.

    stored_raw_bytes and landing_raw_bytes are what the shards and the landing store report; a Ceph pool reports only
    the sum over all stores in it. blocks_short is the number of blocks that lack a shard, and blocks_short_by_shards
    counts them by the number of missing shards; both are null on Ceph, which repairs them itself. osds_down has the
    numbers of the OSDs of the cluster that are down: none without Ceph, null while they are unknown.
    """
    now_ms, metadata = system.clock.now_ms(), system.metadata
    dated = DatedTotals(metadata.totals(), now_ms) if exact else system.operator.store_totals().read()
    totals, short = dated.totals, system.blocks.blocks_short()
    figures = system.operator.figures_of(dated, _free_bytes(system.blocks), _free_bytes(system.landing))
    target, dump_ms = system.settings.gc.target_space_amp, newest_dump_ms(metadata, now_ms)
    data = store_data(figures, target, metadata.scrub_state(), dump_ms) | {
        "stored_raw_bytes": system.blocks.raw_bytes(),
        "blocks_short": None if short is None else sum(short.values()),
        "blocks_short_by_shards": None if short is None else [{"shards": n, "blocks": short[n]} for n in sorted(short)],
        "osds_down": osds_down(system.groups),
        "landing_raw_bytes": system.landing.raw_bytes(),
        "landed_objects": totals.landed_objects,
        "landed_bytes": totals.landed_bytes,
        "queued_objects": totals.queued_objects,
        "queued_bytes": totals.queued_bytes,
    }
    return data, max(0, now_ms - dated.at_ms)


def _scrub_text(scrub: dict[str, Any] | None, blocks: int) -> str:
    if scrub is None:
        return "never"
    current, last = scrub["current"], scrub["last"]
    parts = []
    if last is not None:
        left = last["found"] - last["mended"]
        parts.append(f"complete pass ended {time_text(last['ended_ms'])}: {last['mended']:,} mended, {left:,} left")
    if current is not None:
        left = current["found"] - current["mended"]
        at = f"{current['blocks']:,} of {count_text(blocks, 'block')}"
        parts.append(f"now at {at}: {current['mended']:,} mended, {left:,} left")
    return "; ".join(parts)


def _short_text(short: list[dict[str, int]] | None) -> str:
    return "-" if short is None else short_text({one["shards"]: one["blocks"] for one in short})


def _free_bytes(place: BlockStore | LandingStore) -> int | None:
    """Return the free space in bytes; None while it is unknown, for example because a shard is missing. The other
    figures are still valid."""
    try:
        return place.free_bytes()
    except Transient as error:
        err.print(f"warning: {error}", markup=False)
        return None


def _free_text(free_bytes: int | None) -> str:
    return "-" if free_bytes is None else size_text(free_bytes)


def _percent(part: int, whole: int) -> str:
    """Format a share in percent. It is computed from bytes, because the ratios in the data are already rounded."""
    return figure_text(ratio(part, whole), ".2%")


def _log_rows(log: dict[str, Any] | None) -> dict[str, str]:
    if log is None:
        return {}
    segments = ", ".join(
        f"{one['count']} {one['state']}" + (f" with {size_text(one['bytes'])}" if one["bytes"] else "")
        for one in log["segments"]
        if one["count"]
    )
    rows = {"landing segments": f"{segments or 'none'}; {_free_text(log['free_bytes'])} free for further segments"}
    devices = log["devices"]
    if devices is not None and devices["lost"]:
        rows["landing log devices"] = f"{devices['working']} work, {len(devices['lost'])} lost: " + ", ".join(
            devices["lost"]
        )
    if devices is not None and devices["unreadable_slots"]:
        rows["landing log slots"] = f"{devices['unreadable_slots']} cannot be read: `nos-ec check` names them"
    return rows


def _amplification_text(found: float | None, target: float | None) -> str:
    text = figure_text(found, ".3f")
    return text if target is None else f"{text}  target {target:g}"


def _cost_rows(cost: dict[str, Any], behind: str | None) -> dict[str, str]:
    rows = {}
    if cost["parts"] is not None:
        known = {part: value for part, value in cost["parts"].items() if part not in _unknown_parts(cost)}
        parts = ", ".join(f"{part.replace('_', ' ')} {value:.3f}" for part, value in known.items())
        rows["raw bytes per live byte"] = f"{cost['raw_bytes_per_live_byte']:.3f}: {parts}"
        waits = cost["landing_bytes_per_live_byte"]
        rows["landing copies"] = f"{waits:.3f} bytes wait per live byte in blocks, in one copy each"
        most = cost["break_even_space_amplification"]
        # A store of a few bytes, most of whose stripes is padding.
        rows["as costly as 3 replicas"] = (
            f"at a space amplification of {most:.2f}" if most >= 1 else "already without dead bytes"
        )
    for span, used in cost["usage"].items():
        if used is not None:
            rows[f"last {span}"] = _usage_text(used)
    if behind is not None:
        rows["GC is behind"] = f"{behind}; `nos-ec gc plan` shows more"
    return rows


def _unknown_parts(cost: dict[str, Any]) -> tuple[str, ...]:
    """Return the parts that are not known: headers and padding are one figure until a daemon has surveyed headers."""
    return ("headers", "padding") if cost["headers_surveyed_ms"] is None else ("undivided",)


def _padding_text(cost: dict[str, Any]) -> str:
    padding = cost["padding_bytes"]
    return "" if padding is None else f", about {size_text(padding)} of it padding"


def _usage_text(used: dict[str, Any]) -> str:
    write, space = (figure_text(used[f"{what}_amplification"], ".2f") for what in ("write", "space"))
    return (
        f"write amplification {write}, space amplification {space}; users {size_text(used['user_bytes'])}, GC"
        f" {size_text(used['copied_bytes'])}, in {used['span_ms'] / 3_600_000:.0f} h"
    )


def _print(data: dict[str, Any], whose: str, age_ms: int) -> None:
    """Print the data. `whose` is the scope of the bytes on disk, if it may be larger than this store; `age_ms` is the
    age of the sums over rows."""
    packed_bytes = data["live_bytes"] - data["large_bytes"]
    raw = data["raw_bytes_per_user_byte"]
    live, dead, overhead = (data[f"{part}_bytes"] for part in ("live", "dead", "overhead"))
    size, dump_ms = live + dead + overhead, data["newest_dump_ms"]
    rows = {
        "utilisation": f"{_percent(live, size)}  of {count_text(data['stripes'], 'stripe')} is live",
        "dead": f"{_percent(dead, size)}  {size_text(dead)}, hole ratio {_percent(dead, live + dead)}",
        "header, names, padding": f"{_percent(overhead, size)}  {size_text(overhead)}{_padding_text(data['cost'])}",
        "raw bytes per user byte": "-" if raw is None else f"{raw:.3f}  {size_text(data['raw_bytes'])} on all shards",
        "space amplification": _amplification_text(data["space_amplification"], data["target_space_amplification"]),
        **_cost_rows(data["cost"], data["gc_behind"]),
        "in stripes": f"{count_text(data['packed_objects'], 'packed object')}, {size_text(packed_bytes)} live",
        "in own blocks": f"{count_text(data['large_objects'], 'large object')}, {size_text(data['large_bytes'])} live",
        "landed, to be published": f"{count_text(data['landed_objects'], 'object')}, {size_text(data['landed_bytes'])}",
        "published, to be packed": f"{count_text(data['queued_objects'], 'object')}, {size_text(data['queued_bytes'])}",
        "of these in the trash": f"{count_text(data['trash_objects'], 'object')}, {size_text(data['trash_bytes'])}",
        "block store": f"{size_text(data['stored_raw_bytes'])} on disk{whose}",
        "blocks short of a shard": _short_text(data["blocks_short_by_shards"]),
        **({"OSDs down": ", ".join(map(str, data["osds_down"]))} if data["osds_down"] else {}),
        "scrub": _scrub_text(data["scrub"], sum(one["count"] for one in data["blocks"])),
        "dump of the metadata": "none in the store" if dump_ms is None else time_text(dump_ms),
        "landing store": f"{size_text(data['landing_raw_bytes'])} on disk{whose}",
        **_log_rows(data["landing_log"]),
        "landing copies to delete": data["landing_deletions"],
        "leases held": data["leases"],
        "blocks": ", ".join(f"{b['count']} {b['kind']} {b['state']}" for b in data["blocks"]) or "-",
        "free": f"{_free_text(data['free_bytes'])} in the block store, {_free_text(data['landing_free_bytes'])} in the"
        " landing store",
    }
    if age_ms >= SHOWN_AGE_MS:
        rows["sums computed"] = f"{age_ms / 1000:.0f} s ago; --exact computes them now"
    facts("status", rows)
