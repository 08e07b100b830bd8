"""The metadata store on SQLite, MySQL and MariaDB: the port, method by method, each one transaction.

What each transaction does is in the modules named after their subjects: objects, entries, puts, trash, buckets,
access_keys, uploads, commits, blocks, leases, landing, landing_segments, inspection, repairs, explanations, scrubbing,
notes, rebuilding, store_info, survival, totals, versions. This module and upkeep.py only say which function a
method runs, and whether it writes.

Each part of the port has a class in one of them, to be read beside its protocol. `SqlMetadata` inherits them all,
because the parts share one `Transactions` (connections and retries) and one geometry, and because users that need
several parts get one object. With delegation, every method would be listed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from nos_ec.adapters.sql.blocks.block_rows import SqlBlocks
from nos_ec.adapters.sql.blocks.landing_segments import SqlLandingSegments
from nos_ec.adapters.sql.blocks.leases import SqlLeases
from nos_ec.adapters.sql.buckets.access_keys import SqlAccessKeys
from nos_ec.adapters.sql.buckets.bucket_rows import SqlBuckets
from nos_ec.adapters.sql.objects import commits, entries, landing, large_puts, object_rows, puts, trash, versions
from nos_ec.adapters.sql.operator.explanations import SqlExplanations
from nos_ec.adapters.sql.operator.inspection import SqlInspection
from nos_ec.adapters.sql.operator.notes import SqlNotes
from nos_ec.adapters.sql.operator.rebuilding import SqlRebuilding
from nos_ec.adapters.sql.operator.repairs import SqlRepairs
from nos_ec.adapters.sql.operator.scrubbing import SqlScrubbing
from nos_ec.adapters.sql.operator.survival import SqlSurvival
from nos_ec.adapters.sql.operator.totals import SqlTotals
from nos_ec.adapters.sql.tables import store_info
from nos_ec.adapters.sql.tables.base import SqlPart
from nos_ec.adapters.sql.tables.look_up import FAILURES
from nos_ec.adapters.sql.tables.migrate import open_checked
from nos_ec.adapters.sql.upkeep import (
    SqlUploads,
    SqlVersions,
)
from nos_ec.core.conditions import Condition
from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.formats.messages import NamedVersion, PackRequest
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.ports.metadata import (
    EntryPage,
    GroupCommit,
    LandedMove,
    LandingDeletion,
    Lease,
    Metadata,
    NewLargeObject,
    NewObject,
    ObjectRow,
    ObjectSummary,
    Segment,
    TrashMark,
    TrashPage,
)


def open_metadata(url: str, *, replica: bool = False) -> SqlMetadata:
    """Open the metadata store at `url`: sqlite:////path/meta.db or mysql+pymysql://user:password@host:port/database.

    A read-only server is not read, because its data may be old, unless `replica` allows it.

    Raises ConfigError (bad URL, no store there, another schema version; the message names the command to run),
    Transient (unreachable server, with host and port), Corrupt (not a SQLite file).
    """
    return SqlMetadata(open_checked(url), replica=replica)


class _SqlObjects(SqlPart):
    """`Objects` of the port."""

    def record_puts(
        self, objects: Sequence[NewObject], now_ms: int, *, together: bool = False
    ) -> list[ObjectRow | NosError]:
        """See the port."""
        if not objects:
            return []
        try:
            return self._write_again(puts.record_puts, objects, now_ms, together=together)
        except puts.RecordedBefore:
            return self._write_again(puts.record_puts, objects, now_ms, together=together, again=True)

    def next_version(self, key: ObjectKey, now_ms: int, *, of_all: bool = False, conditional: bool = False) -> int:
        """See the port."""
        number = versions.number_for if of_all else object_rows.version_for
        return self._read(number, key, now_ms, conditional=conditional)

    def record_large(self, new: NewLargeObject, lease: Lease, now_ms: int) -> bool | NosError:
        """See the port."""
        return self._write_again(large_puts.record_large, self._bound(), new, lease, now_ms)

    def set_attributes(self, row: ObjectRow, attributes: bytes) -> bool:
        """See the port."""
        return self._write(object_rows.set_attributes, row, attributes)

    def get(self, key: ObjectKey) -> ObjectRow:
        """See the port."""
        row = self._find(key)
        if row is None:
            raise NotFound(f"object {key} does not exist", key=key)
        return row

    def segments(self, object_id: int, version: int) -> list[Segment]:
        """See the port."""
        return self._read(object_rows.segments, object_id, version)

    def delete(
        self, key: ObjectKey, now_ms: int, until_ms: int | None = None, condition: Condition | None = None
    ) -> ObjectRow:
        """See the port."""
        return self._write(object_rows.remove, key, now_ms, until_ms, condition)

    def delete_many(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        """See the port."""
        return self._write(object_rows.remove_listed, keys, now_ms, until_ms) if keys else []

    def delete_unchanged(self, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        """See the port."""
        return self._write(object_rows.remove_unchanged, rows, now_ms, until_ms) if rows else []

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """See the port."""
        return self._read(entries.list_objects, bucket, prefix, after, limit)

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """See the port."""
        return self._read(object_rows.list_names, bucket, prefix, after, limit)

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """See the port."""
        return self._read(
            entries.list_entries, entries.Asked(bucket, prefix, delimiter, after, limit, entries.end_of(budget_ms))
        )

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """See the port."""
        return self._read(
            entries.list_summaries, entries.Asked(bucket, prefix, delimiter, after, limit, entries.end_of(budget_ms))
        )

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """See the port."""
        return self._read(object_rows.list_buckets, after, limit)

    def due_objects(self, now_ms: int, limit: int, slots: Collection[int]) -> list[ObjectRow]:
        """See the port."""
        return self._read(object_rows.due, now_ms, limit, slots)

    def oldest_landing_id(self) -> LandingId | None:
        """See the port."""
        return self._read(object_rows.oldest_landing_id)

    def mark_published(self, rows: Sequence[ObjectRow], due_ms: int) -> int:
        """See the port."""
        return self._write(object_rows.mark_published, rows, due_ms)

    def complete(self, named: Sequence[NamedVersion], due_ms: int) -> dict[NamedVersion, tuple[PackRequest, bytes]]:
        """See the port."""
        return self._read(object_rows.complete, named, due_ms) if named else {}

    def still_landed(self, requests: Sequence[PackRequest]) -> dict[PackRequest, bytes]:
        """See the port."""
        return self._read(object_rows.still_landed, requests)

    def _find(self, key: ObjectKey) -> ObjectRow | None:
        if self._look_ups is not None:
            try:
                return self._look_ups.find(key)
            except FAILURES:
                pass  # the ordinary read overcomes the failure, or reports it
        return self._read(object_rows.find, key)


class _SqlTrash(SqlPart):
    """`Trash` of the port."""

    def trash_page(self, before: TrashMark | None, limit: int, bucket: str = "", prefix: str = "") -> TrashPage:
        """See the port."""
        return self._read(trash.page, before, limit, bucket, prefix)

    def expired_trash(self, now_ms: int, limit: int, after: TrashMark | None = None) -> list[ObjectRow]:
        """See the port."""
        return self._read(trash.expired, now_ms, limit, after)

    def purge_trash(self, rows: Sequence[ObjectRow], now_ms: int) -> list[ObjectRow]:
        """See the port."""
        return self._write(trash.purge, rows, now_ms) if rows else []

    def undelete(self, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        """See the port."""
        return self._write(versions.undelete, rows) if rows else []


class _SqlPacking(SqlPart):
    """What of `Blocks` changes rows of objects."""

    def commit_group(self, commit: GroupCommit) -> frozenset[int]:
        """See the port."""
        return self._write(commits.commit_group, self._bound(), commit)


class _SqlLandingQueue(SqlPart):
    """`LandingQueue` of the port."""

    def reserve_landing(self, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        """See the port."""
        self._write(landing.reserve, landing_ids, not_before_ms)

    def due_deletions(self, now_ms: int, limit: int) -> list[LandingDeletion]:
        """See the port."""
        return self._read(landing.due, now_ms, limit)

    def first_deletion_ms(self) -> int | None:
        """See the port."""
        return self._read(landing.first_due_ms)

    def doom_landing(self, verified: Mapping[LandingId, BlockId | None]) -> frozenset[LandingId]:
        """See the port."""
        return self._write(landing.doom, verified) if verified else frozenset()

    def revert_to_landing(self, deletion: LandingDeletion, now_ms: int) -> bool:
        """See the port."""
        return self._write(landing.revert, deletion, now_ms)

    def postpone_deletion(self, landing_ids: Sequence[LandingId], not_before_ms: int) -> None:
        """See the port."""
        self._write(landing.postpone, landing_ids, not_before_ms)

    def forget_landing(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """See the port."""
        return self._write(landing.forget, landing_ids) if landing_ids else frozenset()

    def queued_copy(self, row: ObjectRow, first: LandingId, last: LandingId) -> LandingId | None:
        """See the port."""
        return self._read(landing.queued_copy, row, first, last)

    def landing_known(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """See the port."""
        return self._read(landing.known, landing_ids)

    def landing_needed(self, landing_ids: Sequence[LandingId]) -> frozenset[LandingId]:
        """See the port."""
        return self._read(landing.needed, landing_ids)


class _SqlLandedObjects(SqlPart):
    """What of `LandingSegments` changes rows of objects."""

    def make_due(self, rows: Sequence[ObjectRow], now_ms: int) -> int:
        """See the port."""
        return self._write(object_rows.make_due, rows, now_ms) if rows else 0

    def move_landed(self, moves: Sequence[LandedMove]) -> frozenset[LandingId]:
        """See the port."""
        return self._write(landing.move, moves) if moves else frozenset()


class SqlMetadata(
    _SqlObjects,
    _SqlTrash,
    SqlVersions,
    SqlBuckets,
    SqlAccessKeys,
    SqlUploads,
    SqlLeases,
    SqlBlocks,
    _SqlPacking,
    _SqlLandingQueue,
    SqlLandingSegments,
    _SqlLandedObjects,
    SqlSurvival,
    SqlTotals,
    SqlInspection,
    SqlRepairs,
    SqlExplanations,
    SqlScrubbing,
    SqlNotes,
    SqlRebuilding,
):
    """`Metadata` on an engine whose tables exist. Safe to call from several threads and several processes."""

    def bind_geometry(self, geometry: Geometry) -> None:
        """See the port."""
        self._write(store_info.bind_geometry, geometry)
        self._geometry = geometry

    def is_new(self) -> bool:
        """See the port."""
        return self._read(store_info.find_geometry) is None

    def claim_store_id(self, store_id: str) -> str:
        """See the port."""
        return self._write(store_info.claim_store_id, store_id)

    def find_store_id(self) -> str | None:
        """See the port."""
        return self._read(store_info.find_store_id)

    def require_unblocked(self) -> None:
        """See the port."""
        self._transactions.lock_waits.require_none()

    def close(self) -> None:
        """See the port."""
        self._transactions.close()


def _conforms_to_port(store: SqlMetadata) -> Metadata:
    """For mypy alone: it fails when a signature here no longer fits the port."""
    return store
