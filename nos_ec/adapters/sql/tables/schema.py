"""Tables of the metadata store, the same on SQLite, MySQL 8 and MariaDB 10.6+.

Rules for all of them:
  - Everything that is compared or ordered is binary (names are UTF-8 bytes), so that the order is byte order on every
    server, whatever its collations.
  - `waste_ppm` is a generated column. MySQL assigns left to right with the new values, SQLite uses the old ones, and in
    a multi-table UPDATE MySQL promises no order at all. A column that no statement assigns cannot be assigned wrongly.
  - Columns that only waiting objects need are in `waiting`, which is as small as the backlog (docs/adr/0020).
  - Columns and indexes of `objects`, which has a row for each object, are as narrow as their values (docs/adr/0040).
  - The CHECK of `blocks` turns a counting bug into a refused statement instead of a wrong figure.

A change to a table here needs a new migration in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    case,
    column,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

from nos_ec.core.attributes import ATTRIBUTES_SIZE_MAX
from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.formats.journal import BODY_BYTES_MAX
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX, SEGMENT_ID_BYTES
from nos_ec.core.packing.lifetimes import COUNTS_BYTES
from nos_ec.core.states import BlockKind, BlockState, ObjectState, SegmentState
from nos_ec.ports.metadata.buckets import (
    ACCESS_KEY_BYTES_MAX,
    ACCOUNT_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    GENERATION_BYTES,
    NOTE_BYTES_MAX,
    SECRET_BYTES_MAX,
    CannedAcl,
    DocumentKind,
    KeyState,
)
from nos_ec.ports.metadata.directory import CELL_BYTES_MAX, SLICES_BYTES_MAX, MoveState
from nos_ec.ports.metadata.uploads import UploadState

ID_BYTES = 16
TRASHED_BYTES = 20
WRITER_BYTES_MAX = 255
TOPIC_BYTES_MAX = 249
"""The longest name of a topic in Kafka."""
EVENT_BYTES_MAX = 8192
"""The largest message. It has about 600 bytes, the name, each byte of which may be encoded as three, and the id of the
configuration."""

_MYSQL = ("mysql", "mariadb")
_S = TypeVar("_S", bound=StrEnum)
_T = TypeVar("_T")


def utf8(words: str) -> bytes:
    """Return the UTF-8 bytes of `words`. Raises InvalidInput for text that cannot be encoded (lone surrogates)."""
    try:
        return words.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{words!r} is not valid UTF-8 ({error.reason}); use text without lone surrogates"
        ) from error


class _Binary(TypeDecorator[_T]):
    """A column of bytes, of at most this size."""

    impl = LargeBinary
    cache_ok = True
    on_mysql: type[mysql.VARBINARY | mysql.BINARY] = mysql.VARBINARY

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(size)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        kind = self.on_mysql if dialect.name in _MYSQL else LargeBinary
        return dialect.type_descriptor(kind(self.size))


class Utf8(_Binary[str]):
    """A column of text, stored as UTF-8. Parameters may also be bytes, for bounds of ranges."""

    cache_ok = True

    def process_bind_param(self, value: str | bytes | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return utf8(value) if isinstance(value, str) else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:  # noqa: ARG002
        return _text


class Id(_Binary[bytes]):
    """A column of exactly `size` bytes. MySQL would pad a shorter id with zeros, and so turn it into another id."""

    cache_ok = True
    on_mysql = mysql.BINARY

    def __init__(self, size: int = ID_BYTES) -> None:
        super().__init__(size)

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:  # noqa: ARG002
        if value is not None and len(value) != self.size:
            raise ValueError(f"an id of {len(value)} bytes; it must have {self.size}")
        return value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], bytes | None]:  # noqa: ARG002
        size = self.size

        def checked(value: Any) -> bytes | None:
            if value is None:
                return None
            if len(value) != size:
                raise _damaged(f"an id of {len(value)} bytes; it must have {size}")
            return bytes(value)

        return checked


class Bytes(_Binary[bytes]):
    """A column of at most `size` bytes."""

    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], bytes]:  # noqa: ARG002
        return _bytes


class Opaque(Bytes):
    """A column of bytes. Nothing but a rebuild makes SQL look into them (`uncommon_between`). Empty bytes are stored as
    NULL, which takes no space."""

    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return value or None


class Word(TypeDecorator[_S]):
    """A column of a StrEnum, stored as its value, so that any SQL console shows it. With `one_byte`, MySQL stores the
    number of the word as an ENUM, but still shows, accepts and compares the word."""

    impl = String
    cache_ok = True

    def __init__(self, words: type[_S], size: int = 10, *, one_byte: bool = False) -> None:
        self.words = words
        self.size = size
        self.one_byte = one_byte
        super().__init__(size)

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name not in _MYSQL:
            return dialect.type_descriptor(String(self.size))
        ascii_words = {"charset": "ascii", "collation": "ascii_bin"}
        if self.one_byte:
            return dialect.type_descriptor(mysql.ENUM(*(word.value for word in self.words), **ascii_words))
        return dialect.type_descriptor(mysql.VARCHAR(self.size, **ascii_words))

    def process_bind_param(self, value: _S | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else self.words(value).value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], _S | None]:  # noqa: ARG002
        known: dict[Any, _S | None] = {word.value: word for word in self.words}
        known[None] = None

        def word_of(value: Any) -> _S | None:
            try:
                return known[value]
            except KeyError:
                raise _damaged(f"{value!r}, which is not a valid {self.words.__name__}") from None

        return word_of


# These functions are called for each value of a page of rows, which is most of the work of a listing. So the types pass
# them to SQLAlchemy directly: `process_result_value` would add two calls around each.
def _text(value: Any) -> str | None:
    try:
        return None if value is None else bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        raise _damaged(f"{bytes(value)!r}, which is not UTF-8") from None


def _bytes(value: Any) -> bytes:
    return b"" if value is None else bytes(value)


def _damaged(what: str) -> Corrupt:
    return Corrupt(f"metadata damaged: a column holds {what}")


def _table(name: str, *parts: Any, **options: Any) -> Table:
    for dialect in _MYSQL:
        options |= {f"{dialect}_engine": "InnoDB", f"{dialect}_charset": "utf8mb4", f"{dialect}_row_format": "DYNAMIC"}
    return Table(name, METADATA, *parts, **options)


def _bigint(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, BigInteger, nullable=nullable)


METADATA = MetaData()

_BLOCK_ID_PREFIX: Any = {f"{dialect}_length": {"block_id": 8} for dialect in _MYSQL}
"""MySQL's index of `objects` has only these first bytes of an id: the time and 16 random bits."""
_UNSIGNED_32: Any = BigInteger().with_variant(mysql.INTEGER(unsigned=True), *_MYSQL)
"""The type of 32-bit columns. In a UNION with a BIGINT, MariaDB would convert them to DECIMAL, so the other columns of
such a UNION have this type as well."""

