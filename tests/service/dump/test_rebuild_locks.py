"""The database is lost: locked versions are there again, with the locks that they had last."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Locked
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode
from nos_ec.core.locking.lock_note import note_buckets, note_key
from nos_ec.core.versions import Versioning
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.metadata import DeleteVersion, ObjectRow, PutRequest
from tests.service.cli.test_cli import Cli
from tests.service.conftest import STRIPE, Bench
from tests.service.dump.test_rebuild import lose_database, rebuild

pytestmark = [pytest.mark.invariant(7), pytest.mark.invariant(11)]

FAR_MS = 4_000_000_000_000
COMPLIANCE, GOVERNANCE = Lock(LockMode.COMPLIANCE, FAR_MS), Lock(LockMode.GOVERNANCE, FAR_MS)
KEY, LARGE, NULL = ObjectKey("v", "small"), ObjectKey("v", "large"), ObjectKey("v", "null")


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def put(system: System, key: ObjectKey, data: bytes, lock: Lock | None, *, null: bool = False) -> ObjectRow:
    """Store a version."""
    versioning = None if null else Versioning.ENABLED
    return system.client.store().put_request(PutRequest(key, versioning=versioning, lock=lock), BytesIO(data))


def change(system: System, row: ObjectRow, lock: Lock) -> None:
    """Change the lock of a version."""
    now = system.metadata.same_version(row)
    assert now is not None
    system.client.locks().change(now, lock, bypass=True)


def versions_of(system: System, key: ObjectKey) -> list[ObjectRow]:
    """All versions of a key."""
    rows = [*system.metadata.rows_of([key]).values()]
    return rows + [row for page in noncurrent_of(key, system.metadata) for row in page]


def locks_of(system: System, key: ObjectKey) -> dict[bytes, Lock | None]:
    """The locks of all versions of a key, by MD5."""
    return {row.md5: None if row.lock is None else replace(row.lock, note=0) for row in versions_of(system, key)}


@pytest.mark.parametrize("packed", [False, True], ids=["landed", "packed"])
@pytest.mark.parametrize("dumped", ["never", "before", "between"])
def test_locks_are_as_they_were_last(bench: Bench, cli: Cli, packed: bool, dumped: str) -> None:
    dump = bench.folder / "dump"
    with bench.open() as system:
        if dumped == "before":
            cli("metadata", "dump", "--to", str(dump))
        first = bench.data(900)
        rows = [put(system, KEY, first, COMPLIANCE)]
        rows += [put(system, KEY, bench.data(900 + n), lock) for n, lock in enumerate([GOVERNANCE, None])]
        rows += [put(system, LARGE, bench.data(5 * STRIPE + n), lock) for n, lock in enumerate([COMPLIANCE, None])]
        rows += [put(system, NULL, b"null", Lock(hold=True), null=True), put(system, NULL, b"newer", None)]
        if packed:
            bench.pack(system)
        if dumped == "between":
            cli("metadata", "dump", "--to", str(dump))
        change(system, rows[0], replace(COMPLIANCE, until_ms=FAR_MS + 5))
        change(system, rows[1], Lock(hold=True))
        change(system, rows[1], Lock())
        change(system, rows[2], GOVERNANCE)
        change(system, rows[4], Lock(hold=True))
        before = {key: locks_of(system, key) for key in (KEY, LARGE, NULL)}
        assert sum(len(found) for found in before.values()) == len(rows)
        if packed:
            bench.pack(system)
    lose_database(bench)
    rebuild(bench, cli, *(["--from", str(dump)] if dumped != "never" else ["--without-dump"]))
    with bench.open() as system:
        assert {key: locks_of(system, key) for key in before} == before
        for row in [row for key in before for row in versions_of(system, key)]:
            is_locked = row.lock is not None and row.lock.protects(FAR_MS - 1)
            (answer,) = system.client.store().delete_versions(
                [DeleteVersion(row.key, row.version if row.has_version_id else None)]
            )
            assert isinstance(answer, Locked) is is_locked
        (kept,) = [row for row in versions_of(system, KEY) if row.md5 == rows[0].md5]
        assert b"".join(system.client.store().open_version(kept)) == first


def test_the_note_goes_with_its_version(bench: Bench) -> None:
    with bench.open() as system:
        store = system.client.store()
        row = put(system, KEY, b"x", GOVERNANCE)
        change(system, row, Lock(hold=True))
        assert system.metadata.get(note_key(KEY, row.version))
        change(system, row, Lock())
        store.delete_versions([DeleteVersion(KEY, row.version)])
        assert not any(store.list_names(bucket, "", "", 1) for bucket in note_buckets())
        assert not [bucket for bucket in store.list_buckets("", 10) if bucket.startswith(".nos_ec.locks")]
