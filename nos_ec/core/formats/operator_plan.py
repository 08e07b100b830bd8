"""Plans: what would be changed on an operator's behalf, step by step, to be read before it is done. Pure.

A plan is a file of JSON lines (docs/FORMAT.md). The first line says what the plan is for, each further line is a step.
The last one counts the steps and has a checksum of all lines before it, so that a file that was cut off or edited is
refused. A step names the state in which it was planned (`holds`). It is done only while that is still the state.
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
    """What a step does. engine/check/repairs.py does it."""

    RECOUNT_BLOCK = "recount-block"
    """Set the counters of a block's row to what headers and rows add up to."""
    QUARANTINE_BLOCK = "quarantine-block"
    """Enter a block that nothing refers to as condemned, to be deleted after a day in quarantine."""
    QUARANTINE_COPY = "quarantine-copy"
    """Queue a landing copy that nothing refers to for deletion after a day in quarantine."""
    UNQUEUE_COPY = "unqueue-copy"
    """Remove a landing copy that an object waits with from the deletion queue."""
    WAIT = "wait"
    """Enter an object in the landing store among what waits to be packed."""
    STOP_WAITING = "stop-waiting"
    """Remove from what waits to be packed what its object does not confirm."""
    MEND = "mend"
    """Write a damaged shard again from the others, or let a damaged object go back to its landing copy."""
    REWRITE_BLOCK = "rewrite-block"
    """Move what lives out of a block to another one, as GC does, and condemn the block."""
    RESTORE_SLOT = "restore-slot"
    """Write the header of a slot of the landing log again, for the landing segment that a row proves to be in it."""
    FREE_SLOT = "free-slot"
    """Zero the header of a slot of the landing log that holds nothing to which a row refers."""


QUARANTINING = (Action.QUARANTINE_BLOCK, Action.QUARANTINE_COPY)
"""What is done to things that nothing refers to."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Cost(msgspec.Struct, frozen=True):
    """Bytes that a step reads, writes and frees."""

    read: _Count = 0
    write: _Count = 0
    free: _Count = 0


class Step(msgspec.Struct, frozen=True):
    """action: see Action. target: what it is done to, ids by name. why: the finding or the rule behind it. evidence:
    what was seen. holds: what must still be so when it is done, by name."""

    action: Action
    target: dict[str, str]
    why: str
    evidence: dict[str, Any] = {}
    holds: dict[str, Any] = {}
    bytes: Cost = Cost()


class PlanHead(msgspec.Struct, frozen=True):
    """store_id: the store that the plan is for. made_ms: when it was made (Unix milliseconds). made_by: the command."""

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
    """The lines of a plan, each with its line feed."""
    line = _line(msgspec.to_builtins(head))
    crc, count = google_crc32c.value(line), 0
    yield line
    for count, step in enumerate(steps, 1):
        line = _line({"step": count} | msgspec.to_builtins(step))
        crc = google_crc32c.extend(crc, line)
        yield line
    yield _line({"steps": count, "crc32c": crc})


def read_head(line: bytes) -> PlanHead:
    """The first line. Raises InvalidInput."""
    if b"nos_ec_plan" not in line:
        raise InvalidInput("this is not a plan of nos_ec: its first line does not say so")
    head = _decoded(line, PlanHead, 1)
    if head.nos_ec_plan != VERSION:
        raise InvalidInput(
            f"the plan has format version {head.nos_ec_plan}, and this program knows version {VERSION}: make it anew"
        )
    return head


def read_steps(lines: Iterable[bytes]) -> Iterator[tuple[int, Step]]:
    """The steps of a plan, from all of its lines, with their numbers from 1. Raises InvalidInput at the line that is
    wrong, or at the end when the plan is not whole: look at all of it before the first step is done."""
    crc, count, ended = 0, 0, False
    for number, line in enumerate(lines, 1):
        if ended:
            raise InvalidInput(f"line {number} of the plan follows its last line: the file was changed")
        if number > 1 and line.startswith(b'{"steps":'):
            if _decoded(line, _End, number) != _End(count, crc):
                raise InvalidInput("the plan does not match its checksum: the file was changed; make the plan anew")
            ended = True
        elif number > 1:
            count += 1
            if _decoded(line, _Numbered, number).step != count:
                raise InvalidInput(f"line {number} of the plan is not step {count}: the file was changed")
            yield count, _decoded(line, Step, number)
        crc = google_crc32c.extend(crc, line)
    if not ended:
        raise InvalidInput("the plan has no last line: the file was cut off; make the plan anew")


def _line(data: dict[str, Any]) -> bytes:
    return msgspec.json.encode(data) + b"\n"


def _decoded(line: bytes, kind: type[_S], number: int) -> _S:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"line {number} of the plan is wrong: {error}") from None
