"""Mends the damage that a scrub found: shards from the other shards of the block, objects from their landing copies.

A shard is written under a temporary name, and renamed after it was read back (adapters/local/blocks/shard_rebuild.py).
An object is set back to its landing copy as when the reaper finds it damaged (engine/upkeep/reaper.py), in one
transaction and only if its row has not changed; then it is packed again. So a scrub that was killed can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Event

from nos_ec.core.errors import Conflict, Corrupt, LeaseLost, NosError, NotFound, Transient
from nos_ec.core.findings import BEYOND_MENDING, Finding, FindingKind
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import ObjectState
from nos_ec.engine.audit_entries import object_reverted, shards_written
from nos_ec.engine.objects.second_copy import SecondCopies
from nos_ec.engine.packable import crc_checked
from nos_ec.engine.scrub.blocks import Look, RateLimit, shard_name
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.metadata import BlockRow, LandingDeletion, Metadata, ObjectRow, Placed
from nos_ec.ports.shard_store import RebuiltBlock, ShardStore

ALONE_MS = 60_000
"""How long a block waits, in milliseconds, while another process rebuilds shards. The daemon's search for missing
shards takes less time."""
ALONE_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """A finding, and whether it was mended. `why` is the reason why a repair that was tried failed."""

    finding: Finding
    mended: bool = False
    why: str = ""

    def data(self) -> dict[str, object]:
        """Return its fields for JSON output."""
        return self.finding.data() | {"mended": self.mended} | ({"why": self.why} if self.why else {})


class Mending:
    """Mends one block at a time."""

    def __init__(
        self,
        metadata: Metadata,
        landing: LandingStore,
        shards: ShardStore | None,
        clock: Clock,
        put_ms_max: int,
        rate_limit: RateLimit,
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        """put_ms_max: the longest duration of a PUT in milliseconds."""
        self._trail = trail
        self._metadata = metadata
        self._landing = landing
        self._shards = shards
        self._clock = clock
        self._copies = SecondCopies(metadata, landing, put_ms_max)
        self._rate_limit = rate_limit
        self.written_bytes = 0
        self._refused = False
        """Another process has been rebuilding shards for ALONE_MS. It may take days, so later blocks do not wait."""

    def mend(self, row: BlockRow, look: Look) -> tuple[list[Scrubbed], tuple[int, ...]]:
        """Mend the damage that can be mended. Returns the outcome of each finding, and the shards that are still
        missing."""
        rebuilt, why, lost_stripe = self._mend_shards(row, look)
        replaced = {shard_name(row, shard) for shard in rebuilt.replaced}
        lost = dict(look.lost)
        done = []
        for finding in look.findings:
            if finding.kind is FindingKind.SHARD_DAMAGED:
                mended = finding.what in replaced
                if lost_stripe and not mended:
                    finding = replace(finding, evidence={**finding.evidence, BEYOND_MENDING: True})
                done.append(Scrubbed(finding, mended, "" if mended else why or "its disk cannot be written"))
            elif finding in lost:
                done.append(self._return_to_copy(finding, lost[finding]))
            else:
                done.append(Scrubbed(finding))
        return done, tuple(shard for shard in look.short if shard not in rebuilt.missing)

    def without_mending(self, look: Look) -> list[Scrubbed]:
        """Return the findings of a block without mending them. A finding about an object that could be mended names its
        landing copy."""
        lost = dict(look.lost)
        return [Scrubbed(self._with_copy(one, lost[one]) if one in lost else one) for one in look.findings]

    def _with_copy(self, finding: Finding, placed: Placed) -> Finding:
        row = self._row(placed)
        copy = None if row is None else self._copies.find(row)
        if copy is None:
            return finding
        return replace(finding, evidence={**finding.evidence, "landing": copy.hex()})

    def _row(self, placed: Placed) -> ObjectRow | None:
        """Return the row of a packed object, if it is still in its place; None for a segment of a large object, which
        has no landing copy."""
        row = self._metadata.objects_with([placed.object_id]).get(placed.object_id)
        if row is None or (row.version, row.extent) != (placed.version, placed.extent):
            return None
        return row if row.state is ObjectState.PACKED else None

    def _mend_shards(self, row: BlockRow, look: Look) -> tuple[RebuiltBlock, str, bool]:
        """Write damaged, torn and missing shards again. Returns what was written, the reason if some are left, and
        whether they are left because more than m shards of a stripe are damaged."""
        seen = look.shards
        wrong = {*look.torn, *(one.shard for one in seen.damaged)}
        if self._shards is None or not (wrong or seen.missing):
            return RebuiltBlock(), "", False
        until_ms = self._clock.now_ms() + (0 if self._refused else ALONE_MS)
        while True:
            try:
                with self._shards.alone():
                    done = self._shards.mend(row.block_id, sorted(wrong), self._rate_limit)
                break
            except LeaseLost:
                raise
            except Conflict as error:
                if not waits(until_ms, self._clock.now_ms(), ALONE_MS):
                    self._refused = True
                    return RebuiltBlock(), str(error), False
                self._clock.wait(Event(), ALONE_WAIT_MS)
                self._rate_limit(0)
            except (Corrupt, NotFound, Transient) as error:
                return RebuiltBlock(), str(error), isinstance(error, Corrupt)
        self._refused = False
        kill_point("scrub.shards_mended")
        self._trail.record(shards_written(row.block_id, done))
        self.written_bytes += done.written_bytes
        return done, "", False

    def _return_to_copy(self, finding: Finding, placed: Placed) -> Scrubbed:
        """Make the row of the object point to its landing copy again, if an intact copy still exists."""
        row = self._row(placed)
        if row is None:
            return Scrubbed(finding)
        try:
            copy = self._copies.find(row)
            if copy is None:
                return Scrubbed(finding, why="its landing copy is gone")
            crc_checked(self._landing.read(copy), row.size, row.crc32c, row.key, f"landing copy of {row.key}")
            deletion = LandingDeletion(copy, row.object_id, row.version, doomed=False, row=row)
            mended = self._metadata.revert_to_landing(deletion, self._clock.now_ms())
        except NosError as error:
            return Scrubbed(finding, why=str(error))
        kill_point("scrub.object_mended")
        if mended:
            self._trail.record([object_reverted(deletion, row, finding.kind.value)])
        return Scrubbed(finding, mended, "" if mended else "its row changed meanwhile")
