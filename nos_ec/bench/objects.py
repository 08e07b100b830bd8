"""Generates objects for a benchmark, and PUTs them into the landing store as users do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.packer import size_max
from nos_ec.engine.objects.streams import ByteStream
from nos_ec.ports.metadata import ObjectRow

BUCKETS = 32
"""Enough buckets for every partition of the log."""
PUT_BATCH_BYTES = 64 << 20
PUT_BATCH_OBJECTS = 500
NOISE_BYTES = 8 << 20
"""Objects are pieces of a buffer of about this many random bytes, which do not compress."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An object: its key, and its bytes in a shared buffer."""

    key: ObjectKey
    view: memoryview

    def stream(self) -> ByteStream:
        """Return the bytes as a stream, as a client sends them."""
        return _PieceStream(self.view)


class _PieceStream:
    """A stream that copies the bytes once, as reading from a socket does."""

    def __init__(self, view: memoryview) -> None:
        self._rest = view

    def read(self, size: int, /) -> bytes:
        """See ByteStream."""
        found, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return found


class Objects:
    """Makes objects of given sizes, each under a new name. Not thread-safe."""

    def __init__(self, system: System, rng: random.Random) -> None:
        self._system = system
        self._rng = rng
        self._noise = rng.randbytes(NOISE_BYTES + size_max(system.geometry))
        self._numbers = count()

    def next_number(self) -> int:
        """Return a number that was not used before."""
        return next(self._numbers)

    def pieces(self, drawn: Sequence[int]) -> Iterator[bytes]:
        """Yields incompressible bytes of these sizes."""
        for size in drawn:
            start = self._rng.randrange(NOISE_BYTES)
            yield self._noise[start : start + size]

    def new_pieces(self, drawn: Sequence[int]) -> list[Piece]:
        """Return new objects of these sizes. They share one buffer, so they take no memory of their own."""
        return [
            Piece(key_of(self.next_number()), memoryview(self._noise)[start : start + size])
            for size in drawn
            for start in (self._rng.randrange(NOISE_BYTES),)
        ]

    def land(self, drawn: Sequence[int]) -> list[ObjectRow]:
        """PUT objects of these sizes, and return their rows. Raises NoSpace, Transient."""
        store = self._system.client.store()
        objects = zip(map(key_of, self._numbers), self.pieces(drawn), strict=False)
        batch_objects = max(1, min(PUT_BATCH_OBJECTS, PUT_BATCH_BYTES * len(drawn) // sum(drawn)))
        rows: list[ObjectRow] = []
        while batch := list(islice(objects, min(batch_objects, len(drawn) - len(rows)))):
            rows += store.put_many(batch)
        return rows


def key_of(number: int) -> ObjectKey:
    """Return the key of the object with this number."""
    return ObjectKey(f"bucket-{number % BUCKETS:02}", f"{number:09}.bin")
