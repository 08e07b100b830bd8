"""The envelope of an encrypted object: what is needed to decrypt it, apart from a key of the store.

The envelope is the attribute ENVELOPE_ATTRIBUTE of the object, so it is stored wherever the object is: in its row, and
in the name record in its block or in the label of its landing copy. As text in base 85 it takes, with its name, 77
bytes. Decoded, little-endian:

    offset  size  content
         0     1  format: 1: the bytes are one segment; 2: they are segments of SEGMENT_BYTES; 3: the object is composed
              of encrypted parts (core.parts); 4: and a customer has the key of the parts
         1     2  number of the key of the store, from 1; 0: a customer has the key (SSE-C), which is not stored
         3    16  salt, random
        19    16  format 1: the tag of AES-256-GCM; format 2: a MAC of the envelope, which commits to the key; format 3:
                  a MAC of the envelope and the manifest
        35    16  MD5 of the plain bytes, or format 3: of the MD5s of the parts, masked; number 0 or format 4: a MAC
                  that only the right key of a customer can have made
        51     8  formats 3 and 4 only: number of plain bytes

The ciphertext of one segment is as long as the plain bytes, so encryption does not change how an object is packed.
Longer objects are segments, each of which ends with its tag, so that a range can be read alone. A part is encrypted
like any other object, and has an envelope of its own.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass

from nos_ec.core.attributes import decode_attributes, encode_attributes
from nos_ec.core.errors import Corrupt

ENVELOPE_ATTRIBUTE = "nos_ec:sse"
ONE_SEGMENT, SEGMENTS, PARTS, PARTS_OF_CUSTOMER = 1, 2, 3, 4
ONE_SEGMENT_BYTES_MAX = 128 << 10
"""The largest object that is one segment: as much as the largest object of one chunk that is common."""
SEGMENT_BYTES = 16 << 10
"""Bytes of a stored segment, with its tag. The last one may be shorter."""
SALT_BYTES = TAG_BYTES = 16
PLAIN_SEGMENT_BYTES = SEGMENT_BYTES - TAG_BYTES
OF_CUSTOMER, KEY_NUMBER_MAX = 0, 2**16 - 1
"""The number of a key that a customer has, and the greatest number of a key of the store."""
_FORM = struct.Struct("<BH16s16s16s")
_SIZE = struct.Struct("<Q")
_NAME = ENVELOPE_ATTRIBUTE.encode()


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields of an envelope, in the order of the format. `check` is the tag, or the MAC. Only PARTS and
    PARTS_OF_CUSTOMER have `size`."""

    format: int
    number: int
    salt: bytes
    check: bytes
    md5: bytes
    size: int = 0

    @property
    def is_of_parts(self) -> bool:
        """Return whether the object is composed of parts."""
        return self.format in (PARTS, PARTS_OF_CUSTOMER)

    @property
    def is_of_customer(self) -> bool:
        """Return whether a customer has the key."""
        return self.number == OF_CUSTOMER or self.format == PARTS_OF_CUSTOMER

    def encode(self) -> str:
        """Return the value of the attribute."""
        data = _FORM.pack(self.format, self.number, self.salt, self.check, self.md5)
        if self.is_of_parts:
            data += _SIZE.pack(self.size)
        return base64.b85encode(data).decode()

    def plain_size(self, stored: int) -> int:
        """Return the number of plain bytes of an object that is stored in `stored` bytes. Raise Corrupt if it cannot
        have that size."""
        if self.format == ONE_SEGMENT:
            return stored
        if self.is_of_parts:
            return self.size
        return _plain_size_of_segments(stored)


def plain_size(stored: int) -> int:
    """Return the number of plain bytes of an object, not composed of parts, that is stored in `stored` encrypted bytes,
    like `Envelope.plain_size` without its envelope. Raise Corrupt."""
    return stored if stored <= ONE_SEGMENT_BYTES_MAX else _plain_size_of_segments(stored)


def _plain_size_of_segments(stored: int) -> int:
    whole, rest = divmod(stored, SEGMENT_BYTES)
    if not whole or 0 < rest <= TAG_BYTES:
        raise Corrupt(f"{stored} bytes are not whole encrypted segments")
    return stored - (whole + (rest > 0)) * TAG_BYTES


def decode_envelope(text: str) -> Envelope:
    """Return the envelope that `Envelope.encode` encoded. Raise Corrupt, and nothing else, for any other text."""
    try:
        data = base64.b85decode(text)
        size = _SIZE.unpack(data[_FORM.size :]) if data[:1] in (b"\x03", b"\x04") else ()
        found = Envelope(*_FORM.unpack(data[: _FORM.size] if size else data), *size)
    except (ValueError, struct.error):
        raise Corrupt(f"attribute {ENVELOPE_ATTRIBUTE}: {text!r}") from None
    if not ONE_SEGMENT <= found.format <= PARTS_OF_CUSTOMER or found.encode() != text:
        raise Corrupt(f"attribute {ENVELOPE_ATTRIBUTE}: {text!r}")
    if found.is_of_parts and found.number == OF_CUSTOMER:
        raise Corrupt(f"attribute {ENVELOPE_ATTRIBUTE}: {text!r}")
    return found


def envelope_of(attributes: bytes) -> Envelope | None:
    """Return the envelope in the attributes of an object; None if the object is not encrypted. Raise Corrupt."""
    if _NAME not in attributes:
        return None
    text = decode_attributes(attributes).get(ENVELOPE_ATTRIBUTE)
    return None if text is None else decode_envelope(text)  # None: the name is in a value


def with_envelope(attributes: bytes, text: str) -> bytes:
    """Return these attributes with an encoded envelope instead of any other one. Raise InvalidInput if they are too
    many."""
    return encode_attributes({**decode_attributes(attributes), ENVELOPE_ATTRIBUTE: text})


def stored_size(plain: int) -> int:
    """Return the number of bytes in which an encrypted object of `plain` bytes is stored."""
    if plain <= ONE_SEGMENT_BYTES_MAX:
        return plain
    return plain + -(-plain // PLAIN_SEGMENT_BYTES) * TAG_BYTES
