"""Verifies Signature Version 2 of presigned URLs.

botocore still presigns with it for the region us-east-1 unless told otherwise, and so do `aws s3 presign` and boto3.
Requests signed in a header must use Signature Version 4 (nos_ec.s3.signing).

Sources: "Signing and authenticating REST requests" of the S3 user guide (RESTAuthentication, "Query string request
authentication alternative"). According to it, the string to sign is:

    METHOD, Content-MD5, Content-Type, Expires, each with a line feed
    the x-amz- headers, including the ones in the query, by name in lower case: `name:value` and a line feed
    the path with the bucket in front, and the subresources of the query
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass

from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.hoisted import with_hoisted
from nos_ec.s3.request import Request, query_parts, require_header_value
from nos_ec.s3.signing import Payload, Signed, iso_8601, unknown_key, without_keys

_NAMES = frozenset(["AWSAccessKeyId", "Signature", "Expires"])
_SUBRESOURCE = re.compile(
    "accelerate|acl|analytics|cors|defaultObjectAcl|delete|encryption|intelligent-tiering|inventory|legal-hold|lifecycle"
    "|location|logging|metrics|notification|object-lock|ownershipControls|partNumber|policy|policyStatus"
    "|publicAccessBlock|replication|requestPayment|restore|retention|select|select-type|storageClass|tagging|torrent"
    "|uploadId|uploads|versionId|versioning|versions|website"
    "|response-(cache-control|content-disposition|content-encoding|content-language|content-type|expires)"
)
_ANOTHER = re.compile(f"&({_SUBRESOURCE.pattern})(=|&|$)")
"""A subresource inside the value of another one. The signature would be the same if it were sent on its own."""


@dataclass(frozen=True, slots=True)
class ClaimV2:
    """The signature of a URL, not verified yet. `expires` is in seconds since 1970, as sent."""

    access_key: str
    expires: str
    signature: str


def read_claim_v2(request: Request, now_ms: int) -> ClaimV2 | None:
    """Read the signature from the query. Returns None if it has none of this version. Raises AccessDenied (a parameter
    is missing, the URL has expired), InvalidToken."""
    if request.query.keys().isdisjoint(("AWSAccessKeyId", "Signature")) or "X-Amz-Signature" in request.query:
        return None
    if request.header("authorization") is not None:
        raise S3Error(
            "InvalidArgument", "A request is signed in its query or in the Authorization header, not in both."
        )
    if "x-amz-security-token" in {name.lower() for name in request.query}:
        raise S3Error("InvalidToken", "Temporary credentials need Signature Version 4.")
    sent = {name: request.parameter(name) for name in _NAMES}
    access_key, expires, signature = sent["AWSAccessKeyId"], sent["Expires"], sent["Signature"]
    if not access_key or not signature or not expires or not re.fullmatch("[0-9]{1,11}", expires):
        raise S3Error(
            "AccessDenied", "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters"
        )
    end_ms = int(expires) * 1000
    if now_ms > end_ms:
        raise S3Error("AccessDenied", "Request has expired", Expires=iso_8601(end_ms), ServerTime=iso_8601(now_ms))
    return ClaimV2(access_key, expires, signature)


def verify_v2(request: Request, claim: ClaimV2, secret: str | None, host_bucket: str | None) -> Signed:
    """Verify the signature. secret: the secret of the access key, or None if there is no such key. host_bucket: the
    bucket in the Host header, or None if the path names it. Raises InvalidAccessKeyId, SignatureDoesNotMatch."""
    if secret is None:
        raise unknown_key(claim.access_key)
    path = request.raw_path.decode("latin-1") or "/"
    resource = path if host_bucket is None else f"/{host_bucket}{path}"
    to_sign = string_to_sign(request, claim.expires, resource)
    # Some clients sign the path of a bucket with a trailing slash, but do not send the slash.
    others = [string_to_sign(request, claim.expires, resource + "/")] if resource.count("/") == 1 else []
    if not any(_is_of(claim.signature, secret, text) for text in [to_sign, *others]):
        raise S3Error(
            "SignatureDoesNotMatch",
            "The signature is not the one that this store computed. Check the secret key and how the client signs.",
            AWSAccessKeyId=claim.access_key,
            StringToSign=without_keys(to_sign),
            SignatureProvided=claim.signature,
        )
    return Signed(claim.access_key, Payload.UNSIGNED, None, b"", "", "", "")


def _is_of(signature: str, secret: str, text: str) -> bool:
    computed = base64.b64encode(hmac.digest(secret.encode(), text.encode("latin-1"), "sha1"))
    return hmac.compare_digest(computed, signature.encode())


def string_to_sign(request: Request, expires: str, resource: str) -> str:
    """Return the string to sign, with each byte as a character. resource: the bucket and the path."""
    meant = with_hoisted(request)
    lines = [request.method, _bytes_of(meant, "content-md5"), _bytes_of(meant, "content-type"), expires]
    amz: dict[str, list[str]] = {}
    for name, value in _amz_headers(request):
        amz.setdefault(name, []).append(value.strip())
    lines += [f"{name}:{','.join(amz[name])}" for name in sorted(amz)]
    named = _subresources(request)
    return "\n".join([*lines, resource + ("?" + "&".join(sorted(named)) if named else "")])


def _subresources(request: Request) -> list[str]:
    """Return the subresources of the query. They are decoded as in `Request.query`, so that the request that is
    executed is the one that was signed."""
    found = []
    for part in query_parts(request.raw_query):
        name, equals, value = (word.decode("latin-1") for word in part)
        if _SUBRESOURCE.fullmatch(name):
            if _ANOTHER.search(value):
                raise invalid_argument(
                    f"The value of {name} looks like further parameters, which Signature Version 2 cannot tell from"
                    " real ones. Use Signature Version 4.",
                    name,
                )
            found.append(name + equals + value)
    return found


def _bytes_of(request: Request, header: str) -> str:
    return (request.header(header) or "").encode().decode("latin-1")


def _amz_headers(request: Request) -> list[tuple[str, str]]:
    """Return the x-amz- headers, then those of the query, including the ones that `with_hoisted` ignores."""
    found = [(name.decode("latin-1"), value) for name, value in request.headers if name.startswith(b"x-amz-")]
    sent = {name for name, _ in found}
    in_query = [
        (name.lower(), values[0].encode())
        for name, values in request.query.items()
        if name.lower().startswith("x-amz-") and name.lower() not in sent
    ]
    for name, value in in_query:
        require_header_value(name, value.decode("latin-1"))
    return [(name, value.decode("latin-1")) for name, value in found + in_query]
