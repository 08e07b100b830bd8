"""Encrypts objects with keys of the store (SSE-S3), of KMS keys (SSE-KMS) or of customers (SSE-C), and shows them as
they were sent.

Sources: "Using server-side encryption with Amazon S3 managed keys (SSE-S3)" and "Using server-side encryption with AWS
KMS keys (SSE-KMS)" of the S3 user guide; ETag in "Object" of the API reference: with SSE-S3 it is the MD5 of the plain
bytes, and with SSE-KMS and SSE-C it is not, so there it is the MD5 of the ciphertext. The MD5 and the checksum of the
plain bytes would confirm guesses of the content, so both are stored masked.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from nos_ec.core.conditions import MD5_BYTES, Condition
from nos_ec.core.encryption.envelope import (
    ENVELOPE_ATTRIBUTE,
    OF_CUSTOMER,
    PARTS,
    PARTS_OF_CUSTOMER,
    SALT_BYTES,
    Envelope,
    envelope_of,
)
from nos_ec.core.errors import ConfigError, Corrupt, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import Manifest, UploadId
from nos_ec.engine.encryption.ciphers import EncryptedStream, ObjectCipher, ReadStored, decrypted, upload_check
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.streams import ByteStream
from nos_ec.gateway.auth.access import BucketAccess
from nos_ec.gateway.auth.key_ring import KeyRing
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.customer_key import CustomerKey, customer_key
from nos_ec.gateway.message.object_headers import CHECKSUM, checksum_attribute, checksum_of, etag
from nos_ec.gateway.message.versions import number_of
from nos_ec.ports.metadata import ObjectRow, ObjectSummary, UploadRow
from nos_ec.s3 import checksums
from nos_ec.s3.checksums import Algorithm
from nos_ec.s3.documents import AES256, KMS, kms_key_of, with_kms_key
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import Request

HEADER = "x-amz-server-side-encryption"
_HEADER = HEADER.encode()
KMS_KEY_HEADER = f"{HEADER}-aws-kms-key-id"
_BUCKET_KEY_HEADER = f"{HEADER}-bucket-key-enabled"
CUSTOMER = "customer"
"""The method of objects with a key of the customer."""
_ALGORITHMS = {algorithm.value: algorithm for algorithm in Algorithm}


class _Stored(Protocol):
    @property
    def key(self) -> ObjectKey: ...
    @property
    def attributes(self) -> bytes: ...


class Encryption:
    """Encrypts and decrypts objects. Safe to call from several threads.

    Most objects have no attributes. Methods ask for that first, because each further call counts in a GET."""

    def __init__(self, store: Store, ring: KeyRing, random: Callable[[int], bytes], *, by_default: bool) -> None:
        """`random` returns cryptographically secure bytes. `by_default` encrypts objects in buckets without a
        configuration of their own, too."""
        self._store = store
        self._ring = ring
        self._random = random
        self.by_default = by_default

    # --- writing ----------------------------------------------------------------------------------
    def wanted(self, call: Call) -> str | None:
        """Return how the new object of this request is to be encrypted: by its headers, by the configuration of its
        bucket, or by default. None: not at all; otherwise AES256, CUSTOMER, or KMS and perhaps the name of a KMS key
        (`with_kms_key`). Raises S3Error, and Corrupt if the configuration cannot be read."""
        named, kms_key = call.request.header(HEADER), call.request.header(KMS_KEY_HEADER)
        if customer_key(call.request) is not None:
            if named is not None or kms_key is not None:
                raise invalid_argument("A key of the customer cannot be combined with other encryption", HEADER, named)
            return CUSTOMER
        if named == KMS:
            of_bucket = None if call.access is None else self._by_bucket(call.access)
            if not kms_key and of_bucket is not None and of_bucket != AES256:
                return of_bucket
            return with_kms_key(kms_key or None)
        if kms_key is not None:
            raise invalid_argument(f"A key id needs the header {HEADER}: {KMS}", KMS_KEY_HEADER, kms_key)
        if named is None:
            return None if call.access is None else self._by_bucket(call.access)
        if named.startswith(KMS):
            raise S3Error("NotImplemented", f"{HEADER}: {named} is not supported; use {KMS} or {AES256}.")
        if named != AES256:
            raise invalid_argument("The encryption method specified is not supported", HEADER, named)
        return named

    def _by_bucket(self, access: BucketAccess) -> str | None:
        if access.encryption is None:
            return AES256 if self.by_default else None
        method = access.encryption.decode(errors="replace")
        if method != AES256 and kms_key_of(method) is None:
            raise Corrupt(f"bucket {access.row.name}: its encryption configuration cannot be read; put it again")
        return method

    def wanted_of_upload(self, call: Call, upload_id: UploadId) -> str | None:
        """Return how the parts of a new upload are to be encrypted, like `wanted`, but always with the name of a KMS
        key, so that all parts have the same, and CUSTOMER with the check of the key. Raises what `wanted` and
        `require_key` raise."""
        method = self.wanted(call)
        if method is None:
            return None
        if method == CUSTOMER:
            self.require_key(AES256)  # which authenticates the list of the parts
            customers = customer_key(call.request)
            assert customers is not None
            return f"{CUSTOMER} {upload_check(customers.key, upload_id, call.object_key).hex()}"
        return self.method_of_upload(method)

    def method_of_upload(self, method: str) -> str:
        """Return a method other than CUSTOMER, always with the name of a KMS key. Raises what `require_key` raises."""
        kms_key = self._ring.kms_key(self.require_key(method)[0])
        return AES256 if kms_key is None else with_kms_key(kms_key)

    def key_of_upload(
        self, call: Call, upload: UploadRow, method: str | None, *, needs_key: bool
    ) -> CustomerKey | None:
        """Return the key of the customer in a request about an upload that began with this method; None without one.
        Raises InvalidRequest if the request has another encryption than the upload, or no key and `needs_key`, and what
        `customer_key` raises."""
        sent, header = customer_key(call.request), call.request.header
        algorithm, _, detail = (method or "").partition(" ")
        is_customers = algorithm == CUSTOMER
        if sent is not None and is_customers:
            check = upload_check(sent.key, upload.upload_id, upload.key).hex()
            if not hmac.compare_digest(check, detail):
                raise S3Error("InvalidRequest", "The key of the customer is not the one with which the upload began.")
        elif sent is not None or (is_customers and needs_key):
            raise S3Error("InvalidRequest", "A part needs a key of the customer exactly if its upload began with one.")
        named = (None, None) if is_customers else (algorithm, detail)
        if (header(HEADER) or named[0], header(KMS_KEY_HEADER) or named[1]) != named:
            raise S3Error("InvalidRequest", "A part is encrypted as its upload is; begin another upload instead.")
        return sent

    def refuse_plain(self, call: Call, method: str | None) -> None:
        """Raise InvalidRequest if the bucket has begun to encrypt since a plain upload began (`method` is None), so
        that no plain bytes are stored silently. Raises what `wanted` raises."""
        if method is None and self.wanted(call) is not None:
            raise S3Error(
                "InvalidRequest",
                "This upload began without encryption, but now its bucket or its parts ask for it. Abort the upload,"
                " and begin it again.",
            )

    def require_key(self, method: str) -> tuple[int, bytes]:
        """Return the key that encrypts new objects with this method (`wanted`), with its number. Raises NotImplemented
        if the store has none, KMS.NotFoundException if it does not know the KMS key, ConfigError, Corrupt,
        Transient."""
        kms_key = kms_key_of(method)
        if kms_key is not None:
            return self._require_kms_key(kms_key)
        found = self._ring.newest()
        if found is None:
            raise S3Error(
                "NotImplemented",
                "This store has no key for encryption. Its operator can add one: nos-ec s3 encryption-key add",
            )
        return found

    def _require_kms_key(self, name: str) -> tuple[int, bytes]:
        found = self._ring.newest_of_kms(name or None)
        if found is not None:
            return found
        if not name:
            raise S3Error(
                "NotImplemented",
                "This store has no KMS key. Its operator can add one: nos-ec s3 encryption-key add --kms-key NAME",
            )
        raise S3Error(
            "KMS.NotFoundException",
            f"The KMS key {name!r} does not exist in this store; key ids are the names that its operator has added.",
        )

    def encrypted(
        self, method: str, plain: ByteStream, key: ObjectKey, customers: CustomerKey | None = None
    ) -> EncryptedStream:
        """Return the ciphertext of a new object. `customers` is the key for CUSTOMER. Raises what `require_key`
        raises."""
        number, store_key = self.require_key(method) if customers is None else (OF_CUSTOMER, customers.key)
        return EncryptedStream(plain, store_key, number, self._random(SALT_BYTES), key)

    def condition_on_stored(
        self, key: ObjectKey, condition: Condition | None, version_id: str | None = None
    ) -> Condition | None:
        """Return the condition with the MD5 that the metadata compares. That is the MD5 of the ciphertext, if the
        version of this id, or the current one for None, is encrypted and has the MD5 in the condition. Raises
        ConfigError, Corrupt if that version cannot be decrypted, InvalidArgument for an id of no
        version, Transient."""
        is_etag = condition is not None and len(condition.md5 or b"") == MD5_BYTES
        if condition is None or not is_etag or not self._ring.has_keys():
            return condition
        with suppress(NotFound):
            if version_id is None:
                row: ObjectRow | None = self._store.head(key)
            else:
                row = self._store.version(key, number_of(version_id)).row
            if row is not None and row.envelope is not None and self.md5_of(row) == condition.md5:
                return replace(condition, md5=row.tag[0])
        return condition

    def seal_parts(
        self,
        method: str,
        key: ObjectKey,
        md5s: Sequence[bytes],
        manifest: Manifest,
        attributes: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the attributes of an object that is composed of encrypted parts, with its envelope, and its checksum
        encrypted. `method` is that of the upload. `md5s` are those of its parts, as clients see them. Raises what
        `require_key` raises."""
        algorithm, _, check = method.partition(" ")
        if algorithm == CUSTOMER:
            kind, md5, (number, store_key) = PARTS_OF_CUSTOMER, bytes.fromhex(check), self.require_key(AES256)
        else:
            kind, (number, store_key) = PARTS, self.require_key(method)
            md5 = hashlib.md5(b"".join(md5s), usedforsecurity=False).digest()
        cipher = ObjectCipher(store_key, kind, number, self._random(SALT_BYTES), key)
        envelope = cipher.envelope_of_parts(md5, manifest)
        return masked_checksum(cipher, attributes) | {ENVELOPE_ATTRIBUTE: envelope.encode()}

    # --- reading ----------------------------------------------------------------------------------
    def customers_key(self, row: ObjectRow, request: Request, *, of_source: bool = False) -> CustomerKey | None:
        """Return the key of the customer with which a request reads an object; None if the object needs none. Raises
        InvalidRequest if the object needs one and the request has none, or the other way round, AccessDenied if it is
        another key, InvalidArgument for a header of PUTs, and what `customer_key` raises."""
        if not of_source and _HEADER in request.header_values:
            raise invalid_argument(f"The header {HEADER} is for writing only; a read needs no such header.", HEADER)
        sent = customer_key(request, of_source=of_source)
        envelope = row.envelope if row.attributes else None
        if envelope is None or not envelope.is_of_customer:
            if sent is not None:
                raise S3Error("InvalidRequest", "The encryption parameters are not applicable to this object.")
            return None
        _require_key(row, envelope, sent)
        return sent

    def open(
        self, row: ObjectRow, first: int = 0, length: int | None = None, customers: CustomerKey | None = None
    ) -> Iterator[bytes]:
        """Return bytes of exactly this version, decrypted; `length` of None: all from `first` on. `customers` is the
        result of `customers_key`. Raises what `Store.open_version` raises, and ConfigError."""
        envelope = row.envelope if row.attributes else None
        if envelope is None:
            return self._store.open_version(row, first, length)
        rest = row.users_size - first
        count = rest if length is None else min(length, rest)
        if envelope.is_of_parts:
            return self._open_parts(row, envelope, first, count, customers)
        cipher = self._cipher(row, envelope, customers)
        return decrypted(cipher, envelope, row.size, first, count, partial(self._store.open_ciphertext, row))

    def _open_parts(
        self, row: ObjectRow, envelope: Envelope, first: int, length: int, customers: CustomerKey | None
    ) -> Iterator[bytes]:
        manifest = self._store.manifest(row)
        if manifest is None:
            raise Corrupt(f"{row.key}: its envelope is of an object that is composed of parts", key=row.key)
        self._cipher(row, envelope).require_manifest(envelope, manifest)
        decrypt = partial(self._decrypt_part, customers)
        return self._store.open_parts(row, manifest, first, length, decrypt)

    def _decrypt_part(
        self, customers: CustomerKey | None, part: ObjectRow, first: int, length: int, read: ReadStored
    ) -> Iterator[bytes]:
        envelope = part.envelope
        assert envelope is not None  # the manifest says that it is encrypted
        return decrypted(self._cipher(part, envelope, customers), envelope, part.size, first, length, read)

    def etag_of(self, row: ObjectRow) -> str:
        """Return the ETag of an object, without quotes. Raises ConfigError, Corrupt."""
        if not row.attributes:
            return row.md5.hex()
        md5, parts = row.tag
        envelope = row.envelope
        return etag(md5 if envelope is None else self._md5(row, envelope), parts)

    def md5_of(self, row: ObjectRow) -> bytes:
        """Return the MD5 in the ETag of an object. Raises ConfigError, Corrupt."""
        envelope = row.envelope
        return row.tag[0] if envelope is None else self._md5(row, envelope)

    @staticmethod
    def md5_of_new(row: ObjectRow, method: str | None, md5: bytes) -> bytes:
        """Return the MD5 in the ETag of an object that was just encrypted with this method. `md5`: of its plain
        bytes."""
        return md5 if method in (None, AES256) else row.md5

    def etag_of_listed(self, bucket: str, one: ObjectSummary) -> str:
        """Return the ETag of a listed object, without quotes. One that cannot be decrypted has the MD5 of its
        ciphertext, so that it does not hide the others."""
        with suppress(Corrupt, ConfigError):
            envelope = envelope_of(one.attributes)
            if envelope is not None and self._shows_plain_md5(envelope):
                key = ObjectKey(bucket, one.name)
                md5 = ObjectCipher.of(self._ring.key(envelope.number), envelope, key).md5(envelope)
                return etag(md5, one.parts)
        return etag(one.md5, one.parts)

    def shown(
        self, row: ObjectRow, attributes: Mapping[str, str], customers: CustomerKey | None = None
    ) -> dict[str, str]:
        """Return the attributes of an object with the checksum of its plain bytes. Raises ConfigError, Corrupt."""
        envelope = row.envelope
        if envelope is None or CHECKSUM not in attributes:
            return dict(attributes)
        return masked_checksum(self._cipher(row, envelope, customers), attributes)

    def method_of(self, row: ObjectRow) -> str | None:
        """Return how an object is encrypted, as `wanted` does. Raises ConfigError, Corrupt, Transient."""
        envelope = row.envelope if row.attributes else None
        if envelope is None:
            return None
        if envelope.is_of_customer:
            return CUSTOMER
        kms_key = self._ring.kms_key(envelope.number)
        return AES256 if kms_key is None else with_kms_key(kms_key)

    def headers_of(self, row: ObjectRow, customers: CustomerKey | None = None) -> dict[str, str]:
        """Return the headers that say how an object is encrypted; none if it is not. Raises what `method_of` raises."""
        return headers_of_method(self.method_of(row)) if customers is None else customers.headers

    def _md5(self, row: ObjectRow, envelope: Envelope) -> bytes:
        return self._cipher(row, envelope).md5(envelope) if self._shows_plain_md5(envelope) else row.tag[0]

    def _shows_plain_md5(self, envelope: Envelope) -> bool:
        return not envelope.is_of_customer and self._ring.kms_key(envelope.number) is None

    def _cipher(self, row: ObjectRow, envelope: Envelope, customers: CustomerKey | None = None) -> ObjectCipher:
        if envelope.number != OF_CUSTOMER:
            return ObjectCipher.of(self._ring.key(envelope.number), envelope, row.key)
        return ObjectCipher.of(_require_key(row, envelope, customers), envelope, row.key)


