"""put, get, rm, ls, stat."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from nos_ec.cli.context import AsJson, Context, context, parse_object
from nos_ec.cli.output import count_text, emit, err, facts, out, printable, progress, size_text, stdout, time_text
from nos_ec.cli.streams import Source, is_folder
from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.store import Store
from nos_ec.engine.tree import load_tree
from nos_ec.ports.metadata import ObjectRow

Object = Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="The name may contain slashes.")]

_PAGE = 1000


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (put, get, rm, ls, stat):
        app.command()(command)


def put(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="With -r: BUCKET or BUCKET/PREFIX.")],
    source: Annotated[Path, typer.Argument(metavar="FILE", help="'-' for stdin; with -r: a folder.")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Store every file below a folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store a file (or stdin) as an object. Overwrites an existing object. The data is durable when the command
    returns."""
    if recursive:
        _put_tree(ctx, target, source, as_json)
        return
    key = parse_object(target)
    with context(ctx).system() as system, Source(source) as stream:
        row = system.store().put(key, stream)
    emit(_row_data(row), as_json, lambda: out.print(f"{printable(str(row.key))}  {size_text(row.size)}", markup=False))


def _put_tree(ctx: typer.Context, target: str, folder: Path, as_json: bool) -> None:
    bucket, _, prefix = target.partition("/")
    prefix = prefix.rstrip("/") + "/" if prefix else ""
    if not is_folder(folder):
        raise InvalidInput(f"{folder} is not a folder; to store a single file, leave out -r")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    pairs = [(_key_of_file(bucket, prefix, folder, path), path) for path in files]
    with context(ctx).system() as system, progress() as bar:
        task = bar.add_task("put", total=len(files))
        loaded = load_tree(system.store(), pairs, system.pool, on_file=lambda: bar.advance(task))
    data = {"objects": loaded.objects, "bytes": loaded.bytes}
    where = f"{bucket}/{prefix}"
    summary = f"{count_text(loaded.objects, 'object')}, {size_text(loaded.bytes)}, under {where}"
    emit(data, as_json, lambda: out.print(summary, markup=False))


def _key_of_file(bucket: str, prefix: str, folder: Path, path: Path) -> ObjectKey:
    try:
        return ObjectKey(bucket, prefix + path.relative_to(folder).as_posix())
    except InvalidInput as error:
        raise InvalidInput(f"{printable(str(path))} cannot be stored: {error}") from error


