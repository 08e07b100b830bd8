"""Looks up who sent a request and what the sender may do. Answers from the metadata are cached for a short time.

Owners, grants and ACLs: docs/S3.md. An object belongs to the owner of its bucket.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

import structlog

from nos_ec.core.errors import NosError, Transient
from nos_ec.core.expiry import BucketRules, decode_rules
from nos_ec.core.versions import Versioning
from nos_ec.gateway.auth.accounts import AccountsMetadata
from nos_ec.gateway.auth.acls import bucket_rights, is_full_control, is_public, object_rights, without_groups
from nos_ec.gateway.auth.log_target import LogTarget, decode_target
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.auth.session_tokens import SessionTokens, invalid_token
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import ROOT_ACCOUNT, BucketRow, BucketState, CannedAcl, DocumentKind, KeyState, Rights
from nos_ec.s3.errors import S3Error
from nos_ec.s3.object_lock import LockConfiguration, lock_configuration
from nos_ec.s3.policy import Policy, deny_everything, policy_of, session_policy_of
from nos_ec.s3.public_access import (
    BLOCK_EVERYTHING,
    BLOCK_NOTHING,
    Ownership,
    PublicAccessBlock,
    public_access_block,
)
from nos_ec.s3.sts import Session

REMEMBERED_MAX = 10_000
"""Maximum number of cached access keys, and of cached buckets."""
DOCUMENTS_MAX = 500
"""Maximum number of cached documents, each of at most 32 KiB."""
STALE_MS = 3600 * 1000
"""How long an access key that was looked up stays known while the directory cannot be read. Without the directory no
key can be disabled either."""
AWAY_MS = 5_000
"""How long the directory counts as away after a failed look-up, so that not every request waits for it."""
_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

_OF_ACCESS = (
    DocumentKind.VERSIONING,
    DocumentKind.ACL,
    DocumentKind.POLICY,
    DocumentKind.PUBLIC_ACCESS,
    DocumentKind.OWNERSHIP,
    DocumentKind.OBJECT_LOCK,
    DocumentKind.ENCRYPTION,
    DocumentKind.LOGGING,
)
"""The documents from which a BucketAccess is made."""

EVERYTHING = Rights.READ | Rights.WRITE | Rights.LIST | Rights.OWNER | Rights.READ_ACL | Rights.WRITE_ACL


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a signed request: an account, by one of its access keys or in a session, which may do no more than
    its policy allows. `generation` is that of the access key, or of the key that the session was made with."""

    account: str
    secret: str = field(repr=False)
    generation: bytes
    session: Session | None = None
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """A bucket and the rights of accounts in it. `acl` is in the stored form of auth/acls.py. operations/policies.py
    evaluates `policy`. `versioning` is None if the bucket never had versions. `ownership` is None if the bucket has no
    ownership controls, and `lock` if it has no object lock. `encryption` is its encryption configuration as it is
    stored, None without one. `logging` is where its access log is stored, None without one."""

    row: BucketRow
    grants: Mapping[str, Rights]
    acl: str
    policy: Policy | None = None
    versioning: Versioning | None = None
    public_access: PublicAccessBlock = BLOCK_NOTHING
    ownership: Ownership | None = None
    lock: LockConfiguration | None = None
    encryption: bytes | None = None
    logging: LogTarget | None = None

    @property
    def has_acls(self) -> bool:
        """Whether ACLs have an effect and may be set."""
        return self.ownership is not Ownership.ENFORCED

    def effective(self, acl: str) -> str:
        """Return the part of a stored ACL that has an effect, for the ACL of the bucket or of an object in it."""
        if not self.has_acls:
            return "private"
        return without_groups(acl) if self.public_access.ignore_acls else acl

    def require_acl(self, acl: str, *, in_headers: bool) -> None:
        """Raise an error if this ACL may not be set on the bucket or on an object in it. `in_headers`: it was sent in
        headers. A private ACL that was sent as a document is accepted even if ACLs are disabled, because it only grants
        full control to the owner. Raises AccessControlListNotSupported, AccessDenied."""
        is_owners = is_full_control(acl, self.row.owner) or (acl == "private" and not in_headers)
        if not self.has_acls and not is_owners:
            raise S3Error("AccessControlListNotSupported", "The bucket does not allow ACLs")
        if self.public_access.block_acls and is_public(acl):
            raise S3Error("AccessDenied", "The public access block of the bucket does not allow public ACLs.")

    def object_rights(self, acl: str, account: str | None) -> Rights:
        """Return what the stored ACL of an object in the bucket allows to an account, or to anyone for None."""
        return object_rights(self.effective(acl), account)

    def require_owner(self, expected: str | None) -> None:
        """Raise AccessDenied if the bucket has another owner than `expected`; None matches every owner."""
        if expected is not None and expected != self.row.owner:
            raise S3Error("AccessDenied", "The bucket has another owner than expected.")

    def rights_of(self, account: str | None, *, with_acl: bool = True) -> Rights:
        """Return what an account may do, or anyone for None. `with_acl` includes what the ACL of the bucket allows."""
        if account is not None and account in (ROOT_ACCOUNT, self.row.owner):
            return EVERYTHING
        found = bucket_rights(self.effective(self.acl), account) if with_acl else Rights.NONE
        if account is None:
            return found
        found |= self.grants.get(account, Rights.NONE)
        return EVERYTHING if Rights.OWNER in found else found


