"""Judges unfinished groups that a rebuild finds at the ends of blocks.

A committed group whose last stripes are lost looks like a group that its writer did not finish, if no row of its block
records how many stripes were committed. But objects that were never committed still exist where they were before,
unless they were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId
from nos_ec.engine.dump.rebuild_input import RebuildInput
from nos_ec.engine.dump.recovered_entries import RecoveredEntry, recover_unfinished
from nos_ec.ports.metadata import ObjectRow


def maybe_committed(stores: RebuildInput, blocks: Iterable[BlockId]) -> set[BlockId]:
    """Return the blocks whose unfinished group may have been committed: it holds a complete object of which no row has
    this version or a later one, or its names cannot be read. Call this when everything else has its rows. Raises
    Transient."""
    found: set[BlockId] = set()
    for block_id in blocks:
        try:
            entries = recover_unfinished(stores.blocks, block_id)
        except NotFound:
            continue
        if entries is None:
            found.add(block_id)
            continue
        known = stores.metadata.rows_of({entry.key for entry in entries})
        trashed = stores.metadata.trash_of({(entry.key, entry.version) for entry in entries})
        if not all((one.key, one.version) in trashed or _is_known(one, known.get(one.key)) for one in entries):
            found.add(block_id)
    return found


def _is_known(entry: RecoveredEntry, row: ObjectRow | None) -> bool:
    """Return whether the row of its key, if any, is of this version or a later one. A row that was rebuilt from a
    landing copy has only the time of its PUT as its version, so a row with the same bytes counts as well."""
    if row is None:
        return False
    has_its_bytes = (row.size, row.crc32c) == (entry.extent.length, entry.crc32c)
    return has_its_bytes or row.version // 1000 >= entry.version // 1000
