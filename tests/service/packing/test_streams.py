"""Objects that die at different times end in different blocks, when consumers and when GC pack them."""

from __future__ import annotations

import random

import pytest

from nos_ec.composition import packing
from nos_ec.composition.wiring import System
from nos_ec.core.expiry import DAY_MS, ExpiryRule, encode_rules
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.core.packing import streams
from nos_ec.core.packing.lifetimes import AGE_RANGES, OTHERS, Counts, is_sampled
from nos_ec.core.packing.streams import StreamOptions
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.packable import Packable
from nos_ec.ports.metadata import CannedAcl, DocumentKind
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import all_blocks
from tests.service.conftest import Bench

MEANS_DAYS = {"soon": 1.0, "late": 2000.0}


@pytest.fixture
def learned(system: System) -> System:
    """A store that has watched two buckets for long."""
    for bucket, mean_days in MEANS_DAYS.items():
        counts = Counts([1e7 / mean_days] * AGE_RANGES, [1e7] * AGE_RANGES)
        system.metadata.count_deaths({bucket: counts}, system.clock.now_ms())
    return system


@pytest.fixture
def small_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are folded when they collect less than 100 KB, for the little that a test stores."""

    def options(
        count: int, gathered_max: int, period_ms: int | None, bytes_max: int | None, bytes_min: int
    ) -> StreamOptions:
        assert bytes_min == streams.STREAM_BYTES_MIN
        return StreamOptions(count, gathered_max, period_ms, bytes_max, 100_000)

    monkeypatch.setattr(packing, "StreamOptions", options)


def put(bench: Bench, system: System, count: int, seed: int = 1) -> list[ObjectKey]:
    """Objects of both buckets, in turn."""
    rng = random.Random(seed)
    return [
        bench.put(system, f"{seed}/{number:03}", rng.randbytes(5000), ("soon", "late")[number % 2])
        for number in range(count)
    ]


def buckets_by_block(system: System, kind: BlockKind) -> dict[BlockId, set[str]]:
    return {
        row.block_id: {placed.key.bucket for placed in system.metadata.placed_in(row.block_id)}
        for row in all_blocks(system.metadata)
        if row.kind is kind and row.live_objects
    }


@pytest.mark.usefixtures("small_streams")
def test_consumers_and_gc_pack_streams_apart(bench: Bench, learned: System) -> None:
    keys = put(bench, learned, 400)
    bench.pack(learned)
    fresh = buckets_by_block(learned, BlockKind.FRESH)
    assert sorted(map(sorted, fresh.values())) == sorted([["late"], ["soon"]] * (len(fresh) // 2))
    rng = random.Random(2)
    for key in rng.sample(keys, 320):
        bench.delete(learned, key)
    result = gc_service(learned).run_once()
    assert result.objects_moved > 60
    survivors = buckets_by_block(learned, BlockKind.SURVIVOR)
    assert {bucket for found in survivors.values() for bucket in found} == {"soon", "late"}
    assert all(len(found) == 1 for found in survivors.values())
    assert all(row.state is not BlockState.OPEN for row in all_blocks(learned.metadata)), "no block is left open"
    bench.assert_readable(learned)
    bench.assert_balanced(learned)


@pytest.mark.usefixtures("small_streams", "whole_chunks")
@pytest.mark.parametrize("ruled", [True, False])
def test_blocks_of_what_expires_die_whole(bench: Bench, ruled: bool) -> None:
    """With a rule, GC copies nothing. Without it, what dies and what stays share blocks, and GC copies what stays."""
    bench.config.write_text(bench.config.read_text().replace("[gc]\n", "[gc]\nhole_ratio_min = 0.1\n"))
    with bench.open() as system:
        expire(bench, system, ruled)


def expire(bench: Bench, system: System, ruled: bool) -> None:
    if ruled:
        system.metadata.create_bucket("soon", "root", CannedAcl.PRIVATE, 1)
        body = encode_rules([ExpiryRule("r", days=1)])
        system.metadata.set_bucket_document("soon", DocumentKind.LIFECYCLE, body, 1)
    keys = put(bench, system, 400)
    bench.pack(system)
    found = set(map(frozenset, buckets_by_block(system, BlockKind.FRESH).values()))
    assert (frozenset({"soon", "late"}) in found) is not ruled
    system.clock = LaterClock(2 * DAY_MS)
    if not ruled:
        system.client.store().delete_many([key for key in keys if key.bucket == "soon"])
    for key in [key for key in keys if key.bucket == "soon"]:
        del bench.acknowledged[key]
    result = gc_service(system).run_once()
    assert result.objects_moved == 0 if ruled else result.objects_moved > 20
    bench.assert_readable(system)
    bench.assert_balanced(system)


def test_a_small_store_packs_everything_together(bench: Bench, learned: System) -> None:
    put(bench, learned, 20)
    bench.pack(learned)
    assert list(buckets_by_block(learned, BlockKind.FRESH).values()) == [{"soon", "late"}]
    assert streams.STREAM_BYTES_MIN == 50 << 20


def test_streams_of_large_stripes_have_many_of_them(bench: Bench, learned: System) -> None:
    """With few, packing them apart would undo what GC expects of merging their blocks."""
    for stripe_bytes, least_bytes in ((1 << 20, 50 << 20), (32 << 20, 50 * (32 << 20))):
        geometry = Geometry(8, 3, stripe_bytes // 8)
        known = learned.worker.known_expiry()
        packing_of_gc = packing.gc_packing(bench.settings(), geometry, learned.metadata, known, random.Random(1))
        assert packing_of_gc._options.stream_bytes_min == least_bytes


def test_a_store_learns_from_its_deletes(bench: Bench) -> None:
    names = [f"n{number}" for number in range(200) if is_sampled(ObjectKey("bucket", f"n{number}").md5)]
    with bench.open() as system:
        system.client.store().put_many([(ObjectKey("bucket", name), b"data") for name in names])
        system.client.store().delete_many([ObjectKey("bucket", name) for name in names[1:]])
        system.worker.housekeeping().run_once()
        assert [row.bucket for row in system.metadata.survival()] == [OTHERS], "a survey was made, deaths come later"
    with bench.open() as system:
        rows = {row.bucket: row.counts for row in system.metadata.survival()}
        assert sum(rows["bucket"].deaths) == pytest.approx(len(names) - 1)


@pytest.mark.usefixtures("small_streams")
@pytest.mark.parametrize("count", [1, 4])
def test_groups_are_ready_before_the_merge_list_is_full(bench: Bench, count: int) -> None:
    """The objects are large for the geometry. A consumer whose list is full without a group would write one that is
    closed early, and one at a time."""
    text = bench.config.read_text().replace("[gc]\n", f"[gc]\nstreams = {count}\n")
    bench.config.write_text(text.replace("[consumer]\n", '[consumer]\nmerge_list_bytes_max = "8MiB"\n'))
    rng = random.Random(1)
    with bench.open() as system:
        known = system.worker.known_expiry()
        merge = packing.consumer_packing(system.settings, system.geometry, system.metadata, known, rng).new_list()
        landed = LandingId(b"landed")
        for number in range(200):
            size, version = rng.randint(100_000, 400_000), 1 + rng.randrange(1 << 50)
            one = Packable(number + 1, ObjectKey(f"b{number % 8}", f"{number}"), version, size, 0, landed)
            merge.add(one.candidate(0))
            while merge.plan(0) is not None:
                pass
            assert merge.waiting_bytes < 8 << 20


def test_with_one_stream_nothing_is_learned_and_nothing_sorted(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace("[gc]\n", "[gc]\nstreams = 1\n"))
    assert bench.settings().gc.streams == 1
    with bench.open() as system:
        keys = put(bench, system, 100)
        for key in keys[:90]:
            bench.delete(system, key)
        bench.pack(system)
        gc_service(system).run_once()
    with bench.open() as system:
        assert system.metadata.survival() == []
        bench.assert_readable(system)
