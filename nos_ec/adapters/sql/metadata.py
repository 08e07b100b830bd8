"""The metadata store on SQLite, MySQL and MariaDB: one object that implements the whole port.

Each part of the port has a class next to the SQL that it runs, in blocks/, objects/, buckets/ and operator/. Read it
together with its protocol in nos_ec.ports.metadata, which documents the methods. tables/base.py has their base class
and the decorators that make a transaction of a method.

`SqlMetadata` inherits all parts, because they share one `Transactions` (connections and retries) and one geometry, and
because users that need several parts get one object. With delegation, every method would be listed twice.
"""

from __future__ import annotations

from nos_ec.adapters.sql.blocks.block_rows import SqlBlocks
from nos_ec.adapters.sql.blocks.landing_segments import SqlLandingSegments
from nos_ec.adapters.sql.blocks.leases import SqlLeases
from nos_ec.adapters.sql.buckets.access_keys import SqlAccessKeys
from nos_ec.adapters.sql.buckets.bucket_rows import SqlBuckets
from nos_ec.adapters.sql.buckets.directory import SqlDirectory
from nos_ec.adapters.sql.buckets.moved_versions import SqlMoving
from nos_ec.adapters.sql.buckets.moves import SqlMoves
from nos_ec.adapters.sql.driver.engine import MYSQL_READ_S
from nos_ec.adapters.sql.objects.entries import SqlListings
from nos_ec.adapters.sql.objects.floors import SqlFloors
from nos_ec.adapters.sql.objects.journal import SqlJournal
from nos_ec.adapters.sql.objects.landing import SqlLandingQueue
from nos_ec.adapters.sql.objects.large_puts import SqlLargePuts
from nos_ec.adapters.sql.objects.locks import SqlLocks
from nos_ec.adapters.sql.objects.object_rows import SqlObjects
from nos_ec.adapters.sql.objects.outbox import SqlOutbox
from nos_ec.adapters.sql.objects.packing import SqlPacking
from nos_ec.adapters.sql.objects.puts import SqlPuts
from nos_ec.adapters.sql.objects.trash import SqlTrash
from nos_ec.adapters.sql.objects.uploads import SqlUploads
from nos_ec.adapters.sql.objects.usage import SqlUsage
from nos_ec.adapters.sql.objects.versions import SqlVersions
from nos_ec.adapters.sql.operator.explanations import SqlExplanations
from nos_ec.adapters.sql.operator.inspection import SqlInspection
from nos_ec.adapters.sql.operator.notes import SqlNotes
from nos_ec.adapters.sql.operator.rebuilding import SqlRebuilding
from nos_ec.adapters.sql.operator.repairs import SqlRepairs
from nos_ec.adapters.sql.operator.scrubbing import SqlScrubbing
from nos_ec.adapters.sql.operator.survival import SqlSurvival
from nos_ec.adapters.sql.operator.totals import SqlTotals
from nos_ec.adapters.sql.tables import store_info
from nos_ec.adapters.sql.tables.migrate import open_checked
from nos_ec.core.geometry import Geometry
from nos_ec.ports.metadata import Metadata


def open_metadata(url: str, *, replica: bool = False, read_s: int = MYSQL_READ_S) -> SqlMetadata:
    """Open the metadata store at `url`: sqlite:////path/meta.db or mysql+pymysql://user:password@host:port/database.

    A read-only server is not read, because its data may be old, unless `replica` allows it. `read_s`: how long a
    statement on a server may take.

    Raises ConfigError (bad URL, no store there, another schema version; the message names the command to run),
    Transient (unreachable server, with host and port), Corrupt (not a SQLite file).
    """
    return SqlMetadata(open_checked(url, read_s), replica=replica)


class SqlMetadata(
    SqlObjects,
    SqlListings,
    SqlPuts,
    SqlLargePuts,
    SqlTrash,
    SqlVersions,
    SqlFloors,
    SqlUploads,
    SqlLocks,
    SqlPacking,
    SqlLandingQueue,
    SqlBlocks,
    SqlLandingSegments,
    SqlLeases,
    SqlBuckets,
    SqlAccessKeys,
    SqlDirectory,
    SqlMoves,
    SqlMoving,
    SqlOutbox,
    SqlUsage,
    SqlJournal,
    SqlInspection,
    SqlRepairs,
    SqlExplanations,
    SqlScrubbing,
    SqlNotes,
    SqlSurvival,
    SqlRebuilding,
    SqlTotals,
):
    """`Metadata` on an engine whose tables exist. Safe to call from several threads and several processes."""

    def bind_geometry(self, geometry: Geometry) -> None:
        self._write(store_info.bind_geometry, geometry)
        self._geometry = geometry

    def is_new(self) -> bool:
        return self._read(store_info.find_geometry) is None

    def claim_store_id(self, store_id: str) -> str:
        return self._write(store_info.claim_store_id, store_id)

    def find_store_id(self) -> str | None:
        return self._read(store_info.find_store_id)

    def require_unblocked(self) -> None:
        self._transactions.lock_waits.require_none()

    def close(self) -> None:
        self._transactions.close()


def _conforms_to_port(store: SqlMetadata) -> Metadata:
    """Make mypy fail when a signature of a part does not fit the port. Nothing calls this."""
    return store
