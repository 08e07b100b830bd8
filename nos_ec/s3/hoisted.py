"""Headers that a client moved into the query of a presigned URL.

Presigners do this so that the user of the URL does not have to send them, for example the ACL, metadata, tags or
storage class of an object. Signature Version 4 covers the query, and Version 2 the names that begin with `x-amz-`.
Sources: "Presigned URL limitations" and "Authenticating Requests: Using Query Parameters" of the S3 documentation, and
how botocore and the AWS SDK for JavaScript presign.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nos_ec.s3.checksums import Algorithm, in_base64, new_digest
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request, require_header_name, require_header_value

_OF_THE_SIGNATURE = re.compile(
    "x-amz-(algorithm|credential|date|expires|signedheaders|signature|security-token|content-sha256)"
)
_CUSTOMERS_KEY = re.compile("x-amz-(copy-source-)?server-side-encryption-customer-.*")
_CHECKSUMS = {algorithm.header: algorithm for algorithm in Algorithm}
_NAMED = "x-amz-sdk-checksum-algorithm"
_ALSO = frozenset(["content-md5", "content-type"])
"""Other headers than `x-amz-` that are moved; only presigners of Signature Version 2 do so."""


def is_presigned(request: Request) -> bool:
    """Return whether the query has a signature of either version."""
    return not request.query.keys().isdisjoint(("X-Amz-Signature", "Signature"))


def with_hoisted(request: Request) -> Request:
    """Return a presigned request with the headers from its query added to its headers, and any other request
    unchanged. Raises InvalidRequest if a header is in both places with different values, and InvalidArgument for a name
    or value that a header cannot have. A key of the customer in the query is refused, too, because URLs are logged.

    A presigner that has no body yet may send the checksum of zero bytes. It does not describe the body that is sent
    later, so it is ignored."""
    if not is_presigned(request):
        return request
    found: dict[str, str] = {}
    for name in request.query:
        lower = name.lower()
        if (lower.startswith("x-amz-") and not _OF_THE_SIGNATURE.fullmatch(lower)) or lower in _ALSO:
            if _CUSTOMERS_KEY.fullmatch(lower):
                raise S3Error("InvalidRequest", "A key of the customer must be sent as a header, never in a URL.")
            require_header_name(lower)
            value = request.parameter(name) or ""
            require_header_value(lower, value)
            if found.setdefault(lower, value) != value:
                raise S3Error("InvalidRequest", f"The query parameter {lower} was sent more than once.")
    for name in [name for name in found if name in _CHECKSUMS]:
        if found[name] == in_base64(new_digest(_CHECKSUMS[name]).digest()):
            del found[name]
    headers = {name.decode("latin-1") for name in request.header_values}
    if _NAMED in found and not (headers | found.keys()) & _CHECKSUMS.keys():
        del found[_NAMED]
    for name in found.keys() & headers:
        if request.header(name) != found[name] and name not in _ALSO:
            raise S3Error("InvalidRequest", f"{name} differs between the query and the headers.")
    added = [(name.encode(), value.encode()) for name, value in found.items() if name not in headers]
    if not added:
        return request
    return replace(request, headers=[*request.headers, *added])
