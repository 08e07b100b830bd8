"""Serves buckets as websites, on the hosts `BUCKET.DOMAIN` of the domains in `s3.website_domains`.

Sources: "Hosting a static website using Amazon S3", "Website endpoints" and "Configuring a webpage redirect" of the S3
user guide. Nobody is authenticated there: everything is served to everybody who may read it, by policy or ACL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from html import escape
from http import HTTPStatus
from urllib.parse import quote, unquote_to_bytes

from nos_ec.core.errors import NosError
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.body import Source
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.failures import headers_of_error, to_s3_error
from nos_ec.gateway.message.object_headers import REDIRECT
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import apply_policy
from nos_ec.ports.metadata import DocumentKind
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import bucket_of_host, check_key
from nos_ec.s3.request import Request, require_encoded
from nos_ec.s3.signing import unsigned
from nos_ec.s3.website import Redirect, Website, parse_website

_MISSING = ("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration")
_KEPT_OF_ERROR_DOCUMENT = ("content-type", "content-language", "content-encoding", "cache-control")


def _parse(call: Call, _: Access) -> bytes:
    body = read_document(call)
    parse_website(body)
    return body


WEBSITE = DocumentType(DocumentKind.WEBSITE, _parse, _MISSING)


class Websites:
    """The websites of a store. Safe to call from several threads."""

    def __init__(self, access: Access, objects: ObjectOperations, domains: Collection[str]) -> None:
        self._access = access
        self._objects = objects
        self._domains = domains

    def bucket_of(self, request: Request) -> str | None:
        """Return the bucket whose website the host of a request names, or None. Raises InvalidRequest for a repeated
        Host header, and see `bucket_of_host`."""
        return bucket_of_host(request.header("host"), self._domains) if self._domains else None

    def answer(self, request: Request, bucket: str, source: Source, now_ms: int, request_id: str) -> Reply:
        """Return the page, a redirect, or an error as HTML."""
        key = ""
        try:
            key = _key_of(request)
            if request.method not in ("GET", "HEAD"):
                error = S3Error("MethodNotAllowed", "The specified method is not allowed against this resource.")
                error.headers["allow"] = "GET, HEAD"
                raise error
            website = self._website(bucket)
            if website.redirect_all is not None:
                return _redirected(website.redirect_all, request, key)
            if (rule := website.rule_for(key, None)) is not None:
                return _redirected(rule.redirect, request, key, rule.prefix)
        except (S3Error, NosError) as error:
            return error_page(to_s3_error(error, bucket=bucket, key=key), key, request_id)
        get = partial(self._get, bucket=bucket, source=source, now_ms=now_ms)
        page_key = key + website.index if not key or key.endswith("/") else key
        try:
            page = get(request, key=page_key)
        except (S3Error, NosError) as error:
            refused = to_s3_error(error, bucket=bucket, key=key)
            # An object that is a redirect is usually empty, and is one whatever was asked for.
            location = _location_of(get, request, page_key) if refused.status in (412, 416) else None
            if location is None:
                return self._refused(refused, website, request, key, get, request_id)
        else:
            # A client may have kept what was there before, or have asked for anything else (`If-None-Match: *`).
            location = page.headers.pop(REDIRECT, None)
            if page.status == 304:
                location = _location_of(get, request, page_key)
            if location is None:
                return page
        return Reply(301, {"location": location})

    def _website(self, bucket: str) -> Website:
        self._access.bucket(bucket)
        body = self._access.bucket_document(bucket, DocumentKind.WEBSITE)
        if body is None:
            code, message = _MISSING
            raise S3Error(code, message, BucketName=bucket)
        return parse_website(body)

    def _get(self, request: Request, *, key: str, bucket: str, source: Source, now_ms: int) -> Reply:
        """Return an object as an anonymous GET or HEAD does. Parameters of the query do not count."""
        operation, access = f"{request.method.capitalize()}Object", self._access.bucket(bucket)
        plain = replace(request, raw_query=b"")
        call = Call(plain, operation, bucket, key, None, unsigned(plain), source, access, now_ms)
        apply_policy(call)
        objects = self._objects.at(bucket, key)
        return objects.head_object(call) if request.method == "HEAD" else objects.get_object(call)

    @staticmethod
    def _refused(
        error: S3Error, website: Website, request: Request, key: str, get: Callable[..., Reply], request_id: str
    ) -> Reply:
        """Return the answer to a request whose page cannot be read: a redirect to the folder of this name if it has an
        index document, the redirect of a rule, the error document, or the error."""
        plain = _plain(request)
        # A location that began with two slashes would name another host.
        if error.status in (403, 404) and key and not key.startswith("/") and not key.endswith("/"):
            with suppress(S3Error, NosError):
                get(plain, key=f"{key}/{website.index}")
                return Reply(302, {"location": f"/{quote(key, safe='/')}/"})
        if (rule := website.rule_for(key, error.status)) is not None:
            return _redirected(rule.redirect, request, key, rule.prefix)
        if website.error_key is None or not 400 <= error.status < 500:
            return error_page(error, key, request_id)
        try:
            page = get(replace(plain, method=request.method), key=website.error_key)
        except (S3Error, NosError) as second:
            return error_page(error, key, request_id, to_s3_error(second, key=website.error_key))
        kept = {name: page.headers[name] for name in _KEPT_OF_ERROR_DOCUMENT if name in page.headers}
        return Reply(error.status, kept | headers_of_error(error) | _named(error), page.body, page.length)


def _key_of(request: Request) -> str:
    """Return the key that the path names. Raises InvalidURI, KeyTooLongError, InvalidArgument."""
    require_encoded(request.raw_path)
    try:
        key = unquote_to_bytes(request.raw_path).decode().removeprefix("/")
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "The path is not UTF-8.") from None
    check_key(key)
    return key


def _plain(request: Request) -> Request:
    """Return the HEAD of a whole object, without conditions. The other headers stay, because policies may need them."""
    kept = [(name, value) for name, value in request.headers if name != b"range" and not name.startswith(b"if-")]
    return replace(request, method="HEAD", headers=kept)


def _location_of(get: Callable[..., Reply], request: Request, key: str) -> str | None:
    """Return where an object redirects to; None if it does not, or cannot be read."""
    try:
        return get(_plain(request), key=key).headers.get(REDIRECT)
    except (S3Error, NosError):
        return None


def _redirected(redirect: Redirect, request: Request, key: str, matched: str = "") -> Reply:
    location = redirect.location(request.scheme, request.header("host") or "", key, matched, request.raw_query)
    return Reply(redirect.status, {"location": location})


def _named(error: S3Error) -> dict[str, str]:
    """Return the headers with the code and the message of an error, for clients that get no XML."""
    return {"x-amz-error-code": error.code, "x-amz-error-message": " ".join(error.message.split())}


def error_page(error: S3Error, key: str, request_id: str, second: S3Error | None = None) -> Reply:
    """Return an error of the website as HTML. `second`: why the error document cannot be read."""
    title = f"{error.status} {HTTPStatus(error.status).phrase}"
    about = {"Code": error.code, "Message": error.message, "Key": key, "RequestId": request_id}
    body = f"<html>\n<head><title>{title}</title></head>\n<body>\n<h1>{title}</h1>\n{_list(about)}"
    if second is not None:
        body += "<h3>An Error Occurred While Attempting to Retrieve a Custom Error Document</h3>\n"
        body += _list({"Code": second.code, "Message": second.message})
    headers = {"content-type": "text/html; charset=utf-8", **headers_of_error(error), **_named(error)}
    return Reply(error.status, headers, f"{body}<hr/>\n</body>\n</html>\n".encode("utf-8", "replace"))


def _list(about: Mapping[str, str]) -> str:
    items = "".join(f"<li>{name}: {escape(value)}</li>\n" for name, value in about.items())
    return f"<ul>\n{items}</ul>\n"
