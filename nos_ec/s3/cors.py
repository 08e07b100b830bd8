"""Cross-origin requests: the CORS rules of a bucket, and whether a rule allows a request.

Sources: PutBucketCors of the S3 API reference; "Elements of a CORS configuration" and "How does Amazon S3 evaluate the
CORS configuration on a bucket?" of the S3 user guide; the Fetch standard for the headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nos_ec.s3.documents import Element, malformed, parse
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import is_header_name

RULES_MAX = 100
"""Source: PutBucketCors of the S3 API reference."""
METHODS = frozenset(["GET", "PUT", "POST", "DELETE", "HEAD"])
AGE_DIGITS_MAX = 9
"""The most digits of MaxAgeSeconds. This store sets the limit, which is 31 years."""
_VARY = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"


@dataclass(frozen=True, slots=True)
class CorsRule:
    """A CORS rule. `origins` and `headers` are patterns with at most one `*`, which matches any characters. `exposed`
    lists the response headers that a page may read. A browser may cache the answer to a preflight for `max_age_s`
    seconds; None leaves it to the browser."""

    origins: tuple[str, ...]
    methods: tuple[str, ...]
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age_s: int | None = None

    def allows(self, origin: str, method: str, headers: Sequence[str]) -> bool:
        """Return whether the rule allows a request that has these headers. `headers` are names in lower case."""
        return (
            method in self.methods
            and any(_matches(pattern, origin) for pattern in self.origins)
            and all(any(_matches(pattern.lower(), name) for pattern in self.headers) for name in headers)
        )

    def response_headers(self, origin: str, headers: Sequence[str]) -> dict[str, str]:
        """Return the response headers for a request that the rule allows. `headers` are the header names that a
        preflight asks for."""
        any_origin = "*" in self.origins
        found = {
            "access-control-allow-origin": "*" if any_origin else origin,
            "access-control-allow-methods": ", ".join(self.methods),
            "vary": _VARY,
        }
        if not any_origin:  # browsers refuse credentials together with the origin `*`
            found["access-control-allow-credentials"] = "true"
        if headers:
            found["access-control-allow-headers"] = ", ".join(headers)
        if self.exposed:
            found["access-control-expose-headers"] = ", ".join(self.exposed)
        if self.max_age_s is not None:
            found["access-control-max-age"] = str(self.max_age_s)
        return found


def parse_cors_rules(body: bytes) -> list[CorsRule]:
    """Parse the body of PutBucketCors. Raises MalformedXML, InvalidRequest."""
    top = parse(body, "CORSConfiguration")
    rules = [_parse_rule(child) for child in top.children]
    if top.text.strip() or not 1 <= len(rules) <= RULES_MAX:
        raise malformed(f"A CORS configuration must have 1 to {RULES_MAX} rules, and nothing else.")
    return rules


def _parse_rule(element: Element) -> CorsRule:
    if element.name != "CORSRule":
        raise malformed(f"A CORS configuration has the unknown element {element.name!r}.")
    if element.text.strip():
        raise malformed("A CORS rule has text outside its elements.")
    values: dict[str, list[str]] = {}
    for child in element.children:
        if child.children:
            raise malformed(f"{child.name!r} of a CORS rule must not contain elements.")
        values.setdefault(child.name, []).append(child.text.strip())
    known = {"ID", "AllowedOrigin", "AllowedMethod", "AllowedHeader", "ExposeHeader", "MaxAgeSeconds"}
    if not values.keys() <= known or len(values.get("ID", [])) > 1 or len(values.get("MaxAgeSeconds", [])) > 1:
        raise malformed("A CORS rule has an unknown element, or a second ID or MaxAgeSeconds.")
    origins, methods = values.get("AllowedOrigin", []), values.get("AllowedMethod", [])
    headers, exposed = values.get("AllowedHeader", []), values.get("ExposeHeader", [])
    if not origins or not methods:
        raise malformed("A CORS rule must have an AllowedOrigin and an AllowedMethod.")
    for method in methods:
        if method not in METHODS:
            raise S3Error("InvalidRequest", f"Found unsupported HTTP method in CORS config: {method!r}.")
    for pattern in [*origins, *headers]:
        if pattern.count("*") > 1:
            raise S3Error("InvalidRequest", f"{pattern!r} cannot have more than one wildcard.")
    for name in [*headers, *exposed]:
        if not is_header_name(name.lower()):
            raise S3Error("InvalidRequest", f"{name!r} in a CORS rule has characters that a header name cannot have.")
    if any("*" in name for name in exposed):
        raise S3Error("InvalidRequest", "An ExposeHeader cannot have a wildcard.")
    age = values.get("MaxAgeSeconds", [None])[0]
    if age is not None and not (age.isascii() and age.isdigit() and len(age) <= AGE_DIGITS_MAX):
        raise malformed(f"MaxAgeSeconds must be a number of at most {AGE_DIGITS_MAX} digits.")
    return CorsRule(tuple(origins), tuple(methods), tuple(headers), tuple(exposed), None if age is None else int(age))


def _matches(pattern: str, text: str) -> bool:
    before, star, after = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(before) + len(after) and text.startswith(before) and text.endswith(after)
