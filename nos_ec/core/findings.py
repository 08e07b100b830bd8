"""The findings of a check of a store, and their texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class FindingKind(StrEnum):
    """The kinds of inconsistency. docs/CHECK.md has a line for each: its meaning and its repair."""

    BLOCK_WITHOUT_ROW = "block-without-row"
    """The block store has a block that the metadata does not know, and no object is in it."""
    BLOCK_ROW_MISSING = "block-row-missing"
    """Objects are in a block that has no row."""
    BLOCK_MISSING = "block-missing"
    """The metadata has a block that is not in the block store."""
    BLOCK_LENGTH = "block-length"
    """A block has fewer stripes than its row has, or is sealed and has more."""
    BLOCK_COUNTERS = "block-counters"
    """The counters of a block's row differ from the sums of headers and rows of objects."""
    BLOCK_WITHOUT_WRITER = "block-without-writer"
    """A block is open, but the lease of its writer is gone."""
    BLOCK_CONDEMNED = "block-condemned"
    """A block is about to be deleted, but objects are in it."""
    BLOCKS_SHORT = "blocks-short"
    """Blocks lack a shard."""
    FILES_UNUSABLE = "files-unusable"
    """Files of an embedded store belong to another user than their folder."""
    SHARD_DAMAGED = "shard-damaged"
    """A shard of a block exists, but its content is not what was written."""
    SHARDS_CONTRADICT = "shards-contradict"
    """Shards match their checksums, but not each other by the coding."""
    HEADER_DAMAGED = "header-damaged"
    """The header of a stripe group cannot be read."""
    NAMES_DAMAGED = "names-damaged"
    """The names of a stripe group cannot be read."""
    EXTENT_UNCONFIRMED = "extent-unconfirmed"
    """A row places an object where no header has it."""
    DATA_DAMAGED = "data-damaged"
    """The bytes of an object cannot be read, or do not match its CRC."""
    ROW_INVALID = "row-invalid"
    """The columns of an object's row contradict each other."""
    KEY_NOT_FOUND = "key-not-found"
    """An object has a row, but its key does not lead to it."""
    PARTS_WRONG = "parts-wrong"
    """The segments of a large object and its tail are not the whole object."""
    PARTS_WITHOUT_OBJECT = "parts-without-object"
    """There are segments of a large object that does not exist, or of an older version."""
    COMPOSITION_WRONG = "composition-wrong"
    """The parts that an object is composed of are not all there, or its upload is not completed."""
    UPLOAD_WITHOUT_OBJECT = "upload-without-object"
    """An upload is completed, but no object is composed of it."""
    VERSION_WITHOUT_OBJECT = "version-without-object"
    """A noncurrent version is listed, but its object is gone, or is not a noncurrent version."""
    PART_WITHOUT_UPLOAD = "part-without-upload"
    """There is a part of an upload that has no row."""
    TAIL_WITHOUT_BLOCK = "tail-without-block"
    """There is the tail of a large object whose last block has no row."""
    COPY_WITHOUT_OWNER = "copy-without-owner"
    """A landing copy that neither an object nor the deletion queue refers to."""
    COPY_MISSING = "copy-missing"
    """An object waits to be packed, but its landing copy is gone."""
    COPY_DAMAGED = "copy-damaged"
    """A landing copy does not match its object's row."""
    COPY_QUEUED = "copy-queued"
    """The deletion queue has a landing copy that an object needs."""
    NOT_WAITING = "not-waiting"
    """An object is in the landing store, but has no entry among the objects that wait to be packed."""
    WAITS_FOR_NOTHING = "waits-for-nothing"
    """An entry among the objects that wait to be packed names an object that does not wait, or another copy of it."""
    LANDING_SEGMENT_WITHOUT_ROW = "landing-segment-without-row"
    """The landing log has a landing segment that the metadata does not know."""
    LANDING_SEGMENT_MISSING = "landing-segment-missing"
    """The metadata has a landing segment with records that is not in the landing log."""
    LANDING_SEGMENT_WITHOUT_WRITER = "landing-segment-without-writer"
    """A landing segment is open, but the lease of its log is gone."""
    LANDING_SEGMENT_DOOMED = "landing-segment-doomed"
    """A landing segment is about to be released, but objects wait in it."""
    LANDING_SEGMENT_END = "landing-segment-end"
    """Objects wait in a landing segment, but after its end according to its row."""
    LANDING_SLOT_UNREADABLE = "landing-slot-unreadable"
    """A slot of a device of the landing log does not show which landing segment it belongs to."""


