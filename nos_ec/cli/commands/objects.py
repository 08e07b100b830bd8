"""The commands put, get, rm and stat."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from nos_ec.cli.commands.listing import ls as ls
from nos_ec.cli.commands.listing import row_data
from nos_ec.cli.files.trees import get_tree, put_tree, remove_tree
from nos_ec.cli.terminal.context import AsJson, context, parse_object
from nos_ec.cli.terminal.output import count_text, emit, err, facts, out, print_lines, stdout, time_text
from nos_ec.cli.terminal.streams import Source, is_folder
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import InvalidInput, Locked, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.large_places import tail_of
from nos_ec.engine.objects.store import Store
from nos_ec.engine.texts import printable, size_text
from nos_ec.ports.metadata import ObjectRow

_RANGE_CHARS_MAX = 100
Object = Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="The name may contain slashes.")]


def put(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="With -r: BUCKET or BUCKET/PREFIX.")],
    source: Annotated[Path, typer.Argument(metavar="FILE", help="'-' for stdin; with -r: a folder.")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Store every file below a folder.")] = False,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute", metavar="NAME=VALUE", help="Attribute that `stat` will show; may be given several times."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store a file, or stdin. Overwrites an existing object. The data is durable when the command returns.

    With -r: store every file below a folder. Files that cannot be stored are named; the others are stored.
    """
    given = _attributes(attributes or [])
    if recursive:
        if given:
            raise InvalidInput("put -r takes no --attribute; store the files one by one")
        put_tree(ctx, target, source, as_json)
        return
    key = parse_object(target)
    with context(ctx).home(key.bucket, key.name, creates=True) as system, Source(source) as stream:
        row = system.client.store().put(key, stream, given)
    emit(
        row_data(row),
        as_json,
        lambda: out.print(f"{printable(str(row.key))}  {size_text(row.users_size)}", markup=False),
    )


def _attributes(pairs: list[str]) -> bytes:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or name in found:
            raise InvalidInput(f"--attribute {pair!r}: use NAME=VALUE, and each name once")
        found[name] = value
    return encode_attributes(found)


