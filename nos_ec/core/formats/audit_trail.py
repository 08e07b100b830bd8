"""The audit trail: entries about deleted and replaced data, and their lines in a file. Pure.

A line is one JSON object (docs/FORMAT.md). Its last member, `crc32c`, is the CRC of the bytes before it, so that
readers can recognise and skip a line that was torn by a crash, or damaged later.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import google_crc32c
import msgspec

VERSION = 1
COPIES_MAX = 500
"""Copies in one entry. With more, a long line would have to be read to find one copy."""
SEGMENTS_MAX = 500
"""Landing segments in one entry."""

_CRC_MARK = b',"crc32c":'


class AuditKind(StrEnum):
    """The kinds of actions. Each value is a word of the file format and of `nos-ec audit --kind`."""

    BLOCK_DELETED = "block-deleted"
    """A block is deleted from the block store, with everything in it."""
    COPIES_DELETED = "copies-deleted"
    """Landing copies are deleted, or records of the landing log are given up."""
    COPIES_MOVED = "copies-moved"
    """Records of the landing log were written again to another segment, and objects refer to the new ones."""
    SEGMENTS_RELEASED = "segments-released"
    """Landing segments are released, with all records in them."""
    OBJECT_REVERTED = "object-reverted"
    """The packed bytes of an object are lost or damaged, so it went back to its landing copy."""
    SHARDS_WRITTEN = "shards-written"
    """Shards of a block were made again from the others."""
    REPAIR = "repair"
    """`nos-ec apply` carries out a step of a plan."""
    REPAIR_PASSED_OVER = "repair-passed-over"
    """The step before this entry changed nothing, because its conditions no longer held."""
    CHANGE = "change"
    """An operator makes a change in the console."""
    CHANGE_REFUSED = "change-refused"
    """The change of this operator that the trail has before this entry was not made after all."""


class CopyEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A landing copy. `object` is BUCKET/NAME, or None if the version is gone, so that its name is unknown. If the copy
    was packed, `offset`, `length` and `crc32c` describe the extent that replaces it, in the block of the entry.
    `moved_to` is the record that replaces it."""

    landing: str
    object: str | None = None
    object_id: int | None = None
    version: int | None = None
    offset: int | None = None
    length: int | None = None
    crc32c: int | None = None
    moved_to: str | None = None


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action (`kind`), the reason (`why`), and what it concerns: the block that is deleted or rewritten, or into
    which the copies were packed, the segments and the copies. A change by an `operator` may concern one `object`, which
    is BUCKET/NAME. `seen` holds the facts that the process knew about it.
    Ids are hexadecimal."""

    kind: AuditKind
    why: str
    block: str | None = None
    segments: tuple[str, ...] = ()
    copies: tuple[CopyEntry, ...] = ()
    operator: str | None = None
    object: str | None = None
    seen: dict[str, Any] = {}


class Recorded(AuditEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry as it is in the trail, with the time when it was recorded (Unix milliseconds) and the process that did
    it (`run`): host, process id, start time and command."""

    at_ms: int
    run: str
    v: int = 0


def audit_line(entry: AuditEntry, at_ms: int, run: str) -> bytes:
    """Return the line of an entry, with its line feed."""
    head = msgspec.json.encode({"v": VERSION, "at_ms": at_ms, "run": run})
    body = head[:-1] + b"," + msgspec.json.encode(entry)[1:-1]
    return body + _CRC_MARK + str(google_crc32c.value(body)).encode() + b"}\n"


def is_whole(line: bytes) -> bool:
    """Return whether the bytes of a line match its CRC."""
    return _body(line) is not None


def read_line(line: bytes) -> Recorded | None:
    """Return the entry of a line, or None for a line that is torn, damaged, or of a later version."""
    body = _body(line)
    if body is None:
        return None
    try:
        found = _DECODER.decode(body + b"}")
    except msgspec.DecodeError:
        return None
    return found if found.v == VERSION else None


def _body(line: bytes) -> bytes | None:
    body, mark, crc = line.rstrip(b"\n").rpartition(_CRC_MARK)
    return body if mark and crc == str(google_crc32c.value(body)).encode() + b"}" else None


_DECODER = msgspec.json.Decoder(Recorded)
