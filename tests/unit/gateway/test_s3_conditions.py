"""Conditions and variables of bucket policies: each operator, missing keys, and what cannot be used."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.s3.conditions.keys import KEYS, NamedKey, Unsure, Values, find_key
from nos_ec.s3.conditions.operators import TEXT_CHARS_MAX
from nos_ec.s3.conditions.patterns import VALUE_CHARS_MAX
from nos_ec.s3.errors import S3Error
from nos_ec.s3.policy import POLICY_BYTES_MAX, VARIABLES_MAX, Policy, Verdict, policy_of

AGENT, PREFIX, TAG, TAGS = "aws:UserAgent", "s3:prefix", "s3:ExistingObjectTag/a", "s3:RequestObjectTagKeys"
ADDRESS, SECURE, TIME, KEYS_MAX, ARN = (
    "aws:SourceIp",
    "aws:SecureTransport",
    "aws:CurrentTime",
    "s3:max-keys",
    "aws:PrincipalArn",
)
MISSING: list[str] = []


class Told:
    """Facts with these values; other keys are missing."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = {name.lower(): told for name, told in facts.items()}

    def values(self, named: NamedKey, /) -> Values:
        told = self._facts.get((named.key.name + named.tag).lower(), ())
        if isinstance(told, Unsure):
            return told
        return (told,) if isinstance(told, str) else tuple(told)


def statement(condition: Any, effect: str = "Allow", **more: Any) -> dict[str, Any]:
    every = {"Effect": effect, "Principal": "*", "Action": "s3:*"}
    return {**every, "Resource": ["arn:aws:s3:::photos", "arn:aws:s3:::photos/*"], "Condition": condition, **more}


def read(*statements: dict[str, Any], version: str = "2012-10-17", is_new: bool = True) -> Policy:
    body = json.dumps({"Version": version, "Statement": list(statements)}).encode()
    return policy_of(body, "photos", is_new=is_new)


def holds(condition: dict[str, Any], facts: dict[str, Any], action: str = "s3:ListBucket") -> bool:
    """Whether the condition holds. An Allow and a Deny with it must agree."""
    allowed = read(statement(condition)).verdict("ann", action, "photos", Told(facts))
    denied = read(statement(condition, "Deny")).verdict("ann", action, "photos", Told(facts))
    assert (allowed, denied) in ((Verdict.ALLOW, Verdict.DENY), (Verdict.NOTHING, Verdict.NOTHING))
    return allowed is Verdict.ALLOW


