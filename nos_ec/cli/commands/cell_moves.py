"""The commands cells move, drain, moves and purge: buckets are moved from one cell to another (docs/CELLS.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from nos_ec.cli.terminal.context import AsJson, context, interrupt_on_sigterm
from nos_ec.cli.terminal.errors import exit_code, most_severe
from nos_ec.cli.terminal.output import count_text, emit, err, out, progress, time_text
from nos_ec.cli.terminal.values import rate_of
from nos_ec.composition.cells import cell_of, record_bucket, require_same_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import ConfigError, Conflict, InvalidInput, NosError, NoSpace, NotFound, Transient
from nos_ec.engine.moving import bucket_mover
from nos_ec.engine.moving.bucket_mover import BucketMover, Progress
from nos_ec.engine.texts import size_text
from nos_ec.engine.upkeep.move_recovery import stalled_moves
from nos_ec.ports.metadata import DirectoryRow, MoveRow, MoveState
from nos_ec.settings import Settings

_PAGE = 1000
_MOVER_BYTES = 7
"""A number of this size fits into a BIGINT."""

SAME_ROOM = 0.95
"""Cells that have at least this share of the most room count as having the same room."""

BytesPerS = Annotated[
    str | None,
    typer.Option("--bytes-per-s", metavar="SIZE", help="Copy at most this many bytes per second, such as 50MiB."),
]
Bucket = Annotated[str, typer.Argument(help="The bucket.")]


@dataclass(frozen=True, slots=True)
class _Room:
    """How many bytes a cell has room for, and how many bytes of objects it has."""

    cell: str
    free_bytes: int
    stored_bytes: int


def move(
    ctx: typer.Context,
    bucket: Bucket,
    to: Annotated[str, typer.Option("--to", metavar="CELL", help="The cell that gets it. Its own cell: give up.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="CELL",
            help="The cell whose slices of a wide bucket are moved. Other buckets are in one cell.",
        ),
    ] = None,
    bytes_per_s: BytesPerS = None,
    as_json: AsJson = False,
) -> None:
    """Move a bucket, or what a cell has of a wide bucket, to another cell, or continue a move that was interrupted."""
    settings = whole_store(context(ctx).settings())
    rate = _rate(bytes_per_s)
    interrupt_on_sigterm()
    _require_cell(settings, to)
    with open_directory(settings) as directory:
        done = _move(settings, directory, bucket, to, rate, source)
    emit({"moved": _moved(bucket, to, done)}, as_json, lambda: _print_moved(bucket, to, done))


def drain(
    ctx: typer.Context,
    cell: Annotated[str, typer.Argument(help="The cell.")],
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="CELL",
            help="A cell that may get buckets, also one without a weight; may be given several times. By default, all"
            " others that have a weight.",
        ),
    ] = None,
    bytes_per_s: BytesPerS = None,
    as_json: AsJson = False,
) -> None:
    """Move all buckets of a cell to others: each to the one with the most room among those that may take it.

    A bucket that cannot be moved is named, and the others are moved.
    """
    settings = whole_store(context(ctx).settings())
    rate = _rate(bytes_per_s)
    interrupt_on_sigterm()
    for name in (cell, *(to or ())):
        _require_cell(settings, name)
    if cell in (to or ()):
        raise InvalidInput(f"cell {cell} is the one that is drained; give others with --to")
    targets = sorted(set(to or [name for name, one in settings.cells.items() if one.weight and name != cell]))
    if not targets:
        raise ConfigError("no other cell takes buckets; give one a weight above 0, or name one with --to")
    moved: list[dict[str, Any]] = []
    not_moved: list[dict[str, Any]] = []
    codes: list[int] = []
    with open_directory(settings) as directory:
        for bucket in _buckets_of(settings, directory, cell):
            try:
                target, why = _target_of(settings, directory, bucket, cell, targets)
                if not as_json:
                    out.print(f"moving bucket {bucket} to cell {target}: {why}", markup=False)
                done = _move(settings, directory, bucket, target, rate, cell)
            except NosError as error:
                codes.append(exit_code(error))
                not_moved.append({"bucket": bucket, "error": type(error).__name__, "message": str(error)})
                err.print(f"bucket {bucket} was not moved: {error}", markup=False)
            else:
                moved.append(_moved(bucket, target, done))
                if not as_json:
                    _print_moved(bucket, target, done)
    text = f"{count_text(len(moved), 'bucket')} moved"
    if not_moved:
        text += f", {count_text(len(not_moved), 'bucket')} not moved: {', '.join(one['bucket'] for one in not_moved)}"
    emit({"moved": moved, "not_moved": not_moved}, as_json, lambda: out.print(text, markup=False))
    if not_moved:
        raise typer.Exit(most_severe(codes))


def moves(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the buckets that are being moved, or whose old copies are not purged."""
    settings = whole_store(context(ctx).settings())
    found: list[tuple[str, MoveRow, bool]] = []  # whether the move is stalled
    for name in settings.cells:
        with open_system(settings.of_cell(name)) as system:
            stalled = {row.bucket for row in stalled_moves(system.metadata)}
            after = ""
            while page := system.metadata.move_rows(after, _PAGE):
                after = page[-1].bucket
                for row in page:
                    if row.state is MoveState.HERE:
                        continue
                    system.metadata.move_as(row)  # reads what there is
                    is_empty = not bucket_mover.has_copies(system.metadata, row.bucket)
                    is_stalled = row.bucket in stalled
                    if row.state is not MoveState.GONE or not is_empty or is_stalled:
                        found.append((name, row, is_stalled))
    listed = [
        {
            "bucket": row.bucket,
            "cell": name,
            "state": row.state,
            "other": row.other,
            "since_ms": row.since_ms,
            "stalled": is_stalled,
        }
        for name, row, is_stalled in found
    ]

    def show() -> None:
        table = Table("bucket", "cell", "state", "from or to", "since", "stalled", box=None, pad_edge=False)
        for name, row, is_stalled in found:
            about = row.bucket, name, row.state, row.other, time_text(row.since_ms)
            table.add_row(*about, "yes" if is_stalled else "no")
        out.print(table)
        homes = _homes(settings, {row.bucket for _, row, is_stalled in found if is_stalled})
        named = [command for one in found if (command := next_command(*one, homes.get(one[1].bucket)))]
        commands = list(dict.fromkeys(named))
        if commands:
            out.print("next:")
        for command in commands:
            out.print(f"  {command}", markup=False)

    emit({"moves": listed}, as_json, show)


