"""The command scrub."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer

from nos_ec.cli.operator.findings import NewPlan, Report, print_hidden
from nos_ec.cli.operator.work_pool import PoolScrub, Processes, work_pool
from nos_ec.cli.terminal.context import AsJson, context, interrupt_on_sigterm
from nos_ec.cli.terminal.errors import ProblemsFound
from nos_ec.cli.terminal.output import count_text, emit, facts, progress, time_text
from nos_ec.cli.terminal.values import MaxDuration, duration_ms, rate_of
from nos_ec.cli.terminal.watching import keeping_counts
from nos_ec.core.errors import Transient
from nos_ec.core.findings import BEYOND_MENDING, FindingKind
from nos_ec.engine.scrub.mending import Scrubbed
from nos_ec.engine.scrub.scrubber import ScrubResult
from nos_ec.engine.texts import size_text

ON_CEPH = "left to Ceph: its deep scrub compares the shards of each stripe (`ceph pg ls`, DEEP_SCRUB_STAMP)"
EMBEDDED = "all were read"


def scrub(
    ctx: typer.Context,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="SIZE",
            help="Read at most this many bytes per second, such as 64MiB; 0 for no limit. Default: scrub.bytes_per_s.",
        ),
    ] = None,
    max_duration: MaxDuration = None,
    repair: Annotated[
        bool, typer.Option("--repair/--no-repair", help="Mend damage where possible (the default), or only report it.")
    ] = True,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin with the first block, even if a pass is under way.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", metavar="FILE", help="Write a plan of the repairs that were not tried, for `nos-ec apply`."
        ),
    ] = None,
    processes: Processes = 1,
    as_json: AsJson = False,
) -> None:
    """Read all packed data, and mend damage.

    Reads all shards, headers, names and objects, block after block, and compares them with their checksums. Writes
    damaged shards again, and returns damaged objects to their landing copies. Continues where the last run stopped.
    Exits with 13 if damage is left, and with 7 if a block could not be examined.
    """
    bytes_per_s = None if rate is None else rate_of(rate)
    new_plan = NewPlan(plan, "nos-ec scrub")
    report = Report(as_json)
    with context(ctx).system() as system, progress() as bar, work_pool(system.settings, processes) as pool:
        interrupt_on_sigterm()
        blocks = sum(system.operator.store_totals().read().totals.blocks.values())
        task = bar.add_task("scrub", total=blocks)

        def show(one: Scrubbed) -> None:
            bar.stop()
            report.add_finding(one.finding, {"mended": one.mended, "why": one.why})
            if not one.mended and (not one.why or BEYOND_MENDING in one.finding.evidence):
                new_plan.plan_repair(one.finding)

        def watch(result: ScrubResult) -> None:
            bar.update(task, completed=min(result.of_pass.blocks, blocks))

        operator = system.operator
        looks = None if pool is None else PoolScrub(pool, operator.scrub_rate(bytes_per_s)).first_looks
        scrubber = operator.scrubber(bytes_per_s, repair=repair, first_looks=looks)
        with keeping_counts(system):
            result = scrubber.run_once(Event(), duration_ms(max_duration), show, watch, restart=restart)
        store_id, now_ms = system.store_id, system.clock.now_ms()
        shards = ON_CEPH if system.shards is None else EMBEDDED
        if FindingKind.BLOCKS_SHORT.value in report.kinds:
            shards = "all existing ones were read"
    try:
        new_plan.write_file(store_id, now_ms)
    finally:
        data = report.data() | _data(result) | {"shards": shards, "planned": new_plan.steps}
        emit(data, as_json, lambda: _print(data, result))
    if result.left:
        raise ProblemsFound(f"{count_text(result.left, 'problem')} not mended; docs/CHECK.md explains what to do")
    if result.unfinished:
        part = result.unfinished[0]
        raise Transient(f"not everything could be examined: {part.part}: {part.reason}")


def _data(result: ScrubResult) -> dict[str, Any]:
    return {
        "mended": result.mended,
        "complete": result.whole,
        "unfinished": [asdict(part) for part in result.unfinished],
        "looked_at": {
            "blocks": result.blocks,
            "objects": result.objects,
            "read_bytes": result.read_bytes,
            "written_bytes": result.written_bytes,
            "unfinished_appends": result.torn,
        },
        "pass": asdict(result.of_pass),
    }


def _print(data: dict[str, Any], result: ScrubResult) -> None:
    kinds: dict[str, int] = data["kinds"]
    print_hidden(kinds)
    whole, began = result.of_pass, time_text(result.of_pass.began_ms)
    objects = count_text(result.objects, "object")
    rows = {
        "blocks": f"{result.blocks:,}, with {objects}; {size_text(result.read_bytes)} read",
        "shards": data["shards"],
        "pass": f"begun {began}: {count_text(whole.blocks, 'block')} so far; "
        + ("it is complete" if result.whole else "the next run continues"),
        "problems": ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "none",
        "mended": f"{result.mended:,}; {size_text(result.written_bytes)} written",
        "not examined": ", ".join(f"{part.part} ({part.reason})" for part in result.unfinished) or "nothing",
    }
    if data["planned"] is not None:
        rows["planned"] = f"{count_text(data['planned'], 'repair')}; read the plan, then run `nos-ec apply`"
    facts("scrub", rows)
