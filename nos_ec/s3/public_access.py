"""Public access blocks and ownership controls of buckets, read from and written as XML.

Sources: PutPublicAccessBlock, PutBucketOwnershipControls and their data types in the S3 API reference; "Blocking public
access to your Amazon S3 storage" and "Controlling ownership of objects and disabling ACLs" of the S3 user guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nos_ec.s3.documents import Element, malformed, parse


@dataclass(frozen=True, slots=True)
class PublicAccessBlock:
    """What a bucket refuses to the public. `block_acls` refuses to store public ACLs, and `block_policy` a public
    policy. `ignore_acls` ignores what ACLs grant to groups. `restrict_buckets` ignores what a public policy allows to
    accounts other than the owner."""

    block_acls: bool = False
    ignore_acls: bool = False
    block_policy: bool = False
    restrict_buckets: bool = False


BLOCK_NOTHING = PublicAccessBlock()
BLOCK_EVERYTHING = PublicAccessBlock(True, True, True, True)
_NAMES = {
    "BlockPublicAcls": "block_acls",
    "IgnorePublicAcls": "ignore_acls",
    "BlockPublicPolicy": "block_policy",
    "RestrictPublicBuckets": "restrict_buckets",
}


class Ownership(StrEnum):
    """Who owns objects, and whether ACLs count. In this store the owner of a bucket always owns its objects, so the two
    values that allow ACLs mean the same."""

    ENFORCED = "BucketOwnerEnforced"
    """ACLs have no effect."""
    PREFERRED = "BucketOwnerPreferred"
    WRITER = "ObjectWriter"


def public_access_block(body: bytes) -> PublicAccessBlock:
    """Parse the body of PutPublicAccessBlock. Settings that it leaves out are off. Raises MalformedXML."""
    given: dict[str, bool] = {}
    for child in _inside(parse(body, "PublicAccessBlockConfiguration")):
        word, field = _text(child).lower(), _NAMES.get(child.name)
        if field is None or field in given:
            raise malformed(f"{child.name!r} in a public access block is unknown or repeated.")
        if word not in ("true", "false"):
            raise malformed(f"{child.name!r} is true or false.")
        given[field] = word == "true"
    return PublicAccessBlock(**given)


def fields_of(block: PublicAccessBlock) -> list[tuple[str, str]]:
    """Return the elements of the answer to GetPublicAccessBlock."""
    return [(name, str(getattr(block, field)).lower()) for name, field in _NAMES.items()]


def ownership_controls(body: bytes) -> Ownership:
    """Parse the body of PutBucketOwnershipControls. Raises MalformedXML."""
    rules = _inside(parse(body, "OwnershipControls"))
    inside = _inside(rules[0]) if [one.name for one in rules] == ["Rule"] else []
    if [one.name for one in inside] != ["ObjectOwnership"]:
        raise malformed("Ownership controls have one Rule, with one ObjectOwnership.")
    word = _text(inside[0])
    if word not in tuple(Ownership):
        raise malformed(f"ObjectOwnership is one of {', '.join(Ownership)}.")
    return Ownership(word)


def _inside(element: Element) -> list[Element]:
    if element.text.strip():
        raise malformed(f"{element.name!r} has text.")
    return element.children


def _text(element: Element) -> str:
    if element.children:
        raise malformed(f"{element.name!r} has elements.")
    return element.text.strip()
