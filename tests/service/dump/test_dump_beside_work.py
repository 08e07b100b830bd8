"""A dump is made while others put, overwrite, delete, pack and collect. Whatever it saw of that, a rebuild is right."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.dump import dumper
from tests.rig.at_rest import end_log
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild, there

pytestmark = [pytest.mark.timed, pytest.mark.invariant(7)]

THREADS = 3


class Work:
    """Puts, overwrites and deletes objects of its own, step by step. now: those that live. deleted: all that ever
    were."""

    def __init__(self, system: System, number: int) -> None:
        self.now: dict[ObjectKey, bytes] = {}
        self.deleted: set[str] = set()
        self._store = system.client.store()
        self._rng = random.Random(number)
        self._keys = [ObjectKey(f"bucket-{number}", f"{n:04}") for n in range(150)]

    def step(self) -> None:
        key = self._rng.choice(self._keys)
        if key in self.now and self._rng.random() < 0.3:
            self._store.delete(key)
            del self.now[key]
            self.deleted.add(str(key))
            return
        size = 3 * STRIPE if self._rng.random() < 0.02 else self._rng.randint(1, CHUNK)
        data = self._rng.randbytes(size)
        self._store.put(key, BytesIO(data))
        self.now[key] = data


def repeat(stop: threading.Event, step: Callable[[], object], failures: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            while not stop.is_set():
                step()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_dump_beside_work(bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, so that much happens between them."""
    monkeypatch.setattr(dumper, "PAGE_ROWS", 20)
    cli = Cli(bench, capfd)
    stop = threading.Event()
    failures: list[BaseException] = []
    with bench.open() as system, bench.open() as packing, ExitStack() as stack:
        works = [Work(system, number) for number in range(THREADS)]
        for work in works:
            for _ in range(150):
                work.step()
        bench.produce(packing)
        bench.consume(packing)

        def pack() -> None:
            bench.produce(packing)
            bench.consume(packing)
            stop.wait(0.05)

        threads = [repeat(stop, work.step, failures) for work in works]
        threads.append(repeat(stop, pack, failures))
        stack.callback(stop.set)
        for _ in range(3):
            bench.run("gc", "run", "--apply")
            cli("metadata", "dump")
        stop.wait(1)
        stop.set()
        for thread in threads:
            thread.join(WAIT_S_MAX)
        assert failures == []
        bench.pack(system)  # lone PUTs bypass the landing log, and copies in the landing store tell nothing
        bench.put_some(system, 50, prefix="late")
        end_log(system)
    bench.end_leases()
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli)
    alive = bench.acknowledged | {key: data for work in works for key, data in work.now.items()}
    names = {str(key) for key in alive}
    deleted = {name for work in works for name in work.deleted}
    with bench.open() as system:
        found = check(system, read_share=1.0)
        assert {finding.evidence.get("landing") for finding in found} <= to_look_at["copy"]
        for key, data in alive.items():
            assert system.client.store().get(key) == data, str(key)
        assert there(system) - names <= deleted
        assert to_look_at["gone"] <= deleted
        assert not to_look_at["gone"] & names
