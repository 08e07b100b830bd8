"""The section [shards]."""

from __future__ import annotations

from pydantic import Field

from nos_ec.settings.section import DAY, MINUTE, Section
from nos_ec.settings.values import Count, Flag, Size


class ShardSettings(Section):
    """Rebuilding the shards of the embedded block store after a disk was replaced. Ceph rebuilds its shards itself."""

    rebuild: Flag = Field(
        default=True,
        description="Let `gc run --apply --loop` rebuild shards in the background. If false, only `nos-ec shards"
        " rebuild` does.",
    )
    rebuild_bytes_per_s: Size = Field(
        default=64 << 20,
        ge=0,
        le=1 << 40,
        description="Bytes that a rebuild reads and writes per second, on all shards together; 0 for no limit. With"
        " 8+3, a lost shard of 1 GiB takes 12 GiB: 10 shards are read, and the new one is written and read back.",
    )
    rebuild_wait_ms: Count = Field(
        default=10 * MINUTE,
        ge=1,
        le=30 * DAY,
        description="Milliseconds between two searches for blocks that lack a shard. A search lists all shard folders.",
    )
