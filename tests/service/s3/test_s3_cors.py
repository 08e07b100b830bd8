"""Cross-origin requests, as a browser sends them."""

from __future__ import annotations

from typing import Any

import pytest

from nos_ec.s3.cors import parse_cors_rules
from nos_ec.s3.errors import S3Error
from tests.service.s3.s3_gateway import Gateway, refused

NAMED = {"Bucket": "photos", "Key": "k"}


def rule(*origins: str, methods: tuple[str, ...] = ("GET",), **more: Any) -> dict[str, Any]:
    return {"AllowedMethods": list(methods), "AllowedOrigins": list(origins), **more}


def configure(ann: Any, *rules: dict[str, Any]) -> None:
    ann.put_bucket_cors(Bucket="photos", CORSConfiguration={"CORSRules": list(rules)})


def allowed(answer: tuple[int, bytes, dict[str, str]]) -> tuple[int, str | None, str | None]:
    """(status, allowed origin, allowed methods)"""
    status, _, headers = answer
    return status, headers.get("access-control-allow-origin"), headers.get("access-control-allow-methods")


def test_the_configuration_of_a_bucket(gateway: Gateway, ann: Any) -> None:
    refused("NoSuchCORSConfiguration", 404, ann.get_bucket_cors, Bucket="photos")
    rules = [rule("*.get", "*.put", methods=("GET", "PUT")), rule("*", AllowedHeaders=["x-*"], MaxAgeSeconds=5)]
    configure(ann, *rules)
    assert ann.get_bucket_cors(Bucket="photos")["CORSRules"] == rules
    bob = gateway.client("bob")
    refused("AccessDenied", 403, bob.get_bucket_cors, Bucket="photos")
    refused("AccessDenied", 403, bob.delete_bucket_cors, Bucket="photos")
    refused("AccessDenied", 403, bob.put_bucket_cors, Bucket="photos", CORSConfiguration={"CORSRules": rules})
    ann.delete_bucket_cors(Bucket="photos")
    ann.delete_bucket_cors(Bucket="photos")
    refused("NoSuchCORSConfiguration", 404, ann.get_bucket_cors, Bucket="photos")
    for bad, code in ((rule("a*b*"), "InvalidRequest"), (rule("a", methods=("PATCH",)), "InvalidRequest")):
        refused(code, 400, ann.put_bucket_cors, Bucket="photos", CORSConfiguration={"CORSRules": [bad]})
    refused("MalformedXML", 400, ann.put_bucket_cors, Bucket="photos", CORSConfiguration={"CORSRules": []})
    many = {"CORSRules": [rule("a")] * 101}
    refused("MalformedXML", 400, ann.put_bucket_cors, Bucket="photos", CORSConfiguration=many)


def test_answers_to_other_sites(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**NAMED, Body=b"x", ACL="public-read")
    configure(
        ann,
        rule("*suffix"),
        rule("start*end"),
        rule("prefix*"),
        rule("*.put", methods=("PUT",), ExposeHeaders=["ETag", "x-amz-meta-a"], MaxAgeSeconds=60),
    )
    for origin, fits in (
        ("foo.suffix", True),
        ("suffix", True),
        ("foo.bar", False),
        ("foo.suffix.get", False),
        ("startend", True),
        ("start1end", True),
        ("start12end", True),
        ("0start12end", False),
        ("star", False),
        ("prefix", True),
        ("prefix.suffix", True),
        ("bla.prefix", False),
    ):
        expected = (200, origin, "GET") if fits else (200, None, None)
        assert allowed(gateway.raw("GET", "/photos/k", origin=origin)) == expected, origin
    assert allowed(gateway.raw("GET", "/photos/k")) == (200, None, None)
    # Refusals have them too, or a page could not read them.
    assert allowed(gateway.raw("PUT", "/photos/k", b"x", origin="foo.put")) == (403, "foo.put", "PUT")
    assert allowed(gateway.raw("PUT", "/photos/k", b"x", origin="foo.suffix")) == (403, None, None)
    assert allowed(gateway.raw("GET", "/photos/nothing", origin="foo.suffix"))[1] == "foo.suffix"
    _, _, headers = gateway.raw("PUT", "/photos/k", b"x", origin="foo.put")
    assert headers["access-control-expose-headers"] == "ETag, x-amz-meta-a"
    assert headers["access-control-allow-credentials"] == "true"
    assert "Origin" in headers["vary"]
    assert gateway.raw("GET", "/photos/k", origin="a", range="bytes=0-0")[0] == 206


