"""The condition keys that bucket policies may use.

Sources: "Actions, resources, and condition keys for Amazon S3" of the service authorization reference (which keys fit
which actions); "AWS global condition context keys" of the IAM user guide; "Amazon S3 Signature Version 4 authentication
specific policy keys" of the S3 API reference. Keys of features that the gateway does not have are not in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Protocol


class KeyType(Enum):
    """What the values of a key are."""

    TEXT = "text"
    NUMBER = "number"
    DATE = "date"
    SECONDS = "seconds"
    """Seconds since 1970: a number and a date."""
    BOOL = "bool"
    ADDRESS = "address"
    ARN = "arn"


class Unsure(Enum):
    """Why a key has no value that a condition could be compared with. Such a condition never allows anything that the
    value could forbid."""

    LATER = "later"
    """The tags of the object, or the tags or the lock that the request gives it, are not known yet. Evaluate the policy
    again when they are."""
    UNKNOWN = "unknown"
    """The value cannot be determined. An Allow with such a condition does not match, and a Deny matches."""
    EARLIER = "earlier"
    """The condition was evaluated when the multipart upload was created. An Allow matches, and a Deny does not."""


Values = tuple[str, ...] | Unsure
"""The values of a key in a request; empty if it is missing."""


@dataclass(frozen=True, slots=True)
class ConditionKey:
    """A condition key. `actions` are the actions, in lower case, whose requests can have it; None for all. A key whose
    name ends with a slash is followed by the key of a tag. `is_list`: a request may have several values."""

    name: str
    type: KeyType = KeyType.TEXT
    actions: frozenset[str] | None = None
    is_list: bool = False

    def fits(self, action: str) -> bool:
        """Return whether requests of this action, in lower case, can have the key."""
        return self.actions is None or action in self.actions


@dataclass(frozen=True, slots=True)
class NamedKey:
    """A condition key as a policy names it, with the key of a tag, or with an empty one."""

    key: ConditionKey
    tag: str = ""


class Facts(Protocol):
    """The values of condition keys in a request."""

    def values(self, named: NamedKey, /) -> Values:
        """Return the values of a key. A tag may be unknown, and any key missing."""


class NoFacts:
    """The facts about a request of which nothing is known: no key has a value."""

    def values(self, _: NamedKey, /) -> Values:
        """See `Facts`."""
        return ()


def _actions(names: str) -> frozenset[str]:
    return frozenset(f"s3:{name.lower()}" for name in names.split())


_LISTS = _actions("ListBucket ListBucketVersions")
_PUTS = _actions("PutObject")
_PUTS_AND_DELETES = _actions("PutObject DeleteObject")
_SETS_ACLS = _actions("CreateBucket PutObject PutObjectAcl PutObjectVersionAcl PutBucketAcl")
_SETS_TAGS = _actions("PutObject PutObjectTagging PutObjectVersionTagging")
_SETS_RETENTIONS = _actions("PutObject PutObjectRetention BypassGovernanceRetention")
_SETS_HOLDS = _actions("PutObject PutObjectLegalHold BypassGovernanceRetention")
_OF_EXISTING = _actions(
    "GetObject GetObjectVersion GetObjectAcl GetObjectVersionAcl GetObjectAttributes GetObjectVersionAttributes"
    " GetObjectTagging GetObjectVersionTagging PutObjectAcl PutObjectVersionAcl PutObjectTagging"
    " PutObjectVersionTagging DeleteObjectTagging DeleteObjectVersionTagging"
)
_OF_VERSIONS = _actions(
    "DeleteObjectVersion DeleteObjectVersionTagging GetObjectVersion GetObjectVersionAcl GetObjectVersionAttributes"
    " GetObjectVersionTagging PutObjectVersionAcl PutObjectVersionTagging"
)


def _all_keys() -> Iterable[ConditionKey]:
    for name in ("PrincipalAccount", "PrincipalType", "Referer", "UserAgent", "userid", "username"):
        yield ConditionKey(f"aws:{name}")
    yield ConditionKey("aws:CurrentTime", KeyType.DATE)
    yield ConditionKey("aws:EpochTime", KeyType.SECONDS)
    yield ConditionKey("aws:PrincipalArn", KeyType.ARN)
    yield ConditionKey("aws:SourceAccount")
    yield ConditionKey("aws:SourceArn", KeyType.ARN)
    yield ConditionKey("aws:SecureTransport", KeyType.BOOL)
    yield ConditionKey("aws:SourceIp", KeyType.ADDRESS)
    for name in ("authType", "ResourceAccount", "signatureversion", "x-amz-content-sha256"):
        yield ConditionKey(f"s3:{name}")
    yield ConditionKey("s3:signatureAge", KeyType.NUMBER)
    yield ConditionKey("s3:delimiter", actions=_LISTS)
    yield ConditionKey("s3:max-keys", KeyType.NUMBER, _LISTS)
    yield ConditionKey("s3:prefix", actions=_LISTS)
    yield ConditionKey("s3:VersionId", actions=_OF_VERSIONS)
    yield ConditionKey("s3:ExistingObjectTag/", actions=_OF_EXISTING)
    yield ConditionKey("s3:RequestObjectTag/", actions=_SETS_TAGS)
    yield ConditionKey("s3:RequestObjectTagKeys", actions=_SETS_TAGS, is_list=True)
    for name in ("acl", "grant-full-control", "grant-read", "grant-read-acp", "grant-write", "grant-write-acp"):
        yield ConditionKey(f"s3:x-amz-{name}", actions=_SETS_ACLS)
    for name in ("copy-source", "metadata-directive", "storage-class"):
        yield ConditionKey(f"s3:x-amz-{name}", actions=_PUTS)
    for name in ("", "-aws-kms-key-id", "-customer-algorithm"):
        yield ConditionKey(f"s3:x-amz-server-side-encryption{name}", actions=_PUTS)
    yield ConditionKey("s3:if-match", actions=_PUTS_AND_DELETES)
    yield ConditionKey("s3:if-none-match", actions=_PUTS)
    yield ConditionKey("s3:ObjectCreationOperation", KeyType.BOOL, _PUTS)
    yield ConditionKey("s3:object-lock-legal-hold", actions=_SETS_HOLDS)
    yield ConditionKey("s3:object-lock-mode", actions=_SETS_RETENTIONS)
    yield ConditionKey("s3:object-lock-remaining-retention-days", KeyType.NUMBER, _SETS_RETENTIONS)
    yield ConditionKey("s3:object-lock-retain-until-date", KeyType.DATE, _SETS_RETENTIONS)


KEYS: Mapping[str, ConditionKey] = MappingProxyType({key.name.lower(): key for key in _all_keys()})
"""All keys by their names in lower case."""


def find_key(name: str) -> NamedKey | None:
    """Return the key of this name, whose case does not matter, except for the key of a tag; None if there is none."""
    start, slash, tag = name.partition("/")
    key = KEYS.get(start.lower() + slash)
    return None if key is None or bool(slash) is not bool(tag) else NamedKey(key, tag)
