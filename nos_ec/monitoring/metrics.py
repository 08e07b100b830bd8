"""Every metric there is, declared once: name, meaning, and what an operator should make of it.

docs/METRICS.md is made from this module by `reference`. Names end in their unit, counters in `_total` (which
Prometheus's text format adds). Figures of the whole store are exported by several processes with the same value:
take their `max`, never their `sum`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "nos_ec_"

PRODUCER, CONSUMER, GC, API = "producer", "consumer", "gc", "api"
_ALL = (PRODUCER, CONSUMER, GC, API)
_STORE = (PRODUCER, GC, API)
"""Consumers may be many, so they leave the figures of the whole store to the others."""
_KEEPERS = (CONSUMER, GC)
"""Services that do housekeeping beside their own work."""
_PARKERS = (PRODUCER, *_KEEPERS)
"""Services that park what fails."""


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    """Only grows, and starts at 0 with the process: look at its rate."""
    GAUGE = "gauge"
    """Is what it is now."""
    HISTOGRAM = "histogram"
    """Counts by size; the bounds are inclusive."""


@dataclass(frozen=True, slots=True)
class Metric:
    """`meaning` says what is counted, `advice` what to do about it; `services` export it."""

    name: str
    kind: Kind
    services: tuple[str, ...]
    labels: tuple[str, ...]
    meaning: str
    advice: str

    @property
    def exposed_name(self) -> str:
        """The name that queries use."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


METRICS: list[Metric] = []
"""All of them, in the order of the reference."""


def _metric(kind: Kind, name: str, services: tuple[str, ...], meaning: str, advice: str, *labels: str) -> Metric:
    metric = Metric(PREFIX + name, kind, services, labels, meaning, advice)
    assert all(metric.name != known.name for known in METRICS), metric.name
    METRICS.append(metric)
    return metric


def _counter(name: str, services: tuple[str, ...], meaning: str, advice: str, *labels: str) -> Metric:
    return _metric(Kind.COUNTER, name, services, meaning, advice, *labels)


def _gauge(name: str, services: tuple[str, ...], meaning: str, advice: str, *labels: str) -> Metric:
    return _metric(Kind.GAUGE, name, services, meaning, advice, *labels)


# --- every process -------------------------------------------------------------------------------------------------
INFO = _gauge(
    "info",
    _ALL,
    "1; the labels say which service and version this is.",
    "Join on it after an upgrade.",
    "service",
    "version",
)
SOURCE_FAILURES = _counter(
    "figures_failed",
    _ALL,
    "Scrapes at which a source of figures could not be read; its metrics are missing from them.",
    "The log names the reason, as a rule a server that does not answer; /readyz will say so too.",
    "source",
)
SHARD_READS = _counter(
    "shard_reads",
    _ALL,
    "Reads issued to shards by this process.",
    "Per object read it should be near 1 while most objects are smaller than a chunk.",
)
SHARD_READ_BYTES = _counter(
    "shard_read_bytes", _ALL, "Bytes of data that reads of shards returned.", "Compare it with what your disks can do."
)
DEGRADED_READS = _counter(
    "degraded_reads",
    _ALL,
    "Reads that had to decode, because a shard was lost or damaged.",
    "More than 0 a minute: find the lost or failing disk before m more follow it.",
)

PARKED_ITEMS = _gauge(
    "parked_items",
    _PARKERS,
    "Items that failed and wait for their next try, by what they are (event, block, ...); the rest goes on.",
    "More than 0 for an hour: the log names them with the reason when they are parked.",
    "what",
)
PARKED_OLDEST_SECONDS = _gauge(
    "parked_oldest_seconds",
    _PARKERS,
    "How long the item parked for longest has been failing; 0 when none is parked.",
    "Alert on an hour: it will hardly pass by itself.",
    "what",
)

# --- producer ------------------------------------------------------------------------------------------------------
PUBLISHED_OBJECTS = _counter(
    "producer_published_objects",
    (PRODUCER,),
    "Objects published to the message log, repeats included.",
    "Follows the rate of PUTs. 0 while objects wait (`nos_ec_store_landed_objects`): look at its log.",
)
PUBLISHED_BYTES = _counter(
    "producer_published_bytes",
    (PRODUCER,),
    "Bytes of the objects published.",
    "If it outgrows the consumers' packed bytes for long, add lanes or consumers.",
)
PRODUCER_SLOTS = _gauge(
    "producer_held_slots",
    (PRODUCER,),
    "Slots, of 16, whose objects this producer publishes.",
    "Their sum over all producers is 16, but for moments. 0: it is a spare, which is well; alert on the sum.",
)
POSTPONED_OBJECTS = _counter(
    "producer_postponed_objects",
    (PRODUCER,),
    "Objects that came due again while their event still waited for the consumers, and were not published again.",
    "Grows while consumers are behind by more than producer.republish_ms; add consumers.",
)
REFUSED_EVENTS = _counter(
    "producer_refused_events",
    (PRODUCER,),
    "Events that the message log did not take while it took others: too large, or of a partition that is away.",
    "More than 0: the producer's log has the reason; raise max.message.bytes of the topic, or look at the brokers.",
)
PUBLISH_FAILURES = _counter(
    "producer_failures",
    (PRODUCER,),
    "Batches that failed and are tried again.",
    "A steady rate means that the metadata store or the message log is away: see /readyz.",
)

