"""Describes a version of an object, and parses the names of objects in calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from nos_ec.core.errors import Corrupt, InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import users_attributes
from nos_ec.core.states import ObjectState
from nos_ec.ports.metadata import ObjectRow


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One version of an object. `get` and `open_read` accept it in place of a key, and then read exactly this version.

    `size` is in bytes; `crc32c` and `md5` (16 bytes) cover all bytes. `state` shows where the bytes were when the
    version was looked up. `created_ms` is when it was stored, in Unix milliseconds. `parts` is None unless the object
    came from a multipart upload: then it is the number of parts, `md5` is the MD5 of their MD5s, and `state` is the
    state of the list of parts. `attributes` were given by its PUT, or later by `set_attributes`.
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
    """Only for use in this package: the row, which has the location of the bytes."""

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the object. Raises Corrupt when they are damaged."""
        return attributes_of(self.row)


def info_of(row: ObjectRow) -> ObjectInfo:
    """Return the public part of a row."""
    md5, parts = row.tag
    return ObjectInfo(
        row.key, row.version, row.users_size, row.users_crc32c, md5, row.state, row.created_ms, parts, row
    )


def attributes_of(row: ObjectRow) -> dict[str, str]:
    """Return the attributes of an object. Raises Corrupt with its key."""
    try:
        return users_attributes(row.attributes)
    except Corrupt as error:
        raise Corrupt(f"{row.key} v{row.version}: {error}", key=row.key) from error


def key_of(key: ObjectKey | str) -> ObjectKey:
    """Return the key, which may be given as the string `bucket/name`. Raises InvalidInput."""
    if isinstance(key, ObjectKey):
        return key
    bucket, slash, name = key.partition("/")
    if not slash:
        raise InvalidInput(f"{key!r}: give an object as 'bucket/name' or as an ObjectKey")
    return ObjectKey(bucket, name)
