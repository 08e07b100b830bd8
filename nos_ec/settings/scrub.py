"""The section [scrub]."""

from __future__ import annotations

from pydantic import Field

from nos_ec.settings.section import Section
from nos_ec.settings.values import Count, Flag, Size


class ScrubSettings(Section):
    """Scrubs, which read all packed data and compare it with its checksums."""

    pass_days: Count = Field(
        default=14,
        ge=0,
        le=365,
        description="Days from the start of one pass of `gc run --apply --loop` in the background to the start of the"
        " next. If a pass takes longer, the next one follows at once. 0: only `nos-ec scrub` scrubs.",
    )
    bytes_per_s: Size = Field(
        default=16 << 20,
        ge=0,
        le=1 << 40,
        description="Bytes that a scrub reads per second; 0 for no limit. The embedded store reads all shards, and"
        " then the objects again: with 8+3, 19 bytes for 8 packed bytes. At 16 MiB/s it reads 1.3 TiB a day.",
    )
    repair: Flag = Field(
        default=True,
        description="Let the daemon's scrub write damaged shards again, and return damaged objects to their landing"
        " copies. If false, it only reports them.",
    )
