"""Transactions on the versions of one key, step by step, on a server that locks rows.

A locking read that waits for a row which another transaction removes does not see what that transaction has put in its
place, if this sorts before it. So nothing may follow from such a read having found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.objects import large_puts, make_noncurrent, object_rows, versions
from nos_ec.core.conditions import Condition
from nos_ec.core.errors import Transient
from nos_ec.core.versions import Versioning, as_null_version, as_version
from nos_ec.ports.metadata import AddMarker, DeleteVersion, ExpireMarker, Lease, NewLargeObject, VersionEntry
from tests.contract.suites.metadata_version_contract import ENABLED, KEY, SUSPENDED, mark, numbers, put, remove
from tests.rig.fakes.metadata_bench import GEOMETRY, MetadataBench, asking

WAITS_S = 0.3
"""Long enough for a statement to reach the locked row."""


class SqlVersionRaces:
    """Define a fixture `metadata`, an empty SqlMetadata on a server that locks rows."""

    @pytest.fixture
    def bench(self, metadata: SqlMetadata) -> MetadataBench:
        """The metadata store under test, with shorthands."""
        return MetadataBench(metadata)

    def test_a_delete_finds_what_became_current_while_it_waited(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        old, last = put(bench, ENABLED), put(bench, ENABLED)
        deleted = _while_open(metadata, [DeleteVersion(KEY, last.version)], partial(metadata.delete, KEY, bench.now_ms))
        assert deleted == old
        assert [one[:2] for one in numbers(metadata)] == [(last.version + 2, True), (old.version, False)]

    def test_a_condition_is_judged_on_what_became_current(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        old, last = put(bench, ENABLED), put(bench, ENABLED)
        lease, held = bench.lease(), Condition(old.md5)
        large = bench.large("k", lease, condition=held)
        large = asking(large, versioning=ENABLED, attributes=as_version(b""))
        stored = _while_open(
            metadata, [DeleteVersion(KEY, last.version)], partial(metadata.record_large, large, lease, bench.now_ms)
        )
        assert stored
        assert [one[0] for one in numbers(metadata)] == [large.version, old.version]
        bench.check_counters()

    def test_a_version_that_becomes_current_is_deleted_all_the_same(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        row = put(bench, ENABLED)
        marker = mark(bench)
        with ThreadPoolExecutor(1) as pool, metadata._engine.connect() as connection:
            versions.delete_all(connection, [DeleteVersion(KEY, marker.version)], 1, None, {})
            removing = pool.submit(remove, bench, row.version)
            assert wait([removing], WAITS_S).not_done, "it does not wait for the row"
            connection.commit()
        gone = removing.result()
        assert isinstance(gone, VersionEntry)
        assert gone.row == row
        assert numbers(metadata) == []

    def test_a_marker_is_newer_than_the_null_one_whose_place_it_takes(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """The clocks do not matter."""
        mark(bench, SUSPENDED)
        later = [AddMarker(KEY, SUSPENDED)]
        marker = _while_open(metadata, later, partial(mark, bench, SUSPENDED), bench.now_ms + 1000)
        assert marker.version > (bench.now_ms + 1000) * 1000
        assert numbers(metadata) == [(marker.version, True, True)]

    @pytest.mark.parametrize("what", ["small", "large", "marker"])
    def test_a_key_has_one_null_version(self, metadata: SqlMetadata, bench: MetadataBench, what: str) -> None:
        """Another one is added after the old ones were removed, by a host whose clock is behind."""
        lease = bench.lease()
        large = bench.large("k", lease)
        large = asking(large, versioning=SUSPENDED, attributes=as_null_version(b""))
        ways: dict[str, Callable[[], Any]] = {
            "small": partial(put, bench, SUSPENDED),
            "large": partial(metadata.record_large, large, lease, bench.now_ms),
            "marker": partial(mark, bench, SUSPENDED),
        }
        table = "versions" if what == "marker" else "objects"
        older = partial(metadata.delete_versions, [AddMarker(KEY, SUSPENDED)], bench.now_ms - 1000)
        with _before(metadata, f"INSERT INTO {table}", older):
            ways[what]()
        assert [one[1:] for one in numbers(metadata)] == [(what == "marker", True)]
        bench.check_counters()

    @pytest.mark.parametrize("first", [ENABLED, SUSPENDED])
    def test_two_large_versions_have_different_numbers(
        self, metadata: SqlMetadata, bench: MetadataBench, first: Versioning
    ) -> None:
        """They began with the same one, and the second one begins to look before the first one is there."""
        number = metadata.next_version(KEY, bench.now_ms)
        bench.now_ms += 1
        marker = mark(bench)

        def large(versioning: Versioning, attributes: bytes) -> tuple[NewLargeObject, Lease, int]:
            lease = bench.lease()
            new = bench.large("k", lease, version=number)
            return asking(new, versioning=versioning, attributes=attributes), lease, bench.now_ms

        both = [large(ENABLED, as_version(b"")), large(SUSPENDED, as_null_version(b""))]
        one, other = both if first is ENABLED else reversed(both)
        with ThreadPoolExecutor(1) as pool, metadata._engine.connect() as connection:
            assert large_puts.record_large(connection, GEOMETRY, *one) is True
            recording = pool.submit(metadata.record_large, *other)
            assert wait([recording], WAITS_S).not_done, "it does not wait for the marker"
            connection.commit()
        assert isinstance(recording.result(), Transient)
        assert sorted(entry[0] for entry in numbers(metadata)) == [number, marker.version]
        bench.check_counters()

    def test_a_marker_is_newer_than_one_that_is_added_at_the_same_time(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        made: list[Any] = []
        ahead = partial(metadata.delete_versions, [AddMarker(KEY, ENABLED)], bench.now_ms + 1000)
        with _before(metadata, "INSERT INTO versions", lambda: made.extend(ahead())):
            marker = mark(bench)
        assert marker.version > made[0].version
        assert [one[0] for one in numbers(metadata)] == [marker.version, made[0].version]

    def test_a_marker_is_not_alone_below_one_that_took_the_place_of_another(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        older = mark(bench)
        mark(bench, SUSPENDED)
        expire = partial(metadata.delete_versions, [ExpireMarker(KEY, older.version)], bench.now_ms)
        answers = _while_open(metadata, [AddMarker(KEY, SUSPENDED)], expire)
        assert answers == [None]
        assert [one[1:] for one in numbers(metadata)] == [(True, True), (True, False)]


def _while_open(
    metadata: SqlMetadata, steps: Sequence[DeleteVersion | AddMarker], call: Callable[[], Any], now_ms: int = 1
) -> Any:
    """Take the steps in one transaction, while the call waits for the rows that they are to change. Returns its
    result."""
    with ThreadPoolExecutor(1) as pool, metadata._engine.connect() as connection:
        object_rows.lock(connection, KEY)
        make_noncurrent.newest_versions(connection, [KEY])
        called = pool.submit(call)
        assert wait([called], WAITS_S).not_done, "it does not wait for the rows"
        versions.delete_all(connection, steps, now_ms, None, {})
        connection.commit()
        return called.result()


@contextmanager
def _before(metadata: SqlMetadata, statement: str, call: Callable[[], Any]) -> Iterator[None]:
    """Make the call once, just before the first statement that begins so."""
    left = [call]

    def step(_c: Any, _cursor: Any, text: str, *_: Any) -> None:
        if text.startswith(statement) and left:
            left.pop()()

    event.listen(metadata._engine, "before_cursor_execute", step)
    try:
        yield
    finally:
        event.remove(metadata._engine, "before_cursor_execute", step)
    assert not left, "there was no such statement"
