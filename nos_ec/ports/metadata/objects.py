"""Rows of objects, for PUT, GET, DELETE and LIST, and for the producer and the consumer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from nos_ec.core.conditions import Condition
from nos_ec.core.encryption.envelope import Envelope, envelope_of, with_envelope
from nos_ec.core.errors import Corrupt, Locked, NosError
from nos_ec.core.formats.messages import NamedVersion, PackRequest
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.locking.lock import Lock, lock_of, with_lock
from nos_ec.core.notifications.origin import Origin, current_origin
from nos_ec.core.parts import Composition, composition_of
from nos_ec.core.publishing.republish import Publication
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import Versioning, has_version_id, is_of_versions
from nos_ec.ports.metadata.leases import Lease
from nos_ec.ports.metadata.uploads import CompletionOf, UploadRow, UploadStep


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """A version of one object: the current one, unless it says otherwise.

    `landing_id` is set when state.in_landing, `extent` when PACKED.

    `attributes` belong to the version (see core.attributes); only `set_attributes` changes them. From `due_ms` on, the
    producer should publish it; `publication` describes its event in the message log, or is None if it has none. Only
    the rows that `due_objects` and `object_facts` return have these two. The remaining fields are set only in rows that
    methods of `Trash`, `objects_after`, `objects_with` and `object_facts` return: for a deleted version in the trash,
    `trash_until_ms` is the time until which the trash keeps it, and `trashed_ms` the time of its deletion;
    `is_noncurrent` marks a noncurrent version (see `Versions`).
    """

    object_id: int
    key: ObjectKey
    version: int
    size: int
    crc32c: int
    md5: bytes
    state: ObjectState
    landing_id: LandingId | None
    extent: Extent | None
    created_ms: int
    due_ms: int | None = field(default=None, compare=False)
    publication: Publication | None = field(default=None, compare=False)
    attributes: bytes = b""
    trash_until_ms: int | None = field(default=None, compare=False)
    trashed_ms: int | None = field(default=None, compare=False)
    is_noncurrent: bool = field(default=False, compare=False)

    @property
    def has_version_id(self) -> bool:
        """Return whether the version has an id of its own (core.versions). Raises Corrupt."""
        return has_version_id(self.attributes)

    @property
    def is_of_versions(self) -> bool:
        """Return whether its key may have noncurrent versions (core.versions). Raises Corrupt."""
        return is_of_versions(self.attributes)

    @property
    def lock(self) -> Lock | None:
        """Return the lock of the version, which may have ended; None if it never had one. Raises Corrupt."""
        return lock_of(self.attributes) if self.attributes else None

    @property
    def facts(self) -> tuple[int, int]:
        """Return the time when it was stored, in seconds, and its size as users see it, which conditions of a DELETE
        may test."""
        return self.created_ms // 1000, self.users_size

    @property
    def composition(self) -> Composition | None:
        """Return its composition, if its bytes are a manifest (core.parts). Raises Corrupt."""
        return composition_of(self.attributes) if self.attributes else None

    @property
    def envelope(self) -> Envelope | None:
        """Return its envelope, if its bytes are encrypted (core.encryption). Raises Corrupt."""
        return envelope_of(self.attributes) if self.attributes else None

    @property
    def users_size(self) -> int:
        """Return the number of bytes that users see: the total of its parts, if it is composed, and of plain bytes, if
        it is encrypted."""
        if not self.attributes:
            return self.size
        composition, envelope = self.composition, self.envelope
        stored = self.size if composition is None else composition.size
        return stored if envelope is None else envelope.plain_size(stored)

    @property
    def users_crc32c(self) -> int:
        """Return the CRC32C of the bytes that users see; of the stored bytes, if they are encrypted."""
        composition = self.composition
        return self.crc32c if composition is None else composition.crc32c

    @property
    def in_windows(self) -> bool:
        """Return whether its bytes are read in windows, because they may not fit into memory."""
        return self.state is ObjectState.LARGE or self.composition is not None

    @property
    def tag(self) -> tuple[bytes, int | None]:
        """Return the MD5 that users see, and the number of parts if it is the MD5 of the parts' MD5s. The MD5 of an
        encrypted object is that of its ciphertext."""
        composition = self.composition
        return (self.md5, None) if composition is None else (composition.md5, composition.parts)


@dataclass(frozen=True, slots=True)
class TailOf:
    """A step of a large PUT: the object to be recorded is the tail of a large object, whose last block this is. The
    block must be OPEN, so that no tail is recorded after its block was collected."""

    block_id: BlockId


@dataclass(frozen=True, slots=True)
class LockOf:
    """A step of a change of a lock: the object to be recorded is a note about it (core.locking.lock_note). The version
    of `row` gets `lock`. It must exist, current or noncurrent, and have the attributes of `row`. With `bypass`, a
    retention in the mode GOVERNANCE may be shortened."""

    row: ObjectRow
    lock: Lock
    bypass: bool = False

    @property
    def attributes(self) -> bytes:
        """Return the attributes that the version gets. Raises InvalidInput if they are too many."""
        return with_lock(self.row.attributes, self.lock)

    def refusal(self, now_ms: int) -> Locked | None:
        """Return the error if the lock of `row` may not be changed like this at this time; None if it may."""
        row = self.row
        if (row.lock or Lock()).may_become(self.lock, now_ms, bypass=self.bypass):
            return None
        message = f"object {row.key}: version {row.version} is locked; its retention can only be extended"
        return Locked(message, [row.key])


@dataclass(frozen=True, slots=True)
class RenameOf:
    """A step of a rename: the object to be recorded has the bytes of `row`, the current version of another key of the
    bucket, which is deleted in the same transaction as by a DELETE. It must be unchanged, and not locked. `versioning`:
    the versioning state of the bucket; with it, the other key gets a delete marker. `until_ms`: until when the trash
    keeps the old version; None without a trash. `completion`: the upload that has copies of the parts of `row`, if
    that is composed of parts; the object to be recorded is composed of the copies."""

    row: ObjectRow
    versioning: Versioning | None = None
    until_ms: int | None = None
    completion: CompletionOf | None = None


@dataclass(frozen=True, slots=True)
class PutRequest:
    """Everything that a PUT asks for except its bytes.

    `attributes`: see core.attributes. `condition`: judged on the version that the object would overwrite. `versioning`:
    the versioning state of the bucket. `step`: what the object is to a multipart upload, a large object, a locked
    version, or an object that is renamed. `lock`: the lock of the new version.
    `envelope`: for bytes that are encrypted already, returns their encoded envelope (core.encryption); its length is
    always the same, and its value is final when all bytes have been read.
    `length`: how many bytes will follow, if that is known, for quotas.
    `origin`: who asks, for the events of buckets with notifications.
    """

    key: ObjectKey
    attributes: bytes = b""
    condition: Condition | None = None
    versioning: Versioning | None = None
    step: UploadStep | TailOf | LockOf | RenameOf | None = None
    lock: Lock | None = None
    envelope: Callable[[], str] | None = field(default=None, compare=False)
    length: int | None = field(default=None, compare=False)
    origin: Origin = field(default_factory=current_origin, compare=False)

    def with_envelope(self) -> PutRequest:
        """Return the request with the present envelope among its attributes. Raises InvalidInput if they are too
        many."""
        if self.envelope is None:
            return self
        return replace(self, attributes=with_envelope(self.attributes, self.envelope()))


class _Requested:
    """Gives an object to record the fields of its request."""

    __slots__ = ()
    request: PutRequest

    @property
    def key(self) -> ObjectKey:
        return self.request.key

    @property
    def attributes(self) -> bytes:
        return self.request.attributes

    @property
    def condition(self) -> Condition | None:
        return self.request.condition

    @property
    def versioning(self) -> Versioning | None:
        return self.request.versioning

    @property
    def step(self) -> UploadStep | TailOf | LockOf | RenameOf | None:
        return self.request.step


@dataclass(frozen=True, slots=True)
class NewObject(_Requested):
    """An object to record: one whose bytes have landed, or an empty one (landing_id None, size 0)."""

    request: PutRequest
    size: int
    crc32c: int
    md5: bytes
    landing_id: LandingId | None
    due_ms: int
    """When the producer should publish it (creation time plus min_age)."""
    put_ms: int | None = None
    """The time in its landing copy, in Unix milliseconds, if it is later than now. The version is not older than it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a large object: `extent` holds its bytes, `crc32c` is their CRC. Parts are in order."""

    extent: Extent
    crc32c: int


@dataclass(frozen=True, slots=True)
class NewLargeObject(_Requested):
    """A large object whose blocks have been written and acknowledged.

    `block_stripes` gives the number of stripes of each block, in part order (one segment per block). `tail_bytes` is
    the size of the tail, which was recorded before as an object of its own (core.tails); `size` includes it.
    """

    request: PutRequest
    version: int
    size: int
    crc32c: int
    md5: bytes
    segments: Sequence[Segment]
    block_stripes: Sequence[int]
    tail_bytes: int = 0


class ObjectSummary(NamedTuple):
    """The fields of an object that most listings need, as users see it. `parts` is the number of its parts if `md5` is
    the MD5 of their MD5s, and None for an object that is not composed."""

    name: str
    size: int
    md5: bytes
    parts: int | None
    created_ms: int
    attributes: bytes


def summary(name: str, size: int, md5: bytes, created_ms: int, attributes: bytes) -> ObjectSummary:
    """Return the summary of an object with these values of its row. With a damaged envelope, it has the stored size, so
    that it does not hide the others of a listing. Raises Corrupt for otherwise damaged attributes."""
    composition = composition_of(attributes) if attributes else None
    parts = None
    if composition is not None:
        size, md5, parts = composition.size, composition.md5, composition.parts
    with suppress(Corrupt):
        envelope = envelope_of(attributes) if attributes else None
        size = size if envelope is None else envelope.plain_size(size)
    return ObjectSummary(name, size, md5, parts, created_ms, attributes)


_Object = TypeVar("_Object", ObjectRow, ObjectSummary)


@dataclass(frozen=True, slots=True)
class EntryPage(Generic[_Object]):
    """A page of a listing with folders (core.folders), in UTF-8 byte order. `next_after` is the last entry, after which
    the listing continues; None at the end of the listing."""

    entries: Sequence[_Object | str]
    next_after: str | None

    @property
    def objects(self) -> list[_Object]:
        """Return the objects among the entries."""
        return [entry for entry in self.entries if not isinstance(entry, str)]

    @property
    def folders(self) -> list[str]:
        """Return the folders among the entries."""
        return [entry for entry in self.entries if isinstance(entry, str)]


class Objects(Protocol):
    """Rows of objects and segments of large ones. See the package docstring. Safe to call from several threads."""

    # --- PUT --------------------------------------------------------------------------------------
    def record_puts(
        self, objects: Sequence[NewObject], now_ms: int, *, together: bool = False
    ) -> list[ObjectRow | NosError]:
        """Make landed or empty objects the current versions of their keys, and release the versions that they
        overwrite.

        Removes their landing ids from the deletion queue. The version is the first number from max(previous version +
        1, now_ms * 1000) on that is odd for a PUT with a condition, otherwise even. An overwritten landing copy is
        queued for deletion with `now_ms` as its time; an overwritten extent becomes dead bytes. Objects of one key are
        recorded in their order. The condition of each is judged on the locked row that it would overwrite, so after the
        objects before it. With versioning, or when the current version has a version id, that version may become
        noncurrent instead (see `Versions`).

        Returns for each object its row, or the reason why it alone was not recorded: a Transient when its landing id
        has been doomed meanwhile (the PUT took longer than its reservation), or is a record of a segment of the landing
        log that is not OPEN; PreconditionFailed or NotFound when its condition does not hold; NoSuchUpload or Conflict
        when its step of an upload cannot be taken, Conflict when the block of a tail is not OPEN, Locked when a lock
        protects a version that it would overwrite. With a LockOf, Conflict when its version is not there any more, or
        was changed, and Locked when the lock may not be changed like this. With a RenameOf, Conflict when the version
        to be renamed is not there any more, or was changed, and Locked when it is locked. All but a Transient make the
        reservation of its landing copy due at `now_ms`, because no object will claim the copy. With `together`, records
        all of them or none, and raises the first such error.

        May be called again with the same objects after any error: objects that an earlier call recorded are not
        recorded twice, and their conditions are not judged again. An empty object without a landing copy is not
        recognised, so its condition is judged again. The landing copy of an empty object that has one is queued for
        deletion at `now_ms` + EMPTY_COPY_MS.
        """

    def next_version(self, key: ObjectKey, now_ms: int, *, of_all: bool = False, conditional: bool = False) -> int:
        """Return a version for a large PUT that starts now, as `record_puts` assigns them. With `of_all`, the newest
        noncurrent version or marker counts if there is no current version. `conditional` means that the PUT has a
        condition."""

    def record_large(self, new: NewLargeObject, lease: Lease, now_ms: int) -> bool | NosError:
        """Make a large object the current version of its key, seal its blocks, and release the version that it
        overwrites.

        Returns False when a version that is at least as new has been recorded meanwhile, without a condition: the two
        PUTs were concurrent, this one counts as the first, and its blocks are sealed as dead. With ENABLED it becomes a
        noncurrent version instead, and True is returned.

        Returns an error when it is refused; its blocks are then condemned, and the caller may delete them. The errors
        are:
        * PreconditionFailed or NotFound when its condition does not hold;
        * NoSuchUpload or Conflict when its step of an upload cannot be taken;
        * Locked when a lock protects a version that it would overwrite;
        * Transient when its condition holds but a newer version, or a delete marker, has been recorded meanwhile, so
          that it would not be current; when the newest version or marker overtook it and was added under a condition,
          which would not have held after this PUT; or when, in a bucket with versions, another version has its number
          or, with ENABLED, had it.

        May be called again with the same object after a Transient that was raised. Raises LeaseLost, and ValueError
        when the version does not fit the condition (see `next_version`).
        """

    def set_attributes(self, row: ObjectRow, attributes: bytes) -> bool:
        """Replace the attributes of a version, which stays the same version. Returns False, and changes nothing, when
        it does not exist any more (it was overwritten, deleted, or is in the trash), or when its attributes are neither
        those of `row` nor `attributes`, because another caller has changed them."""

    # --- GET, DELETE, LIST ------------------------------------------------------------------------
    def get(self, key: ObjectKey) -> ObjectRow:
        """Return the current version. Raises NotFound, which carries the key."""

    def rows_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
        """Return the current versions of those of these keys that have one. Takes one statement, whatever their
        number."""

    def delete_parts(self, doomed: UploadRow, keys: Sequence[ObjectKey], now_ms: int) -> list[ObjectRow] | None:
        """Delete those of these parts of an upload that exist, in one transaction, and return them. Returns None, and
        deletes nothing, unless the upload is DOOMED, and since the same time: a move of the bucket may have brought
        these parts back."""

    def segments(self, object_id: int, version: int) -> list[Segment]:
        """Return the segments of a large object in part order; an empty list when that version no longer exists."""

    def delete(
        self, key: ObjectKey, now_ms: int, until_ms: int | None = None, condition: Condition | None = None
    ) -> ObjectRow:
        """Remove the object and release its bytes as `record_puts` does. Raises NotFound, which carries the key, and
        PreconditionFailed when its `condition` does not hold, and Locked while a lock protects it.

        With `until_ms`, it goes into the trash instead, which keeps it until then (see `Trash`), and nothing is
        released. A version that has an id becomes noncurrent instead, below a delete marker (see `Versions`).
        """

    def delete_many(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        """Remove several objects as `delete` does, all in one transaction of O(1) statements.

        Returns the rows that existed, in the order of `keys`. A key without an object is not an error, and a key that
        is listed twice counts once. Called again after a Transient, it returns only the rows that still existed. Raises
        Locked if locks protect some of the objects: those stay, and the others were removed.
        """

    def delete_unchanged(self, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        """Remove those of these versions that are still current and have the same attributes, as `delete_many` does.
        Returns the removed ones. Overwritten, changed and locked objects stay."""

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """Return objects of a bucket whose names start with `prefix` and are greater than `after`, by UTF-8 byte
        order."""

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """Return the names of the objects that `list_objects` returns. Much cheaper in a large store, because an index
        keeps the names together, while the rows are stored in the order of writing."""

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """Return objects and folders of a bucket that begin with `prefix` and are greater than `after`, by UTF-8 byte
        order; at most `limit` (1 or more) together. An empty delimiter folds nothing.

        A folder that equals `after`, or that contains `after`, is skipped as a whole. Reads a few rows of each folder,
        however many objects it has: one short statement for each folder, and a few more. So the page ends early after
        `budget_ms`, but not before its first entry; then `next_after` may be given although nothing follows.
        """

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """Return the same as `list_entries`, with summaries of the objects: a third of the work for a page of names."""

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """Return names of buckets that hold an object, greater than `after`, by UTF-8 byte order."""

    # --- producer and consumer --------------------------------------------------------------------
    def due_objects(self, now_ms: int, limit: int, slots: Collection[int]) -> list[ObjectRow]:
        """Return LANDED and QUEUED rows of these slots whose due time has come, longest due first, with their `due_ms`
        and `publication`.
        After them come rows that are due later than WAIT_MS_MAX from now: only a wrong clock can have set such a time.

        A row's slot is that of its bucket (`core.slots.bucket_slot`). A slot with more waiting rows than its share of
        `limit` leaves room for the other slots, even if its rows have been due for longer. The cost depends on `limit`
        and the number of slots, not on the number of waiting rows.
        """

    def oldest_landing_id(self) -> LandingId | None:
        """Return the landing id of a LANDED or QUEUED row that begins with the earliest time (`core.ids.time_of`). That
        is the object that has waited longest, or another one of its landing segment. None when no object waits.

        Reads two entries of an index, however many objects exist and wait.
        """

    def mark_published(self, rows: Sequence[ObjectRow], due_ms: int, publication: Publication | None = None) -> int:
        """Set rows QUEUED, and due again at `due_ms` in case the event is lost. `publication` describes their events;
        None if they have none, because the log refused them. Changes only rows that still have that version and are in
        the landing store. Returns how many it changed."""

    def postpone(self, rows: Sequence[ObjectRow], due_ms: int) -> None:
        """Set another due time for QUEUED rows whose events still wait. Changes only rows that still have that version
        and are QUEUED."""

    def waiting_requests(
        self, named: Sequence[NamedVersion], due_ms: int
    ) -> dict[NamedVersion, tuple[PackRequest, bytes]]:
        """Return the full requests of those named versions that wait to be packed, with the attributes of their
        objects. They are current, in the landing store, and either QUEUED or due at `due_ms`. The others are missing
        from the result.

        Takes one statement, whatever their number. As with `still_landed`, the commit makes the final decision.
        """

    def still_landed(self, requests: Sequence[PackRequest]) -> dict[PackRequest, bytes]:
        """Return the requests that are still valid, with the attributes of their objects: a row has the same value in
        every field, and its bytes are in the landing store.

        Takes one statement, whatever their number. The result may be out of date at once. It only saves work, because
        the commit makes the final decision. An id, version and key that belong together do so forever, so headers name
        the same keys as rows (invariant 7).
        """
