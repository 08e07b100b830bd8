"""Which bytes of a block are live, dead or overhead, and which blocks are worth collecting. Pure.

 6  live + dead + overhead = size, computed from headers and rows alone
10  what cannot be read is never treated as dead while a row says it is live
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from nos_ec.core.geometry import Geometry
from nos_ec.core.header import GroupHeader
from nos_ec.core.packing.bounds import chunks_min, stripes_by_volume

_ROUNDING = 1e-6
"""Of a stripe: what the sum of many shares may be off."""


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """What a row says lies in a block: the key's MD5, the version, the range (from the start of the block)."""

    key_md5: bytes
    version: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockAccount:
    """The books of one block, in bytes. `unconfirmed` are live rows that no readable header confirms."""

    live_bytes: int
    dead_bytes: int
    overhead_bytes: int
    live_objects: int
    unconfirmed: tuple[LiveEntry, ...]


def account_block(
    geometry: Geometry,
    stripes: int,
    headers: Sequence[GroupHeader],
    damaged_stripes: Iterable[int],
    live: Sequence[LiveEntry],
) -> BlockAccount:
    """Count a block of `stripes` stripes.

    Rows decide what is live, headers what was written: the data of a group that no row points to is dead, what
    is neither is overhead. A stripe without a readable header holds nothing that anybody could name: whatever
    of it no row points to counts as dead, so that GC will come for it.
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
    damaged_bytes = len(set(damaged_stripes)) * geometry.stripe_size
    dead_bytes = max(0, data_bytes + damaged_bytes - live_bytes)
    overhead = stripes * geometry.stripe_size - live_bytes - dead_bytes
    return BlockAccount(live_bytes, dead_bytes, overhead, len(live), unconfirmed)


@dataclass(frozen=True, slots=True)
class Victim:
    """A block GC may collect: its size, and what rewriting its live objects takes, in stripes."""

    stripes: int
    needs: float


def stripes_needed(geometry: Geometry, sizes: Sequence[int], names_bytes: int) -> float:
    """Stripes that objects of these sizes take when they are packed together with others; not rounded up.

    names_bytes: bytes of their name records. A lower bound that the default policy comes close to. The last chunk is
    not counted as a whole one: others may use the rest of it.
    """
    if not sizes:
        return 0.0
    by_chunks = (chunks_min(sizes, geometry.chunk_size) - 1) / geometry.k
    return max(by_chunks, stripes_by_volume(sizes, geometry, names_bytes))


def stripes_rewritten(needs: float) -> int:
    """Whole stripes that survivors of so many stripes are taken to fill."""
    return ceil(needs - _ROUNDING)


def pays(victims: Sequence[Victim]) -> bool:
    """True when rewriting what lives in the victims takes fewer stripes than deleting them gives back.

    So each collection leaves fewer stripes than it found. Without this a lone stripe with one live object would be
    copied for ever, each time for nothing.
    """
    return stripes_rewritten(sum(victim.needs for victim in victims)) < sum(victim.stripes for victim in victims)
