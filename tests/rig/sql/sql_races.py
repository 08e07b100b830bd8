"""How statements of several transactions affect each other on a server that locks rows, shown step by step.

Statements must reach every row. Under READ COMMITTED, InnoDB walks an index entry by entry and waits at a locked one.
If another transaction moves an entry to a place that the walk has already passed, the walk misses it, although its row
matched before and matches afterwards. So a statement that has to reach a row must find it by a key that never changes,
whichever index the planner prefers.

Statements must wait only for rows that concern them, and all must lock rows in the same order. Otherwise the server
ends them as deadlocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, select

from nos_ec.adapters.sql.blocks import block_rows, landing_segments, leases
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.objects import object_rows, puts
from nos_ec.adapters.sql.tables.schema import WAITING
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.publishing.slots import ALL_SLOTS
from nos_ec.core.states import BlockState, SegmentState
from nos_ec.ports.metadata import LandedMove
from tests.contract.suites.metadata_segment_contract import SegmentBench, copy_of
from tests.rig.fakes.metadata_bench import MetadataBench, new_landing_id

WAITS_S = 0.3
"""Long enough for a statement to reach the locked row."""
WORKS_S = 30
"""Enough for a score of transactions on a busy machine, and less than five lock waits take."""


class SqlRaces:
    """Define a fixture `metadata`, an empty SqlMetadata on a server that locks rows."""

    @pytest.fixture
    def bench(self, metadata: SqlMetadata) -> MetadataBench:
        """The metadata store under test, with shorthands."""
        return MetadataBench(metadata)

    @pytest.mark.parametrize("way", ["fence_lease", "release_lease", "release_leases"])
    @pytest.mark.invariant(8)
    def test_all_open_blocks_are_fenced_whatever_commits_into_them(
        self, metadata: SqlMetadata, bench: MetadataBench, way: str
    ) -> None:
        """The first group of a block takes it from a million parts of holes to none."""
        row = bench.put("n")
        lease = bench.lease()
        first, second = sorted(bench.block(lease) for _ in range(2))
        ways: dict[str, Callable[[], Any]] = {
            "fence_lease": partial(metadata.fence_lease, lease, lease.expires_ms),
            "release_lease": partial(metadata.release_lease, lease),
            "release_leases": partial(metadata.release_leases, [lease]),
        }
        with ThreadPoolExecutor(1) as pool, metadata._engine.connect() as connection:
            block_rows.lock(connection, first)
            fencing = pool.submit(ways[way])
            assert wait([fencing], WAITS_S).not_done, "it does not wait for the row"
            metadata.commit_group(bench.group(lease, second, [row]))
        fencing.result()
        assert [(one.state, one.stripes) for one in map(metadata.block, (first, second))] == [
            (BlockState.FENCED, 0),
            (BlockState.FENCED, 1),
        ]
        bench.check_counters()

    def test_nothing_waits_for_rows_that_it_does_not_concern(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """A planner that believes that there are few rows, or none yet, would rather read all of them. Then each
        transaction waits for all others, which also wait for it, and servers end one in five of several concurrent
        PUTs."""
        held, hers = bench.packed("held"), bench.lease("held")
        landed = bench.put("landed", due_ms=bench.now_ms + 1000)
        assert held.extent is not None
        reserved = new_landing_id()
        metadata.reserve_landing([reserved], bench.now_ms)
        segment = SegmentBench(bench).segment()
        with ThreadPoolExecutor(1) as pool, metadata._engine.connect() as connection:
            connection.execute(landing_segments.BY_ID.with_for_update(), {"segment": segment}).one()
            leases.require(connection, hers)
            puts.lock_entries(connection, [reserved, *bench.deletions()])
            for one in (held, landed):
                object_rows.lock(connection, one.key)
            connection.execute(select(WAITING).where(WAITING.c.landing_id == landed.landing_id).with_for_update())
            block_rows.lock(connection, held.extent.block_id)
            work = pool.submit(_work, metadata, bench)
            waits = bool(wait([work], WORKS_S).not_done)
        work.result()
        assert not waits
        bench.check_counters()

    @pytest.mark.parametrize("way", ["delete_many", "record_puts"])
    def test_objects_are_locked_in_order_of_their_ids(
        self, metadata: SqlMetadata, bench: MetadataBench, way: str
    ) -> None:
        """Commits lock them in this order, too, whatever their keys are. Otherwise an operation on many objects and a
        commit would deadlock again and again."""
        first, second = bench.put("z"), bench.put("a")
        new = [bench.new("a"), bench.new("z")]
        ways: dict[str, Callable[[], Any]] = {
            "delete_many": partial(metadata.delete_many, [second.key, first.key], bench.now_ms),
            "record_puts": partial(metadata.record_puts, new, bench.now_ms),
        }
        with ThreadPoolExecutor(2) as pool, metadata._engine.connect() as connection:
            object_rows.lock(connection, first.key)
            many = pool.submit(ways[way])
            assert wait([many], WAITS_S).not_done, "it does not wait for the first"
            other = pool.submit(metadata.mark_published, [second], bench.now_ms)
            waits = bool(wait([other], WORKS_S).not_done)
        assert not waits
        assert (other.result(), len(many.result())) == (1, 2)
        bench.check_counters()

    def test_a_commit_that_waits_for_an_object_holds_no_block(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """A delete holds its object and needs the block. A commit that held the block and waited for the object would
        deadlock with it."""
        packed, row = bench.put("packed"), bench.put("n")
        lease = bench.lease()
        block_id = bench.block(lease)
        metadata.commit_group(bench.group(lease, block_id, [packed]))
        with ThreadPoolExecutor(2) as pool, metadata._engine.connect() as connection:
            object_rows.lock(connection, row.key)
            commit = pool.submit(metadata.commit_group, bench.group(lease, block_id, [row], at=1))
            assert wait([commit], WAITS_S).not_done, "it does not wait for the object"
            gone = pool.submit(metadata.delete, packed.key, bench.now_ms)
            waits = bool(wait([gone], WORKS_S).not_done)
        assert not waits
        assert (gone.result().object_id, commit.result()) == (packed.object_id, frozenset({row.object_id}))
        bench.check_counters()

    @pytest.mark.invariant(2)
    def test_a_landing_copy_that_changes_places_is_known(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """A COMMIT whose answer was lost records a PUT, and the object is packed, while its writer asks whether the
        copy may be deleted."""
        new = bench.new("n")
        assert new.landing_id is not None
        reading = metadata._transactions.reading
        assert reading is not None
        steps: Iterator[Callable[[], Any]] = iter(
            [lambda: None, lambda: metadata.record_puts([new], bench.now_ms), lambda: bench.pack([bench.get("n")])]
        )

        def step(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if "JSON_TABLE" in statement:
                next(steps)()

        event.listen(reading, "before_cursor_execute", step)
        try:
            assert metadata.landing_needed([new.landing_id]) == {new.landing_id}
        finally:
            event.remove(reading, "before_cursor_execute", step)

    @pytest.mark.invariant(2)
    def test_sealing_waits_for_puts_that_are_being_recorded(self, metadata: SqlMetadata, bench: MetadataBench) -> None:
        """These do not wait for each other."""
        log = SegmentBench(bench)
        segment = log.segment()
        with ThreadPoolExecutor(2) as pool, metadata._engine.connect() as connection:
            assert landing_segments.lock_open(connection, [log.record(segment)]) == {segment}
            recording = pool.submit(log.put, segment, "n")
            waits = bool(wait([recording], WORKS_S).not_done)
            sealing = pool.submit(log.seal, segment)
            assert wait([sealing], WAITS_S).not_done, "it does not wait for the row"
            assert log.states() == {segment: SegmentState.OPEN}
        sealing.result()
        assert not waits
        assert recording.result() == [bench.get("n")]
        assert log.states() == {segment: SegmentState.SEALED}

    @pytest.mark.invariant(2)
    def test_a_reference_that_is_passed_on_meanwhile_keeps_its_segment(
        self, metadata: SqlMetadata, bench: MetadataBench
    ) -> None:
        """A revert passes it from the queue to a row, after the statement has looked at the rows, and before it looks
        at the queue."""
        log = SegmentBench(bench)
        segment = log.segment()
        (row,) = log.put(segment, "n")
        bench.pack([row])
        log.seal(segment)
        deletion = bench.deletions()[copy_of(row)]
        changed: list[str] = []

        def wait_between(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
            slow = statement.replace(" OR (EXISTS", " OR SLEEP(3) OR (EXISTS")
            if slow != statement:
                changed.append(slow)
                return slow, parameters
            return statement, parameters

        event.listen(metadata._engine, "before_cursor_execute", wait_between, retval=True)
        try:
            with ThreadPoolExecutor(1) as pool:
                dooming = pool.submit(metadata.doom_segment, segment)
                assert _comes_true(lambda: bool(changed))
                assert wait([dooming], WAITS_S).not_done
                assert metadata.revert_to_landing(deletion, bench.now_ms)
                assert not dooming.done(), "it was not reverted meanwhile"
                assert dooming.result() is False
        finally:
            event.remove(metadata._engine, "before_cursor_execute", wait_between)
        assert len(changed) == 1
        assert log.states() == {segment: SegmentState.SEALED}

    @pytest.mark.parametrize("new_key", [True, False])
    @pytest.mark.invariant(5)
    def test_a_put_whose_answer_was_lost_is_not_recorded_twice(
        self, metadata: SqlMetadata, bench: MetadataBench, new_key: bool
    ) -> None:
        """Its first COMMIT is done, and the object deleted or overwritten, while it is recorded again."""
        log = SegmentBench(bench)
        segment = log.segment()
        new = log.new(segment, "n")
        if not new_key:
            bench.put("n")
        steps: Iterator[Callable[[], Any]] = iter([lambda: (bench.record([new]), bench.delete("n"))])
        begins = "INSERT INTO objects" if new_key else "SELECT"

        def step(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith(begins) and "objects" in statement:
                next(steps, lambda: None)()

        event.listen(metadata._engine, "before_cursor_execute", step)
        try:
            (again,) = bench.record([new])
        finally:
            event.remove(metadata._engine, "before_cursor_execute", step)
        assert next(steps, None) is None
        entry = bench.deletions()[copy_of(new)]
        assert (again.object_id, again.version) == (entry.object_id, entry.version)
        with pytest.raises(NotFound):
            bench.get("n")


def _comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WORKS_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def _work(metadata: SqlMetadata, bench: MetadataBench) -> None:
    """Do some of every kind of work, on separate rows."""
    lease, *_ = mine = metadata.acquire_leases(["a", "b"], bench.now_ms, 50)
    rows = bench.put_all(["m", "n"])
    metadata.mark_published(metadata.due_objects(bench.now_ms, 9, ALL_SLOTS), bench.now_ms)
    first, second = bench.block(lease), bench.block(lease)
    metadata.commit_group(bench.group(lease, first, rows))
    metadata.commit_group(bench.group(lease, second, [metadata.get(row.key) for row in rows]))
    copies = [row.landing_id for row in rows if row.landing_id is not None]
    metadata.postpone_deletion(copies, bench.now_ms)
    metadata.forget_landing(sorted(metadata.doom_landing(dict.fromkeys(copies, second))))
    bench.put("m")
    metadata.delete_many([row.key for row in rows], bench.now_ms)
    metadata.record_large(bench.large("l", lease), lease, bench.now_ms)
    metadata.delete_many([ObjectKey("bucket", "l")], bench.now_ms)
    _work_in_log(SegmentBench(bench, 2))
    metadata.release_leases(metadata.renew_leases(mine, bench.now_ms, 50))


def _work_in_log(log: SegmentBench) -> None:
    old, new = log.segment(), log.segment()
    rows = log.put(old, "in log", "moved")
    log.bench.delete("in log")
    log.seal(old)
    move = LandedMove(rows[1].object_id, rows[1].version, copy_of(rows[1]), log.record(new))
    assert log.metadata.move_landed([move]) == {move.target}
    log.metadata.forget_landing([copy_of(rows[0])])
    assert log.metadata.releasable_segments([old, new]) == {old}
    assert log.metadata.doom_segment(old)
    log.metadata.forget_segments([old])
    log.bench.delete("moved")
