"""Limits the requests and bytes a second of accounts (docs/adr/0058).

Each process has its share of an account's rate: the rate divided by the number of processes that limit accounts. Such a
process holds a lease, which others count. A process that never serves an account with a rate holds none, and so does
not take a share. A share that is not used for a second is lost: a burst is at most one second's share.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import structlog

from nos_ec.core.errors import Corrupt, NosError
from nos_ec.core.quotas.quota import RATE_LEASE_PREFIX, Quota, account_record, decode
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import AccessKeys, Lease, Leases
from nos_ec.s3.errors import S3Error

_log = structlog.get_logger(__name__)

KNOWN_MS = 10_000
"""How long a process remembers the rates of an account."""
COUNT_MS = 10_000
"""How often processes are counted."""
LEASE_MS = 30_000
_ACCOUNTS_MAX = 10_000


class LimitsMetadata(AccessKeys, Leases, Protocol):
    """The parts of the metadata that this needs."""


@dataclass(slots=True)
class _Account:
    """The rates of an account, and what is left of this process's share: requests and bytes, as of `filled_ms`. Bytes
    fall below 0, because the length of an answer is known only when it is made."""

    read_ms: int
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


class RateLimits:
    """The rates of the accounts that a process serves. Safe to call from several threads."""

    def __init__(self, metadata: LimitsMetadata, clock: Clock, name: str) -> None:
        """`name` is unique among processes."""
        self._metadata = metadata
        self._clock = clock
        self._name = RATE_LEASE_PREFIX + name
        self._lock = Lock()
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._lease: Lease | None = None
        self._processes = 1
        self._count_ms = 0

    def admit(self, account: str, received: int) -> None:
        """Take a request with a body of so many bytes from the share. Raises S3Error (SlowDown) if nothing is left,
        Transient."""
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
            one.requests -= 1
            one.bytes -= received

    def charge(self, account: str, sent: int) -> None:
        """Take the bytes of an answer from the share."""
        with self._lock:
            one = self._accounts.get(account)
            if one is not None:
                one.bytes -= sent

    def close(self) -> None:
        """Give up the lease."""
        if self._lease is not None:
            self._metadata.release_leases([self._lease])

    def _of(self, account: str) -> _Account | None:
        now_ms = self._clock.now_ms()
        with self._lock:
            one = self._accounts.get(account)
        if one is None or not waits(one.read_ms + KNOWN_MS, now_ms, KNOWN_MS):
            quota = self._read(account)
            with self._lock:
                one = self._accounts.setdefault(account, _Account(now_ms, quota, now_ms))
                one.read_ms, one.quota = now_ms, quota
                self._accounts.move_to_end(account)
                while len(self._accounts) > _ACCOUNTS_MAX:
                    self._accounts.popitem(last=False)
        return one if one.quota.has_rates else None

    def _read(self, account: str) -> Quota:
        record = self._metadata.access_key(account_record(account))
        try:
            return Quota() if record is None else decode(record.secret)
        except Corrupt as error:
            _log.error("rates not applied", account=account, error=str(error))
            return Quota()

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
            alive = [one for one in self._metadata.list_leases(RATE_LEASE_PREFIX) if one.expires_ms > now_ms]
            self._processes = max(1, len(alive))
        except NosError as error:
            _log.warning("processes that limit accounts not counted", error=str(error), processes=self._processes)
