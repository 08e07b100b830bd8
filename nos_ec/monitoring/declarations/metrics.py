"""Declares metrics: name, meaning, and advice to the operator. The metrics of processes that PUT and GET are in
library_metrics.py, and the metrics of further parts in other modules of this package.

`reference` generates docs/METRICS.md. Names end in their unit; Prometheus's text format adds `_total` to counters.
"""

from __future__ import annotations

from nos_ec.monitoring.declarations.device_metrics import DEVICE_METRICS
from nos_ec.monitoring.declarations.library_metrics import LIBRARY, LIBRARY_METRICS
from nos_ec.monitoring.declarations.lifecycle_metrics import LIFECYCLE_METRICS
from nos_ec.monitoring.declarations.metric import API, CONSUMER, GC, PRODUCER, S3, STORE, Declarations, Metric
from nos_ec.monitoring.declarations.s3_metrics import S3_METRICS
from nos_ec.monitoring.declarations.scrub_metrics import SCRUB_METRICS
from nos_ec.monitoring.declarations.shard_metrics import SHARD_METRICS
from nos_ec.monitoring.declarations.space_metrics import SPACE_METRICS
from nos_ec.monitoring.declarations.trash_metrics import TRASH_METRICS

_ALL = (PRODUCER, CONSUMER, GC, API, S3, LIBRARY)
_KEEPERS = (CONSUMER, GC)
"""Services that do housekeeping in addition to their own work."""
_PARKERS = (PRODUCER, *_KEEPERS)
"""Services that park failed items."""

_declared = Declarations()
_counter, _gauge, _histogram = _declared.counter, _declared.gauge, _declared.histogram

# --- every process -------------------------------------------------------------------------------------------------
INFO = _gauge(
    "info",
    _ALL,
    "Always 1; the labels give the service, its version, and the id of its store.",
    "Join on it after an upgrade, or to find the processes of a store by its id.",
    "service",
    "version",
    "store_id",
)
SOURCE_FAILURES = _counter(
    "figures_failed",
    _ALL,
    "Scrapes in which a source of figures could not be read; its metrics are missing from those scrapes.",
    "The log has the reason, usually a server that does not answer; /readyz then reports it too.",
    "source",
)
SHARD_READS = _counter(
    "shard_reads",
    _ALL,
    "Shard reads issued by this process.",
    "Per object read, this should be near 1 while most objects are smaller than a chunk and few are split.",
)
SHARD_READ_BYTES = _counter(
    "shard_read_bytes", _ALL, "Bytes returned by shard reads.", "Compare it with the throughput of your disks."
)
DEGRADED_READS = _counter(
    "degraded_reads",
    _ALL,
    "Reads that had to decode because a shard was lost or damaged. Always 0 on Ceph, whose OSDs decode without"
    " notifying clients: see `nos_ec_store_placement_groups` there.",
    "If more than 0 per minute, find the lost or failing disk before m more fail.",
)
TIMED_OUT_READS = _counter(
    "timed_out_reads",
    _ALL,
    "Reads of blocks that timed out after ceph.op_timeout_ms. Only on Ceph.",
    "An OSD hangs but is not down yet, or too many OSDs of a placement group are down: see `ceph health detail`.",
)

PARKED_ITEMS = _gauge(
    "parked_items",
    _PARKERS,
    "Items that failed and wait for their next try, by type (event, block, ...); all other work continues.",
    "If above 0 for an hour, read the log, which names each item with the reason when it is parked.",
    "what",
)
PARKED_OLDEST_SECONDS = _gauge(
    "parked_oldest_seconds",
    _PARKERS,
    "How long the longest-parked item has been failing; 0 when nothing is parked.",
    "Alert at one hour, because the failure is then unlikely to pass without help.",
    "what",
)

