"""The message of an event, in the JSON of S3. Source: "Event message structure" of the S3 user guide."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

from nos_ec.core.ids import ObjectKey
from nos_ec.core.notifications.origin import Origin

SERVICE = "nos_ec"
"""The principal of changes that no request has made."""
_VERSIONS = {"s3:LifecycleExpiration": "2.3", "s3:ObjectTagging": "2.3"}


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """One event. `sequencer` orders the events of a key. `size`, in bytes, and `etag` are None for an object that is
    gone, and `etag` also for an encrypted one, whose MD5 is secret. `version_id` is None in a bucket without
    versions."""

    name: str
    key: ObjectKey
    sequencer: int
    at_ms: int
    size: int | None = None
    etag: str | None = None
    version_id: str | None = None


def encode_event(event: ObjectEvent, configuration_id: str, region: str, origin: Origin) -> bytes:
    """Return the message. Leaves out the fields that S3 has and this store does not know."""
    known = {"size": event.size, "eTag": event.etag, "versionId": event.version_id}
    bucket = {"name": event.key.bucket, "arn": f"arn:aws:s3:::{event.key.bucket}"}
    record: dict[str, Any] = {
        "eventVersion": _VERSIONS.get(event.name.rpartition(":")[0], "2.1"),
        "eventSource": "aws:s3",
        "awsRegion": region,
        "eventTime": _time(event.at_ms),
        "eventName": event.name.removeprefix("s3:"),
        "userIdentity": {"principalId": origin.account or ("Anonymous" if origin.request_id else SERVICE)},
        "requestParameters": {"sourceIPAddress": origin.address} if origin.address else {},
        "responseElements": {"x-amz-request-id": origin.request_id} if origin.request_id else {},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": configuration_id,
            "bucket": bucket,
            "object": {
                "key": quote_plus(event.key.name, safe="/"),
                **{field: value for field, value in known.items() if value is not None},
                "sequencer": f"{event.sequencer:016X}",
            },
        },
    }
    return json.dumps({"Records": [record]}, ensure_ascii=False, separators=(",", ":")).encode()


def encode_gap(bucket: str, configuration_id: str, at_ms: int) -> bytes:
    """Return the message which says that events of this bucket may be missing, so that its objects must be listed
    again. Like the `s3:TestEvent` of S3, it has no Records."""
    gap = {"Service": SERVICE, "Event": "nos_ec:Gap", "Time": _time(at_ms), "Bucket": bucket}
    return json.dumps(gap | {"ConfigurationId": configuration_id}, ensure_ascii=False, separators=(",", ":")).encode()


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
