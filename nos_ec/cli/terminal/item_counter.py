"""Reports of commands on many objects: each file or object that failed, at once, and totals at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nos_ec.cli.terminal.errors import Incomplete
from nos_ec.cli.terminal.output import count_text, emit, err, out
from nos_ec.core.errors import Corrupt
from nos_ec.engine.texts import printable, size_text

NAMED_MAX = 100
"""How many problems are named; further ones are only counted. This bounds the output and the memory."""


@dataclass(slots=True)
class ItemCounter:
    """Counts objects and names problems. `done` is what happens to each object, as a past participle such as
    "stored"."""

    done: str
    as_json: bool
    objects: int = 0
    bytes: int = 0
    not_done: int = 0
    left_out: int = 0
    changed: int = 0
    more: dict[str, int] = field(default_factory=dict)
    problems: list[dict[str, str]] = field(default_factory=list)
    damage: Corrupt | None = None

    def count_object(self, size: int) -> None:
        """Count an object that is done, of `size` bytes."""
        self.objects += 1
        self.bytes += size

    def problem(self, what: str, reason: str) -> None:
        """Count a file or object that failed, and name it."""
        self.not_done += 1
        self._name(what, f"not {self.done}: {reason}")

    def damaged(self, what: str, error: Corrupt) -> None:
        """Do as `problem` does, for an object whose bytes are damaged. The first such object decides the exit code."""
        self.damage = self.damage or error
        self.problem(what, str(error))

    def has_changed(self, what: str) -> None:
        """Count and name a file that is done, but changed while it was read."""
        self.changed += 1
        self._name(what, f"changed while it was read: {self.done} as it was read")

    def leave_out(self, what: str, reason: str) -> None:
        """Count and name an item that is skipped, such as a link. It does not make the command fail."""
        self.left_out += 1
        self._name(what, f"left out: {reason}")

    def _name(self, what: str, reason: str) -> None:
        if len(self.problems) < NAMED_MAX:
            self.problems.append({"what": what, "reason": reason})
            if not self.as_json:
                err.print(f"{printable(what)}: {printable(reason)}", markup=False)
        elif not self.as_json and self.not_done + self.left_out + self.changed == NAMED_MAX + 1:
            err.print("further ones are only counted")

    @contextmanager
    def reporting_totals(self, where: str) -> Iterator[None]:
        """Print the totals at the end of the block, even if it raises: to people then on stderr, as JSON always on
        stdout. Raises Corrupt if there was damage, and Incomplete if some items failed."""
        try:
            yield
        except BaseException:
            self._print(where, complete=False)
            raise
        self._print(where, complete=True)
        if self.damage is not None:
            raise self.damage
        if self.not_done or self.changed:
            counts = {f"not {self.done}": self.not_done, "changed meanwhile": self.changed}
            raise Incomplete(", ".join(f"{n:,} {what}" for what, n in counts.items() if n) + "; they are named above")

    def _print(self, where: str, *, complete: bool) -> None:
        counts = {f"not_{self.done}": self.not_done, **self.more}
        if self.done == "stored":
            counts |= {"changed": self.changed, "left_out": self.left_out}
        elif self.done == "undeleted":
            counts["left_out"] = self.left_out
        data = {"objects": self.objects, "bytes": self.bytes, **counts, "problems": self.problems, "complete": complete}
        text = f"{count_text(self.objects, 'object')}, {size_text(self.bytes)}, {self.done} {printable(where)}"
        for name, count in counts.items():
            if count:
                text += f"; {count:,} {name.replace('_', ' ')}"
        if not complete:
            text = f"ended early: {text}"
        console = out if complete else err
        emit(data, self.as_json, lambda: console.print(text, markup=False))


def counting(bar: Any, what: str, counter: ItemCounter) -> Callable[[int], None]:
    """Return a function that takes the size of an object in bytes, counts the object, and updates the progress line."""
    task = bar.add_task(what, total=None)

    def count(size: int) -> None:
        counter.count_object(size)
        bar.update(task, completed=counter.objects, description=f"{what} {size_text(counter.bytes)}")

    return count
