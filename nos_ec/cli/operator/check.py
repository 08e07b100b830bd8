"""The commands check and apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, TaskID

from nos_ec.cli.operator.findings import NewPlan, Report, print_hidden
from nos_ec.cli.operator.work_pool import PoolLooks, Processes, work_pool
from nos_ec.cli.terminal.context import AsJson, context
from nos_ec.cli.terminal.errors import Incomplete, ProblemsFound
from nos_ec.cli.terminal.output import count_text, emit, facts, out, progress
from nos_ec.core.errors import Blocklisted, Conflict, Corrupt, InvalidInput, LeaseLost, NoSpace, Transient
from nos_ec.core.formats.operator_plan import Action, PlanHead, Step, read_head, read_steps
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.checker import Checker, CheckFigures
from nos_ec.engine.check.repairs import Repairer, copies_of
from nos_ec.engine.figures.events import EventKind, Outcome
from nos_ec.engine.texts import printable, size_text
from nos_gc.assemble import gc_service

FAILURES_MAX = 3
"""After this many consecutive transient failures, `apply` ends."""


def check(
    ctx: typer.Context,
    read_data: Annotated[
        str | None,
        typer.Option(
            "--read-data",
            metavar="N%",
            help="Also read the objects in N percent of the blocks, and N percent of the landing copies, and compare"
            " their checksums. Each check picks others.",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Write a plan of the safe repairs, for `nos-ec apply`."),
    ] = None,
    processes: Processes = 1,
    as_json: AsJson = False,
) -> None:
    """Look for inconsistencies between rows and stores.

    Compares rows with blocks, landing copies and landing segments, both ways. Changes nothing. Reads all rows and
    headers, but reads objects only with --read-data. May run while the store is in use. Exits with 13 if it finds a
    problem, and with 7 if a part could not be checked.
    """
    share = _share(read_data)
    new_plan = NewPlan(plan, "nos-ec check")
    with (
        context(ctx).system() as system,
        progress() as bar,
        work_pool(system.settings, processes) as pool,
        system.events().work(EventKind.CHECK) as work,
    ):
        task = bar.add_task("check", total=None)
        tick = partial(_tick, bar, task)
        read = ReadShare(share, system.clock.now_ms().to_bytes(8, "big"))
        looks = None if pool is None else PoolLooks(pool, read)
        checker = Checker(system.operator.checked(), read, tick=tick, looks=looks)
        report = Report(as_json)
        for finding in checker.findings():
            bar.stop()
            report.add_finding(finding)
            new_plan.plan_repair(finding)
        left = report.kinds or checker.unfinished
        work.ended(Outcome.PROBLEMS if left else Outcome.DONE, _ended_text(report.kinds, len(checker.unfinished)))
        store_id, now_ms = system.store_id, system.clock.now_ms()
    try:
        new_plan.write_file(store_id, now_ms, complete=not checker.unfinished)
    finally:
        data = report.data() | {
            "complete": not checker.unfinished,
            "unfinished": [asdict(part) for part in checker.unfinished],
            "looked_at": asdict(checker.figures),
            "planned": new_plan.steps,
        }
        emit(data, as_json, lambda: _print(data, checker.figures))
    if report.kinds:
        raise ProblemsFound(
            f"{count_text(sum(report.kinds.values()), 'problem')} found; docs/CHECK.md explains what to do"
        )
    if checker.unfinished:
        part = checker.unfinished[0]
        raise Transient(f"the check is incomplete, so problems may have been missed: {part.part}: {part.reason}")


def apply(
    ctx: typer.Context,
    plan: Annotated[Path, typer.Argument(help="A plan that `check --plan` or `scrub --plan` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Carry out a plan of `check` or `scrub`.

    Each step is done only if the problem that it repairs still exists. A failed step does not stop the others. Safe to
    repeat after any failure.
    """
    steps = _read(plan)
    applied = _Applied(len(steps.steps))
    with context(ctx).system() as system, progress() as bar:
        if steps.head.store_id != system.store_id:
            raise InvalidInput(f"{plan} is for the store {steps.head.store_id}, and this one is {system.store_id}")
        gc = gc_service(system)
        if any(step.action is Action.REWRITE_BLOCK for _, step in steps.steps):
            gc.recover()
        copies = copies_of(step for _, step in steps.steps)
        operator = system.operator
        repairer = Repairer(operator.checked(), operator.planned_mending(), gc.rewrite, copies, system.trail)
        try:
            with system.events().work(EventKind.CHECK) as work:
                for number, step in bar.track(steps.steps, description="apply"):
                    applied.apply(repairer, number, step)
                outcome = Outcome.PROBLEMS if applied.failed else Outcome.DONE
                work.ended(outcome, f"repairs: {applied.done:,} of {count_text(applied.steps, 'step')} done")
        finally:
            bar.stop()
            emit(asdict(applied), as_json, lambda: _print_applied(applied))
    if applied.failed:
        raise Incomplete(f"{count_text(len(applied.failed), 'step')} failed; apply the plan again later")