def _require_key(row: ObjectRow, envelope: Envelope, customers: CustomerKey | None) -> bytes:
    """Return the key of the customer. Raises InvalidRequest without one, AccessDenied if it is not that of the
    object."""
    if customers is None:
        raise S3Error(
            "InvalidRequest",
            "The object was stored using a form of Server Side Encryption. The correct parameters must be provided"
            " to retrieve the object.",
        )
    composition = row.composition
    salt = envelope.salt if composition is None else composition.upload_id
    if not ObjectCipher(customers.key, envelope.format, OF_CUSTOMER, salt, row.key).fits(envelope):
        raise S3Error("AccessDenied", "The key of the customer is not the one with which the object was stored.")
    return customers.key


def masked_checksum(cipher: ObjectCipher, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes with their checksum encrypted or decrypted. One that the gateway has not stored, and cannot
    understand, stays as it is."""
    found = checksum_of(attributes)
    algorithm = None if found is None else _ALGORITHMS.get(found.algorithm)
    text, dash, parts = ("", "", "") if found is None else found.value.partition("-")  # parts: of a composite checksum
    value = None if algorithm is None else checksums.decoded(text, algorithm.size)
    if algorithm is None or value is None:
        return dict(attributes)
    masked = checksums.in_base64(cipher.masked(algorithm.value, value))
    return {**attributes, **checksum_attribute(algorithm.value, f"{masked}{dash}{parts}")}


def headers_of_method(method: str | None) -> dict[str, str]:
    """Return the headers that say how an object is encrypted (`Encryption.method_of`); none if it is not."""
    if method == AES256:
        return {HEADER: AES256}
    if method is None or method.startswith(CUSTOMER):  # an answer with a key of the customer has its headers
        return {}
    return {HEADER: KMS, KMS_KEY_HEADER: kms_key_of(method) or "", _BUCKET_KEY_HEADER: "true"}
