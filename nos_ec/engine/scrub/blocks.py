"""Scrubs one block: its shards, headers and names, and the bytes of each object in it. Changes nothing.

The store keeps working meanwhile. The result counts only if the block still has a row, and is not CONDEMNED, after
everything has been read. An object that is deleted or moved meanwhile keeps its bytes until the block is deleted, so
its CRC still matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from nos_ec.core.errors import Corrupt, NotFound, Transient
from nos_ec.core.findings import Finding, FindingKind
from nos_ec.core.formats.header import GroupHeader
from nos_ec.core.states import BlockState
from nos_ec.engine.check.blocks import BlockCheck, BlockFindings, ReadShare, block_name
from nos_ec.engine.check.data import DataCheck
from nos_ec.engine.header_scan import read_names, scan_headers
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Metadata, Placed
from nos_ec.ports.shard_store import ScrubbedBlock, ShardStore

RateLimit = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at a block.

    `findings` has all findings, including those about shards and objects. `shards` has the state of the shards, without
    the ends of appends that were cut short. `lost` has the objects whose bytes are damaged, each with its finding.
    `torn` lists shards that lack only data that was never acknowledged. They are not damaged, but are completed: a
    stripe counts if k shards have it, and would become unreadable if one of these k were lost.
    """

    findings: tuple[Finding, ...] = ()
    shards: ScrubbedBlock = field(default_factory=ScrubbedBlock)
    lost: tuple[tuple[Finding, Placed], ...] = ()
    torn: tuple[int, ...] = ()
    objects: int = 0
    read_bytes: int = 0

    def confirmed(self, first: Look) -> Look:
        """Return this second look, reduced to what the first look saw as well."""
        seen = {finding for finding in first.findings if finding in self.findings}
        shards = replace(
            self.shards,
            missing=tuple(shard for shard in self.shards.missing if shard in first.shards.missing),
            damaged=tuple(
                one for one in self.shards.damaged if one.shard in {two.shard for two in first.shards.damaged}
            ),
        )
        return replace(
            self,
            findings=tuple(finding for finding in self.findings if finding in seen),
            shards=shards,
            lost=tuple((finding, placed) for finding, placed in self.lost if finding in seen),
            torn=tuple(shard for shard in self.torn if shard in first.torn),
        )

    @property
    def short(self) -> tuple[int, ...]:
        """The shards that the block lacks."""
        return tuple(sorted((*self.shards.missing, *self.shards.unreachable)))

    @property
    def doubtful(self) -> bool:
        """Whether the block must be looked at again."""
        return bool(self.findings or self.shards.missing or self.torn)


@dataclass(frozen=True, slots=True)
class FirstLook:
    """The first look at a block. error: why the block could not be examined; without it, `look` is what
    `BlockScrub.look` returned."""

    row: BlockRow
    look: Look | None = None
    error: str | None = None


