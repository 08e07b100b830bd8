"""The database is lost: locked versions are there again, with the locks that they had last."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.errors import Locked, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import UNTIL_MS_MAX, Lock, LockMode
from nos_ec.core.locking.lock_note import note_buckets, note_key
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import Versioning
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.engine.objects import object_locks
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
        after = {key: locks_of(system, key) for key in before}
        if dumped != "between" and not packed and after[KEY][rows[1].md5] == GOVERNANCE:
            # No dump has the row. If its version has another number now, the lock of the PUT stays.
            before[KEY][rows[1].md5] = GOVERNANCE
        assert after == before
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


def test_an_unjudged_change_weakens_no_lock(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database dies after the note has landed. A change that may not be made lands no note."""
    with bench.open() as system:
        row = put(system, KEY, bench.data(900), COMPLIANCE)
        with pytest.raises(Locked):
            system.client.locks().change(row, Lock(), bypass=True)
        with monkeypatch.context() as patch:
            patch.setattr(Lock, "may_become", lambda *_, **__: True)  # as the clocks of another gateway might allow
            patch.setattr(type(system.metadata), "record_puts", _dead)
            with pytest.raises(Transient):
                system.client.locks().change(row, Lock(), bypass=True)
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        assert locks_of(system, KEY) == {row.md5: COMPLIANCE}


def test_a_note_that_cannot_be_read_is_listed(bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench.open() as system:
        row = put(system, KEY, bench.data(900), COMPLIANCE)
        other = put(system, LARGE, bench.data(901), GOVERNANCE)
        bench.pack(system)
        with monkeypatch.context() as patch:
            patch.setattr(object_locks, "encode_note", lambda *_: b"{damaged")
            change(system, row, replace(COMPLIANCE, hold=True))
        change(system, other, Lock(hold=True))
        bench.pack(system)
    lose_database(bench)
    rebuilt, found = rebuild(bench, cli, "--without-dump")
    assert found["lock"] == {str(note_key(KEY, row.version))}
    assert rebuilt["to_look_at"]["lock"] == 1
    with bench.open() as system:
        assert locks_of(system, KEY) == {row.md5: COMPLIANCE}
        assert locks_of(system, LARGE) == {other.md5: Lock(hold=True)}


def test_a_note_with_the_longest_names_and_lock_is_kept(bench: Bench, cli: Cli) -> None:
    """Names in JSON take six times their length at most."""
    key = ObjectKey("b" * 63, "\x01" * 1024)
    with bench.open() as system:
        row = put(system, key, bench.data(900), GOVERNANCE)
        change(system, row, Lock(LockMode.GOVERNANCE, UNTIL_MS_MAX, hold=True))
        assert system.metadata.get(note_key(key, row.version)).size > 6 * 1024
        bench.pack(system)
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        assert locks_of(system, key) == {row.md5: Lock(LockMode.GOVERNANCE, UNTIL_MS_MAX, hold=True)}


def test_the_last_change_counts_although_the_clock_was_set_back(
    bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second note has an earlier time than the first one."""
    with bench.open() as system:
        row = put(system, KEY, bench.data(900), GOVERNANCE)
        change(system, row, Lock(hold=True))
        real = system.clock.now_ms
        with monkeypatch.context() as patch:
            patch.setattr(type(system.clock), "now_ms", lambda _: real() - 3_600_000)
            change(system, row, replace(GOVERNANCE, until_ms=FAR_MS + 7))
        before = locks_of(system, KEY)
        assert before == {row.md5: replace(GOVERNANCE, until_ms=FAR_MS + 7)}
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        assert locks_of(system, KEY) == before


def _dead(*_: object, **__: object) -> None:
    raise Transient("the database does not answer")


def test_the_note_of_another_version_with_the_same_bytes_weakens_no_lock(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        first = put(system, KEY, b"x" * 900, GOVERNANCE)
        change(system, first, Lock())
        system.client.store().delete_versions([DeleteVersion(KEY, first.version)])
        second = put(system, KEY, b"x" * 900, COMPLIANCE)
        assert locks_of(system, KEY) == {second.md5: COMPLIANCE}
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        assert COMPLIANCE in [row.lock and replace(row.lock, note=0) for row in versions_of(system, KEY)]


def test_a_locked_copy_is_no_double_of_a_packed_version_without_a_lock(bench: Bench, cli: Cli) -> None:
    """They have the same bytes, and were put within a minute."""
    with bench.open() as system:
        store = system.client.store()
        options = store._options
        store._options = replace(options, min_age_ms=10**8)
        for lock in (COMPLIANCE, None):
            request = PutRequest(KEY, versioning=Versioning.ENABLED, lock=lock)
            store.put_request(request, BytesIO(b"x" * 900))
            store._options = options
        bench.pack(system)
        assert {row.state for row in versions_of(system, KEY)} == {ObjectState.LANDED, ObjectState.PACKED}
    lose_database(bench)
    rebuild(bench, cli, "--without-dump")
    with bench.open() as system:
        assert [row.lock for row in versions_of(system, KEY) if row.lock is not None] == [COMPLIANCE]