def purge(
    ctx: typer.Context,
    bucket: Bucket,
    cell: Annotated[str, typer.Option("--from", metavar="CELL", help="The cell from which it was moved.")],
    as_json: AsJson = False,
) -> None:
    """Delete the old copies of a bucket that was moved, once its new cell is dumped."""
    settings = whole_store(context(ctx).settings())
    _require_cell(settings, cell)
    interrupt_on_sigterm()
    with open_directory(settings) as directory:
        home = _home(directory, bucket)  # a deleted bucket may have old copies, too
    if cell in home.cells:
        raise InvalidInput(f"bucket {bucket} is in cell {cell}; give the cell from which it was moved")
    with _opened(settings, cell) as side, ExitStack() as stack, progress() as bar:
        task = bar.add_task(f"purge {bucket}", total=None)
        count = bucket_mover.purge(
            side.client.moving(),
            [stack.enter_context(_opened(settings, name)).client.moving() for name in home.cells],
            home,
            side.client.access_records().record,
            lambda done: bar.update(task, completed=done),
        )
    what = count_text(count, "version")
    emit({"purged": {"bucket": bucket, "cell": cell, "versions": count}}, as_json, lambda: out.print(f"{what} deleted"))


def _move(
    settings: Settings, directory: System, bucket: str, to: str, bytes_per_s: int, source: str | None = None
) -> Progress:
    number = int.from_bytes(os.urandom(_MOVER_BYTES))
    row = _home(directory, bucket)
    with ExitStack() as stack:
        if row.is_deleted:  # by the directory, which may not have been told that it exists again
            with _opened(settings, row.home, directory) as home:
                row = record_bucket(directory, home, bucket) or row
        if to in row.cells and source in (None, to):
            return _complete_or_give_up(settings, stack, directory, row, to, number, bytes_per_s)
        if row.is_deleted:
            raise NotFound(f"there is no bucket {bucket}")
        names = _source_of(row, source), to
        here, there = (stack.enter_context(_opened(settings, name, directory)) for name in names)
        return _run(directory, here, there, bucket, number, bytes_per_s)


def _source_of(row: DirectoryRow, source: str | None) -> str:
    """Return the cell from which a bucket is moved. Raises InvalidInput if that is not clear, or if the bucket has
    nothing there."""
    if source is None and row.slices:
        raise InvalidInput(
            f"bucket {row.bucket} is wide; name the cell whose slices are moved with --from: {', '.join(row.cells)}"
        )
    if source is not None and source not in row.cells:
        raise InvalidInput(f"bucket {row.bucket} has nothing in cell {source}; it is in {', '.join(row.cells)}")
    return source or row.home


