"""Reads every page of every shard of a sealed block, and compares it with its checksum and with the other shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nos_ec.adapters.local.blocks.block_windows import BlockWindows, intact_head
from nos_ec.adapters.local.blocks.erasure import payload
from nos_ec.adapters.local.blocks.shard_file import Mark, Pages, ShardFile
from nos_ec.core.geometry import PAGE
from nos_ec.ports.shard_store import Contradiction, DamagedShard, ShardPart

STRIPES_NAMED_MAX = 5
"""The maximum number of stripes that are listed for the damage of a shard."""
CONTRADICTIONS_MAX = 5
"""The maximum number of stripes of a block whose contradictions are examined."""


@dataclass(slots=True)
class _Bad:
    """The bad pages of a shard."""

    pages: int = 0
    unwritten: int = 0
    first: int | None = None
    """The stripe of the first bad page."""
    stripes: list[int] = field(default_factory=list)

    def add(self, pages: Pages, stripe: int) -> None:
        if not pages.bad:
            return
        self.pages += len(pages.bad)
        self.unwritten += len(pages.unwritten)
        if self.first is None:
            self.first = stripe
        if stripe not in self.stripes[-1:] and len(self.stripes) < STRIPES_NAMED_MAX:
            self.stripes.append(stripe)


class ShardScan(BlockWindows):
    """A scan of one block."""

    def run(self) -> tuple[tuple[DamagedShard, ...], tuple[Contradiction, ...]]:
        """Read all pages. Returns the damaged shards, and the stripes whose good shards contradict each other."""
        for file in self._files.values():
            file.drop_cached()
        bad = {shard: _Bad() for shard in self._files}
        contradictions: dict[int, Contradiction] = {}
        for first, count in self.windows():
            pages = {shard: self.read_pages(file, first, count) for shard, file in self._files.items()}
            stripe = first // self._layout.chunk_pages
            for shard, one in pages.items():
                bad[shard].add(one, stripe)
            if stripe not in contradictions and len(contradictions) < CONTRADICTIONS_MAX:
                page = self._contradicting(pages, first, count)
                if page is not None:
                    contradictions[stripe] = Contradiction(stripe, self._suspect(pages, page))
            self._rate_limit(sum(one.read_bytes for one in pages.values()))
        damages = (self._damage(file, bad[shard]) for shard, file in self._files.items())
        return tuple(one for one in damages if one is not None), tuple(contradictions.values())

    def _damage(self, file: ShardFile, bad: _Bad) -> DamagedShard | None:
        parts = [
            part
            for part, wrong in (
                (ShardPart.HEAD, not intact_head(file)),
                (ShardPart.MARK, not self._marked(file)),
                (ShardPart.PAGES, bad.pages > 0),
            )
            if wrong
        ]
        if not parts:
            return None
        unwritten = parts == [ShardPart.PAGES] and bad.pages == bad.unwritten
        return DamagedShard(file.shard, tuple(parts), bad.pages, tuple(bad.stripes), bad.first if unwritten else None)

    def _marked(self, file: ShardFile) -> bool:
        try:
            mark = file.mark()
        except OSError:
            return False
        return mark is not None and (mark.gone or mark == Mark(gone=False, stripes=self.stripes))

    def _contradicting(self, pages: Mapping[int, Pages], first: int, count: int) -> int | None:
        """Return the first page whose good shards contradict each other; None if they all agree, or too few are good to
        decide."""
        data = self.decoded(pages, first, count)
        if data is not None:
            return self._odd_page(pages, data, first, count)
        for page in range(first, first + count):  # damage is scattered
            data = self.decoded(pages, page, 1)
            if data is not None and self._odd_page(pages, data, page, 1) is not None:
                return page
        return None

    def _odd_page(self, pages: Mapping[int, Pages], data: list[bytes], first: int, count: int) -> int | None:
        coded = self._coder.encode(b"".join(data))
        for shard, one in pages.items():
            right, start = bytes(payload(coded[shard])), (first - one.first) * PAGE
            if right == one.data[start : start + count * PAGE]:
                continue
            for page in range(first, first + count):
                at = (page - first) * PAGE
                if page not in one.bad and right[at : at + PAGE] != one.data[start + at : start + at + PAGE]:
                    return page
        return None

    def _suspect(self, pages: Mapping[int, Pages], page: int) -> int | None:
        """Return the only shard without which the others agree; None if there is not exactly one. With only k + 1 good
        shards, the others agree whichever is left out, so no shard is suspect."""
        good = {shard: one for shard, one in pages.items() if page not in one.bad}
        suspects = []
        for shard in good:
            others = {other: one for other, one in good.items() if other != shard}
            data = self.decoded(others, page, 1)
            if data is not None and self._odd_page(others, data, page, 1) is None:
                suspects.append(shard)
        return suspects[0] if len(suspects) == 1 else None
