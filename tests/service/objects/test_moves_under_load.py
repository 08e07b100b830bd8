"""Programs that write, overwrite, delete, read and list while the bucket is moved back and forth. A model says
what they must find. Each program opens its own store, so it learns of a move from the gate alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from nos_ec import NotFound, ObjectStore, PreconditionFailed, open_store
from nos_ec.cli.app import run
from nos_ec.cli.commands.cell_moves import _move, open_directory
from nos_ec.composition.wiring import open_system
from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.moving import bucket_mover
from nos_ec.engine.upkeep.upload_reaper import UploadReaper
from nos_ec.settings import Settings
from tests.rig.at_rest import LaterClock
from tests.service.objects.test_moves import compose
from tests.service.s3.cell_stores import new_cells

pytestmark = [pytest.mark.timed, pytest.mark.invariant(12)]

T = TypeVar("T")
MOVES = 4
KEYS = 12
STABLE = [f"s{number:02}" for number in range(20)]
"""Keys that exist throughout."""


PARTS = [bytes(range(251)) * 40, b"last"]
"""Of an object that exists throughout."""


class Program(threading.Thread):
    """Changes keys of its own, which only it knows the contents of, until `stop` is set."""

    def __init__(self, settings: Settings, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"program-{number}")
        self.settings, self.number, self.stop = settings, number, stop
        self.random = random.Random(number)
        self.model: dict[str, bytes] = {}
        self.calls = self.refused = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with open_store(self.settings) as store:
                while not self.stop.is_set():
                    self.step(store)
                for name in self.names():
                    self.read(store, name)
        except BaseException as error:
            self.error = error
            raise

    def names(self) -> list[str]:
        return [f"p{self.number}-{key}" for key in range(KEYS)]

    def step(self, store: ObjectStore) -> None:
        name, act = self.random.choice(self.names()), self.random.random()
        data = self.random.randbytes(self.random.choice([0, 10, 5000]))
        if act < 0.35:
            self.repeat(lambda: store.put(f"photos/{name}", data))
            self.model[name] = data
        elif act < 0.5:
            # A repetition may find its own object, whose first PUT was answered with an error.
            is_new = self.repeat(lambda: self.absent(store, name, data))
            if name not in self.model:
                assert is_new
                self.model[name] = data
            elif is_new:
                raise AssertionError(f"{name} was lost")
        elif act < 0.65:
            self.repeat(lambda: store.delete_many([f"photos/{name}"]))
            self.model.pop(name, None)
        elif act < 0.85:
            self.read(store, name)
        else:
            listed = self.repeat(lambda: [info.key.name for info in store.list("photos")])
            assert listed == sorted(set(listed))
            assert set(listed) >= set(STABLE)
            assert self.repeat(lambda: store.get("photos/parts")) == b"".join(PARTS)
            mine = {one for one in listed if one.startswith(f"p{self.number}-")}
            assert mine == self.model.keys()

    def absent(self, store: ObjectStore, name: str, data: bytes) -> bool:
        try:
            store.put(f"photos/{name}", data, if_absent=True)
        except PreconditionFailed:
            return name not in self.model and store.get(f"photos/{name}") == data
        return True

    def read(self, store: ObjectStore, name: str) -> None:
        def get() -> bytes | None:
            try:
                return store.get(f"photos/{name}")
            except NotFound:
                return None

        assert self.repeat(get) == self.model.get(name), name

    def repeat(self, call: Callable[[], T]) -> T:
        """Repeat a call while it is refused, as the documentation of the library says."""
        begun_s = time.monotonic()
        while True:
            self.calls += 1
            try:
                result = call()
            except Transient:
                self.refused += 1
                assert time.monotonic() - begun_s < 60
                time.sleep(0.01)
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            return result


def test_a_bucket_is_moved_under_load(tmp_path: Path) -> None:
    settings = new_cells(tmp_path, a=1, b=0)
    config = str(tmp_path / "cells.toml")
    with open_store(settings) as store:
        for name in STABLE:
            store.put(f"photos/{name}", name.encode())
    with open_system(settings.of_cell("a")) as system:
        compose(system, ObjectKey("photos", "parts"), PARTS)
    stop = threading.Event()
    programs = [Program(settings, number, stop) for number in range(3)]
    for program in programs:
        program.start()
    try:
        for number in range(MOVES):
            here, there = "ab" if number % 2 == 0 else "ba"
            with open_directory(settings) as directory:
                _move(settings, directory, "photos", there, 0)
            assert run(["--config", config, "--cell", there, "metadata", "dump"]) == 0
            with ExitStack() as stack:
                old, home = (stack.enter_context(open_system(settings.of_cell(one))) for one in (here, there))
                record = old.client.access_records().record
                place = home.metadata.directory_row("photos") or old.metadata.directory_row("photos")
                assert place is not None
                bucket_mover.purge(old.client.moving(), [home.client.moving()], place, record)
                if number % 2 == 0:  # afterwards, the parts come back before they are deleted
                    reaped = UploadReaper(old.metadata, LaterClock(PARTS_GRACE_MS + 60_000), 0).run_once()
                    assert reaped.parts == len(PARTS)
            assert run(["--config", config, "--cell", here, "metadata", "dump"]) == 0
            assert not any(program.error for program in programs)
    finally:
        stop.set()
        for program in programs:
            program.join(120)
    assert [program.error for program in programs] == [None] * len(programs)
    assert all(program.calls > 50 for program in programs)
    assert any(program.refused for program in programs)
    with open_store(settings) as store:
        assert [info.key.name for info in store.list("photos")] == sorted(
            ["parts", *STABLE, *(name for program in programs for name in program.model)]
        )
