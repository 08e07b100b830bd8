"""The commands init, producer, consumer, gc plan and gc run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from os.path import normpath
from threading import Event
from typing import Annotated, Any

import structlog
import typer

from nos_consumer.assemble import consumer_service, drain, housekeeping_thread
from nos_consumer.counters import ConsumerCounters
from nos_ec.cli.commands.cell_daemons import serve_cells
from nos_ec.cli.commands.gc_control import gc_limit, gc_pause, gc_resume, gc_status
from nos_ec.cli.commands.gc_output import show_plan, show_result
from nos_ec.cli.terminal.context import AsJson, context, interrupt_on_sigterm, log_for_daemons, stop_on_signals
from nos_ec.cli.terminal.errors import exit_code
from nos_ec.cli.terminal.output import count_text, emit, out, progress
from nos_ec.cli.terminal.values import MaxDuration, duration_ms
from nos_ec.cli.terminal.watching import (
    end_when_shut_out,
    endpoint,
    keeping_counts,
    keeping_presence,
    keeping_totals,
    pulse,
    settle,
)
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import Corrupt, InvalidInput, NosError, Transient
from nos_ec.core.publishing.slots import SLOTS
from nos_ec.engine.texts import size_text
from nos_ec.settings import Settings
from nos_gc.assemble import gc_service, journal_thread, rebuild_thread, scrub_thread
from nos_producer.assemble import producer_service

TARGETS_SHOWN = (1.1, 1.2, 1.4)
"""Space amplifications whose costs `gc plan --targets` shows."""

Once = Annotated[bool, typer.Option("--once", help="Do all pending work, then exit.")]

gc_app = typer.Typer(
    help="Reclaim the space of deleted and overwritten objects.", no_args_is_help=True, rich_markup_mode=None
)


def init(
    ctx: typer.Context,
    as_json: AsJson = False,
    new_shard: Annotated[
        list[int] | None,
        typer.Option("--new-shard", min=0, help="Recreate this shard, empty, after it was permanently lost."),
    ] = None,
    new_device: Annotated[
        list[int] | None,
        typer.Option("--new-device", min=0, help="Replace this device of the landing log, which was permanently lost."),
    ] = None,
) -> None:
    """Create the configured store, or bring its schema up to date. Safe to repeat."""
    settings = context(ctx).settings()
    initialise(settings, new_shard or (), new_device or ())
    if settings.cell is not None:
        # Imported here, because the daemons load this module, and need neither accounts nor ciphers.
        from nos_ec.cli.commands.cells import enter_cell

        enter_cell(context(ctx).whole(), settings.cell)
    geometry = settings.geometry.value()
    data = {"root": str(settings.store.root), "geometry": asdict(geometry), "partitions": settings.log.partitions}
    emit(data, as_json, lambda: out.print(f"store ready in {_place(settings)}", markup=False))


def _place(settings: Settings) -> str:
    if settings.store.backend == "local":
        return normpath(settings.store.root)
    ceph = settings.ceph
    namespace = f", namespace {ceph.namespace}" if ceph.namespace else ""
    return f"the Ceph pools {ceph.blocks_pool} and {ceph.landing_pool}{namespace}"


def producer(ctx: typer.Context, once: Once = False, as_json: AsJson = False) -> None:
    """Publish landed objects to the message log. Runs until SIGTERM, or with --once until nothing is due."""
    settings = context(ctx).settings()
    if settings.cells and not once:
        serve_cells(context(ctx), settings)
        return
    log_for_daemons(settings)
    stop = None if once else stop_on_signals()
    with open_system(settings) as system:
        system.check_for_daemon(writes=False)
        if stop is not None:
            _produce(system, stop)
            return
        interrupt_on_sigterm()
        with producer_service(system) as service:
            published = service.drain()
            others = service.slots_of_others
    emit({"published": published, "slots_of_others": others}, as_json, lambda: _print_published(published, others))


def _print_published(published: int, slots_of_others: int) -> None:
    out.print(f"{count_text(published, 'object')} published")
    if slots_of_others:
        out.print(f"{slots_of_others} of {SLOTS} slots are held by other producers, which publish the objects in them")


def _produce(system: System, stop: Event) -> None:
    monitor = system.operator.monitor("producer", writes=True)
    system.operator.watch_store(monitor)
    with (
        endpoint(monitor, system.settings),
        end_when_shut_out(system, stop),
        keeping_totals(system),
        keeping_presence(system, monitor),
        producer_service(system, monitor, shares=True) as service,
        pulse(monitor, system.clock),
    ):
        settle()
        service.run(stop, monitor.health.heart("publishing"))


def consumer(ctx: typer.Context, once: Once = False, as_json: AsJson = False) -> None:
    """Pack published objects into stripes. Runs until SIGTERM, or with --once until all objects are packed.

    Also seals the blocks of dead writers, and deletes landing copies whose grace period is over.
    """
    settings = context(ctx).settings()
    if settings.cells and not once:
        serve_cells(context(ctx), settings)
        return
    log_for_daemons(settings)
    stop = None if once else stop_on_signals()
    with open_system(settings) as system:
        system.check_for_daemon(writes=True)
        if stop is not None:
            counters = asdict(_consume(system, stop))
        else:
            interrupt_on_sigterm()
            settle()
            with progress() as bar:
                task = bar.add_task("pack", total=system.metadata.totals().queued_objects)
                counters = asdict(drain(system, lambda counters: bar.update(task, completed=counters.packed)))
            counters["unpublished"] = system.metadata.totals().landed_objects
    if once or as_json:
        emit(counters, as_json, lambda: _print_packed(counters))


def _print_packed(counters: dict[str, Any]) -> None:
    out.print(
        f"{count_text(counters['packed'], 'object')}, {size_text(counters['packed_bytes'])},"
        f" packed into {count_text(counters['stripes'], 'stripe')}"
    )
    for name, meaning in (
        ("stale", "no longer needed packing"),
        ("superseded", "changed while being packed"),
        ("failed", "could not be read from the landing store; see the log"),
        ("poison", "messages could not be processed; see the log"),
    ):
        if counters[name]:
            out.print(f"{counters[name]:,} {meaning}")
    if unpublished := counters.get("unpublished"):
        out.print(f"{count_text(unpublished, 'landed object')} not published yet: run `nos-ec producer --once` first")


def _consume(system: System, stop: Event) -> ConsumerCounters:
    monitor = system.operator.monitor("consumer", writes=True)
    with (
        endpoint(monitor, system.settings),
        end_when_shut_out(system, stop),
        keeping_totals(system),
        keeping_presence(system, monitor),
        housekeeping_thread(system, monitor),
        consumer_service(system, monitor) as service,
        pulse(monitor, system.clock),
    ):
        settle()
        service.run(stop, monitor.health.heart("packing"))
    return service.counters


@gc_app.command("plan")
def gc_plan(
    ctx: typer.Context,
    targets: Annotated[
        bool,
        typer.Option("--targets", help="Also show what it would cost to reach other space targets."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which blocks a run would collect and rewrite. Reads rows and headers, not objects; changes nothing.

    For each block, it shows the break-even price in days (docs/GC.md), and the bytes to be read, written and freed. A
    block marked keep was examined too, but rewriting it would free too little space, or a limit of the run is reached.
    Other dead bytes, which cannot be freed now, are listed by the reason.
    """
    with context(ctx).system() as system:
        service = gc_service(system)
        plan = service.plan()
        costs = service.target_costs(TARGETS_SHOWN) if targets else None
        totals = system.operator.store_totals().read().totals
    show_plan(plan, totals, as_json, costs)


