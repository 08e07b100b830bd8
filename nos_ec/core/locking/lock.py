"""Object locks, as S3 has them (docs/adr/0053): a locked version cannot be deleted.

A lock belongs to one version. It is an attribute of the store, so it is stored wherever the version is, and users
cannot set it as they set other attributes. Its value has four words, separated by spaces:

    mode    GOVERNANCE or COMPLIANCE; - without retention
    until   until when the retention lasts, Unix milliseconds; 0 without retention
    hold    hold or -: whether there is a legal hold
    note    the number in the name of the note about the lock (lock_note.py); 0 without a note
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.errors import Corrupt

UNTIL_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last that dates in S3 can name."""
_ATTRIBUTE = "nos_ec:lock"
_ATTRIBUTE_BYTES = _ATTRIBUTE.encode()
_NONE, _HOLD = "-", "hold"


class LockMode(StrEnum):
    """Says who may shorten or remove a retention before its end."""

    GOVERNANCE = "GOVERNANCE"
    """Senders with the right to bypass it may."""
    COMPLIANCE = "COMPLIANCE"
    """Nobody may. The retention can only be extended."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of a version: a retention until `until_ms` (Unix milliseconds) if it has a `mode`, and a legal hold,
    which lasts until it is removed. `note` is the number in the name of its note, or 0."""

    mode: LockMode | None = None
    until_ms: int = 0
    hold: bool = False
    note: int = 0

    def protects(self, now_ms: int) -> bool:
        """Return whether the version may not be deleted at this time."""
        return self.hold or (self.mode is not None and now_ms < self.until_ms)

    def may_become(self, new: Lock, now_ms: int, *, bypass: bool) -> bool:
        """Return whether the lock may be replaced by `new` at this time. A retention that has not ended may be extended
        in the same mode. With `bypass`, one in the mode GOVERNANCE may be changed in any way. Legal holds may be set
        and removed at any time.

        Source: "Managing object retention" in "Locking objects with Object Lock" of the S3 user guide."""
        if self.mode is None or now_ms >= self.until_ms:
            return True
        extends = new.mode is self.mode and new.until_ms >= self.until_ms
        return extends or (self.mode is LockMode.GOVERNANCE and bypass)

    @property
    def text(self) -> str:
        """Return why the version is locked, for people."""
        reasons = ["by a legal hold"] if self.hold else []
        if self.mode is not None:
            until = datetime.fromtimestamp(self.until_ms / 1000, UTC).isoformat(timespec="seconds")
            reasons.append(f"until {until} ({self.mode})")
        return " and ".join(reasons) or "not any more"


def lock_of(attributes: bytes) -> Lock | None:
    """Return the lock of a version with these attributes; None if it never had one. Raise Corrupt for a damaged lock,
    so that a version whose lock cannot be read is not deleted."""
    if _ATTRIBUTE_BYTES not in attributes:
        return None
    text = decode_attributes(attributes).get(_ATTRIBUTE)
    if text is None:
        return None  # the text is in another attribute
    try:
        mode, until, hold, note = text.split(" ")
        found = Lock(None if mode == _NONE else LockMode(mode), int(until), hold == _HOLD, int(note))
    except ValueError:
        raise Corrupt(f"attribute {_ATTRIBUTE}: {text!r}") from None
    if hold not in (_NONE, _HOLD) or not 0 <= found.until_ms <= UNTIL_MS_MAX or found.note < 0:
        raise Corrupt(f"attribute {_ATTRIBUTE}: {text!r}")
    return found


def lock_text(lock: Lock | None) -> str | None:
    """Return the lock of a version, for people; None if it has neither a retention nor a legal hold."""
    return None if lock is None or (lock.mode is None and not lock.hold) else lock.text


def with_lock(attributes: bytes, lock: Lock) -> bytes:
    """Return these attributes with the lock instead of their own. Raise InvalidInput if they are too many."""
    words = [lock.mode or _NONE, str(lock.until_ms), _HOLD if lock.hold else _NONE, str(lock.note)]
    return encode_attributes({**decode_attributes(attributes), _ATTRIBUTE: " ".join(words)})
