"""Notes about locks that were changed after the PUT of their version (docs/adr/0053).

Names in blocks and labels of landing copies have the lock that a version got from its PUT, and never change. So each
later change of a lock also stores a note: a small object in a hidden bucket, which is landed, packed and recovered like
all others. A rebuild of the metadata applies the notes. A version has at most one note; the next change overwrites it.

The name of a note has the MD5 of the key, so that each key has few names, and a number. That is the version's number
when its first note was stored. The lock itself has this number, too, because a rebuild may number versions anew.
"""

from __future__ import annotations

import msgspec

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.ids import LOCKS_BUCKET, ObjectKey
from nos_ec.core.locking.lock import Lock, LockMode


class LockNote(msgspec.Struct, frozen=True):
    """The lock of a version. Its number, size and CRC32C say which version it is."""

    bucket: str
    name: str
    version: int
    size: int
    crc32c: int
    mode: str
    until_ms: int
    hold: bool

    @property
    def key(self) -> ObjectKey:
        """Return the key of the version."""
        return ObjectKey(self.bucket, self.name)

    def lock(self, number: int) -> Lock:
        """Return the lock of a version whose note has this number."""
        return Lock(LockMode(self.mode) if self.mode else None, self.until_ms, self.hold, number)


def note_key(key: ObjectKey, number: int) -> ObjectKey:
    """Return the key of a note."""
    digest = key.md5.hex()
    return ObjectKey(LOCKS_BUCKET + digest[-1], f"{digest}/{number:016x}")


def note_buckets() -> list[str]:
    """Return the names of all buckets with notes."""
    return [f"{LOCKS_BUCKET}{digit:x}" for digit in range(16)]


def note_number(note: ObjectKey) -> int:
    """Return the number in the name of a note."""
    return int(note.name.rpartition("/")[2], 16)


def encode_note(key: ObjectKey, version: int, size: int, crc32c: int, lock: Lock) -> bytes:
    """Return the bytes of a note about the lock of a version of this key."""
    note = LockNote(key.bucket, key.name, version, size, crc32c, lock.mode or "", lock.until_ms, lock.hold)
    return msgspec.json.encode(note)


def decode_note(data: bytes) -> LockNote:
    """Return the note that `encode_note` encoded. Raise Corrupt, and nothing else, for any other bytes."""
    try:
        note = msgspec.json.decode(data, type=LockNote)
        note.lock(0)
        ObjectKey(note.bucket, note.name)
    except (msgspec.MsgspecError, ValueError, InvalidInput) as error:
        raise Corrupt(f"lock note: {error}") from error
    return note
