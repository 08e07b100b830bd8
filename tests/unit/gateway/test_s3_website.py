"""Website configurations: what they mean, and which are refused."""

from __future__ import annotations

import pytest

from nos_ec.s3.errors import S3Error
from nos_ec.s3.website import Redirect, Website, parse_website, require_location

INDEX = "<IndexDocument><Suffix>index.html</Suffix></IndexDocument>"


def parsed(inside: str) -> Website:
    return parse_website(f"<WebsiteConfiguration>{inside}</WebsiteConfiguration>".encode())


def rules(*inside: str) -> str:
    listed = "".join(f"<RoutingRule>{one}</RoutingRule>" for one in inside)
    return f"{INDEX}<RoutingRules>{listed}</RoutingRules>"


def test_a_whole_configuration() -> None:
    found = parsed(
        "<ErrorDocument><Key>e.html</Key></ErrorDocument>"
        + rules(
            "<Condition><KeyPrefixEquals>docs/</KeyPrefixEquals></Condition>"
            "<Redirect><ReplaceKeyPrefixWith>documents/</ReplaceKeyPrefixWith></Redirect>",
            "<Condition><HttpErrorCodeReturnedEquals>404</HttpErrorCodeReturnedEquals></Condition>"
            "<Redirect><HostName>old.example</HostName><Protocol>https</Protocol>"
            "<HttpRedirectCode>307</HttpRedirectCode><ReplaceKeyWith>a b</ReplaceKeyWith></Redirect>",
        )
    )
    assert (found.index, found.error_key) == ("index.html", "e.html")
    first, second = found.rule_for("docs/x y", None), found.rule_for("other", 404)
    assert first is not None
    assert second is not None
    assert first.redirect.location("http", "h:80", "docs/x y", first.prefix) == "http://h:80/documents/x%20y"
    assert second.redirect.location("http", "h", "other") == "https://old.example/a%20b"
    assert second.redirect.status == 307
    assert found.rule_for("other", None) is None
    assert found.rule_for("other", 403) is None
    assert parsed("<RedirectAllRequestsTo><HostName>a.b</HostName></RedirectAllRequestsTo>") == Website(
        redirect_all=Redirect("a.b")
    )


@pytest.mark.parametrize(
    ("redirect", "location"),
    [
        (Redirect(prefix="#!/"), "http://h/#!/a%20b%3Fc"),
        (Redirect("r.example", prefix="resize?key="), "http://r.example/resize?key=a%20b%3Fc"),
        (Redirect(key="x?a=b&c=%2F#d e"), "http://h/x?a=b&c=%2F#d%20e"),
        (Redirect(key="100%\r\nX: y\u00fc"), "http://h/100%25%0D%0AX:%20y%C3%BC"),
        (Redirect(), "http://h/docs/a%20b%3Fc"),
    ],
)
def test_replacements_are_parts_of_urls_and_keys_are_not(redirect: Redirect, location: str) -> None:
    assert redirect.location("http", "h", "docs/a b?c", "docs/") == location
    query = "" if "?" in location or "#" in location else '?a=%2F&b="'.replace('"', "%22")
    assert redirect.location("http", "h", "docs/a b?c", "docs/", b'a=%2F&b="') == location + query


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("", "InvalidArgument"),
        ("<Other/>", "MalformedXML"),
        (INDEX + INDEX, "MalformedXML"),
        ("<IndexDocument><Suffix>a/b</Suffix></IndexDocument>", "InvalidArgument"),
        ("<IndexDocument><Suffix></Suffix></IndexDocument>", "InvalidArgument"),
        (INDEX + "<ErrorDocument/>", "InvalidArgument"),
        (INDEX + "<RedirectAllRequestsTo><HostName>a</HostName></RedirectAllRequestsTo>", "MalformedXML"),
        ("<RedirectAllRequestsTo/>", "MalformedXML"),
        ("<RedirectAllRequestsTo><HostName>a b</HostName></RedirectAllRequestsTo>", "InvalidArgument"),
        (rules(), "InvalidRequest"),
        (rules("<Condition/><Redirect><HostName>a</HostName></Redirect>"), "MalformedXML"),
        (rules("<Redirect/>"), "MalformedXML"),
        (rules(*["<Redirect><HostName>a</HostName></Redirect>"] * 51), "InvalidRequest"),
        (rules("<Redirect><Protocol>ftp</Protocol></Redirect>"), "InvalidRequest"),
        (
            "<RedirectAllRequestsTo><HostName>a</HostName><Protocol>ftp</Protocol></RedirectAllRequestsTo>",
            "InvalidRequest",
        ),
        (
            rules("<Redirect><ReplaceKeyWith>a</ReplaceKeyWith><ReplaceKeyPrefixWith/></Redirect>"),
            "InvalidRequest",
        ),
    ],
)
def test_bad_configurations(inside: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        parsed(inside)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((status, "InvalidRequest") for status in ("200", "300", "304", "305", "306", "309", "399", "3010", "0")),
        *((status, "MalformedXML") for status in ("", "3xx", "-301", "\u0663\u0660\u0661", "1" * 10)),
    ],
)
def test_statuses_of_redirects(text: str, code: str) -> None:
    """Those that make a client ask elsewhere; a gateway could not even send 309."""
    for status in (301, 302, 303, 307, 308):
        found = parsed(rules(f"<Redirect><HttpRedirectCode>{status}</HttpRedirectCode></Redirect>"))
        assert found.rules[0].redirect.status == status
    with pytest.raises(S3Error, match=code):
        parsed(rules(f"<Redirect><HttpRedirectCode>{text}</HttpRedirectCode></Redirect>"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((status, "InvalidRequest") for status in ("200", "302", "399", "418", "499", "506", "599", "4040")),
        *((status, "MalformedXML") for status in ("", "4xx", "not found")),
    ],
)
def test_statuses_of_conditions(text: str, code: str) -> None:
    def of(status: object) -> Website:
        condition = f"<Condition><HttpErrorCodeReturnedEquals>{status}</HttpErrorCodeReturnedEquals></Condition>"
        return parsed(rules(f"{condition}<Redirect><HostName>a</HostName></Redirect>"))

    assert [of(status).rules[0].status for status in (400, 403, 404, 416, 500, 503)] == [400, 403, 404, 416, 500, 503]
    with pytest.raises(S3Error, match=code):
        of(text)


@pytest.mark.parametrize("good", ["/", "/a%20b", "http://a/", "https://a.b/c?d#e"])
def test_locations(good: str) -> None:
    require_location(good)


@pytest.mark.parametrize("bad", ["", "a", "//\n", "javascript:x", "/a b", "/\u00fc", "/" + "a" * 2048])
def test_bad_locations(bad: str) -> None:
    with pytest.raises(S3Error, match="InvalidRedirectLocation"):
        require_location(bad)
