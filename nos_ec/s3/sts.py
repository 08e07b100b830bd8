"""Requests and answers of the Security Token Service: AssumeRole, GetSessionToken and GetCallerIdentity.

A request is a form that names an action, sent to the path `/` and signed for the service `sts`.

Sources: AWS Security Token Service API reference (the three actions, "Common Errors"); "Session policies" and "IAM and
AWS STS quotas" of the IAM user guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from nos_ec.s3.answers import DECLARATION, escape
from nos_ec.s3.errors import S3Error
from nos_ec.s3.request import Request
from nos_ec.s3.signing import iso_8601

SERVICE = "sts"
VERSION = "2011-06-15"
NAMESPACE = f"https://sts.amazonaws.com/doc/{VERSION}/"
BODY_BYTES_MAX = 16 << 10
FIELDS_MAX = 50
POLICY_CHARS_MAX = 2048
_SESSION_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]{2,64}")
_ROLE = re.compile(r"arn:aws:iam::(?P<account>[A-Za-z0-9._@+-]{1,64}):role/(?P<role>[A-Za-z0-9_+=,.@/-]{1,128})")
_SECONDS = {"AssumeRole": (900, 3600, 12 * 3600), "GetSessionToken": (900, 12 * 3600, 36 * 3600)}
"""The shortest duration, the one without DurationSeconds, and the longest one."""
_COMMON = frozenset(["Action", "Version"])
_FIELDS = {
    "AssumeRole": _COMMON | {"RoleArn", "RoleSessionName", "Policy", "DurationSeconds", "ExternalId"},
    "GetSessionToken": _COMMON | {"DurationSeconds"},
    "GetCallerIdentity": _COMMON,
}
"""The parameters that have an effect here, or none anywhere: an ExternalId matters only to a trust policy, and roles
have none. A parameter that would restrict the session, such as a code of a second factor, is refused."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for. `role_account` and `role` are those of the role's ARN, and `session` its name; all are
    empty unless the action is AssumeRole. `policy` is empty if there is none."""

    action: str
    seconds: int = 0
    role_account: str = ""
    role: str = ""
    session: str = ""
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """What temporary credentials stand for.

    `parent` is the access key that they were made with, and `generation` that key's generation at that time. `name` is
    the name of the session, empty for GetSessionToken, and `role` that of the assumed role. `policy` is the session
    policy as it was sent; empty if there is none. `expires_s` is in Unix seconds.
    """

    account: str
    parent: str
    generation: bytes
    expires_s: int
    role: str = ""
    name: str = ""
    policy: str = ""

    @property
    def arn(self) -> str:
        """How answers name the account in this session."""
        if not self.role:
            return arn_of(self.account)
        return f"arn:aws:sts::{self.account}:assumed-role/{self.role.rpartition('/')[2]}/{self.name}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Temporary credentials, as a client gets them."""

    access_key: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    session: Session


def is_sts(request: Request) -> bool:
    """Return whether a request to the path `/` is one to this service."""
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    return request.method == "POST" and kind == "application/x-www-form-urlencoded"


def wanted_of(body: bytes) -> Wanted:
    """Parse the form. Raises S3Error: MissingAction, InvalidAction, ValidationError."""
    fields = _fields(body)
    action = fields.get("Action", "")
    if not action:
        raise S3Error("MissingAction", "The request has no Action.")
    if action not in _FIELDS or fields.get("Version", VERSION) != VERSION:
        raise S3Error("InvalidAction", f"Could not find operation {action[:64]} for version {VERSION}.")
    for name in fields.keys() - _FIELDS[action]:
        raise invalid(f"The parameter {name[:64]} is not supported.")
    if action == "GetCallerIdentity":
        return Wanted(action)
    seconds = _seconds(action, fields.get("DurationSeconds"))
    if action == "GetSessionToken":
        return Wanted(action, seconds)
    match = _ROLE.fullmatch(fields.get("RoleArn", ""))
    if match is None:
        raise invalid("RoleArn must be arn:aws:iam::<account>:role/<name>.")
    session = fields.get("RoleSessionName", "")
    if not _SESSION_NAME.fullmatch(session):
        raise invalid("RoleSessionName must have 2 to 64 letters, digits and any of _ + = , . @ -")
    policy = fields.get("Policy")
    if policy is not None and not 1 <= len(policy) <= POLICY_CHARS_MAX:
        raise invalid(f"Policy must have 1 to {POLICY_CHARS_MAX} characters.")
    return Wanted(action, seconds, match["account"], match["role"], session, policy or "")


def _fields(body: bytes) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX, separator="&"
        )
    except ValueError:
        raise invalid("The body must be a form in UTF-8.") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise invalid("A parameter was sent more than once.")
    return found


def _seconds(action: str, text: str | None) -> int:
    least, default, most = _SECONDS[action]
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,6}", text) or not least <= int(text) <= most:
        raise invalid(f"DurationSeconds must be {least} to {most}.")
    return int(text)


def invalid(reason: str) -> S3Error:
    """Return the error for a parameter that is not valid."""
    return S3Error("ValidationError", reason)


def arn_of(account: str) -> str:
    """Return how answers name an account."""
    return f"arn:aws:iam::{account}:user/{account}"


def issued(action: str, made: Credentials, request_id: str) -> bytes:
    """Return the body of the answer to AssumeRole or GetSessionToken."""
    session = made.session
    texts = {
        "AccessKeyId": made.access_key,
        "SecretAccessKey": made.secret,
        "SessionToken": made.token,
        "Expiration": iso_8601(session.expires_s * 1000),
    }
    result = f"<Credentials>{_elements(texts)}</Credentials>"
    if session.role:
        user = {"AssumedRoleId": f"{made.access_key}:{session.name}", "Arn": session.arn}
        result += f"<AssumedRoleUser>{_elements(user)}</AssumedRoleUser>"
    return _answer(action, result, request_id)


def caller_identity(account: str, arn: str, access_key: str, request_id: str) -> bytes:
    """Return the body of the answer to GetCallerIdentity."""
    texts = {"Arn": arn, "UserId": access_key, "Account": account}
    return _answer("GetCallerIdentity", _elements(texts), request_id)


def error_answer(error: S3Error, request_id: str) -> bytes:
    """Return the body of an error."""
    kind = "Sender" if error.status < 500 else "Receiver"
    inside = _elements({"Type": kind, "Code": error.code, "Message": error.message})
    return (
        f'{DECLARATION}<ErrorResponse xmlns="{NAMESPACE}"><Error>{inside}</Error>'
        f"<RequestId>{escape(request_id)}</RequestId></ErrorResponse>"
    ).encode()


def _answer(action: str, result: str, request_id: str) -> bytes:
    return (
        f'{DECLARATION}<{action}Response xmlns="{NAMESPACE}"><{action}Result>{result}</{action}Result>'
        f"<ResponseMetadata><RequestId>{escape(request_id)}</RequestId></ResponseMetadata></{action}Response>"
    ).encode()


def _elements(texts: Mapping[str, str]) -> str:
    return "".join([f"<{name}>{escape(text)}</{name}>" for name, text in texts.items()])