# --- consumer ------------------------------------------------------------------------------------------------------
MESSAGES = _counter(
    "consumer_messages", (CONSUMER,), "Messages taken from the log.", "0 while there is lag: it is stuck or paused."
)
STALE_MESSAGES = _counter(
    "consumer_stale_messages",
    (CONSUMER,),
    "Messages that need no packing: their object is deleted, overwritten or packed already, or its row says otherwise.",
    "A large share means that objects die young (raise put.min_age_ms) or are published too often"
    " (raise producer.republish_ms).",
)
POISON_MESSAGES = _counter(
    "consumer_poison_messages",
    (CONSUMER,),
    "Messages that could not be decoded, and were skipped.",
    "Should be 0: somebody else writes to the topic, or versions of producer and consumer do not go together.",
)
PACKED_OBJECTS = _counter(
    "consumer_packed_objects", (CONSUMER,), "Objects whose rows now point into a stripe.", "The rate of the main job."
)
PACKED_BYTES = _counter(
    "consumer_packed_bytes",
    (CONSUMER,),
    "Bytes of the objects packed.",
    "Divided by `nos_ec_consumer_written_bytes_total` it is the utilisation of what is written.",
)
SUPERSEDED_OBJECTS = _counter(
    "consumer_superseded_objects",
    (CONSUMER,),
    "Objects deleted or overwritten while they were packed: holes.",
    "A large share of the packed ones: raise put.min_age_ms.",
)
FAILED_OBJECTS = _counter(
    "consumer_failed_objects",
    (CONSUMER,),
    "Objects whose landing copy is missing or damaged; they stay unpacked.",
    "Must be 0. The log names each object: check the landing store, these bytes have no other copy.",
)
RETRIED_OBJECTS = _counter(
    "consumer_retried_objects",
    (CONSUMER,),
    "Objects tried again, because a write failed or lost too many of its sources, or because their landing copy could"
    " not be read.",
    'Bursts pass. A steady rate: copies that cannot be read (`nos_ec_parked_items{what="object"}`); with no packed'
    " objects: no space, or a shard folder is missing; see the log.",
)
GIVEN_UP_OBJECTS = _counter(
    "consumer_given_up_objects",
    (CONSUMER,),
    "Objects whose landing copy could not be read for minutes, so that their events no longer hold up the offsets; they"
    " stay queued and are published again.",
    "More than 0: bring the placement group or disk back that holds their copies; the log names the first ones.",
)
GROUPS_WRITTEN = _counter(
    "consumer_groups_written", (CONSUMER,), "Stripe groups written and committed.", "Each is one append and one commit."
)
STRIPES_WRITTEN = _counter(
    "consumer_stripes_written",
    (CONSUMER,),
    "Stripes written and committed.",
    "Near 1 per group with small objects; large ones make larger groups.",
)
WRITTEN_BYTES = _counter(
    "consumer_written_bytes",
    (CONSUMER,),
    "Data-space bytes of the stripes written, padding and headers included.",
    "Times (k + m) / k it is what the disks got.",
)
WRITTEN_UTILISATION = _gauge(
    "consumer_written_utilisation_ratio",
    (CONSUMER,),
    "Packed bytes / written bytes since the process started.",
    "Expect 0.98 or more. Less: consumer.linger_ms or window_objects is too small for the arrival rate, or the sizes"
    " do not allow more (`nos-ec simulate --sizes` tells).",
)
MERGE_LIST_OBJECTS = _gauge(
    "consumer_merge_list_objects",
    (CONSUMER,),
    "Objects that wait to be packed.",
    "Below consumer.window_objects the packer has little choice.",
)
MERGE_LIST_BYTES = _gauge(
    "consumer_merge_list_bytes",
    (CONSUMER,),
    "Bytes of the objects that wait; they are not in memory.",
    "At consumer.merge_list_bytes_max polling pauses.",
)
PAUSED = _gauge(
    "consumer_polling_paused",
    (CONSUMER,),
    "1 while the merge list is full and partitions are paused.",
    "Always 1 with lag: writing is the bottleneck; add lanes or consumers.",
)
LANES = _gauge("consumer_lanes", (CONSUMER,), "Lanes of writing this consumer has.", "Equals consumer.lanes.")
LANES_BUSY = _gauge(
    "consumer_lanes_busy",
    (CONSUMER,),
    "Lanes that write a group now.",
    "All busy all the time with lag: add lanes while the disks have room.",
)
LANE_BUSY_SECONDS = _gauge(
    "consumer_lane_busy_seconds_max",
    (CONSUMER,),
    "How long the slowest lane has been at its present group.",
    "Over a minute: a disk or the metadata store hangs.",
)
GROUP_WRITE_SECONDS = _metric(
    Kind.HISTOGRAM,
    "consumer_group_write_seconds",
    (CONSUMER,),
    "Seconds from reading a group's sources to its commit, by stripes of the group.",
    "A tail that grows while the load does not: a slow disk, or lock waits in the metadata store.",
    "stripes",
)
OFFSETS_COMMITTED = _counter(
    "consumer_offsets_committed",
    (CONSUMER,),
    "Messages committed as done.",
    "Lags behind the messages taken by what waits and what is in flight.",
)

