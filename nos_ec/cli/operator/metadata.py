"""The commands metadata dump, metadata dumps and metadata rebuild."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nos_ec.cli.files.local_files import report_file, require_new
from nos_ec.cli.operator.work_pool import Processes, counted_pages, opening_pool, packed_pages, work_pool
from nos_ec.cli.terminal.context import AsJson, context, interrupt_on_sigterm
from nos_ec.cli.terminal.output import count_text, emit, facts, out, progress, time_text
from nos_ec.composition.rebuilding import open_lost, open_rebuilding
from nos_ec.core.errors import Corrupt, InvalidInput, NotFound
from nos_ec.core.formats.dump_format import DumpHead, Read, dump_frames, verify_dump
from nos_ec.engine.dump.dumper import dump_pages
from nos_ec.engine.dump.rebuild_input import DumpSource, RebuildInput
from nos_ec.engine.dump.rebuilder import Rebuilder, RebuildFigures
from nos_ec.engine.dump.stored import is_ahead, newest_dump
from nos_ec.engine.dump.uncertain import KINDS, Uncertain, uncertain
from nos_ec.engine.figures.events import EventKind, Outcome
from nos_ec.engine.texts import printable, size_text

KEEP = 3
"""How many dumps the store keeps by default."""
SHOWN_MAX = 100
"""How many objects of each kind are shown to people; --list writes all of them."""

metadata_app = typer.Typer(help="Dump the metadata, and rebuild it.", no_args_is_help=True, rich_markup_mode=None)


@metadata_app.command("dump")
def metadata_dump(
    ctx: typer.Context,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Write a new file instead, for another machine.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, metavar="N", help=f"Dumps to keep in the store (default: {KEEP}).")
    ] = None,
    processes: Processes = 1,
    as_json: AsJson = False,
) -> None:
    """Save all rows, for `metadata rebuild`.

    Writes into the store itself, or to a file. Interrupts nothing and keeps no transaction open. For cron.
    """
    if to is not None and keep is not None:
        raise InvalidInput("--keep is for dumps in the store; remove files of --to yourself")
    if to is not None:
        require_new(to, "--to")
    with (
        context(ctx).system() as system,
        progress() as bar,
        work_pool(system.settings, processes) as pool,
        system.events().work(EventKind.DUMP) as work,
    ):
        interrupt_on_sigterm()
        task = bar.add_task("objects", total=None)
        head = DumpHead(system.store_id, system.clock.now_ms(), asdict(system.geometry))
        objects = None if pool is None else partial(packed_pages, pool)
        journal_number = system.metadata.journal_number()  # before the pages are read
        verify = verify_dump if pool is None else partial(verify_dump, counted=partial(counted_pages, pool))
        pages = dump_pages(system.metadata, lambda done: bar.update(task, completed=done), objects)
        data: dict[str, Any] = {"begun_ms": head.begun_ms}
        if to is None:
            dumps = system.client.dumps()
            dump, rows = dumps.write(head, pages, journal_number, verify)
            removed = dumps.keep(KEEP if keep is None else keep, system.clock.now_ms())
            kept = dumps.all(system.clock.now_ms())
            system.client.access_records().forget_removed_buckets(min(one.begun_ms for one in kept))
            system.client.journal().prune(min(one.journal for one in kept))
            data |= {"name": str(dump.key), "rows": rows, "bytes": dump.size, "removed": removed}
        else:
            with report_file(to, "--to") as file:
                file.writelines(dump_frames(head, pages))
            data |= {"file": str(to), "rows": file_source(to, verify).rows, "bytes": to.stat().st_size}
        work.ended(Outcome.DONE, _dumped_text(data))
    emit({"dumped": data}, as_json, lambda: _print_dumped(data))


def _dumped_text(data: dict[str, Any]) -> str:
    objects = count_text(data["rows"].get("objects", 0), "object")
    return f"{objects}, {size_text(data['bytes'])}: {data.get('file') or data['name']}"


def _print_dumped(data: dict[str, Any]) -> None:
    out.print(_dumped_text(data), markup=False)
    if data.get("removed"):
        out.print(f"{count_text(data['removed'], 'older dump')} deleted")


@metadata_app.command("ship-journal")
def metadata_ship_journal(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Write the journal of deletes into the store.

    After a loss of the database, `metadata rebuild` deletes again what it names.
    The daemon of GC does this each minute. For cron, where GC does not run as a daemon.
    """
    with context(ctx).system() as system:
        interrupt_on_sigterm()
        rows = system.client.journal().ship()
    emit({"shipped": {"rows": rows}}, as_json, lambda: out.print(f"{count_text(rows, 'row')} of the journal written"))


