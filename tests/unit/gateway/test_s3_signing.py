"""Signature Version 4, against botocore's signer: what it signs is accepted, and nothing else is."""

from __future__ import annotations

import calendar
import hashlib
import re
import time
from dataclasses import replace
from random import Random
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request, decoded_query
from nos_ec.s3.signing import Claim, Payload, Signed, read_claim, signing_key, verify

ACCESS_KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

LETTERS = "abcxyzABZ019-_.~ /+&=%?#!$'()*,:;@\u00e4\u00df\u6f22\U0001f600\u0301\t"
SEGMENTS = ["", ".", "..", "%2F", "%2f", "a+b", "a%20b", "(x)!*'", "a=b;c,d@e:f$", "%C3%BC", "a&b", "%00", "%"]
NAMES = ["prefix", "delimiter", "acl", "uploads", "partNumber", "Key", "key", "a b", "\u00fc", "", "x-id"]
HEADERS = ["x-amz-acl", "x-amz-meta-Colour", "x-amz-tagging", "Content-Type", "Range", "x-amz-copy-source", "If-Match"]
METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE"]
HOSTS = ["s3.example.com", "bucket.s3.example.com:9000", "127.0.0.1:8333", "[::1]:80"]
PRINTABLE = "".join(map(chr, range(32, 127)))


class Dice(Random):
    """Draws requests."""

    def text(self, letters: str = LETTERS, length_max: int = 12) -> str:
        return "".join(self.choices(letters, k=self.randint(0, length_max)))

    def path(self) -> str:
        parts = [
            self.choice(SEGMENTS) if self.random() < 0.5 else quote(self.text(), safe="~")
            for _ in range(self.randint(0, 5))
        ]
        return "/bucket/" + "/".join(parts)

    def query(self) -> str:
        pairs = []
        for _ in range(self.randint(0, 6)):
            name, value = self.choice(NAMES), self.text()
            bare = self.random() < 0.2
            pairs.append(quote(name, safe="") + ("" if bare else "=" + quote(value, safe="~")))
        return "&".join(pairs)

    def request_headers(self) -> dict[str, str]:
        return {name: self.text(PRINTABLE, 20) for name in self.sample(HEADERS, self.randint(0, 4))}

    def mutated(self, text: bytes) -> bytes:
        """One place changed: up to two bytes taken out, up to two put in."""
        at = self.randint(0, len(text))
        return text[:at] + self.randbytes(self.randint(0, 2)).replace(b"\n", b"") + text[at + self.randint(0, 2) :]


def now_ms_of(date: str) -> int:
    return calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")) * 1000


def as_sent(signed: AWSRequest, host: str) -> Request:
    url = urlsplit(signed.url)
    headers = [(b"host", host.encode())]
    headers += [(name.lower().encode(), str(value).encode()) for name, value in signed.headers.items()]
    return Request(signed.method, url.path.encode(), url.query.encode(), headers)


def signed_in_header(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes, host: str = "s3.example.com"
) -> tuple[Request, int]:
    """The request, and the time in ms at which it was signed."""
    url = f"http://{host}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers={**headers, "Host": host}, data=body)
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET), "s3", "eu-north-1").add_auth(request)
    del request.headers["Host"]
    return as_sent(request, host), now_ms_of(request.context["timestamp"])


def presigned(
    method: str, path: str, query: str, headers: dict[str, str], expires: int = 3600, host: str = "s3.example.com"
) -> tuple[Request, int]:
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method, url, headers={**headers, "Host": host})
    S3SigV4QueryAuth(Credentials(ACCESS_KEY, SECRET), "s3", "eu-north-1", expires=expires).add_auth(request)
    match = re.search("X-Amz-Date=([0-9TZ]+)", request.url)
    assert match
    del request.headers["Host"]
    return as_sent(request, host), now_ms_of(match[1])


def checked(request: Request, now_ms: int, secret: str | None = SECRET) -> tuple[Claim, Signed]:
    claim = read_claim(request, now_ms)
    assert claim is not None
    return claim, verify(request, claim, secret)


