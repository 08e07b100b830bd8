"""The metrics of scrubs, by the GC daemon in the background or by `nos-ec scrub`."""

from __future__ import annotations

from nos_ec.monitoring.declarations.metric import STORE, Declarations, Metric

_declared = Declarations()
_counter, _gauge = _declared.counter, _declared.gauge

SCRUB_BLOCKS = _counter("scrub_blocks", STORE, "Blocks that were scrubbed.", "If 0 while a pass is due, see the log.")
SCRUB_BYTES = _counter(
    "scrub_bytes",
    STORE,
    "Bytes that scrubs have read or written.",
    "Its rate is limited by scrub.bytes_per_s.",
    "direction",
)
SCRUB_DAMAGES = _counter(
    "scrub_damages",
    STORE,
    "Damages that scrubs have found, by outcome: `mended` or `left`.",
    "If above 0, the log names block and shard or object. If several are on one shard, replace its disk. For `left`,"
    " see CHECK.md.",
    "outcome",
)
SCRUB_UNREAD_BLOCKS = _counter(
    "scrub_unread_blocks",
    STORE,
    "Blocks that scrubs could not examine.",
    "If above 0, run `nos-ec scrub`, which names them.",
)
SCRUB_FAILURES = _counter("scrub_failures", STORE, "Scrubs that ended with an error.", "At a steady rate, see the log.")
SCRUB_PASS_BLOCKS = _gauge(
    "scrub_pass_blocks",
    STORE,
    "Blocks that the current pass of a scrub has examined so far, in all processes; 0 between passes.",
    "Compare it with the sum of `nos_ec_store_blocks`.",
)
SCRUB_LAST_PASS = _gauge(
    "scrub_last_pass_timestamp_seconds",
    STORE,
    "When the last complete pass of a scrub ended (Unix time); 0 before the first.",
    "If older than twice `nos_ec_scrub_interval_seconds`, raise scrub.bytes_per_s.",
)
SCRUB_INTERVAL_SECONDS = _gauge(
    "scrub_interval_seconds",
    STORE,
    "scrub.pass_days, in seconds.",
    "Compare the time since `nos_ec_scrub_last_pass_timestamp_seconds` with it.",
)
SCRUB_LEFT = _gauge(
    "scrub_left",
    STORE,
    "Damages that the last complete pass of a scrub, or the current one if it has more, found and did not mend.",
    "Must be 0. Otherwise run `nos-ec scrub --restart`, which names them and shows what to do.",
)

SCRUB_METRICS: list[Metric] = _declared.metrics
"""All metrics of this module, in the order of the reference."""