@gc_app.command("run")
def gc_run(
    ctx: typer.Context,
    apply: Annotated[bool, typer.Option("--apply", help="Collect; without it, only the plan is shown.")] = False,
    once: Annotated[bool, typer.Option("--once/--loop", help="Run once (for cron), or run every gc.wait_ms.")] = True,
    max_duration: MaxDuration = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Also collect blocks that GC has set aside, for example after a repair.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite the live objects of the blocks that gc.policy chooses. A later run deletes the emptied blocks after their
    grace period."""
    if max_duration is not None and not once:
        raise InvalidInput("--max-duration ends a single run, and --loop runs for ever; give one of them")
    if retry and not (apply and once):
        raise InvalidInput("--retry is for a single run that collects: nos-ec gc run --apply --retry")
    if not apply:
        if not once:
            raise InvalidInput("gc run --loop collects for ever, so it needs --apply; to see what it would do: gc plan")
        gc_plan(ctx, as_json=as_json)
        if not as_json:
            out.print("nothing was changed; add --apply to collect")
        return
    settings = context(ctx).settings()
    if settings.cells and not once:
        serve_cells(context(ctx), settings)
        return
    log_for_daemons(settings)
    stop = None if once else stop_on_signals()
    with open_system(settings) as system:
        system.check_for_daemon(writes=True)
        if stop is not None:
            _collect(system, stop)
            return
        interrupt_on_sigterm()
        with keeping_counts(system):
            _ship_journal(system)
            result = gc_service(system, retry=retry).run_once(max_ms=duration_ms(max_duration))
        _keep_totals(system)
    show_result(result, settings.gc.block_grace_ms, as_json)
    if result.unreadable_objects or result.blocks_parked:
        raise typer.Exit(exit_code(Corrupt() if result.unreadable_objects else Transient()))


def _ship_journal(system: System) -> None:
    """Write the journal of deletes into the store. On a full disk this may fail for lack of the space that the
    collection will free."""
    try:
        system.client.journal().ship()
    except NosError as error:
        structlog.get_logger(__name__).warning("journal of deletes not written into the store", error=str(error))


def _keep_totals(system: System) -> None:
    """Store the totals, because without daemons (GC from cron) nothing else may record the usage of the last days."""
    with suppress(Transient):
        system.operator.store_totals().keep()


def _collect(system: System, stop: Event) -> None:
    monitor = system.operator.monitor("gc", writes=True)
    system.operator.watch_store(monitor)
    service = gc_service(system, monitor)
    with (
        endpoint(monitor, system.settings),
        end_when_shut_out(system, stop),
        keeping_totals(system),
        keeping_presence(system, monitor),
        keeping_counts(system),
        rebuild_thread(system, monitor),
        scrub_thread(system, monitor),
        journal_thread(system, monitor),
        pulse(monitor, system.clock),
    ):
        settle()
        service.run(stop, system.settings.gc.wait_ms, monitor.health.heart("collecting"))


for _name, _command in (("limit", gc_limit), ("pause", gc_pause), ("resume", gc_resume), ("status", gc_status)):
    gc_app.command(_name)(_command)
