"""The page of a block: every byte of its groups has its place, and a dead range says what it was and became."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from typing import Any, cast

import pytest

from nos_ec.composition.wiring import System
from nos_ec.console import block_page
from nos_ec.console.app import create_app
from nos_ec.console.block_page import (
    STRIPES_MAX,
    DeadRange,
    Fate,
    Layout,
    Piece,
    PieceKind,
    dead_range,
    read_layout,
    view_from,
    view_with,
)
from nos_ec.console.blocks import Order
from nos_ec.console.panels import Panels
from nos_ec.core.errors import NotFound
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.core.packing.empty_bytes import EmptyBytes, empty_in
from nos_ec.core.states import BlockKind
from nos_ec.core.versions import Versioning, put_ms_of
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import BlockRow, DeleteVersion, Metadata, PutRequest
from nos_gc.assemble import gc_service
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench
from tests.service.console.test_blocks_seen import make_up
from tests.service.gc.test_gc import sealed
from tests.service.packing.test_stuck_items import FailingFor
from tests.unit.console.test_console_security import Client


def packed(bench: Bench, system: System, *names: str, size: int = CHUNK) -> BlockId:
    """PUT objects of one bucket, and pack them into one block. Returns its id."""
    known = {block.block_id for block in system.metadata.list_blocks(None, 999)}
    for name in names:
        bench.put(system, name, bench.data(size))
    bench.pack(system)
    (block_id,) = {block.block_id for block in system.metadata.list_blocks(None, 999)} - known
    return block_id


def layout_of(system: System, block_id: BlockId) -> Layout:
    return read_layout(system.metadata, system.blocks, block_id)


def pieces(found: Layout, kind: PieceKind) -> list[Piece]:
    return [piece for piece in found.pieces if piece.kind is kind]


def died(system: System, block_id: BlockId) -> DeadRange:
    """The only dead range of a block."""
    (piece,) = pieces(layout_of(system, block_id), PieceKind.DEAD)
    return dead_range(system.metadata, system.blocks, piece, system.clock.now_ms())


def test_pieces_and_padding_fill_the_stripes_of_a_block(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 150)
    bench.pack(system)
    for key in keys[::3]:
        bench.delete(system, key)
    for row in sealed(system):
        found = layout_of(system, row.block_id)
        assert (found.problem, found.unconfirmed) == (None, 0)
        ends = [(piece.offset, piece.end) for piece in found.pieces]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        lengths = {kind: sum(piece.length for piece in pieces(found, kind)) for kind in PieceKind}
        assert lengths[PieceKind.LIVE] == row.live_bytes
        assert lengths[PieceKind.DEAD] == row.dead_bytes
        empty = sum((empty_in(system.geometry, header) for header in found.groups), EmptyBytes())
        assert lengths[PieceKind.HEADER] + lengths[PieceKind.NAMES] <= empty.front + empty.gap + empty.end
        assert row.live_bytes + row.dead_bytes + row.overhead_bytes == row.stripes * STRIPE
        names = {str(piece.placed.key) for piece in pieces(found, PieceKind.LIVE) if piece.placed is not None}
        assert names == {str(one.key) for one in system.metadata.placed_in(row.block_id)}


def test_a_view_has_some_stripes_and_says_where_the_others_are(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put_some(system, 150)
    bench.pack(system)
    row = sealed(system)[0]
    found = layout_of(system, row.block_id)
    whole = view_from(found, system.geometry, 0)
    assert (whole.first, whole.end, whole.before, whole.after) == (0, row.stripes, None, None)
    assert row.stripes <= STRIPES_MAX
    for piece in found.pieces:
        strips = [strip for strip in whole.strips if strip.piece is piece]
        assert sum(strip.length for strip in strips) == piece.length
        assert strips[0].stripe * STRIPE + strips[0].start == piece.offset
        assert all(strip.start >= 0 and strip.start + strip.length <= STRIPE for strip in strips)
    monkeypatch.setattr(block_page, "STRIPES_MAX", 2)
    second = view_from(found, system.geometry, 2)
    assert (second.first, second.end, second.before, second.after) == (2, 4, 0, 4)
    assert {strip.stripe for strip in second.strips} == {2, 3}
    assert view_from(found, system.geometry, 999).end == row.stripes
    assert view_from(found, system.geometry, -9).first == 0
    assert view_with(found, system.geometry, 3 * STRIPE + 5).first == 2
    monkeypatch.setattr(block_page, "PIECES_MAX", 5)
    few = view_from(found, system.geometry, 0)
    assert (few.end, few.after) == (1, 1), "at least one stripe, however many pieces it has"
    assert view_with(found, system.geometry, 3 * STRIPE + 5).first == 3


def test_a_live_object_is_found_by_any_of_its_bytes_and_padding_is_nothing(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, "a")
    found = layout_of(system, block_id)
    extent = system.metadata.get(ObjectKey("b", "a")).extent
    assert extent is not None
    for offset in (extent.offset, extent.offset + extent.length - 1):
        piece = found.piece_at(offset)
        assert piece is not None
        assert piece.placed is not None
        assert (piece.kind, piece.placed.key) == (PieceKind.LIVE, ObjectKey("b", "a"))
    assert found.piece_at(extent.offset + extent.length) is None
    assert found.piece_at(10**9) is None


def test_a_deleted_object(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, "a", "b")
    version = system.metadata.get(ObjectKey("b", "a")).version
    bench.delete(system, ObjectKey("b", "a"))
    found = died(system, block_id)
    assert (found.name, found.version, found.fate) == (ObjectKey("b", "a"), version, Fate.DELETED)
    assert found.born_ms == put_ms_of(version) <= found.packed_ms == found.died_after_ms <= found.died_by_ms
    assert found.died_by_ms <= system.clock.now_ms()
    assert (found.place, found.problem, found.key_md5) == (None, None, ObjectKey("b", "a").md5.hex())


def test_an_overwritten_object(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, "a", "b")
    bench.put(system, "a", b"new")
    found = died(system, block_id)
    assert found.fate is Fate.OVERWRITTEN
    assert found.died_by_ms == max(found.packed_ms, put_ms_of(system.metadata.get(ObjectKey("b", "a")).version))


def test_a_moved_object(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text().replace("block_grace_ms = 0", "block_grace_ms = 100000000"))
    with bench.open() as system:
        block_id = packed(bench, system, *"abcdefgh")
        for name in "bcdefgh":
            bench.delete(system, ObjectKey("b", name))
        assert gc_service(system).run_once().objects_moved == 1
        (piece,) = [
            piece
            for piece in pieces(layout_of(system, block_id), PieceKind.DEAD)
            if dead_range(system.metadata, system.blocks, piece, system.clock.now_ms()).fate is Fate.MOVED
        ]
        found = dead_range(system.metadata, system.blocks, piece, system.clock.now_ms())
        assert found.name == ObjectKey("b", "a")
        assert found.place == system.metadata.get(ObjectKey("b", "a")).extent
        assert found.packed_ms <= found.died_after_ms <= found.died_by_ms


def test_an_object_in_the_trash_is_not_dead(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text() + "[trash]\nkeep_days = 1\n")
    with bench.open() as system:
        block_id = packed(bench, system, "a", "b")
        bench.delete(system, ObjectKey("b", "a"))
        found = layout_of(system, block_id)
        (piece,) = pieces(found, PieceKind.TRASH)
        assert piece.placed is not None
        assert (piece.placed.key, pieces(found, PieceKind.DEAD)) == (ObjectKey("b", "a"), [])


def test_a_version_with_an_id_is_deleted_and_not_overwritten(bench: Bench, system: System) -> None:
    """An overwrite leaves it where it is."""
    key = ObjectKey("b", "a")
    request = PutRequest(key, versioning=Versioning.ENABLED)
    old = system.client.store().put_request(request, BytesIO(b"old"))
    block_id = packed(bench, system, "b")
    system.client.store().put_request(request, BytesIO(b"new"))
    assert pieces(layout_of(system, block_id), PieceKind.DEAD) == []
    system.metadata.delete_versions([DeleteVersion(key, old.version)], system.clock.now_ms())
    assert died(system, block_id).fate is Fate.DELETED


def test_a_block_of_a_large_object_that_was_deleted(bench: Bench, system: System) -> None:
    key = bench.put(system, "large", bench.data(20 * STRIPE))
    block_id = next(row.block_id for row in sealed(system) if row.kind is BlockKind.LARGE)
    (piece,) = pieces(layout_of(system, block_id), PieceKind.LIVE)
    assert piece.placed is not None
    assert piece.placed.key == key
    bench.delete(system, key)
    found = died(system, block_id)
    assert (found.name, found.fate) == (key, Fate.DELETED)
    assert found.segment is not None


class Earlier:
    """Metadata with a row of a block as it was before its last group."""

    def __init__(self, metadata: Metadata, row: BlockRow) -> None:
        self.placed_in = metadata.placed_in
        self.row = row

    def block(self, _: BlockId) -> BlockRow:
        return self.row


def test_a_group_that_is_added_meanwhile_is_not_shown_in_part(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, "a", "b")
    row = replace(system.metadata.block(block_id), stripes=0)
    found = read_layout(cast(Metadata, Earlier(system.metadata, row)), system.blocks, block_id)
    assert (found.pieces, found.unconfirmed) == ([], 0)


def test_rows_are_shown_while_the_block_store_is_away(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, "a", "b")
    expected = [piece.placed for piece in pieces(layout_of(system, block_id), PieceKind.LIVE)]
    (dead,) = [piece for piece in layout_of(system, block_id).pieces if piece.kind is PieceKind.HEADER]
    failing = cast(BlockStore, FailingFor(system.blocks, "read_many", {block_id}))
    found = read_layout(system.metadata, failing, block_id)
    assert [piece.placed for piece in found.pieces] == expected
    assert found.problem is not None
    assert (found.unconfirmed, dead.group is not None) == (0, True)


def test_only_what_headers_leave_out_is_called_padding(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id = packed(bench, system, "a", "b")
    end = system.metadata.block(block_id).stripes * STRIPE
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        client = Client(create_app(system, panels, None, bytes))

        def page(at: int) -> str:
            return client.get(f"/blocks/{block_id.hex()}?at={at}").text

        assert "The block ends before this place." in page(end)
        assert "<p>Padding: " in page(end - 1)
        assert "</span> padding</th>" in page(0)
        monkeypatch.setattr(system, "blocks", FailingFor(system.blocks, "read_many", {block_id}))
        assert "<p>No row places an object here." in page(end - 1)
        assert "</span> not known</th>" in page(0)


def test_a_damaged_stripe_is_not_read_but_what_rows_place_there_is_shown(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, *(f"o{number:02}" for number in range(30)))
    stripes = system.metadata.block(block_id).stripes
    assert stripes > 1

    class Damaged:
        """A block store that returns zeros for every page of headers."""

        geometry = system.geometry

        def read_many(self, _block_id: BlockId, extents: list[tuple[int, int]]) -> list[bytes]:
            return [bytes(length) for _, length in extents]

    found = read_layout(system.metadata, cast(Any, Damaged()), block_id)
    assert found.problem is None
    assert found.unconfirmed == 30 == len(pieces(found, PieceKind.LIVE))


def test_a_dead_range_whose_names_cannot_be_read(bench: Bench, system: System) -> None:
    block_id = packed(bench, system, "a", "b")
    bench.delete(system, ObjectKey("b", "a"))
    (piece,) = pieces(layout_of(system, block_id), PieceKind.DEAD)
    failing = cast(BlockStore, FailingFor(system.blocks, "read", {block_id}))
    found = dead_range(system.metadata, failing, piece, system.clock.now_ms())
    assert (found.fate, found.name) == (Fate.UNKNOWN, None)
    assert found.problem is not None


def test_a_block_without_a_row(system: System) -> None:
    with pytest.raises(NotFound):
        layout_of(system, system.new_block_id())


def test_the_console_does_not_sort_all_blocks(system: System) -> None:
    make_up(system, 50)
    with closing(Panels(system.clock, WAIT_S_MAX)) as panels:
        client = Client(create_app(system, panels, None, bytes))
        by_price, by_place = (client.get(f"/blocks/tiles.bin?order={order}").content for order in Order)
    assert len(by_price) == 12 + 8 * 50
    assert by_price == by_place
