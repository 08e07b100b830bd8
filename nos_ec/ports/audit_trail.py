"""The audit trail: who deleted or replaced which bytes, when and why (docs/adr/0025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nos_ec.core.formats.audit_trail import AuditEntry


class AuditTrail(Protocol):
    """Entries are only ever added. Safe to call from several threads and processes."""

    @property
    def failures(self) -> int:
        """How many calls could not write their entries. Any thread may read it."""
        ...

    def record(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries, durably on return. Call it before the bytes go: a crash in between leaves an entry without a
        deletion, never a deletion without an entry.

        Never raises: entries that cannot be written are logged and counted, and the caller goes on. What frees space
        must not wait for a full disk.
        """
        ...


class NoTrail:
    """Keeps nothing: for a store without an audit trail."""

    failures = 0

    def record(self, entries: Sequence[AuditEntry]) -> None:
        """Do nothing."""


NO_TRAIL = NoTrail()
