"""Repairs blocks of the embedded block store after a disk was lost and replaced by an empty one.

Invariants kept here, in addition to those of block_store.py:
  d  A block that lacks a shard is sealed before the shard is rebuilt, so that the data being copied never changes.
  e  A shard file is written under another name. It gets its own when all of it is durable and was read back; every page
     then matches its checksum, and the good pages of all shards match each other by the coding. Only pages that more
     than m shards have lost have no checksum, so they never read as data.
  f  It gets its name under the block's lock, and only while the block exists and is not being deleted.
  g  One process rebuilds at a time, so an unfinished file that it finds was left by a dead process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nos_ec.adapters.file_system import open_new
from nos_ec.adapters.local.blocks import block_locks
from nos_ec.adapters.local.blocks.block_end import readable_stripes, sealed_stripes, whole_stripes
from nos_ec.adapters.local.blocks.block_locks import BlockLocks
from nos_ec.adapters.local.blocks.block_windows import BlockWindows, RateLimit, intact_head
from nos_ec.adapters.local.blocks.erasure import StripeCoder, payload
from nos_ec.adapters.local.blocks.shard_file import Pages, ShardFile, ShardLayout
from nos_ec.adapters.local.blocks.shard_folders import UNFINISHED, ShardFolders
from nos_ec.adapters.local.blocks.shard_scan import ShardScan
from nos_ec.adapters.local.files.durable import sync_folder, translated
from nos_ec.core.errors import Conflict, Corrupt, Transient
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.shard_store import DamagedShard, RebuiltBlock, ScrubbedBlock, ShardPart

_LOCK = "rebuild"


class LocalShards:
    """A `ShardStore` on the folders of an embedded block store (see nos_ec.ports.shard_store for the contract).

    The store must already be open as a `LocalBlockStore`, which has checked that these folders belong to it.
    """

    def __init__(self, root: Path, geometry: Geometry) -> None:
        self._lock_file = root / block_locks.FOLDER / _LOCK
        self._geometry = geometry
        self._layout = ShardLayout(geometry)
        self._folders = ShardFolders(root, self._layout)
        self._locks = BlockLocks(root)
        self._coder = StripeCoder(geometry.k, geometry.m)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the flock of the file `rebuild`, which the first run creates."""
        with translated(f"lock file {self._lock_file}"):
            fd = open_new(self._lock_file, os.O_RDWR)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict("another process is rebuilding the shards of this store; let it finish") from error
            yield
        finally:
            os.close(fd)

    def blocks_short(self) -> Mapping[int, int]:
        """Return {n: number of blocks that lack a file on n shards}."""
        return self._folders.count_short()

    def short_blocks(self) -> Iterator[BlockId]:
        """Yields the blocks that lack a file on a reachable shard, or have an unfinished one."""
        return self._folders.short_blocks()

    def rebuild(self, block_id: BlockId, rate_limit: RateLimit) -> RebuiltBlock:
        """Rebuild the shards that a block lacks. Reads all others, so it also finds the damaged ones."""
        return self._repair(block_id, frozenset(), rate_limit)

    def mend(self, block_id: BlockId, shards: Collection[int], rate_limit: RateLimit) -> RebuiltBlock:
        """Rebuild these shards and the ones that the block lacks. Shards that no longer exist count as missing."""
        return self._repair(block_id, frozenset(shards), rate_limit)

    def scrub(self, block_id: BlockId, stripes: int, rate_limit: RateLimit) -> ScrubbedBlock:
        """Read all shards of a block, without its lock: a file that is replaced meanwhile is read to its end."""
        with ExitStack() as stack:
            files, unreachable = self._folders.open(stack, block_id, write=False)
            self._folders.require(block_id, list(files.values()), unreachable)
            with translated(f"block {block_id.hex()}", block_id):
                sealed = sealed_stripes(files.values())
            stripes = stripes if sealed is None else sealed
            scan = ShardScan(self._layout, self._coder, block_id, files, stripes, rate_limit)
            damages, contradictions = scan.run()
            self._folders.require(block_id, list(files.values()), unreachable)
            lost = [shard for shard in self._folders.shards if shard not in files and shard not in unreachable]
            unreadable = self._folders.unreadable(block_id, unreachable)
            damages += tuple(DamagedShard(shard, (ShardPart.HEAD, ShardPart.MARK)) for shard in sorted(unreadable))
            away = tuple(shard for shard in unreachable if shard not in unreadable)
            return ScrubbedBlock(tuple(lost), away, damages, contradictions, scan.read_bytes)

    def _repair(self, block_id: BlockId, damaged: Collection[int], rate_limit: RateLimit) -> RebuiltBlock:
        """Rebuild missing and damaged shards. The damaged ones get their files first: while a shard is missing, the
        block is found again after a crash."""
        with ExitStack() as stack:
            with self._locks.held(block_id):
                self._remove_unfinished(block_id)
                files, unreachable = self._folders.open(stack, block_id, write=False)
                self._folders.require(block_id, list(files.values()), unreachable)
                lost = [shard for shard in self._folders.shards if shard not in files and shard not in unreachable]
                if not lost and not damaged:
                    return RebuiltBlock()
                stripes = self._sealed(block_id, files)
            copy = _Copy(self._layout, self._coder, block_id, files, stripes, rate_limit)
            copy.damaged.update(files.keys() & damaged, self._folders.unreadable(block_id, unreachable))
            # Gaps are allowed only for missing shards: they must not replace good pages of a damaged one.
            made = self._make_shards(stack, copy, lost, with_gaps=bool(lost) and not unreachable)
            replaced = frozenset() if copy.gaps else self._replace_damaged(copy)
            self._install(block_id, made)
            return RebuiltBlock(
                missing=tuple(lost),
                replaced=tuple(sorted(replaced)),
                damaged=tuple(sorted(copy.damaged - replaced)),
                unreadable=copy.unreadable,
                read_bytes=copy.read_bytes,
                written_bytes=copy.written_bytes,
            )

    def _remove_unfinished(self, block_id: BlockId) -> None:
        for shard in self._folders.shards:
            with suppress(OSError):  # if the file remains, creating it again fails, and that is reported
                self._unfinished(block_id, shard).unlink()

    def _unfinished(self, block_id: BlockId, shard: int) -> Path:
        path = self._folders.path(block_id, shard)
        return path.with_name(path.name + UNFINISHED)

    # --- the end of the block -------------------------------------------------------------------------
    def _sealed(self, block_id: BlockId, files: Mapping[int, ShardFile]) -> int:
        """Seal the block unless it is sealed, and return the number of its stripes. The block's lock must be held.

        A block whose end is uncertain is left to its writer and to recovery, because the first seal is final.
        """
        with translated(f"block {block_id.hex()}", block_id):
            stripes = sealed_stripes(files.values())
            if stripes is not None:
                with suppress(OSError):  # marks a disk that was absent when the block was sealed
                    self._mark(block_id, [file for file in files.values() if not _sealed_mark(file)], stripes)
                return stripes
            found = list(files.values())
            if len(found) < self._geometry.k:
                raise self._too_few(block_id, len(found))
            stripes = readable_stripes(self._layout, found)
            if stripes < whole_stripes(self._layout, found):
                raise Corrupt(
                    f"block {block_id.hex()} is not sealed, and its last stripe cannot be read", block_id=block_id
                )
            self._mark(block_id, found, stripes)
            return stripes

    def _mark(self, block_id: BlockId, files: Sequence[ShardFile], stripes: int) -> None:
        for found in files:
            file = self._folders.open_shard(block_id, found.shard, write=True)
            if file is None:
                continue
            try:
                file.write_seal(stripes)
                kill_point("block_store.shard_sealed")
                file.sync()
            finally:
                file.close()

    def _too_few(self, block_id: BlockId, found: int) -> Corrupt:
        return Corrupt(
            f"block {block_id.hex()}: only {found} shards are left, {self._geometry.k} are needed", block_id=block_id
        )

    # --- writing --------------------------------------------------------------------------------------
    def _make_shards(
        self, stack: ExitStack, copy: _Copy, shards: Collection[int], *, with_gaps: bool = False
    ) -> list[ShardFile]:
        """Write these shards to unfinished files, which are durable and checked on return. `stack` closes them, and
        removes the ones that were not installed."""
        made: list[ShardFile] = []
        for shard in shards:
            path = self._unfinished(copy.block_id, shard)
            with translated(f"shard folder {self._folders.folder(shard)}"):
                file = ShardFile.create(path, self._layout, copy.block_id, shard)
            stack.callback(_remove, file)
            made.append(file)
            kill_point("shard_rebuild.created")
        copy.write(made, with_gaps=with_gaps)
        for file in made:
            with translated(f"shard folder {self._folders.folder(file.shard)}"):
                file.write_seal(copy.stripes)
                file.sync()
                file.drop_cached()
                copy.check(file)
        kill_point("shard_rebuild.written")
        return made

    def _replace_damaged(self, copy: _Copy) -> frozenset[int]:
        """Replace the damaged shards whose disks can be written. Returns the shards that were replaced."""
        damaged = frozenset(copy.damaged)
        done = set()
        for shard in sorted(damaged):
            with ExitStack() as stack, suppress(Transient):
                self._install(copy.block_id, self._make_shards(stack, copy, [shard]))
                done.add(shard)
        return frozenset(done)

    def _install(self, block_id: BlockId, made: Sequence[ShardFile]) -> None:
        """Give finished files their names, durably, if the block still exists. Raises NotFound."""
        with self._locks.held(block_id), ExitStack() as stack:
            found, unreachable = self._folders.open(stack, block_id, write=False)
            self._folders.require(block_id, list(found.values()), unreachable)
            for file in made:
                path = self._folders.path(block_id, file.shard)
                with translated(f"shard folder {self._folders.folder(file.shard)}"):
                    file.path.replace(path)
                    kill_point("shard_rebuild.installed")
                    sync_folder(path.parent)


