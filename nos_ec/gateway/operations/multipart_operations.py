"""Operations on multipart uploads.

Sources: CreateMultipartUpload, UploadPart, UploadPartCopy, ListParts, ListMultipartUploads, CompleteMultipartUpload and
AbortMultipartUpload of the S3 API reference; "Amazon S3 multipart upload limits" of the user guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

from nos_ec.core.errors import Conflict, NosError, NotFound
from nos_ec.core.folders import folder_of
from nos_ec.core.ids import ObjectKey
from nos_ec.core.locking.lock import with_lock
from nos_ec.core.parts import PARTS_MAX, Manifest, UploadId, require_space
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import Choose, MultipartUploads, Seal, StoredPart, part_request
from nos_ec.engine.wide.listings import ListsUploads
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.body import OBJECT_BYTES_MAX, CheckedBody
from nos_ec.gateway.message.call import Call, owner_named
from nos_ec.gateway.message.customer_key import customer_key
from nos_ec.gateway.message.encryption import Encryption, headers_of_method
from nos_ec.gateway.message.failures import no_such_upload
from nos_ec.gateway.message.object_headers import (
    CHECKSUM,
    STORAGE_CLASS,
    attributes_of,
    checksum_attribute,
    checksum_headers,
    checksum_of,
    encoded,
    refuse_unsupported,
    sent_checksum,
)
from nos_ec.gateway.message.preconditions import write_condition
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.message.stored_body import Body, CopiedBody, StoredBody, store_body
from nos_ec.gateway.message.versions import no_such_key, source_headers, stored_headers
from nos_ec.gateway.operations.bucket_documents import read_document
from nos_ec.gateway.operations.lifecycle import abort_headers
from nos_ec.gateway.operations.object_locks import LocksOfPuts
from nos_ec.gateway.operations.object_operations import CopySource, ObjectOperations, attributes_of_call
from nos_ec.ports.metadata import ObjectRow, PutRequest, RenameOf, Rights, UploadRow, UploadState
from nos_ec.s3 import answers, checksums, documents
from nos_ec.s3.checksums import Algorithm, ChecksumType
from nos_ec.s3.documents import CompletedPart
from nos_ec.s3.errors import S3Error, invalid_argument

PART_BYTES_MIN = 5 << 20
"""Minimum size of all parts except the last."""
UPLOADS_MAX = 1000
_UPLOAD_CHECKSUM = "s3:upload-checksum"
"""An attribute that only uploads have: algorithm and type of the checksum of the object."""
_UPLOAD_ENCRYPTION = "s3:upload-encryption"
"""An attribute that only uploads have: how its parts are encrypted (`Encryption.wanted_of_upload`)."""
_CHECKSUM_LENGTH_MAX = 128
_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})")
_LAST_ID = UploadId(b"\xff" * 16)
_LAST_CHARACTER = "\U0010ffff"


class _ShownPart(NamedTuple):
    """A part as clients see it: the number of its plain bytes, the MD5 in its ETag, and its checksum, if it has one."""

    stored: StoredPart
    size: int
    md5: bytes
    checksum: answers.Checksum | None

    @property
    def number(self) -> int:
        return self.stored.number


class MultipartOperations:
    """The operations on multipart uploads. Safe to call from several threads."""

    def __init__(
        self,
        store: Store,
        uploads: MultipartUploads,
        objects: ObjectOperations,
        access: Access,
        locks: LocksOfPuts,
        encryption: Encryption,
        lists: ListsUploads | None = None,
    ) -> None:
        """`lists` lists the uploads into wide buckets; None for other buckets."""
        self._lists: ListsUploads = lists or uploads
        self._locks = locks
        self._encryption = encryption
        self._store = store
        self._uploads = uploads
        self._objects = objects
        self._access = access

    def create_upload(self, call: Call) -> Reply:
        """Start an upload. Its headers and tags become those of the object."""
        call.require(Rights.WRITE)
        request = call.request
        refuse_unsupported(request)
        upload_id = self._uploads.new_upload_id()
        method, customers = self._encryption.wanted_of_upload(call, upload_id), customer_key(request)
        attributes = attributes_of_call(call)
        kind = request.header("x-amz-checksum-type")
        name = request.header("x-amz-checksum-algorithm")
        headers = headers_of_method(method) if customers is None else customers.headers
        if name is not None:
            algorithm = checksums.algorithm_named(name)
            wanted = checksums.type_of_upload(algorithm, kind)
            attributes[_UPLOAD_CHECKSUM] = f"{algorithm.value} {wanted.value}"
            headers |= {"x-amz-checksum-algorithm": algorithm.value, "x-amz-checksum-type": wanted.value}
        elif kind is not None:
            raise S3Error("InvalidRequest", "x-amz-checksum-type needs x-amz-checksum-algorithm.")
        if method is not None:
            attributes[_UPLOAD_ENCRYPTION] = method
        encoded(attributes | {CHECKSUM: "x" * _CHECKSUM_LENGTH_MAX})  # the checksum of the object must fit as well
        require_space(attributes | {CHECKSUM: "x" * _CHECKSUM_LENGTH_MAX}, encrypted=method is not None)
        lock = self._locks.of_headers(call)
        stored = encoded(attributes) if lock is None else with_lock(encoded(attributes), lock)
        row = self._uploads.create(call.object_key, call.account or "", stored, upload_id)
        headers |= abort_headers(self._access.lifecycle_rules(call.bucket), row)
        return xml(answers.upload_created(call.bucket, call.key, row.upload_id.hex()), headers)

    # --- parts ------------------------------------------------------------------------------------
    def upload_part(self, call: Call) -> Reply:
        """Store a part, replacing an earlier one with the same number. It is durable when this returns."""
        call.require(Rights.WRITE)
        refuse_unsupported(call.request)
        number, upload = call.part_number(), self._open(call)
        algorithm, _ = _checksum_of_upload(upload)
        body = CheckedBody(call.request, call.signed, call.source, computed=algorithm)
        if algorithm is not None and body.algorithm is not algorithm:
            raise S3Error(
                "InvalidRequest",
                f"Checksum Type mismatch occurred, expected checksum Type: {algorithm.value.lower()}, actual checksum"
                f" Type: {'null' if body.algorithm is None else body.algorithm.value.lower()}",
            )
        made, headers = self._store_part(call, upload, number, body, sent_checksum(call.request))
        return empty({"etag": f'"{made.md5.hex()}"', **checksum_headers(made.attributes), **headers})

    def _store_part(
        self, call: Call, upload: UploadRow, number: int, body: Body, attributes: dict[str, str]
    ) -> tuple[StoredBody, dict[str, str]]:
        """Store a part, encrypted as its upload says. Returns it with the MD5 of its ETag, and the headers that say how
        it is encrypted."""
        method = attributes_of(upload).get(_UPLOAD_ENCRYPTION)
        self._encryption.refuse_plain(call, method)
        customers = self._encryption.key_of_upload(call, upload, method, needs_key=True)
        encrypt = None if method is None else partial(self._encryption.encrypted, method, customers=customers)
        made = store_body(self._store, part_request(upload, number), body, attributes, encrypt)
        md5 = self._encryption.md5_of_new(made.row, method, made.md5)
        return made._replace(md5=md5), headers_of_method(method) if customers is None else customers.headers

    def upload_part_copy(self, call: Call) -> Reply:
        """Store a copy of an object or of a range of it as a part."""
        call.require(Rights.WRITE)
        request = call.request
        refuse_unsupported(request)
        number, upload = call.part_number(), self._open(call)
        source = self._objects.source_of_copy(call)
        row = source.row
        first, length = _range_to_copy(request.header("x-amz-copy-source-range"), row.users_size)
        algorithm, _ = _checksum_of_upload(upload)
        body = CopiedBody(source.read(first, length), length, algorithm)
        made, headers = self._store_part(call, upload, number, body, {})
        answer = answers.copied(made.md5.hex(), made.row.created_ms, checksum_of(made.attributes), part=True)
        return xml(answer, source_headers(source.access.versioning, row) | headers)

    def list_parts(self, call: Call) -> Reply:
        """List the parts of an open upload."""
        call.require(Rights.WRITE)
        upload = self._open(call)
        marker = call.number("part-number-marker", 0, PARTS_MAX)
        limit = call.number("max-parts", 1000, 1000)
        show = self._show(call, upload)
        parts = self._uploads.list_parts(upload, marker, limit + 1)
        listed = [
            answers.Part(part.number, part.size, part.stored.row.created_ms, part.md5.hex(), part.checksum)
            for part in map(show, parts[:limit])
        ]
        answer = answers.list_parts(
            call.bucket,
            self._shown_upload(upload, call),
            listed,
            marker=marker,
            max_parts=limit,
            truncated=len(parts) > limit,
        )
        return xml(answer, abort_headers(self._access.lifecycle_rules(call.bucket), upload))

    # --- the end of uploads -----------------------------------------------------------------------
    def complete_upload(self, call: Call) -> Reply:
        """Complete an upload. May be repeated with the same parts while the object exists."""
        call.require(Rights.WRITE)
        upload_id = _upload_id(call)
        wanted = documents.complete_upload(read_document(call, of_object=True, may_be_empty=True))
        upload = self._uploads.find(upload_id, call.object_key)
        is_done = upload.state is UploadState.COMPLETED
        if not is_done:
            self._encryption.refuse_plain(call, attributes_of(upload).get(_UPLOAD_ENCRYPTION))
        choose = self._choice(call, upload, wanted)
        row = self._completed(upload, choose) if is_done else self._complete(call, upload, choose)
        attributes = attributes_of(row)
        location = f"{call.request.base}/{call.bucket}/{quote(call.key, safe='/')}"
        shown, etag = self._encryption.shown(row, attributes), self._encryption.etag_of(row)
        answer = answers.upload_completed(location, call.bucket, call.key, etag, checksum_of(shown))
        headers = self._objects.expiry_headers(row, attributes) | stored_headers(call.versioning, row)
        return xml(answer, headers | self._encryption.headers_of(row))

    def _completed(self, upload: UploadRow, choose: Choose) -> ObjectRow:
        try:
            return self._uploads.completed(upload, choose)
        except NotFound:
            raise no_such_upload() from None

    def _choice(self, call: Call, upload: UploadRow, wanted: Sequence[CompletedPart]) -> Choose:
        """Return a function that chooses the listed parts and checks the checksum and size in the request."""
        request = call.request
        algorithm, kind = _checksum_of_upload(upload)
        sent_type = request.header("x-amz-checksum-type")
        if sent_type is not None and (kind is None or sent_type != kind.value):
            raise S3Error("InvalidRequest", "The checksum type is not the one that the upload was created with.")
        own = _UPLOAD_CHECKSUM, _UPLOAD_ENCRYPTION
        given = {name: value for name, value in attributes_of(upload).items() if name not in own}
        of_object, show = checksums.object_checksum_of(request), self._show(call, upload)

        def choose(stored: Sequence[StoredPart]) -> tuple[Sequence[StoredPart], Mapping[str, str]]:
            parts = _chosen(wanted, stored, show)
            size = sum(part.size for part in parts)
            sent_size = request.header("x-amz-mp-object-size")
            if sent_size is not None and sent_size != str(size):
                raise S3Error(
                    "InvalidRequest", f"The parts have {size} bytes, not the {sent_size} of x-amz-mp-object-size."
                )
            sent = [one.checksum for one in wanted]
            checksum = None if algorithm is None or kind is None else _checksum(algorithm, kind, parts, sent)
            _compare_checksum(of_object, algorithm, checksum)
            made = {} if algorithm is None or checksum is None else checksum_attribute(algorithm.value, checksum)
            return [part.stored for part in parts], given | made

        return choose

    def _complete(self, call: Call, upload: UploadRow, choose: Choose) -> ObjectRow:
        request = call.request
        try:
            lock = self._locks.of_upload(call, upload)
            condition = self._encryption.condition_on_stored(call.object_key, write_condition(request))
            return self._uploads.complete(upload, choose, condition, call.versioning, lock, self._seal(upload))
        except NotFound as error:
            if request.header("if-match") is not None and not self._object_exists(call):
                raise no_such_key(call.key) from None
            # A repetition of this request, or a request with other parts, may have been served meanwhile.
            again = self._uploads.find(upload.upload_id, upload.key)
            if again.state is UploadState.COMPLETED:
                return self._completed(again, choose)
            raise no_such_upload() from error

    def _seal(self, upload: UploadRow) -> Seal | None:
        """Return what adds the envelope to the object of an upload; None if it is not encrypted."""
        method = attributes_of(upload).get(_UPLOAD_ENCRYPTION)
        if method is None:
            return None

        def seal(manifest: Manifest, parts: Sequence[StoredPart], attributes: Mapping[str, str]) -> Mapping[str, str]:
            md5s = [self._encryption.md5_of(part.row) for part in parts]
            return self._encryption.seal_parts(method, upload.key, md5s, manifest, attributes)

        return seal

    # --- renames ----------------------------------------------------------------------------------
    def store_again(
        self, call: Call, source: CopySource, request: PutRequest, attributes: dict[str, str], method: str | None
    ) -> ObjectRow:
        """Store the parts of a composed object again, as those of a new upload of the key of `request`, and record the
        object that is composed of them with the step of `request`, a rename. `method`: how they are encrypted, as
        `Encryption.wanted` returns. After an error the upload is aborted. Raises what `MultipartUploads.complete`
        raises, and Corrupt."""
        manifest, step = self._store.manifest(source.row), request.step
        assert manifest is not None
        assert call.access is not None
        assert isinstance(step, RenameOf)
        of_upload = None if method is None else self._encryption.method_of_upload(method)
        own = {} if of_upload is None else {_UPLOAD_ENCRYPTION: of_upload}
        encrypt = None if of_upload is None else partial(self._encryption.encrypted, of_upload)
        upload = self._uploads.create(request.key, call.account or "", encoded(own))
        made: list[tuple[int, int, bytes]] = []

        def choose(stored: Sequence[StoredPart]) -> tuple[Sequence[StoredPart], Mapping[str, str]]:
            if [(part.number, part.row.size, part.row.md5) for part in stored] != made:
                raise Conflict(f"{upload.key}: another request has stored a part of the object that is renamed")
            return stored, attributes

        try:
            for index, part in enumerate(manifest.parts):
                pieces = source.read(manifest.starts[index], part.users_size)
                of_part = self._checksum_of_part(source.row.key, manifest.upload_id, part.number)
                body = CopiedBody(pieces, part.users_size, None)
                copy = store_body(self._store, part_request(upload, part.number), body, of_part, encrypt).row
                made.append((part.number, copy.size, copy.md5))
            self._access.require_same(call.access)
            return self._uploads.complete(
                upload,
                choose,
                request.condition,
                request.versioning,
                request.lock,
                self._seal(upload),
                step,
            )
        except BaseException:
            with suppress(NosError):  # GC aborts it later
                self._uploads.abort(upload.upload_id, upload.key)
            raise

    def _checksum_of_part(self, key: ObjectKey, upload_id: UploadId, number: int) -> dict[str, str]:
        """Return the attribute with the checksum of a part; none if it was stored without one."""
        for part in self._uploads.parts_of(key, upload_id, number - 1, 1):
            shown = self._encryption.shown(part.row, attributes_of(part.row))
            return {name: value for name, value in shown.items() if name == CHECKSUM and part.number == number}
        return {}

    def _show(self, call: Call, upload: UploadRow) -> Callable[[StoredPart], _ShownPart]:
        """Return what shows the parts of an upload. The checksums of parts with a key of the customer are missing if
        the request does not have it, which it need not. Raises what `Encryption.key_of_upload` raises."""
        customers = customer_key(call.request)
        if upload.state is UploadState.OPEN:  # a completed one has no attributes, but its parts refuse a wrong key, too
            method = attributes_of(upload).get(_UPLOAD_ENCRYPTION)
            self._encryption.key_of_upload(call, upload, method, needs_key=False)

        def show(part: StoredPart) -> _ShownPart:
            row, attributes = part.row, attributes_of(part.row)
            envelope = row.envelope
            if envelope is not None and envelope.is_of_customer and customers is None:
                attributes.pop(CHECKSUM, None)
            checksum = checksum_of(self._encryption.shown(row, attributes, customers))
            return _ShownPart(part, row.users_size, self._encryption.md5_of(row), checksum)

        return show

    def _object_exists(self, call: Call) -> bool:
        try:
            self._store.head(call.object_key)
        except NotFound:
            return False
        return True

    def abort_upload(self, call: Call) -> Reply:
        """Abort an upload. Its parts are deleted later."""
        call.require(Rights.WRITE)
        if call.request.header("x-amz-if-match-initiated-time") is not None:
            raise S3Error("NotImplemented", "The header x-amz-if-match-initiated-time is not supported.")
        self._uploads.abort(_upload_id(call), call.object_key)
        return empty(status=204)

    # --- listing ----------------------------------------------------------------------------------
    def list_uploads(self, call: Call) -> Reply:
        """List the open uploads."""
        call.require(Rights.LIST)
        request = call.request
        prefix, delimiter = request.parameter("prefix") or "", request.parameter("delimiter") or ""
        encodes = call.encodes_names()
        key_marker = request.parameter("key-marker") or ""
        id_marker = (request.parameter("upload-id-marker") or "") if key_marker else ""
        limit = call.number("max-uploads", UPLOADS_MAX, UPLOADS_MAX)
        entries = self._entries(call.bucket, prefix, delimiter, _after(key_marker, id_marker), limit)
        found = [entry for _, entry in zip(range(limit + 1), entries, strict=False)] if limit else []
        shown = found[:limit]
        last = shown[-1] if len(found) > limit else None
        answer = answers.list_uploads(
            call.bucket,
            [self._shown_upload(entry, call) for entry in shown if isinstance(entry, UploadRow)],
            [entry for entry in shown if isinstance(entry, str)],
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            id_marker=id_marker,
            next_key_marker=last.key.name if isinstance(last, UploadRow) else last,
            next_id_marker=last.upload_id.hex() if isinstance(last, UploadRow) else None,
            max_uploads=limit,
            encode=encodes,
        )
        return xml(answer)

    def _entries(
        self, bucket: str, prefix: str, delimiter: str, after: tuple[str, UploadId] | None, limit: int
    ) -> Iterator[UploadRow | str]:
        """Yield uploads and folders. After a folder, the search continues with the next name outside it."""
        folder = None if after is None else folder_of(after[0], prefix, delimiter)
        while True:
            if folder is not None:
                after = folder + _LAST_CHARACTER, _LAST_ID
            rows = self._lists.list_uploads(bucket, prefix, after, limit + 1)
            for row in rows:
                found = folder_of(row.key.name, prefix, delimiter)
                if found is None:
                    yield row
                    folder = None
                elif found != folder:
                    folder = found
                    yield folder
                    break
                after = row.key.name, row.upload_id
            else:
                if len(rows) <= limit:
                    return
                folder = None

    def _shown_upload(self, upload: UploadRow, call: Call) -> answers.Upload:
        """Return an upload as answers show it. S3 and radosgw name its initiator as owner, unless the bucket owner is
        enforced."""
        assert call.access is not None
        initiator = owner_named(upload.owner) if upload.owner else call.owner
        attributes = attributes_of(upload)
        algorithm, kind = _checksum_of_upload(upload)
        return answers.Upload(
            upload.key.name,
            upload.upload_id.hex(),
            upload.since_ms,
            initiator,
            initiator if call.access.has_acls else call.owner,
            attributes.get(STORAGE_CLASS, "STANDARD"),
            None if algorithm is None else algorithm.value,
            None if kind is None else kind.value,
        )

    def _open(self, call: Call) -> UploadRow:
        return self._uploads.find_open(_upload_id(call), call.object_key)


def _upload_id(call: Call) -> UploadId:
    text = call.request.parameter("uploadId") or ""
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise no_such_upload()
    return UploadId(bytes.fromhex(text))


def _checksum_of_upload(upload: UploadRow) -> tuple[Algorithm | None, ChecksumType | None]:
    algorithm, _, kind = attributes_of(upload).get(_UPLOAD_CHECKSUM, "").partition(" ")
    return (Algorithm(algorithm), ChecksumType(kind)) if kind else (None, None)


def _range_to_copy(header: str | None, size: int) -> tuple[int, int]:
    """Return (first byte, length) of the range to copy. Raises InvalidArgument, InvalidRange, InvalidRequest."""
    first, last = 0, size - 1
    if header is not None:
        match = _RANGE.fullmatch(header.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise invalid_argument(
                "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the"
                " zero-based offsets of the first and last bytes to copy",
                "x-amz-copy-source-range",
                header,
            )
        first, last = int(match[1]), int(match[2])
        if last >= size:
            raise S3Error("InvalidRange", "The specified range is not valid for the source object.")
    if last - first + 1 > OBJECT_BYTES_MAX:
        raise S3Error("InvalidRequest", "The specified copy source is larger than the maximum of a copy.")
    return first, last - first + 1


def _chosen(
    wanted: Sequence[CompletedPart], stored: Sequence[StoredPart], show: Callable[[StoredPart], _ShownPart]
) -> list[_ShownPart]:
    """Return the parts that a CompleteMultipartUpload lists. Raises InvalidPart, EntityTooSmall."""
    by_number = {part.number: part for part in stored}
    found: list[_ShownPart] = []
    for one in wanted:
        part = show(by_number[one.number]) if one.number in by_number else None
        if part is None or part.md5.hex() != one.etag.lower() or not _has_checksum(one, part):
            raise S3Error(
                "InvalidPart",
                "One or more of the specified parts could not be found. The part may not have been uploaded, or the"
                " specified entity tag may not match the part's entity tag.",
                PartNumber=str(one.number),
                ETag=one.etag,
            )
        found.append(part)
    for part in found[:-1]:
        if part.size < PART_BYTES_MIN:
            raise S3Error(
                "EntityTooSmall",
                "Your proposed upload is smaller than the minimum allowed size",
                ProposedSize=str(part.size),
                MinSizeAllowed=str(PART_BYTES_MIN),
                PartNumber=str(part.number),
                ETag=part.md5.hex(),
            )
    return found


def _has_checksum(wanted: CompletedPart, part: _ShownPart) -> bool:
    if wanted.checksum is None:
        return True
    algorithm, value = wanted.checksum
    stored = part.checksum
    return stored is None or (stored.algorithm, stored.value) == (algorithm.value, checksums.in_base64(value))


def _checksum(
    algorithm: Algorithm,
    kind: ChecksumType,
    parts: Sequence[_ShownPart],
    sent: Sequence[tuple[Algorithm, bytes] | None],
) -> str | None:
    """Return the checksum of the object, computed from the checksums of its parts. A part has none if the gateway died
    after its last byte or could not store it; then the checksum of the part in the request is used. Return None if that
    is missing, too."""
    values = []
    for part, listed in zip(parts, sent, strict=True):
        stored = part.checksum
        value = None if stored is None else checksums.decoded(stored.value, algorithm.size)
        if stored is None and listed is not None and listed[0] is algorithm:
            value = listed[1]
        if value is None or (stored is not None and stored.algorithm != algorithm.value):
            return None
        values.append((value, part.size))
    if kind is ChecksumType.FULL_OBJECT:
        return checksums.in_base64(checksums.joined(algorithm, values))
    return f"{checksums.in_base64(checksums.composite(algorithm, [value for value, _ in values]))}-{len(values)}"


def _compare_checksum(sent: tuple[Algorithm, str] | None, algorithm: Algorithm | None, checksum: str | None) -> None:
    """Raise BadDigest if the checksum of the object in the request is wrong."""
    if sent is not None:
        right = () if sent[0] is not algorithm or checksum is None else (checksum, checksum.partition("-")[0])
        if sent[1] not in right:
            raise S3Error("BadDigest", f"The {sent[0].value} you specified did not match the calculated checksum.")


def _after(key_marker: str, id_marker: str) -> tuple[str, UploadId] | None:
    if not key_marker:
        return None
    if not id_marker:
        return key_marker, _LAST_ID
    if not re.fullmatch("[0-9a-f]{32}", id_marker):
        raise invalid_argument("Invalid uploadId marker", "upload-id-marker", id_marker)
    return key_marker, UploadId(bytes.fromhex(id_marker))