# --- producer ------------------------------------------------------------------------------------------------------
PUBLISHED_OBJECTS = _counter(
    "producer_published_objects",
    (PRODUCER,),
    "Objects published to the message log, repeats included.",
    "Follows the rate of PUTs. If 0 while objects wait (`nos_ec_store_landed_objects`), see the producer's log.",
)
PUBLISHED_BYTES = _counter(
    "producer_published_bytes",
    (PRODUCER,),
    "Bytes of the published objects.",
    "If this grows faster than the consumers' packed bytes for long, add lanes or consumers.",
)
PRODUCER_SLOTS = _gauge(
    "producer_held_slots",
    (PRODUCER,),
    "Slots (16 in total) whose objects this producer publishes.",
    "The sum over all producers is 16, except for short moments. 0 means that this producer is a spare, which is"
    " normal, so alert on the sum.",
)
SPREAD_BUCKETS = _gauge(
    "producer_spread_buckets",
    (PRODUCER,),
    "Buckets that this producer spreads over all partitions at present, because they have most of the backlog. Buckets"
    " with a fixed spread do not count.",
    "1 while a bucket gets more objects than one consumer packs. If it never returns to 0, give this bucket a fixed"
    " spread in log.spread_buckets; the producer's log has its name.",
)
POSTPONED_OBJECTS = _counter(
    "producer_postponed_objects",
    (PRODUCER,),
    "Objects that became due again while their event still waited for the consumers, and were not published again.",
    "Grows while consumers are behind by more than producer.republish_ms; add consumers.",
)
REFUSED_EVENTS = _counter(
    "producer_refused_events",
    (PRODUCER,),
    "Events that the message log refused while it accepted others: too large, or for an unavailable partition.",
    "If above 0, the producer's log has the reason; raise max.message.bytes of the topic, or check the brokers.",
)
PUBLISH_FAILURES = _counter(
    "producer_failures",
    (PRODUCER,),
    "Batches that failed and are retried.",
    "A steady rate means that the metadata store or the message log is unavailable: see /readyz.",
)

NOTIFICATIONS_SENT = _counter(
    "producer_notifications",
    (PRODUCER,),
    "Notifications of buckets that the producer has sent. One that was sent again counts again.",
    "Compare with the rate of changes in buckets with notifications.",
)
NOTIFICATION_FAILURES = _counter(
    "producer_notification_failures",
    (PRODUCER,),
    "Batches of notifications that a topic has not taken, or not in whole. They are retried.",
    "A steady rate means that a topic is missing or not writable, or that Kafka is away: the log names the topic.",
)
OUTBOX_EVENTS = _gauge(
    "producer_outbox_events",
    (PRODUCER,),
    "Notifications that wait in the database to be sent, counted every minute.",
    "Take the `max` of the producers. See `nos_ec_producer_outbox_events_max`.",
)
OUTBOX_EVENTS_MAX = _gauge(
    "producer_outbox_events_max",
    (PRODUCER,),
    "s3.notification_events_max; 0 if s3.notification_topics is empty.",
    "At this number of waiting notifications, buckets with notifications answer 503 to changes.",
)
OUTBOX_AGE_SECONDS = _gauge(
    "producer_outbox_age_seconds",
    (PRODUCER,),
    "Age of the oldest notification that waits, looked up every minute.",
    "Above a few minutes, a topic does not take its notifications.",
)
METERED_BUCKETS = _gauge(
    "producer_metered_buckets",
    (PRODUCER,),
    "Metered buckets, in the producer that keeps their usage; 0 in others, and without store.count_usage.",
    "Take the `max` of the producers.",
)
BUCKET_BYTES = _gauge(
    "producer_bucket_bytes",
    (PRODUCER,),
    "Bytes that a metered bucket holds: for the 100 buckets that change most, and those of producer.shown_buckets.",
    "`nos-ec usage` shows all metered buckets, and `nos-ec s3 quota show` how much of a quota is left.",
    "bucket",
)
BUCKET_OBJECTS = _gauge(
    "producer_bucket_objects",
    (PRODUCER,),
    "Objects that a metered bucket holds, for the same buckets.",
    "As for the bytes.",
    "bucket",
)
QUOTA_USED_RATIO = _gauge(
    "producer_quota_used_ratio",
    (PRODUCER,),
    "Share of its quota that a bucket or an account uses, for the 100 that use the greatest shares: of bytes or"
    " objects, whichever is greater, and of a soft limit where there is no hard one. Read every minute.",
    "At 1, PUTs are refused, or with a soft limit, logged. Raise the quota, or ask the owner to delete something.",
    "scope",
    "name",
)

