"""The end of a block of the embedded block store, determined from the shard files that can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nos_ec.adapters.local.blocks.shard_file import ShardFile, ShardLayout


def sealed_stripes(files: Iterable[ShardFile]) -> int | None:
    """Return the number of stripes with which the block was sealed; None if no intact mark records it. Raises
    OSError."""
    marks = [mark for file in files if (mark := file.mark())]
    counts = [mark.stripes for mark in marks if mark.stripes is not None]
    return max(counts, default=None)


def whole_stripes(layout: ShardLayout, files: Iterable[ShardFile]) -> int:
    """Return the number of stripes for which k shards have room, whether or not their pages are good. Raises
    OSError."""
    sizes = sorted((layout.stripes(file.size()) for file in files), reverse=True)
    k = layout.geometry.k
    return sizes[k - 1] if len(sizes) >= k else 0


def readable_stripes(layout: ShardLayout, files: Sequence[ShardFile]) -> int:
    """Return the number of the last stripe that k shards can provide, plus one. Raises OSError, including when fewer
    than k shards answer, because the others may have the stripe."""
    for count in range(whole_stripes(layout, files), 0, -1):
        if _stripe_readable(layout, files, count - 1):
            return count
    return 0


def _stripe_readable(layout: ShardLayout, files: Sequence[ShardFile], stripe: int) -> bool:
    pages = layout.chunk_pages
    missing = dict.fromkeys(range(stripe * pages, (stripe + 1) * pages), layout.geometry.k)
    errors = []
    for file in files:
        try:
            bad = file.read_pages(stripe * pages, pages).bad
        except OSError as error:
            errors.append(error)
            continue
        missing = {page: left - (page not in bad) for page, left in missing.items()}
        missing = {page: left for page, left in missing.items() if left}
        if not missing:
            return True
    if errors and len(files) - len(errors) < layout.geometry.k:
        raise errors[0]
    return False