OBJECTS = _table(
    "objects",
    Column("object_id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("bucket", Utf8(BUCKET_BYTES_MAX), nullable=False),
    Column("name", Utf8(NAME_BYTES_MAX), nullable=False),
    _bigint("version"),
    _bigint("size"),
    Column("crc32c", _UNSIGNED_32, nullable=False),
    Column("md5", Id(), nullable=False),
    Column("state", Word(ObjectState, one_byte=True), nullable=False),
    Column("landing_id", Id()),
    Column("block_id", Id()),
    Column("block_offset", _UNSIGNED_32),
    _bigint("created_ms"),
    Column("attributes", Opaque(ATTRIBUTES_SIZE_MAX)),
    Column("trashed", Bytes(TRASHED_BYTES), nullable=False, server_default=text("x''")),
    Index("objects_by_trash_key", "trashed", "bucket", "name", unique=True),
    Index("objects_by_block", "block_id", sqlite_where=text("block_id IS NOT NULL"), **_BLOCK_ID_PREFIX),
    sqlite_autoincrement=True,
)
"""Versions of objects: current, noncurrent, and deleted ones in the trash. An overwrite keeps the row and its
object_id; an object_id is never used twice.

`trashed` is empty for a current version. For a noncurrent one it has six zeros and the object_id (make_noncurrent.py,
docs/adr/0034). In the trash it has the time until which the trash keeps the version, its object_id, and the time of its
deletion (trash.py, docs/adr/0028). So keys are unique among current versions, and the index has the trash in the order
of its times.
"""

WAITING = _table(
    "waiting",
    Column("landing_id", Id(), primary_key=True),
    Column("object_id", BigInteger, nullable=False),
    Column("slot", SmallInteger, nullable=False),
    _bigint("due_ms"),
    Column("state", Word(ObjectState), nullable=False),
    _bigint("size"),
    _bigint("published_ms", nullable=True),
    Column("is_spread", Boolean(create_constraint=False), nullable=False, server_default="0"),
    Index("waiting_by_due", "slot", "due_ms", "object_id"),
    sqlite_with_rowid=False,
)
"""Objects that wait to be packed: exactly one row for each LANDED or QUEUED row of `objects`, with the same landing_id,
state and size. It is changed only in a transaction that has locked that row (waiting.py).

`published_ms` and `is_spread` are those of `core.publishing.republish.Publication`; NULL if the row has no event.
`slot` is `core.publishing.slots.bucket_slot` of the bucket.
"""

SEGMENTS = _table(
    "segments",
    Column("object_id", BigInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("block_id", Id(), nullable=False),
    Column("block_offset", _UNSIGNED_32, nullable=False),
    _bigint("length"),
    Column("crc32c", _UNSIGNED_32, nullable=False),
    Index("segments_by_block", "block_id"),
)
"""The segments of LARGE objects. They are removed together with their version."""

_WASTE_BYTES: Any = column("dead_bytes", BigInteger) + column("overhead_bytes", BigInteger)
_SIZE_BYTES: Any = column("live_bytes", BigInteger) + _WASTE_BYTES
_WASTE_PPM = case((_SIZE_BYTES == 0, 1_000_000), else_=_WASTE_BYTES * 1_000_000 // _SIZE_BYTES)

BLOCKS = _table(
    "blocks",
    Column("block_id", Id(), primary_key=True),
    Column("kind", Word(BlockKind), nullable=False),
    Column("state", Word(BlockState), nullable=False),
    Column("writer", Utf8(WRITER_BYTES_MAX), nullable=False),
    _bigint("epoch"),
    _bigint("stripes"),
    _bigint("live_bytes"),
    _bigint("dead_bytes"),
    _bigint("overhead_bytes"),
    _bigint("live_objects"),
    Column("waste_ppm", BigInteger, Computed(_WASTE_PPM, persisted=True)),
    _bigint("created_ms"),
    _bigint("sealed_ms", nullable=True),
    _bigint("delete_after_ms", nullable=True),
    _bigint("gc_not_before_ms", nullable=True),
    Column("gc_failures", BigInteger, nullable=False, server_default="0"),
    CheckConstraint(
        "live_bytes >= 0 AND dead_bytes >= 0 AND overhead_bytes >= 0 AND live_objects >= 0", name="blocks_count_right"
    ),
    Index("blocks_by_waste", "state", "waste_ppm", "gc_not_before_ms"),
    Index("blocks_by_grace", "state", "delete_after_ms"),
    Index("blocks_by_writer", "writer", "epoch", "state"),
)
"""Blocks, with counters of their bytes and objects.

`waste_ppm` is the number of dead and overhead bytes per million bytes of the block; a million for a block without
stripes. GC leaves the block alone until `gc_not_before_ms`. `gc_failures` counts how many times GC failed to collect
it.
"""

LEASES = _table(
    "leases",
    Column("name", Utf8(WRITER_BYTES_MAX), primary_key=True),
    _bigint("epoch"),
    _bigint("expires_ms"),
    Index("leases_by_expiry", "expires_ms"),
)

COUNTERS = _table(
    "counters",
    Column("name", String(32), primary_key=True),
    _bigint("value"),
)
"""`lease_epoch` is the last epoch of a lease. `galera_node` is the number of the Galera node that writes, and 0 before
one does (nos_ec.adapters.sql.driver.galera). `lock_time` is the lock time (objects/locks.py). `moves` is the number
of changes of the table `moves` (nos_ec.adapters.sql.tables.gate). `journal` is the number of the next object of the
journal (objects/journal.py). Migrations insert these rows."""

LANDING_DELETIONS = _table(
    "landing_deletions",
    Column("landing_id", Id(), primary_key=True),
    _bigint("object_id", nullable=True),
    _bigint("version", nullable=True),
    _bigint("not_before_ms"),
    Column("doomed", Boolean(create_constraint=False), nullable=False),
    Index("landing_deletions_by_time", "not_before_ms", "landing_id"),
)

LANDING_SEGMENTS = _table(
    "landing_segments",
    Column("segment_id", Id(SEGMENT_ID_BYTES), primary_key=True),
    Column("log", Integer, nullable=False),
    _bigint("epoch"),
    Column("state", Word(SegmentState), nullable=False),
    _bigint("opened_ms"),
    _bigint("sealed_ms", nullable=True),
    _bigint("end_bytes"),
    _bigint("records"),
    Index("landing_segments_by_log", "state", "log"),
)
"""Segments of the landing log: at most as many as fit into the log.

`log` is the number of the log, which is in the id as well. `epoch` is the epoch of the lease under which the log opened
the segment.
"""

BUCKETS = _table(
    "buckets",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("owner", Utf8(ACCOUNT_BYTES_MAX), nullable=False),
    _bigint("created_ms"),
    Column("acl", Word(CannedAcl, 20), nullable=False),
    _bigint("deleted_ms", nullable=True),
    Index("buckets_by_owner", "owner", "bucket"),
)
"""Buckets as their owners see them. A bucket with objects need not have a row (docs/adr/0030).

`deleted_ms` is set when the bucket was deleted. The row stays for a while: if a concurrent PUT has put an object into
the bucket, it belongs to the same owner again.
"""

DIRECTORY = _table(
    "directory",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("home", Utf8(CELL_BYTES_MAX), nullable=False),
    Column("owner", Utf8(ACCOUNT_BYTES_MAX), nullable=False),
    _bigint("created_ms"),
    _bigint("deleted_ms", nullable=True),
    Column("slices", Utf8(SLICES_BYTES_MAX), nullable=True),
    Column("moves", BigInteger, nullable=False, server_default="0"),
    Index("directory_by_owner", "owner", "bucket"),
)
"""The cell of each bucket, and those of the slices of a wide one, separated by commas, in the database of one cell
(docs/CELLS.md). Empty in the others, and in a store without cells. A row is never deleted: a bucket that is created
again is created in the cell where it was (docs/adr/0063). `moves` is how often the bucket was moved to another cell
(docs/adr/0066)."""

MOVES = _table(
    "moves",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("state", Word(MoveState), nullable=False),
    Column("other", Utf8(CELL_BYTES_MAX), nullable=False),
    _bigint("number"),
    _bigint("mover"),
    _bigint("since_ms"),
)
"""Buckets that are, or were, moved from or to this cell (docs/adr/0066). `other` is the cell to or from which, `number`
the value of `moves` in the directory after the move, `mover` a random number of the process that moves it."""

CHANGED_NAMES = _table(
    "changed_names",
    Column("change_id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("bucket", Utf8(BUCKET_BYTES_MAX), nullable=False),
    Column("name", Utf8(NAME_BYTES_MAX), nullable=False),
    Index("changed_names_by_bucket", "bucket", "change_id"),
    sqlite_autoincrement=True,
)
"""The names that users change while a bucket is copied to another cell, until the mover has compared them
(docs/adr/0070). A row for each change."""

BUCKET_DOCUMENTS = _table(
    "bucket_documents",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("kind", Word(DocumentKind, 20), primary_key=True),
    Column("body", Bytes(DOCUMENT_BYTES_MAX), nullable=False),
)
"""The configurations of buckets, as they were sent."""

BUCKET_GRANTS = _table(
    "bucket_grants",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("account", Utf8(ACCOUNT_BYTES_MAX), primary_key=True),
    Column("rights", SmallInteger, nullable=False),
)
"""The rights of accounts in buckets of other accounts. `rights` has the bits of `Rights`."""

ACCESS_KEYS = _table(
    "access_keys",
    Column("access_key", Utf8(ACCESS_KEY_BYTES_MAX), primary_key=True),
    Column("account", Utf8(ACCOUNT_BYTES_MAX), nullable=False),
    Column("secret", Bytes(SECRET_BYTES_MAX), nullable=False),
    Column("state", Word(KeyState), nullable=False),
    _bigint("created_ms"),
    Column("note", Utf8(NOTE_BYTES_MAX), nullable=False),
    Column("generation", Bytes(GENERATION_BYTES)),
)
"""Access keys of the S3 gateway. `secret` is encrypted. `generation` is NULL in rows that a program before schema 0018
has written."""

UPLOADS = _table(
    "uploads",
    Column("upload_id", Id(), primary_key=True),
    Column("bucket", Utf8(BUCKET_BYTES_MAX), nullable=False),
    Column("name", Utf8(NAME_BYTES_MAX), nullable=False),
    Column("state", Word(UploadState), nullable=False),
    _bigint("since_ms"),
    _bigint("revision"),
    Column("owner", Utf8(ACCOUNT_BYTES_MAX), nullable=False),
    Column("attributes", Opaque(ATTRIBUTES_SIZE_MAX)),
    Index("uploads_by_key", "state", "bucket", "name", "upload_id"),
    Index("uploads_by_time", "state", "since_ms", "upload_id"),
)
"""Multipart uploads, from their beginning until their last part is deleted (docs/adr/0032). The parts are objects."""

VERSIONS = _table(
    "versions",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("name", Utf8(NAME_BYTES_MAX), primary_key=True),
    Column("age_rank", BigInteger, primary_key=True, autoincrement=False),
    _bigint("object_id", nullable=True),
    Column("is_null", SmallInteger, nullable=False),
    _bigint("created_ms"),
    Index("versions_by_null", "is_null", "bucket", "name", sqlite_where=text("is_null = 1")),
)
"""Noncurrent versions and delete markers, the newest of each key first (docs/adr/0034).

`age_rank` is VERSION_MAX minus the version. `object_id` is the row of the version, or NULL for a delete marker.
`is_null` is 1 for the null version of the key.
"""

VERSION_FLOORS = _table(
    "version_floors",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    Column("name", Utf8(NAME_BYTES_MAX), primary_key=True),
    _bigint("version"),
    Index("version_floors_by_version", "version"),
)
"""The greatest number of a version, or delete marker, that was removed from a key in the last week (floors.py)."""

OUTBOX = _table(
    "outbox",
    Column("event_id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("topic", Utf8(TOPIC_BYTES_MAX), nullable=False),
    Column("slot", SmallInteger, nullable=False),
    Column("message_key", Bytes(BUCKET_BYTES_MAX + 1 + NAME_BYTES_MAX), nullable=False),
    _bigint("sequencer"),
    _bigint("created_ms"),
    Column("body", Bytes(EVENT_BYTES_MAX), nullable=False),
    Index("outbox_by_queue", "topic", "slot", "event_id"),
    sqlite_autoincrement=True,
)
"""Events of buckets with notifications that wait to be sent (objects/outbox.py, docs/adr/0059). `slot` is that of the
bucket, as in `waiting`."""

BUCKET_USAGE = _table(
    "bucket_usage",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    _bigint("bytes"),
    _bigint("objects"),
    _bigint("changed_bytes"),
    _bigint("changed_objects"),
    _bigint("since_ms"),
    _bigint("counted_ms", nullable=True),
)
"""What each metered bucket holds, apart from what is in `usage_changes` (objects/usage.py, docs/adr/0058).
`changed_bytes` and `changed_objects` add up all that was added and removed. `counted_ms` is NULL until its objects are
counted: then `bytes` and `objects` have only the changes since `since_ms`."""

USAGE_CHANGES = _table(
    "usage_changes",
    Column("change_id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("bucket", Utf8(BUCKET_BYTES_MAX), nullable=False),
    _bigint("bytes"),
    _bigint("objects"),
    _bigint("changed_bytes"),
    _bigint("changed_objects"),
    Index("usage_changes_by_bucket", "bucket"),
    sqlite_autoincrement=True,
)
"""Changes of metered buckets, a row for each transaction and bucket, until they are added to `bucket_usage`."""

JOURNAL = _table(
    "journal",
    Column("journal_id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    _bigint("created_ms"),
    Column("body", Bytes(BODY_BYTES_MAX), nullable=False),
    sqlite_autoincrement=True,
)
"""It has what users have deleted, until GC has written that into the store (objects/journal.py, docs/adr/0065). A row
has the entries of one transaction, or some of them."""

SURVIVAL = _table(
    "survival",
    Column("bucket", Utf8(BUCKET_BYTES_MAX), primary_key=True),
    _bigint("counted_ms"),
    Column("counts", Bytes(COUNTS_BYTES), nullable=False),
)
"""How long objects live, by bucket (docs/adr/0033). The empty bucket stands for all buckets without a row of their own.
`counted_ms` is the time to which the counts have decayed; in the row of the empty bucket, the time of the last survey.
"""

STORE_INFO = _table(
    "store_info",
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)
"""Facts about the whole store: `geometry` as JSON, and `store_id`, which its pools or folders contain as well. Also the
holders of leases: `holder of NAME`, with an epoch and a process."""

STORED_TOTALS = _table(
    "stored_totals",
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)
"""A few rows of JSON: `totals` (totals.py), `scrub` (scrubbing.py), notes (notes.py) and the bytes of deleted blocks
(deleted_bytes.py). This is a separate table, so that daemons can write it without the right to change `store_info`."""
