"""undelete, trash list and trash empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from nos_ec.cli.context import AsJson, context, parse_object
from nos_ec.cli.listing import row_data
from nos_ec.cli.output import count_text, emit, out, print_lines, printable, progress, size_text
from nos_ec.cli.tally import Tally, counting
from nos_ec.cli.trees import ask, parse_prefix, require_terminal
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.engine.explain.times import when
from nos_ec.engine.trash import TrashCan
from nos_ec.ports.metadata import ObjectRow

LISTED_MAX = 1000
Where = Annotated[
    str,
    typer.Argument(metavar="[BUCKET[/NAME]]", help="An object, or what is below BUCKET/NAME/. Default: all."),
]

trash_app = typer.Typer(help="What was deleted and can be brought back.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(undelete)
    trash_app.command("list")(trash_list)
    trash_app.command("empty")(trash_empty)
    app.add_typer(trash_app, name="trash")


def undelete(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="With -r: BUCKET or BUCKET/PREFIX.")],
    version: Annotated[int | None, typer.Option(help="Bring back this version instead of the latest.")] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Bring back every object below a prefix.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a deleted object back from the trash, as it was.

    A version that was overwritten cannot come back, nor one that was deleted while trash.keep_days was 0. With -r: of
    each object, the version that was deleted last. Versions whose object exists are named and stay in the trash.
    """
    if recursive:
        if version is not None:
            raise InvalidInput("undelete -r takes no --version")
        _undelete_tree(ctx, name, as_json)
        return
    key = parse_object(name)
    with context(ctx).system() as system:
        can = system.trash()
        row = can.undelete(can.find(key, version))
    emit(row_data(row), as_json, lambda: out.print(f"{printable(str(row.key))}  {size_text(row.size)}", markup=False))


def _undelete_tree(ctx: typer.Context, target: str, as_json: bool) -> None:
    bucket, prefix = parse_prefix(target)
    tally = Tally("undeleted", as_json)
    with context(ctx).system() as system:
        can = system.trash()
        _require_some(can, bucket, prefix)
        with tally.told(f"below {bucket}/{prefix}"), progress() as bar:
            count = counting(bar, "undelete", tally)
            for page in can.pages(bucket, prefix):
                back = can.undelete_many(page)
                for row in back:
                    count(row.size)
                done = {row.object_id for row in back}
                for row in page:
                    if row.object_id not in done:
                        tally.leave_out(f"{row.key} version {row.version}", "another version is current, or it expired")


def trash_list(
    ctx: typer.Context,
    where: Where = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = LISTED_MAX,
    as_json: AsJson = False,
) -> None:
    """List what is in the trash, and until when.

    What is kept longest comes first. The sums at the end are of all that is there, also of what is not shown.
    """
    shown: list[dict[str, Any]] = []
    count = size = 0
    with context(ctx).system() as system:
        now_ms = system.clock.now_ms()
        for page in _pages(system.trash(), where):
            lines = page[: max(0, limit - count)]
            count += len(page)
            size += sum(row.size for row in page)
            if as_json:
                shown += [row_data(row) | {"trash_until_ms": row.trash_until_ms} for row in lines]
            else:
                print_lines(_line(row, now_ms) for row in lines)
    data = {"objects": shown, "total_objects": count, "total_bytes": size}
    total = f"in the trash: {count_text(count, 'object')}, {size_text(size)}"
    emit(data, as_json, lambda: out.print(total if count <= limit else f"{total}; the first {limit:,} are shown"))


def _line(row: ObjectRow, now_ms: int) -> str:
    until = when(row.trash_until_ms or 0, now_ms)
    return f"{row.size:>12}  until {until}  version {row.version}  {printable(str(row.key))}"


def trash_empty(
    ctx: typer.Context,
    where: Where = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete what is in the trash, before its time.

    GC then frees the space, as after any delete.
    """
    place = f"of {printable(where)} in the trash" if where else "in the trash"
    if not yes:
        require_terminal(f"trash empty permanently deletes everything {place}")
    tally = Tally("deleted", as_json)
    with context(ctx).system() as system:
        can = system.trash()
        if not yes:
            ask(f"Permanently delete everything {place}? [y/N] ")
        with tally.told(place), progress() as bar:
            count = counting(bar, "trash empty", tally)
            for page in _pages(can, where):
                for row in can.purge(page):
                    count(row.size)


def _pages(can: TrashCan, where: str) -> Iterator[Sequence[ObjectRow]]:
    """The rows of an object, or of all below it, or of a bucket, or all. Raises InvalidInput, Transient."""
    if not where:
        yield from can.pages()
        return
    bucket, prefix = parse_prefix(where)
    name = prefix.removesuffix("/")
    for page in can.pages(bucket, name):
        yield [row for row in page if not name or row.key.name == name or row.key.name.startswith(prefix)]


def _require_some(can: TrashCan, bucket: str, prefix: str) -> None:
    if not any(can.pages(bucket, prefix)):
        raise NotFound(f"nothing below {printable(bucket)}/{printable(prefix)} is in the trash")
