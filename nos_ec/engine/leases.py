"""Holds a lease: takes it on entry, renews it in the background, releases it on exit.

The holder does not rely on a clock: every commit checks the lease in its own transaction (invariant 8). Renewal only
keeps other processes from fencing a live writer. So a lease that has expired but was not fenced may be renewed: it
belongs to the holder until its row is removed, which also fences the writer's open blocks.
"""

from __future__ import annotations

import threading
from typing import Self

import structlog

from nos_ec.core.errors import LeaseLost, NosError
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.metadata import Lease, Leases

_log = structlog.get_logger(__name__)

RETRY_WAIT_MS = 1_000
"""How long a holder waits after a failed renewal. After an outage of the metadata store, holders renew their leases
before other processes fence them (recovery gives them time)."""


class HeldLeases:
    """The leases that this process holds. Its own recovery renews them and never fences them. Thread-safe."""

    def __init__(self) -> None:
        self._held: dict[int, HeldLease] = {}
        """By epoch, which is never used for another lease."""

    def add(self, held: HeldLease) -> None:
        """Add a lease that this process now holds."""
        self._held[held.lease.epoch] = held

    def remove(self, held: HeldLease) -> None:
        """Remove a lease that this process is about to give up."""
        self._held.pop(held.lease.epoch, None)

    def renew(self, lease: Lease) -> bool:
        """Renew the lease if this process holds it. False when another process holds it, or it was lost."""
        held = self._held.get(lease.epoch)
        return held is not None and held.renew()


class HeldLease:
    """A context manager that holds one lease. `lost` means that the lease was fenced: the holder can no longer commit
    and must stop writing.

    `holder` names this process in the error of another process that tries to take the lease. `among` lists the lease
    while it is held.
    """

    def __init__(
        self,
        metadata: Leases,
        clock: Clock,
        name: str,
        ttl_ms: int,
        holder: str = "",
        among: HeldLeases | None = None,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._name = name
        self._ttl_ms = ttl_ms
        self._holder = holder
        self._among = among or HeldLeases()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name=f"lease-{name}", daemon=True)
        self._expires_ms = 0
        self._failed = False
        """Whether the last renewal failed."""
        self.lost = False

    def __enter__(self) -> Self:
        """Take the lease. Raises Conflict when another holder has it."""
        now_ms = self._clock.now_ms()
        self.lease: Lease = self._metadata.acquire_lease(self._name, now_ms, self._ttl_ms, self._holder)
        self._expires_ms = self.lease.expires_ms
        self._among.add(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing and release the lease. Recovery seals the blocks that are still open."""
        self.abandon()
        try:
            self._metadata.release_lease(self.lease)
        except NosError as failure:
            # The lease will expire anyway. Raising here would hide the error that may have ended the `with` block.
            _log.warning("lease not released", lease=self._name, error=str(failure))

    def abandon(self) -> None:
        """Stop renewing without releasing the lease. It expires, and the process that fences it cleans up."""
        self._stop.set()
        self._thread.join()
        self._among.remove(self)

    def left_ms(self) -> int:
        """Return the milliseconds until the lease expires without renewal; 0 if it is not held. After the clock was set
        back, other processes may consider it expired, so it counts as not held until it is renewed."""
        now_ms, expires_ms = self._clock.now_ms(), self._expires_ms
        return 0 if self.lost or not waits(expires_ms, now_ms, self._ttl_ms) else expires_ms - now_ms

    def require(self) -> None:
        """Raise LeaseLost if the lease is lost, or has expired and is not renewed yet, so that the holder must not
        write."""
        if self.left_ms() == 0:
            raise LeaseLost(f"lease {self._name} is no longer held")

    def require_not_lost(self) -> None:
        """Raise LeaseLost if the lease was fenced, which is final. For holders that have nothing to commit."""
        if self.lost:
            raise LeaseLost(
                f"lease {self._name} was fenced, as it had not been renewed for {self._ttl_ms} ms: this process or the"
                " metadata store stalled; start this process again"
            )

    def renew(self) -> bool:
        """Renew the lease now. Returns False if it is lost; any other failure is logged. Thread-safe."""
        try:
            renewed = self._metadata.renew_lease(self.lease, self._clock.now_ms(), self._ttl_ms)
            self._expires_ms = renewed.expires_ms
            self._failed = False
        except LeaseLost:
            if not self.lost:
                _log.error("lease lost", lease=self._name, epoch=self.lease.epoch)
            self.lost = True
        except NosError as failure:
            self._failed = True
            _log.warning("lease not renewed; trying again", lease=self._name, error=str(failure))
        except Exception:
            # A bug in one renewal must not end the thread: the holder would never learn that the lease was fenced.
            self._failed = True
            _log.exception("lease not renewed; trying again", lease=self._name)
        return not self.lost

    def _renew_until_stopped(self) -> None:
        wait_ms = max(1, self._ttl_ms // 3)
        while not self._clock.wait(self._stop, min(wait_ms, RETRY_WAIT_MS) if self._failed else wait_ms):
            if not self.renew():
                return