@pytest.mark.parametrize(
    ("operator", "key", "value", "fits", "others"),
    [
        ("StringEquals", AGENT, ["curl", "aws"], ["curl", "aws"], ["Curl", "curl/1", "", "cur"]),
        ("StringEquals", AGENT, "cu*", ["cu*"], ["curl"]),
        ("StringEqualsIgnoreCase", AGENT, "Curl", ["curl", "CURL"], ["curl/1"]),
        ("StringLike", AGENT, ["curl/*", "aws?"], ["curl/1", "curl/", "aws1"], ["curl", "aws", "Curl/1", "aws12"]),
        ("StringLike", AGENT, "*", ["", "anything\n"], []),
        ("StringEquals", SECURE, "true", ["true"], ["false"]),
        ("NumericEquals", KEYS_MAX, "10", ["10", "10.0", "010"], ["11", "", "x", "1e1", "\u0661\u0660"]),
        ("NumericLessThan", KEYS_MAX, 10, ["9", "-1", "9.999"], ["10", "11", "x"]),
        ("NumericLessThanEquals", KEYS_MAX, ["5", "10"], ["10", "5"], ["10.000000001", "11"]),
        ("NumericGreaterThan", KEYS_MAX, "10", ["11", "9223372036854775807"], ["10", "x"]),
        ("NumericGreaterThanEquals", KEYS_MAX, "-2", ["-2", "0"], ["-3"]),
        ("DateEquals", TIME, "2026-01-02T03:04:05Z", ["2026-01-02T03:04:05Z", "2026-01-02T04:04:05+01:00"], ["2026"]),
        ("DateLessThan", TIME, "2026-01-02", ["2026-01-01T23:59:59Z"], ["2026-01-02T00:00:00Z"]),
        ("DateLessThanEquals", TIME, "1767312000", ["2026-01-02T00:00:00Z"], ["2026-01-02T00:00:01Z"]),
        ("DateGreaterThan", TIME, "2026-01-02T03:04Z", ["2026-01-02T03:05:00Z"], ["2026-01-02T03:04:00Z"]),
        ("DateGreaterThanEquals", "aws:EpochTime", "2026-01-02", ["1767312000"], ["1767311999"]),
        ("NumericLessThan", "aws:EpochTime", "1767312000", ["1767311999"], ["1767312000"]),
        ("Bool", SECURE, True, ["true"], ["false"]),
        ("Bool", SECURE, "FALSE", ["false"], ["true"]),
        ("IpAddress", ADDRESS, "192.0.2.0/24", ["192.0.2.9"], ["192.0.3.1", "2001:db8::1", "x", ""]),
        ("IpAddress", ADDRESS, ["192.0.2.9", "2001:db8::/32"], ["192.0.2.9", "2001:db8::7"], ["192.0.2.8"]),
        ("IpAddress", ADDRESS, "::ffff:192.0.2.0/120", ["192.0.2.9"], ["192.0.3.1"]),
        ("IpAddress", ADDRESS, "192.0.2.7/24", ["192.0.2.9"], ["192.0.3.1"]),
        ("ArnEquals", ARN, "arn:aws:iam::an*:root", ["arn:aws:iam::ann:root"], ["arn:aws:iam::bob:root", "ann"]),
        ("ArnLike", ARN, "arn:*:iam::*:*", ["arn:aws:iam::ann:root", "arn:aws:iam::ann:a:b"], ["arn:aws:s3::ann:root"]),
    ],
)
def test_operators(operator: str, key: str, value: Any, fits: list[str], others: list[str]) -> None:
    for text in fits:
        assert holds({operator: {key: value}}, {key: text})
    for text in others:
        assert not holds({operator: {key: value}}, {key: text})


NEGATED = [
    ("StringNotEquals", AGENT, ["curl", "aws"], "curl", "Curl"),
    ("StringNotEqualsIgnoreCase", AGENT, "Curl", "cURL", "aws"),
    ("StringNotLike", AGENT, "curl/*", "curl/1", "aws"),
    ("NumericNotEquals", KEYS_MAX, "10", "10", "x"),
    ("DateNotEquals", TIME, "2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02T00:00:01Z"),
    ("NotIpAddress", ADDRESS, ["192.0.2.0/24", "198.51.100.0/24"], "198.51.100.7", "203.0.113.1"),
    ("ArnNotEquals", ARN, "arn:aws:iam::ann:root", "arn:aws:iam::ann:root", "arn:aws:iam::bob:root"),
    ("ArnNotLike", ARN, "arn:aws:iam::a*:root", "arn:aws:iam::ann:root", "arn:aws:iam::bob:root"),
]


@pytest.mark.parametrize(("operator", "key", "value", "listed", "other"), NEGATED)
def test_negated_operators_hold_for_none_of_the_values(
    operator: str, key: str, value: Any, listed: str, other: str
) -> None:
    assert not holds({operator: {key: value}}, {key: listed})
    assert holds({operator: {key: value}}, {key: other})


POSITIVE = [
    ("StringEquals", AGENT, "curl"),
    ("StringEqualsIgnoreCase", AGENT, "curl"),
    ("StringLike", AGENT, "*"),
    ("NumericLessThan", KEYS_MAX, "10"),
    ("DateGreaterThan", TIME, "2026-01-02"),
    ("Bool", SECURE, "false"),
    ("IpAddress", ADDRESS, "0.0.0.0/0"),
    ("ArnLike", ARN, "arn:*:*:*:*:*"),
]


