"""The command export events."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from nos_ec.cli.files.local_files import report_file, require_new
from nos_ec.cli.terminal.context import AsJson, context, interrupt_on_sigterm
from nos_ec.cli.terminal.output import count_text, emit, err, out, progress, stdout
from nos_ec.cli.terminal.values import Since, time_of
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.gc.gc_events import Event, Names, PutEvent, event_line
from nos_ec.engine.figures.event_export import ExportOptions, exported_events
from nos_ec.engine.texts import size_text

export_app = typer.Typer(help="Export the metadata for other programs.", no_args_is_help=True, rich_markup_mode=None)


@export_app.command("events")
def export_events(
    ctx: typer.Context,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="FILE", help="A new file, gzipped if its name ends in .gz; - for stdout."),
    ],
    bucket: Annotated[str, typer.Option(metavar="BUCKET", help="Only the objects of this bucket.")] = "",
    since: Since = None,
    names: Annotated[
        bool, typer.Option("--names", help="Keep the names of buckets and objects, which are hashed otherwise.")
    ] = False,
    one_in: Annotated[int, typer.Option(min=1, metavar="N", help="Only one in N objects, chosen by their keys.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Write a line for each object: time, bucket and size.

    For `simulate gc --events`. Deleted objects are included only while the trash keeps them; the survival table, which
    is also written, shows how long objects live. Reads rows page by page, and changes nothing.
    """
    to_stdout = to == Path("-")
    if to_stdout and as_json:
        raise InvalidInput("--json prints a line about the file, so give --to a file; the lines of events are JSON too")
    if not to_stdout:
        require_new(to, "--to")
    interrupt_on_sigterm()
    count = size = 0
    with context(ctx).system() as system, progress() as bar:
        since_ms = None if since is None else time_of(since, "--since", system.clock.now_ms())
        client = system.client
        if bucket and not client.store().list_names(bucket, "", "", 1) and not any(client.trash().pages(bucket)):
            raise NotFound(f"bucket {bucket} has no objects")
        task = bar.add_task("objects", total=None)
        options = ExportOptions(bucket, since_ms, one_in)
        known = system.worker.known_expiry()
        events: Iterator[Event] = exported_events(
            system.metadata, system.clock, Names(system.store_id, keep=names), options, known
        )
        with _writing(to, to_stdout=to_stdout) as write:
            for event in events:
                write(event_line(event))
                if isinstance(event, PutEvent):
                    count += 1
                    size += event.size
                    if count % 1000 == 0:
                        bar.update(task, completed=count)
    data = {"file": None if to_stdout else str(to), "objects": count, "bytes": size}
    text = f"{count_text(count, 'object')}, {size_text(size)}"
    if to_stdout:
        err.print(text)
    else:
        emit({"exported": data}, as_json, lambda: out.print(f"{text}: {to}", markup=False))


@contextmanager
def _writing(to: Path, *, to_stdout: bool) -> Iterator[Callable[[bytes], object]]:
    """Yields a function that writes a line. A file appears only once it is complete."""
    if to_stdout:
        yield stdout.write_bytes
        return
    with report_file(to, "--to") as file:
        if to.suffix != ".gz":
            yield file.write
            return
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            yield packed.write
