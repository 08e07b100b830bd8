"""The real way of an object, and the script that measures what it costs (tests/soak/cost_per_object.py): no step runs
more instructions of SQLite in a store with more objects."""

from __future__ import annotations

from contextlib import ExitStack

from sqlalchemy import Connection, update

from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.tables.schema import SURVIVAL
from tests.conftest import memory_folder
from tests.rig.at_rest import HOUR_MS
from tests.rig.sql.instructions import Instructions
from tests.soak.cost_per_object import ONE, Rounds, open_one

REQUESTS = 10


def test_the_way_of_an_object_costs_as_much_in_a_full_store() -> None:
    few, many = _instructions(20_000, idle_ms=0), _instructions(100_000, idle_ms=HOUR_MS)
    assert {"put", "publish", "pack", "commit", "get", "head", "list", "delete"} <= few.keys()
    assert min(few.values()) > 0
    # They read the rows of all blocks, and status stores their sums in a large store.
    by_blocks = {"status", "idle_gc", "space_use"}
    dearer = {step: (few[step], many[step]) for step in few.keys() - by_blocks if many[step] > 2 * few[step]}
    assert dearer == {}, "a scan takes five times as many"
    grown = {step: many[step] - few[step] for step in ("idle_gc", "space_use")}
    # These blocks are nearly empty, so two more queries of a run look at each of them, for as much as another sum.
    assert 0 < grown["idle_gc"] < 2.5 * grown["space_use"], "an idle run adds up all blocks once"


def _instructions(objects: int, idle_ms: int) -> dict[str, float]:
    """Return the instructions for a request or an object, by step, in a store of this many objects. It was not used for
    this time, so a survey of lifetimes may be due."""
    with memory_folder() as folder, ExitStack() as stack:
        way, instructions = open_one(folder, objects, stack), Instructions()
        metadata = way.systems[0].metadata
        assert isinstance(metadata, SqlMetadata)
        instructions.watch(metadata)
        rounds = Rounds({ONE: way}, REQUESTS, instructions)
        rounds.run()
        _let_pass(metadata, idle_ms)
        instructions.start()
        found = {step: cost.instructions / cost.calls for step, cost in rounds.run()[ONE].items()}
        before = instructions.in_all()
        metadata.space_use()
        return found | {"space_use": instructions.in_all() - before}


def _let_pass(metadata: SqlMetadata, idle_ms: int) -> None:
    """Make it as long since the last survey of lifetimes."""

    def write(connection: Connection) -> None:
        connection.execute(update(SURVIVAL).values(counted_ms=SURVIVAL.c.counted_ms - idle_ms))

    metadata._transactions.write(write)
