"""What bucket policies allow and deny, compared with a naive reading of the same JSON."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.gateway.operations.policies import REQUIRED
from nos_ec.s3.actions import (
    ACTIONS_ON_BUCKETS,
    ACTIONS_ON_OBJECTS,
    BY_KEY,
    KNOWN_ACTIONS,
    OF_VERSION,
)
from nos_ec.s3.errors import S3Error
from nos_ec.s3.policy import POLICY_BYTES_MAX, Policy, Verdict, deny_everything, policy_of

ACCOUNTS = ["ann", "bob", None]
ACTIONS = ["s3:GetObject", "s3:PutObject", "s3:ListBucket", "s3:GetObjectAcl"]
RESOURCES = ["photos", "photos/a", "photos/a/b", "photos/b"]


def one_or_more(values: list[str]) -> Any:
    return st.sampled_from(values) | st.lists(st.sampled_from(values), min_size=1, max_size=3)


STATEMENTS = st.fixed_dictionaries(
    {
        "Effect": st.sampled_from(["Allow", "Deny"]),
        "Principal": st.just("*")
        | st.fixed_dictionaries(
            {"AWS": one_or_more(["*", "ann", "arn:aws:iam::ann:root", "arn:aws:iam:::user/bob", "arn:aws:iam::c:root"])}
        ),
    }
)
ABOUT = st.tuples(
    st.sampled_from(["Action", "NotAction"]),
    one_or_more(["*", "s3:*", "s3:GetObject", "S3:get*", "s3:?etObject", "s3:*Object", "s3:ListBucket"]),
    st.sampled_from(["Resource", "NotResource"]),
    one_or_more(
        [f"arn:aws:s3:::{one}" for one in ("*", "photos", "photos/*", "photos/a*", "photos/?", "photos/*/*", "pho*s/b")]
    ),
)


@st.composite
def statements(draw: Any) -> dict[str, Any]:
    action, actions, resource, resources = draw(ABOUT)
    return {**draw(STATEMENTS), action: actions, resource: resources}


def listed(told: Any) -> list[Any]:
    found: list[Any] = told if isinstance(told, list) else [told]
    return found


def naive(policy: dict[str, Any], account: str | None, action: str, resource: str) -> Verdict:
    """As the user guide says it: explicit Deny, then Allow, else nothing."""

    def fits(field: str, text: str, one: dict[str, Any], prefix: str = "") -> bool:
        negated = field not in one
        patterns = [told.removeprefix(prefix) for told in listed(one[f"Not{field}" if negated else field])]
        found = any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)
        return found is not negated

    effects = []
    for one in listed(policy["Statement"]):
        who = ["*"] if one["Principal"] == "*" else listed(one["Principal"]["AWS"])
        names = {account, f"arn:aws:iam::{account}:root", f"arn:aws:iam:::user/{account}"} if account else set()
        if "*" not in who and not names & set(who):
            continue
        if fits("Action", action, one) and fits("Resource", resource, one, "arn:aws:s3:::"):
            effects.append(one["Effect"])
    return Verdict.DENY if "Deny" in effects else Verdict.ALLOW if "Allow" in effects else Verdict.NOTHING


@given(st.lists(statements(), min_size=1, max_size=4))
def test_a_policy_means_what_it_says(told: list[dict[str, Any]]) -> None:
    data = {"Version": "2012-10-17", "Statement": told[0] if len(told) == 1 else told}
    policy = policy_of(json.dumps(data).encode(), "photos")
    for account in ACCOUNTS:
        for action in ACTIONS:
            for resource in RESOURCES:
                assert policy.verdict(account, action, resource) is naive(data, account, action, resource)


@given(st.text("ab*?/[", max_size=12), st.text("ab/[é\n", max_size=12))
def test_wildcards(pattern: str, text: str) -> None:
    statement = allow(Resource=f"arn:aws:s3:::photos/{pattern}")
    wanted = fnmatchcase(text, pattern.replace("[", "[[]"))
    assert (read(statement).verdict("ann", "s3:GetObject", f"photos/{text}") is Verdict.ALLOW) is wanted


def test_no_pattern_takes_long() -> None:
    pattern = "a*" * 200 + "b"
    policy = read(allow(Resource=[f"arn:aws:s3:::photos/{pattern}{n}" for n in range(20)]))
    assert policy.verdict("ann", "s3:GetObject", "photos/" + "a" * 1000) is Verdict.NOTHING


def test_a_policy_of_many_actions_is_read_quickly() -> None:
    began_s = process_time()
    read(allow(Action=["s3:*", "s3:Get*"] * 500), allow(Action=[f"s3:*{'*' * n}" for n in range(100)]))
    assert process_time() - began_s < 2


def allow(**more: Any) -> dict[str, Any]:
    told = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/*", **more}
    return {name: value for name, value in told.items() if value is not None}


def read(*told: Any, **more: Any) -> Policy:
    return policy_of(json.dumps({"Statement": list(told), **more}).encode(), "photos")


BAD: list[tuple[str, dict[str, Any]]] = [
    ("MalformedPolicy", {"Effect": "allow"}),
    ("MalformedPolicy", {"Effect": None}),
    ("MalformedPolicy", {"Principal": None}),
    ("MalformedPolicy", {"Principal": "ann"}),
    ("MalformedPolicy", {"Principal": {}}),
    ("MalformedPolicy", {"Principal": {"AWS": []}}),
    ("MalformedPolicy", {"Principal": {"AWS": "arn:aws:iam::ann:user/bob"}}),
    ("MalformedPolicy", {"Principal": {"AWS": "arn:aws:iam::*:root"}}),
    ("MalformedPolicy", {"Principal": {"AWS": "an*"}}),
    ("MalformedPolicy", {"Principal": {"Who": "ann"}}),
    ("MalformedPolicy", {"Principal": {"CanonicalUser": "*"}}),
    ("MalformedPolicy", {"Action": None}),
    ("MalformedPolicy", {"NotAction": "s3:*"}),
    ("MalformedPolicy", {"Action": "s3:GetObjekt"}),
    ("MalformedPolicy", {"Action": "ec2:*"}),
    ("MalformedPolicy", {"Action": []}),
    ("MalformedPolicy", {"Action": [""]}),
    ("MalformedPolicy", {"Resource": None}),
    ("MalformedPolicy", {"NotResource": "arn:aws:s3:::photos"}),
    ("MalformedPolicy", {"Resource": "photos/*"}),
    ("MalformedPolicy", {"Resource": "*"}),
    ("MalformedPolicy", {"Resource": "arn:aws:s3:::other/*"}),
    ("MalformedPolicy", {"Resource": {"a": 1}}),
    ("MalformedPolicy", {"Other": 1}),
    ("MalformedPolicy", {"NotPrincipal": "*"}),
    ("NotImplemented", {"Effect": "Deny", "NotPrincipal": "*"}),
    ("NotImplemented", {"Principal": {"Service": "a"}}),
    ("NotImplemented", {"Principal": {"Federated": "a"}}),
    ("MalformedPolicy", {"Resource": "arn:aws:s3:::photos/${aws:username}"}),
    ("MalformedPolicy", {"Action": "s3:${aws:username}"}),
    ("MalformedPolicy", {"Principal": {"AWS": "${aws:username}"}}),
]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("MalformedPolicy", b""),
        ("MalformedPolicy", b"\xff"),
        ("MalformedPolicy", b"[]"),
        ("MalformedPolicy", b"{}"),
        ("MalformedPolicy", b'{"Statement": []}'),
        ("MalformedPolicy", b'{"Statement": ["a"]}'),
        ("MalformedPolicy", b'{"Statement": NaN}'),
        ("MalformedPolicy", b"[" * 100_000),
        ("MalformedPolicy", b'{"Statement": []' + b" " * POLICY_BYTES_MAX + b"}"),
        ("MalformedPolicy", json.dumps({"Statement": allow(), "Other": 1}).encode()),
        ("MalformedPolicy", json.dumps({"Statement": allow(), "Version": "2020-01-01"}).encode()),
        ("MalformedPolicy", json.dumps({"Statement": allow(), "Id": 1}).encode()),
        ("MalformedPolicy", json.dumps({"Statement": [allow(Sid="a"), allow(Sid="a")]}).encode()),
        ("MalformedPolicy", json.dumps({"Statement": allow(Sid=1)}).encode()),
        ("MalformedPolicy", json.dumps(allow()).encode()),
        *[(code, json.dumps({"Statement": allow(**more)}).encode()) for code, more in BAD],
        ("MalformedPolicy", b'{"Statement": [], ' + json.dumps({"Statement": allow()}).encode()[1:]),
    ],
)
def test_what_is_not_understood_is_refused(code: str, body: bytes) -> None:
    with pytest.raises(S3Error) as caught:
        policy_of(body, "photos")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("action", "resource", "applies"),
    [
        ("s3:GetObject", "photos", False),
        ("s3:GetObject", "photos/a", True),
        ("s3:GetObject", "photos*", True),
        ("s3:GetObject", ["photos", "photos/*"], True),
        ("s3:GetObjectVersion", "photos", False),
        ("s3:ReplicateObject", "photos", False),
        ("s3:ListBucket", "photos/*", False),
        ("s3:listbucket", "photos", True),
        ("s3:ListBucket", "photo?", True),
        ("s3:ListBucket", "p*", True),
        ("s3:PutBucketWebsite", "photos/*", False),
        (["s3:GetObject", "s3:ListBucket"], "photos/*", False),
        (["s3:GetObject", "s3:ListBucket"], ["photos/*", "photos"], True),
        ("s3:*", "photos", True),
        ("s3:Get*", "photos/*", True),
        ("s3:List*", "photos/*", True),
        ("s3:ListBucket*", "photos/*", False),
        ("*", "photos/*", True),
    ],
)
def test_each_action_of_a_new_policy_applies_to_a_resource(action: Any, resource: Any, applies: bool) -> None:
    """A policy that was stored before this check is read as it is."""
    arns = [f"arn:aws:s3:::{one}" for one in ([resource] if isinstance(resource, str) else resource)]
    body = json.dumps({"Statement": allow(Action=action, Resource=arns)}).encode()
    policy_of(body, "photos")
    if applies:
        policy_of(body, "photos", is_new=True)
    else:
        with pytest.raises(S3Error, match="does not apply") as caught:
            policy_of(body, "photos", is_new=True)
        assert caught.value.code == "MalformedPolicy"


@pytest.mark.parametrize(
    "told",
    [
        allow(Action=None, NotAction="s3:ListBucket", Resource="arn:aws:s3:::photos/*"),
        allow(Action="s3:ListBucket", Resource=None, NotResource="arn:aws:s3:::photos/*"),
    ],
)
def test_what_a_policy_leaves_out_need_not_apply(told: dict[str, Any]) -> None:
    policy_of(json.dumps({"Statement": told}).encode(), "photos", is_new=True)


def test_public_policies() -> None:
    assert read(allow()).is_public
    assert read(allow(Principal={"AWS": ["ann", "*"]})).is_public
    assert not read(allow(Principal={"AWS": "ann"}), allow(Effect="Deny"), Id="i", Version="2008-10-17").is_public
    assert deny_everything().verdict("ann", "s3:GetObject", "photos/a\nb") is Verdict.DENY


def test_every_operation_needs_an_action() -> None:
    assert set(BY_KEY.values()) <= REQUIRED.keys()
    assert all(required.rights and required.actions for required in REQUIRED.values())
    used = {action for required in REQUIRED.values() for action in required.actions}
    assert {action.lower() for action in used | set(OF_VERSION.values())} <= KNOWN_ACTIONS
    assert ACTIONS_ON_BUCKETS.isdisjoint(ACTIONS_ON_OBJECTS)
    assert OF_VERSION.keys() <= used
