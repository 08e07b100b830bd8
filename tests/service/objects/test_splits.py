"""Objects of 70,000 bytes, of which a chunk of 128 KiB holds one whole: what counters, `explain` and `status` report of
objects that continue in the next chunk, and of what stays empty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from nos_consumer.assemble import consumer_service
from nos_consumer.samples import consumer_samples
from nos_ec.composition.explaining import block_explainer, object_explainer
from nos_ec.composition.packing import collector_options
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.errors import Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.splits import SPLIT_BYTES
from nos_ec.engine.explain.blocks import BlockExplainer
from nos_ec.engine.objects.large_places import own_extents
from nos_ec.monitoring.declarations import space_metrics as of_space
from nos_ec.monitoring.declarations.metric import Metric
from nos_ec.monitoring.exposition import Sample
from nos_ec.monitoring.gc_samples import gc_counts
from nos_ec.ports.metadata import ObjectRow
from nos_gc.assemble import gc_service
from tests.rig.fakes.faulty import Faults, faulty
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STORE_CONFIG, Bench
from tests.service.gc.test_gc import configure

CHUNK, STRIPE, SIZE = 128 * 1024, 1024 * 1024, 70_000
WIDE_CONFIG = STORE_CONFIG.replace("chunk_size = 16384\n", "").replace("split_bytes = 0\n", "")
"""With the default chunks and price."""
NEVER = f"split_bytes = {CHUNK}"


@pytest.fixture
def wide(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, WIDE_CONFIG)
    initialise(made.settings())
    return made


@pytest.fixture
def opened(wide: Bench) -> Iterator[System]:
    with wide.open() as system:
        yield system


def put_equal(bench: Bench, system: System, count: int = 120) -> list[ObjectKey]:
    keys = [bench.put(system, f"{number:04}", bench.data(SIZE)) for number in range(count)]
    bench.produce(system)
    return keys


def touched(geometry: Geometry, row: ObjectRow) -> int:
    assert row.extent is not None
    return geometry.chunks_touched(row.extent.offset, row.size)


def value(samples: list[Sample], metric: Metric, *labels: str) -> float:
    (found,) = [one.value for one in samples if one.metric is metric and one.labels == labels]
    assert isinstance(found, int | float)
    return found


def empty(samples: list[Sample], metric: Metric) -> list[float]:
    return [value(samples, metric, reason) for reason in ("front", "gap", "end")]


@pytest.mark.parametrize("price", ["split_bytes = 0", "", NEVER])
def test_a_consumer_counts_splits_and_empty_bytes(wide: Bench, price: str) -> None:
    if price:
        configure(wide, "consumer", price)
    with wide.open() as system:
        keys = put_equal(wide, system)
        with consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)
            samples = list(consumer_samples(consumer, system.geometry, 0))
            counters = consumer.counters
        assert counters.packed == len(keys)
        rows = [system.metadata.get(key) for key in keys]
        split = sum(touched(system.geometry, row) == 2 for row in rows)
        assert value(samples, of_space.SPLIT_OBJECTS) == split
        assert (split > len(keys) // 3) == (price != NEVER)
        assert (split == 0) == (price == NEVER)
        front, gap, end = empty(samples, of_space.EMPTY_BYTES)
        assert front + gap + end == counters.stripes * STRIPE - counters.packed_bytes
        assert front > 4096 * counters.groups
        assert end % CHUNK == 0
        if price == NEVER:
            assert gap > 0.4 * counters.stripes * STRIPE
        wide.assert_readable(system)
        wide.assert_balanced(system)


def test_gc_counts_splits_and_empty_bytes(wide: Bench) -> None:
    configure(wide, "gc", "hole_ratio_min = 0.3")
    with wide.open() as system:
        keys = put_equal(wide, system)
        wide.consume(system)
        for key in keys[::2]:
            wide.delete(system, key)
        gc = gc_service(system)
        result = gc.run_once()
        samples = list(gc_counts(gc.counters))
        assert result.objects_moved > 20
        front, gap, end = empty(samples, of_space.GC_EMPTY_BYTES)
        assert front + gap + end == result.stripes_written * STRIPE - result.bytes_moved
        assert min(front, gap) > 0
        assert value(samples, of_space.GC_SPLIT_OBJECTS) == result.objects_split > 0
        wide.assert_readable(system)


@pytest.mark.parametrize(("policy", "price"), [("best", SPLIT_BYTES), ("nos", CHUNK)])
def test_gc_expects_of_survivors_what_the_policy_makes_of_them(wide: Bench, policy: str, price: int) -> None:
    configure(wide, "consumer", f'policy = "{policy}"')
    assert collector_options(wide.settings()).split_bytes == price


def test_explain_says_that_an_object_is_split(wide: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with wide.open() as system:
        keys = put_equal(wide, system)
        wide.consume(system)
        rows = [system.metadata.get(key) for key in keys]
        of_chunks = {touched(system.geometry, row): row.key for row in rows}
        assert set(of_chunks) == {1, 2}
    cli = Cli(wide, capfd)
    whole, split = cli("explain", str(of_chunks[1])), cli("explain", str(of_chunks[2]))
    assert (whole["chunks"], whole["chunks_min"]) == (1, 1)
    assert (split["chunks"], split["chunks_min"]) == (2, 1)
    assert cli("stat", str(of_chunks[2]))["location"]["chunks"] == 2
    assert "split" not in whole["why"]
    for words in ("It is split", "2 chunks where 1 could hold it", "consumer.split_bytes", "docs/PACKING.md"):
        assert words in split["why"]
    shown = wide.run("explain", str(of_chunks[2])).stdout.decode()
    assert "2, split: 1 could hold it; a read of it takes 2 shard reads" in " ".join(shown.split())
    shown = wide.run("explain", str(of_chunks[1])).stdout.decode()
    assert "1, the fewest possible; a read of it takes 1 shard read" in " ".join(shown.split())


def test_explain_of_objects_that_are_not_split(wide: Bench, opened: System) -> None:
    wide_one = wide.put(opened, "three chunks", wide.data(3 * CHUNK - 9000))
    two_stripes = wide.put(opened, "two stripes", wide.data(2 * STRIPE))
    landed = wide.put(opened, "landed", wide.data(10))
    wide.produce(opened)
    found = object_explainer(opened).explain(landed)
    assert (found.chunks, found.chunks_min) == (None, None)
    wide.consume(opened)
    found = object_explainer(opened).explain(wide_one)
    assert (found.chunks, found.chunks_min, found.shard_reads) == (3, 3, 3)
    found = object_explainer(opened).explain(two_stripes)
    assert found.chunks_min == 16
    assert found.shard_reads == 8, "a shard is asked once for all of its chunks"
    large = wide.put(opened, "large", wide.data(5 * STRIPE))
    found = object_explainer(opened).explain(large)
    assert (found.chunks, found.chunks_min) == (None, None)


def test_explain_of_a_block_tells_what_is_empty(wide: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with wide.open() as system:
        keys = put_equal(wide, system)
        with consumer_service(system) as consumer:
            consumer.drain(make_room=lambda: False)
            counters = consumer.counters
        for key in keys[::3]:
            wide.delete(system, key)
        blocks = system.metadata.list_blocks(None, 100)
        explained = [block_explainer(system).explain(row.block_id) for row in blocks]
        layouts = [one.layout for one in explained if one.layout is not None]
        assert len(layouts) == len(blocks) >= 2
        for row, layout in zip(blocks, layouts, strict=True):
            assert layout.front_bytes + layout.gap_bytes + layout.end_bytes == row.overhead_bytes, "exactly"
            assert layout.unread_stripes == 0
        assert sum(one.groups for one in layouts) == counters.groups
        assert sum(one.objects for one in layouts) == len(keys), "dead ones were written as well"
        assert sum(one.split_objects for one in layouts) == counters.split > 0
        assert sum(one.front_bytes for one in layouts) == counters.empty_front_bytes
        assert sum(one.gap_bytes for one in layouts) == counters.empty_gap_bytes
        assert sum(one.end_bytes for one in layouts) == counters.empty_end_bytes
        large = system.metadata.get(wide.put(system, "large", wide.data(5 * STRIPE)))
        assert block_explainer(system).explain(own_extents(system.metadata, large)[0].block_id).layout is None
    said = Cli(wide, capfd)("explain", explained[0].block)
    assert said["layout"] == asdict(layouts[0])
    shown = " ".join(wide.run("explain", explained[0].block).stdout.decode().split())
    assert f"{layouts[0].split_objects} of them split, in {layouts[0].groups} groups" in shown
    assert "in front of objects" in shown


def test_explain_of_a_block_whose_headers_cannot_be_read(wide: Bench) -> None:
    with wide.open() as system:
        put_equal(wide, system, 30)
        wide.consume(system)
        (row,) = system.metadata.list_blocks(None, 2)
        faults = Faults()
        blocks = faulty(system.blocks, faults)
        explainer = BlockExplainer(
            system.metadata, blocks, system.clock, collector_options(system.settings), system.settings.gc.wait_ms
        )
        faults.before["read_many"] = [Transient("the store is away")]
        found = explainer.explain(row.block_id)
        assert found.layout is None
        assert found.unknown == ["how much of its stripes is empty: the store is away"]
        assert found.live_objects == 30, "what the rows say is there all the same"
        layout = explainer.explain(row.block_id).layout
        assert layout is not None
        assert layout.objects == 30