def test_missing_keys() -> None:
    """A positive operator does not hold, a negated one and one with IfExists do; ForAllValues holds, ForAnyValue does
    not."""
    for operator, key, value in POSITIVE:
        assert not holds({operator: {key: value}}, {})
        assert holds({f"{operator}IfExists": {key: value}}, {})
        assert holds({f"ForAllValues:{operator}": {key: value}}, {})
        assert not holds({f"ForAnyValue:{operator}": {key: value}}, {})
    for operator, key, listed, _, _ in NEGATED:
        assert holds({operator: {key: listed}}, {})
        assert holds({f"{operator}IfExists": {key: listed}}, {})
        assert holds({f"ForAllValues:{operator}": {key: listed}}, {})
        assert not holds({f"ForAnyValue:{operator}": {key: listed}}, {})


def test_if_exists_compares_a_key_that_is_there() -> None:
    assert holds({"StringLikeIfExists": {AGENT: "a*"}}, {AGENT: "aws"})
    assert not holds({"StringLikeIfExists": {AGENT: "a*"}}, {AGENT: "curl"})
    assert not holds({"StringLikeIfExists": {AGENT: "a*"}}, {AGENT: ""})


def test_null() -> None:
    assert holds({"Null": {AGENT: "true"}}, {})
    assert not holds({"Null": {AGENT: "true"}}, {AGENT: ""})
    assert holds({"Null": {AGENT: False}}, {AGENT: "aws"})
    assert not holds({"Null": {AGENT: "false"}}, {})
    assert holds({"Null": {AGENT: ["true", "false"]}}, {})
    assert holds({"Null": {TAGS: "true"}}, {}, "s3:PutObject")
    assert not holds({"Null": {TAGS: "true"}}, {TAGS: ["a"]}, "s3:PutObject")


@pytest.mark.parametrize(
    ("operator", "sent", "expected"),
    [
        ("ForAllValues:StringLike", ["a1", "b"], True),
        ("ForAllValues:StringLike", ["a1", "c"], False),
        ("ForAllValues:StringNotLike", ["c", "d"], True),
        ("ForAllValues:StringNotLike", ["c", "b"], False),
        ("ForAnyValue:StringLike", ["c", "a"], True),
        ("ForAnyValue:StringLike", ["c", "d"], False),
        ("ForAnyValue:StringNotLike", ["a", "c"], True),
        ("ForAnyValue:StringNotLike", ["a", "b"], False),
        ("ForAnyValue:StringLikeIfExists", MISSING, False),
        ("ForAllValues:StringLikeIfExists", MISSING, True),
    ],
)
def test_keys_with_several_values(operator: str, sent: list[str], expected: bool) -> None:
    assert holds({operator: {TAGS: ["a*", "b"]}}, {TAGS: sent}, "s3:PutObject") is expected


def test_all_operators_and_keys_of_a_statement_must_hold() -> None:
    condition = {"StringEquals": {AGENT: "aws", PREFIX: "a"}, "IpAddress": {ADDRESS: "192.0.2.0/24"}}
    facts = {AGENT: "aws", PREFIX: "a", ADDRESS: "192.0.2.1"}
    assert holds(condition, facts)
    for key in facts:
        assert not holds(condition, {**facts, key: "198.51.100.1"})
    assert holds({}, {})


def test_names_of_keys_ignore_case() -> None:
    assert holds({"StringEquals": {"AWS:useragent": "aws"}}, {AGENT: "aws"})
    assert find_key("S3:EXISTINGOBJECTTAG/Team") == NamedKey(KEYS["s3:existingobjecttag/"], "Team")
    for name in ("s3:ExistingObjectTag/", "s3:ExistingObjectTag", "s3:prefix/a", "aws:TagKeys", "", "/"):
        assert find_key(name) is None


def test_a_key_that_the_action_does_not_have_is_missing() -> None:
    """`s3:*` covers actions with and without it."""
    policy = read(statement({"StringEquals": {PREFIX: "a"}}))
    assert policy.verdict("ann", "s3:ListBucket", "photos", Told({PREFIX: "a"})) is Verdict.ALLOW
    assert policy.verdict("ann", "s3:GetObject", "photos/a", Told({PREFIX: "a"})) is Verdict.NOTHING
    policy = read(statement({"StringNotEquals": {TAG: "b"}}, "Deny"))
    assert policy.verdict("ann", "s3:DeleteObject", "photos/a", Told({TAG: "b"})) is Verdict.DENY


