"""The figures of a store as JSON values, for `status --json` and the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nos_ec.core.errors import NosError
from nos_ec.core.geometry import Geometry
from nos_ec.core.ratios import ratio, rounded
from nos_ec.engine.figures.header_survey import HeadersFound
from nos_ec.engine.figures.log_figures import LogFigures
from nos_ec.engine.figures.usage import Usage
from nos_ec.monitoring.sources import StoreFigures
from nos_ec.ports.metadata import ScrubPass, ScrubState, Totals
from nos_ec.ports.placement_groups import PlacementGroups


def osds_down(groups: PlacementGroups) -> list[int] | None:
    """Return the numbers of the OSDs that are down; None while they are unknown."""
    try:
        return list(groups.osds_down())
    except NosError:  # only this figure is missing
        return None


def store_data(
    figures: StoreFigures, target: float | None, scrub: ScrubState | None, dump_ms: int | None
) -> dict[str, Any]:
    """Return the figures as JSON values. Sizes are in bytes; ratios are null while nothing is packed.

    utilisation, dead_ratio and overhead_ratio are shares of all stripes and add up to 1. hole_ratio is dead / (live +
    dead), as everywhere. space_amplification is (live + dead) / live without condemned blocks; `target` is the target
    of GC for it (null if gc.policy has none). cost is the cost of a live byte (see `_cost_data`). gc_behind is the
    reason why the last GC run did not do all that its policy asks for; null if it did. raw_bytes is the size of this
    store's blocks on all shards according to the metadata. computed_at_ms is the time at which the sums over rows were
    computed. landing_log is null for a store without one; the bytes of its segments count the batches in them, 0 for
    open segments. Its devices are null on Ceph; `lost` has a text for each lost device, and unreadable_slots is the
    number of slots whose headers cannot be read. scrub has the current pass, if one is under way, and the last complete
    one (null if there is none); it is null before the first pass. newest_dump_ms is `dump_ms`, the time at which the
    newest dump of the metadata in the store began; it is null if there is no dump.
    """
    totals, geometry = figures.totals, figures.geometry
    return {
        "utilisation": rounded(totals.utilisation(geometry)),
        "hole_ratio": rounded(totals.hole_ratio),
        "dead_ratio": rounded(totals.dead_ratio(geometry)),
        "overhead_ratio": rounded(totals.overhead_ratio(geometry)),
        "raw_bytes": geometry.raw_bytes(totals.stripes),
        "raw_bytes_per_user_byte": rounded(totals.raw_bytes_per_user_byte(geometry)),
        "space_amplification": rounded(totals.space_amplification),
        "target_space_amplification": target,
        "gc_behind": figures.behind,
        "cost": _cost_data(totals, geometry, figures.usage, figures.headers),
        "stripes": totals.stripes,
        "live_bytes": totals.live_bytes,
        "dead_bytes": totals.dead_bytes,
        "overhead_bytes": totals.overhead_bytes,
        "packed_objects": totals.packed_objects,
        "large_objects": totals.large_objects,
        "large_bytes": totals.large_bytes,
        "trash_objects": totals.trash_objects,
        "trash_bytes": totals.trash_bytes,
        "landing_deletions": totals.landing_deletions,
        "leases": totals.leases,
        "blocks": [
            {"kind": kind.value, "state": state.value, "count": count}
            for (kind, state), count in sorted(totals.blocks.items())
        ],
        "free_bytes": figures.free_bytes,
        "landing_free_bytes": figures.landing_free_bytes,
        "computed_at_ms": figures.at_ms,
        "landing_log": _log_data(figures.landing_log),
        "scrub": None if scrub is None else {"current": _pass_data(scrub.current), "last": _pass_data(scrub.last)},
        "newest_dump_ms": dump_ms,
    }


_ADDITIVE = (
    *("raw_bytes", "stripes", "live_bytes", "dead_bytes", "overhead_bytes", "packed_objects", "large_objects"),
    *("large_bytes", "trash_objects", "trash_bytes", "landing_deletions", "leases"),
    *("landed_objects", "landed_bytes", "queued_objects", "queued_bytes"),
)
"""The figures of cells that can be added up. Free space cannot, because cells may share pools and disks."""


def sum_data(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over cells of the figures of `status --json` that can be added up, and utilisation, hole ratio
    and raw bytes per user byte of all cells together (null while nothing is packed)."""
    found: dict[str, Any] = {name: sum(one[name] for one in cells) for name in _ADDITIVE}
    live, dead = found["live_bytes"], found["dead_bytes"]
    return found | {
        "utilisation": rounded(ratio(live, live + dead + found["overhead_bytes"])),
        "hole_ratio": rounded(ratio(dead, live + dead)),
        "raw_bytes_per_user_byte": rounded(ratio(found["raw_bytes"], live)),
    }


def _log_data(log: LogFigures | None) -> dict[str, Any] | None:
    if log is None:
        return None
    segments = [{"state": state.value, **asdict(one)} for state, one in log.segments.items()]
    devices = None
    if (found := log.devices) is not None:
        devices = {"working": found.working, "lost": found.lost, "unreadable_slots": len(found.unreadable)}
    return {"segments": segments, "free_bytes": log.free_bytes, "devices": devices}


def _pass_data(one: ScrubPass | None) -> dict[str, Any] | None:
    return None if one is None else asdict(one)


def _cost_data(
    totals: Totals, geometry: Geometry, used: Mapping[str, Usage | None], headers: HeadersFound | None
) -> dict[str, Any]:
    """Return the cost as JSON values.

    raw_bytes_per_live_byte: of blocks; null without live bytes. parts: they add up to it; all but `live` include their
    own coding chunks. undivided: headers and padding, before the first survey of headers. headers_surveyed_ms: the time
    of the last survey, or null. padding_bytes: how much of the overhead in blocks is padding, estimated from that
    survey. landing_bytes_per_live_byte: one landing copy of the objects that wait, though the landing store may keep
    several; null without live bytes. break_even_space_amplification: the space amplification at which three replicas
    would take as much space. usage: by span, null while no earlier figures are known.
    """
    cost = totals.raw_cost(geometry, None if headers is None else headers.share)
    return {
        "raw_bytes_per_live_byte": None if cost is None else rounded(cost.total),
        "parts": None if cost is None else {part: rounded(value) for part, value in cost.parts.items()},
        "headers_surveyed_ms": None if headers is None else headers.at_ms,
        "padding_bytes": None if headers is None else round((1 - headers.share) * totals.overhead_bytes),
        "landing_bytes_per_live_byte": rounded(ratio(totals.waiting_bytes, totals.live_bytes)),
        "break_even_space_amplification": None if cost is None else rounded(cost.break_even),
        "usage": {span: None if one is None else _usage(one) for span, one in used.items()},
    }


def _usage(one: Usage) -> dict[str, Any]:
    return asdict(one) | {
        "write_amplification": rounded(one.write_amplification),
        "space_amplification": rounded(one.space_amplification),
    }
