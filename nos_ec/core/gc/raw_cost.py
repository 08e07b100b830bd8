"""What a live byte costs on the disks, and what it consists of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.geometry import Geometry

REPLICAS = 3
"""What erasure coding is compared with."""
RAW_PARTS = ("live", "coding", "headers", "padding", "undivided", "dead_sealed", "dead_open", "dead_condemned")


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Bytes in blocks, without coding chunks. header_share: the share of the overhead that is headers and names, the
    rest being padding; None while that is not known."""

    live_bytes: int
    sealed_dead_bytes: int
    open_dead_bytes: int
    condemned_dead_bytes: int
    overhead_bytes: int
    header_share: float | None = None


@dataclass(frozen=True, slots=True)
class RawCost:
    """Raw bytes per live byte in blocks: the sum of its parts.

    live is 1. coding: the coding chunks of live bytes. The other parts count their own coding chunks. headers: with
    names. padding: what is in stripes and belongs to nothing. undivided: both, while rows alone are known, which do not
    tell them apart; 0 otherwise. break_even: the space amplification at which a live byte would take as much as with
    three replicas; headers and padding as they are now.
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
        """The parts by name, in the order in which they are shown."""
        dead = (self.sealed_dead, self.open_dead, self.condemned_dead)
        values = (self.live, self.coding, self.headers, self.padding, self.undivided, *dead)
        return dict(zip(RAW_PARTS, values, strict=True))


def raw_cost(stored: StoredParts, geometry: Geometry) -> RawCost | None:
    """None while nothing lives."""
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
