"""When objects expire by the rules of their bucket."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import Corrupt
from nos_ec.core.expiry import (
    DAY_MS,
    RULES_MAX,
    TAGS_ATTRIBUTE,
    BucketRules,
    Expiry,
    ExpiryRule,
    decode_rules,
    encode_rules,
    tags_of,
)

NAMES = st.text("ab/é", max_size=5)
TAGS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
RULES = st.builds(
    ExpiryRule,
    st.text(max_size=3),
    st.booleans(),
    NAMES,
    TAGS.map(lambda tags: tuple(tags.items())),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(0, 9).map(lambda day: day * DAY_MS),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 3),
    st.none() | st.booleans(),
)


def naive(rules: list[ExpiryRule], name: str, size: int, tags: dict[str, str], born_ms: int) -> Expiry | None:
    """What the user guide says, rule by rule."""
    found = []
    for rule in rules:
        fits = rule.enabled and name.startswith(rule.prefix) and all(tags.get(k) == v for k, v in rule.tags)
        fits = fits and (rule.size_above is None or size > rule.size_above)
        fits = fits and (rule.size_below is None or size < rule.size_below)
        if fits and rule.date_ms is not None:
            found.append(Expiry(rule.date_ms, rule.rule_id))
        elif fits and rule.days is not None:
            due_ms = born_ms + rule.days * DAY_MS
            while due_ms % DAY_MS:
                due_ms += DAY_MS - due_ms % DAY_MS
            found.append(Expiry(due_ms, rule.rule_id))
    return min(found, default=None)


@given(st.lists(RULES, max_size=6), NAMES, st.integers(0, 20), TAGS, st.integers(0, 9 * DAY_MS))
def test_the_first_rule_that_is_due_decides(
    rules: list[ExpiryRule], name: str, size: int, tags: dict[str, str], born_ms: int
) -> None:
    assert BucketRules(rules).expiry(name, size, lambda: tags, born_ms) == naive(rules, name, size, tags, born_ms)


@given(
    st.lists(RULES, max_size=6),
    NAMES,
    st.integers(0, 20),
    TAGS,
    st.integers(0, 9 * DAY_MS),
    st.integers(0, 4),
    st.integers(0, 15 * DAY_MS),
)
def test_a_noncurrent_version_expires_by_any_rule(
    rules: list[ExpiryRule], name: str, size: int, tags: dict[str, str], since_ms: int, newer: int, now_ms: int
) -> None:
    def is_due(rule: ExpiryRule) -> bool:
        """As if it had been PUT when it became noncurrent, if enough others are newer."""
        like = [replace(rule, days=rule.noncurrent_days, date_ms=None)]
        expiry = None if rule.noncurrent_days is None else naive(like, name, size, tags, since_ms)
        return expiry is not None and expiry.due_ms <= now_ms and newer >= (rule.newer_versions or 0)

    found = BucketRules(rules).overdue(name, size, lambda: tags, since_ms, newer, now_ms)
    assert (found is not None) == any(map(is_due, rules))
    if found is not None:
        assert since_ms <= found.since_ms
        assert newer >= found.newer
        assert any(is_due(rule) and rule.rule_id == found.rule_id for rule in rules)
        again = BucketRules([rule for rule in rules if rule.rule_id == found.rule_id])
        assert again.overdue(name, size, lambda: tags, found.since_ms, found.newer, now_ms) is not None, "the limit"


@given(st.lists(RULES, max_size=6), NAMES, st.integers(0, 9 * DAY_MS))
def test_a_marker_that_is_alone_expires_like_an_empty_object_without_tags(
    rules: list[ExpiryRule], name: str, born_ms: int
) -> None:
    due = naive(rules, name, 0, {}, born_ms)
    cleaning = naive([replace(rule, days=None, date_ms=born_ms) for rule in rules if rule.markers], name, 0, {}, 0)
    found = BucketRules(rules).lone_marker_expiry(name, born_ms)
    assert found == min((one for one in (due, cleaning) if one is not None), default=None)


@given(st.lists(RULES, max_size=6), st.lists(NAMES, max_size=20))
def test_every_name_that_may_expire_is_walked_once(rules: list[ExpiryRule], names: list[str]) -> None:
    walked = BucketRules(rules).object_prefixes(10 * DAY_MS)
    assert walked == sorted(walked, key=str.encode)
    with_versions = BucketRules(rules).version_prefixes(10 * DAY_MS)
    for name in names:
        mine = [rule for rule in rules if rule.enabled and name.startswith(rule.prefix)]
        wanted = any(rule.expires_objects for rule in mine)
        assert sum(name.startswith(prefix) for prefix in walked) == wanted
        wanted |= any(rule.noncurrent_days is not None or rule.markers for rule in mine)
        assert sum(name.startswith(prefix) for prefix in with_versions) == wanted


def test_nothing_is_walked_before_it_can_expire() -> None:
    rules = [
        ExpiryRule("date", prefix="a", date_ms=5 * DAY_MS),
        ExpiryRule("off", enabled=False, prefix="b", days=1),
        ExpiryRule("abort", prefix="c", abort_days=1),
    ]
    assert BucketRules(rules).object_prefixes(5 * DAY_MS - 1) == []
    assert BucketRules(rules).object_prefixes(5 * DAY_MS) == ["a"]
    assert BucketRules(rules).upload_prefixes() == ["c"]


def test_days_are_rounded_up_to_midnight() -> None:
    rules = BucketRules([ExpiryRule("r", days=3, abort_days=1)])
    assert rules.expiry("n", 1, dict, 0) == (3 * DAY_MS, "r")
    assert rules.expiry("n", 1, dict, 1) == (4 * DAY_MS, "r")
    assert rules.expiry("n", 1, dict, DAY_MS) == (4 * DAY_MS, "r")
    assert rules.upload_expiry("n", DAY_MS // 2) == (2 * DAY_MS, "r")
    assert BucketRules([ExpiryRule("r", days=3)], 1000).expiry("n", 1, dict, 1) == (4000, "r")


@given(st.lists(RULES, max_size=6))
def test_rules_are_stored(rules: list[ExpiryRule]) -> None:
    assert decode_rules(encode_rules(rules)) == rules


def test_many_rules_fit_into_a_document() -> None:
    rules = [ExpiryRule(f"rule-{n}", prefix=f"some/folder/{n:05}/", days=n % 50 + 1) for n in range(RULES_MAX)]
    assert len(encode_rules(rules)) < 32 << 10


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        encode_rules([])[:-6],
        zlib.compress(b"[]"),
        zlib.compress(b'{"version":2,"rules":[]}'),
        zlib.compress(b'{"version":1,"rules":[{"prefix":"a"}]}'),
        zlib.compress(b'{"version":1,"rules":[{"rule_id":"a","days":"1"}]}'),
        zlib.compress(b'{"version":1,"rules":[{"rule_id":"a","other":1}]}'),
        zlib.compress(b'{"version":1,"rules":[{"rule_id":"a","days":true}]}'),
        zlib.compress(json.dumps({"version": 1, "rules": [], "x": "0" * (5 << 20)}).encode()),
    ],
)
def test_damaged_rules_are_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_rules(body)


def test_tags_that_cannot_be_read_match_no_rule() -> None:
    tags = {"a": "1", "é": ""}
    assert tags_of(encode_attributes({TAGS_ATTRIBUTE: urlencode(tags)})) == tags
    assert tags_of(b"") == {}
    assert tags_of(b"\xff") is None
    rules = BucketRules([ExpiryRule("r", tags=(("a", "1"),), days=1)])
    assert rules.expiry("n", 1, lambda: tags, 0) is not None
    assert rules.expiry("n", 1, lambda: None, 0) is None
