"""Multipart uploads: parts are stored one by one, in any order, and become one object without being copied.

1  a completed upload reads back as its parts, in their order
9  a completion holds the list of its parts in memory, at most PARTS_MAX
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from threading import Event

from nos_ec.core.attributes import decode_attributes
from nos_ec.core.conditions import Condition
from nos_ec.core.errors import Conflict, Corrupt, InvalidInput, Locked, Moved, NoSuchUpload, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.locking.lock import Lock
from nos_ec.core.parts import (
    PARTS_MAX,
    Composition,
    Manifest,
    UploadId,
    composed,
    encode_manifest,
    part_key,
    part_number,
    parts_bucket,
    parts_prefix,
    require_space,
)
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.composed import part_of
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.streams import ByteStream
from nos_ec.engine.packable import combine_crc32c
from nos_ec.engine.retry_queue import BackOff
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import (
    CompletionOf,
    Metadata,
    ObjectRow,
    PartOf,
    PutRequest,
    RenameOf,
    UploadRow,
    UploadState,
)

PAGE_PARTS = 1000
COMPLETE_TRIES = 10
"""Each further try means that a part was stored during the previous one."""
COMPLETE_BACK_OFF = BackOff(first_ms=10, max_ms=500)
"""The wait between tries. It gives running parts 2 s in all, and no more, because a thread of the gateway waits."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of an upload. Of its `row`, callers use size, md5, attributes and created_ms."""

    number: int
    row: ObjectRow


Choose = Callable[[Sequence[StoredPart]], tuple[Sequence[StoredPart], Mapping[str, str]]]
"""Given the stored parts of an upload, returns the parts of its object and the attributes of the object."""
Seal = Callable[[Manifest, Sequence[StoredPart], Mapping[str, str]], Mapping[str, str]]
"""Given the manifest of encrypted parts, these parts, and the attributes of their object, returns the attributes with
the envelope."""