def get(
    ctx: typer.Context,
    name: Object,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; '-' for stdout.")] = Path("-"),
    byte_range: Annotated[
        str | None, typer.Option("--range", help="FIRST-LAST (inclusive), FIRST- or -COUNT, as in HTTP.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read an object, or a range of it. The CRC of a whole read is checked before the output file appears. --json needs
    --output, because stdout cannot carry both the object and the report."""
    if as_json and output == Path("-"):
        raise InvalidInput("--json needs --output FILE: stdout cannot carry both the object and the report")
    key = parse_object(name)
    if output != Path("-"):
        _refuse_folder(output)
    with context(ctx).system() as system:
        row, segments = _open_object(system.store(), key, byte_range)
        written = _write_out(output, segments)
    if output != Path("-"):
        data = {**_row_data(row), "bytes_written": written, "output": str(output)}
        emit(data, as_json, lambda: err.print(f"{size_text(written)} written to {output}", markup=False))


def rm(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="BUCKET/NAME", help="One or more objects.")],
    as_json: AsJson = False,
) -> None:
    """Delete objects. Missing objects are listed; the others are still deleted."""
    keys = list(dict.fromkeys(parse_object(name) for name in names))
    with context(ctx).system() as system:
        found = {row.key for row in system.store().delete_many(keys)}
    deleted = [str(key) for key in keys if key in found]
    missing = [str(key) for key in keys if key not in found]
    emit({"deleted": deleted, "missing": missing}, as_json, lambda: _lines(map(printable, deleted)))
    if missing:
        raise NotFound(f"no such object: {', '.join(missing)}")


def ls(
    ctx: typer.Context,
    where: Annotated[str, typer.Argument(metavar="BUCKET[/PREFIX]", help="If left out, the buckets are listed.")] = "",
    after: Annotated[
        str, typer.Option(help="Start after this entry: a bucket, or NAME or BUCKET/NAME as listed.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = _PAGE,
    as_json: AsJson = False,
) -> None:
    """List buckets, or the objects of a bucket, in byte order of their names."""
    bucket, _, prefix = where.partition("/")
    with context(ctx).system() as system:
        store = system.store()
        if not bucket:
            buckets = store.list_buckets(after, limit + 1)
            next_bucket = buckets[limit - 1] if len(buckets) > limit else None
            shown = buckets[:limit]
            emit({"buckets": shown, "next_after": next_bucket}, as_json, lambda: _lines(map(printable, shown)))
            if not as_json:
                _print_more_hint(context(ctx), where, next_bucket, limit)
            return
        rows = _paged(store, bucket, prefix, after.removeprefix(f"{bucket}/"), limit + 1)
    next_after = rows[limit - 1].key.name if len(rows) > limit else None
    rows = rows[:limit]
    data = {"objects": [_row_data(row) for row in rows], "next_after": next_after}
    lines = (f"{row.size:>12}  {row.state.value:<7} {printable(str(row.key))}" for row in rows)
    emit(data, as_json, lambda: _lines(lines))
    if not as_json:
        _print_more_hint(context(ctx), where, next_after, limit)


def _print_more_hint(found: Context, where: str, next_after: str | None, limit: int) -> None:
    """Print on stderr that the listing continues, and the command that continues it."""
    if next_after is not None:
        options = [f"--after={next_after}", *([f"--limit={limit}"] if limit != _PAGE else [])]
        words = found.command("ls", *options, *(["--"] if where.startswith("-") else []), *([where] if where else []))
        err.print(f"there are more; continue with: {words}", markup=False)


def stat(ctx: typer.Context, name: Object, as_json: AsJson = False) -> None:
    """Show an object's metadata and where its bytes are."""
    with context(ctx).system() as system:
        row = system.metadata.get(parse_object(name))
        data = {**_row_data(row), "location": _location(system, row)}
    human = {**data, "size": f"{row.size} ({size_text(row.size)})", "created": time_text(row.created_ms)}
    del human["created_ms"], human["location"]
    emit(data, as_json, lambda: facts(printable(str(row.key)), human | _location_facts(data["location"])))


def _location_facts(location: dict[str, Any]) -> dict[str, Any]:
    if "segments" not in location:
        return location
    return {
        f"block {number}": f"{s['block']}  {size_text(s['length'])}" for number, s in enumerate(location["segments"])
    }


def _location(system: System, row: ObjectRow) -> dict[str, Any]:
    if row.extent is not None:
        extent = row.extent
        return {
            "block": extent.block_id.hex(),
            "offset": extent.offset,
            "length": extent.length,
            "chunks": system.geometry.chunks_touched(extent.offset, extent.length),
        }
    if row.landing_id is not None:
        return {"landing": row.landing_id.hex()}
    segments = system.metadata.segments(row.object_id, row.version)
    return {"segments": [{"block": s.extent.block_id.hex(), "length": s.extent.length} for s in segments]}


def _row_data(row: ObjectRow) -> dict[str, Any]:
    return {
        "bucket": row.key.bucket,
        "name": row.key.name,
        "version": row.version,
        "size": row.size,
        "crc32c": f"{row.crc32c:08x}",
        "md5": row.md5.hex(),
        "state": row.state.value,
        "created_ms": row.created_ms,
    }


def _paged(store: Store, bucket: str, prefix: str, after: str, limit: int) -> list[ObjectRow]:
    rows: list[ObjectRow] = []
    while len(rows) < limit:
        page = store.list_objects(bucket, prefix, after, min(_PAGE, limit - len(rows)))
        if not page:
            break
        rows += page
        after = page[-1].key.name
    return rows


def _open_object(store: Store, key: ObjectKey, byte_range: str | None) -> tuple[ObjectRow, Iterator[bytes]]:
    if byte_range is None:
        return store.open(key)
    first, dash, last = byte_range.partition("-")
    if (
        not dash
        or not (first or last)
        or not all(part == "" or (part.isascii() and part.isdigit()) for part in (first, last))
    ):
        raise InvalidInput(f"--range {byte_range!r}: use FIRST-LAST, FIRST- or -COUNT with whole numbers")
    if last and first and int(last) < int(first):
        raise InvalidInput(f"--range {byte_range!r}: LAST is before FIRST")
    size = store.head(key).size
    if (first and int(first) >= size) or (not first and int(last) == 0):
        raise InvalidInput(f"--range {byte_range!r} is not within the object, which has {count_text(size, 'byte')}")
    if not first:
        count = min(int(last), size)
        return store.open_range(key, size - count, count)
    length = int(last) - int(first) + 1 if last else 1 << 62
    return store.open_range(key, int(first), length)


def _refuse_folder(output: Path) -> None:
    if not output.name or is_folder(output):
        raise InvalidInput(f"{str(output)!r} is a folder; give the name of a file in it")


def _write_out(output: Path, segments: Iterable[bytes]) -> int:
    """Write to stdout, or to a file that appears only once it is complete. Devices and pipes are written directly."""
    if output == Path("-"):
        return sum(stdout.write_bytes(segment) for segment in segments)
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as device:
                return sum(device.write(segment) for segment in segments)
        return _write_file(output.resolve(), segments)
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {error.strerror}") from error


def _write_file(output: Path, segments: Iterable[bytes]) -> int:
    draft = output.with_name(f".nos-ec-{os.getpid()}.part")  # short: a name may be as long as names can be
    try:
        with draft.open("wb") as file:
            written = sum(file.write(segment) for segment in segments)
        draft.replace(output)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return written


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        out.print(line, markup=False)