# --- consumer ------------------------------------------------------------------------------------------------------
MESSAGES = _counter(
    "consumer_messages",
    (CONSUMER,),
    "Messages taken from the log.",
    "0 while there is lag means that the consumer is stuck or paused.",
)
STALE_MESSAGES = _counter(
    "consumer_stale_messages",
    (CONSUMER,),
    "Messages that need no packing: the object is already deleted, overwritten or packed, or its row differs.",
    "A large share means that objects are short-lived (raise put.min_age_ms) or are published too often (raise"
    " producer.republish_ms).",
)
POISON_MESSAGES = _counter(
    "consumer_poison_messages",
    (CONSUMER,),
    "Messages that could not be decoded and were skipped.",
    "Should be 0. Otherwise another program writes to the topic, or the versions of producer and consumer do not"
    " match.",
)
PACKED_OBJECTS = _counter(
    "consumer_packed_objects",
    (CONSUMER,),
    "Objects whose rows now point into a stripe.",
    "The rate at which objects are packed.",
)
PACKED_BYTES = _counter(
    "consumer_packed_bytes",
    (CONSUMER,),
    "Bytes of the packed objects.",
    "Divide by `nos_ec_consumer_written_bytes_total` to get the utilisation of new stripes.",
)
SUPERSEDED_OBJECTS = _counter(
    "consumer_superseded_objects",
    (CONSUMER,),
    "Objects deleted or overwritten while they were being packed: they leave holes.",
    "If this is a large share of the packed objects, raise put.min_age_ms.",
)
FAILED_OBJECTS = _counter(
    "consumer_failed_objects",
    (CONSUMER,),
    "Objects whose landing copy is missing or damaged; they stay unpacked.",
    "Must be 0. The log names each object: check the landing store, because these bytes have no other copy.",
)
RETRIED_OBJECTS = _counter(
    "consumer_retried_objects",
    (CONSUMER,),
    "Objects retried because a write failed or lost too many of its sources, or because their landing copy could not"
    " be read.",
    "Bursts are normal. A steady rate means that landing copies cannot be read"
    ' (`nos_ec_parked_items{what="object"}`). If no objects are packed either, the block store is out of space, or a'
    " shard folder is missing; see the log.",
)
GIVEN_UP_OBJECTS = _counter(
    "consumer_given_up_objects",
    (CONSUMER,),
    "Objects whose landing copy could not be read for minutes, so that their events no longer hold back the committed"
    " offsets. They stay queued and are published again.",
    "If above 0, restore the placement group or disk that holds their copies; the log names the first objects.",
)
GROUPS_WRITTEN = _counter(
    "consumer_groups_written",
    (CONSUMER,),
    "Stripe groups written and committed.",
    "Each group is one append and one commit.",
)
STRIPES_WRITTEN = _counter(
    "consumer_stripes_written",
    (CONSUMER,),
    "Stripes written and committed.",
    "Near 1 per group with small objects; large objects make larger groups.",
)
WRITTEN_BYTES = _counter(
    "consumer_written_bytes",
    (CONSUMER,),
    "Data-space bytes of the stripes written, padding and headers included.",
    "Multiply by (k + m) / k to get the bytes written to disks.",
)
WRITTEN_UTILISATION = _gauge(
    "consumer_written_utilisation_ratio",
    (CONSUMER,),
    "Packed bytes / written bytes since the process started.",
    "Expect 0.98 or more. If lower, consumer.linger_ms or window_objects is too small for the arrival rate, or the"
    " object sizes do not allow more (check with `nos-ec simulate packing --sizes`). nos_ec_consumer_empty_bytes_total"
    " shows where the rest is.",
)
MERGE_LIST_OBJECTS = _gauge(
    "consumer_merge_list_objects",
    (CONSUMER,),
    "Objects waiting to be packed.",
    "Below consumer.window_objects the packer has few objects to choose from.",
)
MERGE_LIST_BYTES = _gauge(
    "consumer_merge_list_bytes",
    (CONSUMER,),
    "Bytes of the waiting objects; they are not in memory.",
    "When it reaches consumer.merge_list_bytes_max, polling pauses.",
)
PAUSED = _gauge(
    "consumer_polling_paused",
    (CONSUMER,),
    "1 while the merge list is full and partitions are paused.",
    "If always 1 while there is lag, writing is the bottleneck; add lanes or consumers.",
)
LANES = _gauge("consumer_lanes", (CONSUMER,), "Writing lanes of this consumer.", "Equals consumer.lanes.")
LANES_BUSY = _gauge(
    "consumer_lanes_busy",
    (CONSUMER,),
    "Lanes that are writing a group now.",
    "If all lanes are always busy while there is lag, add lanes, if the disks have capacity.",
)
LANE_BUSY_SECONDS = _gauge(
    "consumer_lane_busy_seconds_max",
    (CONSUMER,),
    "How long the slowest lane has been working on its current group.",
    "Over a minute means that a disk or the metadata store hangs.",
)
GROUP_WRITE_SECONDS = _histogram(
    "consumer_group_write_seconds",
    (CONSUMER,),
    "Seconds from reading a group's sources to its commit, by number of stripes in the group.",
    "If the tail grows while the load does not, look for a slow disk or for lock waits in the metadata store.",
    "stripes",
)
OFFSETS_COMMITTED = _counter(
    "consumer_offsets_committed",
    (CONSUMER,),
    "Messages committed as done.",
    "Lags behind the messages taken from the log by the number of objects that wait or are in flight.",
)

