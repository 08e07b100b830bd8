"""The Objects page: buckets, listings with folders, versions, uploads and the trash, each a page at a time.

There is no search for a part of a name: no index has it. A page of a listing reads as many rows as it shows, and a few
of each folder; a page of the trash examines a fixed number of rows, and shows the latest time of those that remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.wiring import System
from nos_ec.console.panels import Panels
from nos_ec.console.view import View, query_choice, quoted
from nos_ec.core.errors import InvalidInput
from nos_ec.core.ids import BUCKET_BYTES_MAX, NAME_BYTES_MAX
from nos_ec.core.parts import UploadId
from nos_ec.core.tails import hidden_prefix
from nos_ec.engine.texts import count_text
from nos_ec.ports.metadata import Metadata, ObjectRow, TrashMark, UploadRow, VersionEntry

PAGE_ROWS = 200
"""Entries of a page."""
FOLDERS_SHOWN = 20
"""Folders of the path above a listing."""
TRASH_ROWS = 1000
"""Rows of the trash that a page examines."""
BUDGET_MS = 1000
"""How long a page of a listing looks for entries; it then ends early, and the next page continues."""
_PAIR = re.compile(r"(\d{1,18})-(\d{1,18})")
_UPLOAD = re.compile("[0-9a-f]{32}")


class Show(StrEnum):
    """What a listing shows."""

    OBJECTS = "objects"
    VERSIONS = "versions"
    UPLOADS = "uploads"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a listing. `query` is that of the page of the object, or of the listing of the folder. `size` and
    `at_ms`, the time when it was stored, begun or deleted, are None for folders. `what` is its state in words."""

    name: str
    query: str
    is_folder: bool = False
    size: int | None = None
    at_ms: int | None = None
    what: str = ""
    version: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a listing. `after` is the query parameter of the next page; None at the end. `until_ms` is how far a
    page of the trash looked: it examined the objects that the trash keeps until then or longer; None if it saw all."""

    entries: list[Entry]
    after: str | None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. An empty bucket means the list of buckets."""

    bucket: str = ""
    prefix: str = ""
    show: Show = Show.OBJECTS
    after: str = ""

    def query(self, **changed: str) -> str:
        """Return the query of this page with some parameters changed."""
        values = {"bucket": self.bucket, "prefix": self.prefix, "show": str(self.show)}
        return urlencode({name: value for name, value in (values | changed).items() if value})


def asked(request: Request) -> Asked:
    """Return what a request asks for. Raises InvalidInput."""
    query = request.query_params
    show = query_choice(request, "show", Show.OBJECTS)
    found = Asked(query.get("bucket", ""), query.get("prefix", ""), show, query.get("after", ""))
    for name, text, bytes_max in (
        ("bucket", found.bucket, BUCKET_BYTES_MAX),
        ("prefix", found.prefix, NAME_BYTES_MAX),
        ("after", found.after, NAME_BYTES_MAX + 64),
    ):
        if len(text.encode(errors="replace")) > bytes_max:
            raise InvalidInput(f"{name} is longer than {bytes_max} bytes of UTF-8")
    return found


def listing(metadata: Metadata, page: Asked) -> Listing:
    """Return a page of a listing, or of the buckets. Raises InvalidInput, Transient."""
    if not page.bucket:
        return _buckets(metadata, page)
    return _LISTINGS[page.show](metadata, page)


def _buckets(metadata: Metadata, page: Asked) -> Listing:
    names = metadata.list_buckets(page.after, PAGE_ROWS)
    entries = [
        Entry(name, urlencode({"bucket": name}), is_folder=True, what="of the store itself" if _is_hidden(name) else "")
        for name in names
    ]
    return Listing(entries, names[-1] if len(names) == PAGE_ROWS else None)


def _is_hidden(bucket: str) -> bool:
    return hidden_prefix(bucket) is not None


def _objects(metadata: Metadata, page: Asked) -> Listing:
    found = metadata.list_entries(page.bucket, page.prefix, "/", page.after, PAGE_ROWS, BUDGET_MS)
    entries = [_folder(page, one) if isinstance(one, str) else _object(one) for one in found.entries]
    return Listing(entries, found.next_after)


def _folder(page: Asked, prefix: str) -> Entry:
    return Entry(prefix, page.query(prefix=prefix), is_folder=True)


def _object(row: ObjectRow) -> Entry:
    query = urlencode({"bucket": row.key.bucket, "name": row.key.name})
    return Entry(row.key.name, query, False, row.users_size, row.created_ms, row.state, row.version)


