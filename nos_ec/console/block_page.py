"""The page of one block: its stripes to scale, and what any place of them holds or held.

The row of a block, the rows that place objects in it and its headers are read once for a page. Without headers (Ceph
may be away) the objects are still shown, because rows know where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nos_ec.composition.explaining import block_explainer, object_explainer
from nos_ec.composition.wiring import System
from nos_ec.console.blocks import KIND_TEXTS, STATE_TEXTS
from nos_ec.console.panels import Panel, Panels
from nos_ec.console.view import View, query_number
from nos_ec.core.errors import Corrupt, InvalidInput, NosError, NotFound
from nos_ec.core.formats.header import GroupHeader, NameRecord
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, Extent, ObjectKey, time_of
from nos_ec.core.versions import has_version_id, put_ms_of
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.engine.header_scan import HeaderScan, read_names, scan_headers
from nos_ec.engine.objects.large_places import own_extents
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, Metadata, ObjectRow, Placed

STRIPES_MAX = 64
"""The most stripes in a view."""
TITLE_CHARS_MAX = 100
"""The most characters of a name in the title of a piece; the panel of the piece has the whole name."""
_ID = re.compile("[0-9a-f]{32}")
PIECES_MAX = 4000
"""The most pieces in a view: if its stripes hold more, the view has fewer stripes."""


class PieceKind(StrEnum):
    """The content of a range of a block."""

    HEADER = "header"
    """The header of a group: what was written, and where."""
    NAMES = "names"
    """The names after a header."""
    LIVE = "live"
    """An object, or a segment of a large one, that a row places here."""
    TRASH = "trash"
    """An object that was deleted, and that the trash still keeps."""
    DEAD = "dead"
    """An object that a header names, and that no row places here any more."""
    UNREAD = "unread"
    """A stripe whose header cannot be read, or that belongs to an unfinished group."""


KIND_WORDS = {
    PieceKind.HEADER: "header",
    PieceKind.NAMES: "names",
    PieceKind.LIVE: "live object",
    PieceKind.TRASH: "object in the trash",
    PieceKind.DEAD: "dead range",
    PieceKind.UNREAD: "stripe without a readable header",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a block other than padding. `offset` is from the start of the block; both are in bytes.

    `group` and `entry` are the group that names it, and its place among the entries, if a header does. `placed` is its
    row, for LIVE and TRASH.
    """

    kind: PieceKind
    offset: int
    length: int
    group: GroupHeader | None = None
    entry: int | None = None
    placed: Placed | None = None

    @property
    def end(self) -> int:
        """Return the offset after its last byte."""
        return self.offset + self.length

    @property
    def title(self) -> str:
        """Return the name of its object, shortened, if a row has it; otherwise its kind in words."""
        if self.placed is None:
            return KIND_WORDS[self.kind]
        name = str(self.placed.key)
        return name if len(name) <= TITLE_CHARS_MAX else f"{name[: TITLE_CHARS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The pieces of a block, in the order of their offsets. `problem` is why its headers could not be read, or None.
    `unconfirmed` counts the live objects that no readable header names."""

    row: BlockRow
    pieces: list[Piece]
    groups: tuple[GroupHeader, ...]
    problem: str | None
    unconfirmed: int

    def piece_at(self, offset: int) -> Piece | None:
        """Return the piece that holds this byte; None for padding, and outside the block."""
        return next((piece for piece in self.pieces if piece.offset <= offset < piece.end), None)


@dataclass(frozen=True, slots=True)
class Strip:
    """The part of a piece in one stripe. `start` and `length` are in bytes from the start of the stripe."""

    piece: Piece
    stripe: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockView:
    """Some stripes of a block, numbered from `first` up to `end`, without `end`. `before` and `after` are the first
    stripes of the views before and after it, or None."""

    first: int
    end: int
    strips: list[Strip]
    before: int | None
    after: int | None


class Fate(StrEnum):
    """The later life of the object that a dead range held."""

    MOVED = "moved"
    """The same version is stored elsewhere now: GC moved it, or its group was written again."""
    LANDED = "landed"
    """The same version waits to be packed again, because its packed bytes could not be verified."""
    OVERWRITTEN = "overwritten"
    """Its key has a newer version."""
    DELETED = "deleted"
    """Its version does not exist any more."""
    UNKNOWN = "unknown"
    """Its name cannot be read."""


@dataclass(frozen=True, slots=True)
class DeadRange:
    """A dead range. Times are in Unix milliseconds.

    `name` is None if the group was written without names or they cannot be read; then `problem` may say why. `segment`:
    see NameRecord. `born_ms` is when its version was stored, `packed_ms` when its group was written. It died after
    `died_after_ms` and by `died_by_ms`: no record shows more exactly when. `place` is where its bytes are now, if its
    fate is MOVED. `who` did it is recorded nowhere but in the audit trail.
    """

    key_md5: str
    version: int
    name: ObjectKey | None
    name_text: str | None
    segment: tuple[int, int] | None
    born_ms: int
    packed_ms: int
    fate: Fate
    died_after_ms: int
    died_by_ms: int
    place: Extent | None
    problem: str | None


FATE_WORDS = {
    Fate.MOVED: "the same version is stored elsewhere now: GC moved it, or its group was written again",
    Fate.LANDED: "the same version waits to be packed again, because its packed bytes could not be verified",
    Fate.OVERWRITTEN: "it was overwritten: its key has a newer version",
    Fate.DELETED: "its version does not exist any more: it was deleted, or expired",
    Fate.UNKNOWN: "unknown, because its name cannot be read",
}


@dataclass(frozen=True, slots=True)
class Sum:
    """The pieces of one kind in a block: their number and their bytes. `kind` is None for padding."""

    kind: PieceKind | None
    count: int
    size_bytes: int


def read_layout(metadata: Metadata, blocks: BlockStore, block_id: BlockId) -> Layout:
    """Return what a block holds. Raises NotFound if it has no row, and Transient if the metadata is unavailable."""
    row = metadata.block(block_id)
    size = row.stripes * blocks.geometry.stripe_size
    placed = [one for one in metadata.placed_in(block_id) if one.extent.offset < size]  # without groups added since
    problem, scan = None, HeaderScan((), (), 0)
    try:
        scan = scan_headers(blocks, block_id, row.stripes)
    except NosError as error:
        problem = str(error)
    rest = {(one.key.md5, one.version, one.extent.offset, one.extent.length): one for one in placed}
    stripe_size = blocks.geometry.stripe_size
    pieces = [piece for header in scan.headers for piece in _of_group(header, stripe_size, rest)]
    unconfirmed = len(rest) if problem is None else 0
    pieces += [_of_row(one) for one in rest.values()]
    if problem is None:
        taken = {piece.offset // stripe_size for piece in pieces}
        unread = [stripe for stripe in scan.stripes_outside_groups if stripe not in taken]
        pieces += [Piece(PieceKind.UNREAD, stripe * stripe_size, stripe_size) for stripe in unread]
    pieces.sort(key=lambda piece: piece.offset)
    return Layout(row, pieces, scan.headers, problem, unconfirmed)


def _of_group(
    header: GroupHeader, stripe_size: int, rest: dict[tuple[bytes, int, int, int], Placed]
) -> Iterator[Piece]:
    """Yield the pieces of a group, and take its live objects from `rest`."""
    start = header.first_stripe * stripe_size
    yield Piece(PieceKind.HEADER, start, header.header_length, header)
    if header.names_length:
        yield Piece(PieceKind.NAMES, start + header.names_offset, header.names_length, header)
    for number, entry in enumerate(header.entries):
        offset = start + entry.offset
        placed = rest.pop((entry.key_md5, entry.object_version, offset, entry.length), None)
        kind = PieceKind.DEAD if placed is None else _kind_of(placed)
        yield Piece(kind, offset, entry.length, header, number, placed)


def _of_row(placed: Placed) -> Piece:
    return Piece(_kind_of(placed), placed.extent.offset, placed.extent.length, placed=placed)


def _kind_of(placed: Placed) -> PieceKind:
    return PieceKind.LIVE if placed.trash_until_ms is None else PieceKind.TRASH


def view_from(layout: Layout, geometry: Geometry, first: int) -> BlockView:
    """Return up to STRIPES_MAX stripes from `first`, which is moved into the block if it is outside."""
    stripes, size = layout.row.stripes, geometry.stripe_size
    first = max(0, min(first, stripes - 1))
    end = min(stripes, first + STRIPES_MAX)
    strips: list[Strip] = []
    for piece in layout.pieces:
        if piece.end <= first * size or piece.offset >= end * size:
            continue
        if len(strips) >= PIECES_MAX and piece.offset // size > first:
            end = piece.offset // size
            break
        strips += _strips(piece, size, first, end)
    strips = [strip for strip in strips if strip.stripe < end]
    before = max(0, first - STRIPES_MAX) if first else None
    return BlockView(first, end, strips, before, end if end < stripes else None)


def _strips(piece: Piece, stripe_size: int, first: int, end: int) -> Iterator[Strip]:
    for stripe in range(max(first, piece.offset // stripe_size), min(end, -(-piece.end // stripe_size))):
        start = max(piece.offset - stripe * stripe_size, 0)
        yield Strip(piece, stripe, start, min(piece.end - stripe * stripe_size, stripe_size) - start)


def view_with(layout: Layout, geometry: Geometry, offset: int) -> BlockView:
    """Return the view that shows the byte at this offset."""
    stripe = offset // geometry.stripe_size
    view = view_from(layout, geometry, stripe // STRIPES_MAX * STRIPES_MAX)
    return view if view.first <= stripe < view.end else view_from(layout, geometry, stripe)


def dead_range(metadata: Metadata, blocks: BlockStore, piece: Piece, now_ms: int) -> DeadRange:
    """Return what a dead range was and what became of it. Reads the names of its group. Raises Transient if the
    metadata is unavailable."""
    assert piece.group is not None, "a header names every dead range"
    assert piece.entry is not None
    header, entry = piece.group, piece.group.entries[piece.entry]
    record, problem = _record(blocks, header, piece.entry)
    key, name_text = _key_of(record)
    packed_ms, version = header.written_at_ms, entry.object_version
    fate, place, died_after_ms, died_by_ms = Fate.UNKNOWN, None, packed_ms, now_ms
    if key is not None and record is not None:
        fate, place, changed_ms = _fate(metadata, key, version, record.attributes, piece)
        if fate is Fate.MOVED and changed_ms is not None:
            died_after_ms = max(packed_ms, changed_ms)
        elif changed_ms is not None:
            died_by_ms = max(packed_ms, min(changed_ms, now_ms))
    return DeadRange(
        key_md5=entry.key_md5.hex(),
        version=version,
        name=key,
        name_text=name_text,
        segment=None if record is None else record.segment,
        born_ms=put_ms_of(version),
        packed_ms=packed_ms,
        fate=fate,
        died_after_ms=died_after_ms,
        died_by_ms=died_by_ms,
        place=place,
        problem=problem,
    )


def _record(blocks: BlockStore, header: GroupHeader, entry: int) -> tuple[NameRecord | None, str | None]:
    """Return the name of an entry, or None and why it is not known."""
    try:
        names = read_names(blocks, header)
    except NosError as error:
        return None, str(error)
    return (names[entry], None) if names else (None, "its group was written without names")


def _key_of(record: NameRecord | None) -> tuple[ObjectKey | None, str | None]:
    """Return the key of a name, which is None if today's rules refuse the name, and the name as text."""
    if record is None:
        return None, None
    try:
        return ObjectKey(record.bucket, record.name), f"{record.bucket}/{record.name}"
    except InvalidInput:
        return None, f"{record.bucket}/{record.name}"


