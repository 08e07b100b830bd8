"""The embedded block store: k + m folders, one per shard, with real Reed-Solomon coding between them.

    root/store.json              format, version and geometry; written last, so a root that has it is complete
    root/locks/00 .. ff          empty; a writer holds an flock on the one its block's id selects
    root/shard-00 .. shard-NN/   one folder per shard: mount disks here
        0 .. f/                  by the last hexadecimal digit of the block's id: the first ones may be a time
            <block id, hex>      one shard of one block (see shard_file.py)

Invariants kept here:
  1  (of docs/INVARIANTS.md) what `append` acknowledged is on k + m shards, and is read back from any k of them.
  a  Writers of a block exclude each other, over threads and processes, by the block's lock. A kill frees it.
  b  An append writes only behind what all k + m shards already hold, and only if they all end at `at_stripe`
     without a mark. So whatever a torn append, a seal or a lost shard left behind ends the block's life of appends.
  c  Each page is verified before its bytes are returned or used in decoding.
  d  A mark, once on a shard, is never taken off. One marked shard is enough to refuse an append.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import google_crc32c

from nos_ec.adapters.local.durable import as_port_error, make_folders, replace_file, sync_folder, translated
from nos_ec.adapters.local.erasure import StripeCoder, payload
from nos_ec.adapters.local.shard_file import Pages, ShardFile, ShardLayout
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NotFound, Transient
from nos_ec.core.geometry import PAGE, Geometry
from nos_ec.core.ids import BlockId
from nos_ec.core.killpoints import kill_point
from nos_ec.ports.block_store import ReadCounters

LOCK_WAIT_S_MAX = 30.0
"""How long a writer waits for another one of the same block. Appends take milliseconds; longer means a process
that was stopped in the middle of one."""

_STORE_FILE = "store.json"
_FORMAT = {"format": "nos-ec local block store", "version": 1}
_LOCKS = "locks"
_LOCK_COUNT = 256
_FAN_OUT = "0123456789abcdef"
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the shard, so it must not be taken for a lost one."""