@pytest.mark.parametrize(
    ("actions", "key", "fits"),
    [
        ("s3:ListBucket", PREFIX, True),
        ("s3:ListBucketVersions", PREFIX, True),
        ("s3:GetObject", PREFIX, False),
        (["s3:ListBucket", "s3:GetObject"], PREFIX, False),
        ("s3:List*", PREFIX, True),
        ("s3:*", PREFIX, True),
        ("*", TAG, True),
        ("s3:GetObject", TAG, True),
        ("s3:PutObject", TAG, False),
        ("s3:DeleteObject", TAG, False),
        ("s3:PutObject", "s3:RequestObjectTag/a", True),
        ("s3:GetObject", "s3:x-amz-acl", False),
        ("s3:PutObject", "s3:x-amz-copy-source", True),
        ("s3:PutObject", "s3:x-amz-server-side-encryption", True),
        ("s3:GetObject", "s3:x-amz-server-side-encryption", False),
        ("s3:PutObject", "s3:x-amz-server-side-encryption-aws-kms-key-id", True),
        ("s3:PutObject", "s3:x-amz-server-side-encryption-customer-algorithm", True),
        ("s3:GetObject", "s3:x-amz-server-side-encryption-customer-algorithm", False),
        ("s3:GetObject", "s3:VersionId", False),
        ("s3:GetObjectVersion", "s3:VersionId", True),
        ("s3:GetObject", AGENT, True),
    ],
)
def test_each_action_of_a_new_policy_can_have_each_key(actions: Any, key: str, fits: bool) -> None:
    told = statement({"StringEquals": {key: "x"}}, Action=actions)
    read(told, is_new=False)
    if fits:
        read(told)
        return
    with pytest.raises(S3Error, match="Conditions do not apply") as caught:
        read(told)
    assert caught.value.code == "MalformedPolicy"


BAD: list[Any] = [
    None,
    [],
    "aws:UserAgent",
    {"StringEquals": {}},
    {"StringEquals": []},
    {"StringEquals": {AGENT: []}},
    {"StringEquals": {AGENT: None}},
    {"StringEquals": {AGENT: {"a": "b"}}},
    {"StringEquals": {AGENT: 1.5}},
    {"StringEquals": {AGENT: [["a"]]}},
    {"StringEquals": {"aws:Unknown": "a"}},
    {"StringEquals": {"aws:SourceVpc": "a"}},
    {"StringEquals": {"": "a"}},
    {"stringequals": {AGENT: "a"}},
    {"StringMatches": {AGENT: "a"}},
    {"BinaryEquals": {AGENT: "QQ=="}},
    {"StringEqualsIfExistsIfExists": {AGENT: "a"}},
    {"ForSomeValues:StringEquals": {AGENT: "a"}},
    {"ForAllValues:ForAnyValue:StringEquals": {AGENT: "a"}},
    {"ForAllValues:": {AGENT: "a"}},
    {"Null": {AGENT: "a"}},
    {"NullIfExists": {AGENT: "true"}},
    {"ForAnyValue:Null": {AGENT: "true"}},
    {"StringLike": {TAGS: "a"}},
    {"NumericEquals": {AGENT: "1"}},
    {"NumericEquals": {KEYS_MAX: "one"}},
    {"NumericEquals": {KEYS_MAX: "1" * 20}},
    {"NumericEquals": {KEYS_MAX: "NaN"}},
    {"DateEquals": {TIME: "2026"}},
    {"DateEquals": {TIME: "2026-02-30"}},
    {"DateEquals": {TIME: "2026-W01-1"}},
    {"DateEquals": {KEYS_MAX: "2026-02-03"}},
    {"Bool": {SECURE: "yes"}},
    {"Bool": {AGENT: "true"}},
    {"IpAddress": {ADDRESS: "192.0.2.0/33"}},
    {"IpAddress": {ADDRESS: "192.0.2.*"}},
    {"IpAddress": {ADDRESS: "${aws:SourceIp}"}},
    {"IpAddress": {AGENT: "192.0.2.0/24"}},
    {"ArnEquals": {ARN: "ann"}},
    {"ArnLike": {ARN: "arn:aws:*:ann:root"}},
    {"ArnEquals": {AGENT: "arn:aws:iam::ann:root"}},
    {"StringEquals": {AGENT: "${aws:nobody}"}},
    {"StringEquals": {AGENT: "${aws:username"}},
    {"StringEquals": {AGENT: "${}"}},
    {"StringEquals": {AGENT: "${${aws:username}}"}},
    {"StringEquals": {AGENT: "${aws:username, anonymous}"}},
    {"StringEquals": {AGENT: "${s3:RequestObjectTagKeys}"}},
]


