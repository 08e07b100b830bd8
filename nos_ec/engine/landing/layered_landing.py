"""Landing copies of both kinds: records of the landing log, and copies of the landing store.

The id of a copy shows its kind (`in_log`), so both can exist at once: while a store changes from one to the other,
while large objects bypass the log, and while the log is drained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import LandingId, in_log
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.landing_store import LandingPut, LandingStore
from nos_ec.ports.segment_medium import SegmentMedium


class LayeredLanding:
    """A `LandingStore` over the log and a store (see nos_ec.ports.landing_store for the contract).

    New copies go to the store; PUTs write to the log through its `Lander`. Records are not deleted one by one: a
    segment is released when nothing refers to any of its records. Closing closes the store; the caller closes the
    medium.
    """

    def __init__(self, medium: SegmentMedium, store: LandingStore, *, one_pool: bool = False) -> None:
        """`one_pool`: both are in one pool, and each reports the bytes of the whole pool."""
        self.records = LogReader(medium)
        """Reads records of the log, several with one operation."""
        self._medium = medium
        self._store = store
        self._one_pool = one_pool

    def put(self, landing_id: LandingId, data: bytes | bytearray | memoryview, label: bytes = b"") -> None:
        """Store one copy in the store. Raise ValueError for the id of a record."""
        _require_copies([landing_id])
        self._store.put(landing_id, data, label)

    def put_many(self, copies: Sequence[LandingPut]) -> Mapping[LandingId, NosError]:
        """Store several copies in the store. Raise ValueError for the id of a record."""
        _require_copies([copy.landing_id for copy in copies])
        return self._store.put_many(copies)

    def read(self, landing_id: LandingId) -> bytes:
        """Return the whole copy. `read_range` is cheaper for a record whose size is known."""
        return self.records.read(landing_id) if in_log(landing_id) else self._store.read(landing_id)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`, with one operation."""
        source = self.records if in_log(landing_id) else self._store
        return source.read_range(landing_id, offset, length)

    def delete(self, landing_id: LandingId) -> None:
        """Delete a copy of the store. A record stays until its segment is released."""
        if not in_log(landing_id):
            self._store.delete(landing_id)

    def delete_many(self, landing_ids: Sequence[LandingId], beat: Beat = unwatched) -> Mapping[LandingId, Transient]:
        """Delete copies of the store. Records stay until their segments are released."""
        copies = [landing_id for landing_id in landing_ids if not in_log(landing_id)]
        return self._store.delete_many(copies, beat) if copies else {}

    def list_ids(self) -> Iterator[LandingId]:
        """Yield every copy of the store. Records of the log are found through its segments."""
        return self._store.list_ids()

    def labels(self, landing_ids: Sequence[LandingId]) -> Mapping[LandingId, bytes]:
        """Return the labels of copies of the store. Raise ValueError for the id of a record, whose label
        engine/landing/landing_labels.py reads."""
        _require_copies(landing_ids)
        return self._store.labels(landing_ids)

    def free_bytes(self) -> int:
        """Return the free bytes of the store, which PUTs use when the log is full."""
        return self._store.free_bytes()

    def probe(self) -> None:
        """Do a small operation in both."""
        self._store.probe()
        self._medium.probe()

    def raw_bytes(self) -> int:
        """Return the bytes allocated for all copies and all segments."""
        return self._store.raw_bytes() + (0 if self._one_pool else self._medium.raw_bytes())

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _require_copies(landing_ids: Sequence[LandingId]) -> None:
    for landing_id in landing_ids:
        if in_log(landing_id):
            raise ValueError(f"{landing_id.hex()} is a record of the landing log, which only its log may write")
