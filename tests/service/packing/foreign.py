"""Publishes as a program of someone else would: JSON, and nothing of ours but the message log."""

from __future__ import annotations

import json
from collections.abc import Iterable

from nos_ec.composition.wiring import System
from nos_ec.core.ids import ObjectKey


def named(key: ObjectKey, version: int) -> bytes:
    """A pack request of version 2."""
    return json.dumps({"v": 2, "bucket": key.bucket, "name": key.name, "version": version}).encode()


def publish_named(system: System, versions: Iterable[tuple[ObjectKey, int]], message_key: str = "") -> None:
    """Publish them under their buckets, or under `message_key`."""
    publisher = system.worker.publisher()
    publisher.publish([((message_key or key.bucket).encode(), named(key, version)) for key, version in versions])
    publisher.close()
