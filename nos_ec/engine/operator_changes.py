"""Changes that a named operator makes in the console. The audit trail records each of them before it is made, and a
change that it cannot record is not made.

A crash in between leaves an entry without a change, never a change without an entry.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nos_ec.core.errors import Conflict, NotFound, Transient
from nos_ec.core.formats.audit_trail import AuditEntry, AuditKind
from nos_ec.engine.gc.control import Control, GcControl
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.ports.audit_trail import AuditTrail
from nos_ec.ports.metadata import ObjectRow


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
                refusal = Conflict(
                    "nothing was changed, because somebody else has changed the commands to GC: now GC is"
                    f" {now.in_words}; open the page Space and GC again, and decide whether you still want your change"
                )
                raise self._refused(entry, refusal) if is_recorded else refusal
            self._record(entry)
            is_recorded = True
            return wanted

        return self._control.change(changed)

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
        except (NotFound, Conflict) as error:
            raise self._refused(entry, error) from error

    def _record(self, entry: AuditEntry) -> None:
        if not self._trail.record([entry]):
            raise Transient(
                "nothing was changed, because the audit trail cannot be written; the log of the console has the reason"
            )

    def _refused(self, entry: AuditEntry, error: NotFound | Conflict) -> NotFound | Conflict:
        """Record that a change was not made after all, and return why."""
        refused = AuditEntry(AuditKind.CHANGE_REFUSED, str(error), operator=entry.operator, object=entry.object)
        self._trail.record([refused])
        return error


def _times(row: ObjectRow) -> dict[str, Any]:
    return {"trashed_ms": row.trashed_ms, "trash_until_ms": row.trash_until_ms}
