"""The buckets of a store, or of one cell, that have lifecycle rules, and these rules.

The rules of a wide bucket are in its first cell alone, as all its documents are (docs/adr/0068). Its other cells read
them there, and keep no copy (docs/adr/0072): nothing expires by rules that were changed since, and nothing of the
bucket expires in them while the first cell is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import structlog

from nos_ec.core.errors import Conflict, NosError
from nos_ec.core.expiry import ExpiryRule, decode_rules
from nos_ec.ports.metadata import Buckets, BucketState, Directory, DocumentKind
from nos_ec.ports.metadata.directory import decode_slices, places_of

BUCKETS_PAGE = 20

_log = structlog.get_logger(__name__)


class OtherCells(NamedTuple):
    """The cells of a store, as `cell` sees them. `documents_in` yields the documents in another cell, which raise
    Moved if the bucket is not served there, and may be used after the block; `directory` yields the directory. Both
    raise NosError while that cell cannot be read."""

    cell: str
    documents_in: Callable[[str], AbstractContextManager[BucketState]]
    directory: Callable[[], AbstractContextManager[Directory]]


class RuledBucket(NamedTuple):
    """A bucket that may have rules. `body` has those that are in this cell, if there are any. `mark` is None, except
    for a wide bucket whose rules are in another cell: its document WIDE. Slices of other cells may have been moved
    since it was written."""

    name: str
    body: bytes | None
    mark: bytes | None = None


class FoundRules(NamedTuple):
    """The rules of a bucket, which may be none, and where its other documents are."""

    rules: Sequence[ExpiryRule]
    documents: BucketState


class LifecycleRules:
    """The lifecycle rules of all buckets. Safe to call from several threads if `others` is."""

    def __init__(self, metadata: Buckets, others: OtherCells | None = None) -> None:
        """`others` is None for a store without cells."""
        self._metadata = metadata
        self._others = others

    def page(self, after: str) -> list[RuledBucket]:
        """Return one page of the buckets that may have rules, by UTF-8 byte order of their names. Raises Transient."""
        bodies = dict(self._metadata.documents_of(DocumentKind.LIFECYCLE, after, BUCKETS_PAGE))
        if self._others is None:
            return [RuledBucket(name, body) for name, body in bodies.items()]
        marks = dict(self._metadata.documents_of(DocumentKind.WIDE, after, BUCKETS_PAGE))
        names = sorted(bodies.keys() | marks.keys(), key=str.encode)[:BUCKETS_PAGE]
        return [self._ruled(name, bodies.get(name), marks.get(name)) for name in names]

    def of(self, bucket: str) -> RuledBucket:
        """Return one bucket. Raises Transient."""
        kinds = [DocumentKind.LIFECYCLE] + ([DocumentKind.WIDE] if self._others is not None else [])
        found = self._metadata.bucket_documents(bucket, kinds)
        return self._ruled(bucket, found.get(DocumentKind.LIFECYCLE), found.get(DocumentKind.WIDE))

    def _ruled(self, name: str, body: bytes | None, mark: bytes | None) -> RuledBucket:
        if mark is None or self._others is None or decode_slices(mark)[0] == self._others.cell:
            return RuledBucket(name, body)
        return RuledBucket(name, None, mark)

    def read(self, bucket: RuledBucket) -> FoundRules:
        """Return the rules of a bucket as they are now in its first cell, or as they were when its page was read if
        that is this cell. Raises Corrupt for rules that cannot be read, Conflict if the first cell does not know the
        bucket as the same one, and NosError while that cell cannot be asked."""
        if bucket.mark is None or self._others is None:
            return FoundRules(() if bucket.body is None else decode_rules(bucket.body), self._metadata)
        with self._others.directory() as directory:
            place = directory.directory_row(bucket.name)
        if place is not None and self._others.cell not in place.cells:
            return FoundRules((), self._metadata)  # it was moved away
        slices = decode_slices(bucket.mark)
        if place is None or places_of(self._others.cell, place.slices) != places_of(self._others.cell, slices):
            raise Conflict("the directory does not have the bucket with the same slices as this cell")
        with self._others.documents_in(place.home) as documents:
            body = documents.bucket_document(bucket.name, DocumentKind.LIFECYCLE)
        return FoundRules(() if body is None else decode_rules(body), documents)

    def __iter__(self) -> Iterator[tuple[str, Sequence[ExpiryRule] | None]]:
        """Yield all buckets with rules, and their rules; None for rules that cannot be read, or not now. Raises
        Transient."""
        after = ""
        while page := self.page(after):
            for bucket in page:
                try:
                    rules = self.read(bucket).rules
                except NosError as error:
                    _log.error("lifecycle rules not read", bucket=bucket.name, error=str(error))
                    yield bucket.name, None
                else:
                    if rules:
                        yield bucket.name, rules
            after = page[-1].name
