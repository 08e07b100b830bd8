"""Fills metadata with the rows of a large store, made on the server: what costs time in it depends on rows alone.

The counters of the blocks agree with the rows. The objects have no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, create_engine, text

from nos_ec.adapters.sql.driver.engine import WRITES
from nos_ec.core.publishing.slots import SLOTS

BUCKETS = 10
BUCKET_NAMES = tuple(f"bucket-{number}" for number in range(BUCKETS))
FOLDERS = 256
OBJECT_BYTES = 20_000
STRIPE_BYTES = 1 << 20
BATCH_ROWS = 100_000
_SEED_ROWS = 1000
_MIX = 2654435761
_SERVERS = ("mysql", "mariadb")
_INDEXES = {
    "objects_by_trash_key": "UNIQUE INDEX objects_by_trash_key (trashed, bucket, name)",
    "objects_by_block": "INDEX objects_by_block (block_id(8))",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Numbers of rows. `packed` objects lie in blocks of `objects_per_block`. Half of `waiting` is landed, the rest is
    queued. `deletions` are landing copies of packed objects. Each of `large` objects has one block."""

    packed: int
    waiting: int
    deletions: int
    large: int
    objects_per_block: int = 1000

    @property
    def blocks(self) -> int:
        """Blocks of packed objects."""
        return -(-self.packed // self.objects_per_block)


def fill(engine: Engine, shape: Shape, buckets: Sequence[str] = BUCKET_NAMES) -> None:
    """Add the rows to metadata without objects. The objects are in these buckets, BUCKETS names, in turn. Indexes are
    dropped meanwhile: building them at the end is many times as fast. On the servers, it uses a connection of its own,
    without a limit to the time of a statement, and updates statistics, which SQLite has only after ANALYZE."""
    if engine.dialect.name in _SERVERS:
        patient = create_engine(engine.url, isolation_level="READ COMMITTED")
        with patient.connect() as connection:
            connection.execute(text(f"ALTER TABLE objects {', '.join(f'DROP INDEX {name}' for name in _INDEXES)}"))
            _insert_all(connection, shape, buckets)
            connection.execute(text(f"ALTER TABLE objects {', '.join(f'ADD {index}' for index in _INDEXES.values())}"))
            connection.execute(text("ANALYZE TABLE objects, waiting, segments, blocks, landing_deletions")).all()
        patient.dispose()
        return
    with engine.execution_options(**{WRITES: True}).connect() as connection, _without_indexes(connection):
        _insert_all(connection, shape, buckets)


def name_of(k: int) -> str:
    """The name of the object with this number, as `_Words.name` makes it. It is in bucket `k % BUCKETS`."""
    mixed = k * _MIX
    return f"{mixed >> 24 & 0xFF:02X}/{mixed & 0xFFFFFF:06X}-{k}"


@contextmanager
def _without_indexes(connection: Connection) -> Iterator[None]:
    """Drop the indexes of `objects` in SQLite, and create them again."""
    indexes = connection.execute(
        text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'objects' AND sql IS NOT NULL")
    ).all()
    for name, _ in indexes:
        connection.execute(text(f"DROP INDEX {name}"))
    yield
    for _, sql in indexes:
        connection.exec_driver_sql(sql)
    connection.commit()


def _insert_all(connection: Connection, shape: Shape, buckets: Sequence[str]) -> None:
    _make_numbers(connection)
    words = _Words(connection, buckets)
    _packed(connection, words, shape)
    _waiting(connection, words, shape)
    _large(connection, words, shape)
    _deletions(connection, words, shape)
    connection.execute(text("DROP TABLE numbers"))
    connection.commit()


class _Words:
    """The expressions that SQLite and the servers spell differently. `k` is an expression for the row's number."""

    def __init__(self, connection: Connection, buckets: Sequence[str]) -> None:
        assert len(buckets) == BUCKETS
        self._server = connection.dialect.name in _SERVERS
        self._buckets = buckets

    def id16(self, k: str) -> str:
        """An id of 16 bytes. The number is where ids have their time, in the first six."""
        digits = f"lpad(hex({k}), 12, '0')" if self._server else f"printf('%012X', {k})"
        return f"unhex(concat({digits}, repeat('0', 20)))" if self._server else f"unhex({digits} || '{'0' * 20}')"

    def name(self, k: str) -> str:
        """A name in one of FOLDERS folders. The names are in another order than the numbers, so a listing reads rows
        from all over the table."""
        mixed = f"({k} * {_MIX})"
        folder, rest = f"({mixed} >> 24) & 255", f"{mixed} & 16777215"
        if self._server:
            return f"concat(lpad(hex({folder}), 2, '0'), '/', lpad(hex({rest}), 6, '0'), '-', {k})"
        return f"cast(printf('%02X/%06X-%d', {folder}, {rest}, {k}) AS BLOB)"

    def bucket(self, k: str) -> str:
        """The names of the buckets, in turn."""
        cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in enumerate(self._buckets))
        name = f"CASE {k} % {BUCKETS} {cases} END"
        return name if self._server else f"cast({name} AS BLOB)"

    def whole(self, quotient: str, divisor: int) -> str:
        """An integer division."""
        return f"({quotient} DIV {divisor})" if self._server else f"({quotient} / {divisor})"


