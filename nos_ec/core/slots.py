"""Slots: how several producers share the objects that wait, without two of them publishing the same one.

The 32-bit hash of a bucket's name is cut into SLOTS ranges of equal length; a slot is the number of its range. A slot
has at most one producer, who holds its lease, and a bucket has one slot: its events are published by one producer at a
time, as they are consumed by one consumer at a time. Which producer should hold how many slots follows from who is
alive, by `plan_slots`; docs/adr/0013 says why it is done this way.

The slot is the highest bits of the hash that also chooses a partition, which takes its lowest: the two are
independent, so every producer publishes to every partition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Set
from dataclasses import dataclass

from nos_ec.core.messages import murmur2

SLOTS = 16
"""Part of the schema: every row holds its slot. So many producers can share the work, and each look for due objects
reads the beginning of so many index ranges."""
ALL_SLOTS = frozenset(range(SLOTS))

_HASH_BITS = 32
_SLOT_BITS = 4
assert 1 << _SLOT_BITS == SLOTS

LEASE_PREFIX = "producer-"
"""All leases of producers begin with it, and no writer's may: they guard slots and no blocks."""
_MEMBER_PREFIX = LEASE_PREFIX + "member-"
_SLOT_LEASE = re.compile(re.escape(LEASE_PREFIX) + r"slots-([0-9]{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What a producer should change: slots to give up now, and free slots to try for, the first ones first."""

    give_up: tuple[int, ...]
    take: tuple[int, ...]


def bucket_slot(bucket: str) -> int:
    """The slot of all objects of a bucket, 0 to SLOTS - 1."""
    return murmur2(bucket.encode()) >> (_HASH_BITS - _SLOT_BITS)


def plan_slots(held: Set[int], free: Collection[int], rank: int, members: int) -> SlotPlan:
    """What the member of that rank (0 to members - 1) should give up and take.

    Every member has a share, and the shares sum to SLOTS; whoever has more gives up, whoever has less takes what is
    free. So once all have seen the same members, every slot is held, and nobody's count differs from another's by
    more than 1. A slot changes hands only if it must.
    """
    share = SLOTS // members + (rank < SLOTS % members)
    if len(held) > share:
        return SlotPlan(tuple(sorted(held)[share:]), ())
    # Each begins at a place of its own, so that those who look at the same time seldom try for the same slot.
    start = rank * SLOTS // members
    wanted = sorted(free, key=lambda slot: (slot - start) % SLOTS)
    return SlotPlan((), tuple(wanted[: share - len(held)]))


def slot_lease(slot: int) -> str:
    """Name of the lease of a slot."""
    return f"{LEASE_PREFIX}slots-{slot:02}"


def leased_slot(name: str) -> int | None:
    """The slot whose lease has that name; None for every other lease."""
    match = _SLOT_LEASE.fullmatch(name)
    slot = int(match[1]) if match else SLOTS
    return slot if slot < SLOTS else None


def member_lease(member: str) -> str:
    """Name of the lease that says that a producer is alive. `member` is unique for ever."""
    return _MEMBER_PREFIX + member


def is_member_lease(name: str) -> bool:
    """True for a lease that says that a producer is alive."""
    return name.startswith(_MEMBER_PREFIX)


def is_producer_lease(name: str) -> bool:
    """True for any lease of a producer."""
    return name.startswith(LEASE_PREFIX)
