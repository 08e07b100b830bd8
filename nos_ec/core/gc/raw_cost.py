"""The raw bytes that a live byte takes on the disks, by cause. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.geometry import Geometry

REPLICAS = 3
"""The number of replicas that erasure coding is compared with."""
RAW_PARTS = ("live", "coding", "headers", "padding", "undivided", "dead_sealed", "dead_open", "dead_condemned")


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Bytes in blocks, without coding chunks. `header_share` is the share of the overhead that is headers and names,
    the rest being padding; None while it is unknown."""

    live_bytes: int
    sealed_dead_bytes: int
    open_dead_bytes: int
    condemned_dead_bytes: int
    overhead_bytes: int
    header_share: float | None = None


@dataclass(frozen=True, slots=True)
class RawCost:
    """Raw bytes per live byte in blocks: the sum of its parts.

    `live` is 1; `coding` counts the coding chunks of live bytes. The other parts include their own coding chunks.
    `headers` includes names, and `padding` counts bytes of stripes without any content. `undivided` is the sum of both
    while only rows are known, which do not distinguish them; 0 otherwise. `break_even` is the space amplification at
    which a live byte would take as much as with three replicas, with headers and padding as they are now.
    """

    total: float
    live: float
    coding: float
    headers: float
    padding: float
    undivided: float
    sealed_dead: float
    open_dead: float
    condemned_dead: float
    break_even: float

    @property
    def parts(self) -> dict[str, float]:
        """Return the parts by name, in the order in which they are shown."""
        dead = (self.sealed_dead, self.open_dead, self.condemned_dead)
        values = (self.live, self.coding, self.headers, self.padding, self.undivided, *dead)
        return dict(zip(RAW_PARTS, values, strict=True))


def raw_cost(stored: StoredParts, geometry: Geometry) -> RawCost | None:
    """Return the raw cost, or None while no byte is live."""
    live = stored.live_bytes
    if not live:
        return None
    factor = (geometry.k + geometry.m) / geometry.k
    overhead, sealed_dead, open_dead, condemned_dead = (
        factor * part / live
        for part in (
            stored.overhead_bytes,
            stored.sealed_dead_bytes,
            stored.open_dead_bytes,
            stored.condemned_dead_bytes,
        )
    )
    share = stored.header_share
    return RawCost(
        total=factor + overhead + sealed_dead + open_dead + condemned_dead,
        live=1.0,
        coding=factor - 1,
        headers=0.0 if share is None else share * overhead,
        padding=0.0 if share is None else (1 - share) * overhead,
        undivided=overhead if share is None else 0.0,
        sealed_dead=sealed_dead,
        open_dead=open_dead,
        condemned_dead=condemned_dead,
        break_even=(REPLICAS - overhead) / factor,
    )