def refused(request: Request, now_ms: int, secret: str | None = SECRET) -> S3Error:
    try:
        claim = read_claim(request, now_ms)
        assert claim is not None
        verify(request, claim, secret if claim.access_key == ACCESS_KEY else None)
    except S3Error as error:
        return error
    pytest.fail(f"accepted: {request}")


def with_header(request: Request, name: str, value: str | None) -> Request:
    """value: None removes it."""
    headers = [pair for pair in request.headers if pair[0] != name.encode()]
    if value is not None:
        headers.append((name.encode(), value.encode()))
    return Request(request.method, request.raw_path, request.raw_query, headers)


@pytest.mark.parametrize("seed", range(4))
def test_what_botocore_signs_in_a_header_is_accepted(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(500):
        method, host, body = dice.choice(METHODS), dice.choice(HOSTS), dice.randbytes(dice.randint(0, 30))
        request, now_ms = signed_in_header(method, dice.path(), dice.query(), dice.request_headers(), body, host)
        claim, signed = checked(request, now_ms)
        assert (claim.access_key, claim.region, claim.presigned) == (ACCESS_KEY, "eu-north-1", False)
        assert signed.payload is Payload.SHA256
        assert signed.sha256 == request.header("x-amz-content-sha256") == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("seed", range(4))
def test_what_botocore_presigns_is_accepted(seed: int) -> None:
    dice = Dice(seed)
    for _ in range(500):
        method, host = dice.choice(METHODS), dice.choice(HOSTS)
        request, now_ms = presigned(method, dice.path(), dice.query(), dice.request_headers(), host=host)
        claim, signed = checked(request, now_ms)
        assert (claim.presigned, signed.payload, signed.sha256) == (True, Payload.UNSIGNED, None)


def meaning(request: Request) -> Any:
    """What a request says: two that agree in it are the same request to S3."""
    headers = {
        name: b",".join(b" ".join(value.split()) for value in values) for name, values in request.header_values.items()
    }
    # Blanks around its commas do not belong to it.
    headers[b"authorization"] = b",".join(part.strip() for part in headers.get(b"authorization", b"").split(b","))
    query = sorted(decoded_query(request.raw_query))
    return request.method, unquote_to_bytes(request.raw_path or b"/"), query, headers


@pytest.mark.parametrize("in_query", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_one_place_changed_anywhere_is_refused(in_query: bool, seed: int) -> None:
    dice = Dice(seed)
    refusals = dict.fromkeys(["method", "path", "query", "header"], 0)
    for _ in range(300):
        method, path, query, headers = dice.choice(METHODS), dice.path(), dice.query(), dice.request_headers()
        if in_query:
            request, now_ms = presigned(method, path, query, headers)
        else:
            request, now_ms = signed_in_header(method, path, query, headers, dice.randbytes(3))
        signed = signed_names(request)
        for what in refusals:
            if what == "method":
                other = replace(request, method=dice.choice(METHODS))
            elif what == "path":
                other = replace(request, raw_path=dice.mutated(request.raw_path))
            elif what == "query":
                other = replace(request, raw_query=dice.mutated(request.raw_query))
            else:
                at = dice.randrange(len(request.headers))
                name, value = request.headers[at]
                assert name.decode() in signed or name == b"authorization"
                changed = [*request.headers[:at], (name, dice.mutated(value)), *request.headers[at + 1 :]]
                other = replace(request, headers=changed)
            if meaning(other) != meaning(request):
                refusals[what] += 1
                assert refused(other, now_ms).status in (400, 403, 501)
    assert min(refusals.values()) > 150


def signed_names(request: Request) -> tuple[str, ...]:
    claim = read_claim(request, now_ms_of(request.header("x-amz-date") or (request.parameter("X-Amz-Date") or "")))
    assert claim
    return claim.signed_headers


@pytest.mark.parametrize("in_query", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("eu-north-1", "us-east-1", "SignatureDoesNotMatch"),
        ("/s3/", "/sts/", "malformed"),
        ("aws4_request", "aws5_request", "malformed"),
        ("SignedHeaders=", "SignedHeaders=a;", "SignatureDoesNotMatch"),
        ("SignedHeaders=host", "SignedHeaders=x", "malformed"),
        ("Signature=", "Signature=0", "malformed"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=3601", "SignatureDoesNotMatch"),
    ],
)
def test_each_field_of_the_credential_counts(in_query: bool, old: str, new: str, code: str) -> None:
    request, now_ms = presigned("GET", "/b/k", "", {}) if in_query else signed_in_header("GET", "/b/k", "", {}, b"")
    old, new = (text.replace("/", "%2F").replace(";", "%3B") if in_query else text for text in (old, new))
    query = request.raw_query.replace(old.encode(), new.encode(), 1)
    authorization = (request.header("authorization") or "").replace(old, new, 1)
    other = with_header(request, "authorization", authorization or None)
    other = Request("GET", other.raw_path, query, other.headers)
    if (other.raw_query, authorization) == (request.raw_query, request.header("authorization") or ""):
        assert not in_query
        return
    expected = "AuthorizationQueryParametersError" if in_query else "AuthorizationHeaderMalformed"
    assert refused(other, now_ms).code == (expected if code == "malformed" else code)


def test_a_wrong_secret_and_an_unknown_key_are_told_apart() -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {}, b"")
    error = refused(request, now_ms, "another")
    assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)
    assert error.fields["AWSAccessKeyId"] == ACCESS_KEY
    assert error.fields["StringToSign"].startswith("AWS4-HMAC-SHA256\n")
    assert error.fields["CanonicalRequest"].startswith("GET\n/b/k\n\nhost:s3.example.com\n")
    error = refused(request, now_ms, None)
    assert (error.code, error.fields) == ("InvalidAccessKeyId", {"AWSAccessKeyId": ACCESS_KEY})


