"""Creates a large backlog quickly: rows by bulk insert, landing copies as plain files, events in large batches.

The result is what as many PUTs and a producer would have created. Only the way differs: nothing is synced file by
file, and object ids are chosen here. For measurements on the embedded store, never for data that matters.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import google_crc32c
from sqlalchemy import func, insert, select

from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.tables.schema import OBJECTS, WAITING
from nos_ec.core.formats.messages import encode_pack_request
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.publishing.slots import bucket_slot
from nos_ec.core.states import ObjectState
from nos_ec.ports.message_log import MessagePublisher

BATCH_OBJECTS = 10_000
BUCKETS = 64
"""Enough buckets that every partition of the log gets some."""
LARGE_BUCKET = "large"


@dataclass(frozen=True, slots=True)
class Landed:
    """One landed object: its row's fields and its bytes. created_ms is the Unix time of its PUT."""

    object_id: int
    created_ms: int
    key: ObjectKey
    landing_id: LandingId
    data: bytes


class Backlog:
    """Fills an initialised embedded store. Sizes are in bytes, uniform between the two limits.

    large_share: the share of objects in one more bucket, `large`.
    """

    def __init__(
        self, metadata_url: str, landing_root: Path, now_ms: int, seed: int = 1, large_share: float = 0
    ) -> None:
        self._large_share = large_share
        self._engine = make_engine(metadata_url)
        self._landing_root = landing_root
        self._now_ms = now_ms
        self._rng = random.Random(seed)

    def close(self) -> None:
        """Release the metadata store."""
        self._engine.dispose()

    def land(self, count: int, size_min: int, size_max: int, publisher: MessagePublisher | None) -> int:
        """Create `count` landed objects with their copies. Returns their total bytes.

        With a publisher, they are QUEUED and their events are in its log. Without one, they are due now.
        """
        total = 0
        objects = self._objects(count, size_min, size_max)
        while batch := list(islice(objects, BATCH_OBJECTS)):
            for one in batch:
                name = one.landing_id.hex()
                (self._landing_root / name[-2:] / name).write_bytes(one.data)
                total += len(one.data)
            state = ObjectState.LANDED if publisher is None else ObjectState.QUEUED
            with self._engine.begin() as connection:
                connection.execute(insert(OBJECTS), [self._row(one, state) for one in batch])
                connection.execute(insert(WAITING), [self._waiting(one, state) for one in batch])
            if publisher is not None:
                publisher.publish([self._event(one) for one in batch])
        return total

    # --- parts ------------------------------------------------------------------------------------
    def _objects(self, count: int, size_min: int, size_max: int) -> Iterator[Landed]:
        rng = self._rng
        # One PUT per millisecond, the last one now. Landing ids begin with the time, so that indexes get them in order.
        for created_ms, object_id in enumerate(self._ids(count), self._now_ms - count + 1):
            yield Landed(
                object_id,
                created_ms,
                self._key(object_id),
                LandingId(created_ms.to_bytes(6, "big") + rng.randbytes(10)),
                rng.randbytes(rng.randint(size_min, size_max)),
            )

    def _ids(self, count: int) -> range:
        with self._engine.connect() as connection:
            first = (connection.execute(select(func.max(OBJECTS.c.object_id))).scalar() or 0) + 1
        return range(first, first + count)

    def _key(self, object_id: int) -> ObjectKey:
        bucket = f"bucket-{object_id % BUCKETS:03}"
        if self._large_share and self._rng.random() < self._large_share:
            bucket = LARGE_BUCKET
        return ObjectKey(bucket, f"{self._rng.randrange(1 << 64):016x}/{object_id:09}.dat")

    def _row(self, one: Landed, state: ObjectState) -> dict[str, object]:
        return {
            "object_id": one.object_id,
            "bucket": one.key.bucket,
            "name": one.key.name,
            "version": one.created_ms * 1000,
            "size": len(one.data),
            "crc32c": google_crc32c.value(one.data),
            "md5": hashlib.md5(one.data, usedforsecurity=False).digest(),
            "state": state,
            "landing_id": one.landing_id,
            "block_id": None,
            "block_offset": None,
            "created_ms": one.created_ms,
        }

    def _waiting(self, one: Landed, state: ObjectState) -> dict[str, object]:
        return {
            "landing_id": one.landing_id,
            "object_id": one.object_id,
            "slot": bucket_slot(one.key.bucket),
            "due_ms": one.created_ms,
            "state": state,
            "size": len(one.data),
        }

    def _event(self, one: Landed) -> tuple[bytes, bytes]:
        value = encode_pack_request(
            object_id=one.object_id,
            key=one.key,
            version=one.created_ms * 1000,
            size=len(one.data),
            crc32c=google_crc32c.value(one.data),
            landing_id=one.landing_id,
        )
        return one.key.bucket.encode(), value
