"""Gets, puts and deletes the documents of buckets: CORS, lifecycle rules, policy, public access, ownership and tags.

Each kind of document is one `DocumentType`, declared in the module that knows what the document means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nos_ec.engine.objects.streams import read_up_to
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.body import CheckedBody
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import Reply, empty, xml
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import BucketState, DocumentKind, Rights
from nos_ec.ports.metadata.buckets import DOCUMENT_BYTES_MAX
from nos_ec.s3.documents import DOCUMENT_SIZE_MAX
from nos_ec.s3.errors import S3Error


@dataclass(frozen=True, slots=True)
class DocumentType:
    """How S3 handles one kind of document. Only the owner of the bucket may get, put or delete it.

    `parse` reads and checks the body of a PUT and returns the bytes to store, empty for a PUT
    that removes the document; it raises S3Error. `missing` is the code
    and the message of the error that answers a GET if the bucket has no such document. `get_reply` makes the reply to a
    GET from the stored bytes, and `put_reply` the reply to a PUT. `default`: a bucket without the document behaves as
    if it had these stored bytes.
    """

    kind: DocumentKind
    parse: Callable[[Call, Access], bytes]
    missing: tuple[str, str]
    get_reply: Callable[[Call, bytes], Reply] = lambda _, stored: xml(stored)
    put_reply: Callable[[bytes], Reply] = lambda _: empty()
    default: bytes | None = None


class BucketDocuments:
    """The operations on documents. Safe to call from several threads."""

    def __init__(self, metadata: BucketState, access: Access, clock: Clock) -> None:
        self._metadata = metadata
        self._access = access
        self._clock = clock

    def get(self, of: DocumentType, call: Call) -> Reply:
        """Return the stored document. Raises AccessDenied, and the error `of.missing` if there is none."""
        call.require(Rights.OWNER)
        found = self._metadata.bucket_document(call.bucket, of.kind)
        stored = of.default if found is None else found
        if stored is None:
            code, message = of.missing
            raise S3Error(code, message, BucketName=call.bucket)
        return of.get_reply(call, stored)

    def put(self, of: DocumentType, call: Call) -> Reply:
        """Store the document in the request, replacing the old one. Raises AccessDenied, NoSuchBucket,
        MaxMessageLengthExceeded, and the errors of `of.parse`."""
        call.require(Rights.OWNER)
        stored = of.parse(call, self._access)
        if len(stored) > DOCUMENT_BYTES_MAX:
            raise S3Error("MaxMessageLengthExceeded", f"The configuration has more than {DOCUMENT_BYTES_MAX} bytes.")
        self._access.set_bucket_document(call.bucket, of.kind, stored or None, self._clock.now_ms())
        return of.put_reply(stored)

    def delete(self, of: DocumentType, call: Call) -> Reply:
        """Delete the document; a bucket without one is not an error. Raises AccessDenied, NoSuchBucket."""
        call.require(Rights.OWNER)
        self._access.set_bucket_document(call.bucket, of.kind, None, self._clock.now_ms())
        return empty(status=204)


def read_document(call: Call, *, of_object: bool = False, may_be_empty: bool = False) -> bytes:
    """Return the body of a request after checking its length, signature and checksums. `of_object` is passed to
    `checksums.expected_of`. Raises S3Error: MissingRequestBodyError if the body is missing, unless `may_be_empty`
    is set, because S3 answers differently to a few operations without a body."""
    body = CheckedBody(call.request, call.signed, call.source, of_object=of_object)
    found = read_up_to(body, DOCUMENT_SIZE_MAX + 1)
    if len(found) > DOCUMENT_SIZE_MAX:
        raise S3Error("MaxMessageLengthExceeded", f"The document has more than {DOCUMENT_SIZE_MAX} bytes.")
    if not found and not may_be_empty:
        raise S3Error("MissingRequestBodyError", "Request Body is empty")
    return found
