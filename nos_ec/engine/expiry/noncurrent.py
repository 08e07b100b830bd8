"""The noncurrent versions of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import VERSION_MAX
from nos_ec.ports.metadata import Metadata, ObjectRow

PAGE_ROWS = 1000


def noncurrent_of(key: ObjectKey, metadata: Metadata) -> Iterator[Sequence[ObjectRow]]:
    """Yield the noncurrent versions of a key in pages. Raises Transient."""
    after = key, VERSION_MAX
    while page := metadata.noncurrent_after(after, PAGE_ROWS):
        own = [one for one in page if one[0] == key]
        if own:
            yield list(metadata.objects_with([object_id for *_, object_id in own if object_id is not None]).values())
        if len(own) < PAGE_ROWS:
            return
        after = own[-1][0], own[-1][1]
