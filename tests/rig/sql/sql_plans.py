"""Every hot query of the SQL metadata store uses an index; a commit takes as many statements for 2000 objects as for 1.

The statements are captured as they run, and explained with the same parameters, so that the check sees what is
executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.objects.outbox import topics_over_share
from nos_ec.adapters.sql.tables.rows import noncurrent_mark
from nos_ec.adapters.sql.tables.schema import OBJECTS as OBJECT_ROWS
from nos_ec.adapters.sql.tables.schema import VERSIONS as VERSION_ROWS
from nos_ec.core.expiry import NEWER_MAX
from nos_ec.core.formats.messages import NamedVersion
from nos_ec.core.gc.share import Share
from nos_ec.core.ids import ObjectKey, record_ids_between
from nos_ec.core.packing.lifetimes import Counts
from nos_ec.core.parts import UploadId
from nos_ec.core.publishing.slots import ALL_SLOTS, bucket_slot
from nos_ec.core.states import BlockState, ObjectState
from nos_ec.core.versions import FLOOR_MS, VERSION_MAX, Versioning, as_version
from nos_ec.ports.metadata import (
    ROOT_ACCOUNT,
    AddMarker,
    DeleteVersion,
    ExpireMarker,
    ExpireVersion,
    LandedMove,
    Metadata,
    MoveRow,
    MoveState,
    NewObject,
    ObjectRow,
    OutboxOptions,
    TrashMark,
    UploadRow,
    UploadState,
)
from tests.contract.suites.metadata_outbox_contract import watch
from tests.contract.suites.metadata_segment_contract import SegmentBench, copy_of
from tests.contract.suites.metadata_tail_contract import tail_of
from tests.rig.fakes.metadata_bench import MetadataBench, asking, pack_request

HOT_TABLES = {
    "versions",
    "version_floors",
    "objects",
    "waiting",
    "segments",
    "blocks",
    "landing_deletions",
    "outbox",
    "bucket_usage",
    "usage_changes",
    "journal",
    "changed_names",
}
OBJECTS = 3000
NONCURRENT = 10_000
BLOCKS = 60
LARGE = 150
ELSEWHERE = "elsewhere"
"""A bucket of another slot: while all rows wait in one slot, a range of that slot is the whole table."""

Statement = tuple[str, Any]


@contextmanager
def caught(metadata: SqlMetadata) -> Iterator[list[Statement]]:
    """Capture the statements that run inside the `with`, with their parameters. BEGIN is not among them.

    `get` on a server has none, because it bypasses SQLAlchemy; sql_look_ups.py tests it.
    """
    statements: list[Statement] = []

    def catch(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if not statement.startswith("BEGIN"):
            several = many and isinstance(parameters, list)  # not where one INSERT takes the parameters of all rows
            statements.append((statement, parameters[0] if several else parameters))

    engines = metadata._transactions.engines
    for engine in engines:
        event.listen(engine, "before_cursor_execute", catch)
    try:
        yield statements
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", catch)


def scans(connection: Connection, statement: str, parameters: Any) -> list[str]:
    """The lines of the plan that read a whole hot table, or a whole index of it."""
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN FORMAT=TRADITIONAL "
    rows = connection.exec_driver_sql(explain + statement, parameters).mappings().all()
    if connection.dialect.name == "sqlite":
        return [
            row["detail"]
            for row in rows
            if (row["detail"].split()[0] == "SCAN" and row["detail"].split()[1] in HOT_TABLES)
            or row["detail"].endswith("(trashed=?)")  # all current versions
        ]
    # An INSERT has a line for the table that it inserts into; the type in that line means nothing.
    read = [row for row in rows if row["select_type"] != "INSERT" and row["table"] in HOT_TABLES]
    return [str(dict(row)) for row in read if row["type"] in ("ALL", "index", None)]


def covered(connection: Connection, statement: str, parameters: Any) -> bool:
    """Return whether the statement reads only an index, and not the rows of the table."""
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN FORMAT=TRADITIONAL "
    (row,) = connection.exec_driver_sql(explain + statement, parameters).mappings().all()
    if connection.dialect.name == "sqlite":
        return "USING COVERING INDEX" in row["detail"]
    return row["key"] == "objects_by_trash_key" and "Using index" in row["Extra"].split("; ")


def _add_noncurrent(metadata: SqlMetadata, key: ObjectKey, count: int) -> None:
    """Noncurrent versions 1 to `count` of a key, empty ones."""
    first, named = 10**9, {"bucket": key.bucket, "name": key.name}
    made = {"size": 0, "crc32c": 0, "md5": bytes(16), "state": ObjectState.EMPTY, "created_ms": 1}
    rows = [
        {**named, **made, "object_id": one, "version": one - first, "trashed": noncurrent_mark(one)}
        for one in range(first + 1, first + count + 1)
    ]
    ranks = [
        {**named, "age_rank": VERSION_MAX - one, "object_id": first + one, "is_null": 0} for one in range(1, count + 1)
    ]

    def write(connection: Connection) -> None:
        for begin in range(0, count, 1000):
            some = slice(begin, begin + 1000)
            connection.execute(insert(OBJECT_ROWS), [{**row, "attributes": as_version(b"")} for row in rows[some]])
            connection.execute(insert(VERSION_ROWS), [{**rank, "created_ms": 1} for rank in ranks[some]])

    metadata._transactions.write(write)


def _version(bench: MetadataBench, name: str) -> NewObject:
    """Return a PUT in a bucket with versions."""
    return asking(bench.new(name), versioning=Versioning.ENABLED, attributes=as_version(b""))


def _add_floors(metadata: SqlMetadata, count: int) -> None:
    metadata.restore_floors([(ObjectKey("bucket", f"m{number:05}"), number) for number in range(1, count + 1)])


class SqlPlans:
    """Define a fixture `metadata`, an empty SqlMetadata."""

    @pytest.fixture
    def bench(self, metadata: SqlMetadata) -> MetadataBench:
        """The metadata store under test, with shorthands."""
        return MetadataBench(metadata)

    def server(self, metadata: SqlMetadata) -> Engine:
        """The engine of the server that explains statements and counts what they read. Vitess cannot."""
        return metadata._engine

    def test_no_hot_query_scans_a_table(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        populate(bench)
        engine = self.server(metadata)
        _analyze(engine)
        for name, call in hot_calls(bench).items():
            with caught(metadata) as statements:
                call()
            assert statements, name
            with engine.connect() as connection:
                found = [
                    line
                    for one in statements
                    if not one[0].startswith("INSERT INTO objects")
                    for line in scans(connection, *one)
                ]
            assert found == [], f"{name}: {found} {statements}"

    def test_usage_is_kept_by_its_indexes(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """A PUT of a metered bucket adds one statement, and one that is not metered none, but for its look-up."""
        metadata.count_usage()
        for n in range(300):
            metadata.meter_bucket(f"other-{n:03}", bench.now_ms)
            bench.put("k", 10, bucket=f"other-{n:03}")
        metadata.meter_bucket("bucket", bench.now_ms)
        bench.put_all([f"n{i:05}" for i in range(OBJECTS)], 100)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            metadata.bucket_usage("bucket")
            metadata.current_sizes("bucket", "n00100", 10)
            metadata.noncurrent_sizes("bucket", ("n00100", 7), 10)
            assert metadata.fold_usage(10) == 10
        asked = [one for one in statements if "usage" in one[0] or "walk" in one[0]]
        assert len(asked) == 1 + 2 + 3
        with self.server(metadata).connect() as connection:
            for statement, parameters in asked:
                if statement.startswith("SELECT usage_changes.change_id"):
                    continue  # its first rows, by the primary key
                assert scans(connection, statement, parameters) == [], statement
        counts = []
        for bucket in ("unmetered", "bucket"):
            bench.put("warm", bucket=bucket)  # looks whether the bucket is metered
            with caught(metadata) as statements:
                bench.put("new", bucket=bucket)
            counts.append(len(statements))
            assert sum("usage_changes" in one for one, _ in statements) == (bucket == "bucket")
            assert not any("bucket_usage" in one for one, _ in statements)
        assert counts[1] == counts[0] + 1

    def test_the_journal_is_read_by_its_key(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """A DELETE adds a row, a bulk DELETE one for many objects, and a PUT none."""
        metadata.keep_journal(OBJECTS)
        rows = bench.put_all([f"n{i:05}" for i in range(OBJECTS)], 100)
        for row in rows[: OBJECTS // 2]:
            metadata.delete(row.key, bench.now_ms)
        _analyze(self.server(metadata))
        (after, _) = metadata.journal_after(0, OBJECTS)[OBJECTS // 4]
        with caught(metadata) as statements:
            metadata.delete(rows[-1].key, bench.now_ms)
            metadata.delete_many([row.key for row in rows[-101:-1]], bench.now_ms)
            bench.put("another")
        assert len(metadata.journal_after(0, OBJECTS)) == OBJECTS // 2 + 2
        looks = ("SELECT min(journal", "SELECT max(journal")
        assert all(one.startswith(looks) for one, _ in statements if "journal" in one), "it looks every 10 s"
        metadata.keep_journal(OBJECTS)  # looks again
        with caught(metadata) as statements:
            metadata.delete(metadata.get(ObjectKey("bucket", "another")).key, bench.now_ms)
            ids = [number for number, _ in metadata.journal_after(after, 100)]
            metadata.oldest_journal_ms()
            metadata.forget_journal(metadata.journal_number(), ids)
        asked = [one for one in statements if "FROM journal" in one[0]]
        assert len(asked) == 2 + 3
        with self.server(metadata).connect() as connection:
            for one in asked:
                assert [line for line in scans(connection, *one) if "LIMIT" not in one[0]] == []

    def test_old_uploads_are_read_by_their_index(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """The number of buckets that were moved does not matter."""
        for number in range(OBJECTS):
            key = ObjectKey(f"bucket {number % 100}", "k")
            upload_id = UploadId(number.to_bytes(16, "big"))
            metadata.create_upload(UploadRow(upload_id, key, UploadState.OPEN, number))
        for number in range(0, 100, 2):
            metadata.set_move(MoveRow(f"bucket {number}", MoveState.GONE, "b", 1, 7, 5), None)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            assert len(metadata.old_uploads(OBJECTS // 2, 9)) == 9
        (asked,) = (one for one in statements if "uploads" in one[0])
        with self.server(metadata).connect() as connection:
            assert scans(connection, *asked) == []

    def test_changed_names_are_read_by_their_index(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """A PUT, or a batch of them, adds one statement while its bucket is being moved, and no other one adds any."""
        metadata.obey_moves(lambda _: None)
        leaving = MoveRow("bucket", MoveState.LEAVING, "b", 1, 7, 5)
        counts = []
        for number in range(3):
            if number == 1:  # another bucket is moved
                metadata.set_move(replace(leaving, bucket="other"), None)
            elif number == 2:
                metadata.set_move(leaving, None)
            bench.put("k")  # reads the state
            with caught(metadata) as statements:
                bench.put("k")
            counts.append(len(statements))
        assert counts == [counts[0], counts[0], counts[0] + 1]
        for first in range(0, OBJECTS, 100):
            bench.put_all([f"n{number:05}" for number in range(first, first + 100)], 100)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            last = metadata.last_change("bucket")
            read = metadata.changed_names("bucket", last, 100)
            metadata.forget_changes(leaving, read)
        assert len(read) == 100
        asked = [one for one in statements if "changed_names" in one[0]]
        assert len(asked) == 3
        self._require_few_rows(metadata, asked)

    def _require_few_rows(self, metadata: SqlMetadata, asked: list[Statement]) -> None:
        """Assert that each of these statements reads few rows more than it finds."""
        with self.server(metadata).connect() as connection:
            for one in asked:
                if connection.dialect.name == "sqlite" or not one[0].startswith("SELECT"):
                    assert scans(connection, *one) == []
                    continue
                # MySQL says that it reads the whole index, although it stops after as many entries as are asked for.
                before = _rows_read(connection)
                found = len(connection.exec_driver_sql(*one).all())
                assert _rows_read(connection) - before <= 10 * (found + 1), one

    def test_the_outbox_is_read_by_its_index(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """The outbox of other buckets is, too. A bucket without notifications adds no statement but its look-up."""
        watch(bench, events_max=10**6)
        bench.put_all([f"n{i:05}" for i in range(OBJECTS)], 100)
        _analyze(self.server(metadata))
        (queue,) = metadata.outbox_queues(ALL_SLOTS)
        sent = [one.event_id for one in metadata.outbox_events(*queue, 100)]
        metadata.send_events(OutboxOptions(10**6, "here"))
        with caught(metadata) as statements:
            metadata._read(topics_over_share, 8)
            metadata.require_event_room(["bucket"])
            metadata.outbox_queues(ALL_SLOTS)
            metadata.outbox_events(*queue, 100)
            metadata.oldest_event_ms()
            metadata.forget_events(sent)
        asked = [one for one in statements if "outbox" in one[0] or "bucket_documents" in one[0]]
        assert len(asked) == 3 + 3 + 3 + 1 + 1 + 1, "servers add the look whether they may be trusted"
        self._require_few_rows(metadata, asked)
        metadata.require_event_room(["other"])
        with caught(metadata) as watched:
            bench.record([bench.new("k", bucket="other")])
        metadata._events = None
        with caught(metadata) as plain:
            bench.record([bench.new("l", bucket="other")])
        assert [one for one, _ in watched] == [one for one, _ in plain]

    def test_pages_of_all_blocks_are_not_sorted(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """In a large store each page would sort what is left of the table."""
        populate(bench)
        server = self.server(metadata)
        for analyzed in (False, True):
            if analyzed:
                _analyze(server)
            _require_not_sorted(metadata, server, lambda: metadata.blocks_with_holes(None, bench.now_ms, 1000, 10))
            _require_not_sorted(metadata, server, lambda: metadata.list_block_figures(None, 10))

    def test_due_objects_of_one_slot_cost_no_more_when_all_wait_there(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """MySQL then says that it reads the whole index, although it stops after as many entries as are asked for."""
        bench.put_all([f"n{i:05}" for i in range(OBJECTS)], 100)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            assert len(metadata.due_objects(bench.now_ms, 100, ALL_SLOTS)) == 100
        asked = [one for one in statements if "FROM waiting" in one[0]]
        assert len(asked) == 2, "first a share of the batch from each slot, then the rest from the one that has more"
        with self.server(metadata).connect() as connection:
            for one in asked:
                if connection.dialect.name == "sqlite":
                    assert scans(connection, *one) == []
                    continue
                before = _rows_read(connection)
                found = len(connection.exec_driver_sql(*one).all())
                # Entries, temporary tables and objects: a walk past the batch would read all 3000.
                assert _rows_read(connection) - before <= 10 * (found + len(ALL_SLOTS))

    def test_the_sums_of_the_backlog_read_the_backlog_alone(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        populate(bench)
        waiting = metadata.due_objects(2**60, OBJECTS, ALL_SLOTS)
        metadata.delete_many([row.key for row in waiting[50:]], bench.now_ms)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            assert metadata.totals().landed_objects == 50
        of_objects = [one for one in statements if "objects" in one[0].partition("FROM ")[2]]
        assert len(of_objects) == 2, "the trash and the tails, by their index"
        with self.server(metadata).connect() as connection:
            for one in of_objects:
                assert scans(connection, *one) == []
                if connection.dialect.name != "sqlite":
                    before = _rows_read(connection)
                    connection.exec_driver_sql(*one).all()
                    assert _rows_read(connection) - before <= 10
        assert sum("FROM waiting" in one[0] for one in statements) == 1

    @pytest.mark.parametrize(
        ("figure", "index"),
        [("oldest_landing_id", "PRIMARY KEY"), ("first_deletion_ms", "COVERING INDEX landing_deletions_by_time")],
    )
    def test_what_waits_longest_is_one_entry_of_an_index(
        self, metadata: SqlMetadata, bench: MetadataBench, figure: str, index: str
    ) -> None:
        populate(bench)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            assert getattr(metadata, figure)() is not None
        asked = [one for one in statements if "landing_id" in one[0]]
        with self.server(metadata).connect() as connection:
            one = asked[0]
            assert all(again[0] == one[0] for again in asked[1:]), "the same index for ids of both kinds"
            if connection.dialect.name == "sqlite":
                (plan,) = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + one[0], one[1]).mappings()
                assert f"USING {index}" in plan["detail"]
            else:
                before = _rows_read(connection)
                assert len(connection.exec_driver_sql(*one).all()) == 1
                assert _rows_read(connection) - before <= 2, "the plan may say that all of the index is read"

    def test_trimming_reads_a_few_entries_of_each_segment(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """It does not matter how many objects wait, and how many copies are queued."""
        populate(bench)
        log = SegmentBench(bench)
        segments = [log.segment() for _ in range(10)]
        for i, segment in enumerate(segments[:8]):
            rows = log.put(segment, *(f"logged {i} {number}" for number in range(50)))
            if i % 2:
                metadata.delete_many([row.key for row in rows], bench.now_ms)
        log.seal(*segments)
        _analyze(self.server(metadata))
        asked: dict[str, Callable[[], object]] = {
            "releasable_segments": lambda: metadata.releasable_segments(segments),
            "doom_segment of one that is free": lambda: metadata.doom_segment(segments[9]),
            "doom_segment of one with a row": lambda: metadata.doom_segment(segments[0]),
            "doom_segment of one with an entry": lambda: metadata.doom_segment(segments[1]),
            "objects_in_segment": lambda: metadata.objects_in_segment(segments[0], None, 5),
            "forget_segments": lambda: metadata.forget_segments(segments[8:]),
        }
        for name, call in asked.items():
            with caught(metadata) as statements:
                call()
            with self.server(metadata).connect() as connection:
                assert [line for one in statements for line in scans(connection, *one)] == [], name
                if connection.dialect.name == "sqlite":
                    continue
                for one in statements:
                    if one[0].startswith("SELECT"):
                        before = _rows_read(connection)
                        connection.exec_driver_sql(*one).all()
                        assert _rows_read(connection) - before <= 60, (name, one)

    def test_names_are_listed_from_the_index_alone(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        populate(bench)
        _analyze(self.server(metadata))
        with caught(metadata) as statements:
            assert len(metadata.list_names("bucket", "n01", "n0100", 50)) == 50
            assert len(metadata.list_objects("bucket", "n01", "n0100", 50)) == 50
        names, rows = (one for one in statements if "FROM objects" in one[0])
        with self.server(metadata).connect() as connection:
            assert covered(connection, *names)
            assert not covered(connection, *rows), "a listing that needs rows is noticed"

    def test_a_listing_does_not_read_what_it_folds(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        folders = [f"folder{i}/" for i in range(10)]
        for folder in folders:
            bench.put_all([f"{folder}{number:04}" for number in range(1000)])
        bench.put_all([f"plain{number:04}" for number in range(2000)])
        _analyze(self.server(metadata))
        for prefix, limit, statements_max, rows_max in (("", 10, 11, 22), ("plain", 1000, 5, 1001)):
            with caught(metadata) as statements:
                page = metadata.list_entries("bucket", prefix, "/", "", limit, 10**9)
            statements = [one for one in statements if "FROM objects" in one[0]]
            assert page.folders == ([] if prefix else folders)
            assert len(page.entries) == limit
            assert len(statements) <= statements_max
            with self.server(metadata).connect() as connection:
                for one in statements:
                    if connection.dialect.name == "sqlite":
                        assert scans(connection, *one) == []
                        rows_max -= len(connection.exec_driver_sql(*one).all())
                    else:
                        before = _rows_read(connection)
                        found = len(connection.exec_driver_sql(*one).all())
                        assert _rows_read(connection) - before <= 2 * found + 5, one
                        rows_max -= found
            assert rows_max >= 0

    def test_the_trash_costs_no_look_up_and_no_listing(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """A page of it does not cost more either when there is more in it."""
        populate(bench)
        keys = [ObjectKey("bucket", name) for name in metadata.list_names("bucket", "", "", OBJECTS)]
        metadata.delete_many(keys[:-50], bench.now_ms, bench.now_ms + 5)
        _analyze(self.server(metadata))
        asked: dict[str, Callable[[], object]] = {
            "list_names": lambda: metadata.list_names("bucket", "", "", 50),
            "bucket": lambda: metadata.bucket("bucket"),
            "buckets_of root": lambda: metadata.buckets_of(ROOT_ACCOUNT, "", 50),
            "delete_bucket": lambda: metadata.delete_bucket("no bucket", bench.now_ms),
            "list_buckets": lambda: metadata.list_buckets("", 9),
            "trash_page": lambda: metadata.trash_page(None, 20),
            "trash_page of nothing": lambda: metadata.trash_page(None, 20, "none"),
            "expired_trash": lambda: metadata.expired_trash(bench.now_ms + 5, 20),
        }
        for name, call in asked.items():
            with caught(metadata) as statements:
                call()
            with self.server(metadata).connect() as connection:
                for one in statements:
                    if connection.dialect.name == "sqlite":
                        assert scans(connection, *one) == [], name
                    elif one[0].startswith("SELECT"):
                        # Counted, because MySQL may call the few rows at the end of an index a walk over all of it.
                        before = _rows_read(connection)
                        connection.exec_driver_sql(*one).all()
                        assert _rows_read(connection) - before <= 100, (name, one)

    def test_noncurrent_versions_cost_no_look_up_and_no_listing(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """A page of versions does not cost more either when a key has more of them."""
        populate(bench)
        last, none = bench.put("n0050").key, ObjectKey("bucket", "none")
        _add_noncurrent(metadata, last, NONCURRENT)
        _add_floors(metadata, OBJECTS)
        _analyze(self.server(metadata))
        put_one = partial(bench.put, "n0051")
        seen = metadata.version(last, NONCURRENT // 2).row
        expired = ExpireVersion(last, NONCURRENT // 2, seen, bench.now_ms, newer=NEWER_MAX)
        asked: dict[str, Callable[[], object]] = {
            "list_names": lambda: metadata.list_names("bucket", "", "", 50),
            "list_entries": lambda: metadata.list_entries("bucket", "n00", "/", "", 50, 10**9),
            "list_summaries": lambda: metadata.list_summaries("bucket", "n00", "/", "", 50, 10**9),
            "get": lambda: metadata.get(last),
            "put": put_one,
            "trash_page": lambda: metadata.trash_page(None, 20),
            "expired_trash": lambda: metadata.expired_trash(bench.now_ms + 5, 20),
            "version": lambda: metadata.version(last, NONCURRENT // 2),
            "put of a version": lambda: bench.record([_version(bench, last.name)]),
            "put of a new version": lambda: bench.record([_version(bench, "n0052")]),
            "next_version": lambda: metadata.next_version(last, bench.now_ms, of_all=True),
            "latest_marker": lambda: metadata.latest_marker(last),
            "list_versions": lambda: metadata.list_versions("bucket", "", "", ("n0050", 500), 20, 10**9),
            "list_versions of folders": lambda: metadata.list_versions("bucket", "n0", "5", ("", None), 10, 10**9),
            "noncurrent_after": lambda: metadata.noncurrent_after((last, 600), 20),
            "delete_bucket": lambda: metadata.delete_bucket("no bucket", bench.now_ms),
            "floors_after": lambda: metadata.floors_after(ObjectKey("bucket", "m01000"), 20),
            "forget_floors": lambda: metadata.forget_floors(bench.now_ms + 2 * FLOOR_MS, 20),
            "a version expires": lambda: metadata.delete_versions([expired], bench.now_ms),
            "a marker expires": lambda: metadata.delete_versions([ExpireMarker(none, 1)], bench.now_ms),
        }
        for name, call in asked.items():
            with caught(metadata) as statements:
                call()
            with self.server(metadata).connect() as connection:
                for one in statements:
                    if connection.dialect.name == "sqlite":
                        assert scans(connection, *one) == [], (name, one)
                    elif one[0].startswith("SELECT"):
                        before = _rows_read(connection)
                        connection.exec_driver_sql(*one).all()
                        assert _rows_read(connection) - before <= 300, (name, one)
        assert expired.version not in [version for _, version, _ in metadata.noncurrent_after((last, 5001), 1)]
        mark = AddMarker(last, Versioning.SUSPENDED)
        with caught(metadata) as statements:
            metadata.delete_versions([mark, DeleteVersion(last, None)], bench.now_ms)
            metadata.delete_versions([DeleteVersion(last, NONCURRENT // 2 + 1)], bench.now_ms)
        with self.server(metadata).connect() as connection:
            found = [(one, line) for one in statements if "INSERT" not in one[0] for line in scans(connection, *one)]
        assert found == [], found

    def test_a_put_without_versions_takes_as_many_statements_as_ever(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """No statement of it is about versions."""
        for call in (partial(bench.put, "n"), partial(bench.put, "n"), partial(bench.delete, "n")):
            with caught(metadata) as statements:
                call()
            assert [one for one, _ in statements if "versions" in one] == []

    def test_a_scan_is_noticed(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        bench.put("n")
        with self.server(metadata).connect() as connection:
            assert scans(connection, "SELECT * FROM objects WHERE size > 5", ()) != []
            assert scans(connection, "UPDATE blocks SET sealed_ms = 5 WHERE created_ms > 5", ()) != []

    def test_a_commit_takes_as_many_statements_for_2000_objects_as_for_one(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        lease = bench.lease()
        counts = []
        for size in (1, 2000):
            rows = bench.put_all([f"{size}-{i}" for i in range(size)], 10)
            commits = [bench.group(lease, bench.block(lease), rows)]
            with caught(metadata) as statements:
                assert len(metadata.commit_group(commits[0])) == size
            counts.append(len(statements))
            packed = [metadata.get(row.key) for row in rows]
            again = bench.group(lease, bench.block(lease), packed)
            with caught(metadata) as statements:
                assert len(metadata.commit_group(again)) == size
            counts.append(len(statements))
        assert counts[:2] == counts[2:]
        assert max(counts) <= 8
        bench.check_counters()

    def test_a_batch_takes_as_many_statements_for_200_objects_as_for_one(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        counts = []
        for size in (1, 200):
            for _ in range(2):
                with caught(metadata) as statements:
                    rows = bench.put_all([f"{size}-{i}" for i in range(size)], 10)
                counts.append(len(statements))
            bench.pack(rows[: size // 2 + 1])
            with caught(metadata) as statements:
                assert len(metadata.delete_many([row.key for row in rows], bench.now_ms)) == size
            counts.append(len(statements) + 2 * (size == 1))  # one object is packed: no copy is queued, none waited
        assert counts[:3] == counts[3:]

    def test_lifetimes_of_200_buckets_take_as_many_statements_as_those_of_one(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        taken = []
        for buckets in (1, 200):
            for turn in range(3):
                counts = {f"{buckets}-{number}": Counts() for number in range(buckets)}
                with caught(metadata) as statements:
                    if turn < 2:
                        metadata.count_deaths(counts, bench.now_ms)
                    else:
                        before_ms = None if buckets == 1 else bench.now_ms
                        assert metadata.count_survey({}, before_ms, bench.now_ms, counts)
                taken.append(len(statements) - (buckets == 1 and turn == 2))  # the room for OTHERS is counted once
        assert taken[:2] == taken[3:5]
        assert max(taken) <= 4


def _rows_read(connection: Connection) -> int:
    """Rows and index entries that this session has read so far, on a server."""
    figures = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
    return sum(int(value) for _, value in figures)


def populate(bench: MetadataBench) -> None:
    """Add OBJECTS landed objects, half of which are packed into BLOCKS blocks, and LARGE large ones. Some are
    deleted."""
    lease = bench.lease()
    per_block = OBJECTS // 2 // BLOCKS
    rows = bench.put_all([f"n{i:05}" for i in range(OBJECTS)], 100)
    for i in range(BLOCKS):
        block_id = bench.block(lease)
        bench.metadata.commit_group(bench.group(lease, block_id, rows[i * per_block : (i + 1) * per_block]))
        if i % 10:
            bench.metadata.seal_block(lease, block_id, bench.now_ms)
        if i % 10 == 1:
            bench.metadata.fence_block(lease, block_id)
    for i in range(LARGE):
        bench.metadata.record_large(bench.large(f"large{i}", lease), lease, bench.now_ms)
    for row in rows[per_block : 2 * per_block]:
        bench.metadata.delete(row.key, bench.now_ms)
    for i in range(30):
        bench.lease(f"idle-{i}")
    assert bucket_slot(ELSEWHERE) != bucket_slot("bucket")
    for i in range(20):
        bench.put(f"n{i:05}", 100, bucket=ELSEWHERE)


def _require_not_sorted(metadata: SqlMetadata, server: Engine, page: Callable[[], object]) -> None:
    """Check that a page of blocks is read in the order of the primary key."""
    with caught(metadata) as statements:
        page()
    with server.connect() as connection:
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN FORMAT=TRADITIONAL "
        (row,) = connection.exec_driver_sql(explain + statements[0][0], statements[0][1]).mappings().all()
    assert "(block_id>?)" in str(row.values()) or row["key"] == "PRIMARY"
    assert "filesort" not in str(row.values())


def _analyze(engine: Engine) -> None:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("ANALYZE")
        else:
            connection.exec_driver_sql(f"ANALYZE TABLE {', '.join(sorted(HOT_TABLES))}")
        connection.commit()


def hot_calls(bench: MetadataBench) -> dict[str, Callable[[], object]]:
    """Calls that must not cost more in a larger store, by name. They are made once, in this order, after `populate`."""
    metadata: Metadata = bench.metadata
    lease = bench.lease()
    landed = [row for row in metadata.due_objects(2**60, 500, ALL_SLOTS) if row.state.in_landing]
    sealed = [block for block in metadata.list_blocks(None, 9999) if block.state is BlockState.SEALED]
    block = [block for block in sealed if block.live_objects > 5][-1]
    placed = [metadata.get(one.key) for one in metadata.placed_in(block.block_id)]
    deletions = [one for one in metadata.due_deletions(2**60, 300) if one.row]
    target, second = bench.block(lease), bench.block(lease)
    empty = next(block for block in sealed if block.stripes and not block.live_objects)
    ids = [one.landing_id for one in deletions]
    large = metadata.get(ObjectKey("bucket", "large7"))
    rest = landed[300:400]
    thrown = [row.key for row in landed[400:-1]]

    log = SegmentBench(bench)
    segment = log.segment()

    def move() -> object:
        old = log.segment()
        logged = log.put(old, *(f"logged {i}" for i in range(100)))
        log.seal(old)
        moves = [LandedMove(row.object_id, row.version, copy_of(row), log.record(segment)) for row in logged]
        return metadata.move_landed(moves)

    def put(rows: list[ObjectRow]) -> object:
        return bench.put_all([row.key.name for row in rows], 50)

    return {
        "next_version": lambda: metadata.next_version(landed[0].key, bench.now_ms),
        "list_objects": lambda: metadata.list_objects("bucket", "n01", "n0100", 50),
        "list_names": lambda: metadata.list_names("bucket", "n01", "n0100", 50),
        "delete into the trash": lambda: metadata.delete(landed[-1].key, bench.now_ms, bench.now_ms + 5),
        "delete_many into the trash": lambda: metadata.delete_many(thrown, bench.now_ms, bench.now_ms + 5),
        "trash_page": lambda: metadata.trash_page(None, 20),
        "trash_page of a bucket": lambda: metadata.trash_page(TrashMark(2**40, 7), 20, "bucket", "n01"),
        "undelete": lambda: metadata.undelete(metadata.trash_page(None, 30).rows),
        "expired_trash": lambda: metadata.expired_trash(bench.now_ms + 5, 20),
        "purge_trash": lambda: metadata.purge_trash(metadata.expired_trash(bench.now_ms + 5, 20), bench.now_ms),
        "list_entries": lambda: metadata.list_entries("bucket", "n01", "5", "n0100", 50, 10**9),
        "list_summaries": lambda: metadata.list_summaries("bucket", "n01", "5", "n0100", 50, 10**9),
        "list_buckets": lambda: metadata.list_buckets("", 50),
        "record a tail": lambda: metadata.record_puts([tail_of(bench, bench.block(lease))], bench.now_ms),
        "segments": lambda: metadata.segments(large.object_id, large.version),
        "due_objects": lambda: metadata.due_objects(bench.now_ms, 100, ALL_SLOTS),
        "due_objects of one slot": lambda: metadata.due_objects(bench.now_ms, 100, {5}),
        "due_objects too far ahead": lambda: metadata.due_objects(0, 100, ALL_SLOTS),
        "mark_published": lambda: metadata.mark_published(landed[:200], bench.now_ms + 9),
        "make_due": lambda: metadata.make_due(rest, bench.now_ms - 9),
        "still_landed": lambda: metadata.still_landed([pack_request(row) for row in landed]),
        "waiting_requests": lambda: metadata.waiting_requests(
            [NamedVersion(row.key, row.version) for row in landed], bench.now_ms
        ),
        "commit_group from the landing store": lambda: metadata.commit_group(bench.group(lease, target, landed[:150])),
        "commit_group from blocks": lambda: metadata.commit_group(bench.group(lease, second, placed)),
        "placed_in": lambda: metadata.placed_in(target),
        "last_object_id": metadata.last_object_id,
        "living_between": lambda: metadata.living_between(100, 150),
        "empty_blocks": lambda: metadata.empty_blocks(10),
        "gc_candidates": lambda: metadata.gc_candidates(0.9, bench.now_ms, 1000, 10),
        "padded_blocks": lambda: metadata.padded_blocks(0.1, 2.0, bench.now_ms, 1000, 10),
        "empty_blocks of a share": lambda: metadata.empty_blocks(10, Share(1, 2)),
        "gc_candidates of a share": lambda: metadata.gc_candidates(0.9, bench.now_ms, 1000, 10, Share(1, 2)),
        "padded_blocks of a share": lambda: metadata.padded_blocks(0.1, 2.0, bench.now_ms, 1000, 10, Share(1, 2)),
        "condemned_blocks of a share": lambda: metadata.condemned_blocks(bench.now_ms, 10, Share(1, 2)),
        "blocks_with_holes": lambda: metadata.blocks_with_holes(None, bench.now_ms, 1000, 10),
        "blocks_with_holes, a later page": lambda: metadata.blocks_with_holes(target, bench.now_ms, 1000, 10),
        "list_block_figures": lambda: metadata.list_block_figures(None, 10),
        "list_block_figures, a later page": lambda: metadata.list_block_figures(target, 10),
        "cool_down_block": lambda: metadata.cool_down_block(block.block_id, bench.now_ms, failed=True),
        "fenced_blocks": lambda: metadata.fenced_blocks(10),
        "condemn_block": lambda: metadata.condemn_block(empty.block_id, 5),
        "condemned_blocks": lambda: metadata.condemned_blocks(bench.now_ms, 10),
        "condemned_blocks too far ahead": lambda: metadata.condemned_blocks(0, 10),
        "blocks_in_grace": lambda: metadata.blocks_in_grace(10),
        "end_quarantine": lambda: metadata.end_quarantine(block.block_id, bench.now_ms),
        "release_block": lambda: metadata.release_block(block.block_id),
        "release_copy": lambda: metadata.release_copy(ids[0]),
        "release_lease": lambda: metadata.release_lease(bench.lease()),
        "expired_leases": lambda: metadata.expired_leases(5),
        "release_leases": lambda: metadata.release_leases([bench.lease(), bench.lease()]),
        "due_deletions": lambda: metadata.due_deletions(bench.now_ms + 9, 100),
        "due_deletions too far ahead": lambda: metadata.due_deletions(0, 100),
        "postpone_deletion": lambda: metadata.postpone_deletion(ids[:50], bench.now_ms),
        "landing_known": lambda: metadata.landing_known(ids),
        "queued_copy": lambda: metadata.queued_copy(placed[0], ids[0], ids[0]),
        "find_queued_copy": lambda: metadata.find_queued_copy(placed[0], ids[0], ids[0]),
        "object_facts": lambda: [metadata.object_facts(row.key) for row in (landed[0], placed[0])],
        "block_facts": lambda: metadata.block_facts(block.block_id, 0.9, bench.now_ms, 1000),
        "landing_needed": lambda: metadata.landing_needed(ids),
        "doom_landing": lambda: metadata.doom_landing({one.landing_id: block.block_id for one in deletions[:100]}),
        "forget_landing": lambda: metadata.forget_landing(ids[100:200]),
        "objects_after": lambda: metadata.objects_after(landed[5].object_id, 100),
        "columns_after": lambda: metadata.columns_after(landed[5].object_id, 100),
        "keys_lead_to": lambda: metadata.keys_lead_to(landed[5].object_id, landed[105].object_id),
        "last_id_of_page": lambda: metadata.last_id_of_page(landed[5].object_id, 100),
        "uncommon_between": lambda: metadata.uncommon_between(landed[5].object_id, landed[105].object_id),
        "live_in": lambda: metadata.live_in(target),
        "live_bytes_in": lambda: metadata.live_bytes_in(target),
        "objects_with": lambda: metadata.objects_with([row.object_id for row in landed[:100]]),
        "segments_of": lambda: metadata.segments_of([large.object_id, landed[0].object_id]),
        "owners_after": lambda: metadata.owners_after(0, 50),
        "blocks_known": lambda: metadata.blocks_known([block.block_id, target]),
        "waiting_after": lambda: metadata.waiting_after(None, 50),
        "waiting_with": lambda: metadata.waiting_with([copy_of(row) for row in landed[:100]]),
        "deletions_after": lambda: metadata.deletions_after(None, 50),
        "record_puts of new objects": lambda: bench.put_all([f"new{i}" for i in range(100)], 50),
        "queued_copy of a record": lambda: metadata.queued_copy(placed[0], *record_ids_between(0, bench.now_ms)),
        "find_queued_copy of a record": lambda: metadata.find_queued_copy(
            placed[0], *record_ids_between(0, bench.now_ms)
        ),
        "record_puts of landed objects": lambda: put(landed[200:300]),
        "record_puts of packed objects": lambda: put(placed),
        "record_puts of a large object": lambda: put([large]),
        "delete": lambda: bench.delete("large8"),
        "delete_many": lambda: metadata.delete_many([row.key for row in (*rest, large)], bench.now_ms),
        "record_puts of records": lambda: log.put(segment, *(f"new {i}" for i in range(100))),
        "record_puts of records in place of others": lambda: log.put(segment, *(f"new {i}" for i in range(50))),
        "record_puts of records, and move_landed": move,
    }
