"""Groups whose block ends before they do: what they hold was never committed, and is neither damaged nor adopted."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import google_crc32c
import pytest

from nos_ec.adapters.local.blocks.shard_file import ShardLayout
from nos_ec.api.readings import Readings
from nos_ec.composition.wiring import System
from nos_ec.core.formats.header import Entry, GroupHeader, NameRecord, encode_header, encode_names, header_length
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.header_scan import scan_headers
from nos_ec.ports.metadata import QUARANTINE
from nos_gc.assemble import gc_collector
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.service.check.test_check import check
from tests.service.check.test_scrub import scrub
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, TTL_OVER_MS, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.packing.test_stripe_writer import Writer

pytestmark = [pytest.mark.landing("store"), pytest.mark.invariant(7)]

NAMED = 5
"""Stripes that the header names."""


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.fixture
def writer(bench: Bench, system: System) -> Writer:
    return Writer(bench, system)


def group_of(writer: Writer, keys: Sequence[ObjectKey], block_id: BlockId, at_stripe: int) -> bytes:
    """A group of NAMED stripes with these objects, one after the other, from its second page on."""
    system = writer.system
    front = header_length(len(keys))
    names = encode_names([NameRecord(key.bucket, key.name) for key in keys])
    entries: list[Entry] = []
    data = bytearray(front) + names
    data += bytes(2 * PAGE - len(data))
    for row in map(system.client.store().head, keys):
        entries.append(Entry(row.key.md5, row.version, len(data), row.size, row.crc32c))
        data += writer.bench.acknowledged[row.key]
    assert (NAMED - 1) * STRIPE < len(data) <= NAMED * STRIPE
    data[:front] = encode_header(
        GroupHeader(
            block_id=block_id,
            first_stripe=at_stripe,
            stripe_count=NAMED,
            writer_epoch=writer.lease.epoch,
            written_at_ms=system.clock.now_ms(),
            chunk_size=CHUNK,
            k=8,
            m=3,
            data_length=sum(entry.length for entry in entries),
            entries=tuple(entries),
            names_offset=front,
            names_length=len(names),
            names_crc32c=google_crc32c.value(names),
        )
    )
    return bytes(data) + bytes(NAMED * STRIPE - len(data))


def begin(writer: Writer, *, used: bool, stripes: int) -> BlockId:
    """A group of which a writer has written only this many stripes when it died, in a new block or in a used one."""
    system = writer.system
    if used:
        assert len(writer.writer.write(writer.plan(10, "first")).packed) == 10
        (row,) = all_blocks(system.metadata)
        block_id, at_stripe = row.block_id, row.stripes
    else:
        block_id, at_stripe = system.new_block_id(), 0
        system.metadata.allocate_block(writer.lease, block_id, BlockKind.FRESH, system.clock.now_ms())
    keys = [writer.bench.put(system, f"begun-{number}", writer.bench.data(CHUNK)) for number in range(36)]
    data = group_of(writer, keys, block_id, at_stripe)[: stripes * STRIPE]
    if used:
        system.blocks.append(block_id, at_stripe, data)
    else:
        system.blocks.create(block_id, data)
    return block_id


def die(writer: Writer) -> None:
    """The writer's lease expires, and recovery seals its block."""
    system = writer.system
    system.clock = LaterClock(TTL_OVER_MS)
    assert system.worker.housekeeping().run_once()


both = pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
some = pytest.mark.parametrize("stripes", [1, 4])


@both
@some
def test_recovery_counts_it_as_dead_and_nobody_calls_it_damaged(writer: Writer, used: bool, stripes: int) -> None:
    system = writer.system
    block_id = begin(writer, used=used, stripes=stripes)
    committed = system.metadata.block(block_id)
    assert check(system, read_share=1.0) == [], "what is not committed is not looked at"
    die(writer)
    row = system.metadata.block(block_id)
    assert (row.state, row.stripes) == (BlockState.SEALED, committed.stripes + stripes)
    assert row.dead_bytes == committed.dead_bytes + stripes * STRIPE
    assert (row.live_bytes, row.overhead_bytes) == (committed.live_bytes, committed.overhead_bytes)
    scan = scan_headers(system.blocks, block_id, row.stripes)
    assert scan.unfinished is not None
    assert (scan.unfinished.first_stripe, scan.unfinished.stripe_count) == (committed.stripes, NAMED)
    assert (len(scan.headers), scan.damaged_stripes) == (used, ())
    assert scan.stripes_outside_groups == tuple(range(committed.stripes, row.stripes))
    assert check(system, read_share=1.0) == []
    assert scrub(system)[0] == []
    shown = Readings(system, gc_collector(system), age_ms_max=0).block(block_id)
    assert (shown.damaged_stripes, shown.unfinished_stripes) == ([], list(scan.unfinished_stripes))
    assert (len(shown.groups), shown.unconfirmed_objects) == (used, 0)
    writer.bench.assert_readable(system)
    writer.bench.settle(system)
    writer.bench.assert_readable(system)
    writer.bench.assert_at_rest(system)


