"""RenameObject: gives an object another key of its bucket.

Source: RenameObject of the S3 API reference, which has it for directory buckets only. Headers of blocks name the keys
of their objects, and encryption binds an object to its key. So the object is stored again under the new key, and the
transaction that records it there deletes the old one (docs/adr/0062).
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from urllib.parse import unquote_to_bytes

from nos_ec.core.errors import Conflict, Locked, NotFound, Transient
from nos_ec.engine.objects.reading import READ_TRIES
from nos_ec.engine.objects.store import Store
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.body import OBJECT_BYTES_MAX
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.encryption import CUSTOMER, Encryption
from nos_ec.gateway.message.object_headers import RENAMED, attributes_of, refuse_unsupported, tags_of
from nos_ec.gateway.message.preconditions import check_read
from nos_ec.gateway.message.reply import Reply, empty
from nos_ec.gateway.message.stored_body import CopiedBody, store_body
from nos_ec.gateway.message.versions import no_such_key, stored_headers
from nos_ec.gateway.operations.multipart_operations import MultipartOperations
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import rights_on
from nos_ec.ports.metadata import ObjectRow, PutRequest, Rights
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.names import check_key
from nos_ec.s3.request import is_encoded

_SOURCE = "x-amz-rename-source"
_ENCRYPTION = re.compile(rb"x-amz-(copy-source-)?server-side-encryption")
_TOKEN = re.compile(r"[!-~]{1,64}")


class RenameOperations:
    """RenameObject. Safe to call from several threads."""

    def __init__(
        self,
        store: Store,
        objects: ObjectOperations,
        multipart: MultipartOperations,
        access: Access,
        encryption: Encryption,
    ) -> None:
        self._store = store
        self._multipart = multipart
        self._objects = objects
        self._access = access
        self._encryption = encryption

    def rename_object(self, call: Call) -> Reply:
        """Rename an object, durably. Readers see it under one of the two keys at any time, and never under both."""
        call.require_if_decided(Rights.WRITE)
        request = call.request
        refuse_unsupported(request)
        for header in ("if-modified-since", "if-unmodified-since"):
            if request.header(header) is not None:
                raise S3Error("NotImplemented", f"The header {header} is not supported for the new name of an object.")
        if any(raw.startswith(b"x-amz-object-lock-") for raw in request.header_values):
            raise S3Error("InvalidRequest", "A rename sets no lock; send PutObjectRetention or PutObjectLegalHold.")
        if any(_ENCRYPTION.match(raw) for raw in request.header_values):
            raise S3Error("InvalidRequest", "A rename keeps the encryption of the object; copy it to change that.")
        name = _source_of(request.header(_SOURCE) or "", call.bucket)
        if name == call.key:
            raise S3Error("InvalidRequest", "The source and the destination of a rename must be different keys.")
        if self._objects.at(call.bucket, name) is not self._objects:
            raise S3Error(
                "NotImplemented", "The two keys are in different slices of a wide bucket; copy and delete the object."
            )
        mark = _mark(request.header("x-amz-client-token"), name)
        for _ in range(READ_TRIES):
            if mark is not None and self._is_done(call, mark):
                return empty()
            try:
                return self._rename(call, name, mark)
            except Locked:
                raise
            except Conflict:
                continue  # the source was changed meanwhile
        raise Transient(f"{call.bucket}/{name} changed again and again while it was renamed; try again")

    def _is_done(self, call: Call, mark: str) -> bool:
        """Return whether the object was stored by an earlier call of this rename. Raises IdempotencyParameterMismatch
        if it was stored by another rename with the same token."""
        try:
            found = attributes_of(self._store.head(call.object_key)).get(RENAMED)
        except NotFound:
            return False
        if found is None or found == mark:
            return found is not None
        if found.partition(" ")[0] == mark.partition(" ")[0]:
            raise S3Error("IdempotencyParameterMismatch", "A rename of another object has used this client token.")
        return False

    def _rename(self, call: Call, name: str, mark: str | None) -> Reply:
        access = call.access
        assert access is not None
        source = self._objects.source(call, call.bucket, name, None)
        row = source.row
        if Rights.WRITE not in rights_on(call, access, "DeleteObject", name):
            raise S3Error("AccessDenied", "Access Denied")
        check_read(call.request, self._encryption.etag_of(row), row.created_ms, _SOURCE + "-")
        if self._encryption.method_of(row) == CUSTOMER:
            raise S3Error("NotImplemented", "An object encrypted with a key of a customer cannot be renamed; copy it.")
        if row.users_size > OBJECT_BYTES_MAX:
            raise S3Error("InvalidRequest", "The object is larger than the maximum of a rename.")
        # 1. Take all attributes along. Keep the encryption; a plain object gets that of its bucket, as in a PUT.
        tags = tags_of(source.attributes)
        call.require_with(Rights.WRITE, {}, tags)
        if tags:
            self._objects.require_tags_of_copy(call, access, name, None, tags)
        attributes = {key: value for key, value in source.attributes.items() if key != RENAMED}
        attributes |= {} if mark is None else {RENAMED: mark}
        method = self._encryption.method_of(row) or self._encryption.wanted(call)

        # 2. Store the bytes under the new key, and delete the old one with the same transaction.
        def put(request: PutRequest) -> ObjectRow:
            if row.composition is not None:
                return self._multipart.store_again(call, source, request, attributes, method)
            encrypt = None if method is None else partial(self._encryption.encrypted, method)
            body = CopiedBody(source.read(), row.users_size, None, partial(self._access.require_same, access))
            return store_body(self._store, request, body, attributes, encrypt).row

        try:
            made = self._store.rename(row, self._objects.put_request(call), put)
        except NotFound:
            raise no_such_key(call.key) from None
        return empty(stored_headers(call.versioning, made))


def _source_of(text: str, bucket: str) -> str:
    """Return the key in the header `x-amz-rename-source`, URL-encoded: `key` or `/bucket/key`. Raises InvalidArgument,
    KeyTooLongError."""
    try:
        name = unquote_to_bytes(text).decode() if is_encoded(text) else ""
    except UnicodeDecodeError:
        name = ""
    name = name.removeprefix(f"/{bucket}/")
    if not name:
        raise invalid_argument(
            "x-amz-rename-source must be a key of the same bucket, or /bucket/key, URL-encoded.", _SOURCE, text
        )
    check_key(name)
    return name


def _mark(token: str | None, source: str) -> str | None:
    """Return what the renamed object keeps, so that a repetition of the request is recognised: the client's token, and
    a digest of the source. None without a token. Raises InvalidArgument."""
    if token is None:
        return None
    if not _TOKEN.fullmatch(token):
        raise invalid_argument("A client token has 1 to 64 characters from ! to ~.", "x-amz-client-token", token)
    return f"{token} {hashlib.sha256(source.encode()).hexdigest()[:32]}"