# --- leases, housekeeping ------------------------------------------------------------------------------------------
LEASE_LEFT_SECONDS = _gauge(
    "lease_left_seconds",
    _KEEPERS,
    "Seconds until the writer lease expires if it is not renewed. GC has a lease only during a run.",
    "Normally a sawtooth between two thirds of store.lease_ttl_ms and all of it. Near 0, this process or the metadata"
    " store stalls.",
    "lease",
)
HOUSEKEEPING_FAILURES = _counter(
    "housekeeping_failures",
    _KEEPERS,
    "Rounds of recovery and reaper that failed and are retried.",
    "At a steady rate, see the log; landing copies accumulate meanwhile.",
)
REAPER_DELETED = _counter(
    "reaper_deleted_copies",
    _KEEPERS,
    "Landing copies deleted, either after their packed bytes were verified or because they were not needed.",
    "Follows the packed objects after reaper.landing_grace_ms.",
)
REAPER_VERIFIED_BYTES = _counter(
    "reaper_verified_bytes", _KEEPERS, "Packed bytes read back and found correct.", "The read cost of verification."
)
REAPER_REVERTED = _counter(
    "reaper_reverted_objects",
    _KEEPERS,
    "Packed objects that failed verification and were reverted to their landing copy.",
    "Must be 0. Otherwise disks or memory damage data; the log names block and object.",
)
REAPER_POSTPONED = _counter(
    "reaper_postponed_copies",
    _KEEPERS,
    "Landing copies that could not be processed and are retried later.",
    "A steady rate means that the block store or the landing store does not answer.",
)
LEASES_FENCED = _counter(
    "recovery_leases_fenced",
    _KEEPERS,
    "Expired leases of dead writers that were revoked.",
    "One for each killed writer. If more, processes stall for longer than store.lease_ttl_ms.",
)
BLOCKS_RECOVERED = _counter(
    "recovery_blocks_sealed",
    _KEEPERS,
    "Blocks of dead writers that were reconciled with the rows and sealed.",
    'Follows the fenced leases. If `nos_ec_store_blocks{state="fenced"}` stays above 0, see the log.',
)
SEGMENTS_RECOVERED = _counter(
    "recovery_landing_segments_sealed",
    _KEEPERS,
    "Landing segments of dead processes that were sealed.",
    "A few for each killed process that PUTs.",
)
TRIMMER_RELEASED = _counter(
    "trimmer_released_segments",
    _KEEPERS,
    "Landing segments released because their contents are no longer needed.",
    "Over all processes, it follows the sealed segments after packing and reaper.landing_grace_ms.",
)
TRIMMER_RELEASED_BYTES = _counter(
    "trimmer_released_bytes", _KEEPERS, "Bytes of the batches in these segments.", "The rate at which space is freed."
)
FORWARD_OBJECTS = _counter(
    "copy_forward_objects",
    _KEEPERS,
    "Landed objects copied into another landing segment, so that a nearly empty one can be released.",
    "Near 0. If it grows all the time, some objects are packed much later than others: see"
    " `nos_ec_store_oldest_waiting_seconds`.",
)
FORWARD_BYTES = _counter(
    "copy_forward_bytes",
    _KEEPERS,
    "Bytes of these objects.",
    "Should be far below the bytes of PUTs; otherwise it costs too much.",
)
AUDIT_FAILURES = _counter(
    "audit_failures",
    (*_PARKERS, S3),
    "Deletions, or batches of deletions, that are missing from the audit trail because it could not be written.",
    "Must not grow; the log names the folder and the error. Deletions do not wait for the trail.",
)

