"""Slots: how several producers share the waiting objects so that no two of them publish the same one.

The 32-bit hashes of bucket names are divided into SLOTS ranges of equal length; a slot is the number of a range. A slot
has at most one producer: the one that holds its lease. A bucket has one slot, so its events are published by one
producer at a time, even while several consumers pack them (`core.publishing.spread`). `plan_slots` derives how many
slots each producer should hold from the set of live producers; docs/adr/0013 gives the reasons for this design.

The home partition of a bucket is the remainder of the same hash, without its sign bit, divided by the number of
partitions. A slot is 2^28 consecutive hashes, which the partitions share evenly, except that some get one hash more. So
a slot hardly depends on the partition, and every producer publishes to every partition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Set
from dataclasses import dataclass

from nos_ec.core.formats.messages import murmur2

SLOTS = 16
"""Part of the schema: every row holds its slot. At most this many producers can share the work, and each search for due
objects reads the beginning of this many index ranges."""
ALL_SLOTS = frozenset(range(SLOTS))

_HASH_BITS = 32
_SLOT_BITS = 4
assert 1 << _SLOT_BITS == SLOTS

LEASE_PREFIX = "producer-"
"""Prefix of the names of all producers' leases and of no writer's lease: these leases guard slots, not blocks."""
_MEMBER_PREFIX = LEASE_PREFIX + "member-"
_SLOT_LEASE = re.compile(re.escape(LEASE_PREFIX) + r"slots-([0-9]{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The changes that a producer should make: slots to give up, then free slots to try to take."""

    give_up: tuple[int, ...]
    take: tuple[int, ...]


def bucket_slot(bucket: str) -> int:
    """Return the slot of all objects of a bucket, 0 to SLOTS - 1."""
    return murmur2(bucket.encode()) >> (_HASH_BITS - _SLOT_BITS)


def plan_slots(held: Set[int], free: Collection[int], rank: int, members: int) -> SlotPlan:
    """Return the slots that the member of that rank (0 to members - 1) should give up and take.

    Every member has a share, and the shares sum to SLOTS. A member with more gives slots up; a member with less takes
    free ones. So once all members have seen the same membership, every slot is held, and the counts of any two members
    differ by at most 1. A slot changes hands only if it must.
    """
    share = SLOTS // members + (rank < SLOTS % members)
    if len(held) > share:
        return SlotPlan(tuple(sorted(held)[share:]), ())
    # Each member begins at a different slot, so that members that plan at the same time seldom try the same one.
    start = rank * SLOTS // members
    wanted = sorted(free, key=lambda slot: (slot - start) % SLOTS)
    return SlotPlan((), tuple(wanted[: share - len(held)]))


def slot_lease(slot: int) -> str:
    """Return the name of the lease of a slot."""
    return f"{LEASE_PREFIX}slots-{slot:02}"


def leased_slot(name: str) -> int | None:
    """Return the slot whose lease has that name, or None for every other lease."""
    match = _SLOT_LEASE.fullmatch(name)
    slot = int(match[1]) if match else SLOTS
    return slot if slot < SLOTS else None


def member_lease(member: str) -> str:
    """Return the name of the lease that shows that a producer is alive. `member` is unique forever."""
    return _MEMBER_PREFIX + member


def is_member_lease(name: str) -> bool:
    """Return whether the lease shows that a producer is alive."""
    return name.startswith(_MEMBER_PREFIX)


def member_of(name: str) -> str:
    """Return the producer that a lease of `is_member_lease` belongs to."""
    return name.removeprefix(_MEMBER_PREFIX)


def is_producer_lease(name: str) -> bool:
    """Return whether the lease is one of a producer."""
    return name.startswith(LEASE_PREFIX)
