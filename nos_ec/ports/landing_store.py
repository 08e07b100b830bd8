"""The landing store: where the bytes of a PUT are safe before they are packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from nos_ec.core.errors import Transient
from nos_ec.core.ids import LandingId
from nos_ec.ports.clock import Beat, unwatched


class LandingStore(Protocol):
    """Whole objects of at most a stripe group, by id. Safe to call from several threads."""

    def put(self, landing_id: LandingId, data: bytes | bytearray | memoryview) -> None:
        """Store one landing copy. Durable on return; all or nothing after a crash.

        Ids are never used twice: raises Conflict when the id exists. Raises NoSpace, Transient; after an
        error the copy may or may not exist (the caller's deletion queue already knows the id).
        """
        ...

    def read(self, landing_id: LandingId) -> bytes:
        """The whole copy. Raises NotFound, Transient. The caller checks the CRC."""
        ...

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`. Raises NotFound, Transient, Corrupt when the copy is shorter.

        A caller must not rely on the bytes before it checked them: as the CRC is that of the whole copy, it reads all
        of it. Ceph's OSDs verify what they read (BlueStore's checksums); the embedded store verifies nothing.
        """
        ...

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy. Idempotent: an absent copy is no error. Raises Transient."""
        ...

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> Mapping[LandingId, Transient]:
        """Delete several copies at the cost of fewer synced writes than `delete` of each.

        Returns those that may still be there, each with the reason; all others are gone, durably. Idempotent.
        `beat` is called while it gets on: when many wait for a time limit, all of it takes many times as long.
        """
        ...

    def list_ids(self) -> Iterator[LandingId]:
        """Every copy that exists, in no particular order."""
        ...

    def free_bytes(self) -> int:
        """Bytes of further copies that fit, an estimate. Cheap: every PUT asks."""
        ...

    def probe(self) -> None:
        """A small piece of real work, as `BlockStore.probe`. Raises Transient, Blocklisted, ConfigError."""
        ...

    def raw_bytes(self) -> int:
        """Bytes allocated for all copies."""
        ...

    def close(self) -> None:
        """Release what is held open. The store must not be used afterwards."""
        ...
