"""Reads packed objects and compares their bytes with the CRCs of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import Extent
from nos_ec.engine.packable import crc_checked
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import Placed

READ_BYTES_MAX = 4 << 20


class DataCheck:
    """Reads objects in runs of READ_BYTES_MAX bytes. `rate_limit` is called with the number of bytes of each run."""

    def __init__(self, blocks: BlockStore, rate_limit: Callable[[int], object] = lambda _: None) -> None:
        self._blocks = blocks
        self._rate_limit = rate_limit
        self.bytes = 0
        """Bytes read so far, of objects that exist."""

    def damaged_objects(self, placed: Sequence[Placed]) -> Iterator[tuple[Placed, Corrupt]]:
        """Yield the objects of one block whose bytes do not match their rows, with the error. `placed` must be in order
        of offset. Raises NotFound, Transient."""
        for run in _runs(placed):
            for one, data in zip(run, self._bytes_of(run), strict=True):
                self.bytes += one.extent.length
                try:
                    if isinstance(data, Corrupt):
                        raise data
                    crc_checked(data, one.extent.length, one.crc32c, one.key, str(one.key))
                except Corrupt as error:
                    yield one, error
            self._rate_limit(sum(one.extent.length for one in run))

    def _bytes_of(self, run: Sequence[Placed]) -> Sequence[bytes | Corrupt]:
        """Return the bytes of each object, or the error. Objects that cannot be read together are read one by one."""
        block_id = run[0].extent.block_id
        try:
            return self._blocks.read_many(block_id, [(one.extent.offset, one.extent.length) for one in run])
        except Corrupt:
            return [self._bytes_of_one(one.extent) for one in run]

    def _bytes_of_one(self, extent: Extent) -> bytes | Corrupt:
        try:
            return self._blocks.read(extent.block_id, extent.offset, extent.length)
        except Corrupt as error:
            return error


def _runs(placed: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Yield runs of objects to read together, each of at most READ_BYTES_MAX bytes or a single object."""
    run: list[Placed] = []
    size = 0
    for one in placed:
        if run and size + one.extent.length > READ_BYTES_MAX:
            yield run
            run, size = [], 0
        run.append(one)
        size += one.extent.length
    if run:
        yield run
