"""Answer models: the cost of stored bytes."""

from __future__ import annotations

from pydantic import Field

from nos_ec.api.answer import Answer, Bytes, Count
from nos_ec.engine.figures.usage import Usage


class CostParts(Answer):
    """Raw bytes in blocks per live byte, divided by content. All parts except `live` include their coding chunks."""

    live: float
    coding: float = Field(ge=0, description="Coding chunks of live bytes.")
    headers: float = Field(ge=0, description="Headers and names.")
    padding: float = Field(ge=0, description="Bytes of stripes that no object, header or name uses.")
    undivided: float = Field(
        ge=0, description="Headers and padding together until headers are first surveyed; 0 afterwards."
    )
    dead_sealed: float = Field(ge=0)
    dead_open: float = Field(
        ge=0, description="Dead bytes in blocks that are not sealed yet, so GC cannot collect them."
    )
    dead_condemned: float = Field(
        ge=0, description="Dead bytes in blocks that will be deleted after their grace period."
    )


class UsageSpans(Answer):
    """Usage in the last day and week. Null while no older data is known."""

    day: Usage | None
    week: Usage | None


class Cost(Answer):
    """The cost of a live byte."""

    raw_bytes_per_live_byte: float | None = Field(
        ge=0, description="Raw bytes in blocks only; null without live bytes."
    )
    parts: CostParts | None
    headers_surveyed_ms: Count | None = Field(
        description="Time of the last survey of headers, which separates headers from padding; null before the first."
    )
    padding_bytes: Bytes | None = Field(
        description="The padding in overhead_bytes, as estimated by that survey; null before the first."
    )
    landing_bytes_per_live_byte: float | None = Field(
        ge=0, description="Bytes that wait to be packed, counting one landing copy of each; null without live bytes."
    )
    break_even_space_amplification: float | None = Field(
        description="The space amplification at which three replicas would take the same space."
    )
    usage: UsageSpans