def _versions(metadata: Metadata, page: Asked) -> Listing:
    after = _version_mark(page.after)
    found = metadata.list_versions(page.bucket, page.prefix, "/", after, PAGE_ROWS, BUDGET_MS)
    entries = [_folder(page, one) if isinstance(one, str) else version_entry(one) for one in found.entries]
    if found.next_after is None:
        return Listing(entries, None)
    name, version = found.next_after
    return Listing(entries, f"{'' if version is None else version}/{name}")


def _version_mark(after: str) -> tuple[str, int | None]:
    """Return the place after which a page of versions begins: a version, then '/', then a name."""
    version, slash, name = after.partition("/")
    if not after:
        return "", None
    if not slash or not (version == "" or (version.isascii() and version.isdigit() and len(version) < 19)):
        raise InvalidInput(f"after={quoted(after)} is not a place in a listing of versions")
    return name, int(version) if version else None


def version_entry(one: VersionEntry) -> Entry:
    """Return the line of a version or a delete marker."""
    query = urlencode({"bucket": one.key.bucket, "name": one.key.name, "version": one.version})
    what = "delete marker" if one.row is None else one.row.state.value
    what += "" if one.is_latest else ", noncurrent"
    size = None if one.row is None else one.row.users_size
    return Entry(one.key.name, query, False, size, one.created_ms, what, one.version)


def _uploads(metadata: Metadata, page: Asked) -> Listing:
    rows = metadata.list_uploads(page.bucket, page.prefix, _upload_mark(page.after), PAGE_ROWS)
    after = f"{rows[-1].upload_id.hex()}/{rows[-1].key.name}" if len(rows) == PAGE_ROWS else None
    return Listing([_upload(row) for row in rows], after)


def _upload(row: UploadRow) -> Entry:
    what = f"{row.state}, {count_text(row.revision, 'part')} stored, upload {row.upload_id.hex()}"
    return Entry(row.key.name, "", False, None, row.since_ms, what)


def _upload_mark(after: str) -> tuple[str, UploadId] | None:
    upload_id, _, name = after.partition("/")
    if not after:
        return None
    if not _UPLOAD.fullmatch(upload_id):
        raise InvalidInput(f"after={quoted(after)} is not a place in a listing of uploads")
    return name, UploadId(bytes.fromhex(upload_id))


def _trash(metadata: Metadata, page: Asked) -> Listing:
    before = trash_mark(page.after)
    found = metadata.trash_page(before, TRASH_ROWS, page.bucket, page.prefix)
    entries = [_trashed(row) for row in found.rows]
    if found.before is None:
        return Listing(entries, None)
    return Listing(entries, f"{found.before.until_ms}-{found.before.object_id}", found.before.until_ms)


def _trashed(row: ObjectRow) -> Entry:
    key, until_ms = row.key, row.trash_until_ms
    query = urlencode({"bucket": key.bucket, "name": key.name, "trash": f"{until_ms}-{row.object_id}"})
    return Entry(key.name, query, False, row.users_size, row.trashed_ms, row.state, row.version, until_ms)


def trash_mark(text: str) -> TrashMark | None:
    """Return a place in the trash from its text; None for an empty text. Raises InvalidInput."""
    if not text:
        return None
    found = _PAIR.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{quoted(text)} is not a place in the trash")
    return TrashMark(int(found[1]), int(found[2]))


_LISTINGS: dict[Show, Callable[[Metadata, Asked], Listing]] = {
    Show.OBJECTS: _objects,
    Show.VERSIONS: _versions,
    Show.UPLOADS: _uploads,
    Show.TRASH: _trash,
}


@dataclass(frozen=True, slots=True)
class _Place:
    """A step of the path above a listing."""

    text: str
    query: str = field(default="")


def path_of(page: Asked) -> list[_Place]:
    """Return the folders above a listing, from the bucket downwards, each with its query. Of more than FOLDERS_SHOWN
    folders, those in the middle are left out: each query has the names of all folders above."""
    if not page.bucket:
        return []
    parts = page.prefix.split("/")[:-1]
    steps = [_Place(page.bucket, page.query(prefix=""))]
    for at, part in enumerate(parts):
        if at < FOLDERS_SHOWN // 2 or at >= len(parts) - FOLDERS_SHOWN // 2:
            steps.append(_Place(f"{part}/", page.query(prefix="/".join(parts[: at + 1]) + "/")))
        elif steps[-1].query:
            steps.append(_Place("\N{HORIZONTAL ELLIPSIS}"))
    return steps


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the route of the listings."""

    def objects(request: Request) -> Response:
        page = asked(request)
        found = panels.read(panels.once(("objects", page), lambda: listing(system.metadata, page)))
        return view.page(
            request,
            "objects.html",
            page.bucket or "Objects",
            status=found.status,
            page=page,
            listing=found,
            shows=list(Show),
            steps=path_of(page),
        )

    return [Route("/objects", objects)]
