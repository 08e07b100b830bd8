"""Conditions on the current version of an object under which a PUT or DELETE takes effect.

A condition is checked on the row that the change locks. So of several changes that exclude each other, only one takes
effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.errors import NosError, NotFound, PreconditionFailed
from nos_ec.core.ids import ObjectKey

MD5_BYTES = 16


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the current version. A version in the trash is not current.

    `md5` is the MD5 that the current version must have (`If-Match`); None: there must be no current version
    (`If-None-Match: *`). An MD5 of another length matches no version. `parts` is the number of parts of a composed
    object, whose MD5s have this MD5; None for an object that is not composed. `negated`: the opposite must hold:
    another MD5 or no version (`If-None-Match`), or, for None, any version (`If-Match: *`). `modified_s` and `size` are
    the time in seconds when the current version must have been stored, and its bytes; only a DELETE uses them.
    """

    md5: bytes | None
    parts: int | None = None
    negated: bool = False
    modified_s: int | None = None
    size: int | None = None

    def refusal(
        self, key: ObjectKey, current: tuple[bytes, int | None] | None, facts: tuple[int, int] | None = None
    ) -> NosError | None:
        """Return the error if the change must not take effect, or None. The error is NotFound if there is no version
        but should be one, otherwise PreconditionFailed. `current` has the MD5 and parts of the current version, or is
        None without one; `facts` has the time when it was stored, in seconds, and its size."""
        if (current == (None if self.md5 is None else (self.md5, self.parts))) is not self.negated:
            return self._refusal_of(key, facts)
        if current is None:
            return NotFound(f"object {key} does not exist", key=key)
        if self.md5 is None:
            return PreconditionFailed(f"object {key} exists already; nothing was changed", key=key)
        found = _etag_text(*current)
        if self.negated:
            return PreconditionFailed(f"object {key} has the MD5 {found}; nothing was changed", key=key)
        wanted = _etag_text(self.md5, self.parts)
        return PreconditionFailed(f"object {key} has the MD5 {found} instead of {wanted}; nothing was changed", key=key)

    def _refusal_of(self, key: ObjectKey, facts: tuple[int, int] | None) -> NosError | None:
        modified_s, size = facts or (None, None)
        if self.modified_s not in (None, modified_s):
            return PreconditionFailed(f"object {key} was stored at another time; nothing was changed", key=key)
        if self.size not in (None, size):
            return PreconditionFailed(f"object {key} has {size} bytes; nothing was changed", key=key)
        return None


def _etag_text(md5: bytes, parts: int | None) -> str:
    return md5.hex() if parts is None else f"{md5.hex()}-{parts}"


ABSENT = Condition(None)
"""There must be no current version."""
PRESENT = Condition(None, negated=True)
"""There must be a current version; any one will do."""
