"""The audit trail: entries that say what was deleted or replaced, and their lines in a file. Pure.

A line is one JSON object (docs/FORMAT.md). Its last member, `crc32c`, is the CRC of the bytes before it, so that a line
that was torn by a crash, or damaged later, is told from a whole one and passed over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import google_crc32c
import msgspec

VERSION = 1
COPIES_MAX = 500
"""Copies of one entry. A line with more of them would have to be read as a whole to find one."""
SEGMENTS_MAX = 500
"""Landing segments of one entry."""

_CRC_MARK = b',"crc32c":'


class AuditKind(StrEnum):
    """What was done. Each value is a word of the file format and of `nos-ec audit --kind`."""

    BLOCK_DELETED = "block-deleted"
    """A block is deleted from the block store, with all that lay in it."""
    COPIES_DELETED = "copies-deleted"
    """Landing copies are deleted, or records of the landing log are given up."""
    COPIES_MOVED = "copies-moved"
    """Records of the landing log were written again to another segment, and objects refer to those."""
    SEGMENTS_RELEASED = "segments-released"
    """Landing segments are given back, with all records in them."""
    OBJECT_REVERTED = "object-reverted"
    """The packed bytes of an object are lost or damaged, so it went back to its landing copy."""
    SHARDS_WRITTEN = "shards-written"
    """Shards of a block were made again from the others."""
    REPAIR = "repair"
    """`nos-ec apply` does a step of a plan."""
    REPAIR_PASSED_OVER = "repair-passed-over"
    """The step before this entry changed nothing, because what it was planned for no longer held."""


class CopyEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A landing copy. object: BUCKET/NAME; None when the version is gone, so that nothing tells its name. offset,
    length, crc32c: the extent in the block of the entry that replaces the copy, and the CRC of its bytes. moved_to:
    the record that replaces it."""

    landing: str
    object: str | None = None
    object_id: int | None = None
    version: int | None = None
    offset: int | None = None
    length: int | None = None
    crc32c: int | None = None
    moved_to: str | None = None


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """kind, why: what is done, and the rule behind it. block: the block that is deleted or rewritten, or into which the
    copies were packed. seen: what the process knew of it, by name. Ids are hexadecimal."""

    kind: AuditKind
    why: str
    block: str | None = None
    segments: tuple[str, ...] = ()
    copies: tuple[CopyEntry, ...] = ()
    seen: dict[str, Any] = {}


class Recorded(AuditEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry as it is in the trail. at_ms: when it was recorded (Unix milliseconds). run: the process that did it:
    host, process id, when it started, and its command."""

    at_ms: int
    run: str
    v: int = 0


def audit_line(entry: AuditEntry, at_ms: int, run: str) -> bytes:
    """The line of an entry, with its line feed."""
    head = msgspec.json.encode({"v": VERSION, "at_ms": at_ms, "run": run})
    body = head[:-1] + b"," + msgspec.json.encode(entry)[1:-1]
    return body + _CRC_MARK + str(google_crc32c.value(body)).encode() + b"}\n"


def is_whole(line: bytes) -> bool:
    """Whether the bytes of a line match its CRC."""
    return _body(line) is not None


def read_line(line: bytes) -> Recorded | None:
    """The entry of a line; None for a line that is torn, damaged, or of a later version."""
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
