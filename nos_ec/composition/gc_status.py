"""The state of GC as JSON values, for `gc status` and the console."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import LEASE_MS_MAX
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.gc.options import LEASE_NAME
from nos_ec.engine.gc.run_note import read_run
from nos_ec.ports.clock import waits


def gc_status_data(system: System) -> dict[str, Any]:
    """Return the data that `gc status` prints. Sizes are in bytes, times in milliseconds of Unix time.

    `running` is whether a process holds the lease of GC. `run` is the last run, null if there was none. Its bytes_left
    and left_ms estimate the remaining work; left_ms is null while the rate is 0. A run that is not running and has no
    ended_ms was killed.
    """
    now_ms = system.clock.now_ms()
    leases = system.metadata.list_leases(LEASE_NAME)
    running = any(one.name == LEASE_NAME and waits(one.expires_ms, now_ms, LEASE_MS_MAX) for one in leases)
    run, control = read_run(system.metadata), GcControl(system.metadata).read()
    return {
        "running": running,
        "paused": control.paused,
        **gc_limits(system, control),
        "run": None if run is None else asdict(run) | {"bytes_left": run.bytes_left, "left_ms": run.left_ms},
    }


def gc_limits(system: System, control: Control) -> dict[str, int | bool]:
    """Return the limits in force (0 means no limit), and whether they come from the settings."""
    gc = system.settings.gc
    return {
        "bytes_per_s": gc.bytes_per_s if control.bytes_per_s is None else control.bytes_per_s,
        "operations_per_s": gc.operations_per_s if control.operations_per_s is None else control.operations_per_s,
        "limits_of_settings": control.bytes_per_s is None and control.operations_per_s is None,
    }