def test_a_clock_may_differ_by_fifteen_minutes() -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {}, b"")
    for difference_ms in (-900_000, 900_000):
        checked(request, now_ms + difference_ms)
    for difference_ms in (-900_001, 900_001):
        error = refused(request, now_ms + difference_ms)
        assert (error.code, error.status) == ("RequestTimeTooSkewed", 403)
        assert error.fields["RequestTime"] == request.header("x-amz-date")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", error.fields["ServerTime"])
        assert error.fields["MaxAllowedSkewMilliseconds"] == "900000"


@pytest.mark.parametrize("date", ["", "x", "20261323T000000Z", "19500707T215304Z", "20261123T000000"])
def test_a_bad_date_is_refused(date: str) -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {}, b"")
    assert refused(with_header(request, "x-amz-date", date), now_ms).code == "AccessDenied"
    request = with_header(with_header(request, "x-amz-date", None), "date", date)
    assert refused(request, now_ms).code == "AccessDenied"


def test_the_date_header_will_do() -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {"Date": "to be replaced"}, b"")
    assert request.header("x-amz-date") is None
    checked(request, now_ms)
    other = with_header(request, "date", "Fri, 31 Dec 9999 23:59:59 -1200")
    assert refused(other, now_ms).code == "AccessDenied"


def test_presigned_urls_expire() -> None:
    request, now_ms = presigned("GET", "/b/k", "", {}, expires=60)
    checked(request, now_ms + 60_000)
    error = refused(request, now_ms + 61_000)
    assert (error.code, error.fields["X-Amz-Expires"]) == ("AccessDenied", "60")
    assert error.fields["Expires"] < error.fields["ServerTime"]
    checked(request, now_ms - 900_000)
    assert "not valid yet" in refused(request, now_ms - 900_001).message


@pytest.mark.parametrize(("expires", "good"), [(0, False), (-1, False), (1, True), (604800, True), (604801, False)])
def test_presigned_urls_live_for_a_second_to_seven_days(expires: int, good: bool) -> None:
    request, now_ms = presigned("GET", "/b/k", "", {}, expires=expires)
    if good:
        checked(request, now_ms)
    else:
        assert refused(request, now_ms).code == "AccessDenied"


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_presigned_url_needs_all_its_parameters_once(name: str) -> None:
    request, now_ms = presigned("GET", "/b/k", "", {})
    parts = request.raw_query.split(b"&")
    mine = [part for part in parts if part.startswith(f"X-Amz-{name}=".encode())]
    without = b"&".join(part for part in parts if part not in mine)
    error = refused(Request("GET", b"/b/k", without, request.headers), now_ms)
    assert error.code == "AuthorizationQueryParametersError"
    twice = Request("GET", b"/b/k", b"&".join(parts + mine), request.headers)
    assert refused(twice, now_ms).code == "InvalidArgument"


