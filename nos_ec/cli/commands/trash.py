"""The commands undelete, trash list and trash empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from nos_ec.cli.commands.listing import row_data
from nos_ec.cli.files.trees import ask, parse_prefix, require_terminal
from nos_ec.cli.terminal.context import AsJson, context, parse_object
from nos_ec.cli.terminal.item_counter import ItemCounter, counting
from nos_ec.cli.terminal.output import count_text, emit, out, print_lines, progress, time_text
from nos_ec.cli.terminal.values import Since, Until, time_of
from nos_ec.composition.cells import correct_directory
from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.engine.texts import printable, size_text, span
from nos_ec.ports.metadata import ObjectRow

LISTED_MAX = 1000
RESTORED_MAX = 1_000_000
"""How many restored objects `undelete -r` remembers, to distinguish their older versions from failures."""
Where = Annotated[
    str,
    typer.Argument(metavar="[BUCKET[/NAME]]", help="An object, or all objects below BUCKET/NAME/. Default: all."),
]

trash_app = typer.Typer(help="Deleted objects that can be brought back.", no_args_is_help=True, rich_markup_mode=None)


def undelete(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="BUCKET/NAME", help="With -r: BUCKET or BUCKET/PREFIX.")],
    version: Annotated[int | None, typer.Option(help="Bring back this version instead of the latest.")] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Bring back every object below a prefix.")
    ] = False,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Bring a deleted object back from the trash, as it was.

    A version that was overwritten cannot come back, nor one that was deleted while trash.keep_days was 0. If several
    versions of the object are in the trash, the one that is kept longest comes back.

    With -r: all objects below a prefix, or with --since and --until those that were deleted between these times.
    Versions whose object exists are named and stay in the trash.
    """
    if recursive:
        if version is not None:
            raise InvalidInput("undelete -r takes no --version")
        _undelete_tree(ctx, name, (since, until), as_json)
        return
    if since or until:
        raise InvalidInput("--since and --until need -r; for one object, choose a --version of `nos-ec trash list`")
    key = parse_object(name)
    with context(ctx).home(key.bucket, key.name) as system:
        can = system.client.trash()
        try:
            row = can.undelete(can.find(key, version))
            correct_directory(system, key.bucket)
        except NotFound as error:
            raise NotFound(f"{error}{_hint(system, key)}", key=key) from None
    emit(
        row_data(row),
        as_json,
        lambda: out.print(f"{printable(str(row.key))}  {size_text(row.users_size)}", markup=False),
    )


def _hint(system: System, key: ObjectKey) -> str:
    """Return the end of the error message: what else the user may have meant."""
    if any(system.client.trash().pages(key.bucket, f"{key.name}/")):
        return f"; to bring back what is below {key}/, use -r"
    return _trash_off_hint(system)


def _trash_off_hint(system: System) -> str:
    return "" if system.settings.trash.keep_days else "; the trash is off (trash.keep_days is 0): deletes are permanent"


def _undelete_tree(ctx: typer.Context, target: str, between: tuple[str | None, str | None], as_json: bool) -> None:
    bucket, prefix = parse_prefix(target)
    counter = ItemCounter("undeleted", as_json, more={"older_versions_left": 0})
    with context(ctx).home(bucket) as system:
        can, deleted = system.client.trash(), _Between.of(between, system.clock.now_ms())
        if not any(can.pages(bucket, prefix)):
            where = f"{printable(bucket)}/{printable(prefix)}"
            raise NotFound(f"nothing below {where} is in the trash{_trash_off_hint(system)}")
        restored: set[int] = set()
        with counter.reporting_totals(f"below {bucket}/{prefix}"), progress() as bar:
            count = counting(bar, "undelete", counter)
            for page in can.pages(bucket, prefix):
                wanted = [row for row in page if deleted.includes(row)]
                for row in (back := can.undelete_many(wanted)):
                    count(row.users_size)
                    if len(restored) < RESTORED_MAX:
                        restored.add(row.object_id)
                _report_rest(system, wanted, {row.object_id for row in back}, restored, counter)
        correct_directory(system, bucket)