def no_bucket(name: str) -> S3Error:
    """Return the error for a bucket that does not exist."""
    return S3Error("NoSuchBucket", "The specified bucket does not exist.", BucketName=name)


class Access:
    """Looks up and caches access keys and buckets. Safe to call from several threads."""

    def __init__(
        self,
        metadata: AccountsMetadata,
        masters: MasterKeys,
        clock: Clock,
        remember_ms: int,
        random: Callable[[int], bytes],
        keys: AccountsMetadata | None = None,
        buckets: BucketState | None = None,
    ) -> None:
        """`random` returns the given number of cryptographically secure random bytes. `keys` has the access keys if
        `metadata` does not, because it is that of a cell. Then a key that was looked up stays known for STALE_MS while
        they cannot be read. `buckets` has the buckets if `metadata` does not."""
        self._metadata: BucketState = buckets or metadata
        self._access_keys = keys or metadata
        self._masters = masters
        self.tokens = SessionTokens(masters, random)
        self._clock = clock
        self._keys: _Cache[Sender | None] = _Cache(clock, remember_ms, stale_ms=0 if keys is None else STALE_MS)
        self._sessions: _Cache[Sender] = _Cache(clock, remember_ms, DOCUMENTS_MAX)
        self._buckets: _Cache[BucketAccess] = _Cache(clock, remember_ms)
        self._documents: _Cache[bytes | None] = _Cache(clock, remember_ms, DOCUMENTS_MAX)
        self._rules: _Cache[BucketRules | None] = _Cache(clock, remember_ms, DOCUMENTS_MAX)

    def share_keys(self, other: Access) -> None:
        """Remember access keys and sessions together with another one, which has the same."""
        self._keys, self._sessions = other._keys, other._sessions

    def sender(self, access_key: str, token: str | None) -> Sender | None:
        """Return who signs with an access key, or with temporary credentials if there is a token; None if no active
        access key has this name. Raises S3Error (InvalidToken, ExpiredToken), Transient, ConfigError, Corrupt."""
        if token is None:
            return self._keys.find(access_key, self._look_up_key)
        # By a hash, because a token is long; by the token, because the access key alone proves nothing.
        name = hashlib.sha256(f"{access_key}/{token}".encode()).hexdigest()
        found = self._sessions.find(name, lambda _: self._look_up_session(access_key, token))
        session = found.session
        assert session is not None
        parent = self._keys.find(session.parent, self._look_up_key)
        if parent is None or (parent.account, parent.generation) != (session.account, session.generation):
            raise invalid_token()
        if self._clock.now_ms() >= session.expires_s * 1000:
            raise S3Error("ExpiredToken", "The provided token has expired.")
        return found

    def bucket(self, name: str) -> BucketAccess:
        """Return the bucket of this name. Raises S3Error (NoSuchBucket), Transient."""
        return self._buckets.find(name, self._look_up_bucket)

    def require_same(self, seen: BucketAccess) -> None:
        """Raise NoSuchBucket if the bucket was deleted, or deleted and created again, since `seen` was looked up. Call
        it when a body has arrived, so that its object is not stored in a deleted bucket or in a new one of the same
        name. Raises S3Error (NoSuchBucket), Transient."""
        row = self.bucket(seen.row.name).row
        if (row.owner, row.created_ms) != (seen.row.owner, seen.row.created_ms):
            raise no_bucket(row.name)

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        """Return a document of a bucket, which may be cached; None if the bucket has none. Raises Transient."""
        return self._documents.find(_key_of(name, kind), lambda _: self._metadata.bucket_document(name, kind))

    def set_bucket_document(self, name: str, kind: DocumentKind, body: bytes | None, now_ms: int) -> None:
        """Replace a document of a bucket, or remove it for None. It is removed from this process's cache at once.
        Raises S3Error (NoSuchBucket), Transient."""
        try:
            if not self._metadata.set_bucket_document(name, kind, body, now_ms):
                raise no_bucket(name)
        finally:
            self.forget_bucket(name)

    def lifecycle_rules(self, name: str) -> BucketRules | None:
        """Return the lifecycle rules of a bucket; None if it has none. Also return None if they cannot be read: only
        headers need them, and a request that stored an object must not fail because of them."""
        try:
            return self._rules.find(name, self._look_up_rules)
        except NosError as error:
            _log.warning("cannot read lifecycle rules; leaving out expiry headers", bucket=name, error=str(error))
            return None

    def forget_bucket(self, name: str) -> None:
        """Remove a bucket from the cache. Call it when this process has changed the bucket."""
        self._buckets.forget(name)
        self._rules.forget(name)
        for kind in DocumentKind:
            self._documents.forget(_key_of(name, kind))

    def _look_up_key(self, access_key: str) -> Sender | None:
        key = self._access_keys.access_key(access_key)
        if key is None or key.state is not KeyState.ACTIVE:
            return None
        return Sender(key.account, self._masters.open(access_key, key.secret), key.generation)

    def _look_up_session(self, access_key: str, token: str) -> Sender:
        credentials = self.tokens.open(access_key, token)
        session = credentials.session
        policy = session_policy_of(session.policy.encode()) if session.policy else None
        return Sender(session.account, credentials.secret, session.generation, session, policy)

    def _look_up_rules(self, name: str) -> BucketRules | None:
        body = self._metadata.bucket_document(name, DocumentKind.LIFECYCLE)
        return None if body is None else BucketRules(decode_rules(body))

    def _look_up_bucket(self, name: str) -> BucketAccess:
        row = None if name.startswith(".") else self._metadata.bucket(name)  # reserved for the store
        if row is None:
            raise no_bucket(name)
        found = self._metadata.bucket_documents(name, _OF_ACCESS)
        versioning = found.get(DocumentKind.VERSIONING)
        return BucketAccess(
            row,
            self._metadata.grants(name),
            _acl_of(row, found.get(DocumentKind.ACL)),
            _policy_of(name, found.get(DocumentKind.POLICY)),
            None if versioning is None else Versioning(versioning.decode()),
            _public_access_of(name, found.get(DocumentKind.PUBLIC_ACCESS)),
            _ownership_of(name, found.get(DocumentKind.OWNERSHIP)),
            _lock_of(name, found.get(DocumentKind.OBJECT_LOCK)),
            found.get(DocumentKind.ENCRYPTION),
            _logging_of(name, found.get(DocumentKind.LOGGING)),
        )


