"""The input and output of a packing policy.

Layout of a planned group (offsets from its start, in bytes):

    0                header_length          header_length + names_room                  stripe_count x stripe_size
    | header (pages) | names (zlib), zero-padded | object data and padding, placed chunk by chunk |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

P = TypeVar("P")
"""The type of the payload of a caller's candidates."""


class Candidate(Generic[P]):
    """An object that waits to be packed.

    `size` is the length of the object in bytes, at least 1; `name_size` is that of its name record before compression.
    `arrived_ms` is the time when it entered the merge list. `payload` identifies it for the caller; the packer never
    uses it. Only the merge list sets the last two: `seq` is the order of arrival; `waiting` is true while the object is
    in a merge list and not yet placed in a group, open or returned.
    """

    __slots__ = ("arrived_ms", "name_size", "payload", "seq", "size", "waiting")

    def __init__(self, size: int, name_size: int, payload: P, arrived_ms: int) -> None:
        self.size = size
        self.name_size = name_size
        self.payload = payload
        self.arrived_ms = arrived_ms
        self.seq = -1
        self.waiting = False

    def __repr__(self) -> str:
        return f"Candidate(size={self.size}, name_size={self.name_size}, seq={self.seq}, waiting={self.waiting})"


class PlacedObject(NamedTuple, Generic[P]):
    """One object of a plan, `offset` bytes from the start of the group."""

    candidate: Candidate[P]
    offset: int


class GroupPlan(NamedTuple, Generic[P]):
    """A planned stripe group. Its objects are in order of offset and never overlap the header, names or each other.

    `names_room` bytes are reserved for the compressed names, right after the header; they always fit. `data_length` is
    the total length of the objects in bytes. Groups of different streams belong in different blocks. `split_objects`
    counts the objects that touch one chunk more than the fewest possible; none touches two more.
    """

    stripe_count: int
    header_length: int
    names_room: int
    placed: tuple[PlacedObject[P], ...]
    data_length: int
    stream: int = 0
    split_objects: int = 0


@dataclass(frozen=True, slots=True)
class Linger:
    """How long an object waits for others before its group is planned even if the group is not full.

    The limit is `wait_ms` while at least `fill_bytes_min` bytes wait in all, and `wait_ms_max` while fewer wait. A
    stripe written nearly empty costs as much as a full one until GC merges it with others; a waiting object is safe in
    the landing store.
    """

    wait_ms: int
    wait_ms_max: int
    fill_bytes_min: int

    def limit_ms(self, waiting_bytes: int) -> int:
        """Return the longest wait of the oldest object while `waiting_bytes` bytes wait in all."""
        return self.wait_ms if waiting_bytes >= self.fill_bytes_min else max(self.wait_ms, self.wait_ms_max)


def lingering(limit: Linger | int) -> Linger:
    """Return `limit` itself; for a number of milliseconds, the Linger with that limit for any number of waiting
    bytes."""
    return Linger(limit, limit, 0) if isinstance(limit, int) else limit


class MergeList(Protocol[P]):
    """Objects waiting in memory, and the policy that packs them. Not thread-safe. Reads no clock.

    A policy may keep a group open and add objects to it. They are in the list until the group is returned: the list's
    length, bytes and deadline include them.
    """

    def add(self, candidate: Candidate[P]) -> None:
        """Take a candidate. Raise ValueError if its size is not between 1 and `size_max` (less ATTRIBUTES_ROOM,
        packer.py, if its name record is so large that it must have attributes), if its name record is larger than any
        valid name and attributes make it, or if it already waits in a merge list."""

    def plan(self, now_ms: int, *, flush: bool = False) -> GroupPlan[P] | None:
        """Remove the next group from the list and return it. None means "add more": no group is worth writing yet, no
        object is past its deadline, and `flush` (pack all waiting objects) is not set; or the list is empty. Call
        repeatedly until it returns None. A caller that stops adding at a limit of its own must not then wait for a full
        group: the next group comes at the deadline, or at once with `flush`."""

    def next_deadline_ms(self) -> int | None:
        """Return when the oldest object in the list must be packed even if the stripe is not full, or None if the list
        is empty."""

    def set_window(self, window: int, bytes_max: int | None) -> None:
        """Choose from that many objects from now on, at least 1, and from at most `bytes_max` bytes of them. The policy
        may choose from fewer bytes; None: it decides alone."""

    def shorten(self) -> None:
        """Pack the objects that wait now in groups of at most `stripes_per_group_max` stripes, because a longer one
        failed. Such a group is written only after all its objects were read. A group that is open stays as it is."""

    def take_all(self) -> list[Candidate[P]]:
        """Remove all objects, including those of an open group, and return them in order of arrival."""

    def __len__(self) -> int:
        """Return the number of objects in the list, including those of an open group."""

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the objects in the list, including those of an open group."""

    @property
    def size_max(self) -> int:
        """Return the largest object without attributes that can be packed (bytes)."""