def _report_rest(
    system: System, wanted: Sequence[ObjectRow], back: set[int], restored: set[int], counter: ItemCounter
) -> None:
    """Report the rows that were not brought back. `restored` has the ids of the objects that this command has brought
    back so far; older versions of these stay in the trash."""
    rest = [row for row in wanted if row.object_id not in back]
    current = system.metadata.rows_of({row.key for row in rest})
    for row in rest:
        other = current.get(row.key)
        what = f"{row.key} version {row.version}"
        if other is None:
            counter.leave_out(what, "it has left the trash meanwhile")
        elif other.object_id == row.object_id:
            counter.leave_out(what, "it was brought back meanwhile, by somebody else")
        elif other.object_id in restored:
            counter.more["older_versions_left"] += 1
        else:
            counter.problem(what, "another version was stored after the delete")


@dataclass(frozen=True, slots=True)
class _Between:
    """A range of deletion times: since_ms is included, until_ms is not; None means no limit."""

    since_ms: int | None
    until_ms: int | None

    @classmethod
    def of(cls, between: tuple[str | None, str | None], now_ms: int) -> _Between:
        """Parse --since and --until. Raises InvalidInput."""
        since, until = between
        return cls(
            None if since is None else time_of(since, "--since", now_ms),
            None if until is None else time_of(until, "--until", now_ms),
        )

    def includes(self, row: ObjectRow) -> bool:
        """Return whether the object was deleted in this range."""
        at_ms = row.trashed_ms or 0
        return (self.since_ms is None or at_ms >= self.since_ms) and (self.until_ms is None or at_ms < self.until_ms)


@trash_app.command("list")
def trash_list(
    ctx: typer.Context,
    where: Where = "",
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = LISTED_MAX,
    as_json: AsJson = False,
) -> None:
    """List the objects in the trash, and until when they are kept.

    Objects that are kept longest come first. --since and --until are times of deletion. The sums at the end include
    matching objects that are not shown.
    """
    shown: list[dict[str, Any]] = []
    count = size = 0
    with _opened(ctx, where) as system:
        now_ms = system.clock.now_ms()
        deleted, off = _Between.of((since, until), now_ms), _trash_off_hint(system)
        for every in _pages(system.client.trash(), where):
            page = [row for row in every if deleted.includes(row)]
            lines = page[: max(0, limit - count)]
            count += len(page)
            size += sum(row.users_size for row in page)
            if as_json:
                times = [{"trashed_ms": row.trashed_ms, "trash_until_ms": row.trash_until_ms} for row in lines]
                shown += [row_data(row) | own for row, own in zip(lines, times, strict=True)]
            else:
                print_lines(_line(row, now_ms) for row in lines)
    data = {"objects": shown, "total_objects": count, "total_bytes": size}
    total = f"in the trash: {count_text(count, 'object')}, {size_text(size)}{'' if count else off}"
    emit(data, as_json, lambda: out.print(total if count <= limit else f"{total}; the first {limit:,} are shown"))


def _line(row: ObjectRow, now_ms: int) -> str:
    until_ms = row.trash_until_ms or 0
    left = f"{span(until_ms - now_ms)} left" if until_ms > now_ms else "expired: the next GC run removes it"
    times = f"deleted {time_text(row.trashed_ms or 0)}, kept until {time_text(until_ms)} ({left})"
    return f"{row.users_size:>12}  {times}  version {row.version}  {printable(str(row.key))}"


@trash_app.command("empty")
def trash_empty(
    ctx: typer.Context,
    where: Where = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete the objects in the trash now.

    GC then frees their space, as after any delete.
    """
    trash = f"the trash of {printable(where)}" if where else "the trash"
    if not yes:
        require_terminal(f"trash empty permanently deletes everything in {trash}")
    counter = ItemCounter("deleted", as_json)
    with _opened(ctx, where) as system:
        can = system.client.trash()
        if not yes:
            ask(f"Permanently delete everything in {trash}? [y/N] ")
        with counter.reporting_totals(f"permanently from {trash}"), progress() as bar:
            count = counting(bar, "trash empty", counter)
            for page in _pages(can, where):
                for row in can.purge(page):
                    count(row.users_size)


def _opened(ctx: typer.Context, where: str) -> System:
    """Open the store, or the cell of the bucket in which the command works."""
    return context(ctx).home(where.partition("/")[0]) if where else context(ctx).system()


def _pages(can: TrashCan, where: str) -> Iterator[Sequence[ObjectRow]]:
    """Yields pages of rows in the trash: of an object and the objects below it, of a bucket, or of the whole store.
    Raises InvalidInput, Transient."""
    if not where:
        yield from can.pages()
        return
    bucket, prefix = parse_prefix(where)
    name = prefix.removesuffix("/")
    for page in can.pages(bucket, name):
        yield [row for row in page if not name or row.key.name == name or row.key.name.startswith(prefix)]
