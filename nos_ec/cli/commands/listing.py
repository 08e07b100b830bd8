"""The command ls, which lists the buckets of a store or the objects of a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Annotated, Any

import typer

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.files.trees import entry_pages, name_pages, pages
from nos_ec.cli.terminal.context import AsJson, Context, context, logs_json
from nos_ec.cli.terminal.errors import most_severe, report
from nos_ec.cli.terminal.output import count_text, emit, err, print_lines
from nos_ec.composition.cells import open_cells
from nos_ec.core.errors import InvalidInput, NosError, NotFound
from nos_ec.core.locking.lock import lock_text
from nos_ec.engine.objects.store import Store
from nos_ec.engine.texts import printable, size_text
from nos_ec.library.object_info import attributes_of
from nos_ec.ports.metadata import ObjectRow
from nos_ec.settings import Settings

_NEEDS_BUCKET = "-l and --summarize need BUCKET or BUCKET/PREFIX; `nos-ec status` shows the sums of the whole store"
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Folder:
    name: str


_Listed = ObjectRow | _Folder | str
"""An entry: the row of an object, a folder, or only the name of an object."""


def ls(
    ctx: typer.Context,
    where: Annotated[str, typer.Argument(metavar="BUCKET[/PREFIX]", help="If left out, the buckets are listed.")] = "",
    after: Annotated[
        str, typer.Option(help="Start after this entry: a bucket, or NAME or BUCKET/NAME as listed.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = _PAGE,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also show the size and state of each object.")] = False,
    summarize: Annotated[
        bool, typer.Option("--summarize", help="Also count all objects there, and sum their sizes.")
    ] = False,
    delimiter: Annotated[
        str,
        typer.Option(
            help="Group the names that contain this string after PREFIX, such as /, and show each group as a folder."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List buckets, or the objects of a bucket. In byte order of their names; with -l, their sizes and states."""
    bucket, _, prefix = where.partition("/")
    if delimiter and (summarize or not bucket):
        raise InvalidInput("--delimiter needs BUCKET or BUCKET/PREFIX, and cannot be combined with --summarize")
    if not bucket and context(ctx).settings().cells:
        if long or summarize:
            raise InvalidInput(_NEEDS_BUCKET)
        buckets, failures = _of_all_cells(context(ctx).settings(), after, limit)
        next_after = _print_buckets(buckets, limit, as_json)
        _print_more_hint(context(ctx), where, None if as_json else next_after, limit, long, delimiter)
        if failures:
            raise typer.Exit(
                most_severe([report(error, as_json or logs_json(), cell=name) for name, error in failures.items()])
            )
        return
    with context(ctx).home(bucket) if bucket else context(ctx).system() as system:
        if bucket:
            after = after.removeprefix(f"{bucket}/")
            if delimiter:
                found = _folder_pages(system.client.store(), bucket, prefix, delimiter, after, limit)
            else:
                found = _listed_pages(
                    system.client.store(), bucket, prefix, after, limit, rows=long or summarize, to_end=summarize
                )
            next_after = _print_objects(found, bucket, limit, long, summarize, as_json, delimiter)
        elif long or summarize:
            raise InvalidInput(_NEEDS_BUCKET)
        else:
            next_after = _print_buckets(system.client.store().list_buckets(after, limit + 1), limit, as_json)
    _print_more_hint(context(ctx), where, None if as_json else next_after, limit, long, delimiter)


def _print_buckets(buckets: list[str], limit: int, as_json: bool) -> str | None:
    """Print names of buckets, at most `limit`. Returns the name after which the listing continues, if there are
    more."""
    next_after = buckets[limit - 1] if len(buckets) > limit else None
    shown = buckets[:limit]
    emit({"buckets": shown, "next_after": next_after}, as_json, lambda: print_lines(map(printable, shown)))
    return next_after


def _of_all_cells(settings: Settings, after: str, limit: int) -> tuple[list[str], dict[str, NosError]]:
    """Return the names of buckets with objects in any cell, one more than the limit, and the errors of the cells that
    cannot be reached, whose buckets are lacking."""
    found: list[list[str]] = []
    failures: dict[str, NosError] = {}
    with open_cells(settings, SystemClock()) as cells:
        for name in cells.names():
            try:
                found.append(cells.system(name).client.store().list_buckets(after, limit + 1))
            except NosError as error:
                failures[name] = error
    return list(dict.fromkeys(merge(*found, key=str.encode)))[: limit + 1], failures


