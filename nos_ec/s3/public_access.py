"""Public access blocks and ownership controls of buckets: what they say, from and to XML.

Sources: PutPublicAccessBlock, PutBucketOwnershipControls and their data types in the S3 API reference; "Blocking public
access to your Amazon S3 storage" and "Controlling ownership of objects and disabling ACLs" of the S3 user guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nos_ec.s3.documents import Element, malformed, parse


@dataclass(frozen=True, slots=True)
class PublicAccessBlock:
    """What a bucket refuses to the public. block_acls: to store ACLs that are public. ignore_acls: what ACLs grant to
    groups. block_policy: to store a policy that is public. restrict_buckets: what a public policy allows to other
    accounts than the owner's."""

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
    """Who owns objects, and whether ACLs count. In this store the owner of a bucket owns its objects always, so the two
    that allow ACLs say the same."""

    ENFORCED = "BucketOwnerEnforced"
    """ACLs count for nothing."""
    PREFERRED = "BucketOwnerPreferred"
    WRITER = "ObjectWriter"


def public_access_block(body: bytes) -> PublicAccessBlock:
    """PutPublicAccessBlock. What it leaves out is off. Raises MalformedXML."""
    said: dict[str, bool] = {}
    for child in _inside(parse(body, "PublicAccessBlockConfiguration")):
        word, field = _text(child).lower(), _NAMES.get(child.name)
        if field is None or field in said:
            raise malformed(f"{child.name!r} in a public access block is unknown or repeated.")
        if word not in ("true", "false"):
            raise malformed(f"{child.name!r} is true or false.")
        said[field] = word == "true"
    return PublicAccessBlock(**said)


def fields_of(block: PublicAccessBlock) -> list[tuple[str, str]]:
    """The elements of GetPublicAccessBlock."""
    return [(name, str(getattr(block, field)).lower()) for name, field in _NAMES.items()]


def ownership_controls(body: bytes) -> Ownership:
    """PutBucketOwnershipControls. Raises MalformedXML."""
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
