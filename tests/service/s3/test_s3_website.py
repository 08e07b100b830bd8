"""Buckets as websites: pages, redirects and errors, on hosts of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from tests.service.s3.cell_stores import new_cells, serving_cells
from tests.service.s3.s3_gateway import SETTINGS, Gateway, refused, serving

B = {"Bucket": "photos"}
HOST = "photos.web.example.com"
CONFIGURATION = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "error.html"}}

WITH_WEBSITES = SETTINGS.model_copy(update={"website_domains": "web.example.com"})


@pytest.fixture
def gateway(system: System) -> Iterator[Gateway]:
    with serving(system, WITH_WEBSITES) as running:
        yield running


@pytest.fixture
def ann(gateway: Gateway) -> Any:
    """The owner of a website that everybody may read, and list."""
    client = gateway.client("ann")
    client.create_bucket(**B)
    client.put_bucket_website(**B, WebsiteConfiguration=CONFIGURATION)
    allow(client, ["s3:GetObject", "s3:ListBucket"])
    for key in ("index.html", "blog/index.html", "page.html"):
        client.put_object(**B, Key=key, Body=key.encode(), ContentType="text/html")
    client.put_object(**B, Key="error.html", Body=b"sorry", ContentType="text/html; charset=x")
    return client


def allow(client: Any, actions: list[str]) -> None:
    statements = [
        {"Effect": "Allow", "Principal": "*", "Action": action, "Resource": "arn:aws:s3:::photos" + on}
        for action, on in (("s3:GetObject", "/*"), ("s3:ListBucket", ""))
        if action in actions
    ]
    client.put_bucket_policy(**B, Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}))


def get(gateway: Gateway, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    return gateway.raw(method, path, None, **{"Host": HOST, **headers})


def test_the_configuration_of_a_bucket(gateway: Gateway) -> None:
    ann = gateway.client("ann")
    ann.create_bucket(**B)
    refused("NoSuchWebsiteConfiguration", 404, ann.get_bucket_website, **B)
    assert get(gateway, "/")[0] == 404
    whole = CONFIGURATION | {"RoutingRules": [{"Redirect": {"HostName": "a.b"}}]}
    ann.put_bucket_website(**B, WebsiteConfiguration=whole)
    found = ann.get_bucket_website(**B)
    assert {name: found[name] for name in whole} == whole
    refused("AccessDenied", 403, gateway.client("bob").get_bucket_website, **B)
    refused("InvalidArgument", 400, ann.put_bucket_website, **B, WebsiteConfiguration={})
    ann.delete_bucket_website(**B)
    refused("NoSuchWebsiteConfiguration", 404, ann.get_bucket_website, **B)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/", "index.html"),
        ("/blog/", "blog/index.html"),
        ("/page.html?acl&versionId=x&response-content-type=a", "page.html"),
    ],
)
def test_pages(gateway: Gateway, ann: Any, path: str, key: str) -> None:
    status, body, headers = get(gateway, path)
    assert (status, body, headers["content-type"]) == (200, key.encode(), "text/html")
    status, body, headers = get(gateway, path, "HEAD")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(key)))
    assert get(gateway, path, If_None_Match=headers["etag"])[0] == 304
    assert get(gateway, path, Range="bytes=0-1")[:2] == (206, key[:2].encode())


def test_a_folder_without_a_slash_is_redirected(gateway: Gateway, ann: Any) -> None:
    status, _, headers = get(gateway, "/blog")
    assert (status, headers["location"]) == (302, "/blog/")
    ann.put_object(**B, Key="/evil.example/index.html", Body=b"x")
    assert get(gateway, "//evil.example")[0] == 404


def test_errors(gateway: Gateway, ann: Any) -> None:
    status, body, headers = get(gateway, "/nothing", Range="bytes=0-1", If_None_Match="*")
    assert (status, body, headers["content-type"]) == (404, b"sorry", "text/html; charset=x")
    assert headers["x-amz-error-code"] == "NoSuchKey"
    assert get(gateway, "/nothing", "HEAD")[:2] == (404, b"")
    ann.delete_object(**B, Key="error.html")
    status, body, headers = get(gateway, "/%3Cb%3E")
    assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b"<li>Key: &lt;b&gt;</li>" in body
    assert b"Custom Error Document" in body
    for method in ("PUT", "POST", "DELETE"):
        assert get(gateway, "/page.html", method)[0] == 405
    assert gateway.raw("GET", "/", None, Host="none.web.example.com")[0] == 404
    assert ann.get_object(**B, Key="page.html")["Body"].read() == b"page.html"


def test_only_what_everybody_may_read_is_served(gateway: Gateway, ann: Any) -> None:
    allow(ann, ["s3:GetObject"])
    assert get(gateway, "/nothing")[0] == 403, "who may not list does not learn which keys exist"
    ann.delete_bucket_policy(**B)
    assert get(gateway, "/page.html")[0] == 403
    ann.put_object_acl(**B, Key="page.html", ACL="public-read")
    assert get(gateway, "/page.html")[:2] == (200, b"page.html")


def test_redirects(gateway: Gateway, ann: Any) -> None:
    rules = [
        {"Condition": {"KeyPrefixEquals": "docs/"}, "Redirect": {"ReplaceKeyPrefixWith": "documents/"}},
        {
            "Condition": {"HttpErrorCodeReturnedEquals": "404", "KeyPrefixEquals": "old"},
            "Redirect": {"HostName": "a.b", "Protocol": "https", "HttpRedirectCode": "307", "ReplaceKeyWith": "x"},
        },
    ]
    ann.put_bucket_website(**B, WebsiteConfiguration=CONFIGURATION | {"RoutingRules": rules})
    status, _, headers = get(gateway, "/docs/a%20b?utm=1&x=%2F")
    assert (status, headers["location"]) == (301, f"http://{HOST}/documents/a%20b?utm=1&x=%2F")
    status, _, headers = get(gateway, "/older")
    assert (status, headers["location"]) == (307, "https://a.b/x")
    ann.put_object(**B, Key="older", Body=b"there")
    assert get(gateway, "/older")[:2] == (200, b"there")
    everything = {"RedirectAllRequestsTo": {"HostName": "c.d"}}
    ann.put_bucket_website(**B, WebsiteConfiguration=everything)
    status, _, headers = get(gateway, "/page.html")
    assert (status, headers["location"]) == (301, "http://c.d/page.html")


def test_an_object_may_redirect(gateway: Gateway, ann: Any) -> None:
    there = {"WebsiteRedirectLocation": "/page.html"}
    ann.put_object(**B, Key="moved", Body=b"x", **there)
    assert ann.head_object(**B, Key="moved")["WebsiteRedirectLocation"] == "/page.html"
    assert ann.get_object(**B, Key="moved")["Body"].read() == b"x"
    status, body, headers = get(gateway, "/moved")
    assert (status, body, headers["location"]) == (301, b"", "/page.html")
    refused("InvalidRedirectLocation", 400, ann.put_object, **B, Key="bad", WebsiteRedirectLocation="page")
    ann.copy_object(**B, Key="copy", CopySource="photos/moved")
    assert "WebsiteRedirectLocation" not in ann.head_object(**B, Key="copy")
    ann.copy_object(**B, Key="copy", CopySource="photos/copy", **there)
    assert ann.head_object(**B, Key="copy")["WebsiteRedirectLocation"] == "/page.html"


def test_a_redirect_is_one_whatever_part_of_it_was_asked_for(gateway: Gateway, ann: Any) -> None:
    ann.put_object(**B, Key="moved", WebsiteRedirectLocation="/page.html")
    for asked in (
        {"Range": "bytes=0-"},
        {"If_Match": '"none"'},
        {"If_Unmodified_Since": "Mon, 01 Jan 2001 00:00:00 GMT"},
        {"If_None_Match": "*"},
        {"If_None_Match": ann.head_object(**B, Key="moved")["ETag"]},
        {"If_Modified_Since": "Thu, 01 Jan 2099 00:00:00 GMT"},
    ):
        status, _, headers = get(gateway, "/moved", **asked)
        assert (status, headers.get("location")) == (301, "/page.html"), asked
    status, body, headers = get(gateway, "/page.html", Range="bytes=99-")
    assert (status, body, headers["content-range"]) == (416, b"sorry", "bytes */9")
    assert get(gateway, "/page.html", If_Match='"none"')[:2] == (412, b"sorry")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("PHOTOS.Web.Example.COM", 200),
        ("photos.web.example.com.", 200),
        ("photos.web.example.com:9488", 200),
        ("photos.web.example.com:80@evil.example", 400),
        ("photos.web.example.com:@evil.example", 400),
        ("evil@photos.web.example.com", 400),
        ("..web.example.com", 400),
        (".nos_ec.web.example.com", 400),
        ("f\u00fcr.web.example.com", 400),
        ("x" * 300 + ".web.example.com", 400),
        ("xn--fr-xka.web.example.com", 404),
        ("other.photos.web.example.com", 404),
    ],
)
def test_hosts(gateway: Gateway, ann: Any, host: str, status: int) -> None:
    moves = {"IndexDocument": {"Suffix": "index.html"}, "RoutingRules": [{"Redirect": {"ReplaceKeyWith": "x"}}]}
    assert get(gateway, "/page.html", Host=host)[0] == status
    ann.put_bucket_website(**B, WebsiteConfiguration=moves)
    found, _, headers = get(gateway, "/page.html", Host=host)
    assert headers.get("location") == (f"http://{host}/x" if found == 301 else None)


def test_error_documents_and_folders_get_the_headers_that_a_policy_needs(gateway: Gateway, ann: Any) -> None:
    condition = {"StringLike": {"aws:Referer": "http://photos.web.example.com/*"}}
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/*"}
    policy = {"Version": "2012-10-17", "Statement": [statement | {"Condition": condition}]}
    ann.put_bucket_policy(**B, Policy=json.dumps(policy))
    here = {"Referer": "http://photos.web.example.com/", "If_Match": '"x"', "Range": "bytes=1-"}
    assert get(gateway, "/nothing", **here)[:2] == (403, b"sorry")
    assert get(gateway, "/blog", **here)[2]["location"] == "/blog/"
    assert b"Custom Error Document" in get(gateway, "/nothing", Referer="http://evil.example/")[1]


def test_refused_methods_name_those_that_are_possible(gateway: Gateway, ann: Any) -> None:
    assert get(gateway, "/page.html", "PUT")[2]["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["//", "//page.html", "/a/../page.html", "/%2e%2e/page.html", "/./page.html"])
def test_paths_are_not_normalised(gateway: Gateway, ann: Any, path: str) -> None:
    assert get(gateway, path)[0] in (400, 404)
    ann.put_object(**B, Key="/index.html", Body=b"below")
    assert get(gateway, "//")[:2] == (200, b"below")


@pytest.mark.parametrize(("path", "status"), [("/a%", 400), ("/%ff", 400), ("/%00", 400), ("/" + "k" * 1025, 400)])
def test_bad_paths(gateway: Gateway, ann: Any, path: str, status: int) -> None:
    found, body, headers = get(gateway, path)
    assert (found, headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert body.startswith(b"<html>")


def test_the_longest_keys(gateway: Gateway, ann: Any) -> None:
    """The key of an index document below them would be too long."""
    assert get(gateway, "/" + "k" * 1024)[0] == 404
    assert get(gateway, "/" + "k" * 1023 + "/")[0] == 400


def test_large_pages_and_error_documents(gateway: Gateway, ann: Any) -> None:
    large = bytes(range(256)) * (40 << 12)
    for key in ("error.html", "large"):
        ann.put_object(**B, Key=key, Body=large)
    assert get(gateway, "/large")[:2] == (200, large)
    status, body, headers = get(gateway, "/nothing")
    assert (status, body == large, headers["content-length"]) == (404, True, str(len(large)))
    status, body, headers = get(gateway, "/nothing", "HEAD")
    assert (status, body, headers["content-length"]) == (404, b"", str(len(large)))


def test_cross_origin_requests(gateway: Gateway, ann: Any) -> None:
    rule = {"AllowedOrigins": ["http://a.example"], "AllowedMethods": ["GET"]}
    ann.put_bucket_cors(**B, CORSConfiguration={"CORSRules": [rule]})
    asked = {"Origin": "http://a.example", "Access_Control_Request_Method": "GET"}
    for method in ("GET", "OPTIONS"):
        status, _, headers = get(gateway, "/page.html", method, **asked)
        assert (status, headers["access-control-allow-origin"]) == (200, "http://a.example")
    status, body, headers = get(gateway, "/page.html", "OPTIONS", **asked | {"Origin": "http://evil.example"})
    assert (status, headers["x-amz-error-code"], body[:6]) == (403, "AccessForbidden", b"<html>")


def test_websites_of_several_cells(tmp_path: Path) -> None:
    with serving_cells(new_cells(tmp_path, a=1, b=1, c=2), WITH_WEBSITES) as (cells, gateway):
        ann = gateway.client("ann")
        for name in (f"site-{number}" for number in range(6)):
            ann.create_bucket(Bucket=name)
            ann.put_bucket_website(Bucket=name, WebsiteConfiguration=CONFIGURATION)
            ann.put_object(Bucket=name, Key="index.html", Body=name.encode(), ACL="public-read")
            assert gateway.raw("GET", "/", None, Host=f"{name}.web.example.com")[:2] == (200, name.encode())
        rows = cells.directory.metadata.directory_page("", 100)
        assert len({row.home for row in rows}) > 1


def test_without_domains_no_host_is_a_website(system: System) -> None:
    with serving(system) as gateway:
        ann = gateway.client("ann")
        ann.create_bucket(**B)
        ann.put_bucket_website(**B, WebsiteConfiguration=CONFIGURATION)
        ann.put_object(**B, Key="index.html", Body=b"x", ACL="public-read")
        assert get(gateway, "/photos/index.html")[:2] == (200, b"x")
        assert get(gateway, "/photos/")[2]["content-type"] == "application/xml"
