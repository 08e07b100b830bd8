"""A Hypothesis state machine that compares a metadata store with a dict, and checks the counters of every block after
each step.

Subclass it, or call `metadata_machine`, with a function that creates a fresh metadata store for each run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nos_ec.core.conditions import ABSENT
from nos_ec.core.errors import LeaseLost, NotFound, PreconditionFailed, Transient
from nos_ec.core.gc.share import WHOLE, Share
from nos_ec.core.ids import BlockId, LandingId, ObjectKey
from nos_ec.core.publishing.slots import ALL_SLOTS
from nos_ec.core.states import BlockKind, BlockState, ObjectState
from nos_ec.ports.metadata import Lease, Metadata, NewLargeObject, ObjectColumns, ObjectRow
from tests.rig.fakes.audit import counted_totals
from tests.rig.fakes.metadata_bench import GEOMETRY, MetadataBench, asking

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "é", "a/b"])
SIZES = st.integers(min_value=0, max_value=5000)
PICKS = st.lists(NAMES, max_size=5)


@dataclass
class Expected:
    """What the model knows about an object."""

    version: int
    size: int
    large: bool
    conditional: bool = False


class MetadataMachine(RuleBasedStateMachine):
    """The rules. `new_metadata` is set by the subclass."""

    new_metadata: Callable[[], Metadata]

    @initialize()
    def open(self) -> None:
        """A fresh metadata store with one writer."""
        self.bench = MetadataBench(type(self).new_metadata())
        self.metadata = self.bench.metadata
        self.model: dict[str, Expected] = {}
        self.trash: dict[int, tuple[str, Expected]] = {}
        self.seen: list[ObjectRow] = []
        self.copies: set[LandingId] = set()
        self.lease: Lease = self.bench.lease()

    @rule(name=NAMES, size=SIZES)
    def put(self, name: str, size: int) -> None:
        """PUT an object, which overwrites any existing one."""
        row = self.bench.put(name, size)
        assert row.version > (self.model[name].version if name in self.model else 0)
        self.model[name] = Expected(row.version, size, large=False)
        self.seen.append(row)
        if row.landing_id is not None:
            self.copies.add(row.landing_id)

    @rule(names=st.lists(NAMES, min_size=1, max_size=8))
    def put_batch(self, names: list[str]) -> None:
        """PUT several objects at once, some of them twice."""
        for name, row in zip(names, self.bench.put_all(names, 321), strict=True):
            self.model[name] = Expected(row.version, 321, large=False)
            self.seen.append(row)
            assert row.landing_id is not None
            self.copies.add(row.landing_id)

    @rule(name=NAMES, stale=st.booleans())
    def put_large(self, name: str, stale: bool) -> None:
        """PUT a large object, possibly one that another PUT has overtaken."""
        new: NewLargeObject = self.bench.large(name, self.lease, version=2 if stale else 0)
        wins = name not in self.model or not stale
        answer = self.metadata.record_large(new, self.lease, self.bench.now_ms)
        if not wins and self.model[name].conditional:
            assert isinstance(answer, Transient)
        else:
            assert answer is wins
        if wins:
            self.model[name] = Expected(new.version, new.size, large=True)

    @rule(name=NAMES)
    def put_if_absent(self, name: str) -> None:
        """PUT an object unless there is one."""
        new = asking(self.bench.new(name), condition=ABSENT)
        assert new.landing_id is not None
        self.copies.add(new.landing_id)
        (answer,) = self.metadata.record_puts([new], self.bench.now_ms)
        assert isinstance(answer, PreconditionFailed if name in self.model else ObjectRow)
        if isinstance(answer, ObjectRow):
            self.model[name] = Expected(answer.version, new.size, large=False, conditional=True)
            self.seen.append(answer)

    @rule(pick=st.integers(0, 99), attributes=st.sampled_from([b"", b"some", b"others"]))
    def set_attributes(self, pick: int, attributes: bytes) -> None:
        """Change the attributes of a row seen some time ago."""
        if not self.seen:
            return
        row = self.seen[pick % len(self.seen)]
        current = {(one.object_id, one.version): one for one in self._rows()}.get((row.object_id, row.version))
        may = current is not None and current.attributes in (row.attributes, attributes)
        assert self.metadata.set_attributes(row, attributes) is may
        if current is not None:
            expected = replace(current, attributes=attributes) if may else current
            assert self.metadata.get(current.key) == expected

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """DELETE an object that may not exist."""
        if name in self.model:
            assert self.bench.delete(name).version == self.model.pop(name).version
        else:
            with pytest.raises(NotFound):
                self.bench.delete(name)

    @rule(name=NAMES, keep_ms=st.integers(min_value=0, max_value=20))
    def delete_into_trash(self, name: str, keep_ms: int) -> None:
        """DELETE an object into the trash."""
        if name in self.model:
            row = self.bench.delete_into_trash(name, keep_ms)
            self.trash[row.object_id] = (name, self.model.pop(name))

    @rule(first=st.booleans())
    def undelete(self, first: bool) -> None:
        """Bring back all that can come back: of each key the version that is kept longest, or the one that is not."""
        rows = list(self.metadata.trash_page(None, 999).rows)
        wanted = rows if first else rows[::-1]
        back = self.metadata.undelete(wanted).rows
        names = {row.key.name for row in wanted} - self.model.keys()
        assert {row.key.name for row in back} == names
        assert len(back) == len(names)
        for row in back:
            name, self.model[row.key.name] = self.trash.pop(row.object_id)
            assert name == row.key.name

    @rule()
    def expire(self) -> None:
        """Purge what has expired in the trash."""
        expired = self.metadata.expired_trash(self.bench.now_ms, 99)
        assert self.metadata.purge_trash(expired, self.bench.now_ms) == expired
        for row in expired:
            del self.trash[row.object_id]

    @rule(names=PICKS)
    def delete_batch(self, names: list[str]) -> None:
        """DELETE several objects at once. Some do not exist, and some are listed twice."""
        rows = self.metadata.delete_many([ObjectKey("bucket", name) for name in names], self.bench.now_ms)
        there = [name for name in dict.fromkeys(names) if name in self.model]
        assert [(row.key.name, row.version) for row in rows] == [(n, self.model.pop(n).version) for n in there]

    @rule(
        names=PICKS, stale=st.lists(st.integers(min_value=0, max_value=99), max_size=3), kind=st.sampled_from(BlockKind)
    )
    def commit(self, names: list[str], stale: list[int], kind: BlockKind) -> None:
        """Commit a group of current rows, repeated rows, and rows seen long ago."""
        rows = [self.bench.get(name) for name in names if name in self.model]
        rows += [self.seen[i % len(self.seen)] for i in stale if self.seen]
        rows = [row for row in rows if row.size and row.state is not ObjectState.LARGE]
        block_id = self.bench.block(self.lease, kind)
        rows += [
            row for row in self.metadata.trash_page(None, 2).rows if row.size and row.state is not ObjectState.LARGE
        ]
        before = {(row.object_id, row.version): row.extent for row in self._all_rows()}
        won = self.metadata.commit_group(self.bench.group(self.lease, block_id, rows, stripes=2))
        may_win = {row.object_id for row in rows if before.get((row.object_id, row.version), ...) == row.extent}
        assert won == may_win
        for row in self._all_rows():
            assert (row.extent is not None and row.extent.block_id == block_id) is (row.object_id in won)
        self.seen += self._rows()

    @rule(seal=st.booleans())
    def finish_blocks(self, seal: bool) -> None:
        """Seal or fence every open block of the writer, and reconcile the fenced ones."""
        for block in self.metadata.list_blocks(None, 999):
            if block.state is BlockState.OPEN and seal:
                self.metadata.seal_block(self.lease, block.block_id, self.bench.now_ms)
            elif block.state is BlockState.OPEN:
                self.metadata.fence_block(self.lease, block.block_id)
        self._reconcile()

    @rule()
    def lose_the_lease(self) -> None:
        """Let the writer die. It is fenced and can no longer do anything, and its blocks are reconciled."""
        block_id = self.bench.block(self.lease)
        assert self.metadata.fence_lease(self.lease, self.lease.expires_ms)
        with pytest.raises(LeaseLost):
            self.metadata.commit_group(self.bench.group(self.lease, block_id, []))
        self.lease = self.bench.lease()
        self._reconcile()

    @rule(verified=st.booleans(), revert=st.booleans())
    def reap(self, verified: bool, revert: bool) -> None:
        """Handle due landing copies as the reaper does: doom and forget them, or revert."""
        for deletion in self.bench.deletions().values():
            extent = deletion.row.extent if deletion.row else None
            if revert:
                self.metadata.revert_to_landing(deletion, self.bench.now_ms)
                continue
            where: BlockId | None = extent.block_id if extent and verified else None
            doomed = self.metadata.doom_landing({deletion.landing_id: where})
            assert bool(doomed) is (deletion.row is None or (extent is not None and verified))
            self.metadata.forget_landing(list(doomed))
            self.copies -= doomed

    @rule(share=st.sampled_from([WHOLE, Share(0, 3), Share(1, 3), Share(2, 3)]))
    def collect(self, share: Share) -> None:
        """Condemn and forget what one of three GC workers may, or a single one: exactly the sealed blocks of its share
        that no row points into."""
        now_ms = self.bench.now_ms
        candidates = self.metadata.gc_candidates(0.0, now_ms, 0, 999, share)
        for block in (*candidates, *self.metadata.empty_blocks(999, share)):
            assert share.owns(block.block_id)
            free = not self.metadata.placed_in(block.block_id)
            assert self.metadata.condemn_block(block.block_id, now_ms) is free
        for block in self.metadata.condemned_blocks(now_ms, 999, share):
            assert share.owns(block.block_id)
            self.metadata.forget_block(block.block_id)
        assert all(not share.owns(block.block_id) for block in self.metadata.condemned_blocks(now_ms, 999))

    @precondition(lambda self: self.model)
    @rule(forward_ms=st.integers(min_value=0, max_value=10))
    def publish(self, forward_ms: int) -> None:
        """Let time pass, and let the producer publish what is due."""
        self.bench.now_ms += forward_ms
        due = self.metadata.due_objects(self.bench.now_ms, 99, ALL_SLOTS)
        assert self.metadata.mark_published(due, self.bench.now_ms + 5) == len(due)

    @invariant()
    def objects_are_the_models(self) -> None:
        """Every object exists with its version and size, and there are no others."""
        rows = {row.key.name: row for row in self._rows()}
        assert {name: (row.version, row.size) for name, row in rows.items()} == {
            name: (expected.version, expected.size) for name, expected in self.model.items()
        }
        kept = {row.object_id: row for row in self.metadata.trash_page(None, 999).rows}
        assert {one: (row.key.name, row.version, row.size) for one, row in kept.items()} == {
            one: (name, expected.version, expected.size) for one, (name, expected) in self.trash.items()
        }
        for name, row in rows.items():
            assert self.metadata.get(ObjectKey("bucket", name)) == row
            assert (row.state is ObjectState.LARGE) is self.model[name].large

    @invariant()
    def counters_are_right(self) -> None:
        """Invariants 3 and 6, and the totals."""
        self.bench.check_counters()
        totals = self.metadata.totals()
        assert totals == counted_totals(self.metadata)
        size = totals.stripes * GEOMETRY.stripe_size
        assert totals.live_bytes + totals.dead_bytes + totals.overhead_bytes == size

    @invariant()
    def no_copy_is_lost_or_leaked(self) -> None:
        """Invariant 2: a row or the queue knows every copy that was not deleted, and no row's copy was deleted."""
        assert self.metadata.landing_known(list(self.copies)) == self.copies
        assert {row.landing_id for row in self._all_rows() if row.landing_id} <= self.copies

    def teardown(self) -> None:
        """Close the metadata store of this run."""
        if hasattr(self, "metadata"):
            self.metadata.close()

    def _rows(self) -> list[ObjectRow]:
        return self.metadata.list_objects("bucket", "", "", 999)

    def _all_rows(self) -> list[ObjectRow]:
        rows = self.metadata.objects_after(0, 9999)
        columns = ObjectColumns.of(rows)
        assert self.metadata.columns_after(0, 9999) == columns
        assert set(self.metadata.uncommon_between(0, self.metadata.last_id_of_page(0, 9999) or 0)) == columns.uncommon()
        return rows

    def _reconcile(self) -> None:
        for block in self.metadata.fenced_blocks(999):
            found = (block.stripes + 1, block.live_bytes, block.dead_bytes + 11, block.live_objects)
            assert self.metadata.seal_reconciled(block.block_id, *found, self.bench.now_ms)
