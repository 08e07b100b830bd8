"""The medium of the landing log on a replicated Ceph pool: one RADOS object per segment.

    object                   xattr          content
    log.<segment id, hex>    nos_ec.log     the segment header, padded; the batches; the footer, if there is one
                             "open" until the segment is sealed, then "sealed OFFSET RECORDS": the batches end at
                             OFFSET, where the footer begins, and hold RECORDS records. "sealed 0 0" without content:
                             the segment was sealed before its first append

Creating or sealing an object costs an OSD as much as an append does. So neither is an operation of its own where that
can be avoided: the first append creates the object, with the header, and the last append can seal it.

Invariants kept here:
  a  Each append is one RADOS transaction. The first one creates the object, and fails if it exists. Each further one
     checks that the object still has the version of its writer's last write. A seal raises the version like every other
     change. So if an append and a seal compete, one wins and the other writes nothing, no matter which processes they
     come from and how late one of them arrives.
  b  Sealing an absent object creates it, sealed and empty, so that (a) holds for the first append as well. Later
     appends never create an object, because an absent object has no version. So if a writer was suspended until its
     segment was released, it can create an object only by a first append: nos_ec.engine.landing.landing_log (8) removes
     such an object.
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

from nos_ec.adapters.rados.client import steps
from nos_ec.adapters.rados.client.cluster import RadosCluster
from nos_ec.adapters.rados.client.steps import Step
from nos_ec.adapters.rados.landing_pool import LandingPool
from nos_ec.adapters.rados.pool_checks import check_write_limits
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NoSpace, NotFound, Transient
from nos_ec.core.formats.landing_format import SegmentHeader, encode_segment_header
from nos_ec.core.ids import SegmentId
from nos_ec.ports.clock import Beat, unwatched
from nos_ec.ports.segment_medium import Buffer, DeviceStates, MediumLimits, Seal, UnreadableSlot

STATE_XATTR = "nos_ec.log"
ALIGN = 4096
"""BlueStore's allocation unit. For an append that begins at a multiple of it, an OSD need not read and rewrite the end
of the previous append."""
LIMITS = MediumLimits(
    segment_bytes=16 << 20,
    start=ALIGN,
    align=ALIGN,
    batch_bytes_max=4 << 20,
    batch_records_max=64,
    writes_max=1,
    appends_create_and_seal=True,
)
SEAL_TRIES = 1 + (LIMITS.segment_bytes - LIMITS.start) // ALIGN
"""How often to try to change a segment that other appends keep changing. Each of them adds at least ALIGN bytes,
so a segment is full before the last try fails for this reason."""

_VERSION_MISMATCH = frozenset({errno.ERANGE, errno.EOVERFLOW, errno.EEXIST})
"""Error codes of a transaction whose expected version is not the object's version, or that expects no object."""
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
                f"landing segment {segment.hex()}: xattr {STATE_XATTR} is {value[:40]!r}: it was not written by this"
                " program"
            )
        return cls(None) if match[1] is None else cls(int(match[1]), int(match[2]))


_ABSENT = 0
"""The version of an object before its first append. Ceph counts from 1."""


