"""The medium of the landing log on a replicated Ceph pool: one RADOS object per segment.

    object                   xattr          content
    log.<segment id, hex>    nos_ec.log     the segment header, padded; the batches; the footer, if there is one
                             "open" until the segment is sealed, then "sealed OFFSET RECORDS": the batches end at
                             OFFSET, where the footer begins, and hold RECORDS records. "sealed 0 0" without content:
                             the segment was sealed before its first append

To an OSD, creating or sealing an object costs what an append costs. So the first append creates the object, with the
header, and the last one can seal it.

Invariants kept here:
  a  Each append is one RADOS transaction. The first one creates the object, and fails if it exists. Each further one
     checks that the object still has the version of its writer's last write. A seal raises the version like every other
     change. So if an append and a seal compete, one wins and the other writes nothing, no matter which processes they
     come from and how late one of them arrives.
  b  Sealing an absent object creates it, sealed and empty, so that (a) holds for the first append as well. A further
     append never creates an object, because an absent object has no version. So if a writer wakes up after its segment
     was released, only a first append can succeed: see nos_ec.engine.landing.landing_log (8), which then removes the
     object.
  c  "sealed" is never undone.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Self

from nos_ec.adapters.rados.client import pool as steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.pool import Step
from nos_ec.adapters.rados.landing_pool import LandingPool
from nos_ec.adapters.rados.pool_checks import check_write_limits
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import SegmentHeader, encode_segment_header
from nos_ec.core.ids import SegmentId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.segment_medium import Buffer, DeviceStates, MediumLimits, Seal, UnreadableSlot

STATE = "nos_ec.log"
ALIGN = 4096
"""BlueStore's allocation unit: an append that begins on a multiple of it never makes an OSD read and rewrite the end of
the previous one."""
LIMITS = MediumLimits(
    segment_bytes=16 << 20,
    start=ALIGN,
    align=ALIGN,
    batch_bytes_max=4 << 20,
    batch_records_max=64,
    writes_max=1,
    ends_in_appends=True,
)
SEAL_TRIES = 1 + (LIMITS.segment_bytes - LIMITS.start) // ALIGN
"""A segment can grow at most one time less than this while it is being sealed."""

_CHANGED = frozenset({errno.ERANGE, errno.EOVERFLOW, errno.EEXIST})
"""Error codes of a transaction that expects another version than the object has, or expects no object."""
_STATE_VALUE = re.compile(rb"open|sealed (0|[1-9][0-9]{0,9}) (0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class SealState:
    """The state of a segment, as its xattr `nos_ec.log` records it. `end` is the offset in bytes at which its batches
    end; None while it is open."""

    end: int | None
    records: int = 0

    def encode(self) -> bytes:
        """Return the value of the xattr."""
        return b"open" if self.end is None else b"sealed %d %d" % (self.end, self.records)

    @classmethod
    def decode(cls, segment: SegmentId, value: bytes) -> Self:
        """Decode a value of the xattr. Raises Corrupt for anything that `encode` does not produce."""
        match = _STATE_VALUE.fullmatch(value)
        if match is None:
            raise Corrupt(
                f"landing segment {segment.hex()}: xattr {STATE} is {value[:40]!r}: it was not written by this program"
            )
        return cls(None) if match[1] is None else cls(int(match[1]), int(match[2]))


_ABSENT = 0
"""The version of an object before its first append. Ceph counts from 1."""


class _Tail:
    """The end of the batches of a segment that this process writes, and the version that its object had then. The first
    append writes `header` before its batch.

    A caller that changes the object takes the version and puts the new one back, so that a failed change leaves none
    behind.
    """

    def __init__(self, header: bytes) -> None:
        self._lock = threading.Lock()
        self.changing = threading.Lock()
        """Held while appending or overwriting, because each needs the version that the other one leaves."""
        self.header = header
        self.end = LIMITS.start
        self._version: int | None = _ABSENT
        self.is_unbegun = False
        """True if it is certain that the object does not exist: the OSDs refused the first append, or it will never be
        made."""

    def take_version(self) -> int | None:
        """Return the version, if it is known, and forget it."""
        with self._lock:
            version, self._version = self._version, None
            return version

    def put_version(self, end: int, version: int) -> None:
        """Remember the end and version after a batch that is durable."""
        with self._lock:
            self.end, self._version = end, version


class RadosSegmentLog(LandingPool):
    """A `SegmentMedium` on a landing pool (see nos_ec.ports.segment_medium for the contract).

    It shares pool and namespace with the landing store, which initialises them. Opening raises Transient, or
    ConfigError when the pool is missing, does not fit or was not initialised. `store_id` is the id of the metadata in
    16 bytes; each segment records it. Closing leaves the cluster connected.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, store_id: bytes, namespace: str = "") -> None:
        super().__init__(cluster, pool_name, namespace, "segment", LIMITS.segment_bytes)
        self._store_id = store_id
        self._tails: dict[SegmentId, _Tail] = {}
        """The tails of the segments that this process writes, until they are sealed or released. Tails of segments that
        were sealed before they began (there are few) are kept until the process ends."""

    @staticmethod
    def check_write_limits(cluster: RadosCluster) -> None:
        """Raise ConfigError unless the OSDs accept segments of this size, Transient. Processes that write segments call
        this."""
        # A segment has room for its footer, and neither the footer nor a batch is larger than the segment.
        check_write_limits(cluster, object_bytes=LIMITS.segment_bytes, write_bytes=LIMITS.segment_bytes)

    @property
    def limits(self) -> MediumLimits:
        """Return the same limits for every pool."""
        return LIMITS

    # --- writing --------------------------------------------------------------------------------------

    def create(self, segment: SegmentId, epoch: int, first_lsn: int) -> RadosSegmentWriter:
        """Begin a segment. No object exists for it before its first append."""
        header = encode_segment_header(
            SegmentHeader(
                segment=segment,
                slot=0,
                epoch=epoch,
                first_lsn=first_lsn,
                segment_bytes=LIMITS.segment_bytes,
                store_id=self._store_id,
            )
        )
        tail = self._tails[segment] = _Tail(header.ljust(LIMITS.start, b"\0"))
        return RadosSegmentWriter(self, segment, tail)

    def append(
        self, segment: SegmentId, tail: _Tail, offset: int, batch: Sequence[Buffer], seal: Seal | None = None
    ) -> None:
        """Append a batch as `SegmentWriter.append` (invariants a and b)."""
        size = sum(map(len, batch))
        end = offset + size
        if not size or size % ALIGN or offset != tail.end or end > LIMITS.segment_bytes:
            raise ValueError(
                f"{size} bytes at {offset} of segment {segment.hex()}: a batch is pages of {ALIGN} bytes, begins"
                f" at {tail.end} and ends by {LIMITS.segment_bytes}"
            )
        with tail.changing:
            self._append(segment, tail, batch, end, seal)

    def _append(self, segment: SegmentId, tail: _Tail, batch: Sequence[Buffer], end: int, seal: Seal | None) -> None:
        version = tail.take_version()
        if version is None:
            raise Conflict(
                f"landing segment {segment.hex()} is sealed, or the outcome of an append is unknown: seal it"
            )
        first = version == _ABSENT
        # librados copies what it is given, so the parts are joined here only once.
        data = b"".join((tail.header if first else b"", *batch, *(seal.footer if seal else ())))
        change = [steps.append(data)]
        if first or seal is not None:
            state = SealState(None) if seal is None else SealState(end, seal.records)
            change.append(steps.set_xattr(STATE, state.encode()))
        try:
            changed = self._try_change(segment, version, *change, size_bytes=len(data))
        except (NoSpace, ConfigError):
            tail.is_unbegun = first
            raise
        if changed is None:
            raise Conflict(f"landing segment {segment.hex()} was sealed or released by another process")
        if seal is None:
            tail.put_version(end, changed)
        else:
            tail.end = end
            self._tails.pop(segment, None)

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """Set the xattr to "sealed OFFSET RECORDS", with the footer in the same transaction if there is one.

        The footer is left out when the pool is full, and when the object is longer than this process knows: then an
        append whose outcome was unknown turns out to have been done. If the object does not exist, it is created sealed
        and empty (invariant b), unless its writer is in this process, and has created no object and now cannot. Raises
        Corrupt for an object that was not created as a segment.
        """
        try:
            return self._seal(segment, footer, records)
        except NoSpace:
            return self._seal(segment, None, records)

    def _seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        # 1. This process writes the segment and has never begun it: there is no object to seal.
        tail = self._tails.get(segment)
        version = tail.take_version() if tail is not None else None
        if tail is not None and (version == _ABSENT or tail.is_unbegun):
            tail.is_unbegun, tail.header = True, b""  # kept, so that another attempt needs no object either
            return 0
        # 2. This process knows the end of the segment: no look-up is needed unless another process has changed it.
        if tail is not None and version is not None and self._try_seal(segment, version, tail.end, footer, records):
            return tail.end
        # 3. Look the end up, and seal at the version that was found, until no append comes in between.
        for _ in range(SEAL_TRIES):
            try:
                state, version = self._look_up(segment)
                # An append after the look-up changes the version, so this is the size at that version, or the seal
                # fails.
                with self._objects.translated(segment):
                    end = self._pool.size_of(self._objects.name_of(segment)) if state.end is None else state.end
            except NotFound:
                if tail is not None and tail.end > LIMITS.start:
                    self._tails.pop(segment, None)
                    raise  # it has existed, so its writer will not begin it again
                state, version, end = SealState(None), _ABSENT, 0
            if state.end is not None:
                self._tails.pop(segment, None)
                return state.end
            known = tail is not None and tail.end == end
            if self._try_seal(segment, version, end, footer if known else None, records):
                return end
        raise Transient(f"landing segment {segment.hex()} keeps changing; try again")

    def _try_seal(
        self, segment: SegmentId, version: int, end: int, footer: Sequence[Buffer] | None, records: int
    ) -> bool:
        """Seal a segment unless it was changed since it had this version. Returns whether it was sealed."""
        data = b"".join(footer or ())
        content = [steps.append(data)] if data else []
        state = steps.set_xattr(STATE, SealState(end, records if end else 0).encode())
        if self._try_change(segment, version, *content, state, size_bytes=len(data)) is None:
            return False
        self._tails.pop(segment, None)
        return True

    def _try_change(self, segment: SegmentId, version: int, *change: Step, size_bytes: int) -> int | None:
        """Make a change unless the segment was changed or released since it had this version, or begun since it was
        absent (invariants a and b). Returns the new version, or None if the change was not made. Raises NoSpace,
        Transient."""
        first = version == _ABSENT
        condition = steps.must_be_new() if first else steps.must_have_version(version)
        with self._objects.translated(segment):
            try:
                return self._write(segment, condition, *change, size_bytes=size_bytes, objects=int(first))
            except OSError as error:
                if error.errno not in _CHANGED:
                    raise
        return None

    def _look_up(self, segment: SegmentId) -> tuple[SealState, int]:
        """Return the state of a segment, and the version of its object in that state. Raises NotFound, Corrupt,
        Transient."""
        with self._objects.translated(segment):
            xattrs, version = self._pool.xattrs(self._objects.name_of(segment))
        return SealState.decode(segment, xattrs.get(STATE, b"")), version

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """Change the object if it still has the version at which the old bytes were read (invariant a). If this process
        writes the segment, its next append then expects the new version."""
        tail = self._tails.get(segment)
        with nullcontext() if tail is None else tail.changing:
            version = known = None if tail is None else tail.take_version()
            for _ in range(SEAL_TRIES):
                if version is None:
                    _, version = self._look_up(segment)
                with self._objects.translated(segment):
                    found = self._pool.read(self._objects.name_of(segment), offset, len(new))
                changed: int | None = version
                if found == expected:
                    changed = self._try_change(segment, version, steps.write(new, offset), size_bytes=0)
                if changed is not None:
                    if tail is not None and version == known:
                        tail.put_version(tail.end, changed)
                    return
                version = None
        raise Transient(f"landing segment {segment.hex()} keeps changing; try again")

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """Remove the objects, several at a time. Raises ConfigError when the user lacks the caps or the pool is
        gone."""
        for segment in segments:
            self._tails.pop(segment, None)
        failed = self._objects.delete_many(segments, beat)
        return {SegmentId(segment): reason for segment, reason in failed.items()}

    # --- reading --------------------------------------------------------------------------------------

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:  # noqa: ARG002
        """Read ranges, one operation each; nos_ec.adapters.rados.client.pool limits the operations in flight. The OSDs
        choose the copy, verify it against BlueStore's checksums and repair it from another copy."""
        with self._objects.translated(segment):
            return self._pool.read_many(self._objects.name_of(segment), ranges)

    def devices(self) -> DeviceStates | None:
        """Return None, because Ceph takes care of its OSDs."""
        return None

    def settle_slot(self, _found: UnreadableSlot, _epoch: int | None) -> bool:
        """Return False, because objects have no slots."""
        return False

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:  # noqa: ARG002
        """Yields every segment. Other objects of the pool are skipped."""
        return map(SegmentId, self._objects.all_ids())


class RadosSegmentWriter:
    """A `SegmentWriter` that accepts one append at a time."""

    def __init__(self, medium: RadosSegmentLog, segment: SegmentId, tail: _Tail) -> None:
        self._medium = medium
        self._segment = segment
        self._tail = tail

    def append(self, offset: int, batch: Sequence[Buffer], seal: Seal | None = None) -> None:
        """Append a batch in one transaction. After any error, further appends raise Conflict."""
        self._medium.append(self._segment, self._tail, offset, batch, seal)

    def close(self) -> None:
        """Do nothing: there is nothing to release, and the segment can still be sealed."""