@pytest.mark.parametrize("in_query", [False, True])
def test_every_amz_header_must_be_signed(in_query: bool) -> None:
    request, now_ms = presigned("PUT", "/b/k", "", {}) if in_query else signed_in_header("PUT", "/b/k", "", {}, b"")
    other = Request("PUT", b"/b/k", request.raw_query, [*request.headers, (b"x-amz-copy-source", b"/secret/key")])
    error = refused(other, now_ms)
    assert (error.code, error.fields) == ("AccessDenied", {"HeadersNotSigned": "x-amz-copy-source"})
    checked(Request("PUT", b"/b/k", request.raw_query, [*request.headers, (b"x-amzn-trace-id", b"1")]), now_ms)


def test_an_absent_header_may_be_signed_as_an_empty_one() -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {"Range": ""}, b"")
    checked(with_header(request, "range", None), now_ms)
    refused(with_header(request, "range", "bytes=0-1"), now_ms)


def test_clients_may_sign_the_canonical_form_of_what_they_send() -> None:
    request, now_ms = signed_in_header("GET", "/b/%28a%20b%29%2B", "prefix=a%2Fb%20c&x=%2B", {}, b"")
    checked(Request("GET", b"/b/(a%20b)+", b"x=%2b&prefix=a/b+c", request.headers), now_ms)
    refused(Request("GET", b"/b/(a%20b)%20", b"x=%2b&prefix=a/b+c", request.headers), now_ms)
    refused(Request("GET", b"/b/(a%20b)+", b"x=+&prefix=a/b+c", request.headers), now_ms)


def test_version_2_in_a_header_is_told_what_to_do() -> None:
    headers = [(b"host", b"h"), (b"authorization", b"AWS AKIDEXAMPLE:abc=")]
    error = refused(Request("GET", b"/b/k", b"", headers), 0)
    assert error.code == "InvalidRequest"
    assert "AWS4-HMAC-SHA256" in error.message
    assert "signature_version='s3v4'" in error.message


def test_no_signature_is_an_anonymous_request() -> None:
    assert read_claim(Request("GET", b"/b/k", b"prefix=Signature", [(b"host", b"h")]), 0) is None


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "AccessDenied"),
        ("Basic abc", "InvalidArgument"),
        ("AWS4-ECDSA-P256-SHA256 Credential=x", "InvalidRequest"),
        ("AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 Credential=a/20261123/r/s3/aws4_request", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 Credential=a, Credential=b", "AuthorizationHeaderMalformed"),
    ],
)
def test_other_authorizations_are_refused(authorization: str, code: str) -> None:
    assert refused(Request("GET", b"/b", b"", [(b"authorization", authorization.encode())]), 0).code == code


def test_both_ways_at_once_are_refused() -> None:
    one, now_ms = presigned("GET", "/b/k", "", {})
    other, _ = signed_in_header("GET", "/b/k", "", {}, b"")
    assert refused(Request("GET", b"/b/k", one.raw_query, other.headers), now_ms).code == "InvalidArgument"


def test_a_session_token_is_read_and_must_be_signed() -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {"X-Amz-Security-Token": "x"}, b"")
    assert checked(request, now_ms)[0].token == "x"
    request, now_ms = presigned("GET", "/b/k", "X-Amz-Security-Token=y", {})
    assert checked(request, now_ms)[0].token == "y"
    request, now_ms = signed_in_header("GET", "/b/k", "", {}, b"")
    added = Request("GET", b"/b/k", b"", [*request.headers, (b"x-amz-security-token", b"x")])
    assert refused(added, now_ms).code == "AccessDenied"
    request, now_ms = presigned("GET", "/b/k", "", {})
    added = Request("GET", b"/b/k", request.raw_query + b"&X-Amz-Security-Token=x", request.headers)
    assert refused(added, now_ms).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["authorization", "x-amz-date", "x-amz-content-sha256"])
