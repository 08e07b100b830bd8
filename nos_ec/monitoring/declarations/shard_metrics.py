"""The metrics of rebuilding shards, by the GC daemon in the background or by `nos-ec shards rebuild`."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import STORE, Declarations, Metric

_declared = Declarations()
_counter, _gauge = _declared.counter, _declared.gauge

BLOCKS_SHORT = _gauge(
    "blocks_short",
    STORE,
    "Blocks of the embedded store that lack this many shards, as of the end of the last search by the GC daemon or"
    " `nos-ec shards rebuild`. Not exported before the first search, nor on Ceph.",
    "Should return to 0 after a disk was replaced: see OPERATIONS.md.",
    "shards",
)
REBUILT_SHARDS = _counter(
    "rebuilt_shards",
    STORE,
    "Rebuilt shards, by reason: `missing` or `damaged`.",
    "If `damaged` is above 0, a disk returns other bytes than were written; the log names block and shard.",
    "why",
)
REBUILD_BYTES = _counter(
    "rebuild_bytes",
    STORE,
    "Bytes that rebuilding shards has read or written.",
    "Its rate is limited by shards.rebuild_bytes_per_s.",
    "direction",
)
REBUILD_FAILED_BLOCKS = _gauge(
    "rebuild_failed_blocks",
    STORE,
    "Blocks that the last search could not complete. Not exported before the first search, nor on Ceph.",
    "Must be 0. Otherwise the log names them: a disk is failing, or more than m shards are lost.",
)
REBUILD_FAILURES = _counter(
    "rebuild_failures", STORE, "Rebuilds of shards that ended with an error.", "At a steady rate, see the log."
)

SHARD_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
