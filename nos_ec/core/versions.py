"""Versions of objects, as S3 has them (docs/adr/0034).

A version has an id of its own if it was stored while its bucket was Enabled. An attribute of the store records this,
and is stored wherever the version is, so that blocks show it, too. All others are null versions; the attribute also
marks those null versions that were stored when their keys may have had other versions.
"""

from __future__ import annotations

from enum import StrEnum

from nos_ec.core.attributes import decode_attributes, encode_attributes

VERSION_MAX = 2**63 - 1
FLOOR_MS = 7 * 86_400_000
"""A week: how long the greatest number that was removed from a key is remembered, so that it is not assigned again.
Clocks of hosts are assumed to differ by less."""
_ATTRIBUTE = "nos_ec:version"
_ATTRIBUTE_BYTES = _ATTRIBUTE.encode()
_OWN_ID, _NULL = "1", "null"


class Versioning(StrEnum):
    """How a bucket treats versions. A bucket that never was Enabled has neither state."""

    ENABLED = "Enabled"
    """Overwritten and deleted versions stay, and each version has an id."""
    SUSPENDED = "Suspended"
    """Versions with ids stay. A PUT now replaces the null version."""


def put_ms_of(version: int) -> int:
    """Return the approximate time of the PUT of a version, in Unix milliseconds: version numbers are the clock in
    microseconds (`Objects.record_puts`)."""
    return version // 1000


def numbered(least: int, *, conditional: bool) -> int:
    """Return the first number from `least` for a version or delete marker: odd if it is added under a condition,
    otherwise even.

    A large PUT takes its number when it begins. If a newer version was recorded meanwhile, only that version's number
    shows whether the large PUT may count as the earlier one (`Objects.record_large`). So nothing else needs to be
    stored or read. Numbers that earlier releases or rebuilds assigned mean nothing, but no large PUT overlaps with
    these.
    """
    return least + (least + conditional) % 2


def is_conditional(number: int) -> bool:
    """Return whether the version or delete marker with this number was added under a condition (see `numbered`)."""
    return number % 2 == 1


def as_version(attributes: bytes) -> bytes:
    """Return these attributes for a version that has an id. Raise InvalidInput if they are too many."""
    return encode_attributes({**decode_attributes(attributes), _ATTRIBUTE: _OWN_ID})


def as_null_version(attributes: bytes) -> bytes:
    """Return these attributes for a null version of a key that may have others. Raise InvalidInput if they are too
    many."""
    return encode_attributes({**decode_attributes(attributes), _ATTRIBUTE: _NULL})


def is_of_versions(attributes: bytes) -> bool:
    """Return whether these are attributes of a version whose key may have others. Raise Corrupt."""
    return _ATTRIBUTE_BYTES in attributes and _ATTRIBUTE in decode_attributes(attributes)


def has_version_id(attributes: bytes) -> bool:
    """Return whether these are attributes of a version that has an id. Raise Corrupt."""
    return _ATTRIBUTE_BYTES in attributes and decode_attributes(attributes).get(_ATTRIBUTE) == _OWN_ID
