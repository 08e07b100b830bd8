"""Error classes, one per decision a caller makes. Adapters translate driver errors into these.

InvalidInput        the request itself is wrong; nothing was changed; do not retry
ConfigError         the configuration does not fit (itself or the existing store); fix it, then start again
NotFound            the requested object, block or copy does not exist
NoSuchUpload        a NotFound error: the upload does not exist; it may have been completed or aborted
Conflict            another process changed it first; read it again
Locked              a Conflict error: an object lock protects the version; nothing was changed; do not retry
PreconditionFailed  the object does not meet the caller's condition; nothing was changed
LeaseLost           this writer was fenced; stop writing
Corrupt             bytes do not match their checksum, or have an unknown format
Transient           may work later; retrying is safe unless the method's docstring says otherwise
QuotaExceeded       the bucket or account has a quota that the PUT would exceed; nothing was changed; do not retry
NoSpace             a Transient error: out of space until the operator or GC frees some
Blocklisted         a Transient error: the storage cluster refuses this process; start a new one
Moved               a Transient error: the bucket was or is being moved to another cell; look up its cell, then retry
TooLarge            a Transient error: the message log accepts no message of this size until its limit is raised

Messages are for people. Programs use the class of an error and its attributes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol


class Named(Protocol):
    """The key of an object. `core.ids` imports this module, so `ObjectKey` cannot be named here."""

    @property
    def bucket(self) -> str:
        """The bucket of the object."""

    @property
    def name(self) -> str:
        """The name of the object in its bucket."""


class NosError(Exception):
    """Base of every error this package raises on purpose.

    Attributes name what it concerns, if known: the object (`key`), the block, the landing copy, and the dotted names of
    the settings, or of a whole section, to check.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: Named | None = None,
        block_id: bytes | None = None,
        landing_id: bytes | None = None,
        settings: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.key = key
        self.block_id = block_id
        self.landing_id = landing_id
        self.settings = settings

    def facts(self) -> dict[str, Any]:
        """Return the known attributes for JSON: `bucket` and `name`, `block`, `landing`, `settings`."""
        facts: dict[str, Any] = {}
        if self.key is not None:
            facts |= {"bucket": self.key.bucket, "name": self.key.name}
        if self.block_id is not None:
            facts["block"] = self.block_id.hex()
        if self.landing_id is not None:
            facts["landing"] = self.landing_id.hex()
        if self.settings:
            facts["settings"] = list(self.settings)
        return facts


class InvalidInput(NosError):
    """The caller's input is refused before anything is done; the message explains what to do."""


class Encrypted(InvalidInput):
    """The object is encrypted, and was asked for by a way that has no keys."""


class ConfigError(NosError):
    """The configuration is wrong or does not match the existing store."""


class NotFound(NosError):
    """The object, block or landing copy does not exist."""


class NoSuchUpload(NotFound):
    """The multipart upload does not exist, or accepts no more parts."""


class Conflict(NosError):
    """A compare-and-set lost, or the target of an exclusive create already exists."""


class Locked(Conflict):
    """An object lock protects a version that would have been deleted or overwritten (core.locking). `keys` has the keys
    of all such versions."""

    def __init__(self, message: str, keys: Collection[Named]) -> None:
        super().__init__(message, key=next(iter(keys), None))
        self.keys = frozenset(keys)


class PreconditionFailed(NosError):
    """The condition of a PUT or DELETE does not hold (core.conditions)."""


class QuotaExceeded(NosError):
    """A PUT would exceed the quota of its bucket, or of the bucket's owner (core.quotas)."""


class LeaseLost(Conflict):
    """This writer's lease was revoked or taken over; it must stop writing."""


class Corrupt(NosError):
    """Bytes fail their checksum or do not decode."""


class Transient(NosError):
    """A failure that may pass: time-outs, lost connections, too many shards unavailable."""


FREE_SPACE = "delete objects (if there is a trash, `nos-ec trash empty` deletes its contents) and run GC"
"""How to resolve NoSpace without adding disks."""


class NoSpace(Transient):
    """The store is out of space, or the write would use the reserve that is kept for GC."""


class Moved(Transient):
    """These buckets were moved to other cells, or are being moved. Nothing was changed."""

    def __init__(self, message: str, buckets: Collection[str]) -> None:
        super().__init__(message)
        self.buckets = frozenset(buckets)


class Blocklisted(Transient):
    """The storage cluster refuses every request of this process; a restarted process has a new address."""


class TooLarge(Transient):
    """The message log accepts no message of this size until an operator raises its limit."""
