"""Attributes that are changed after the PUT: rows tell the new ones whatever moves the bytes, and no copy is lost for
telling older ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from google_crc32c import value

from nos_ec import NotFound, ObjectStore, open_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.ids import ObjectKey, new_segment_id, record_id
from nos_ec.core.packing.packer import ATTRIBUTES_ROOM
from nos_ec.core.states import ObjectState
from nos_ec.engine.dump.rebuild_input import RebuildInput
from nos_ec.engine.dump.recovered_entries import RecoveredRecord
from nos_ec.engine.dump.row_rebuilder import RowRebuilder
from nos_gc.assemble import gc_service
from tests.rig.at_rest import end_log
from tests.rig.fakes.audit import all_objects
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild
from tests.service.objects.test_attributes import extents, put, told_by_blocks, told_by_rows

OLD, NEW = encode_attributes({"tag": "old"}), encode_attributes({"tag": "new", "acl": "private"})

pytestmark = pytest.mark.invariant(7)


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


@pytest.fixture
def store(bench: Bench) -> Iterator[ObjectStore]:
    with open_store(bench.config) as store:
        yield store


def put_some(bench: Bench, system: System, prefix: str, count: int = 12) -> list[ObjectKey]:
    """Objects with and without attributes, one of them large."""
    sizes = [STRIPE // 3 + number if number else 10 * STRIPE for number in range(count)]
    return [put(bench, system, f"{prefix}-{n:02}", size, OLD if n % 2 else b"") for n, size in enumerate(sizes)]


def change(system: System, keys: list[ObjectKey]) -> dict[ObjectKey, bytes]:
    """Change the attributes of the objects; every third loses them."""
    changed = {key: b"" if number % 3 == 2 else NEW for number, key in enumerate(keys)}
    for key, attributes in changed.items():
        before = system.client.store().head(key)
        row = system.client.store().set_attributes(key, attributes)
        assert (row.version, row.attributes) == (before.version, attributes)
        assert system.client.store().head(key) == row
    return changed


def assert_told(bench: Bench, system: System, given: Mapping[ObjectKey, bytes]) -> None:
    assert told_by_rows(system) == given
    bench.assert_readable(system)
    bench.assert_balanced(system)
    assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("mode", ["log", pytest.param("store", marks=pytest.mark.landing("store"))])
def test_they_stay_changed_wherever_the_bytes_are(bench: Bench, system: System, mode: str) -> None:
    assert system.settings.landing.mode == mode
    early, queued, late = (put_some(bench, system, prefix, 40) for prefix in ("early", "queued", "late"))
    given = change(system, early) | dict.fromkeys(queued + late, b"")
    end_log(system)
    bench.produce(system)
    given |= change(system, queued) | {key: system.client.store().head(key).attributes for key in late}
    bench.consume(system)
    assert_told(bench, system, given)
    given |= change(system, late)
    bench.pack(system)
    assert_told(bench, system, given)
    told = told_by_blocks(system)
    small = [key for key in early + queued if system.client.store().head(key).state is ObjectState.PACKED]
    assert {key: told[key] for key in small} == {key: given[key] for key in small}, "changed before they were packed"
    assert any(told[key] != given[key] for key in late)
    places = extents(system)
    for number, key in enumerate([*early, *queued, *late]):
        if number % 6:
            bench.delete(system, key)
            del given[key]
    for _ in range(3):
        gc_service(system).run_once()
    moved = [key for key, extent in extents(system).items() if extent != places[key]]
    assert any(key in late for key in moved)
    assert_told(bench, system, given)
    assert {key: told_by_blocks(system)[key] for key in moved} == {key: given[key] for key in moved}


def test_copies_that_are_written_again_tell_the_new_ones(bench: Bench, system: System) -> None:
    given = change(system, put_some(bench, system, "n"))
    end_log(system)
    bench.copy_forward(system)
    assert_told(bench, system, given)
    bench.pack(system)
    assert_told(bench, system, given)


@pytest.fixture
def eager(bench: Bench) -> Iterator[System]:
    """A process whose GC collects blocks that are half empty."""
    plain = bench.settings()
    gc = plain.gc.model_copy(update={"hole_ratio_min": 0.4})
    with open_system(plain.model_copy(update={"gc": gc})) as system:
        yield system


def test_a_great_object_gets_some_that_its_group_has_no_room_for(bench: Bench, eager: System) -> None:
    """It is packed all the same, and moved. Then its row alone has them."""
    most = encode_attributes({"more": "x" * 8163})
    store, size = eager.client.store(), eager.client.store().packed_size_max
    waits = put(bench, eager, "n" * 1024, size, b"")
    store.set_attributes(waits, most)
    gone = [put(bench, eager, "gone-1", size, b"")]
    bench.pack(eager)
    packed = put(bench, eager, "packed", size - ATTRIBUTES_ROOM + 1, b"")
    gone.append(put(bench, eager, "gone-2", size, b""))
    bench.pack(eager)
    store.set_attributes(packed, most)
    for key in gone:
        bench.delete(eager, key)
    given = {waits: most, packed: most}
    assert_told(bench, eager, given)
    places = extents(eager)
    for _ in range(3):
        gc_service(eager).run_once()
    assert extents(eager) != places
    assert_told(bench, eager, given)
    assert told_by_blocks(eager) == {waits: b"", packed: b""}


@pytest.mark.parametrize("changed", ["before the dump", "after the dump"])
@pytest.mark.parametrize("forward", [False, True], ids=["in place", "copied forward"])
def test_a_rebuild_takes_those_of_the_dump(bench: Bench, cli: Cli, changed: str, forward: bool) -> None:
    """It takes them for objects that are packed or written again after the dump, too, and no old copy becomes a
    version."""
    dump = str(bench.folder / "dump")
    with bench.open() as system:
        packed = put_some(bench, system, "packed")
        bench.pack(system)
        keys = [*packed, *put_some(bench, system, "waits"), put(bench, system, "empty", 0, OLD)]
        end_log(system)
        given = change(system, keys) if changed == "before the dump" else told_by_rows(system)
        cli("metadata", "dump", "--to", dump)
        if changed == "after the dump":
            change(system, keys)
        if forward:
            bench.copy_forward(system)
    bench.end_leases()
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", dump)
    assert not any(to_look_at.values())
    with bench.open() as system:
        assert_told(bench, system, given)
        assert [row for row in all_objects(system.metadata) if row.trash_until_ms is not None] == []
        assert system.metadata.trash_page(None, 99).rows == []
        bench.settle(system)
        assert_told(bench, system, given)


@pytest.mark.parametrize("forward", [False, True], ids=["in place", "copied forward"])
def test_a_rebuild_without_a_dump_takes_what_blocks_and_copies_tell(bench: Bench, cli: Cli, forward: bool) -> None:
    with bench.open() as system:
        keys = put_some(bench, system, "packed")
        bench.pack(system)
        keys += put_some(bench, system, "waits")
        old = told_by_rows(system)
        end_log(system)
        new = change(system, keys)
        if forward:
            bench.copy_forward(system)
    bench.end_leases()
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        rows = told_by_rows(system)
        assert rows.keys() == old.keys()
        assert all(attributes in (old[key], new[key]) for key, attributes in rows.items())
        assert system.metadata.trash_page(None, 99).rows == []
        assert_told(bench, system, rows)


def test_two_copies_of_one_put_are_one_version(system: System) -> None:
    """They are one even if their attributes differ, because these were changed before one was copied forward."""
    segment, data = new_segment_id(1, 7), b"bytes"
    told = [
        RecoveredRecord(ObjectKey("b", "n"), record_id(segment, 4096 * n, bytes(4)), 5, data, value(data), attributes)
        for n, attributes in enumerate((OLD, NEW), start=1)
    ]
    lost = RebuildInput(system.metadata, system.blocks, system.landing, system.medium, system.clock)
    row_rebuilder = RowRebuilder(lost, 9, 1, keep_replaced=True)
    assert row_rebuilder.place_landed(told, {segment}) == []
    assert [(row.landing_id, row.attributes) for row in all_objects(system.metadata)] == [(told[1].landing_id, NEW)]
    assert system.metadata.trash_page(None, 99).rows == []


def test_the_library_changes_them(store: ObjectStore) -> None:
    for data in (b"", b"small", bytes(20 * STRIPE)):
        first = store.put("b/n", data, attributes={"a": "b"})
        changed = store.set_attributes("b/n", {"c": "d"})
        assert (changed, changed.attributes) == (first, {"c": "d"})
        assert store.head("b/n").attributes == {"c": "d"}
        assert store.get(first) == data, "it is the same version"
        assert store.set_attributes("b/n", {}).attributes == {}
        with store.open_read("b/n") as reader:
            assert reader.info.attributes == {}
    store.delete("b/n")
    with pytest.raises(NotFound):
        store.set_attributes("b/n", {})
