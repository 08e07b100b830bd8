"""Encrypts the bytes of an object while they are stored, and decrypts them, or a range of them.

Each object has keys of its own, which HKDF-SHA256 (RFC 5869) derives from a key of the store and the salt of the
object. Format, number of the key, bucket and name of the object are its `info`, so that ciphertext which is moved to
another object cannot be decrypted there. The bytes are encrypted with AES-256-GCM (NIST SP 800-38D): up to
ONE_SEGMENT_BYTES_MAX in one segment, whose tag is in the envelope; more in segments whose nonce is their number and
whether it is the last one, so that segments which are exchanged, left out or cut off are noticed (the STREAM
construction of Hoang, Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", 2015). No two encryptions share a key, so nonces need not be random.

AES-GCM does not commit to its key: some ciphertexts can be decrypted with two keys. Therefore the envelope of an object
in segments has a MAC, which only the right key can have made. It covers the MD5, too, as the tag of a single segment
does. The parts of an upload are encrypted one by one, each with a salt of its own. The MAC of the object that is
composed of them covers its manifest, which has the check of each part, so a part that is exchanged, replaced by an
older one or by plain bytes, or left out, is noticed.

A key of a customer takes the place of a key of the store, with the number OF_CUSTOMER. Then the envelope has a MAC that
shows whether a key is the right one, before anything is read, instead of the MD5, which nobody sees.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nos_ec.core.encryption.envelope import (
    OF_CUSTOMER,
    ONE_SEGMENT,
    ONE_SEGMENT_BYTES_MAX,
    PARTS_OF_CUSTOMER,
    PLAIN_SEGMENT_BYTES,
    SALT_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    TAG_BYTES,
    Envelope,
)
from nos_ec.core.errors import Corrupt
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import Manifest, UploadId
from nos_ec.engine.objects.streams import ByteStream, read_up_to

KEY_BYTES = 32
"""Bytes of a key of the store, or of a customer."""
MASK_BYTES_MAX = 64
_BATCH = 64
"""Segments that are encrypted or decrypted together: fewer calls, and no more than a MiB in memory."""
_NONCE = struct.Struct(">3xQ?")
_INFO = struct.Struct("<BHH")
_SIZE = struct.Struct("<Q")
_WHOLE_NONCE = bytes(12)
ReadStored = Callable[[int, int], Iterator[bytes]]
"""Reads stored bytes: (first byte, length)."""


class ObjectCipher:
    """The keys of one object."""

    def __init__(self, store_key: bytes, format_: int, number: int, salt: bytes, key: ObjectKey) -> None:
        """`store_key` has KEY_BYTES, and this number. Deriving the keys takes some microseconds."""
        bucket = key.bucket.encode()
        info = b"nos_ec sse" + _INFO.pack(format_, number, len(bucket)) + bucket + key.name.encode()
        derived = HKDF(SHA256(), 2 * KEY_BYTES, salt, info).derive(store_key)
        self._gcm = AESGCM(derived[:KEY_BYTES])
        self._mac_key = derived[KEY_BYTES:]
        self._format = format_
        self._number = number
        self._salt = salt
        self._key = key

    @classmethod
    def of(cls, store_key: bytes, envelope: Envelope, key: ObjectKey) -> ObjectCipher:
        """Return the cipher of a stored object. Raises Corrupt if its envelope was changed, or belongs to another
        object or key; for an object of one segment only decrypting it shows that, and for a composed one
        `require_manifest`."""
        cipher = cls(store_key, envelope.format, envelope.number, envelope.salt, key)
        if envelope.format == SEGMENTS and not hmac.compare_digest(cipher._mac(envelope.md5), envelope.check):
            raise cipher._corrupt("its envelope")
        return cipher

    def masked(self, label: str, value: bytes) -> bytes:
        """Encrypt or decrypt a short value about the object, such as a checksum of its plain bytes, which would confirm
        guesses of its content. At most one value with a label may be masked for an object, and `value` has at most
        MASK_BYTES_MAX bytes."""
        mask = hmac.digest(self._mac_key, b"mask " + label.encode(), "sha512")
        return bytes(one ^ other for one, other in zip(value, mask[: len(value)], strict=True))

    def md5(self, envelope: Envelope) -> bytes:
        """Return the MD5 of the plain bytes."""
        return self.masked("ETag", envelope.md5)

    def fits(self, envelope: Envelope) -> bool:
        """Return whether this key of a customer is the one of the envelope."""
        return hmac.compare_digest(self.customers_check(), envelope.md5)

    def customers_check(self) -> bytes:
        """Return a MAC that only this key of a customer can have made."""
        return hmac.digest(self._mac_key, b"customer", "sha256")[:TAG_BYTES]

    def _sealed(self, md5: bytes) -> bytes:
        """Return what the envelope has as its MD5."""
        if self._number == OF_CUSTOMER:
            return self.customers_check()
        return self.masked("ETag", md5)

    # --- encrypting -------------------------------------------------------------------------------
    def encrypt_whole(self, plain: bytes, md5: bytes) -> tuple[bytes, Envelope]:
        """Return the ciphertext of all bytes of an object in one segment, and its envelope."""
        masked = self._sealed(md5)
        sealed = self._gcm.encrypt(_WHOLE_NONCE, plain, masked)
        return sealed[:-TAG_BYTES], Envelope(ONE_SEGMENT, self._number, self._salt, sealed[-TAG_BYTES:], masked)

    def encrypt_segments(self, plain: bytes, first: int, *, is_end: bool) -> bytes:
        """Return the segments from number `first` on. All but the very last one need PLAIN_SEGMENT_BYTES, so `plain`
        has whole segments unless `is_end`."""
        view, sealed = memoryview(plain), []
        for start in range(0, len(plain), PLAIN_SEGMENT_BYTES):
            end = start + PLAIN_SEGMENT_BYTES
            nonce = _NONCE.pack(first + start // PLAIN_SEGMENT_BYTES, is_end and end >= len(plain))
            sealed.append(self._gcm.encrypt(nonce, view[start:end], None))
        return b"".join(sealed)

    def envelope_of_segments(self, md5: bytes) -> Envelope:
        """Return the envelope of an object in segments."""
        masked = self._sealed(md5)
        return Envelope(SEGMENTS, self._number, self._salt, self._mac(masked), masked)

    def envelope_of_parts(self, md5: bytes, manifest: Manifest) -> Envelope:
        """Return the envelope of an object that is composed of encrypted parts. `md5`: of the MD5s of its parts, or the
        check of the customer's key (`upload_check`)."""
        shown = md5 if self._format == PARTS_OF_CUSTOMER else self.masked("ETag", md5)
        found = Envelope(self._format, self._number, self._salt, b"", shown, manifest.size)
        return replace(found, check=self._mac_of_parts(found, manifest))

    # --- decrypting -------------------------------------------------------------------------------
    def require_manifest(self, envelope: Envelope, manifest: Manifest) -> None:
        """Raise Corrupt unless the object of this envelope was composed of the parts in the manifest."""
        is_right = hmac.compare_digest(self._mac_of_parts(envelope, manifest), envelope.check)
        if not is_right or envelope.size != manifest.size:
            raise self._corrupt("its envelope, or the list of its parts,")

    def decrypt_whole(self, stored: bytes, envelope: Envelope) -> bytes:
        """Return the plain bytes of an object in one segment. Raises Corrupt if anything was changed."""
        try:
            return self._gcm.decrypt(_WHOLE_NONCE, stored + envelope.check, envelope.md5)
        except InvalidTag:
            raise self._corrupt("its bytes or its envelope") from None

    def decrypt_segments(self, pieces: Iterator[bytes], first: int, last: int) -> Iterator[bytes]:
        """Yield the plain bytes of segments from number `first` on, in pieces, never a byte that was not authenticated.
        `pieces` has their stored bytes. `last` is the number of the last segment of the object. Raises Corrupt if a
        segment was changed, moved or cut off."""
        buffer, number = b"", first
        for piece in pieces:
            buffer += piece
            del piece
            # The last segment may be shorter, so bytes stay in the buffer until it is known whether more follow.
            count = min(max(0, len(buffer) - 1) // SEGMENT_BYTES, _BATCH)
            while count:
                yield self._decrypted(buffer[: count * SEGMENT_BYTES], number, last)
                buffer, number = buffer[count * SEGMENT_BYTES :], number + count
                count = min(max(0, len(buffer) - 1) // SEGMENT_BYTES, _BATCH)
        if buffer:
            yield self._decrypted(buffer, number, last)

    def _decrypted(self, stored: bytes, first: int, last: int) -> bytes:
        view, plain = memoryview(stored), []
        try:
            for start in range(0, len(stored), SEGMENT_BYTES):
                number = first + start // SEGMENT_BYTES
                nonce = _NONCE.pack(number, number == last)
                plain.append(self._gcm.decrypt(nonce, view[start : start + SEGMENT_BYTES], None))
        except InvalidTag:
            raise self._corrupt(f"one of its encrypted segments from {first} on") from None
        return b"".join(plain)

    def _mac(self, masked_md5: bytes) -> bytes:
        return hmac.digest(self._mac_key, b"envelope" + masked_md5, "sha256")[:TAG_BYTES]

    def _mac_of_parts(self, envelope: Envelope, manifest: Manifest) -> bytes:
        covered = b"parts" + envelope.md5 + _SIZE.pack(envelope.size) + manifest.digest
        return hmac.digest(self._mac_key, covered, "sha256")[:TAG_BYTES]

    def _corrupt(self, what: str) -> Corrupt:
        return Corrupt(f"{self._key}: {what} was changed, or belongs to another object or key", key=self._key)


def upload_check(customers_key: bytes, upload_id: UploadId, key: ObjectKey) -> bytes:
    """Return a MAC that shows whether a customer's key is the one of an upload, and of the object that is composed of
    its parts."""
    return ObjectCipher(customers_key, PARTS_OF_CUSTOMER, OF_CUSTOMER, upload_id, key).customers_check()


class EncryptedStream:
    """The ciphertext of a stream of plain bytes, as a `ByteStream`. It holds at most a MiB, and decides by reading
    ahead which format the object gets."""

    def __init__(self, plain: ByteStream, store_key: bytes, number: int, salt: bytes, key: ObjectKey) -> None:
        """`salt` has SALT_BYTES random bytes that were never used before."""
        assert len(salt) == SALT_BYTES
        self._plain = plain
        self._store_key = store_key
        self._number = number
        self._salt = salt
        self._key = key
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._cipher: ObjectCipher | None = None
        self._whole: Envelope | None = None
        self._head = b""
        self._segments = 0
        self._is_end = False
        self._ready = b""

    @property
    def cipher(self) -> ObjectCipher:
        """The keys of the object. Reads the first bytes of the stream, on which the format depends."""
        if self._cipher is None:
            self._head = self._read(ONE_SEGMENT_BYTES_MAX + 1)
            kind = ONE_SEGMENT if len(self._head) <= ONE_SEGMENT_BYTES_MAX else SEGMENTS
            self._cipher = ObjectCipher(self._store_key, kind, self._number, self._salt, self._key)
            if kind == ONE_SEGMENT:
                self._ready, self._whole = self._cipher.encrypt_whole(self._head, self._md5.digest())
                self._head, self._is_end = b"", True
        return self._cipher

    @property
    def md5(self) -> bytes:
        """The MD5 of the plain bytes that were read."""
        return self._md5.digest()

    def envelope(self) -> str:
        """Return the encoded envelope for the bytes that were read so far. Its length is always the same."""
        return (self._whole or self.cipher.envelope_of_segments(self.md5)).encode()

    def read(self, size: int, /) -> bytes:
        """See `ByteStream`."""
        cipher = self.cipher
        if not self._ready and not self._is_end:
            # One byte more shows whether the stream ends here, because the last segment is marked.
            wanted = _BATCH * PLAIN_SEGMENT_BYTES
            plain = self._head + self._read(wanted + 1 - len(self._head))
            self._is_end = len(plain) <= wanted
            plain, self._head = plain[:wanted], plain[wanted:]
            self._ready = cipher.encrypt_segments(plain, self._segments, is_end=self._is_end)
            self._segments += _BATCH
        found, self._ready = self._ready[:size], self._ready[size:]
        return found

    def _read(self, size: int) -> bytes:
        found = read_up_to(self._plain, size)
        self._md5.update(found)
        return found


def decrypted(
    cipher: ObjectCipher, envelope: Envelope, stored: int, first: int, length: int, read: ReadStored
) -> Iterator[bytes]:
    """Return `length` plain bytes from `first` of an object of `stored` bytes, in pieces; the range must lie in the
    object. `read` returns stored bytes of a range in pieces; it is called at once, and only for the segments of the
    range. Raises Corrupt, and what `read` raises."""
    if envelope.format == ONE_SEGMENT:
        plain = cipher.decrypt_whole(b"".join(read(0, stored)), envelope)
        return iter([plain[first : first + length]] if length else [])
    if not length:
        return iter([])
    begin, last = first // PLAIN_SEGMENT_BYTES, (stored - 1) // SEGMENT_BYTES
    end = -(-(first + length) // PLAIN_SEGMENT_BYTES)
    start, stop = begin * SEGMENT_BYTES, min(end * SEGMENT_BYTES, stored)
    plain_pieces = cipher.decrypt_segments(read(start, stop - start), begin, last)
    return _cut(plain_pieces, first - begin * PLAIN_SEGMENT_BYTES, length)


def _cut(pieces: Iterator[bytes], skipped: int, length: int) -> Iterator[bytes]:
    """Yield `length` bytes after the first `skipped` ones."""
    for piece in pieces:
        found = piece[skipped : skipped + length]
        skipped = max(0, skipped - len(piece))
        length -= len(found)
        del piece
        if found:
            yield found
    if length:
        raise Corrupt(f"an encrypted object lacks its last {length} bytes")
