"""Rows of objects, for PUT, GET, DELETE and LIST, and for the producer and the consumer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from nos_ec.core.conditions import Condition
from nos_ec.core.errors import NosError
from nos_ec.core.formats.messages import NamedVersion, PackRequest
from nos_ec.core.ids import BlockId, Extent, LandingId, ObjectKey
from nos_ec.core.parts import Composition, composition_of
from nos_ec.core.states import ObjectState
from nos_ec.core.versions import Versioning, has_version_id, is_of_versions
from nos_ec.ports.metadata.leases import Lease
from nos_ec.ports.metadata.uploads import UploadStep


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """A version of one object, the current one unless it says otherwise.

    `landing_id` is set when state.in_landing, `extent` when PACKED.

    `due_ms`: when the producer should publish it; set only in the rows that `due_objects` and `object_facts` return.
    `attributes`: see core.attributes; they belong to the version, and only `set_attributes` changes them.
    `trash_until_ms`: until when the trash keeps it, if it is a deleted version in the trash; set only in rows that
    methods of `Trash`, `objects_after`, `objects_with` and `object_facts` return. `trashed_ms`: when it was deleted,
    likewise. `is_noncurrent`: a version beside the current one (see `Versions`), likewise.
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
    attributes: bytes = b""
    trash_until_ms: int | None = field(default=None, compare=False)
    trashed_ms: int | None = field(default=None, compare=False)
    is_noncurrent: bool = field(default=False, compare=False)

    @property
    def has_version_id(self) -> bool:
        """Whether the version has an id of its own (core.versions). Raises Corrupt."""
        return has_version_id(self.attributes)

    @property
    def is_of_versions(self) -> bool:
        """Whether its key may have noncurrent versions (core.versions). Raises Corrupt."""
        return is_of_versions(self.attributes)

    @property
    def facts(self) -> tuple[int, int]:
        """When it was stored, in seconds, and its bytes that users see: what conditions of a DELETE may ask for."""
        return self.created_ms // 1000, self.users_size

    @property
    def composition(self) -> Composition | None:
        """What it is composed of, if its bytes are a manifest (core.parts). Raises Corrupt."""
        return composition_of(self.attributes) if self.attributes else None

    @property
    def users_size(self) -> int:
        """Bytes that users see: those of its parts, if it is composed."""
        composition = self.composition
        return self.size if composition is None else composition.size

    @property
    def users_crc32c(self) -> int:
        """CRC32C of these bytes."""
        composition = self.composition
        return self.crc32c if composition is None else composition.crc32c

    @property
    def in_windows(self) -> bool:
        """Whether its bytes are read in windows, because they may not fit into memory."""
        return self.state is ObjectState.LARGE or self.composition is not None

    @property
    def tag(self) -> tuple[bytes, int | None]:
        """The MD5 that users see, and the number of its parts if it is that of their MD5s."""
        composition = self.composition
        return (self.md5, None) if composition is None else (composition.md5, composition.parts)


