"""Buckets as their owners see them, what they hold, the rights of accounts in them, and the access keys of the S3
gateway.

A bucket needs no row to hold objects: the Python library and the command line put objects into any bucket. A bucket
that holds an object and has no row belongs to ROOT_ACCOUNT; changing the bucket adds the row. Therefore PUTs lock no
row of a bucket, and cost nothing more (docs/adr/0030).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, StrEnum
from typing import Protocol

ROOT_ACCOUNT = "root"
"""The account that owns every bucket, in addition to the owner that a bucket names. Its keys may do everything."""
ACCOUNT_BYTES_MAX = 64
ACCESS_KEY_BYTES_MAX = 128
SECRET_BYTES_MAX = 512
NOTE_BYTES_MAX = 255
GENERATION_BYTES = 8
DOCUMENT_BYTES_MAX = 32 << 10
METERED_MS = 10_000
"""How long a process uses what it knows about whether a bucket is metered, before it reads it again."""


class CannedAcl(StrEnum):
    """The canned ACL of a bucket, as S3 calls it. The bucket's owner may always do everything. GRANTS stands for an ACL
    that is not canned: its grants are in the bucket's document of kind ACL, and without that document it grants
    nothing."""

    PRIVATE = "private"
    PUBLIC_READ = "public-read"
    PUBLIC_READ_WRITE = "public-read-write"
    AUTHENTICATED_READ = "authenticated-read"
    GRANTS = "grants"


class DocumentKind(StrEnum):
    """The documents that a bucket may have in addition to its row. TAGS, CORS, POLICY, PUBLIC_ACCESS and WEBSITE are
    stored as they were sent, ACL and OBJECT_LOCK as the gateway writes them, LIFECYCLE as `core.expiry` writes it,
    VERSIONING as a word of `core.versions.Versioning`, OWNERSHIP as a word of `s3.public_access.Ownership`, ENCRYPTION
    as the name of an algorithm, NOTIFICATION as `core.notifications.configuration` writes it, LOGGING as
    `gateway.auth.log_target` writes it. A bucket with a QUOTA, a JSON object, is metered (`Usage`). WIDE, which a wide
    bucket has in each of its cells, has the names of the cells of its slices, separated by commas."""

    TAGS = "tags"
    ACL = "acl"
    CORS = "cors"
    LIFECYCLE = "lifecycle"
    POLICY = "policy"
    VERSIONING = "versioning"
    PUBLIC_ACCESS = "public-access"
    OWNERSHIP = "ownership"
    OBJECT_LOCK = "object-lock"
    ENCRYPTION = "encryption"
    NOTIFICATION = "notification"
    WEBSITE = "website"
    LOGGING = "logging"
    QUOTA = "quota"
    WIDE = "wide"


class KeyState(StrEnum):
    """The state of an access key, which is valid only while it is ACTIVE."""

    ACTIVE = "active"
    DISABLED = "disabled"


class AccessOf(StrEnum):
    """The kinds of records that decide which account may do what."""

    BUCKET = "bucket"
    KEY = "key"


class Rights(Flag):
    """The rights of an account in a bucket that it does not own. READ_ACL and WRITE_ACL come from ACLs alone."""

    NONE = 0
    READ = 1
    WRITE = 2
    LIST = 4
    OWNER = 8
    READ_ACL = 16
    WRITE_ACL = 32


@dataclass(frozen=True, slots=True)
class BucketRow:
    """A bucket. `created_ms` is 0 for a bucket without a row, which exists because it holds objects."""

    name: str
    owner: str
    created_ms: int
    acl: CannedAcl = CannedAcl.PRIVATE


@dataclass(frozen=True, slots=True)
class AccessKey:
    """An access key of an account. `secret` is encrypted and opaque here. `note` is free text about the key's holder.

    `generation` is random: temporary credentials that were made with the key end when it changes. The metadata draws it
    when the key is added, so also when it is restored from a dump, which may be older than the end of a session.
    """

    access_key: str
    account: str
    secret: bytes
    state: KeyState
    created_ms: int
    note: str = ""
    generation: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket with everything that belongs to it: the rights of accounts in it, and its documents."""

    row: BucketRow
    grants: Mapping[str, Rights]
    documents: Mapping[DocumentKind, bytes]


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """The quota of a bucket and that of its owner, as stored (core.quotas.quota), and what both hold. These are None
    without a quota; `bucket_used` also while the bucket's objects have not been counted."""

    bucket: str
    account: str
    bucket_quota: bytes | None
    account_quota: bytes | None
    bucket_used: Sums | None
    account_used: Sums | None


