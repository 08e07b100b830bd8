"""Explains why an object is where it is, from rows, leases, the message log and its landing copy.

Makes only reads. A question without an answer, for example because the message log is unavailable, is named in
`unknown`, and the other facts are still returned. The number of statements and requests is fixed, except for the parts
of a composed object: one statement for each PAGE_PARTS of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field

from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.errors import Corrupt, NosError, NoSpace, NotFound, Transient
from nos_ec.core.formats.messages import partition_for
from nos_ec.core.ids import LandingId, ObjectKey, in_log, segment_of
from nos_ec.core.locking.lock import lock_text
from nos_ec.core.packing.lifetimes import stream_of
from nos_ec.core.parts import parts_bucket, parts_prefix
from nos_ec.core.publishing.republish import is_passed, passed_ms
from nos_ec.core.publishing.slots import LEASE_PREFIX, bucket_slot, is_member_lease, member_of, slot_lease
from nos_ec.core.states import ObjectState
from nos_ec.engine.expiry.survival import DAY_MS, lifetimes_of
from nos_ec.engine.explain.object_facts import Copy, Holder, ItsBlock, ItsParts, ObjectOptions, PlaceInBlock, Publishing
from nos_ec.engine.explain.object_reasons import ObjectEvidence, ObjectReason, judge_object
from nos_ec.engine.objects.large_places import own_extents, tail_of, with_tail
from nos_ec.engine.objects.second_copy import copy_ranges
from nos_ec.engine.packable import crc_checked
from nos_ec.engine.space_reserve import require_space
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.clock import Clock, waits
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.message_log import GroupProgress
from nos_ec.ports.metadata import BlockRow, Metadata, ObjectRow, QueueEntry

PLACES_MAX = 1000
"""At most this many places of a large object are listed."""
PAGE_PARTS = 1000
_LOOKS_MAX = 3
"""How often to look at an object that moves meanwhile."""


@dataclass(frozen=True, slots=True)
class ObjectExplanation:
    """All facts about an object, and the verdict. Sizes in bytes, times in Unix milliseconds, ids in hex.

    why, next, advice: sentences for people; advice is None when there is nothing to do. next_ms: when the next step
    happens, if a time decides that. lock: until when, and why, the version may not be deleted; None without a retention
    or a legal hold. unknown: questions without an answer, each with the cause. publishing: set for an
    object that waits to be packed. block: set for a packed object.

    half_life_days: the number of days after which half of the objects of this bucket and age are expected to be dead;
    very high while little is known. stream: the stream that the object belongs to now, before streams are folded; 0 has
    the objects with the shortest lives. Both are None for objects that share no blocks, and with a single stream.

    chunks: the number of chunks that hold a packed object. chunks_min: the fewest chunks that an object of its size can
    take; if `chunks` is greater, the object is split. shard_reads: how many shard reads a GET of it makes, one for each
    shard that holds its chunks.

    its_parts: the parts of a composed object. The other fields then describe its own bytes, the list of the parts.
    """

    bucket: str
    name: str
    version: int
    size: int
    state: ObjectState
    created_ms: int
    age_ms: int
    lock: str | None
    reason: ObjectReason
    why: str
    next: str
    advice: str | None
    next_ms: int | None
    publishing: Publishing | None
    landing_copy: Copy | None
    places: list[PlaceInBlock]
    places_left_out: int
    block: ItsBlock | None
    chunks: int | None
    chunks_min: int | None
    shard_reads: int | None
    half_life_days: float | None
    stream: int | None
    its_parts: ItsParts | None
    unknown: list[str]
    explained_ms: int


@dataclass(slots=True)
class _Asked:
    """Answers from other sources than the rows."""

    unknown: list[str] = field(default_factory=list)
    members_known: bool = False
    no_space: str | None = None


class ObjectExplainer:
    """Explains objects. Safe to call from several threads. `new_progress` opens a client of the message log, which is
    closed after use."""

    def __init__(
        self,
        metadata: Metadata,
        landing: LandingStore,
        blocks: BlockStore,
        clock: Clock,
        new_progress: Callable[[], GroupProgress],
        options: ObjectOptions,
    ) -> None:
        self._metadata = metadata
        self._landing = landing
        self._blocks = blocks
        self._clock = clock
        self._new_progress = new_progress
        self._options = options

    def explain(self, key: ObjectKey) -> ObjectExplanation:
        """Explain the current version. Raises NotFound if there is none, Transient if the metadata is unavailable."""
        for _ in range(_LOOKS_MAX):
            row, block = self._look(key)
            copy = self._landed_copy(row) if row.state.in_landing else self._queued_copy(row)
            if copy is None or copy.problem is None or self._is_still(row):
                break
        asked = _Asked()
        publishing = self._publishing(row, asked) if row.state.in_landing else None
        own = own_extents(self._metadata, row)
        tail = tail_of(self._metadata, row, own)
        extents = with_tail(own, tail)
        now_ms = self._clock.now_ms()
        chunks, chunks_min, shard_reads = self._chunks(row)
        evidence = ObjectEvidence(
            row=row,
            now_ms=now_ms,
            options=self._options,
            copy=copy,
            publishing=publishing,
            is_passed=self._is_passed(publishing),
            no_space=asked.no_space,
            places=len(own),
            tail=tail,
            chunks=chunks,
            chunks_min=chunks_min,
            shard_reads=shard_reads,
        )
        verdict = judge_object(evidence)
        half_life_days, stream = self._lifetime(row, now_ms)
        return ObjectExplanation(
            bucket=key.bucket,
            name=key.name,
            version=row.version,
            size=row.users_size,
            state=row.state,
            created_ms=row.created_ms,
            age_ms=max(0, now_ms - row.created_ms),
            lock=known_lock(row, asked.unknown),
            **asdict(verdict),
            publishing=publishing,
            landing_copy=copy,
            places=[PlaceInBlock(one.block_id.hex(), one.offset, one.length) for one in extents[:PLACES_MAX]],
            places_left_out=max(0, len(extents) - PLACES_MAX),
            block=None if block is None else _its_block(block),
            chunks=chunks,
            chunks_min=chunks_min,
            shard_reads=shard_reads,
            half_life_days=half_life_days,
            stream=stream,
            its_parts=self._its_parts(row),
            unknown=asked.unknown,
            explained_ms=now_ms,
        )

    def _chunks(self, row: ObjectRow) -> tuple[int | None, int | None, int | None]:
        """Return its chunks, the fewest possible, and the shard reads of a GET; all are None if it is not packed."""
        extent, geometry = row.extent, self._blocks.geometry
        if row.state is not ObjectState.PACKED or extent is None:
            return None, None, None
        offset, length = extent.offset, extent.length
        touched, fewest = geometry.chunks_touched(offset, length), geometry.chunks_touched(0, length)
        return touched, fewest, geometry.shards_touched(offset, length)

    def _lifetime(self, row: ObjectRow, now_ms: int) -> tuple[float | None, int | None]:
        cuts_days = self._options.stream_cuts_days
        if not cuts_days or row.state is ObjectState.LARGE or not row.size:
            return None, None
        lifetimes, bucket = lifetimes_of(self._metadata.survival(), now_ms), row.key.bucket
        age_days = (now_ms - row.created_ms) / DAY_MS
        half_life_days = round(lifetimes.half_life_days(bucket, age_days), 2)
        return half_life_days, stream_of(lifetimes, cuts_days, bucket, age_days)

    def _its_parts(self, row: ObjectRow) -> ItsParts | None:
        composition = row.composition
        if composition is None:
            return None
        counts: Counter[ObjectState] = Counter()
        waiting = None
        after, prefix = "", parts_prefix(composition.upload_id)
        while page := self._metadata.list_objects(parts_bucket(row.key.bucket), prefix, after, PAGE_PARTS):
            after = page[-1].key.name
            counts.update(part.state for part in page)
            waiting = waiting or next((str(part.key) for part in page if part.state.in_landing), None)
        return ItsParts(
            parts=composition.parts,
            there=counts.total(),
            landed=counts[ObjectState.LANDED],
            queued=counts[ObjectState.QUEUED],
            packed=counts[ObjectState.PACKED],
            large=counts[ObjectState.LARGE],
            waiting=waiting,
        )

    def _look(self, key: ObjectKey) -> tuple[ObjectRow, BlockRow | None]:
        try:
            facts = self._metadata.object_facts(key)
        except NotFound as error:
            raise NotFound(
                f"object {key} does not exist: it was never stored, or it was deleted. The metadata keeps no record of"
                " a deleted object, unless it is in the trash (`nos-ec trash list`)",
                key=key,
            ) from error
        return facts.row, facts.block

    def _is_still(self, row: ObjectRow) -> bool:
        """Return whether the object is still where it was. Raises NotFound, Transient."""
        now, _ = self._look(row.key)
        return (now.version, now.landing_id, now.extent) == (row.version, row.landing_id, row.extent)

    # --- the landing copy -------------------------------------------------------------------------
    def _landed_copy(self, row: ObjectRow) -> Copy:
        """Return the only copy of a waiting object. It is read, because a copy that cannot be read cannot be packed."""
        assert row.landing_id is not None
        try:
            log = in_log(row.landing_id)
            data = self._landing.read_range(row.landing_id, 0, row.size) if log else self._landing.read(row.landing_id)
            crc_checked(data, row.size, row.crc32c, row.key, "landing copy")
        except (NotFound, Corrupt) as error:
            return self._copy(row.landing_id, None, readable=False, problem=str(error))
        except NosError as error:
            return self._copy(row.landing_id, None, readable=None, problem=str(error))
        return self._copy(row.landing_id, None, readable=True)

    def _queued_copy(self, row: ObjectRow) -> Copy | None:
        """Return the landing copy that a packed object still has; None if there is none."""
        if row.state is not ObjectState.PACKED:
            return None
        for first, last in copy_ranges(row, self._options.put_ms_max):
            found = self._metadata.find_queued_copy(row, first, last)
            if found is not None:
                return self._copy(found.landing_id, found)
        return None

    def _copy(
        self,
        landing_id: LandingId,
        queued: QueueEntry | None,
        *,
        readable: bool | None = None,
        problem: str | None = None,
    ) -> Copy:
        name = landing_id.hex()
        delete_after_ms = None if queued is None else queued.not_before_ms
        doomed = queued is not None and queued.doomed
        if not in_log(landing_id):
            return Copy(
                name,
                "store",
                queued=queued is not None,
                delete_after_ms=delete_after_ms,
                doomed=doomed,
                readable=readable,
                problem=problem,
            )
        segment = self._metadata.landing_segment(segment_of(landing_id))
        return Copy(
            name,
            "log",
            segment=segment_of(landing_id).hex(),
            segment_state=None if segment is None else segment.state,
            segment_opened_ms=None if segment is None else segment.opened_ms,
            segment_sealed_ms=None if segment is None else segment.sealed_ms,
            segment_bytes=None if segment is None else segment.end,
            queued=queued is not None,
            delete_after_ms=delete_after_ms,
            doomed=doomed,
            readable=readable,
            problem=problem,
        )

    # --- the way to a consumer --------------------------------------------------------------------
    def _publishing(self, row: ObjectRow, asked: _Asked) -> Publishing:
        now_ms = self._clock.now_ms()
        leases = {lease.name: lease for lease in self._metadata.list_leases(LEASE_PREFIX)}
        alive = {name: one for name, one in leases.items() if waits(one.expires_ms, now_ms, LEASE_MS_MAX)}
        slot = bucket_slot(row.key.bucket)
        held = alive.get(slot_lease(slot))
        publication = row.publication if row.state is ObjectState.QUEUED else None
        published_ms, spread = publication or (None, False)
        home = partition_for(row.key.bucket, self._options.partitions)
        passed: Mapping[int, int] = {}
        members: Mapping[int, str] = {}
        if published_ms is not None:
            passed, members = self._ask_log(asked)
            self._ask_space(asked)
        where = range(self._options.partitions) if spread else (home,)
        return Publishing(
            slot=slot,
            slot_held_until_ms=None if held is None else held.expires_ms,
            producers=[member_of(name) for name in alive if is_member_lease(name)],
            due_ms=row.due_ms,
            published_ms=published_ms,
            spread=spread,
            holders=[Holder(partition, members.get(partition)) for partition in where],
            members_known=asked.members_known,
            passed_ms=passed_ms(passed, home, self._options.partitions, is_spread=spread),
        )

    def _ask_log(self, asked: _Asked) -> tuple[Mapping[int, int], Mapping[int, str]]:
        """Return the time up to which the group has passed each partition, and the owner of each partition; empty if
        the message log does not answer."""
        passed: Mapping[int, int] = {}
        members: Mapping[int, str] = {}
        try:
            with closing(self._new_progress()) as progress:
                try:
                    passed = progress.passed_until()
                except NosError as error:
                    asked.unknown.append(f"whether its event still waits: {error}")
                members = progress.holders()
                asked.members_known = True
        except NosError as error:
            asked.unknown.append(f"which consumer holds its partition: {error}")
        return passed, members

    def _is_passed(self, publishing: Publishing | None) -> bool:
        if publishing is None or publishing.published_ms is None:
            return False
        return is_passed(publishing.published_ms, publishing.passed_ms, self._options.republish_ms)

    def _ask_space(self, asked: _Asked) -> None:
        try:
            require_space(self._blocks, self._blocks.geometry.stripe_size, self._options.packing_reserve_bytes)
        except NoSpace as error:
            asked.no_space = str(error)
        except Transient as error:
            asked.unknown.append(f"whether there is space to pack: {error}")


def _its_block(row: BlockRow) -> ItsBlock:
    return ItsBlock(row.block_id.hex(), row.kind, row.state, row.writer, row.created_ms)


def known_lock(row: ObjectRow, unknown: list[str]) -> str | None:
    """Return the lock of a version, as `lock_text` shows it. One that is damaged is added to `unknown`."""
    try:
        return lock_text(row.lock)
    except Corrupt as error:
        unknown.append(f"how it is locked: {error}")
        return None
