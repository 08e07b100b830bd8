"""Moves a bucket from one cell to another.

  1. The source is LEAVING, the target ARRIVING, both with a number of this mover. From now on every earlier mover of
     the bucket fails: its transactions in the target, and its changes of states, find another number.
  2. All versions and unfinished uploads are copied while the source serves the bucket. Meanwhile each transaction that
     changes the bucket writes the names of its objects, parts and uploads into a log (`Moves.changed_names`). These
     names are compared again and again, until few are left.
  3. The source is CLOSED: it waits for all transactions that change the bucket, and refuses new ones. The names that
     are left in the log are compared, then the bucket's row, documents and grants are copied. The source still serves
     reads. If this would take long, the source is LEAVING again, as in step 2.
  4. The source is GONE: now nothing reads there. This is the moment of the move, after which it can only be completed.
  5. The directory says that the target is the home, and the target is HERE: it serves the bucket.

Whatever is killed, and whenever: before step 4 the source has everything, and after it the target. Moving the bucket
again continues. Meanwhile, if the mover died before step 4, the daemons of the source let the bucket take changes
again, and if it died after that, those of the target do what step 5 says (`upkeep/move_recovery.py`). So at no time do
two cells change, or let users read, the same bucket.

Of a wide bucket, a move takes all slices that the source has, and nothing else (docs/adr/0071). In both cells it looks
like a whole bucket.

If the database of the target is lost after step 4, and no dump has the move, the target is REBUILT. Moving the bucket
again then brings back from the old copies what the rebuild could not find (docs/adr/0076).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from threading import Event

import structlog

from nos_ec.core.deadlines import PARTS_GRACE_MS
from nos_ec.core.errors import Conflict, InvalidInput, LeaseLost, NosError, NotFound, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.killpoints import kill_point
from nos_ec.core.parts import PARTS_BUCKET, UploadId, upload_of_part
from nos_ec.engine.dump.stored import newest_dump_ms
from nos_ec.engine.moving.keys import (
    Key,
    PartPair,
    differing,
    differing_parts,
    key_of,
    parts_of,
    trash_differing,
    trash_of,
    walk,
)
from nos_ec.engine.moving.old_copies import OldCopies
from nos_ec.engine.moving.version_copier import CellSide, SharedUpload, VersionCopier, bytes_of
from nos_ec.engine.rate_limit import RateLimit
from nos_ec.engine.upkeep.move_recovery import mover_lease
from nos_ec.ports.clock import waits
from nos_ec.ports.metadata import (
    AccessOf,
    BucketRecord,
    BucketRow,
    ChangedName,
    Directory,
    DirectoryRow,
    DocumentKind,
    Metadata,
    MoveRow,
    MoveState,
    ObjectRow,
    UploadRow,
    UploadState,
)
from nos_ec.ports.metadata.directory import SLICES_BYTES_MAX, decode_slices, encode_slices, places_of

PASSES_MAX = 10
"""How often the changed names are compared before the source is closed, if very many change meanwhile."""
ROUNDS_MAX = 10
"""How often the source is closed before the move is given up because too much has changed each time."""
CLOSED_NAMES_MAX = 200
"""The most names that are compared while the source is closed. If there are more, it is opened again."""
CLOSED_BYTES_MAX = 16 << 20
"""The most bytes that are copied while the source is closed."""
CLOSED_MS_MAX = 1500
"""The source is opened again when the last comparison has taken this long."""
TRIES_MAX = 3
"""How often a move begins again by itself."""
_PAGE = 1000
_ALL = (1 << 63) - 1

_log = structlog.get_logger(__name__)

RecordAccess = Callable[[AccessOf, str], None]
"""Writes the record of a bucket that a rebuild of the metadata needs."""


@dataclass(slots=True)
class Progress:
    """What a mover has done so far. `step` is what it does now, `pass_number` how often it has compared all keys, or
    those that had changed meanwhile."""

    step: str = "copy"
    pass_number: int = 0
    keys: int = 0
    versions: int = 0
    bytes: int = 0


class _ServedAgain(Conflict):
    """A daemon of the source has taken this mover for dead, and lets the bucket take changes again."""


class BucketMover:
    """Moves one bucket, or the slices of a wide one in a cell, once. Belongs to one thread. The metadata of both cells
    must be opened for this mover alone."""

    def __init__(
        self,
        directory: Directory,
        source: CellSide,
        target: CellSide,
        number: int,
        bytes_per_s: int = 0,
        tick: Callable[[Progress], object] = lambda _: None,
    ) -> None:
        """`number` is a random number that no other mover has. `tick` is called while the mover works."""
        self._directory = directory
        self._source = source
        self._target = target
        self._number = number
        self._limit = RateLimit(source.clock, bytes_per_s)
        self._tick = tick
        self._closed_ms: int | None = None
        self._old_copies: OldCopies | None = None
        """Decides which names are compared, if the database of the target was rebuilt without the move."""
        self.progress = Progress()

    def move(self, bucket: str, record_target: RecordAccess, record_source: RecordAccess) -> Progress:
        """Move what the source has of a bucket, or continue an earlier move of it to the same target. Raises NotFound
        (no such bucket), InvalidInput (it cannot be moved, or is being moved elsewhere), Conflict (another process has
        taken over, or changed it), Corrupt, Transient, NoSpace. Until it is GONE from the source, the source serves it.

        If this process was taken for dead, because a daemon lets the bucket take changes again or the target has fenced
        the lease of a large copy, it begins again, up to TRIES_MAX times in all."""
        lease = mover_lease(self._number)
        for tries in range(1, TRIES_MAX + 1):
            try:
                with self._source.new_lease(lease), self._target.new_lease(lease):
                    return self._move(bucket, record_target, record_source)
            except (_ServedAgain, LeaseLost) as error:
                if tries == TRIES_MAX:
                    raise
                _log.warning("moving a bucket from the beginning", bucket=bucket, error=str(error))
        raise AssertionError("the last try returns or raises")

    def _move(self, bucket: str, record_target: RecordAccess, record_source: RecordAccess) -> Progress:
        self._copier = VersionCopier(self._source, self._target, self._spend)
        self.progress.step = "copy"
        home = self._home(bucket)
        if self._target.name in home.cells:
            self._complete(bucket, home.moves_of(self._target.name), record_source)
            return self.progress
        number = home.moves_of(self._source.name) + 1
        left = self._source.metadata.move_row(bucket)
        if left is not None and left.state is MoveState.REBUILT:
            raise InvalidInput(
                f"bucket {bucket} must be completed from its old copies first:"
                f" nos-ec cells move {bucket} --to {self._source.name}"
            )
        if left is not None and left.state is not MoveState.HERE and left.other != self._target.name:
            raise InvalidInput(f"bucket {bucket} is being moved to cell {left.other}; complete that first")
        if left is not None and left.state is MoveState.GONE and left.number != number:
            raise Conflict(
                f"the directory does not know the move of bucket {bucket}; run `nos-ec cells rebuild-directory`"
            )
        arriving = self._arrive(bucket, number, home)
        if left is None or left.state is not MoveState.GONE:
            left = self._set_source(MoveState.LEAVING, bucket, number, left)
            kill_point("moving.leaving")
            self._copy(home, left, record_target)
        kill_point("moving.gone")
        self._directory.move_home(bucket, self._source.name, self._target.name, number)
        kill_point("moving.home_changed")
        self._open(arriving)
        self._complete(bucket, number, record_source)
        return self.progress

    def _home(self, bucket: str) -> DirectoryRow:
        home = self._directory.directory_row(bucket)
        # A bucket may be deleted after its move, which is then completed all the same.
        if home is None or (home.is_deleted and self._target.name not in home.cells):
            raise NotFound(f"there is no bucket {bucket}")
        if not {self._source.name, self._target.name} & set(home.cells):
            raise Conflict(f"bucket {bucket} was moved to cell {home.home} meanwhile")
        if self._source.name in home.cells:
            _require_no_slices(self._target, home)
        return home

    # --- states -----------------------------------------------------------------------------------
    def _set(
        self, side: CellSide, state: MoveState, other: CellSide, number: int, known: MoveRow | None, of: str
    ) -> MoveRow:
        row = MoveRow(of, state, other.name, number, self._number, side.clock.now_ms())
        with self._owning(side, known, of):
            side.metadata.set_move(row, known)
        return row

    @contextmanager
    def _owning(self, side: CellSide, known: MoveRow | None, of: str) -> Iterator[None]:
        """Raise _ServedAgain instead of Conflict if the row that this mover has set was replaced by a daemon."""
        try:
            yield
        except Conflict as error:
            found = side.metadata.move_row(of)
            if known is not None and found is not None and found.mover == known.mover == self._number:
                raise _ServedAgain(
                    f"cell {side.name} serves bucket {of} again: it took this process for dead"
                ) from error
            raise

    def _set_source(self, state: MoveState, bucket: str, number: int, known: MoveRow | None) -> MoveRow:
        return self._set(self._source, state, self._target, number, known, bucket)

    def _arrive(self, bucket: str, number: int, home: DirectoryRow) -> MoveRow:
        """Make the target ARRIVING, and this its only mover."""
        target = self._target
        known = require_takes(target, self._source.name, home)
        row = self._set(target, MoveState.ARRIVING, self._source, number, known, bucket)
        target.metadata.move_as(row)
        kill_point("moving.arriving")
        if home.slices:
            # If the move is given up, the mark says later which slices this cell was about to get.
            target.metadata.restore_buckets([BucketRecord(_row_of(home), {}, self._mark_of(home))])
            kill_point("moving.marked")
        return row

    def _open(self, arriving: MoveRow) -> None:
        self._set(self._target, MoveState.HERE, self._source, arriving.number, arriving, arriving.bucket)
        kill_point("moving.here")

    def _complete(self, bucket: str, number: int, record_source: RecordAccess) -> None:
        """Open the bucket in the target, its home, if an earlier mover could not, and forget its row in the source."""
        known = self._target.metadata.move_row(bucket)
        left = self._source.metadata.move_row(bucket)
        if known is not None and known.number == number:
            if known.state is MoveState.REBUILT:
                known = self._bring_back(known, left)
            if known.arrives:
                self._open(known)
        if left is not None and left.state is MoveState.GONE:
            self._source.metadata.move_as(left)
            _forget_bucket(self._source.metadata, left, record_source)

    def _bring_back(self, known: MoveRow, left: MoveRow | None) -> MoveRow:
        """Give the target, whose database was rebuilt without a dump that has the move, what the old copies have and it
        lacks. Returns its row. Names that were changed after the move stay as the rebuild has left them."""
        bucket = known.bucket
        if left is None or (left.state, left.other, left.number) != (MoveState.GONE, self._target.name, known.number):
            raise Conflict(
                f"cell {self._source.name} does not know of the move of bucket {bucket}; run"
                " `nos-ec cells rebuild-directory`"
            )
        self.progress.step = "bring back"
        row = self._set(self._target, MoveState.REBUILT, self._source, known.number, known, bucket)
        self._target.metadata.move_as(row)
        self._source.metadata.move_as(left)  # reads what there is
        self._old_copies = old = OldCopies(self._source, self._target, bucket)
        kept = 0
        for mine, theirs in differing(self._source.metadata, self._target.metadata, bucket):
            if old.has_all(mine, theirs):
                self._mend(bucket, mine, theirs)
            else:
                kept += 1
        self._copier.flush()
        self._copy_floors(bucket)
        self._copy_trash(bucket)
        self._copy_uploads(bucket)
        self._abort_others(bucket)
        kill_point("moving.brought_back")
        if kept:
            _log.warning("what was changed after the move is as the rebuild has left it", bucket=bucket, names=kept)
        return row

    # --- copying ----------------------------------------------------------------------------------
    def _copy(self, home: DirectoryRow, left: MoveRow, record_target: RecordAccess) -> None:
        """Copy everything until the source is GONE. After an error, or when the command is interrupted by a signal, the
        source serves the bucket as before."""
        bucket = home.bucket
        try:
            self._copy_all(bucket)
            left = self._close(bucket, left)
            self._copy_bucket(home, record_target)
        except (Exception, KeyboardInterrupt):
            self._serve_again(bucket, left.number)
            raise
        self._set_source(MoveState.GONE, bucket, left.number, left)

    def _serve_again(self, bucket: str, number: int) -> None:
        """Let the source take changes again. If that fails, moving the bucket again does it."""
        with suppress(NosError):
            left = self._source.metadata.move_row(bucket)
            if left is not None and left.mover == self._number and left.state is not MoveState.GONE:
                here = self._set(self._source, MoveState.HERE, self._target, number - 1, left, bucket)
                _forget_changes(self._source.metadata, here)

    def _copy_trash(self, bucket: str) -> bool:
        """Make the trash of the target have what that of the source has. Returns False if a version was left out
        because of another one of its upload. Raises _TooMuch if the source is CLOSED."""
        # A version may share its upload with one that is removed from the target only later in the walk.
        return self._walk_trash(bucket) or self._walk_trash(bucket)

    def _walk_trash(self, bucket: str) -> bool:
        size, is_complete = 0, True
        for mine, theirs in self._trash_differing(bucket):
            size += sum(map(bytes_of, mine))
            if self._closed_ms is not None and size > CLOSED_BYTES_MAX:
                raise _TooMuch
            if theirs:
                self._target.metadata.purge_trash(theirs, self._target.clock.now_ms())
            for row in mine:
                self._require_time()
                try:
                    self._copy_trashed(row)
                except SharedUpload:
                    is_complete = False
        self._copier.flush()
        return is_complete

    def _copy_trashed(self, row: ObjectRow) -> None:
        """Copy a version in the trash. If users have removed it from there meanwhile, the log has its name. Raises
        SharedUpload, NotFound."""
        try:
            self._copier.copy_trash(row)
        except NotFound:
            now = self._source.metadata.objects_with([row.object_id]).get(row.object_id)
            if now is None or now.trash_until_ms != row.trash_until_ms:
                return
            if now == row:
                raise
            self._copier.copy_trash(now)  # its bytes were packed, or GC has moved them
        self.progress.versions += 1

    def _purge_stale_trash(self, bucket: str) -> None:
        """Remove what the trash of the target has and that of the source has not."""
        for _, theirs in self._trash_differing(bucket):
            self._require_time()
            if theirs:
                self._target.metadata.purge_trash(theirs, self._target.clock.now_ms())

    def _trash_differing(self, bucket: str) -> Iterator[tuple[Sequence[ObjectRow], Sequence[ObjectRow]]]:
        """Yield what `trash_differing` does, without the names that were changed after the move."""
        old = self._old_copies
        for pair in trash_differing(self._source.metadata, self._target.metadata, bucket):
            if old is None:
                yield pair
            else:
                names = {row.key.name for rows in pair for row in rows}
                kept = {name for name in names if not old.has(name)}
                mine, theirs = ([row for row in rows if row.key.name not in kept] for rows in pair)
                yield mine, theirs

    def _copy_all(self, bucket: str) -> None:
        """Make the target have the versions, floors and unfinished uploads that the source had when each was read."""
        self.progress.pass_number += 1
        for mine, theirs in differing(self._source.metadata, self._target.metadata, bucket):
            self._mend_served(bucket, mine, theirs)
        self._copier.flush()
        self._copy_floors(bucket)
        self._copy_uploads(bucket)
        kill_point("moving.compared")

    def _copy_floors(self, bucket: str) -> None:
        after: ObjectKey | None = None
        while page := self._source.metadata.floors_after(after, _PAGE, bucket):
            self._target.metadata.restore_floors(page)
            after = page[-1][0]

    def _copy_uploads(self, bucket: str) -> None:
        source, target = self._source.metadata, self._target.metadata
        last: tuple[str, UploadId] | None = None
        while page := source.list_uploads(bucket, "", last, _PAGE):
            there = target.uploads_by_id([upload.upload_id for upload in page])
            for upload in page:
                known = there.get(upload.upload_id)
                if self._old_copies is not None and known is not None and known.state is UploadState.COMPLETED:
                    continue  # after the move
                self._open_upload(upload, known)
                parts = self._all_parts(upload)
                if self._old_copies is not None:  # parts that the rebuild has found may have been stored after the move
                    parts = [(mine, theirs) for mine, theirs in parts if theirs is None]
                self._copy_parts(parts)
            self._copier.flush()
            last = page[-1].key.name, page[-1].upload_id

    def _close(self, bucket: str, left: MoveRow) -> MoveRow:
        """Copy what changes until the source is CLOSED and nothing differs. Returns the row of the source."""
        for _ in range(ROUNDS_MAX):
            for _ in range(PASSES_MAX):
                if self._copy_changed(bucket, left) < CLOSED_NAMES_MAX:
                    break
            is_complete = self._copy_trash(bucket)
            self._abort_others(bucket)
            left = self._set_source(MoveState.CLOSED, bucket, left.number, left)
            kill_point("moving.closed")
            self._closed_ms = self._source.clock.now_ms()
            self.progress.step = "close"
            try:
                self._copy_last(bucket, is_complete=is_complete)
            except _TooMuch:
                self._copier.drop()
            else:
                return left
            finally:
                self._closed_ms = None
            left = self._set_source(MoveState.LEAVING, bucket, left.number, left)
            self.progress.step = "copy"
        raise Transient(
            f"bucket {bucket} was closed {ROUNDS_MAX} times, and each time more had changed than can be copied in"
            f" {CLOSED_MS_MAX} ms; move it again when less is written to it"
        )

    def _copy_changed(self, bucket: str, left: MoveRow) -> int:
        """Make the target have the names that are in the log now as the source has them, and forget their changes.
        Returns how many names there were."""
        self.progress.pass_number += 1
        count = 0
        for of, page in _changes(self._source.metadata, bucket):
            # A change is forgotten after its name was compared, and by its id. So whatever is killed, and whatever
            # changes meanwhile: the log has each change that the target may lack.
            names = {one.name for one in page}
            if of == bucket:
                for mine, theirs in self._pairs(bucket, names):
                    self._mend_served(bucket, mine, theirs)
            else:
                for parts in self._differing_parts(of, names):
                    self._copy_parts(parts)
            self._copier.flush()
            kill_point("moving.names_compared")
            with self._owning(self._source, left, bucket):
                self._source.metadata.forget_changes(left, page)
            count += len(names)
        return count

    def _copy_last(self, bucket: str, *, is_complete: bool) -> None:
        """Copy the last changes while the source is CLOSED. The log still has their names if it is opened again.
        is_complete: whether the trash was copied without exception. Raises _TooMuch."""
        names, of_parts = self._last_names(bucket), self._last_names(PARTS_BUCKET + bucket)
        if len(names) + len(of_parts) > CLOSED_NAMES_MAX:
            raise _TooMuch
        size = 0
        pairs: list[tuple[Key | None, Key | None]] = []
        for mine, theirs in self._pairs(bucket, names):
            pairs.append((mine, theirs))
            size += sum(bytes_of(one.row) for one in (mine.versions if mine else ()) if one.row)
            if size > CLOSED_BYTES_MAX:
                raise _TooMuch
        parts = list(chain.from_iterable(self._differing_parts(PARTS_BUCKET + bucket, of_parts)))
        size += sum(one.size for one, _ in parts if one)
        if size > CLOSED_BYTES_MAX:
            raise _TooMuch
        for mine, theirs in pairs:
            self._require_time()
            self._mend(bucket, mine, theirs)
        self._copy_parts(parts)
        self._copier.flush()
        has_changed = bool(names) or not is_complete  # since the trash was copied
        if has_changed and not self._copy_trash(bucket):
            raise InvalidInput(
                f"bucket {bucket} has two versions that are composed of one upload, and such objects cannot be moved to"
                " another cell; empty the trash of the bucket"
            )
        kill_point("moving.last_compared")

    def _last_names(self, of: str) -> set[str]:
        """Return the names that are left in the log of a bucket. Raises _TooMuch."""
        changes = self._source.metadata.changed_names(of, _ALL, _PAGE + 1)
        if len(changes) > _PAGE:
            raise _TooMuch
        return {one.name for one in changes}

    # --- unfinished uploads -----------------------------------------------------------------------
    def _all_parts(self, upload: UploadRow) -> list[PartPair]:
        return differing_parts(parts_of(self._source.metadata, upload), parts_of(self._target.metadata, upload))

    def _differing_parts(self, of: str, names: Collection[str]) -> Iterator[list[PartPair]]:
        """Look at the uploads to which these names of the hidden bucket `of` belong. Open each in the target that is
        OPEN in the source, and abort the others there. Yield the parts that differ of each OPEN upload."""
        source, target = self._source.metadata, self._target.metadata
        changed: dict[UploadId, list[ObjectKey]] = {}
        for key in (ObjectKey(of, name) for name in sorted(names)):
            upload_id = upload_of_part(key)
            assert upload_id is not None, "the log has no other names of this bucket"
            changed.setdefault(upload_id, []).append(key)
        # An upload that ends after it was read is in the log again.
        here, there = source.uploads_by_id(list(changed)), target.uploads_by_id(list(changed))
        for upload_id, keys in changed.items():
            self._require_time()
            mine, theirs = _if_open(here.get(upload_id)), _if_open(there.get(upload_id))
            if mine is None:
                self._abort_in_target(theirs)
                continue
            self._open_upload(mine, theirs)
            if theirs is None:
                yield self._all_parts(mine)
            else:
                yield differing_parts(source.rows_of(keys), target.rows_of(keys))

    def _open_upload(self, upload: UploadRow, known: UploadRow | None) -> None:
        """Give an OPEN upload the same row in the target, where its row is `known`. The parts that the target has must
        be read after that: until it is OPEN there, GC may delete them."""
        if known == upload:
            return
        try:
            self._copier.open_upload(upload)
        except SharedUpload:  # with a version in the trash of the target that that of the source does not have
            self._purge_stale_trash(upload.key.bucket)
            self._copier.open_upload(upload)

    def _copy_parts(self, parts: Collection[PartPair]) -> None:
        for mine, theirs in parts:
            self._require_time()
            self._copy_part(mine, theirs)
        self._tick(self.progress)

    def _copy_part(self, mine: ObjectRow | None, theirs: ObjectRow | None) -> None:
        """Make the target have a part as the source has it, unless users have changed it there since it was read: then
        it is in the log again. Raises NotFound if it is damaged."""
        try:
            self._copier.copy_part(mine, theirs)
        except NotFound:
            now = mine and self._source.metadata.rows_of([mine.key]).get(mine.key)
            if now == mine:
                raise
            if now and mine and now.version == mine.version:
                self._copy_part(now, None)  # its bytes were packed, or GC has moved them

    def _abort_others(self, bucket: str) -> None:
        """Abort the uploads that are OPEN in the target and not in the source: users have ended them, or the parts of
        an object were copied that was removed before it was copied itself."""
        source, target = self._source.metadata, self._target.metadata
        last: tuple[str, UploadId] | None = None
        while page := target.list_uploads(bucket, "", last, _PAGE):
            here = source.uploads_by_id([upload.upload_id for upload in page])
            for upload in page:
                if _if_open(here.get(upload.upload_id)) is None:
                    self._abort_in_target(upload)
            last = page[-1].key.name, page[-1].upload_id

    def _abort_in_target(self, upload: UploadRow | None) -> None:
        """Let GC delete the parts of an upload later, unless an object is copied meanwhile that is composed of them."""
        if upload is not None:
            self._target.metadata.abort_upload(upload.upload_id, self._target.clock.now_ms() + PARTS_GRACE_MS)
            kill_point("moving.upload_aborted")

    # --- keys -------------------------------------------------------------------------------------
    def _pairs(self, bucket: str, names: Collection[str]) -> Iterator[tuple[Key | None, Key | None]]:
        """Yield those of these keys that the cells have differently, as `differing` does, after the target has got
        their floors."""
        source, target = self._source.metadata, self._target.metadata
        floors = source.floors_of([ObjectKey(bucket, name) for name in names])
        target.restore_floors(sorted(floors.items(), key=lambda one: one[0].name))
        for name in sorted(names):
            self._require_time()
            mine, theirs = key_of(source, bucket, name), key_of(target, bucket, name)
            if (mine and mine.contents) != (theirs and theirs.contents):
                yield mine, theirs

    def _require_time(self) -> None:
        """Raise _TooMuch if the source has been CLOSED for too long."""
        since_ms, now_ms = self._closed_ms, self._source.clock.now_ms()
        if since_ms is not None and not waits(since_ms + CLOSED_MS_MAX, now_ms, CLOSED_MS_MAX):
            raise _TooMuch

    def _mend_served(self, bucket: str, mine: Key | None, theirs: Key | None) -> None:
        """Do as `_mend` does while users may change the key. If a version is removed before it is read, or put into the
        trash, the log has a further change of the name, and the key will be compared again."""
        try:
            self._mend(bucket, mine, theirs)
        except (NotFound, SharedUpload):
            now = mine and key_of(self._source.metadata, bucket, mine.name)
            if mine is None or (now and now.contents) == mine.contents:
                raise

    def _mend(self, bucket: str, mine: Key | None, theirs: Key | None) -> None:
        """Replace a key of the target, or remove it. Raises NotFound, SharedUpload."""
        if theirs is not None:
            self._target.metadata.remove_key(bucket, theirs.name, self._target.clock.now_ms())
        if mine is not None:
            try:
                versions = self._copier.copy(mine)
            except SharedUpload:  # with a version that the source has brought back from the trash
                self._copier.flush()
                self._purge_stale_trash(bucket)
                self._target.metadata.remove_key(bucket, mine.name, self._target.clock.now_ms())
                versions = self._copier.copy(mine)
            self.progress.versions += versions
        self.progress.keys += 1
        self._tick(self.progress)

    def _spend(self, size: int) -> None:
        """Count bytes that were copied, and keep to the limited rate unless the source is CLOSED."""
        self.progress.bytes += size
        self._tick(self.progress)
        if self._closed_ms is None:
            self._limit.spend(size, Event())

    def _copy_bucket(self, home: DirectoryRow, record_target: RecordAccess) -> None:
        """Copy the bucket's row, documents and grants. The other cells of a wide bucket have no copies of its row that
        anything depends on, so there it may be missing."""
        source, target, bucket = self._source.metadata, self._target.metadata, home.bucket
        row = source.bucket(bucket)
        if row is None and self._source.name != home.home:
            row = _row_of(home)
        if row is None:
            raise Conflict(f"bucket {bucket} was deleted while it was moved")
        documents = source.bucket_documents(bucket, list(DocumentKind)) | self._mark_of(home)
        target.restore_buckets([BucketRecord(row, source.grants(bucket), documents)])
        if source.bucket_usage(bucket) is not None:
            target.meter_bucket(bucket, self._target.clock.now_ms())
        record_target(AccessOf.BUCKET, bucket)
        kill_point("moving.bucket_copied")

    def _mark_of(self, home: DirectoryRow) -> dict[DocumentKind, bytes]:
        """Return the document WIDE of a wide bucket after this move, and nothing for another bucket."""
        slices = home.moved(self._source.name, self._target.name, 0).slices
        return {DocumentKind.WIDE: encode_slices(slices)} if slices else {}


class _TooMuch(Exception):
    """More has changed than can be copied while the source is CLOSED."""


def cancel(side: CellSide, target: CellSide, bucket: str, number: int, record_target: RecordAccess) -> None:
    """Give up the move of a bucket that `side`, its home, still serves, and remove what was copied to the target, from
    whatever cell. `record_target` writes the record of the target. Raises Conflict if it cannot be given up any more,
    Transient."""
    left, known = side.metadata.move_row(bucket), target.metadata.move_row(bucket)
    if left is not None and left.state is MoveState.GONE:
        raise Conflict(
            f"the move of bucket {bucket} can only be completed: nos-ec cells move {bucket} --to {left.other}"
        )
    now_ms = side.clock.now_ms()
    if left is not None and left.state is not MoveState.HERE:
        here = MoveRow(bucket, MoveState.HERE, target.name, left.moves, number, now_ms)
        side.metadata.set_move(here, left)
        left = here
    kill_point("moving.cancelled")
    if left is not None:
        _forget_changes(side.metadata, left)
    if is_arriving(known):
        gone = MoveRow(bucket, MoveState.GONE, side.name, left.moves if left else 0, number, now_ms)
        target.metadata.set_move(gone, known)
        _purge(target, gone, record_target)


def require_takes(target: CellSide, source: str, home: DirectoryRow) -> MoveRow | None:
    """Return the row of a bucket in a cell that may take what the cell `source` has of it, where `home` is the row in
    the directory; None if it has no row. Raises Conflict if another move or the directory says otherwise, InvalidInput
    while a rebuild of the cell could bring back what it had of the bucket before, or if it has or had other slices of
    it, Transient."""
    bucket, number = home.bucket, home.moves_of(source) + 1
    known = target.metadata.move_row(bucket)
    _require_no_slices(target, home)
    if known is not None and known.state is MoveState.ARRIVING:
        if known.other != source:
            raise Conflict(
                f"cell {target.name} has copies from a move of bucket {bucket} from cell {known.other} that was not"
                f" completed; give that up first: nos-ec cells move {bucket} --to {source}"
            )
        return known
    if home.slices:
        _require_same_slices(target, source, home, known)
    if known is None:
        return None
    if known.state is not MoveState.GONE or known.number >= number:
        raise Conflict(f"cell {target.name} has bucket {bucket} already; run `nos-ec cells rebuild-directory`")
    target.metadata.move_as(known)
    if has_copies(target.metadata, bucket):
        raise InvalidInput(
            f"cell {target.name} still has old copies of bucket {bucket}; delete them first:"
            f" nos-ec cells purge {bucket} --from {target.name}"
        )
    if not _is_dumped_since(target, known.since_ms):
        raise InvalidInput(
            f"the metadata of cell {target.name} must be dumped before bucket {bucket} can come back to it:"
            f" nos-ec --cell {target.name} metadata dump"
        )
    return known


def _require_no_slices(target: CellSide, home: DirectoryRow) -> None:
    if target.name in home.cells:
        raise InvalidInput(
            f"cell {target.name} has slices of bucket {home.bucket} already; name a cell that has none, or add one"
            " (docs/CELLS.md#add-a-cell)"
        )


def _require_same_slices(target: CellSide, source: str, home: DirectoryRow, known: MoveRow | None) -> None:
    """Raise InvalidInput unless a cell that gets slices of a wide bucket had the same ones before, or none at all. A
    program may remember for years that it had others, and would put their objects there (docs/adr/0071)."""
    bucket = home.bucket
    if len(home.moved(source, target.name, home.moves_of(source) + 1).slices_text) > SLICES_BYTES_MAX:
        raise InvalidInput(f"the names of the cells of bucket {bucket} are too long together to move its slices")
    _, mark = target.metadata.unserved_bucket(bucket)
    if known is None and mark is None:
        return
    if places_of(target.name, decode_slices(mark)) != places_of(source, home.slices):
        raise InvalidInput(
            f"cell {target.name} may have had other slices of bucket {bucket} than cell {source} has, and programs may"
            " still look for them there; name a cell that never had slices of the bucket"
        )


def is_arriving(known: MoveRow | None) -> bool:
    """Return whether a cell with this row of a bucket has, or may get, copies of it, and does not serve it yet."""
    return known is not None and known.state is MoveState.ARRIVING


def has_copies(metadata: Metadata, bucket: str) -> bool:
    """Return whether a cell has versions of a bucket, also in the trash, or unfinished uploads. Raises Transient."""
    has_uploads = bool(metadata.list_uploads(bucket, "", None, 1))
    return has_uploads or any(walk(metadata, bucket)) or any(trash_of(metadata, bucket))


def purge(
    side: CellSide,
    cells: Sequence[CellSide],
    home: DirectoryRow,
    record: RecordAccess,
    tick: Callable[[int], object] = lambda _: None,
) -> int:
    """Remove what a cell still has of a bucket that is in other cells, `cells`, all of those that `home` names: its row
    in the directory. `record` writes the record of the cell. Returns how many versions and markers were removed. Raises
    InvalidInput while one of these cells has no dump of its metadata that began after a move to it: a rebuild could
    otherwise lose delete markers, empty objects and changed attributes. Raises Conflict, Transient."""
    bucket = home.bucket
    gone = side.metadata.move_row(bucket)
    if gone is None or gone.state is not MoveState.GONE:
        raise InvalidInput(f"bucket {bucket} was not moved away from cell {side.name}")
    for one in cells:
        here = one.metadata.move_row(bucket)
        if here is None and not home.moves_of(one.name):
            continue  # nothing was ever moved to this cell
        if here is None or here.state is not MoveState.HERE:
            raise Conflict(f"the move of bucket {bucket} to cell {one.name} is not complete; move it again")
        if not _is_dumped_since(one, here.since_ms):
            raise InvalidInput(
                f"the metadata of cell {one.name} must be dumped before the copies in cell {side.name} are deleted:"
                f" nos-ec --cell {one.name} metadata dump"
            )
    return _purge(side, gone, record, tick)


def _purge(side: CellSide, gone: MoveRow, record: RecordAccess, tick: Callable[[int], object] = lambda _: None) -> int:
    side.metadata.move_as(gone)
    _forget_bucket(side.metadata, gone, record)
    removed = 0
    for key in walk(side.metadata, gone.bucket):
        removed += side.metadata.remove_key(gone.bucket, key.name, side.clock.now_ms())
        tick(removed)
    for page in trash_of(side.metadata, gone.bucket):
        removed += len(side.metadata.purge_trash(page, side.clock.now_ms()))
        tick(removed)
    # A request that lists parts has read before that the bucket is served here.
    while side.metadata.abort_uploads(gone.bucket, _PAGE, side.clock.now_ms() + PARTS_GRACE_MS) == _PAGE:
        pass
    kill_point("moving.purged")
    side.metadata.set_move(replace(gone, since_ms=side.clock.now_ms()), gone)
    return removed


def _changes(metadata: Metadata, bucket: str) -> Iterator[tuple[str, list[ChangedName]]]:
    """Yield the changes that are in the log now, in pages, those of objects before those of uploads and parts. Each
    page comes with the bucket whose names it has. The caller forgets each page."""
    for of in (bucket, PARTS_BUCKET + bucket):
        last = metadata.last_change(of)
        while page := metadata.changed_names(of, last, _PAGE):
            yield of, page


def _if_open(upload: UploadRow | None) -> UploadRow | None:
    return upload if upload is not None and upload.state is UploadState.OPEN else None


def _forget_changes(metadata: Metadata, row: MoveRow) -> None:
    for _, page in _changes(metadata, row.bucket):
        metadata.forget_changes(row, page)


def _row_of(home: DirectoryRow) -> BucketRow:
    return BucketRow(home.bucket, home.owner, home.created_ms)


def _forget_bucket(metadata: Metadata, gone: MoveRow, record: RecordAccess) -> None:
    """Forget everything but the versions of a bucket in the cell that it has left."""
    _forget_changes(metadata, gone)
    metadata.forget_bucket(gone.bucket)
    record(AccessOf.BUCKET, gone.bucket)


def _is_dumped_since(side: CellSide, since_ms: int) -> bool:
    newest_ms = newest_dump_ms(side.metadata, side.clock.now_ms())
    return newest_ms is not None and newest_ms > since_ms
