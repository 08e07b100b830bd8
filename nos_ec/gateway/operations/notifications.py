"""Notification configurations of buckets, and what requests tell about themselves for events.

Source: PutBucketNotificationConfiguration of the S3 API reference. A topic is named by an ARN, as in radosgw:
`arn:aws:sns:REGION:ACCOUNT:TOPIC` in a TopicConfiguration, `arn:aws:sqs:REGION:ACCOUNT:TOPIC` in a QueueConfiguration;
region and account may be anything, or empty. Both mean the same Kafka topic.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from urllib.parse import unquote_to_bytes

from nos_ec.core.notifications.configuration import EVENT_NAMES, Notification, decode, encode
from nos_ec.core.notifications.origin import Origin
from nos_ec.gateway.auth.access import Access
from nos_ec.gateway.message.call import Call
from nos_ec.gateway.message.reply import Reply, xml
from nos_ec.gateway.operations.bucket_documents import DocumentType, read_document
from nos_ec.ports.metadata import DocumentKind
from nos_ec.s3.answers import DECLARATION, NAMESPACE, escape
from nos_ec.s3.documents import Element, malformed, parse
from nos_ec.s3.errors import S3Error, invalid_argument
from nos_ec.s3.request import is_encoded

CONFIGURATIONS_MAX = 100
ID_LENGTH_MAX = 255
FILTER_LENGTH_MAX = 1024
_ROOT = "NotificationConfiguration"
_TOPIC_OF = {"TopicConfiguration": ("Topic", "sns"), "QueueConfiguration": ("Queue", "sqs")}
_UNSUPPORTED = frozenset(["CloudFunctionConfiguration", "EventBridgeConfiguration"])
_ARN = re.compile(r"arn:[a-z-]+:(sns|sqs):[^:\s]{0,64}:[^:\s]{0,64}:([A-Za-z0-9._-]{1,249})")
_EVENTS: Mapping[str, str] = {
    "PutObject": "s3:ObjectCreated:Put",
    "CopyObject": "s3:ObjectCreated:Copy",
    "RenameObject": "s3:ObjectCreated:Copy",
    "CompleteMultipartUpload": "s3:ObjectCreated:CompleteMultipartUpload",
    "PutObjectTagging": "s3:ObjectTagging:Put",
    "DeleteObjectTagging": "s3:ObjectTagging:Delete",
    "DeleteObject": "",
    "DeleteObjects": "",
}
"""The events of the operations that change objects. The engine names those of deletions."""


def origin_of(call: Call, address: str, request_id: str) -> Origin | None:
    """Return what a request tells about itself; None if its operation causes no events."""
    event = _EVENTS.get(call.operation)
    return None if event is None else Origin(event, call.account or "", address, request_id)


def bucket_notifications(topics: Collection[str]) -> DocumentType:
    """Return the type of the document of a store whose operator allows these topics."""

    def parse_body(call: Call, _: Access) -> bytes:
        found = _configuration(read_document(call), topics)
        return encode(found) if found else b""

    return DocumentType(
        DocumentKind.NOTIFICATION,
        parse_body,
        ("NoSuchConfiguration", "The notification configuration does not exist"),
        get_reply=lambda _, stored: _reply(stored),
        default=encode([]),
    )


def _configuration(body: bytes, topics: Collection[str]) -> list[Notification]:
    found: list[Notification] = []
    document = parse(body, _ROOT)
    if document.text.strip():
        raise malformed(f"{_ROOT} has text.")
    if len(document.children) > CONFIGURATIONS_MAX:
        raise invalid_argument(f"A bucket may have at most {CONFIGURATIONS_MAX} configurations.", _ROOT)
    for number, child in enumerate(document.children):
        if child.name in _UNSUPPORTED:
            raise S3Error("NotImplemented", f"{child.name} is not supported; use a TopicConfiguration.")
        if child.name not in _TOPIC_OF:
            raise malformed(f"{child.name!r} in {_ROOT} is unknown.")
        one = _entry(child, number, topics)
        for other in found:
            if one.id == other.id:
                raise invalid_argument(f"Two configurations have the id {one.id}.", "Id", one.id)
            if one.overlaps(other):
                raise invalid_argument(
                    "Configurations overlap. Configurations on the same bucket cannot share a common event type for"
                    f" overlapping prefixes and suffixes: {other.id}, {one.id}.",
                    _ROOT,
                )
        found.append(one)
    return found


def _entry(element: Element, number: int, topics: Collection[str]) -> Notification:
    topic_name, service = _TOPIC_OF[element.name]
    texts: dict[str, str] = {}
    events: list[str] = []
    filters: dict[str, str] | None = None
    for child in element.children:
        if child.name == "Event":
            events.append(_leaf(child))
        elif child.name == "Filter" and filters is None:
            filters = _filters(child)
        elif child.name in ("Id", topic_name) and child.name not in texts:
            texts[child.name] = _leaf(child)
        else:
            raise malformed(f"{child.name!r} in {element.name} is unknown or repeated.")
    if not events or topic_name not in texts:
        raise malformed(f"A {element.name} has a {topic_name} and at least one Event.")
    for event in events:
        if event not in EVENT_NAMES:
            raise invalid_argument(f"The event {event!r} is not supported for notifications.", "Event", event)
    arn = texts[topic_name]
    matched = _ARN.fullmatch(arn)
    if matched is None or matched[1] != service:
        raise invalid_argument(f"The ARN must be arn:aws:{service}:::TOPIC.", topic_name, arn)
    if matched[2] not in topics:
        raise invalid_argument(
            "Unable to validate the following destination configurations: the operator of this store does not allow"
            f" the topic {matched[2]}.",
            topic_name,
            arn,
        )
    entry_id = texts.get("Id") or sha256(f"{number} {arn} {events} {filters}".encode()).hexdigest()[:32]
    if len(entry_id) > ID_LENGTH_MAX:
        raise invalid_argument(f"An Id may have at most {ID_LENGTH_MAX} characters.", "Id", entry_id)
    filters = filters or {}
    listed = tuple(dict.fromkeys(events))
    return Notification(entry_id, matched[2], listed, filters.get("prefix", ""), filters.get("suffix", ""), arn)


def _filters(element: Element) -> dict[str, str]:
    """Return the prefix and the suffix of a Filter, as far as it has them."""
    if [child.name for child in element.children] != ["S3Key"]:
        raise malformed("A Filter has one S3Key.")
    found: dict[str, str] = {}
    for rule in element.children[0].children:
        parts = {child.name: _leaf(child) for child in rule.children}
        if rule.name != "FilterRule" or parts.keys() != {"Name", "Value"} or len(rule.children) != 2:
            raise malformed("An S3Key has FilterRules, each with Name and Value.")
        name = parts["Name"].lower()
        if name not in ("prefix", "suffix") or name in found:
            raise invalid_argument("A filter has at most one prefix and one suffix.", "FilterRule", parts["Name"])
        if len(parts["Value"].encode()) > FILTER_LENGTH_MAX:
            raise invalid_argument(f"A filter may have at most {FILTER_LENGTH_MAX} bytes.", "FilterRule")
        _require_encoded(parts["Value"])
        found[name] = parts["Value"]
    return found


def _require_encoded(value: str) -> None:
    """Raise InvalidArgument unless a filter is URL-encoded, as S3 wants it ("Configuring event notifications using
    object key name filtering" of the S3 user guide)."""
    try:
        if is_encoded(value):
            unquote_to_bytes(value).decode()
            return
    except UnicodeDecodeError:
        pass
    raise invalid_argument(
        "The Value of a filter is URL-encoded: + is a space, and %25 a percent sign.", "FilterRule", value
    )


def _leaf(element: Element) -> str:
    if element.children:
        raise malformed(f"{element.name!r} has elements.")
    return element.text


def _reply(stored: bytes) -> Reply:
    inside = "".join(part for one in decode(stored) for part in _elements(one))
    return xml(f'{DECLARATION}<{_ROOT} xmlns="{NAMESPACE}">{inside}</{_ROOT}>'.encode())


def _elements(one: Notification) -> Iterator[str]:
    matched = _ARN.fullmatch(one.arn)
    is_queue = matched is not None and matched[1] == "sqs"
    kind, topic = ("QueueConfiguration", "Queue") if is_queue else ("TopicConfiguration", "Topic")
    yield f"<{kind}><Id>{escape(one.id)}</Id><{topic}>{escape(one.arn)}</{topic}>"
    yield "".join(f"<Event>{event}</Event>" for event in one.events)
    rules = "".join(
        f"<FilterRule><Name>{name}</Name><Value>{escape(value)}</Value></FilterRule>"
        for name, value in (("prefix", one.prefix), ("suffix", one.suffix))
        if value
    )
    if rules:
        yield f"<Filter><S3Key>{rules}</S3Key></Filter>"
    yield f"</{kind}>"
