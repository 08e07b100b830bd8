"""Contract of listing with folders: the same entries as a naive model, page by page, whatever the limit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import NAME_BYTES_MAX
from nos_ec.core.parts import Composition, UploadId, composed
from nos_ec.ports.metadata import EntryPage, ObjectRow, ObjectSummary
from tests.rig.fakes.metadata_bench import MetadataBench, asking

FOREVER_MS = 10**9
LAST = "\U0010ffff"
"""The greatest character."""
LETTERS = st.text(st.sampled_from(["a", "b", "/", "0", ".", "-", " ", "é", "\uffff", LAST, "\x01", "\x7f"]), max_size=5)
NAMES = st.lists(LETTERS.filter(lambda text: bool(text) and not {"", ".", ".."} & set(text.split("/"))), max_size=30)
DELIMITERS = st.sampled_from(["/", "", "a", "ab", "é", LAST, "//", "/a", "\x7f"])
LONGEST = "l" * (NAME_BYTES_MAX - 4)


def names_of(page: EntryPage[ObjectRow]) -> list[str]:
    """The names and folders of a page, in its order."""
    return [entry if isinstance(entry, str) else entry.key.name for entry in page.entries]


def entries_of(
    bench: MetadataBench, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
) -> EntryPage[ObjectRow]:
    """Return a page of list_entries, after checking that list_summaries returns the same page, with summaries."""
    asked = ("bucket", prefix, delimiter, after, limit, budget_ms)
    page, told = bench.metadata.list_entries(*asked), bench.metadata.list_summaries(*asked)
    entries = [entry if isinstance(entry, str) else summary_of(entry) for entry in page.entries]
    assert told == EntryPage(entries, page.next_after)
    return page


def summary_of(row: ObjectRow) -> ObjectSummary:
    """Return the summary of an object in list_summaries."""
    return ObjectSummary(row.key.name, row.users_size, *row.tag, row.created_ms, row.attributes)


def modelled(names: Sequence[str], prefix: str, delimiter: str, after: str) -> list[str]:
    """Return the entries that a listing must have. Folders are names that end at the first delimiter after the
    prefix."""
    found = set()
    for name in names:
        if name.startswith(prefix):
            rest, behind, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name[len(prefix) :], "", "")
            found.add(prefix + rest + behind)
    return sorted((one for one in found if one.encode() > after.encode()), key=str.encode)


def all_entries(
    bench: MetadataBench, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int = FOREVER_MS
) -> list[str]:
    """All pages of a listing, one after the other."""
    found: list[str] = []
    while True:
        page = entries_of(bench, prefix, delimiter, after, limit, budget_ms)
        assert len(page.entries) <= limit
        found += names_of(page)
        if page.next_after is None:
            return found
        assert page.next_after == found[-1], "there is progress"
        after = page.next_after


class EntriesContract:
    """list_entries and list_summaries."""

    def test_pages_of_any_size_are_those_of_the_model(self, bench: MetadataBench) -> None:
        # A function of its own for each run: Hypothesis wants no method that several classes inherit.
        @settings(max_examples=60, deadline=None)
        @given(
            names=NAMES,
            prefix=st.one_of(st.just(""), LETTERS),
            delimiter=DELIMITERS,
            after=st.one_of(st.just(""), LETTERS),
            limit=st.integers(1, 12),
            late=st.booleans(),
        )
        def compare(names: list[str], prefix: str, delimiter: str, after: str, limit: int, late: bool) -> None:
            bench.metadata.delete_many([row.key for row in bench.metadata.list_objects("bucket", "", "", 999)], 1)
            bench.record([bench.new(name, 0) for name in names])
            expected = modelled(names, prefix, delimiter, after)
            assert all_entries(bench, prefix, delimiter, after, limit, 0 if late else FOREVER_MS) == expected
            inside = [(prefix + name)[: len(prefix) + 2] for name in names]
            for start in (*names, *inside, *expected):
                page = entries_of(bench, prefix, delimiter, start, limit, FOREVER_MS)
                rest = modelled(names, prefix, delimiter, start)
                assert names_of(page) == rest[:limit]
                assert page.next_after == (rest[limit - 1] if len(rest) > limit else None)

        compare()

    def test_rows_and_folders(self, bench: MetadataBench) -> None:
        bench.put_all(["2025/x", "2026/01/a", "2026/01/b", "2026/02/a", "2026/plain", "2027/x"])
        bench.put("2026/elsewhere/x", bucket="Bucket")
        bench.put("2026/03/deleted")
        bench.delete_into_trash("2026/03/deleted", 1000)
        page = entries_of(bench, "2026/", "/", "", 10, FOREVER_MS)
        assert page.folders == ["2026/01/", "2026/02/"]
        assert page.objects == [bench.get("2026/plain")]
        assert page.next_after is None
        page = entries_of(bench, "2026/", "/", "2026/01/a", 10, FOREVER_MS)
        assert page.folders == ["2026/02/"], "a folder in which `after` lies is passed over"
        page = entries_of(bench, "2026/", "/", "2026/01", 10, FOREVER_MS)
        assert page.folders == ["2026/01/", "2026/02/"]
        for listing in (bench.metadata.list_entries, bench.metadata.list_summaries):
            with pytest.raises(InvalidInput):
                listing("bucket", "\ud800", "/", "", 9, FOREVER_MS)

    def test_rows_in_every_state_are_whole(self, bench: MetadataBench) -> None:
        lease = bench.lease()
        bench.record([asking(bench.new(" two  words ", 5), attributes=b"\0\xff words"), bench.new("empty", 0)])
        bench.metadata.mark_published([bench.put("queued")], 5)
        bench.packed("packed", 7)
        attributes = composed({"a": "b"}, Composition(UploadId(bytes(16)), 5 << 30, 6, 3, b"m" * 16))
        bench.record([asking(bench.new("composed", 9), attributes=attributes)])
        bench.metadata.record_large(bench.large("large", lease), lease, bench.now_ms)
        rows = [bench.get(name) for name in (" two  words ", "composed", "empty", "large", "packed", "queued")]
        assert len({row.state for row in rows}) == 5
        assert summary_of(rows[1])[1:4] == (5 << 30, b"m" * 16, 3)
        assert bench.metadata.list_objects("bucket", "", "", 9) == rows
        assert entries_of(bench, "", "/", "", 9, FOREVER_MS).objects == rows

    def test_the_longest_names_and_the_greatest_characters(self, bench: MetadataBench) -> None:
        names = [LONGEST, LONGEST + LAST, LONGEST[:-4] + LAST * 2, LONGEST + "llll", LAST * 256, LAST * 255 + "/aaa"]
        bench.put_all([*names, LAST, f"{LAST}/", "z"])
        listed = [*names, LAST, f"{LAST}/", "z"]
        for delimiter in ("", "/", LAST, "l", "lll", "nowhere"):
            for after in ("", LONGEST, LONGEST + "llll", LONGEST + "lllll", LAST * 256, LAST * 300, LONGEST + LAST):
                for prefix in ("", LONGEST, LAST, LAST * 255, LAST * 300):
                    expected = modelled(listed, prefix, delimiter, after)
                    assert all_entries(bench, prefix, delimiter, after, 2) == expected

    def test_a_page_ends_when_its_time_is_over(self, bench: MetadataBench) -> None:
        bench.put_all([f"{i}/{j}" for i in range(5) for j in range(3)])
        page = entries_of(bench, "", "/", "", 10, 0)
        assert names_of(page) == ["0/"]
        assert page.next_after == "0/"
        assert all_entries(bench, "", "/", "", 10, 0) == [f"{i}/" for i in range(5)]

    def test_entries_are_in_byte_order(self, bench: MetadataBench) -> None:
        names = ["a", "a/b", "a.c", "B/c", "\uffff/", "\U00010000/", "é/1"]
        bench.put_all(names)
        page = entries_of(bench, "", "/", "", 10, FOREVER_MS)
        assert names_of(page) == ["B/", "a", "a.c", "a/", "é/", "\uffff/", "\U00010000/"]
        assert [isinstance(entry, ObjectRow) for entry in page.entries] == [False, True, True, *[False] * 4]