# --- GC, in all processes that have run it -----------------------------------------------------------------------
GC_RUNS = _counter("gc_runs", STORE, "Collections that succeeded.", "Grows every gc.wait_ms.")
GC_FAILURES = _counter(
    "gc_failures",
    STORE,
    "Collections that failed; the next one continues from there.",
    "At a steady rate, see the log. A Conflict there means that other GC processes run all workers.",
)
GC_LAST_RUN = _gauge(
    "gc_last_run_timestamp_seconds",
    STORE,
    "When the last collection succeeded (Unix time); 0 before the first.",
    "Alert when it is older than a few gc.wait_ms, or than the interval of the timer that starts GC.",
)
GC_WAIT_SECONDS = _gauge(
    "gc_wait_seconds",
    STORE,
    "gc.wait_ms by the configuration of this process.",
    "Compare the time since `nos_ec_gc_last_run_timestamp_seconds` with it.",
)
GC_WORKER_RUNNING = _gauge(
    "gc_worker_running",
    STORE,
    "1 while a process runs this GC worker, else 0. Only with gc.workers above 1.",
    "If never 1 for some workers while there is work, start more GC processes.",
    "worker",
)
GC_WORKER_SEEN = _gauge(
    "gc_worker_seen_timestamp_seconds",
    STORE,
    "When a run of this GC worker last published its progress (Unix time). Only with gc.workers above 1, after the"
    " first run.",
    "Alert when it is older than a few gc.wait_ms: no process runs this worker, or its run hangs.",
    "worker",
)
GC_BLOCKS_EXAMINED = _counter(
    "gc_examined_blocks", STORE, "Blocks whose headers GC read.", "The number of candidate blocks."
)
GC_EXAMINED_BYTES = _counter(
    "gc_examined_bytes",
    STORE,
    "Data-space bytes of the examined blocks.",
    "The bytes that a GC without headers would have read.",
)
GC_HEADER_BYTES = _counter(
    "gc_header_read_bytes",
    STORE,
    "Header bytes read to decide which blocks to collect.",
    "Should be a few percent of `nos_ec_gc_examined_bytes_total`.",
)
GC_BLOCKS_CONDEMNED = _counter(
    "gc_condemned_blocks",
    STORE,
    "Blocks emptied; they are deleted after gc.block_grace_ms.",
    "Deletions follow one grace period later.",
)
GC_BLOCKS_DELETED = _counter(
    "gc_deleted_blocks", STORE, "Blocks deleted.", "If far behind the condemned blocks for long, see the log."
)
GC_RECLAIMED_BYTES = _counter(
    "gc_reclaimed_bytes",
    STORE,
    "Data-space bytes of the deleted blocks.",
    "Subtract the moved bytes to get GC's net gain.",
)
GC_MOVED_OBJECTS = _counter("gc_moved_objects", STORE, "Live objects rewritten.", "The amount of work GC does.")
GC_MOVED_BYTES = _counter(
    "gc_moved_bytes",
    STORE,
    "Bytes of live objects rewritten.",
    "If more than half of the reclaimed bytes, gc.space_amp or gc.hole_ratio_min may be too low for what GC gains.",
)
GC_STRIPES_WRITTEN = _counter(
    "gc_written_stripes", STORE, "Stripes that GC wrote for surviving objects.", "GC's write load."
)
GC_BLOCKS_PARKED = _counter(
    "gc_parked_blocks",
    STORE,
    "Times a run set aside a block that it could not read, and continued with the others.",
    "At a steady rate, see the log and `nos_ec_parked_items`; the block is retried later.",
)
GC_UNREADABLE = _counter(
    "gc_unreadable_objects",
    STORE,
    "Live objects that could not be read; their blocks are kept.",
    "Must be 0. Otherwise more than m shards are lost or damaged; the log names block and object.",
)

