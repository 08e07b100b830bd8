"""The Condition element of a statement: operators, and the values that they compare.

Sources: "IAM JSON policy elements: Condition operators" of the IAM user guide (types, missing keys, IfExists, Null);
"Multivalued context keys" there (ForAllValues, ForAnyValue). What the guide leaves open is refused when a policy is
parsed: an operator that does not fit the type of its key, a value that can never match, and a key with several values
without ForAllValues or ForAnyValue. There is no Binary operator, because no key is binary.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from nos_ec.s3.conditions.keys import KeyType, NamedKey, find_key
from nos_ec.s3.conditions.patterns import (
    BadVariable,
    Evaluation,
    Patterns,
    Pieces,
    Settled,
    filled,
    fixed_text,
    pieces_of,
    split,
)

TEXT_CHARS_MAX = 4096
"""A longer value of a request is not compared: an Allow does not match, and a Deny does. Matching a pattern takes the
length of the pattern times that of the value."""
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,9})?")
_SECONDS = re.compile(r"[0-9]{9,11}")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_ARN_PARTS = 6
_Network = IPv4Network | IPv6Network


class BadCondition(Exception):
    """A condition that cannot be used. The message says why."""


class Every(Enum):
    """Which values of a key with several values a condition must hold for."""

    ALL = "ForAllValues"
    ANY = "ForAnyValue"


Match = Callable[[str, Evaluation], bool]
"""Returns whether a value of a request matches one of the values in the policy. Raises Settled."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One operator with one key. `is_fixed`: it holds only for requests of known senders or addresses, so that a
    statement with it is not public."""

    named: NamedKey
    match: Match
    negated: bool = False
    if_exists: bool = False
    every: Every | None = None
    is_fixed: bool = False

    def holds(self, evaluation: Evaluation) -> bool:
        """Return whether the condition holds. Raises Settled."""
        values = evaluation.values(self.named)
        if any(len(value) > TEXT_CHARS_MAX for value in values):
            raise Settled(not evaluation.allows)
        if self.every is Every.ALL:
            return all(self._holds_for(value, evaluation) for value in values)
        if self.every is Every.ANY:
            return any(self._holds_for(value, evaluation) for value in values)
        if not values:
            return self.if_exists or self.negated
        return self._holds_for(values[0], evaluation)

    def _holds_for(self, value: str, evaluation: Evaluation) -> bool:
        return self.match(value, evaluation) is not self.negated


@dataclass(frozen=True, slots=True)
class NullCondition:
    """The operator Null: the key must be missing, or must not be, or, for both values, may be either."""

    named: NamedKey
    missing: frozenset[bool]
    is_fixed: bool = False

    def holds(self, evaluation: Evaluation) -> bool:
        """Return whether the condition holds. Raises Settled."""
        return (not evaluation.values(self.named)) in self.missing


AnyCondition = Condition | NullCondition


def conditions_of(given: Any, *, has_variables: bool) -> list[AnyCondition]:
    """Parse the Condition element of a statement. All conditions must hold. Raises BadCondition."""
    if not isinstance(given, dict):
        raise BadCondition("Condition is not an object")
    found: list[AnyCondition] = []
    for name, tests in given.items():
        if not isinstance(tests, dict) or not tests:
            raise BadCondition(f"the operator {name[:100]} needs an object with keys and values")
        for key, values in tests.items():
            try:
                found.append(_condition(name, key, _texts(values), has_variables=has_variables))
            except BadVariable as error:
                raise BadCondition(f"{key[:100]}: {error}") from None
    return found


@dataclass(frozen=True, slots=True)
class _Operator:
    """`matcher` makes the function that compares. `types` are those of the keys for which it is meaningful."""

    matcher: Callable[[Sequence[Pieces]], Match]
    types: frozenset[KeyType]
    negated: bool = False


def _condition(name: str, key: str, values: list[str], *, has_variables: bool) -> AnyCondition:
    qualifier, colon, base = name.rpartition(":")
    every = next((one for one in Every if colon and one.value == qualifier), None)
    if colon and every is None:
        raise _no_operator(name)
    named = find_key(key)
    if named is None:
        raise BadCondition(f"there is no condition key {key[:100]}")
    if base == "Null" and every is None:
        wanted = [value.lower() for value in values]
        if not set(wanted) <= {"true", "false"}:
            raise BadCondition("the value of Null is true or false")
        return NullCondition(named, frozenset(value == "true" for value in wanted))
    if_exists = base.endswith("IfExists")
    found = _OPERATORS.get(base.removesuffix("IfExists"))
    if found is None:
        raise _no_operator(name)
    if named.key.type not in found.types:
        raise BadCondition(f"the operator {name} does not fit the key {named.key.name}")
    if named.key.is_list and every is None:
        raise BadCondition(f"{named.key.name} may have several values: use ForAllValues or ForAnyValue")
    pieces = [pieces_of(value, has_variables=has_variables) for value in values]
    match = found.matcher(pieces)
    is_fixed = not (found.negated or if_exists or every is Every.ALL) and _is_fixed(named, base, pieces)
    return Condition(named, match, found.negated, if_exists, every, is_fixed)


def _no_operator(name: str) -> BadCondition:
    return BadCondition(f"there is no condition operator {name[:100]}")


def _texts(given: Any) -> list[str]:
    """Return the values of a condition, which may be booleans and whole numbers in JSON."""
    found = []
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, bool):
            found.append(str(one).lower())
        elif isinstance(one, str | int):
            found.append(str(one))
        else:
            raise BadCondition("a value of a condition is not a text, a whole number or a boolean")
    if not found:
        raise BadCondition("a condition has no values")
    return found


# --- comparisons ----------------------------------------------------------------------------------
def _equal(fold: Callable[[str], str]) -> Callable[[Sequence[Pieces]], Match]:
    def matcher(alternatives: Sequence[Pieces]) -> Match:
        fixed = {fold(text) for pieces in alternatives if (text := fixed_text(pieces)) is not None}
        others = [pieces for pieces in alternatives if fixed_text(pieces) is None]

        def match(value: str, evaluation: Evaluation) -> bool:
            texts = [filled(pieces, evaluation) for pieces in others]
            return fold(value) in fixed or fold(value) in (fold(text) for text in texts)

        return match

    return matcher


def _like(alternatives: Sequence[Pieces]) -> Match:
    return Patterns(alternatives).match


def _arn(alternatives: Sequence[Pieces]) -> Match:
    """Compare the six parts of an ARN one by one, so that a wildcard does not match a colon before the sixth part."""
    listed = []
    for pieces in alternatives:
        parts = split(pieces, ":", _ARN_PARTS - 1)
        if len(parts) != _ARN_PARTS or parts[0] != ["arn"]:
            raise BadCondition("a value is not an ARN")
        listed.append([Patterns([part]) for part in parts])

    def match(value: str, evaluation: Evaluation) -> bool:
        parts = value.split(":", _ARN_PARTS - 1)
        found = [
            [pattern.match(part, evaluation) for pattern, part in zip(patterns, parts, strict=False)]
            for patterns in listed
        ]
        return len(parts) == _ARN_PARTS and any(all(of_parts) for of_parts in found)

    return match


def _of_values(parse: Callable[[str], Any], compare: Callable[[Any, Any], bool]) -> Callable[[Sequence[Pieces]], Match]:
    """Return a matcher for values without variables. A value of a request that `parse` refuses matches nothing."""

    def matcher(alternatives: Sequence[Pieces]) -> Match:
        wanted = [_parsed(parse, pieces) for pieces in alternatives]

        def match(value: str, _: Evaluation) -> bool:
            try:
                found = parse(value)
            except ValueError:
                return False
            return any(compare(found, one) for one in wanted)

        return match

    return matcher


def _parsed(parse: Callable[[str], Any], pieces: Pieces) -> Any:
    text = fixed_text(pieces)
    if text is None:
        raise BadCondition("only the operators of texts and ARNs know variables")
    try:
        return parse(text)
    except ValueError:
        raise BadCondition(f"the value {text[:100]} does not fit the operator") from None


def _number(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


def _date(text: str) -> datetime:
    """Parse a date of ISO 8601, in UTC unless it names a zone, or seconds since 1970."""
    if _SECONDS.fullmatch(text):
        return datetime.fromtimestamp(int(text), UTC)
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _network(text: str) -> _Network:
    """Parse an address or a network. An IPv4-mapped IPv6 address becomes IPv4, as in the addresses of clients."""
    found = ip_network(text, strict=False)
    mapped = found.network_address.ipv4_mapped if isinstance(found.network_address, IPv6Address) else None
    return found if mapped is None or found.prefixlen < 96 else IPv4Network((mapped, found.prefixlen - 96))


def _contains(address: _Network, network: _Network) -> bool:
    return address.version == network.version and ip_address(address.network_address) in network


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "LessThan": operator.lt,
    "LessThanEquals": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanEquals": operator.ge,
}


_NUMBERS = frozenset([KeyType.NUMBER, KeyType.SECONDS])
_DATES = frozenset([KeyType.DATE, KeyType.SECONDS])


def _operators() -> Iterable[tuple[str, _Operator]]:
    for negated in (False, True):
        no = "Not" * negated
        yield f"String{no}Equals", _Operator(_equal(str), frozenset(KeyType), negated)
        yield f"String{no}EqualsIgnoreCase", _Operator(_equal(str.casefold), frozenset(KeyType), negated)
        yield f"String{no}Like", _Operator(_like, frozenset(KeyType), negated)
        yield f"Arn{no}Equals", _Operator(_arn, frozenset([KeyType.ARN]), negated)
        yield f"Arn{no}Like", _Operator(_arn, frozenset([KeyType.ARN]), negated)
        yield f"{no}IpAddress", _Operator(_of_values(_network, _contains), frozenset([KeyType.ADDRESS]), negated)
        yield f"Numeric{no}Equals", _Operator(_of_values(_number, operator.eq), _NUMBERS, negated)
        yield f"Date{no}Equals", _Operator(_of_values(_date, operator.eq), _DATES, negated)
    for name, compare in _COMPARISONS.items():
        yield f"Numeric{name}", _Operator(_of_values(_number, compare), _NUMBERS)
        yield f"Date{name}", _Operator(_of_values(_date, compare), _DATES)
    yield "Bool", _Operator(_of_values(_bool, operator.eq), frozenset([KeyType.BOOL]))


_OPERATORS = dict(_operators())


# --- public policies ------------------------------------------------------------------------------
_OF_SENDERS = frozenset(["aws:PrincipalAccount", "aws:PrincipalArn", "aws:userid", "aws:username"])


def _is_fixed(named: NamedKey, base: str, alternatives: Sequence[Pieces]) -> bool:
    """Return whether each value names certain senders or addresses. Source: "The meaning of public" of the S3 user
    guide: values without wildcards or variables, and no networks that are larger than /8 for IPv4 or /32 for IPv6."""
    texts = [text for pieces in alternatives if (text := fixed_text(pieces)) is not None]
    if len(texts) < len(alternatives):
        return False
    if named.key.name == "aws:SourceIp":
        return base == "IpAddress" and all(_is_small(_network(text)) for text in texts)
    if named.key.name not in _OF_SENDERS:
        return False
    return not (("Like" in base or base.startswith("Arn")) and any(set(text) & set("*?") for text in texts))


def _is_small(network: _Network) -> bool:
    return network.prefixlen >= (8 if network.version == 4 else 32)