class BlockScrub:
    """Looks at one block at a time. `shards` is None if the store maintains its shards itself (Ceph)."""

    def __init__(
        self, metadata: Metadata, blocks: BlockStore, shards: ShardStore | None, rate_limit: RateLimit
    ) -> None:
        self._metadata = metadata
        self._blocks = blocks
        self._shards = shards
        self._rate_limit = rate_limit
        self._check = BlockCheck(metadata, blocks, ReadShare())

    def first_look(self, row: BlockRow) -> FirstLook:
        """Look at a block for the first time. Raises what `rate_limit` raises."""
        try:
            return FirstLook(row, self.look(row))
        except (Transient, Corrupt) as error:
            return FirstLook(row, error=str(error))

    def look(self, row: BlockRow) -> Look | None:
        """Read a whole block. Returns None if its row keeps changing. Raises Transient, Corrupt (rows that cannot be
        read), and what `rate_limit` raises."""
        now = self._check.row(row.block_id)
        if now is None:
            return Look()
        try:
            look = self._look(now)
        except NotFound:  # deleted meanwhile, or missing
            found = self._check.findings(now)
            look = None if found is None else Look(tuple(found))
        after = self._check.row(row.block_id)
        if after is None or (after.state is BlockState.CONDEMNED and now.state is not BlockState.CONDEMNED):
            return Look()
        return look

    def _look(self, row: BlockRow) -> Look | None:
        found = BlockFindings(row)
        shards, torn = ScrubbedBlock(), tuple[int, ...]()
        placed = self._metadata.placed_in(row.block_id)
        if row.state is BlockState.SEALED and self._shards is not None:
            shards, torn = self._scrub_shards(row, self._shards, placed, found)
        structure = self._check.findings(row)
        if structure is None:
            return None
        if row.state in (BlockState.CONDEMNED, BlockState.FENCED):
            return Look(tuple(structure))
        lost: list[tuple[Finding, Placed]] = []
        data = DataCheck(self._blocks, self._rate_limit)
        if not {one.kind for one in structure} & {FindingKind.BLOCK_MISSING, FindingKind.BLOCK_LENGTH}:
            self._check_names(row, placed, found)
            misplaced = {one.what for one in structure if one.kind is FindingKind.EXTENT_UNCONFIRMED}
            here = [one for one in placed if f"object {one.key}" not in misplaced]
            for one, error in data.damaged_objects(here):
                found.add_object(FindingKind.DATA_DAMAGED, one, error=str(error))
                lost.append((found.all[-1], one))
        read_bytes = shards.read_bytes + data.bytes
        return Look((*structure, *found.all), shards, tuple(lost), torn, len(placed), read_bytes)

    # --- shards ---------------------------------------------------------------------------------------
    def _scrub_shards(
        self, row: BlockRow, store: ShardStore, placed: Sequence[Placed], found: BlockFindings
    ) -> tuple[ScrubbedBlock, tuple[int, ...]]:
        """Scrub the shards. Data that a killed writer left after the last object does not count as damaged: it was
        never acknowledged, and nothing refers to it."""
        seen = store.scrub(row.block_id, row.stripes, self._rate_limit)
        if len(seen.unreachable) > self._blocks.geometry.m:
            shards = ", ".join(map(str, seen.unreachable))
            raise Transient(f"{block_name(row.block_id)}: shards {shards} are on disks that are away; mount them")
        end = max((one.extent.offset + one.extent.length for one in placed), default=0)
        stripes = self._blocks.geometry.stripes_for(end)
        damaged = tuple(one for one in seen.damaged if one.unwritten_from is None or one.unwritten_from < stripes)
        for one in damaged:
            geometry = self._blocks.geometry
            evidence = {
                "shard": one.shard,
                "parts": [part.value for part in one.parts],
                "pages": one.pages,
                "stripes": list(one.stripes),
                "shards": geometry.k + geometry.m,
                "shard_bytes": row.stripes * geometry.chunk_size,
            }
            found.add_part(FindingKind.SHARD_DAMAGED, shard_name(row, one.shard), **evidence)
        if seen.contradictions:
            stripes_seen = [one.stripe for one in seen.contradictions]
            suspects = sorted({one.suspect for one in seen.contradictions if one.suspect is not None})
            found.add(FindingKind.SHARDS_CONTRADICT, stripes=stripes_seen, suspects=suspects)
        torn = tuple(one.shard for one in seen.damaged if one not in damaged)
        return ScrubbedBlock(seen.missing, seen.unreachable, damaged, seen.contradictions, seen.read_bytes), torn

    # --- names ----------------------------------------------------------------------------------------
    def _check_names(self, row: BlockRow, placed: Sequence[Placed], found: BlockFindings) -> None:
        """Read the names of the groups that hold objects. A group whose append was cut short holds none."""
        scan = scan_headers(self._blocks, row.block_id, row.stripes)
        damaged = [
            header.first_stripe for header in self._with_objects(scan.headers, placed) if not self._has_names(header)
        ]
        if damaged:
            found.add(FindingKind.NAMES_DAMAGED, stripes=damaged)

    def _with_objects(self, headers: Sequence[GroupHeader], placed: Sequence[Placed]) -> Iterator[GroupHeader]:
        starts = {one.extent.offset // self._blocks.geometry.stripe_size for one in placed}
        for header in headers:
            stripes = range(header.first_stripe, header.first_stripe + header.stripe_count)
            if header.names_length and not starts.isdisjoint(stripes):
                yield header

    def _has_names(self, header: GroupHeader) -> bool:
        try:
            read_names(self._blocks, header)
        except Corrupt:
            return False
        self._rate_limit(header.names_length)
        return True


def shard_name(row: BlockRow, shard: int) -> str:
    """Return the name of a shard in findings."""
    return f"shard {shard} of {block_name(row.block_id)}"