# --- the whole store -----------------------------------------------------------------------------------------------
STORE_FIGURES_AGE_SECONDS = _gauge(
    "store_figures_age_seconds",
    STORE,
    "Age of the sums over rows: of all figures of the whole store except free bytes and lag.",
    "In a large store one daemon computes them for all, at most a twentieth of the time. If it keeps growing, no"
    " consumer, producer or GC loop computes them.",
)
STORE_BLOCKS = _gauge(
    "store_blocks",
    STORE,
    "Blocks by kind and state.",
    "`fenced` should return to 0 within a minute, `condemned` within gc.block_grace_ms and one GC run.",
    "kind",
    "state",
)
STORE_STRIPES = _gauge(
    "store_stripes",
    STORE,
    "Stripes in all blocks.",
    "Multiply by the stripe size and (k + m) / k to get the raw space.",
)
STORE_LIVE_BYTES = _gauge(
    "store_live_bytes", STORE, "Bytes in blocks that objects refer to.", "The useful part of the blocks."
)
STORE_DEAD_BYTES = _gauge(
    "store_dead_bytes",
    STORE,
    "Bytes in blocks that belonged to deleted or overwritten objects.",
    "If it keeps growing, GC does not run, or cannot reach its target: `nos-ec gc plan` shows why.",
)
STORE_OVERHEAD_BYTES = _gauge(
    "store_overhead_bytes",
    STORE,
    "Bytes of headers, names and padding in blocks.",
    "Expect one or two percent of all bytes, more if sizes do not fit together: see"
    " `nos_ec_store_raw_bytes_per_live_byte`.",
)
STORE_UTILISATION = _gauge(
    "store_utilisation_ratio",
    STORE,
    "Live bytes / bytes of all stripes; 0 while nothing is packed.",
    "Falls while objects are deleted faster than GC reclaims their space.",
)
STORE_LANDED_OBJECTS = _gauge(
    "store_landed_objects",
    STORE,
    "Objects in the landing store that are not yet published.",
    "If it grows while the producer runs, the producer is too slow or stuck. Objects younger than put.min_age_ms"
    " wait on purpose.",
)
STORE_LANDED_BYTES = _gauge(
    "store_landed_bytes",
    STORE,
    "Bytes of the objects not yet published.",
    "Each costs a whole copy in the landing store.",
)
STORE_QUEUED_OBJECTS = _gauge(
    "store_queued_objects", STORE, "Objects published but not yet packed.", "If it grows, add lanes or consumers."
)
STORE_QUEUED_BYTES = _gauge(
    "store_queued_bytes", STORE, "Bytes of the objects published but not yet packed.", "The packing backlog in bytes."
)
STORE_OLDEST_WAITING_SECONDS = _gauge(
    "store_oldest_waiting_seconds",
    STORE,
    "Time since the PUT of the object that has waited longest to be packed; 0 if no object waits.",
    "Up to `nos_ec_store_waiting_seconds_max` an object may wait on purpose. If it grows beyond that, see the logs of"
    ' producers and consumers, and `nos_ec_parked_items{what="object"}`.',
)
STORE_WAITING_SECONDS_MAX = _gauge(
    "store_waiting_seconds_max",
    STORE,
    "Longest time that an object waits on purpose: put.min_age_ms, and then consumer.linger_ms or, if longer,"
    " consumer.linger_max_ms, by the configuration of this process.",
    "Compare `nos_ec_store_oldest_waiting_seconds` with it. Give all processes of a store the same configuration.",
)
STORE_LANDING_DELETIONS = _gauge(
    "store_landing_deletions",
    STORE,
    "Landing copies in the deletion queue, including copies of PUTs in flight.",
    "If it grows, the reaper (in consumers and GC) does not run or cannot verify.",
)
STORE_OVERDUE_DELETION_SECONDS = _gauge(
    "store_overdue_deletion_seconds",
    STORE,
    "How long the deletion of the most overdue landing copy is overdue; 0 if none is.",
    "If more than minutes, the reaper (in consumers and GC) does not run or is too slow. Copies that it cannot verify"
    ' are not overdue but parked: `nos_ec_parked_items{what="landing copy"}`.',
)
STORE_LANDING_SEGMENTS = _gauge(
    "store_landing_segments",
    STORE,
    "Landing segments by state. Only in a store with a landing log.",
    "`sealed` follows the objects that wait to be packed or deleted. `open` is one or two for each process that PUTs,"
    " and some spares. `doomed` should return to 0 within a minute.",
    "state",
)
STORE_LANDING_SEGMENT_BYTES = _gauge(
    "store_landing_segment_bytes",
    STORE,
    "Bytes of the batches in landing segments, by state; 0 for open segments.",
    "If it grows while little waits to be packed, the reaper or the trimmer (in consumers and GC) does not run: see"
    " `nos_ec_store_overdue_deletion_seconds` and `nos_ec_parked_items`.",
    "state",
)
STORE_LANDING_LOG_FREE_BYTES = _gauge(
    "store_landing_log_free_bytes",
    STORE,
    "Bytes of the landing segments that still fit; on Ceph, free space of the landing pool.",
    "At 0, PUTs bypass the landing log and are slower (`nos_ec_landing_log_passed_full_total`).",
)
STORE_LAST_DUMP = _gauge(
    "store_last_dump_timestamp_seconds",
    STORE,
    "When the newest dump of the metadata in the store began (Unix time); 0 if there is none.",
    "If it is older than the interval between dumps, check cron or the timer.",
)
STORE_JOURNAL_SECONDS = _gauge(
    "store_journal_age_seconds",
    STORE,
    "Age of the oldest row of the journal of deletes that is not written into the store; 0 if there is none.",
    "Above two minutes, neither a GC daemon nor cron (`nos-ec metadata ship-journal`) writes it.",
)
STORE_STALLED_MOVES = _gauge(
    "store_stalled_moves",
    STORE,
    "Buckets that are being moved from or to this cell, although the command that moves them has ended. Only in a store"
    " of several cells.",
    "Above 0 for minutes, move these buckets again, or give the moves up; `nos-ec cells moves` lists them.",
)
STORE_LEASES = _gauge(
    "store_leases",
    STORE,
    "Writer leases currently held.",
    "One for each consumer, each GC run, each landing log, each move of a bucket, and each process that has stored a"
    " large object.",
)
STORE_PLACEMENT_GROUPS = _gauge(
    "store_placement_groups",
    STORE,
    "Placement groups of the pools of blocks and of landing copies, each in one state: complete, degraded (all OSDs"
    " are up, but some data is missing), undersized (an OSD is missing) or inactive (operations wait, longer than a"
    " group needs to peer). Only on Ceph, and absent if the monitors have not answered for a minute.",
    "All states except complete should be 0. See `ceph health detail`; replace the lost OSD before others of the group"
    " fail.",
    "holds",
    "state",
)
STORE_FREE_BYTES = _gauge(
    "store_free_bytes",
    STORE,
    "User bytes that still fit in the block store.",
    "Large PUTs are refused below 2 x gc.reserve_bytes, and packing below 1 x; alert well above that.",
)
STORE_RESERVE_BYTES = _gauge(
    "store_reserve_bytes",
    STORE,
    "gc.reserve_bytes by the configuration of this process.",
    "Compare `nos_ec_store_free_bytes` and `nos_ec_store_landing_free_bytes` with it.",
)
LAG_MESSAGES = _gauge(
    "store_lag_messages",
    STORE,
    "Messages that the consumer group has not committed; absent while the log does not answer.",
    "Alert on growth over an hour, not on the value, because the log exists to absorb bursts.",
)

