"""The section [scrub]."""

from __future__ import annotations

from pydantic import Field

from nos_ec.settings.section import Section
from nos_ec.settings.values import Size


class ScrubSettings(Section):
    """Reading everything that is packed, and comparing it with its checksums."""

    bytes_per_s: Size = Field(
        default=16 << 20,
        ge=0,
        le=1 << 40,
        description="Bytes that a scrub reads in a second; 0 for no limit. The embedded store reads all shards, and its"
        " objects once more: with 8+3, 19 bytes for 8 packed ones. At 16 MiB/s it reads 1.3 TiB a day.",
    )
