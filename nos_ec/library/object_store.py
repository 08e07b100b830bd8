"""The facade over an open store that programs use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from io import BytesIO
from time import perf_counter
from typing import Self

from prometheus_client import CollectorRegistry

from nos_ec import __version__
from nos_ec.composition.cells import Cells
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.conditions import ABSENT, MD5_BYTES, Condition
from nos_ec.core.errors import InvalidInput, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.figures.requests import Request, Requests
from nos_ec.engine.objects.store import Store
from nos_ec.engine.wide.listings import Lists, MergedLists
from nos_ec.library.object_info import ObjectInfo, info_of, key_of
from nos_ec.library.object_reader import ObjectReader
from nos_ec.library.put_source import Buffer, PutSource, Readable
from nos_ec.monitoring.declarations import metrics
from nos_ec.monitoring.declarations.library_metrics import LIBRARY
from nos_ec.monitoring.exposition import Exposition, Sample, summed
from nos_ec.monitoring.sources import batch_samples, read_samples, request_samples
from nos_ec.ports.metadata import ROOT_ACCOUNT

CLOSE_WAIT_S_MAX = 60.0
"""How long `close` waits for calls under way: longer than the time-outs of a storage cluster that does not answer."""
PAGE_OBJECTS = 1000
PAGE_MS_MAX = 1000
"""How long one page of a listing with folders may take."""


class ObjectStore:
    """An open store. A context manager. Safe to use from several threads; one process per ObjectStore.

    Objects are named by `ObjectKey(bucket, name)` or by the string `"bucket/name"`. Every call raises InvalidInput when
    the store is closed or was opened before a fork. Every call may raise Transient; then it may be repeated.
    docs/PYTHON.md lists the errors.
    """

    def __init__(self, system: System | Cells) -> None:
        """Use an open system, or open cells; `close` closes it. `open_store` is the usual way to get an ObjectStore."""
        self._system = system
        self._single = None if isinstance(system, Cells) else system.client.store()
        self._stores: dict[str, Store] = {}
        """The stores of cells, by their names."""
        self._requests = Requests(perf_counter)
        self._registered: list[tuple[CollectorRegistry, Exposition]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait up to a minute for running calls, and release everything. Idempotent.

        In a process that was forked from the one that opened the store, this does nothing, because the connections
        belong to the parent.
        """
        if not self._requests.in_this_process:
            return
        self._requests.close(CLOSE_WAIT_S_MAX)
        while self._registered:
            registry, collector = self._registered.pop()
            with suppress(KeyError):  # the program has unregistered it already
                registry.unregister(collector)
        self._system.__exit__(None, None, None)

    @property
    def small_bytes_max(self) -> int:
        """The size in bytes of the largest object that `put_many` accepts. Larger ones get blocks of their own."""
        if self._single is not None:
            return self._single.packed_size_max
        return min(self._of_cell(name).packed_size_max for name in self._cells.opened())

    # --- cells ------------------------------------------------------------------------------------
    @property
    def _cells(self) -> Cells:
        assert isinstance(self._system, Cells)
        return self._system

    def _systems(self) -> Collection[System]:
        """The open store, or all open cells."""
        return self._system.opened().values() if isinstance(self._system, Cells) else (self._system,)

    def _of_cell(self, name: str) -> Store:
        store = self._stores.get(name)
        if store is None:
            store = self._stores.setdefault(name, self._cells.system(name).client.store())
        return store

    def _of(self, key: ObjectKey) -> Store:
        """Return the store that holds an object. A bucket that is nowhere is looked for where any could be, and not
        found. Raises Transient."""
        if self._single is not None:
            return self._single
        place = self._cells.place(key.bucket)
        return self._of_cell(self._cells.directory_cell if place is None else place.cell_of(key.name))

    def _lists(self, bucket: str) -> Lists:
        """Return what lists the objects of a bucket. Raises Transient."""
        if self._single is not None:
            return self._single
        place = self._cells.place(bucket)
        if place is None or not place.slices:
            return self._of_cell(self._cells.directory_cell if place is None else place.home)
        return MergedLists(
            lambda: [(nullcontext(), self._of_cell(cell)) for cell in place.cells],
            lambda name: self._of_cell(place.cell_of(name)),
        )

    def _for_put(self, key: ObjectKey) -> Store:
        """Return the store for an object, after choosing one if its bucket is new. Raises Transient, ConfigError."""
        if self._single is not None:
            return self._single
        return self._of_cell(self._cells.place_for_put(key.bucket).cell_of(key.name))

    def _for_put_many(self, objects: Sequence[tuple[ObjectKey, bytes]]) -> Store:
        """Return the store for all of these objects. Buckets that are new get the cell of the others. Nothing is
        claimed for objects that cannot be stored. Raises InvalidInput, Transient, ConfigError."""
        if self._single is not None:
            return self._single
        places = {bucket: self._cells.place(bucket) for bucket in dict.fromkeys(key.bucket for key, _ in objects)}
        known = {place.cell_of(key.name) for key, _ in objects if (place := places[key.bucket]) is not None}
        if len(known) > 1:
            if any(place is not None and place.slices for place in places.values()):
                raise InvalidInput("these objects are in several cells, which store nothing together; put them apart")
            raise InvalidInput("these buckets are in several cells, which store nothing together; put them apart")
        cell = next(iter(known), None) or self._cells.choose()
        store = self._of_cell(cell)
        store.require_small(objects)
        new = [bucket for bucket, place in places.items() if place is None]
        claimed = [self._cells.claim(bucket, ROOT_ACCOUNT, cell) for bucket in new]
        if any(row.slices or row.home != cell for row in claimed):
            raise Transient("another program has put one of these buckets into another cell meanwhile; try again")
        return store

    # --- writing ----------------------------------------------------------------------------------
    def put(
        self,
        key: ObjectKey | str,
        data: Buffer | Readable | Iterable[Buffer],
        size: int | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        if_absent: bool = False,
        if_match: bytes | ObjectInfo | None = None,
    ) -> ObjectInfo:
        """Store an object, durably on return. It replaces the object with that name.

        data: bytes, a binary file, or an iterable of bytes. size: the number of bytes, if it is known. Then a file is
        not read beyond it, fewer bytes are refused, and so are bytes or an iterable with more. At most one block (32
        MiB by default) and the encoded form of 4 MiB are in memory. attributes: later returned by
        `ObjectInfo.attributes`. Names have at most 255 bytes; all names and values have at most 8 KiB, counting 3 more
        bytes for each pair. if_absent: store it only if there is no object with that name. if_match: store it
        only if the current version has this MD5, or the MD5 and the number of parts of this ObjectInfo. Both conditions
        are judged when the object is recorded, so only one of several concurrent PUTs takes effect.

        After an error the previous version, if any, is still current, unless the outcome of the last step is unknown (a
        Transient). Repeating the PUT is correct in both cases. Raises PreconditionFailed (if_absent or if_match does
        not hold), NotFound (if_match without an object), InvalidInput, NoSpace, Transient, ConfigError (the bucket is
        new, and no cell takes new ones), Conflict (the PUT of a large object stalled for longer than its lease),
        TypeError for data that is not binary, and any error from reading `data`.
        """
        with Request(self._requests, self._requests.puts) as request:
            whole_key, encoded = key_of(key), encode_attributes(attributes or {})
            condition = _condition(if_absent, if_match)
            if isinstance(data, Buffer):
                data = _of_size(data, size)
            # A bucket that is new has no object that could match, so it gets no cell.
            store = self._of(whole_key) if if_match is not None else self._for_put(whole_key)
            if isinstance(data, bytes):
                row = store.put(whole_key, BytesIO(data), encoded, condition)
            else:
                source = PutSource(data, size, self._requests.timer)
                row = store.put(whole_key, source, encoded, condition)
                request.leave_out(source.seconds)
            if self._single is None:
                self._cells.correct_after_put(whole_key.bucket)
            request.size = row.size
            return info_of(row)

    def put_many(self, objects: Sequence[tuple[ObjectKey | str, bytes]]) -> Sequence[ObjectInfo]:
        """Store several small objects without attributes, either all or none. This is much faster than one by one.
        In a store of several cells, all objects must be in one of them; buckets that are new get the cell of the
        others.
        Raises InvalidInput when one has more than `small_bytes_max` bytes, NoSpace, Transient."""
        with Request(self._requests, self._requests.puts):
            given = [(key_of(key), data) for key, data in objects]
            rows = self._for_put_many(given).put_many(given) if given else []
            if self._single is None:
                for bucket in {key.bucket for key, _ in given}:
                    self._cells.correct_after_put(bucket)
        for row in rows:
            self._requests.puts.add(None, row.size)
        return [info_of(row) for row in rows]

    def set_attributes(self, key: ObjectKey | str, attributes: Mapping[str, str]) -> ObjectInfo:
        """Replace the attributes of the current version, durably. Its bytes and its version number stay. Returns the
        version. Of two concurrent calls, the later one wins. Raises NotFound, InvalidInput, Transient."""
        with Request(self._requests, self._requests.changes):
            found = key_of(key)
            return info_of(self._of(found).set_attributes(found, encode_attributes(attributes)))

    def delete(self, key: ObjectKey | str, *, if_match: bytes | ObjectInfo | None = None) -> ObjectInfo:
        """Delete an object, durably; it moves to the trash if `trash.keep_days` is set. Returns the deleted version.
        if_match: delete it only if it has this MD5, as for `put`. Raises NotFound, PreconditionFailed (it has another
        MD5), InvalidInput, Transient."""
        with Request(self._requests, self._requests.deletes):
            found = key_of(key)
            return info_of(self._of(found).delete(found, condition=_condition(False, if_match)))

    def delete_many(self, keys: Iterable[ObjectKey | str]) -> Sequence[ObjectInfo]:
        """Delete several objects as `delete` does, skipping keys without an object. Returns the deleted versions in the
        order of `keys`. Raises InvalidInput, and Transient: then some may be deleted, and calling again is safe."""
        with Request(self._requests, self._requests.deletes):
            found = [key_of(key) for key in keys]
            groups: dict[int, tuple[Store, list[ObjectKey]]] = {}
            for key in found:
                store = self._of(key)
                groups.setdefault(id(store), (store, []))[1].append(key)
            rows = {row.key: row for store, of_store in groups.values() for row in store.delete_many(of_store)}
            return [info_of(rows[key]) for key in dict.fromkeys(found) if key in rows]

    # --- reading ----------------------------------------------------------------------------------
    def head(self, key: ObjectKey | str) -> ObjectInfo:
        """Return the current version. Raises NotFound, InvalidInput, Transient."""
        with Request(self._requests, self._requests.heads):
            found = key_of(key)
            return info_of(self._of(found).head(found))

    def get(self, key: ObjectKey | str | ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of an object that fits into memory, or a range of them, which may end after the object.

        An ObjectInfo stands for exactly that version; Conflict is raised if it is gone. Raises NotFound, InvalidInput
        (a range that starts before 0 or after the end), Corrupt, Transient.
        """
        with Request(self._requests, self._requests.gets) as request:
            if isinstance(key, ObjectInfo):
                data = b"".join(self._of(key.row.key).open_version(key.row, start, length))
            else:
                found = key_of(key)
                data = self._of(found).get(found, start, length)
            request.size = len(data)
            return data

    def open_read(self, key: ObjectKey | str | ObjectInfo) -> ObjectReader:
        """Open one version of an object of any size as a binary file. `reader.info` is the version.

        An ObjectInfo stands for exactly that version; Conflict is raised if it is gone. Raises NotFound, InvalidInput,
        Corrupt, Transient.
        """
        with Request(self._requests, self._requests.gets) as request:
            store = self._of(key.row.key if isinstance(key, ObjectInfo) else key_of(key))
            row = key.row if isinstance(key, ObjectInfo) else store.resolve(key_of(key))
            whole = None
            if not row.in_windows:
                if isinstance(key, ObjectInfo):
                    segments = store.open_version(row)
                else:
                    row, segments = store.read(row)
                if not row.in_windows:
                    whole = b"".join(segments)
            if whole is None:
                request.leave_untimed()  # the first read is what takes time
        return ObjectReader(store, self._requests, info_of(row), whole)

    # --- listing ----------------------------------------------------------------------------------
    def list(self, bucket: str, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """Yields the objects of a bucket whose names begin with `prefix` and come after `after`, in the byte order of
        UTF-8.

        Pages are read as the caller iterates. Objects that are stored or deleted meanwhile may be included or not.
        Raises InvalidInput, Transient.
        """
        while True:
            with Request(self._requests, self._requests.lists):
                page = self._lists(bucket).list_objects(bucket, prefix, after, PAGE_OBJECTS)
            yield from map(info_of, page)
            if len(page) < PAGE_OBJECTS:
                return
            after = page[-1].key.name

    def list_folder(
        self, bucket: str, prefix: str = "", delimiter: str = "/", *, after: str = ""
    ) -> Iterator[ObjectInfo | str]:
        """Like `list`, but names with a delimiter after `prefix` are folded into one entry: the folder, a str that ends
        with the delimiter. Objects in a folder are not read, however many there are.

        after: the listing continues after this name or folder, and skips the folder that contains it. Raises
        InvalidInput, Transient.
        """
        while True:
            with Request(self._requests, self._requests.lists):
                page = self._lists(bucket).list_entries(bucket, prefix, delimiter, after, PAGE_OBJECTS, PAGE_MS_MAX)
            for entry in page.entries:
                yield entry if isinstance(entry, str) else info_of(entry)
            if page.next_after is None:
                return
            after = page.next_after

    def buckets(self) -> Iterator[str]:
        """Yields the names of all buckets that have an object, in the byte order of UTF-8. Raises Transient."""
        after = ""
        while True:
            with Request(self._requests, self._requests.lists):
                page = self._buckets(after)
            yield from page
            if len(page) < PAGE_OBJECTS:
                return
            after = page[-1]

    def _buckets(self, after: str) -> Sequence[str]:
        """Return a page of buckets. With several cells, raises Transient if one cannot be reached."""
        if self._single is not None:
            return self._single.list_buckets(after, PAGE_OBJECTS)
        return self._cells.list_buckets(after, PAGE_OBJECTS)

    # --- metrics ----------------------------------------------------------------------------------
    def register(self, registry: CollectorRegistry) -> None:
        """Export the metrics of this store's requests (docs/METRICS.md, service `library`) until it is closed.

        Raises ValueError when the registry already has the metrics of a store. Use one registry per store.
        """
        if any(known is registry for known, _ in self._registered):
            raise ValueError("the metrics of this store are registered already")
        collector = Exposition(CollectorRegistry())
        collector.add("process", lambda: [Sample(metrics.INFO, 1, (LIBRARY, __version__))])
        collector.add("reads", lambda: summed(self._samples(lambda system: read_samples(system.blocks.counters()))))
        collector.add("requests", lambda: request_samples(self._requests))
        collector.add("batches", lambda: summed(self._samples(lambda system: batch_samples(system.client.puts))))
        registry.register(collector)
        self._registered.append((registry, collector))

    def _samples(self, of: Callable[[System], Iterable[Sample]]) -> Iterator[Sample]:
        for system in self._systems():
            yield from of(system)


def _condition(if_absent: bool, if_match: bytes | ObjectInfo | None) -> Condition | None:
    if if_match is None:
        return ABSENT if if_absent else None
    if if_absent:
        raise InvalidInput("if_absent and if_match exclude each other; give one of them")
    if isinstance(if_match, ObjectInfo):
        return Condition(if_match.md5, if_match.parts)
    if len(if_match) != MD5_BYTES:
        raise InvalidInput(f"if_match has {len(if_match)} bytes; give the {MD5_BYTES} of `ObjectInfo.md5`")
    return Condition(if_match)


def _of_size(data: Buffer, size: int | None) -> bytes:
    found = data if isinstance(data, bytes) else bytes(data)
    if size is not None and len(found) != size:
        raise InvalidInput(f"size is {size}, but the data has {len(found)} bytes")
    return found
