"""The page of one object: why it is where it is, where its bytes are, its versions, and its life as a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.explaining import object_explainer
from nos_ec.composition.wiring import System
from nos_ec.console.objects import BUDGET_MS, Entry, trash_mark, version_entry
from nos_ec.console.panels import Panels
from nos_ec.console.view import View, query_number
from nos_ec.core.errors import NosError, NotFound
from nos_ec.core.ids import Extent, ObjectKey, in_log, segment_of, time_of
from nos_ec.core.states import BlockKind
from nos_ec.core.versions import put_ms_of
from nos_ec.engine.explain.objects import ObjectExplanation, known_lock
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.objects.large_places import own_extents, tail_of, with_tail
from nos_ec.ports.metadata import ObjectRow, ScrubPass, TrashMark, VersionEntry

PLACES_MAX = 100
"""The most places of a large object that the page lists."""
SAFETY_BLOCKS_MAX = 20
"""The most blocks of a large object whose shards are looked for."""
VERSIONS_MAX = 50
VERSION_DIGITS_MAX = 18
"""Every database can compare such a number."""


@dataclass(frozen=True, slots=True)
class Event:
    """A moment in the life of an object. `source` says which record shows the time."""

    at_ms: int
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class Safety:
    """How the blocks of a version are kept. `blocks` of them were looked at, and `more` were not. The worst of them
    lacks the shards `missing`; None if the storage system finds and repairs missing shards itself. `scrub` is the last
    complete pass over the whole store, if it began after all these blocks did."""

    blocks: int
    more: int
    missing: Sequence[int] | None
    scrub: ScrubPass | None


@dataclass(frozen=True, slots=True)
class Life:
    """An object and its life. `row` is None for a delete marker. `explained` is None unless it is the current version.
    `unknown` are questions without an answer, each with the cause. `lock` says until when, and why, the version may
    not be deleted; None without a retention or a legal hold."""

    key: ObjectKey
    version: int
    is_current: bool
    row: ObjectRow | None
    events: list[Event]
    places: list[Extent]
    places_left_out: int
    versions: list[Entry]
    explained: ObjectExplanation | None
    unknown: list[str]
    safety: Safety | None
    lock: str | None


def find_life(system: System, key: ObjectKey, version: int | None, trash: TrashMark | None) -> Life:
    """Return the current version of an object, or another version, or one in the trash. Raises NotFound, Transient."""
    unknown: list[str] = []
    row: ObjectRow | None
    if trash is not None:
        row, explained = system.client.trash().at(key, trash), None
        found_version, created_ms = row.version, row.created_ms
    elif version is not None:
        entry = _version(system, key, version)
        row, found_version, created_ms = entry.row, entry.version, entry.created_ms
        explained = object_explainer(system).explain(key) if entry.is_latest and row is not None else None
    else:
        explained = object_explainer(system).explain(key)
        row = system.metadata.get(key)
        found_version, created_ms = row.version, row.created_ms
    extents = _extents(system, row)
    events = [Event(created_ms, "stored" if row is not None else "deleted: this is a delete marker", "its row")]
    if row is not None:
        events += _waiting(system, row, explained)
        events += _packed(system, row, unknown)
        events += _in_trash(row)
    safety = _safety(system, extents, unknown)
    versions = system.metadata.list_versions(key.bucket, key.name, "", ("", None), VERSIONS_MAX, BUDGET_MS)
    return Life(
        key,
        found_version,
        explained is not None,
        row,
        sorted(events, key=lambda event: event.at_ms),
        extents[:PLACES_MAX],
        max(0, len(extents) - PLACES_MAX),
        [version_entry(one) for one in versions.entries if not isinstance(one, str) and one.key == key],
        explained,
        unknown,
        safety,
        None if row is None else known_lock(row, unknown),
    )


def _version(system: System, key: ObjectKey, version: int) -> VersionEntry:
    """Return the version with this number, which may be the null version."""
    metadata = system.metadata
    current = metadata.rows_of([key]).get(key)
    if current is not None and current.version == version:
        return VersionEntry(key, version, current.created_ms, not current.has_version_id, current, is_latest=True)
    for asked in (version, None):
        try:
            entry = metadata.version(key, asked)
        except NotFound:
            continue
        if entry.version == version:
            return entry
    raise NotFound(f"object {key} has no version {version}", key=key)


def _extents(system: System, row: ObjectRow | None) -> list[Extent]:
    if row is None:
        return []
    own = own_extents(system.metadata, row)
    return with_tail(own, tail_of(system.metadata, row, own))


def _waiting(system: System, row: ObjectRow, explained: ObjectExplanation | None) -> Iterator[Event]:
    """Yield what the way to a block has recorded, while the object waits to be packed."""
    if row.landing_id is not None and in_log(row.landing_id):
        segment = system.metadata.landing_segment(segment_of(row.landing_id))
        if segment is not None and segment.sealed_ms is not None:
            yield Event(segment.sealed_ms, "its segment of the landing log was sealed", "the row of the segment")
    if explained is not None and explained.publishing is not None and explained.publishing.published_ms is not None:
        yield Event(explained.publishing.published_ms, "published to the message log", "the row of the waiting object")


def _packed(system: System, row: ObjectRow, unknown: list[str]) -> Iterator[Event]:
    """Yield when the group was written that holds the object now. Reads the headers of its block."""
    if row.extent is None:
        return
    try:
        block = system.metadata.block(row.extent.block_id)
        headers = scan_headers(system.blocks, row.extent.block_id, block.stripes).headers
    except NosError as error:
        unknown.append(f"when it was packed: {error}")
        return
    stripe = row.extent.offset // system.geometry.stripe_size
    what = "moved by GC to its present block" if block.kind is BlockKind.SURVIVOR else "packed into its present block"
    for header in headers:
        if header.first_stripe <= stripe < header.first_stripe + header.stripe_count:
            yield Event(header.written_at_ms, what, "the header of its group")
            return
    yield Event(time_of(row.extent.block_id), f"{what}, or later", "the id of the block; its header cannot be read")


def _safety(system: System, extents: Sequence[Extent], unknown: list[str]) -> Safety | None:
    """Return how the blocks of these extents are kept. None if there are none, or if that cannot be found out."""
    every = list(dict.fromkeys(extent.block_id for extent in extents))
    blocks = every[:SAFETY_BLOCKS_MAX]
    if not blocks:
        return None
    try:
        missing = max((system.blocks.missing_shards(one) for one in blocks), key=len)
    except NosError as error:
        unknown.append(f"which shards its blocks lack: {error}")
        return None
    state = system.metadata.scrub_state()
    last = None if state is None else state.last
    begun_ms = max(map(time_of, every))
    return Safety(
        len(blocks),
        len(every) - len(blocks),
        None if system.settings.store.backend == "ceph" else missing,
        None if last is None or last.began_ms < begun_ms else last,
    )


def _in_trash(row: ObjectRow) -> Iterator[Event]:
    if row.trashed_ms is not None:
        yield Event(row.trashed_ms, "deleted into the trash", "the mark of its row")
    if row.trash_until_ms is not None:
        yield Event(row.trash_until_ms, "the trash keeps it until then", "the mark of its row")


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the route of the page."""

    def one(request: Request) -> Response:
        query = request.query_params
        key = ObjectKey(query.get("bucket", ""), query.get("name", ""))
        version, trash = query_number(request, "version", VERSION_DIGITS_MAX), trash_mark(query.get("trash", ""))
        life = panels.read(panels.once(("object", key, version, trash), lambda: find_life(system, key, version, trash)))
        return view.page(
            request,
            "object.html",
            str(key),
            status=life.status,
            key=key,
            life=life,
            put_ms_of=put_ms_of,
            versions_max=VERSIONS_MAX,
            geometry=system.geometry,
        )

    return [Route("/objects/one", one)]
