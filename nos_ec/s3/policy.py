"""Bucket policies without conditions: parsing and evaluation.

A policy that is not fully supported is refused, because ignoring a part of it may allow too much. Conditions,
NotPrincipal, variables and principals that are not accounts are answered with 501, every other error with 400.

Sources: "Policies and permissions in Amazon S3" and "Bucket policies" of the S3 user guide; "IAM JSON policy reference"
(grammar; evaluation logic: an explicit Deny beats every Allow).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nos_ec.s3.actions import ACTIONS_ON_BUCKETS, ACTIONS_ON_OBJECTS, KNOWN_ACTIONS
from nos_ec.s3.errors import S3Error

POLICY_BYTES_MAX = 20 << 10
"""The limit of S3."""
STATEMENTS_MAX = 1000
VERSIONS = ("2012-10-17", "2008-10-17")
_RESOURCE = "arn:aws:s3:::"
_ACCOUNT = r"[A-Za-z0-9._@+-]{1,64}"
_PRINCIPAL = re.compile(rf"arn:aws:iam::(?:(?P<root>{_ACCOUNT}):root|(?P<of>{_ACCOUNT})?:user/(?P<user>{_ACCOUNT}))")
_BARE = re.compile(_ACCOUNT)
_OF_STATEMENT = frozenset(["Sid", "Effect", "Principal", "Action", "NotAction", "Resource", "NotResource"])


class Verdict(Enum):
    """The result of evaluating a policy for a request."""

    ALLOW = "allow"
    DENY = "deny"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Patterns:
    """The actions or resources of a statement: all that match a pattern, or, if `negated`, all that match none."""

    patterns: re.Pattern[str]
    negated: bool

    def fit(self, text: str) -> bool:
        """Return whether the statement covers this action or resource."""
        return (self.patterns.fullmatch(text) is not None) is not self.negated


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a policy. `accounts` None means everybody, with and without an access key. `actions` are in lower
    case. `resources` match BUCKET or BUCKET/KEY."""

    allows: bool
    accounts: frozenset[str] | None
    actions: Patterns
    resources: Patterns

    def is_about(self, account: str | None, action: str, resource: str) -> bool:
        """Return whether the statement covers a request of this account (None: an anonymous request)."""
        is_theirs = self.accounts is None or account in self.accounts
        return is_theirs and self.actions.fit(action.lower()) and self.resources.fit(resource)


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a bucket. Safe to use from several threads."""

    statements: tuple[Statement, ...]

    @property
    def is_public(self) -> bool:
        """Whether the policy allows anything to everybody."""
        return any(one.allows and one.accounts is None for one in self.statements)

    def verdict(self, account: str | None, action: str, resource: str) -> Verdict:
        """Evaluate a request. action: such as s3:GetObject. resource: BUCKET or BUCKET/KEY."""
        found = Verdict.NOTHING
        for statement in self.statements:
            if statement.is_about(account, action, resource):
                if not statement.allows:
                    return Verdict.DENY
                found = Verdict.ALLOW
        return found


def policy_of(body: bytes, bucket: str, *, is_new: bool = False) -> Policy:
    """Parse the policy of a bucket. Raises MalformedPolicy, or NotImplemented for unsupported elements.

    is_new: also refuse an action that applies to none of the resources of its statement. Such a statement allows or
    denies less than its author meant, but a policy that is already stored with one stays valid.
    """
    return _policy(body, bucket, is_new=is_new)


def session_policy_of(body: bytes) -> Policy:
    """Parse the policy of a session. Its statements have no Principal and may name any bucket. Raises MalformedPolicy,
    or NotImplemented for unsupported elements. Source: "Session policies" of the IAM user guide."""
    return _policy(body, None, is_new=True)


def _policy(body: bytes, bucket: str | None, *, is_new: bool) -> Policy:
    """Parse the policy of a bucket, or that of a session if `bucket` is None."""
    if len(body) > POLICY_BYTES_MAX:
        raise malformed_policy(f"The policy has more than {POLICY_BYTES_MAX} bytes.")
    try:
        data = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise malformed_policy("Policies must be valid JSON and the first byte must be '{'")
    _only(data, frozenset(["Version", "Id", "Statement"]), "the policy")
    if data.get("Version", VERSIONS[1]) not in VERSIONS:
        raise malformed_policy(f"The Version of a policy is {VERSIONS[0]} or {VERSIONS[1]}.")
    if not isinstance(data.get("Id", ""), str):
        raise malformed_policy("The Id of a policy is text.")
    given = data.get("Statement")
    listed: list[Any] = given if isinstance(given, list) else [given]
    if not 1 <= len(listed) <= STATEMENTS_MAX or not all(isinstance(one, dict) for one in listed):
        raise malformed_policy("Missing required field Statement, or a statement that is not an object.")
    sids = [one["Sid"] for one in listed if "Sid" in one]
    if not all(isinstance(sid, str) for sid in sids) or len(set(sids)) < len(sids):
        raise malformed_policy("The Sid of a statement is text, and unique.")
    return Policy(tuple(_statement(one, bucket, is_new=is_new) for one in listed))


def deny_everything() -> Policy:
    """Return the policy that replaces a stored policy which cannot be read."""
    return Policy((Statement(False, None, _patterns(["*"]), _patterns(["*"])),))


def malformed_policy(reason: str) -> S3Error:
    """Return the error of a malformed policy."""
    return S3Error("MalformedPolicy", reason)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse repeated members, which JSON parsers understand differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _no_constant(_: str) -> None:
    raise ValueError


def _only(data: dict[str, Any], names: frozenset[str], where: str) -> None:
    for name in data:
        if name in ("Condition", "NotPrincipal"):
            raise S3Error("NotImplemented", f"{name} is not supported in a policy.")
        if name not in names:
            raise malformed_policy(f"Unknown field {name} in {where}.")


def _statement(data: dict[str, Any], bucket: str | None, *, is_new: bool) -> Statement:
    if data.get("Effect") == "Allow" and "NotPrincipal" in data:
        raise malformed_policy("Allow with NotPrincipal is not supported.")
    _only(data, _OF_STATEMENT if bucket is not None else _OF_STATEMENT - {"Principal"}, "a statement")
    if data.get("Effect") not in ("Allow", "Deny"):
        raise malformed_policy("The Effect of a statement is Allow or Deny.")
    if bucket is not None and "Principal" not in data:
        raise malformed_policy("Missing required field Principal")
    accounts = None if bucket is None else _accounts(data["Principal"])
    actions, no_action = _either(data, "Action")
    resources, no_resource = _either(data, "Resource")
    for action in actions:
        _check_action(action)
    inside = [_resource(resource, bucket, negated=no_resource) for resource in resources]
    if is_new and bucket is not None and not (no_action or no_resource):
        _check_that_actions_apply(actions, inside, bucket)
    return Statement(
        data["Effect"] == "Allow",
        accounts,
        _patterns([action.lower() for action in actions], negated=no_action),
        _patterns(inside, negated=no_resource),
    )


def _accounts(principal: Any) -> frozenset[str] | None:
    if principal == "*":
        return None
    if not isinstance(principal, dict) or not principal:
        raise _invalid("principal", principal)
    found: set[str] = set()
    everybody = False
    for kind, given in principal.items():
        if kind in ("Service", "Federated"):
            raise S3Error("NotImplemented", f"A principal of the kind {kind} is not supported.")
        if kind not in ("AWS", "CanonicalUser"):
            raise _invalid("principal", kind)
        for name in _texts(given, "principal"):
            if name == "*" and kind == "AWS":
                everybody = True
            else:
                found.add(_account(name, kind))
    return None if everybody else frozenset(found)


def _account(name: str, kind: str) -> str:
    """Parse `arn:aws:iam::ACCOUNT:root`, `arn:aws:iam:::user/ACCOUNT` or the bare name of an account."""
    if _BARE.fullmatch(name):
        return name
    match = _PRINCIPAL.fullmatch(name) if kind == "AWS" else None
    if match is None or match["of"] not in (None, match["user"]):
        raise _invalid("principal", name)
    return match["root"] or match["user"]


def _either(data: dict[str, Any], name: str) -> tuple[list[str], bool]:
    """Return the texts of a field or of its negation, and whether it was negated."""
    if (name in data) == (f"Not{name}" in data):
        raise malformed_policy(f"A statement has either {name} or Not{name}.")
    negated = name not in data
    return _texts(data[f"Not{name}" if negated else name], name.lower()), negated


def _texts(given: Any, what: str) -> list[str]:
    listed = given if isinstance(given, list) else [given]
    if not listed or not all(isinstance(one, str) and one for one in listed):
        raise _invalid(what, given)
    if any("${" in one for one in listed):
        raise S3Error("NotImplemented", "Variables are not supported in a policy.")
    return listed


def _check_action(action: str) -> None:
    if action == "*":
        return
    if not action.lower().startswith("s3:") or not _is_one_of(action, KNOWN_ACTIONS):
        raise _invalid("action", action)


def _is_one_of(action: str, actions: frozenset[str]) -> bool:
    pattern = _regex(action.lower())
    return any(re.fullmatch(pattern, one) for one in actions)


def _check_that_actions_apply(actions: Iterable[str], resources: Sequence[str], bucket: str) -> None:
    """Raise MalformedPolicy unless each action applies to a resource. `photos` is the bucket, `photos/*` are its
    objects, `photos*` is both."""
    is_bucket = any(re.fullmatch(_regex(resource), bucket) for resource in resources)
    is_object = any("/" in resource or "*" in resource for resource in resources)
    for action in actions:
        if not (
            (is_bucket and _is_one_of(action, ACTIONS_ON_BUCKETS))
            or (is_object and _is_one_of(action, ACTIONS_ON_OBJECTS))
        ):
            raise S3Error(
                "MalformedPolicy", "Action does not apply to any resource(s) in statement", Detail=action[:200]
            )


def _resource(resource: str, bucket: str | None, *, negated: bool) -> str:
    """Return the pattern BUCKET or BUCKET/KEY of a resource. Another bucket is refused, except in NotResource. The
    policy of a session (`bucket` is None) may name any bucket, or `*` for everything."""
    if bucket is None and resource == "*":
        return resource
    if not resource.startswith(_RESOURCE):
        raise _invalid("resource", resource)
    inside = resource.removeprefix(_RESOURCE)
    if bucket is not None and not negated and not re.fullmatch(_regex(inside.partition("/")[0]), bucket):
        raise _invalid("resource", resource)
    return inside


def _invalid(what: str, given: Any) -> S3Error:
    given = str(given)[:200]
    return S3Error("MalformedPolicy", f"Invalid {what} in policy: {given}", Detail=given)


def _patterns(patterns: Iterable[str], *, negated: bool = False) -> Patterns:
    return Patterns(re.compile("|".join(f"(?:{_regex(one)})" for one in patterns), re.DOTALL), negated)


def _regex(pattern: str) -> str:
    """Translate a pattern: `*` matches any text, `?` one character. Text between two stars is matched at its first
    place only, without backtracking. So matching takes at most the length of the pattern times that of the text."""
    pieces = re.split(r"(\*+)", pattern)
    texts = ["".join("." if char == "?" else re.escape(char) for char in piece) for piece in pieces[::2]]
    if len(texts) == 1:
        return texts[0]
    first, *middle, last = texts
    return first + "".join(f"(?>.*?{text})" for text in middle if text) + f".*{last}"
