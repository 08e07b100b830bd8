"""The command daemons."""

from __future__ import annotations

from dataclasses import asdict

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, out, time_text
from nos_ec.engine.figures.daemons import Daemon, read_daemons
from nos_ec.engine.texts import printable


def daemons(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show which daemons are alive, and what they have set aside.

    Producers, consumers and GC daemons record this and their versions every minute. Daemons
    that have stopped or fallen silent are shown for a day or longer.
    """
    with context(ctx).system() as system:
        found, now_ms = read_daemons(system.metadata), system.clock.now_ms()
    data = [asdict(one) | {"alive": one.is_alive(now_ms)} for one in found]
    emit({"daemons": data}, as_json, lambda: _print(found, now_ms))


def _print(found: list[Daemon], now_ms: int) -> None:
    for one in found:
        line = (
            f"{one.service:8}  {_state(one, now_ms)}, version {one.version}, {count_text(one.parked, 'item')} set aside"
        )
        out.print(printable(f"{line}; {one.process}"), markup=False)
        for item in one.items:
            since = f"since {time_text(item.since_ms)}, {count_text(item.failures, 'failure')}"
            out.print(printable(f"    {item.what} {item.name}: {item.reason} ({since})"), markup=False)
    if not found:
        out.print("no daemon is recorded")


def _state(one: Daemon, now_ms: int) -> str:
    if one.is_alive(now_ms):
        return f"alive since {time_text(one.started_ms)}"
    return f"silent since {time_text(one.seen_ms)}" if one.ended_ms is None else f"stopped {time_text(one.ended_ms)}"
