"""The commands put -r, get -r and rm -r, which process all objects below a prefix.

A prefix ends at a '/': `photos/2026` stands for `2026/...` in the bucket `photos`, not for `2026x` or `2026` itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer

from nos_ec.cli.files.local_files import CannotBeFile, TargetFolder, files_below
from nos_ec.cli.terminal.context import context
from nos_ec.cli.terminal.item_counter import ItemCounter, counting
from nos_ec.cli.terminal.output import count_text, err, progress
from nos_ec.cli.terminal.streams import is_folder
from nos_ec.core.errors import Conflict, Corrupt, Encrypted, InvalidInput, Locked, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from nos_ec.engine.texts import printable, size_text
from nos_ec.library.tree import load_tree
from nos_ec.ports.metadata import ObjectRow

PAGE_OBJECTS = 1000
_PAGE_MS_MAX = 1000
COUNTED_MAX = 10 * PAGE_OBJECTS
"""How many objects are counted at most before the user is asked about them."""
_READ_TRIES = 3
_Listed = TypeVar("_Listed")


def put_tree(ctx: typer.Context, target: str, folder: Path, as_json: bool) -> None:
    """Store every file below a folder."""
    bucket, prefix = parse_prefix(target)
    if not is_folder(folder):
        if folder.exists():
            raise InvalidInput(f"{folder} is not a folder; to store a single file, leave out -r")
        raise InvalidInput(f"{folder}: no such folder")
    counter = ItemCounter("stored", as_json)

    def pairs() -> Iterator[tuple[ObjectKey, Path]]:
        for path in files_below(folder, counter.problem, counter.leave_out):
            try:
                yield ObjectKey(bucket, prefix + path.relative_to(folder).as_posix()), path
            except InvalidInput as error:
                counter.problem(str(path), str(error))

    places = context(ctx).places(bucket)
    with places as store_of, counter.reporting_totals(f"under {bucket}/{prefix}"), progress() as bar:
        load_tree(
            store_of,
            pairs(),
            counting(bar, "put", counter),
            lambda path, reason: counter.problem(str(path), reason),
            lambda path: counter.has_changed(str(path)),
        )


def get_tree(ctx: typer.Context, source: str, folder: Path, skip_existing: bool, as_json: bool) -> None:
    """Write every object below a prefix to a file below a folder."""
    bucket, prefix = parse_prefix(source)
    counter = ItemCounter("written", as_json, more={"unchanged": 0})
    with context(ctx).home(bucket) as system:
        store = system.client.store()
        _require_some(store, bucket, prefix)
        with TargetFolder(folder) as target, counter.reporting_totals(f"below {folder}"), progress() as bar:
            count = counting(bar, "get", counter)
            for row in _below(store, bucket, prefix):
                name = row.key.name.removeprefix(prefix)
                try:
                    part_sizes = None if row.composition is None else partial(_part_sizes, store, row)
                    if skip_existing and target.has_file(name, row.users_size, row.tag[0], part_sizes):
                        counter.more["unchanged"] += 1
                        continue
                    count(_write(store, row.key, target, name))
                except (CannotBeFile, NotFound, Conflict, Encrypted) as error:
                    counter.problem(str(row.key), str(error))
                except Corrupt as error:
                    counter.damaged(str(row.key), error)


def remove_tree(ctx: typer.Context, target: str, yes: bool, permanently: bool, as_json: bool) -> None:
    """Delete every object below a prefix."""
    bucket, prefix = parse_prefix(target)
    if not yes:
        require_terminal(f"rm -r deletes everything below {bucket}/{prefix}")
    counter = ItemCounter("deleted", as_json)
    with context(ctx).home(bucket) as system:
        store = system.client.store()
        _require_some(store, bucket, prefix)
        if not yes:
            ask(f"Delete {_counted(store, bucket, prefix)} below {printable(bucket)}/{printable(prefix)}? [y/N] ")
        with counter.reporting_totals(f"below {bucket}/{prefix}"), progress() as bar:
            count = counting(bar, "rm", counter)
            locked: Locked | None = None
            for page in pages(store, bucket, prefix):
                try:
                    gone = store.delete_many([row.key for row in page], permanently=permanently)
                except Locked as error:  # the others of the page are deleted
                    locked = locked or error
                    gone = [row for row in page if row.key not in error.keys]
                for row in gone:
                    count(row.users_size)
        if locked is not None:
            raise locked


def require_terminal(what: str) -> None:
    """Raise InvalidInput if there is no terminal on which to ask for confirmation. `what` begins the message."""
    if not (sys.stdin is not None and sys.stdin.isatty() and err.is_terminal):
        raise InvalidInput(f"{what}; there is no terminal to ask on: add --yes")


def ask(question: str) -> None:
    """Ask on the terminal. Raises InvalidInput unless the answer is yes."""
    err.print(question, end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidInput("not confirmed: nothing was deleted")


def parse_prefix(text: str) -> tuple[str, str]:
    """Parse 'BUCKET' or 'BUCKET/PREFIX' into bucket and prefix. The prefix is empty or ends with '/'. Raises
    InvalidInput."""
    bucket, _, prefix = text.partition("/")
    prefix = prefix.removesuffix("/") + "/" if prefix else ""
    ObjectKey(bucket, prefix + "x")
    return bucket, prefix


def _part_sizes(store: Store, row: ObjectRow) -> list[int]:
    manifest = store.manifest(row)
    return [] if manifest is None else [part.users_size for part in manifest.parts]


def _write(store: Store, key: ObjectKey, target: TargetFolder, name: str) -> int:
    """Write the current version to a file. If the object is overwritten meanwhile, write the new version."""
    for _ in range(_READ_TRIES):
        try:
            return target.write_file(name, store.open(key)[1])
        except Conflict as error:
            last = error
    raise last


def pages(
    store: Store, bucket: str, prefix: str, after: str = "", page_max: int = PAGE_OBJECTS
) -> Iterator[list[ObjectRow]]:
    """Yields pages of the objects whose names begin with `prefix` and come after `after`, at most `page_max` in
    each."""
    return _paged(
        lambda name: store.list_objects(bucket, prefix, name, page_max), lambda row: row.key.name, after, page_max
    )


def name_pages(store: Store, bucket: str, prefix: str, after: str, page_max: int) -> Iterator[list[str]]:
    """Yields pages of names only, like `pages`, but without looking up rows."""
    return _paged(lambda name: store.list_names(bucket, prefix, name, page_max), str, after, page_max)


def entry_pages(
    store: Store, bucket: str, prefix: str, delimiter: str, after: str, page_max: int
) -> Iterator[list[ObjectRow | str]]:
    """Yields pages like `pages`, in which a folder (core.folders) is represented by its name."""
    next_after: str | None = after
    while next_after is not None:
        page = store.list_entries(bucket, prefix, delimiter, next_after, page_max, _PAGE_MS_MAX)
        yield list(page.entries)
        next_after = page.next_after


def _paged(
    look: Callable[[str], list[_Listed]], name: Callable[[_Listed], str], after: str, page_max: int
) -> Iterator[list[_Listed]]:
    """Yields pages until one is not full. `look` returns at most `page_max` entries after a name, and `name` returns
    the name of an entry."""
    while page := look(after):
        yield page
        if len(page) < page_max:
            return
        after = name(page[-1])


def _below(store: Store, bucket: str, prefix: str) -> Iterator[ObjectRow]:
    for page in pages(store, bucket, prefix):
        yield from page


def _require_some(store: Store, bucket: str, prefix: str) -> None:
    if not store.list_objects(bucket, prefix, "", 1):
        raise NotFound(f"there is no object below {printable(bucket)}/{printable(prefix)}")


def _counted(store: Store, bucket: str, prefix: str) -> str:
    count = size = 0
    for page in pages(store, bucket, prefix):
        count += len(page)
        size += sum(row.users_size for row in page)
        if count > COUNTED_MAX:
            return f"more than {COUNTED_MAX:,} objects"
    return f"{count_text(count, 'object')} ({size_text(size)})"
