"""Reads the store and returns the answers of the API as models. This module changes nothing.

Every answer is bounded: lists are paged, a filtered page examines a bounded number of rows, and results that need a
walk over all blocks are cached for some seconds, or for ten times as long as they took if that is longer.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from dataclasses import asdict

from nos_ec.api import models
from nos_ec.composition.explaining import block_explainer, object_explainer
from nos_ec.composition.wiring import System
from nos_ec.core.formats.header import GroupHeader
from nos_ec.core.histogram import Histogram
from nos_ec.core.ids import BlockId, Extent, ObjectKey
from nos_ec.core.packing.empty_bytes import empty_in
from nos_ec.core.ratios import DIGITS, rounded
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.dump.stored import newest_dump_ms
from nos_ec.engine.explain.blocks import BlockExplanation
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.engine.figures.daemons import read_daemons
from nos_ec.engine.figures.events import read_events
from nos_ec.engine.figures.quota_use import QuotaUse, UseMetadata, account_uses, bucket_use, bucket_uses
from nos_ec.engine.gc.collector import Collector
from nos_ec.engine.gc.plan_data import plan_data
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.objects.large_places import own_extents, tail_of, with_tail
from nos_ec.library.object_info import attributes_of
from nos_ec.monitoring.monitor import Cached
from nos_ec.monitoring.store_data import osds_down, store_data
from nos_ec.ports.metadata import BlockRow, Placed

PAGE_MAX = 1000
"""Maximum number of entries in a list, and of rows that one page request examines."""

ACCOUNTS_MAX = 100
"""Maximum number of accounts in a list. Each takes a statement."""
_UTILISATION_BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
_HOLE_BOUNDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Readings:
    """Answers questions about one open store. Safe to call from several threads."""

    def __init__(self, system: System, collector: Collector, age_ms_max: int) -> None:
        """`age_ms_max` is the maximum age of figures of the whole store."""
        self._system = system
        self._collector = collector
        self._figures = Cached(system.operator.figures, system.clock, age_ms_max)
        self.histograms = Cached(self._count_blocks, system.clock, age_ms_max)
        """Returns how full the blocks are. Reads all block rows. Raises Transient."""
        self._plan = Cached(self._make_plan, system.clock, age_ms_max)

    # --- the whole store --------------------------------------------------------------------------
    def status(self) -> models.Status:
        """Return utilisation and its parts, and the number of blocks in each state. Raises Transient."""
        figures, metadata = self._figures(), self._system.metadata
        target, now_ms = self._system.settings.gc.target_space_amp, self._system.clock.now_ms()
        data = store_data(figures, target, metadata.scrub_state(), newest_dump_ms(metadata, now_ms))
        return models.Status(geometry=figures.geometry, osds_down=osds_down(self._system.groups), **data)

    def backlog(self) -> models.Backlog:
        """Return the objects that wait to be packed, and the consumer group's lag. Raises Transient."""
        figures = self._figures()
        totals = figures.totals
        return models.Backlog(
            landed_objects=totals.landed_objects,
            landed_bytes=totals.landed_bytes,
            queued_objects=totals.queued_objects,
            queued_bytes=totals.queued_bytes,
            lag_messages=figures.lag,
            landing_deletions=totals.landing_deletions,
            computed_at_ms=figures.at_ms,
        )

    def events(self, since_ms: int) -> models.Events:
        """Return the events since this time, the newest first. Raises Transient."""
        return models.Events(events=read_events(self._system.metadata, since_ms))

    def daemons(self) -> models.Daemons:
        """Return the daemons that are recorded. Raises Transient."""
        return models.Daemons(daemons=read_daemons(self._system.metadata))

    # --- usage ------------------------------------------------------------------------------------
    def usage_of_buckets(self, after: str, limit: int) -> models.UsagePage:
        """Return metered buckets after this name. Raises Transient."""
        return self._usage_page(bucket_uses, after, limit)

    def usage_of_bucket(self, bucket: str) -> models.Use:
        """Return what a bucket holds. Raises NotFound if it is not metered, Transient."""
        return _use(bucket_use(self._system.metadata, bucket))

    def usage_of_accounts(self, after: str, limit: int) -> models.UsagePage:
        """Return accounts with quotas after this name. Raises Transient."""
        return self._usage_page(account_uses, after, limit)

    def _usage_page(
        self, read: Callable[[UseMetadata, str, int], list[QuotaUse]], after: str, limit: int
    ) -> models.UsagePage:
        now_ms = self._system.clock.now_ms()
        found = read(self._system.metadata, after, limit)
        return models.UsagePage(
            usage=[_use(one) for one in found],
            next_after=found[-1].name if len(found) == limit else None,
            computed_at_ms=now_ms,
        )

    def _count_blocks(self) -> models.Histograms:
        full, holes = _Buckets(_UTILISATION_BOUNDS), _Buckets(_HOLE_BOUNDS)
        blocks = stripes = 0
        after: BlockId | None = None
        while page := self._system.metadata.list_blocks(after, PAGE_MAX):
            after = page[-1].block_id
            for row in page:
                utilisation = self._utilisation(row)
                if utilisation is not None:
                    blocks += 1
                    stripes += row.stripes
                    full.add(utilisation, row.stripes)
                    holes.add(row.hole_ratio, row.stripes)
        return models.Histograms(
            blocks=blocks,
            stripes=stripes,
            utilisation=full.models(),
            hole_ratio=holes.models(),
            computed_at_ms=self._system.clock.now_ms(),
        )

    # --- blocks -----------------------------------------------------------------------------------
    def blocks(
        self,
        after: BlockId | None,
        limit: int,
        kind: BlockKind | None,
        state: BlockState | None,
        hole_ratio_min: float,
    ) -> models.BlockPage:
        """Return blocks after an id that pass the filters. Examines at most PAGE_MAX rows. Raises Transient."""
        found: list[models.Block] = []
        rows_max = limit if kind is None and state is None and hole_ratio_min == 0 else PAGE_MAX
        rows = self._system.metadata.list_blocks(after, rows_max)
        for row in rows:
            after = row.block_id
            wanted = (kind is None or row.kind is kind) and (state is None or row.state is state)
            if wanted and row.hole_ratio >= hole_ratio_min:
                found.append(self._block(row))
                if len(found) == limit:
                    break
        whole = len(rows) < rows_max and (not rows or after == rows[-1].block_id)
        return models.BlockPage(blocks=found, next_after=None if whole or after is None else after.hex())

    def block(self, block_id: BlockId) -> models.BlockDetail:
        """Return one block, decoded from its headers. Raises NotFound, Transient."""
        row = self._system.metadata.block(block_id)
        scan = scan_headers(self._system.blocks, block_id, row.stripes)
        live = {_identity(placed): placed for placed in self._system.metadata.placed_in(block_id)}
        written = {identity for header in scan.headers for identity in self._identities(header)}
        return models.BlockDetail(
            block=self._block(row),
            groups=[self._group(header, live.keys()) for header in scan.headers],
            damaged_stripes=list(scan.damaged_stripes),
            unfinished_stripes=list(scan.unfinished_stripes),
            unconfirmed_objects=len(live.keys() - written),
            header_bytes_read=scan.bytes_read,
        )

    def entries(self, block_id: BlockId, after: int, limit: int) -> models.EntryPage:
        """Return the objects in a block at offsets greater than `after`. Raises NotFound, Transient."""
        row = self._system.metadata.block(block_id)
        scan = scan_headers(self._system.blocks, block_id, row.stripes)
        live = {_identity(placed): placed for placed in self._system.metadata.placed_in(block_id)}
        found = []
        for header in scan.headers:
            for identity, entry in zip(self._identities(header), header.entries, strict=True):
                found.append(_entry(identity, entry.crc32c, live.pop(identity, None), in_header=True))
        found += [_entry(identity, placed.crc32c, placed, in_header=False) for identity, placed in live.items()]
        page = sorted((one for one in found if one.offset > after), key=lambda one: one.offset)
        return models.EntryPage(entries=page[:limit], next_after=page[limit - 1].offset if len(page) > limit else None)

    # --- objects ----------------------------------------------------------------------------------
    def object(self, key: ObjectKey) -> models.ObjectDetail:
        """Return an object and where its bytes are. Raises NotFound, Transient."""
        row = self._system.metadata.get(key)
        own = own_extents(self._system.metadata, row)
        extents = with_tail(own, tail_of(self._system.metadata, row, own))
        return models.ObjectDetail(
            bucket=row.key.bucket,
            name=row.key.name,
            version=row.version,
            size=row.users_size,
            crc32c=f"{row.users_crc32c:08x}",
            md5=row.tag[0].hex(),
            state=row.state,
            created_ms=row.created_ms,
            attributes=attributes_of(row),
            landing=row.landing_id.hex() if row.landing_id is not None else None,
            places=[self._place(extent) for extent in extents[:PAGE_MAX]],
            places_left_out=max(0, len(extents) - PAGE_MAX),
        )

    # --- explanations -----------------------------------------------------------------------------
    def explain_object(self, key: ObjectKey) -> ObjectExplanation:
        """Return why an object is where it is. Raises NotFound, Transient."""
        return object_explainer(self._system).explain(key)

    def explain_block(self, block_id: BlockId) -> BlockExplanation:
        """Return why a block is not collected. Raises NotFound, Transient."""
        return block_explainer(self._system).explain(block_id)

    def _place(self, extent: Extent) -> models.Place:
        return models.Place(
            block=extent.block_id.hex(),
            offset=extent.offset,
            length=extent.length,
            chunks=self._system.geometry.chunks_touched(extent.offset, extent.length),
        )

    # --- GC ---------------------------------------------------------------------------------------
    def gc_plan(self, limit: int) -> models.GcPlan:
        """Return what a GC run would do now. Raises Transient."""
        plan = self._plan()
        return plan.model_copy(update={"blocks": plan.blocks[:limit]})

    def _make_plan(self) -> models.GcPlan:
        plan = self._collector.plan()
        data = plan_data(plan, self._system.operator.store_totals().read().totals)
        return models.GcPlan(
            **data | {"blocks": data["blocks"][:PAGE_MAX]},
            candidates=len(plan.decisions),
            victims=len(plan.victims),
            computed_at_ms=self._system.clock.now_ms(),
        )

    # --- values -----------------------------------------------------------------------------------
    def _utilisation(self, row: BlockRow) -> float | None:
        return rounded(self._system.geometry.share(row.live_bytes, row.stripes))

    def _block(self, row: BlockRow) -> models.Block:
        utilisation, hole_ratio = self._utilisation(row), round(row.hole_ratio, DIGITS)
        return models.Block(block=row.block_id.hex(), utilisation=utilisation, hole_ratio=hole_ratio, **asdict(row))

    def _identities(self, header: GroupHeader) -> list[_Identity]:
        start = header.first_stripe * self._system.geometry.stripe_size
        return [(entry.key_md5, entry.object_version, start + entry.offset, entry.length) for entry in header.entries]

    def _group(self, header: GroupHeader, live: KeysView[_Identity]) -> models.Group:
        empty = empty_in(self._system.geometry, header)
        return models.Group(
            stripe=header.first_stripe,
            stripe_count=header.stripe_count,
            header_bytes=header.header_length,
            names_bytes=header.names_length,
            data_bytes=header.data_length,
            front_bytes=empty.front,
            gap_bytes=empty.gap,
            end_bytes=empty.end,
            entries=len(header.entries),
            live_entries=sum(identity in live for identity in self._identities(header)),
            writer_epoch=header.writer_epoch,
            written_at_ms=header.written_at_ms,
        )


