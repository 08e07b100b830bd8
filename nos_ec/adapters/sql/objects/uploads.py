"""Rows of multipart uploads, and their changes when objects are recorded or released.

All transactions lock rows of objects before rows of uploads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import BigInteger, Connection, LargeBinary, and_, bindparam, delete, exists, insert, or_, select, update

from nos_ec.adapters.sql.tables.base import SqlPart, reads, writes
from nos_ec.adapters.sql.tables.json_rows import JsonRows, UpdateListed, looked_up
from nos_ec.adapters.sql.tables.rows import IDS, by_index, delete_listed, id_rows, name_range, require_all
from nos_ec.adapters.sql.tables.schema import ID_BYTES, MOVES, UPLOADS, utf8
from nos_ec.core.deadlines import PARTS_GRACE_MS, WAIT_MS_MAX
from nos_ec.core.errors import Conflict, Corrupt, NosError, NoSuchUpload, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.core.parts import UploadId, composition_of, upload_key, upload_of_part
from nos_ec.ports.metadata.directory import MoveState
from nos_ec.ports.metadata.objects import ObjectRow
from nos_ec.ports.metadata.uploads import CompletionOf, UploadRow, UploadState, UploadStep

_log = structlog.get_logger(__name__)
_U = UPLOADS.c
_COLUMNS = (_U.upload_id, _U.bucket, _U.name, _U.state, _U.since_ms, _U.revision, _U.owner, _U.attributes)
_STEPS = JsonRows("steps", upload_id=ID_BYTES, revision=0)
_OPEN, _COMPLETED, _DOOMED = UploadState.OPEN, UploadState.COMPLETED, UploadState.DOOMED

FIND = select(*_COLUMNS).where(_U.upload_id == bindparam("upload_id", type_=_U.upload_id.type))
LISTED = looked_up(select(*_COLUMNS).join_from(IDS.table, UPLOADS, _U.upload_id == IDS["id"]), UPLOADS)
LOCK_LISTED = looked_up(
    select(*_COLUMNS).join_from(IDS.table, UPLOADS, _U.upload_id == IDS["id"]).with_for_update(), UPLOADS
)
COUNT_PARTS = (
    UpdateListed(UPLOADS).where(_U.upload_id == _STEPS["upload_id"]).values(revision=_U.revision + _STEPS["revision"])
)
_SET = UpdateListed(UPLOADS).where(_U.upload_id == IDS["id"])
_SINCE = bindparam("since", type_=BigInteger)
COMPLETE = _SET.values(state=_COMPLETED, since_ms=_SINCE, attributes=None)
DOOM = _SET.values(state=_DOOMED, since_ms=_SINCE, attributes=None)
_UNCHANGED = exists().where(MOVES.c.bucket == _U.bucket, MOVES.c.state.not_in([MoveState.HERE, MoveState.LEAVING]))
"""The bucket of an upload takes no changes in this cell."""
_BY_TIME = by_index(select(*_COLUMNS), UPLOADS, "uploads_by_time").order_by(_U.state, _U.since_ms, _U.upload_id)
OLD = _BY_TIME.where(_U.state == _OPEN, _U.since_ms < bindparam("before"), ~_UNCHANGED).limit(bindparam("rows_max"))
DUE = _BY_TIME.where(
    _U.state == _DOOMED,
    _U.since_ms <= bindparam("until_ms"),
    _U.since_ms >= bindparam("after_ms"),
    or_(_U.since_ms > bindparam("after_ms"), _U.upload_id > bindparam("after_id", type_=_U.upload_id.type)),
).limit(bindparam("rows_max"))
PAGE = (
    select(*_COLUMNS)
    .where(_U.upload_id > bindparam("after", type_=_U.upload_id.type))
    .order_by(_U.upload_id)
    .limit(bindparam("rows_max"))
)
_FIRST_ID = bytes(ID_BYTES)
_LAST_MS = 2**63 - 1


class SqlUploads(SqlPart):
    """`Uploads` of the port."""

    def create_upload(self, new: UploadRow) -> None:
        self._change(_keys([new]), _create_upload, new)

    def upload(self, upload_id: UploadId, bucket: str | None = None) -> UploadRow | None:
        return self._read(_upload, upload_id) if bucket is None else self._read_in(bucket, _upload, upload_id)

    def list_uploads(self, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int) -> list[UploadRow]:
        return self._read_in(bucket, _list_uploads, bucket, prefix, after, limit)

    def abort_upload(self, upload_id: UploadId, now_ms: int) -> bool:
        row = self.upload(upload_id)
        return row is not None and self._change(_keys([row]), _abort_open, [upload_id], now_ms) == 1

    def abort_uploads(self, bucket: str, limit: int, now_ms: int) -> int:
        rows = self._read(_list_uploads, bucket, "", None, limit)
        if rows:
            self._change(_keys(rows), _abort_open, [row.upload_id for row in rows], now_ms)
        return len(rows)

    @reads
    def old_uploads(self, connection: Connection, before_ms: int, limit: int) -> list[UploadRow]:
        return [_row(row) for row in connection.execute(OLD, {"before": before_ms, "rows_max": limit})]

    @reads
    def doomed_uploads(
        self, connection: Connection, now_ms: int, limit: int, after: tuple[int, UploadId] | None = None
    ) -> list[UploadRow]:
        after_ms, after_id = (-1, _FIRST_ID) if after is None else after
        bounds = {"until_ms": now_ms, "after_ms": after_ms, "after_id": after_id, "rows_max": limit}
        due = [_row(row) for row in connection.execute(DUE, bounds)]
        if due:
            return due
        far_ms = now_ms + WAIT_MS_MAX
        if far_ms >= after_ms:
            bounds |= {"after_ms": far_ms + 1, "after_id": _FIRST_ID}
        return [_row(row) for row in connection.execute(DUE, bounds | {"until_ms": _LAST_MS})]

    @writes
    def forget_upload(self, connection: Connection, doomed: UploadRow) -> None:
        same = _U.upload_id == doomed.upload_id, _U.state == _DOOMED, _U.since_ms == doomed.since_ms
        connection.execute(delete(UPLOADS).where(*same))

    @reads
    def uploads_after(self, connection: Connection, after: UploadId | None, limit: int) -> list[UploadRow]:
        rows = connection.execute(PAGE, {"after": after or _FIRST_ID, "rows_max": limit})
        return [_row(row) for row in rows]

    def uploads_by_id(self, upload_ids: Sequence[UploadId]) -> dict[UploadId, UploadRow]:
        return self._read(_uploads_by_id, upload_ids)

    def restore_uploads(self, rows: Sequence[UploadRow]) -> None:
        if rows:
            self._write(_restore_uploads, rows)


def _keys(rows: Sequence[UploadRow]) -> list[ObjectKey]:
    return [upload_key(row.key.bucket, row.upload_id) for row in rows]


def _create_upload(connection: Connection, new: UploadRow) -> None:
    if _upload(connection, new.upload_id) is None:
        connection.execute(insert(UPLOADS).values(_values(new)))


def _upload(connection: Connection, upload_id: UploadId) -> UploadRow | None:
    row = connection.execute(FIND, {"upload_id": upload_id}).first()
    return None if row is None else _row(row)


def _uploads_by_id(connection: Connection, upload_ids: Sequence[UploadId]) -> dict[UploadId, UploadRow]:
    rows = [_row(row) for row in connection.execute(LISTED, id_rows(upload_ids))] if upload_ids else []
    return {row.upload_id: row for row in rows}


def _list_uploads(
    connection: Connection, bucket: str, prefix: str, after: tuple[str, UploadId] | None, limit: int
) -> list[UploadRow]:
    found = by_index(select(*_COLUMNS), UPLOADS, "uploads_by_key").where(_U.state == _OPEN, _U.bucket == bucket)
    found = found.where(*_from(prefix, after)).order_by(_U.state, _U.bucket, _U.name, _U.upload_id).limit(limit)
    return [_row(row) for row in connection.execute(found)]


def _from(prefix: str, after: tuple[str, UploadId] | None) -> list[Any]:
    bounds: list[Any] = list(name_range(prefix, "", _U.name))
    if after is not None:
        name, upload_id = bindparam("after_name", utf8(after[0]), type_=LargeBinary), after[1]
        bounds += [_U.name >= name, or_(_U.name > name, and_(_U.name == name, _U.upload_id > upload_id))]
    return bounds


def _abort_open(connection: Connection, upload_ids: Sequence[UploadId], now_ms: int) -> int:
    """Doom those of these uploads that are still OPEN. Returns how many there were."""
    still = [row.upload_id for row in _locked(connection, upload_ids).values() if row.state is _OPEN]
    _doom(connection, still, now_ms)
    return len(still)


def _restore_uploads(connection: Connection, rows: Sequence[UploadRow]) -> None:
    gone = delete_listed(connection, UPLOADS, _U.upload_id, IDS, "id")
    connection.execute(gone, id_rows([row.upload_id for row in rows]))
    connection.execute(insert(UPLOADS), [_values(row) for row in rows])


# --- with objects -------------------------------------------------------------------------------------
def take_steps(
    connection: Connection, steps: Sequence[tuple[ObjectKey, UploadStep]], now_ms: int
) -> dict[ObjectKey, NosError]:
    """Take these steps, in their order, for objects whose rows are locked. Return an error for each step that cannot be
    taken: NoSuchUpload when the upload is not OPEN, Conflict when another part was stored meanwhile."""
    if not steps:
        return {}
    known: Mapping[UploadId, UploadRow] = _locked(connection, [step.upload_id for _, step in steps])
    now = dict(known)
    refused: dict[ObjectKey, NosError] = {}
    for key, step in steps:
        row = now.get(step.upload_id)
        if row is None or row.state is not _OPEN:
            refused[key] = no_such_upload(step.upload_id, key)
        elif not isinstance(step, CompletionOf):
            now[step.upload_id] = replace(row, revision=row.revision + 1)
        elif row.revision != step.revision:
            refused[key] = Conflict(f"upload {step.upload_id.hex()}: another part was stored meanwhile", key=key)
        else:
            now[step.upload_id] = replace(row, state=_COMPLETED)
    counted = [(one, row.revision - known[one].revision) for one, row in sorted(now.items())]
    counted = [(one, parts) for one, parts in counted if parts]
    if counted:
        require_all(connection.execute(COUNT_PARTS, _STEPS.dump(counted)).rowcount, len(counted), "uploads")
    completed = [one for one, row in now.items() if row.state is not known[one].state]
    if completed:
        ids = {**id_rows(completed), "since": now_ms}
        require_all(connection.execute(COMPLETE, ids).rowcount, len(completed), "uploads")
    return refused


def is_still_doomed(connection: Connection, doomed: UploadRow) -> bool:
    """Return whether an upload is DOOMED, and since the same time. Then this stays so until the transaction ends. The
    rows of the parts that it deletes must be locked before."""
    row = _locked(connection, [doomed.upload_id]).get(doomed.upload_id)
    return row is not None and (row.state, row.since_ms) == (_DOOMED, doomed.since_ms)


def open_copied(connection: Connection, new: UploadRow) -> bool:
    """Write this row of an OPEN upload, unless it is COMPLETED, as `Moves.open_copied_upload` of the port promises."""
    row = _locked(connection, [new.upload_id]).get(new.upload_id)
    if row is None:
        connection.execute(insert(UPLOADS).values(_values(new)))
    elif row.state is _COMPLETED:
        return False
    elif row != new:
        connection.execute(update(UPLOADS).where(_U.upload_id == new.upload_id).values(_values(new)))
    return True


def follow_copies(connection: Connection, rows: Sequence[ObjectRow], now_ms: int) -> None:
    """Make the uploads COMPLETED of which these copies are composed. Raises Transient if one of them, or an upload to
    which one of the copies belongs, is not OPEN."""
    composed = {found.upload_id for row in rows if (found := row.composition) is not None}
    wanted = composed | {of_part for row in rows if (of_part := upload_of_part(row.key)) is not None}
    if not wanted:
        return
    known = _locked(connection, sorted(wanted))
    for upload_id in sorted(wanted):
        if upload_id not in known or known[upload_id].state is not _OPEN:
            raise Transient(
                f"metadata: upload {upload_id.hex()} was aborted, or completed, while its bucket was moved; try again"
            )
    if composed:
        connection.execute(COMPLETE, {**id_rows(sorted(composed)), "since": now_ms})


def release_parts(connection: Connection, rows: Iterable[ObjectRow], now_ms: int) -> None:
    """Doom the uploads whose objects are released, but only from PARTS_GRACE_MS after `now_ms`, so that GETs that are
    running can still read the parts. Rows of objects that were not uploaded in parts are ignored."""
    found = []
    for row in rows:
        try:
            composition = composition_of(row.attributes)
        except Corrupt as error:
            _log.error("metadata damaged: attributes of a released object", key=str(row.key), error=str(error))
            continue
        if composition is not None:
            found.append(composition.upload_id)
    _doom(connection, found, now_ms + PARTS_GRACE_MS)


def no_such_upload(upload_id: UploadId, key: ObjectKey) -> NoSuchUpload:
    """Return the error for a step whose upload is not OPEN."""
    return NoSuchUpload(f"upload {upload_id.hex()} does not exist; it may have been completed or aborted", key=key)


def _doom(connection: Connection, upload_ids: Sequence[UploadId], since_ms: int) -> None:
    if not upload_ids:
        return
    changed = connection.execute(DOOM, {**id_rows(upload_ids), "since": since_ms}).rowcount
    if changed < len(set(upload_ids)):
        missing = set(upload_ids) - _uploads_by_id(connection, upload_ids).keys()
        _log.error("metadata damaged: composed objects without uploads", uploads=[one.hex() for one in sorted(missing)])


def _locked(connection: Connection, upload_ids: Sequence[UploadId]) -> dict[UploadId, UploadRow]:
    if not upload_ids:
        return {}
    rows = [_row(row) for row in connection.execute(LOCK_LISTED, id_rows(upload_ids))]
    return {row.upload_id: row for row in rows}


def _row(row: Any) -> UploadRow:
    upload_id, bucket, name, state, since_ms, revision, owner, attributes = row
    return UploadRow(UploadId(upload_id), ObjectKey(bucket, name), state, since_ms, revision, owner, attributes)


def _values(row: UploadRow) -> dict[str, Any]:
    return {
        "upload_id": row.upload_id,
        "bucket": row.key.bucket,
        "name": row.key.name,
        "state": row.state,
        "since_ms": row.since_ms,
        "revision": row.revision,
        "owner": row.owner,
        "attributes": row.attributes,
    }
