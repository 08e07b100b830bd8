"""The notification configuration of a bucket, as it is stored.

Source of the rules: "Supported event types" and "Configuring event notifications using object key name filtering" of
the S3 user guide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from urllib.parse import unquote_plus

from nos_ec.core.errors import Corrupt

CREATED = tuple(f"s3:ObjectCreated:{name}" for name in ("Put", "Post", "Copy", "CompleteMultipartUpload"))
REMOVED = ("s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated")
EXPIRED = ("s3:LifecycleExpiration:Delete", "s3:LifecycleExpiration:DeleteMarkerCreated")
TAGGED = ("s3:ObjectTagging:Put", "s3:ObjectTagging:Delete")
EVENTS = (*CREATED, *REMOVED, *EXPIRED, *TAGGED)
"""The names of all events that a store sends."""
EVENT_NAMES = frozenset([*EVENTS, *(f"{name.rpartition(':')[0]}:*" for name in EVENTS)])
"""The names that a configuration may use: those of events, and those that stand for a family of events."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One entry of a configuration: these `events` of keys with this prefix and suffix are sent to `topic`. `prefix`
    and `suffix` are URL-encoded, with `+` for a space, as clients send them. `arn` is what the client called the
    topic."""

    id: str
    topic: str
    events: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""
    arn: str = ""

    def wants(self, event: str, name: str) -> bool:
        """Return whether an event of the object with this name is to be sent."""
        prefix, suffix = self._filters()
        return self._names(event) and name.startswith(prefix) and name.endswith(suffix)

    def overlaps(self, other: Notification) -> bool:
        """Return whether both would send the same event of some key."""
        if not any(self._names(event) and other._names(event) for event in EVENTS):
            return False
        prefixes, suffixes = (sorted(both, key=len) for both in zip(self._filters(), other._filters(), strict=True))
        return prefixes[1].startswith(prefixes[0]) and suffixes[1].endswith(suffixes[0])

    def _filters(self) -> tuple[str, str]:
        """Return prefix and suffix, decoded."""
        return unquote_plus(self.prefix), unquote_plus(self.suffix)

    def _names(self, event: str) -> bool:
        return event in self.events or f"{event.rpartition(':')[0]}:*" in self.events


def encode(notifications: Sequence[Notification]) -> bytes:
    """Return the bytes to store."""
    return json.dumps([asdict(one) for one in notifications], ensure_ascii=False, separators=(",", ":")).encode()


def decode(stored: bytes) -> tuple[Notification, ...]:
    """Return what `encode` took. Raises Corrupt for any other bytes."""
    try:
        return tuple(Notification(**{**one, "events": tuple(one["events"])}) for one in json.loads(stored))
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"metadata damaged: a notification configuration: {error}") from None
