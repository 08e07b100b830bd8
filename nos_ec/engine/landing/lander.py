"""How the bytes of PUTs are made durable, before their rows are recorded: as copies of a landing store, or as records
of the landing log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.ids import LandingId, ObjectKey


@dataclass(frozen=True, slots=True)
class NewCopy:
    """The bytes of one PUT, their CRC32C, and the attributes of the object. put_ms: when the PUT was, in
    Unix milliseconds; None: now. A rebuild orders the PUTs of a key by it: a copy that is written again keeps the time
    of its PUT, and a conditional PUT gets one after the version that it was judged by."""

    key: ObjectKey
    data: bytes
    crc32c: int
    attributes: bytes = b""
    put_ms: int | None = None


class LandedBatch(Protocol):
    """The outcome of `Lander.land`."""

    @property
    def outcomes(self) -> Sequence[LandingId | NosError]:
        """For each copy its landing id, or why it did not land."""
        ...

    def void(self, refused: Collection[LandingId]) -> Collection[LandingId]:
        """Make sure, durably, that no rebuild of the metadata adopts these copies, whose PUTs are refused and were
        certainly not recorded. Call this before `settle`, and before the refusals are answered. Returns the copies that
        may still be adopted, or may still arrive: their PUTs must not be answered as refused. Never raises a
        NosError."""
        ...

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        """The caller has recorded the rows of these ids, or given them up: it makes no further try. `not_recorded` are
        those that it gave up, whatever became of the last try. Must be called once. Never raises a NosError."""
        ...


class Lander(Protocol):
    """Safe to call from several threads."""

    @property
    def batches_max(self) -> int:
        """How many batches should be under way at once."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """Bytes of a batch beyond which it gains nothing from a further object."""
        ...

    @property
    def batch_objects_max(self) -> int:
        """The most objects of a batch."""
        ...

    def land(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """Make the bytes of several PUTs durable. Raises NoSpace or Transient when nothing of the batch landed."""
        ...


def not_voided(refusal: NosError) -> Transient:
    """Return the answer to a PUT that is refused although bytes of it may still be found."""
    return Transient(
        f"{refusal}; but bytes of this PUT may remain, which a rebuild of the metadata would take for the object: send"
        " it again",
        key=refusal.key,
    )
