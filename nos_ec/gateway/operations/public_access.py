"""Declares the documents with public access blocks and ownership controls of buckets.

`BucketAccess` applies their effect on ACLs, and policies.py applies their effect on policies (docs/adr/0039).
"""

from __future__ import annotations

from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.gateway.operations.bucket_operations import require_acl_allows
from nos_ec.ports.metadata import DocumentKind
from nos_ec.s3 import answers
from nos_ec.s3.public_access import fields_of, ownership_controls, public_access_block


def _parse_block(call: Call, _: Access) -> bytes:
    body = read_document(call)
    public_access_block(body)
    return body


def _parse_ownership(call: Call, access: Access) -> bytes:
    ownership = ownership_controls(read_document(call))
    access.forget_bucket(call.bucket)  # another gateway may just have changed the ACL
    bucket = access.bucket(call.bucket)
    require_acl_allows(ownership, bucket.acl, bucket.row.owner)
    return ownership.encode()


PUBLIC_ACCESS = DocumentType(
    DocumentKind.PUBLIC_ACCESS,
    _parse_block,
    ("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found"),
    get_reply=lambda _, stored: xml(
        answers.configuration("PublicAccessBlockConfiguration", *fields_of(public_access_block(stored)))
    ),
)
"""A PUT keeps the ACLs and policies of the bucket; the block only decides whether they have an effect."""
OWNERSHIP = DocumentType(
    DocumentKind.OWNERSHIP,
    _parse_ownership,
    ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found"),
    get_reply=lambda _, stored: xml(answers.ownership_controls(stored.decode())),
)
"""A PUT cannot disable ACLs while the ACL of the bucket grants something to others. A DELETE enables ACLs again."""
