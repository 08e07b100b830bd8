"""The audit trail: who deleted or replaced which bytes, when and why (docs/adr/0025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nos_ec.core.formats.audit_trail import AuditEntry


class AuditTrail(Protocol):
    """An append-only record of deletions and of changes by operators. Safe to call from several threads and
    processes."""

    @property
    def failures(self) -> int:
        """Return how many calls could not write their entries. Any thread may read it."""

    def record(self, entries: Sequence[AuditEntry]) -> bool:
        """Add entries, and return whether they are durable. Call it before the bytes are deleted: a crash in between
        leaves an entry without a deletion, never a deletion without an entry.

        Never raises: entries that cannot be written are logged and counted. A caller that deletes continues, because
        freeing space must not depend on a disk that is full. A change by an operator is then not made.
        """


class NoTrail:
    """An audit trail that keeps nothing, for a store without one."""

    failures = 0

    def record(self, entries: Sequence[AuditEntry]) -> bool:
        """Record nothing, and return whether there was nothing to record."""
        return not entries


NO_TRAIL = NoTrail()
