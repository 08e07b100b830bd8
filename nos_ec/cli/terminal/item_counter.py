"""What a command on many objects tells: each file or object that it could not do, as it goes, and totals at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nos_ec.cli.terminal.errors import Incomplete
from nos_ec.cli.terminal.output import count_text, emit, err, out, printable, size_text
from nos_ec.core.errors import Corrupt

NAMED_MAX = 100
"""Problems that are named; the others are only counted. Bounds the output and the memory."""


@dataclass(slots=True)
class ItemCounter:
    """Totals so far. done: past participle of what is done to an object, such as "stored"."""

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

    def note(self, size: int) -> None:
        """Count an object that is done."""
        self.objects += 1
        self.bytes += size

    def problem(self, what: str, reason: str) -> None:
        """Name a file or object that could not be done, and count it."""
        self.not_done += 1
        self._name(what, f"not {self.done}: {reason}")

    def damaged(self, what: str, error: Corrupt) -> None:
        """Like `problem`, for an object whose bytes are damaged. The first one decides the exit code."""
        self.damage = self.damage or error
        self.problem(what, str(error))

    def has_changed(self, what: str) -> None:
        """Name a file that is done, but changed meanwhile."""
        self.changed += 1
        self._name(what, f"changed while it was read: {self.done} as it was read")

    def leave_out(self, what: str, reason: str) -> None:
        """Name something that is no file, such as a link. It does not make the command fail."""
        self.left_out += 1
        self._name(what, f"left out: {reason}")

    def _name(self, what: str, reason: str) -> None:
        if len(self.problems) < NAMED_MAX:
            self.problems.append({"what": what, "reason": reason})
            if not self.as_json:
                err.print(f"{printable(what)}: {printable(reason)}", markup=False)
        elif not self.as_json and self.not_done + self.left_out + self.changed == NAMED_MAX + 1:
            err.print("there are more, which are only counted")

    @contextmanager
    def told(self, where: str) -> Iterator[None]:
        """Print the totals at the end of the block, also when it raises: on stderr then, and as JSON on stdout in any
        case. Raises Corrupt if there was damage, and Incomplete when not everything could be done."""
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
    """A function that counts an object of so many bytes in `tally`, and shows the totals in the progress line."""
    task = bar.add_task(what, total=None)

    def count(size: int) -> None:
        counter.note(size)
        bar.update(task, completed=counter.objects, description=f"{what} {size_text(counter.bytes)}")

    return count
