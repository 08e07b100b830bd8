"""The k + m shard folders of an embedded block store, and the files of a block in them.

A missing shard folder differs from a missing block file. A missing folder (its disk is broken or not mounted) is a lost
shard; a missing file may mean that the block does not exist.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from nos_ec.adapters.local.blocks.shard_file import ShardFile, ShardLayout
from nos_ec.adapters.local.files.durable import as_port_error, translated
from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.ids import BlockId

FAN_OUT = "0123456789abcdef"
"""The folders in a shard folder, one for each last digit of a block id. The first digits may be a time, which many
blocks share."""

UNFINISHED = ".new"
"""The suffix of the name of a shard file that is being rebuilt. The file is renamed when it is whole, durable and
checked."""

_BLOCK_NAME = re.compile("[0-9a-f]{32}")
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that are unrelated to the shard, which must not count as lost because of them."""


def folder_name(shard: int) -> str:
    """Return the name of a shard's folder."""
    return f"shard-{shard:02d}"


class ShardFolders:
    """Finds and opens the shard files of blocks."""

    def __init__(self, root: Path, layout: ShardLayout) -> None:
        self._root = root
        self._layout = layout
        self._geometry = layout.geometry
        self.shards = range(layout.geometry.k + layout.geometry.m)

    def folder(self, shard: int) -> Path:
        """Return the folder of a shard."""
        return self._root / folder_name(shard)

    def path(self, block_id: BlockId, shard: int) -> Path:
        """Return the file of a block in a shard's folder."""
        name = block_id.hex()
        return self.folder(shard) / name[-1] / name

    def open_shard(self, block_id: BlockId, shard: int, *, write: bool) -> ShardFile | None:
        """Open the shard's file; return None when its folder exists but the file does not. Raises OSError when the
        folder (or its disk) is missing, and Transient when the process is out of file descriptors or memory."""
        path = self.path(block_id, shard)
        try:
            return ShardFile.open(path, self._layout, block_id, shard, write=write)
        except FileNotFoundError:
            if path.parent.is_dir():
                return None
            raise
        except OSError as error:
            _refuse_exhausted(path, error)
            raise

    def open(
        self, stack: ExitStack, block_id: BlockId, *, write: bool
    ) -> tuple[dict[int, ShardFile], dict[int, OSError]]:
        """Open the files of a block that exist. Returns them by shard, and the errors of the unreachable shards."""
        found: dict[int, ShardFile] = {}
        unreachable: dict[int, OSError] = {}
        for shard in self.shards:
            try:
                file = self.open_shard(block_id, shard, write=write)
                if file:
                    stack.callback(file.close)
                    file.mark()  # on a broken disk, files may open but not be readable
                    found[shard] = file
            except OSError as error:
                unreachable[shard] = error
        return found, unreachable

    def unreadable(self, block_id: BlockId, unreachable: Mapping[int, OSError]) -> frozenset[int]:
        """Return those shards of `unreachable` whose file exists, but whose disk does not return its first page."""
        refused = (shard for shard, error in unreachable.items() if error.errno == errno.EIO)
        return frozenset(shard for shard in refused if _is_reachable(self.path(block_id, shard)))

    def require(self, block_id: BlockId, files: Sequence[ShardFile], unreachable: Mapping[int, OSError]) -> None:
        """Raise NotFound for a block that no shard has or that is being deleted. Raises Transient if too few shards can
        be reached to decide."""
        if not files and len(unreachable) > self._geometry.m:
            self.refuse_unreachable(unreachable)
        with translated(f"block {block_id.hex()}", block_id):
            marks = [file.mark() for file in files]
        if not files or any(mark and mark.gone for mark in marks):
            raise NotFound(f"block {block_id.hex()} does not exist", block_id=block_id)

    def refuse_unreachable(self, unreachable: Mapping[int, OSError]) -> None:
        """Raise Transient (or NoSpace) unless `unreachable` is empty. The message names the folder and includes
        advice."""
        for shard, error in unreachable.items():
            folder = self.folder(shard)
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise Transient(
                    f"shard folder {folder} is missing: mount its disk, or if it is lost for good, run `nos-ec init"
                    f" --new-shard {shard}` to recreate it empty, and then `nos-ec shards rebuild`"
                ) from error
            raise as_port_error(f"shard folder {folder}", error) from error

    def entries(self, unreachable: dict[int, OSError] | None = None) -> Iterator[os.DirEntry[str]]:
        """Yields the files of all reachable shards. A folder that cannot be read counts as lost, whatever the reason;
        its error is added to `unreachable`."""
        for shard in self.shards:
            folder = os.fspath(self.folder(shard))
            for digit in FAN_OUT:
                try:
                    with os.scandir(f"{folder}/{digit}") as entries:
                        yield from entries
                except OSError as error:
                    _refuse_exhausted(self.folder(shard), error)
                    if unreachable is not None:
                        unreachable[shard] = error

    def missing(self, block_id: BlockId) -> list[int]:
        """Return the shards that have no file of the block. Lost shards count."""
        found = []
        for shard in self.shards:
            path = self.path(block_id, shard)
            try:
                path.stat()
            except OSError as error:
                _refuse_exhausted(path, error)
                found.append(shard)
        return found

    def count_short(self) -> Mapping[int, int]:
        """Return {n: number of blocks that lack a file on n shards}, without complete blocks. Lost shards count. Holds
        the names of a sixteenth of the blocks in memory. Blocks that are being created or deleted are checked again, so
        few of them count."""
        short: Counter[int] = Counter()
        for digit in FAN_OUT:
            names, _, _ = self._listed(digit)
            for name, shards in names.items():
                if shards.bit_count() < len(self.shards) and (missing := self._missing_now(name, shards)):
                    short[missing] += 1
        return dict(sorted(short.items()))

    def short_blocks(self) -> Iterator[BlockId]:
        """Yields the blocks that lack a file on a reachable shard, and the blocks with an unfinished file. Blocks that
        are being created or deleted are among them. Holds the names of a sixteenth of the blocks in memory."""
        for digit in FAN_OUT:
            names, unfinished, reachable = self._listed(digit)
            short = {name for name, shards in names.items() if shards & reachable != reachable}
            for name in sorted(short | unfinished):
                yield BlockId(bytes.fromhex(name))

    def _listed(self, digit: str) -> tuple[dict[str, int], set[str], int]:
        """Return the blocks of one folder of each shard, with the set of shards (as bits) that have a file; the blocks
        with an unfinished file; and the set of shards that can be reached."""
        reachable = 0
        names: dict[str, int] = {}
        unfinished: set[str] = set()
        for shard in self.shards:
            try:
                with os.scandir(self.folder(shard) / digit) as entries:
                    for entry in entries:
                        name, dot, _ = entry.name.partition(".")
                        if not _BLOCK_NAME.fullmatch(name):
                            continue
                        if entry.name == name + UNFINISHED:
                            unfinished.add(name)
                        elif not dot:
                            names[name] = names.get(name, 0) | 1 << shard
                reachable |= 1 << shard
            except OSError as error:
                _refuse_exhausted(self.folder(shard), error)
        return names, unfinished, reachable

    def _missing_now(self, name: str, shards: int) -> int:
        """Return the number of shards that have no file of the block now; 0 when the block is being deleted. `shards`
        are the shards that had one, as bits."""
        paths = [self.path(BlockId(bytes.fromhex(name)), shard) for shard in self.shards]
        if not any(_is_reachable(path) for shard, path in enumerate(paths) if shards >> shard & 1):
            return 0
        return sum(not _is_reachable(path) for shard, path in enumerate(paths) if not shards >> shard & 1)


def _is_reachable(path: Path) -> bool:
    """Return whether a file can be reached. A file without access counts as lost, whatever the reason."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _refuse_exhausted(path: Path, error: OSError) -> None:
    if error.errno in _EXHAUSTED:
        raise Transient(f"cannot open {path}: {error.strerror}; raise the limit on open files") from error
