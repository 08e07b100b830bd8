"""Verifies Signature Version 4 of requests that are signed in a header, and of presigned URLs.

Sources, all of the S3 API reference: "Authenticating Requests: Using the Authorization Header"
(sigv4-auth-using-authorization-header), "Transferring Payload in a Single Chunk" (sig-v4-header-based-auth), "Using
Query Parameters" (sigv4-query-string-auth); "Error responses" for the codes.

Verification has two steps, between which the caller looks up the secret:

1. `read_claim` reads the access key, the signature and what it covers. It refuses malformed ones, and dates out of
   bounds.
2. `verify` compares the signature, and returns how the body is signed.

Clients sign either the bytes that they send, or the same path and query in canonical encoding. Both mean the same
request, so both are accepted.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import Request, decoded_query

SKEW_MS_MAX = 15 * 60 * 1000
EXPIRES_S_MAX = 7 * 24 * 3600
SIGNED_HEADERS_MAX = 128
SIGNED_HEADERS_SIZE_MAX = 8192
_ALGORITHM = "AWS4-HMAC-SHA256"
_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_CUSTOMERS_KEY = re.compile("(customer-key[:=])[^&\n]*", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_TOKEN = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+")
_REGION = re.compile(r"[0-9A-Za-z_-]{1,64}")
"""The region of any store. It is bounded, because unverified regions would fill the cache of signing keys."""
_QUERY_NAMES = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")


class Payload(Enum):
    """How the body is signed, according to `x-amz-content-sha256`."""

    SHA256 = "the SHA-256 of the body"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    CHUNKED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    CHUNKED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    CHUNKED_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    @property
    def is_chunked(self) -> bool:
        """Whether the body is in aws-chunked encoding."""
        return self.value.startswith("STREAMING-")

    @property
    def has_trailers(self) -> bool:
        """Whether trailers may follow the body."""
        return self.value.endswith("-TRAILER")


_PAYLOAD_OF = {payload.value: payload for payload in Payload if payload is not Payload.SHA256}


@dataclass(frozen=True, slots=True)
class Claim:
    """The signature of a request, not verified yet. `date` has the form `YYYYMMDDTHHMMSSZ`; `scope` is the rest of the
    credential after the access key. `date` and `content_sha256` are as sent. `presigned` is set for a signature in the
    query. `token` is the session token of temporary credentials, None for an access key."""

    access_key: str
    token: str | None
    date: str
    region: str
    service: str
    scope: str
    signed_headers: tuple[str, ...]
    signature: str
    content_sha256: str
    payload: Payload
    presigned: bool


@dataclass(frozen=True, slots=True)
class Signed:
    """A request whose signature was verified. `sha256` is the hexadecimal SHA-256 that the body must have; it is set
    only for Payload.SHA256. The signatures of chunks are computed from `signing_key`, `date`, `scope` and
    `signature`."""

    access_key: str
    payload: Payload
    sha256: str | None
    signing_key: bytes = field(repr=False)
    date: str
    scope: str
    signature: str


def read_claim(request: Request, now_ms: int, service: str = "s3", body: bytes | None = None) -> Claim | None:
    """Read the signature of a request to this service. Returns None for an anonymous request. Any region is accepted,
    because clients of a private store sign with whatever region they are configured for. `body` is given for services
    other than S3, which sign its SHA-256 without sending it as a header.

    Raises S3Error: AuthorizationHeaderMalformed, AuthorizationQueryParametersError, InvalidArgument, InvalidRequest,
    AccessDenied (no date, not valid yet, expired), RequestTimeTooSkewed, NotImplemented (an unsupported
    way to sign bodies)."""
    authorization = request.header("authorization")
    in_query = not request.query.keys().isdisjoint(("X-Amz-Algorithm", "X-Amz-Signature", "X-Amz-Credential"))
    if in_query and authorization is not None:
        raise S3Error(
            "InvalidArgument", "A request is signed in its query or in the Authorization header, not in both."
        )
    if not in_query and authorization is None:
        return None
    if in_query:
        if body is not None:  # nothing in a presigned URL covers the body
            raise S3Error("AccessDenied", "This request must be signed in its Authorization header.")
        return _claim_of_query(request, now_ms, service)
    body_sha256 = None if body is None else hashlib.sha256(body).hexdigest()
    return _claim_of_header(request, authorization or "", now_ms, service, body_sha256)


def unsigned(request: Request) -> Signed | None:
    """Return how the body of an anonymous request is sent; None if x-amz-content-sha256 is missing. Raises S3Error like
    `read_claim`, and AccessDenied for signed chunks, which need a key."""
    sent = request.header("x-amz-content-sha256")
    if sent is None:
        return None
    payload = _payload(sent)
    if payload in (Payload.CHUNKED, Payload.CHUNKED_TRAILER):
        raise S3Error("AccessDenied", "A request without a signature cannot have signed chunks.")
    return Signed("", payload, sent.lower() if payload is Payload.SHA256 else None, b"", "", "", "")


def unknown_key(access_key: str) -> S3Error:
    """Return the error for an access key that does not exist or is disabled."""
    return S3Error(
        "InvalidAccessKeyId", "This store has no such access key, or it is disabled.", AWSAccessKeyId=access_key
    )


def verify(request: Request, claim: Claim, secret: str | None) -> Signed:
    """Verify the signature. secret: the secret of claim.access_key, or None if there is no such key.

    Raises S3Error: InvalidAccessKeyId, SignatureDoesNotMatch, AccessDenied (a header that must be signed is not)."""
    if secret is None:
        raise unknown_key(claim.access_key)
    key = signing_key(secret, claim.date[:8], claim.region, claim.service)
    headers = _canonical_headers(request, claim.signed_headers)
    first = None
    for path, query in _canonical_targets(request, claim.presigned):
        canonical = b"\n".join([request.method.encode(), path, query, headers, claim.content_sha256.encode()])
        to_sign = "\n".join([_ALGORITHM, claim.date, claim.scope, hashlib.sha256(canonical).hexdigest()])
        if hmac.compare_digest(sign(key, to_sign), claim.signature):
            break
        first = first or (canonical, to_sign)
    else:
        assert first is not None
        raise S3Error(
            "SignatureDoesNotMatch",
            "The signature is not the one that this store computed. Check the secret key and how the client signs.",
            AWSAccessKeyId=claim.access_key,
            StringToSign=first[1],
            SignatureProvided=claim.signature,
            CanonicalRequest=without_keys(first[0].decode("utf-8", "replace")),
        )
    _refuse_unsigned_headers(request, claim)
    return Signed(
        access_key=claim.access_key,
        payload=claim.payload,
        sha256=claim.content_sha256.lower() if claim.payload is Payload.SHA256 else None,
        signing_key=key,
        date=claim.date,
        scope=claim.scope,
        signature=claim.signature,
    )


def without_keys(text: str) -> str:
    """Return a text that a client signed without keys of customers, for an error, which programs log."""
    return _CUSTOMERS_KEY.sub(r"\1...", text)


@lru_cache(maxsize=1024)
def signing_key(secret: str, day: str, region: str, service: str = "s3") -> bytes:
    """Return the key that signs the requests of one day, region and service. The last 1,024 keys are cached."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def sign(key: bytes, string_to_sign: str) -> str:
    """Return the signature in hexadecimal."""
    return hmac.digest(key, string_to_sign.encode(), "sha256").hex()


