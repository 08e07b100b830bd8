"""The answers of the API about what space costs."""

from __future__ import annotations

from pydantic import Field

from nos_ec.api.answer import Answer, Bytes, Count


class CostParts(Answer):
    """Raw bytes per live byte in blocks, by what they hold. All parts but live count their coding chunks."""

    live: float
    coding: float = Field(ge=0, description="Coding chunks of live bytes.")
    headers: float = Field(ge=0, description="Headers and names.")
    padding: float = Field(ge=0, description="Bytes of stripes that belong to nothing.")
    undivided: float = Field(ge=0, description="Headers and padding, before the first survey of headers; 0 after it.")
    dead_sealed: float = Field(ge=0)
    dead_open: float = Field(ge=0, description="In blocks that are not sealed yet, so that GC cannot collect them.")
    dead_condemned: float = Field(ge=0, description="In blocks that are deleted after their grace period.")


class UsageModel(Answer):
    """What was written to blocks in a span of time, shorter than asked for where nothing older is known."""

    span_ms: Count
    user_bytes: Bytes
    copied_bytes: Bytes = Field(description="What GC copied.")
    write_amplification: float | None = Field(ge=0, description="(user + copied) / user; null without user bytes.")
    space_amplification: float | None = Field(ge=0, description="Stored / live bytes, the mean of the span.")


class UsageSpans(Answer):
    """The last day and week. Null while nothing earlier is known."""

    day: UsageModel | None
    week: UsageModel | None


class Cost(Answer):
    """What a live byte costs."""

    raw_bytes_per_live_byte: float | None = Field(ge=0, description="In blocks; null without live bytes.")
    parts: CostParts | None
    headers_surveyed_ms: Count | None = Field(
        description="When headers were surveyed last, from which headers and padding are told apart; null before."
    )
    padding_bytes: Bytes | None = Field(
        description="Of overhead_bytes, what belongs to nothing; an estimate by that survey, null before."
    )
    landing_bytes_per_live_byte: float | None = Field(
        ge=0, description="Bytes that wait to be packed, one landing copy of each; null without live bytes."
    )
    break_even_space_amplification: float | None = Field(
        description="The space amplification at which three replicas would take as much."
    )
    usage: UsageSpans
