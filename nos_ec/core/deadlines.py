"""How far ahead deadlines that are stored may lie. Settings have these as their upper limits.

A clock that jumped forward and back leaves deadlines that lie further ahead than anybody can have meant. The rule is
that of waits in memory (`nos_ec.ports.clock.waits`): a deadline further ahead than its maximum is over (docs/adr/0015).
"""

from __future__ import annotations

LEASE_MS_MAX = 3_600_000
"""An hour. A lease guards nothing by its time alone, because commits check its row (invariant 8): one that is fenced
too early costs its holder a restart. So a process whose clock is more than an hour behind disturbs others, no more."""

WAIT_MS_MAX = 31 * 86_400_000
"""31 days: due times of objects, deletions of landing copies, graces of blocks. None of them guards anything by its
time alone: what is published too early is packed too early, a PUT whose reservation is over is told so when it records
its copy, and a reader that finds a block gone looks its row up again."""
