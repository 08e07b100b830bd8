"""Where the access log of a bucket is stored, and the keys of its objects.

Source: PutBucketLogging, TargetObjectKeyFormat and PartitionedPrefix of the S3 API reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class KeyFormat(StrEnum):
    """How the keys of log objects are formed. DEFAULT means SIMPLE, and is shown as it was set. EVENT and DELIVERY put
    the source and a date into the key: that of the requests, or that of the delivery."""

    DEFAULT = ""
    SIMPLE = "SimplePrefix"
    EVENT = "EventTime"
    DELIVERY = "DeliveryTime"


@dataclass(frozen=True, slots=True)
class LogTarget:
    """The bucket that gets the access log of another one, and the beginning of the keys of its objects."""

    bucket: str
    prefix: str
    key_format: KeyFormat = KeyFormat.DEFAULT

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps([self.bucket, self.prefix, self.key_format.value]).encode()

    def key(self, owner: str, region: str, source: str, event_ms: int, now_ms: int, unique: str) -> str:
        """Return the key of a log object. `owner` is the owner of the bucket `source`; `event_ms` is the time of one of
        its requests, and `now_ms` that of the delivery. `unique` is different for each object."""
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        if self.key_format in (KeyFormat.DEFAULT, KeyFormat.SIMPLE):
            return f"{self.prefix}{now:%Y-%m-%d-%H-%M-%S}-{unique}"
        time = f"{now:%H-%M-%S}"
        if self.key_format is KeyFormat.EVENT:
            now, time = datetime.fromtimestamp(event_ms / 1000, UTC), "00-00-00"
        return f"{self.prefix}{owner}/{region}/{source}/{now:%Y/%m/%d}/{now:%Y-%m-%d}-{time}-{unique}"


def decode_target(stored: bytes) -> LogTarget:
    """Return the target in its stored form. Raises ValueError."""
    found = json.loads(stored)
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(one, str) for one in found):
        raise ValueError(f"not a target of an access log: {found!r}")
    bucket, prefix, key_format = found
    return LogTarget(bucket, prefix, KeyFormat(key_format))
