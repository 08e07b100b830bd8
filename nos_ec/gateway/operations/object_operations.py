"""Operations on objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import Conflict, Locked, NosError, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import PARTS_MAX, UploadId
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.reading import READ_TRIES
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import MultipartUploads
from nos_ec.gateway.auth.access import Access, BucketAccess
from nos_ec.gateway.auth.acls import acl_of_headers, grants_of
from nos_ec.gateway.message.body import OBJECT_BYTES_MAX, CheckedBody
from nos_ec.gateway.message.call import Call, Decide, denied, object_key
from nos_ec.gateway.message.customer_key import CustomerKey, customer_key
from nos_ec.gateway.message.encryption import CUSTOMER, Encryption
from nos_ec.gateway.message.encryption import HEADER as ENCRYPTION
from nos_ec.gateway.message.failures import to_s3_error
from nos_ec.gateway.message.form_body import FormBody
from nos_ec.gateway.message.object_headers import (
    ACL,
    CHECKSUM,
    REDIRECT,
    RENAMED,
    STORAGE_CLASS,
    TAGS,
    acl_attribute,
    attributes_of,
    attributes_of_request,
    checksum_attribute,
    checksum_headers,
    checksum_of,
    headers_of,
    http_date,
    refuse_unsupported,
    sent_checksum,
    tags_attribute,
    tags_of,
)
from nos_ec.gateway.message.preconditions import check_read, delete_condition, range_of, write_condition
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.message.stored_body import CopiedBody, store_body
from nos_ec.gateway.message.versions import (
    hidden_by_marker,
    id_of,
    marker_not_allowed,
    no_such_key,
    no_such_key_for_read,
    no_such_version,
    number_of,
    requested_version,
    source_headers,
    stored_headers,
    version_headers,
)
from nos_ec.gateway.operations.attribute_changes import AttributeChanges
from nos_ec.gateway.operations.bucket_documents import read_document
from nos_ec.gateway.operations.bucket_operations import acl_of
from nos_ec.gateway.operations.lifecycle import expiry_headers
from nos_ec.gateway.operations.object_locks import LocksOfPuts, bypasses, lock_headers, require_checksum
from nos_ec.gateway.operations.policies import permission_on, rights_on, session_allows
from nos_ec.ports.metadata import AddMarker, DeleteVersion, ObjectRow, PutRequest, Rights, VersionEntry
from nos_ec.s3 import answers, checksums, documents
from nos_ec.s3.checksums import Algorithm, ChecksumType
from nos_ec.s3.chunked import content_encoding_of
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.names import copy_source
from nos_ec.s3.request import Request

ATTRIBUTE_WORDS = ("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize")
_OVERRIDABLE = (
    "content-type",
    "content-language",
    "expires",
    "cache-control",
    "content-disposition",
    "content-encoding",
)
"""Headers of the answer that a signed request may override."""
_HEADERS_OF_304 = ("etag", "last-modified", "cache-control", "expires", "x-amz-version-id")
"""The headers of an answer 304 (RFC 9110, section 15.4.5)."""
_NO_TAGS: Mapping[str, str] = MappingProxyType({})
_MODE, _CHECKSUM_TYPE = b"x-amz-checksum-mode", "x-amz-checksum-type"
CHECKSUM_BYTES_MAX = 128 << 10
"""The largest object that a HEAD or GetObjectAttributes reads to compute its checksum (docs/adr/0074)."""


class _Target(NamedTuple):
    """The version that a request names, None for the current one, and the rights of the sender in its bucket. `decide`
    is set if the policy of the bucket depends on tags or on a lock; `sent` is what the request gives the object
    (`RequestFacts.sent`)."""

    access: BucketAccess
    key: ObjectKey
    version_id: str | None
    rights: Rights
    decide: Decide | None
    sent: Mapping[str, str]

    def rights_with(self, attributes: Mapping[str, str]) -> Rights:
        """Return the rights on a version with these attributes. Raises AccessDenied if the policy denies it."""
        return self.rights if self.decide is None else self.rights | self.decide(tags_of(attributes), self.sent)


class _Version(NamedTuple):
    """A version that the sender may access, its attributes, and the key of the customer that it needs."""

    row: ObjectRow
    attributes: dict[str, str]
    customers: CustomerKey | None = None


class CopySource(NamedTuple):
    """The version that a copy reads, its attributes, and its bucket. `read` takes an offset and a length, and returns
    these bytes, decrypted. It raises what `Encryption.open` raises."""

    row: ObjectRow
    attributes: dict[str, str]
    access: BucketAccess
    read: Callable[..., Iterator[bytes]]


class _Part(NamedTuple):
    """A part of an object: `length` bytes from `first`. `upload_id` is None for an object that was not uploaded in
    parts; it has one part, which is the whole object."""

    number: int
    first: int
    length: int
    upload_id: UploadId | None = None


class _Extent(NamedTuple):
    """The bytes of an object that a GET asks for: `length` bytes from `first`. `is_partial` selects status 206; `part`
    is None unless the request names a part."""

    first: int
    length: int
    is_partial: bool
    part: _Part | None


class _Head(NamedTuple):
    """The answer to a GET without its bytes, and the offset in the object at which they start."""

    reply: Reply
    first: int = 0


class ObjectOperations:
    """The operations on objects. Safe to call from several threads."""

    def __init__(
        self,
        store: Store,
        uploads: MultipartUploads,
        access: Access,
        changes: AttributeChanges,
        locks: LocksOfPuts,
        encryption: Encryption,
        of: Callable[[str, str], ObjectOperations] | None = None,
        *,
        is_wide: bool = False,
    ) -> None:
        """`of` returns the operations of the cell that holds an object of a bucket, by its name; None for a store
        without cells. It raises S3Error (NoSuchBucket), Transient. `is_wide`: the buckets are wide."""
        self._of = of
        self._is_wide = is_wide
        self._locks = locks
        self._store = store
        self._encryption = encryption
        self._uploads = uploads
        self._access = access
        self._changes = changes

    def at(self, bucket: str, name: str) -> ObjectOperations:
        """Return the operations on an object of a bucket that these operations are about: those of its slice, if the
        bucket is wide. Raises Transient."""
        return self._of(bucket, name) if self._is_wide and self._of is not None else self

    # --- reading ----------------------------------------------------------------------------------
    def get_object(self, call: Call) -> Reply:
        """Return the object or a range of it. Headers and bytes are from the same version."""
        for _ in range(READ_TRIES):
            version = self._readable(call)
            head = self._head(call, version)
            if not head.reply.size:
                return _with_checksum(call, head.reply, b"")
            try:
                pieces = self._encryption.open(version.row, head.first, head.reply.size, version.customers)
            except Conflict:
                continue  # it was overwritten or deleted meanwhile
            if version.row.in_windows:
                head.reply.body = pieces
                return head.reply
            # The bytes of a small object are in memory already, and each piece of an iterator costs a switch to a
            # worker thread.
            head.reply.body = data = b"".join(pieces)
            return _with_checksum(call, head.reply, data) if _MODE in call.request.header_values else head.reply
        raise Transient(f"{call.object_key} changed again and again while it was read; try again")

    def head_object(self, call: Call) -> Reply:
        """Return the headers of a GET."""
        version = self._readable(call)
        reply = self._head(call, version).reply
        if _MODE in call.request.header_values and _lacks_checksum(call, reply):
            data = self._small_bytes(version)
            return reply if data is None else _with_checksum(call, reply, data)
        return reply

    def _small_bytes(self, version: _Version) -> bytes | None:
        """Return the bytes of a small object, for its checksum; None if it is larger, or cannot be read now. Its
        description does not fail for that."""
        if version.row.in_windows or version.row.users_size > CHECKSUM_BYTES_MAX:
            return None
        with suppress(NosError):
            return b"".join(self._encryption.open(version.row, customers=version.customers))
        return None

    def _head(self, call: Call, version: _Version) -> _Head:
        """Return the answer to a GET, except for its bytes. Raises S3Error."""
        row, headers = version.row, self._headers(call, version)
        extent = self._extent(call, row)
        if extent is None:
            return _Head(Reply(304, {name: headers[name] for name in _HEADERS_OF_304 if name in headers}))
        part = extent.part
        if part is not None and row.composition is not None:
            headers["x-amz-mp-parts-count"] = str(row.composition.parts)
        if not extent.is_partial:
            return _Head(Reply(200, headers, length=extent.length))
        headers["content-range"] = f"bytes {extent.first}-{extent.first + extent.length - 1}/{row.users_size}"
        if part is None or part.upload_id is not None:
            kind = headers.get(_CHECKSUM_TYPE)
            # The checksums are of the whole object.
            headers = {name: value for name, value in headers.items() if not name.startswith("x-amz-checksum-")}
            if part is not None and kind is not None:
                headers |= self._checksum_of_part(row.key, part, version.customers) | {_CHECKSUM_TYPE: kind}
        return _Head(Reply(206, headers, length=extent.length), extent.first)

    def _headers(self, call: Call, version: _Version) -> dict[str, str]:
        """Return the headers that describe the whole object. Raises InvalidRequest if an anonymous request overrides
        one."""
        request, (row, attributes, customers) = call.request, version
        with_checksum = request.header("x-amz-checksum-mode") == "ENABLED"
        if with_checksum:
            attributes = self._encryption.shown(row, attributes, customers)
        headers = headers_of(row, attributes, self._encryption.etag_of(row), with_checksum=with_checksum)
        headers |= self._encryption.headers_of(row, customers)
        headers |= self.expiry_headers(row, attributes) | version_headers(call.versioning, row)
        headers |= lock_headers(call, row)
        for name in _OVERRIDABLE if request.query else ():
            value = request.parameter(f"response-{name}")
            if value is not None:
                if call.account is None:
                    raise S3Error("InvalidRequest", "Request specific response headers need a signed request.")
                headers[name] = value
        return headers

    def _extent(self, call: Call, row: ObjectRow) -> _Extent | None:
        """Return the bytes that the request asks for; None if the client has them already (304). Raises
        PreconditionFailed, InvalidRange, InvalidPart, InvalidRequest."""
        part = self._part(call, row)
        if _is_not_modified(call.request, self._encryption.etag_of(row), row.created_ms):
            return None
        size = row.users_size
        wanted = range_of(call.request, size)
        if part is not None:
            if wanted is not None:
                raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
            wanted = part.first, part.length
        if wanted is None or (not size and part is not None):
            return _Extent(0, size, False, part)
        return _Extent(*wanted, True, part)

    def _checksum_of_part(self, key: ObjectKey, part: _Part, customers: CustomerKey | None) -> dict[str, str]:
        """Return the headers with the checksum of a part; none if it was stored without one."""
        assert part.upload_id is not None
        stored = self._uploads.parts_of(key, part.upload_id, part.number - 1, 1)
        if not stored or stored[0].number != part.number:
            return {}
        row = stored[0].row
        return checksum_headers(self._encryption.shown(row, attributes_of(row), customers))

    def _part(self, call: Call, row: ObjectRow) -> _Part | None:
        """Return the part that `partNumber` names; None without that parameter."""
        if not call.request.parameter("partNumber"):
            return None
        number = call.part_number()
        manifest = self._store.manifest(row)
        if manifest is None and number == 1:
            return _Part(number, 0, row.users_size)
        for index, part in enumerate(() if manifest is None else manifest.parts):
            if part.number == number:
                assert manifest is not None
                return _Part(number, manifest.starts[index], part.users_size, manifest.upload_id)
        raise S3Error("InvalidPart", "The requested partnumber is not satisfiable", PartNumber=str(number))

    def _readable(self, call: Call, *, with_acl: bool = True, with_key: bool = True) -> _Version:
        """Return the version that the request names, or the current one. Raises AccessDenied, also for a missing one
        if the sender may not list the bucket, so that only senders who may list learn which keys exist. Unless
        `with_key` is false, the request must have the key of the customer, if the object needs one."""
        if call.request.parameter("partNumber"):
            call.part_number()
        version = self._named(call, Rights.READ, with_acl=with_acl)
        customers = self._encryption.customers_key(version.row, call.request) if with_key else None
        return version if customers is None else version._replace(customers=customers)

    def find_version(self, call: Call, lock: Mapping[str, str]) -> ObjectRow:
        """Return the version that a request names, for an operation that needs the rights of the owner. `lock` is the
        lock that the request gives the version, as headers would set it. Raises S3Error."""
        return self._named(call, Rights.OWNER, with_acl=False, sent=lock).row

    def _named(
        self, call: Call, needs: Rights, *, with_acl: bool = True, sent: Mapping[str, str] = _NO_TAGS
    ) -> _Version:
        assert call.access is not None
        rights = call.rights if call.decide is None else call.access.rights_of(call.account)
        version_id = requested_version(call)
        target = _Target(call.access, call.object_key, version_id, rights, call.decide, sent)
        return self._resolve(call, target, needs, with_acl=with_acl)

    def _resolve(self, call: Call, target: _Target, needs: Rights, *, with_acl: bool = True) -> _Version:
        """Find the version. Raises AccessDenied unless the sender has the rights it needs, in the bucket or, with
        `with_acl`, by the ACL of the object, and S3Error if the version does not exist. A policy that depends on tags
        is evaluated with those of the version that is returned."""
        row = self._find_row(call, target)
        attributes = attributes_of(row)
        rights = target.rights_with(attributes)
        by_acl = target.access.object_rights(attributes.get(ACL, "private"), call.account) if with_acl else Rights.NONE
        if needs not in rights and needs not in by_acl:
            raise denied()
        return _Version(row, attributes)

    def _find_row(self, call: Call, target: _Target) -> ObjectRow:
        key, version_id = target.key, target.version_id
        try:
            if version_id is None:
                return self._store.head(key)
            entry = self._store.version(key, number_of(version_id))
        except NotFound:
            target.rights_with({})  # a policy may deny the request for an object without tags
            if not self._may_list(call, key):
                raise denied() from None
            if version_id is not None:
                raise no_such_version(key.name, version_id) from None
            marker = None if target.access.versioning is None else self._store.latest_marker(key)
            if marker is not None:
                raise hidden_by_marker(marker) from None
            raise no_such_key_for_read(key.name) from None
        if entry.row is None:
            target.rights_with({})
            raise marker_not_allowed(entry) if self._may_list(call, key) else denied()
        return entry.row

    def _may_list(self, call: Call, key: ObjectKey) -> bool:
        """Return whether the account may learn which objects exist. A policy that only allows reading does not
        suffice."""
        access = self._access.bucket(key.bucket)
        if not session_allows(call, "ListObjectsV2", ["s3:ListBucket"], key.bucket, access.row.owner):
            return False
        if access.rights_of(call.account) & (Rights.LIST | Rights.READ):
            return True
        try:
            return Rights.LIST in rights_on(call, access, "ListObjectsV2", "")
        except S3Error:
            return False

    def get_attributes(self, call: Call) -> Reply:
        """Return the attributes that the header names."""
        sent = call.request.header_values.get(b"x-amz-object-attributes", [])  # some clients send one header for each
        words = {word.strip() for word in b",".join(sent).decode("latin-1").split(",")} - {""}
        if not words:
            raise S3Error("InvalidRequest", "The x-amz-object-attributes header is missing, or names no attribute.")
        if not words <= set(ATTRIBUTE_WORDS):
            raise invalid_argument("Invalid attribute name specified.", "x-amz-object-attributes")
        call.require_if_decided(Rights.READ)
        version = self._readable(call, with_acl=False)
        row, attributes, customers = version
        attributes, shown_etag = self._encryption.shown(row, attributes, customers), self._encryption.etag_of(row)
        headers = {"last-modified": http_date(row.created_ms), **version_headers(call.versioning, row)}
        if _is_not_modified(call.request, shown_etag, row.created_ms):
            return Reply(304, {"etag": f'"{shown_etag}"', **headers})
        parts = self._parts(call, row, attributes, customers) if "ObjectParts" in words else {}
        computes = "Checksum" in words and CHECKSUM not in attributes
        if computes and (data := self._small_bytes(version)) is not None:
            attributes |= checksum_attribute(Algorithm.CRC64NVME.value, checksums.crc64nvme(data))
        body = answers.object_attributes(
            etag=shown_etag if "ETag" in words else None,
            checksum=_without_parts(checksum_of(attributes)) if "Checksum" in words else None,
            storage_class=attributes.get(STORAGE_CLASS, "STANDARD") if "StorageClass" in words else None,
            size=row.users_size if "ObjectSize" in words else None,
            **parts,
        )
        return xml(body, headers)

    def _parts(
        self, call: Call, row: ObjectRow, attributes: dict[str, str], customers: CustomerKey | None
    ) -> dict[str, Any]:
        """Return the description of an object's parts for GetObjectAttributes; empty without parts."""
        manifest = self._store.manifest(row)
        if manifest is None:
            return {}
        marker = call.number_of_header("x-amz-part-number-marker", 0, PARTS_MAX)
        limit = call.number_of_header("x-amz-max-parts", 1000, 1000)
        rest = [part for part in manifest.parts if part.number > marker]
        checksum = checksum_of(attributes)
        by_number: dict[int, answers.Checksum | None] = {}
        if checksum is not None and checksum.kind == ChecksumType.COMPOSITE.value and limit:
            stored = self._uploads.parts_of(row.key, manifest.upload_id, marker, limit)
            by_number = {
                part.number: checksum_of(self._encryption.shown(part.row, attributes_of(part.row), customers))
                for part in stored
            }
        return {
            "parts_count": len(manifest.parts),
            "parts": [
                answers.Part(part.number, part.users_size, checksum=_without_type(by_number.get(part.number)))
                for part in rest[:limit]
            ],
            "marker": marker,
            "max_parts": limit,
            "truncated": len(rest) > limit,
        }

    # --- writing ----------------------------------------------------------------------------------
    def put_object(self, call: Call) -> Reply:
        """Store an object. It is durable when this returns."""
        call.require(Rights.WRITE)
        assert call.access is not None
        body = CheckedBody(call.request, call.signed, call.source, partial(self._access.require_same, call.access))
        return empty(self.store(call, body)[1])

    def store(self, call: Call, body: CheckedBody | FormBody) -> tuple[str, dict[str, str]]:
        """Store a body durably, as the headers of the request specify. Returns its ETag, without quotes, and the
        headers of the answer."""
        call.require(Rights.WRITE)
        refuse_unsupported(call.request)
        require_checksum(call)
        method = self._encryption.wanted(call)
        customers = customer_key(call.request)
        encrypt = None if method is None else partial(self._encryption.encrypted, method, customers=customers)
        request = self.put_request(call)
        attributes = attributes_of_call(call) | sent_checksum(call.request)
        try:
            row, attributes, md5 = store_body(self._store, request, body, attributes, encrypt)
        except NotFound:
            raise no_such_key(call.key) from None
        etag = self._encryption.md5_of_new(row, method, md5).hex()
        headers = self.expiry_headers(row, attributes) | stored_headers(call.versioning, row)
        headers |= self._encryption.headers_of(row, customers)
        return etag, {"etag": f'"{etag}"', **checksum_headers(attributes), **headers}

    def put_request(self, call: Call) -> PutRequest:
        """Return the request of a PUT or copy, still without its attributes. Raises S3Error."""
        key, lock = call.object_key, self._locks.of_put(call)
        condition = self._encryption.condition_on_stored(key, write_condition(call.request))
        return PutRequest(key, condition=condition, versioning=call.versioning, lock=lock)

    def expiry_headers(self, row: ObjectRow, attributes: Mapping[str, str]) -> dict[str, str]:
        """Return the header with the date when the object expires; none if no rule of its bucket applies."""
        return expiry_headers(self._access.lifecycle_rules(row.key.bucket), row, attributes)

    def source_of_copy(self, call: Call) -> CopySource:
        """Return the version that `x-amz-copy-source` names. Raises S3Error, also if the conditions of the request do
        not hold for it."""
        bucket, name, version = copy_source(call.request.header("x-amz-copy-source") or "")
        if self._of is not None and (other := self._of(bucket, name)) is not self:
            return other.source_of_copy(call)
        source = self.source(call, bucket, name, version)
        row = source.row
        check_read(call.request, self._encryption.etag_of(row), row.created_ms, "x-amz-copy-source-")
        return source

    def source(self, call: Call, bucket: str, name: str, version: str | None) -> CopySource:
        """Return a version whose bytes the request stores again, if the sender may read it. Raises S3Error."""
        access = self._access.bucket(bucket)
        access.require_owner(call.request.header("x-amz-source-expected-bucket-owner"))
        key = object_key(bucket, name)
        rights, decide = permission_on(call, access, "GetObject", name, version)
        try:
            target = _Target(access, key, version, rights, decide, _NO_TAGS)
            row, attributes, _ = self._resolve(call, target, Rights.READ)
        except S3Error as error:
            if error.code == "MethodNotAllowed":
                raise S3Error(
                    "InvalidRequest",
                    "The source of a copy request may not specifically refer to a delete marker by version id.",
                ) from None
            error.headers.clear()  # the client would take them for headers about the target
            raise
        customers = self._encryption.customers_key(row, call.request, of_source=True)
        shown = self._encryption.shown(row, attributes, customers)
        return CopySource(row, shown, access, partial(self._encryption.open, row, customers=customers))

    @staticmethod
    def require_tags_of_copy(
        call: Call, source: BucketAccess, name: str, version: str | None, tags: Mapping[str, str]
    ) -> None:
        """Raise AccessDenied unless the account may read the tags of the source, which the ACL of an object never
        allows, and set them for the target, which is a new object without tags."""
        assert call.access is not None
        of_source = rights_on(call, source, "GetObjectTagging", name, version, tags=tags)
        of_target = rights_on(call, call.access, "PutObjectTagging", call.key, tags={}, sent=tags)
        if Rights.READ not in of_source or Rights.WRITE not in of_target:
            raise denied()

    def copy_object(self, call: Call) -> Reply:
        """Store a copy of an object."""
        call.require_if_decided(Rights.WRITE)
        request = call.request
        refuse_unsupported(request)
        method = self._encryption.wanted(call)
        wanted = request.header("x-amz-checksum-algorithm")
        algorithm = None if wanted is None else checksums.algorithm_named(wanted)
        row, old, access_of_source, read = self.source_of_copy(call)
        if row.users_size > OBJECT_BYTES_MAX:
            raise S3Error("InvalidRequest", "The specified copy source is larger than the maximum of a copy.")
        given = attributes_of_call(call)
        keeps, keeps_tags = _directive(request, "metadata"), _directive(request, "tagging")
        is_same = row.key == call.object_key and not row.is_noncurrent
        # A copy that only changes the metadata of an encrypted object must not decrypt it.
        if method is None and row.key == call.object_key:
            method = self._encryption.method_of(row)
        customers = customer_key(request)
        if method == CUSTOMER and customers is None:
            raise S3Error("InvalidRequest", "A copy of this object onto itself needs a key of the customer as well.")
        changing = "x-amz-storage-class", ENCRYPTION, REDIRECT
        changes = customers is not None or any(map(request.header, changing))
        if is_same and keeps and not changes and acl_of_headers(request) is None:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing the"
                " object's metadata, storage class, website redirect location or encryption attributes.",
            )
        # 1. Take metadata and tags from the source or from the request. ACL, storage class and website redirect come
        #    from the request.
        of_request = (ACL, STORAGE_CLASS, REDIRECT)
        attributes = {
            name: value
            for name, value in (old if keeps else given).items()
            if name not in (*of_request, TAGS, CHECKSUM, RENAMED)
        }
        attributes |= {name: given[name] for name in of_request if name in given}
        call.require_with(Rights.WRITE, _NO_TAGS, tags_of(old) if keeps_tags else _NO_TAGS)
        if keeps_tags and TAGS in old:
            _, name, version = copy_source(request.header("x-amz-copy-source") or "")
            self.require_tags_of_copy(call, access_of_source, name, version, tags_of(old))
        tags = (old if keeps_tags else given).get(TAGS)
        attributes |= {} if tags is None else {TAGS: tags}
        # 2. Keep the checksum of the source, unless it is composite or the request asks for another algorithm.
        known = checksum_of(old)
        of_bytes = known is not None and known.kind == ChecksumType.FULL_OBJECT.value
        if known is not None and of_bytes and (algorithm is None or known.algorithm == algorithm.value):
            attributes[CHECKSUM], algorithm = old[CHECKSUM], None
        put = self.put_request(call)
        assert call.access is not None
        at_end = partial(self._access.require_same, call.access)
        body = CopiedBody(read(), row.users_size, algorithm, at_end)
        encrypt = None if method is None else partial(self._encryption.encrypted, method, customers=customers)
        made, attributes, md5 = store_body(self._store, put, body, attributes, encrypt)
        headers = stored_headers(call.versioning, made) | source_headers(access_of_source.versioning, row)
        headers |= self.expiry_headers(made, attributes) | self._encryption.headers_of(made, customers)
        etag = self._encryption.md5_of_new(made, method, md5).hex()
        return xml(answers.copied(etag, made.created_ms, checksum_of(attributes)), headers)

    def delete_object(self, call: Call) -> Reply:
        """Delete an object or a version. A missing one is not an error, unless the request has a condition. Without a
        version id, a bucket with versions gets a delete marker."""
        call.require(Rights.WRITE)
        header, version = call.request.header, requested_version(call)
        assert call.access is not None
        if (
            version is not None
            and Rights.WRITE not in call.access.rights_of(call.account, with_acl=False) | call.allowed
        ):
            raise denied()  # an ACL lets others write objects, but not delete versions
        condition = delete_condition(
            header("if-match"), header("x-amz-if-match-last-modified-time"), header("x-amz-if-match-size")
        )
        if version is None and call.versioning is None:
            self._delete(call.object_key, condition)
            return empty(status=204)
        condition = self._encryption.condition_on_stored(call.object_key, condition, version)
        bypass = version is not None and bypasses(call, call.key, version)
        deletion = _deletion(call.object_key, version, call.versioning, condition, bypass=bypass)
        (answer,) = self._store.delete_versions([deletion])
        if isinstance(answer, NosError):
            raise _delete_error(answer, call.key)
        headers = {} if version is None else {"x-amz-version-id": version}
        if answer is not None and answer.row is None:
            headers = {"x-amz-delete-marker": "true", "x-amz-version-id": id_of(answer)}
        return empty(headers, 204)

    def _delete(self, key: ObjectKey, condition: Condition | None) -> None:
        condition = self._encryption.condition_on_stored(key, condition)
        try:
            self._store.delete(key, condition=condition)
        except NotFound as error:
            if condition is not None:
                raise _delete_error(error, key.name) from None

    def delete_objects(self, call: Call) -> Reply:
        """Delete up to 1,000 objects: objects without versions in one transaction, of each slice if the bucket is wide,
        versions in several. Raises Transient if nothing was deleted and some keys may be tried again: clients repeat a
        request that is answered with 503, but not the keys that an answer lists."""
        assert call.access is not None
        if call.access.policy is None:
            call.require(Rights.WRITE)
        listed, quiet = documents.delete_objects(read_document(call))
        errors: list[tuple[str, str | None, S3Error]] = []
        passing: list[Transient] = []
        plain: dict[ObjectOperations, list[ObjectKey]] = {}
        versions: dict[ObjectOperations, dict[int, DeleteVersion | AddMarker]] = {}
        done: list[answers.Deleted] = []
        # 1. Check the rights on each key. Delete keys with a condition at once, and collect the other ones.
        for number, one in enumerate(listed):
            try:
                self._require_delete(call, one)
                key, condition = object_key(call.bucket, one.key), delete_condition(one.etag, one.modified, one.size)
                at = self.at(call.bucket, one.key)
                if one.version_id is not None or call.versioning is not None:
                    condition = at._encryption.condition_on_stored(key, condition, one.version_id)
                    bypass = one.version_id is not None and bypasses(call, one.key, one.version_id)
                    deletion = _deletion(key, one.version_id, call.versioning, condition, bypass=bypass)
                    versions.setdefault(at, {})[number] = deletion
                    continue
                if condition is None:
                    plain.setdefault(at, []).append(key)
                else:
                    at._delete(key, condition)
                done.append(answers.Deleted(one.key))
            except (S3Error, NosError) as error:
                passing += [error] if isinstance(error, Transient) else []
                errors.append((one.key, one.version_id, to_s3_error(error, bucket=call.bucket, key=one.key)))
        # 2. Delete the collected objects without versions. If that fails, it fails for all of a slice, unless locks
        #    protect some of them.
        for at, keys in plain.items():
            try:
                at._store.delete_many(keys)
            except NosError as error:
                passing += [error] if isinstance(error, Transient) else []
                failure = to_s3_error(error, bucket=call.bucket)
                undone = {key.name for key in (error.keys if isinstance(error, Locked) else keys)}
                errors += [(one.key, None, failure) for one in done if one.key in undone]
                done = [one for one in done if one.key not in undone]
        # 3. Delete the collected versions, and add delete markers.
        for number, answer in sorted(self._deleted_versions(versions), key=lambda one: one[0]):
            key_name, version = listed[number].key, listed[number].version_id
            if isinstance(answer, NosError):
                passing += [answer] if isinstance(answer, Transient) else []
                refusal = to_s3_error(_delete_error(answer, key_name), bucket=call.bucket, key=key_name)
                errors.append((key_name, version, refusal))
            else:
                marker = None if answer is None or answer.row is not None else id_of(answer)
                done.append(answers.Deleted(key_name, version, marker))
        if passing and not done:
            raise passing[0]
        return xml(answers.deleted(done, errors, quiet=quiet))

    def _deleted_versions(
        self, versions: Mapping[ObjectOperations, Mapping[int, DeleteVersion | AddMarker]]
    ) -> Iterator[tuple[int, VersionEntry | NosError | None]]:
        """Delete versions, by the slices of their objects. Yields the number and the result of each. A slice that fails
        does not hide the results of the others. Raises NosError if the bucket is not wide."""
        for at, deletions in versions.items():
            try:
                answered: Sequence[VersionEntry | NosError | None] = at._store.delete_versions(list(deletions.values()))
            except NosError as error:
                if not self._is_wide:
                    raise
                answered = [error] * len(deletions)
            yield from zip(deletions, answered, strict=True)

    def _require_delete(self, call: Call, one: documents.ToDelete) -> None:
        """Raise AccessDenied unless the sender may delete this key. A policy can decide that for each key."""
        assert call.access is not None
        sent = {} if one.etag is None else {"if-match": one.etag}
        rights = rights_on(call, call.access, "DeleteObject", one.key, one.version_id, tags=_NO_TAGS, sent=sent)
        if Rights.WRITE not in rights:
            raise denied()

    # --- tags and ACLs ----------------------------------------------------------------------------
    def get_tagging(self, call: Call) -> Reply:
        """Return the tags of an object, which may be none. They are in the order of their keys, as in radosgw; S3
        defines no order. An ACL that lets others read an object does not let them read its tags."""
        call.require_if_decided(Rights.READ)
        row, attributes, _ = self._readable(call, with_acl=False, with_key=False)
        return xml(answers.tagging(dict(sorted(tags_of(attributes).items()))), version_headers(call.versioning, row))

    def put_tagging(self, call: Call) -> Reply:
        """Replace all tags of an object."""
        call.require_if_decided(Rights.WRITE)
        tags = documents.tagging(read_document(call))
        return empty(self._change(call, TAGS, tags_attribute(tags), sent=tags))

    def delete_tagging(self, call: Call) -> Reply:
        """Delete all tags of an object."""
        call.require_if_decided(Rights.WRITE)
        return empty(self._change(call, TAGS, {}), 204)

    def get_acl(self, call: Call) -> Reply:
        """Return the ACL of an object as grants."""
        row, attributes, _ = self._named(call, Rights.READ_ACL)
        assert call.access is not None
        acl = call.access.effective(attributes.get(ACL, "private"))
        body = answers.access_control(call.owner, grants_of(acl, call.owner))
        return xml(body, version_headers(call.versioning, row))

    def put_acl(self, call: Call) -> Reply:
        """Set the ACL of an object, given as a canned ACL or as grants."""
        self._named(call, Rights.WRITE_ACL)
        return empty(self._change(call, ACL, acl_attribute(acl_of(call)), Rights.WRITE_ACL))

    def _change(
        self,
        call: Call,
        name: str,
        value: dict[str, str],
        needs: Rights = Rights.WRITE,
        sent: Mapping[str, str] = _NO_TAGS,
    ) -> dict[str, str]:
        """Replace an attribute of an object, unless its attributes have changed since its tags were judged. Returns the
        headers of the answer."""
        row = self._changes.replace(lambda: self._named(call, needs, sent=sent)[:2], (name,), value)
        return version_headers(call.versioning, row)


