"""How much buckets and accounts hold, and which share of their quotas that is (docs/S3.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Protocol

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.quotas.quota import Quota, account_of, account_record, decode
from nos_ec.ports.metadata import AccessKeys, Buckets, BucketUsage, DocumentKind, Sums, Usage

_PAGE_ROWS = 1000
NEAR = 0.9
"""The share of a quota from which it counts as nearly used up."""


class UseMetadata(Usage, Buckets, AccessKeys, Protocol):
    """The parts of the metadata that this reads."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a bucket or account holds, and its quota, which may be without limits. `held` is None while the objects of a
    bucket are being counted."""

    name: str
    is_account: bool
    quota: Quota
    held: Sums | None

    @property
    def share(self) -> float | None:
        """The greater share of the limits of bytes and objects that is used, as a ratio that may exceed 1. A soft limit
        counts where there is no hard one. None if nothing is limited, or not counted yet."""
        if self.held is None:
            return None
        quota = self.quota
        pairs = (
            (self.held.bytes, quota.soft_bytes if quota.hard_bytes is None else quota.hard_bytes),
            (self.held.objects, quota.soft_objects if quota.hard_objects is None else quota.hard_objects),
        )
        return max((max(0, held) / max(1, limit) for held, limit in pairs if limit is not None), default=None)


def bucket_uses(metadata: UseMetadata, after: str, limit: int) -> list[QuotaUse]:
    """Return one page of the metered buckets, by UTF-8 byte order of their names. Raises Transient."""
    page = metadata.bucket_usages(after, limit)
    stored = dict(_documents(metadata, after, page[-1].bucket)) if page else {}
    return [_of_bucket(one, stored.get(one.bucket)) for one in page]


def bucket_use(metadata: UseMetadata, bucket: str) -> QuotaUse:
    """Return the use of one bucket. Raises NotFound if it is not metered, Transient."""
    found = metadata.bucket_usage(bucket)
    if found is None:
        raise NotFound(f"bucket {bucket} is not metered; an operator can meter it: nos-ec usage {bucket} --start")
    return _of_bucket(found, metadata.bucket_document(bucket, DocumentKind.QUOTA))


def account_uses(metadata: UseMetadata, after: str, limit: int) -> list[QuotaUse]:
    """Return one page of the accounts with quotas, by name; ANONYMOUS is one that holds nothing. Runs a statement for
    each. Raises Transient."""
    found = []
    for record in metadata.access_keys(account_record(after), limit):
        account = account_of(record.access_key)
        if account is None:
            break
        found.append(QuotaUse(account, True, _quota(record.secret), metadata.account_usage(account)))
    return found


def account_use(metadata: UseMetadata, account: str) -> QuotaUse | None:
    """Return the use of one account; None if it has no quota. Raises Transient."""
    record = metadata.access_key(account_record(account))
    if record is None:
        return None
    return QuotaUse(account, True, _quota(record.secret), metadata.account_usage(account))


def nearest_to_quota(metadata: UseMetadata, limit: int) -> Sequence[QuotaUse]:
    """Return the buckets and accounts that use the greatest shares of their quotas, at most `limit`, the greatest share
    first. Reads all metered buckets, and one statement for each account with a quota. Raises Transient."""
    return nlargest(limit, (one for one in _all(metadata) if one.share is not None), key=lambda one: one.share or 0)


def _all(metadata: UseMetadata) -> Iterator[QuotaUse]:
    for read in (bucket_uses, account_uses):
        after = ""
        while page := read(metadata, after, _PAGE_ROWS):
            yield from page
            after = page[-1].name


def _documents(metadata: Buckets, after: str, last: str) -> Iterator[tuple[str, bytes]]:
    """Yield the quotas of the buckets after this name up to the last one."""
    while page := metadata.documents_of(DocumentKind.QUOTA, after, _PAGE_ROWS):
        yield from page
        after = page[-1][0]
        if after.encode() >= last.encode():
            return


def _of_bucket(found: BucketUsage, stored: bytes | None) -> QuotaUse:
    held = None if found.counted_ms is None else found.held
    return QuotaUse(found.bucket, False, Quota() if stored is None else _quota(stored), held)


def _quota(stored: bytes) -> Quota:
    """Return a stored quota; one that is damaged limits nothing, which PUTs log."""
    try:
        return decode(stored)
    except Corrupt:
        return Quota()