@dataclass(frozen=True, slots=True)
class TailOf:
    """The object to be recorded is the tail of a large object whose last block this is. The block must be OPEN: so no
    tail is recorded after its block was collected."""

    block_id: BlockId


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object to record: one whose bytes have landed, or an empty one (landing_id None, size 0)."""

    key: ObjectKey
    size: int
    crc32c: int
    md5: bytes
    landing_id: LandingId | None
    due_ms: int
    """When the producer should publish it (creation time plus min_age)."""
    attributes: bytes = b""
    condition: Condition | None = None
    step: UploadStep | TailOf | None = None
    versioning: Versioning | None = None
    put_ms: int | None = None
    """The time in its landing copy, in Unix milliseconds, if that is after now. The version is not older than it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a large object: `extent` holds its bytes, `crc32c` is their CRC. Parts are in order."""

    extent: Extent
    crc32c: int


@dataclass(frozen=True, slots=True)
class NewLargeObject:
    """A large object whose blocks have been written and acknowledged.

    `block_stripes` gives the stripes of each block, in part order (one segment per block). `tail_bytes`: of the tail,
    which was recorded before as an object of its own (core.tails); `size` counts them.
    """

    key: ObjectKey
    version: int
    size: int
    crc32c: int
    md5: bytes
    segments: Sequence[Segment]
    block_stripes: Sequence[int]
    attributes: bytes = b""
    condition: Condition | None = None
    step: UploadStep | None = None
    tail_bytes: int = 0
    versioning: Versioning | None = None


class ObjectSummary(NamedTuple):
    """What most listings tell of an object, as users see it. parts: the number of its parts if `md5` is that of their
    MD5s, None for an object that is not composed."""

    name: str
    size: int
    md5: bytes
    parts: int | None
    created_ms: int
    attributes: bytes


def summary(name: str, size: int, md5: bytes, created_ms: int, attributes: bytes) -> ObjectSummary:
    """Of these values of a row. Raises Corrupt for damaged attributes."""
    composition = composition_of(attributes) if attributes else None
    if composition is None:
        return ObjectSummary(name, size, md5, None, created_ms, attributes)
    return ObjectSummary(name, composition.size, composition.md5, composition.parts, created_ms, attributes)


_Object = TypeVar("_Object", ObjectRow, ObjectSummary)


@dataclass(frozen=True, slots=True)
class EntryPage(Generic[_Object]):
    """A page of a listing with folders (core.folders), in UTF-8 byte order. next_after: the last entry, after which the
    listing continues; None when this is its end."""

    entries: Sequence[_Object | str]
    next_after: str | None

    @property
    def objects(self) -> list[_Object]:
        """The objects among the entries."""
        return [entry for entry in self.entries if not isinstance(entry, str)]

    @property
    def folders(self) -> list[str]:
        """The folders among the entries."""
        return [entry for entry in self.entries if isinstance(entry, str)]


class Objects(Protocol):
    """Rows of objects and segments of large ones. See the package docstring. Safe to call from several threads."""

    # --- PUT --------------------------------------------------------------------------------------
    def record_puts(
        self, objects: Sequence[NewObject], now_ms: int, *, together: bool = False
    ) -> list[ObjectRow | NosError]:
        """Make landed or empty objects the current versions of their keys, and release what they overwrite.

        Removes their landing ids from the deletion queue. The version is the first number from max(previous version +
        1, now_ms * 1000) on that is odd for a PUT with a condition, otherwise even. An overwritten landing copy is
        queued for deletion with `now_ms` as its time; an overwritten extent becomes dead bytes. Objects of one key are
        recorded in their order. The condition of each is judged on the row that it would overwrite, locked, so after
        those before it. With versioning, or when what is current has a version id, that may become noncurrent instead
        (see `Versions`).

        Returns for each object its row, or why it alone was not recorded: a Transient when its landing id has been
        doomed meanwhile (the PUT took longer than its reservation), or is a record of a segment of the landing log that
        is not OPEN; PreconditionFailed or NotFound when its condition does not hold; NoSuchUpload or Conflict when its
        step of an upload cannot be taken, Conflict when the block of a tail is not OPEN. All but a Transient make the
        reservation of its landing copy due at `now_ms`: nothing else will claim it. together: record all of them or
        none; raises the first such error. May be called again with the same objects after any error: those
        that an earlier call recorded are not recorded twice, and their conditions are not judged again. An empty object
        that has no landing copy is not recognised, so its condition is. The copy of one that has is queued for deletion
        at `now_ms` + EMPTY_COPY_MS.
        """
        ...

    def next_version(self, key: ObjectKey, now_ms: int, *, of_all: bool = False, conditional: bool = False) -> int:
        """Return a version for a large PUT that starts now, as `record_puts` assigns them. of_all: without a current
        version, the newest noncurrent version or marker counts. conditional: the PUT has a condition."""
        ...

    def record_large(self, new: NewLargeObject, lease: Lease, now_ms: int) -> bool | NosError:
        """Make a large object the current version of its key, seal its blocks, release what it overwrites.

        Returns False when a version that is at least as new has been recorded meanwhile, without a condition: the two
        PUTs were concurrent, this one counts as the first, and its blocks are sealed as dead. With ENABLED it becomes a
        noncurrent version then, and True is returned.

        Returns an error when it is refused: PreconditionFailed or NotFound when its condition does not hold,
        NoSuchUpload or Conflict when its step of an upload cannot be taken. Transient when its condition holds but a
        newer version, or a delete marker, has been recorded meanwhile, so that it would not be current; when the newest
        version or marker overtook it and was added under a condition, which would not have held after this PUT; or
        when, in a bucket with versions, another version has its number or, with ENABLED, had it. Its blocks are
        condemned then, and the caller may delete them. May be called again with the same object after a Transient that
        was raised. Raises LeaseLost, and ValueError when the version does not fit the condition (see `next_version`).
        """
        ...

    def set_attributes(self, row: ObjectRow, attributes: bytes) -> bool:
        """Replace the attributes of a version, which stays the same version. Returns False, and changes nothing, when
        it is not there any more (it was overwritten, deleted, or is in the trash), or when its attributes are
        neither those of `row` nor `attributes`: somebody else has changed them."""
        ...

    # --- GET, DELETE, LIST ------------------------------------------------------------------------
    def get(self, key: ObjectKey) -> ObjectRow:
        """The current version. Raises NotFound, which carries the key."""
        ...

    def rows_of(self, keys: Collection[ObjectKey]) -> dict[ObjectKey, ObjectRow]:
        """The current versions of these keys, as far as there are any. One statement, whatever their number."""
        ...

    def segments(self, object_id: int, version: int) -> list[Segment]:
        """Segments of a large object in part order; an empty list when that version no longer exists."""
        ...

    def delete(
        self, key: ObjectKey, now_ms: int, until_ms: int | None = None, condition: Condition | None = None
    ) -> ObjectRow:
        """Remove the object and release its bytes as `record_puts` does. Raises NotFound, which carries the key, and
        PreconditionFailed when its `condition` does not hold.

        until_ms: put it into the trash instead, which keeps it until then (see `Trash`). Nothing is released. A version
        that has an id becomes noncurrent instead, below a delete marker (see `Versions`).
        """
        ...

    def delete_many(self, keys: Sequence[ObjectKey], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        """Remove several objects as `delete` does, all in one transaction of O(1) statements.

        Returns the rows that existed, in the order of `keys`. A key without an object is no error, and a key that
        is listed twice counts once. Called again after a Transient, it returns only the rows that still existed.
        """
        ...

    def delete_unchanged(self, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None = None) -> list[ObjectRow]:
        """Remove those of these versions that are still current and have the same attributes, as `delete_many` does.
        Returns them. An object that was overwritten or changed meanwhile stays."""
        ...

    def list_objects(self, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
        """Objects of a bucket whose name starts with `prefix` and is greater than `after`, by UTF-8 byte order."""
        ...

    def list_names(self, bucket: str, prefix: str, after: str, limit: int) -> list[str]:
        """The names of the objects that `list_objects` returns. Much cheaper in a large store, because an index has the
        names side by side, while the rows lie where they were written."""
        ...

    def list_entries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectRow]:
        """Objects and folders of a bucket that begin with `prefix` and are greater than `after`, by UTF-8 byte order;
        at most `limit` (1 or more) together. An empty delimiter folds nothing.

        A folder that is `after`, or in which `after` lies, is passed over as a whole. Reads a few rows of each folder,
        however many objects it has: one short statement for each folder, and a few more. So the page ends early after
        `budget_ms`, but not before its first entry; then `next_after` may be given although nothing follows.
        """
        ...

    def list_summaries(
        self, bucket: str, prefix: str, delimiter: str, after: str, limit: int, budget_ms: int
    ) -> EntryPage[ObjectSummary]:
        """As `list_entries`, with summaries of the objects: for a page of names a third of the work."""
        ...

    def list_buckets(self, after: str, limit: int) -> list[str]:
        """Names of buckets that hold an object, greater than `after`, by UTF-8 byte order."""
        ...

    # --- producer and consumer --------------------------------------------------------------------
    def due_objects(self, now_ms: int, limit: int, slots: Collection[int]) -> list[ObjectRow]:
        """LANDED and QUEUED rows of these slots whose due time has come, longest due first, with their `due_ms`. After
        them come rows that are due later than WAIT_MS_MAX from now: only a wrong clock can have set such a time.

        A row's slot is that of its bucket (`core.slots.bucket_slot`). A slot with more waiting rows than its share of
        `limit` leaves room for the other slots, even if its rows have been due for longer. The cost depends on `limit`
        and the number of slots, not on the number of rows that wait.
        """
        ...

    def oldest_landing_id(self) -> LandingId | None:
        """The landing id of a LANDED or QUEUED row that begins with the earliest time (`core.ids.time_of`). That is the
        object that has waited longest, or one of its landing segment. None when no object waits.

        Reads two entries of an index, however many objects there are and wait.
        """
        ...

    def mark_published(self, rows: Sequence[ObjectRow], due_ms: int) -> int:
        """Set rows QUEUED, and due again at `due_ms` in case the event is lost. Changes only rows that still have that
        version and are in the landing store; returns how many."""
        ...

    def complete(self, named: Sequence[NamedVersion], due_ms: int) -> dict[NamedVersion, tuple[PackRequest, bytes]]:
        """The full requests of those named versions that wait to be packed, with the attributes of their objects:
        current, in the landing store, and either QUEUED or due at `due_ms`. The others are missing from the answer.

        One statement, whatever their number. As with `still_landed`, the commit decides.
        """
        ...

    def still_landed(self, requests: Sequence[PackRequest]) -> dict[PackRequest, bytes]:
        """The requests that still hold, with the attributes of their objects: a row has the same value in every field,
        and its bytes are in the landing store.

        One statement, whatever their number. The answer may be out of date at once. It only saves work, because the
        commit decides. An id, version and key that belong together do so forever, so headers name the same keys as
        rows (invariant 7).
        """
        ...