def _malformed(presigned: bool) -> str:
    return "AuthorizationQueryParametersError" if presigned else "AuthorizationHeaderMalformed"


def _claim_of_header(request: Request, authorization: str, now_ms: int, service: str, body_sha256: str | None) -> Claim:
    scheme, _, rest = authorization.partition(" ")
    if not scheme:
        raise S3Error("AccessDenied", "The Authorization header is empty.")
    if scheme == "AWS" or scheme.startswith("AWS4-"):
        if scheme != _ALGORITHM:
            raise S3Error(
                "InvalidRequest",
                f"The authorization mechanism {scheme} is not supported. Please use {_ALGORITHM}: with boto3, pass"
                " config=Config(signature_version='s3v4') to the client.",
            )
    else:
        raise invalid_argument("Unsupported Authorization type.", "Authorization")
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip(" \t").partition("=")
        if not equals or name in fields:
            raise S3Error("AuthorizationHeaderMalformed", f"The authorization header has the invalid part {name!r}.")
        fields[name] = value
    if fields.keys() != {"Credential", "SignedHeaders", "Signature"}:
        raise S3Error(
            "AuthorizationHeaderMalformed",
            "The authorization header must have Credential, SignedHeaders and Signature, and nothing else.",
        )
    date, date_ms = _date_of_headers(request)
    if abs(now_ms - date_ms) > SKEW_MS_MAX:
        raise _skewed(date, now_ms)
    content_sha256 = request.header("x-amz-content-sha256") if body_sha256 is None else body_sha256
    if content_sha256 is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256.")
    return _claim(fields, request.header("x-amz-security-token"), date, content_sha256, service, presigned=False)


