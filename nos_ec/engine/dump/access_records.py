"""Records every change of buckets and access keys in the store itself, for a rebuild of the metadata.

A dump is hours old when the database is lost. Without the changes since, a rebuild would re-enable an access key that
was disabled, restore a grant that was revoked, and leave a new bucket without an owner. So each change of an access
key, or of a bucket's row, documents or grants, is followed by a PUT of a record: a small object of a hidden bucket,
with the state after the change in the format of a page of a dump. Records are landed, packed and recovered like all
other objects. A change is acknowledged when its record is durable.

The old record is read before the state that the new one will contain, and replaced only if it has not changed since. So
an older state never replaces a record that a later change has written, and the last record has the last state. Each
change writes a record, and each record ends with random bytes. So records differ even after a change and its reversal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from threading import Event
from typing import Protocol

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.errors import NotFound, PreconditionFailed, Transient
from nos_ec.core.formats.dump_format import encode_page
from nos_ec.core.ids import ACCESS_BUCKET, ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.engine.dump.bucket_rows import page_of
from nos_ec.engine.objects.store import Store
from nos_ec.engine.retry_queue import BackOff
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import AccessKeys, AccessOf, Buckets, ObjectRow, Objects, PutRequest

TRIES = 20
"""Each retry means that another change of the same bucket or access key was recorded meanwhile."""
PAGE_RECORDS = 1000
_REMOVED = encode_attributes({"nos_ec:removed": "1"})
"""The attributes of the record of a bucket or access key that was removed."""
_NONCE_BYTES = 16
_BACK_OFF = BackOff(first_ms=10, max_ms=500)


class RecordedMetadata(Objects, Buckets, AccessKeys, Protocol):
    """The parts of the metadata that are recorded, and the part that finds records."""


class AccessRecords:
    """Writes records. Safe to call from several threads and processes."""

    def __init__(self, store: Store, metadata: RecordedMetadata, clock: Clock, random: Callable[[int], bytes]) -> None:
        """Take the stores, and a function that returns a number of random bytes."""
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._random = random

    def record(self, of: AccessOf, name: str) -> None:
        """Write durably the record of a bucket or access key that was changed or removed. Raises NoSpace, Transient:
        the change was made, and must be repeated to be recorded."""
        kill_point("access.changed")
        key = record_key(of, name)
        for tries in range(TRIES):
            if tries:
                self._clock.wait(Event(), _BACK_OFF.wait_ms(tries))
            before = self._find_record(key)
            page = page_of(of, name, self._metadata)
            data, attributes = encode_page(page) + self._random(_NONCE_BYTES), b"" if page.rows else _REMOVED
            condition = ABSENT if before is None else Condition(before.md5)
            with suppress(PreconditionFailed, NotFound):
                self._store.put_record(PutRequest(key, attributes, condition), BytesIO(data))
                kill_point("access.recorded")
                return
        raise Transient(f"{of} {name}: kept changing while it was recorded; repeat the change")

    def forget_removed_buckets(self, before_ms: int) -> int:
        """Delete the records of buckets that were removed before this time (Unix milliseconds). Without such a record,
        a rebuild from an older dump restores an empty bucket. Records of access keys are kept forever. Returns how many
        were deleted. Raises Transient."""
        gone, after, prefix = 0, "", f"{AccessOf.BUCKET}/"
        while page := self._metadata.list_objects(ACCESS_BUCKET, prefix, after, PAGE_RECORDS):
            after = page[-1].key.name
            old = [row for row in page if row.attributes == _REMOVED and row.created_ms < before_ms]
            if old:
                gone += len(self._metadata.delete_unchanged(old, self._clock.now_ms()))
                kill_point("access.forgotten")
        return gone

    def _find_record(self, key: ObjectKey) -> ObjectRow | None:
        try:
            return self._metadata.get(key)
        except NotFound:
            return None


def record_key(of: AccessOf, name: str) -> ObjectKey:
    """Return the key of a record."""
    return ObjectKey(ACCESS_BUCKET, f"{of}/{name}")
