"""Applies the journal of deletes in a rebuild (docs/adr/0065).

Of all that happened to a version, only the last entry counts. So the entries of an object of the journal are applied at
once, in any order, and a version that was deleted needs no earlier entries.

An entry names its version by its number. A version that was recovered from its landing copy may have another number,
close to the time of its PUT: then the landing copy decides. If the version was packed when it was deleted, and only
another copy of it was found, then bytes and time decide. This is not certain, so such a version goes into the trash. So
does an older version of a key without versions: the deleted one had replaced it, and its bytes may be gone.

First, `remove_deleted` applies what concerns keys without versions, and versions that later ones have replaced, while
these can be found by their numbers. Once it is known which versions are noncurrent, `replay_versions` applies the rest.
At last, `restore_attributes` changes the attributes of versions that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from nos_ec.core.formats.journal import EntryKind, JournalEntry
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import Lock, lock_of, with_lock
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.dump.lock_rows import stronger, versions_of
from nos_ec.engine.dump.rebuild_input import PUT_MS_MAX
from nos_ec.engine.expiry.noncurrent import noncurrent_of
from nos_ec.ports.metadata import MarkerRow, Metadata, ObjectRow, Replay

_Last = Mapping[tuple[ObjectKey, int], JournalEntry]
_OF_VERSIONS = frozenset({EntryKind.REMOVED, EntryKind.TRASHED, EntryKind.UNDELETED, EntryKind.MARKER})
_OF_ATTRIBUTES = frozenset({EntryKind.ATTRIBUTES})


def remove_deleted(entries: Iterable[JournalEntry], metadata: Metadata) -> Replay:
    """Return the changes for current versions of keys without versions, and for replaced versions, whose rows in the
    trash have no times yet. Raises Transient."""
    last = {one: entry for one, entry in _last(entries).items() if not entry.is_of_marker}
    current = metadata.rows_of({key for key, _ in last})
    named = {(key, row.version) for key, row in current.items()}
    replaced = metadata.trash_of(named.union(*(_names(entry) for entry in last.values())))
    found = Replay([], [], [], [], [])
    for position, ((key, _), entry) in enumerate(last.items()):
        if entry.kind == EntryKind.UNDELETED:
            continue
        # A version that was put into the trash, and that a later one has replaced in the rebuild, is there already.
        own = [replaced[name] for name in _names(entry) if name in replaced]
        match = next((row for row in own if _is_surely(entry, row)), None)
        if match is not None and entry.kind == EntryKind.REMOVED:
            found.removed.append(match)
            del replaced[key, match.version]
        row = current.get(key)
        if row is None or row.is_of_versions:
            continue
        is_sure = _is_surely(entry, row)
        if match is None and is_sure and entry.kind == EntryKind.REMOVED:
            found.removed.append(row)
            del current[key]
            continue
        is_it = match is None and (is_sure or _may_be(entry, row))
        was_replaced = _had_replaced(entry, row) and not _is_back(row, last, position)
        if (is_it or was_replaced) and (key, row.version) not in replaced:
            found.trashed.append(row)
            replaced[key, row.version] = row
            del current[key]
    moved = {row.object_id for row in found.trashed}
    for (key, version), entry in last.items():
        row = replaced.get((key, version))
        if entry.kind != EntryKind.UNDELETED or row is None or key in current or row.object_id in moved:
            continue
        if _is_surely(entry, row):
            found.restored.append(row)
            current[key] = row
    return found


def replay_versions(entries: Iterable[JournalEntry], metadata: Metadata, now_ms: int, until_ms: int) -> Replay:
    """Return the changes for keys with versions: markers, and versions that are current or noncurrent. until_ms: until
    when the trash keeps a version at least. Raises the floors of the keys, and Transient."""
    last = {one: entry for one, entry in _last(entries).items() if entry.of_versions}
    keys = sorted({key for key, _ in last}, key=str)
    current = metadata.rows_of(keys)
    metadata.restore_floors([name for name, entry in last.items() if entry.kind == EntryKind.REMOVED])
    found = Replay([], [], [], [], [])
    for key in keys:
        rows = [row for page in noncurrent_of(key, metadata) for row in page]
        rows += [current[key]] if key in current else []
        for entry in (entry for name, entry in last.items() if name[0] == key):
            if entry.is_of_marker:
                if all(row.version != entry.version for row in rows):
                    found.unmarked.append((key, entry.version))
                    if entry.kind == EntryKind.MARKER:
                        found.markers.append(MarkerRow(key, entry.version, entry.created_ms, entry.is_null))
            elif entry.kind in (EntryKind.REMOVED, EntryKind.TRASHED):
                row = _match(entry, rows)
                if row is None:
                    continue
                rows.remove(row)
                if entry.kind == EntryKind.REMOVED and _is_surely(entry, row):
                    found.removed.append(row)
                else:
                    at_ms = entry.at_ms or now_ms
                    kept_ms = max(entry.until_ms, until_ms)
                    found.trashed.append(replace(row, trash_until_ms=kept_ms, trashed_ms=at_ms))
    return found


def restore_attributes(entries: Iterable[JournalEntry], metadata: Metadata) -> int:
    """Give versions the attributes that they had last, when all versions are known. A version whose number and landing
    copy are unknown keeps its own. None gets a weaker lock: notes about locks are applied later. Returns how many
    versions were changed. Raises Transient."""
    changed = 0
    for (key, _), entry in _last(entries, _OF_ATTRIBUTES).items():
        row = next((one for page in versions_of(key, metadata) for one in page if _is_surely(entry, one)), None)
        if row is None:
            continue
        attributes = entry.attributes
        known, lock = row.lock, lock_of(attributes)
        if known is not None:
            attributes = with_lock(attributes, stronger(lock or Lock(), known))
        if attributes != row.attributes and metadata.set_attributes(row, attributes):
            changed += 1
    return changed


def _last(entries: Iterable[JournalEntry], kinds: frozenset[int] = _OF_VERSIONS) -> _Last:
    """Return the last entry of these kinds of each version, in the order of the entries."""
    last: dict[tuple[ObjectKey, int], JournalEntry] = {}
    for entry in entries:
        if entry.kind not in kinds:
            continue
        name = entry.key, entry.version
        last.pop(name, None)
        last[name] = entry
    return last


def _names(entry: JournalEntry) -> Iterator[tuple[ObjectKey, int]]:
    """Yield the keys and numbers that the version may have in a rebuild: its own, and those of a version that was
    recovered from its landing copy."""
    numbers = {ms * 1000 + odd for ms in (entry.created_ms, put_ms_of(entry.version)) for odd in (0, 1)}
    yield from ((entry.key, number) for number in (entry.version, *sorted(numbers - {entry.version})))


def _match(entry: JournalEntry, rows: Sequence[ObjectRow]) -> ObjectRow | None:
    """Return the version that the entry is about: the one that surely is, or else the newest one that may be."""
    surely = (row for row in rows if _is_surely(entry, row))
    maybe = (row for row in rows if _may_be(entry, row))
    return next(surely, None) or max(maybe, key=lambda row: row.version, default=None)


def _is_surely(entry: JournalEntry, row: ObjectRow) -> bool:
    is_own = row.version == entry.version or (row.landing_id is not None and row.landing_id == entry.landing_id)
    return is_own and _has_bytes(entry, row)


def _may_be(entry: JournalEntry, row: ObjectRow) -> bool:
    """Return whether the row may be a copy of the version: it was recovered from a landing copy of the same bytes, of a
    PUT that may have got the number. A version with a lock never counts as one."""
    late_ms = put_ms_of(entry.version) - row.created_ms
    is_copy = row.state is not ObjectState.PACKED and row.lock is None and not entry.landing_id
    return is_copy and 0 <= late_ms <= PUT_MS_MAX and _has_bytes(entry, row)


def _had_replaced(entry: JournalEntry, row: ObjectRow) -> bool:
    """Return whether the version of the entry had replaced this one, of a key that never had versions. Its bytes may be
    gone, while those of the replaced version exist."""
    return not entry.of_versions and row.version < entry.version and row.created_ms <= entry.created_ms


def _is_back(row: ObjectRow, last: _Last, position: int) -> bool:
    """Return whether an entry after this position brings the version back from the trash."""
    later = islice(last.values(), position + 1, None)
    return any(one.kind == EntryKind.UNDELETED and (one.key, one.version) == (row.key, row.version) for one in later)


def _has_bytes(entry: JournalEntry, row: ObjectRow) -> bool:
    return (row.size, row.crc32c, row.md5) == (entry.size, entry.crc32c, entry.md5)
