"""Bucket policies: parsing and evaluation.

A policy that is not fully supported is refused, because ignoring a part of it may allow too much. NotPrincipal and
principals that are not accounts are answered with 501, every other error with 400.

Sources: "Policies and permissions in Amazon S3" and "Bucket policies" of the S3 user guide; "IAM JSON policy reference"
(grammar; evaluation logic: an explicit Deny beats every Allow).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from nos_ec.s3.actions import ACTIONS_ON_BUCKETS, ACTIONS_ON_OBJECTS, KNOWN_ACTIONS
from nos_ec.s3.conditions.keys import Facts, NoFacts
from nos_ec.s3.conditions.operators import AnyCondition, BadCondition, conditions_of
from nos_ec.s3.conditions.patterns import BadVariable, Evaluation, Patterns, Pieces, Settled, pieces_of, wildcards
from nos_ec.s3.errors import S3Error

POLICY_BYTES_MAX = 20 << 10
"""The limit of S3."""
STATEMENTS_MAX = 1000
VARIABLES_MAX = 100
"""Maximum number of variables in a policy. Matching one takes longer than matching other text."""
VERSIONS = ("2012-10-17", "2008-10-17")
_RESOURCE = "arn:aws:s3:::"
_ACCOUNT = r"[A-Za-z0-9._@+-]{1,64}"
_PRINCIPAL = re.compile(rf"arn:aws:iam::(?:(?P<root>{_ACCOUNT}):root|(?P<of>{_ACCOUNT})?:user/(?P<user>{_ACCOUNT}))")
_BARE = re.compile(_ACCOUNT)
_NOTHING_KNOWN = NoFacts()
_OF_STATEMENT = frozenset(["Sid", "Effect", "Principal", "Action", "NotAction", "Resource", "NotResource", "Condition"])


LOGGING_SERVICE = "service:logging.s3.amazonaws.com"
"""The service that stores access logs, among the accounts of statements. No account has a name with a colon."""


class Verdict(Enum):
    """The result of evaluating a policy for a request. UNDECIDED: it depends on something that is not known yet."""

    ALLOW = "allow"
    DENY = "deny"
    NOTHING = "nothing"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Selection:
    """The actions or resources of a statement: all that match a pattern, or, if `negated`, all that match none."""

    patterns: Patterns
    negated: bool

    def covers(self, text: str, evaluation: Evaluation) -> bool:
        """Return whether the statement covers this action or resource. Raises Settled."""
        return self.patterns.match(text, evaluation) is not self.negated


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a policy. `accounts` None means everybody, with and without an access key. `actions` are in lower
    case. `resources` match BUCKET or BUCKET/KEY. All `conditions` must hold."""

    allows: bool
    accounts: frozenset[str] | None
    actions: Selection
    resources: Selection
    conditions: tuple[AnyCondition, ...] = ()

    @property
    def is_public(self) -> bool:
        """Whether the statement allows anything to everybody, wherever they are."""
        return self.allows and self.accounts is None and not any(one.is_fixed for one in self.conditions)

    def matches(self, account: str | None, action: str, resource: str, facts: Facts) -> bool | None:
        """Return whether the statement matches a request of this account (None: an anonymous request). None if that
        depends on what is not known yet."""
        evaluation = Evaluation(action.lower(), facts, self.allows)
        if self.accounts is not None and account not in self.accounts:
            return False
        if not self.actions.covers(evaluation.action, evaluation):  # actions have no variables
            return False
        tests: list[Callable[[Evaluation], bool]] = [partial(self.resources.covers, resource)]
        tests += [one.holds for one in self.conditions]
        found: bool | None = True
        for test in tests:
            try:
                holds: bool | None = test(evaluation)
            except Settled as settled:
                holds = settled.matches
            if holds is False:
                return False
            found = found and holds
        return found


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a bucket. Safe to use from several threads."""

    statements: tuple[Statement, ...]

    @property
    def is_public(self) -> bool:
        """Whether the policy allows anything to everybody."""
        return any(one.is_public for one in self.statements)

    def verdict(self, account: str | None, action: str, resource: str, facts: Facts = _NOTHING_KNOWN) -> Verdict:
        """Evaluate a request. action: such as s3:GetObject. resource: BUCKET or BUCKET/KEY. facts: what conditions and
        variables compare."""
        found: set[tuple[bool, bool | None]] = set()
        for statement in self.statements:
            matches = statement.matches(account, action, resource, facts)
            if matches and not statement.allows:
                return Verdict.DENY
            found.add((statement.allows, matches))
        if (False, None) in found:
            return Verdict.UNDECIDED
        if (True, True) in found:
            return Verdict.ALLOW
        return Verdict.UNDECIDED if (True, None) in found else Verdict.NOTHING


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
    if body.count(b"${") > VARIABLES_MAX:
        raise malformed_policy(f"The policy has more than {VARIABLES_MAX} variables.")
    has_variables = data.get("Version") == VERSIONS[0]
    return Policy(tuple(_statement(one, bucket, is_new=is_new, has_variables=has_variables) for one in listed))


def deny_everything() -> Policy:
    """Return the policy that replaces a stored policy which cannot be read."""
    everything = Selection(Patterns([["*"]]), False)
    return Policy((Statement(False, None, everything, everything),))


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
        if name == "NotPrincipal":
            raise S3Error("NotImplemented", f"{name} is not supported in a policy.")
        if name not in names:
            raise malformed_policy(f"Unknown field {name} in {where}.")


def _statement(data: dict[str, Any], bucket: str | None, *, is_new: bool, has_variables: bool) -> Statement:
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
    for action in dict.fromkeys(actions):
        _check_action(action)
    inside = [_resource(resource, bucket, negated=no_resource, has_variables=has_variables) for resource in resources]
    try:
        conditions = conditions_of(data.get("Condition", {}), has_variables=has_variables)
    except BadCondition as error:
        raise malformed_policy(f"Invalid condition in policy: {error}.") from None
    if is_new and not no_action:
        positive = None if no_resource or bucket is None else resources
        _check_that_actions_apply(dict.fromkeys(actions), positive, conditions, bucket or "")
    return Statement(
        data["Effect"] == "Allow",
        accounts,
        Selection(Patterns([action.lower()] for action in actions), no_action),
        Selection(Patterns(inside), no_resource),
        tuple(conditions),
    )


def _accounts(principal: Any) -> frozenset[str] | None:
    if principal == "*":
        return None
    if not isinstance(principal, dict) or not principal:
        raise _invalid("principal", principal)
    found: set[str] = set()
    everybody = False
    for kind, given in principal.items():
        if kind == "Service" and _texts(given, "principal") == [LOGGING_SERVICE.removeprefix("service:")]:
            found.add(LOGGING_SERVICE)
            continue
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
    return listed


def _check_action(action: str) -> None:
    if action == "*":
        return
    if not action.lower().startswith("s3:") or not _matching(action, KNOWN_ACTIONS):
        raise _invalid("action", action)


def _matching(pattern: str, actions: Iterable[str]) -> list[str]:
    """Return the actions, in lower case, that a pattern matches."""
    compiled = wildcards(pattern.lower())
    return [one for one in actions if compiled.fullmatch(one)]


def _check_that_actions_apply(
    actions: Iterable[str], resources: Sequence[str] | None, conditions: Iterable[AnyCondition], bucket: str
) -> None:
    """Raise MalformedPolicy unless each action applies to a resource (None: there are no positive ones) and can have
    each key of the conditions. `photos` is the bucket, `photos/*` are its objects, `photos*` is both."""
    inside = [] if resources is None else [one.removeprefix(_RESOURCE) for one in resources]
    is_bucket = resources is None or any(wildcards(one).fullmatch(bucket) for one in inside)
    is_object = resources is None or any("/" in one or "*" in one for one in inside)
    possible = (ACTIONS_ON_BUCKETS if is_bucket else frozenset()) | (ACTIONS_ON_OBJECTS if is_object else frozenset())
    for action in actions:
        found = _matching(action, possible)
        if not found:
            raise S3Error(
                "MalformedPolicy", "Action does not apply to any resource(s) in statement", Detail=action[:200]
            )
        for condition in conditions:
            if not any(condition.named.key.fits(one) for one in found):
                raise S3Error(
                    "MalformedPolicy",
                    "Conditions do not apply to combination of actions and resources in statement:"
                    f" {action[:100]} has no {condition.named.key.name}",
                    Detail=condition.named.key.name,
                )


def _resource(resource: str, bucket: str | None, *, negated: bool, has_variables: bool) -> Pieces:
    """Return the pattern BUCKET or BUCKET/KEY of a resource. Another bucket is refused, except in NotResource. The
    policy of a session (`bucket` is None) may name any bucket, or `*` for everything."""
    if bucket is None and resource == "*":
        return [resource]
    if not resource.startswith(_RESOURCE):
        raise _invalid("resource", resource)
    inside = resource.removeprefix(_RESOURCE)
    if bucket is not None and not negated and not wildcards(inside.partition("/")[0]).fullmatch(bucket):
        raise _invalid("resource", resource)
    try:
        return pieces_of(inside, has_variables=has_variables)
    except BadVariable as error:
        raise malformed_policy(f"Invalid resource in policy: {error}.") from None


def _invalid(what: str, given: Any) -> S3Error:
    given = str(given)[:200]
    return S3Error("MalformedPolicy", f"Invalid {what} in policy: {given}", Detail=given)
