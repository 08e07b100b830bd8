"""Random histories of two processes around a dump; then the database is lost and rebuilt.

Every version that was acknowledged exists, unless it was deleted or overwritten, and no trace of a refused PUT exists.
What a rebuild cannot know (docs/adr/0024) is allowed: without a journal, objects that were deleted since the dump may
be back, and PUTs that a killed process had under way may have taken effect.

NOS_EC_DEV_REBUILD_SEED repeats the choices of a run, NOS_EC_DEV_REBUILD_ROUNDS sets how many histories there are.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.conditions import ABSENT, PRESENT, Condition
from nos_ec.core.errors import NoSuchUpload, NotFound, PreconditionFailed, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from tests.rig.at_rest import LaterClock
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, TTL_OVER_MS, Bench
from tests.service.dump.refused_put import KEY, meanwhile, put_first
from tests.service.dump.test_rebuild import lose_database, rebuild

pytestmark = pytest.mark.invariant(7)

SEED = int(os.environ.get("NOS_EC_DEV_REBUILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
ROUNDS = int(os.environ.get("NOS_EC_DEV_REBUILD_ROUNDS", "3"))
STEPS = 30
"""The number of steps of a history, with a dump somewhere before or among them."""
SIZES = [0, 0, 1, 500, CHUNK, 3 * CHUNK, 5 * STRIPE + 9]
KILL_POINTS = ["put.refused", "put.voided", "large.refused", "large.voided"]
KEYS = [ObjectKey("b", name) for name in ("x", "y", "z")]
VERSIONED = ObjectKey("v", "x")
FIRST = ObjectKey("others", "first")


class History:
    """The operations of two processes on a few keys, and their answers."""

    def __init__(self, bench: Bench, cli: Cli, rng: random.Random) -> None:
        self.bench = bench
        self.has_journal = rng.random() < 0.5
        if self.has_journal:
            config = bench.config.read_text()
            bench.config.write_text(config.replace("[store]\n", "[store]\njournal_rows_max = 1000\n"))
        self.cli = cli
        self.rng = rng
        self.current: dict[ObjectKey, bytes | None] = dict.fromkeys([*KEYS, KEY, VERSIONED])
        self.versions: set[bytes] = set()
        """The bytes of all versions of VERSIONED."""
        self.unknown: dict[ObjectKey, set[bytes]] = {key: set() for key in self.current}
        """Bytes that PUTs without an answer may have stored since the last acknowledged one."""
        self.stored: dict[ObjectKey, set[bytes]] = {key: set() for key in self.current}
        """All acknowledged bytes: one of them may be back after a DELETE."""
        self.refused: set[bytes] = set()
        self.dumps = 0
        self._count = 0

    def data(self) -> bytes:
        """Return bytes that no other PUT has, unless they are empty."""
        self._count += 1
        size = self.rng.choice(SIZES)
        head = b"%06d" % self._count
        return (head + self.rng.randbytes(max(0, size - len(head))))[: max(size, len(head))] if size else b""

    def run(self, steps: int) -> None:
        dump_at = self.rng.randrange(steps)
        with self.bench.open() as system, self.bench.open() as other:
            put_first(system)
            put_first(other)
            for step in range(steps):
                if step == dump_at:
                    self.cli("metadata", "dump", "--to", str(self.bench.folder / "dump"))
                    self.dumps += 1
                one, two = self.rng.sample([system, other], 2)
                self.rng.choice(
                    [self.put, self.put, self.race, self.race, self.delete, self.upload, self.put_version, self.work]
                )(one, two)
        self.kill()

    # --- steps ----------------------------------------------------------------------------------------
    def put(self, one: System, two: System) -> None:
        """A PUT, possibly with a condition, which may or may not hold."""
        key = self.rng.choice(KEYS)
        condition = self.rng.choice([None, ABSENT, PRESENT, Condition(bytes(16))])
        self._try(one, key, self.data(), condition)

    def race(self, one: System, two: System) -> None:
        """Two PUTs, of which one is recorded after the other was judged."""
        key = self.rng.choice(KEYS)
        theirs = self.data()
        condition = ABSENT if self.current[key] is None else PRESENT

        def change() -> None:
            if condition is PRESENT:
                two.client.store().delete(key)
                self._deleted(key)
            else:
                two.client.store().put(key, BytesIO(theirs), condition=ABSENT)
                self._stored(key, theirs)

        with meanwhile(one, change):
            self._try(one, key, self.data(), condition)

    def delete(self, one: System, two: System) -> None:
        key = self.rng.choice(KEYS)
        try:
            one.client.store().delete(key)
        except NotFound:
            assert self.current[key] is None
        else:
            self._deleted(key)

    def upload(self, one: System, two: System) -> None:
        """One part is stored twice, and the other one late, while the upload is completed."""
        key, condition = self.rng.choice(KEYS), self.rng.choice([None, ABSENT])
        uploads, others = one.client.uploads(), two.client.uploads()
        upload = uploads.create(key, "ann", b"")
        parts = [self.data() or b"part", self.data() or b"part"]
        uploads.put_part(upload, 1, BytesIO(b"not this one"), b"")
        uploads.put_part(upload, 1, BytesIO(parts[0]), b"")
        uploads.put_part(upload, 2, BytesIO(parts[1]), b"")
        if condition is ABSENT and self.current[key] is not None:
            with pytest.raises(PreconditionFailed):
                uploads.complete(upload, lambda stored: (stored, {}), condition)
            return
        late = self.data() or b"late"
        complete = lambda: others.complete(upload, lambda stored: (stored, {}), condition)  # noqa: E731
        with meanwhile(one, complete), pytest.raises(NoSuchUpload):
            uploads.put_part(upload, 2, BytesIO(late), b"")
        self._stored(key, b"".join(parts))
        self.refused.add(late)

    def put_version(self, one: System, two: System) -> None:
        data = self.data() or b"version %d" % self._count
        one.client.store().put(VERSIONED, BytesIO(data), b"", None, Versioning.ENABLED)
        self._stored(VERSIONED, data)
        self.versions.add(data)

    def work(self, one: System, two: System) -> None:
        """Consumers pack and reap, or GC runs."""
        work: list[Callable[[], object]] = [
            lambda: self.bench.pack(one),
            lambda: one.worker.housekeeping().run_once(),
            lambda: self.bench.run("gc", "run", "--apply"),
        ]
        self.rng.choice(work)()

    def kill(self) -> None:
        """A process dies while it refuses a PUT. It may have recovered or not when the database is lost."""
        point = self.rng.choice(KILL_POINTS)
        size = 5 * STRIPE if point.startswith("large") else 700
        program = str(Path(__file__).with_name("refused_put.py"))
        done = self.bench.run_python(program, str(self.bench.config), str(size), kill_at=point)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
        self._stored(KEY, b"a" * size)
        if point.endswith("voided") or self.rng.random() < 0.5:
            with self.bench.open() as system:
                system.clock = LaterClock(TTL_OVER_MS)
                self.bench.settle(system)
            self.refused.add(b"r" * size)
        else:
            self.unknown[KEY].add(b"r" * size)  # in doubt

    # --- answers --------------------------------------------------------------------------------------
    def _try(self, system: System, key: ObjectKey, data: bytes, condition: Condition | None) -> None:
        try:
            system.client.store().put(key, BytesIO(data), condition=condition)
        except (PreconditionFailed, NotFound):
            self.refused.add(data)
        except Transient:
            self.unknown[key].add(data)
        else:
            self._stored(key, data)

    def _stored(self, key: ObjectKey, data: bytes) -> None:
        self.current[key], self.unknown[key] = data, set()
        self.stored[key].add(data)

    def _deleted(self, key: ObjectKey) -> None:
        self.current[key] = None

    # --- afterwards -----------------------------------------------------------------------------------
    def check(self) -> None:
        self.cli("metadata", "ship-journal")
        lose_database(self.bench)
        rebuild(self.bench, self.cli, "--from", str(self.bench.folder / "dump"))
        refused = self.refused - {b""}
        with self.bench.open() as system:
            store = system.client.store()
            for key, expected in self.current.items():
                found = self._read(system, key)
                deleted = {None} if self.has_journal else {None, *self.stored[key]}
                allowed = deleted if expected is None else {expected}
                assert found in allowed | self.unknown[key], f"{key}: {found and found[:6]!r}"
                assert found not in refused, f"{key}: refused"
            page = store.list_versions("v", "", "", ("", None), 1000, 10_000)
            rows = [entry.row for entry in page.entries if not isinstance(entry, str) and entry.row is not None]
            told = {b"".join(store.open_version(row)) for row in rows}
            assert self.versions <= told
            for row in system.metadata.trash_page(None, 1000).rows:
                assert b"".join(store.open_version(row)) not in refused, f"{row.key} in the trash: refused"

    def _read(self, system: System, key: ObjectKey) -> bytes | None:
        try:
            return system.client.store().get(key)
        except NotFound:
            return None


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("landing", ["log", pytest.param("store", marks=pytest.mark.landing("store"))])
def test_histories(bench: Bench, capfd: pytest.CaptureFixture[str], number: int, landing: str) -> None:
    print(f"NOS_EC_DEV_REBUILD_SEED={SEED}")
    history = History(bench, Cli(bench, capfd), random.Random(f"{SEED} {number} {landing}"))
    history.run(STEPS)
    assert history.dumps
    assert history.refused
    history.check()
