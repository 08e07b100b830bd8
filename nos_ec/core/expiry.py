"""When the objects and uploads of a bucket expire: its lifecycle rules, and how they are stored.

An object with several rules expires by the first that is due. Days are counted from its PUT and rounded up to the next
midnight UTC, so that one walk a day finds all that has expired. Days of a noncurrent version are counted from when its
successor was created, which may be a delete marker. Source: "Lifecycle configuration elements" of the S3 user guide. A
day has `day_ms` milliseconds, so that tests need not wait for days.

Rules are stored as JSON, compressed with zlib, because the rules of a bucket are much alike.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from nos_ec.core.attributes import decode_attributes
from nos_ec.core.errors import Corrupt

DAY_MS = 86_400_000
RULES_MAX = 1_000
NEWER_MAX = 100
"""How many noncurrent versions a rule can keep. Source: NoncurrentVersionExpiration of the S3 API reference."""
TAGS_ATTRIBUTE = "s3:tags"
"""The attribute with the tags of an object, encoded as a query string."""
_T = TypeVar("_T")
_VERSION = 1
_STORED_BYTES_MAX = 4 << 20
"""Limits the JSON. 1,000 rules with the longest prefixes and tags have less."""

Tags = Callable[[], Mapping[str, str] | None]
"""Returns the tags of an object. If they cannot be read, it returns None, and no rule with tags applies."""


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """One rule. It applies to objects whose name begins with `prefix`, that have all of `tags`, and whose size is more
    than `size_above` and less than `size_below`, in bytes.

    `days` and `date_ms` are when they expire; at most one is set. Unfinished uploads are aborted after `abort_days`.
    Noncurrent versions are deleted after `noncurrent_days`, except the `newer_versions` newest ones. `markers`: remove
    delete markers without other versions of their key; False means the same as None. `form` is how a client wrote the
    conditions, so that it gets them back in the same form; the gateway knows the words.
    """

    rule_id: str
    enabled: bool = True
    prefix: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    size_above: int | None = None
    size_below: int | None = None
    days: int | None = None
    date_ms: int | None = None
    abort_days: int | None = None
    noncurrent_days: int | None = None
    newer_versions: int | None = None
    markers: bool | None = None
    form: str = "filter"

    @property
    def expires_objects(self) -> bool:
        """Return whether the rule expires objects."""
        return self.enabled and (self.days is not None or self.date_ms is not None)


class Expiry(NamedTuple):
    """When something expires, and the id of the rule that decides it."""

    due_ms: int
    rule_id: str


class Overdue(NamedTuple):
    """Why a noncurrent version has expired: its successor was created at `since_ms` at the latest, and at least `newer`
    noncurrent versions are newer than it."""

    since_ms: int
    newer: int
    rule_id: str


class BucketRules:
    """The enabled rules of a bucket. A look-up costs a step for each length of a prefix, and for each rule with a
    matching one. Safe to call from several threads."""

    def __init__(self, rules: Iterable[ExpiryRule], day_ms: int = DAY_MS) -> None:
        self._day_ms = day_ms
        enabled = [rule for rule in rules if rule.enabled]
        self._expiring = _Prefixes(rule for rule in enabled if rule.expires_objects)
        self._aborting = _Prefixes(rule for rule in enabled if rule.abort_days is not None)
        self._retiring = _Prefixes(rule for rule in enabled if rule.noncurrent_days is not None)
        self._cleaning = _Prefixes(rule for rule in enabled if rule.markers)

    def expiry(self, name: str, size: int, tags: Tags, born_ms: int) -> Expiry | None:
        """Return when an object expires that was PUT at `born_ms`, or None for never."""
        found = [
            Expiry(self._due_ms(rule, born_ms), rule.rule_id)
            for rule in self._expiring.matching(name)
            if _applies(rule, size, tags)
        ]
        return min(found, default=None)

    def overdue(self, name: str, size: int, tags: Tags, since_ms: int, newer: int, now_ms: int) -> Overdue | None:
        """Return why a version has expired that is noncurrent since `since_ms`, and older than `newer` other noncurrent
        ones; None if it has not. `size` is in bytes, 0 for a delete marker."""
        midnight_ms = now_ms // self._day_ms * self._day_ms
        for rule in self._retiring.matching(name):
            latest_ms, kept = midnight_ms - (rule.noncurrent_days or 0) * self._day_ms, rule.newer_versions or 0
            if since_ms <= latest_ms and newer >= kept and _applies(rule, size, tags):
                return Overdue(latest_ms, kept, rule.rule_id)
        return None

    def lone_marker_expiry(self, name: str, born_ms: int) -> Expiry | None:
        """Return when a delete marker expires that was made at `born_ms` and is the only version of its key; None for
        never. It has no bytes and no tags, so no rule with tags applies to it."""
        found = [
            Expiry(self._due_ms(rule, born_ms), rule.rule_id)
            for rule in self._expiring.matching(name)
            if _applies(rule, 0, dict)
        ]
        found += [Expiry(born_ms, rule.rule_id) for rule in self._cleaning.matching(name) if _applies(rule, 0, dict)]
        return min(found, default=None)

    def upload_expiry(self, name: str, begun_ms: int) -> Expiry | None:
        """Return when an upload that began at `begun_ms` is aborted, and by which rule; None for never."""
        found = [
            Expiry(_midnight(begun_ms + (rule.abort_days or 0) * self._day_ms, self._day_ms), rule.rule_id)
            for rule in self._aborting.matching(name)
        ]
        return min(found, default=None)

    def object_prefixes(self, now_ms: int) -> list[str]:
        """Return the prefixes under which objects can have expired, in the order of their UTF-8 bytes. No prefix begins
        with another one, so that each name is visited once."""
        return _outermost(self._expiring_now(now_ms))

    def version_prefixes(self, now_ms: int) -> list[str]:
        """Return the prefixes under which objects or versions can have expired, likewise."""
        return _outermost([*self._expiring_now(now_ms), *self._retiring.rules, *self._cleaning.rules])

    def _expiring_now(self, now_ms: int) -> Iterator[str]:
        for prefix, rules in self._expiring.rules.items():
            if any(rule.date_ms is None or rule.date_ms <= now_ms for rule in rules):
                yield prefix

    def upload_prefixes(self) -> list[str]:
        """Return the prefixes under which uploads can have expired, likewise."""
        return _outermost(self._aborting.rules)

    def _due_ms(self, rule: ExpiryRule, born_ms: int) -> int:
        if rule.date_ms is not None:
            return rule.date_ms
        assert rule.days is not None
        return _midnight(born_ms + rule.days * self._day_ms, self._day_ms)


def tags_of(attributes: bytes) -> Mapping[str, str] | None:
    """Return the tags among the attributes of an object, or None if they are damaged."""
    try:
        return dict(parse_qsl(decode_attributes(attributes).get(TAGS_ATTRIBUTE, ""), keep_blank_values=True))
    except (Corrupt, ValueError):
        return None


def encode_rules(rules: Sequence[ExpiryRule], transition_minimum: str | None = None) -> bytes:
    """Return the stored form of the rules of a bucket. `transition_minimum` is a word that is kept for clients; no rule
    depends on it."""
    stored = [{name: value for name, value in asdict(rule).items() if value is not None} for rule in rules]
    data: dict[str, Any] = {"version": _VERSION, "rules": stored}
    if transition_minimum is not None:
        data["transition_minimum"] = transition_minimum
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)


def decode_rules(body: bytes) -> list[ExpiryRule]:
    """Return the rules that `encode_rules` encoded. Raise Corrupt for any other bytes."""
    return _decoded(body, lambda data: [_rule(one) for one in data["rules"]])


def transition_minimum_of(body: bytes) -> str | None:
    """Return the word that was passed to `encode_rules` with these rules. Raise Corrupt."""
    return _decoded(body, lambda data: str(data["transition_minimum"]) if "transition_minimum" in data else None)


def _decoded(body: bytes, read: Callable[[dict[str, Any]], _T]) -> _T:
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(body, _STORED_BYTES_MAX)
        data: dict[str, Any] = json.loads(text)
        if data["version"] != _VERSION:
            raise Corrupt(f"lifecycle rules of version {data['version']!r}; this release knows {_VERSION}")
        return read(data)
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Corrupt("lifecycle rules that cannot be read") from None


_TYPES = {
    "rule_id": str,
    "enabled": bool,
    "prefix": str,
    "size_above": int,
    "size_below": int,
    "days": int,
    "date_ms": int,
    "abort_days": int,
    "noncurrent_days": int,
    "newer_versions": int,
    "markers": bool,
    "form": str,
}
assert {one.name for one in fields(ExpiryRule)} == {*_TYPES, "tags"}


def _rule(data: dict[str, Any]) -> ExpiryRule:
    tags = tuple((str(key), str(value)) for key, value in data.pop("tags", ()))
    if any(type(value) is not _TYPES[name] for name, value in data.items()):
        raise ValueError
    return ExpiryRule(**data, tags=tags)


def _midnight(time_ms: int, day_ms: int) -> int:
    """Return the next midnight, or the time itself if it is one."""
    return -(-time_ms // day_ms) * day_ms


class _Prefixes:
    """Rules by their prefix."""

    def __init__(self, rules: Iterable[ExpiryRule]) -> None:
        self.rules: dict[str, list[ExpiryRule]] = {}
        for rule in rules:
            self.rules.setdefault(rule.prefix, []).append(rule)
        self._lengths = sorted(set(map(len, self.rules)))

    def matching(self, name: str) -> Iterable[ExpiryRule]:
        """Yield the rules whose prefix the name begins with."""
        for length in self._lengths:
            if length > len(name):
                break
            yield from self.rules.get(name[:length], ())


def _applies(rule: ExpiryRule, size: int, tags: Tags) -> bool:
    if rule.size_above is not None and size <= rule.size_above:
        return False
    if rule.size_below is not None and size >= rule.size_below:
        return False
    if not rule.tags:
        return True
    has = tags()
    return has is not None and all(has.get(key) == value for key, value in rule.tags)


def _outermost(prefixes: Iterable[str]) -> list[str]:
    found: list[str] = []
    for prefix in sorted(prefixes, key=lambda one: one.encode("utf-8", "surrogatepass")):
        if not found or not prefix.startswith(found[-1]):
            found.append(prefix)
    return found