def _fate(
    metadata: Metadata, key: ObjectKey, version: int, attributes: bytes, piece: Piece
) -> tuple[Fate, Extent | None, int | None]:
    """Return what became of a version: its fate, its present place if it moved, and when that was: for MOVED the
    earliest time, otherwise the latest one; None if nothing shows it."""
    current = metadata.rows_of([key]).get(key)
    row = current if current is not None and current.version == version else _noncurrent(metadata, key, version)
    if row is not None:
        places = own_extents(metadata, row)
        if not places:
            return Fate.LANDED, None, None
        place = _same_place(places, piece)
        return Fate.MOVED, place, time_of(place.block_id)
    if current is not None and current.version > version and not _is_version(attributes):
        return Fate.OVERWRITTEN, None, put_ms_of(current.version)
    return Fate.DELETED, None, None


def _noncurrent(metadata: Metadata, key: ObjectKey, version: int) -> ObjectRow | None:
    """Return the row of a version that is not current: one with an id, or the null version; None if it is gone."""
    for asked in (version, None):
        try:
            row = metadata.version(key, asked).row
        except NotFound:
            continue
        if row is not None and row.version == version:
            return row
    return None


def _same_place(places: Sequence[Extent], piece: Piece) -> Extent:
    """Return the place of a moved object: of several segments the one with the same length."""
    return next((place for place in places if place.length == piece.length), places[0])


