"""The commands gc limit, gc pause, gc resume and gc status."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.output import count_text, emit, facts, out, time_text
from nos_ec.cli.terminal.values import rate_of, user_name
from nos_ec.composition.gc_status import gc_limits, gc_status_data
from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput
from nos_ec.engine.figures.events import EventKind, Outcome
from nos_ec.engine.gc.control import OPERATIONS_MAX, Control, GcControl
from nos_ec.engine.gc.run.note import RunState
from nos_ec.engine.texts import size_text


def gc_limit(
    ctx: typer.Context,
    bytes_per_s: Annotated[
        str | None,
        typer.Option("--bytes-per-s", metavar="SIZE", help="Bytes read and written, such as 50MiB; 0: no limit."),
    ] = None,
    operations_per_s: Annotated[
        int | None,
        typer.Option("--operations-per-s", min=0, max=OPERATIONS_MAX, help="Reads and appends; 0: no limit."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Return to the limits of the settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Limit GC on all hosts, including a run in progress.

    A run checks the limits every 5 seconds. Without options, the command shows them. They stay until they are changed
    or reset. They are ignored while PUTs are refused for lack of space.
    """
    count_bytes = None if bytes_per_s is None else rate_of(bytes_per_s, "--bytes-per-s")
    asked = count_bytes is not None or operations_per_s is not None
    if reset and asked:
        raise InvalidInput("--reset returns to the limits of the settings; give it alone")

    def changed(control: Control) -> Control:
        if reset:
            return replace(control, bytes_per_s=None, operations_per_s=None)
        return replace(
            control,
            bytes_per_s=control.bytes_per_s if count_bytes is None else count_bytes,
            operations_per_s=control.operations_per_s if operations_per_s is None else operations_per_s,
        )

    with context(ctx).system() as system:
        control = GcControl(system.metadata)
        now = control.change(changed) if reset or asked else control.read()
        data = gc_limits(system, now)
        if reset or asked:
            _record(system, f"GC limited to {_limits_text(data)}")
    emit(data, as_json, lambda: out.print(_limits_text(data)))


def gc_pause(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Pause GC on all hosts until `gc resume`.

    A run in progress ends within seconds, and keeps what it has done. Runs that begin during the pause do only
    housekeeping, and exit with 0. Emptied blocks are not deleted either.
    """
    _set_paused(ctx, True, as_json)


def gc_resume(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Let GC continue after `gc pause`.

    A daemon continues within 5 seconds; cron starts the next run as scheduled.
    """
    _set_paused(ctx, False, as_json)


def _set_paused(ctx: typer.Context, paused: bool, as_json: bool) -> None:
    with context(ctx).system() as system:
        now = GcControl(system.metadata).change(lambda control: replace(control, paused=paused))
        _record(system, "GC paused" if paused else "GC resumed")
    text = "GC is paused; `nos-ec gc resume` lets it continue" if paused else "GC is not paused"
    emit(asdict(now), as_json, lambda: out.print(text))


def _record(system: System, text: str) -> None:
    system.events().record(EventKind.CONTROL, Outcome.DONE, f"{text}, by {user_name()}")


def gc_status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show whether GC runs, its limits and its progress.

    After a run has ended, its results are shown.
    """
    with context(ctx).system() as system:
        data = gc_status_data(system)
    emit(data, as_json, lambda: _print(data))


def _limits_text(data: dict[str, Any]) -> str:
    count_bytes, operations = data["bytes_per_s"], data["operations_per_s"]
    parts = [
        f"{size_text(count_bytes)}/s" if count_bytes else "any number of bytes",
        f"{count_text(operations, 'operation')}/s" if operations else "any number of operations",
    ]
    return ", ".join(parts) + ("" if data["limits_of_settings"] else "; set with `nos-ec gc limit`")


def _print(data: dict[str, Any]) -> None:
    state = "running" if data["running"] else "not running"
    rows: dict[str, object] = {
        "GC": f"{state}; paused, until `nos-ec gc resume`" if data["paused"] else state,
        "limits": _limits_text(data),
    }
    workers = data["workers"]
    if len(workers) == 1:
        facts("gc status", rows | _run_rows(data["run"], data["running"]))
        return
    facts("gc status", rows | {"workers": f"{sum(one['running'] for one in workers)} of {len(workers)} running"})
    for one in workers:
        facts(f"worker {one['worker']}", _run_rows(one["run"], one["running"]) or {"run": "never"})


def _run_rows(found: dict[str, Any] | None, running: bool) -> dict[str, object]:
    if found is None:
        return {}
    run = RunState(**{name: value for name, value in found.items() if name not in ("bytes_left", "left_ms")})
    going = running and run.ended_ms is None
    moved = f"{count_text(run.objects_moved, 'object')}, {size_text(run.bytes_moved)}"
    rows: dict[str, object] = {
        "run": f"{run.process}, since {time_text(run.started_ms)}" + ("" if going else _ended_text(run)),
        "victims": f"{run.victims_done:,} of {run.victims:,} done",
        "moved": f"{moved} of {size_text(run.bytes_chosen)}",
        "deleted": f"{count_text(run.blocks_deleted, 'block')}, {size_text(run.bytes_reclaimed)}",
    }
    if going:
        left = "unknown" if run.left_ms is None else f"about {run.left_ms / 60_000:.0f} minutes"
        rows["rate"] = f"{size_text(run.bytes_per_s)}/s, at {run.speed_percent} % of its speed"
        rows["left"] = f"{size_text(run.bytes_left)}, {left}"
    if run.behind is not None:
        rows["behind"] = run.behind
    return rows


def _ended_text(run: RunState) -> str:
    if run.ended_ms is None:
        return f"; was killed after {time_text(run.seen_ms)}"
    why = "" if run.stopped is None else f", stopped by {run.stopped.replace('_', ' ')}"
    return f"; ended {time_text(run.ended_ms)}{why}"
