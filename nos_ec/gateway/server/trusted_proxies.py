"""Reads the headers in which proxies report the address of a client, the host that it requested, and whether it used
HTTPS. They are ignored unless the connection comes from an address in `s3.trusted_proxies`, because anyone can send
such headers.

Sources: RFC 7239 (Forwarded HTTP Extension), sections 1 and 8; the headers X-Forwarded-For, X-Forwarded-Host and
X-Forwarded-Proto as nginx, HAProxy and Envoy set them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple

from nos_ec.s3.errors import S3Error

HOPS_MAX = 50
"""Maximum number of addresses in X-Forwarded-For that are examined, starting with the last one."""
_HOST = re.compile(rb"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]+)\](:[0-9]{1,5})?|(?P<v4>[0-9.]+)(:[0-9]{1,5})?")

Headers = Sequence[tuple[bytes, bytes]]
_Address = IPv4Address | IPv6Address


class Remote(NamedTuple):
    """The last address that is known of the way of a request. `is_client`: it is the client's, and not a proxy's."""

    address: str
    is_client: bool


class TrustedProxies:
    """The trusted proxies. Safe to call from several threads. `peer` is the address that a connection comes from. The
    names of `headers` are in lower case."""

    def __init__(self, networks: Sequence[IPv4Network | IPv6Network]) -> None:
        self._networks = networks

    def trusts(self, peer: str) -> bool:
        """Return whether a connection comes from a trusted proxy."""
        address = _address(peer) if self._networks else None
        return address is not None and self._contains(address)

    def remote(self, peer: str, headers: Headers) -> Remote:
        """Return the address of the client: the right-most untrusted address in X-Forwarded-For. Entries to its left
        may be forged. An entry that is not a valid address ends the search, and so does a proxy that sent none: then
        the address is the last proxy's."""
        if not self.trusts(peer):
            return Remote(peer, is_client=True)
        found, is_client = peer, False
        listed = b",".join(_values(headers, b"x-forwarded-for")).decode("latin-1").split(",")
        for text in reversed(listed[-HOPS_MAX:]):
            address = _address(text.strip())
            if address is None:
                return Remote(found, is_client=False)
            found, is_client = str(address), len(listed) <= HOPS_MAX
            if not self._contains(address):
                return Remote(found, is_client=True)
        return Remote(found, is_client)

    def headers(self, peer: str, headers: Headers) -> Headers:
        """Return the headers with the Host that the client sent and signed. Raises InvalidRequest if the proxy names
        several hosts or an invalid one."""
        hosts = _values(headers, b"x-forwarded-host") if self.trusts(peer) else []
        if not hosts:
            return headers
        if len(hosts) > 1 or not _HOST.fullmatch(hosts[0]):
            raise S3Error("InvalidRequest", "The proxy must send one host in X-Forwarded-Host, or none.")
        return [(name, hosts[0] if name == b"host" else value) for name, value in headers]

    def scheme(self, peer: str, headers: Headers, own: str) -> str:
        """Return `http` or `https`, as the client sent the request. `own` is the scheme of the connection."""
        schemes = [value.lower() for value in _values(headers, b"x-forwarded-proto")] if self.trusts(peer) else []
        return schemes[0].decode() if len(schemes) == 1 and schemes[0] in (b"http", b"https") else own

    def _contains(self, address: _Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip(b" \t") for header, value in headers if header == name]


def _address(text: str) -> _Address | None:
    """Return an address, given with or without a port; None if it is invalid. An IPv4-mapped IPv6 address becomes
    IPv4."""
    match = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address(text if match is None else match["v6"] or match["v4"])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
