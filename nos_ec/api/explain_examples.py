"""Examples of the explanations of objects and blocks, which are the dataclasses that `nos-ec explain --json` prints."""

from __future__ import annotations

from typing import Any

from nos_ec.api.answer import EXAMPLE_BLOCK_ID

OBJECT: dict[str, Any] = {
    "bucket": "photos", "name": "2026/a.jpg", "version": 1763700000000000, "size": 65536, "state": "queued",
    "created_ms": 1763700000000, "age_ms": 188000, "lock": None, "reason": "no_consumer",
    "why": "Its event was published 3 min 6 s ago (2025-11-21T04:40:02+00:00), and waits in partition 1, which no"
    " consumer holds.",
    "next": "It waits until a consumer runs.",
    "advice": "Start `nos-ec consumer`. One that has just started takes its partitions within seconds.",
    "next_ms": None,
    "publishing": {"slot": 4, "slot_held_until_ms": 1763700240000, "producers": ["producer-host1-812-5d1c02aa"],
                "due_ms": 1763700588000, "published_ms": 1763700002000, "spread": False,
                "holders": [{"partition": 1, "member": None}], "members_known": True,
                "passed_ms": 1763700001000},
    "landing_copy": {"landing": "81a2083f576604000000020070d38030", "medium": "log", "segment": "81a2083f57660400",
                  "segment_state": "sealed", "segment_opened_ms": 1763700000000,
                  "segment_sealed_ms": 1763700060000, "segment_bytes": 1515520, "queued": False,
                  "delete_after_ms": None, "doomed": False, "readable": True, "problem": None},
    "places": [], "places_left_out": 0, "block": None, "chunks": None, "chunks_min": None, "shard_reads": None,
    "half_life_days": 41.5, "stream": 2, "its_parts": None, "unknown": [],
    "explained_ms": 1763700188000,
}  # fmt: skip
BLOCK: dict[str, Any] = {
    "block": EXAMPLE_BLOCK_ID, "kind": "fresh", "state": "condemned", "writer": "consumer-host2-4711-b4bb95ac",
    "epoch": 19,
    "writer_until_ms": None, "stripes": 32, "size_bytes": 33554432, "live_bytes": 0, "dead_bytes": 31457280,
    "overhead_bytes": 2097152, "live_objects": 0, "hole_ratio": 1.0, "waste_ratio": 1.0, "waste_ratio_min": 0.75,
    "created_ms": 1763600000000, "sealed_ms": 1763600500000, "delete_after_ms": 1763700600000, "grace_ms": 412000,
    "gc_not_before_ms": None, "gc_failures": 0, "gc_runs": False,
    "layout": {"groups": 30, "objects": 3311, "split_objects": 12, "front_bytes": 1871872, "gap_bytes": 94208,
            "end_bytes": 131072, "unread_stripes": 0},
    "stripes_needed": None, "would_collect": False,
    "reason": "condemned",
    "why": "It is empty: it holds no object. It is kept for gc.block_grace_ms, for reads that began earlier.",
    "next": "The first GC run after its grace period, which ends in 6 min 52 s (2025-11-21T04:50:00+00:00), deletes"
    " it. When space is short, a run deletes it a minute after it was emptied.",
    "advice": None, "next_ms": 1763700600000, "unknown": [], "explained_ms": 1763700188000,
}  # fmt: skip