@pytest.mark.parametrize("condition", BAD)
def test_what_is_not_understood_is_refused(condition: Any) -> None:
    with pytest.raises(S3Error) as caught:
        read(statement(condition), is_new=False)
    assert caught.value.code == "MalformedPolicy"


def test_a_repeated_key_is_refused() -> None:
    told = json.dumps({"Version": "2012-10-17", "Statement": statement({"StringEquals": {"aws:UserAgent": "a"}})})
    with pytest.raises(S3Error, match="MalformedPolicy"):
        policy_of(told.replace('"aws:UserAgent": "a"', '"aws:UserAgent": "a", "aws:UserAgent": "b"').encode(), "photos")


# --- variables ------------------------------------------------------------------------------------
HOME = "arn:aws:s3:::photos/home/${aws:username}/*"


def test_variables_in_resources() -> None:
    policy = read(statement({}, Action="s3:GetObject", Resource=HOME))
    facts = Told({"aws:username": "ann"})
    assert policy.verdict("ann", "s3:GetObject", "photos/home/ann/a", facts) is Verdict.ALLOW
    assert policy.verdict("ann", "s3:GetObject", "photos/home/ann", facts) is Verdict.NOTHING
    assert policy.verdict("ann", "s3:GetObject", "photos/home/bob/a", facts) is Verdict.NOTHING
    assert policy.verdict("ann", "s3:GetObject", "photos/home/${aws:username}/a", facts) is Verdict.NOTHING


@pytest.mark.parametrize("value", ["*", "a*", "?", "[a-z]", ".*", "a|b", "\\", "(", "^a$", "a+"])
def test_the_value_of_a_variable_has_no_wildcards(value: str) -> None:
    policy = read(statement({"StringLike": {PREFIX: "${aws:UserAgent}/?"}}, Action="s3:ListBucket"))
    for prefix, verdict in ((f"{value}/x", Verdict.ALLOW), ("ab/x", Verdict.NOTHING), (f"{value}/", Verdict.NOTHING)):
        assert policy.verdict("ann", "s3:ListBucket", "photos", Told({AGENT: value, PREFIX: prefix})) is verdict


@given(st.text("a*?", max_size=6), st.text("ab", max_size=3), st.text("a*?", max_size=6), st.text("ab", max_size=10))
def test_variables_between_wildcards(before: str, value: str, after: str, text: str) -> None:
    policy = read(statement({"StringLike": {AGENT: before + "${aws:Referer}" + after}}))
    facts = Told({"aws:Referer": value, AGENT: text})
    wanted = fnmatchcase(text, before + value + after)
    assert (policy.verdict("ann", "s3:ListBucket", "photos", facts) is Verdict.ALLOW) is wanted


def test_variables_in_texts_and_arns() -> None:
    assert holds({"StringEquals": {PREFIX: "home/${aws:username}"}}, {PREFIX: "home/ann", "aws:username": "ann"})
    assert not holds({"StringEquals": {PREFIX: "home/${aws:username}"}}, {PREFIX: "home/", "aws:username": "ann"})
    arn = {"ArnLike": {ARN: "arn:aws:iam::${aws:username}:ro*"}}
    assert holds(arn, {ARN: "arn:aws:iam::ann:root", "aws:username": "ann"})
    assert not holds(arn, {ARN: "arn:aws:iam::bob:root", "aws:username": "ann"})
    assert holds({"StringEquals": {PREFIX: "${aws:username, 'all of us'}"}}, {PREFIX: "all of us"})
    assert holds({"StringLike": {PREFIX: "a${*}b${?}c${$}*"}}, {PREFIX: "a*b?c$d"})
    assert not holds({"StringLike": {PREFIX: "a${*}b"}}, {PREFIX: "axb"})
    assert holds({"StringEquals": {PREFIX: ["$", "$x", "a}b"]}}, {PREFIX: "a}b"})


