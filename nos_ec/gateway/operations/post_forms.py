"""Serves uploads by POST forms of browsers.

A form is converted to a PUT whose headers are the fields of the form. Source: "POST object" of the S3 API reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from urllib.parse import quote, urlencode

from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.body import Source
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.form_body import FormBody
from nos_ec.gateway.message.reply import Reply, empty
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import allowed_rights
from nos_ec.ports.clock import Clock
from nos_ec.s3 import answers, documents
from nos_ec.s3.checksums import expected_of
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import check_key
from nos_ec.s3.post_policy import SizeRange, check_policy, read_form_claim, verify_form
from nos_ec.s3.request import Request, require_header_name

_LIKE_HEADERS = frozenset(
    ["cache-control", "content-disposition", "content-encoding", "content-language", "content-md5", "content-type",
     "expires"]
)  # fmt: skip
_OF_THE_SIGNATURE = frozenset(["x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"])
_STATUSES = {"200": 200, "201": 201, "204": 204}
_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)


class PostForms:
    """The operation PostObject. Safe to call from several threads."""

    def __init__(self, access: Access, objects: ObjectOperations, clock: Clock) -> None:
        self._access = access
        self._objects = objects
        self._clock = clock

    def post(self, request: Request, bucket: str, source: Source) -> Reply:
        """Store the file of a form. The policy of a signed form limits its contents; an anonymous form needs a bucket
        to which anyone may write."""
        access = self._access.bucket(bucket)
        body = FormBody(request, source, partial(self._access.require_same, access))
        # In all fields, before they are compared with the policy ("POST policy" of the API reference).
        fields = {name: value.replace("${filename}", body.file_name) for name, value in body.fields.items()}
        key = fields.get("key", "")
        if not key:
            raise S3Error(
                "InvalidArgument", "Bucket POST must contain a field named 'key'.", ArgumentName="key", ArgumentValue=""
            )
        check_key(key)
        account, sizes = self._sender(fields, bucket)
        meant = Request("PUT", request.raw_path, b"", _headers(fields))
        allowed = allowed_rights(access, "PostObject", meant, key, account)
        call = Call(meant, "PostObject", bucket, key, account, None, source, access, allowed)
        body.expect(expected_of(meant), sizes)
        etag, headers = self._objects.store(call, body)
        location = f"{request.base}{request.raw_path.decode('latin-1').rstrip('/')}/{quote(key)}"
        return _answer(fields, bucket, etag, {**headers, "location": location})

    def _sender(self, fields: Mapping[str, str], bucket: str) -> tuple[str | None, SizeRange | None]:
        """Return the account that signed the form, None for an anonymous one, and the sizes that its policy allows."""
        claim = read_form_claim(fields)
        if claim is None:
            return None, None
        account = self._access.account_of_key(claim.access_key)
        verify_form(claim, None if account is None else account.secret)
        sizes = check_policy(claim.policy, fields, bucket, self._clock.now_ms())
        return None if account is None else account.name, sizes


def _headers(fields: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    found = {name: value for name, value in fields.items() if name in _LIKE_HEADERS}
    found |= {
        name: value for name, value in fields.items() if name.startswith("x-amz-") and name not in _OF_THE_SIGNATURE
    }
    for name in found:
        require_header_name(name)
    if "acl" in fields:
        found["x-amz-acl"] = fields["acl"]
    if "tagging" in fields:
        found["x-amz-tagging"] = urlencode(documents.tagging(fields["tagging"].encode()))
    return [(name.encode(), value.encode()) for name, value in found.items()]


def _answer(fields: Mapping[str, str], bucket: str, etag: str, headers: dict[str, str]) -> Reply:
    address = fields.get("success_action_redirect") or fields.get("redirect") or ""
    if _ADDRESS.fullmatch(address):
        query = urlencode({"bucket": bucket, "key": fields["key"], "etag": f'"{etag}"'})
        return empty({**headers, "location": f"{address}{'&' if '?' in address else '?'}{query}"}, 303)
    status = _STATUSES.get(fields.get("success_action_status", ""), 204)
    if status != 201:
        return empty(headers, status)
    body = answers.posted(headers["location"], bucket, fields["key"], etag)
    return Reply(201, {**headers, "content-type": "application/xml"}, body)
