"""The values that a request has for the condition keys of bucket policies (nos_ec/s3/conditions/keys.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address

from nos_ec.s3 import documents, object_lock
from nos_ec.s3.conditions.keys import NamedKey, Unsure, Values
from nos_ec.s3.hoisted import is_presigned
from nos_ec.s3.names import copy_source
from nos_ec.s3.object_lock import HOLD, MODE, UNTIL
from nos_ec.s3.operations import POST_FORM, parameters_of
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Signed

_ENDS_CREATION = frozenset(["PutObject", POST_FORM, "CopyObject", "RenameObject", "CompleteMultipartUpload"])
_OF_UPLOADS = frozenset(["UploadPart", "UploadPartCopy", "CompleteMultipartUpload"])
"""Operations on an upload whose headers, such as tags and ACL, were sent and judged when it was created."""
_STORES = frozenset([*_ENDS_CREATION, *_OF_UPLOADS, "CreateMultipartUpload"])
_CHANGES_LOCKS = frozenset(["PutObjectRetention", "PutObjectLegalHold"])
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Facts about a request for one judgement of a policy.

    `operation` is the operation of the request. `judged` is the one that the policy is asked about: another one for the
    source of a copy, the objects of DeleteObjects, and whether a sender may learn which keys exist. `account` is None
    for an anonymous request. `owner` is the account that the bucket belongs to, if there is one. `version` is the
    version id that the request names for the object. `existing_tags` are the tags of the object; None while they are
    not known. `sent` is what the request gives an object by other ways than a header: its tags; its lock, by the
    names of the headers that would set it; or the header `if-match` of one of several deletions. It is None while it is
    not known. `of_session`: the policy is that of a session, which did not judge the creation of an upload that
    somebody else began. `source` is the bucket, and its owner, for which a service of the gateway stores an object;
    None for requests of clients.
    """

    request: Request
    operation: str
    judged: str
    account: str | None
    signed: Signed | None
    owner: str | None
    received_ms: int
    version: str | None
    existing_tags: Mapping[str, str] | None = None
    sent: Mapping[str, str] | None = None
    of_session: bool = False
    source: tuple[str, str] | None = None

    def values(self, named: NamedKey, /) -> Values:
        """See `Facts`. Raises S3Error for a header or parameter that cannot be used."""
        name = named.key.name
        if named.tag:
            tags = self._existing_tags() if name == "s3:ExistingObjectTag/" else self._new_tags()
            return tags if isinstance(tags, Unsure) else _tag(tags, named.tag)
        find = _VALUES.get(name)
        if find is not None:
            return find(self)
        header = name.removeprefix("s3:")
        return self._of_creation if self._was_judged and header != "x-amz-metadata-directive" else self.header(header)

    def header(self, name: str) -> Values:
        """Return the value of a header."""
        return _some(self.request.header(name))

    def parameter(self, name: str) -> Values:
        """Return the value of a query parameter, if the operation of the request has it."""
        return _some(self.request.parameter(name)) if name in parameters_of(self.operation) else ()

    def max_keys(self) -> Values:
        """Return how many keys a listing may have. An empty number has no effect there, so it is missing here: a policy
        that wants a bound would take it for one otherwise."""
        found = self.parameter("max-keys")
        return () if found == ("",) else found

    @property
    def _was_judged(self) -> bool:
        return self.judged in _OF_UPLOADS

    @property
    def _of_creation(self) -> Unsure:
        return Unsure.UNKNOWN if self.of_session else Unsure.EARLIER

    def _existing_tags(self) -> Mapping[str, str] | Unsure:
        """A new object has no tags yet, whatever it replaces."""
        if self.judged in _STORES:
            return {}
        return Unsure.LATER if self.existing_tags is None else self.existing_tags

    def _new_tags(self) -> Mapping[str, str] | Unsure:
        if self._was_judged:
            return self._of_creation
        copies = self.judged == "CopyObject" and self.request.header("x-amz-tagging-directive") != "REPLACE"
        if copies or self.judged in ("RenameObject", "PutObjectTagging"):
            return Unsure.LATER if self.sent is None else self.sent
        sent = self.request.header("x-amz-tagging")
        return {} if sent is None else documents.tagging_header(sent)

    def tag_keys(self) -> Values:
        """Return the keys of the tags that the request gives an object."""
        tags = self._new_tags()
        return tags if isinstance(tags, Unsure) else tuple(tags)

    def if_match(self) -> Values:
        """Return the ETag that an object must have to be overwritten or deleted, without quotes, because clients may
        leave them out; or `*`."""
        if self.judged == "DeleteObject" and self.operation == "DeleteObjects":
            if self.sent is None:
                return Unsure.LATER
            sent = self.sent.get("if-match")
        elif self.judged == "DeleteObject" and self.operation == "RenameObject":
            sent = self.request.header("x-amz-rename-source-if-match")
        else:
            sent = self.request.header("if-match")
        return _etag(sent)

    def lock(self) -> Mapping[str, str] | Unsure:
        """Return the lock that the request gives an object, by the names of headers. The default retention of the
        bucket does not count, because no sender chose it. Raises S3Error for a retention that cannot be used."""
        if self._was_judged:
            return self._of_creation
        if self.operation in _CHANGES_LOCKS:
            return Unsure.LATER if self.sent is None else self.sent
        if self.judged not in _STORES:
            return {}  # the headers have no effect
        header = self.request.header
        found = object_lock.retention_headers(object_lock.retention_of_headers(header(MODE), header(UNTIL)))
        hold = header(HOLD)
        return found if hold is None else {**found, HOLD: hold}

    def of_lock(self, header: str) -> Values:
        """Return the value that a header of the lock has, or would have if the lock were sent in headers."""
        found = self.lock()
        return found if isinstance(found, Unsure) else _some(found.get(header))

    def remaining_days(self) -> Values:
        """Return the days until the end of the retention. A part of a day counts as a day, so that a retention of 30
        days is not a shorter one when the request arrives."""
        found = self.lock()
        if isinstance(found, Unsure):
            return found
        if UNTIL not in found:
            return ()
        left = datetime.fromisoformat(found[UNTIL]) - self.time()
        return (str(-(-left // _DAY)),)

    def source_of_copy(self) -> Values:
        """Return BUCKET/KEY of the source of a copy, decoded, because clients may encode any character of it."""
        sent = self.request.header("x-amz-copy-source")
        return () if sent is None else ("/".join(copy_source(sent)[:2]),)

    def address(self) -> Values:
        """Return the address of the client. Without one it is not missing, but unknown: it may be a forbidden one."""
        try:
            found = ip_address(self.request.client or "")
        except ValueError:
            return Unsure.UNKNOWN
        mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
        return (str(mapped or found),)

    def content_sha256(self) -> Values:
        """Return how the body is signed, also where a presigned URL only implies it."""
        if self.signed is None or not self.signed.date:
            return self.header("x-amz-content-sha256")
        return (self.signed.sha256 or self.signed.payload.value,)

    def auth_type(self) -> Values:
        """Return how the request is signed."""
        if self.account is None:
            return ()
        if self.operation == POST_FORM:
            return ("POST",)
        return ("REST-QUERY-STRING",) if is_presigned(self.request) else ("REST-HEADER",)

    def signature_version(self) -> Values:
        """Return the version of the signature. Signatures of Version 2 have no date."""
        if self.account is None or self.signed is None:
            return ()
        return ("AWS4-HMAC-SHA256",) if self.signed.date else ("AWS",)

    def signature_age(self) -> Values:
        """Return the milliseconds since the request was signed, which no signature of Version 2 tells."""
        if self.account is None or self.signed is None:
            return ()
        try:
            signed = datetime.strptime(self.signed.date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            return Unsure.UNKNOWN
        return (str(max(0, self.received_ms - round(signed.timestamp() * 1000))),)

    def time(self) -> datetime:
        """Return when the request was received."""
        return datetime.fromtimestamp(self.received_ms / 1000, UTC)


_VALUES: Mapping[str, Callable[[RequestFacts], Values]] = {
    "aws:CurrentTime": lambda facts: (f"{facts.time():%Y-%m-%dT%H:%M:%SZ}",),
    "aws:EpochTime": lambda facts: (str(facts.received_ms // 1000),),
    "aws:PrincipalAccount": lambda facts: _some(facts.account),
    "aws:PrincipalArn": lambda facts: () if facts.account is None else (f"arn:aws:iam::{facts.account}:root",),
    "aws:PrincipalType": lambda facts: ("Anonymous" if facts.account is None else "Account",),
    "aws:Referer": lambda facts: facts.header("referer"),
    "aws:SecureTransport": lambda facts: (str(facts.request.scheme == "https").lower(),),
    "aws:SourceAccount": lambda facts: () if facts.source is None else (facts.source[1],),
    "aws:SourceArn": lambda facts: () if facts.source is None else (f"arn:aws:s3:::{facts.source[0]}",),
    "aws:SourceIp": RequestFacts.address,
    "aws:UserAgent": lambda facts: facts.header("user-agent"),
    "aws:userid": lambda facts: _some(facts.account),
    "aws:username": lambda facts: _some(facts.account),
    "s3:ObjectCreationOperation": lambda facts: (str(facts.judged in _ENDS_CREATION).lower(),),
    "s3:RequestObjectTagKeys": RequestFacts.tag_keys,
    "s3:ResourceAccount": lambda facts: _some(facts.owner),
    "s3:VersionId": lambda facts: _some(facts.version),
    "s3:authType": RequestFacts.auth_type,
    "s3:if-match": RequestFacts.if_match,
    "s3:if-none-match": lambda facts: _etag(facts.request.header("if-none-match")),
    "s3:delimiter": lambda facts: facts.parameter("delimiter"),
    "s3:max-keys": RequestFacts.max_keys,
    "s3:object-lock-legal-hold": lambda facts: facts.of_lock(HOLD),
    "s3:object-lock-mode": lambda facts: facts.of_lock(MODE),
    "s3:object-lock-remaining-retention-days": RequestFacts.remaining_days,
    "s3:object-lock-retain-until-date": lambda facts: facts.of_lock(UNTIL),
    "s3:prefix": lambda facts: facts.parameter("prefix"),
    "s3:signatureAge": RequestFacts.signature_age,
    "s3:signatureversion": RequestFacts.signature_version,
    "s3:x-amz-content-sha256": RequestFacts.content_sha256,
    "s3:x-amz-copy-source": RequestFacts.source_of_copy,
}
"""How to find the value of each key that is neither a tag nor a header of the same name."""


def _some(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def _etag(sent: str | None) -> tuple[str, ...]:
    return () if sent is None else (sent.strip().strip('"'),)


def _tag(tags: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the value of a tag. Unlike an object's tags, condition keys ignore case, so another spelling counts if
    there is no tag of exactly this key."""
    if key in tags:
        return (tags[key],)
    return tuple(tags[one] for one in sorted(tags) if one.casefold() == key.casefold())[:1]
