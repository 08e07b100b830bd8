"""Reads the headers of a block, and the names after one of them."""

from __future__ import annotations

from dataclasses import dataclass

from nos_ec.core.errors import Corrupt
from nos_ec.core.formats.header import GroupHeader, NameRecord, decode_header, decode_names, peek_length
from nos_ec.core.gc.reclaim import LiveEntry
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import BlockId
from nos_ec.ports.block_store import BlockStore
from nos_ec.ports.metadata import Placed


@dataclass(frozen=True, slots=True)
class HeaderScan:
    """The headers of a block."""

    headers: tuple[GroupHeader, ...]
    """In the order of the block."""
    damaged_stripes: tuple[int, ...]
    """Stripes whose header cannot be read or decoded."""
    bytes_read: int
    unfinished: GroupHeader | None = None
    """The header of the last group, if the block ends before the group. Its writer was stopped or gave up the block, so
    no object in it was committed. It is not among `headers`."""
    unfinished_stripes: tuple[int, ...] = ()
    """The existing stripes of the unfinished group."""

    @property
    def stripes_outside_groups(self) -> tuple[int, ...]:
        """The damaged and the unfinished stripes: they belong to no group in `headers`, so only rows can show that
        something in them is live."""
        return self.damaged_stripes + self.unfinished_stripes


def scan_headers(blocks: BlockStore, block_id: BlockId, stripes: int) -> HeaderScan:
    """Read the headers of the first `stripes` stripes of a block.

    It takes two vectored reads: the first page of every stripe, then the rest of the headers that are longer than a
    page. After a damaged header, the scan continues at the next stripe (docs/FORMAT.md). A header that cannot be read
    or decoded is a damaged stripe, not an error.

    stripes: the number of stripes in the block, or of committed stripes if that is greater. A group that does not end
    within them is unfinished. Raises NotFound when the block is gone, and Transient.
    """
    stripe_size = blocks.geometry.stripe_size
    pages, bytes_read = _read_pages(blocks, block_id, [(stripe * stripe_size, PAGE) for stripe in range(stripes)])
    lengths = [_length(page, block_id, stripe) for stripe, page in enumerate(pages)]
    rest_of = [stripe for stripe, length in enumerate(lengths) if length is not None and length > PAGE]
    rests, rest_bytes = _read_pages(
        blocks, block_id, [(stripe * stripe_size + PAGE, (lengths[stripe] or 0) - PAGE) for stripe in rest_of]
    )
    rest = dict(zip(rest_of, rests, strict=True))
    headers: list[GroupHeader] = []
    damaged: list[int] = []
    unfinished: GroupHeader | None = None
    stripe = 0
    while stripe < stripes:
        header = _decode(pages[stripe], rest.get(stripe, b""), block_id, stripe)
        if header is None:
            damaged.append(stripe)
            stripe += 1
        elif stripe + header.stripe_count > stripes:
            unfinished = header
            break
        else:
            headers.append(header)
            stripe += header.stripe_count
    cut_off = () if unfinished is None else tuple(range(stripe, stripes))
    return HeaderScan(tuple(headers), tuple(damaged), bytes_read + rest_bytes, unfinished, cut_off)


def _read_pages(
    blocks: BlockStore, block_id: BlockId, extents: list[tuple[int, int]]
) -> tuple[list[bytes | None], int]:
    """Return the bytes of each extent, or None if they are Corrupt, and how many bytes were read."""
    if not extents:
        return [], 0
    size = sum(length for _, length in extents)
    try:
        return list(blocks.read_many(block_id, extents)), size
    except Corrupt:
        return [_read_page(blocks, block_id, offset, length) for offset, length in extents], size


def _read_page(blocks: BlockStore, block_id: BlockId, offset: int, length: int) -> bytes | None:
    try:
        return blocks.read(block_id, offset, length)
    except Corrupt:
        return None


def _length(page: bytes | None, block_id: BlockId, stripe: int) -> int | None:
    if page is None:
        return None
    try:
        return peek_length(page, block_id, stripe)
    except Corrupt:
        return None


def _decode(page: bytes | None, rest: bytes | None, block_id: BlockId, stripe: int) -> GroupHeader | None:
    if page is None or rest is None:
        return None
    try:
        return decode_header(page + rest, block_id, stripe)
    except Corrupt:
        return None


def read_names(blocks: BlockStore, header: GroupHeader) -> list[NameRecord]:
    """Return the name records of a group in the order of the header's entries; none if it was written without names.

    Raises Corrupt when they are damaged, NotFound when the block is gone, and Transient.
    """
    if not header.names_length:
        return []
    start = header.first_stripe * blocks.geometry.stripe_size + header.names_offset
    data = blocks.read(header.block_id, start, header.names_length)
    return decode_names(data, header.names_crc32c, len(header.entries))


def names_in(blocks: BlockStore, block_id: BlockId, stripes: int) -> list[str]:
    """Return BUCKET/NAME of all objects and segments of large objects that were written to a block. Leaves out damaged
    headers and names. Raises NotFound when the block is gone, and Transient."""
    found: list[str] = []
    for header in scan_headers(blocks, block_id, stripes).headers:
        try:
            found += [f"{one.bucket}/{one.name}" for one in read_names(blocks, header)]
        except Corrupt:
            continue
    return found


def live_entries(placed: list[Placed]) -> list[LiveEntry]:
    """Return the rows of a block in the form that `account_block` takes."""
    return [LiveEntry(p.key.md5, p.version, p.extent.offset, p.extent.length) for p in placed]
