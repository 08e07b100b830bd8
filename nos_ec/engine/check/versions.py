"""Checks that all listed noncurrent versions have objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.check.second_look import SecondLook
from nos_ec.ports.metadata import Metadata, ObjectRow

PAGE_ROWS = 1000

_Listed = tuple[ObjectKey, int, int | None]


def without_object(metadata: Metadata, second: SecondLook) -> Iterator[Finding]:
    """Yield the noncurrent versions without an object. Raises Transient."""
    after: tuple[ObjectKey, int] | None = None
    while page := metadata.noncurrent_after(after, PAGE_ROWS):
        after = page[-1][0], page[-1][1]
        for one in _wrong(page, metadata):
            yield from second.doubt(partial(_again, one, metadata))


def _wrong(page: Sequence[_Listed], metadata: Metadata) -> list[_Listed]:
    ids = [object_id for *_, object_id in page if object_id is not None]
    rows = metadata.objects_with(ids)
    return [one for one in page if one[2] is not None and not _fits(one, rows.get(one[2]))]


def _fits(listed: _Listed, row: ObjectRow | None) -> bool:
    return row is not None and row.is_noncurrent and (row.key, row.version) == listed[:2]


def _again(listed: _Listed, metadata: Metadata) -> Iterator[Finding]:
    """Report a version that is still listed, and still has no object."""
    key, version, object_id = listed
    if listed not in metadata.noncurrent_after((key, version + 1), 1):
        return
    if _wrong([listed], metadata):
        yield Finding(FindingKind.VERSION_WITHOUT_OBJECT, f"version {version} of {key}", {"object_id": object_id})
