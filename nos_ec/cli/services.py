"""init, producer, consumer, gc plan, gc run."""

from __future__ import annotations

from dataclasses import asdict
from os.path import normpath
from threading import Event
from typing import Annotated, Any

import typer

from nos_consumer.assemble import consumer_service, drain, housekeeping_thread
from nos_consumer.counters import ConsumerCounters
from nos_ec.cli.context import AsJson, context, interrupt_on_sigterm, log_for_daemons, stop_on_signals
from nos_ec.cli.errors import exit_code
from nos_ec.cli.output import count_text, emit, out, progress, size_text, time_text
from nos_ec.cli.watching import end_when_shut_out, endpoint, keeping_totals, pulse
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import Corrupt, InvalidInput, Transient
from nos_ec.core.slots import SLOTS
from nos_ec.engine.gc.plan_data import plan_data, victim_ids
from nos_ec.engine.gc.progress import CollectionResult
from nos_ec.engine.gc.victims import CollectionPlan
from nos_ec.ports.metadata import Totals, WaitingBlocks, WaitReason
from nos_ec.settings import Settings
from nos_gc.assemble import gc_service, rebuild_thread, scrub_thread
from nos_producer.assemble import producer_service

Once = Annotated[bool, typer.Option("--once", help="Do all pending work, then exit.")]