@metadata_app.command("dumps")
def metadata_dumps(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the dumps in the store, oldest first."""
    with context(ctx).system() as system:
        now_ms = system.clock.now_ms()
        found = system.client.dumps().all(now_ms)
    dumps = [{"name": str(dump.key), "begun_ms": dump.begun_ms, "bytes": dump.size} for dump in found]

    def show() -> None:
        for dump in found:
            ahead = "  (from the future: a clock was ahead)" if is_ahead(dump.begun_ms, now_ms) else ""
            out.print(f"{time_text(dump.begun_ms)}  {size_text(dump.size)}  {dump.key}{ahead}", markup=False)

    emit({"dumps": dumps}, as_json, show)


@metadata_app.command("rebuild")
def metadata_rebuild(
    ctx: typer.Context,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="A dump in a file. Default: the newest complete dump in the store."
        ),
    ] = None,
    without_dump: Annotated[
        bool, typer.Option("--without-dump", help="Rebuild from blocks and landing log alone. Deleted objects return.")
    ] = False,
    list_file: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="Write a line of JSON for each object that you should check."),
    ] = None,
    processes: Processes = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the rows of a store whose database was lost.

    Needs an empty database. Stop everything else first. It uses a dump, and recovers later changes from blocks and the
    landing log. Safe to repeat after any failure: it continues where it stopped.
    """
    if from_file is not None and without_dump:
        raise InvalidInput("give either --from FILE or --without-dump")
    source = None if from_file is None else file_source(from_file)
    interrupt_on_sigterm()
    settings = context(ctx).settings()
    with (
        open_lost(settings) as (opened, store_id),
        progress() as bar,
        opening_pool(open_rebuilding, settings, processes) as pool,
    ):
        lost = opened if pool is None else replace(opened, share=pool.in_order)
        tasks: dict[str, Any] = {}

        def tick(part: str, done: int, in_all: int | None) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(part, total=in_all)
            bar.update(tasks[part], completed=done)

        if from_file is None and not without_dump:
            source = newest_dump(lost.blocks, lost.clock.now_ms(), tick)
            if source is None:
                raise NotFound(
                    "the store has no complete dump: name one with --from FILE, or rebuild with --without-dump from"
                    " blocks and landing log alone; deleted objects whose bytes still exist then return"
                )
        _require_same_store(source, lost, store_id)
        if dry_run:
            data = _outlook(lost, source)
            emit({"would_read": data}, as_json, lambda: facts("a rebuild would read", data))
            return
        rebuilder = Rebuilder(lost, source, tick)
        rebuilder.run()
        listed = _Listed(as_json)
        with _list_writer(list_file) as write:
            for one in uncertain(lost, source):
                listed.add_object(one)
                write(one)
        rebuilder.finish()
    data = _data(rebuilder, source, listed)
    emit({"rebuilt": data}, as_json, lambda: _print(data, rebuilder.figures, source, listed))
    if rebuilder.unreadable:
        raise Corrupt("objects listed in headers cannot be read: " + "; ".join(rebuilder.unreadable[:5]))


# --- dumps in files -----------------------------------------------------------------------------------
def file_source(path: Path, verify: Callable[[Read], tuple[DumpHead, Mapping[str, int]]] = verify_dump) -> DumpSource:
    """Return the dump in a file, after reading and verifying all of it. Raises InvalidInput, Corrupt."""
    try:
        with path.open("rb") as file:
            head, rows = verify(file.read)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    except Corrupt as error:
        raise Corrupt(f"{path}: {error}; use an older dump") from error
    return DumpSource(str(path), head, dict(rows), lambda: _open_for_reading(path))


@contextmanager
def _open_for_reading(path: Path) -> Iterator[Read]:
    with path.open("rb") as file:
        yield file.read


@contextmanager
def _list_writer(path: Path | None) -> Iterator[Callable[[Uncertain], object]]:
    """Yields a function that writes a line of the list, which appears only once it is complete."""
    if path is None:
        yield lambda _: None
        return
    with report_file(path, "--list") as file:
        yield lambda one: file.write(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n")


# --- results ------------------------------------------------------------------------------------------
def _require_same_store(source: DumpSource | None, lost: RebuildInput, store_id: str) -> None:
    if source is None:
        return
    if source.head.store_id != store_id:
        raise InvalidInput(f"{source.name} is a dump of store {source.head.store_id}, and this one is {store_id}")
    if source.head.geometry != asdict(lost.blocks.geometry):
        raise InvalidInput(f"{source.name} is a dump of a store of another geometry: {source.head.geometry}")


def _outlook(lost: RebuildInput, source: DumpSource | None) -> dict[str, Any]:
    blocks = sum(1 for _ in lost.blocks.list_blocks())
    segments = 0 if lost.medium is None else sum(1 for _ in lost.medium.segments(known_only=True))
    rows = {} if source is None else source.rows
    name = "none" if source is None else source.name
    return {"dump": name, "objects of the dump": rows.get("objects", 0), "blocks": blocks, "landing segments": segments}


class _Listed:
    """Counts the objects that the user should check, and shows the first of each kind to people."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.counts = Counter[str]()

    def add_object(self, one: Uncertain) -> None:
        """Count an object."""
        self.counts[one.what] += 1
        if not self._as_json and self.counts[one.what] <= SHOWN_MAX:
            out.print(printable(f"{one.what}: {one.about}"), markup=False)


def _data(rebuilder: Rebuilder, source: DumpSource | None, listed: _Listed) -> dict[str, Any]:
    dump = None if source is None else {"name": source.name, "begun_ms": source.head.begun_ms, "rows": source.rows}
    to_look_at = {what: listed.counts[what] for what in KINDS}
    return asdict(rebuilder.figures) | {
        "dump": dump,
        "to_look_at": to_look_at,
        "unreadable": list(rebuilder.unreadable),
    }


def _journal_text(figures: RebuildFigures, begun: str, missing: int) -> str:
    if figures.journal_ms is None:
        return f"none, so objects deleted since {begun} whose bytes still exist have come back"
    applied = (
        f"{count_text(figures.deleted, 'version')} deleted again, {count_text(figures.markers, 'delete marker')} back,"
        f" attributes of {count_text(figures.attributes, 'version')} restored"
    )
    later = f"what was deleted after {time_text(figures.journal_ms)} may have come back"
    return f"{applied}; {later}" + (
        f"; {count_text(missing, 'part')} of the journal not found or not readable" if missing else ""
    )


def _print(data: dict[str, Any], figures: RebuildFigures, source: DumpSource | None, listed: _Listed) -> None:
    placed = data["placed"]

    def count(what: str, noun: str, plural: str | None = None) -> str:
        return count_text(listed.counts[what], noun, plural)

    begun = "the beginning" if source is None else time_text(source.head.begun_ms)
    facts(
        "rebuilt",
        {
            "dump": "none" if source is None else f"{source.name}, of {begun}",
            "objects": f"{figures.loaded:,} of the dump, of which {placed['moved']:,} have moved since",
            "blocks": f"{figures.blocks:,}; read: the headers of {count_text(figures.blocks_read, 'block')},"
            f" {size_text(placed['data_bytes'])} of data; {figures.unfinished_blocks:,} end with an unfinished group",
            "gone": f"{count('gone', 'object')} of the dump: deleted or overwritten since, or lost",
            "put since": f"{count('since', 'object')}, which may have been deleted after that",
            "replaced": f"{count('replaced', 'version')}, kept in the trash in case they were undeleted",
            "in doubt": f"{count('doubt', 'object')}, whose last PUT may have been refused",
            "in the trash": f"{count('trash', 'object')}, which may have been undeleted or removed since {begun}",
            "unknown copies": f"{count('copy', 'landing copy', 'landing copies')} without a readable label",
            "kept": f"{count('block', 'block')} in quarantine or not read as a whole,"
            f" {count('held', 'landing copy', 'landing copies')} in quarantine,"
            f" {count('segment', 'landing segment')} not read as a whole",
            "journal of deletes": _journal_text(figures, begun, listed.counts["journal"]),
        },
    )
    if placed["unreadable"] or figures.nameless or figures.partial:
        out.print(
            f"{count_text(placed['unreadable'], 'object')} cannot be read,"
            f" {count_text(figures.nameless, 'has', 'have')} no readable name,"
            f" {count_text(figures.partial, 'large object')} put since are not complete"
        )
    out.print("now run `nos-ec check`, before anything else is started")
