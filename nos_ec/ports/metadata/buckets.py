"""Buckets as their owners see them, who may use them, and the access keys of the S3 gateway.

A bucket needs no row to hold objects: the Python library and the command line put objects into any bucket. A bucket
that holds an object and has no row belongs to ROOT_ACCOUNT; a change to it adds the row. So PUTs lock no row of a
bucket, and cost nothing more (docs/adr/0030).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, StrEnum
from typing import Protocol

ROOT_ACCOUNT = "root"
"""The account that owns every bucket, besides the owner that a bucket names: its keys may do everything."""
ACCOUNT_BYTES_MAX = 64
ACCESS_KEY_BYTES_MAX = 128
SECRET_BYTES_MAX = 512
NOTE_BYTES_MAX = 255
DOCUMENT_BYTES_MAX = 32 << 10


class CannedAcl(StrEnum):
    """What S3 calls the canned ACL of a bucket. Its owner may always do everything. GRANTS: none of these; what it
    grants is in the bucket's document ACL, and without that it grants nothing."""

    PRIVATE = "private"
    PUBLIC_READ = "public-read"
    PUBLIC_READ_WRITE = "public-read-write"
    AUTHENTICATED_READ = "authenticated-read"
    GRANTS = "grants"


class DocumentKind(StrEnum):
    """What a bucket may have besides its row: TAGS, CORS, POLICY and PUBLIC_ACCESS as they were sent, ACL as the
    gateway writes it, LIFECYCLE as `core.expiry` does, VERSIONING a word of `core.versions.Versioning`, OWNERSHIP one
    of `s3.public_access.Ownership`."""

    TAGS = "tags"
    ACL = "acl"
    CORS = "cors"
    LIFECYCLE = "lifecycle"
    POLICY = "policy"
    VERSIONING = "versioning"
    PUBLIC_ACCESS = "public-access"
    OWNERSHIP = "ownership"


class KeyState(StrEnum):
    """An access key is only good while it is ACTIVE."""

    ACTIVE = "active"
    DISABLED = "disabled"


class AccessOf(StrEnum):
    """The kinds of records that decide who may do what."""

    BUCKET = "bucket"
    KEY = "key"


class Rights(Flag):
    """What an account may do in a bucket of another one. READ_ACL and WRITE_ACL come from ACLs alone."""

    NONE = 0
    READ = 1
    WRITE = 2
    LIST = 4
    OWNER = 8
    READ_ACL = 16
    WRITE_ACL = 32


@dataclass(frozen=True, slots=True)
class BucketRow:
    """created_ms: 0 for a bucket without a row, which exists because it holds objects."""

    name: str
    owner: str
    created_ms: int
    acl: CannedAcl = CannedAcl.PRIVATE


@dataclass(frozen=True, slots=True)
class AccessKey:
    """secret: encrypted, nothing here looks into it. note: whatever says whose it is."""

    access_key: str
    account: str
    secret: bytes
    state: KeyState
    created_ms: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket with all that it has: what accounts may do in it, and its documents."""

    row: BucketRow
    grants: Mapping[str, Rights]
    documents: Mapping[DocumentKind, bytes]


class Buckets(Protocol):
    """Rows of buckets and of grants. See the package docstring. Safe to call from several threads."""

    def create_bucket(self, name: str, owner: str, acl: CannedAcl, now_ms: int) -> bool:
        """Returns False, and changes nothing, if the bucket exists: it has a row, or holds an object."""
        ...

    def bucket(self, name: str) -> BucketRow | None:
        """None when it has no row and holds no object."""
        ...

    def delete_bucket(self, name: str, now_ms: int) -> bool:
        """Returns False if there was none. Raises Conflict while it holds an object, which stays. Its documents and
        grants go with it.

        A PUT that comes at the same time may put an object into the bucket. Then it exists again, and belongs to the
        same owner: that is remembered until somebody else creates the bucket.
        """
        ...

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        """Buckets with a row and this owner, by UTF-8 byte order of their names. Of ROOT_ACCOUNT, also those that have
        no row."""
        ...

    def set_bucket_owner(self, name: str, owner: str, now_ms: int) -> bool:
        """Give a bucket to another account, whose grant in it is removed because an owner needs none. Returns False if
        there is no such bucket."""
        ...

    def set_bucket_acl(self, name: str, acl: CannedAcl, now_ms: int, grants: bytes | None = None) -> bool:
        """Set the ACL and its document at once, so that a bucket never has the grants of one ACL and the kind of
        another. grants: the document of kind ACL; None removes it. Returns False if there is no such bucket. Raises
        InvalidInput for more than DOCUMENT_BYTES_MAX bytes."""
        ...

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        """The body that was set last."""
        ...

    def bucket_documents(self, name: str, kinds: Collection[DocumentKind]) -> dict[DocumentKind, bytes]:
        """Those of these kinds that the bucket has, as of one point in time."""
        ...

    def set_bucket_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> bool:
        """None removes it. Returns False if there is no such bucket. Raises InvalidInput for a body of more than
        DOCUMENT_BYTES_MAX bytes."""
        ...

    def documents_of(self, kind: DocumentKind, after: str, limit: int) -> list[tuple[str, bytes]]:
        """One page of the documents of this kind, with the names of their buckets, by UTF-8 byte order of these. Passes
        over the documents of other kinds: costs a step for each."""
        ...

    def grant(self, name: str, account: str, rights: Rights, now_ms: int) -> bool:
        """Replace what an account may do in a bucket; NONE removes it. Returns False if there is no such bucket."""
        ...

    def grants(self, name: str) -> dict[str, Rights]:
        """What accounts may do in a bucket that is not theirs."""
        ...

    def bucket_records(self, after: str, limit: int) -> list[BucketRecord]:
        """One page of the buckets that have a row, for dumps, by UTF-8 byte order of their names."""
        ...

    def restore_buckets(self, records: Sequence[BucketRecord]) -> None:
        """Write buckets as they were, in place of those with these names. Running it again changes nothing."""
        ...


class AccessChanges(Protocol):
    """Reports changes of `Buckets` and `AccessKeys`."""

    def on_access_changed(self, call: Callable[[AccessOf, str], object]) -> None:
        """Make this call, with the name of the bucket or access key, in each later method that changes its row,
        documents or grants, after the change is durable and before the method returns. Its exceptions are passed on."""
        ...


class AccessKeys(Protocol):
    """Access keys of accounts. See the package docstring. Safe to call from several threads."""

    def add_access_key(self, key: AccessKey) -> None:
        """Raises Conflict if there is another one of this name."""
        ...

    def access_key(self, access_key: str) -> AccessKey | None:
        """None if there is no such key."""
        ...

    def access_keys(self, after: str, limit: int) -> list[AccessKey]:
        """One page of all keys, by UTF-8 byte order of their names."""
        ...

    def change_access_key(self, access_key: str, state: KeyState, secret: bytes | None = None) -> bool:
        """Set its state, and its secret unless that is None. Returns False if there is no such key."""
        ...

    def remove_access_key(self, access_key: str) -> bool:
        """Returns False if there was none."""
        ...