def _listed_pages(
    store: Store, bucket: str, prefix: str, after: str, limit: int, *, rows: bool, to_end: bool
) -> Iterator[list[_Listed]]:
    """Return pages of entries, with one entry more than the limit to detect the end. Names alone come from an index,
    but every row costs a look-up. Raises NotFound for a bucket without objects."""
    page_max = _PAGE + 1 if to_end else min(limit, _PAGE) + 1
    if rows:
        found: Iterator[list[Any]] = pages(store, bucket, prefix, after, page_max)
    else:
        found = name_pages(store, bucket, prefix, after, page_max)
    yield from _require_objects(store, bucket, found)


def _folder_pages(
    store: Store, bucket: str, prefix: str, delimiter: str, after: str, limit: int
) -> Iterator[list[_Listed]]:
    """Return pages of entries like `_listed_pages`, with folders."""
    found = entry_pages(store, bucket, prefix, delimiter, after, min(limit, _PAGE) + 1)
    folded = ([_Folder(one) if isinstance(one, str) else one for one in page] for page in found)
    yield from _require_objects(store, bucket, folded)


def _require_objects(store: Store, bucket: str, found: Iterator[list[Any]]) -> Iterator[list[_Listed]]:
    first = next(found, [])
    if not first and not store.list_names(bucket, "", "", 1):
        raise NotFound(f"bucket {printable(bucket)} has no objects")
    yield first
    yield from found


def _print_objects(
    found: Iterable[list[_Listed]],
    bucket: str,
    limit: int,
    long: bool,
    summarize: bool,
    as_json: bool,
    delimiter: str,
) -> str | None:
    """Print the entries. People see each page at once, but JSON is a single line, so its entries are collected first.
    Returns the name after which the listing continues; None when it is complete."""
    shown: list[_Listed] = []
    count = size = listed = 0
    last = ""
    next_after: str | None = None
    for page in found:
        count += len(page)
        size += sum(one.users_size for one in page if isinstance(one, ObjectRow))
        lines = page[: limit - listed]
        if as_json:
            shown += lines
        else:
            print_lines(_line(bucket, one, long) for one in lines)
        if next_after is None and len(lines) < len(page):
            next_after = _name(lines[-1]) if lines else last
        listed += len(lines)
        last = _name(page[-1]) if page else last
        if next_after is not None and not summarize:
            break
    objects = [_data(bucket, one, long) for one in shown if not isinstance(one, _Folder)]
    data: dict[str, Any] = {"objects": objects, "next_after": next_after}
    if delimiter:
        data["folders"] = [{"bucket": bucket, "name": one.name} for one in shown if isinstance(one, _Folder)]
    if summarize:
        data |= {"total_objects": count, "total_bytes": size}
    total = f"total: {count_text(count, 'object')}, {count_text(size, 'byte')} ({size_text(size)})"
    emit(data, as_json, lambda: print_lines([total] if summarize else []))
    return next_after


def _name(listed: _Listed) -> str:
    if isinstance(listed, ObjectRow):
        return listed.key.name
    return listed.name if isinstance(listed, _Folder) else listed


def _line(bucket: str, listed: _Listed, long: bool) -> str:
    key = printable(f"{bucket}/{_name(listed)}")
    if long and isinstance(listed, ObjectRow):
        return f"{listed.users_size:>12}  {listed.state.value:<7} {key}"
    return f"{'':>12}  {'folder':<7} {key}" if long else key


def _data(bucket: str, listed: _Listed, long: bool) -> dict[str, Any]:
    if long and isinstance(listed, ObjectRow):
        return row_data(listed)
    return {"bucket": bucket, "name": _name(listed)}


def row_data(row: ObjectRow) -> dict[str, Any]:
    """Return the data of an object that `ls -l` and `stat` print. Raises Corrupt if its attributes are damaged."""
    md5, parts = row.tag
    lock = lock_text(row.lock)
    return {
        "bucket": row.key.bucket,
        "name": row.key.name,
        "version": row.version,
        "size": row.users_size,
        "crc32c": f"{row.users_crc32c:08x}",
        "md5": md5.hex(),
        **({} if parts is None else {"parts": parts}),
        "state": row.state.value,
        "created_ms": row.created_ms,
        **({} if lock is None else {"lock": lock}),
        "attributes": attributes_of(row),
    }


def _print_more_hint(
    found: Context, where: str, next_after: str | None, limit: int, long: bool, delimiter: str
) -> None:
    """Print on stderr that there are more entries, with the command that lists them."""
    if next_after is not None:
        options = [
            *(["-l"] if long else []),
            *([f"--delimiter={delimiter}"] if delimiter else []),
            f"--after={next_after}",
            *([f"--limit={limit}"] if limit != _PAGE else []),
        ]
        words = found.command("ls", *options, *(["--"] if where.startswith("-") else []), *([where] if where else []))
        err.print(f"there are more; continue with: {words}", markup=False)
