"""Metadata of an older release is migrated to this release without losing a row, even if it takes two attempts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import BigInteger, Engine, SmallInteger, column, delete, event, insert, select, table, text, update
from sqlalchemy.exc import IntegrityError

from nos_ec.adapters.sql.driver.engine import WRITES, make_engine
from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.sql.tables.migrations.versions import v0002_slots, v0005_waiting
from nos_ec.adapters.sql.tables.schema import BLOCKS, METADATA, OBJECTS, WAITING
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import BLOCK_SIZE_MAX
from nos_ec.core.publishing.slots import ALL_SLOTS, SLOTS, bucket_slot

BATCHES = 3
OBJECTS_COUNT = (BATCHES - 1) * v0002_slots.BATCH_ROWS + 1000
LANDED_PERCENT = 30

_SETS_SLOTS = "UPDATE objects SET slot"
_TABLES = (*METADATA.tables, "alembic_version")
_NEW_BLOCK_COLUMNS = {"waste_ppm", "gc_not_before_ms", "gc_failures"}
_OLD_BLOCKS = table("blocks", *(column(one.name, one.type) for one in BLOCKS.c if one.name not in _NEW_BLOCK_COLUMNS))
_NEW_OBJECT_COLUMNS = {"attributes", "trashed"}
_OLD_OBJECTS = table(
    "objects",
    *(column(one.name, one.type) for one in OBJECTS.c if one.name not in _NEW_OBJECT_COLUMNS),
    column("due_ms", BigInteger),
)
_SLOT_OBJECTS = table("objects", *(column(one.name, one.type) for one in _OLD_OBJECTS.c), column("slot", SmallInteger))
_WAITED = 200


class SqlMigrations:
    """Define a fixture `url`: a database without tables, whose tables may be dropped."""

    @pytest.fixture
    def old(self, url: str) -> Iterator[Engine]:
        """Metadata of schema 0001 with some objects."""
        migrate(url, "0001")
        engine = make_engine(url)
        with _writing(engine) as connection:
            connection.execute(insert(_OLD_OBJECTS), [_old_row(number) for number in range(1, OBJECTS_COUNT + 1)])
        yield engine
        engine.dispose()

    def test_every_row_is_kept_and_gets_its_slot(self, url: str, old: Engine) -> None:
        before = _rows(old)
        for _ in range(2):
            migrate(url)
        self._assert_migrated(url, old, before)

    def test_a_migration_that_was_cut_off_goes_on(self, url: str, old: Engine) -> None:
        before = _rows(old)
        # In the last of the batches.
        with pytest.raises(_CutOffError), _running(_SETS_SLOTS, fail_at=2 * SLOTS + 5):
            migrate(url)
        with pytest.raises(ConfigError, match="run `nos-ec init`"):
            open_metadata(url)
        with _running(_SETS_SLOTS) as ran:
            migrate(url)
        # Where DDL commits, the earlier batches stay; SQLite rolls everything back.
        assert len(ran) == (BATCHES * SLOTS if old.dialect.name == "sqlite" else SLOTS)
        self._assert_migrated(url, old, before)

    def test_a_migration_that_is_cut_off_again_and_again_ends(self, url: str, old: Engine) -> None:
        before = _rows(old)
        for fail_at in range(3, 300, 11):
            try:
                with _running("", fail_at=fail_at):
                    migrate(url)
            except _CutOffError:
                continue
            break
        else:
            pytest.fail("it never ended")
        assert fail_at > 50
        self._assert_migrated(url, old, before)

    def test_a_statement_may_take_longer_than_in_other_work(
        self, url: str, old: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = _rows(old)
        assert make_engine.__kwdefaults__ is not None
        monkeypatch.setitem(make_engine.__kwdefaults__, "read_s", 1)
        slow: list[str] = []

        def sleep(_c: Any, cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("CREATE INDEX"):
                slow.append(statement)
                if old.dialect.name != "sqlite":  # which has no such limit
                    cursor.execute("SELECT SLEEP(3)")

        event.listen(Engine, "before_cursor_execute", sleep)
        try:
            migrate(url)
        finally:
            event.remove(Engine, "before_cursor_execute", sleep)
        assert slow
        monkeypatch.undo()
        self._assert_migrated(url, old, before)

    def test_wherever_it_is_cut_off_what_waits_gets_its_rows(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before each statement of the migration to 0005."""
        monkeypatch.setattr(v0005_waiting, "BATCH_ROWS", 7)
        fail_at, ended = 0, False
        while not ended:
            fail_at += 1
            engine = _with_slots(url, _WAITED)
            before = _rows(engine)
            try:
                with _running("", fail_at=fail_at):
                    migrate(url, "0005")
                ended = True
            except _CutOffError:
                migrate(url, "0005")
            _assert_waiting(engine, before)
            engine.dispose()
            drop_all(url)
        assert fail_at > 30

    def test_what_a_writer_of_the_release_before_does_meanwhile_is_not_lost(self, url: str) -> None:
        """Until it cannot work any more, because its columns are gone."""
        engine = _with_slots(url, _WAITED)
        if engine.dialect.name == "sqlite":
            engine.dispose()
            pytest.skip("it waits until all is done")

        def write(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if "DROP COLUMN" in statement:
                _write_as_before(engine)

        event.listen(Engine, "before_cursor_execute", write)
        try:
            migrate(url)
        finally:
            event.remove(Engine, "before_cursor_execute", write)
        with engine.connect() as connection:
            waiting = {row.object_id: row for row in connection.execute(select(WAITING))}
        engine.dispose()
        metadata = open_metadata(url)
        due = {row.object_id: row for row in metadata.due_objects(2**60, 2 * _WAITED, ALL_SLOTS)}
        metadata.close()
        assert due.keys() == waiting.keys()
        assert due.keys() ^ {number for number in range(1, _WAITED + 1) if _is_landed(number)} == {1, 2, _WAITED + 1}
        assert (waiting[3].state, due[3].state) == ("queued", "queued")

    def test_wherever_it_is_cut_off_keys_are_unique_and_ids_are_new(self, url: str) -> None:
        """Before each statement of the migrations behind 0007."""
        fail_at, ended = 0, False
        while not ended:
            fail_at += 1
            migrate(url, "0007")
            engine = make_engine(url)
            old = table("objects", *(column(one.name, one.type) for one in OBJECTS.c if one.name != "trashed"))
            made = [{name: value for name, value in _old_row(i).items() if name != "due_ms"} for i in range(1, 9)]
            with _writing(engine) as connection:
                connection.execute(insert(old), made)
                connection.execute(delete(old).where(old.c.object_id == 8))
            before = _rows(engine)
            try:
                with _running("", fail_at=fail_at):
                    migrate(url)
                ended = True
            except _CutOffError:
                migrate(url)
            assert _rows(engine) == [row | {"trashed": b""} for row in before]
            with engine.connect() as connection:
                assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
            again = {name: value for name, value in made[0].items() if name not in ("object_id", "landing_id")}
            with pytest.raises(IntegrityError), _writing(engine) as connection:
                connection.execute(insert(OBJECTS), [again])
            with _writing(engine) as connection:
                for new in ({"name": "new"}, {"trashed": b"marked"}):
                    connection.execute(insert(OBJECTS), again | new)
            assert min(row["object_id"] for row in _rows(engine)[len(before) :]) > 8, "also the id of a deleted row"
            engine.dispose()
            drop_all(url)
        assert fail_at > 5

    def test_blocks_are_kept_and_found_by_their_waste(self, url: str) -> None:
        migrate(url, "0002")
        engine = make_engine(url)
        with _writing(engine) as connection:
            connection.execute(insert(_OLD_BLOCKS), [_old_block(number) for number in range(11)])
        for _ in range(2):
            migrate(url)
        with engine.connect() as connection:
            rows = [row._mapping for row in connection.execute(select(BLOCKS).order_by(BLOCKS.c.block_id))]
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        engine.dispose()
        assert [{name: row[name] for name in row if name not in _NEW_BLOCK_COLUMNS} for row in rows] == [
            _old_block(number) for number in range(11)
        ]
        assert [row["waste_ppm"] for row in rows] == [1_000_000 - 100_000 * number for number in range(11)]
        assert {(row["gc_not_before_ms"], row["gc_failures"]) for row in rows} == {(None, 0)}
        metadata = open_metadata(url)
        found = metadata.gc_candidates(0.75, 0, 0, 99)
        assert [block.waste_ratio for block in found] == [0.9, 0.8]
        assert [block.live_objects for block in metadata.empty_blocks(99)] == [0]
        metadata.close()

    def _assert_migrated(self, url: str, old: Engine, before: list[dict[str, Any]]) -> None:
        _assert_waiting(old, before)
        with old.connect() as connection:
            assert set(connection.execute(select(WAITING.c.slot)).scalars()) == ALL_SLOTS
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
            assert connection.execute(text("SELECT count(*) FROM store_info")).scalar() == 0
        metadata = open_metadata(url)
        assert [row.object_id for row in metadata.due_objects(2**60, 2 * OBJECTS_COUNT, ALL_SLOTS)] == [
            row["object_id"] for row in before if row["due_ms"] is not None
        ]
        metadata.close()


def _with_slots(url: str, count: int) -> Engine:
    """Metadata of schema 0004 with some objects."""
    migrate(url, "0004")
    engine = make_engine(url)
    with _writing(engine) as connection:
        connection.execute(insert(_SLOT_OBJECTS), [_slot_row(number) for number in range(1, count + 1)])
    return engine


def _write_as_before(engine: Engine) -> None:
    """What a process of the release before does to one object each: packs, deletes, publishes, puts."""
    o = _SLOT_OBJECTS.c
    with _writing(engine) as connection:
        packed = {"state": "packed", "landing_id": None, "due_ms": None, "block_id": bytes(16), "block_offset": 1}
        connection.execute(update(_SLOT_OBJECTS).where(o.object_id == 1).values(packed))
        connection.execute(delete(_SLOT_OBJECTS).where(o.object_id == 2))
        connection.execute(update(_SLOT_OBJECTS).where(o.object_id == 3).values(state="queued", due_ms=7))
        connection.execute(insert(_SLOT_OBJECTS), [_slot_row(100 * (_WAITED // 100) + 1)])


def _assert_waiting(engine: Engine, before: list[dict[str, Any]]) -> None:
    """The rows are as they were, and what waits is in its own table. `before` may have no slots."""
    kept = [{name: row[name] for name in row if name not in ("slot", "due_ms")} for row in before]
    found = _rows(engine)
    assert {(row.pop("attributes", None), row.pop("trashed", None)) for row in found} <= {(None, None), (None, b"")}
    assert found == kept
    with engine.connect() as connection:
        waiting = [dict(row._mapping) for row in connection.execute(select(WAITING).order_by(WAITING.c.object_id))]
    assert waiting == [
        {name: row[name] for name in ("landing_id", "object_id", "due_ms", "state", "size")}
        | {"slot": bucket_slot(row["bucket"].decode())}
        for row in before
        if row["due_ms"] is not None
    ]


class _CutOffError(Exception):
    """Stops the migration at a chosen statement."""


@contextmanager
def _running(begins: str, fail_at: int = 1_000_000) -> Iterator[list[str]]:
    """Collect the statements that run meanwhile and begin with this text. The statement with number `fail_at` raises an
    exception instead."""
    ran: list[str] = []

    def catch(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(begins):
            ran.append(statement)
            if len(ran) == fail_at:
                raise _CutOffError

    event.listen(Engine, "before_cursor_execute", catch)
    try:
        yield ran
    finally:
        event.remove(Engine, "before_cursor_execute", catch)


def drop_all(url: str) -> None:
    """Remove every table of the metadata."""
    engine = make_engine(url)
    with engine.begin() as connection:
        for name in _TABLES:
            connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
    engine.dispose()


@contextmanager
def _writing(engine: Engine) -> Iterator[Any]:
    with engine.execution_options(**{WRITES: True}).begin() as connection:
        yield connection


def _old_row(number: int) -> dict[str, Any]:
    landed = _is_landed(number)
    return {
        "object_id": number,
        "bucket": f"bucket-{number % 97}-\N{SNOWMAN}",
        "name": f"object-{number}",
        "version": number * 1000,
        "size": number,
        "crc32c": 2**32 - number,
        "md5": number.to_bytes(16, "big"),
        "state": "landed" if landed else "packed",
        "landing_id": number.to_bytes(16, "big") if landed else None,
        "block_id": None if landed else bytes(16),
        "block_offset": None if landed else BLOCK_SIZE_MAX - number,
        "due_ms": number if landed else None,
        "created_ms": number,
    }


def _slot_row(number: int) -> dict[str, Any]:
    row = _old_row(number)
    return row | {"slot": bucket_slot(row["bucket"])}


def _is_landed(number: int) -> bool:
    return number % 100 < LANDED_PERCENT


def _old_block(number: int) -> dict[str, Any]:
    """A block of 1,000 bytes. A tenth of them is live for each unit of `number`, and one more tenth is overhead."""
    live = 100 * number
    return {
        "block_id": number.to_bytes(16, "big"),
        "kind": "fresh",
        "state": "sealed",
        "writer": "w",
        "epoch": 1,
        "stripes": 1,
        "live_bytes": live,
        "dead_bytes": max(0, 900 - live),
        "overhead_bytes": 1000 - live - max(0, 900 - live),
        "live_objects": number,
        "created_ms": 1,
        "sealed_ms": 2,
        "delete_after_ms": None,
    }


def _rows(engine: Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT * FROM objects ORDER BY object_id")).mappings()
        return [{name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.items()} for row in found]
