"""The section [shards]."""

from __future__ import annotations

from pydantic import Field

from nos_ec.settings.section import Section
from nos_ec.settings.values import Size


class ShardSettings(Section):
    """Rebuilding the shards of the embedded block store after a disk was replaced. Ceph rebuilds its shards itself."""

    rebuild_bytes_per_s: Size = Field(
        default=64 << 20,
        ge=0,
        le=1 << 40,
        description="Bytes that a rebuild reads and writes per second, on all shards together; 0 for no limit. With"
        " 8+3, a lost shard of 1 GiB takes 12 GiB: 10 shards are read, and the new one is written and read back.",
    )
