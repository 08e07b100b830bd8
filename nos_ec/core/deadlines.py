"""The maximum distance of stored deadlines from now. These are also the upper limits of the settings.

A clock that jumped forward and back leaves deadlines further ahead than any setting allows. The rule is the same as for
waits in memory (`nos_ec.ports.clock.waits`): a deadline further ahead than its maximum counts as over (docs/adr/0015).
"""

from __future__ import annotations

LEASE_MS_MAX = 3_600_000
"""One hour. It limits leases, and the sessions of members of the embedded message log. Safety never depends on the time
of either alone, because commits check the row of the lease (invariant 8) or the owner of the partition: fencing a lease
too early only costs its holder a restart, and ending a session too early one more delivery. So a process whose clock is
more than an hour slow disturbs other processes, but damages nothing."""

WAIT_MS_MAX = 31 * 86_400_000
"""31 days. Limits the due times of objects, the deletion times of landing copies and of parts, and the grace periods of
blocks. Safety never depends on one of these times alone: an object published too early is packed too early, a PUT whose
reservation has expired fails when it records its copy, and a reader whose block or part is gone looks its row up again.
"""

PARTS_GRACE_MS = 600_000
"""Ten minutes. How long the parts of a deleted or overwritten object are kept for its readers. A slower reader finds a
part gone, and gets the error that the object has changed."""

QUARANTINE_MS = 86_400_000
"""A day. How long unreferenced data is kept before it is deleted. Only this time protects it: a clock that was set back
does not end it, but one that is a day fast does (docs/adr/0015)."""

EMPTY_COPY_MS = 7 * 86_400_000
"""7 days: how long the landing copy of an empty object is kept, from which a rebuild of lost metadata recovers the
object. That is long enough for any useful schedule of dumps; an object in a dump needs no copy."""
