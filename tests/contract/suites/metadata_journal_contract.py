"""Contract of `Journal`: each transaction that deletes adds a row, and no other one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from nos_ec.adapters.sql.objects import journal
from nos_ec.core.formats.journal import EntryKind, JournalEntry, encode_object, entries_of
from nos_ec.core.ids import ACCESS_BUCKET
from nos_ec.core.versions import Versioning
from nos_ec.ports.metadata import AddMarker, DeleteVersion, Metadata, ObjectRow, RenameOf, VersionEntry
from tests.rig.fakes.metadata_bench import MetadataBench

ROWS_MAX = 1000
"""Tests add fewer rows."""


def rows_after(metadata: Metadata, work: Callable[[], object]) -> list[list[JournalEntry]]:
    """Do the work. Returns the entries of each row that it has added, and removes these rows."""
    assert metadata.journal_after(0, 9) == []
    work()
    rows = metadata.journal_after(0, 1000)
    metadata.forget_journal(metadata.journal_number(), [one for one, _ in rows])
    return [entries_of(encode_object([row])) for row in rows]


def of_row(kind: EntryKind, row: ObjectRow, at_ms: int = 0, until_ms: int = 0) -> JournalEntry:
    """The entry about an object that never had versions."""
    facts = (row.version, row.created_ms, row.size, row.crc32c, row.md5, row.landing_id or b"")
    return JournalEntry(int(kind), row.key.bucket, row.key.name, *facts, at_ms=at_ms, until_ms=until_ms)


class JournalContract:
    """keep_journal, journal_after, journal_number, journal_gap_ms, forget_journal, oldest_journal_ms."""

    def test_without_the_setting_nothing_is_added(self, bench: MetadataBench) -> None:
        bench.metadata.delete(bench.put("o").key, bench.now_ms)
        assert bench.metadata.journal_after(0, 9) == []
        assert bench.metadata.journal_gap_ms() == 0

    def test_a_full_journal_stops_no_delete(self, bench: MetadataBench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Entries are left out, and it is known since when, until the table has room again."""
        monkeypatch.setattr(journal, "LOOK_S", 0)
        metadata, now_ms = bench.metadata, bench.now_ms
        metadata.keep_journal(3)
        rows = [bench.put(f"o-{n}") for n in range(8)]
        for row in rows[:3]:
            metadata.delete(row.key, now_ms)
        assert metadata.journal_gap_ms() == 0
        for row in rows[3:5]:
            metadata.delete(row.key, now_ms)
            assert metadata.rows_of([row.key]) == {}
        kept = [one for one, _ in metadata.journal_after(0, 9)]
        assert len(kept) == 3
        since_ms = metadata.journal_gap_ms()
        assert since_ms > 0
        metadata.forget_journal(metadata.journal_number(), kept)
        assert metadata.journal_gap_ms() == since_ms, "no object tells it yet"
        metadata.forget_journal(metadata.journal_number(), [0], since_ms + 1)
        assert metadata.journal_gap_ms() == since_ms
        for _ in range(2):
            metadata.forget_journal(metadata.journal_number(), [0], since_ms)
            assert metadata.journal_gap_ms() == 0
        metadata.delete(rows[5].key, now_ms)
        assert len(metadata.journal_after(0, 9)) == 1

    def test_a_delete_adds_a_row(self, bench: MetadataBench) -> None:
        bench.metadata.keep_journal(ROWS_MAX)
        metadata, now_ms = bench.metadata, bench.now_ms
        one, two, three = (bench.put(name) for name in ("one", "two", "three"))
        assert metadata.journal_after(0, 9) == []
        assert metadata.oldest_journal_ms() is None
        assert rows_after(metadata, lambda: metadata.delete(one.key, now_ms)) == [[of_row(EntryKind.REMOVED, one)]]
        (entries,) = rows_after(metadata, lambda: metadata.delete_many([two.key, three.key], now_ms))
        assert entries == [of_row(EntryKind.REMOVED, row) for row in (two, three)]
        assert metadata.journal_after(0, 9) == []

    def test_a_bulk_delete_adds_few_rows(self, bench: MetadataBench) -> None:
        """A row has a bounded size, and no entry is lost."""
        bench.metadata.keep_journal(ROWS_MAX)
        metadata = bench.metadata
        rows = bench.put_all([f"{'long' * 200}-{number:03}" for number in range(200)], 100)
        keys = [row.key for row in rows]
        found = rows_after(metadata, lambda: metadata.delete_many(keys, bench.now_ms))
        assert [entry.key for entries in found for entry in entries] == keys
        assert 200 * 800 / 16_000 <= len(found) <= 20

    def test_the_trash(self, bench: MetadataBench) -> None:
        bench.metadata.keep_journal(ROWS_MAX)
        metadata, now_ms = bench.metadata, bench.now_ms
        row = bench.put("deleted")
        until_ms = now_ms + 1000
        trashed = of_row(EntryKind.TRASHED, row, now_ms, until_ms)
        assert rows_after(metadata, lambda: metadata.delete(row.key, now_ms, until_ms)) == [[trashed]]
        (in_trash,) = metadata.trash_page(None, 9).rows
        back = rows_after(metadata, lambda: metadata.undelete([in_trash]))
        assert back == [[of_row(EntryKind.UNDELETED, row)]]
        assert rows_after(metadata, lambda: metadata.undelete([in_trash])) == []
        metadata.delete(row.key, now_ms, until_ms)
        rows_after_delete = metadata.journal_after(0, 9)
        metadata.forget_journal(metadata.journal_number(), [one for one, _ in rows_after_delete])
        (in_trash,) = metadata.trash_page(None, 9).rows
        assert rows_after(metadata, lambda: metadata.purge_trash([in_trash], now_ms)) == [
            [of_row(EntryKind.REMOVED, row)]
        ]

    def test_markers_and_versions(self, bench: MetadataBench) -> None:
        bench.metadata.keep_journal(ROWS_MAX)
        metadata, now_ms = bench.metadata, bench.now_ms
        row = bench.put("k")
        added: list[object] = []
        marker_rows = rows_after(
            metadata,
            lambda: added.extend(metadata.delete_versions([AddMarker(row.key, Versioning.ENABLED)], now_ms)),
        )
        (marker,) = added
        assert isinstance(marker, VersionEntry)
        assert [(one.kind, one.version, one.is_of_marker) for (one,) in marker_rows] == [
            (EntryKind.MARKER, marker.version, True)
        ]
        removals = [DeleteVersion(row.key, marker.version), DeleteVersion(row.key, None)]
        (entries,) = rows_after(metadata, lambda: metadata.delete_versions(removals, now_ms))
        assert [(one.kind, one.version, one.is_of_marker) for one in entries] == [
            (EntryKind.REMOVED, marker.version, True),
            (EntryKind.REMOVED, row.version, False),
        ]

    def test_a_rename_adds_the_removal_of_its_source(self, bench: MetadataBench) -> None:
        """In a bucket with versions, it adds the marker that the source gets."""
        metadata = bench.metadata
        metadata.keep_journal(ROWS_MAX)
        for name, versioning, kind in (("plain", None, EntryKind.REMOVED), ("v", Versioning.ENABLED, EntryKind.MARKER)):
            row, new = bench.put(name), bench.new(f"new-{name}")
            request = replace(new.request, versioning=versioning, step=RenameOf(row, versioning))
            ((entry,),) = rows_after(metadata, partial(bench.record, [replace(new, request=request)]))
            assert (entry.kind, entry.key) == (kind, row.key)

    def test_changed_attributes(self, bench: MetadataBench) -> None:
        """An entry has the new ones. A change that changes nothing adds none."""
        metadata = bench.metadata
        metadata.keep_journal(ROWS_MAX)
        row = bench.put("o")
        entry = msgspec.structs.replace(of_row(EntryKind.ATTRIBUTES, row), attributes=b"\x01\x01\x00ab")
        assert rows_after(metadata, lambda: metadata.set_attributes(row, entry.attributes)) == [[entry]]
        other = replace(row, attributes=b"\x01\x01\x00ac")
        assert not metadata.set_attributes(other, b"")
        assert metadata.journal_after(0, 9) == []

    def test_puts_and_hidden_buckets_add_nothing(self, bench: MetadataBench) -> None:
        bench.metadata.keep_journal(ROWS_MAX)
        metadata = bench.metadata
        record = bench.put("key/AK", bucket=ACCESS_BUCKET)
        for _ in range(2):
            bench.put("overwritten")
        metadata.delete(record.key, bench.now_ms)
        assert metadata.journal_after(0, 9) == []

    def test_numbers_rise_once(self, bench: MetadataBench) -> None:
        """They do so, too, if two processes have shipped the same rows."""
        bench.metadata.keep_journal(ROWS_MAX)
        metadata = bench.metadata
        first = metadata.journal_number()
        metadata.delete(bench.put("o").key, bench.now_ms)
        metadata.delete(bench.put("p").key, bench.now_ms)
        (one, two) = (number for number, _ in metadata.journal_after(0, 9))
        assert metadata.oldest_journal_ms() is not None
        assert [number for number, _ in metadata.journal_after(one, 9)] == [two]
        for _ in range(2):
            metadata.forget_journal(first, [one])
        assert metadata.journal_number() == first + 1
        assert [number for number, _ in metadata.journal_after(0, 9)] == [two]