@dataclass(frozen=True, slots=True)
class _Plan:
    head: PlanHead
    steps: Sequence[tuple[int, Step]]


@dataclass(slots=True)
class _Applied:
    """The outcome of a plan. `passed_over` lists the steps whose problem no longer existed, `failed` the steps that
    failed, with their errors."""

    steps: int
    done: int = 0
    passed_over: list[dict[str, object]] = field(default_factory=list)
    failed: list[dict[str, object]] = field(default_factory=list)

    def apply(self, repairer: Repairer, number: int, step: Step) -> None:
        """Do a step, and record its outcome. Raises the errors after which all further steps would fail: InvalidInput,
        LeaseLost, Blocklisted, and Transient after FAILURES_MAX consecutive failures."""
        named: dict[str, object] = {"step": number, "action": step.action.value, "why": step.why}
        try:
            if repairer.apply(step):
                self.done += 1
            else:
                self.passed_over.append(named)
        except (LeaseLost, Blocklisted):
            raise
        except (Transient, Corrupt, Conflict) as error:
            self.failed.append(named | {"error": str(error)})
            if isinstance(error, Transient) and not isinstance(error, NoSpace) and self._all_fail(number):
                raise

    def _all_fail(self, number: int) -> bool:
        """Return whether the last FAILURES_MAX steps, including this one, have failed."""
        last = [one["step"] for one in self.failed[-FAILURES_MAX:]]
        return last == list(range(number - FAILURES_MAX + 1, number + 1))


def _read(plan: Path) -> _Plan:
    """Read the whole plan before the first step is done. Raises InvalidInput."""
    try:
        lines = plan.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InvalidInput(f"{plan}: {error.strerror}") from error
    return _Plan(read_head(lines[0] if lines else b""), list(read_steps(lines)))


def _print_applied(applied: _Applied) -> None:
    out.print(f"{applied.done:,} of {count_text(applied.steps, 'step')} done")
    for one in applied.passed_over:
        out.print(
            printable(f"skipped, because its problem no longer exists: step {one['step']}, {one['why']}"), markup=False
        )
    for one in applied.failed:
        out.print(printable(f"failed: step {one['step']}, {one['why']}: {one['error']}"), markup=False)


def _ended_text(kinds: Mapping[str, int], unfinished: int) -> str:
    found = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "no problem"
    return found + (f"; {count_text(unfinished, 'part')} could not be checked" if unfinished else "")


def _tick(bar: Progress, task: TaskID, part: str, done: int) -> None:
    bar.update(task, description=part, completed=done)


def _share(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise InvalidInput(f"--read-data {text!r}: give a percentage above 0 and up to 100, such as 10%")
    return percent / 100


def _print(data: dict[str, Any], figures: CheckFigures) -> None:
    kinds: dict[str, int] = data["kinds"]
    print_hidden(kinds)
    read = f", {size_text(figures.data_bytes)} of data" if figures.data_bytes else ""
    rows = {
        "blocks": f"{figures.blocks:,}; {size_text(figures.header_bytes)} of headers read{read}",
        "objects": f"{figures.objects:,}; still to be packed: {figures.waiting:,}",
        "landing": f"{figures.copies:,} in the landing store,"
        f" {count_text(figures.landing_segments, 'landing segment')},"
        f" {figures.queue_entries:,} in the deletion queue",
        "left to daemons": _joined(_left(figures)) or "nothing",
        "not checked": _joined(f"{part['part']} ({part['reason']})" for part in data["unfinished"]) or "nothing",
        "problems": _joined(f"{count:,} {kind}" for kind, count in kinds.items())
        or ("none" if data["complete"] else "none in what was checked"),
    }
    if data["planned"] is not None:
        rows["planned"] = f"{count_text(data['planned'], 'repair')}; read the plan, then run `nos-ec apply`"
    facts("check", rows)


def _left(figures: CheckFigures) -> Iterable[str]:
    for count, one, many, what in (
        (figures.blocks_fenced, "block", "blocks", "of dead writers to recover"),
        (figures.blocks_condemned, "condemned block", "condemned blocks", "to delete"),
        (figures.deletions_due, "due entry", "due entries", "of the deletion queue"),
        (figures.leases_expired, "expired lease", "expired leases", "to fence"),
    ):
        if count:
            yield f"{count_text(count, one, many)} {what}"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
