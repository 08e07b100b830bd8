"""The command shards rebuild."""

from __future__ import annotations

from dataclasses import asdict
from threading import Event
from typing import Annotated, Any

import typer

from nos_ec.cli.terminal.context import AsJson, context, interrupt_on_sigterm
from nos_ec.cli.terminal.errors import exit_code
from nos_ec.cli.terminal.output import count_text, emit, out, print_more, progress, short_text
from nos_ec.cli.terminal.values import MaxDuration, duration_ms, rate_of
from nos_ec.cli.terminal.watching import keeping_counts
from nos_ec.core.errors import Corrupt, Transient
from nos_ec.engine.texts import size_text
from nos_ec.engine.upkeep.shard_rebuild import RebuildResult

ON_CEPH = "nothing to rebuild: Ceph recovers lost shards itself; `ceph status` shows its progress"

shards_app = typer.Typer(help="Shards of the embedded block store.", no_args_is_help=True, rich_markup_mode=None)


@shards_app.command("rebuild")
def shards_rebuild(
    ctx: typer.Context,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="SIZE",
            help="Read and write at most this many bytes per second, such as 64MiB; 0 for no limit. Default:"
            " shards.rebuild_bytes_per_s.",
        ),
    ] = None,
    max_duration: MaxDuration = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild missing shards of blocks.

    Use it after a lost disk was replaced (`init --new-shard`). It ends when all blocks are complete. It is safe while
    the store is in use, and safe to interrupt: the next run continues. On Ceph there is nothing to rebuild.
    """
    bytes_per_s = None if rate is None else rate_of(rate)
    with context(ctx).system() as system:
        rebuild = system.operator.shard_rebuild(bytes_per_s)
        if rebuild is None:
            emit({"rebuilt": None, "why": ON_CEPH}, as_json, lambda: out.print(ON_CEPH))
            return
        interrupt_on_sigterm()
        with keeping_counts(system), progress() as bar:
            task = bar.add_task("blocks", total=None)

            def show(result: RebuildResult) -> None:
                bar.update(task, total=result.to_do, completed=min(result.looked_at, result.to_do))

            result = rebuild.run_once(Event(), duration_ms(max_duration), show)
    emit(_data(result), as_json, lambda: _print(result))
    if result.unreadable or result.failed or result.unwritten:
        raise typer.Exit(exit_code(Corrupt() if result.unreadable else Transient()))


def _data(result: RebuildResult) -> dict[str, Any]:
    short = [{"shards": shards, "blocks": blocks} for shards, blocks in sorted(result.short.items())]
    return {"rebuilt": {**asdict(result), "short": short}}


def _print(result: RebuildResult) -> None:
    out.print(
        f"{count_text(result.blocks, 'block')} rebuilt: {count_text(result.missing, 'shard')};"
        f" {size_text(result.read_bytes)} read, {size_text(result.written_bytes)} written"
    )
    for damage in result.damages:
        out.print(damage, markup=False)
    print_more(result.replaced + result.unwritten - len(result.damages), "damaged shard")
    for failure in result.failures:
        out.print(f"not rebuilt: {failure}", markup=False)
    print_more(result.unreadable + result.failed - len(result.failures), "block")
    if result.left:
        out.print(f"{count_text(result.left, 'block')} left to recovery or GC, which seal or delete them")
    if result.stopped:
        out.print("stopped before the end; the next run continues")
    out.print(f"blocks short of a shard: {short_text(result.short)}")
