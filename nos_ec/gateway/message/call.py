"""A request whose sender and operation are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import PARTS_MAX
from nos_ec.core.versions import Versioning
from nos_ec.gateway.auth.access import BucketAccess, Sender
from nos_ec.gateway.message.body import Source
from nos_ec.ports.metadata import Rights
from nos_ec.s3.answers import Owner
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Payload, Signed

Decide = Callable[[Mapping[str, str], Mapping[str, str]], Rights]
"""Returns the rights that a policy adds, given the tags of the object, and the tags or the lock that the request gives
it by other ways than a header (`RequestFacts.sent`). Raises AccessDenied if the policy denies the request."""


@dataclass(slots=True)
class Call:
    """A request with its operation, sender and bucket.

    `operation` is its name in the S3 API reference. `sender` is None for an anonymous request. `bucket` and `key` are
    empty if the request names none. `access` describes the bucket; it is None for an operation without a bucket, or
    whose bucket need not exist. `received_ms` is when the request was received. `allowed` are the rights that the
    policy of the bucket adds for this operation. If that depends on tags or on a lock that are not known yet, `decide`
    is set, and until it is called with them, the account has no rights.
    """

    request: Request
    operation: str
    bucket: str
    key: str
    sender: Sender | None
    signed: Signed | None
    source: Source
    access: BucketAccess | None
    received_ms: int = 0
    allowed: Rights = Rights.NONE
    decide: Decide | None = None

    @property
    def account(self) -> str | None:
        """The account of the sender; None for an anonymous request."""
        return None if self.sender is None else self.sender.account

    @property
    def payload(self) -> Payload:
        """How the body is encoded and signed."""
        return Payload.UNSIGNED if self.signed is None else self.signed.payload

    @property
    def rights(self) -> Rights:
        """The rights of the account in the bucket. None while the policy is undecided."""
        if self.access is None or self.decide is not None:
            return Rights.NONE
        return self.access.rights_of(self.account) | self.allowed

    @property
    def owner(self) -> Owner:
        """The owner of the bucket, who also owns its objects."""
        assert self.access is not None
        return owner_named(self.access.row.owner)

    @property
    def versioning(self) -> Versioning | None:
        """The versioning of the bucket."""
        return None if self.access is None else self.access.versioning

    @property
    def object_key(self) -> ObjectKey:
        """The key of the object. Raises S3Error if the store cannot have such a key."""
        return object_key(self.bucket, self.key)

    @property
    def has_body(self) -> bool:
        """Whether the request has a body. It may still be empty if it is sent in chunks."""
        return (
            self.request.header("content-length") not in (None, "0")
            or b"transfer-encoding" in self.request.header_values
        )

    def require(self, rights: Rights) -> None:
        """Raise AccessDenied unless the account has all of these rights."""
        if rights not in self.rights:
            raise denied()

    def require_if_decided(self, rights: Rights) -> None:
        """Raise AccessDenied if it is known already that the account has not all of these rights. Call `require_with`
        later."""
        if self.decide is None:
            self.require(rights)

    def require_with(self, rights: Rights, tags: Mapping[str, str], sent: Mapping[str, str]) -> None:
        """Raise AccessDenied unless the account has all of these rights for an object with these tags. `sent` is
        what the request gives the object by other ways than a header (`RequestFacts.sent`)."""
        if self.decide is None:
            self.require(rights)
        elif self.access is None or rights not in self.access.rights_of(self.account) | self.decide(tags, sent):
            raise denied()

    def require_account(self) -> str:
        """Return the account. Raises AccessDenied for an anonymous request."""
        if self.account is None:
            raise denied()
        return self.account

    def number(self, parameter: str, default: int, most: int) -> int:
        """Return a query parameter as a number, at most `most`. Raises InvalidArgument."""
        return self._number(parameter, self.request.parameter(parameter), default, most)

    def number_of_header(self, name: str, default: int, most: int) -> int:
        """Return a header as a number, at most `most`. Raises InvalidArgument."""
        return self._number(name, self.request.header(name), default, most)

    def _number(self, parameter: str, text: str | None, default: int, most: int) -> int:
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            raise invalid_argument(f"{parameter} must be a whole number that is not negative.", parameter, text)
        return min(int(text), most)

    def encodes_names(self) -> bool:
        """Return whether a listing must encode names, as `encoding-type=url` requests. Raises InvalidArgument for
        another encoding."""
        encoding = self.request.parameter("encoding-type")
        if encoding not in (None, "url"):
            raise invalid_argument("Invalid Encoding Method specified in Request", "encoding-type")
        return encoding == "url"

    def part_number(self) -> int:
        """Return the query parameter `partNumber`. Raises InvalidArgument."""
        number = self.number("partNumber", 0, PARTS_MAX + 1)
        if not 1 <= number <= PARTS_MAX:
            raise invalid_argument(
                f"Part number must be an integer between 1 and {PARTS_MAX}, inclusive",
                "partNumber",
                self.request.parameter("partNumber") or "",
            )
        return number


def object_key(bucket: str, key: str) -> ObjectKey:
    """Return the key of an object. Raises InvalidArgument if the store cannot have such a key."""
    try:
        return ObjectKey(bucket, key)
    except InvalidInput as error:
        raise invalid_argument(str(error), "Key") from None


def owner_named(account: str) -> Owner:
    """Return how answers name an account as an owner."""
    return Owner(account, account)


def denied() -> S3Error:
    """Return the error for a request that its sender has no right to make."""
    return S3Error("AccessDenied", "Access Denied")