# --- leases, housekeeping ------------------------------------------------------------------------------------------
LEASE_LEFT_SECONDS = _gauge(
    "lease_left_seconds",
    _KEEPERS,
    "Seconds until the writer lease expires, unless it is renewed before. GC has one only during a run.",
    "Saws between two thirds of lease_ttl_ms and all of it. Near 0: this process or the metadata store stalls.",
    "lease",
)
HOUSEKEEPING_FAILURES = _counter(
    "housekeeping_failures",
    _KEEPERS,
    "Rounds of recovery and reaper that failed and are tried again.",
    "A steady rate: see the log; landing copies pile up meanwhile.",
)
REAPER_DELETED = _counter(
    "reaper_deleted_copies",
    _KEEPERS,
    "Landing copies deleted after their packed bytes were verified, or unneeded.",
    "Follows the packed objects by reaper.landing_grace_ms.",
)
REAPER_VERIFIED_BYTES = _counter(
    "reaper_verified_bytes", _KEEPERS, "Packed bytes read back and found right.", "What verification costs to read."
)
REAPER_REVERTED = _counter(
    "reaper_reverted_objects",
    _KEEPERS,
    "Packed objects that failed verification and went back to their landing copy.",
    "Must be 0: disks or memory damage data. The log names block and object.",
)
REAPER_POSTPONED = _counter(
    "reaper_postponed_copies",
    _KEEPERS,
    "Landing copies that could not be settled and are tried again later.",
    "A steady rate: a store does not answer.",
)
LEASES_FENCED = _counter(
    "recovery_leases_fenced",
    _KEEPERS,
    "Expired leases of dead writers that were revoked.",
    "One for each writer that was killed. More: processes stall for longer than lease_ttl_ms.",
)
BLOCKS_RECOVERED = _counter(
    "recovery_blocks_sealed",
    _KEEPERS,
    "Blocks of dead writers that were reconciled with the rows and sealed.",
    'Follows the fenced leases. `nos_ec_store_blocks{state="fenced"}` that stays up: see the log.',
)

# --- GC ------------------------------------------------------------------------------------------------------------
GC_RUNS = _counter("gc_runs", (GC,), "Collections that ended well.", "Grows every gc.wait_ms.")
GC_FAILURES = _counter(
    "gc_failures",
    (GC,),
    "Collections that failed; the next one goes on from there.",
    "A steady rate: see the log. Conflict: another GC holds the lease.",
)
GC_LAST_RUN = _gauge(
    "gc_last_run_timestamp_seconds",
    (GC,),
    "When the last collection ended well (Unix time); 0 before the first.",
    "Alert when it is older than a few gc.wait_ms. Started by cron or a timer, watch the job instead.",
)
GC_BLOCKS_EXAMINED = _counter(
    "gc_examined_blocks", (GC,), "Blocks whose headers GC read.", "How many candidates the trigger finds."
)
GC_EXAMINED_BYTES = _counter(
    "gc_examined_bytes", (GC,), "Data-space bytes of the blocks examined.", "What a GC without headers would have read."
)
GC_HEADER_BYTES = _counter(
    "gc_header_read_bytes",
    (GC,),
    "Bytes of headers read to decide.",
    "Should be a few percent of `nos_ec_gc_examined_bytes_total`.",
)
GC_BLOCKS_CONDEMNED = _counter(
    "gc_condemned_blocks",
    (GC,),
    "Blocks emptied; they are deleted after gc.block_grace_ms.",
    "Deletions follow one grace later.",
)
GC_BLOCKS_DELETED = _counter("gc_deleted_blocks", (GC,), "Blocks deleted.", "Falls behind the condemned: see the log.")
GC_RECLAIMED_BYTES = _counter(
    "gc_reclaimed_bytes", (GC,), "Data-space bytes of the blocks deleted.", "Less the moved bytes it is GC's gain."
)
GC_MOVED_OBJECTS = _counter("gc_moved_objects", (GC,), "Live objects rewritten.", "GC's work.")
GC_MOVED_BYTES = _counter(
    "gc_moved_bytes",
    (GC,),
    "Bytes of live objects rewritten.",
    "Over half of the reclaimed bytes: gc.hole_ratio_min is too low for what it gains.",
)
GC_STRIPES_WRITTEN = _counter("gc_written_stripes", (GC,), "Stripes GC wrote for survivors.", "GC's write load.")
GC_BLOCKS_PARKED = _counter(
    "gc_parked_blocks",
    (GC,),
    "Times a run set a block aside because it could not be read, and went on with the others.",
    "A steady rate: see the log, and `nos_ec_parked_items`; the block is tried again after a while.",
)
GC_UNREADABLE = _counter(
    "gc_unreadable_objects",
    (GC,),
    "Live objects that could not be read; their blocks stay.",
    "Must be 0: more than m shards are lost or damaged. The log names block and object.",
)

