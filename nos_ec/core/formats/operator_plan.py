"""Plans: changes on an operator's behalf, step by step, to be read before they are applied. Pure.

A plan is a file of JSON lines (docs/FORMAT.md). The first line has the purpose of the plan, each following line is a
step. The last one counts the steps and has a checksum of all lines before it, so that a truncated or edited file is
refused. A step records the state in which it was planned (`holds`). It is carried out only if that is still the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import google_crc32c
import msgspec

from nos_ec.core.errors import InvalidInput

VERSION = 1

_S = TypeVar("_S")


class Action(StrEnum):
    """The action of a step; engine/check/repairs.py carries it out."""

    RECOUNT_BLOCK = "recount-block"
    """Set the counters of a block's row to the sums of headers and rows."""
    QUARANTINE_BLOCK = "quarantine-block"
    """Record an unreferenced block as condemned, to be deleted after a day in quarantine."""
    QUARANTINE_COPY = "quarantine-copy"
    """Queue an unreferenced landing copy for deletion after a day in quarantine."""
    UNQUEUE_COPY = "unqueue-copy"
    """Remove the landing copy of a waiting object from the deletion queue."""
    WAIT = "wait"
    """Add an object in the landing store to the objects that wait to be packed."""
    STOP_WAITING = "stop-waiting"
    """Remove an entry from the objects that wait to be packed if its object does not confirm it."""
    MEND = "mend"
    """Write a damaged shard again from the others, or return a damaged object to its landing copy."""
    REWRITE_BLOCK = "rewrite-block"
    """Move the live objects of a block to another one, as GC does, and condemn the block."""
    RESTORE_SLOT = "restore-slot"
    """Write the header of a slot of the landing log again; a row proves which landing segment is in it."""
    FREE_SLOT = "free-slot"
    """Zero the header of a slot of the landing log if no row refers to anything in it."""


QUARANTINING = (Action.QUARANTINE_BLOCK, Action.QUARANTINE_COPY)
"""Actions on unreferenced data."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Cost(msgspec.Struct, frozen=True):
    """Bytes that a step reads, writes and frees."""

    read: _Count = 0
    write: _Count = 0
    free: _Count = 0


class Step(msgspec.Struct, frozen=True):
    """One step: the action, its target (ids by name), the finding or rule that requires it (`why`), and the evidence.
    `holds` maps names to conditions that must still hold when the step is carried out."""

    action: Action
    target: dict[str, str]
    why: str
    evidence: dict[str, Any] = {}
    holds: dict[str, Any] = {}
    bytes: Cost = Cost()


class PlanHead(msgspec.Struct, frozen=True):
    """The head of a plan: the id of its store, when it was made (Unix milliseconds), and the command that made it."""

    store_id: str
    made_ms: int
    made_by: str
    nos_ec_plan: int = VERSION


class _Numbered(msgspec.Struct, frozen=True):
    step: int


class _End(msgspec.Struct, frozen=True):
    steps: int
    crc32c: int


def plan_lines(head: PlanHead, steps: Iterable[Step]) -> Iterator[bytes]:
    """Yield the lines of a plan, each with its line feed."""
    line = _line(msgspec.to_builtins(head))
    crc, count = google_crc32c.value(line), 0
    yield line
    for count, step in enumerate(steps, 1):
        line = _line({"step": count} | msgspec.to_builtins(step))
        crc = google_crc32c.extend(crc, line)
        yield line
    yield _line({"steps": count, "crc32c": crc})


def read_head(line: bytes) -> PlanHead:
    """Return the head from the first line. Raise InvalidInput."""
    if b"nos_ec_plan" not in line:
        raise InvalidInput("this is not a plan of nos_ec: its first line is not the head of a plan")
    head = _decoded(line, PlanHead, 1)
    if head.nos_ec_plan != VERSION:
        raise InvalidInput(
            f"the plan has format version {head.nos_ec_plan}, and this program knows version {VERSION}: make a new plan"
        )
    return head


def read_steps(lines: Iterable[bytes]) -> Iterator[tuple[int, Step]]:
    """Yield the steps of a plan, from all of its lines, with their numbers from 1. Raise InvalidInput at an invalid
    line, or at the end if lines are missing: read all of it before you carry out the first step."""
    crc, count, ended = 0, 0, False
    for number, line in enumerate(lines, 1):
        if ended:
            raise InvalidInput(f"line {number} of the plan follows its last line: the file was changed")
        if number > 1 and line.startswith(b'{"steps":'):
            if _decoded(line, _End, number) != _End(count, crc):
                raise InvalidInput("the plan does not match its checksum: the file was changed; make a new plan")
            ended = True
        elif number > 1:
            count += 1
            if _decoded(line, _Numbered, number).step != count:
                raise InvalidInput(f"line {number} of the plan is not step {count}: the file was changed")
            yield count, _decoded(line, Step, number)
        crc = google_crc32c.extend(crc, line)
    if not ended:
        raise InvalidInput("the plan has no last line: the file was cut off; make a new plan")


def _line(data: dict[str, Any]) -> bytes:
    return msgspec.json.encode(data) + b"\n"


def _decoded(line: bytes, kind: type[_S], number: int) -> _S:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"line {number} of the plan is invalid: {error}") from None