METRICS: list[Metric] = [
    *_declared.metrics,
    *DEVICE_METRICS,
    *SPACE_METRICS,
    *SHARD_METRICS,
    *SCRUB_METRICS,
    *TRASH_METRICS,
    *LIFECYCLE_METRICS,
    *S3_METRICS,
    *LIBRARY_METRICS,
]
"""All metrics, in the order of the reference."""


def reference() -> str:
    """Return docs/METRICS.md: every metric, the services that export it, its meaning, and what to do about it."""
    lines = [
        "# Metrics",
        "",
        "<!-- Generated from nos_ec/monitoring/declarations/metrics.py by `make reference`; edit it there. -->",
        "",
        "The metrics that the daemons and the API serve at `/metrics` ([MONITORING.md](MONITORING.md)), and those of",
        "programs that use the Python API (`library`: [PYTHON.md](PYTHON.md#metrics)). Counters start at 0 with the",
        "process. `nos_ec_store_*` are figures of the whole store, which several processes export with",
        "the same value: take their `max`, never their `sum`. The usual `process_*` metrics are exported as well.",
        "",
        "| metric | kind | by | meaning | advice |",
        "|---|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        by = "all" if metric.services == _ALL else ", ".join(metric.services)
        lines.append(f"| `{metric.exposed_name}{labels}` | {metric.kind} | {by} | {metric.meaning} | {metric.advice} |")
    return "\n".join(lines) + "\n"
