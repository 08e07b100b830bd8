"""Converts the XML of lifecycle configurations to the rules of core/expiry.py, and back.

Sources: PutBucketLifecycleConfiguration and PutBucketLifecycle of the S3 API reference; "Lifecycle configuration
elements" and "Lifecycle configuration constraints" of the S3 user guide. Rules that S3 allows and the store does not
support are refused with 501, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from nos_ec.core.expiry import DAY_MS, NEWER_MAX, RULES_MAX, ExpiryRule
from nos_ec.s3.answers import DECLARATION, NAMESPACE, escape, time_of
from nos_ec.s3.documents import TAG_KEY_LENGTH_MAX, TAG_VALUE_LENGTH_MAX, Element, malformed, parse
from nos_ec.s3.errors import S3Error, invalid_argument

ID_LENGTH_MAX = 255
PREFIX_BYTES_MAX = 1024
NUMBER_MAX = 2**31 - 1
SIZE_MAX = 2**50
OF_RULE, FILTER, EMPTY, AND = "rule", "filter", "empty", "and"
"""The forms of the conditions: the Prefix of the rule, a Filter, an empty Filter, or an And in a Filter."""
_ACTIONS = ("Expiration", "NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload")
_TRANSITIONS = ("Transition", "NoncurrentVersionTransition")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]{5,15}(Z|[+-][0-9]{2}:?[0-9]{2})?)?")


def rules_of(body: bytes) -> list[ExpiryRule]:
    """Return the rules of a configuration. Raises MalformedXML, InvalidArgument, InvalidRequest, and NotImplemented for
    rules that the store does not support."""
    top = parse(body, "LifecycleConfiguration")
    elements = [child for child in top.children if child.name != "TransitionDefaultMinimumObjectSize"]
    if top.text.strip() or not 1 <= len(elements) <= RULES_MAX:
        raise malformed(f"A lifecycle configuration must have 1 to {RULES_MAX} rules.")
    rules = [_rule(element) for element in elements]
    given = {rule.rule_id for rule in rules if rule.rule_id}
    if len(given) < sum(bool(rule.rule_id) for rule in rules):
        raise invalid_argument("Rule ID must be unique. Found same ID for more than one rule", "ID", "")
    made = (name for number in count(1) if (name := f"rule-{number}") not in given)
    return [rule if rule.rule_id else replace(rule, rule_id=next(made)) for rule in rules]


def xml_of(rules: Sequence[ExpiryRule]) -> bytes:
    """Return a configuration as XML."""
    inside = "".join(f"<Rule>{''.join(_elements(rule))}</Rule>" for rule in rules)
    return f'{DECLARATION}<LifecycleConfiguration xmlns="{NAMESPACE}">{inside}</LifecycleConfiguration>'.encode()


# --- reading --------------------------------------------------------------------------------------
def _rule(element: Element) -> ExpiryRule:
    if element.name != "Rule":
        raise malformed(f"{element.name!r} in a lifecycle configuration is unknown.")
    parts = _children(element, "ID", "Status", "Filter", "Prefix", *_ACTIONS)
    rule_id = _text(parts.get("ID"))
    if len(rule_id) > ID_LENGTH_MAX:
        raise invalid_argument(f"ID length should not exceed allowed limit of {ID_LENGTH_MAX}", "ID", "")
    status = _text(parts.get("Status"))
    if status not in ("Enabled", "Disabled"):
        raise malformed("The Status of a rule must be Enabled or Disabled.")
    if ("Filter" in parts) == ("Prefix" in parts):
        raise malformed("A rule must have either a Filter or a Prefix.")
    if not parts.keys() & set(_ACTIONS):
        raise S3Error("InvalidRequest", "At least one action needs to be specified in a rule")
    days, date_ms, markers = _expiration(parts["Expiration"]) if "Expiration" in parts else (None, None, None)
    noncurrent_days, newer = _noncurrent(parts)
    abort_days = _abort_days(parts)
    form, prefix, tags, above, below = _conditions(parts)
    has_tags_or_sizes = bool(tags) or above is not None or below is not None
    if abort_days is not None and has_tags_or_sizes:
        raise S3Error(
            "InvalidRequest",
            "AbortIncompleteMultipartUpload cannot be specified with Tags or sizes, which uploads do not have.",
        )
    if markers is not None and has_tags_or_sizes:
        raise S3Error(
            "InvalidRequest",
            "ExpiredObjectDeleteMarker cannot be specified with Tags or sizes, which delete markers do not have.",
        )
    return ExpiryRule(
        rule_id,
        status == "Enabled",
        prefix,
        tags,
        above,
        below,
        days,
        date_ms,
        abort_days,
        noncurrent_days,
        newer,
        markers,
        form,
    )


def _abort_days(parts: dict[str, Element]) -> int | None:
    if "AbortIncompleteMultipartUpload" not in parts:
        return None
    abort = _children(parts["AbortIncompleteMultipartUpload"], "DaysAfterInitiation")
    if "DaysAfterInitiation" not in abort:
        raise malformed("AbortIncompleteMultipartUpload must have DaysAfterInitiation.")
    reason = "'DaysAfterInitiation' for AbortIncompleteMultipartUpload action must be a positive integer"
    return _number(abort["DaysAfterInitiation"], 1, NUMBER_MAX, reason)


def _noncurrent(parts: dict[str, Element]) -> tuple[int | None, int | None]:
    """Return the days, and the number of noncurrent versions to keep."""
    if "NoncurrentVersionExpiration" not in parts:
        return None, None
    found = _children(parts["NoncurrentVersionExpiration"], "NoncurrentDays", "NewerNoncurrentVersions")
    if "NoncurrentDays" not in found:
        raise malformed("A NoncurrentVersionExpiration must have NoncurrentDays.")
    reason = "'NoncurrentDays' for NoncurrentVersionExpiration action must be a positive integer"
    days = _number(found["NoncurrentDays"], 1, NUMBER_MAX, reason)
    if "NewerNoncurrentVersions" not in found:
        return days, None
    if "Filter" not in parts:
        raise S3Error("InvalidRequest", "NewerNoncurrentVersions needs a Filter; it may be empty.")
    reason = f"'NewerNoncurrentVersions' for NoncurrentVersionExpiration action must be from 1 to {NEWER_MAX}"
    return days, _number(found["NewerNoncurrentVersions"], 1, NEWER_MAX, reason)


_YEAR_10000_MS = 253_402_300_800_000


def _expiration(element: Element) -> tuple[int | None, int | None, bool | None]:
    """Return days, date, and whether a delete marker is removed when it is the only version left."""
    parts = _children(element, "Days", "Date", "ExpiredObjectDeleteMarker")
    if len(parts) != 1:
        raise malformed("An Expiration must have either Days, a Date or ExpiredObjectDeleteMarker.")
    if "ExpiredObjectDeleteMarker" in parts:
        only_marker = _text(parts["ExpiredObjectDeleteMarker"])
        if only_marker not in ("true", "false"):
            raise malformed("ExpiredObjectDeleteMarker must be true or false.")
        return None, None, only_marker == "true"
    if "Days" in parts:
        reason = "'Days' for Expiration action must be a positive integer"
        return _number(parts["Days"], 1, NUMBER_MAX, reason), None, None
    return None, _date_ms(parts["Date"]), None


def _date_ms(element: Element) -> int:
    text = _text(element)
    try:
        date = datetime.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        date = None
    if date is None:
        raise malformed("'Date' must be a date of ISO 8601.")
    date_ms = round((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)
    if date_ms % DAY_MS or not 0 <= date_ms < _YEAR_10000_MS:
        raise invalid_argument("'Date' must be at midnight GMT", "Date", "")
    return date_ms


def _refuse_transition(element: Element) -> None:
    """Raise NotImplemented, or MalformedXML or InvalidArgument for a date that S3 would refuse as well."""
    for child in element.children:
        if child.name == "Date":
            _date_ms(child)
    raise S3Error("NotImplemented", "Transitions are not supported: a store has one storage class.")


_Conditions = tuple[str, str, tuple[tuple[str, str], ...], int | None, int | None]


def _conditions(parts: dict[str, Element]) -> _Conditions:
    """Return the form, the prefix, the tags, and the lower and upper limit of the size."""
    if "Prefix" in parts:
        return OF_RULE, _prefix(parts["Prefix"]), (), None, None
    element, form = parts["Filter"], FILTER
    if not element.children:
        return EMPTY, "", (), None, None
    if len(element.children) != 1:
        raise malformed("A Filter must have one condition or an And.")
    if element.children[0].name == "And":
        element, form = element.children[0], AND
        if not element.children:
            raise malformed("An And must have conditions.")
    tags = [_tag(child) for child in element.children if child.name == "Tag"]
    rest = Element(element.name, {}, [child for child in element.children if child.name != "Tag"], element.text)
    found = _children(rest, "Prefix", "ObjectSizeGreaterThan", "ObjectSizeLessThan")
    if len(dict(tags)) != len(tags):
        raise S3Error("InvalidRequest", "Duplicate Tag Keys are not allowed.")
    above, below = (_size(found.get(name)) for name in ("ObjectSizeGreaterThan", "ObjectSizeLessThan"))
    if above is not None and below is not None and above >= below - 1:
        raise S3Error("InvalidRequest", "No size can be above ObjectSizeGreaterThan and below ObjectSizeLessThan.")
    return form, _prefix(found.get("Prefix")), tuple(tags), above, below


def _prefix(element: Element | None) -> str:
    prefix = "" if element is None else _leaf(element).text
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise S3Error("InvalidRequest", f"The maximum size of a prefix is {PREFIX_BYTES_MAX}.")
    return prefix


def _tag(element: Element) -> tuple[str, str]:
    found = _children(element, "Key", "Value")
    if found.keys() != {"Key", "Value"}:
        raise malformed("A Tag must have a Key and a Value.")
    key, value = (_leaf(found[name]).text for name in ("Key", "Value"))
    if not 1 <= len(key) <= TAG_KEY_LENGTH_MAX or len(value) > TAG_VALUE_LENGTH_MAX:
        raise S3Error("InvalidRequest", "The key or value of a tag is too long, or the key is empty.")
    return key, value


def _size(element: Element | None) -> int | None:
    if element is None:
        return None
    return _number(element, 0, SIZE_MAX, f"{element.name!r} must be a number of bytes")


def _number(element: Element, least: int, most: int, reason: str) -> int:
    text = _text(element)
    if not re.fullmatch("[+-]?[0-9]{1,20}", text):
        raise malformed(f"{element.name!r} must be a number.")
    if not least <= int(text) <= most:
        raise invalid_argument(reason, element.name, text)
    return int(text)


def _children(element: Element, *names: str) -> dict[str, Element]:
    """Return the child elements by name, each at most once. Raises MalformedXML, and for a transition the errors of
    `_refuse_transition`."""
    if element.text.strip():
        raise malformed(f"{element.name!r} must not contain text.")
    found: dict[str, Element] = {}
    for child in element.children:
        if child.name in _TRANSITIONS and element.name == "Rule":
            _refuse_transition(child)
        if child.name not in names or child.name in found:
            raise malformed(f"{child.name!r} in {element.name!r} is unknown or repeated.")
        found[child.name] = child
    return found


def _leaf(element: Element) -> Element:
    if element.children:
        raise malformed(f"{element.name!r} must not contain elements.")
    return element


def _text(element: Element | None) -> str:
    return "" if element is None else _leaf(element).text.strip()


# --- writing --------------------------------------------------------------------------------------
def _elements(rule: ExpiryRule) -> Iterator[str]:
    yield _element("ID", rule.rule_id)
    if rule.form == OF_RULE:
        yield _element("Prefix", rule.prefix)
    else:
        inside = "" if rule.form == EMPTY else "".join(_filter(rule))
        yield f"<Filter>{f'<And>{inside}</And>' if rule.form == AND else inside}</Filter>"
    yield _element("Status", "Enabled" if rule.enabled else "Disabled")
    if rule.days is not None:
        yield f"<Expiration><Days>{rule.days}</Days></Expiration>"
    if rule.date_ms is not None:
        yield f"<Expiration><Date>{time_of(rule.date_ms)}</Date></Expiration>"
    if rule.markers is not None:
        marker = _element("ExpiredObjectDeleteMarker", str(rule.markers).lower())
        yield f"<Expiration>{marker}</Expiration>"
    if rule.noncurrent_days is not None:
        days = _element("NoncurrentDays", str(rule.noncurrent_days))
        newer = "" if rule.newer_versions is None else _element("NewerNoncurrentVersions", str(rule.newer_versions))
        yield f"<NoncurrentVersionExpiration>{days}{newer}</NoncurrentVersionExpiration>"
    if rule.abort_days is not None:
        days = _element("DaysAfterInitiation", str(rule.abort_days))
        yield f"<AbortIncompleteMultipartUpload>{days}</AbortIncompleteMultipartUpload>"


def _filter(rule: ExpiryRule) -> Iterator[str]:
    is_alone = not rule.tags and rule.size_above is None and rule.size_below is None
    if rule.prefix or is_alone:
        yield _element("Prefix", rule.prefix)
    for key, value in rule.tags:
        yield f"<Tag>{_element('Key', key)}{_element('Value', value)}</Tag>"
    if rule.size_above is not None:
        yield _element("ObjectSizeGreaterThan", str(rule.size_above))
    if rule.size_below is not None:
        yield _element("ObjectSizeLessThan", str(rule.size_below))


def _element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"
