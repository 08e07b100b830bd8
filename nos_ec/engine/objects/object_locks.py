"""Changes locks of versions, durably, and so that a rebuild of the metadata finds the change (docs/adr/0053)."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

from nos_ec.core.conditions import ABSENT, Condition
from nos_ec.core.errors import Conflict, NotFound, PreconditionFailed
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock
from nos_ec.core.locking.lock_note import encode_note, note_key
from nos_ec.engine.objects.store import Store
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import LockOf, Locks, ObjectRow, PutRequest


class ObjectLocks:
    """Changes locks. Safe to call from several threads."""

    def __init__(self, store: Store, metadata: Locks, clock: Clock) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock

    def start_ms(self) -> int:
        """Return the time at which a retention begins that starts now, in Unix milliseconds: the latest of three
        clocks, so that none that is slow shortens it. Raises Transient."""
        times = self._metadata.lock_times()
        return max(self._clock.now_ms(), times.lock_ms, times.database_ms)

    def change(self, row: ObjectRow, lock: Lock, *, bypass: bool = False) -> None:
        """Give the version of this row another lock, durably. With `bypass`, a retention in the mode GOVERNANCE may be
        shortened. Raises Locked if the retention may not be changed like this, Conflict if the version does not exist
        any more or has other attributes than `row`, InvalidInput (too many attributes), NoSpace, Transient."""
        known = row.lock
        self._record(row, replace(lock, note=known.note if known and known.note else row.version), bypass=bypass)

    def copy(self, row: ObjectRow, lock: Lock) -> None:
        """Give the version of this row, a copy that another cell has made, the lock of the original, with a note of the
        same number. Raises what `change` raises."""
        self._record(row, lock, bypass=False)

    def _record(self, row: ObjectRow, lock: Lock, *, bypass: bool) -> None:
        step = LockOf(row, lock, bypass)
        # A rebuild may meet the note without the transaction that would have refused it.
        refusal = step.refusal(self._metadata.lock_times().passed_ms)
        if refusal is not None:
            raise refusal
        _ = step.attributes  # raises InvalidInput before anything is written
        note = encode_note(row.key, row.version, row.size, row.crc32c, lock)
        key = note_key(row.key, lock.note)
        try:
            self._store.put_record(PutRequest(key, condition=self._still(key), step=step), BytesIO(note))
        except PreconditionFailed:
            raise Conflict(f"object {row.key}: its lock was changed meanwhile", key=row.key) from None
        self._store.forget(row.key)

    def _still(self, key: ObjectKey) -> Condition:
        """Return the condition that the note before this one is still there. With a condition, the new note counts as
        newer, also if its writer's clock is behind."""
        try:
            return Condition(self._store.head(key).md5)
        except NotFound:
            return ABSENT
