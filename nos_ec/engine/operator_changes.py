"""Changes that a named operator makes in the console. The audit trail records each of them before it is made, and a
change that it cannot record is not made.

A change that fails after its entry gets a second entry that says so. A crash in between leaves an entry without a
change, never a change without an entry.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import structlog

from nos_ec.core.errors import Conflict, NosError, Transient
from nos_ec.core.formats.audit_trail import AuditEntry, AuditKind
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.metadata import ObjectRow

_log = structlog.get_logger(__name__)


class OperatorChanges:
    """Makes the changes. Safe to call from several threads and processes."""

    def __init__(self, control: GcControl, trash: TrashCan, trail: AuditTrail) -> None:
        self._control = control
        self._trash = trash
        self._trail = trail

    def control_gc(self, operator: str, seen: Control, wanted: Control) -> Control:
        """Replace the commands to GC that the operator has seen, and return the new ones. Raises Conflict, with the
        commands in force, if they are not those any more, and Transient."""
        entry = AuditEntry(
            AuditKind.CHANGE,
            f"GC is {wanted.in_words}; before, it was {seen.in_words}",
            operator=operator,
            seen={"before": asdict(seen), "after": asdict(wanted)},
        )
        is_recorded = False

        def changed(now: Control) -> Control:
            nonlocal is_recorded
            if now != seen:
                raise Conflict(
                    "nothing was changed, because somebody else has changed the commands to GC: now GC is"
                    f" {now.in_words}; open the page Space and GC again, and decide whether you still want your change"
                )
            if not is_recorded:
                self._record(entry)
            is_recorded = True
            return wanted

        try:
            return self._control.change(changed)
        except NosError as error:
            if is_recorded:
                self._failed(entry, error)
            raise

    def undelete(self, operator: str, row: ObjectRow) -> ObjectRow:
        """Make a version in the trash current again, as TrashCan.undelete does. Raises NotFound, Conflict and
        Transient."""
        entry = AuditEntry(
            AuditKind.CHANGE,
            "the object is brought back from the trash",
            operator=operator,
            object=str(row.key),
            seen={"object_id": row.object_id, "version": row.version, **_times(row)},
        )
        self._record(entry)
        try:
            return self._trash.undelete(row)
        except NosError as error:
            self._failed(entry, error)
            raise

    def _record(self, entry: AuditEntry) -> None:
        if not self._trail.record([entry]):
            raise Transient(
                "nothing was changed, because the audit trail cannot be written; the log of the console has the reason"
            )

    def _failed(self, entry: AuditEntry, error: NosError) -> None:
        """Record that a change was not made after all, or that nobody knows whether it was."""
        why = f"it may have been made or not: {error}" if isinstance(error, Transient) else str(error)
        refused = AuditEntry(AuditKind.CHANGE_REFUSED, why, operator=entry.operator, object=entry.object)
        if not self._trail.record([refused]):
            _log.error("the audit trail has a change that was not made", operator=entry.operator, error=str(error))


def _times(row: ObjectRow) -> dict[str, Any]:
    return {"trashed_ms": row.trashed_ms, "trash_until_ms": row.trash_until_ms}