@dataclass
class _Copy(BlockWindows):
    """Computes shards of one sealed block from the others. Counts the cost, and collects the damaged shards."""

    damaged: set[int] = field(default_factory=set, init=False)
    gaps: set[int] = field(default_factory=set, init=False)
    """Page numbers that cannot be read any more."""
    written_bytes: int = field(default=0, init=False)

    def write(self, made: Sequence[ShardFile], *, with_gaps: bool) -> None:
        """Write all pages of these shards.

        With `with_gaps`, pages that cannot be read any more are left out, unless all are unreadable, or a disk may
        still return them. A page that was left out has no checksum. Raises Corrupt when too few shards have a page
        intact, or when intact pages contradict each other; NoSpace, Transient.
        """
        for shard, file in self._files.items():
            if not intact_head(file):
                self.damaged.add(shard)
        for first, count in self.windows():
            pages = {shard: self.read_pages(file, first, count) for shard, file in self._files.items()}
            written = 0
            for at, run in self._runs(pages, first, count, with_gaps=with_gaps):
                coded = self._coded(pages, at, run)
                for file in made:
                    with translated(f"shard folder {file.path.parent.parent}"):
                        file.write_pages(at, [coded[file.shard]])
                written += len(made) * run * PAGE
            self.damaged |= {shard for shard, one in pages.items() if not one.bad <= self.gaps}
            self.written_bytes += written
            self._rate_limit(sum(one.read_bytes for one in pages.values()) + written)
        if self.gaps and (not self.written_bytes or self.refused):
            raise self._unreadable(min(self.gaps))
        for file in made:
            with translated(f"shard folder {file.path.parent.parent}"):
                file.extend(self.stripes)

    def check(self, file: ShardFile) -> None:
        """Read back a shard that was written. Raises OSError, and Transient when it differs from the data written."""
        good = file.intact_head() and _sealed_mark(file) and file.size() == self._layout.size(self.stripes)
        bad: set[int] = set()
        for first, count in self.windows():
            pages = self.read_pages(file, first, count)
            bad |= pages.bad
            self._rate_limit(pages.read_bytes)
        if not good or bad != self.gaps:
            raise Transient(
                f"{file.path} does not read back as it was written: its disk is failing", block_id=self.block_id
            )

    @property
    def unreadable(self) -> tuple[int, ...]:
        """Return the stripes with gaps."""
        return tuple(sorted({page // self._layout.chunk_pages for page in self.gaps}))

    def _runs(
        self, pages: Mapping[int, Pages], first: int, count: int, *, with_gaps: bool
    ) -> Iterator[tuple[int, int]]:
        """Yields runs of readable pages: the number of the first page and the number of pages."""
        if self.readable(pages, first, count):
            yield first, count
            return
        for page in range(first, first + count):  # damage is scattered, or too severe
            if self.readable(pages, page, 1):
                yield page, 1
            elif with_gaps:
                self.gaps.add(page)
            else:
                raise self._unreadable(page)

    def _unreadable(self, page: int) -> Corrupt:
        return Corrupt(
            f"block {self.block_id.hex()}: stripe {page // self._layout.chunk_pages} cannot be read: more"
            f" than {self._layout.geometry.m} shards are lost or damaged",
            block_id=self.block_id,
        )

    def _coded(self, pages: Mapping[int, Pages], first: int, count: int) -> list[memoryview]:
        """Return these pages of all k + m shards, computed from the good ones of k."""
        data = self.decoded(pages, first, count)
        assert data is not None, "these pages are readable"
        coded = [payload(fragment) for fragment in self._coder.encode(b"".join(data))]
        self._compare(pages, coded, first, count)
        return coded

    def _compare(self, pages: Mapping[int, Pages], coded: Sequence[memoryview], first: int, count: int) -> None:
        """Raise Corrupt for pages that match their checksums but contradict the other shards."""
        for shard, one in pages.items():
            for page in range(first, first + count):
                right, found = (page - first) * PAGE, (page - one.first) * PAGE
                if page not in one.bad and bytes(coded[shard][right : right + PAGE]) != one.data[found : found + PAGE]:
                    raise Corrupt(
                        f"block {self.block_id.hex()}: stripe {page // self._layout.chunk_pages}: shard {shard}"
                        " contradicts other shards, though all match their checksums",
                        block_id=self.block_id,
                    )


def _sealed_mark(file: ShardFile) -> bool:
    mark = file.mark()
    return mark is not None and mark.stripes is not None


def _remove(file: ShardFile) -> None:
    """Close a file, and remove it if it still has the name of an unfinished one."""
    file.close()
    with suppress(OSError):
        file.path.unlink()
