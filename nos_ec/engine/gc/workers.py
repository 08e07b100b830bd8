"""The GC workers of a store: their leases, and their states as other processes see them.

A process is not bound to one worker. For each run it takes the lease of a free one, so any number of processes does the
work of all workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.core.gc.share import WORKERS_MAX
from nos_ec.engine.gc.run.note import RunState, read_run
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import Leases, Notes

LEASE_NAME = "gc"
"""The lease of worker 0. A worker runs only once in a store at a time, because two runs would rewrite the same
survivors."""
_LEASES = {worker: f"{LEASE_NAME}-{worker}" if worker else LEASE_NAME for worker in range(WORKERS_MAX)}


class WorkersMetadata(Leases, Notes, Protocol):
    """The parts of the metadata that show what the workers do."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker. `running`: whether a process holds its lease. `run`: its current or last run, or None."""

    worker: int
    running: bool
    run: RunState | None


def worker_lease(worker: int) -> str:
    """Return the name of the lease of a worker."""
    return _LEASES[worker]


def running_workers(leases: Leases, now_ms: int) -> frozenset[int]:
    """Return the workers whose leases are held. Raises Transient."""
    held = {one.name for one in leases.list_leases(LEASE_NAME) if waits(one.expires_ms, now_ms, LEASE_MS_MAX)}
    return frozenset(worker for worker, name in _LEASES.items() if name in held)


def read_workers(metadata: WorkersMetadata, workers: int, now_ms: int) -> list[WorkerState]:
    """Return the states of the workers 0 to `workers` - 1, and of others that run, because another process is
    configured with more of them. Raises Transient."""
    running = running_workers(metadata, now_ms)
    shown = max(workers, *(worker + 1 for worker in running), 1)
    return [WorkerState(worker, worker in running, read_run(metadata, worker)) for worker in range(shown)]


def newest_run(runs: Iterable[RunState | None]) -> RunState | None:
    """Return the run that was seen last, or None if there is none."""
    return max((run for run in runs if run is not None), key=lambda run: run.seen_ms, default=None)


def last_behind(notes: Notes, workers: int) -> str | None:
    """Return why the last runs of the workers did less than the policy requires: the newest reason, or None. Raises
    Transient."""
    runs = (read_run(notes, worker) for worker in range(workers))
    newest = newest_run(run for run in runs if run is not None and run.behind is not None)
    return None if newest is None else newest.behind
