"""Whom the gateway believes about the address, host and scheme of a client."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from nos_ec.core.errors import ConfigError
from nos_ec.gateway.server.trusted_proxies import HOPS_MAX, TrustedProxies
from nos_ec.s3.errors import S3Error
from nos_ec.settings import S3Settings

PROXIES = TrustedProxies([ip_network("10.0.0.0/8"), ip_network("192.0.2.7/32"), ip_network("2001:db8::/32")])
CLIENT = "198.51.100.9"


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", value.encode("latin-1")) for value in values]


@pytest.mark.parametrize(
    ("peer", "values", "address", "is_client"),
    [
        ("10.1.2.3", [], "10.1.2.3", False),
        ("10.1.2.3", [CLIENT], CLIENT, True),
        ("192.0.2.7", [CLIENT], CLIENT, True),
        ("2001:db8::1", ["2001:DB8:0::5, 2001:470::9"], "2001:470::9", True),
        ("::ffff:10.1.2.3", [CLIENT], CLIENT, True),
        ("10.1.2.3", [f"{CLIENT}:4711"], CLIENT, True),
        ("10.1.2.3", ["[2001:470::9]:4711"], "2001:470::9", True),
        ("10.1.2.3", [f"1.1.1.1, {CLIENT}, 10.9.9.9"], CLIENT, True),
        ("10.1.2.3", ["1.1.1.1", CLIENT, "10.9.9.9"], CLIENT, True),
        ("10.1.2.3", ["10.0.0.1, 10.0.0.2"], "10.0.0.1", True),
        ("10.1.2.3", [f"{CLIENT}, unknown"], "10.1.2.3", False),
        ("10.1.2.3", [f"{CLIENT}, , 10.9.9.9"], "10.9.9.9", False),
        ("10.1.2.3", ["\xff\xfe"], "10.1.2.3", False),
        ("10.1.2.3", [", ".join(["1.1.1.1", *["10.0.0.1"] * HOPS_MAX])], "10.0.0.1", False),
        (CLIENT, ["1.1.1.1"], CLIENT, True),
        ("192.0.2.8", ["1.1.1.1"], "192.0.2.8", True),
        ("", ["1.1.1.1"], "", True),
    ],
)
def test_the_last_address_that_is_not_a_proxy_is_the_clients(
    peer: str, values: list[str], address: str, is_client: bool
) -> None:
    assert PROXIES.remote(peer, forwarded(*values)) == (address, is_client)


def test_only_a_proxy_may_say_the_host() -> None:
    sent = [(b"host", b"gateway:9488"), (b"x-forwarded-host", b"s3.example.com"), (b"accept", b"*/*")]
    assert PROXIES.headers("10.0.0.1", sent) == [(b"host", b"s3.example.com"), *sent[1:]]
    assert PROXIES.headers(CLIENT, sent) == sent
    assert TrustedProxies([]).headers("127.0.0.1", sent) == sent
    assert PROXIES.headers("10.0.0.1", sent[:1]) == sent[:1]
    for host in (b"a.example.com, b", b"", b"a/b", b"a b", b"a\r\nb", b"[::1", b"a:port", b"x" * 254):
        with pytest.raises(S3Error, match="InvalidRequest"):
            PROXIES.headers("10.0.0.1", [(b"host", b"h"), (b"x-forwarded-host", host)])
    with pytest.raises(S3Error, match="InvalidRequest"):
        PROXIES.headers("10.0.0.1", [*sent, (b"x-forwarded-host", b"other")])
    for good in (b"photos.s3.example.com:8443", b"[2001:db8::1]:80", b"10.0.0.1"):
        assert PROXIES.headers("10.0.0.1", [(b"host", b"h"), (b"x-forwarded-host", good)])[0] == (b"host", good)


def test_only_a_proxy_may_say_the_scheme() -> None:
    said = [(b"x-forwarded-proto", b"HTTPS")]
    assert PROXIES.scheme("10.0.0.1", said, "http") == "https"
    assert PROXIES.scheme(CLIENT, said, "http") == "http"
    for odd in ([(b"x-forwarded-proto", b"ftp")], [*said, *said], []):
        assert PROXIES.scheme("10.0.0.1", odd, "http") == "http"


def test_the_setting() -> None:
    settings = S3Settings(trusted_proxies=" 10.0.0.0/8, 192.0.2.7,2001:db8::/32 ,")
    assert settings.trusted_networks == [ip_network(one) for one in ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32")]
    assert S3Settings().trusted_networks == []
    for wrong in ("proxy.example.com", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.0/33"):
        with pytest.raises((ValueError, ConfigError)):
            S3Settings(trusted_proxies=wrong)
