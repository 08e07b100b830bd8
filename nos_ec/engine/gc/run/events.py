"""Records how GC runs end among the events of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from nos_ec.core.errors import NosError
from nos_ec.engine.figures.events import EventKind, EventLog, Outcome, Work
from nos_ec.engine.gc.run.note import read_run
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.texts import count_text, size_text
from nos_ec.ports.clock import Clock
from nos_ec.ports.metadata import Notes

_log = structlog.get_logger(__name__)


@contextmanager
def recorded_run(notes: Notes, clock: Clock, process: str, worker: int) -> Iterator[Work]:
    """Record the end of the run within the block, and first that of an earlier run of this worker that was killed. The
    caller holds the lease of the worker."""
    _record_killed(notes, clock, worker)
    with EventLog(notes, clock, process).work(EventKind.GC) as work:
        yield work


def end_run(work: Work, result: CollectionResult) -> None:
    """Set how a run has ended. A run that had nothing to do is not recorded: most runs of a daemon are
    such."""
    left = result.blocks_parked + result.unreadable_objects
    if not (left or result.blocks_deleted or result.blocks_condemned or result.objects_moved):
        return
    text = (
        f"freed {size_text(result.bytes_reclaimed)} ({count_text(result.blocks_deleted, 'block')}), copied"
        f" {size_text(result.bytes_moved)} ({count_text(result.objects_moved, 'object')})"
    )
    if left:
        text += f"; set aside {count_text(result.blocks_parked, 'block')},"
        text += f" {count_text(result.unreadable_objects, 'object is', 'objects are')} unreadable"
    if result.behind is not None:
        text += f"; behind: {result.behind.value.replace('_', ' ')}"
    stopped = Outcome.DONE if result.stopped is None else Outcome.STOPPED
    if result.stopped is not None:
        text += f"; stopped: {result.stopped.value.replace('_', ' ')}"
    work.ended(Outcome.PROBLEMS if left else stopped, text)


def _record_killed(notes: Notes, clock: Clock, worker: int) -> None:
    try:
        run = read_run(notes, worker)
    except NosError as error:
        _log.warning("end of the last GC run not looked up", error=str(error))
        return
    if run is None or run.ended_ms is not None:
        return
    text = f"killed, or cut off from the metadata, after it had copied {size_text(run.bytes_moved)}"
    took_ms = max(0, run.seen_ms - run.started_ms)
    EventLog(notes, clock, run.process).record(EventKind.GC, Outcome.FAILED, text, took_ms, run.seen_ms)