# --- the whole store -----------------------------------------------------------------------------------------------
STORE_BLOCKS = _gauge(
    "store_blocks",
    _STORE,
    "Blocks by kind and state.",
    "`fenced` should return to 0 within a minute, `condemned` within gc.block_grace_ms and a GC run.",
    "kind",
    "state",
)
STORE_STRIPES = _gauge(
    "store_stripes", _STORE, "Stripes in all blocks.", "Times stripe size and (k + m) / k: raw space."
)
STORE_LIVE_BYTES = _gauge("store_live_bytes", _STORE, "Bytes in blocks that objects refer to.", "The useful part.")
STORE_DEAD_BYTES = _gauge(
    "store_dead_bytes",
    _STORE,
    "Bytes in blocks that deleted or overwritten objects left.",
    "Grows for ever: GC does not run, or gc.hole_ratio_min is above what your deletes make.",
)
STORE_OVERHEAD_BYTES = _gauge(
    "store_overhead_bytes", _STORE, "Headers, names and padding in blocks.", "A percent or two of all bytes."
)
STORE_UTILISATION = _gauge(
    "store_utilisation_ratio",
    _STORE,
    "Live bytes / bytes of all stripes; 0 while nothing is packed.",
    "Falling: deletes outrun GC.",
)
STORE_LANDED_OBJECTS = _gauge(
    "store_landed_objects",
    _STORE,
    "Objects in the landing store that are not published yet.",
    "Grows while the producer runs: it is too slow or stuck. Those younger than put.min_age_ms are meant to wait.",
)
STORE_LANDED_BYTES = _gauge(
    "store_landed_bytes", _STORE, "Bytes of them.", "Each costs a whole copy in the landing store."
)
STORE_QUEUED_OBJECTS = _gauge(
    "store_queued_objects", _STORE, "Objects published and not packed yet.", "Grows: add lanes or consumers."
)
STORE_QUEUED_BYTES = _gauge("store_queued_bytes", _STORE, "Bytes of them.", "The backlog in bytes.")
STORE_LANDING_DELETIONS = _gauge(
    "store_landing_deletions",
    _STORE,
    "Landing copies on the deletion queue, PUTs in flight included.",
    "Grows: the reaper (in consumers and GC) does not run or cannot verify.",
)
STORE_LEASES = _gauge("store_leases", _STORE, "Writer leases held.", "One a consumer, a GC run, a large PUT.")
STORE_FREE_BYTES = _gauge(
    "store_free_bytes",
    _STORE,
    "User bytes that still fit the block store.",
    "PUTs are refused below 2 x gc.reserve_bytes, packing below 1 x: alert well above that.",
)
LAG_MESSAGES = _gauge(
    "store_lag_messages",
    _STORE,
    "Messages the consumer group has not committed; absent while the log does not answer.",
    "Alert on growth over an hour, not on the value: bursts are what the log is for.",
)


def reference() -> str:
    """docs/METRICS.md: every metric, who exports it, what it means and what to do about it."""
    lines = [
        "# Metrics",
        "",
        "<!-- Made from nos_ec/monitoring/metrics.py by `make reference`; change it there. -->",
        "",
        "What `/metrics` of the daemons and of the API says ([OPERATIONS.md](OPERATIONS.md)). Counters start at 0 with",
        "the process. `nos_ec_store_*` are figures of the whole store that several processes export alike: take their",
        "`max`, never their `sum`. Beside these there are the usual `process_*` metrics of the Prometheus client.",
        "",
        "| metric | kind | by | meaning | advice |",
        "|---|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        by = "all" if metric.services == _ALL else ", ".join(metric.services)
        lines.append(f"| `{metric.exposed_name}{labels}` | {metric.kind} | {by} | {metric.meaning} | {metric.advice} |")
    return "\n".join(lines) + "\n"
