"""The quota of a bucket or an account, as it is stored, and where it is stored.

The quota of a bucket is a document of the bucket. The quota of an account is the secret of a record among the access
keys, whose name no client can use, so whatever keeps access keys keeps it: dumps, and the store's own records.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.parts import PARTS_BUCKET
from nos_ec.core.tails import hidden_prefix

_ACCOUNT_PREFIX = "nos_ec:quota:"
"""A colon cannot be in the name of an access key."""
BEFORE_RECORDS = _ACCOUNT_PREFIX[:-1]
"""The names of all records with quotas follow this one."""
ANONYMOUS = "*anonymous*"
"""Stands for an account whose rates limit all requests without a signature. No account can have this name."""
LIMIT_MAX = 1 << 62
RATE_LEASE_PREFIX = "s3-rate-"
"""Prefix of the names of leases by which the processes that limit rates of accounts count each other. They guard no
blocks."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a bucket or an account; None: none. Above a soft limit, warnings are logged; what would exceed a
    hard one is refused. The rates are those of an account: requests, and bytes of bodies and answers."""

    soft_bytes: int | None = None
    hard_bytes: int | None = None
    soft_objects: int | None = None
    hard_objects: int | None = None
    requests_per_s: int | None = None
    bytes_per_s: int | None = None

    @property
    def has_limits(self) -> bool:
        """Return whether anything is limited."""
        return self != Quota()

    @property
    def limits_usage(self) -> bool:
        """Return whether bytes or objects are limited, so that the usage must be known."""
        return replace(self, requests_per_s=None, bytes_per_s=None).has_limits

    @property
    def has_rates(self) -> bool:
        """Return whether requests or their bytes are limited."""
        return self.requests_per_s is not None or self.bytes_per_s is not None

    def require_valid(self) -> None:
        """Raise InvalidInput for limits that are not integers or out of range, or a soft limit above the hard one."""
        for name, value in asdict(self).items():
            if value is not None and (type(value) is not int or not 0 <= value <= LIMIT_MAX):
                raise InvalidInput(f"{name} is {value}; it must be 0 to {LIMIT_MAX}")
        if 0 in (self.requests_per_s, self.bytes_per_s):
            raise InvalidInput("a rate must be at least 1 a second; to stop an account, disable its access keys")
        for soft, hard, what in (
            (self.soft_bytes, self.hard_bytes, "bytes"),
            (self.soft_objects, self.hard_objects, "objects"),
        ):
            if soft is not None and hard is not None and soft > hard:
                raise InvalidInput(f"the soft limit of {soft} {what} is above the hard limit of {hard}")


def encode(quota: Quota) -> bytes:
    """Return the bytes to store."""
    return json.dumps({name: value for name, value in asdict(quota).items() if value is not None}).encode()


def decode(stored: bytes) -> Quota:
    """Return what `encode` took. Raises Corrupt for any other bytes."""
    try:
        quota = Quota(**json.loads(stored))
        quota.require_valid()
    except (ValueError, TypeError, RecursionError, InvalidInput) as error:
        raise Corrupt(f"metadata damaged: a quota: {error}") from None
    return quota


def limits_usage(stored: bytes) -> bool:
    """Return whether a stored quota limits bytes or objects. One that is damaged may."""
    try:
        return decode(stored).limits_usage
    except Corrupt:
        return True


def account_record(account: str) -> str:
    """Return the name of the record with the quota of an account."""
    return _ACCOUNT_PREFIX + account


def account_of(access_key: str) -> str | None:
    """Return the account whose quota this record has; None if it is not such a record."""
    return access_key.removeprefix(_ACCOUNT_PREFIX) if access_key.startswith(_ACCOUNT_PREFIX) else None


def metered_bucket(bucket: str) -> str | None:
    """Return the bucket in which an object counts: parts of uploads count in the bucket of the upload. None for other
    hidden buckets, which are the store's own."""
    prefix = hidden_prefix(bucket)
    if prefix is None:
        return bucket
    return bucket[len(prefix) :] if prefix == PARTS_BUCKET else None
