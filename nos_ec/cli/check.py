"""check."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from nos_ec.cli.context import AsJson, context
from nos_ec.cli.errors import ProblemsFound
from nos_ec.cli.output import count_text, emit, facts, out, printable, progress, size_text
from nos_ec.composition.wiring import System
from nos_ec.core.errors import InvalidInput, Transient
from nos_ec.core.findings import Finding
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.checker import Checked, Checker, CheckFigures, Tick

PROBLEMS_MAX = 10_000
"""Problems that --json lists; all are counted."""
SHOWN_MAX = 100
"""Problems of a kind that are shown to people; all are counted."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    ctx: typer.Context,
    read_data: Annotated[
        str | None,
        typer.Option(
            "--read-data",
            metavar="N%",
            help="Also read the objects in N percent of the blocks, and N percent of the landing copies, others each"
            " time, and compare their checksums.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare rows with blocks, landing copies and landing segments, both ways. Changes nothing.

    Reads all rows and headers, but no object without --read-data. May run beside a working store. Ends with 13 if
    something does not fit, and with 7 if a part could not be looked at.
    """
    share = _share(read_data)
    with context(ctx).system() as system, progress() as bar:
        task = bar.add_task("check", total=None)
        checker = _checker(system, share, lambda part, done: bar.update(task, description=part, completed=done))
        report = _Report(as_json)
        for finding in checker.findings():
            bar.stop()
            report.add(finding)
    data = report.data() | {
        "complete": not checker.unfinished,
        "unfinished": [asdict(part) for part in checker.unfinished],
        "looked_at": asdict(checker.figures),
    }
    emit(data, as_json, lambda: _print(data, checker.figures))
    if report.kinds:
        raise ProblemsFound(f"{count_text(sum(report.kinds.values()), 'problem')} found; docs/CHECK.md says what to do")
    if checker.unfinished:
        part = checker.unfinished[0]
        raise Transient(f"the check is not complete, so nothing is certain: {part.part}: {part.reason}")


def _checker(system: System, share: float, tick: Tick) -> Checker:
    checked = Checked(system.metadata, system.blocks, system.landing, system.medium, system.clock)
    salt = system.clock.now_ms().to_bytes(8, "big")
    return Checker(checked, ReadShare(share, salt), tick=tick)


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


class _Report:
    """Counts problems, and shows them or keeps them for JSON, as many as are bounded."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._problems: list[dict[str, object]] = []
        self.kinds = Counter[str]()

    def add(self, finding: Finding) -> None:
        """Count it; show it to people now, because a check of a large store takes long."""
        self.kinds[finding.kind.value] += 1
        if self._as_json:
            if len(self._problems) < PROBLEMS_MAX:
                self._problems.append(finding.data())
        elif self.kinds[finding.kind.value] <= SHOWN_MAX:
            _show(finding)

    def data(self) -> dict[str, Any]:
        """The problems, as JSON has them."""
        found = {"problems_found": sum(self.kinds.values()), "kinds": dict(sorted(self.kinds.items()))}
        return found | {"problems": self._problems}


def _show(finding: Finding) -> None:
    out.print(f"{finding.kind.value}: {printable(finding.what)}", markup=False)
    seen = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in finding.evidence.items())
    out.print(f"    seen    {printable(seen)}", markup=False)
    out.print(f"    repair  {finding.repair}", markup=False)


def _print(data: dict[str, Any], figures: CheckFigures) -> None:
    kinds: dict[str, int] = data["kinds"]
    hidden = {kind: count - SHOWN_MAX for kind, count in kinds.items() if count > SHOWN_MAX}
    for kind, count in hidden.items():
        out.print(f"{kind}: {count_text(count, 'more problem')}", markup=False)
    read = f", {size_text(figures.data_bytes)} of data" if figures.data_bytes else ""
    rows = {
        "blocks": f"{figures.blocks:,}; {size_text(figures.header_bytes)} of headers read{read}",
        "objects": f"{figures.objects:,}, of which {figures.waiting:,} wait to be packed",
        "landing": f"{figures.copies:,} in the landing store,"
        f" {count_text(figures.landing_segments, 'landing segment')},"
        f" {figures.queue_entries:,} in the deletion queue",
        "left to daemons": _joined(_left(figures)) or "nothing",
        "not looked at": _joined(f"{part['part']} ({part['reason']})" for part in data["unfinished"]) or "nothing",
        "problems": _joined(f"{count:,} {kind}" for kind, count in kinds.items())
        or ("none" if data["complete"] else "none in what was looked at"),
    }
    facts("check", rows)


def _left(figures: CheckFigures) -> Iterable[str]:
    for count, what in (
        (figures.blocks_fenced, "blocks of dead writers to recover"),
        (figures.blocks_condemned, "condemned blocks to delete"),
        (figures.deletions_due, "due entries of the deletion queue"),
        (figures.leases_expired, "expired leases to fence"),
    ):
        if count:
            yield f"{count:,} {what}"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