def get(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="With -r: BUCKET or BUCKET/PREFIX.")],
    folder: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="With -r: the folder to write to.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; '-' for stdout.")] = Path("-"),
    byte_range: Annotated[
        str | None, typer.Option("--range", help="FIRST-LAST (inclusive), FIRST- or -COUNT, as in HTTP.")
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Write every object below a prefix to a file below FOLDER.")
    ] = False,
    skip_existing: Annotated[
        bool,
        typer.Option("--skip-existing", help="With -r: skip files that have the size and MD5 of their object."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read an object, or a range of it. The CRC of a whole read is checked before the output file appears. --json needs
    --output, because stdout cannot carry both the object and the report.

    With -r: write every object below a prefix to a file. Objects that cannot be files are named; the others are
    written.
    """
    if recursive:
        if folder is None or output != Path("-") or byte_range is not None:
            raise InvalidInput("get -r takes BUCKET[/PREFIX] and FOLDER, and neither --output nor --range")
        get_tree(ctx, name, folder, skip_existing, as_json)
        return
    if folder is not None or skip_existing:
        raise InvalidInput("FOLDER and --skip-existing need -r; to write one object to a file, use --output FILE")
    if as_json and output == Path("-"):
        raise InvalidInput("--json needs --output FILE: stdout cannot carry both the object and the report")
    key = parse_object(name)
    if output != Path("-"):
        _refuse_folder(output)
    with context(ctx).home(key.bucket, key.name) as system:
        row, segments = _open_object(system.client.store(), key, byte_range)
        written = _write_out(output, segments)
    if output != Path("-"):
        data = {**row_data(row), "bytes_written": written, "output": str(output)}
        emit(data, as_json, lambda: err.print(f"{size_text(written)} written to {output}", markup=False))


def rm(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="BUCKET/NAME", help="One or more objects. With -r: BUCKET or BUCKET/PREFIX.")
    ],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Delete every object below a prefix.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With -r: do not ask.")] = False,
    permanently: Annotated[
        bool, typer.Option("--permanently", help="Bypass the trash, even if trash.keep_days is set.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete objects. Missing objects are listed; the others are still deleted.

    If trash.keep_days is set, they go into the trash, from which `nos-ec undelete` brings them back.

    With -r: delete every object below a prefix. photos/2026 stands for all names that begin with 2026/, not for 2026x
    or 2026 itself.
    """
    if recursive:
        if len(names) > 1:
            raise InvalidInput("rm -r takes one BUCKET or BUCKET/PREFIX")
        remove_tree(ctx, names[0], yes, permanently, as_json)
        return
    keys = list(dict.fromkeys(parse_object(name) for name in names))
    found: set[ObjectKey] = set()
    days, locked = 0, None
    for group in context(ctx).grouped(keys):
        with suppress(NotFound), context(ctx).home(group[0].bucket, group[0].name) as system:
            days = max(days, 0 if permanently else system.settings.trash.keep_days)
            try:
                found |= {row.key for row in system.client.store().delete_many(group, permanently=permanently)}
            except Locked as error:  # the others are deleted
                locked = locked or error
    if locked is not None:
        raise locked
    deleted = [str(key) for key in keys if key in found]
    missing = [str(key) for key in keys if key not in found]

    def show() -> None:
        print_lines(map(printable, deleted))
        if days and deleted:
            out.print(f"in the trash for {count_text(days, 'day')}; `nos-ec undelete` brings them back")

    emit({"deleted": deleted, "missing": missing, "trash_days": days}, as_json, show)
    if missing:
        raise NotFound(f"no such object: {', '.join(missing)}")


def stat(ctx: typer.Context, name: Object, as_json: AsJson = False) -> None:
    """Show an object's metadata, and where its bytes are."""
    key = parse_object(name)
    with context(ctx).home(key.bucket, key.name) as system:
        row = system.metadata.get(key)
        data = {**row_data(row), "location": _location(system, row)}
    human = {**data, "size": f"{row.users_size} ({size_text(row.users_size)})", "created": time_text(row.created_ms)}
    del human["created_ms"], human["location"], human["attributes"]
    human |= {f"attribute {printable(name)}": printable(value) for name, value in data["attributes"].items()}
    emit(data, as_json, lambda: facts(printable(str(row.key)), human | _location_facts(data["location"])))


def _location_facts(location: dict[str, Any]) -> dict[str, Any]:
    if "segments" not in location:
        return location
    found = {
        f"block {number}": f"{s['block']}  {size_text(s['length'])}" for number, s in enumerate(location["segments"])
    }
    if "tail" in location:
        tail = location["tail"]
        place = f"block {tail['block']}" if "block" in tail else f"landing copy {tail.get('landing')}"
        found["tail"] = f"{place}  {size_text(tail['size'])}"
    return found


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
    extents = [segment.extent for segment in system.metadata.segments(row.object_id, row.version)]
    location: dict[str, Any] = {"segments": [{"block": one.block_id.hex(), "length": one.length} for one in extents]}
    tail = tail_of(system.metadata, row, extents)
    return location if tail is None else {**location, "tail": {"size": tail.size, **_location(system, tail)}}


def _open_object(store: Store, key: ObjectKey, byte_range: str | None) -> tuple[ObjectRow, Iterator[bytes]]:
    if byte_range is None:
        return store.open(key)
    first, dash, last = byte_range.partition("-")
    if (
        not dash
        or not (first or last)
        or not all(part == "" or (part.isascii() and part.isdigit()) for part in (first, last))
        or len(byte_range) > _RANGE_CHARS_MAX  # Python refuses to parse numbers of thousands of digits
    ):
        raise InvalidInput(f"--range {byte_range!r}: use FIRST-LAST, FIRST- or -COUNT with whole numbers")
    if last and first and int(last) < int(first):
        raise InvalidInput(f"--range {byte_range!r}: LAST is before FIRST")
    size = store.head(key).users_size
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
    """Write to stdout, or to a file that appears only once it is complete, and return the number of bytes. Devices and
    pipes are written directly. Raises InvalidInput."""
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
    draft = output.with_name(f".nos-ec-{os.getpid()}.part")  # short, because `output` may have a name of maximum length
    try:
        with draft.open("wb") as file:
            written = sum(file.write(segment) for segment in segments)
        draft.replace(output)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return written
