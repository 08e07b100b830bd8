"""Website configurations of buckets.

Source: PutBucketWebsite of the S3 API reference; "Hosting a static website using Amazon S3" and "Configuring a webpage
redirect" of the user guide. ReplaceKeyWith and ReplaceKeyPrefixWith may contain `?` and `#`: rules with `#!/` for an
application of one page, or with `resize?key=` for another server, are usual ("Resize Images on the Fly with Amazon S3,
AWS Lambda, and Amazon API Gateway" of the AWS Compute Blog).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import quote

from nos_ec.s3.documents import Element, malformed, only_children, parse
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import is_encoded

RULES_MAX = 50
LOCATION_LENGTH_MAX = 2048
_REDIRECTS = frozenset([301, 302, 303, 307, 308])
"""The statuses that make a client ask elsewhere (RFC 9110, section 15.4)."""
_ERRORS = frozenset([*range(400, 418), *range(500, 506)])
"""The errors of RFC 7231, sections 6.5 and 6.6. S3 refuses others, such as 418 and 506."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?(/[!-~]*)?")
_URL = "/?#[]@!$&'()*+,;=:%"
"""The characters with a meaning in a URL (RFC 3986, section 2.2), and that of an encoded byte."""
_LOCATION = re.compile(r"(/|https?://)[!-~]*")


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where a request is redirected to. `key` replaces the whole key, `prefix` the beginning that the rule matches;
    None keeps it. `host` and `protocol` are those of the request, unless they are set."""

    host: str | None = None
    protocol: str | None = None
    status: int = 301
    key: str | None = None
    prefix: str | None = None

    def location(self, scheme: str, host: str, key: str, matched: str = "", raw_query: bytes = b"") -> str:
        """Return the URL for a request with this scheme, host and key, whose beginning `matched` the rule names. The
        query of the request is added, unless the replacement has one, or a fragment."""
        if self.key is not None:
            path = _encoded(self.key)
        elif self.prefix is not None:
            path = _encoded(self.prefix) + quote(key[len(matched) :], safe="/")
        else:
            path = quote(key, safe="/")
        url = f"{self.protocol or scheme}://{self.host or host}/{path}"
        is_complete = not raw_query or "?" in url or "#" in url
        return url if is_complete else f"{url}?{quote(raw_query, safe=_URL)}"


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """Redirects requests for keys that begin with `prefix`; with `status`, only those that would be answered with this
    error."""

    redirect: Redirect
    prefix: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Website:
    """A website configuration. With `redirect_all` it has nothing else. Otherwise `index` is the suffix of the keys of
    index documents, and `error_key` the key of the error document, if there is one."""

    index: str = ""
    error_key: str | None = None
    rules: tuple[RoutingRule, ...] = ()
    redirect_all: Redirect | None = None

    def rule_for(self, key: str, status: int | None) -> RoutingRule | None:
        """Return the first rule for a request for this key. `status`: the error that it would be answered with; None
        before that is known."""
        return next((rule for rule in self.rules if rule.status == status and key.startswith(rule.prefix)), None)


def parse_website(body: bytes) -> Website:
    """Parse the body of PutBucketWebsite. Raises MalformedXML, InvalidArgument, InvalidRequest."""
    parts = only_children(
        parse(body, "WebsiteConfiguration"), "IndexDocument", "ErrorDocument", "RedirectAllRequestsTo", "RoutingRules"
    )
    if "RedirectAllRequestsTo" in parts:
        if len(parts) > 1:
            raise malformed("RedirectAllRequestsTo cannot be provided in conjunction with other elements.")
        fields = _texts(parts["RedirectAllRequestsTo"], "HostName", "Protocol")
        if not fields.get("HostName"):
            raise malformed("RedirectAllRequestsTo needs a HostName.")
        return Website(redirect_all=Redirect(_host(fields), _protocol(fields)))
    if "IndexDocument" not in parts:
        raise invalid_argument("A website needs an IndexDocument, or RedirectAllRequestsTo.", "IndexDocument")
    index = _texts(parts["IndexDocument"], "Suffix").get("Suffix", "")
    if not index or "/" in index:
        raise invalid_argument("The IndexDocument Suffix must not be empty or contain a slash.", "IndexDocument", index)
    error_key = None
    if "ErrorDocument" in parts:
        error_key = _texts(parts["ErrorDocument"], "Key").get("Key")
        if not error_key:
            raise invalid_argument("The ErrorDocument needs a Key.", "ErrorDocument")
    return Website(index, error_key, tuple(_rules(parts.get("RoutingRules"))))


def _encoded(replacement: str) -> str:
    """Encode the characters that no URL may have; `?`, `#` and so on keep their meaning."""
    return quote(replacement, safe=_URL if is_encoded(replacement) else _URL.replace("%", ""))


def require_location(value: str) -> None:
    """Raise an error unless objects may redirect to this location (`x-amz-website-redirect-location`). Raises
    InvalidRedirectLocation."""
    if len(value) > LOCATION_LENGTH_MAX or not _LOCATION.fullmatch(value):
        raise S3Error(
            "InvalidRedirectLocation",
            "The website redirect location must begin with /, http:// or https://, be URL-encoded, and have at most"
            f" {LOCATION_LENGTH_MAX} characters.",
        )


def _rules(element: Element | None) -> Iterable[RoutingRule]:
    found = [] if element is None else element.children
    if element is not None and not 1 <= len(found) <= RULES_MAX:
        raise S3Error("InvalidRequest", f"{len(found)} routing rules; 1 to {RULES_MAX} are allowed.")
    for child in found:
        if child.name != "RoutingRule":
            raise malformed(f"RoutingRules have the unknown element {child.name!r}.")
        parts = only_children(child, "Condition", "Redirect")
        if "Redirect" not in parts:
            raise malformed("A RoutingRule needs a Redirect.")
        condition = {}
        if "Condition" in parts:
            condition = _texts(parts["Condition"], "KeyPrefixEquals", "HttpErrorCodeReturnedEquals")
            if not condition:
                raise malformed("A Condition needs KeyPrefixEquals or HttpErrorCodeReturnedEquals.")
        status = _status(condition.get("HttpErrorCodeReturnedEquals"), _ERRORS, "HTTP error code", "4XX or 5XX")
        yield RoutingRule(_redirect(parts["Redirect"]), condition.get("KeyPrefixEquals", ""), status)


def _redirect(element: Element) -> Redirect:
    fields = _texts(element, "HostName", "Protocol", "HttpRedirectCode", "ReplaceKeyWith", "ReplaceKeyPrefixWith")
    if not fields:
        raise malformed("A Redirect needs at least one element.")
    if {"ReplaceKeyWith", "ReplaceKeyPrefixWith"} <= fields.keys():
        raise S3Error("InvalidRequest", "A Redirect cannot have both ReplaceKeyWith and ReplaceKeyPrefixWith.")
    allowed = "301, 302, 303, 307 or 308"
    status = _status(fields.get("HttpRedirectCode"), _REDIRECTS, "HTTP redirect code", allowed) or 301
    replaced = fields.get("ReplaceKeyWith"), fields.get("ReplaceKeyPrefixWith")
    return Redirect(_host(fields), _protocol(fields), status, *replaced)


def _host(fields: dict[str, str]) -> str | None:
    host = fields.get("HostName")
    if host is not None and not _HOST.fullmatch(host):
        raise invalid_argument("The HostName is not a valid host.", "HostName", host)
    return host


def _protocol(fields: dict[str, str]) -> str | None:
    protocol = fields.get("Protocol")
    if protocol not in (None, "http", "https"):
        raise S3Error("InvalidRequest", "The Protocol must be http or https.")
    return protocol


def _status(text: str | None, possible: Collection[int], name: str, range_of_them: str) -> int | None:
    """Return a status that is one of `possible`. Raises MalformedXML for what is not a number, InvalidRequest."""
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        raise malformed(f"The {name} is not a number.")
    if int(text) not in possible:
        raise S3Error("InvalidRequest", f"The provided {name} ({text}) is not valid. It must be {range_of_them}.")
    return int(text)


def _texts(element: Element, *names: str) -> dict[str, str]:
    found = only_children(element, *names)
    for child in found.values():
        if child.children:
            raise malformed(f"{child.name} must not contain elements.")
    return {name: child.text.strip() for name, child in found.items()}
