"""Random histories of the versions of one key or two, on a server that locks rows: an order must explain each.

NOS_EC_DEV_HISTORY_SEED repeats the choices of a run (not its timing), NOS_EC_DEV_HISTORY_ROUNDS sets how many histories
there are. No history that lacks an order is luck: run it again with its seed and thousands of rounds.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.ports.metadata import ObjectRow, VersionEntry
from tests.rig.sql.version_histories import explain, told
from tests.rig.sql.version_model import Kind, RemoveLoneMarker, State, Step, Version
from tests.rig.sql.version_rounds import BUCKET, THREADS, Callers, Round, tag_of

SEED = int(os.environ.get("NOS_EC_DEV_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
ROUNDS = int(os.environ.get("NOS_EC_DEV_HISTORY_ROUNDS", "150"))
ROUNDS_MIN = 100
"""Fewer rounds try too little to mean anything."""
RARE = {RemoveLoneMarker.__name__}
"""What may be missing in so few rounds: a key is seldom left with one marker."""
TRANSIENTS_MAX = 0.05
"""What share of the steps may come to nothing, because the server ended their transactions again and again."""

_ENTRIES_MAX = 1000
"""More than there can be of a key."""
_TO_THE_END_MS = 10_000


class SqlVersionHistories:
    """Define a fixture `metadata`, an empty SqlMetadata on a server that locks rows."""

    @pytest.mark.invariant(1)
    def test_an_order_explains_every_history(self, metadata: SqlMetadata) -> None:
        assert ROUNDS >= ROUNDS_MIN, f"NOS_EC_DEV_HISTORY_ROUNDS: {ROUNDS} prove nothing; use {ROUNDS_MIN} at least"
        print(f"NOS_EC_DEV_HISTORY_SEED={SEED}")
        callers = Callers(metadata)
        with ThreadPoolExecutor(THREADS) as pool:
            for number in range(ROUNDS):
                one = Round(callers, f"{SEED}/{number}", f"k{number}")
                one.run(pool)
                for name, history in one.histories.items():
                    final = _left_of(metadata, name)
                    if not explain(history, final).is_whole:
                        pytest.fail(f"round {number} of seed {SEED}: no order explains\n{told(history, final)}")
        callers.bench.check_counters()
        counts = callers.counts
        missing = [what for what in ("packed", *(one.__name__ for one in Step.__subclasses__())) if not counts[what]]
        assert not set(missing) - RARE, f"never done in {ROUNDS} rounds: {missing}"
        assert counts["ended"] <= TRANSIENTS_MAX * counts["answered"], counts


def _left_of(metadata: SqlMetadata, name: str) -> State:
    """All that there is of a key. Its trash is emptied, so that looking there takes the same time in each round."""
    page = metadata.list_versions(BUCKET, name, "", ("", None), _ENTRIES_MAX, _TO_THE_END_MS)
    entries = [one for one in page.entries if isinstance(one, VersionEntry)]
    current = [one for one in entries if one.row is not None and not one.row.is_noncurrent]
    assert len(current) <= 1, current
    others = [_version(one) for one in entries if one not in current]
    assert len({one.number for one in others}) == len(others), others
    thrown = metadata.trash_page(None, _ENTRIES_MAX, BUCKET, name).rows
    metadata.purge_trash(thrown, 0)
    trash = frozenset(_object(row) for row in thrown)
    return State(_version(current[0]) if current else None, frozenset(others), trash)


def _version(entry: VersionEntry) -> Version:
    if entry.row is not None:
        return _object(entry.row)
    return Version(entry.version, Kind.NULL_MARKER if entry.is_null else Kind.MARKER)


def _object(row: ObjectRow) -> Version:
    kind = Kind.OWN_ID if row.has_version_id else Kind.NULL if row.is_of_versions else Kind.PLAIN
    return Version(row.version, kind, tag_of(row))
