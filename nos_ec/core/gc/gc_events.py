"""Files of events, from which `nos-ec simulate gc --events` runs a policy; `nos-ec export events` writes them.

A line of JSON for each event, in UTF-8. docs/GC.md describes the format for people.

event     fields                                                     meaning
export    version, time_ms, since_ms (or null), one_in               first line of a file that `export events` wrote
survival  bucket, deaths, exposure_days                              a row of the table in core/packing/lifetimes.py
put       time_ms, bucket, name, size [, expires_ms] [, deleted_ms]  an object is stored, and replaces one of its name
delete    time_ms, bucket, name                                      an object is deleted

Times are in Unix milliseconds, sizes in bytes. expires_ms is when a lifecycle rule deletes the object. deleted_ms is
when its bytes become dead, if that is already known. A put with deleted_ms replaces nothing, and later lines with its
name do not concern it. Unknown events and fields are refused, so that a misspelt one is not ignored. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.lifetimes import AGE_RANGES, Counts

EVENTS_VERSION = 1
LINE_BYTES_MAX = 1 << 16
_NUMBER_MAX = 1 << 53
"""JSON numbers above it may not be exact."""
_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class ExportBegun:
    """How a file was made: when the export began, and what it contains: one in `one_in` of the objects stored since
    `since_ms`, or of all if that is None."""

    time_ms: int
    since_ms: int | None = None
    one_in: int = 1


@dataclass(frozen=True, slots=True)
class KnownSurvival:
    """A row of the survival table. The bucket "" stands for all buckets without a row of their own."""

    bucket: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class PutEvent:
    """An object is stored. See the module docstring for its fields."""

    time_ms: int
    bucket: str
    name: str
    size: int
    expires_ms: int | None = None
    deleted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """An object is deleted."""

    time_ms: int
    bucket: str
    name: str


Event = ExportBegun | KnownSurvival | PutEvent | DeleteEvent


def event_line(event: Event) -> bytes:
    """Return the line of an event, with its line feed."""
    return json.dumps(_data(event), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def parse_event(line: bytes) -> Event:
    """Return the event of a line. Raise InvalidInput that describes the error, but not the position of the line."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidInput("it is not a JSON object")
    kind = data.pop("event", None)
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise InvalidInput(f"event {kind!r}: give one of {', '.join(_READERS)}")
    fields = _Fields(data)
    event = read(fields)
    fields.require_all_read()
    return event


class Names:
    """The names of an export. They are hashed with the id of the store, so that likely names cannot be tried without
    that id. The hash of a name keeps its prefix, up to the last slash, apart, because GC sorts by it."""

    def __init__(self, store_id: str, *, keep: bool) -> None:
        self._key = hashlib.blake2b(store_id.encode(), digest_size=32).digest()
        self._keep = keep

    def bucket(self, bucket: str) -> str:
        """Return the exported name of a bucket."""
        return bucket if self._keep or not bucket else self._hashed(bucket)

    def name(self, key: ObjectKey) -> str:
        """Return the exported name of an object."""
        if self._keep:
            return key.name
        prefix, slash, last = key.name.rpartition("/")
        return (self._hashed(f"{key.bucket}/{prefix}") if slash else "") + slash + self._hashed(last)

    def _hashed(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES, key=self._key).hexdigest()


def _data(event: Event) -> dict[str, Any]:
    match event:
        case ExportBegun(time_ms, since_ms, one_in):
            return {
                "event": "export",
                "version": EVENTS_VERSION,
                "time_ms": time_ms,
                "since_ms": since_ms,
                "one_in": one_in,
            }
        case KnownSurvival(bucket, counts):
            return {
                "event": "survival",
                "bucket": bucket,
                "deaths": counts.deaths,
                "exposure_days": counts.exposure_days,
            }
        case DeleteEvent(time_ms, bucket, name):
            return {"event": "delete", "time_ms": time_ms, "bucket": bucket, "name": name}
        case PutEvent(time_ms, bucket, name, size, expires_ms, deleted_ms):
            data = {"event": "put", "time_ms": time_ms, "bucket": bucket, "name": name, "size": size}
            known = {"expires_ms": expires_ms, "deleted_ms": deleted_ms}
            return data | {field: value for field, value in known.items() if value is not None}


class _Fields:
    """The fields of a line, which are taken out one by one."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def whole(self, field: str, least: int = 0) -> int:
        """Take a whole number."""
        value = self._take(field)
        if type(value) is not int or not least <= value <= _NUMBER_MAX:
            raise InvalidInput(f"{field} is {value!r}; give a whole number from {least} to 2^53")
        return value

    def whole_or_none(self, field: str, least: int = 0) -> int | None:
        """Take a whole number, or None if the field is missing or null."""
        if self._data.get(field) is None:
            self._data.pop(field, None)
            return None
        return self.whole(field, least)

    def text(self, field: str, *, empty: bool = False) -> str:
        """Take a text."""
        value = self._take(field)
        if not isinstance(value, str) or not (value or empty):
            raise InvalidInput(f"{field} is {value!r}; give text")
        return value

    def counts(self, field: str) -> list[float]:
        """Take a count for each range of ages."""
        value = self._take(field)
        if not isinstance(value, list) or len(value) != AGE_RANGES or not all(map(_is_count, value)):
            raise InvalidInput(f"{field}: give {AGE_RANGES} numbers, none of them negative")
        return [float(one) for one in value]

    def require_all_read(self) -> None:
        """Raise InvalidInput if a field is left."""
        if self._data:
            raise InvalidInput(f"this event has no field {next(iter(self._data))!r}")

    def _take(self, field: str) -> Any:
        if field not in self._data:
            raise InvalidInput(f"{field} is missing")
        return self._data.pop(field)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _export(fields: _Fields) -> ExportBegun:
    if (version := fields.whole("version")) != EVENTS_VERSION:
        raise InvalidInput(f"version {version} of the format; this release reads version {EVENTS_VERSION}")
    return ExportBegun(fields.whole("time_ms"), fields.whole_or_none("since_ms"), fields.whole("one_in", 1))


def _survival(fields: _Fields) -> KnownSurvival:
    return KnownSurvival(
        fields.text("bucket", empty=True), Counts(fields.counts("deaths"), fields.counts("exposure_days"))
    )


def _put(fields: _Fields) -> PutEvent:
    time_ms = fields.whole("time_ms")
    return PutEvent(
        time_ms,
        fields.text("bucket"),
        fields.text("name"),
        fields.whole("size"),
        fields.whole_or_none("expires_ms", time_ms),
        fields.whole_or_none("deleted_ms", time_ms),
    )


def _delete(fields: _Fields) -> DeleteEvent:
    return DeleteEvent(fields.whole("time_ms"), fields.text("bucket"), fields.text("name"))


_READERS: Mapping[str, Callable[[_Fields], Event]] = {
    "export": _export,
    "survival": _survival,
    "put": _put,
    "delete": _delete,
}
