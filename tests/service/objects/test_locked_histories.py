"""Random histories of deletes, overwrites, expiry and changes of locks, with clocks that jump ahead: no locked version
is lost, and no lock gets weaker."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Conflict, Locked, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode
from nos_ec.core.versions import Versioning
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.metadata import AddMarker, DeleteVersion, ExpireVersion, ObjectRow, PutRequest, VersionEntry
from tests.service.conftest import CHUNK, STRIPE, Bench

pytestmark = [pytest.mark.every_time, pytest.mark.invariant(11)]

FAR_MS = 4_000_000_000_000
"""Long after the time of the database."""
KEYS = [ObjectKey("b", name) for name in "xyz"]
SIZES = [9, 500, 2 * CHUNK, 5 * STRIPE + 9]
STEPS = 120


def versions(system: System) -> Iterator[ObjectRow]:
    """All versions of KEYS, current ones first."""
    for key in KEYS:
        yield from system.metadata.rows_of([key]).values()
        for page in noncurrent_of(key, system.metadata):
            yield from page


class History:
    """Operations on KEYS. `locked` has the lock of each version that must exist, by its MD5, and `data` all bytes."""

    def __init__(self, system: System, rng: random.Random) -> None:
        self.system = system
        self.store = system.client.store()
        self.rng = rng
        self.locked: dict[bytes, Lock] = {}
        self.data: dict[bytes, bytes] = {}

    def step(self) -> str:
        """Do something. Returns its name."""
        operations = [self.put, self.put, self.delete, self.delete_many, self.delete_version, self.delete_version]
        operations += [self.mark, self.expire, self.delete_unchanged, self.empty_trash, self.undelete, self.jump]
        operations += [self.change, self.change, self.set_attributes]
        chosen = self.rng.choice(operations)
        with suppress(NotFound, Conflict):
            chosen()
        return chosen.__name__

    def key(self) -> ObjectKey:
        return self.rng.choice(KEYS)

    def any_version(self) -> ObjectRow:
        found = list(versions(self.system))
        if not found:
            raise NotFound
        return self.rng.choice(found)

    def any_lock(self) -> Lock:
        mode = self.rng.choice([None, *LockMode])
        return Lock(mode, 0 if mode is None else FAR_MS + self.rng.randrange(5), self.rng.random() < 0.3)

    def put(self) -> None:
        data = self.rng.randbytes(self.rng.choice(SIZES))
        lock = self.any_lock() if self.rng.random() < 0.4 else None
        versioning = self.rng.choice([None, *Versioning])
        row = self.store.put_request(PutRequest(self.key(), versioning=versioning, lock=lock), BytesIO(data))
        self.data[row.md5] = data
        if lock is not None and lock.protects(0):
            self.locked[row.md5] = lock

    def delete(self) -> None:
        self.store.delete(self.key(), permanently=self.rng.random() < 0.5)

    def delete_many(self) -> None:
        self.store.delete_many(KEYS, permanently=self.rng.random() < 0.5)

    def delete_version(self) -> None:
        row, bypass = self.any_version(), self.rng.random() < 0.5
        number = row.version if row.has_version_id else None
        (answer,) = self.store.delete_versions([DeleteVersion(row.key, number, bypass=bypass)])
        lock = self.locked.get(row.md5)
        if (
            isinstance(answer, VersionEntry)
            and answer.row is not None
            and answer.row.md5 == row.md5
            and lock is not None
        ):
            assert bypass
            assert lock.mode is LockMode.GOVERNANCE
            assert not lock.hold
            del self.locked[row.md5]

    def mark(self) -> None:
        self.store.delete_versions([AddMarker(self.key(), self.rng.choice(list(Versioning)))])

    def expire(self) -> None:
        found = [row for row in versions(self.system) if row.is_noncurrent]
        wanted = [ExpireVersion(row.key, row.version, row, FAR_MS) for row in found]
        self.system.metadata.delete_versions(wanted, FAR_MS, self.rng.choice([None, FAR_MS]))

    def delete_unchanged(self) -> None:
        self.system.metadata.delete_unchanged(list(self.system.metadata.rows_of(KEYS).values()), FAR_MS)

    def empty_trash(self) -> None:
        for page in self.system.client.trash().pages():
            self.system.client.trash().purge(page)

    def undelete(self) -> None:
        self.system.client.trash().undelete(self.system.client.trash().find(self.key()))

    def jump(self) -> None:
        seen_ms = self.system.metadata.lock_times().lock_ms
        self.system.metadata.advance_lock_time(seen_ms, seen_ms + FAR_MS)

    def change(self) -> None:
        row, lock, bypass = self.any_version(), self.any_lock(), self.rng.random() < 0.5
        self.system.client.locks().change(row, lock, bypass=bypass)
        old = self.locked.pop(row.md5, Lock())
        if old.mode is not None:
            is_extended = lock.mode is old.mode and lock.until_ms >= old.until_ms
            assert is_extended or (bypass and old.mode is LockMode.GOVERNANCE)
        if lock.protects(0):
            self.locked[row.md5] = lock

    def set_attributes(self) -> None:
        self.store.set_attributes(self.key(), b"")

    def check(self) -> None:
        """Every locked version exists with its lock."""
        found = {row.md5: row for row in versions(self.system)}
        for md5, lock in self.locked.items():
            row = found[md5]
            assert row.lock is not None
            assert (row.lock.mode, row.lock.until_ms, row.lock.hold) == (lock.mode, lock.until_ms, lock.hold)


@pytest.mark.parametrize("trash_days", [0, 1])
def test_no_locked_version_is_lost(bench: Bench, trash_days: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    with bench.config.open("a") as config:
        config.write(f"\n[trash]\nkeep_days = {trash_days}\n")
    with bench.open() as system:
        history = History(system, random.Random(seed))
        for _ in range(STEPS):
            name = history.step()
            try:
                history.check()
            except (AssertionError, KeyError) as error:
                raise AssertionError(f"after {name}, seed {seed}") from error
        assert history.locked
        bench.pack(system)
        for row in versions(system):
            if row.md5 in history.locked:
                assert b"".join(history.store.open_version(row)) == history.data[row.md5]
                assert hashlib.md5(history.data[row.md5]).digest() == row.md5
        refused = [row for row in versions(system) if row.md5 in history.locked]
        for row in refused:
            with suppress(Locked, NotFound):  # an earlier one may have deleted the current version, which has no lock
                history.store.delete(row.key, permanently=True)
        history.check()