def _lacks_checksum(call: Call, reply: Reply) -> bool:
    """Return whether a GET or HEAD asks for the checksum of a whole object that has none."""
    is_without = reply.status == 200 and _CHECKSUM_TYPE not in reply.headers
    return is_without and call.request.header("x-amz-checksum-mode") == "ENABLED"


def _with_checksum(call: Call, reply: Reply, data: bytes) -> Reply:
    """Return the answer with the checksum of the object, whose bytes are `data`, if it asks for one that is not
    stored."""
    if _lacks_checksum(call, reply):
        reply.headers["x-amz-checksum-crc64nvme"] = checksums.crc64nvme(data)
        reply.headers[_CHECKSUM_TYPE] = ChecksumType.FULL_OBJECT.value
    return reply


def _is_not_modified(request: Request, etag: str, created_ms: int) -> bool:
    """Return whether the client has this version already, so that the answer is 304. Raises PreconditionFailed."""
    try:
        check_read(request, etag, created_ms)
    except S3Error as error:
        if error.status != 304:
            raise
        return True
    return False


def _deletion(
    key: ObjectKey, version: str | None, versioning: Versioning | None, condition: Condition | None, *, bypass: bool
) -> DeleteVersion | AddMarker:
    """Return the change that a DELETE requests. Raises InvalidArgument."""
    if version is not None:
        return DeleteVersion(key, number_of(version), condition, bypass)
    assert versioning is not None
    return AddMarker(key, versioning, condition)