def _is_version(attributes: bytes) -> bool:
    """Return whether these attributes are those of a version with an id, which an overwrite leaves alone."""
    try:
        return has_version_id(attributes)
    except Corrupt:
        return False


def sums(layout: Layout, geometry: Geometry) -> list[Sum]:
    """Return the bytes of a block by what they hold; they add up to its stripes."""
    found = []
    for kind in PieceKind:
        lengths = [piece.length for piece in layout.pieces if piece.kind is kind]
        if lengths:
            found.append(Sum(kind, len(lengths), sum(lengths)))
    rest = layout.row.stripes * geometry.stripe_size - sum(one.size_bytes for one in found)
    return [*found, Sum(None, 0, rest)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The piece that was clicked; None for padding. `dead` says what a dead range was, `explained` why an object is
    here; each is None where it does not apply. `is_explained` is False if the explanation is about another version of
    the key, because this one is not current."""

    offset: int
    piece: Piece | None
    dead: DeadRange | None = None
    explained: ObjectExplanation | None = None
    is_explained: bool = True


def chosen_piece(system: System, layout: Layout, offset: int) -> Chosen:
    """Return what the byte at this offset belongs to. Raises Transient."""
    piece = layout.piece_at(offset)
    if piece is None:
        return Chosen(offset, None)
    if piece.kind is PieceKind.DEAD:
        found = dead_range(system.metadata, system.blocks, piece, system.clock.now_ms())
        return Chosen(offset, piece, dead=found)
    if piece.kind is not PieceKind.LIVE or piece.placed is None:
        return Chosen(offset, piece)
    try:
        explained = object_explainer(system).explain(piece.placed.key)
    except NotFound:
        return Chosen(offset, piece, is_explained=False)
    return Chosen(offset, piece, explained=explained, is_explained=explained.version == piece.placed.version)


def routes(system: System, panels: Panels, view: View) -> list[Route]:
    """Return the route of the page."""

    def block(request: Request) -> Response:
        block_id = _block_id(request.path_params["block"])
        at, first = (query_number(request, name) for name in ("at", "first"))
        explained = panels.once(("block", block_id), lambda: block_explainer(system).explain(block_id))
        layout = panels.once(("layout", block_id), lambda: read_layout(system.metadata, system.blocks, block_id))
        panels.wait_for(explained, layout)
        found: Panel[Layout] = panels.shown(layout)
        chosen = None
        if at is not None and (read := found.value) is not None:
            chosen = panels.read(panels.once(("place", block_id, at), lambda: chosen_piece(system, read, at)))

        def shown(read: Layout) -> BlockView:
            if at is not None and first is None:
                return view_with(read, system.geometry, at)
            return view_from(read, system.geometry, first or 0)

        return view.page(
            request,
            "block.html",
            f"Block {block_id.hex()}",
            status=panels.shown(explained).status,
            block=block_id.hex(),
            explained=panels.shown(explained),
            layout=found,
            chosen=chosen,
            at=at,
            shown=shown,
            sums=lambda read: sums(read, system.geometry),
            geometry=system.geometry,
            kinds=KIND_TEXTS,
            states=STATE_TEXTS,
            kind_words=KIND_WORDS,
            fate_words=FATE_WORDS,
        )

    return [Route("/blocks/{block}", block)]


def _block_id(text: str) -> BlockId:
    if not _ID.fullmatch(text):
        raise HTTPException(404)
    return BlockId(bytes.fromhex(text))
