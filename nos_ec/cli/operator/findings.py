"""Parts that check and scrub share: they count and show their findings, and write a plan of repairs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nos_ec.cli.files.local_files import report_file, require_new
from nos_ec.cli.terminal.output import count_text, out
from nos_ec.core.findings import Finding
from nos_ec.core.formats.operator_plan import QUARANTINING, PlanHead, Step, plan_lines
from nos_ec.engine.check.repairs import planned
from nos_ec.engine.texts import printable

PROBLEMS_MAX = 10_000
"""How many problems --json lists, and how many steps a plan has; all problems are counted."""
SHOWN_MAX = 100
"""How many problems of each kind are shown to people; all are counted."""


class Report:
    """Counts problems, and shows a limited number of them or keeps these for JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._problems: list[dict[str, object]] = []
        self.kinds = Counter[str]()

    def add_finding(self, finding: Finding, outcome: Mapping[str, object] | None = None) -> None:
        """Count a finding, and show it to people at once, because checking a large store takes long. `outcome` is the
        result of a repair, if one was tried."""
        self.kinds[finding.kind.value] += 1
        if self._as_json:
            if len(self._problems) < PROBLEMS_MAX:
                self._problems.append(finding.data() | dict(outcome or {}))
        elif self.kinds[finding.kind.value] <= SHOWN_MAX:
            _show(finding, outcome or {})

    def data(self) -> dict[str, Any]:
        """Return the problems for JSON."""
        found = {"problems_found": sum(self.kinds.values()), "kinds": dict(sorted(self.kinds.items()))}
        return found | {"problems": self._problems}


def _show(finding: Finding, outcome: Mapping[str, object]) -> None:
    out.print(f"{finding.kind.value}: {printable(finding.what)}", markup=False)
    seen = ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in finding.evidence.items())
    out.print(f"    seen    {printable(seen)}", markup=False)
    if outcome.get("mended"):
        out.print("    mended")
        return
    if outcome.get("why"):
        out.print(f"    not mended: {printable(str(outcome['why']))}", markup=False)
    out.print(f"    repair  {finding.repair}", markup=False)


def print_hidden(kinds: Mapping[str, int]) -> None:
    """Print how many problems were not shown."""
    for kind, count in kinds.items():
        if count > SHOWN_MAX:
            out.print(f"{kind}: {count_text(count - SHOWN_MAX, 'more problem')}", markup=False)


class NewPlan:
    """Collects the safe repairs for a plan, if the user asked for one. `made_by` is the command. Raises InvalidInput if
    the file of the plan exists."""

    def __init__(self, path: Path | None, made_by: str) -> None:
        if path is not None:
            require_new(path, "--plan")
        self._path = path
        self._made_by = made_by
        self._steps: list[Step] = []
        self.steps: int | None = None
        """The number of steps in the file, once it is written."""

    def plan_repair(self, finding: Finding) -> None:
        """Plan the repair of a finding, if it has a safe one."""
        step = planned(finding)
        if step is not None and len(self._steps) < PROBLEMS_MAX:
            self._steps.append(step)

    def write_file(self, store_id: str, now_ms: int, *, complete: bool = True) -> None:
        """Write the file. If the check is not `complete`, parts that were not checked may refer to objects that seem
        unreferenced, so nothing is put into quarantine. Raises NoSpace, InvalidInput."""
        if self._path is None:
            return
        if not complete:
            self._steps = [step for step in self._steps if step.action not in QUARANTINING]
        with report_file(self._path, "--plan") as file:
            file.writelines(plan_lines(PlanHead(store_id, now_ms, self._made_by), self._steps))
        self.steps = len(self._steps)
