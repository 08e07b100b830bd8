"""Reading from cached places, while objects are packed, collected, overwritten and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System, open_system
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata import Metadata
from tests.service.conftest import Bench

pytestmark = pytest.mark.landing("store")


class Counted:
    """Metadata that counts the look-ups of rows."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def get(self, key: ObjectKey) -> object:
        self.asked += 1
        return self._metadata.get(key)


@pytest.fixture
def gateway(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """A process with a cache. The systems that `bench` opens have none, and stand for other processes."""
    monkeypatch.setattr("nos_ec.composition.wiring.LOCATION_CACHE_MS", 600_000)
    plain = bench.settings()
    get = plain.get.model_copy(update={"location_cache_objects": 1000})
    with open_system(plain.model_copy(update={"get": get})) as system:
        yield system


def counted(system: System) -> Counted:
    """Counts from now on the rows that are looked up."""
    metadata = Counted(system.metadata)
    system.metadata = cast(Metadata, metadata)
    return metadata


def test_reading_again_looks_up_no_row(bench: Bench, gateway: System) -> None:
    keys = bench.put_some(gateway, 20)
    metadata = counted(gateway)
    bench.assert_readable(gateway)
    assert metadata.asked == 20
    bench.assert_readable(gateway)
    assert gateway.client.store().open_range(keys[0], 0, 1)[0].key == keys[0]
    assert metadata.asked == 20


def test_cached_places_that_objects_have_left(bench: Bench, gateway: System) -> None:
    """Landing copies deleted after packing, and blocks deleted by GC: each costs a second look-up, and nothing else."""
    keys = bench.put_some(gateway, 60)
    bench.assert_readable(gateway)
    with bench.open() as other:
        bench.settle(other)
        metadata = counted(gateway)
        bench.assert_readable(gateway)
        assert metadata.asked == 60, "every landing copy is gone"
        bench.assert_readable(gateway)
        assert metadata.asked == 60
        for key in keys[::2]:
            bench.delete(gateway, key)
        for key in keys[1::2]:
            gateway.client.store().get(key)
        bench.settle(other)
        assert all(gateway.client.store().get(key) == bench.acknowledged[key] for key in keys[1::2])
    bench.assert_readable(gateway)


def test_own_changes_are_seen_at_once(bench: Bench, gateway: System) -> None:
    for data in (b"first", b"", b"x" * 300_000, b"y" * 3_000_000, b"last"):
        key = bench.put(gateway, "n", data)
        for _ in range(2):
            assert gateway.client.store().get(key) == data
            assert gateway.client.store().open_range(key, 0, 1)[0].size == len(data)
    gateway.client.store().delete_many([key])
    with pytest.raises(NotFound):
        gateway.client.store().get(key)


def test_changed_attributes_are_seen_at_once(bench: Bench, gateway: System) -> None:
    key, store = bench.put(gateway, "n", b"data"), gateway.client.store()
    bench.assert_readable(gateway)
    assert store.resolve(key).attributes == b""
    row = store.set_attributes(key, encode_attributes({"a": "b"}))
    assert store.resolve(key) == row


def test_changes_by_another_process_are_seen_late_and_whole(bench: Bench, gateway: System) -> None:
    """The weaker guarantee: an old version, never a mixture, and at most for its maximum age."""
    key = bench.put(gateway, "n", b"old")
    assert gateway.client.store().get(key) == b"old"
    with bench.open() as other:
        bench.put(other, "n", b"newer and longer")
        assert gateway.client.store().get(key) == b"old"
        assert gateway.client.store().head(key).size == len(b"newer and longer")
        row, segments = gateway.client.store().open_range(key, 6, 100)
        assert (b"".join(segments), row.size) == (b"and longer", 16), "a range past the old end is looked up"
        bench.put(other, "n", b"third")
        bench.settle(other)
        assert gateway.client.store().get(key) == b"third", "the second one's landing copy is gone"
        bench.delete(other, key)
        bench.settle(other)
        with pytest.raises(NotFound):
            gateway.client.store().get(key)


def test_damage_is_still_reported(bench: Bench, gateway: System) -> None:
    key = bench.put(gateway, "n", b"0123456789")
    assert gateway.client.store().get(key) == b"0123456789"
    (copy,) = (bench.folder / "store" / "landing").glob("??/*")
    copy.write_bytes(copy.read_bytes()[:-1] + b"X")
    with pytest.raises(Corrupt) as error:
        gateway.client.store().get(key)
    assert error.value.key == key
