"""How the bytes of PUTs are made durable before their rows are recorded: as copies in a landing store, or as records of
the landing log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import LandingId, ObjectKey


@dataclass(frozen=True, slots=True)
class NewCopy:
    """The bytes of one PUT, their CRC32C, and the attributes of the object.

    `put_ms` is the time of the PUT in Unix milliseconds, or None for now. A rebuild orders the PUTs of a key by it. So
    a copy that is written again keeps the time of its PUT, and a conditional PUT gets a time after the version it was
    judged by.
    """

    key: ObjectKey
    data: bytes
    crc32c: int
    attributes: bytes = b""
    put_ms: int | None = None


class LandedBatch(Protocol):
    """The outcome of `Lander.land`."""

    @property
    def outcomes(self) -> Sequence[LandingId | NosError]:
        """Return for each copy its landing id, or the error that kept it from landing."""

    def void(self, refused: Collection[LandingId]) -> Collection[LandingId]:
        """Ensure, durably, that no rebuild of the metadata adopts these copies: their PUTs are refused, and were
        certainly not recorded. Call this before `settle`, and before the refusals are answered. Return the copies that
        may still be adopted, or may still arrive: their PUTs must not be answered as refused. Never raises a NosError.
        """

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """Note that the caller has recorded the rows of all ids except `not_recorded`, which it has given up, whatever
        the outcome of its last try; it makes no further try. Must be called once. Never raises a NosError."""


class Lander(Protocol):
    """Makes batches of PUTs durable. Safe to call from several threads."""

    @property
    def batches_max(self) -> int:
        """Return how many batches should be under way at once."""

    @property
    def batch_bytes_max(self) -> int:
        """Return the bytes of a batch beyond which another object saves nothing."""

    @property
    def batch_objects_max(self) -> int:
        """Return the most objects of a batch."""

    def land(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Make the bytes of several PUTs durable. Raise NoSpace or Transient if no copy of the batch landed."""


def not_voided(refusal: NosError) -> Transient:
    """Return the answer to a PUT that is refused although bytes of it may still be found."""
    return Transient(
        f"{refusal}; but bytes of this PUT may remain, and a rebuild of the metadata would take them for the object:"
        " send it again",
        key=refusal.key,
    )
