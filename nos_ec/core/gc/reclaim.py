"""Which bytes of a block are live, dead or overhead, and which blocks are worth collecting. Pure.

 6  live + dead + overhead = size, computed from headers and rows alone
10  bytes that cannot be read are never treated as dead while a row refers to them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from nos_ec.core.formats.header import GroupHeader
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing.bounds import chunks_min, stripes_by_volume

_ROUNDING = 1e-6
"""The largest rounding error of the sum of many fractions, in stripes."""


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """An object that is in a block according to its row: key's MD5, version, range (from the start of the block)."""

    key_md5: bytes
    version: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockAccount:
    """The byte counts of one block. `unconfirmed` are live rows that no readable header confirms."""

    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    live_objects: int
    unconfirmed: tuple[LiveEntry, ...]


def account_block(
    geometry: Geometry,
    stripes: int,
    headers: Sequence[GroupHeader],
    dead_stripes: Iterable[int],
    live: Sequence[LiveEntry],
) -> BlockAccount:
    """Compute the byte counts of a block of `stripes` stripes.

    Rows decide what is live, and headers show what was written. Data of a group that no row points to is dead. Bytes
    that are neither live nor dead are overhead. In a stripe without a readable header, all bytes that no row points to
    count as dead, because their content is unknown. So GC will collect them.
    """
    live_bytes = sum(entry.length for entry in live)
    data_bytes = sum(header.data_length for header in headers)
    confirmed = {
        (entry.key_md5, entry.object_version, header.first_stripe * geometry.stripe_size + entry.offset, entry.length)
        for header in headers
        for entry in header.entries
    }
    unconfirmed = tuple(
        entry for entry in live if (entry.key_md5, entry.version, entry.offset, entry.length) not in confirmed
    )
    whole_bytes = len(set(dead_stripes)) * geometry.stripe_size
    dead_bytes = max(0, data_bytes + whole_bytes - live_bytes)
    overhead = stripes * geometry.stripe_size - live_bytes - dead_bytes
    return BlockAccount(live_bytes, dead_bytes, overhead, len(live), unconfirmed)


@dataclass(frozen=True, slots=True)
class Victim:
    """A block that GC may collect: its size, and the space that its live objects need when they are rewritten, both in
    stripes."""

    stripes: int
    needs: float


def stripes_needed(geometry: Geometry, sizes: Sequence[int], names_bytes: int, split_bytes: int) -> float:
    """Return the stripes that objects of these sizes take when they are packed together with others; not rounded up.

    `names_bytes` is the length of their name records. `split_bytes` is the price of an extra read
    (consumer.split_bytes). The result is a lower bound that the default policy comes close to. It does not count the
    last chunk as a whole one, because other objects may use the rest of that chunk.
    """
    if not sizes:
        return 0.0
    by_volume = stripes_by_volume(sizes, geometry, names_bytes)
    if split_bytes < geometry.chunk_size:
        return by_volume
    return max(by_volume, (chunks_min(sizes, geometry.chunk_size) - 1) / geometry.k)


def stripes_rewritten(needs: float) -> int:
    """Return the whole stripes that survivors are expected to fill if they need `needs` stripes."""
    return ceil(needs - _ROUNDING)


def pays(victims: Sequence[Victim]) -> bool:
    """Return whether rewriting the live objects of the victims takes fewer stripes than deleting the victims frees.

    So each collection leaves fewer stripes than it found. Without this rule a lone stripe with one live object would be
    copied again and again for nothing.
    """
    return stripes_rewritten(sum(victim.needs for victim in victims)) < sum(victim.stripes for victim in victims)
