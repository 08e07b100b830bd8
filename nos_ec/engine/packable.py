"""Objects to pack, and the check of their bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import google_crc32c

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import name_record_size
from nos_ec.core.formats.messages import PackRequest
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.packing.packer import size_max_beside
from nos_ec.core.packing.plan import Candidate
from nos_ec.ports.metadata import Placed


@dataclass(frozen=True, slots=True)
class Packable:
    """One version of an object that is to move into a stripe, from its landing copy or from another block.

    request: the message that asked for it; None for GC. tickets: (partition, offset) of that message; empty for GC.
    patient: the plan waits for its read, however slow it is; set when an earlier read was left behind and a later one
    has just succeeded. expires_ms: when it will be deleted, if that is known.
    """

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    source: LandingId | Extent
    request: PackRequest | None = field(default=None, compare=False)
    tickets: tuple[tuple[int, int], ...] = ()
    attributes: bytes = b""
    patient: bool = field(default=False, compare=False)
    expires_ms: int | None = field(default=None, compare=False)

    @property
    def born_ms(self) -> int:
        """When this version was PUT, by the rule for versions."""
        return self.version // 1000

    @property
    def from_block(self) -> BlockId | None:
        """The block it is in now; None while it is in the landing store."""
        return self.source.block_id if isinstance(self.source, Extent) else None

    @property
    def name_size(self) -> int:
        """Bytes of its name record before compression."""
        return name_record_size(self.key.bucket, self.key.name, None, self.attributes)

    def candidate(self, now_ms: int) -> Candidate[Packable]:
        """The merge-list candidate that represents it."""
        return Candidate(self.size, self.name_size, self, now_ms)


def survivor(placed: Placed, size_max: int) -> Packable:
    """An object that lies in a block, to be moved into another. size_max: that of the merge list."""
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
    return as_told(packable, size_max)


def as_told(packable: Packable, size_max: int) -> Packable:
    """The object as the names of its group will tell it: without its attributes if there is no room for them. That is
    so only when a great object without attributes was given some after its PUT. size_max: that of the merge list."""
    if packable.size <= size_max_beside(packable.name_size, size_max):
        return packable
    return replace(packable, attributes=b"")


def crc_checked(data: bytes, size: int, crc32c: int, key: ObjectKey, what: str) -> bytes:
    """Returns `data` of the object `key` if it has `size` bytes and that CRC32C. Otherwise raises Corrupt naming
    `what`."""
    if len(data) != size:
        raise Corrupt(f"{what}: {len(data)} bytes instead of {size}", key=key)
    found = google_crc32c.value(data)
    if found != crc32c:
        raise Corrupt(f"{what}: CRC32C is {found:08x} instead of {crc32c:08x}", key=key)
    return data
