"""The section [scrub]."""

from __future__ import annotations

from pydantic import Field

from nos_ec.settings.section import Section
from nos_ec.settings.values import Count, Flag, Size


class ScrubSettings(Section):
    """Reading everything that is packed, and comparing it with its checksums."""

    daemon: Flag = Field(
        default=True,
        description="Let `gc run --apply --loop` scrub in the background. If false, only `nos-ec scrub` does.",
    )
    pass_days: Count = Field(
        default=14,
        ge=1,
        le=365,
        description="Days from the beginning of one pass of the daemon to that of the next. A pass that takes longer is"
        " followed by the next one at once.",
    )
    bytes_per_s: Size = Field(
        default=16 << 20,
        ge=0,
        le=1 << 40,
        description="Bytes that a scrub reads in a second; 0 for no limit. The embedded store reads all shards, and its"
        " objects once more: with 8+3, 19 bytes for 8 packed ones. At 16 MiB/s it reads 1.3 TiB a day.",
    )
    repair: Flag = Field(
        default=True,
        description="Let a scrub of the daemon write damaged shards again, and let damaged objects go back to their"
        " landing copies. If false, it reports them.",
    )
