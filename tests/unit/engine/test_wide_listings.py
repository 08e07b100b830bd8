"""Merged listings of wide buckets, compared with a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nos_ec.core.folders import folder_of
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.wide.listings import MergedLists
from nos_ec.ports.metadata import EntryPage, ObjectSummary, VersionEntry, VersionPage
from nos_ec.ports.metadata.directory import DirectoryRow, slice_of

NAMES = st.text(st.sampled_from("a/b\u00e4\U00010400"), min_size=1, max_size=5)
_NAMELESS = ObjectSummary("", 0, b"", None, 0, b"")

Versions = dict[str, Sequence[int]]
"""The version numbers of names, newest first."""


class Slice:
    """Objects with versions, listed as a Store lists them: a page may end early, but not before its first entry."""

    def __init__(self, versions: Versions, stops: list[int]) -> None:
        """`stops`: how many entries the next pages have at most."""
        self.versions = versions
        self._stops = stops

    def _limit(self, limit: int) -> int:
        return min(limit, self._stops.pop() if self._stops else limit)

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        found = entries(self.versions, prefix, delimiter, after)
        most = self._limit(limit)
        page = [name if is_folder else _NAMELESS._replace(name=name) for name, is_folder in found[:most]]
        return EntryPage(page, found[most - 1][0] if len(found) > most else None)

    def list_versions(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, int | None], limit: int, budget_ms: int
    ) -> VersionPage:
        found = versions_after(self.versions, prefix, delimiter, after)
        most = self._limit(limit)
        page = [entry if isinstance(entry, str) else version_entry(*entry) for entry in found[:most]]
        last = found[most - 1] if len(found) > most else None
        return VersionPage(page, (last, None) if isinstance(last, str) else last)


def version_entry(name: str, version: int) -> VersionEntry:
    return VersionEntry(ObjectKey("wide", name), version, 0, False, None)


def entries(names: Any, prefix: str, delimiter: str, after: str) -> list[tuple[str, bool]]:
    """Names and folders after a name or folder, in order, and whether each is a folder."""
    found: dict[str, bool] = {}
    for name in names:
        if name.startswith(prefix):
            folder = folder_of(name, prefix, delimiter)
            found[folder or name] = folder is not None
    passed = folder_of(after, prefix, delimiter)
    listed = sorted(found, key=str.encode)
    return [(name, found[name]) for name in listed if name.encode() > after.encode() and name != passed]


def versions_after(versions: Versions, prefix: str, delimiter: str, after: tuple[str, int | None]) -> list[Any]:
    """Versions, as name and number, and folders after a version of a name."""
    name_after, number = after
    passed = folder_of(name_after, prefix, delimiter)
    found: list[Any] = []
    for name, is_folder in entries(versions, prefix, delimiter, ""):
        if name.encode() > name_after.encode() and name != passed:
            found += [name] if is_folder else [(name, version) for version in versions[name]]
        elif name == name_after and number is not None:
            found += [(name, version) for version in versions[name] if version < number]
    return found


@st.composite
def buckets(draw: st.DrawFn) -> tuple[Versions, MergedLists]:
    """The versions of a bucket, and the merged listings of its slices."""
    counts = draw(st.dictionaries(NAMES, st.integers(1, 3), max_size=25))
    versions: Versions = {name: range(count, 0, -1) for name, count in counts.items()}
    number = draw(st.integers(2, 4))
    parts: list[Versions] = [{} for _ in range(number)]
    for name in versions:
        parts[slice_of(name, number)][name] = versions[name]
    stops = st.lists(st.integers(1, 3), max_size=10)
    slices: Any = [Slice(part, draw(stops)) for part in parts]
    return versions, MergedLists(
        lambda: [(nullcontext(), one) for one in slices], lambda name: slices[slice_of(name, number)]
    )


@settings(deadline=None, max_examples=300)
@given(buckets(), st.sampled_from(["", "a", "/", "a/"]), st.sampled_from(["", "/", "/a"]), st.integers(1, 6))
def test_pages_of_objects_and_folders_together_are_the_listing(
    bucket: tuple[Versions, MergedLists], prefix: str, delimiter: str, limit: int
) -> None:
    versions, lists = bucket
    after, found = "", []
    while True:
        page = lists.list_summaries("wide", prefix, delimiter, after, limit, 1000)
        assert len(page.entries) <= limit
        found += [(entry, True) if isinstance(entry, str) else (entry.name, False) for entry in page.entries]
        if page.next_after is None:
            break
        assert page.next_after.encode() > after.encode()
        after = page.next_after
    assert found == entries(versions, prefix, delimiter, "")


@settings(deadline=None, max_examples=300)
@given(buckets(), st.sampled_from(["", "a", "/", "a/"]), st.sampled_from(["", "/", "/a"]), st.integers(1, 6))
def test_pages_of_versions_together_are_the_listing(
    bucket: tuple[Versions, MergedLists], prefix: str, delimiter: str, limit: int
) -> None:
    versions, lists = bucket
    found: list[Any] = []
    after: tuple[str, int | None] = ("", None)
    while True:
        page = lists.list_versions("wide", prefix, delimiter, after, limit, 1000)
        assert len(page.entries) <= limit
        found += [entry if isinstance(entry, str) else (entry.key.name, entry.version) for entry in page.entries]
        if page.next_after is None:
            break
        assert page.entries  # otherwise it would not end
        after = page.next_after
    assert found == versions_after(versions, prefix, delimiter, ("", None))


def test_the_slice_of_a_name_never_changes() -> None:
    """Objects could not be found any more if it did."""
    names, slices = ("", "a", "photos/2026/a.jpg", "\u00e4"), ("b", "c", "d")
    assert [slice_of(name, 3) for name in names] == [0, 2, 1, 1]
    row = DirectoryRow("wide", "b", "ann", 5, slices=slices)
    assert [row.cell_of(name) for name in names] == ["b", "d", "c", "c"]
    assert DirectoryRow("wide", "b", "ann", 5, slices=("b", "c", "c")).cells == ("b", "c")
    assert DirectoryRow("plain", "b", "ann", 5).cells == ("b",)