BEYOND_MENDING = "beyond_mending"
"""In the evidence of a damaged shard: more than m shards of a stripe are damaged, so it cannot be written again."""
_OLDER = (
    "If the metadata was restored from an older backup, it may hold objects that were put since: recover them as in"
    " docs/RUNBOOKS.md (Backup and restore) before you apply a plan"
)
REPAIRS: Mapping[FindingKind, str] = {
    FindingKind.BLOCK_WITHOUT_ROW: f"no row refers to it. {_OLDER}; otherwise --plan puts the block into quarantine",
    FindingKind.BLOCK_ROW_MISSING: "GET still reads the objects; restore the row from a backup, or put them again",
    FindingKind.BLOCK_MISSING: "if objects lie in it, they are lost: put them again or restore the block store",
    FindingKind.BLOCK_LENGTH: "data after its end is lost: put those objects again",
    FindingKind.BLOCK_COUNTERS: "no object is harmed, but GC decides by these counters: mend them with --plan,"
    " unless rows of objects were lost",
    FindingKind.BLOCK_WITHOUT_WRITER: "no object is harmed; no process seals this block",
    FindingKind.BLOCK_CONDEMNED: "stop GC at once, and put the objects again before the block is deleted",
    FindingKind.BLOCKS_SHORT: "mount the missing disk; if it was replaced with `nos-ec init --new-shard`, run"
    " `nos-ec shards rebuild`",
    FindingKind.FILES_UNUSABLE: "the services may be unable to use them: as root, give them the owner, group and"
    " mode of the other files there (chown, chmod)",
    FindingKind.SHARD_DAMAGED: "run `nos-ec scrub`, which writes the shard again. If it cannot, because more than m"
    " shards of a stripe are damaged, its --plan moves the objects that can be read to another block. If one shard has"
    " several damaged stripes, replace its disk",
    FindingKind.SHARDS_CONTRADICT: "its objects are moved to another block with --plan; report it: a disk has copies"
    " of older files, or this is a bug",
    FindingKind.HEADER_DAMAGED: "objects that can be read are moved to another block with --plan; put large ones again",
    FindingKind.NAMES_DAMAGED: "no object is harmed while the metadata is there: the objects are moved to another block"
    " with --plan; put large ones again",
    FindingKind.EXTENT_UNCONFIRMED: "read the object; if its checksum is wrong, put it again",
    FindingKind.DATA_DAMAGED: "put the object again",
    FindingKind.ROW_INVALID: "put the object again, or delete it",
    FindingKind.KEY_NOT_FOUND: "GET and LIST do not find the object: the index of keys in the database is damaged. Stop"
    " all processes and have the database build its indexes again (see docs/CHECK.md)",
    FindingKind.PARTS_WRONG: "put the object again",
    FindingKind.PARTS_WITHOUT_OBJECT: "no object is harmed; the segments' blocks are not collected",
    FindingKind.COMPOSITION_WRONG: "put the object again; if its upload is doomed, stop GC before it deletes the parts",
    FindingKind.UPLOAD_WITHOUT_OBJECT: "no object is harmed; nothing deletes its parts",
    FindingKind.VERSION_WITHOUT_OBJECT: "GET of this version fails; delete the version",
    FindingKind.PART_WITHOUT_UPLOAD: "no object is harmed; nothing deletes the part",
    FindingKind.TAIL_WITHOUT_BLOCK: "no object is harmed; nothing deletes the tail",
    FindingKind.COPY_WITHOUT_OWNER: f"no row refers to it. {_OLDER}; otherwise --plan puts the copy into quarantine",
    FindingKind.COPY_MISSING: "put the object again",
    FindingKind.COPY_DAMAGED: "put the object again",
    FindingKind.COPY_QUEUED: "no object is harmed: mend it with --plan",
    FindingKind.NOT_WAITING: "no producer publishes the object: mend it with --plan",
    FindingKind.WAITS_FOR_NOTHING: "no object is harmed; producers and consumers skip it; mend it with --plan",
    FindingKind.LANDING_SEGMENT_WITHOUT_ROW: "consumers and GC release an empty one on devices; on Ceph see"
    f" docs/LANDING_LOG.md (After a crash). {_OLDER}",
    FindingKind.LANDING_SEGMENT_MISSING: "connect its device; objects that wait in it are listed as copy-missing",
    FindingKind.LANDING_SEGMENT_WITHOUT_WRITER: "a consumer or GC run seals it within a minute or two",
    FindingKind.LANDING_SEGMENT_DOOMED: "stop consumers and GC at once, and put the objects again",
    FindingKind.LANDING_SEGMENT_END: "let consumers pack the objects, then check again",
    FindingKind.LANDING_SLOT_UNREADABLE: "its records are still read, and nothing is written to it. If a row proves"
    " which landing segment it holds, a consumer or GC run writes the header again within minutes, or --plan does."
    " Otherwise --plan frees the slot a day after the last PUT in it, unless a landing segment with a row cannot be"
    f" found elsewhere. {_OLDER}",
}
"""How each is repaired, or what happens until it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency. `what` names it for people, and stays the same whenever it is found again. `evidence` has the
    observed states, counters, CRCs and versions by name, as in JSON."""

    kind: FindingKind
    what: str
    evidence: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def repair(self) -> str:
        """Return how to repair it."""
        return REPAIRS[self.kind]

    def data(self) -> dict[str, object]:
        """Return the finding as in JSON."""
        return {"kind": self.kind.value, "what": self.what, "evidence": dict(self.evidence), "repair": self.repair}
