"""Serves the requests of a store of several cells: each by the service of the cell that holds its bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from nos_ec.composition.cells import Cells
from nos_ec.core.errors import ConfigError, Moved, NosError, Transient
from nos_ec.engine.objects.store import Store
from nos_ec.engine.objects.uploads import MultipartUploads
from nos_ec.engine.wide.listings import MergedLists, MergedUploads
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.message.body import BodyWanted, Source, Unasked
from nos_ec.gateway.message.failures import to_s3_error
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.bucket_logging import LogObject
from nos_ec.gateway.operations.object_operations import ObjectOperations
from nos_ec.gateway.server.http_server import OtherCells, Wide, make_access, make_service
from nos_ec.gateway.server.record import Record
from nos_ec.gateway.server.service import Service, refusal
from nos_ec.ports.metadata import BucketRow, DirectoryRow
from nos_ec.ports.metadata.directory import slice_of
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import addressed, bucket_of_host
from nos_ec.s3.request import Request
from nos_ec.settings import S3Settings

_log = structlog.get_logger(__name__)

STALLED_S = 2.0
"""How long a cell answers nothing until it may hold only a share of the threads."""
_WITHOUT_BODY = frozenset(["GET", "HEAD"])
_REPEATED = _WITHOUT_BODY | {"DELETE"}
"""The methods of requests that are answered again if their bucket is found to be in another cell."""
_COPIES = frozenset([b"x-amz-copy-source", b"x-amz-rename-source"])
"""Headers of requests that copy an object."""


@dataclass(slots=True)
class _Cell:
    """A cell, and how many of its requests are being served."""

    name: str
    service: Service | None = None
    requests: int = 0
    answered_s: float = 0.0
    """When the cell answered a request last, or the first of those being served began. A request that was given up does
    not count: otherwise a database that hangs would get most threads again after each batch of them."""
    is_failing: bool = False
    """Whether the request that ended last was given up."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class CellServices:
    """The answers of a gateway from several cells. Safe to call from several threads."""

    def __init__(self, cells: Cells, master_keys: MasterKeys, settings: S3Settings, timer: Callable[[], float]) -> None:
        """A cell that has not answered for STALLED_S gets at most half of the threads that serve requests, and three
        quarters before that, so that the others are served. `timer` returns seconds."""
        self._cells = cells
        self._master_keys = master_keys
        self._settings = settings
        self._timer = timer
        self._of: Mapping[str, _Cell] = {name: _Cell(name) for name in cells.names()}
        self._directory = self._of[cells.directory_cell]
        self._wide: dict[tuple[str, ...], Wide] = {}
        self._wide_services: dict[tuple[tuple[str, ...], str], Service] = {}
        self._parts: dict[str, tuple[Store, MultipartUploads]] = {}
        self._wide_lock = threading.Lock()
        self._others = OtherCells(self._service_of, self._objects_of)
        self._domains = settings.domain_names
        self._website_domains = settings.website_domain_names
        threads = settings.threads
        self._most_first, self._most = max(1, threads * 3 // 4), max(1, threads // 2)

    def answer(self, request: Request, source: Source, record: Record) -> Reply:
        """Return the answer to a request, and fill in its record. Raises only BodyWanted."""
        bucket, cell, row = None, self._directory, None
        try:
            bucket = self._bucket_of(request)
            if bucket is not None:
                if _may_create(request) and not self._name_of(request):
                    # A bucket that was deleted is created again where it was last, which only the directory knows: no
                    # cell that it has left is asked before.
                    self._cells.forget_home(bucket)
                row = self._cells.known(bucket) or self._look_up(bucket)
                if row is not None and row.slices:
                    return self._answer_wide(request, source, record, row)
                cell = self._cell_of(request, bucket, row)
            # A copy or rename takes as long as its object is large, which says nothing about the cell.
            if not _COPIES.isdisjoint(request.header_values):
                reply = self._service(cell).answer(request, source, record)
            else:
                self._begin(cell)
                is_failing = False
                try:
                    # Not isinstance: a Protocol answers it with three calls.
                    is_bare = request.method in _WITHOUT_BODY or type(source) is Unasked
                    counted = source if is_bare else _Uncounted(source, cell)
                    reply = (cell.service or self._service(cell)).answer(request, counted, record)
                    is_failing = record.code == "ServiceUnavailable"
                except Transient:
                    is_failing = True
                    raise
                finally:
                    self._end(cell, is_failing)
        except BodyWanted:
            raise
        except Exception as error:
            return refusal(request, to_s3_error(error, request_id=record.request_id), record)
        if row is not None:
            self._correct(row, record)
        if record.code == "ServiceUnavailable" and request.method in _REPEATED and self._was_moved(bucket, [cell.name]):
            record.code = ""
            return self.answer(request, source, record)
        return reply

    def _correct(self, row: DirectoryRow, record: Record) -> None:
        """Correct the directory if a request has found a bucket that was deleted by this row of the directory, or has
        not found one that exists by it."""
        if row.is_deleted:
            if not record.code and self._cells.known(row.bucket) is None:
                self._cells.correct(row)
        elif record.code == "NoSuchBucket":
            self._cells.correct(row)

    def _answer_wide(self, request: Request, source: Source, record: Record, row: DirectoryRow) -> Reply:
        """Answer a request about a wide bucket, if it has no body also if slices were moved since its row was read.
        Raises S3Error, NosError, BodyWanted."""
        try:
            reply = self._answer_in_slices(request, source, record, row)
        except Moved as error:
            reply = refusal(request, to_s3_error(error, request_id=record.request_id), record)
        if (
            record.code == "ServiceUnavailable"
            and request.method in _REPEATED
            and self._was_moved(row.bucket, row.cells)
        ):
            record.code = ""
            return self.answer(request, source, record)
        return reply

    def _answer_in_slices(self, request: Request, source: Source, record: Record, row: DirectoryRow) -> Reply:
        """Answer a request about an object in the cell of its slice; another one in the first cell, which asks all
        others. Raises S3Error, NosError, BodyWanted."""
        name, first = self._name_of(request), self._named(row.home, row.bucket)
        cell = self._named(row.cell_of(name), row.bucket) if name else first
        service = self._wide_service(row.slices, cell)
        if not _COPIES.isdisjoint(request.header_values):
            return service.answer(request, source, record)
        if cell is not first:
            # The first cell says what is allowed. A request must not hold a thread of another one while it is asked.
            with self._counted(first, record), suppress(S3Error):
                self._wide_of(row.slices).access.bucket(row.bucket)
        with self._counted(cell, record):
            if request.method not in _WITHOUT_BODY and type(source) is not Unasked:
                source = _Uncounted(source, cell)
            reply = service.answer(request, source, record)
        self._correct(row, record)
        return reply

    def _was_moved(self, bucket: str | None, cells: Collection[str]) -> bool:
        """Return whether one of these cells has refused a request because its bucket is in another cell now."""
        if bucket is None or self._cells.known(bucket) is not None:
            return False
        with suppress(NosError):
            place = self._cells.place(bucket)
            return place is not None and set(place.cells) != set(cells)
        return False

    def refuse(self, request: Request, error: S3Error, record: Record) -> Reply:
        """Return the answer to a request that failed before it was parsed."""
        return refusal(request, error, record)

    def store_log(self, log: LogObject) -> None:
        """Store a part of the access log of a bucket, in the cell of the target bucket. Raises what
        `BucketLogging.store` raises."""
        self._service_of(log.target).store_log(log)

    def _look_up(self, bucket: str) -> DirectoryRow | None:
        """Return the row of a bucket that this process does not know yet."""
        self._begin(self._directory)
        is_failing = True
        try:
            row = self._cells.place(bucket)
            is_failing = False
        finally:
            self._end(self._directory, is_failing)
        return row

    def _cell_of(self, request: Request, bucket: str, row: DirectoryRow | None) -> _Cell:
        """Return the cell that serves a request about a bucket. For a bucket that there never was, only CreateBucket
        matters: all others are answered alike by every cell."""
        if row is not None:
            return self._of.get(row.home) or self._named(row.home, bucket)
        return self._named(self._for_new_bucket() if _may_create(request) else self._directory.name, bucket)

    def _for_new_bucket(self) -> str:
        try:
            return self._cells.choose()
        except ConfigError as error:
            _log.warning("bucket not created", error=str(error))
            raise S3Error(
                "ServiceUnavailable",
                "No cell of the store takes new buckets. Ask its operator to give one a weight above 0.",
            ) from error

    def _named(self, home: str, bucket: str) -> _Cell:
        cell = self._of.get(home)
        if cell is None:
            raise Transient(f"bucket {bucket} is in cell {home}, which the settings do not have")
        return cell

    def _service(self, cell: _Cell) -> Service:
        if cell.service is None:
            with cell.lock:
                if cell.service is None:
                    cell.service = make_service(
                        self._cells.system(cell.name),
                        self._master_keys,
                        self._settings,
                        self._cells.directory.metadata,
                        _HomesOf(self._cells, cell.name),
                        self._others,
                    )
                    if cell.name != self._directory.name:
                        directory = self._service(self._directory)
                        cell.service.share_keys(directory)
        return cell.service

    def _service_of(self, bucket: str) -> Service:
        """Return the service for requests about a bucket."""
        row = self._cells.place(bucket)
        cell = self._named(self._directory.name if row is None else row.home, bucket)
        return self._service(cell) if row is None or not row.slices else self._wide_service(row.slices, cell)

    def _objects_of(self, bucket: str, name: str) -> ObjectOperations:
        """Return the operations on an object of a bucket."""
        row = self._cells.place(bucket)
        if row is None or not row.slices:
            return self._service_of(bucket).objects
        return self._wide_service(row.slices, self._named(row.cell_of(name), bucket)).objects

    def _bucket_of(self, request: Request) -> str | None:
        """Return the bucket that a request is about. Errors are left to the service, which finds them again."""
        if self._website_domains:
            with suppress(S3Error):
                site = bucket_of_host(request.header("host"), self._website_domains)
                if site is not None:
                    return site
        if not self._domains and request.raw_path.startswith(b"/") and b"%" not in request.raw_path:
            return request.raw_path[1:].partition(b"/")[0].decode("latin-1") or None  # what `addressed` would find
        with suppress(S3Error):
            return addressed(request.raw_path, request.header("host"), self._domains)[0]
        return None

    # --- wide buckets -----------------------------------------------------------------------------
    def _wide_of(self, slices: tuple[str, ...]) -> Wide:
        """Return what the services of wide buckets with these slices have in common."""
        with self._wide_lock:
            found = self._wide.get(slices)
            if found is None:
                first, cells = self._cells.system(slices[0]), tuple(dict.fromkeys(slices))
                buckets = self._cells.wide(slices)
                found = self._wide[slices] = Wide(
                    make_access(first, self._master_keys, self._cells.directory.metadata, buckets),
                    buckets,
                    MergedLists(
                        lambda: [(self._asking(cells[0], cell), self._parts_of(cell)[0]) for cell in cells],
                        lambda name: self._parts_of(slices[slice_of(name, len(slices))])[0],
                    ),
                    MergedUploads(lambda: [(self._asking(cells[0], cell), self._parts_of(cell)[1]) for cell in cells]),
                )
        return found

    def _parts_of(self, cell: str) -> tuple[Store, MultipartUploads]:
        """Return the store of a cell, and its uploads."""
        found = self._parts.get(cell)
        if found is None:
            client = self._cells.system(cell).client
            store = client.store()
            found = self._parts.setdefault(cell, (store, client.uploads(store)))
        return found

    def _wide_service(self, slices: tuple[str, ...], cell: _Cell) -> Service:
        """Return the service of wide buckets with these slices, in one of their cells. Raises Transient."""
        service = self._wide_services.get((slices, cell.name))
        if service is not None:
            return service
        wide, plain = self._wide_of(slices), self._service(cell)
        with self._wide_lock:
            service = self._wide_services.get((slices, cell.name))
            if service is None:
                service = make_service(
                    self._cells.system(cell.name),
                    self._master_keys,
                    self._settings,
                    self._cells.directory.metadata,
                    _HomesOf(self._cells, slices[0], slices),
                    self._others,
                    wide,
                    plain,
                )
                self._wide_services[slices, cell.name] = service
        return service

    def _name_of(self, request: Request) -> str:
        """Return the name of the object that a request is about; empty if it is about none, or about what a website
        shows. Errors are left to the service."""
        if self._website_domains:
            with suppress(S3Error):
                if bucket_of_host(request.header("host"), self._website_domains) is not None:
                    return ""
        with suppress(S3Error):
            return addressed(request.raw_path, request.header("host"), self._domains)[1] or ""
        return ""

    @contextmanager
    def _counted(self, cell: _Cell, record: Record) -> Iterator[None]:
        """Count a request of a cell while it is served. Raises Transient if too many others wait for the cell."""
        self._begin(cell)
        is_failing = False
        try:
            yield
            is_failing = record.code == "ServiceUnavailable"
        except Transient:
            is_failing = True
            raise
        finally:
            self._end(cell, is_failing)

    @contextmanager
    def _asking(self, first: str, cell: str) -> Iterator[None]:
        """Count a request of a wide bucket for the cell that it asks, instead of the first one. Raises Transient if too
        many others wait for that cell."""
        if cell == first:
            yield
            return
        asked, asking = self._of[cell], self._of[first]
        self._begin(asked)
        with asking.lock:
            asking.requests -= 1
            asking.answered_s = self._timer()
        is_failing = False
        try:
            yield
        except Transient:
            is_failing = True
            raise
        finally:
            with asking.lock:
                asking.requests += 1
            self._end(asked, is_failing)

    # --- counting ---------------------------------------------------------------------------------
    def _begin(self, cell: _Cell) -> None:
        """Count a request of a cell. Raises Transient if too many others wait for it already."""
        now_s = self._timer()
        with cell.lock:
            if not cell.requests and not cell.is_failing:
                cell.answered_s = now_s
            waits_s = now_s - cell.answered_s
            if cell.requests >= (self._most if waits_s > STALLED_S else self._most_first) and waits_s > STALLED_S / 4:
                raise Transient(f"{cell.requests} requests wait for cell {cell.name} already")
            cell.requests += 1

    def _end(self, cell: _Cell, is_failing: bool) -> None:
        with cell.lock:
            cell.requests -= 1
            cell.is_failing = is_failing
            if not is_failing:
                cell.answered_s = self._timer()


def _may_create(request: Request) -> bool:
    """Return whether a request may be CreateBucket."""
    if request.method != "PUT" or request.raw_query not in (b"", b"x-id=CreateBucket"):
        return False
    return b"/" not in request.raw_path.strip(b"/")


class _Uncounted(Source):
    """A body. While its client sends it, the request does not count as one that waits for the cell."""

    def __init__(self, source: Source, cell: _Cell) -> None:
        self._source = source
        self._cell = cell

    def next_piece(self) -> bytes:
        """See Source."""
        with self._cell.lock:
            self._cell.requests -= 1
        try:
            return self._source.next_piece()
        finally:
            with self._cell.lock:
                self._cell.requests += 1


@dataclass(frozen=True, slots=True)
class _HomesOf:
    """The directory as one cell sees it."""

    cells: Cells
    cell: str
    slices: tuple[str, ...] = ()

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        return self.cells.buckets_of(owner, after, limit)

    def claim(self, bucket: str, owner: str) -> bool:
        row = self.cells.claim(bucket, owner, self.cell)
        return (row.home, row.slices) == (self.cell, self.slices)
