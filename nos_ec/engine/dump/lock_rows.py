"""Applies notes about locks in a rebuild, when all versions are known (core.locking.lock_note).

A note names its version by its number. A version that was recovered from a landing copy has another number, close to
the time of its PUT; then size and CRC32C decide, too. The note may then be about another version that is gone, so each
version that fits is locked as the note says, but none gets a weaker lock than it has. The same holds for a note that
no transaction can have accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog

from nos_ec.core.errors import Corrupt, NosError, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode, with_lock
from nos_ec.core.locking.lock_note import LockNote, decode_note, note_buckets, note_number
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.dump.rebuild_input import PAGE_ROWS, PUT_MS_MAX, RebuildInput
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.metadata import Metadata, ObjectRow

_log = structlog.get_logger(__name__)


def apply_notes(stores: RebuildInput) -> int:
    """Give each version the lock in its last note. A note that cannot be read is logged, and `unreadable_notes` lists
    it. Running it again changes nothing. Returns how many versions got one. Raises Transient."""
    changed = 0
    for row in _notes(stores.metadata):
        note = _note_in(row, stores)
        if isinstance(note, NosError):
            _log.error(
                "a note about a lock cannot be read; the version has an earlier lock",
                note=str(row.key),
                error=str(note),
            )
            continue
        versions = [one for page in versions_of(note.key, stores.metadata) for one in page if _may_be(note, one)]
        exact = [one for one in versions if one.version == note.version]
        lock = note.lock(note_number(row.key))
        for version in exact or versions:
            known = version.lock or Lock()
            is_sure = exact and known.may_become(lock, put_ms_of(row.version), bypass=True)
            new = lock if is_sure else stronger(lock, known)
            attributes = with_lock(version.attributes, new)
            if attributes != version.attributes and stores.metadata.set_attributes(version, attributes):
                changed += 1
    return changed


def unreadable_notes(stores: RebuildInput) -> Iterator[ObjectRow]:
    """Yield the notes that cannot be read. Raises Transient."""
    return (row for row in _notes(stores.metadata) if isinstance(_note_in(row, stores), NosError))


def _note_in(row: ObjectRow, stores: RebuildInput) -> LockNote | NosError:
    """Return a note, or why it cannot be read. Raises Transient."""
    try:
        return decode_note(stores.bytes_of(row))
    except (Corrupt, NotFound) as error:
        return error


def _notes(metadata: Metadata) -> Iterator[ObjectRow]:
    for bucket in note_buckets():
        after = ""
        while page := metadata.list_objects(bucket, "", after, PAGE_ROWS):
            yield from page
            after = page[-1].key.name


def versions_of(key: ObjectKey, metadata: Metadata) -> Iterator[Sequence[ObjectRow]]:
    """Yield the versions of a key, the current one first."""
    yield list(metadata.rows_of([key]).values())
    yield from noncurrent_of(key, metadata)


def _may_be(note: LockNote, row: ObjectRow) -> bool:
    """Return whether a note may be about this version: it has its bytes, and nearly its time."""
    apart_ms = abs(put_ms_of(row.version) - put_ms_of(note.version))
    return (row.size, row.crc32c) == (note.size, note.crc32c) and apart_ms <= PUT_MS_MAX


def stronger(one: Lock, other: Lock) -> Lock:
    """Return a lock that protects at least what each of the two protects."""
    retained = [lock for lock in (one, other) if lock.mode is not None]
    mode = max((lock.mode for lock in retained), key=lambda mode: mode is LockMode.COMPLIANCE, default=None)
    until_ms = max((lock.until_ms for lock in retained), default=0)
    return replace(one, mode=mode, until_ms=until_ms, hold=one.hold or other.hold)