def _delete_error(error: NosError, key: str) -> Exception:
    """Return the error for a DELETE that did not take effect."""
    return no_such_key(key) if isinstance(error, NotFound) else error


def _without_parts(checksum: answers.Checksum | None) -> answers.Checksum | None:
    """Return the checksum of an object without the number of parts, which HEAD and CompleteMultipartUpload append to a
    composite checksum, but GetObjectAttributes does not."""
    return None if checksum is None else replace(checksum, value=checksum.value.partition("-")[0])


def _without_type(checksum: answers.Checksum | None) -> answers.Checksum | None:
    """Return the checksum of a part, which has no type."""
    return None if checksum is None else answers.Checksum(checksum.algorithm, checksum.value)


def attributes_of_call(call: Call) -> dict[str, str]:
    """Return the attributes that a request sets. Raises S3Error, also if the bucket does not allow its ACL."""
    found = attributes_of_request(call.request, content_encoding_of(call.request, call.payload))
    acl = acl_of_headers(call.request)
    if acl is not None and call.access is not None:
        call.access.require_acl(acl, in_headers=True)
    return found


def _directive(request: Request, name: str) -> bool:
    """Return whether a copy keeps the metadata or the tags of the source."""
    header = request.header(f"x-amz-{name}-directive") or "COPY"
    if header not in ("COPY", "REPLACE"):
        raise invalid_argument(f"Unknown {name} directive.", f"x-amz-{name}-directive")
    return header == "COPY"