def _claim_of_query(request: Request, now_ms: int, service: str) -> Claim:
    fields = {}
    for name in _QUERY_NAMES:
        value = request.parameter("X-Amz-" + name)
        if value is None:
            raise S3Error(
                "AuthorizationQueryParametersError", f"The query has no X-Amz-{name}; a presigned URL needs it."
            )
        fields[name] = value
    if fields["Algorithm"] != _ALGORITHM:
        raise S3Error("AuthorizationQueryParametersError", f"X-Amz-Algorithm must be {_ALGORITHM}.")
    date_ms = _parsed(fields["Date"])
    if date_ms is None:
        raise S3Error("AuthorizationQueryParametersError", "X-Amz-Date must be a time of the form YYYYMMDDTHHMMSSZ.")
    expires = fields["Expires"]
    if not re.fullmatch(r"[0-9]{1,9}", expires) or not 1 <= int(expires) <= EXPIRES_S_MAX:
        raise S3Error("AccessDenied", f"X-Amz-Expires must be 1 to {EXPIRES_S_MAX} seconds (seven days).")
    if date_ms - now_ms > SKEW_MS_MAX:
        raise S3Error("AccessDenied", "Request is not valid yet.", ServerTime=iso_8601(now_ms))
    end_ms = date_ms + int(expires) * 1000
    if now_ms > end_ms:
        raise S3Error(
            "AccessDenied",
            "Request has expired.",
            Expires=iso_8601(end_ms),
            ServerTime=iso_8601(now_ms),
            **{"X-Amz-Expires": expires},
        )
    in_query, in_header = request.parameter("X-Amz-Content-Sha256"), request.header("x-amz-content-sha256")
    if in_query is not None and in_header is not None and in_query != in_header:
        raise S3Error("InvalidRequest", "X-Amz-Content-Sha256 differs between the query and the headers.")
    token = request.parameter("X-Amz-Security-Token")
    content_sha256 = in_query or in_header or Payload.UNSIGNED.value
    return _claim(fields, token, fields["Date"], content_sha256, service, presigned=True)


def _claim(
    fields: dict[str, str], token: str | None, date: str, content_sha256: str, service: str, *, presigned: bool
) -> Claim:
    code = _malformed(presigned)
    # An access key may contain slashes; the other parts may not.
    parts = fields["Credential"].rsplit("/", 4)
    if len(parts) != 5 or not parts[0]:
        raise S3Error(code, f"The credential must be <access key>/<YYYYMMDD>/<region>/{service}/aws4_request.")
    access_key, day, region, *ends = parts
    if ends != [service, "aws4_request"]:
        raise S3Error(code, f"The credential ends in {'/'.join(ends)}; expecting {service}/aws4_request.")
    if not _REGION.fullmatch(region):
        raise S3Error(code, "The region in the credential must be 1 to 64 letters, digits, `-` and `_`.")
    if day != date[:8]:
        raise S3Error(code, f"The credential has the date {day!r}, but the request has {date[:8]!r}.")
    listed = fields["SignedHeaders"]
    names = _signed_headers(listed) if len(listed) <= SIGNED_HEADERS_SIZE_MAX else None
    if names is None:
        raise S3Error(code, "The signed headers must be lower-case names, sorted, and include host.")
    if not _SIGNATURE.fullmatch(fields["Signature"]):
        raise S3Error(code, "The signature must be 64 hexadecimal digits.")
    return Claim(
        access_key=access_key,
        token=token,
        date=date,
        region=region,
        service=service,
        scope="/".join(parts[1:]),
        signed_headers=names,
        signature=fields["Signature"],
        content_sha256=content_sha256,
        payload=_payload(content_sha256),
        presigned=presigned,
    )


@lru_cache(maxsize=64)
def _signed_headers(text: str) -> tuple[str, ...] | None:
    """Return the names, or None if they are invalid. Cached, because a client signs the same headers repeatedly."""
    names = tuple(text.split(";"))
    if (
        len(names) > SIGNED_HEADERS_MAX
        or list(names) != sorted(set(names))
        or not all(map(_TOKEN.fullmatch, names))
        or "host" not in names
    ):
        return None
    return names


def _payload(content_sha256: str) -> Payload:
    if _SHA256.fullmatch(content_sha256):
        return Payload.SHA256
    if found := _PAYLOAD_OF.get(content_sha256):
        return found
    if content_sha256.startswith(("STREAMING-AWS4-ECDSA-", "AWS4-ECDSA-")):
        raise S3Error("NotImplemented", "Signature Version 4A (ECDSA) is not supported.")
    raise invalid_argument(
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, one of the STREAMING values, or a SHA-256 in hexadecimal.",
        "x-amz-content-sha256",
        content_sha256,
    )