@pytest.mark.parametrize(
    "value", [MISSING, "x" * (VALUE_CHARS_MAX + 1), "a\0b", Unsure.UNKNOWN], ids=["missing", "long", "nul", "unknown"]
)
@pytest.mark.parametrize(
    "more",
    [
        {"Resource": "arn:aws:s3:::photos/${aws:username}/*"},
        {"Resource": ["arn:aws:s3:::photos/${aws:username}/*", "arn:aws:s3:::photos/*"]},
        {"Condition": {"StringEquals": {AGENT: ["aws", "${aws:username}"]}}},
        {"Condition": {"StringNotLike": {AGENT: "${aws:username}"}}},
    ],
)
def test_a_variable_without_a_value_denies(more: dict[str, Any], value: Any) -> None:
    facts = Told({"aws:username": value, AGENT: "aws"})
    for effect, verdict in (("Allow", Verdict.NOTHING), ("Deny", Verdict.DENY)):
        policy = read(statement({}, effect, **more))
        assert policy.verdict(None, "s3:GetObject", "photos/home/x", facts) is verdict
    elsewhere = read(statement({}, "Deny", **{**more, "Action": "s3:GetObject"}))
    assert elsewhere.verdict(None, "s3:PutObject", "photos/home/x", facts) is Verdict.NOTHING


@pytest.mark.parametrize("bucket", ["${aws:username}", "photos${aws:username}", "${s3:prefix}/a"])
def test_the_bucket_of_a_resource_is_fixed(bucket: str) -> None:
    with pytest.raises(S3Error, match="Invalid resource"):
        read(statement({}, Resource=f"arn:aws:s3:::{bucket}/*"))


@pytest.mark.parametrize("told", [{"Resource": HOME}, {"Condition": {"StringEquals": {AGENT: "${aws:username}"}}}])
def test_variables_need_the_new_version(told: dict[str, Any]) -> None:
    read(statement({}, **told))
    with pytest.raises(S3Error, match="Version 2012-10-17"):
        read(statement({}, **told), version="2008-10-17")


# --- values that are not known --------------------------------------------------------------------
@pytest.mark.parametrize("condition", [{"IpAddress": {ADDRESS: "192.0.2.0/24"}}, {"NotIpAddress": {ADDRESS: "::/0"}}])
@pytest.mark.parametrize("operator", ["", "IfExists"])
def test_an_unknown_value_never_allows(condition: dict[str, Any], operator: str) -> None:
    told = {f"{name}{operator}": tests for name, tests in condition.items()}
    for effect, verdict in (("Allow", Verdict.NOTHING), ("Deny", Verdict.DENY)):
        policy = read(statement(told, effect))
        assert policy.verdict("ann", "s3:GetObject", "photos/a", Told({ADDRESS: Unsure.UNKNOWN})) is verdict
    assert (
        read(statement({"Null": {ADDRESS: "true"}}, "Deny")).verdict(
            "ann", "s3:GetObject", "photos/a", Told({ADDRESS: Unsure.UNKNOWN})
        )
        is Verdict.DENY
    )


def test_a_value_of_the_beginning_of_an_upload_was_judged_then() -> None:
    for effect, verdict in (("Allow", Verdict.ALLOW), ("Deny", Verdict.NOTHING)):
        policy = read(statement({"StringNotEquals": {"s3:x-amz-acl": "private"}}, effect))
        facts = Told({"s3:x-amz-acl": Unsure.EARLIER})
        assert policy.verdict("ann", "s3:PutObject", "photos/a", facts) is verdict


ON_TAG = {"StringEquals": {TAG: "b"}}


