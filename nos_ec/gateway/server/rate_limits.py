"""Limits the requests and bytes a second of accounts, and of all anonymous requests together (docs/adr/0058).

The quotas of all accounts are read with one statement, unless there are more than LISTED_MAX.

Each process has its share of an account's rate: the rate divided by the number of processes that limit accounts. Such a
process holds a lease, which others count. A process that never serves an account with a rate holds none, and so does
not take a share. A share that is not used for a second is lost: a burst is at most one second's share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import structlog

from nos_ec.core.errors import Corrupt, NosError, Transient
from nos_ec.core.quotas.quota import BEFORE_RECORDS, RATE_LEASE_PREFIX, Quota, account_of, account_record, decode
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import AccessKey, AccessKeys, Lease, Leases
from nos_ec.s3.errors import S3Error

_log = structlog.get_logger(__name__)

KNOWN_MS = 10_000
"""How long a process remembers the rates of an account."""
COUNT_MS = 10_000
"""How often processes are counted."""
LEASE_MS = 30_000
LISTED_MAX = 100
"""If more accounts have quotas, those of the accounts that send requests are looked up one by one."""
_ACCOUNTS_MAX = 10_000
_NONE = Quota()


class LimitsMetadata(AccessKeys, Leases, Protocol):
    """The parts of the metadata that this needs."""


@dataclass(slots=True)
class _Account:
    """The rates of an account, and what is left of this process's share: requests and bytes, as of `filled_ms`. Bytes
    fall below 0, because the length of an answer is known only when it is made."""

    quota: Quota
    filled_ms: int
    requests: float = 0.0
    bytes: float = 0.0
    is_new: bool = True

    def fill(self, now_ms: int, processes: int) -> None:
        """Add what the time since the last call has brought, up to one second's share."""
        passed_s = min(max(0, now_ms - self.filled_ms) / 1000, 3600.0)
        self.filled_ms = now_ms
        if self.quota.requests_per_s is not None:
            share = self.quota.requests_per_s / processes
            most = max(1.0, share)
            self.requests = most if self.is_new else min(most, self.requests + share * passed_s)
        if self.quota.bytes_per_s is not None:
            share = self.quota.bytes_per_s / processes
            self.bytes = share if self.is_new else min(share, self.bytes + share * passed_s)
        self.is_new = False

    def take(self, requests: int, size: int) -> None:
        """Take from what is limited. What is not limited makes no debt, in case it is limited later."""
        self.requests -= requests if self.quota.requests_per_s is not None else 0
        self.bytes -= size if self.quota.bytes_per_s is not None else 0


class RateLimits:
    """The rates of the accounts that a process serves. Safe to call from several threads."""

    def __init__(self, metadata: LimitsMetadata, clock: Clock, name: str) -> None:
        """`name` is unique among processes."""
        self._metadata = metadata
        self._clock = clock
        self._name = RATE_LEASE_PREFIX + name
        self._lock = Lock()
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._listed: Mapping[str, Quota] | None = None
        """The quotas of all accounts; None if they have not been read, or are too many."""
        self._list_ms = 0
        self._looked_up: OrderedDict[str, tuple[int, Quota]] = OrderedDict()
        self._lease: Lease | None = None
        self._processes = 1
        self._count_ms = 0

    def admit(self, account: str, received: int) -> None:
        """Take a request with a body of `received` bytes from the share. Raises S3Error (SlowDown) if none is left."""
        one = self._of(account)
        if one is None:
            return
        now_ms = self._clock.now_ms()
        self._count_processes(now_ms)
        with self._lock:
            one.fill(now_ms, self._processes)
            if (one.quota.requests_per_s is not None and one.requests < 1) or (
                one.quota.bytes_per_s is not None and one.bytes <= 0
            ):
                raise S3Error("SlowDown", "The account has reached its request rate; please reduce it.")
            one.take(1, received)

    def charge(self, account: str, sent: int) -> None:
        """Take the bytes of an answer from the share."""
        with self._lock:
            one = self._accounts.get(account)
            if one is not None:
                one.take(0, sent)

    def close(self) -> None:
        """Give up the lease."""
        if self._lease is not None:
            self._metadata.release_leases([self._lease])

    def _of(self, account: str) -> _Account | None:
        now_ms = self._clock.now_ms()
        quota = self._quota(account, now_ms)
        with self._lock:
            if not quota.has_rates:
                self._accounts.pop(account, None)
                return None
            one = self._accounts.setdefault(account, _Account(quota, now_ms))
            one.quota = quota
            _keep_newest(self._accounts, account)
            return one

    def _quota(self, account: str, now_ms: int) -> Quota:
        """Return the quota of an account, at most KNOWN_MS old. While the metadata is away, older ones apply."""
        with self._lock:
            is_due = not waits(self._list_ms, now_ms, KNOWN_MS)
            if is_due:
                self._list_ms = now_ms + KNOWN_MS  # this thread reads them; others use what is known until then
            listed = self._listed
            read_ms, known = self._looked_up.get(account, (0, _NONE))
        try:
            if is_due:
                listed = self._list()
                with self._lock:
                    self._listed = listed
            if listed is not None:
                return listed.get(account, _NONE)
            if not waits(read_ms + KNOWN_MS, now_ms, KNOWN_MS):
                known = _decoded(account, self._metadata.access_key(account_record(account)))
                with self._lock:
                    self._looked_up[account] = now_ms, known
                    _keep_newest(self._looked_up, account)
        except Transient as error:
            _log.warning("rates of accounts not read; older ones apply", error=str(error))
            return known if listed is None else listed.get(account, _NONE)
        return known

    def _list(self) -> Mapping[str, Quota] | None:
        """Return the quotas of all accounts; None if they are too many. Raises Transient."""
        found: dict[str, Quota] = {}
        for record in self._metadata.access_keys(BEFORE_RECORDS, LISTED_MAX + 1):
            account = account_of(record.access_key)
            if account is None:
                return found
            found[account] = _decoded(account, record)
        return found if len(found) <= LISTED_MAX else None

    def _count_processes(self, now_ms: int) -> None:
        """Renew the lease of this process, and count those of all, if that is due."""
        with self._lock:
            if waits(self._count_ms, now_ms, COUNT_MS):
                return
            self._count_ms = now_ms + COUNT_MS
        try:
            held = [] if self._lease is None else self._metadata.renew_leases([self._lease], now_ms, LEASE_MS)
            held = held or self._metadata.acquire_leases([self._name], now_ms, LEASE_MS)
            self._lease = held[0] if held else None
            leases = self._metadata.list_leases(RATE_LEASE_PREFIX)
            # One that was taken while the clock of its process was ahead does not count long after the process ended.
            alive = [one for one in leases if now_ms < one.expires_ms <= now_ms + 2 * LEASE_MS]
            self._processes = max(1, len(alive))
        except NosError as error:
            _log.warning("processes that limit accounts not counted", error=str(error), processes=self._processes)


def _decoded(account: str, record: AccessKey | None) -> Quota:
    try:
        return _NONE if record is None else decode(record.secret)
    except Corrupt as error:
        _log.error("rates not applied", account=account, error=str(error))
        return _NONE


def _keep_newest(known: OrderedDict[str, Any], account: str) -> None:
    known.move_to_end(account)
    while len(known) > _ACCOUNTS_MAX:
        known.popitem(last=False)
