"""Settings that existed once. A file that still names one must not stop a daemon."""

from __future__ import annotations

_LEASE = "store.lease_ttl_ms holds for all processes"

_PORT = "monitoring.port takes its place; set it in the environment of each daemon"

RETIRED = {
    "put.lease_ttl_ms": _LEASE,
    "producer.batch_objects": "it is 1000",
    "producer.idle_wait_ms": "it is 500",
    "producer.lease_ttl_ms": _LEASE,
    "consumer.linger_fill_min": "it is 0.5; for any share, set consumer.linger_max_ms to consumer.linger_ms",
    "consumer.read_threads": "it follows from consumer.lanes",
    "consumer.poll_messages_max": "it is 1000",
    "consumer.idle_wait_ms": "it is 500",
    "consumer.lease_ttl_ms": _LEASE,
    "reaper.batch_objects": "it is 5000",
    "monitoring.producer_port": _PORT,
    "monitoring.consumer_port": _PORT,
    "monitoring.gc_port": _PORT,
    "monitoring.s3_port": _PORT,
    "monitoring.stall_ms_max": "it is 120000, on Ceph at least three times ceph.op_timeout_ms",
    "monitoring.figures_ms": "it is 15000",
    "s3.access_cache_ms": "it is 2000",
    "s3.body_wait_ms": "it is 60000",
    "s3.lifecycle_day_s": "a day of lifecycle rules has 24 hours",
    "ceph.connect_timeout_ms": "it is one and a half times ceph.op_timeout_ms",
    "get.location_cache_ms": "it is 10000",
    "landing.lanes": "a process appends to 2 segments at a time on Ceph, to 1 on devices",
    "landing.bypass_bytes": "it is 1MiB",
    "gc.price_days_min": "gc.price_days takes its place, for whichever gc.policy is set",
    "gc.header_blocks": "it is 4",
    "gc.memory_bytes_max": "it is 128MiB; a lower gc.lanes saves memory",
    "gc.floor_bytes": "it is 16MiB",
    "gc.block_grace_ms_min": "it is 60000, on Ceph longer if ceph.op_timeout_ms is",
    "gc.cool_down_ms_max": "it is a day; nos-ec gc run --apply --retry tries all blocks again",
    "shards.rebuild": "gc run --loop always rebuilds shards; shards.rebuild_bytes_per_s limits it",
    "shards.rebuild_wait_ms": "it is 600000",
    "scrub.daemon": "instead of false, set scrub.pass_days = 0",
    "audit.keep_ms": "it is a year, unless audit.size_bytes_max is reached before",
    "kafka.dead_letter_topic": "it is kafka.topic with .dead-letters",
    "kafka.request_timeout_ms": "set socket.timeout.ms in kafka.options",
    "kafka.poll_interval_ms_max": "it is 300000",
    "reaper.wait_ms": "it is a sixth of store.lease_ttl_ms, at most 5000",
}
"""What to do instead, or what holds now, by the dotted name of the setting."""
