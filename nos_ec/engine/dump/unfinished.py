"""Unfinished groups that a rebuild finds at the ends of blocks.

A group that was committed and whose last stripes are lost looks like one that its writer did not end, if no row of its
block says how many stripes were committed. But objects that were never committed still lie where they were written
before, unless they were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId
from nos_ec.engine.dump.rebuild_input import RebuildInput
from nos_ec.engine.dump.recovered_entries import RecoveredEntry, recover_unfinished
from nos_ec.ports.metadata import ObjectRow


def maybe_committed(lost: RebuildInput, blocks: Iterable[BlockId]) -> set[BlockId]:
    """Return those of these blocks whose unfinished group has objects as a whole that no row has, neither in this
    version nor in a later one, and those whose names cannot be read. To be called when all else has its rows. Raises
    Transient."""
    found: set[BlockId] = set()
    for block_id in blocks:
        try:
            entries = recover_unfinished(lost.blocks, block_id)
        except NotFound:
            continue
        if entries is None:
            found.add(block_id)
            continue
        known = lost.metadata.rows_of({entry.key for entry in entries})
        trashed = lost.metadata.trash_of({(entry.key, entry.version) for entry in entries})
        if not all((one.key, one.version) in trashed or _is_known(one, known.get(one.key)) for one in entries):
            found.add(block_id)
    return found


def _is_known(entry: RecoveredEntry, row: ObjectRow | None) -> bool:
    """Return whether the row of its key, if there is one, is of this version or a later one. That of a landing copy
    only has the time of its PUT."""
    if row is None:
        return False
    has_its_bytes = (row.size, row.crc32c) == (entry.extent.length, entry.crc32c)
    return has_its_bytes or row.version // 1000 >= entry.version // 1000
