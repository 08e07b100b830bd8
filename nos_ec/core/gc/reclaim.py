"""Which bytes of a block are live, dead or overhead, and which blocks are worth collecting. Pure.

 6  live + dead + overhead = size, computed from headers and rows alone
10  bytes that cannot be read are never treated as dead while a row refers to them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from nos_ec.core.formats.header import GroupHeader
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.bounds import chunks_min, stripes_by_volume

_ROUNDING = 1e-6
"""The largest rounding error of the sum of many fractions, in stripes."""


class LiveEntry(NamedTuple):
    """An object that is in a block according to its row."""

    key_md5: bytes
    version: int
    offset: int
    """Bytes from the start of the block."""
    length: int
    """The size of the object in bytes."""


@dataclass(frozen=True, slots=True)
class BlockAccount:
    """The byte counts of one block. `unconfirmed` are live objects that are in no readable header."""

    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    live_objects: int
    unconfirmed: tuple[LiveEntry, ...]


def account_block(
    geometry: Geometry,
    stripes: int,
    headers: Sequence[GroupHeader],
    stripes_outside_groups: Iterable[int],
    live: Sequence[LiveEntry],
) -> BlockAccount:
    """Compute the byte counts of a block of `stripes` stripes.

    Rows decide what is live (`live`), and headers show what was written (`headers`). Data of a group that no row points
    to is dead. Bytes that are neither live nor dead are overhead: headers and padding. `stripes_outside_groups` are
    those that belong to no group in `headers` (HeaderScan). What they contain is unknown, so all their bytes that no
    row points to count as dead, and GC will collect them.
    """
    live_bytes = sum(entry.length for entry in live)
    written_bytes = sum(header.data_length for header in headers)
    in_headers = {
        (entry.key_md5, entry.object_version, header.first_stripe * geometry.stripe_size + entry.offset, entry.length)
        for header in headers
        for entry in header.entries
    }
    unconfirmed = tuple(entry for entry in live if entry not in in_headers)
    unknown_bytes = len(set(stripes_outside_groups)) * geometry.stripe_size
    # Rows may claim more bytes than were written, if they contradict the headers. `unconfirmed` reports that.
    dead_bytes = max(0, written_bytes + unknown_bytes - live_bytes)
    overhead_bytes = stripes * geometry.stripe_size - live_bytes - dead_bytes
    return BlockAccount(live_bytes, dead_bytes, overhead_bytes, len(live), unconfirmed)


@dataclass(frozen=True, slots=True)
class Victim:
    """A block that GC may collect: its size, and the space that its live objects need when they are rewritten, both in
    stripes."""

    stripes: int
    stripes_needed: float


def stripes_needed(geometry: Geometry, sizes: Sequence[int], names_bytes: int, split_bytes: int) -> float:
    """Return the stripes that objects of these sizes take when they are packed together with others; not rounded up.

    `names_bytes` is the length of their name records. `split_bytes` is the number of bytes of padding for which the
    packer accepts an extra read (consumer.split_bytes). The result is a lower bound that the default policy comes close
    to.
    """
    if not sizes:
        return 0.0
    by_volume = stripes_by_volume(sizes, geometry, names_bytes)
    if split_bytes < geometry.chunk_size:
        return by_volume  # Objects may be split across chunks, so that no chunk need be left partly empty.
    # The last chunk is not counted, because objects of other blocks may use the rest of it.
    return max(by_volume, (chunks_min(sizes, geometry.chunk_size) - 1) / geometry.k)


def stripes_rewritten(needed: float) -> int:
    """Return how many whole stripes the rewritten objects are expected to fill. needed: the sum of what
    `stripes_needed` returned for them."""
    return ceil(needed - _ROUNDING)


def frees_stripes(victims: Sequence[Victim]) -> bool:
    """Return whether rewriting the live objects of the victims takes fewer stripes than deleting the victims frees.

    Victims that do not pass this test must not be collected: otherwise a single stripe with one live object would be
    copied again and again, without ever freeing anything.
    """
    return stripes_rewritten(sum(victim.stripes_needed for victim in victims)) < sum(
        victim.stripes for victim in victims
    )