_Identity = tuple[bytes, int, int, int]
"""(MD5 of the key, version, offset from the start of the block, length). Header and row must agree on them."""


class _Buckets:
    """Histograms of blocks and of their stripes by a ratio."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._blocks = Histogram(bounds)
        self._stripes = Histogram(bounds)

    def add(self, ratio: float, stripes: int) -> None:
        self._blocks.add(ratio)
        self._stripes.add(ratio, stripes)

    def models(self) -> list[models.Bucket]:
        counted = zip(self._blocks.bounds, self._blocks.counts, self._stripes.counts, strict=False)
        return [models.Bucket(up_to=bound, blocks=blocks, stripes=stripes) for bound, blocks, stripes in counted]


def _use(one: QuotaUse) -> models.Use:
    held, share = one.held, one.share
    return models.Use(
        name=one.name,
        bytes=None if held is None else max(0, held.bytes),
        objects=None if held is None else max(0, held.objects),
        quota=one.quota if one.quota.has_limits else None,
        share=None if share is None else round(share, DIGITS),
    )


def _identity(placed: Placed) -> _Identity:
    return placed.key.md5, placed.version, placed.extent.offset, placed.extent.length


def _entry(identity: _Identity, crc32c: int, placed: Placed | None, *, in_header: bool) -> models.EntryModel:
    key_md5, version, offset, length = identity
    return models.EntryModel(
        offset=offset,
        length=length,
        version=version,
        crc32c=f"{crc32c:08x}",
        key_md5=key_md5.hex(),
        live=placed is not None,
        in_header=in_header,
        bucket=placed.key.bucket if placed is not None else None,
        name=placed.key.name if placed is not None else None,
    )
