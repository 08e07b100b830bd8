"""Serves the requests of a store of several cells: each by the service of the cell that holds its bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from nos_ec.composition.cells import Cells
from nos_ec.core.errors import NosError, Transient
from nos_ec.gateway.auth.sealed_secrets import MasterKeys
from nos_ec.gateway.message.body import BodyWanted, Source, Unasked
from nos_ec.gateway.message.failures import to_s3_error
from nos_ec.gateway.message.reply import Reply
from nos_ec.gateway.operations.bucket_logging import LogObject
from nos_ec.gateway.server.http_server import make_service
from nos_ec.gateway.server.record import Record
from nos_ec.gateway.server.service import Service, refusal
from nos_ec.ports.metadata import BucketRow
from nos_ec.s3.errors import S3Error
from nos_ec.s3.names import addressed, bucket_of_host
from nos_ec.s3.request import Request
from nos_ec.settings import S3Settings

STALLED_S = 2.0
"""How long a cell answers nothing until it may hold only a share of the threads."""
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
        self._domains = settings.domain_names
        self._website_domains = settings.website_domain_names
        threads = settings.threads
        self._most_first, self._most = max(1, threads * 3 // 4), max(1, threads // 2)

    def answer(self, request: Request, source: Source, record: Record) -> Reply:
        """Return the answer to a request, and fill in its record. Raises only BodyWanted."""
        bucket, cell = None, self._of[self._cells.directory_cell]
        try:
            bucket = self._bucket_of(request)
            if bucket is not None:
                cell = self._cell_of(request, bucket)
            # A copy or rename takes as long as its object is large, which says nothing about the cell.
            if not _COPIES.isdisjoint(request.header_values):
                reply = self._service(cell).answer(request, source, record)
            else:
                self._begin(cell)
                is_failing = False
                try:
                    counted = source if isinstance(source, Unasked) else _Uncounted(source, cell)
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
        if bucket is not None and record.operation == "DeleteBucket" and record.code == "NoSuchBucket":
            # An earlier deletion, or the creation, ended before the directory had been told.
            with suppress(NosError):
                self._cells.record(cell.name, bucket)
        return reply

    def refuse(self, request: Request, error: S3Error, record: Record) -> Reply:
        """Return the answer to a request that failed before it was parsed."""
        return refusal(request, error, record)

    def store_log(self, log: LogObject) -> None:
        """Store a part of the access log of a bucket, in the cell of the target bucket. Raises what
        `BucketLogging.store` raises."""
        self._service_of(log.target).store_log(log)

    def _cell_of(self, request: Request, bucket: str) -> _Cell:
        """Return the cell that serves a request about a bucket. For a bucket that there never was, only CreateBucket
        matters: all others are answered alike by every cell."""
        home = self._cells.known_home(bucket)
        if home is None:
            directory = self._of[self._cells.directory_cell]
            self._begin(directory)
            is_failing = True
            try:
                home = self._cells.home(bucket)
                is_failing = False
            finally:
                self._end(directory, is_failing)
        if home is None:
            home = self._cells.choose() if _may_create(request) else self._cells.directory_cell
        return self._named(home, bucket)

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
                        self._service_of,
                    )
                    if cell.name != self._cells.directory_cell:
                        directory = self._service(self._of[self._cells.directory_cell])
                        cell.service.share_keys(directory)
        return cell.service

    def _service_of(self, bucket: str) -> Service:
        home = self._cells.home(bucket) or self._cells.directory_cell
        return self._service(self._named(home, bucket))

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
    names_bucket_alone = b"/" not in request.raw_path.strip(b"/")
    return request.method == "PUT" and names_bucket_alone and request.raw_query in (b"", b"x-id=CreateBucket")


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

    def buckets_of(self, owner: str, after: str, limit: int) -> list[BucketRow]:
        return self.cells.buckets_of(owner, after, limit)

    def claim(self, bucket: str, owner: str) -> bool:
        return self.cells.claim(bucket, owner, self.cell) == self.cell
