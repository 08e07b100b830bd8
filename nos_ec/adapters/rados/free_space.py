"""The monitors' estimate of a pool's free space, in bytes and, if the pool has a quota of objects, in objects.

The figure is only advice: it stops writers before the pool is full, and the OSDs refuse writes that do not fit in any
case. Therefore a hung monitor must not stop any process. A separate thread sends one request at a time. Until it is
answered, all callers continue with the last figure, however old. They wait for an answer only if there is no figure
yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.core.errors import NosError, Transient

_log = structlog.get_logger(__name__)

STALE_AFTER_S = 5.0
"""Ceph's own figures are about this old when they reach the monitors. More frequent requests would return the same
ones."""
FRESH_WAIT_S = 0.5
"""A caller that finds the figure stale waits this long for a new one, which usually takes milliseconds. After an answer
that took longer, callers no longer wait, until an answer comes in time again."""


@dataclass(frozen=True, slots=True)
class Room:
    """A space, in user bytes and in objects (None: their number is not limited)."""

    size_bytes: int
    objects: int | None = None

    def less(self, other: Room) -> Room:
        """Return the space that is left when `other` is used."""
        left = None if self.objects is None else self.objects - (other.objects or 0)
        return Room(self.size_bytes - other.size_bytes, left)

    def plus(self, other: Room) -> Room:
        """Return the sum. Both must have a number of objects."""
        return Room(self.size_bytes + other.size_bytes, (self.objects or 0) + (other.objects or 0))


class FreeSpace:
    """The free space of a pool. `ask` looks it up, at most once per STALE_AFTER_S, and may raise NosError.

    `object_bytes_max` is the largest size of an object. The writes that callers reported to `spent` after a request are
    subtracted from its answer. Safe to call from several threads. Close it before the cluster that it sends requests
    to.
    """

    def __init__(self, pool_name: str, ask: Callable[[], Room], object_bytes_max: int) -> None:
        self._pool_name = pool_name
        self._ask = ask
        self._object_bytes_max = object_bytes_max
        self._changed = threading.Condition()
        self._room: Room | None = None
        self._spent = Room(0, 0)
        """Written since the request for the last answer was sent. The answer may not include it."""
        self._refused_until_s = 0.0
        self._asked_at_s = 0.0
        self._ask_from_s = 0.0
        self._asking: threading.Thread | None = None
        self._failure: BaseException | None = None
        """Why the last request failed."""
        self._slow = False
        self._closed = False

    def spent(self, size_bytes: int, objects: int = 0) -> None:
        """Report bytes written and objects created."""
        with self._changed:
            self._spent = self._spent.plus(Room(size_bytes, objects))

    def refused(self) -> None:
        """Report that the pool refused a write for lack of space. For STALE_AFTER_S, `free_bytes` returns 0 whatever
        the monitors report: they learn of the full pool some seconds later, and further writes would fail until
        then."""
        with self._changed:
            self._refused_until_s = time.monotonic() + STALE_AFTER_S

    def free_bytes(self) -> int:
        """Return the free user bytes, never negative. Until a first request has been answered, raises the errors of
        `ask`."""
        with self._changed:
            if time.monotonic() < self._refused_until_s:
                return 0
            began = self._ask_if_stale()
            if self._room is None:
                self._changed.wait_for(lambda: self._asking is None)
            elif began and not self._slow:
                self._slow = not self._changed.wait_for(lambda: self._asking is None, FRESH_WAIT_S)
            if self._room is None:
                assert self._failure is not None
                raise self._failure
            return self._bytes_in(self._room.less(self._spent))

    def close(self) -> None:
        """Stop asking. Idempotent. Waits for a request in flight, at most its own time limit."""
        with self._changed:
            self._closed = True
            asking = self._asking
        if asking is not None:
            asking.join()

    def _bytes_in(self, room: Room) -> int:
        if room.objects is None:
            return max(0, room.size_bytes)
        return max(0, min(room.size_bytes, room.objects * self._object_bytes_max))

    def _ask_if_stale(self) -> bool:
        """Send a request unless the figure is fresh or a request is in flight. Returns whether it was sent."""
        if self._closed:
            raise ValueError(f"the free space of pool {self._pool_name} is closed")
        now_s = time.monotonic()
        if self._asking is not None or now_s < self._ask_from_s:
            return False
        self._asked_at_s = now_s
        asking = threading.Thread(target=self._answer, args=(self._spent,), name="free-space", daemon=True)
        asking.start()
        self._asking = asking
        return True

    def _answer(self, known_spent: Room) -> None:
        try:
            room = self._ask()
        except BaseException as error:
            self._note_failure(error)
        else:
            self._note_answer(room, known_spent)

    def _note_answer(self, room: Room, known_spent: Room) -> None:
        now_s = time.monotonic()
        with self._changed:
            failed, self._failure = self._failure is not None, None
            self._room = room
            self._spent = self._spent.less(known_spent)
            self._slow = self._slow and now_s - self._asked_at_s > FRESH_WAIT_S
            self._ended(now_s + STALE_AFTER_S)
        if failed:
            _log.info("free space of the Ceph pool is known again", pool=self._pool_name)

    def _note_failure(self, error: BaseException) -> None:
        with self._changed:
            first, self._failure = self._failure is None, error
            known = self._room is not None
            # While there is no figure, the next caller sends another request. Otherwise the last figure is used for a
            # while longer.
            self._ended(time.monotonic() + STALE_AFTER_S if known else 0.0)
        if first and known:
            event = "cannot renew the free space of the Ceph pool; using the last figure"
            _log.warning(event, pool=self._pool_name, error=str(error), exc_info=not isinstance(error, NosError))

    def _ended(self, ask_from_s: float) -> None:
        self._ask_from_s = ask_from_s
        self._asking = None
        self._changed.notify_all()


def pool_room(cluster: RadosCluster, pool_name: str) -> Room:
    """Request the free space of a pool from the monitors. It is the space on the fullest OSD, less coding or replicas
    (max_avail), or the remainder of the quotas of bytes and objects if that is smaller. Raises ConfigError,
    Transient."""
    for pool in cluster.command("df", detail="detail").get("pools", []):
        if pool.get("name") == pool_name:
            return room_of(pool["stats"])
    raise Transient(f"the Ceph monitors have no figures for pool {pool_name} yet: try again")


def room_of(stats: Mapping[str, Any]) -> Room:
    """Return the free space by a pool's `stats` in `df detail`. A quota of 0 means that there is none."""
    free, quota_bytes, quota_objects = (
        int(stats.get(name, 0)) for name in ("max_avail", "quota_bytes", "quota_objects")
    )
    if quota_bytes:
        free = min(free, quota_bytes - int(stats.get("stored", 0)))
    return Room(free, quota_objects - int(stats.get("objects", 0)) if quota_objects else None)
