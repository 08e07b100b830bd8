"""The metadata store, as a set of protocols: objects, the trash, versions, buckets, access keys, the directory of
cells, multipart uploads, writer leases, blocks, the deletion queue of landing copies, segments of the landing log,
pages of whole tables for checks, repairs of what the checks find, explanations of one object or block, the progress of
a scrub, notes about GC, the survival of objects, the times that end locks, and the rebuilding of lost rows.

Each protocol has a module of its own, with the records that it takes and returns. `Metadata` combines all of them and
adds the methods that concern the whole store. A caller asks only for the protocols that it needs.

Every method is one transaction: on return all of its changes are durable, or none was made. Every method may raise
Transient (lost connection, deadlock, lock wait). The outcome is then unknown, and calling it again with the same
arguments is safe, because every change is a compare-and-set or idempotent by its ids.

Invariants kept here (numbers of docs/INVARIANTS.md):
  2  a landing copy is doomed only through `doom_landing`, which checks the row it was verified for
  3  an extent is only written by `commit_group` and `record_large`, with the CRC of the row
  4  a block is condemned only when no row points into it
  5  a move that matches no row is counted as dead and is not an error
  6  live + dead + overhead = stripes x stripe_size after every method
  8  a commit checks the lease epoch and the block's state in its own transaction
"""

from __future__ import annotations

from nos_ec.ports.metadata.blocks import (
    BlockFigures,
    BlockRow,
    Blocks,
    GroupCommit,
    Move,
    Placed,
    SpaceUse,
    WaitingBlocks,
    WaitReason,
)
from nos_ec.ports.metadata.buckets import (
    ROOT_ACCOUNT,
    AccessKey,
    AccessKeys,
    AccessOf,
    BucketRecord,
    BucketRow,
    Buckets,
    BucketState,
    BucketUsage,
    CannedAcl,
    DocumentKind,
    KeyState,
    QuotaFacts,
    Rights,
    SizesPage,
    Sums,
    Usage,
)
from nos_ec.ports.metadata.directory import (
    ChangedName,
    CopiedVersion,
    Directory,
    DirectoryRow,
    MoveRow,
    Moves,
    MoveState,
)
from nos_ec.ports.metadata.explanations import BlockFacts, Explanations, ObjectFacts
from nos_ec.ports.metadata.inspection import Inspection, ObjectColumns, QueueEntry, WaitingRow
from nos_ec.ports.metadata.landing_queue import LandingDeletion, LandingQueue
from nos_ec.ports.metadata.landing_segments import LandedMove, LandingSegments, SegmentRow
from nos_ec.ports.metadata.leases import Lease, Leases
from nos_ec.ports.metadata.locks import Locks, LockTimes
from nos_ec.ports.metadata.notes import NOTE_CHARS_MAX, Notes
from nos_ec.ports.metadata.objects import (
    EntryPage,
    LockOf,
    NewLargeObject,
    NewObject,
    ObjectRow,
    Objects,
    ObjectSummary,
    PutRequest,
    RenameOf,
    Segment,
    TailOf,
    summary,
)
from nos_ec.ports.metadata.outbox import Outbox, OutboxEvent, OutboxOptions
from nos_ec.ports.metadata.rebuilding import Journal, PreparedRows, Rebuilding, Rebuilt, Replay
from nos_ec.ports.metadata.repairs import QUARANTINE, QUARANTINE_ENDED, Repairs
from nos_ec.ports.metadata.scrubbing import Scrubbing, ScrubPass, ScrubState
from nos_ec.ports.metadata.survival import LivingObject, Survival, SurvivalRow
from nos_ec.ports.metadata.trash import Trash, TrashMark, TrashPage, Undeleted
from nos_ec.ports.metadata.uploads import CompletionOf, PartOf, UploadRow, Uploads, UploadState, UploadStep
from nos_ec.ports.metadata.versions import (
    AddMarker,
    DeleteVersion,
    ExpireMarker,
    ExpireVersion,
    MarkerRow,
    VersionDeletion,
    VersionEntry,
    VersionPage,
    Versions,
)
from nos_ec.ports.metadata.whole_store import Metadata, StoredTotals, Totals

__all__ = [
    "NOTE_CHARS_MAX",
    "QUARANTINE",
    "QUARANTINE_ENDED",
    "ROOT_ACCOUNT",
    "AccessKey",
    "AccessKeys",
    "AccessOf",
    "AddMarker",
    "BlockFacts",
    "BlockFigures",
    "BlockRow",
    "Blocks",
    "BucketRecord",
    "BucketRow",
    "BucketState",
    "BucketUsage",
    "Buckets",
    "CannedAcl",
    "ChangedName",
    "CompletionOf",
    "CopiedVersion",
    "DeleteVersion",
    "Directory",
    "DirectoryRow",
    "DocumentKind",
    "EntryPage",
    "ExpireMarker",
    "ExpireVersion",
    "Explanations",
    "GroupCommit",
    "Inspection",
    "Journal",
    "KeyState",
    "LandedMove",
    "LandingDeletion",
    "LandingQueue",
    "LandingSegments",
    "Lease",
    "Leases",
    "LivingObject",
    "LockOf",
    "LockTimes",
    "Locks",
    "MarkerRow",
    "Metadata",
    "Move",
    "MoveRow",
    "MoveState",
    "Moves",
    "NewLargeObject",
    "NewObject",
    "ObjectColumns",
    "ObjectFacts",
    "ObjectRow",
    "ObjectSummary",
    "Notes",
    "Objects",
    "Outbox",
    "OutboxEvent",
    "OutboxOptions",
    "PartOf",
    "Placed",
    "PreparedRows",
    "PutRequest",
    "QueueEntry",
    "QuotaFacts",
    "Rebuilding",
    "Rebuilt",
    "RenameOf",
    "Repairs",
    "Replay",
    "Rights",
    "ScrubPass",
    "ScrubState",
    "Scrubbing",
    "Segment",
    "SegmentRow",
    "SizesPage",
    "SpaceUse",
    "StoredTotals",
    "Sums",
    "Survival",
    "SurvivalRow",
    "TailOf",
    "Totals",
    "Trash",
    "TrashMark",
    "TrashPage",
    "Undeleted",
    "UploadRow",
    "UploadState",
    "UploadStep",
    "Uploads",
    "Usage",
    "VersionDeletion",
    "VersionEntry",
    "VersionPage",
    "Versions",
    "WaitReason",
    "WaitingBlocks",
    "WaitingRow",
    "summary",
]