def _target_of(
    settings: Settings, directory: System, bucket: str, cell: str, targets: Sequence[str]
) -> tuple[str, str]:
    """Return the cell to which a bucket of `cell` is moved, and why: the one to which an earlier command began to move
    it, or one of `targets`. Raises Conflict or Transient if none may take it."""
    home = directory.metadata.directory_row(bucket)
    with _opened(settings, cell, directory) as source:
        if home is None or cell not in home.cells:
            raise Conflict(f"bucket {bucket} was moved from cell {cell} meanwhile")
        begun = _begun_to(settings, source, bucket, targets)
        if begun is not None:
            return begun, "an earlier command has begun to move it there"
        usage = source.metadata.bucket_usage(bucket)
        size = 0 if usage is None else usage.held.bytes
        rooms: list[_Room] = []
        failures: dict[str, NosError] = {}
        for name in targets:
            try:
                with _opened(settings, name, directory) as target:
                    bucket_mover.require_takes(target.client.moving(), cell, home)
                    rooms.append(_room_of(target, name, size))
            except NosError as error:
                failures[name] = error
    if not rooms:
        kind = Transient if any(isinstance(error, Transient) for error in failures.values()) else Conflict
        raise kind("no cell may take it: " + "; ".join(f"{name}: {error}" for name, error in failures.items()))
    best = _roomiest(rooms)
    return best.cell, f"{size_text(best.free_bytes)} free, {size_text(best.stored_bytes)} stored"


def _room_of(system: System, cell: str, size: int) -> _Room:
    """Return what a cell has room for. Raises NoSpace if that is less than `size` bytes, Transient."""
    free_bytes = system.client.put_room()
    if free_bytes < size:
        raise NoSpace(f"cell {cell} has room for {size_text(free_bytes)}, and the bucket has {size_text(size)}")
    totals = system.operator.store_totals().read().totals
    return _Room(cell, free_bytes, totals.live_bytes + totals.waiting_bytes)


def _roomiest(rooms: Sequence[_Room]) -> _Room:
    """Return the cell with the most room. Cells that share their disks have the same room, which may change between two
    looks, so among cells whose room differs little it is the one that stores the least."""
    enough_bytes = max(room.free_bytes for room in rooms) * SAME_ROOM
    return min(
        (room for room in rooms if room.free_bytes >= enough_bytes), key=lambda room: (room.stored_bytes, room.cell)
    )


def _begun_to(settings: Settings, source: System, bucket: str, targets: Sequence[str]) -> str | None:
    """Return the cell to which an earlier command began to move a bucket from `source`, where its copies are."""
    begun = source.metadata.move_row(bucket)
    if begun is None or begun.state is not MoveState.HERE:
        return None if begun is None else begun.other
    if begun.other not in targets:
        return None
    with open_system(settings.of_cell(begun.other)) as target:
        return begun.other if bucket_mover.is_arriving(target.metadata.move_row(bucket)) else None


def _complete_or_give_up(
    settings: Settings,
    stack: ExitStack,
    directory: System,
    home: DirectoryRow,
    to: str,
    number: int,
    bytes_per_s: int,
) -> Progress:
    """Complete the move to a cell of a bucket, and give up all moves away from it. Raises NotFound or InvalidInput if
    there is none, and what `cancel` raises."""
    bucket = home.bucket
    here = stack.enter_context(_opened(settings, to, directory))
    row = here.metadata.move_row(bucket)
    done, leaves_to = Progress(), None
    if row is not None and row.state in (MoveState.HERE, MoveState.ARRIVING, MoveState.REBUILT):
        with _opened(settings, row.other, directory) as other:
            done = _run(directory, other, here, bucket, number, bytes_per_s)
    elif row is not None:
        leaves_to = row.other
    given_up = 0
    for name in sorted(settings.cells.keys() - {to}, key=lambda name: name != leaves_to):
        try:
            with _opened(settings, name, directory) as other:
                if name == leaves_to or _arrives_from(other.metadata.move_row(bucket), to, home):
                    record = other.client.access_records().record
                    bucket_mover.cancel(here.client.moving(), other.client.moving(), bucket, number, record)
                    given_up += 1
        except Transient as error:
            if name == leaves_to:
                raise
            err.print(f"cell {name} may have copies of bucket {bucket}; repeat this later: {error}", markup=False)
    if row is None and not given_up:
        if home.is_deleted:
            raise NotFound(f"there is no bucket {bucket}")
        raise InvalidInput(f"bucket {bucket} is in cell {to} already")
    return done


def _arrives_from(row: MoveRow | None, cell: str, home: DirectoryRow) -> bool:
    """Return whether the row of another cell is that of a move from `cell`, or from one that has nothing of the bucket
    any more."""
    return row is not None and bucket_mover.is_arriving(row) and (row.other == cell or row.other not in home.cells)


