"""The k + m shard folders of an embedded block store, and the files of a block in them.

A shard folder that is not there (a disk that is not mounted, or broken) is another thing than a block file that
is not there: the first is a lost shard, the second may mean that the block does not exist.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from nos_ec.adapters.local.durable import as_port_error, translated
from nos_ec.adapters.local.shard_file import ShardFile, ShardLayout
from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.ids import BlockId

FAN_OUT = "0123456789abcdef"
"""Folders in a shard folder: one for each last digit of a block id. The first digits may be a time, alike for all."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the shard, so it must not be taken for a lost one."""


def folder_name(shard: int) -> str:
    """Name of a shard's folder."""
    return f"shard-{shard:02d}"


class ShardFolders:
    """Finds and opens the shard files of blocks."""

    def __init__(self, root: Path, layout: ShardLayout) -> None:
        self._root = root
        self._layout = layout
        self._geometry = layout.geometry
        self.shards = range(layout.geometry.k + layout.geometry.m)

    def folder(self, shard: int) -> Path:
        """The folder of a shard."""
        return self._root / folder_name(shard)

    def path(self, block_id: BlockId, shard: int) -> Path:
        """The file of a block in a shard's folder."""
        name = block_id.hex()
        return self.folder(shard) / name[-1] / name

    def open_shard(self, block_id: BlockId, shard: int, *, write: bool) -> ShardFile | None:
        """The shard's file; None when its folder is there but the file is not. Raises OSError when the folder
        (or the disk behind it) is not there, and Transient when the process is out of files or memory."""
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
        """Open what there is of a block, by shard, and why the other shards cannot be reached."""
        found: dict[int, ShardFile] = {}
        unreachable: dict[int, OSError] = {}
        for shard in self.shards:
            try:
                file = self.open_shard(block_id, shard, write=write)
                if file:
                    stack.callback(file.close)
                    file.mark()  # a broken disk may open files that it cannot read
                    found[shard] = file
            except OSError as error:
                unreachable[shard] = error
        return found, unreachable

    def require(self, block_id: BlockId, files: Sequence[ShardFile], unreachable: Mapping[int, OSError]) -> None:
        """Raise NotFound for a block that no shard has, or that is being deleted; Transient if nobody can tell."""
        if not files and len(unreachable) > self._geometry.m:
            self.refuse_unreachable(unreachable)
        with translated(f"block {block_id.hex()}"):
            marks = [file.mark() for file in files]
        if not files or any(mark and mark.gone for mark in marks):
            raise NotFound(f"block {block_id.hex()} does not exist")

    def refuse_unreachable(self, unreachable: Mapping[int, OSError]) -> None:
        """Raise Transient (or NoSpace), naming the folder and what to do, unless `unreachable` is empty."""
        for shard, error in unreachable.items():
            folder = self.folder(shard)
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise Transient(
                    f"shard folder {folder} is not there: mount its disk, or run `nos-ec init --new-shard {shard}` to"
                    " make it new and empty (blocks written before stay without this shard until GC rewrites them)"
                ) from error
            raise as_port_error(f"shard folder {folder}", error) from error

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """The files of all reachable shards. A folder that cannot be read is a lost one, whatever the reason."""
        for shard in self.shards:
            for digit in FAN_OUT:
                try:
                    with os.scandir(self.folder(shard) / digit) as entries:
                        yield from entries
                except OSError as error:
                    _refuse_exhausted(self.folder(shard), error)

    def count_short(self) -> int:
        """Blocks that lack a file on some shard, lost shards included. Memory: names of a sixteenth of the blocks."""
        short = 0
        for digit in FAN_OUT:
            files: dict[str, int] = {}
            for shard in self.shards:
                try:
                    with os.scandir(self.folder(shard) / digit) as entries:
                        for entry in entries:
                            files[entry.name] = files.get(entry.name, 0) + 1
                except OSError as error:
                    _refuse_exhausted(self.folder(shard), error)
            short += sum(count < len(self.shards) and len(name) == 32 for name, count in files.items())
        return short


def _refuse_exhausted(path: Path, error: OSError) -> None:
    if error.errno in _EXHAUSTED:
        raise Transient(f"cannot open {path}: {error.strerror}; raise the limit of open files") from error