def _date_of_headers(request: Request) -> tuple[str, int]:
    """Return the time of signing, as in the string to sign and in ms since 1970."""
    date = request.header("x-amz-date")
    date_ms = None
    if date is not None:
        date_ms = _parsed(date)
    elif (http_date := request.header("date")) is not None:
        # It is signed as ISO 8601 whatever its form ("Transferring Payload in a Single Chunk").
        date_ms = _parsed(http_date) if _DATE.fullmatch(http_date) else _parsed_http(http_date)
        date = "" if date_ms is None else _basic(date_ms)
    if date is None or date_ms is None:
        raise S3Error("AccessDenied", "A signed request needs a valid Date or x-amz-date header.")
    return date, date_ms


def _parsed(text: str) -> int | None:
    """Return `YYYYMMDDTHHMMSSZ` in ms since 1970; None for anything else, and for earlier times."""
    return _time_ms(text) if _DATE.fullmatch(text) else None


@lru_cache(maxsize=64)
def _time_ms(text: str) -> int | None:
    numbers = (text[:4], text[4:6], text[6:8], text[9:11], text[11:13], text[13:15])
    try:
        time = datetime(*map(int, numbers))  # type: ignore[arg-type]
    except ValueError:
        return None
    return timegm(time.timetuple()) * 1000 if time.year >= 1970 else None


def _parsed_http(text: str) -> int | None:
    try:
        time_ms = timegm(parsedate_to_datetime(text).utctimetuple()) * 1000
    except (ValueError, OverflowError):
        return None
    return time_ms if time_ms >= 0 else None


def _basic(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y%m%dT%H%M%SZ}"


def iso_8601(time_ms: int) -> str:
    """Format a time as in S3 answers."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _skewed(date: str, now_ms: int) -> S3Error:
    return S3Error(
        "RequestTimeTooSkewed",
        "The difference between the request time and the server's time is too large. Set the client's clock.",
        RequestTime=date,
        ServerTime=iso_8601(now_ms),
        MaxAllowedSkewMilliseconds=str(SKEW_MS_MAX),
    )


def _canonical_headers(request: Request, names: tuple[str, ...]) -> bytes:
    """Return the canonical headers. A signed header that is absent counts as empty, as some clients sign it."""
    values = request.header_values
    lines = []
    for name in names:
        value = b",".join([b" ".join(value.split()) for value in values.get(name.encode(), [])])
        lines.append(b"%b:%b\n" % (name.encode(), value))
    return b"".join(lines) + b"\n" + ";".join(names).encode()


def _canonical_targets(request: Request, presigned: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield (path, query) as sent, then the forms in canonical encoding that differ from it. The path is never
    normalised, because S3 keys may contain `//` and `..`."""
    path, query = request.raw_path or b"/", _query_as_sent(request.raw_query, presigned)
    yield path, query
    path_encoded = quote_from_bytes(unquote_to_bytes(path), safe="/-_.~").encode()
    query_encoded = _query_encoded(request.raw_query, presigned)
    if query_encoded != query:
        yield path, query_encoded
    if path_encoded != path:
        yield path_encoded, query
        if query_encoded != query:
            yield path_encoded, query_encoded


def _query_as_sent(raw_query: bytes, presigned: bool) -> bytes:
    if not raw_query:
        return b""
    pairs = sorted([(name, value) for name, _, value in (part.partition(b"=") for part in raw_query.split(b"&"))])
    return b"&".join([b"%b=%b" % pair for pair in pairs if not (presigned and pair[0] == b"X-Amz-Signature")])


def _query_encoded(raw_query: bytes, presigned: bool) -> bytes:
    pairs = sorted(
        [
            (quote_from_bytes(name, safe="-_.~"), quote_from_bytes(value, safe="-_.~"))
            for name, value in decoded_query(raw_query)
        ]
    )
    return "&".join(
        [f"{name}={value}" for name, value in pairs if not (presigned and name == "X-Amz-Signature")]
    ).encode()


def _refuse_unsigned_headers(request: Request, claim: Claim) -> None:
    """Raise AccessDenied unless every x-amz- header is signed. Otherwise a copy source or an ACL could be added on the
    way. x-amz-content-sha256 is always part of the canonical request, so it need not be listed."""
    signed = {name.encode() for name in claim.signed_headers} | {b"x-amz-content-sha256"}
    unsigned = sorted({name for name, _ in request.headers if name.startswith(b"x-amz-") and name not in signed})
    if unsigned:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed.",
            HeadersNotSigned=", ".join([name.decode("latin-1") for name in unsigned]),
        )
