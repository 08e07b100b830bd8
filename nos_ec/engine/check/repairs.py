"""Plans repairs of the problems that a check or a scrub found, and makes each one only if the problem still exists.

Each step is one transaction, or can be repeated as a whole. So a run that was killed can be repeated: it skips the
steps that the first run completed, because their problems no longer exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import InvalidInput, NotFound
from nos_ec.core.findings import BEYOND_MENDING, Finding, FindingKind
from nos_ec.core.formats.audit_trail import AuditEntry, AuditKind, CopyEntry
from nos_ec.core.formats.operator_plan import Action, Cost, Step
from nos_ec.core.gc.reclaim import account_block
from nos_ec.core.ids import BlockId, LandingId, SegmentId
from nos_ec.core.killpoints import kill_point
from nos_ec.core.states import BlockKind, BlockState
from nos_ec.engine.check.blocks import BlockCheck, ReadShare, counters_counted, counters_in_row
from nos_ec.engine.check.checker import Checked
from nos_ec.engine.check.copies import has_copy
from nos_ec.engine.header_scan import scan_headers
from nos_ec.engine.landing.landing_labels import labels_of
from nos_ec.engine.landing.unreadable_slots import may_be_freed, restore
from nos_ec.engine.objects.trash import TrashCan
from nos_ec.ports.audit_trail import NO_TRAIL, AuditTrail
from nos_ec.ports.clock import waits
from nos_ec.ports.segment_medium import UnreadableSlot

TRASH_LOOK_MS = 60_000


def copies_of(steps: Iterable[Step]) -> set[LandingId]:
    """Return the landing copies that these steps concern. Raises InvalidInput."""
    try:
        return {LandingId(bytes.fromhex(step.target["landing"])) for step in steps if "landing" in step.target}
    except ValueError as error:
        raise InvalidInput(f"a step of the plan cannot be understood: {error}") from error


class Mender(Protocol):
    """Mends damage in blocks. `what` is the name of the finding."""

    def finds(self, block_id: BlockId, kind: FindingKind, what: str) -> bool:
        """Return whether the damage still exists. Reads the whole block. Raises Transient, Corrupt."""

    def mend(self, block_id: BlockId, kind: FindingKind, what: str) -> bool:
        """Mend damage in place. Returns whether it existed and was mended. Raises Transient, Corrupt."""


Rewrite = Callable[[BlockId], bool]
"""Moves the live objects out of a block and condemns it. Returns whether it did. Raises Conflict while GC runs, Corrupt
if some objects cannot be read and stay, NoSpace, Transient."""

_REWRITTEN = (FindingKind.HEADER_DAMAGED, FindingKind.NAMES_DAMAGED, FindingKind.SHARDS_CONTRADICT)
"""Damage that leaves the objects readable, and that cannot be mended in the block itself."""


def planned(finding: Finding) -> Step | None:
    """Return the step that mends a finding; None if no safe step exists. For findings of a scrub, the steps mend damage
    that the scrub could mend itself, or rewrite a block.

    Block counters that count more objects than there are rows are left alone: rows may have been lost, and can still be
    restored while the bytes count as live. Blocks of large objects are left alone too, because they are never moved.
    """
    seen: Any = finding.evidence
    why = f"{finding.kind.value}: {finding.what}"
    match finding.kind:
        case FindingKind.BLOCK_COUNTERS if seen["counted"]["objects"] >= seen["row"]["objects"]:
            holds = {"row": seen["row"], "counted": seen["counted"]}
            return Step(Action.RECOUNT_BLOCK, {"block": seen["block"]}, why, dict(seen), holds)
        case FindingKind.BLOCK_WITHOUT_ROW:
            holds = {"stripes": seen["stripes"]}
            cost = Cost(free=seen["bytes"])
            return Step(Action.QUARANTINE_BLOCK, {"block": seen["block"]}, why, dict(seen), holds, cost)
        case FindingKind.COPY_WITHOUT_OWNER:
            size = seen["bytes"]
            cost = Cost(read=size, free=size)
            return Step(Action.QUARANTINE_COPY, {"landing": seen["landing"]}, why, dict(seen), {"bytes": size}, cost)
        case FindingKind.COPY_QUEUED if not seen["doomed"]:
            holds = {"object_id": seen["object_id"]}
            return Step(Action.UNQUEUE_COPY, {"landing": seen["landing"]}, why, dict(seen), holds)
        case FindingKind.NOT_WAITING:
            target = {"object_id": str(seen["object_id"]), "landing": seen["landing"]}
            return Step(Action.WAIT, target, why, dict(seen), {"version": seen["version"], "state": seen["state"]})
        case FindingKind.WAITS_FOR_NOTHING:
            holds = {"object_id": seen["object_id"], "state": seen["state"], "size": seen["size"]}
            return Step(Action.STOP_WAITING, {"landing": seen["landing"]}, why, dict(seen), holds)
        case FindingKind.LANDING_SLOT_UNREADABLE if seen["state"] is not None or seen["is_unused"]:
            action = Action.FREE_SLOT if seen["state"] is None else Action.RESTORE_SLOT
            target = {"device": str(seen["device"]), "slot": str(seen["slot"])}
            return Step(action, target, why, dict(seen), {"segment": seen["segment"]})
        case FindingKind.SHARD_DAMAGED if seen.get(BEYOND_MENDING):
            return _rewrite(finding, why)
        case FindingKind.SHARD_DAMAGED:
            size = seen["shard_bytes"]  # each shard is read twice, and the new one is read back
            cost = Cost(read=(2 * seen["shards"] + 1) * size, write=size)
            return _mend(finding, why, cost)
        case FindingKind.DATA_DAMAGED if "landing" in seen:
            return _mend(finding, why, Cost(read=2 * seen["length"]))
        case kind if kind in _REWRITTEN:
            return _rewrite(finding, why)
    return None


def _rewrite(finding: Finding, why: str) -> Step | None:
    """Return None for a block of a large object, and for a block that is not SEALED."""
    seen: Any = finding.evidence
    if seen["state"] != BlockState.SEALED.value or seen["kind"] == BlockKind.LARGE.value:
        return None
    cost = Cost(read=seen["bytes"] + seen["live"], write=seen["live"], free=seen["bytes"])
    target = {"block": seen["block"], "what": finding.what}
    return Step(Action.REWRITE_BLOCK, target, why, dict(seen), {"kind": finding.kind.value}, cost)


def _mend(finding: Finding, why: str, cost: Cost) -> Step:
    seen: Any = finding.evidence
    target = {"block": seen["block"], "what": finding.what}
    return Step(Action.MEND, target, why, dict(seen), {"kind": finding.kind.value}, cost)


class Repairer:
    """Makes the steps of a plan, one at a time. `copies` are the landing copies that its steps concern."""

    def __init__(
        self,
        checked: Checked,
        mender: Mender,
        rewrite: Rewrite,
        copies: Collection[LandingId] = (),
        trail: AuditTrail = NO_TRAIL,
    ) -> None:
        self._trail = trail
        self._metadata = checked.metadata
        self._stored_blocks = checked.blocks
        self._landing = checked.landing
        self._medium = checked.medium
        self._clock = checked.clock
        self._mender = mender
        self._rewrite = rewrite
        self._blocks = BlockCheck(checked.metadata, checked.blocks, ReadShare())
        self._copies = frozenset(copies)
        self._in_trash: frozenset[LandingId] = frozenset()
        self._looked_ms = 0

    def apply(self, step: Step) -> bool:
        """Make a step if its problem still exists. Returns whether it was made. Raises InvalidInput for a step that
        lacks a field; Transient, Corrupt, Conflict (a GC run is active) and NoSpace, after which other steps may
        succeed."""
        try:
            self._trail.record([_entry(AuditKind.REPAIR, step)])
            done = self._do(step)
            if not done:
                self._trail.record([_entry(AuditKind.REPAIR_PASSED_OVER, step)])
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"a step of the plan cannot be understood: {step.action.value} {step.target}") from error
        kill_point("repairs.step_done")
        return done

    def _do(self, step: Step) -> bool:
        match step.action:
            case Action.RECOUNT_BLOCK:
                return self._recount_block(BlockId(bytes.fromhex(step.target["block"])), step.holds)
            case Action.QUARANTINE_BLOCK:
                return self._quarantine_block(BlockId(bytes.fromhex(step.target["block"])), step.holds)
            case Action.QUARANTINE_COPY:
                return self._quarantine_copy(LandingId(bytes.fromhex(step.target["landing"])), step.holds)
            case Action.UNQUEUE_COPY:
                return self._unqueue_copy(LandingId(bytes.fromhex(step.target["landing"])), step.holds)
            case Action.WAIT:
                return self._enter_waiting(step)
            case Action.STOP_WAITING:
                return self._stop_waiting(LandingId(bytes.fromhex(step.target["landing"])), step.holds)
            case Action.RESTORE_SLOT | Action.FREE_SLOT:
                return self._settle_slot(step)
            case Action.MEND:
                return self._mender.mend(*_damage(step))
            case Action.REWRITE_BLOCK:
                block_id, kind, what = _damage(step)
                return self._mender.finds(block_id, kind, what) and self._rewrite(block_id)

    def _settle_slot(self, step: Step) -> bool:
        segment = step.holds["segment"]
        device, number = int(step.target["device"]), int(step.target["slot"])
        slot = UnreadableSlot(device, number, None if segment is None else SegmentId(bytes.fromhex(segment)))
        if self._medium is None:
            return False
        if step.action is Action.RESTORE_SLOT:
            return restore(self._metadata, self._medium, slot)
        now_ms = self._clock.now_ms()
        return may_be_freed(self._metadata, self._medium, slot, now_ms) and self._medium.settle_slot(slot, None)

    def _recount_block(self, block_id: BlockId, holds: dict[str, Any]) -> bool:
        row = self._blocks.row(block_id)
        if row is None or counters_in_row(row) != holds["row"]:
            return False
        account = self._blocks.account(row)
        if account is None or counters_counted(account) != holds["counted"]:
            return False
        return self._metadata.recount_block(row, account)

    def _quarantine_block(self, block_id: BlockId, holds: dict[str, Any]) -> bool:
        """Quarantine a block: all its bytes count as dead, and GC deletes it when it is due."""
        blocks = self._stored_blocks
        try:
            if blocks.stripes(block_id) != holds["stripes"]:
                return False
            scan = scan_headers(blocks, block_id, holds["stripes"])
        except NotFound:
            return False
        account = account_block(blocks.geometry, holds["stripes"], scan.headers, scan.stripes_outside_groups, [])
        now_ms = self._clock.now_ms()
        return self._metadata.quarantine_block(block_id, holds["stripes"], account, now_ms, now_ms + QUARANTINE_MS)

    def _quarantine_copy(self, copy: LandingId, holds: dict[str, Any]) -> bool:
        """Quarantine a landing copy: the reaper deletes it when it is due, unless an object has claimed it."""
        try:
            if len(self._landing.read(copy)) != holds["bytes"] or self._owned(copy):
                return False
        except NotFound:
            return False
        return self._metadata.quarantine_copy(copy, self._clock.now_ms() + QUARANTINE_MS)

    def _owned(self, copy: LandingId) -> bool:
        """Return whether the object that the label names has this copy, even if it is not among the waiting objects."""
        label = labels_of(self._landing, [copy]).get(copy)
        if label is None:
            return False
        # The second look-up is needed because the object may have been undeleted while the trash was searched.
        metadata = self._metadata
        return has_copy(metadata, label, copy) or self._is_in_trash(copy) or has_copy(metadata, label, copy)

    def _is_in_trash(self, copy: LandingId) -> bool:
        """Return whether a version in the trash has this copy. Searches the whole trash for all copies of the plan,
        unless that was done less than TRASH_LOOK_MS ago."""
        now_ms = self._clock.now_ms()
        if not waits(self._looked_ms + TRASH_LOOK_MS, now_ms, TRASH_LOOK_MS):
            rows = (row for page in TrashCan(self._metadata, self._clock).pages() for row in page)
            self._in_trash = self._copies.intersection(row.landing_id for row in rows)
            self._looked_ms = self._clock.now_ms()
        return copy in self._in_trash

    def _unqueue_copy(self, copy: LandingId, holds: dict[str, Any]) -> bool:
        one = self._metadata.waiting_with([copy]).get(copy)
        return one is not None and one.object_id == holds["object_id"] and self._metadata.unqueue_copy(copy)

    def _enter_waiting(self, step: Step) -> bool:
        object_id = int(step.target["object_id"])
        row = self._metadata.objects_with([object_id]).get(object_id)
        if row is None or row.landing_id is None or row.landing_id.hex() != step.target["landing"]:
            return False
        if (row.version, row.state.value) != (step.holds["version"], step.holds["state"]):
            return False
        return self._metadata.wait_again(row, self._clock.now_ms())

    def _stop_waiting(self, copy: LandingId, holds: dict[str, Any]) -> bool:
        one = self._metadata.waiting_with([copy]).get(copy)
        wanted = (holds["object_id"], holds["state"], holds["size"])
        if one is None or (one.object_id, one.state.value, one.size) != wanted:
            return False
        return self._metadata.stop_waiting(copy, self._clock.now_ms())


def _damage(step: Step) -> tuple[BlockId, FindingKind, str]:
    return BlockId(bytes.fromhex(step.target["block"])), FindingKind(step.holds["kind"]), step.target["what"]


def _entry(kind: AuditKind, step: Step) -> AuditEntry:
    target = step.target
    copies = (CopyEntry(target["landing"]),) if "landing" in target else ()
    seen = {"action": step.action.value, "target": dict(target), "holds": dict(step.holds)}
    return AuditEntry(kind, step.why, block=target.get("block"), copies=copies, seen=seen)
