"""Public access blocks and ownership controls of buckets: the operations on them.

What they say of ACLs is kept by BucketAccess, and what they say of policies by gateway.policies (docs/adr/0039).
"""

from __future__ import annotations

from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.auth.accounts import AccountsMetadata
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.gateway.operations.bucket_operations import document, require_closed
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import DocumentKind, Rights
from nos_ec.s3 import answers
from nos_ec.s3.errors import S3Error
from nos_ec.s3.public_access import fields_of, ownership_controls, public_access_block


class PublicAccessOperations:
    """Safe to call from several threads."""

    def __init__(self, metadata: AccountsMetadata, access: Access, clock: Clock) -> None:
        self._metadata = metadata
        self._access = access
        self._clock = clock

    def get_block(self, call: Call) -> Reply:
        """All four settings."""
        call.require(Rights.OWNER)
        body = self._metadata.bucket_document(call.bucket, DocumentKind.PUBLIC_ACCESS)
        if body is None:
            raise S3Error(
                "NoSuchPublicAccessBlockConfiguration",
                "The public access block configuration was not found",
                BucketName=call.bucket,
            )
        return xml(answers.configuration("PublicAccessBlockConfiguration", *fields_of(public_access_block(body))))

    def put_block(self, call: Call) -> Reply:
        """In place of the one that it had. ACLs and policies that are there stay; whether they count, it says."""
        call.require(Rights.OWNER)
        body = document(call)
        public_access_block(body)
        self._set(call, DocumentKind.PUBLIC_ACCESS, body)
        return empty()

    def delete_block(self, call: Call) -> Reply:
        """None is no error."""
        call.require(Rights.OWNER)
        self._set(call, DocumentKind.PUBLIC_ACCESS, None)
        return empty(status=204)

    def get_ownership(self, call: Call) -> Reply:
        """As it was put."""
        call.require(Rights.OWNER)
        body = self._metadata.bucket_document(call.bucket, DocumentKind.OWNERSHIP)
        if body is None:
            raise S3Error(
                "OwnershipControlsNotFoundError",
                "The bucket ownership controls were not found",
                BucketName=call.bucket,
            )
        return xml(answers.ownership_controls(body.decode()))

    def put_ownership(self, call: Call) -> Reply:
        """ACLs cannot be disabled while that of the bucket opens it to others."""
        call.require(Rights.OWNER)
        ownership = ownership_controls(document(call))
        self._access.forget_bucket(call.bucket)  # another gateway may just have changed the ACL
        access = self._access.bucket(call.bucket)
        require_closed(ownership, access.acl, access.row.owner)
        self._set(call, DocumentKind.OWNERSHIP, ownership.encode())
        return empty()

    def delete_ownership(self, call: Call) -> Reply:
        """None is no error. ACLs count again."""
        call.require(Rights.OWNER)
        self._set(call, DocumentKind.OWNERSHIP, None)
        return empty(status=204)

    def _set(self, call: Call, kind: DocumentKind, body: bytes | None) -> None:
        self._access.set_document(call.bucket, kind, body, self._clock.now_ms())
