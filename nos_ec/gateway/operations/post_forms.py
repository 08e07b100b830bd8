"""Serves uploads by POST forms of browsers.

A form is converted to a PUT whose headers are the fields of the form. Source: "POST object" of the S3 API reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from urllib.parse import quote, urlencode

from nos_ec.core.notifications.origin import caused_by, current_origin
from nos_ec.gateway.auth.access import Access, Sender
from nos_ec.gateway.message.body import Source
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.customer_key import refuse_customer_key
from nos_ec.gateway.message.form_body import FormBody
from nos_ec.gateway.message.reply import Reply, empty
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.operations.policies import apply_policy
from nos_ec.ports.clock import Clock
from nos_ec.s3 import answers, documents
from nos_ec.s3.checksums import expected_of
from nos_ec.s3.errors import invalid_argument
from nos_ec.s3.names import check_key
from nos_ec.s3.operations import POST_FORM
from nos_ec.s3.post_policy import SizeRange, check_policy, read_form_claim, verify_form
from nos_ec.s3.request import Request, require_header_name
from nos_ec.s3.signing import Payload, Signed, unknown_key

_HEADER_FIELDS = frozenset(
    ["cache-control", "content-disposition", "content-encoding", "content-language", "content-md5", "content-type",
     "expires"]
)  # fmt: skip
"""Fields that become headers of the same names, in addition to those that begin with x-amz-."""
_OF_NO_FORM = re.compile(r"x-amz-((algorithm|credential|date|security-token|signature|content-sha256)\Z|copy-source)")
"""Fields of the signature, and headers that have no effect on a form: a policy must not take them for facts."""
_OF_THE_BROWSER = frozenset([b"referer", b"user-agent"])
"""Headers of the form's request that bucket policies may compare."""
_STATUSES = {"200": 200, "201": 201, "204": 204}
"""The values of success_action_status that have an effect. With any other one the status is 204."""
_REDIRECT_URL = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)


class PostForms:
    """The operation PostObject. Safe to call from several threads."""

    def __init__(self, access: Access, objects: ObjectOperations, clock: Clock) -> None:
        self._access = access
        self._objects = objects
        self._clock = clock

    def post(self, request: Request, bucket: str, source: Source, admit: Callable[[str | None], None]) -> Reply:
        """Store the file of a form. The policy of a signed form limits its contents; an anonymous form needs a bucket
        to which anyone may write. `admit` gets the account, None for an anonymous form, before the file is read, and
        raises SlowDown if it has reached its rate."""
        bucket_access = self._access.bucket(bucket)
        body = FormBody(request, source, partial(self._access.require_same, bucket_access))
        # The variable is replaced in all fields, before the policy is checked ("POST policy" of the API reference).
        fields = {name: value.replace("${filename}", body.file_name) for name, value in body.fields.items()}
        key = fields.get("key", "")
        if not key:
            raise invalid_argument("Bucket POST must contain a field named 'key'.", "key", "")
        check_key(key)
        sent = [*_put_headers(fields), *[pair for pair in request.headers if pair[0] in _OF_THE_BROWSER]]
        put = Request("PUT", request.raw_path, b"", sent, request.scheme, request.client)
        refuse_customer_key(put)
        sender, signed, sizes = self._verified_sender(fields, bucket)
        admit(None if sender is None else sender.account)
        call = Call(put, POST_FORM, bucket, key, sender, signed, source, bucket_access, self._clock.now_ms())
        apply_policy(call)
        body.expect(expected_of(put), sizes)
        with caused_by(replace(current_origin(), account=call.account or "")):
            etag, headers = self._objects.at(bucket, key).store(call, body)
        location = f"{request.base}{request.raw_path.decode('latin-1').rstrip('/')}/{quote(key)}"
        return _answer(fields, bucket, etag, {**headers, "location": location})

    def _verified_sender(
        self, fields: Mapping[str, str], bucket: str
    ) -> tuple[Sender | None, Signed | None, SizeRange | None]:
        """Verify the signature and the policy of a form. Return who signed it, its signature, and the sizes that the
        policy allows for the file; None for each of them for an anonymous form."""
        claim = read_form_claim(fields)
        if claim is None:
            return None, None, None
        sender = self._access.sender(claim.access_key, claim.token)
        if sender is None:
            raise unknown_key(claim.access_key)
        verify_form(claim, sender.secret)
        date = "" if claim.day is None else fields["x-amz-date"]
        signed = Signed(claim.access_key, Payload.UNSIGNED, None, b"", date, "", claim.signature)
        return sender, signed, check_policy(claim.policy, fields, bucket, self._clock.now_ms())


def _put_headers(fields: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    found = {name: value for name, value in fields.items() if name in _HEADER_FIELDS}
    found |= {
        name: value for name, value in fields.items() if name.startswith("x-amz-") and not _OF_NO_FORM.match(name)
    }
    for name in found:
        require_header_name(name)
    if "acl" in fields:
        found["x-amz-acl"] = fields["acl"]
    if "tagging" in fields:
        found["x-amz-tagging"] = urlencode(documents.tagging(fields["tagging"].encode()))
    return [(name.encode(), value.encode()) for name, value in found.items()]


def _answer(fields: Mapping[str, str], bucket: str, etag: str, headers: dict[str, str]) -> Reply:
    url = fields.get("success_action_redirect") or fields.get("redirect") or ""
    if _REDIRECT_URL.fullmatch(url):
        query = urlencode({"bucket": bucket, "key": fields["key"], "etag": f'"{etag}"'})
        return empty({**headers, "location": f"{url}{'&' if '?' in url else '?'}{query}"}, 303)
    status = _STATUSES.get(fields.get("success_action_status", ""), 204)
    if status != 201:
        return empty(headers, status)
    body = answers.posted(headers["location"], bucket, fields["key"], etag)
    return Reply(201, {**headers, "content-type": "application/xml"}, body)
