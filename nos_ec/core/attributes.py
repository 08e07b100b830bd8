"""Attributes of an object: metadata that clients store with its name and bytes, such as a content type, user metadata,
tags or an expiry. They belong to one version of it. A change of attributes changes only its row: names in blocks and
labels of landing copies may have older ones (docs/adr/0031).

Everything except this module, and the code that talks to clients, passes them on as opaque bytes, empty if there are no
attributes. Otherwise the bytes are one entry per attribute, in ascending order of the names' UTF-8:

    offset  size  entry
         0     1  bytes of the attribute's name, at least 1
         1     2  bytes of its value, little-endian
         3        name, then value, UTF-8

So a mapping has exactly one encoding (docs/adr/0023).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from nos_ec.core.errors import Corrupt, InvalidInput

ATTRIBUTES_SIZE_MAX = 8192
"""Bytes of all entries. With this limit, the name record of one object fits into the smallest chunk, after a header."""
ATTRIBUTE_NAME_BYTES_MAX = 255

_ENTRY = struct.Struct("<BH")


def encode_attributes(attributes: Mapping[str, str]) -> bytes:
    """Return the bytes of these attributes. Raise InvalidInput if they do not fit the format."""
    pairs = sorted((_utf8(name, "name"), _utf8(value, f"value of {name!r}")) for name, value in attributes.items())
    for name, _ in pairs:
        if not 1 <= len(name) <= ATTRIBUTE_NAME_BYTES_MAX:
            raise InvalidInput(
                f"attribute name of {len(name)} bytes of UTF-8; 1 to {ATTRIBUTE_NAME_BYTES_MAX} are possible"
            )
    size = sum(_ENTRY.size + len(name) + len(value) for name, value in pairs)
    if size > ATTRIBUTES_SIZE_MAX:
        raise InvalidInput(f"attributes take {size} bytes; the maximum is {ATTRIBUTES_SIZE_MAX}")
    return b"".join([_ENTRY.pack(len(name), len(value)) + name + value for name, value in pairs])


def decode_attributes(data: bytes) -> dict[str, str]:
    """Return the attributes that `encode_attributes` took, in its order. Raise Corrupt, and nothing else, for any other
    bytes."""
    found: dict[str, str] = {}
    if len(data) > ATTRIBUTES_SIZE_MAX:
        raise Corrupt(f"attributes: {len(data)} bytes")
    position, before = 0, b""
    while position < len(data):
        if position + _ENTRY.size > len(data):
            raise Corrupt("attributes: cut short")
        name_length, value_length = _ENTRY.unpack_from(data, position)
        middle = position + _ENTRY.size + name_length
        name, position = data[position + _ENTRY.size : middle], middle + value_length
        if position > len(data) or name <= before:
            raise Corrupt("attributes: cut short, or not in order")
        try:
            found[name.decode()] = data[middle:position].decode()
        except UnicodeDecodeError as error:
            raise Corrupt("attributes: not UTF-8") from error
        before = name
    return found


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"attribute {what}: {text!r} is not valid UTF-8 ({error.reason})") from error
