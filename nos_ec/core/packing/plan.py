"""What a packing policy is given and what it answers.

Layout of a planned group (offsets from its start, in bytes):

    0                header_length          header_length + names_room                  stripe_count x stripe_size
    | header (pages) | names (zlib), zero-padded | object data and padding, placed chunk by chunk |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Candidate:
    """An object that waits to be packed.

    size: bytes of the object, at least 1. name_size: bytes its name record takes before compression.
    arrived_ms: when it entered the merge list. payload: whatever the caller needs to find it again; the
    packer never looks at it. seq: order of arrival, and waiting: whether it is in a merge list and not yet placed in
    a group, handed out or open; both are set by the merge list alone.
    """

    __slots__ = ("arrived_ms", "name_size", "payload", "seq", "size", "waiting")

    def __init__(self, size: int, name_size: int, payload: object, arrived_ms: int) -> None:
        self.size = size
        self.name_size = name_size
        self.payload = payload
        self.arrived_ms = arrived_ms
        self.seq = -1
        self.waiting = False

    def __repr__(self) -> str:
        return f"Candidate(size={self.size}, name_size={self.name_size}, seq={self.seq}, waiting={self.waiting})"


class PlacedObject(NamedTuple):
    """One object of a plan, at `offset` bytes from the start of the group."""

    candidate: Candidate
    offset: int


class GroupPlan(NamedTuple):
    """A planned stripe group. Its objects are in order of offset and never overlap the header, names or each other.

    names_room: bytes reserved for the compressed names, right behind the header; they always fit.
    data_length: bytes of the objects placed.
    """

    stripe_count: int
    header_length: int
    names_room: int
    placed: tuple[PlacedObject, ...]
    data_length: int


@dataclass(frozen=True, slots=True)
class Linger:
    """How long an object waits for company before its group is planned even if it is not full.

    wait_ms: while at least fill_bytes_min wait together. wait_ms_max: while fewer do. A stripe that is written nearly
    empty costs as much as a full one until GC merges it with others; an object that waits is safe in the landing store.
    """

    wait_ms: int
    wait_ms_max: int
    fill_bytes_min: int

    def limit_ms(self, waiting_bytes: int) -> int:
        """The longest wait of the oldest object while `waiting_bytes` wait in all."""
        return self.wait_ms if waiting_bytes >= self.fill_bytes_min else max(self.wait_ms, self.wait_ms_max)


def lingering(limit: Linger | int) -> Linger:
    """`limit`, or the one that holds for so many milliseconds however little waits."""
    return Linger(limit, limit, 0) if isinstance(limit, int) else limit


class MergeList(Protocol):
    """Objects waiting in memory and the policy that packs them. Not thread-safe. No clock of its own.

    A policy may keep a group open that it adds objects to. They are in the list until the group is handed out: its
    number, its bytes and its deadline count them.
    """

    def add(self, candidate: Candidate) -> None:
        """Take a candidate. Raises ValueError when its size is not between 1 and `size_max`, its name record is
        larger than any valid name makes, or it waits in a merge list already."""
        ...

    def plan(self, now_ms: int, *, flush: bool = False) -> GroupPlan | None:
        """Take the next group off the list. None means "add more": there is no group worth writing yet, no object is
        past its deadline, and `flush` (pack whatever there is) is not set; or the list is empty. To be asked again and
        again until it says so. A caller that stops adding at a limit of its own must not wait for a group then: the
        deadline brings it, or `flush` does at once."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When the oldest object in the list must be packed even if the stripe is not full; None when empty."""
        ...

    def __len__(self) -> int:
        """Objects in the list: those that wait and those of an open group."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the objects in the list: of those that wait and of those of an open group."""
        ...

    @property
    def size_max(self) -> int:
        """Largest object that can be packed (bytes)."""
        ...
