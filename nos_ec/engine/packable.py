"""The objects to pack, and checks of their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import google_crc32c
from anycrc import Model

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import name_record_size
from nos_ec.core.formats.messages import PackRequest
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.packing.packer import size_max_beside
from nos_ec.core.packing.plan import Candidate
from nos_ec.ports.metadata import Placed

combine_crc32c: Callable[[int, int, int], int] = Model("CRC32C").combine
"""Returns the CRC32C of two pieces in a row from the CRC32C of each and the bytes of the second (docs/adr/0029)."""


@dataclass(frozen=True, slots=True)
class Packable:
    """One version of an object to move into a stripe, from its landing copy or from another block."""

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    source: LandingId | Extent
    request: PackRequest | None = field(default=None, compare=False)
    """The message that requested the packing; None for GC."""
    tickets: tuple[tuple[int, int], ...] = ()
    """(partition, offset) of that message; empty for GC."""
    attributes: bytes = b""
    patient: bool = field(default=False, compare=False)
    """Whether the plan waits for its read however slow it is: an earlier read was abandoned, and a later one has just
    succeeded."""
    expires_ms: int | None = field(default=None, compare=False)
    """When the object will be deleted, or None if that is unknown."""

    @property
    def born_ms(self) -> int:
        """When this version was PUT, which its number contains."""
        return self.version // 1000

    @property
    def from_block(self) -> BlockId | None:
        """The block that holds it now; None while it is in the landing store."""
        return self.source.block_id if isinstance(self.source, Extent) else None

    @property
    def name_size(self) -> int:
        """The bytes of its name record before compression."""
        return name_record_size(self.key.bucket, self.key.name, None, self.attributes)

    def candidate(self, now_ms: int) -> Candidate[Packable]:
        """Return the merge-list candidate for the object."""
        return Candidate(self.size, self.name_size, self, now_ms)


def survivor(placed: Placed, size_max: int) -> Packable:
    """Return an object to move from one block into another. size_max: the largest object size of the merge list."""
    packable = Packable(
        object_id=placed.object_id,
        key=placed.key,
        version=placed.version,
        size=placed.extent.length,
        crc32c=placed.crc32c,
        source=placed.extent,
        attributes=placed.attributes,
        expires_ms=placed.trash_until_ms,
    )
    return with_fitting_attributes(packable, size_max)


def with_fitting_attributes(packable: Packable, size_max: int) -> Packable:
    """Return the object, without its attributes if the names of a group have no room for them.

    That happens only if attributes were added later to an object of nearly the maximum size. size_max: the largest
    object size of the merge list.
    """
    if packable.size <= size_max_beside(packable.name_size, size_max):
        return packable
    return replace(packable, attributes=b"")


def crc_checked(data: bytes, size: int, crc32c: int, key: ObjectKey, what: str) -> bytes:
    """Return `data` of the object `key` if it has `size` bytes and this CRC32C. Otherwise raise Corrupt, which names
    `what`."""
    if len(data) != size:
        raise Corrupt(f"{what}: {len(data)} bytes instead of {size}", key=key)
    found = google_crc32c.value(data)
    if found != crc32c:
        raise Corrupt(f"{what}: CRC32C is {found:08x} instead of {crc32c:08x}", key=key)
    return data