class MultipartUploads:
    """Creates, completes and aborts multipart uploads. Safe to call from several threads."""

    def __init__(self, store: Store, metadata: Metadata, clock: Clock, new_id: Callable[[], bytes]) -> None:
        """new_id: returns an id like `timed_id`."""
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._new_id = new_id

    def new_upload_id(self) -> UploadId:
        """Return the id of a new upload."""
        return UploadId(self._new_id())

    def create(self, key: ObjectKey, owner: str, attributes: bytes, upload_id: UploadId | None = None) -> UploadRow:
        """Begin an upload, durably. attributes: kept for the caller, who gives them to the object. upload_id: from
        `new_upload_id`, or None. Raises InvalidInput (the name of the bucket is too long, or there are too many
        attributes), Transient."""
        parts_bucket(key.bucket)
        require_space(decode_attributes(attributes))
        row = UploadRow(
            upload_id or self.new_upload_id(),
            key,
            UploadState.OPEN,
            self._clock.now_ms(),
            owner=owner,
            attributes=attributes,
        )
        self._metadata.create_upload(row)
        return row

    def find(self, upload_id: UploadId, key: ObjectKey) -> UploadRow:
        """Return the row of an OPEN or COMPLETED upload of this key. Raises NoSuchUpload, Transient."""
        row = self._metadata.upload(upload_id, key.bucket)
        if row is None or row.key != key or row.state is UploadState.DOOMED:
            raise _missing(upload_id, key)
        return row

    def find_open(self, upload_id: UploadId, key: ObjectKey) -> UploadRow:
        """Return the row of an OPEN upload of this key. Raises NoSuchUpload, Transient."""
        row = self.find(upload_id, key)
        if row.state is not UploadState.OPEN:
            raise _missing(upload_id, key)
        return row

    def put_part(self, upload: UploadRow, number: int, stream: ByteStream, attributes: bytes) -> ObjectRow:
        """Store a part durably, in place of an earlier part with the same number. Raises NoSuchUpload, InvalidInput
        (the number), NoSpace, Transient, LeaseLost, and whatever reading the stream raises."""
        return self._store.put_request(part_request(upload, number, attributes), stream)

    def list_parts(self, upload: UploadRow, after: int, limit: int) -> list[StoredPart]:
        """Return up to `limit` parts with numbers above `after`, in their order. Raises Transient."""
        return self.parts_of(upload.key, upload.upload_id, after, limit)

    def parts_of(self, key: ObjectKey, upload_id: UploadId, after: int, limit: int) -> list[StoredPart]:
        """Like `list_parts`, for an upload of this key in any state."""
        prefix, bucket = parts_prefix(upload_id), parts_bucket(key.bucket)
        rows = self._store.list_objects(bucket, prefix, f"{prefix}{after:05}", limit)
        return [StoredPart(part_number(row.key), row) for row in rows]

    def all_parts(self, upload: UploadRow) -> Iterator[StoredPart]:
        """Yields all parts in their order. Raises Transient."""
        after = 0
        while page := self.list_parts(upload, after, PAGE_PARTS):
            yield from page
            after = page[-1].number

    def complete(
        self,
        upload: UploadRow,
        choose: Choose,
        condition: Condition | None = None,
        versioning: Versioning | None = None,
        lock: Lock | None = None,
        seal: Seal | None = None,
        rename: RenameOf | None = None,
    ) -> ObjectRow:
        """Make one object of the parts, durably, with this lock. choose: given all parts, returns the parts of the
        object, at least one and in ascending order of their numbers, and its attributes; its errors are passed on. It
        is called again, after a wait, if another part was stored meanwhile. The other parts are deleted. seal: adds the
        envelope, if the parts are encrypted, as all or none must be. rename: the rename that the object completes.

        Raises NoSuchUpload, PreconditionFailed or NotFound (the condition does not hold), Conflict (the source of the
        rename was changed, or a part was stored during it), Locked, InvalidInput (too many attributes), Corrupt (a part
        is damaged, or encrypted otherwise than the upload), NoSpace, Transient.
        """
        for tries in range(COMPLETE_TRIES):
            if tries:
                self._clock.wait(Event(), COMPLETE_BACK_OFF.wait_ms(tries))
            current = self.find_open(upload.upload_id, upload.key)
            # 1. Choose among the parts that are stored now.
            stored = list(self.all_parts(current))
            chosen, attributes = choose(stored)
            # 2. Store their list as the object, unless another part was stored meanwhile (a Conflict).
            manifest, composition = _composition(current.upload_id, [part.row for part in chosen])
            if manifest.is_encrypted is (seal is None):
                raise Corrupt(f"{current.key}: its upload is encrypted, or its parts, but not both; abort the upload")
            attributes = attributes if seal is None else seal(manifest, chosen, attributes)
            completion = CompletionOf(current.upload_id, current.revision)
            step = completion if rename is None else replace(rename, completion=completion)
            request = PutRequest(current.key, composed(attributes, composition), condition, versioning, step, lock)
            try:
                made = self._store.put_request(request, BytesIO(encode_manifest(manifest)))
            except Locked:
                raise
            except Conflict:
                if rename is not None:
                    raise
                continue
            kill_point("upload.completed")
            # 3. Delete the other parts.
            numbers = {part.number for part in chosen}
            left = [part.row.key for part in stored if part.number not in numbers]
            with suppress(Moved):  # then they are not copied, and the old ones are deleted with the old copies
                self._metadata.delete_many(left, self._clock.now_ms())
            return made
        raise Transient(f"{upload.key}: parts were stored repeatedly while the upload was completed; try again")

    def completed(self, upload: UploadRow, choose: Choose) -> ObjectRow:
        """Return the object of a completed upload, if it is the current version of its key and consists of the parts
        that `choose` returns. Raises NoSuchUpload, NotFound, Transient, and the errors of `choose`."""
        row = self._store.head(upload.key)
        if row.composition is None or row.composition.upload_id != upload.upload_id:
            raise _missing(upload.upload_id, upload.key)
        chosen, _ = choose(list(self.all_parts(upload)))
        if row.composition != _composition(upload.upload_id, [part.row for part in chosen])[1]:
            raise _missing(upload.upload_id, upload.key)
        return row

    def abort(self, upload_id: UploadId, key: ObjectKey) -> None:
        """Abort an OPEN upload, durably. From then on no part can be recorded; GC deletes the recorded ones. Raises
        NoSuchUpload, Transient."""
        self.find_open(upload_id, key)
        if not self._metadata.abort_upload(upload_id, self._clock.now_ms()):
            raise _missing(upload_id, key)
        kill_point("upload.aborted")

    def abort_all(self, bucket: str) -> None:
        """Abort all uploads into a bucket that is to be deleted. Raises Transient."""
        while self._metadata.abort_uploads(bucket, PAGE_PARTS, self._clock.now_ms()) == PAGE_PARTS:
            pass

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        """Return a page of the OPEN uploads into a bucket, in the order of name and id. Raises Transient."""
        return self._metadata.list_uploads(bucket, prefix, after, limit)


def part_request(upload: UploadRow, number: int, attributes: bytes = b"") -> PutRequest:
    """Return the request that stores a part of the upload with `Store.put_request`. Raises InvalidInput (its
    number)."""
    if not 1 <= number <= PARTS_MAX:
        raise InvalidInput(f"part {number} of {upload.key}: numbers are 1 to {PARTS_MAX}", key=upload.key)
    key = part_key(upload.key.bucket, upload.upload_id, number)
    return PutRequest(key, attributes, step=PartOf(upload.upload_id))


def _composition(upload_id: UploadId, parts: Sequence[ObjectRow]) -> tuple[Manifest, Composition]:
    manifest = Manifest(upload_id, [part_of(row) for row in parts])
    md5 = hashlib.md5(b"".join([row.md5 for row in parts]), usedforsecurity=False).digest()
    crc32c = 0
    for row in parts:
        crc32c = combine_crc32c(crc32c, row.crc32c, row.size)
    return manifest, Composition(upload_id, manifest.stored_size, crc32c, len(parts), md5)


def _missing(upload_id: UploadId, key: ObjectKey) -> NoSuchUpload:
    return NoSuchUpload(f"{key}: there is no upload {upload_id.hex()}; it may have been completed or aborted", key=key)