def _run(directory: System, source: System, target: System, bucket: str, number: int, bytes_per_s: int) -> Progress:
    with progress() as bar:
        task = bar.add_task(f"move {bucket}", total=None)

        def tick(now: Progress) -> None:
            text = f"move {bucket}: {now.step}, pass {now.pass_number}, {size_text(now.bytes)}"
            bar.update(task, description=text, completed=now.versions)

        here, there = source.client.moving(), target.client.moving()
        mover = BucketMover(directory.metadata, here, there, number, bytes_per_s, tick)
        try:
            return mover.move(bucket, target.client.access_records().record, source.client.access_records().record)
        except NoSpace as error:
            raise NoSpace(
                f"a cell is full: bucket {bucket} was being moved from {here.name} to {there.name}: {error}; then"
                f" repeat the command, or give the move up: nos-ec cells move {bucket} --to {here.name}"
            ) from error


def _moved(bucket: str, to: str, done: Progress) -> dict[str, Any]:
    return {"bucket": bucket, "cell": to, "versions": done.versions, "bytes": done.bytes}


def _print_moved(bucket: str, to: str, done: Progress) -> None:
    copied = f": {count_text(done.versions, 'version')}, {size_text(done.bytes)} copied" if done.versions else ""
    out.print(f"bucket {bucket} is in cell {to}{copied}", markup=False)
    if done.versions:
        out.print("the old copies take space until they are purged; what to do next: nos-ec cells moves", markup=False)


def _homes(settings: Settings, buckets: Set[str]) -> dict[str, DirectoryRow | None]:
    """Return the rows of these buckets in the directory. Raises Transient."""
    if not buckets:
        return {}
    with open_directory(settings) as directory:
        return {bucket: directory.metadata.directory_row(bucket) for bucket in buckets}


def next_command(cell: str, row: MoveRow, is_stalled: bool, home: DirectoryRow | None) -> str:
    """Return the command that a row of a cell waits for, or nothing while its move continues. A move that nobody
    continues is completed or, if its bucket was deleted or is in a third cell by `home`, its row in the directory,
    given up. If the directory does not know the bucket, or a move that was made, it must be rebuilt before."""
    if not is_stalled:
        return f"nos-ec cells purge {row.bucket} --from {cell}" if row.state is MoveState.GONE else ""
    source, target = (row.other, cell) if row.arrives else (cell, row.other)
    if home is None or home.moves_of(source if source in home.cells else target) + 1 < row.number:
        return "nos-ec cells rebuild-directory"
    if target in home.cells:
        return f"nos-ec cells move {row.bucket} --to {target}"
    if home.is_deleted or source not in home.cells:
        return f"nos-ec cells move {row.bucket} --to {source if source in home.cells else home.home}"
    return f"nos-ec cells move {row.bucket} --to {target}" + (f" --from {source}" if home.slices else "")


def _home(directory: System, bucket: str) -> DirectoryRow:
    row = directory.metadata.directory_row(bucket)
    if row is None:
        raise NotFound(f"there is no bucket {bucket}")
    return row


def _buckets_of(settings: Settings, directory: System, cell: str) -> Iterator[str]:
    after = ""
    while page := directory.metadata.directory_page(after, _PAGE):
        with _opened(settings, cell, directory) as system:
            found = [row.bucket for row in page if cell in row.cells and not (row.is_deleted and _is_gone(system, row))]
        yield from found
        after = page[-1].bucket


def _is_gone(system: System, deleted: DirectoryRow) -> bool:
    """Return whether a bucket that was deleted by the directory does not exist by its row in its home either."""
    return cell_of(system) != deleted.home or system.metadata.unserved_bucket(deleted.bucket)[0] is None


def _rate(text: str | None) -> int:
    return 0 if text is None else rate_of(text, "--bytes-per-s")


def _require_cell(settings: Settings, cell: str) -> None:
    if cell not in settings.cells:
        raise InvalidInput(f"there is no cell {cell}; the cells are {', '.join(settings.cells)}")


@contextmanager
def _opened(settings: Settings, cell: str, directory: System | None = None) -> Iterator[System]:
    """Open a cell. Raises ConfigError if it is another store than the directory knows by its name."""
    _require_cell(settings, cell)
    with open_system(settings.of_cell(cell)) as system:
        if directory is not None:
            require_same_store(directory, system)
        yield system


def open_directory(settings: Settings) -> System:
    """Open the cell with the directory. Raises ConfigError, Transient."""
    assert settings.store.directory is not None
    return open_system(settings.of_cell(settings.store.directory))


def whole_store(settings: Settings) -> Settings:
    """Return the settings of all cells. Raises InvalidInput for those of one cell, or of a store without cells."""
    if settings.cell is not None:
        raise InvalidInput(
            "this is about all cells of a store; leave out --cell, and NOS_EC_CELL in its environment (docs/CELLS.md)"
        )
    if not settings.cells:
        raise InvalidInput("the settings have no [cells.NAME], so this store has no cells (docs/CELLS.md#add-a-cell)")
    return settings
