"""Who has sent a request, and what they may do. Asks the metadata, and remembers the answers for a short time.

Owners, grants and ACLs: docs/S3.md. An object belongs to the owner of its bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

import structlog

from nos_ec.core.errors import NosError
from nos_ec.core.expiry import BucketRules, decode_rules
from nos_ec.core.versions import Versioning
from nos_ec.gateway.auth.accounts import AccountsMetadata
from nos_ec.gateway.auth.acls import bucket_rights, is_full_control, is_public, object_rights, without_groups
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ROOT_ACCOUNT, BucketRow, CannedAcl, DocumentKind, KeyState, Rights
from nos_ec.s3.errors import S3Error
from nos_ec.s3.policy import Policy, deny_everything, policy_of
from nos_ec.s3.public_access import (
    BLOCK_EVERYTHING,
    BLOCK_NOTHING,
    Ownership,
    PublicAccessBlock,
    public_access_block,
)

REMEMBERED_MAX = 10_000
"""Access keys, and buckets, that are remembered."""
DOCUMENTS_MAX = 500
"""Documents that are remembered, each of at most 32 KiB."""
_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

_OF_ACCESS = (
    DocumentKind.VERSIONING,
    DocumentKind.ACL,
    DocumentKind.POLICY,
    DocumentKind.PUBLIC_ACCESS,
    DocumentKind.OWNERSHIP,
)
"""The documents that BucketAccess is made of."""

EVERYTHING = Rights.READ | Rights.WRITE | Rights.LIST | Rights.OWNER | Rights.READ_ACL | Rights.WRITE_ACL


@dataclass(frozen=True, slots=True)
class Account:
    """Who has sent a signed request."""

    name: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """A bucket, and what accounts may do in it that do not own it. acl: as gateway.acls stores it. policy: None for
    none; gateway.policies says what it does. versioning: None if it never had versions. public_access, ownership: the
    public access block and the ownership controls; None for none."""

    row: BucketRow
    grants: Mapping[str, Rights]
    acl: str
    policy: Policy | None = None
    versioning: Versioning | None = None
    public_access: PublicAccessBlock = BLOCK_NOTHING
    ownership: Ownership | None = None

    @property
    def has_acls(self) -> bool:
        """Whether ACLs count, and may be set."""
        return self.ownership is not Ownership.ENFORCED

    def effective(self, acl: str) -> str:
        """What counts of a stored ACL, of the bucket or of an object in it."""
        if not self.has_acls:
            return "private"
        return without_groups(acl) if self.public_access.ignore_acls else acl

    def require_acl(self, acl: str, *, of_headers: bool) -> None:
        """Whether an ACL may be set, of the bucket or of an object in it. of_headers: it was sent in headers, and not
        as a document, of which that of a private bucket says that its owner has full control. Raises
        AccessControlListNotSupported, AccessDenied."""
        is_owners = is_full_control(acl, self.row.owner) or (acl == "private" and not of_headers)
        if not self.has_acls and not is_owners:
            raise S3Error("AccessControlListNotSupported", "The bucket does not allow ACLs")
        if self.public_access.block_acls and is_public(acl):
            raise S3Error("AccessDenied", "The public access block of the bucket allows no public ACLs.")

    def object_rights(self, acl: str, account: str | None) -> Rights:
        """What the stored ACL of an object in the bucket allows to an account, or to anybody for None."""
        return object_rights(self.effective(acl), account)

    def require_owner(self, expected: str | None) -> None:
        """Raises AccessDenied if a request expects another owner; None expects nothing."""
        if expected is not None and expected != self.row.owner:
            raise S3Error("AccessDenied", "The bucket has another owner than was expected.")

    def rights_of(self, account: str | None, *, with_acl: bool = True) -> Rights:
        """What an account may do, or anybody for None. with_acl: also by the ACL of the bucket."""
        if account is not None and account in (ROOT_ACCOUNT, self.row.owner):
            return EVERYTHING
        found = bucket_rights(self.effective(self.acl), account) if with_acl else Rights.NONE
        if account is None:
            return found
        found |= self.grants.get(account, Rights.NONE)
        return EVERYTHING if Rights.OWNER in found else found


def no_bucket(name: str) -> S3Error:
    """A bucket that is not there."""
    return S3Error("NoSuchBucket", "The specified bucket does not exist.", BucketName=name)


class Access:
    """Looks up access keys and buckets. Safe to call from several threads."""

    def __init__(self, metadata: AccountsMetadata, masters: MasterKeys, clock: Clock, remember_ms: int) -> None:
        self._metadata = metadata
        self._masters = masters
        self._accounts: _Remembered[Account | None] = _Remembered(clock, remember_ms)
        self._buckets: _Remembered[BucketAccess] = _Remembered(clock, remember_ms)
        self._documents: _Remembered[bytes | None] = _Remembered(clock, remember_ms, DOCUMENTS_MAX)
        self._rules: _Remembered[BucketRules | None] = _Remembered(clock, remember_ms, DOCUMENTS_MAX)

    def account(self, access_key: str) -> Account | None:
        """Whose key it is; None if there is no active key of this name. Raises Transient, ConfigError, Corrupt."""
        return self._accounts.find(access_key, self._look_up_account)

    def bucket(self, name: str) -> BucketAccess:
        """Raises S3Error (NoSuchBucket), Transient."""
        return self._buckets.find(name, self._look_up_bucket)

    def require_same(self, seen: BucketAccess) -> None:
        """For when a body has come: a bucket that was deleted meanwhile must not come back with the object in it, nor
        may the object get into the next one of that name. Raises S3Error (NoSuchBucket), Transient."""
        row = self.bucket(seen.row.name).row
        if (row.owner, row.created_ms) != (seen.row.owner, seen.row.created_ms):
            raise no_bucket(row.name)

    def document(self, name: str, kind: DocumentKind) -> bytes | None:
        """A document of a bucket; None if it has none. Raises Transient."""
        return self._documents.find(_key_of(name, kind), lambda _: self._metadata.bucket_document(name, kind))

    def set_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> None:
        """Replace a document of a bucket, or remove it for None. This process knows it at once. Raises S3Error
        (NoSuchBucket), Transient."""
        try:
            if not self._metadata.set_bucket_document(name, kind, body, now_ms):
                raise no_bucket(name)
        finally:
            self.forget_bucket(name)

    def rules(self, name: str) -> BucketRules | None:
        """The lifecycle rules of a bucket; None if it has none. Also if they cannot be read: only headers need them,
        and what was stored must not be answered as a failure."""
        try:
            return self._rules.find(name, self._look_up_rules)
        except NosError as error:
            _log.warning("lifecycle rules not read", bucket=name, error=str(error))
            return None

    def forget_bucket(self, name: str) -> None:
        """To be called when this process has changed it."""
        self._buckets.forget(name)
        self._rules.forget(name)
        for kind in DocumentKind:
            self._documents.forget(_key_of(name, kind))

    def _look_up_account(self, access_key: str) -> Account | None:
        key = self._metadata.access_key(access_key)
        if key is None or key.state is not KeyState.ACTIVE:
            return None
        return Account(key.account, self._masters.open(access_key, key.secret))

    def _look_up_rules(self, name: str) -> BucketRules | None:
        body = self._metadata.bucket_document(name, DocumentKind.LIFECYCLE)
        return None if body is None else BucketRules(decode_rules(body))

    def _look_up_bucket(self, name: str) -> BucketAccess:
        row = None if name.startswith(".") else self._metadata.bucket(name)  # those are the store's own
        if row is None:
            raise no_bucket(name)
        found = self._metadata.bucket_documents(name, _OF_ACCESS)
        said = found.get(DocumentKind.VERSIONING)
        return BucketAccess(
            row,
            self._metadata.grants(name),
            _acl_of(row, found.get(DocumentKind.ACL)),
            _policy_of(name, found.get(DocumentKind.POLICY)),
            None if said is None else Versioning(said.decode()),
            _public_access_of(name, found.get(DocumentKind.PUBLIC_ACCESS)),
            _ownership_of(name, found.get(DocumentKind.OWNERSHIP)),
        )


def _acl_of(row: BucketRow, body: bytes | None) -> str:
    if row.acl is not CannedAcl.GRANTS:
        return row.acl.value
    return CannedAcl.PRIVATE.value if body is None else body.decode()


def _policy_of(name: str, body: bytes | None) -> Policy | None:
    """A policy that cannot be read denies everything, until the owner replaces it."""
    try:
        return None if body is None else policy_of(body, name)
    except S3Error as error:
        _log.error("bucket policy not read; it denies everything", bucket=name, error=str(error))
        return deny_everything()


def _public_access_of(name: str, body: bytes | None) -> PublicAccessBlock:
    """One that cannot be read blocks everything, until the owner replaces it."""
    try:
        return BLOCK_NOTHING if body is None else public_access_block(body)
    except S3Error as error:
        _log.error("public access block not read; it blocks everything", bucket=name, error=str(error))
        return BLOCK_EVERYTHING


def _ownership_of(name: str, body: bytes | None) -> Ownership | None:
    """One that cannot be read lets no ACL count."""
    try:
        return None if body is None else Ownership(body.decode())
    except ValueError:
        _log.error("ownership controls not read; no ACL counts", bucket=name)
        return Ownership.ENFORCED


def _key_of(name: str, kind: DocumentKind) -> str:
    return f"{kind.value}/{name}"


class _Remembered(Generic[_T]):
    """The last answers, at most `most`, each for `remember_ms`. A clock that is set back makes none older than that."""

    def __init__(self, clock: Clock, remember_ms: int, most: int = REMEMBERED_MAX) -> None:
        self._clock = clock
        self._remember_ms = remember_ms
        self._most = most
        self._lock = Lock()
        self._answers: OrderedDict[str, tuple[int, _T]] = OrderedDict()

    def find(self, name: str, look_up: Callable[[str], _T]) -> _T:
        now_ms = self._clock.now_ms()
        with self._lock:
            known = self._answers.get(name)
        if known is not None and 0 <= now_ms - known[0] < self._remember_ms:
            return known[1]
        found = look_up(name)
        with self._lock:
            self._answers[name] = (now_ms, found)
            self._answers.move_to_end(name)
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return found

    def forget(self, name: str) -> None:
        with self._lock:
            self._answers.pop(name, None)
