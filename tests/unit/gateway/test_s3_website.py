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
    ("inside", "code"),
    [
        ("", "InvalidArgument"),
        ("<Other/>", "MalformedXML"),
        (INDEX + INDEX, "MalformedXML"),
        ("<IndexDocument><Suffix>a/b</Suffix></IndexDocument>", "InvalidArgument"),
        ("<IndexDocument><Suffix></Suffix></IndexDocument>", "InvalidArgument"),
        (INDEX + "<ErrorDocument/>", "InvalidArgument"),
        (INDEX + "<RedirectAllRequestsTo><HostName>a</HostName></RedirectAllRequestsTo>", "InvalidArgument"),
        ("<RedirectAllRequestsTo/>", "MalformedXML"),
        ("<RedirectAllRequestsTo><HostName>a b</HostName></RedirectAllRequestsTo>", "InvalidArgument"),
        (rules(), "InvalidRequest"),
        (rules("<Condition/><Redirect><HostName>a</HostName></Redirect>"), "MalformedXML"),
        (rules("<Redirect/>"), "MalformedXML"),
        (rules(*["<Redirect><HostName>a</HostName></Redirect>"] * 51), "InvalidRequest"),
        (rules("<Redirect><Protocol>ftp</Protocol></Redirect>"), "InvalidArgument"),
        (rules("<Redirect><HttpRedirectCode>200</HttpRedirectCode></Redirect>"), "InvalidArgument"),
        (rules("<Redirect><HttpRedirectCode>304</HttpRedirectCode></Redirect>"), "InvalidArgument"),
        (
            rules("<Redirect><ReplaceKeyWith>a</ReplaceKeyWith><ReplaceKeyPrefixWith/></Redirect>"),
            "InvalidRequest",
        ),
        (
            rules(
                "<Condition><HttpErrorCodeReturnedEquals>302</HttpErrorCodeReturnedEquals></Condition>"
                "<Redirect><HostName>a</HostName></Redirect>"
            ),
            "InvalidArgument",
        ),
    ],
)
def test_bad_configurations(inside: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        parsed(inside)
    assert caught.value.code == code


@pytest.mark.parametrize("good", ["/", "/a%20b", "http://a/", "https://a.b/c?d#e"])
def test_locations(good: str) -> None:
    require_location(good)


@pytest.mark.parametrize("bad", ["", "a", "//\n", "javascript:x", "/a b", "/\u00fc", "/" + "a" * 2048])
def test_bad_locations(bad: str) -> None:
    with pytest.raises(S3Error, match="InvalidRedirectLocation"):
        require_location(bad)
