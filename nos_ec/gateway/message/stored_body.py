"""Stores the body of a request as an object, or as a part of a multipart upload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import NamedTuple, Protocol

from nos_ec.core.errors import Corrupt, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import users_attributes
from nos_ec.engine.encryption.ciphers import EncryptedStream
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.streams import ByteStream, read_up_to
from nos_ec.gateway.message.encryption import masked_checksum
from nos_ec.gateway.message.object_headers import CHECKSUM, checksum_attribute, encoded
from nos_ec.library.put_source import Pieces
from nos_ec.ports.metadata import ObjectRow, PutRequest
from nos_ec.s3 import checksums
from nos_ec.s3.checksums import Algorithm, Computed


class Body(Protocol):
    """A `ByteStream` of at most `length` bytes. `computed` is set when all of them have been read."""

    length: int
    computed: Computed | None

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`."""


class CopiedBody:
    """A body whose bytes are copied from another object."""

    def __init__(
        self,
        pieces: Iterator[bytes],
        length: int,
        algorithm: Algorithm | None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`at_end` is called when all bytes have been read; if it raises an error, the last bytes are not returned."""
        self._at_end = at_end
        self.length = length
        self.computed: Computed | None = None
        self._pieces = Pieces(pieces)
        self._algorithm = algorithm
        self._left = length
        self._checksum = None if algorithm is None else checksums.new_digest(algorithm)
        self._end_if_all()

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`. Raises Corrupt if the source does not have exactly `length` bytes."""
        piece = self._pieces.read(size)
        self._left -= len(piece)
        if self._left < 0 or (self._left and size and not piece):
            raise Corrupt(f"the source of a copy has {self.length - self._left} bytes instead of {self.length}")
        if self._checksum is not None:
            self._checksum.update(piece)
        self._end_if_all()
        return piece

    def _end_if_all(self) -> None:
        if not self._left and self.computed is None:
            self._at_end()
            checksum = None if self._checksum is None else self._checksum.digest()
            self.computed = Computed(self._algorithm, checksum)


class StoredBody(NamedTuple):
    """A body that was stored: its row, all attributes as clients see them, and the MD5 of the body."""

    row: ObjectRow
    attributes: dict[str, str]
    md5: bytes


def store_body(
    store: Store,
    request: PutRequest,
    body: Body,
    attributes: dict[str, str],
    encrypt: Callable[[ByteStream, ObjectKey], EncryptedStream] | None = None,
) -> StoredBody:
    """Store a body with these attributes and its checksum; encrypted, unless `encrypt` is None. Raises what reading
    the body, `encrypt` and `Store.put_request` raise."""
    stream: ByteStream = body
    if body.length <= store.packed_size_max:  # read first, so that its checksum is known
        stream = BytesIO(read_up_to(body, body.length + 1))
        attributes = attributes | _computed(body)
    stored, cipher = attributes, None
    sealed = None if encrypt is None else encrypt(stream, request.key)
    if sealed is not None:
        stream, cipher = sealed, sealed.cipher
        request = replace(request, envelope=sealed.envelope)
        stored = masked_checksum(cipher, attributes)
    row = store.put_request(replace(request, attributes=encoded(stored), length=body.length), stream)
    assert body.computed is not None
    if CHECKSUM not in attributes and _computed(body):
        # The checksum came after the last byte. Another request may have changed the attributes meanwhile.
        is_unchanged = users_attributes(row.attributes) == stored
        attributes = attributes | _computed(body)
        if is_unchanged:
            stored = attributes if cipher is None else masked_checksum(cipher, attributes)
            with suppress(Transient):  # the object is stored even if this fails
                store.set_attributes_of(row, encoded(stored))
    return StoredBody(row, attributes, row.md5 if sealed is None else sealed.md5)


def _computed(body: Body) -> dict[str, str]:
    computed = body.computed
    if computed is None or computed.algorithm is None or computed.checksum is None:
        return {}
    return checksum_attribute(computed.algorithm.value, checksums.in_base64(computed.checksum))