def _acl_of(row: BucketRow, body: bytes | None) -> str:
    if row.acl is not CannedAcl.GRANTS:
        return row.acl.value
    return CannedAcl.PRIVATE.value if body is None else body.decode()


def _policy_of(name: str, body: bytes | None) -> Policy | None:
    """Return the policy. One that cannot be parsed denies everything until the owner replaces it."""
    try:
        return None if body is None else policy_of(body, name)
    except S3Error as error:
        _log.error("cannot parse bucket policy; denying everything", bucket=name, error=str(error))
        return deny_everything()


def _public_access_of(name: str, body: bytes | None) -> PublicAccessBlock:
    """Return the public access block. One that cannot be parsed blocks everything until the owner replaces it."""
    try:
        return BLOCK_NOTHING if body is None else public_access_block(body)
    except S3Error as error:
        _log.error("cannot parse public access block; blocking everything", bucket=name, error=str(error))
        return BLOCK_EVERYTHING


def _ownership_of(name: str, body: bytes | None) -> Ownership | None:
    """Return the ownership controls. With controls that cannot be parsed, ACLs are ignored."""
    try:
        return None if body is None else Ownership(body.decode())
    except ValueError:
        _log.error("cannot parse ownership controls; ignoring ACLs", bucket=name)
        return Ownership.ENFORCED


