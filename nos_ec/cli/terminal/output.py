"""Output of commands: JSON for programs or text for people on stdout; errors and progress on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from nos_ec.cli.terminal.streams import ReaderGone, StandardOutput
from nos_ec.core.errors import InvalidInput
from nos_ec.engine.texts import count_text as count_text  # of each command

stdout = StandardOutput()
out = Console(file=cast(TextIO, stdout), soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def emit(data: Mapping[str, Any], as_json: bool, human: Callable[[], None]) -> None:
    """Print `data` as one line of JSON, or let `human` print it for people."""
    if as_json:
        stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
        stdout.flush()
    else:
        human()


def announce(url: str, as_json: bool) -> None:
    """Print the address of a server at once. The server keeps running even if standard output cannot be written,
    because its main work is to serve."""
    with suppress(ReaderGone, InvalidInput):
        emit({"url": url}, as_json, lambda: out.print(f"listening on {url}", markup=False))
        stdout.flush()


@contextmanager
def ticking() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of work in several steps, with one bar per step. Yields a function that takes (step, done,
    total)."""
    with progress() as bar:
        tasks: dict[str, TaskID] = {}

        def tick(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done, total=total)

        yield tick


def progress() -> Progress:
    """Return a progress bar on stderr. It shows nothing if stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


def facts(title: str, rows: Mapping[str, object]) -> None:
    """Print names and values, one pair per line. A line is never cut or wrapped, however narrow the terminal."""
    out.print(Text(title, style="italic"))
    width = max(map(len, rows), default=0)
    for name, value in rows.items():
        out.print(Text.assemble((name.ljust(width), "bold"), " ", str(value)))


def short_text(short: Mapping[int, int]) -> str:
    """Format the blocks that lack shards, given as {shards: blocks}: '43 (40 lack 1 shard, 3 lack 2 shards)'."""
    parts = (
        f"{blocks:,} {'lacks' if blocks == 1 else 'lack'} {count_text(shards, 'shard')}"
        for shards, blocks in sorted(short.items())
    )
    return f"{sum(short.values()):,}" + (f" ({', '.join(parts)})" if short else "")


def time_text(time_ms: int) -> str:
    """Format a time, given in milliseconds of Unix time, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def figure_text(value: float | None, form: str) -> str:
    """Format a figure, such as '.2f'; '-' if it is unknown."""
    return "-" if value is None else format(value, form)


def print_more(count: int, noun: str) -> None:
    """Print how many further items were not printed, if there are any."""
    if count > 0:
        out.print(f"and {count_text(count, noun)} more")


def print_lines(lines: Iterable[str]) -> None:
    """Print each line on stdout as it is."""
    for line in lines:
        out.print(line, markup=False)
