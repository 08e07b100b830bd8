"""Tails of large objects, on a whole store (docs/adr/0027)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System, initialise
from nos_ec.core.errors import Conflict, Corrupt, InvalidInput, LeaseLost, NoSpace, NotFound
from nos_ec.core.findings import FindingKind
from nos_ec.core.ids import RESERVED_BUCKET, ObjectKey
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import TAILS_BUCKET, is_tail, tail_key, tail_length
from nos_ec.engine.objects.put_queue import PutQueue
from nos_ec.ports.metadata import NewObject, ObjectRow
from nos_gc.assemble import gc_service
from tests.rig.at_rest import come_to_rest, end_log
from tests.rig.fakes.audit import all_blocks, all_objects
from tests.rig.fakes.clock import SetClock
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, CONFIG, STORE_CONFIG, STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild

MIB = 1 << 20
DEFAULT_GEOMETRY = STORE_CONFIG.replace("[geometry]\nchunk_size = 16384\nstripes_per_block = 8\n", "")
WHOLE = 9 * STRIPE
"""A block of 8 stripes and one of 1 stripe, and a tail."""


def tails(system: System) -> list[ObjectRow]:
    """The rows of all tails."""
    return [row for row in all_objects(system.metadata) if is_tail(row.key)]


def the_tail(system: System) -> ObjectRow:
    """The only one."""
    (row,) = tails(system)
    return row


def tail_of(system: System, key: ObjectKey) -> ObjectRow:
    """The tail of an object."""
    row = system.metadata.get(key)
    last = system.metadata.segments(row.object_id, row.version)[-1]
    return system.metadata.get(tail_key(last.extent.block_id))


def test_where_a_tail_is_cut() -> None:
    """A tail begins after the last whole stripe, unless hardly anything is saved or no stripe is whole."""
    assert tail_length(100, 900, 1000) == 0, "a whole stripe"
    assert tail_length(100, 901, 1000) == 1
    assert tail_length(100, 1837, 1000) == 937
    assert tail_length(100, 1838, 1000) == 0, "padding of a sixteenth"
    assert tail_length(100, 899, 1000) == 0, "no whole stripe"


@pytest.mark.parametrize("size", [WHOLE, WHOLE - 1, WHOLE + STRIPE // 2, 10 * STRIPE, 23 * STRIPE, 5 * STRIPE + 17])
def test_ranges_within_and_across_the_tail(bench: Bench, system: System, size: int) -> None:
    """The ranges are read while the tail is landed, and once it is packed."""
    data = bench.data(size)
    key = bench.put(system, "large", data)
    row = system.metadata.get(key)
    segments = system.metadata.segments(row.object_id, row.version)
    tail = the_tail(system)
    begin = size - tail.size
    assert begin == sum(segment.extent.length for segment in segments)
    store = system.client.store()
    for state in (ObjectState.LANDED, ObjectState.PACKED):
        assert tail_of(system, key).state is state
        assert store.get(key) == data
        for first in (0, 1, begin - 1, begin, begin + 1, size - 1, size):
            for count in (0, 1, 2, tail.size, size):
                assert store.get(key, first, count) == data[first : first + count], (first, count)
            assert b"".join(store.resume_version(row, first)) == data[first:]
        bench.pack(system)
    bench.assert_at_rest(system)


@pytest.mark.parametrize(("mib", "count"), [(5, 12), (8, 8), (16, 4)])
def test_raw_bytes_of_objects_of_usual_sizes(tmp_path: Path, mib: int, count: int) -> None:
    """With the default geometry: what all shards hold once the tails are packed, at most 1.40 bytes for each byte of
    users. The tails share a stripe with some small objects, as they do in a store that is in use."""
    bench = Bench(tmp_path, DEFAULT_GEOMETRY)
    initialise(bench.settings())
    sizes = [mib * MIB] * count + [MIB // 8] * 7
    with bench.open() as system:
        for number, size in enumerate(sizes):
            system.client.store().put(ObjectKey("b", f"{number}"), BytesIO(bench.data(size)))
        bench.settle(system)
        assert [row.state for row in tails(system)] == [ObjectState.PACKED] * count
        assert raw_bytes(bench) / sum(sizes) <= 1.40


def test_raw_bytes_of_parts_of_uploads(tmp_path: Path) -> None:
    """Parts of 8 MiB, at most 1.42 bytes for each byte of users, manifest and all."""
    bench = Bench(tmp_path, DEFAULT_GEOMETRY)
    initialise(bench.settings())
    key, data = ObjectKey("b", "whole"), bench.data(8 * MIB)
    with bench.open() as system:
        uploads = system.client.uploads()
        begun = uploads.create(key, "root", b"")
        for number in range(1, 9):
            uploads.put_part(begun, number, BytesIO(data), b"")
        uploads.complete(begun, lambda stored: (stored, {}))
        bench.settle(system)
        assert system.client.store().get(key) == data * 8
        assert [row.state for row in tails(system)] == [ObjectState.PACKED] * 8
        assert raw_bytes(bench) / (8 * len(data)) <= 1.42


def raw_bytes(bench: Bench) -> int:
    """What the files of all shards hold."""
    return sum(path.stat().st_size for path in (bench.folder / "store" / "blocks").glob("shard-*/*/*"))


def test_a_deleted_object_takes_its_tail_along(bench: Bench, system: System) -> None:
    """The tail may be landed or packed; an object that is overwritten takes its tail along, too."""
    bench.put_some(system, 30)
    keys = [bench.put(system, name, bench.data(WHOLE)) for name in ("landed", "packed", "overwritten")]
    gone = [tail_of(system, key).key for key in keys]
    bench.delete(system, keys[0])
    bench.pack(system)
    bench.delete(system, keys[1])
    bench.put(system, "overwritten", bench.data(WHOLE))
    bench.settle(system)
    (left,) = tails(system)
    assert left.key == tail_of(system, keys[2]).key not in gone
    assert come_to_rest(system) == []
    bench.assert_readable(system)


def test_nobody_else_stores_or_deletes_tails(bench: Bench, system: System) -> None:
    bench.put(system, "large", bench.data(WHOLE))
    tail, store = the_tail(system), system.client.store()
    assert store.list_buckets("", 9) == ["b"]
    with pytest.raises(InvalidInput, match="store's own"):
        store.put(tail.key, BytesIO(b"x"))
    with pytest.raises(InvalidInput, match="tail of a large object"):
        store.delete(tail.key)
    with pytest.raises(InvalidInput, match="tail of a large object"):
        store.delete_many([tail.key])
    with pytest.raises(InvalidInput, match="tail of a large object"):
        store.set_attributes(tail.key, b"")


def test_dumps_in_the_store_have_no_tails(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """They are found without rows."""
    with bench.open() as system:
        bench.put_some(system, 60)
        Cli(bench, capfd)("metadata", "dump")
        assert [row.state for row in all_objects(system.metadata) if row.key.bucket == RESERVED_BUCKET] == [
            ObjectState.LARGE
        ]
        assert tails(system) == []


class Refusing:
    """A queue of PUTs before each of which `meanwhile` happens, which may raise an error."""

    def __init__(self, queue: PutQueue, meanwhile: Callable[[], object]) -> None:
        self._queue = queue
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put(self, new: NewObject, data: bytes) -> ObjectRow:
        """See PutQueue."""
        self._meanwhile()
        return self._queue.put(new, data)


def test_a_put_whose_tail_finds_no_room(bench: Bench, system: System) -> None:
    """It fails, the old version stays, and GC collects the blocks."""
    key = bench.put(system, "large", bench.data(WHOLE))
    old = tail_of(system, key).key

    def full() -> None:
        raise NoSpace("full")

    store = system.client.store()
    store._puts = cast(PutQueue, Refusing(store._puts, full))
    with pytest.raises(NoSpace):
        store.put(key, BytesIO(bench.data(WHOLE)))
    assert come_to_rest(system) == []
    assert [row.key for row in tails(system)] == [old]
    bench.assert_readable(system)


def test_a_condition_that_fails_when_the_tail_has_landed(bench: Bench, system: System) -> None:
    """Another version is stored meanwhile, which stays; what the loser wrote is collected, its tail as well."""
    key, other = ObjectKey("b", "large"), bench.data(WHOLE)
    store = system.client.store()
    queue = store._puts

    def stored_meanwhile() -> None:
        store._puts = queue
        bench.put(system, "large", other)

    store._puts = cast(PutQueue, Refusing(queue, stored_meanwhile))
    store.put(key, BytesIO(bench.data(WHOLE)))
    assert store.get(key) == other
    assert len(tails(system)) == 2
    assert come_to_rest(system) == []
    assert [row.key for row in tails(system)] == [tail_of(system, key).key]
    bench.assert_readable(system)


def test_a_put_that_stalls_before_its_tail(bench: Bench, system: System) -> None:
    """Its blocks are recovered and collected meanwhile: no tail is recorded that nothing would delete."""
    system.clock = clock = SetClock(system.clock.now_ms())

    def recovered_and_collected() -> None:
        clock.advance(60_000)
        with bench.open() as other:
            other.clock = clock
            for _ in range(2):
                gc_service(other).run_once()
                clock.advance(1000)

    store = system.client.store()
    store._puts = cast(PutQueue, Refusing(store._puts, recovered_and_collected))
    with pytest.raises(LeaseLost, match="PUT it again"):
        store.put(ObjectKey("b", "large"), BytesIO(bench.data(WHOLE)))
    assert tails(system) == []
    assert come_to_rest(system) == []


def test_a_read_goes_on_when_the_object_is_deleted(bench: Bench, system: System) -> None:
    """As long as its blocks are there, its tail is. After that it is told that the version is gone."""
    config = bench.config.read_text()
    bench.config.write_text(config.replace("block_grace_ms = 0", "block_grace_ms = 3600000"))
    data = bench.data(WHOLE)
    with bench.open() as other:
        first, second = bench.put(other, "first", data), bench.put(other, "second", data)
        bench.pack(other)
        store = other.client.store()
        readers: list[Iterator[bytes]] = [store.open(key)[1] for key in (first, second)]
        begun = [next(reader) for reader in readers]
        bench.delete(other, first)
        gc_service(other).run_once()
        assert begun[0] + b"".join(readers[0]) == data
        for row in tails(other):
            other.metadata.delete(row.key, other.clock.now_ms())
        other.metadata.delete(second, other.clock.now_ms())
        with pytest.raises(Conflict):
            b"".join(readers[1])


def test_a_lost_tail_is_named(bench: Bench, system: System) -> None:
    """GET ends with Corrupt where it begins, ranges before it are read, and check names the object."""
    data = bench.data(WHOLE)
    key = bench.put(system, "large", data)
    tail = the_tail(system)
    system.metadata.delete(tail.key, system.clock.now_ms())
    assert [finding.kind for finding in check(system)] == [FindingKind.PARTS_WRONG]
    read: list[bytes] = []
    with pytest.raises(Corrupt, match="large"):
        read.extend(system.client.store().open(key)[1])
    assert b"".join(read) == data[: -tail.size]
    assert system.client.store().get(key, 0, 1000) == data[:1000]
    with pytest.raises(Corrupt):
        system.client.store().get(key, len(data) - 1, 1)


def test_check_names_a_tail_without_its_block(bench: Bench, system: System) -> None:
    key = bench.put(system, "large", bench.data(WHOLE))
    name = "f" * 32
    row = the_tail(system)
    with system.metadata._engine.begin() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql(
            "UPDATE objects SET name = CAST(? AS BLOB), bucket = CAST(? AS BLOB) WHERE object_id = ?",
            (name.encode(), f"{TAILS_BUCKET}f".encode(), row.object_id),
        )
    found = {finding.kind: finding.what for finding in check(system)}
    assert found[FindingKind.TAIL_WITHOUT_BLOCK] == f"object {TAILS_BUCKET}f/{name}"
    assert found[FindingKind.PARTS_WRONG] == f"object {key}"


def test_trash_keeps_the_tail(bench: Bench) -> None:
    bench.config.write_text(CONFIG + "[trash]\nkeep_days = 7\n")
    data = bench.data(WHOLE)
    with bench.open() as system:
        key = bench.put(system, "large", data)
        system.client.store().delete(key)
        bench.pack(system)
        for _ in range(2):
            gc_service(system).run_once()
        assert check(system) == []
        can = system.client.trash()
        can.undelete(can.find(key))
        assert system.client.store().get(key) == data
        system.client.store().delete(key, permanently=True)
        del bench.acknowledged[key]
        assert come_to_rest(system) == []
        assert tails(system) == []


def test_what_the_commands_show(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    with bench.open() as system:
        key = bench.put(system, "large", bench.data(WHOLE))
        tail = the_tail(system)
    shown = cli("stat", str(key))["location"]
    assert shown["tail"] == {"size": tail.size, "landing": tail.landing_id.hex() if tail.landing_id else None}
    assert f"{tail.key}: it is landed" in cli("explain", str(key))["why"]
    with bench.open() as system:
        bench.pack(system)
        tail = the_tail(system)
        assert tail.extent is not None
        place = tail.extent
    shown = cli("stat", str(key))["location"]
    assert (shown["tail"]["block"], shown["tail"]["length"]) == (place.block_id.hex(), tail.size)
    assert f"block {place.block_id.hex()}" in cli.text("stat", str(key))
    explained = cli("explain", str(key))
    assert "2 blocks of its own" in explained["why"]
    assert explained["places"][-1]["block"] == place.block_id.hex()
    status = cli("status")
    assert (status["packed_objects"], status["large_objects"], status["large_bytes"]) == (0, 1, WHOLE)


# --- rebuilding ---------------------------------------------------------------------------------------
@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "landed"])
@pytest.mark.parametrize("with_dump", [True, False], ids=["dump", "headers"])
def test_rebuilt_with_their_tails(bench: Bench, cli: Cli, packed: bool, with_dump: bool) -> None:
    """What is in the dump, and what was put, overwritten and deleted since."""
    dump = bench.folder / "dump"
    with bench.open() as system:
        bench.put_some(system, 40, 2 * CHUNK)
        for name in ("kept", "overwritten", "deleted"):
            bench.put(system, name, bench.data(WHOLE))
        if packed:
            bench.pack(system)
        cli("metadata", "dump", "--to", str(dump))
        bench.put(system, "overwritten", bench.data(WHOLE + 1))
        bench.put(system, "since", bench.data(20 * STRIPE))
        bench.delete(system, ObjectKey("b", "deleted"))
        if packed:
            bench.settle(system)
        end_log(system)
    lose_database(bench)
    source = ["--from", str(dump)] if with_dump else ["--without-dump"]
    said, to_look_at = rebuild(bench, cli, *source)
    assert (said["nameless"], said["unreadable"]) == (0, [])
    assert not any(TAILS_BUCKET in about for found in to_look_at.values() for about in found)
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        store = system.client.store()
        for key, data in bench.acknowledged.items():
            assert store.get(key) == data, str(key)
        blocks = {row.block_id.hex() for row in all_blocks(system.metadata)}
        assert {row.key.name for row in tails(system)} <= blocks
        if ObjectKey("b", "deleted") in {row.key for row in all_objects(system.metadata)}:
            store.delete(ObjectKey("b", "deleted"))
        assert come_to_rest(system) == []


def test_a_rebuild_drops_what_has_lost_its_tail(bench: Bench, cli: Cli) -> None:
    """A block whose tail was never recorded is not adopted; the older version is. A tail alone is removed."""
    with bench.open() as system:
        key = bench.put(system, "large", bench.data(WHOLE))
        lonely = bench.put(system, "lonely", bench.data(WHOLE))
        bench.put_some(system, 20)
        bench.pack(system)
        row = system.metadata.get(lonely)
        last = system.metadata.segments(row.object_id, row.version)[-1].extent.block_id
        end_log(system)
    done = bench.run("put", str(key), "-", stdin=bench.data(WHOLE), kill_at="large.written")
    assert done.returncode < 0
    with bench.open() as system:
        system.blocks.delete(last)
        del bench.acknowledged[lonely]
    lose_database(bench)
    said, _ = rebuild(bench, cli, "--without-dump")
    assert said["partial"] == 2
    with bench.open() as system:
        bench.assert_readable(system)
        assert len(tails(system)) == 1
        assert check(system, read_share=1.0) == []
        assert come_to_rest(system) == []
        with pytest.raises(NotFound):
            system.metadata.get(tail_key(last))