def _lock_of(name: str, body: bytes | None) -> LockConfiguration | None:
    """Return the object lock of a bucket. If it cannot be read, versions are still locked, but none is stored without a
    lock of its own until the owner sets it again."""
    try:
        return None if body is None else lock_configuration(body)
    except S3Error as error:
        _log.error("cannot parse object lock; refusing PUTs without a retention", bucket=name, error=str(error))
        return LockConfiguration(is_readable=False)


def _logging_of(name: str, body: bytes | None) -> LogTarget | None:
    """Return where the access log of a bucket is stored. One that cannot be read counts as none, because a request
    never fails for its log."""
    try:
        return None if body is None else decode_target(body)
    except ValueError as error:
        _log.error("cannot parse the configuration of an access log; writing none", bucket=name, error=str(error))
        return None


def _key_of(name: str, kind: DocumentKind) -> str:
    return f"{kind.value}/{name}"


class _Cache(Generic[_T]):
    """A cache of at most `size_max` answers, each for `remember_ms`. An entry from the future, after the clock was set
    back, is not used."""

    def __init__(self, clock: Clock, remember_ms: int, size_max: int = REMEMBERED_MAX, *, stale_ms: int = 0) -> None:
        """`stale_ms`: how old an answer may be while none can be looked up."""
        self._stale_ms = stale_ms
        self._away_until_ms = 0
        self._clock = clock
        self._remember_ms = remember_ms
        self._size_max = size_max
        self._lock = Lock()
        self._answers: OrderedDict[str, tuple[int, _T]] = OrderedDict()
        self._forgotten = 0
        """How often an answer was forgotten. A look-up that began before may have found what is no longer true."""

    def find(self, name: str, look_up: Callable[[str], _T]) -> _T:
        now_ms = self._clock.now_ms()
        with self._lock:
            known, forgotten = self._answers.get(name), self._forgotten
        if known is not None and 0 <= now_ms - known[0] < self._remember_ms:
            return known[1]
        is_stale = known is not None and 0 <= now_ms - known[0] < self._stale_ms
        if known is not None and is_stale and now_ms < self._away_until_ms <= now_ms + AWAY_MS:
            return known[1]
        try:
            found = look_up(name)
        except Transient:
            if known is None or not is_stale:
                raise
            self._away_until_ms = now_ms + AWAY_MS
            return known[1]
        with self._lock:
            if self._forgotten != forgotten:
                return found
            self._answers[name] = (now_ms, found)
            self._answers.move_to_end(name)
            if len(self._answers) > self._size_max:
                self._answers.popitem(last=False)
        return found

    def forget(self, name: str) -> None:
        with self._lock:
            self._forgotten += 1
            self._answers.pop(name, None)