class BucketState(Protocol):
    """Rows, grants and documents of buckets, by the names of the buckets. Safe to call from several threads."""

    def create_bucket(self, name: str, owner: str, acl: CannedAcl, now_ms: int) -> bool:
        """Create a bucket. Returns False, and changes nothing, if it exists: it has a row, or holds an object."""

    def bucket(self, name: str) -> BucketRow | None:
        """Return the bucket; None when it has no row and holds no object."""

    def delete_bucket(self, name: str, now_ms: int) -> bool:
        """Delete a bucket with its documents and grants. Returns False if there was none. Raises Conflict, and changes
        nothing, while it holds an object.

        A concurrent PUT may put an object into the bucket. Then the bucket exists again and belongs to the same owner,
        which is remembered until the bucket is created again.
        """

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """Return buckets with a row and this owner, by UTF-8 byte order of their names. For ROOT_ACCOUNT, also those
        without a row."""

    def set_bucket_owner(self, name: str, owner: str, now_ms: int) -> bool:
        """Give a bucket to another account, and remove the grant of that account, because an owner needs none. Returns
        False if there is no such bucket."""

    def set_bucket_acl(self, name: str, acl: CannedAcl, now_ms: int, grants: bytes | None = None) -> bool:
        """Set the ACL and its document at once, so that a bucket never has the grants of one ACL and the kind of
        another. `grants` is the document of kind ACL; None removes it. Returns False if there is no such bucket. Raises
        InvalidInput for more than DOCUMENT_BYTES_MAX bytes."""

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        """Return the document's body as it was set last; None if it was never set, or removed."""

    def bucket_documents(self, name: str, kinds: Collection[DocumentKind]) -> dict[DocumentKind, bytes]:
        """Return the documents of these kinds that the bucket has, all as of one point in time."""

    def set_bucket_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        """Set a document of a bucket; a body of None removes it. Returns False if there is no such bucket. Raises
        InvalidInput for a body of more than DOCUMENT_BYTES_MAX bytes."""

    def grant(self, name: str, account: str, rights: Rights, now_ms: int) -> bool:
        """Replace the rights of an account in a bucket; NONE removes them. Returns False if there is no such bucket."""

    def grants(self, name: str) -> dict[str, Rights]:
        """Return the rights of accounts in a bucket that is not theirs."""


class Buckets(BucketState, Protocol):
    """Rows of buckets and of grants. See the package docstring. Safe to call from several threads."""

    def documents_of(self, kind: DocumentKind, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return one page of the documents of this kind, with the names of their buckets, by UTF-8 byte order of these
        names. The query also steps over each document of another kind."""

    def correct_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        """Do the same as `set_bucket_document`, but make no call of AccessChanges: for a document that is a copy, and
        can be corrected again after a rebuild of the metadata."""

    def bucket_records(self, after: str, limit: int) -> list[BucketRecord]:
        """Return one page of the buckets that have a row, for dumps, by UTF-8 byte order of their names."""

    def restore_buckets(self, records: Sequence[BucketRecord]) -> None:
        """Write buckets as they were dumped, in place of existing ones of the same names. Calling it again changes
        nothing."""


class AccessChanges(Protocol):
    """Reports changes of `Buckets` and `AccessKeys`."""

    def on_access_changed(self, call: Callable[[AccessOf, str], object]) -> None:
        """Register a callback. Each later method that changes a row, documents or grants makes this call with the name
        of the bucket or access key, after the change is durable and before the method returns, except for
        `restore_buckets` and `correct_document`. Exceptions of the callback are passed on."""


class AccessKeys(Protocol):
    """Access keys of accounts. See the package docstring. Safe to call from several threads."""

    def add_access_key(self, key: AccessKey) -> None:
        """Add an access key, with a new generation. Raises Conflict if the name is taken."""

    def access_key(self, access_key: str) -> AccessKey | None:
        """Return the access key; None if it does not exist."""

    def access_keys(self, after: str, limit: int) -> list[AccessKey]:
        """Return one page of all keys, by UTF-8 byte order of their names."""

    def change_access_key(
        self,
        access_key: str,
        state: KeyState | None = None,
        secret: bytes | None = None,
        *,
        instead_of: bytes | None = None,
        ends_sessions: bool = False,
    ) -> bool:
        """Set the state and the secret of a key, unless they are None, and a new generation if `ends_sessions`. Returns
        False if there is no such key, or, with `instead_of`, if it has another secret than this."""

    def remove_access_key(self, access_key: str) -> bool:
        """Remove an access key. Returns False if there was none."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Bytes and objects: what a bucket or account holds, or a change of it, which may be negative."""

    bytes: int = 0
    objects: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.bytes + other.bytes, self.objects + other.objects)

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.bytes - other.bytes, self.objects - other.objects)


