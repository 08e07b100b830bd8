"""The embedded block store: k + m folders, one per shard, with real Reed-Solomon coding between them.

    root/store.json              format, version and geometry; written last, so a root that has it is complete
    root/locks/00 .. ff          empty files; a writer holds an flock on the one that its block's id selects
    root/shard-00 .. shard-NN/   one folder per shard: mount disks here
        identity.json            the numbers of shard and store (see shard_identity.py)
        0 .. f/                  last hexadecimal digit of the block's id (the first digits may be a time)
            <block id, hex>      one shard of one block (see shard_file.py)
            <block id>.new       the same while it is rebuilt (see shard_rebuild.py); never read

Invariants kept here:
  1  (of docs/INVARIANTS.md) Acknowledged stripes are on k + m shards and can be read back from any k of them.
  a  The block's lock (block_locks.py) lets one writer at a time change a block.
  b  An append writes only after the stripes that all k + m shards already hold, and only if they all end at `at_stripe`
     without a mark. So after a torn append, a seal or the loss of a shard, the block accepts no more appends.
  c  A mark on a shard is never removed. One marked shard is enough to refuse an append.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from nos_ec.adapters.local.blocks.block_end import readable_stripes, sealed_stripes
from nos_ec.adapters.local.blocks.block_locks import BlockLocks
from nos_ec.adapters.local.blocks.block_reader import BlockReader
from nos_ec.adapters.local.blocks.block_store_folder import check_store, initialise
from nos_ec.adapters.local.blocks.erasure import StripeCoder, payload
from nos_ec.adapters.local.blocks.shard_file import ShardFile, ShardLayout
from nos_ec.adapters.local.blocks.shard_folders import FAN_OUT, ShardFolders
from nos_ec.adapters.local.blocks.shard_identity import refuse_foreign
from nos_ec.adapters.local.files.durable import sync_folder, translated
from nos_ec.adapters.local.files.probe import probe_folder
from nos_ec.core.errors import Conflict, NoSpace, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.block_store import ReadCounters

WINDOW_BYTES = 4 << 20
"""A longer append is coded in pieces of this size (but at least one stripe)."""


class LocalBlockStore:
    """A `BlockStore` on folders (see nos_ec.ports.block_store for the contract).

    Reading and sealing work with up to m shard folders lost; creating and appending need all of them.
    Opening raises ConfigError when `root` was not initialised or has another geometry, or when a shard folder belongs
    to another shard or store. It raises Transient when more than m shard folders are missing.
    """

    def __init__(self, root: Path, geometry: Geometry) -> None:
        self._root = root
        self._geometry = geometry
        self._layout = ShardLayout(geometry)
        self._folders = ShardFolders(root, self._layout)
        self._shards = self._folders.shards
        store_id = check_store(root, geometry)
        self._locks = BlockLocks(root)
        for shard in self._shards:
            refuse_foreign(self._folders.folder(shard), store_id, shard)
        lost = [shard for shard in self._shards if not self._folders.folder(shard).is_dir()]
        if len(lost) > geometry.m:
            folders = ", ".join(str(self._folders.folder(shard)) for shard in lost)
            raise Transient(f"{len(lost)} shard folders are missing, more than m = {geometry.m}: mount {folders}")
        self._coder = StripeCoder(geometry.k, geometry.m)
        self._pool = ThreadPoolExecutor(max_workers=len(self._shards), thread_name_prefix="shard-sync")
        self._counters_lock = threading.Lock()
        self._counters = ReadCounters(0, 0, 0)

    @classmethod
    def initialise(cls, root: Path, geometry: Geometry, new_shards: Collection[int] = ()) -> None:
        """Create the folders of a store, durably; see block_store_folder.initialise."""
        initialise(root, geometry, new_shards)

    @property
    def geometry(self) -> Geometry:
        """Return the geometry that the store was created with."""
        return self._geometry

    # --- writing --------------------------------------------------------------------------------------

    def create(self, block_id: BlockId, data: bytes | bytearray | memoryview = b"") -> None:
        """Create a block on all shards, and write its first stripes before the first sync. When space runs out, remove
        the files that were created."""
        try:
            self._create(block_id, data)
        except NoSpace:
            self.delete(block_id)
            raise

    def _create(self, block_id: BlockId, data: bytes | bytearray | memoryview) -> None:
        stripes = self._stripes_of(data, 0) if data else memoryview(b"")
        with self._locks.held(block_id), ExitStack() as stack:
            found, unreachable = self._folders.open(stack, block_id, write=True)
            if found:
                raise Conflict(f"block {block_id.hex()} exists", block_id=block_id)
            self._folders.refuse_unreachable(unreachable)
            files = []
            for shard in self._shards:
                path = self._folders.path(block_id, shard)
                with translated(f"shard folder {path.parent.parent}"):
                    files.append(ShardFile.create(path, self._layout, block_id, shard))
                stack.callback(files[-1].close)
                kill_point("block_store.shard_created")
            kill_point("block_store.created")
            self._write(files, 0, stripes)
            self._sync_folders(block_id, self._shards)

    def append(self, block_id: BlockId, at_stripe: int, data: bytes | bytearray | memoryview) -> None:
        """Append whole stripes at `at_stripe`, which must be the block's end on every shard."""
        stripes = self._stripes_of(data, at_stripe)
        with self._locks.held(block_id), ExitStack() as stack:
            self._write(self._open_for_append(stack, block_id, at_stripe), at_stripe, stripes)

    def seal(self, block_id: BlockId) -> int:
        """Mark every reachable shard. An earlier mark determines the number of stripes, so the result never changes."""
        with self._locks.held(block_id), ExitStack() as stack:
            found, unreachable = self._folders.open(stack, block_id, write=True)
            files = list(found.values())
            self._folders.require(block_id, files, unreachable)
            if len(files) < self._geometry.k:
                self._folders.refuse_unreachable(unreachable)
            with translated(f"block {block_id.hex()}", block_id):
                stripes = sealed_stripes(files)
                stripes = readable_stripes(self._layout, files) if stripes is None else stripes
            self._mark(files, stripes)
            return stripes

    def delete(self, block_id: BlockId) -> None:
        """Delete all files of a block. If a shard folder is lost, deletes the others and then raises Transient."""
        with self._locks.held(block_id), ExitStack() as stack:
            found, refused = self._folders.open(stack, block_id, write=True)
            # Deleting a file needs permission to write to its folder, no matter who owns the file.
            unreachable = {shard: error for shard, error in refused.items() if not isinstance(error, PermissionError)}
            # Because of the mark, readers that find some shards already gone report NotFound instead of Corrupt. The
            # mark needs no sync: after a power cut, a second call finds the remaining files.
            for file in found.values():
                with suppress(OSError):
                    file.write_gone()
            for shard in self._shards:
                if shard not in unreachable:
                    with translated(f"shard folder {self._folders.folder(shard)}"):
                        self._folders.path(block_id, shard).unlink(missing_ok=True)
                    kill_point("block_store.shard_deleted")
            self._sync_folders(block_id, [shard for shard in self._shards if shard not in unreachable])
        self._folders.refuse_unreachable(unreachable)

    # --- reading --------------------------------------------------------------------------------------

    def read(self, block_id: BlockId, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes."""
        return self.read_many(block_id, [(offset, length)])[0]

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of one block. Each shard file is opened at most once."""
        with BlockReader(self._folders, self._layout, self._coder, block_id) as reader:
            try:
                return [reader.read(offset, length) for offset, length in extents]
            finally:
                self._count(reader)

    def stripes(self, block_id: BlockId) -> int:
        """Return the number in the seal, or else the number of stripes that can be read now. Raises Transient while
        fewer than k shards can be reached, because the readable stripes then do not determine the block's end."""
        with ExitStack() as stack:
            found, unreachable = self._folders.open(stack, block_id, write=False)
            files = list(found.values())
            self._folders.require(block_id, files, unreachable)
            with translated(f"block {block_id.hex()}", block_id):
                stripes = sealed_stripes(files)
            if stripes is not None:
                return stripes
            if len(files) < self._geometry.k:
                self._folders.refuse_unreachable(unreachable)
            with translated(f"block {block_id.hex()}", block_id):
                return readable_stripes(self._layout, files)

    def list_blocks(self) -> Iterator[BlockId]:
        """Yields every block that has a file on a reachable shard. Raises Transient at the end while more than m shards
        are lost: the listing may then lack blocks."""
        seen: set[bytes] = set()
        unreachable: dict[int, OSError] = {}
        for entry in self._folders.entries(unreachable):
            with suppress(ValueError):
                block_id = bytes.fromhex(entry.name)
                if len(block_id) == 16 and block_id not in seen:
                    seen.add(block_id)
                    yield BlockId(block_id)
        if len(unreachable) > self._geometry.m:
            self._folders.refuse_unreachable(unreachable)

    def free_bytes(self) -> int:
        """Return the size of the whole stripes that fit on the fullest disk. Folders on one file system share its
        space."""
        rooms: dict[int, list[int]] = {}
        for shard in self._shards:
            folder = self._folders.folder(shard) / FAN_OUT[0]
            try:
                room = os.statvfs(folder)
                rooms.setdefault(folder.stat().st_dev, []).append(room.f_bavail * room.f_frsize)
            except OSError as error:
                self._folders.refuse_unreachable({shard: error})
        shard_room = min(min(room) // len(room) for room in rooms.values())
        full_shard = self._layout.size(self._geometry.stripes_per_block)
        blocks, rest = divmod(shard_room, full_shard)
        stripes = blocks * self._geometry.stripes_per_block + self._layout.stripes(rest)
        return stripes * self._geometry.stripe_size

    def probe(self) -> None:
        """Write and read in every shard folder, because creating and appending need them all."""
        for shard in self._shards:
            try:
                probe_folder(self._folders.folder(shard) / FAN_OUT[0])
            except OSError as error:
                self._folders.refuse_unreachable({shard: error})

    def raw_bytes(self) -> int:
        """Return the bytes allocated for all reachable shard files. Runs stat on each file."""
        total = 0
        for entry in self._folders.entries():
            with suppress(OSError):
                total += entry.stat().st_blocks * 512
        return total

    def blocks_short(self) -> Mapping[int, int]:
        """Return {n: number of blocks that lack a file on n shards}. Lists all folders, a sixteenth of the blocks at a
        time."""
        return self._folders.count_short()

    def missing_shards(self, block_id: BlockId) -> list[int]:
        """Return the shards without a file of the block, including shards whose folders cannot be read."""
        return self._folders.missing(block_id)

    def counters(self) -> ReadCounters:
        """Return the cost of `read` and `read_many` so far."""
        with self._counters_lock:
            return self._counters

    def close(self) -> None:
        """End the threads that sync. No files are open between calls."""
        self._pool.shutdown()

    # --- the end of a block ---------------------------------------------------------------------------

    def _open_for_append(self, stack: ExitStack, block_id: BlockId, at_stripe: int) -> list[ShardFile]:
        """Open all shards of a block, if it may grow at `at_stripe` (invariant b)."""
        found, unreachable = self._folders.open(stack, block_id, write=True)
        self._folders.refuse_unreachable(unreachable)
        files = list(found.values())
        self._folders.require(block_id, files, unreachable)
        with translated(f"block {block_id.hex()}", block_id):
            if any(file.mark() for file in files):
                raise Conflict(f"block {block_id.hex()} is sealed", block_id=block_id)
            size = self._layout.size(at_stripe)
            odd = [file.shard for file in files if file.size() != size or not file.intact_head()]
        odd += [shard for shard in self._shards if shard not in found]
        if odd:
            raise Conflict(
                f"block {block_id.hex()} does not end at stripe {at_stripe} on shards {odd}: seal it", block_id=block_id
            )
        return files

    # --- parts of writing -----------------------------------------------------------------------------

    def _write(self, files: Sequence[ShardFile], at_stripe: int, data: memoryview) -> None:
        """Write stripes to all shards of a block and make them durable. Then seal the block if it is full."""
        window = max(1, WINDOW_BYTES // self._geometry.stripe_size) * self._geometry.stripe_size
        at = at_stripe
        for start in range(0, len(data), window):
            at = self._write_window(files, at, data[start : start + window])
        self._sync(files)
        if at == self._geometry.stripes_per_block:
            self._mark(files, at)

    def _write_window(self, files: Sequence[ShardFile], at_stripe: int, data: memoryview) -> int:
        """Write a few stripes, which are coded in memory together. Returns the number of the stripe after them."""
        size = self._geometry.stripe_size
        stripes = [bytes(data[start : start + size]) for start in range(0, len(data), size)]
        chunks = [[payload(part) for part in self._coder.encode(stripe)] for stripe in stripes]
        for file in files:
            with translated(f"shard folder {file.path.parent.parent}"):
                file.write_chunks(at_stripe, [stripe[file.shard] for stripe in chunks])
            if file.shard != self._shards[-1]:
                kill_point("block_store.shard_written")
        return at_stripe + len(stripes)

    def _mark(self, files: Sequence[ShardFile], stripes: int) -> None:
        """Seal a block with this number of stripes, durably."""
        for file in files:
            with translated(f"shard folder {file.path.parent.parent}"):
                file.write_seal(stripes)
            kill_point("block_store.shard_sealed")
        self._sync(files)

    def _stripes_of(self, data: bytes | bytearray | memoryview, at_stripe: int) -> memoryview:
        """Return the bytes of an append. Raises ValueError unless they are whole stripes that fit into a block."""
        size, whole = self._geometry.stripe_size, memoryview(data).cast("B")
        count, rest = divmod(len(whole), size)
        if rest or not count or at_stripe < 0 or at_stripe + count > self._geometry.stripes_per_block:
            raise ValueError(
                f"{len(whole)} bytes at stripe {at_stripe}: an append takes whole stripes of {size} bytes, up to stripe"
                f" {self._geometry.stripes_per_block}"
            )
        return whole

    def _sync(self, files: Sequence[ShardFile]) -> None:
        """Make files durable, all at the same time: a file system commits syncs that are requested together as one."""
        waiting = [(file, self._pool.submit(file.sync)) for file in files]
        for file, future in waiting:
            with translated(f"shard folder {file.path.parent.parent}"):
                future.result()

    def _sync_folders(self, block_id: BlockId, shards: Iterable[int]) -> None:
        folders = [self._folders.path(block_id, shard).parent for shard in shards]
        waiting = [(folder, self._pool.submit(sync_folder, folder)) for folder in folders]
        for folder, future in waiting:
            with translated(f"shard folder {folder.parent}"):
                future.result()

    def _count(self, reader: BlockReader) -> None:
        with self._counters_lock:
            self._counters = ReadCounters(
                self._counters.shard_reads + reader.shard_reads,
                self._counters.shard_bytes + reader.shard_bytes,
                self._counters.degraded_reads + reader.degraded_reads,
            )