@both
@some
@pytest.mark.parametrize("recovered", [False, True], ids=["open", "sealed"])
def test_a_rebuild_adopts_nothing_of_it(bench: Bench, cli: Cli, used: bool, stripes: int, recovered: bool) -> None:
    """It does not even adopt what was written as a whole. The block of the group is not put aside as if something in it
    could not be read."""
    with bench.open() as system:
        writer = Writer(bench, system)
        block_id = begin(writer, used=used, stripes=stripes)
        at_stripe = system.metadata.block(block_id).stripes
        if recovered:
            die(writer)
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli, "--without-dump")
    assert (said["unfinished_blocks"], said["unread_blocks"], said["nameless"]) == (1, 0, 0)
    assert to_look_at["block"] == set()
    with bench.open() as rebuilt:
        row = rebuilt.metadata.block(block_id)
        assert (row.state, row.kind, row.stripes) == (BlockState.SEALED, BlockKind.FRESH, at_stripe + stripes)
        assert row.dead_bytes == stripes * STRIPE
        for one in all_objects(rebuilt.metadata):
            assert one.extent is None or one.extent.offset + one.extent.length <= at_stripe * STRIPE
        assert check(rebuilt, read_share=1.0) == []
        lease = rebuilt.metadata.acquire_lease("next", rebuilt.clock.now_ms(), 1000)
        assert lease.epoch > writer.lease.epoch
        rebuilt.metadata.release_lease(lease)
        bench.assert_readable(rebuilt)
        bench.settle(rebuilt)
        bench.assert_readable(rebuilt)
        bench.assert_at_rest(rebuilt)


def test_a_group_of_a_dead_writer_that_lost_its_last_stripes_is_not_unfinished_if_it_was_committed(
    writer: Writer,
) -> None:
    """The row says how many stripes were acknowledged."""
    system = writer.system
    plan = writer.plan(40, "first")
    assert len(writer.writer.write(plan).packed) == 40
    (row,) = all_blocks(system.metadata)
    assert row.stripes == plan.stripe_count > 1
    scan = scan_headers(system.blocks, row.block_id, row.stripes)
    assert (len(scan.headers), scan.unfinished) == (1, None)
    cut_short = scan_headers(system.blocks, row.block_id, row.stripes - 1)
    assert (cut_short.headers, cut_short.unfinished) == ((), scan.headers[0])
    writer.release()


def cut_off(bench: Bench, system: System, block_id: BlockId, stripes: int) -> None:
    """All shards of a block lose what follows this many stripes."""
    name = block_id.hex()
    for path in (bench.folder / "store" / "blocks").glob(f"shard-*/{name[-1]}/{name}"):
        os.truncate(path, ShardLayout(system.geometry).size(stripes))
    assert system.blocks.stripes(block_id) == stripes


def committed(bench: Bench, writer: Writer) -> tuple[BlockId, int]:
    """A group that is all that its objects have. Returns its block, which is open, and its stripes."""
    system = writer.system
    plan = writer.plan(40, "first")
    assert len(writer.writer.write(plan).packed) == 40
    for copy in list(system.landing.list_ids()):
        system.landing.delete(copy)
    (row,) = all_blocks(system.metadata)
    assert (row.state, row.stripes) == (BlockState.OPEN, plan.stripe_count)
    assert row.stripes > 1
    cut_off(bench, system, row.block_id, row.stripes - 1)
    return row.block_id, row.stripes


@pytest.mark.invariant(3, 10)
def test_a_rebuild_believes_a_dump_that_counts_more_stripes_than_there_are(bench: Bench, cli: Cli) -> None:
    """Recovery believes the row in the same way. The objects of the block stay, and those that lie in the stripes that
    are there can be read."""
    with bench.open() as system:
        block_id, stripes = committed(bench, Writer(bench, system))
        dump = bench.folder / "dump"
        cli("metadata", "dump", "--to", str(dump))
    lose_database(bench)
    said, _ = rebuild(bench, cli, "--from", str(dump))
    assert (said["unfinished_blocks"], said["gone"]) == (0, 0)
    with bench.open() as rebuilt:
        row = rebuilt.metadata.block(block_id)
        assert (row.state, row.stripes, row.live_objects) == (BlockState.SEALED, stripes, 40)
        assert row.live_bytes + row.dead_bytes + row.overhead_bytes == stripes * STRIPE
        rebuilt.clock = LaterClock(TTL_OVER_MS)
        bench.settle(rebuilt)
        store, kept = rebuilt.client.store(), 0
        for one in all_objects(rebuilt.metadata):
            assert one.extent is not None
            if one.extent.offset + one.extent.length <= (stripes - 1) * STRIPE:
                kept += 1
                assert store.get(one.key) == bench.acknowledged[one.key]
        assert 0 < kept < 40


@pytest.mark.invariant(3, 10)
@pytest.mark.parametrize("killed", [False, True], ids=["at once", "resumed"])
def test_an_unfinished_group_with_objects_that_lie_nowhere_else_is_kept(bench: Bench, cli: Cli, killed: bool) -> None:
    """Nothing says whether it was committed. So its block is put aside, and an operator can look at it."""
    with bench.open() as system:
        block_id, _ = committed(bench, Writer(bench, system))
    lose_database(bench)
    if killed:
        arguments = ("metadata", "rebuild", "--without-dump", "--list", str(bench.folder / "list"))
        done = bench.run_python("-m", "nos_ec", "--config", str(bench.config), *arguments, kill_at="rebuild.counted")
        assert done.returncode == -signal.SIGKILL
    said, to_look_at = rebuild(bench, cli, "--without-dump")
    assert (said["unfinished_blocks"], said["unread_blocks"]) == (1, 1)
    assert to_look_at["block"] == {block_id.hex()}
    with bench.open() as rebuilt:
        row = rebuilt.metadata.block(block_id)
        assert (row.state, row.writer) == (BlockState.CONDEMNED, QUARANTINE)
        rebuilt.clock = LaterClock(TTL_OVER_MS)
        bench.settle(rebuilt)
        assert block_id in set(rebuilt.blocks.list_blocks())