def test_preflights(gateway: Gateway, ann: Any) -> None:
    def ask(target: str = "/photos/k", **headers: str) -> tuple[int, bytes, dict[str, str]]:
        return gateway.raw("OPTIONS", target, None, **headers)

    get = {"origin": "foo.suffix", "access_control_request_method": "GET"}
    status, body, _ = ask(**get)
    assert (status, b"CORS is not enabled" in body) == (403, True)
    configure(ann, rule("*suffix", AllowedHeaders=["X-Amz-*", "content-type"], MaxAgeSeconds=60), rule("*.all"))
    bad: dict[str, str]
    for bad in ({}, {"origin": "foo.suffix"}, {"access_control_request_method": "GET"}):
        assert ask(**bad)[0] == 400
    assert allowed(ask(**get)) == (200, "foo.suffix", "GET")
    assert allowed(ask("/photos", **get)) == (200, "foo.suffix", "GET")
    assert allowed(ask("/photos/k?X-Amz-Signature=x&X-Amz-Expires=1", **get)) == (200, "foo.suffix", "GET")
    _, body, headers = ask(**get, access_control_request_headers="x-amz-date, Content-Type")
    assert (body, headers["access-control-allow-headers"]) == (b"", "x-amz-date, content-type")
    assert headers["access-control-max-age"] == "60"
    assert allowed(ask(**get, access_control_request_headers="x-amz-date,authorization")) == (403, None, None)
    assert allowed(ask(**{**get, "access_control_request_method": "PUT"})) == (403, None, None)
    assert allowed(ask(**{**get, "origin": "foo.bar"})) == (403, None, None)
    assert ask("/nothing/k", **get)[0] == 404
    configure(ann, rule("*", methods=("GET", "PUT")))
    status, _, headers = ask(**get)
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    assert "access-control-allow-credentials" not in headers
    assert headers["access-control-allow-methods"] == "GET, PUT"


def test_a_bucket_that_is_made_again_has_no_rules(gateway: Gateway, ann: Any) -> None:
    configure(ann, rule("*"))
    ann.delete_bucket(Bucket="photos")
    ann.create_bucket(Bucket="photos")
    refused("NoSuchCORSConfiguration", 404, ann.get_bucket_cors, Bucket="photos")
    assert allowed(gateway.raw("GET", "/photos", origin="a")) == (403, None, None)


@pytest.mark.parametrize(
    "inside",
    [
        "<CORSRule><AllowedMethod>GET</AllowedMethod></CORSRule>",
        "<CORSRule><AllowedOrigin>a</AllowedOrigin></CORSRule>",
        "<CORSRule><AllowedOrigin>a</AllowedOrigin><AllowedMethod>GET</AllowedMethod><Other/></CORSRule>",
        "<CORSRule><AllowedOrigin><b/></AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>",
        "<CORSRule><AllowedOrigin>a</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"
        "<MaxAgeSeconds>-1</MaxAgeSeconds></CORSRule>",
        "<Rule/>",
        "text",
        "",
    ],
)
def test_documents_that_are_no_configuration(inside: str) -> None:
    with pytest.raises(S3Error, match="MalformedXML"):
        parse_cors_rules(f"<CORSConfiguration>{inside}</CORSConfiguration>".encode())
