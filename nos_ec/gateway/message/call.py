"""One request whose sender is known, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import PARTS_MAX
from nos_ec.core.versions import Versioning
from nos_ec.gateway.auth.access import BucketAccess
from nos_ec.gateway.message.body import Source
from nos_ec.ports.metadata import Rights
from nos_ec.s3.answers import Owner
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from nos_ec.s3.signing import Payload, Signed


@dataclass(slots=True)
class Call:
    """operation: by the name of the S3 API reference. account: None for an anonymous request. bucket, key: empty if the
    request names none. access: of the bucket, None for an operation on none, or on one that need not exist. allowed:
    rights that the policy of the bucket adds for this operation."""

    request: Request
    operation: str
    bucket: str
    key: str
    account: str | None
    signed: Signed | None
    source: Source
    access: BucketAccess | None
    allowed: Rights = Rights.NONE

    @property
    def payload(self) -> Payload:
        """How the body is sent."""
        return Payload.UNSIGNED if self.signed is None else self.signed.payload

    @property
    def rights(self) -> Rights:
        """What the account may do in the bucket."""
        return Rights.NONE if self.access is None else self.access.rights_of(self.account) | self.allowed

    @property
    def owner(self) -> Owner:
        """Of the bucket, and so of its objects."""
        assert self.access is not None
        return owner_named(self.access.row.owner)

    @property
    def versioning(self) -> Versioning | None:
        """That of the bucket."""
        return None if self.access is None else self.access.versioning

    @property
    def object_key(self) -> ObjectKey:
        """Raises S3Error for a key that the store cannot have."""
        return object_key(self.bucket, self.key)

    @property
    def has_body(self) -> bool:
        """Whether a body comes, which may still be an empty one."""
        return (
            self.request.header("content-length") not in (None, "0")
            or b"transfer-encoding" in self.request.header_values
        )

    def require(self, rights: Rights) -> None:
        """Raises AccessDenied unless the account has all of them."""
        if rights not in self.rights:
            raise denied()

    def require_account(self) -> str:
        """Raises AccessDenied for an anonymous request."""
        if self.account is None:
            raise denied()
        return self.account

    def number(self, parameter: str, default: int, most: int) -> int:
        """A query parameter that is a number, cut off at `most`. Raises InvalidArgument."""
        return self._number(parameter, self.request.parameter(parameter), default, most)

    def number_of_header(self, name: str, default: int, most: int) -> int:
        """The same of a header."""
        return self._number(name, self.request.header(name), default, most)

    def _number(self, parameter: str, text: str | None, default: int, most: int) -> int:
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            raise S3Error(
                "InvalidArgument",
                f"{parameter} must be a whole number, and not negative.",
                ArgumentName=parameter,
                ArgumentValue=text,
            )
        return min(int(text), most)

    def part_number(self) -> int:
        """The query parameter `partNumber`. Raises InvalidArgument."""
        number = self.number("partNumber", 0, PARTS_MAX + 1)
        if not 1 <= number <= PARTS_MAX:
            raise S3Error(
                "InvalidArgument",
                f"Part number must be an integer between 1 and {PARTS_MAX}, inclusive",
                ArgumentName="partNumber",
                ArgumentValue=self.request.parameter("partNumber") or "",
            )
        return number


def object_key(bucket: str, key: str) -> ObjectKey:
    """Raises InvalidArgument for a key that the store cannot have."""
    try:
        return ObjectKey(bucket, key)
    except InvalidInput as error:
        raise S3Error("InvalidArgument", str(error), ArgumentName="Key") from None


def owner_named(account: str) -> Owner:
    """The owner that answers name."""
    return Owner(account, account)


def denied() -> S3Error:
    """What a request is refused with whose sender may not do it."""
    return S3Error("AccessDenied", "Access Denied")
