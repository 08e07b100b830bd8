"""The configuration of a bucket that encrypts its new objects."""

from __future__ import annotations

from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.encryption import Encryption
from nos_ec.gateway.message.reply import Reply, xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.ports.metadata import DocumentKind
from nos_ec.s3 import answers, documents


def bucket_encryption(encryption: Encryption) -> DocumentType:
    """Return the type of this document."""

    def parse(call: Call, _: Access) -> bytes:
        method = documents.encryption(read_document(call))
        encryption.require_key(method)
        return method.encode()

    return DocumentType(
        DocumentKind.ENCRYPTION,
        parse,
        (
            "ServerSideEncryptionConfigurationNotFoundError",
            "The server side encryption configuration was not found",
        ),
        get_reply=lambda _, stored: _reply(stored.decode()),
        default=documents.AES256.encode() if encryption.by_default else None,
    )


def _reply(method: str) -> Reply:
    kms_key = documents.kms_key_of(method)
    return xml(answers.encryption(method if kms_key is None else documents.KMS, kms_key))
