"""The state of GC as JSON values, for `gc status` and the console."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nos_ec.composition.wiring import System
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.gc.run.note import RunState
from nos_ec.engine.gc.workers import newest_run, read_workers


def gc_status_data(system: System) -> dict[str, Any]:
    """Return the data that `gc status` prints. Sizes are in bytes, times in milliseconds of Unix time.

    `running` is whether a process holds the lease of a worker. `run` is the run that was seen last, null if there was
    none. Its bytes_left and left_ms estimate the remaining work; left_ms is null while the rate is 0. `workers` has the
    same of each worker. A run that is not running and has no ended_ms was killed.
    """
    workers = read_workers(system.metadata, system.settings.gc.workers, system.clock.now_ms())
    control = GcControl(system.metadata).read()
    return {
        "running": any(one.running for one in workers),
        "paused": control.paused,
        **gc_limits(system, control),
        "run": _run_data(newest_run(one.run for one in workers)),
        "workers": [{"worker": one.worker, "running": one.running, "run": _run_data(one.run)} for one in workers],
    }


def _run_data(run: RunState | None) -> dict[str, Any] | None:
    return None if run is None else asdict(run) | {"bytes_left": run.bytes_left, "left_ms": run.left_ms}


def gc_limits(system: System, control: Control) -> dict[str, int | bool]:
    """Return the limits in force (0 means no limit), and whether they come from the settings."""
    gc = system.settings.gc
    return {
        "bytes_per_s": gc.bytes_per_s if control.bytes_per_s is None else control.bytes_per_s,
        "operations_per_s": gc.operations_per_s if control.operations_per_s is None else control.operations_per_s,
        "limits_of_settings": control.bytes_per_s is None and control.operations_per_s is None,
    }