gc_app = typer.Typer(help="Reclaim blocks that are mostly waste.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (init, producer, consumer):
        app.command()(command)
    gc_app.command("plan")(gc_plan)
    gc_app.command("run")(gc_run)
    app.add_typer(gc_app, name="gc")


def init(
    ctx: typer.Context,
    as_json: AsJson = False,
    new_shard: Annotated[
        list[int] | None,
        typer.Option("--new-shard", min=0, help="Recreate this shard, empty, after it was lost for good."),
    ] = None,
    new_device: Annotated[
        list[int] | None,
        typer.Option("--new-device", min=0, help="Replace this device of the landing log, which was lost for good."),
    ] = None,
) -> None:
    """Create the configured store, or bring its schema up to date. Safe to repeat."""
    settings = context(ctx).settings()
    initialise(settings, new_shard or (), new_device or ())
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
    monitor = system.monitor("producer", writes=True)
    system.watch_store(monitor)
    with (
        endpoint(monitor, system, system.settings.monitoring.producer_port),
        end_when_shut_out(system, stop),
        keeping_totals(system),
        producer_service(system, monitor, shares=True) as service,
        pulse(monitor, system),
    ):
        service.run(stop, monitor.health.heart("publishing"))


def consumer(ctx: typer.Context, once: Once = False, as_json: AsJson = False) -> None:
    """Pack published objects into stripes. Runs until SIGTERM, or with --once until all of them are done.

    Also seals the blocks of dead writers, and deletes landing copies whose grace period is over.
    """
    settings = context(ctx).settings()
    log_for_daemons(settings)
    stop = None if once else stop_on_signals()
    with open_system(settings) as system:
        system.check_for_daemon(writes=True)
        if stop is not None:
            counters = asdict(_consume(system, stop))
        else:
            interrupt_on_sigterm()
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
    monitor = system.monitor("consumer", writes=True)
    with (
        endpoint(monitor, system, system.settings.monitoring.consumer_port),
        end_when_shut_out(system, stop),
        keeping_totals(system),
        housekeeping_thread(system, monitor),
        consumer_service(system, monitor) as service,
        pulse(monitor, system),
    ):
        service.run(stop, monitor.health.heart("packing"))
    return service.counters


def gc_plan(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show which blocks a run would collect and rewrite. Reads rows and headers, not objects; changes nothing.

    A block marked "keep" is mostly waste too, but rewriting it would give too little space back. What else is dead, but
    cannot be freed now, is listed by the reason.
    """
    with context(ctx).system() as system:
        plan = gc_service(system).plan()
        totals = system.store_totals().read().totals
    _show_plan(plan, totals, as_json)


def gc_run(
    ctx: typer.Context,
    apply: Annotated[bool, typer.Option("--apply", help="Collect; without it, only the plan is shown.")] = False,
    once: Annotated[bool, typer.Option("--once/--loop", help="Run once (for cron), or run every gc.wait_ms.")] = True,
    as_json: AsJson = False,
) -> None:
    """Rewrite the live objects of blocks that are mostly waste. A later run deletes the emptied blocks, when their
    grace period is over."""
    if not apply:
        if not once:
            raise InvalidInput("gc run --loop collects for ever, so it needs --apply; to see what it would do: gc plan")
        gc_plan(ctx, as_json)
        if not as_json:
            out.print("nothing was changed; add --apply to collect")
        return
    settings = context(ctx).settings()
    log_for_daemons(settings)
    stop = None if once else stop_on_signals()
    with open_system(settings) as system:
        system.check_for_daemon(writes=True)
        if stop is not None:
            _collect(system, stop)
            return
        interrupt_on_sigterm()
        result = gc_service(system).run_once()
    _show_result(result, settings.gc.block_grace_ms, as_json)
    if result.unreadable_objects or result.blocks_parked:
        raise typer.Exit(exit_code(Corrupt() if result.unreadable_objects else Transient()))


def _collect(system: System, stop: Event) -> None:
    monitor = system.monitor("gc", writes=True)
    system.watch_store(monitor)
    service = gc_service(system, monitor)
    with (
        endpoint(monitor, system, system.settings.monitoring.gc_port),
        end_when_shut_out(system, stop),
        keeping_totals(system),
        rebuild_thread(system, monitor),
        scrub_thread(system, monitor),
        pulse(monitor, system),
    ):
        service.run(stop, system.settings.gc.wait_ms, monitor.health.heart("collecting"))


def _show_plan(plan: CollectionPlan, totals: Totals, as_json: bool) -> None:
    data = plan_data(plan, totals)

    def human() -> None:
        victims = victim_ids(plan)
        for decision in plan.decisions:
            block = decision.block
            mark = "collect" if block.block_id in victims else "keep   "
            live = count_text(decision.live_objects, "object")
            out.print(f"{mark} {block.block_id.hex()}  waste {block.waste_ratio:.1%}  live {live}")
        out.print(
            f"{count_text(len(plan.victims), 'block')}: {size_text(data['bytes_to_reclaim'])} to reclaim,"
            f" {size_text(data['bytes_to_rewrite'])} to rewrite; decided from"
            f" {size_text(data['header_bytes_read'])} of headers"
        )
        for waiting in plan.waiting:
            out.print(_waiting_text(waiting))
        if totals.trash_objects:
            objects = count_text(totals.trash_objects, "object")
            out.print(
                f"not now: {size_text(totals.trash_bytes)} of {objects} in the trash: live until they expire;"
                " `nos-ec trash empty` deletes them at once"
            )

    emit(data, as_json, human)


_WHEN_FREED = {
    WaitReason.OPEN: "dead in {blocks} still open: sealed when full, or when the writer ends",
    WaitReason.FENCED: "dead in {blocks} of dead writers: sealed by the next consumer or GC run",
    WaitReason.SET_ASIDE: "dead in {blocks} set aside, the first until {until} (NOS_EC_GC__COOL_DOWN_MS_MAX=0: now)",
    WaitReason.TOO_FULL: "dead in {blocks} of which less is wasted than gc.hole_ratio_min",
    WaitReason.CONDEMNED: "in {blocks} emptied before: deleted by a run after the grace period, the first from {until}",
}


def _waiting_text(waiting: WaitingBlocks) -> str:
    until = "-" if waiting.until_ms is None else time_text(waiting.until_ms)
    when = _WHEN_FREED[waiting.reason].format(blocks=count_text(waiting.blocks, "block"), until=until)
    return f"not now: {size_text(waiting.dead_bytes)} {when}"


def _show_result(result: CollectionResult, block_grace_ms: int, as_json: bool) -> None:
    def human() -> None:
        moved = f"{count_text(result.objects_moved, 'live object')}, {size_text(result.bytes_moved)}, rewritten"
        if result.expired_objects:
            expired = count_text(result.expired_objects, "expired object")
            out.print(f"{expired}, {size_text(result.expired_bytes)}, removed from the trash")
        out.print(f"{count_text(result.blocks_condemned, 'block')} emptied: {moved}")
        out.print(f"decided from {size_text(result.header_bytes_read)} of headers")
        out.print(
            f"{count_text(result.blocks_deleted, 'block')} deleted: {size_text(result.bytes_reclaimed)} reclaimed"
        )
        if result.blocks_condemned and block_grace_ms:
            out.print(
                f"the first run after a grace period of {block_grace_ms / 60_000:g} minutes deletes the emptied blocks"
            )
        for unreadable in result.unreadable:
            out.print(f"cannot be read, so its block is kept: {unreadable}", markup=False)
        _print_more(result.unreadable_objects - len(result.unreadable), "object")
        for parked in result.parked:
            out.print(f"not collected, will be retried later: {parked}", markup=False)
        _print_more(result.blocks_parked - len(result.parked), "block")

    emit(asdict(result), as_json, human)


def _print_more(count: int, what: str) -> None:
    if count:
        out.print(f"and {count_text(count, what)} more")