@pytest.mark.parametrize(
    ("statements", "before", "with_b", "without"),
    [
        ([statement(ON_TAG)], Verdict.UNDECIDED, Verdict.ALLOW, Verdict.NOTHING),
        ([statement(ON_TAG, "Deny")], Verdict.UNDECIDED, Verdict.DENY, Verdict.NOTHING),
        ([statement(ON_TAG), statement({})], Verdict.ALLOW, Verdict.ALLOW, Verdict.ALLOW),
        ([statement({}), statement(ON_TAG)], Verdict.ALLOW, Verdict.ALLOW, Verdict.ALLOW),
        ([statement(ON_TAG), statement({}, "Deny")], Verdict.DENY, Verdict.DENY, Verdict.DENY),
        ([statement({}), statement(ON_TAG, "Deny")], Verdict.UNDECIDED, Verdict.DENY, Verdict.ALLOW),
        ([statement({**ON_TAG, "Bool": {SECURE: "true"}})], Verdict.NOTHING, Verdict.NOTHING, Verdict.NOTHING),
        ([statement(ON_TAG, Principal={"AWS": "bob"})], Verdict.NOTHING, Verdict.NOTHING, Verdict.NOTHING),
        ([statement({"Null": {TAG: "true"}}, "Deny")], Verdict.UNDECIDED, Verdict.NOTHING, Verdict.DENY),
        (
            [statement({}, Resource="arn:aws:s3:::photos/${s3:ExistingObjectTag/a}")],
            Verdict.UNDECIDED,
            Verdict.ALLOW,
            Verdict.NOTHING,
        ),
    ],
)
def test_tags_that_are_not_known_yet(
    statements: list[dict[str, Any]], before: Verdict, with_b: Verdict, without: Verdict
) -> None:
    policy = read(*statements)
    for tag, verdict in ((Unsure.LATER, before), ("b", with_b), (MISSING, without)):
        assert policy.verdict("ann", "s3:GetObject", "photos/b", Told({TAG: tag})) is verdict


# --- public policies ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("condition", "is_public"),
    [
        ({}, True),
        ({"IpAddress": {ADDRESS: "192.0.2.0/24"}}, False),
        ({"IpAddress": {ADDRESS: ["192.0.2.0/24", "10.0.0.0/8", "2001:db8::/32"]}}, False),
        ({"IpAddress": {ADDRESS: ["192.0.2.0/24", "0.0.0.0/1"]}}, True),
        ({"IpAddress": {ADDRESS: "2001::/16"}}, True),
        ({"IpAddressIfExists": {ADDRESS: "192.0.2.0/24"}}, True),
        ({"ForAllValues:IpAddress": {ADDRESS: "192.0.2.0/24"}}, True),
        ({"NotIpAddress": {ADDRESS: "192.0.2.0/24"}}, True),
        ({"StringLike": {ADDRESS: "192.*"}}, True),
        ({"StringEquals": {"aws:username": "ann"}}, False),
        ({"StringLike": {"aws:username": "a*"}}, True),
        ({"StringEquals": {"aws:username": "${aws:Referer}"}}, True),
        ({"ArnLike": {ARN: "arn:aws:iam::ann:root"}}, False),
        ({"ArnEquals": {ARN: "arn:aws:iam::*:root"}}, True),
        ({"StringEquals": {"aws:Referer": "http://example.com/"}}, True),
        ({"Bool": {SECURE: "true"}}, True),
        ({"Null": {"aws:username": "false"}}, True),
        ({"Bool": {SECURE: "true"}, "IpAddress": {ADDRESS: "192.0.2.0/24"}}, False),
    ],
)
def test_a_statement_for_known_senders_is_not_public(condition: dict[str, Any], is_public: bool) -> None:
    assert read(statement(condition)).is_public is is_public
    assert read(statement(condition), statement({})).is_public
    assert not read(statement(condition, "Deny")).is_public


# --- hostile input --------------------------------------------------------------------------------
def evaluated_in(policy: Policy, facts: dict[str, Any]) -> float:
    began_s = process_time()
    policy.verdict("ann", "s3:ListBucket", "photos", Told(facts))
    return process_time() - began_s


