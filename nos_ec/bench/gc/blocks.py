"""The blocks of a simulated store."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

from nos_ec.bench.gc.bound import amplification_at, live_share_at
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.packer import PackerOptions, StorePacker
from nos_ec.bench.gc.workloads import Objects
from nos_ec.core.gc.gc_policy import GcPlan, SealedBlock, StoredBytes
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.packing.lifetimes import STREAM_CUTS_DAYS, Lifetimes, ToPack, packing_order, stream_of
from nos_ec.core.packing.plan import GroupPlan

_NOWHERE = -1
_SAMPLE = 10_000
"""How many objects are packed to measure which share of their stripes they fill."""


@dataclass(slots=True)
class _OpenBlock:
    block: int
    stripes: int = 0


class Blocks:
    """Keeps which objects are in which block. Blocks and objects are numbers, from 0 in order of creation. Each block
    has an entry in several lists; the objects are listed only for blocks that still exist."""

    def __init__(self, objects: Objects, dead: bytearray, options: GcOptions) -> None:
        self._objects = objects
        self._dead = dead
        self._options = options
        self._cuts = STREAM_CUTS_DAYS[options.streams - 1]
        self._block_of: list[int] = []
        self._ids: list[BlockId] = []
        self._live: list[int] = []
        self._filled: list[int] = []
        self._members: dict[int, list[int]] = {}
        self._sealed_at: dict[int, float] = {}
        self._emptied: list[int] = []
        self._open_fresh = [_NOWHERE] * options.streams
        self._open_survivors = [_NOWHERE] * options.streams
        self._stored_bytes = 0
        self._live_bytes = 0
        self._padding: dict[int, int] = {}
        self._padding_bytes = 0
        self._packer = None if options.packer is None else StorePacker(options.packer, options.streams)
        self._groups: dict[tuple[bool, int, int], _OpenBlock] = {}
        """The packer's open block of each kind, stream and lane."""
        self._handed_out = [0] * options.streams
        """The packer's stripes of fresh groups that the lanes of each stream have received."""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def stored(self) -> StoredBytes:
        """The bytes in all blocks now."""
        return StoredBytes(self._stored_bytes, self._live_bytes)

    @property
    def padding_bytes(self) -> int:
        """Bytes of the stripes of all blocks that belong to neither live nor dead objects: headers, names and padding.
        Always 0 without the packer of a store. Blocks end with their last stripe, and objects that have a block of
        their own are not padded."""
        return self._padding_bytes

    def sealed(self, now: float) -> Iterator[SealedBlock]:
        """Yields all sealed blocks, as a policy sees them."""
        ids, live, filled = self._ids, self._live, self._filled
        for block, sealed_at in self._sealed_at.items():
            yield SealedBlock(ids[block], live[block], filled[block] - live[block], now - sealed_at)

    def born(self, count: int) -> None:
        """Add this many new objects, which are not in any block yet."""
        self._block_of += [_NOWHERE] * count

    def died(self, number: int) -> None:
        """Mark an object as dead in its block."""
        block = self._block_of[number]
        if block != _NOWHERE:
            size = self._objects.size[number]
            self._live_bytes -= size
            self._live[block] -= size
            if not self._live[block] and block in self._sealed_at:
                self._emptied.append(block)

    def delete_dead(self) -> None:
        """Delete the sealed blocks without live objects."""
        for block in self._emptied:
            self._delete(block)
        self._emptied.clear()

    def collect(self, plan: GcPlan, now: float, lifetimes: Lifetimes) -> int:
        """Delete the victims of a plan and write their survivors again. Returns the bytes that were written."""
        dead = self._dead
        survivors: list[int] = []
        for victim in plan.victims:
            block = int.from_bytes(victim.block_id, "big")
            survivors += [number for number in self._members[block] if not dead[number]]
            self._live_bytes -= self._live[block]
            self._delete(block)
        return self.pack(survivors, now, lifetimes, fresh=False, ordered=self._options.sort_survivors)

    def pack(self, numbers: Sequence[int], now: float, lifetimes: Lifetimes, *, fresh: bool, ordered: bool) -> int:
        """Write objects to the open blocks of their streams, and return the bytes written. With the packer of a store,
        these objects wait, and groups of waiting objects are written once they are full."""
        if self._packer is not None:
            return self._pack_groups(self._packer, numbers, now, lifetimes, fresh=fresh)
        opened = self._open_fresh if fresh else self._open_survivors
        packed = 0
        if ordered:
            for one in packing_order([self._to_pack(number, now, lifetimes) for number in numbers]):
                packed += self._append(opened, one.stream, one.ref, now)
        else:
            for number in numbers:
                packed += self._append(opened, self._stream(number, now, lifetimes), number, now)
        return packed

    def _pack_groups(
        self, packer: StorePacker, numbers: Sequence[int], now: float, lifetimes: Lifetimes, *, fresh: bool
    ) -> int:
        """Add objects to the packer and write the groups that are ready. Empty objects are skipped, because they have
        no bytes."""
        packed = 0
        objects: list[tuple[ToPack[int], int]] = []
        for number in numbers:
            size = self._objects.size[number]
            if self._is_large(size):
                self._first_block([number], size, now)
                packed += size
            elif size:
                objects.append((self._to_pack(number, now, lifetimes), size))
        for plan in packer.fresh(objects) if fresh else packer.survivors(objects):
            self._write_group(plan, now, fresh=fresh)
            packed += plan.data_length
        return packed

    def _write_group(self, plan: GroupPlan[ToPack[int]], now: float, *, fresh: bool) -> None:
        """Write a group. Objects that died while they waited are dead in the block."""
        options = self._options.packer
        assert options is not None
        lane = self._lane_for(plan, options) if fresh else 0
        block = self._with_room(options.geometry, (fresh, plan.stream, lane), plan.stripe_count, now)
        self._pad(block, plan.stripe_count * options.geometry.stripe_size - plan.data_length)
        for one in plan.placed:
            self._put(block, one.candidate.payload.ref, one.candidate.size)

    def _lane_for(self, plan: GroupPlan[ToPack[int]], options: PackerOptions) -> int:
        """Return the lane of a consumer that writes a fresh group. Each lane gets a run of groups that fills a
        block."""
        handed_out = self._handed_out[plan.stream]
        self._handed_out[plan.stream] += plan.stripe_count
        return handed_out // options.geometry.stripes_per_block % options.consumer.lanes

    def _pad(self, block: int, size: int) -> None:
        self._padding[block] += size
        self._padding_bytes += size

    def _put(self, block: int, number: int, size: int) -> None:
        """Add a live or dead object to a block."""
        self._filled[block] += size
        self._stored_bytes += size
        if not self._dead[number]:
            self._members[block].append(number)
            self._block_of[number] = block
            self._live[block] += size
            self._live_bytes += size

    def _with_room(self, geometry: Geometry, place: tuple[bool, int, int], stripes: int, now: float) -> int:
        """Return the open block of a kind, stream and lane, or a new one if the stripes do not fit into it."""
        opened = self._groups.get(place)
        if opened is not None and opened.stripes + stripes > geometry.stripes_per_block:
            self._seal(opened.block, now)
            opened = None
        if opened is None:
            opened = self._groups[place] = _OpenBlock(self._new())
        opened.stripes += stripes
        return opened.block

    def fill(self, numbers: Sequence[int], now: float, lifetimes: Lifetimes, target: float, rng: random.Random) -> None:
        """Lay out a store that has been in use for a long time, with these live objects and this space amplification.

        In each stream, the live share u of the blocks runs from 1 down to the share at which they would be collected,
        as if they had been sealed in regular intervals and died at one rate. A block gets objects that are older than
        itself, if there are enough.
        """
        u_min = live_share_at(target)
        utilisation = self._utilisation(numbers, now, lifetimes)
        by_stream: dict[int, list[int]] = {}
        for number in numbers:
            by_stream.setdefault(self._stream(number, now, lifetimes), []).append(number)
        for _, living in sorted(by_stream.items()):
            living.sort(key=lambda number: self._objects.born[number])
            middle = living[len(living) // 2]
            half_life = lifetimes.half_life_days(
                self._objects.buckets[self._objects.bucket[middle]], now - self._objects.born[middle]
            )
            self._fill_stream(living, now, half_life / log(2), u_min, utilisation, rng)

    def _utilisation(self, numbers: Sequence[int], now: float, lifetimes: Lifetimes) -> float:
        """Return the share of their stripes that these objects fill, by packing a sample; 1.0 without the packer of a
        store."""
        options = self._options.packer
        if self._packer is None or options is None:
            return 1.0
        size = self._objects.size
        sample = [number for number in numbers[:_SAMPLE] if size[number] and not self._is_large(size[number])]
        plans = self._packer.survivors((self._to_pack(number, now, lifetimes), size[number]) for number in sample)
        stripes = sum(plan.stripe_count for plan in plans)
        return options.geometry.share(sum(size[number] for number in sample), stripes) or 1.0

    def _fill_stream(
        self,
        oldest_first: list[int],
        now: float,
        mean: float,
        u_min: float,
        utilisation: float,
        rng: random.Random,
    ) -> None:
        capacity, size = round(self._options.block_bytes * utilisation), self._objects.size
        shared: list[int] = []
        for number in oldest_first:
            if self._is_large(size[number]):
                self._first_block([number], size[number], now)
            else:
                shared.append(number)
        live = sum(size[number] for number in shared)
        blocks = max(1, round(live * amplification_at(u_min) / capacity))
        eligible: list[int] = []
        begun = 0
        for n in range(blocks):
            share = u_min ** (1 - (n + 0.5) / blocks)
            age = -log(share) * mean
            while begun < len(shared) and now - self._objects.born[shared[begun]] >= age:
                eligible.append(shared[begun])
                begun += 1
            taken = self._take(eligible, round(share * capacity), rng)
            if taken:
                self._first_shared(taken, capacity, now - age, utilisation)
        left = eligible + shared[begun:]
        while left:
            some = self._head(left, capacity)
            del left[: len(some)]
            self._first_shared(some, 0, now, utilisation)

    def _first_shared(self, members: list[int], filled: int, sealed_at: float, utilisation: float) -> None:
        block = self._first_block(members, filled, sealed_at)
        self._pad(block, round(self._filled[block] / utilisation) - self._filled[block])

    def _take(self, numbers: list[int], room: int, rng: random.Random) -> list[int]:
        """Remove numbers at random, until `room` bytes are taken or none is left, and return them."""
        taken: list[int] = []
        while numbers and room > 0:
            taken.append(_take(numbers, rng))
            room -= self._objects.size[taken[-1]]
        return taken

    def _head(self, numbers: list[int], room: int) -> list[int]:
        """Return the first of the numbers that fit into `room` bytes, at least one."""
        count = 0
        while count < len(numbers) and (not count or self._objects.size[numbers[count]] <= room):
            room -= self._objects.size[numbers[count]]
            count += 1
        return numbers[:count]

    def _first_block(self, members: list[int], filled: int, sealed_at: float) -> int:
        """Create a sealed block of these members, and return its number. It has at least `filled` bytes, including dead
        ones."""
        block = self._new()
        self._members[block] += members
        live = 0
        for number in members:
            self._block_of[number] = block
            live += self._objects.size[number]
        self._live[block] = live
        self._filled[block] = max(filled, live)
        self._live_bytes += live
        self._stored_bytes += self._filled[block]
        self._sealed_at[block] = sealed_at
        return block

    def _is_large(self, size: int) -> bool:
        return self._options.large_bytes is not None and size > self._options.large_bytes

    def _to_pack(self, number: int, now: float, lifetimes: Lifetimes) -> ToPack[int]:
        objects = self._objects
        return ToPack(
            self._stream(number, now, lifetimes),
            objects.buckets[objects.bucket[number]],
            objects.prefixes[objects.prefix[number]],
            objects.born[number],
            number,
        )

    def _stream(self, number: int, now: float, lifetimes: Lifetimes) -> int:
        if not self._cuts:
            return 0
        objects = self._objects
        expires = objects.dies[number] - now if self._options.hints and objects.expires[number] else None
        bucket = objects.buckets[objects.bucket[number]]
        return stream_of(lifetimes, self._cuts, bucket, now - objects.born[number], expires)

    def _append(self, opened: list[int], stream: int, number: int, now: float) -> int:
        size, capacity = self._objects.size[number], self._options.block_bytes
        if self._is_large(size):
            self._first_block([number], size, now)
            return size
        block = opened[stream]
        if block != _NOWHERE and self._filled[block] + size > capacity:
            self._seal(block, now)
            block = _NOWHERE
        if block == _NOWHERE:
            block = opened[stream] = self._new()
        self._put(block, number, size)
        if self._filled[block] >= capacity:
            self._seal(block, now)
            opened[stream] = _NOWHERE
        return size

    def _seal(self, block: int, now: float) -> None:
        self._sealed_at[block] = now
        if not self._live[block]:
            self._emptied.append(block)

    def _new(self) -> int:
        block = len(self._live)
        self._ids.append(BlockId(block.to_bytes(16, "big")))
        self._live.append(0)
        self._filled.append(0)
        self._members[block] = []
        self._padding[block] = 0
        return block

    def _delete(self, block: int) -> None:
        self._stored_bytes -= self._filled[block]
        self._padding_bytes -= self._padding.pop(block)
        del self._members[block], self._sealed_at[block]


def _take(numbers: list[int], rng: random.Random) -> int:
    """Remove one of the numbers, without moving the others."""
    i = rng.randrange(len(numbers))
    numbers[i], numbers[-1] = numbers[-1], numbers[i]
    return numbers.pop()
