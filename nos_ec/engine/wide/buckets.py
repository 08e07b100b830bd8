"""The rows and documents of a wide bucket (docs/adr/0068).

The first cell of the bucket has its row, grants and documents: what they say holds for all slices. In its other cells
it has a row only so that these know whose it is, and that it is wide. A bucket is created there first and deleted there
first, so that a crash in between leaves nothing that anyone sees, and both may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nos_ec.core.errors import Conflict, InvalidInput
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.metadata import BucketRecord, BucketRow, Buckets, CannedAcl, DocumentKind, Rights
from nos_ec.ports.metadata.directory import encode_slices

NOT_WIDE = frozenset([DocumentKind.NOTIFICATION, DocumentKind.QUOTA])
"""The documents that a wide bucket cannot have, because the transactions of a cell read them in the database of this
cell."""


class WideBuckets:
    """`BucketState` of wide buckets with the same cells. Safe to call from several threads."""

    def __init__(self, slices: Sequence[str], metadata_of: Callable[[str], Buckets]) -> None:
        """`slices` are the names of the cells, as in DirectoryRow. `metadata_of` returns the metadata of a cell, and
        raises Transient while it is away."""
        self._slices = slices
        self._first, *self._rest = dict.fromkeys(slices)
        self._metadata_of = metadata_of

    @property
    def _home(self) -> Buckets:
        return self._metadata_of(self._first)

    def _others(self) -> list[Buckets]:
        return [self._metadata_of(name) for name in self._rest]

    # --- rows -------------------------------------------------------------------------------------
    def create_bucket(self, name: str, owner: str, acl: CannedAcl, now_ms: int) -> bool:
        """See BucketState. Completes what an interrupted call has begun, for the same owner or another one."""
        if self.bucket(name) is not None:
            return False
        for other in self._others():
            self._enter(other, name, owner, now_ms)
            kill_point("wide.slice_created")
        if not self._home.create_bucket(name, owner, acl, now_ms):
            if (row := self._home.bucket(name)) is not None:  # another call was faster, perhaps for another owner
                for other in self._others():
                    self._enter(other, name, row.owner, now_ms)
            return False
        self._home.set_bucket_document(name, DocumentKind.WIDE, self._mark, now_ms)
        return True

    def bucket(self, name: str) -> BucketRow | None:
        """See BucketState. A bucket that was deleted exists again if an object was put into any slice meanwhile."""
        row = self._home.bucket(name)
        if row is not None:
            return row
        for other in self._others():
            found = other.bucket(name)
            if found is not None and other.bucket_document(name, DocumentKind.WIDE) is None:
                return found
        return None  # a marked row in another cell alone comes from a creation that was interrupted

    def delete_bucket(self, name: str, now_ms: int) -> bool:
        """See BucketState."""
        row, others = self._home.bucket(name), self._others()
        try:
            for other in others:
                other.delete_bucket(name, now_ms)
                kill_point("wide.slice_deleted")
            return self._home.delete_bucket(name, now_ms)
        except Conflict:
            if row is not None:
                for other in others:
                    self._enter(other, name, row.owner, now_ms)
            raise

    def _enter(self, other: Buckets, name: str, owner: str, now_ms: int) -> None:
        """Give the bucket a row in a cell that is not its first: together with its mark, because a row without it
        means that an object was put into a deleted bucket."""
        known = other.bucket(name)
        if known is None:
            row = BucketRow(name, owner, now_ms)
            other.restore_buckets([BucketRecord(row, {}, {DocumentKind.WIDE: self._mark})])
        if known is None or known.owner != owner:
            other.set_bucket_owner(name, owner, now_ms)  # also meters the bucket if the owner has a quota
        other.set_bucket_document(name, DocumentKind.WIDE, self._mark, now_ms)

    def _mark_slices(self, name: str, now_ms: int) -> None:
        """Give an existing bucket its rows and marks again: a deletion that was cut off has removed some. GC finds the
        rules of a bucket by its mark in each cell."""
        row = self._home.bucket(name)
        if row is None:
            return
        for other in self._others():
            self._enter(other, name, row.owner, now_ms)
        self._home.set_bucket_document(name, DocumentKind.WIDE, self._mark, now_ms)

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

    # --- documents, which only the first cell has ------------------------------------------------------
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
        """See BucketState. Raises InvalidInput for a document of NOT_WIDE."""
        if kind in NOT_WIDE and body is not None:
            raise InvalidInput(f"{name} is a wide bucket, which cannot have a {kind.value} configuration")
        if kind is DocumentKind.LIFECYCLE and body is not None:
            self._mark_slices(name, now_ms)
        return self._home.set_bucket_document(name, kind, body, now_ms)

    def grant(self, name: str, account: str, rights: Rights, now_ms: int) -> bool:
        """See BucketState."""
        return self._home.grant(name, account, rights, now_ms)

    def grants(self, name: str) -> dict[str, Rights]:
        """See BucketState."""
        return self._home.grants(name)
