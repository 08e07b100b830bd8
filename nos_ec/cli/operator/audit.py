"""The command audit."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

from nos_ec.adapters.local.audit_files import TrailReader
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.terminal.context import AsJson, context, parse_object
from nos_ec.cli.terminal.output import count_text, out, stdout, time_text
from nos_ec.cli.terminal.values import Since, Until, time_of
from nos_ec.composition.audit import trail_reader
from nos_ec.core.errors import InvalidInput, Transient
from nos_ec.core.formats.audit_trail import AuditKind, CopyEntry, Recorded
from nos_ec.engine.texts import printable

COPIES_SHOWN = 5
"""How many copies of an entry people see unless they asked for an object."""

_JSON_START = '{"entries": ['


def audit(
    ctx: typer.Context,
    block: Annotated[
        str | None, typer.Option("--block", metavar="ID", help="Only this block, and copies packed into it.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--object", metavar="BUCKET/NAME", help="Only this object and its landing copies.")
    ] = None,
    since: Since = None,
    until: Until = None,
    kind: Annotated[AuditKind | None, typer.Option("--kind", help="Only entries of this kind.")] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, max=100_000, help="Only the newest N entries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what was deleted, replaced or changed, and by whom.

    By which process, or, for changes in the console, by which operator. Oldest first.
    Reads the audit trail of this host, not the store.
    """
    settings = context(ctx).settings()
    now_ms = SystemClock().now_ms()
    wanted = Wanted(
        _block(block),
        None if name is None else str(parse_object(name)),
        0 if since is None else time_of(since, "--since", now_ms),
        None if until is None else time_of(until, "--until", now_ms),
        kind,
    )
    reader = trail_reader(settings)
    report = _Report(as_json, whole=name is not None)
    try:
        entries = matching(reader, wanted)
        for entry in entries if last is None else deque(entries, last):
            report.print_entry(entry)
    except OSError as error:
        raise Transient(f"audit trail: {error.filename}: {error.strerror}; read it as its owner") from error
    report.print_counts(reader.damaged)


class _Report:
    """Prints each entry at once, because there may be many. JSON still becomes a single line."""

    def __init__(self, as_json: bool, *, whole: bool) -> None:
        self._as_json = as_json
        self._whole = whole
        self._shown = 0

    def print_entry(self, entry: Recorded) -> None:
        """Print an entry."""
        if self._as_json:
            stdout.write((", " if self._shown else _JSON_START) + json.dumps(msgspec.to_builtins(entry)))
        else:
            _print(entry, whole=self._whole)
        self._shown += 1

    def print_counts(self, damaged: int) -> None:
        """Print the counts, and complete the JSON."""
        if self._as_json:
            counts = {"found": self._shown, "damaged_lines": damaged}
            stdout.write(("" if self._shown else _JSON_START) + "], " + json.dumps(counts)[1:] + "\n")
            return
        found = count_text(self._shown, "entry", "entries")
        out.print(found + (f"; {count_text(damaged, 'damaged line')} skipped" if damaged else ""))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter for entries. Times are in milliseconds of Unix time; until_ms is None for no end."""

    block: str | None = None
    object: str | None = None
    since_ms: int = 0
    until_ms: int | None = None
    kind: AuditKind | None = None

    def may_match(self, line: bytes) -> bool:
        """Return whether a line may match. This check is cheap, because nearly no line matches."""
        if self.block is not None and self.block.encode() not in line:
            return False
        return self.object is None or msgspec.json.encode(self.object) in line

    def matching_part(self, entry: Recorded) -> Recorded | None:
        """Return the matching part of an entry; None if nothing matches."""
        if entry.at_ms < self.since_ms or (self.until_ms is not None and entry.at_ms > self.until_ms):
            return None
        if self.kind not in (None, entry.kind) or self.block not in (None, entry.block):
            return None
        if self.object in (None, entry.object):
            return entry
        copies = tuple(copy for copy in entry.copies if copy.object == self.object)
        return msgspec.structs.replace(entry, copies=copies) if copies else None


def matching(reader: TrailReader, wanted: Wanted) -> Iterator[Recorded]:
    """Yields the matching entries, oldest first. Raises OSError."""
    for entry in reader.entries(wanted.since_ms, wanted.may_match):
        picked = wanted.matching_part(entry)
        if picked is not None:
            yield picked


def _block(text: str | None) -> str | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{32}", text):
        raise InvalidInput(f"--block {text!r}: give a block id, 32 hexadecimal digits")
    return text.lower()


def _print(entry: Recorded, *, whole: bool) -> None:
    of_block = f" block {entry.block}" if entry.block else ""
    out.print(f"{time_text(entry.at_ms)} {entry.kind.value}{of_block}", markup=False)
    for line in _details(entry, whole=whole):
        out.print(f"    {line}", markup=False)


def _details(entry: Recorded, *, whole: bool) -> Iterator[str]:
    yield f"why      {printable(entry.why)}"
    yield f"run      {printable(entry.run)}"
    if entry.operator is not None:
        yield f"operator {printable(entry.operator)}"
    if entry.object is not None:
        yield f"object   {printable(entry.object)}"
    if entry.seen:
        yield f"seen     {_facts(entry.seen.items())}"
    for segment in entry.segments:
        yield f"segment  {segment}"
    copies = entry.copies if whole else entry.copies[:COPIES_SHOWN]
    for copy in copies:
        yield f"copy     {_copy_text(copy)}"
    if len(copies) < len(entry.copies):
        yield f"         and {len(entry.copies) - len(copies):,} more; --json has all"


def _copy_text(copy: CopyEntry) -> str:
    if copy.object is not None:
        what = f"{printable(copy.object)} v{copy.version}"
    elif copy.object_id is not None:
        what = f"object {copy.object_id} v{copy.version}, which is gone"
    else:
        what = "an unknown object"
    place = "" if copy.offset is None else f"; {copy.length} bytes at {copy.offset}"
    crc = "" if copy.crc32c is None else f", CRC {copy.crc32c:08x}"
    moved = "" if copy.moved_to is None else f"; now {copy.moved_to}"
    return f"{copy.landing} of {what}{place}{crc}{moved}"


def _facts(facts: Iterable[tuple[str, Any]]) -> str:
    return printable(", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in facts))
