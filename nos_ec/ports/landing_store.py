"""The landing store keeps the bytes of a PUT safe until they are packed.

NotFound, Conflict and Corrupt carry the `landing_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import LandingId
from nos_ec.ports.clock import Beat, unwatched

LABEL_SIZE_MAX = 16_384
"""The largest size of a label, in bytes."""


class LandingPut(NamedTuple):
    """A copy to store: the arguments of `LandingStore.put`."""

    landing_id: LandingId
    data: bytes
    label: bytes = b""


class LandingStore(Protocol):
    """Whole objects of at most one stripe group, stored by id. Safe to call from several threads."""

    def put(self, landing_id: LandingId, data: bytes | bytearray | memoryview, label: bytes = b"") -> None:
        """Store one landing copy. Durable on return. After a crash, either the whole copy exists or none of it.

        `label` holds bytes that `labels` returns while the copy exists, at most LABEL_SIZE_MAX. They are not part of
        the data.

        Ids are never used twice: raises Conflict when the id exists. Raises NoSpace, Transient. After an error the copy
        may or may not exist; the caller's deletion queue already holds the id.
        """

    def put_many(self, copies: Sequence[LandingPut]) -> Mapping[LandingId, NosError]:
        """Store several copies with different ids, several at a time, each as `put` does.

        Returns the copies that are not stored, or perhaps not, each with the error that `put` would have raised. All
        others are durable. A copy that fails does not stop the others.
        """

    def read(self, landing_id: LandingId) -> bytes:
        """Return the whole copy. Raises NotFound, Transient. The caller checks the CRC."""

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises NotFound, Transient, Corrupt when the copy is shorter.

        The caller must not rely on the bytes until it has checked them. The CRC covers the whole copy, so the caller
        reads all of it. Ceph's OSDs verify what they read (BlueStore's checksums); the embedded store verifies nothing.
        """

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy. Idempotent: deleting an absent copy is not an error. Raises Transient."""

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> Mapping[LandingId, Transient]:
        """Delete several copies with fewer synced writes than one `delete` per copy.

        Returns the copies that may still exist, each with the reason. All others are durably deleted. Idempotent.
        `beat` is called as the work progresses: when many deletions run into a time limit, the whole call takes many
        times that limit.
        """

    def list_ids(self) -> Iterator[LandingId]:
        """Yields every copy that exists, in no particular order."""

    def labels(self, landing_ids: Sequence[LandingId]) -> Mapping[LandingId, bytes]:
        """Return the labels of the copies that exist. A label is empty if the copy was put without one, for example by
        an older release, or if it is damaged. Raises Transient."""

    def free_bytes(self) -> int:
        """Return an estimate of the bytes of further copies that fit. The call is cheap, because every PUT makes it."""

    def probe(self) -> None:
        """Do a small piece of real work, like `BlockStore.probe`. Raises Transient, Blocklisted, ConfigError."""

    def raw_bytes(self) -> int:
        """Return the bytes allocated for all copies."""

    def close(self) -> None:
        """Release all open resources. The store must not be used afterwards."""