def test_a_header_that_decides_may_be_sent_once(name: str) -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {}, b"")
    again = (name.encode(), (request.header(name) or "").encode())
    assert refused(Request("GET", b"/b/k", b"", [*request.headers, again]), now_ms).code == "InvalidRequest"


@pytest.mark.parametrize("payload", list(Payload))
def test_all_ways_to_sign_a_body_are_recognised(payload: Payload) -> None:
    value = EMPTY_SHA256.upper() if payload is Payload.SHA256 else payload.value
    request, now_ms = raw_signed([("x-amz-content-sha256", value)])
    _, signed = checked(request, now_ms)
    assert (signed.payload, signed.sha256) == (payload, EMPTY_SHA256 if payload is Payload.SHA256 else None)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"),
        ("STREAMING-OTHER", "InvalidArgument"),
        ("abc", "InvalidArgument"),
        ("", "InvalidArgument"),
        (None, "InvalidRequest"),
    ],
)
def test_other_ways_to_sign_a_body_are_refused(value: str | None, code: str) -> None:
    request, now_ms = raw_signed([("x-amz-content-sha256", value or "")])
    assert refused(with_header(request, "x-amz-content-sha256", value), now_ms).code == code


def raw_signed(headers: list[tuple[str, str]]) -> tuple[Request, int]:
    """Signed by botocore with these values of `x-amz-content-sha256`, which S3SigV4Auth would compute."""
    request = AWSRequest("PUT", "http://s3.example.com/b/k", headers=dict(headers))
    auth = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET), "s3", "eu-north-1")
    auth.payload = lambda _: dict(headers)["x-amz-content-sha256"]
    auth.add_auth(request)
    return as_sent(request, "s3.example.com"), now_ms_of(request.headers["X-Amz-Date"])


def test_a_presigned_url_may_say_what_body_it_signs() -> None:
    request, now_ms = presigned("PUT", "/b/k", f"X-Amz-Content-Sha256={Payload.UNSIGNED.value}", {})
    checked(request, now_ms)
    other = with_header(request, "x-amz-content-sha256", EMPTY_SHA256)
    assert refused(other, now_ms).code == "InvalidRequest"


def test_the_example_of_the_reference() -> None:
    """ "Example: GET Object" of sig-v4-header-based-auth."""
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "authorization": authorization,
        "range": "bytes=0-9",
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": "20130524T000000Z",
    }
    request = Request("GET", b"/test.txt", b"", [(name.encode(), value.encode()) for name, value in headers.items()])
    checked(request, now_ms_of("20130524T000000Z"), "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def test_the_cache_of_signing_keys_is_bounded() -> None:
    for number in range(1100):
        signing_key(SECRET, "20261123", f"region-{number}")
    assert signing_key.cache_info().currsize == 1024


@pytest.mark.parametrize("region", ["", "a" * 65, "eu\nnorth", "eu/1"])
def test_what_is_no_region_does_not_reach_the_cache(region: str) -> None:
    request, now_ms = signed_in_header("GET", "/b/k", "", {}, b"")
    header = request.header("authorization") or ""
    other = with_header(request, "authorization", header.replace("/eu-north-1/", f"/{region}/"))
    before = signing_key.cache_info().misses
    assert refused(other, now_ms).code == "AuthorizationHeaderMalformed"
    assert signing_key.cache_info().misses == before


def test_what_is_read_before_the_signature_is_bounded() -> None:
    for path, query in ((b"/b/" + b"k" * 16_384, b""), (b"/b", b"&".join([b"a=1"] * 201))):
        with pytest.raises(S3Error, match="more than"):
            Request("GET", path, query, [])


def test_a_query_that_is_not_utf_8_is_refused() -> None:
    assert refused(Request("GET", b"/b", b"a=%FF", []), 0).code == "InvalidURI"
