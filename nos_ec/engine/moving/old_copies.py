"""Decides which names of a bucket are made as the old copies in the cell from which it was moved have them.

The database of the new cell was lost, and rebuilt without a dump that has the move. The rebuild has found blocks and
landing copies, but neither delete markers nor empty objects, changed attributes, or what is in the trash. The old
copies have all of these as they were at the moment of the move. What was changed after that only the new cell knows.

9  the names that the journal of the new cell has, and the old versions in the trash, are in memory
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import structlog

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.formats.journal import JournalEntry, entries_of
from nos_ec.core.ids import JOURNAL_BUCKET
from nos_ec.core.locking.lock import Lock
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.moving.keys import Key, key_of, trash_of
from nos_ec.engine.moving.version_copier import CellSide
from nos_ec.ports.metadata import ObjectRow, VersionEntry

_log = structlog.get_logger(__name__)

_PAGE = 1000
_Version = tuple[object, ...]


class OldCopies:
    """Compares the names of a bucket in its old cell with those in its new one. Belongs to one thread."""

    def __init__(self, old: CellSide, new: CellSide, bucket: str) -> None:
        """Raises Transient."""
        self._old = old
        self._new = new
        self._bucket = bucket
        self._changed = {entry.key.name for entry in _journal_of(new) if entry.key.bucket == bucket}
        self._trashed = {_about(row) for page in trash_of(old.metadata, bucket) for row in page}

    def has(self, name: str) -> bool:
        """Return whether a name can be made as it is in the old cell: the journal of the new cell does not have it,
        and the new cell has no version of it that the old one lacks, or has with another lock. Raises Transient."""
        old, new = (key_of(side.metadata, self._bucket, name) for side in (self._old, self._new))
        return name not in self._changed and self.has_all(old, new)

    def has_all(self, old: Key | None, new: Key | None) -> bool:
        """Like `has`, for a name with these versions in the old and in the new cell, at least one of which has it."""
        names = {key.name for key in (old, new) if key is not None}
        known = {_version(one) for one in (() if old is None else old.versions)}
        found = (_version(one) for one in (() if new is None else new.versions))
        return names.isdisjoint(self._changed) and all(one in known or one in self._trashed for one in found)


def _journal_of(side: CellSide) -> Iterator[JournalEntry]:
    """Yield the entries of the journal in the store of a cell. A part that cannot be read is left out, as in a rebuild,
    which lists it. Raises Transient."""
    after = ""
    while page := side.metadata.list_objects(JOURNAL_BUCKET, "", after, _PAGE):
        after = page[-1].key.name
        for row in page:
            try:
                entries = entries_of(side.store.get(row.key))
            except (Corrupt, NotFound) as error:
                _log.error("a part of the journal of deletes cannot be read", part=str(row.key), error=str(error))
                continue
            yield from (entry for entry in entries if not entry.is_gap)


def _version(one: VersionEntry) -> _Version:
    return (one.key.name, one.version) if one.row is None else _about(one.row)


def _about(row: ObjectRow) -> _Version:
    """Return what a version has in both cells, also its lock, because a rebuild finds the last note of it. A version
    that a rebuild has found as a landing copy may have got another number of the same millisecond. Raises Corrupt."""
    lock = replace(row.lock or Lock(), note=0)
    return row.key.name, put_ms_of(row.version), row.size, row.crc32c, row.md5, lock