def _make_numbers(connection: Connection) -> None:
    connection.execute(text("CREATE TEMPORARY TABLE numbers (n BIGINT PRIMARY KEY)"))
    for first in range(0, BATCH_ROWS, _SEED_ROWS):
        values = ", ".join(f"({n})" for n in range(first, first + _SEED_ROWS))
        connection.execute(text(f"INSERT INTO numbers VALUES {values}"))
    connection.commit()


def _insert(connection: Connection, table: str, columns: Sequence[tuple[str, str]], rows: int) -> None:
    """Insert rows whose columns are expressions of `k`, which counts from 1 to `rows`."""
    names = ", ".join(name for name, _ in columns)
    values = ", ".join(value for _, value in columns)
    statement = text(
        f"INSERT INTO {table} ({names}) SELECT {values}"
        " FROM (SELECT n + :first AS k FROM numbers WHERE n < :rows) AS counted"
    )
    for first in range(1, rows + 1, BATCH_ROWS):
        connection.execute(statement, {"first": first, "rows": min(BATCH_ROWS, rows + 1 - first)})
        connection.commit()


def _object(words: _Words, k: str, **other: str) -> list[tuple[str, str]]:
    values = {
        "object_id": k,
        "bucket": words.bucket(k),
        "name": words.name(k),
        "version": f"{k} * 1000",
        "size": str(OBJECT_BYTES),
        "crc32c": "0",
        "md5": f"x'{'00' * 16}'",
        "state": "'packed'",
        "landing_id": "NULL",
        "block_id": "NULL",
        "block_offset": "NULL",
        "created_ms": k,
    }
    return list((values | other).items())


def _block(words: _Words, k: str, kind: str, objects: str) -> list[tuple[str, str]]:
    live = f"({objects}) * {OBJECT_BYTES}"
    stripes = f"({words.whole(live, STRIPE_BYTES)} + 1)"
    return [
        ("block_id", words.id16(k)),
        ("kind", f"'{kind}'"),
        ("state", "'sealed'"),
        ("writer", words.bucket("1")),
        ("epoch", "1"),
        ("stripes", stripes),
        ("live_bytes", live),
        ("dead_bytes", "0"),
        ("overhead_bytes", f"{stripes} * {STRIPE_BYTES} - {live}"),
        ("live_objects", objects),
        ("created_ms", k),
        ("sealed_ms", k),
    ]


def _packed(connection: Connection, words: _Words, shape: Shape) -> None:
    each = shape.objects_per_block
    block_id = words.id16(f"({words.whole('(k - 1)', each)} + 1)")
    place = {"block_id": block_id, "block_offset": f"4096 + ((k - 1) % {each}) * {OBJECT_BYTES}"}
    _insert(connection, "objects", _object(words, "k", **place), shape.packed)
    objects = f"CASE WHEN k < {shape.blocks} THEN {each} ELSE {shape.packed - (shape.blocks - 1) * each} END"
    _insert(connection, "blocks", _block(words, "k", "fresh", objects), shape.blocks)


def _waiting(connection: Connection, words: _Words, shape: Shape) -> None:
    k = f"(k + {shape.packed})"
    waits = {"state": "CASE WHEN k % 2 = 0 THEN 'landed' ELSE 'queued' END", "landing_id": words.id16(k)}
    _insert(connection, "objects", _object(words, k, **waits), shape.waiting)
    row = waits | {"object_id": k, "slot": f"{k} % {SLOTS}", "due_ms": k, "size": str(OBJECT_BYTES)}
    _insert(connection, "waiting", list(row.items()), shape.waiting)


def _large(connection: Connection, words: _Words, shape: Shape) -> None:
    k, block = f"(k + {shape.packed + shape.waiting})", f"(k + {shape.blocks})"
    _insert(connection, "objects", _object(words, k, state="'large'"), shape.large)
    _insert(connection, "blocks", _block(words, block, "large", "1"), shape.large)
    segment = [
        ("object_id", k),
        ("version", f"{k} * 1000"),
        ("part", "0"),
        ("block_id", words.id16(block)),
        ("block_offset", "4096"),
        ("length", str(OBJECT_BYTES)),
        ("crc32c", "0"),
    ]
    _insert(connection, "segments", segment, shape.large)


def _deletions(connection: Connection, words: _Words, shape: Shape) -> None:
    copy = [
        ("landing_id", words.id16("k")),
        ("object_id", "k"),
        ("version", "k * 1000"),
        ("not_before_ms", "k"),
        ("doomed", "0"),
    ]
    _insert(connection, "landing_deletions", copy, shape.deletions)
