"""Cross-origin requests of browsers: the configuration of a bucket, preflights, and headers in other answers."""

from __future__ import annotations

from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import Reply, empty
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.ports.metadata import DocumentKind
from nos_ec.s3.cors import METHODS, CorsRule, parse_cors_rules
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request, is_header_name


def _parse(call: Call, _: Access) -> bytes:
    body = read_document(call)
    parse_cors_rules(body)
    return body


CORS = DocumentType(DocumentKind.CORS, _parse, ("NoSuchCORSConfiguration", "The CORS configuration does not exist"))


class Cors:
    """Answers preflights, and adds the CORS headers to other answers. Safe to call from several threads."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def preflight(self, request: Request, bucket: str) -> Reply:
        """Answer whether a browser may send a request. A preflight is never signed. Raises BadRequest, AccessForbidden,
        NoSuchBucket."""
        origin, method = request.header("origin"), request.header("access-control-request-method")
        if not origin:
            raise S3Error("BadRequest", "Insufficient information. Origin request header needed.")
        if not method:
            raise S3Error("BadRequest", "Invalid Access-Control-Request-Method: null")
        if method not in METHODS:
            raise S3Error("BadRequest", f"Invalid Access-Control-Request-Method: {method}")
        self._access.bucket(bucket)
        headers = _names(request.header("access-control-request-headers"))
        for name in headers:
            if not is_header_name(name):
                raise S3Error("BadRequest", f"Access-Control-Request-Headers contains the invalid name {name!r}.")
        rules = self._rules(bucket)
        rule = _first(rules, origin, method, headers)
        if rule is None:
            reason = "CORS is not enabled for this bucket." if not rules else "This CORS request is not allowed."
            raise S3Error("AccessForbidden", f"CORSResponse: {reason}", Method=method, ResourceType="OBJECT")
        return empty(rule.response_headers(origin, headers))

    def answer_headers(self, request: Request, bucket: str) -> dict[str, str]:
        """Return the CORS headers for the answer to any other request; none unless a rule allows its origin."""
        origin = request.header("origin")
        if not origin:
            return {}
        method = request.header("access-control-request-method") or request.method
        rule = _first(self._rules(bucket), origin, method, [])
        return {} if rule is None else rule.response_headers(origin, [])

    def _rules(self, bucket: str) -> list[CorsRule]:
        body = self._access.bucket_document(bucket, DocumentKind.CORS)
        return [] if body is None else parse_cors_rules(body)


def _first(rules: list[CorsRule], origin: str, method: str, headers: list[str]) -> CorsRule | None:
    return next((rule for rule in rules if rule.allows(origin, method, headers)), None)


def _names(header: str | None) -> list[str]:
    return [name for part in (header or "").split(",") if (name := part.strip().lower())]
