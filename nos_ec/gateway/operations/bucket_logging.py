"""Access logs of buckets: their configuration, and how an object of a log is stored.

A log object is stored like an object of the owner of the target bucket, in whatever cell that is. It takes no part in
the requests of clients, so it is in no log itself (docs/adr/0064).

Source: PutBucketLogging of the S3 API reference; "Enabling Amazon S3 server access logging" of the S3 user guide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from nos_ec.core.notifications.origin import Origin, caused_by
from nos_ec.gateway.auth.access import Access, BucketAccess, Sender
from nos_ec.gateway.auth.log_target import KeyFormat, LogTarget, decode_target
from nos_ec.gateway.message.body import Source
from nos_ec.gateway.message.call import Call, object_key
from nos_ec.gateway.message.reply import Reply, xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import require_service_allowed
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import DocumentKind
from nos_ec.s3.answers import DECLARATION, NAMESPACE, escape
from nos_ec.s3.documents import Element, malformed, only_children, parse
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.policy import LOGGING_SERVICE
from nos_ec.s3.request import Request

PREFIX_BYTES_MAX = 512
"""Longer prefixes would leave too little of a key for the names of account, region and bucket, and for the time."""
_ROOT = "BucketLoggingStatus"
_PARTITIONED = {"": KeyFormat.EVENT, "EventTime": KeyFormat.EVENT, "DeliveryTime": KeyFormat.DELIVERY}


@dataclass(frozen=True, slots=True)
class LogObject:
    """A part of the access log of the bucket `source`, which belongs to `owner`: an object of the bucket `target`."""

    source: str
    owner: str
    target: str
    key: str
    body: bytes


class _Whole(Source):
    """A body that is in memory."""

    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def next_piece(self) -> bytes:
        """See Source."""
        return self._left.pop() if self._left else b""


class BucketLogging:
    """Reads and checks the configurations of buckets, and stores log objects. Safe to call from several threads."""

    def __init__(
        self,
        access: Access,
        objects: ObjectOperations,
        clock: Clock,
        of_bucket: Callable[[str], BucketLogging] | None,
    ) -> None:
        """`of_bucket` returns the one of the cell that holds a bucket; None for a store without cells. It raises
        Transient."""
        self._access = access
        self._objects = objects
        self._clock = clock
        self._of_bucket = of_bucket

    @property
    def document(self) -> DocumentType:
        """The type of the document with the configuration."""
        return DocumentType(
            DocumentKind.LOGGING,
            self._parse,
            ("NoSuchConfiguration", "The bucket has no access log"),
            get_reply=lambda _, stored: _reply(stored),
            default=b"",
        )

    def store(self, log: LogObject) -> None:
        """Store a log object durably, unless an earlier attempt has stored it. Raises S3Error if the target bucket does
        not exist, does not belong to the owner of the source, or its policy denies it; NosError, Transient."""
        home = self._home(log.target)
        if home is not self:
            home.store(log)
            return
        access = self._require_target(log.target, log.owner)
        headers = [
            (b"content-length", b"%d" % len(log.body)),
            (b"content-type", b"text/plain"),
            (b"if-none-match", b"*"),
        ]
        path = quote(f"/{log.target}/{log.key}").encode()
        call = Call(
            Request("PUT", path, b"", headers, "https"),
            "PutObject",
            log.target,
            log.key,
            Sender(log.owner, "", b""),
            None,
            _Whole(log.body),
            access,
            self._clock.now_ms(),
        )
        require_service_allowed(call, LOGGING_SERVICE, log.source, log.owner)
        try:
            with caused_by(Origin("s3:ObjectCreated:Put", log.owner)):
                self._objects.at(log.target, log.key).put_object(call)
        except S3Error as error:
            if error.code != "PreconditionFailed":
                raise

    def _home(self, bucket: str) -> BucketLogging:
        return self if self._of_bucket is None else self._of_bucket(bucket)

    def _require_target(self, target: str, owner: str) -> BucketAccess:
        """Return the target bucket. Raises InvalidTargetBucketForLogging unless it exists and has this owner."""
        try:
            found = self._access.bucket(target)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            raise _invalid_target(target) from None
        if found.row.owner != owner:
            raise _invalid_target(target)
        return found

    def _parse(self, call: Call, _: Access) -> bytes:
        assert call.access is not None
        target = _target(read_document(call))
        if target is None:
            return b""
        self._home(target.bucket)._require_target(target.bucket, call.access.row.owner)
        object_key(target.bucket, f"{target.prefix}2000-01-01-00-00-00-0")
        return target.encode()


def _invalid_target(bucket: str) -> S3Error:
    return S3Error(
        "InvalidTargetBucketForLogging",
        "The target bucket for logging does not exist, or has another owner than the bucket whose access is logged.",
        TargetBucket=bucket,
    )


def _target(body: bytes) -> LogTarget | None:
    """Return the target in the body of PutBucketLogging; None if it turns the log off. Raises S3Error."""
    parts = only_children(parse(body, _ROOT), "LoggingEnabled")
    if "LoggingEnabled" not in parts:
        return None
    fields = only_children(
        parts["LoggingEnabled"], "TargetBucket", "TargetPrefix", "TargetGrants", "TargetObjectKeyFormat"
    )
    if "TargetBucket" not in fields or not _text(fields["TargetBucket"]):
        raise malformed("LoggingEnabled has a TargetBucket.")
    if "TargetGrants" in fields and fields["TargetGrants"].children:
        raise S3Error("NotImplemented", "TargetGrants are not supported; use the policy of the target bucket.")
    prefix = _text(fields["TargetPrefix"]) if "TargetPrefix" in fields else ""
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise invalid_argument(f"A TargetPrefix may have at most {PREFIX_BYTES_MAX} bytes.", "TargetPrefix")
    return LogTarget(_text(fields["TargetBucket"]), prefix, _key_format(fields.get("TargetObjectKeyFormat")))


def _key_format(element: Element | None) -> KeyFormat:
    if element is None:
        return KeyFormat.DEFAULT
    kinds = only_children(element, "SimplePrefix", "PartitionedPrefix")
    if len(kinds) != 1:
        raise malformed("TargetObjectKeyFormat has either a SimplePrefix or a PartitionedPrefix.")
    if "SimplePrefix" in kinds:
        only_children(kinds["SimplePrefix"])
        return KeyFormat.SIMPLE
    fields = only_children(kinds["PartitionedPrefix"], "PartitionDateSource")
    chosen = _text(fields["PartitionDateSource"]) if "PartitionDateSource" in fields else ""
    if chosen not in _PARTITIONED:
        raise malformed("PartitionDateSource is EventTime or DeliveryTime.")
    return _PARTITIONED[chosen]


def _text(element: Element) -> str:
    if element.children:
        raise malformed(f"{element.name!r} has elements.")
    return element.text


def _reply(stored: bytes) -> Reply:
    inside = ""
    if stored:
        target = decode_target(stored)
        inside = f"<TargetBucket>{escape(target.bucket)}</TargetBucket>{_format_of(target)}"
        inside = f"<LoggingEnabled>{inside}<TargetPrefix>{escape(target.prefix)}</TargetPrefix></LoggingEnabled>"
    return xml(f'{DECLARATION}<{_ROOT} xmlns="{NAMESPACE}">{inside}</{_ROOT}>'.encode())


def _format_of(target: LogTarget) -> str:
    if target.key_format is KeyFormat.DEFAULT:
        return ""
    inside = "<SimplePrefix/>"
    if target.key_format is not KeyFormat.SIMPLE:
        source = f"<PartitionDateSource>{target.key_format.value}</PartitionDateSource>"
        inside = f"<PartitionedPrefix>{source}</PartitionedPrefix>"
    return f"<TargetObjectKeyFormat>{inside}</TargetObjectKeyFormat>"
