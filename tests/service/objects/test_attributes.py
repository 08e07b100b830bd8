"""Attributes of objects: rows and blocks keep them, whatever moves the bytes."""

from __future__ import annotations

from io import BytesIO

import pytest

from nos_ec import open_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.formats.copy_label import CopyLabel
from nos_ec.core.formats.header import NameRecord
from nos_ec.core.ids import Extent, LandingId, ObjectKey
from nos_ec.core.packing.packer import ATTRIBUTES_ROOM
from nos_ec.core.states import ObjectState
from nos_ec.core.tails import is_tail
from nos_ec.engine.header_scan import read_names, scan_headers
from nos_ec.engine.landing.landing_labels import labels_in_segment, labels_of
from nos_ec.library.object_info import attributes_of
from nos_gc.assemble import gc_service
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, Bench


def given_to(number: int) -> bytes:
    """None for every fourth, and the most that is possible for some."""
    if number % 4 == 0:
        return b""
    return encode_attributes({"number": str(number), "more": "x" * (8163 if number % 10 == 1 else number)})


def put(bench: Bench, system: System, name: str, size: int, attributes: bytes) -> ObjectKey:
    key, data = ObjectKey("b", name), bench.data(size)
    row = system.client.store().put(key, BytesIO(data), attributes)
    assert row.attributes == attributes
    bench.acknowledged[key] = data
    return key


def put_all(bench: Bench, system: System, count: int = 60) -> dict[ObjectKey, bytes]:
    """Objects of many sizes, some large; returns their attributes."""
    given = {}
    for number in range(count):
        size = bench.rng.randint(1, STRIPE) if number % 20 else 10 * STRIPE + number
        given[put(bench, system, f"{number:03}", size, given_to(number))] = given_to(number)
    for number in (1, 5):
        row = system.client.store().put(ObjectKey("b", f"empty-{number}"), BytesIO(b""), given_to(number))
        bench.acknowledged[row.key] = b""
        given[row.key] = given_to(number)
    for number in (19, 20):  # one of them large
        size = bench.rng.randint(9 * STRIPE, 18 * STRIPE)
        given[put(bench, system, f"{number:03}", size, given_to(31))] = given_to(31)
    return given


def told_by_rows(system: System) -> dict[ObjectKey, bytes]:
    return {row.key: row.attributes for row in system.client.store().list_objects("b", "", "", 1000)}


def told_by_blocks(system: System) -> dict[ObjectKey, bytes]:
    """What the names of groups say of those entries that rows of objects point to."""
    found: dict[ObjectKey, bytes] = {}
    for block_id in system.blocks.list_blocks():
        live = {one.extent.offset: one.key for one in system.metadata.placed_in(block_id)}
        for header in scan_headers(system.blocks, block_id, system.blocks.stripes(block_id)).headers:
            names = read_names(system.blocks, header)
            for entry, record in zip(header.entries, names, strict=True):
                key = live.get(header.first_stripe * system.geometry.stripe_size + entry.offset)
                if key is not None and is_tail(key):
                    assert not record.attributes, "its object has them"
                elif key is not None and _is_last(record):
                    assert key == ObjectKey(record.bucket, record.name)
                    assert key not in found
                    found[key] = record.attributes
                else:
                    assert record.segment is None or not record.attributes
    return found


def _is_last(record: NameRecord) -> bool:
    return record.segment is None or record.segment[1] > 0


@pytest.mark.invariant(7)
@pytest.mark.parametrize("mode", ["log", pytest.param("store", marks=pytest.mark.landing("store"))])
def test_packing_and_gc_carry_them(bench: Bench, system: System, mode: str) -> None:
    assert system.settings.landing.mode == mode
    given = put_all(bench, system)
    assert told_by_rows(system) == given
    bench.pack(system)
    assert told_by_rows(system) == given
    packed = {key: having for key, having in given.items() if bench.acknowledged[key]}
    assert told_by_blocks(system) == packed
    places = extents(system)
    for number in range(60):
        key = ObjectKey("b", f"{number:03}")
        if number % 6:
            bench.delete(system, key)
            del given[key], packed[key]
    for _ in range(3):
        gc_service(system).run_once()
    assert any(extent != places[key] for key, extent in extents(system).items()), "GC moved some"
    assert told_by_rows(system) == given
    assert told_by_blocks(system) == packed
    bench.assert_readable(system)
    bench.assert_balanced(system)


def extents(system: System) -> dict[ObjectKey, Extent]:
    return {row.key: row.extent for row in system.client.store().list_objects("b", "", "", 1000) if row.extent}


def test_an_overwrite_takes_them_away(bench: Bench, system: System) -> None:
    key = put(bench, system, "a", 100, given_to(1))
    bench.pack(system)
    bench.put(system, "a", b"without")
    assert system.client.store().head(key).attributes == b""
    bench.pack(system)
    assert told_by_blocks(system) == {key: b""}


