"""Cleans up after dead writers: fences their leases, then reconciles and seals their blocks.

While the metadata store is unavailable, leases of healthy writers expire as well. They are renewed first: recovery
renews the leases of its own process, and the other processes have RENEW_WAIT_MS to renew theirs.

6  the byte counts of a fenced block are computed again, from its headers and the rows
8  no process appends to another writer's block: it is sealed in the store first, then read
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from nos_ec.core.errors import Conflict, NotFound, Transient
from nos_ec.core.gc.reclaim import BlockAccount, account_block
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.publishing.slots import is_producer_lease
from nos_ec.core.states import BlockState
from nos_ec.core.sums import Summed
from nos_ec.engine.audit_entries import late_block
from nos_ec.engine.header_scan import live_entries, scan_headers
from nos_ec.engine.landing.log_recovery import LogRecovery
from nos_ec.engine.leases import RETRY_WAIT_MS, HeldLeases
from nos_ec.engine.retry_queue import BackOff, RetryQueue
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Beat, Clock, unwatched, waits
from nos_ec.ports.metadata import BlockRow, Blocks, Lease, Leases

_log = structlog.get_logger(__name__)

BLOCKS_PER_PAGE = 100
BLOCKS_PARKED_MAX = 10_000
BLOCK_BACK_OFF = BackOff(first_ms=10_000, max_ms=600_000)
"""Waits between the tries of a block that cannot be sealed, for example because its placement group is unavailable."""
RENEW_WAIT_MS = 5 * RETRY_WAIT_MS
"""How long after an outage of the metadata store the leases of other processes are not fenced, so that their holders
can renew them."""
FENCE_WAIT_MS = 1_000
"""How often expired leases are looked up while blocks are sealed."""
RECONCILE_TRIES = 10
"""How often a block is reconciled when deletes change its byte counts meanwhile. Each try reads only the rows again."""


@dataclass(frozen=True, slots=True)
class RecoveryResult(Summed):
    """Counts of one run: leases of writers that were fenced, and blocks and segments of the landing log that were
    sealed. Leases of producers do not guard blocks and are not counted."""

    leases_fenced: int = 0
    blocks_sealed: int = 0
    segments_sealed: int = 0


class RecoveryMetadata(Leases, Blocks, Protocol):
    """The parts of the metadata that recovery uses."""


class Recovery:
    """Fences and seals. Each service runs it at its start and periodically. Several may run at once."""

    def __init__(
        self,
        metadata: RecoveryMetadata,
        blocks: BlockStore,
        clock: Clock,
        held: HeldLeases | None = None,
        logs: LogRecovery | None = None,
        trail: AuditTrail = NO_TRAIL,
        on_fenced: Callable[[Sequence[str]], object] = lambda _: None,
    ) -> None:
        """held: the leases of this process. logs: seals segments of the landing log; None without a landing log.
        on_fenced: takes the names of the leases that a run has fenced, and must not raise."""
        self._metadata = metadata
        self._blocks = blocks
        self._clock = clock
        self._held = held or HeldLeases()
        self.logs = logs
        self._trail = trail
        self._on_fenced = on_fenced
        self._away = False
        self._others_ms = 0
        """When leases of other processes may be fenced again, after an outage of the metadata store."""
        self.parked: RetryQueue[BlockId] = RetryQueue(
            "fenced block", bytes.hex, clock, BLOCK_BACK_OFF, BLOCKS_PARKED_MAX
        )
        """Blocks that could not be sealed. Each waits for its own next try and does not delay others."""

    def run_once(self, beat: Beat = unwatched) -> RecoveryResult:
        """Fence expired leases, then seal the segments of dead logs and every fenced block. Raises Transient; the next
        run continues from there.

        `beat` is called for every segment and block, because each may take as long as the store's time limit.
        """
        fenced = self._fence_expired()
        segments = 0 if self.logs is None else self.logs.run_once(beat, fenced=fenced > 0)
        fence_ms = self._clock.now_ms() + FENCE_WAIT_MS
        sealed = 0
        while blocks := self._fenced_blocks():
            done = 0
            for block in blocks:
                done += self._reconcile(block, beat)
                if not waits(fence_ms, self._clock.now_ms(), FENCE_WAIT_MS):
                    fenced += self._fence_expired()
                    fence_ms = self._clock.now_ms() + FENCE_WAIT_MS
            sealed += done
            if not done and not any(self.parked.waits(block.block_id) for block in blocks):
                break  # the query would return the same page again
        return RecoveryResult(fenced, sealed, segments)

    def _fence_expired(self) -> int:
        """Fence the expired leases of other processes, and renew those of this process. Returns how many leases of
        writers were fenced."""
        fenced: list[str] = []
        try:
            for lease in self._expired():
                now_ms = self._clock.now_ms()
                if self._held.renew(lease) or waits(self._others_ms, now_ms, RENEW_WAIT_MS):
                    continue
                if self._metadata.fence_lease(lease, now_ms):
                    fenced.append(lease.name)
                    _log.info("lease of a dead process fenced", lease=lease.name, epoch=lease.epoch)
                    kill_point("recovery.fenced")
        finally:
            self._on_fenced(fenced)
        return sum(1 for name in fenced if not is_producer_lease(name))

    def _expired(self) -> list[Lease]:
        try:
            expired = self._metadata.expired_leases(self._clock.now_ms())
        except Transient:
            self._away = True
            raise
        if self._away:
            self._away = False
            self._others_ms = self._clock.now_ms() + RENEW_WAIT_MS
        return expired

    def _fenced_blocks(self) -> list[BlockRow]:
        """Return a page of fenced blocks that are not parked. The query also returns parked blocks, always in the same
        order, so its limit is raised by their number."""
        limit = BLOCKS_PER_PAGE + len(self.parked)
        found = self._metadata.fenced_blocks(limit)
        if len(found) < limit:
            fenced = {block.block_id for block in found}
            for block_id, _ in self.parked:
                if block_id not in fenced:
                    self.parked.release(block_id)  # another process has recovered it
        return [block for block in found if not self.parked.waits(block.block_id)]

    def _reconcile(self, block: BlockRow, beat: Beat) -> bool:
        """Seal one block with its true byte counts. Returns False if it must wait for the next run, or if another
        process sealed it."""
        beat(0)
        try:
            held = self._seal(block.block_id)
            # Acknowledged stripes that the store lost still count, as damaged stripes. Rows may point to them, and once
            # the block is sealed, the reaper reverts those rows to their landing copies.
            stripes = max(held, block.stripes)
            scan = scan_headers(self._blocks, block.block_id, stripes)
        except Transient as error:
            self.parked.park(block.block_id, error)
            return False
        except NotFound:
            _log.info("block was collected by another process meanwhile", block=block.block_id.hex())
            return False
        kill_point("recovery.store_sealed")
        for _ in range(RECONCILE_TRIES):
            placed = self._metadata.placed_in(block.block_id)
            live = live_entries(placed)
            account = account_block(self._blocks.geometry, stripes, scan.headers, scan.stripes_outside_groups, live)
            self._warn(block, held, account)
            if self._metadata.seal_reconciled(
                block.block_id,
                stripes,
                account.live_bytes,
                account.dead_bytes,
                account.live_objects,
                self._clock.now_ms(),
            ):
                kill_point("recovery.sealed")
                self.parked.release(block.block_id)
                _log.info("block of a dead writer sealed", block=block.block_id.hex(), stripes=stripes)
                return True
        return False

    def _seal(self, block_id: BlockId) -> int:
        """Seal a block in the store. Returns its number of stripes. Raises NotFound when other processes have
        reconciled and collected it."""
        try:
            return self._blocks.seal(block_id)
        except NotFound:
            if self._state(block_id) is not BlockState.FENCED:
                raise
        # The writer stopped after it had recorded the row and before it created the block. It may be dead or about to
        # resume. Creating the block here takes the id for good, so that no block appears later without a row.
        try:
            self._blocks.create(block_id)
        except Conflict:
            _log.info("block was created meanwhile", block=block_id.hex())
            return self._blocks.seal(block_id)
        stripes = self._blocks.seal(block_id)
        if self._state(block_id) not in (BlockState.FENCED, BlockState.SEALED):
            # Others reconciled it, and GC deleted it before it was created here. No other process would delete it now.
            self._trail.record([late_block(block_id, "recovery created it after it had been collected; it is empty")])
            self._blocks.delete(block_id)
            raise NotFound(f"block {block_id.hex()} was collected", block_id=block_id)
        return stripes

    def _state(self, block_id: BlockId) -> BlockState | None:
        try:
            return self._metadata.block(block_id).state
        except NotFound:
            return None

    def _warn(self, block: BlockRow, stripes: int, account: BlockAccount) -> None:
        if account.unconfirmed:
            _log.error(
                "rows point to bytes that no readable header confirms; they are kept as live",
                block=block.block_id.hex(),
                objects=len(account.unconfirmed),
            )
        if stripes < block.stripes:
            _log.error(
                "the block store lost stripes that were acknowledged",
                block=block.block_id.hex(),
                stripes=stripes,
                acknowledged=block.stripes,
            )
