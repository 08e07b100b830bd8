"""The trash: finds and restores deleted objects, and removes expired ones (docs/adr/0028).

9  a page of rows is in memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event

import structlog

from nos_ec.core.errors import Conflict, Moved, NosError, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.sums import Summed
from nos_ec.ports.clock import Beat, Clock, unwatched
from nos_ec.ports.metadata import ObjectRow, Trash, TrashMark, Undeleted

PAGE_ROWS = 1000
"""Rows that one query reads, or one transaction changes."""
FAILURES_MAX = 3

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Purged(Summed):
    """The number of objects that were removed from the trash, and their bytes."""

    objects: int = 0
    bytes: int = 0


class TrashCan:
    """Access to the trash. Safe to use from several processes at once."""

    def __init__(self, metadata: Trash, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    def pages(self, bucket: str = "", prefix: str = "") -> Iterator[Sequence[ObjectRow]]:
        """Yields pages of all rows of the trash, or of the rows of a bucket whose names begin with `prefix`. The row
        that is kept longest comes first. Rows that are added meanwhile may be missing. Raises Transient."""
        before: TrashMark | None = None
        while True:
            page = self._metadata.trash_page(before, PAGE_ROWS, bucket, prefix)
            if page.rows:
                yield page.rows
            if page.before is None:
                return
            before = page.before

    def find(self, key: ObjectKey, version: int | None = None) -> ObjectRow:
        """Search the trash for a version of a key; without `version`, for the one that is kept longest. Raises
        NotFound."""
        for page in self.pages(key.bucket, key.name):
            for row in page:
                if row.key == key and version in (None, row.version):
                    return row
        which = "" if version is None else f" version {version} of"
        raise NotFound(f"{which} object {key} is not in the trash".strip(), key=key)

    def at(self, key: ObjectKey, mark: TrashMark) -> ObjectRow:
        """Return the version of a key at a place in the trash, with one indexed statement. Raises NotFound."""
        page = self._metadata.trash_page(TrashMark(mark.until_ms, mark.object_id + 1), 1, key.bucket, key.name)
        for row in page.rows:
            if row.key == key and TrashMark(row.trash_until_ms or 0, row.object_id) == mark:
                return row
        raise NotFound(f"object {key} is not in the trash any more", key=key)

    def undelete(self, row: ObjectRow) -> ObjectRow:
        """Make a version of the trash current again. Raises NotFound, and Conflict when its key is in use, even by this
        version."""
        found = self._undelete([row])
        if found.already:
            raise Conflict(f"object {row.key} has been brought back already; nothing was changed", key=row.key)
        if found.rows:
            return row
        self.find(row.key, row.version)
        raise in_use(row)

    def undelete_many(self, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        """Make the versions current again whose keys are not in use. Returns them, without those that were current
        already. Raises Transient."""
        found = self._undelete(rows)
        return [row for row in found.rows if row.object_id not in found.already]

    def _undelete(self, rows: Sequence[ObjectRow]) -> Undeleted:
        found = self._metadata.undelete(rows)
        kill_point("trash.undeleted")
        return found

    def purge(self, rows: Sequence[ObjectRow]) -> list[ObjectRow]:
        """Remove rows from the trash, and release their bytes. Returns the rows that were still there. Raises
        Transient."""
        gone = self._metadata.purge_trash(rows, self._clock.now_ms())
        kill_point("trash.purged")
        return gone

    def expire(self, beat: Beat = unwatched, stop: Event | None = None) -> Purged:
        """Remove expired objects. `stop` ends it early. A row that cannot be removed, because the metadata is damaged,
        is logged and skipped. Raises the error of FAILURES_MAX failures in a row, such as Transient; the next run
        continues from there."""
        total = Purged()
        after: TrashMark | None = None
        while stop is None or not stop.is_set():
            beat(0)
            expired = self._metadata.expired_trash(self._clock.now_ms(), PAGE_ROWS, after)
            if not expired:
                break
            after = TrashMark(expired[-1].trash_until_ms or 0, expired[-1].object_id)
            gone = self._purge_expired(expired, beat)
            total += Purged(len(gone), sum(row.users_size for row in gone))
        return total

    def _purge_expired(self, rows: Sequence[ObjectRow], beat: Beat) -> list[ObjectRow]:
        """Remove all rows at once, or one by one if that fails. Rows of buckets that are moved between cells stay: the
        cell that serves a bucket removes them, and the others when they are purged."""
        try:
            return self.purge(rows)
        except Moved as moved:
            rows = [row for row in rows if row.key.bucket not in moved.buckets]
            return self._purge_expired(rows, beat) if rows else []
        except Exception as error:
            _log.warning("expired objects cannot be removed together; trying one by one", error=str(error))
        gone: list[ObjectRow] = []
        failures = 0
        for row in rows:
            beat(0)
            try:
                gone += self.purge([row])
                failures = 0
            except Exception as error:
                failures += 1
                if failures == FAILURES_MAX:
                    raise
                log = _log.warning if isinstance(error, NosError) else _log.exception
                log("not removed from the trash", object=str(row.key), version=row.version, error=str(error))
        return gone


def in_use(row: ObjectRow) -> Conflict:
    """Return the error for a version whose key has a current version."""
    key = row.key
    return Conflict(
        f"object {key} is in use: another version was stored after the delete. To bring this one back, save the other"
        f" one (nos-ec get {key} -o FILE), delete it, and run: nos-ec undelete {key} --version {row.version}",
        key=key,
    )