def test_the_largest_objects_that_are_packed(bench: Bench, system: System) -> None:
    """An object with the most attributes and the longest name fills a group of its own."""
    most = given_to(1)
    size = system.client.store().packed_size_max
    name = "n" * 1024
    landed = put(bench, system, name, size - ATTRIBUTES_ROOM, most)
    assert system.client.store().head(landed).state is ObjectState.LANDED
    large = put(bench, system, name[1:], size - ATTRIBUTES_ROOM + 1, most)
    assert system.client.store().head(large).state is ObjectState.LARGE
    without = put(bench, system, name[2:], size, b"")
    assert system.client.store().head(without).state is ObjectState.LANDED
    bench.pack(system)
    assert {row.state for row in system.client.store().list_objects("b", "", "", 9)} == {
        ObjectState.PACKED,
        ObjectState.LARGE,
    }
    bench.assert_readable(system)
    assert told_by_blocks(system) == {landed: most, large: most, without: b""}


@pytest.mark.parametrize("mode", ["log", pytest.param("store", marks=pytest.mark.landing("store"))])
def test_landing_copies_tell_what_they_are(bench: Bench, system: System, mode: str) -> None:
    put(bench, system, "first", 100, given_to(3))  # a first object passes by the log
    put_all(bench, system, 30)
    expected = {
        row.landing_id: (row.key, row.size, row.crc32c, row.attributes)
        for row in system.client.store().list_objects("b", "", "", 1000)
        if row.landing_id is not None
    }
    found: dict[LandingId, CopyLabel | None] = {**labels_of(system.landing, list(system.landing.list_ids()))}
    with_bytes = {landing_id for landing_id, label in found.items() if label and label.size}
    assert found.keys() >= expected.keys() if mode == "store" else len(with_bytes) == 1
    empty = {row.key for row in system.client.store().list_objects("b", "", "", 1000) if not row.size}
    assert {ObjectKey(label.bucket, label.name) for label in found.values() if label and not label.size} == empty
    if system.medium is not None:
        for segment in system.medium.segments():
            found |= labels_in_segment(system.medium, segment)
    versions = {row.landing_id: row.version for row in system.client.store().list_objects("b", "", "", 1000)}
    told = {}
    for landing_id, label in found.items():
        assert label is not None
        told[landing_id] = (ObjectKey(label.bucket, label.name), label.size, label.crc32c, label.attributes)
        if landing_id in versions:
            assert versions[landing_id] - 60_000_000 <= label.put_ms * 1000 <= versions[landing_id]
    assert {landing_id: told[landing_id] for landing_id in expected} == expected


def test_commands_take_and_show_them(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    file = bench.folder / "file"
    file.write_bytes(b"bytes")
    given = {"content-type": "text/plain; a=b", "été": ""}
    options = [f"--attribute={name}={value}" for name, value in given.items()]
    assert cli("put", "b/with", str(file), *options)["attributes"] == given
    assert cli("put", "b/without", str(file))["attributes"] == {}
    assert cli("stat", "b/with")["attributes"] == given
    assert [one["attributes"] for one in cli("ls", "b", "-l")["objects"]] == [given, {}]
    lines = cli.text("stat", "b/with").splitlines()
    assert [line.split(maxsplit=2) for line in lines if line.startswith("attribute ")] == [
        ["attribute", "content-type", "text/plain; a=b"],
        ["attribute", "été"],
    ]
    for wrong in ("content-type", "=x", "a=1 --attribute=a=2"):
        cli("put", "b/with", str(file), *f"--attribute={wrong}".split(" "), exits=2)
    cli("put", "-r", "b", str(bench.folder), "--attribute=a=b", exits=2)
    cli("put", "b/with", str(file), f"--attribute=a={'x' * 8189}", exits=2)


def test_the_library_takes_and_returns_them(bench: Bench) -> None:
    given = {"content-type": "text/plain", "é": "ü"}
    with open_store(bench.config) as store:
        for data in (b"", b"small", BytesIO(bench.data(20 * STRIPE))):
            info = store.put("b/name", data, attributes=given)
            assert info.attributes == given
            assert store.head("b/name").attributes == given
            assert next(store.list("b")).attributes == given
            assert hash(info) == hash(store.head("b/name"))
            with store.open_read("b/name") as reader:
                assert reader.info.attributes == given
        assert store.put("b/name", b"small").attributes == {}
        with pytest.raises(InvalidInput, match="8193"):
            store.put("b/name", b"small", attributes={"a": "x" * 8189})
        store.put("b/name", b"small", attributes=given)
        assert store.delete("b/name").attributes == given
    with open_system(bench.settings()) as system:
        row = system.client.store().put(ObjectKey("b", "bad"), BytesIO(b"x"), b"\1")
        with pytest.raises(Corrupt, match="b/bad v"):
            attributes_of(row)