class _Tail:
    """Where the batches of a segment that this process writes end, and the version of its object at that end. The first
    append writes `header` before its batch.

    A caller that is about to change the object takes the version out, and puts the new one in afterwards. So after a
    failed change, whose outcome may be unknown, no version is known.
    """

    def __init__(self, header: bytes) -> None:
        self._lock = threading.Lock()
        self.change_lock = threading.Lock()
        """Held during an append or overwrite, because each needs the version that the previous one made."""
        self.header = header
        self.end = LIMITS.start
        self._version: int | None = _ABSENT
        self.is_never_created = False
        """Whether it is certain that the object does not exist and never will: the OSDs refused the first append, or
        the segment was sealed here before it."""

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

    It uses the pool and namespace of the landing store, which initialises them. Opening raises Transient, or
    ConfigError when the pool is missing, does not fit or was not initialised. `store_id` is the id of the metadata, 16
    bytes, which each segment's header records. Closing leaves the cluster connected.
    """

    def __init__(self, cluster: RadosCluster, pool_name: str, store_id: bytes, namespace: str = "") -> None:
        super().__init__(cluster, pool_name, namespace, "segment", LIMITS.segment_bytes)
        self._store_id = store_id
        self._tails: dict[SegmentId, _Tail] = {}
        """The tails of the segments that this process writes, until they are sealed or released. Tails of segments that
        were sealed before their first append (there are few) are kept until the process ends."""

    @staticmethod
    def check_write_limits(cluster: RadosCluster) -> None:
        """Raise ConfigError if the OSDs do not accept objects or writes as large as a segment. Raises Transient.
        Processes that write segments call this."""
        # A write is at most a whole segment: a batch with header and footer.
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
        """Append a batch, as `SegmentWriter.append` describes (invariants a and b)."""
        size = sum(map(len, batch))
        end = offset + size
        if not size or size % ALIGN or offset != tail.end or end > LIMITS.segment_bytes:
            raise ValueError(
                f"{size} bytes at {offset} of segment {segment.hex()}: a batch must be a multiple of {ALIGN} bytes,"
                f" begin at {tail.end} and end by {LIMITS.segment_bytes}"
            )
        with tail.change_lock:
            self._append(segment, tail, batch, end, seal)

    def _append(self, segment: SegmentId, tail: _Tail, batch: Sequence[Buffer], end: int, seal: Seal | None) -> None:
        version = tail.take_version()
        if version is None:
            raise Conflict(
                f"landing segment {segment.hex()} is sealed, or the outcome of an append is unknown: seal it"
            )
        first = version == _ABSENT
        # The parts are joined only here: librados copies what a step appends once more.
        data = b"".join((tail.header if first else b"", *batch, *(seal.footer if seal else ())))
        change = [steps.append(data)]
        if first or seal is not None:
            state = SealState(None) if seal is None else SealState(end, seal.records)
            change.append(steps.set_xattr(STATE_XATTR, state.encode()))
        try:
            changed = self._try_change(segment, version, *change, size_bytes=len(data))
        except (NoSpace, ConfigError):
            tail.is_never_created = first  # the OSDs refused the write, so nothing was done
            raise
        if changed is None:
            raise Conflict(f"landing segment {segment.hex()} was sealed or released by another process")
        if seal is None:
            tail.put_version(end, changed)
        else:
            tail.end = end
            self._tails.pop(segment, None)

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        """Set the xattr to "sealed OFFSET RECORDS", and append the footer, if there is one, in the same transaction.

        The footer is left out in two cases: when the pool is full, and when the object is longer than this process
        knows, because an append whose outcome was unknown was done. If the object does not exist, it is created sealed
        and empty (invariant b). That is not needed if this process is the segment's writer and certainly has not
        created it: then it never will. Raises Corrupt for an object that was not created as a segment.
        """
        try:
            return self._seal(segment, footer, records)
        except NoSpace:
            return self._seal(segment, None, records)

    def _seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        # 1. This process writes the segment, but has not created the object: there is nothing to seal.
        tail = self._tails.get(segment)
        version = tail.take_version() if tail is not None else None
        if tail is not None and (version == _ABSENT or tail.is_never_created):
            tail.is_never_created, tail.header = True, b""  # kept, so that sealing it again needs no object either
            return 0
        # 2. This process knows the end and the version: try without a look-up. It fails if another process has changed
        #    the segment.
        if tail is not None and version is not None and self._try_seal(segment, version, tail.end, footer, records):
            return tail.end
        # 3. Look end and version up, and seal at that version. Try again if an append came in between.
        for _ in range(SEAL_TRIES):
            try:
                state, version = self._look_up(segment)
                # The size is read after the version. If an append came in between, the seal below fails.
                with self._objects.translated(segment):
                    end = self._pool.size_of(self._objects.name_of(segment)) if state.end is None else state.end
            except NotFound:
                if tail is not None and tail.end > LIMITS.start:
                    self._tails.pop(segment, None)
                    raise  # this process has appended to it, so it was released, and no first append can follow
                state, version, end = SealState(None), _ABSENT, 0
            if state.end is not None:
                self._tails.pop(segment, None)
                return state.end
            footer_fits = tail is not None and tail.end == end  # otherwise the object has a batch that it does not list
            if self._try_seal(segment, version, end, footer if footer_fits else None, records):
                return end
        raise Transient(f"landing segment {segment.hex()} keeps changing; try again")

    def _try_seal(
        self, segment: SegmentId, version: int, end: int, footer: Sequence[Buffer] | None, records: int
    ) -> bool:
        """Seal a segment unless it was changed since it had this version. Returns whether it was sealed."""
        data = b"".join(footer or ())
        content = [steps.append(data)] if data else []
        state = steps.set_xattr(STATE_XATTR, SealState(end, records if end else 0).encode())
        if self._try_change(segment, version, *content, state, size_bytes=len(data)) is None:
            return False
        self._tails.pop(segment, None)
        return True

    def _try_change(self, segment: SegmentId, version: int, *change: Step, size_bytes: int) -> int | None:
        """Make a change unless the object was changed or removed since it had this version; with _ABSENT, unless it was
        created meanwhile (invariants a and b). Returns the new version, or None if the change was not made. Raises
        NoSpace, Transient."""
        first = version == _ABSENT
        condition = steps.must_be_new() if first else steps.must_have_version(version)
        with self._objects.translated(segment):
            try:
                return self._write(segment, condition, *change, size_bytes=size_bytes, objects=int(first))
            except OSError as error:
                if error.errno not in _VERSION_MISMATCH:
                    raise
        return None

    def _look_up(self, segment: SegmentId) -> tuple[SealState, int]:
        """Return the state of a segment, and the version that its object had then. Raises NotFound, Corrupt,
        Transient."""
        with self._objects.translated(segment):
            xattrs, version = self._pool.xattrs(self._objects.name_of(segment))
        return SealState.decode(segment, xattrs.get(STATE_XATTR, b"")), version

    def overwrite(self, segment: SegmentId, offset: int, expected: bytes, new: bytes) -> None:
        """Write `new` if the object still has the version at which `expected` was read (invariant a). If this process
        writes the segment, its next append expects the version that results."""
        tail = self._tails.get(segment)
        with nullcontext() if tail is None else tail.change_lock:
            version = own_version = None if tail is None else tail.take_version()
            for _ in range(SEAL_TRIES):
                if version is None:
                    _, version = self._look_up(segment)
                new_version = self._overwrite_at(segment, version, offset, expected, new)
                if new_version is not None:
                    # At another version than the writer's own, another process has changed the object: then the writer
                    # gets no version, so that its next append fails.
                    if tail is not None and version == own_version:
                        tail.put_version(tail.end, new_version)
                    return
                version = None
        raise Transient(f"landing segment {segment.hex()} keeps changing; try again")

    def _overwrite_at(self, segment: SegmentId, version: int, offset: int, expected: bytes, new: bytes) -> int | None:
        """Overwrite bytes if they are `expected`. Returns the object's version afterwards, or None if it was not this
        `version` before."""
        with self._objects.translated(segment):
            found = self._pool.read(self._objects.name_of(segment), offset, len(new))
        if found != expected:
            return version
        return self._try_change(segment, version, steps.write(new, offset), size_bytes=0)

    def release(self, segments: Sequence[SegmentId], beat: Beat = unwatched) -> Mapping[SegmentId, Transient]:
        """Remove the objects of these segments, several at a time. Raises ConfigError when the Ceph user lacks the caps
        or the pool is gone."""
        for segment in segments:
            self._tails.pop(segment, None)
        failed = self._objects.delete_many(segments, beat)
        return {SegmentId(segment): reason for segment, reason in failed.items()}

    # --- reading --------------------------------------------------------------------------------------

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:  # noqa: ARG002
        """Read ranges, one operation each; `Pool.each_read` limits the operations in flight. `copy` is ignored: the
        OSDs choose the copy, verify it against BlueStore's checksums and repair it from another copy."""
        with self._objects.translated(segment):
            return self._pool.read_many(self._objects.name_of(segment), ranges)

    def devices(self) -> DeviceStates | None:
        """Return None, because Ceph takes care of its OSDs."""
        return None

    def settle_slot(self, _found: UnreadableSlot, _epoch: int | None) -> bool:
        """Return False, because objects have no slots."""
        return False

    def segments(self, *, known_only: bool = False) -> Iterator[SegmentId]:  # noqa: ARG002
        """Yield the id of every segment. Other objects of the pool are skipped."""
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
        """Do nothing: a writer has no resources of its own, and the segment can still be sealed."""
