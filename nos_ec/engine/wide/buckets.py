"""The rows and documents of a wide bucket (docs/adr/0068).

The first cell of the bucket has its row, grants and documents: what they say holds for all slices. In its other cells
it has a row only so that these know whose it is, and that it is wide; and copies of the documents that the transactions
of a cell read in its own database (docs/adr/0073). The row in the first cell decides whether the bucket exists. It is
the last one that is created and the first one that is deleted, so that a crash in between leaves nothing that anyone
sees, and both may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog

from nos_ec.core.errors import Conflict, InvalidInput, NosError, Transient
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import (
    BucketRecord,
    BucketRow,
    Buckets,
    BucketState,
    CannedAcl,
    DocumentKind,
    Rights,
    Versions,
)
from nos_ec.ports.metadata.directory import encode_slices

COPIED = frozenset([DocumentKind.NOTIFICATION])
"""The documents of which each cell of a wide bucket has a copy, because its transactions read them there."""
_COPY_TRIES = 10
_LIST_MS_MAX = 1_000

_log = structlog.get_logger(__name__)


class SliceMetadata(Buckets, Versions, Protocol):
    """The parts of the metadata of a cell that a wide bucket needs."""


def copy_documents(first: BucketState, other: Buckets, name: str, now_ms: int, *, is_recorded: bool = True) -> bool:
    """Make the copies of a bucket's documents in another cell say what its first cell says now. Returns whether they
    were changed. May be repeated, also by several callers at once: each of them compares again after it has written, so
    the last one leaves what the first cell says. `is_recorded`: the change is recorded for a rebuild of the metadata,
    which needs the right to store objects. Raises Transient, also if the documents change again and again."""
    is_changed, change = False, other.set_bucket_document if is_recorded else other.correct_document
    for _ in range(_COPY_TRIES):
        wanted = first.bucket_documents(name, COPIED)
        known = other.bucket_documents(name, COPIED)
        if known == wanted:
            return is_changed
        for kind in COPIED:
            if known.get(kind) != wanted.get(kind):
                if not change(name, kind, wanted.get(kind), now_ms):
                    return is_changed  # the bucket was deleted there, and its copies with it
                is_changed = True
                kill_point("wide.document_copied")
    raise Transient(f"the documents of bucket {name} were changed again and again; try again")


class WideBuckets:
    """`BucketState` of wide buckets with the same cells. Safe to call from several threads."""

    def __init__(self, slices: Sequence[str], metadata_of: Callable[[str], SliceMetadata]) -> None:
        """`slices` are the names of the cells, as in DirectoryRow. `metadata_of` returns the metadata of a cell, and
        raises Transient while it is away."""
        self._slices = slices
        self._first, *self._rest = dict.fromkeys(slices)
        self._metadata_of = metadata_of

    @property
    def _home(self) -> SliceMetadata:
        return self._metadata_of(self._first)

    def _others(self) -> list[SliceMetadata]:
        return [self._metadata_of(name) for name in self._rest]

    # --- rows -------------------------------------------------------------------------------------
    def create_bucket(self, name: str, owner: str, acl: CannedAcl, now_ms: int) -> bool:
        """See BucketState. Completes what an interrupted call has begun, for the same owner or another one."""
        if self.bucket(name) is not None:
            return False
        for other in self._others():
            self._enter(other, name, owner, now_ms)
            kill_point("wide.slice_created")
        is_created = self._home.create_bucket(name, owner, acl, now_ms)
        # Another call may have been faster, perhaps for another owner, or a deletion may have removed rows meanwhile.
        self._mark_slices(name, now_ms)
        return is_created

    def bucket(self, name: str) -> BucketRow | None:
        """See BucketState. A bucket that was deleted exists again if an object was put into any slice meanwhile."""
        row = self._home.bucket(name)
        if row is not None:
            return row
        for other in self._others():
            found = other.bucket(name)
            if found is not None and _holds_object(other, name):
                return found
        return None  # a row in another cell alone comes from a creation or deletion that was interrupted

    def delete_bucket(self, name: str, now_ms: int) -> bool:
        """See BucketState. All slices are searched for objects before anything is removed. An object that is put into
        another cell than the first one meanwhile makes the bucket exist again."""
        others = self._others()
        if any(_holds_object(other, name) for other in others):
            raise Conflict(f"bucket {name} still holds objects, or versions of them; delete them first")
        is_deleted = self._home.delete_bucket(name, now_ms)
        kill_point("wide.first_deleted")
        for other in others:
            try:
                self._leave(other, name, now_ms)
            except NosError as error:  # the bucket is deleted; what is left is replaced when it is created again
                _log.warning("the row of a deleted bucket is left in a cell", bucket=name, error=str(error))
        self._mark_slices(name, now_ms)  # if it was created again meanwhile
        return is_deleted

    def _leave(self, other: SliceMetadata, name: str, now_ms: int) -> None:
        """Remove the row and the copies of a deleted bucket in a cell that is not its first."""
        try:
            other.delete_bucket(name, now_ms)
        except Conflict:  # an object was put there meanwhile, so the bucket exists again, without its documents
            copy_documents(self._home, other, name, now_ms)
        kill_point("wide.slice_deleted")

    def _enter(self, other: SliceMetadata, name: str, owner: str, now_ms: int) -> None:
        """Give the bucket a row in a cell that is not its first, with its mark and copies."""
        known = other.bucket(name)
        if known is None:
            row = BucketRow(name, owner, now_ms)
            other.restore_buckets([BucketRecord(row, {}, {DocumentKind.WIDE: self._mark})])
        if known is None or known.owner != owner:
            other.set_bucket_owner(name, owner, now_ms)  # also meters the bucket if the owner has a quota
        copy_documents(self._home, other, name, now_ms)
        # Also if it has this mark: a repeated call records what an earlier one has changed, and failed to record.
        other.set_bucket_document(name, DocumentKind.WIDE, self._mark, now_ms)

    def _mark_slices(self, name: str, now_ms: int) -> None:
        """Give an existing bucket the rows, marks and copies that it lacks. GC finds the rules of a bucket, and
        corrects its copies, by its mark in each cell."""
        row = self._home.bucket(name)
        if row is None:
            return
        self._home.set_bucket_document(name, DocumentKind.WIDE, self._mark, now_ms)
        for other in self._others():
            self._enter(other, name, row.owner, now_ms)

    @property
    def _mark(self) -> bytes:
        return encode_slices(self._slices)

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """See BucketState: those of the first cell."""
        return self._home.buckets_of(owner, after, limit)

    def set_bucket_owner(self, name: str, owner: str, now_ms: int) -> bool:
        """See BucketState. The row of the first cell decides. It is changed last, so that a call that fails in between
        can be repeated."""
        if self.bucket(name) is None:
            return False
        for other in self._others():
            self._enter(other, name, owner, now_ms)
        return self._home.set_bucket_owner(name, owner, now_ms)

    # --- documents, which are read in the first cell ---------------------------------------------------
    def set_bucket_acl(self, name: str, acl: CannedAcl, now_ms: int, grants: bytes | None = None) -> bool:
        """See BucketState."""
        return self._home.set_bucket_acl(name, acl, now_ms, grants)

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        """See BucketState."""
        return self._home.bucket_document(name, kind)

    def bucket_documents(self, name: str, kinds: Collection[DocumentKind]) -> dict[DocumentKind, bytes]:
        """See BucketState."""
        return self._home.bucket_documents(name, kinds)

    def set_bucket_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        """See BucketState. Raises InvalidInput for a quota, whose parts would limit each cell separately. A call for a
        document of COPIED that raises Transient may have changed it in some of the cells, among them the first; GC of
        the others corrects that, unless the call is repeated."""
        if kind is DocumentKind.QUOTA and body is not None:
            raise InvalidInput(f"{name} is a wide bucket, which cannot have a quota")
        if kind in COPIED:
            self._others()  # while one of the cells is away, nothing is changed
        elif kind is DocumentKind.LIFECYCLE and body is not None:
            self._mark_slices(name, now_ms)
        if not self._home.set_bucket_document(name, kind, body, now_ms):
            return False
        if kind in COPIED:
            kill_point("wide.document_set")
            self._mark_slices(name, now_ms)
        return True

    def grant(self, name: str, account: str, rights: Rights, now_ms: int) -> bool:
        """See BucketState."""
        return self._home.grant(name, account, rights, now_ms)

    def grants(self, name: str) -> dict[str, Rights]:
        """See BucketState."""
        return self._home.grants(name)


def _holds_object(metadata: Versions, name: str) -> bool:
    """Return whether a cell has a version of an object of the bucket, or a delete marker."""
    return bool(metadata.list_versions(name, "", "", ("", None), 1, _LIST_MS_MAX).entries)
