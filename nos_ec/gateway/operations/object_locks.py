"""Object locks: the configurations of buckets, and the retentions and legal holds of versions (docs/adr/0053).

Sources: PutObjectLockConfiguration, PutObjectRetention, PutObjectLegalHold and PutObject of the S3 API reference;
"Locking objects with Object Lock" of the S3 user guide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from nos_ec.core.errors import Conflict, Locked
from nos_ec.core.locking.lock import Lock, LockMode, lock_of
from nos_ec.core.versions import Versioning
from nos_ec.engine.objects.object_locks import ObjectLocks
from nos_ec.gateway.auth.access import Access, BucketAccess
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.message.versions import version_headers
from nos_ec.gateway.operations.attribute_changes import AttributeChanges
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.gateway.operations.policies import rights_on
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import DocumentKind, ObjectRow, Rights, UploadRow
from nos_ec.s3 import object_lock
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.object_lock import HOLD, MODE, UNTIL, Retention

_OF_LOCKS = frozenset(name.encode() for name in (MODE, UNTIL, HOLD))
_BYPASS = "x-amz-bypass-governance-retention"
Find = Callable[[Call, Mapping[str, str]], ObjectRow]
"""Returns the version that a request names, if its sender may do the operation. The mapping is the lock that the
request gives it, as headers would set it. Raises S3Error."""
_NO_LOCK: Mapping[str, str] = MappingProxyType({})


def _parse(call: Call, access: Access) -> bytes:
    configuration = object_lock.lock_configuration(read_document(call))
    access.forget_bucket(call.bucket)  # another gateway may just have suspended the versioning
    if access.bucket(call.bucket).versioning is not Versioning.ENABLED:
        raise S3Error(
            "InvalidBucketState", "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration"
        )
    return object_lock.lock_configuration_answer(configuration)


OBJECT_LOCK = DocumentType(
    DocumentKind.OBJECT_LOCK,
    _parse,
    ("ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket"),
)
"""A bucket that has it keeps it. A PUT only changes the default retention."""


class LocksOfPuts:
    """Decides which lock a new version gets. Safe to call from several threads."""

    def __init__(self, locks: ObjectLocks, clock: Clock) -> None:
        self._locks = locks
        self._clock = clock

    def of_headers(self, call: Call) -> Lock | None:
        """Return the lock that the headers of a request set; None without such headers. Raises InvalidRequest if the
        bucket has no object lock, InvalidArgument."""
        if _OF_LOCKS.isdisjoint(call.request.header_values):
            return None
        header = call.request.header
        mode, until, hold = header(MODE), header(UNTIL), header(HOLD)
        assert call.access is not None
        require_lock(call.access)
        retention = object_lock.retention_of_headers(mode, until)
        lock = Lock(hold=object_lock.hold_of_header(hold))
        if retention is None:
            return lock
        _require_future(retention, self._clock.now_ms())
        return replace(lock, mode=LockMode(retention.mode), until_ms=retention.until_ms)

    def of_put(self, call: Call) -> Lock | None:
        """Return the lock of the version that a request stores: by its headers, and by the default retention of the
        bucket if they have no retention. Raises the errors of `of_headers`, and Transient."""
        return self._with_default(call, self.of_headers(call))

    def of_upload(self, call: Call, upload: UploadRow) -> Lock | None:
        """Return the lock of the object of an upload: as the upload was created, and by the default retention."""
        return self._with_default(call, lock_of(upload.attributes))

    def _with_default(self, call: Call, lock: Lock | None) -> Lock | None:
        assert call.access is not None
        configuration = call.access.lock
        if configuration is None or (lock is not None and lock.mode is not None):
            return lock
        if not configuration.is_readable:
            raise S3Error(
                "ServiceUnavailable", "The default retention of the bucket is unreadable; its owner must set it again."
            )
        default = configuration.default
        if default is None:
            return lock
        until_ms = default.until_ms(self._locks.start_ms())
        return replace(lock or Lock(), mode=LockMode(default.mode), until_ms=until_ms)


def require_checksum(call: Call) -> None:
    """Raise InvalidRequest if a PUT that sets a lock by headers has no checksum of its body."""
    if _OF_LOCKS.isdisjoint(call.request.header_values):
        return
    names = [name.decode("latin-1") for name in call.request.header_values]
    has_checksum = any(name in ("content-md5", "x-amz-trailer") or name.startswith("x-amz-checksum-") for name in names)
    if not has_checksum:
        raise S3Error(
            "InvalidRequest",
            "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock"
            " parameters",
        )


def require_lock(access: BucketAccess) -> None:
    """Raise InvalidRequest if a bucket has no object lock."""
    if access.lock is None:
        raise S3Error("InvalidRequest", "Bucket is missing Object Lock Configuration")


def bypasses(call: Call, key: str, version: str | None, lock: Mapping[str, str] = _NO_LOCK) -> bool:
    """Return whether a request may bypass a retention in the mode GOVERNANCE: it has the header, and its sender the
    right. `lock` is the new lock, as headers would set it. Raises AccessDenied if a policy denies that."""
    if (call.request.header(_BYPASS) or "").lower() != "true":
        return False
    assert call.access is not None
    return Rights.OWNER in rights_on(call, call.access, "BypassGovernanceRetention", key, version, tags={}, sent=lock)


def lock_headers(call: Call, row: ObjectRow) -> dict[str, str]:
    """Return the headers with the lock of a version, as far as the sender may read them."""
    lock = row.lock if row.attributes else None
    if lock is None or call.access is None:
        return {}
    found = {}
    if lock.mode is not None and _may(call, call.access, "GetObjectRetention"):
        found = object_lock.retention_headers(Retention(lock.mode.value, lock.until_ms))
    if lock.hold and _may(call, call.access, "GetObjectLegalHold"):
        found[HOLD] = "ON"
    return found


def _may(call: Call, access: BucketAccess, operation: str) -> bool:
    try:
        return Rights.OWNER in rights_on(call, access, operation, call.key, call.request.parameter("versionId"))
    except S3Error:
        return False


class ObjectLockOperations:
    """The operations on retentions and legal holds. Safe to call from several threads."""

    def __init__(self, find: Find, locks: ObjectLocks, changes: AttributeChanges, clock: Clock) -> None:
        self._find = find
        self._locks = locks
        self._changes = changes
        self._clock = clock

    def get_retention(self, call: Call) -> Reply:
        """Return the retention of a version, also after its end."""
        lock = self._lock_to_show(call)
        if lock.mode is None:
            raise _none()
        return xml(object_lock.retention_answer(Retention(lock.mode, lock.until_ms)))

    def get_legal_hold(self, call: Call) -> Reply:
        """Return whether a version has a legal hold."""
        return xml(object_lock.legal_hold_answer(self._lock_to_show(call).hold))

    def put_retention(self, call: Call) -> Reply:
        """Set, extend or, with a bypass, shorten or remove the retention of a version."""
        call.require_if_decided(Rights.OWNER)
        retention = self._future_retention(read_document(call, may_be_empty=True))
        sent = object_lock.retention_headers(retention)
        self._require_lockable(call, sent)
        bypass = bypasses(call, call.key, call.request.parameter("versionId"), sent)

        def changed(lock: Lock) -> Lock:
            if retention is None:
                return replace(lock, mode=None, until_ms=0)
            return replace(lock, mode=LockMode(retention.mode), until_ms=retention.until_ms)

        return self._change(call, sent, changed, bypass=bypass)

    def put_legal_hold(self, call: Call) -> Reply:
        """Set or remove the legal hold of a version."""
        call.require_if_decided(Rights.OWNER)
        hold = object_lock.legal_hold(read_document(call, may_be_empty=True))
        sent = {HOLD: "ON" if hold else "OFF"}
        self._require_lockable(call, sent)
        return self._change(call, sent, lambda lock: replace(lock, hold=hold), bypass=False)

    def _require_lockable(self, call: Call, sent: Mapping[str, str]) -> None:
        """Raise an error unless the version exists, the sender may give it this lock, and its bucket has object lock.
        Like S3, the document was looked at before that."""
        assert call.access is not None
        self._find(call, sent)
        require_lock(call.access)

    def _future_retention(self, body: bytes) -> Retention | None:
        """Parse a retention. Raises InvalidArgument unless it ends in the future."""
        found = object_lock.retention(body)
        if found is not None:
            _require_future(found, self._clock.now_ms())
        return found

    def _lock_to_show(self, call: Call) -> Lock:
        row = self._find(call, _NO_LOCK)
        assert call.access is not None
        require_lock(call.access)
        if row.lock is None:
            raise _none()
        return row.lock

    def _change(self, call: Call, sent: Mapping[str, str], changed: Callable[[Lock], Lock], *, bypass: bool) -> Reply:
        def attempt() -> tuple[ObjectRow, bool]:
            row = self._find(call, sent)
            try:
                self._locks.change(row, changed(row.lock or Lock()), bypass=bypass)
            except Locked:
                raise
            except Conflict:
                return row, False
            return row, True

        return empty(version_headers(call.versioning, self._changes.repeat(attempt)))


def _require_future(retention: Retention, now_ms: int) -> None:
    """Raise InvalidArgument unless a retention ends in the future."""
    if retention.until_ms <= now_ms:
        raise invalid_argument("The retain until date must be in the future!", UNTIL)


def _none() -> S3Error:
    return S3Error("NoSuchObjectLockConfiguration", "The specified object does not have a ObjectLock configuration")