class LocalBlockStore:
    """A `BlockStore` on folders (see nos_ec.ports.block_store for the contract).

    Works with up to m shard folders lost, for reading and sealing; creating and appending need them all.
    Opening raises ConfigError when `root` was not initialised or has another geometry, Transient when more than
    m shard folders are not there.
    """

    def __init__(self, root: Path, geometry: Geometry) -> None:
        self._root = root
        self._geometry = geometry
        self._layout = ShardLayout(geometry)
        self._shards = range(geometry.k + geometry.m)
        _check_store(root, geometry)
        lost = [shard for shard in self._shards if not self._shard_folder(shard).is_dir()]
        if len(lost) > geometry.m:
            folders = ", ".join(str(self._shard_folder(shard)) for shard in lost)
            raise Transient(f"{len(lost)} shard folders are not there, more than m = {geometry.m}: mount {folders}")
        self._coder = StripeCoder(geometry.k, geometry.m)
        self._pool = ThreadPoolExecutor(max_workers=len(self._shards), thread_name_prefix="shard-sync")
        self._counters_lock = threading.Lock()
        self._counters = ReadCounters(0, 0, 0)

    @classmethod
    def initialise(cls, root: Path, geometry: Geometry) -> None:
        """Make the folders of a store, durably. Idempotent: makes what is missing, also after a shard was replaced.

        Raises ConfigError when a store of another or unknown geometry is there, NoSpace, Transient.
        """
        if (root / _STORE_FILE).exists():
            _check_store(root, geometry)
        elif any(root.glob(f"shard-*/[{_FAN_OUT}]/*")):
            raise ConfigError(
                f"{root} holds blocks, but {_STORE_FILE} is lost, and with it their geometry: restore the file"
            )
        with translated(f"block store {root}"):
            for shard in range(geometry.k + geometry.m):
                make_folders(root / f"shard-{shard:02d}", _FAN_OUT)
            make_folders(root / _LOCKS, [])
            for number in range(_LOCK_COUNT):
                (root / _LOCKS / f"{number:02x}").touch()
            sync_folder(root / _LOCKS)
            if not (root / _STORE_FILE).exists():
                content = json.dumps({**_FORMAT, "geometry": asdict(geometry)}, indent=2)
                replace_file(root / _STORE_FILE, content.encode() + b"\n")

    @property
    def geometry(self) -> Geometry:
        """Geometry the store was created with."""
        return self._geometry

    # --- writing --------------------------------------------------------------------------------------

    def create(self, block_id: BlockId) -> None:
        """Create an empty block on all shards."""
        with self._locked(block_id), ExitStack() as stack:
            found, unreachable = self._open(stack, block_id, write=True)
            if found:
                raise Conflict(f"block {block_id.hex()} exists")
            self._refuse_unreachable(unreachable)
            files = []
            for shard in self._shards:
                path = self._path(block_id, shard)
                with translated(f"shard folder {path.parent.parent}"):
                    files.append(ShardFile.create(path, self._layout, block_id, shard))
                stack.callback(files[-1].close)
                kill_point("block_store.shard_created")
            self._sync(files)
            self._sync_folders(block_id, self._shards)

    def append(self, block_id: BlockId, at_stripe: int, data: bytes | bytearray | memoryview) -> None:
        """Append whole stripes behind stripe `at_stripe`, which must be the block's end on every shard."""
        stripes = self._stripes_of(memoryview(data).cast("B"), at_stripe)
        with self._locked(block_id), ExitStack() as stack:
            files = self._open_for_append(stack, block_id, at_stripe)
            chunks = [[payload(part) for part in self._coder.encode(stripe)] for stripe in stripes]
            for file in files:
                with translated(f"shard folder {file.path.parent.parent}"):
                    file.write_chunks(at_stripe, [stripe[file.shard] for stripe in chunks])
                if file.shard != self._shards[-1]:
                    kill_point("block_store.shard_written")
            self._sync(files)

    def seal(self, block_id: BlockId) -> int:
        """Mark every reachable shard; the first mark wins, so that the answer never changes."""
        with self._locked(block_id), ExitStack() as stack:
            found, unreachable = self._open(stack, block_id, write=True)
            files = list(found.values())
            self._require(block_id, files, unreachable)
            if len(unreachable) > self._geometry.m:
                self._refuse_unreachable(unreachable)
            with translated(f"block {block_id.hex()}"):
                stripes = self._sealed_stripes(files)
                stripes = self._readable_stripes(files) if stripes is None else stripes
                for file in files:
                    file.write_seal(stripes)
                    kill_point("block_store.shard_sealed")
            self._sync(files)
            return stripes

    def delete(self, block_id: BlockId) -> None:
        """Delete what there is of a block. With a shard folder lost, deletes the rest and then raises Transient."""
        with self._locked(block_id), ExitStack() as stack:
            found, unreachable = self._open(stack, block_id, write=True)
            # The mark turns readers that find some shards gone already to NotFound instead of Corrupt. It needs
            # no sync: after a power cut a second call finds what is left.
            for file in found.values():
                with suppress(OSError):
                    file.write_gone()
            for shard in self._shards:
                if shard not in unreachable:
                    with translated(f"shard folder {self._shard_folder(shard)}"):
                        self._path(block_id, shard).unlink(missing_ok=True)
                    kill_point("block_store.shard_deleted")
            self._sync_folders(block_id, [shard for shard in self._shards if shard not in unreachable])
        self._refuse_unreachable(unreachable)

    # --- reading --------------------------------------------------------------------------------------

    def read(self, block_id: BlockId, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes."""
        return self.read_many(block_id, [(offset, length)])[0]

    def read_many(self, block_id: BlockId, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several ranges of one block; each shard file is opened once at most."""
        with _BlockReader(self, block_id) as reader:
            try:
                return [reader.read(offset, length) for offset, length in extents]
            finally:
                self._count(reader)

    def stripes(self, block_id: BlockId) -> int:
        """What the seal says, else what can be read now. Raises Transient while more than m shard folders are lost:
        the few stripes that can be read then say nothing."""
        with ExitStack() as stack:
            found, unreachable = self._open(stack, block_id, write=False)
            files = list(found.values())
            self._require(block_id, files, unreachable)
            with translated(f"block {block_id.hex()}"):
                stripes = self._sealed_stripes(files)
            if stripes is not None:
                return stripes
            if len(unreachable) > self._geometry.m:
                self._refuse_unreachable(unreachable)
            with translated(f"block {block_id.hex()}"):
                return self._readable_stripes(files)

    def list_blocks(self) -> Iterator[BlockId]:
        """Every block that has a file on a reachable shard."""
        seen: set[bytes] = set()
        for entry in self._entries():
            with suppress(ValueError):
                block_id = bytes.fromhex(entry.name)
                if len(block_id) == 16 and block_id not in seen:
                    seen.add(block_id)
                    yield BlockId(block_id)

    def free_bytes(self) -> int:
        """Whole stripes that fit the fullest disk. Folders on one filesystem share its room. 0 with a shard lost."""
        rooms: dict[int, list[int]] = {}
        try:
            for shard in self._shards:
                folder = self._shard_folder(shard) / _FAN_OUT[0]
                room = os.statvfs(folder)
                rooms.setdefault(folder.stat().st_dev, []).append(room.f_bavail * room.f_frsize)
        except OSError:
            return 0
        shard_room = min(min(room) // len(room) for room in rooms.values())
        full_shard = self._layout.size(self._geometry.stripes_per_block)
        blocks, rest = divmod(shard_room, full_shard)
        stripes = blocks * self._geometry.stripes_per_block + self._layout.stripes(rest)
        return stripes * self._geometry.stripe_size

    def raw_bytes(self) -> int:
        """Bytes allocated for all shard files that can be reached. Looks at each file."""
        total = 0
        for entry in self._entries():
            with suppress(FileNotFoundError):
                total += entry.stat().st_blocks * 512
        return total

    def counters(self) -> ReadCounters:
        """Cost of `read` and `read_many` so far."""
        with self._counters_lock:
            return self._counters

    def close(self) -> None:
        """End the threads that sync; files are open only during a call."""
        self._pool.shutdown()

    # --- the shards of a block ------------------------------------------------------------------------

    def _shard_folder(self, shard: int) -> Path:
        return self._root / f"shard-{shard:02d}"

    def _path(self, block_id: BlockId, shard: int) -> Path:
        name = block_id.hex()
        return self._shard_folder(shard) / name[-1] / name

    def _open_shard(self, block_id: BlockId, shard: int, *, write: bool) -> ShardFile | None:
        """The shard's file; None when its folder is there but the file is not. Raises OSError when the folder
        (or the disk behind it) is not there, and Transient when the process is out of files or memory."""
        path = self._path(block_id, shard)
        try:
            return ShardFile.open(path, self._layout, block_id, shard, write=write)
        except FileNotFoundError:
            if path.parent.is_dir():
                return None
            raise
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise Transient(f"cannot open {path}: {error.strerror}; raise the limit of open files") from error
            raise

    def _open(
        self, stack: ExitStack, block_id: BlockId, *, write: bool
    ) -> tuple[dict[int, ShardFile], dict[int, OSError]]:
        """Open what there is of a block, by shard, and why the other shards cannot be reached."""
        found: dict[int, ShardFile] = {}
        unreachable: dict[int, OSError] = {}
        for shard in self._shards:
            try:
                file = self._open_shard(block_id, shard, write=write)
            except OSError as error:
                unreachable[shard] = error
            else:
                if file:
                    stack.callback(file.close)
                    found[shard] = file
        return found, unreachable

    def _open_for_append(self, stack: ExitStack, block_id: BlockId, at_stripe: int) -> list[ShardFile]:
        """All shards of a block that may grow at `at_stripe` (invariant b)."""
        found, unreachable = self._open(stack, block_id, write=True)
        self._refuse_unreachable(unreachable)
        files = list(found.values())
        self._require(block_id, files, unreachable)
        with translated(f"block {block_id.hex()}"):
            if any(file.mark() for file in files):
                raise Conflict(f"block {block_id.hex()} is sealed")
            size = self._layout.size(at_stripe)
            odd = [file.shard for file in files if file.size() != size or not file.intact_head()]
        odd += [shard for shard in self._shards if shard not in found]
        if odd:
            raise Conflict(f"block {block_id.hex()} does not end at stripe {at_stripe} on shards {odd}: seal it")
        return files

    def _require(self, block_id: BlockId, files: Sequence[ShardFile], unreachable: Mapping[int, OSError]) -> None:
        """Raise NotFound for a block that no shard has, or that is being deleted; Transient if nobody can tell."""
        if not files and len(unreachable) > self._geometry.m:
            self._refuse_unreachable(unreachable)
        with translated(f"block {block_id.hex()}"):
            marks = [file.mark() for file in files]
        if not files or any(mark and mark.gone for mark in marks):
            raise NotFound(f"block {block_id.hex()} does not exist")

    def _refuse_unreachable(self, unreachable: Mapping[int, OSError]) -> None:
        for shard, error in unreachable.items():
            folder = self._shard_folder(shard)
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise Transient(
                    f"shard folder {folder} is not there: mount its disk, or run `nos-ec init` to make it new and empty"
                ) from error
            raise as_port_error(f"shard folder {folder}", error) from error

    def _sealed_stripes(self, files: Iterable[ShardFile]) -> int | None:
        marks = [mark for file in files if (mark := file.mark())]
        counts = [mark.stripes for mark in marks if mark.stripes is not None]
        return max(counts, default=None)

    def _readable_stripes(self, files: Sequence[ShardFile]) -> int:
        """One more than the last stripe that k shards can give."""
        sizes = sorted((self._layout.stripes(file.size()) for file in files), reverse=True)
        k = self._geometry.k
        for count in range(sizes[k - 1] if len(sizes) >= k else 0, 0, -1):
            if self._stripe_readable(files, count - 1):
                return count
        return 0

    def _stripe_readable(self, files: Iterable[ShardFile], stripe: int) -> bool:
        pages = self._layout.chunk_pages
        missing = dict.fromkeys(range(stripe * pages, (stripe + 1) * pages), self._geometry.k)
        for file in files:
            bad = file.read_pages(stripe * pages, pages).bad
            missing = {page: left - (page not in bad) for page, left in missing.items()}
            missing = {page: left for page, left in missing.items() if left}
            if not missing:
                return True
        return False

    # --- parts of writing -----------------------------------------------------------------------------

    def _stripes_of(self, data: memoryview, at_stripe: int) -> list[bytes]:
        size = self._geometry.stripe_size
        count, rest = divmod(len(data), size)
        if rest or not count or at_stripe < 0 or at_stripe + count > self._geometry.stripes_per_block:
            raise ValueError(
                f"{len(data)} bytes at stripe {at_stripe}: needed are whole stripes of {size} bytes, up to stripe"
                f" {self._geometry.stripes_per_block}"
            )
        return [bytes(data[start : start + size]) for start in range(0, len(data), size)]

    def _sync(self, files: Sequence[ShardFile]) -> None:
        """Make files durable, all at once: a filesystem commits what is asked for together in one go."""
        waiting = [(file, self._pool.submit(file.sync)) for file in files]
        for file, future in waiting:
            with translated(f"shard folder {file.path.parent.parent}"):
                future.result()

    def _sync_folders(self, block_id: BlockId, shards: Iterable[int]) -> None:
        folders = [self._path(block_id, shard).parent for shard in shards]
        waiting = [(folder, self._pool.submit(sync_folder, folder)) for folder in folders]
        for folder, future in waiting:
            with translated(f"shard folder {folder.parent}"):
                future.result()

    @contextmanager
    def _locked(self, block_id: BlockId) -> Iterator[None]:
        """Hold the block's lock (invariant a). Raises Transient when another writer keeps it for too long."""
        path = self._root / _LOCKS / f"{google_crc32c.value(block_id) % _LOCK_COUNT:02x}"
        with translated(f"lock file {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + LOCK_WAIT_S_MAX
            while not _try_lock(fd):
                if time.monotonic() > deadline:
                    raise Transient(f"lock file {path} is held: look for a stopped process that writes to this store")
                time.sleep(0.001)
            yield
        finally:
            os.close(fd)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """The files of all reachable shards."""
        for shard in self._shards:
            for digit in _FAN_OUT:
                with (
                    suppress(FileNotFoundError, NotADirectoryError),
                    os.scandir(self._shard_folder(shard) / digit) as entries,
                ):
                    yield from entries

    def _count(self, reader: _BlockReader) -> None:
        with self._counters_lock:
            self._counters = ReadCounters(
                self._counters.shard_reads + reader.shard_reads,
                self._counters.shard_bytes + reader.shard_bytes,
                self._counters.degraded_reads + reader.degraded_reads,
            )


class _BlockReader:
    """The reads of one call: opens each shard when it is first needed, and counts what it costs."""

    def __init__(self, store: LocalBlockStore, block_id: BlockId) -> None:
        self._store = store
        self._block_id = block_id
        self._geometry = store._geometry
        self._chunk_pages = store._layout.chunk_pages
        self._files: dict[int, ShardFile | None] = {}
        self._unreachable: dict[int, OSError] = {}
        self._pages: dict[int, list[Pages]] = {}
        self.shard_reads = 0
        self.shard_bytes = 0
        self.degraded_reads = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            if file:
                file.close()

    def read(self, offset: int, length: int) -> bytes:
        """Read one range. Fetches whole pages, from the shards the range lies in alone unless some are bad."""
        if offset < 0 or length < 0:
            raise ValueError(f"range of {length} bytes at {offset}")
        if offset + length > self._geometry.block_size:
            self._refuse_missing()
            raise Corrupt(f"block {self._block_id.hex()}: range of {length} bytes at {offset} is past the end")
        if not length:
            self._refuse_missing()
            return b""
        self._pages = {}
        columns = {column: self._fetch(column, first, count) for column, first, count in self._columns(offset, length)}
        if any(pages.bad for pages in columns.values()):
            self.degraded_reads += 1
            columns = self._repaired(columns)
        return self._assemble(columns, offset, length)

    def _columns(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """The data shards a range lies in, with the first and the number of their pages. A range that is
        contiguous in the block is contiguous in each shard."""
        k, chunk = self._geometry.k, self._geometry.chunk_size
        first_chunk, last_chunk = offset // chunk, (offset + length - 1) // chunk
        for column in range(k):
            # The first and the last chunk of the range in this column, and the bytes cut off at its two ends.
            first = first_chunk + (column - first_chunk) % k
            last = last_chunk - (last_chunk - column) % k
            if first > last:
                continue
            start = first // k * chunk + (offset % chunk if first == first_chunk else 0)
            end = last // k * chunk + ((offset + length - 1) % chunk + 1 if last == last_chunk else chunk)
            yield column, start // PAGE, -(-end // PAGE) - start // PAGE

    def _fetch(self, shard: int, first: int, count: int) -> Pages:
        """Pages of a shard; all bad when the shard is lost."""
        if shard not in self._files:
            self._files[shard] = self._opened(shard)
        file = self._files[shard]
        pages = Pages(first, bytes(count * PAGE), frozenset(range(first, first + count)), 0)
        if file:
            self.shard_reads += 1
            try:
                pages = file.read_pages(first, count)
            except OSError as error:
                self._unreachable[shard] = error
        self.shard_bytes += pages.read_bytes
        self._pages.setdefault(shard, []).append(pages)
        return pages

    def _opened(self, shard: int) -> ShardFile | None:
        try:
            return self._store._open_shard(self._block_id, shard, write=False)
        except OSError as error:
            self._unreachable[shard] = error
            return None

    def _assemble(self, columns: Mapping[int, Pages], offset: int, length: int) -> bytes:
        k, chunk, end = self._geometry.k, self._geometry.chunk_size, offset + length
        parts = []
        for number in range(offset // chunk, (end - 1) // chunk + 1):
            pages = columns[number % k]
            base = number // k * chunk - pages.first * PAGE - number * chunk
            parts.append(pages.data[base + max(offset, number * chunk) : base + min(end, (number + 1) * chunk)])
        return b"".join(parts)

    # --- degraded reads -------------------------------------------------------------------------------

    def _repaired(self, columns: Mapping[int, Pages]) -> dict[int, Pages]:
        """The same pages with the bad ones decoded. Raises Corrupt, or NotFound when the block is gone."""
        data = {column: bytearray(pages.data) for column, pages in columns.items()}
        for window, decoded in self._decoded(columns):
            for column, pages in columns.items():
                for page in pages.bad.intersection(window):
                    start, at = (page - window[0]) * PAGE, (page - pages.first) * PAGE
                    data[column][at : at + PAGE] = decoded[column][start : start + PAGE]
        return {column: pages._replace(data=data[column], bad=frozenset()) for column, pages in columns.items()}

    def _decoded(self, columns: Mapping[int, Pages]) -> Iterator[tuple[range, list[bytes]]]:
        """Page numbers with what they decode to: for each stripe all from its first to its last bad page, if k
        shards have them, as they do when shards are lost; when damage is scattered, each bad page by itself."""
        stripes: dict[int, set[int]] = {}
        for pages in columns.values():
            for page in pages.bad:
                stripes.setdefault(page // self._chunk_pages, set()).add(page)
        for bad in stripes.values():
            hull = range(min(bad), max(bad) + 1)
            decoded = self._decode(hull)
            if decoded is not None:
                yield hull, decoded
                continue
            for page in sorted(bad):
                decoded = self._decode(range(page, page + 1))
                if decoded is None:
                    raise self._lost(page)
                yield range(page, page + 1), decoded

    def _decode(self, window: range) -> list[bytes] | None:
        """These pages, which lie in one stripe, of all k data shards; None unless all are good on k shards."""
        parts: dict[int, bytes] = {}
        for shard in self._store._shards:
            part = self._good_part(shard, window.start, len(window))
            if part is not None:
                parts[shard] = part
            if len(parts) == self._geometry.k:
                return self._store._coder.decode(len(window) * PAGE, parts)
        return None

    def _good_part(self, shard: int, first: int, count: int) -> bytes | None:
        for pages in self._pages.get(shard, []):
            if pages.first <= first and first + count <= pages.first + len(pages.data) // PAGE:
                return pages.part(first, count)
        return self._fetch(shard, first, count).part(first, count)

    def _lost(self, page: int) -> Corrupt:
        """What to raise when fewer than k shards have a page. Raises NotFound when the block is gone."""
        self._refuse_missing()
        stripe = page // self._chunk_pages
        lost = ", ".join(str(self._store._shard_folder(shard)) for shard in sorted(self._unreachable))
        return Corrupt(
            f"block {self._block_id.hex()}: stripe {stripe} cannot be read: it is past the end, or more than"
            f" {self._geometry.m} shards are lost or damaged" + (f" (not there: {lost})" if lost else "")
        )

    def _refuse_missing(self) -> None:
        with ExitStack() as stack:
            found, unreachable = self._store._open(stack, self._block_id, write=False)
            if found or len(unreachable) <= self._geometry.m:
                self._store._require(self._block_id, list(found.values()), unreachable)


def _check_store(root: Path, geometry: Geometry) -> None:
    """Raise ConfigError unless `root` holds a store of this geometry."""
    path = root / _STORE_FILE
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{root} is not a block store: run `nos-ec init` to make one, or mount its disk") from error
    except OSError as error:
        raise as_port_error(f"block store {path}", error) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): restore it from another copy of this store's settings"
        ) from error
    stored = content.get("geometry") if isinstance(content, dict) else None
    if stored is None or {key: content.get(key) for key in _FORMAT} != _FORMAT:
        raise ConfigError(f"{path} is not of version {_FORMAT['version']}: open it with the program that wrote it")
    if stored != asdict(geometry):
        raise ConfigError(
            f"block store {root} has the geometry {_shown(stored)}, the configuration says {_shown(asdict(geometry))}:"
            " set the configuration to the store's geometry, or initialise a new store elsewhere"
        )


def _shown(geometry: Mapping[str, int]) -> str:
    return " ".join(f"{key}={value}" for key, value in geometry.items())


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
