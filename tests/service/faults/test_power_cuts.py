"""Power cuts at steps of a whole store: metadata, message log, blocks and landing copies lose together what was not
synced (see tests.rig.power_cut), and the services bring the rest to order as after any crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random

import pytest

from nos_consumer.assemble import drain
from nos_ec.adapters.local import landing_store
from nos_ec.adapters.local.blocks import block_locks
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import NotFound
from nos_ec.core.formats.journal import encode_object, entries_of
from nos_ec.core.ids import JOURNAL_BUCKET, LandingId, ObjectKey
from nos_ec.settings import Settings, load_settings
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import LaterClock, settle
from tests.rig.fakes.audit import problems
from tests.rig.long_packing import packing_long_groups
from tests.rig.power_cut import MIXED, NOTHING, ZEROS, Operation, Recorder, cuts, memory_folder, points
from tests.rig.sampling import TURN, sampled
from tests.rig.sql import sqlite_files
from tests.service.conftest import CHUNK, STORE_CONFIG, TTL_OVER_MS

pytestmark = [pytest.mark.every_time, pytest.mark.invariant(1)]

CUTS = 40
"""A third of them in a run, another third every day."""
FOLDERS = 8
"""Few folders of landing copies and few locks of blocks, instead of hundreds that are all alike."""
STRIPE = 2 * CHUNK
CONFIG = STORE_CONFIG.replace("[geometry]", "journal_rows_max = 1000\n[geometry]\nk = 2\nm = 1")


@dataclass
class Change:
    """A version of an object (None: deleted), and the positions at which it was begun and acknowledged."""

    key: ObjectKey
    data: bytes | None
    begun: int
    done: int


@dataclass
class History:
    """What was done to a store. `initialised`: when that was acknowledged."""

    operations: list[Operation] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    initialised: int = 0

    def allowed(self, position: int) -> dict[ObjectKey, list[bytes | None]]:
        """What each object may read as after a cut: the last version that was acknowledged, or one begun later."""
        found: dict[ObjectKey, list[bytes | None]] = {}
        for change in self.changes:
            if change.begun < position:
                before = [] if change.done <= position else found.get(change.key, [None])
                found[change.key] = [*before, change.data]
        return found


@pytest.fixture(autouse=True)
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_locks, "_COUNT", FOLDERS)
    monkeypatch.setattr(landing_store, "_FAN_OUT", landing_store._FAN_OUT[:FOLDERS])
    new = System.new_landing_id

    def in_few_folders(system: System) -> LandingId:
        """The last byte of an id chooses its folder."""
        landing_id = new(system)
        return LandingId(landing_id[:-1] + bytes([landing_id[-1] % FOLDERS]))

    monkeypatch.setattr(System, "new_landing_id", in_few_folders)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with memory_folder(tmp_path) as made:
        (made / "nos-ec.toml").write_text(CONFIG)
        yield made


def _settings(folder: Path, root: Path) -> Settings:
    return load_settings(folder / "nos-ec.toml", {"NOS_EC_STORE__ROOT": str(root)})


def _work(folder: Path, recorder: Recorder, objects_a_round: int) -> History:
    """The life of small and large objects: put, overwritten, packed, deleted, collected."""
    history, random, settings = History(), Random(9), _settings(folder, recorder.root / "store")

    def did(changes: dict[ObjectKey, bytes | None], act: Callable[[], object]) -> None:
        begun = recorder.position
        act()
        history.changes += [Change(key, data, begun, recorder.position) for key, data in changes.items()]

    initialise(settings)
    history.initialised = recorder.position
    with open_system(settings) as system:
        store = system.client.store()
        keys = [ObjectKey("b", f"{number:02}") for number in range(24)]
        for first in range(0, 24, objects_a_round):
            data = {key: random.randbytes(random.randrange(CHUNK)) for key in keys[first : first + objects_a_round]}
            did({**data}, partial(store.put_many, list(data.items())))
            _pack(system)
        large = random.randbytes(20 * STRIPE)
        did({ObjectKey("b", "large"): large}, lambda: store.put(ObjectKey("b", "large"), BytesIO(large)))
        new = random.randbytes(100)
        did({keys[0]: new}, lambda: store.put(keys[0], BytesIO(new)))
        for number, key in enumerate(keys[1:20]):
            did({key: None}, partial(store.delete, key))
            if number % 8 == 4:
                system.client.journal().ship()
        _pack(system)
        gc_service(system).run_once()
        gc_service(system).run_once()
    return history


def _pack(system: System) -> None:
    with producer_service(system) as producer:
        producer.drain()
    drain(system)


@pytest.fixture
def history(folder: Path) -> History:
    return _recorded(folder, 8)


def _recorded(folder: Path, objects_a_round: int) -> History:
    (folder / "recorded").mkdir()
    recorder = Recorder(folder / "recorded")
    with recorder, sqlite_files.recorded(recorder):
        history = _work(folder, recorder, objects_a_round)
        recorder.check()
    history.operations = recorder.operations
    return history


def _check(folder: Path, history: History, image: Path, position: int) -> None:
    settings = _settings(folder, image / "store")
    if position < history.initialised:
        initialise(settings)
    with open_system(settings) as system:
        _check_objects(system, history, position)
        _check_journal(system, history, position)
        for rounds in (1, 2):
            system.clock = LaterClock(rounds * TTL_OVER_MS)
            settle(system)
        _check_objects(system, history, position)
        _check_journal(system, history, position)
        system.client.journal().ship()
        assert system.metadata.journal_after(0, 1) == []
        _check_journal(system, history, position)
        assert problems(system.metadata, system.blocks, system.landing, system.medium) == []


def _check_objects(system: System, history: History, position: int) -> None:
    store = system.client.store()
    for key, allowed in history.allowed(position).items():
        try:
            found: bytes | None = store.get(key)
        except NotFound:
            found = None
        assert found in allowed, f"{key} is {'missing' if found is None else 'another version'}"


def _check_journal(system: System, history: History, position: int) -> None:
    """Each delete that was acknowledged is in the table of the journal or in one of its objects."""
    parts = [ObjectKey(JOURNAL_BUCKET, name) for name in system.metadata.list_names(JOURNAL_BUCKET, "", "", 1000)]
    shipped = [entry for part in parts for entry in entries_of(system.client.store().get(part))]
    waiting = entries_of(encode_object(system.metadata.journal_after(0, 1000)))
    found = {entry.key for entry in (*shipped, *waiting)}
    deleted = {one.key for one in history.changes if one.data is None and one.done <= position}
    assert deleted <= found


def test_a_power_cut_loses_no_acknowledged_object(folder: Path, history: History) -> None:
    _cut(folder, history, points(history.operations))


def test_a_power_cut_while_a_long_group_is_written_loses_no_acknowledged_object(folder: Path) -> None:
    """It has all objects, in three windows of two stripes."""
    config = folder / "nos-ec.toml"
    config.write_text(config.read_text().replace("[geometry]", "[geometry]\nstripes_per_group_max = 2"))
    with packing_long_groups():
        history = _recorded(folder, 24)
        put, then = history.changes[23], history.changes[24]
        _cut(folder, history, [one for one in points(history.operations) if put.done <= one < then.begun])


def _cut(folder: Path, history: History, places: Sequence[int]) -> None:
    chosen = list(enumerate(sorted(Random(5).sample(places, min(CUTS, len(places))))))
    for number, position in sampled(chosen[TURN % 3 :: 3], chosen):
        fate = (NOTHING, ZEROS, MIXED)[number % 3]
        cuts(
            history.operations,
            [position],
            [fate],
            folder / "image",
            lambda image, at: _check(folder, history, image, at),
        )


def test_without_the_syncs_of_sqlite_a_power_cut_loses_objects(folder: Path, history: History) -> None:
    acknowledged = sorted({change.done for change in history.changes})
    with pytest.raises(Exception, match=r"missing|another version|malformed|init"):
        cuts(
            history.operations,
            acknowledged,
            [NOTHING],
            folder / "image",
            lambda image, at: _check(folder, history, image, at),
            ignoring=("SQLite:wal",),
        )