def test_no_condition_takes_long() -> None:
    stars = "a*" * 1000
    policy = read(statement({"StringLike": {AGENT: [f"*{stars}b{n}" for n in range(9)]}}))
    assert evaluated_in(policy, {AGENT: "a" * TEXT_CHARS_MAX}) < 2
    variables = [f"*${{aws:Referer}}*{n}" for n in range(VARIABLES_MAX)]
    policy = read(statement({"StringLike": {AGENT: variables}}))
    facts = {"aws:Referer": "a" * (VALUE_CHARS_MAX - 1) + "b", AGENT: "a" * TEXT_CHARS_MAX}
    assert evaluated_in(policy, facts) < 2
    one = "*${aws:Referer}" * VARIABLES_MAX + "c"
    assert evaluated_in(read(statement({"StringLike": {AGENT: one}})), {**facts, "aws:Referer": "a"}) < 2
    question = "?" * 4000 + "*" + "?" * 50 + "b*"
    policy = read(statement({"StringLike": {AGENT: [question, "*" + question]}}))
    assert evaluated_in(policy, {AGENT: "a" * TEXT_CHARS_MAX}) < 2


def test_a_text_that_is_too_long_to_compare_never_allows() -> None:
    facts = Told({AGENT: "a" * (TEXT_CHARS_MAX + 1)})
    for operator in ("StringLike", "StringNotLike", "ForAllValues:StringLike", "ForAnyValue:StringNotEquals"):
        for effect, verdict in (("Allow", Verdict.NOTHING), ("Deny", Verdict.DENY)):
            policy = read(statement({operator: {AGENT: "a*"}}, effect))
            assert policy.verdict("ann", "s3:ListBucket", "photos", facts) is verdict


def test_limits_of_policies() -> None:
    read(statement({"StringLike": {AGENT: ["${aws:Referer}"] * VARIABLES_MAX}}))
    with pytest.raises(S3Error, match=f"more than {VARIABLES_MAX} variables"):
        read(statement({"StringLike": {AGENT: ["${aws:Referer}"] * (VARIABLES_MAX + 1)}}))
    for nested in (b'{"a":' * 4000, b"[" * (POLICY_BYTES_MAX - 100)):
        with pytest.raises(S3Error, match="MalformedPolicy"):
            policy_of(b'{"Statement": {"Condition": ' + nested, "photos")
    began_s = process_time()
    read(statement({"StringLike": {AGENT: [f"{n}*?*{n}" for n in range(1000)]}}))
    read(*[statement({"IpAddress": {ADDRESS: "192.0.2.0/24"}}, Action="s3:*", Resource="arn:aws:s3:::*")] * 90)
    assert process_time() - began_s < 5


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["${aws:username}", "arn:"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["StringLike", "Null", "IpAddress", "ForAnyValue:ArnLike", AGENT, ADDRESS, ARN, TAGS, ""]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=5,
    )
)
def test_any_condition_is_read_or_refused(condition: Any) -> None:
    try:
        policy = read(statement(condition), is_new=False)
    except S3Error as error:
        code = error.code
    else:
        code = "MalformedPolicy"
        for facts in ({}, {AGENT: "a", ADDRESS: "192.0.2.1", ARN: "arn:aws:iam::a:root", TAGS: ["a"]}):
            assert isinstance(policy.verdict("ann", "s3:PutObject", "photos/a", Told(facts)), Verdict)
    assert code == "MalformedPolicy"


SENT = st.none() | st.sampled_from(["a", "b", "ab", "*"])


VALUES = st.lists(st.sampled_from(["a", "b", "*", "a*", "?"]), min_size=1, max_size=3)


@given(VALUES, SENT, st.booleans(), st.booleans())
def test_texts_compare_as_the_guide_says(values: list[str], sent: str | None, like: bool, if_exists: bool) -> None:
    found = sent is not None and any(fnmatchcase(sent, one) if like else sent == one for one in values)
    name, more = "Like" if like else "Equals", "IfExists" * if_exists
    facts = {} if sent is None else {AGENT: sent}
    assert holds({f"String{name}{more}": {AGENT: values}}, facts) is (found or (sent is None and if_exists))
    assert holds({f"StringNot{name}{more}": {AGENT: values}}, facts) is (sent is None or not found)
