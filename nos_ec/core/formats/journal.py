"""The format of the journal of deletes (docs/FORMAT.md, docs/adr/0065).

A body is a MessagePack array of entries, each an array of fields. New fields come last and have defaults, so that
earlier programs ignore them. An object of the journal is a page in the format of a dump: bodies with their ids. The
number of an object is its name, so objects are in the order of their numbers, and a missing one is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.dump_format import DumpPage, decode_page, encode_page
from nos_ec.core.ids import JOURNAL_BUCKET, ObjectKey

BODY_BYTES_MAX = 16_000
"""The size of a body, in bytes. An entry takes at most 1,500 bytes, and 8,192 more with attributes."""
TABLE = "journal"
"""The name of the pages."""
NUMBER_DIGITS = 16


class EntryKind(IntEnum):
    """What has happened to a version."""

    REMOVED = 1
    """It was deleted, or it was a delete marker that was removed."""
    TRASHED = 2
    """It was put into the trash."""
    UNDELETED = 3
    """It was brought back from the trash."""
    MARKER = 4
    """It is a delete marker that was added."""
    ATTRIBUTES = 6
    """Its attributes were changed."""
    GAP = 5
    """Nothing has happened to a version: entries from `created_ms` to `at_ms` were left out, because the journal was
    full."""


class JournalEntry(msgspec.Struct, array_like=True, frozen=True):
    """What has happened to one version of a key.

    `version` is its number; `created_ms`, `size` (bytes), `crc32c` and `md5` are those of its row, and `landing_id` is
    that of its landing copy, or empty. `is_null`: a null marker. `of_versions`: the key had other versions, or the
    version has an id. A marker has neither size nor sums. `until_ms`: until when the trash keeps the version; `at_ms`:
    when it was put there. `attributes`: the new ones, of kind ATTRIBUTES. Times are in Unix milliseconds.
    """

    kind: int
    bucket: str
    name: str
    version: int
    created_ms: int
    size: int = 0
    crc32c: int = 0
    md5: bytes = b""
    landing_id: bytes = b""
    of_versions: bool = False
    is_null: bool = False
    at_ms: int = 0
    until_ms: int = 0
    attributes: bytes = b""

    @property
    def key(self) -> ObjectKey:
        """Return the key of the version."""
        return ObjectKey(self.bucket, self.name)

    @property
    def is_of_marker(self) -> bool:
        """Return whether this is about a delete marker."""
        return not self.md5

    @property
    def is_gap(self) -> bool:
        """Return whether this is about entries that were left out."""
        return self.kind == EntryKind.GAP


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[JournalEntry])


def encode_entries(entries: Sequence[JournalEntry]) -> list[bytes]:
    """Return the bodies that hold these entries, in order, each of at most BODY_BYTES_MAX bytes."""
    if len(entries) == 1:
        return [_encoder.encode(entries)]
    bodies: list[bytes] = []
    some: list[JournalEntry] = []
    size = 0
    for entry in entries:
        own = len(_encoder.encode(entry))
        if some and size + own > BODY_BYTES_MAX - 8:  # the array itself takes at most 5 bytes
            bodies.append(_encoder.encode(some))
            some, size = [], 0
        some.append(entry)
        size += own
    if some:
        bodies.append(_encoder.encode(some))
    return bodies


def journal_key(number: int) -> ObjectKey:
    """Return the key of the object of the journal with this number."""
    return ObjectKey(JOURNAL_BUCKET, f"{number:0{NUMBER_DIGITS}}")


def number_of(key: ObjectKey) -> int | None:
    """Return the number of an object of the journal; None for another name."""
    name = key.name
    return int(name) if len(name) == NUMBER_DIGITS and name.isascii() and name.isdigit() else None


def encode_object(rows: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode an object of the journal, of (id, body)."""
    listed = list(rows)
    return encode_page(DumpPage(TABLE, {"id": [one for one, _ in listed], "body": [body for _, body in listed]}))


def gap_row(since_ms: int, until_ms: int) -> tuple[int, bytes]:
    """Return a row for an object of the journal, which no table has: entries between these times were left out."""
    return 0, _encoder.encode([JournalEntry(int(EntryKind.GAP), "", "", 0, since_ms, at_ms=until_ms)])


def ids_of(data: bytes) -> list[int]:
    """Return the ids of the bodies of an object. Raises Corrupt."""
    return [one for one, _ in _page(data).tuples(id=..., body=...)]


def entries_of(data: bytes) -> list[JournalEntry]:
    """Return the entries of an object, in their order. Raises Corrupt."""
    found: list[JournalEntry] = []
    for _, body in _page(data).tuples(id=..., body=...):
        try:
            found += _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise Corrupt(f"journal: {error}") from error
    return found


def _page(data: bytes) -> DumpPage:
    page = decode_page(data)
    if page.table != TABLE:
        raise Corrupt(f"journal: a page of {page.table}")
    return page
