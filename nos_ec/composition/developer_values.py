"""Constants that have one right value, but that tests shorten in the daemons they start (CONTRIBUTING.md)."""

from __future__ import annotations

import os


def _value(name: str, value: int) -> int:
    """Return the number in the environment variable `NOS_EC_DEV_<name>`, or `value` if it is not set."""
    return int(os.environ.get(f"NOS_EC_DEV_{name}", value))


STALL_MS = _value("STALL_MS", 120_000)
"""How long a loop may take for a turn until /livez fails and systemd's watchdog is no longer fed: longer than the time
limits of any server allow."""
FIGURES_MS = _value("FIGURES_MS", 15_000)
"""How long the figures of the whole store are cached: about as often as Prometheus scrapes. In a large store they are
computed less often, because computing them takes at most a twentieth of the time (docs/adr/0018)."""
HOUSEKEEPING_MS = _value("HOUSEKEEPING_MS", 5_000)
"""The longest wait between rounds of housekeeping in a daemon. Rounds find the leases of dead processes, so shorter
leases shorten it, too."""
PUBLISHED_OBJECTS = _value("PUBLISHED_OBJECTS", 1000)
"""The most rows that a producer scans, publishes and marks at a time: so many that their transactions cost little."""
