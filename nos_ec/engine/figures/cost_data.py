"""The cost of the space of a store as JSON values, for `status --json` and the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nos_ec.core.geometry import Geometry
from nos_ec.core.ratios import ratio, rounded
from nos_ec.engine.figures.header_survey import HeadersFound
from nos_ec.engine.figures.usage import Usage
from nos_ec.ports.metadata import Totals


def cost_data(
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
