"""What is known about an object, and how objects are named in calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import users_attributes
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectRow


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One version of an object. size: bytes. crc32c, md5 (16 bytes): of all of them. state: where they were when this
    was read. created_ms: when the version was stored, in Unix milliseconds. parts: of how many parts it was composed by
    a multipart upload; then md5 is the MD5 of their MD5s, and state is that of the list of parts. None for all others.

    `attributes` are those that its PUT gave it, or `set_attributes` since. `get` and `open_read` take it in place of a
    key, and then read exactly this version.
    """

    key: ObjectKey
    version: int
    size: int
    crc32c: int
    md5: bytes
    state: ObjectState
    created_ms: int
    parts: int | None
    row: ObjectRow = field(repr=False, compare=False)
    """For this package alone: it says where the bytes are."""

    @property
    def attributes(self) -> dict[str, str]:
        """Raises Corrupt when they are damaged."""
        return attributes_of(self.row)


def info_of(row: ObjectRow) -> ObjectInfo:
    """The public part of a row."""
    md5, parts = row.tag
    return ObjectInfo(
        row.key, row.version, row.users_size, row.users_crc32c, md5, row.state, row.created_ms, parts, row
    )


def attributes_of(row: ObjectRow) -> dict[str, str]:
    """The attributes of an object. Raises Corrupt, which carries its key."""
    try:
        return users_attributes(row.attributes)
    except Corrupt as error:
        raise Corrupt(f"{row.key} v{row.version}: {error}", key=row.key) from error


def key_of(key: ObjectKey | str) -> ObjectKey:
    """The key, which a string gives as `bucket/name`. Raises InvalidInput."""
    if isinstance(key, ObjectKey):
        return key
    bucket, slash, name = key.partition("/")
    if not slash:
        raise InvalidInput(f"{key!r}: give an object as 'bucket/name' or as an ObjectKey")
    return ObjectKey(bucket, name)
