"""The command events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import emit, out, time_text
from nos_ec.cli.terminal.values import Since, time_of
from nos_ec.engine.figures.events import EventKind, StoreEvent, read_events
from nos_ec.engine.texts import printable, span


def events(
    ctx: typer.Context,
    since: Since = None,
    kind: Annotated[EventKind | None, typer.Option("--kind", help="Only events of this kind.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the last events of the store.

    These are GC runs, scrubs, dumps, checks, lost leases, and changes to GC's limits. Oldest first. The
    store keeps the last 50 events of each kind. GC runs that found nothing to do are left out.
    """
    with context(ctx).system() as system:
        since_ms = 0 if since is None else time_of(since, "--since", system.clock.now_ms())
        found = [one for one in reversed(read_events(system.metadata, since_ms)) if kind in (None, one.kind)]
    emit({"events": [asdict(one) for one in found]}, as_json, lambda: _print(found))


def _print(found: list[StoreEvent]) -> None:
    for one in found:
        took = "" if one.took_ms is None else f" after {span(one.took_ms)}"
        times = "" if one.times == 1 else f" ({one.times:,} times since {time_text(one.first_ms)})"
        text = printable(f"{one.text}{times}; {one.process}")
        out.print(f"{time_text(one.at_ms)}  {one.kind.value:7}  {one.outcome.value}{took}: {text}", markup=False)
    if not found:
        out.print("nothing is recorded")