NOTHING = Sums()


@dataclass(frozen=True, slots=True)
class BucketUsage:
    """The sums of a metered bucket, with changes that are not folded yet.

    `held` is what it holds. While `counted_ms` is None, its objects have not been counted yet, and `held` has only the
    changes since `since_ms`, when the bucket became metered. `changed` has all bytes and objects that were added and
    removed since then, added up; it only grows.
    """

    bucket: str
    held: Sums
    changed: Sums
    since_ms: int
    counted_ms: int | None


@dataclass(frozen=True, slots=True)
class SizesPage:
    """The sums of a page of rows. `next` is the last name, and the version number for noncurrent versions, after which
    the next page begins; None at the end."""

    sums: Sums
    next: tuple[str, int] | None


class Usage(Protocol):
    """Bytes and objects of buckets, as sums of changes (docs/adr/0058). Safe to call from several threads.

    Rows of objects are counted as they are stored: current and noncurrent versions, the parts of uploads in the bucket
    of the upload, and manifests. Delete markers, tails of large objects and the trash are not counted. Only buckets
    that are metered have sums. Each change of their objects adds a row of changes in its own transaction, and locks no
    row of the bucket; `fold_usage` adds these rows to the sums. Only a store with `count_usage` adds changes.
    """

    def count_usage(self) -> None:
        """From now on, add the changes of metered buckets. A bucket that becomes metered is known after METERED_MS."""

    def meter_bucket(self, bucket: str, now_ms: int) -> bool:
        """Begin to sum up the changes of a bucket. Its objects must be counted later (`settle_usage`). Returns False,
        and changes nothing, if it is metered."""

    def unmeter_bucket(self, bucket: str) -> bool:
        """Forget the sums of a bucket. Returns False if it was not metered."""

    def bucket_usage(self, bucket: str) -> BucketUsage | None:
        """Return the usage of a metered bucket; None if it is not metered. Runs one statement, so changes that are
        folded meanwhile count once."""

    def bucket_usages(self, after: str, limit: int) -> list[BucketUsage]:
        """Return one page of the metered buckets, by UTF-8 byte order of their names."""

    def account_usage(self, account: str) -> Sums:
        """Return the sums of all metered buckets of an account."""

    def quota_facts(self, bucket: str) -> QuotaFacts:
        """Return the quotas that a PUT into this bucket must meet. Runs two look-ups, and one more for each quota."""

    def fold_usage(self, limit: int) -> int:
        """Add at most `limit` changes to the sums, and remove exactly these. Returns how many. Those that another
        process has folded meanwhile are left out."""

    def settle_usage(self, bucket: str, since_ms: int, correction: Sums, now_ms: int) -> bool:
        """Add the difference between what was counted and the sums at that moment, and mark the bucket as counted at
        `now_ms`. Returns False, and changes nothing, if it is not metered since `since_ms` any more, or was counted by
        another process meanwhile, whose correction would count twice."""

    def current_sizes(self, bucket: str, after: str, limit: int) -> SizesPage:
        """Sum up at most `limit` current versions of a bucket, which may be hidden, after this name."""

    def noncurrent_sizes(self, bucket: str, after: tuple[str, int] | None, limit: int) -> SizesPage:
        """Sum up at most `limit` noncurrent versions of a bucket, after this name and version number. Delete markers
        are stepped over."""
