"""The steps of the demo, and their measurements.

PUT every file -> producer and consumer until everything is packed -> read everything back from the stripes -> delete a
share -> GC -> read every survivor -> lose shards -> read a sample. All bytes are compared to the files. The demo uses
its own store (nos_ec/composition/scratch.py), so it never touches the data of the configured one.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nos_consumer.assemble import drain
from nos_consumer.counters import ConsumerCounters
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.errors import InvalidInput, NosError, NoSpace, Transient
from nos_ec.core.formats.header import name_record_size
from nos_ec.core.geometry import PAGE
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.bounds import utilisation_max
from nos_ec.core.packing.merge_list import merge_list, split_price
from nos_ec.core.packing.plan import Candidate, MergeList
from nos_ec.core.ratios import ratio, rounded
from nos_ec.core.states import ObjectState
from nos_ec.demo.losses import shards_lost
from nos_ec.demo.packing import pack_in_processes
from nos_ec.demo.s3 import BUCKET, Access, create_key, require_client, s3_gateway, s3_settings
from nos_ec.demo.space import allocated_bytes
from nos_ec.engine.gc.run.progress import CollectionResult
from nos_ec.engine.objects.store import DELETE_BATCH_OBJECTS, Store
from nos_ec.library.tree import load_tree
from nos_ec.ports.block_store import ReadCounters
from nos_ec.ports.metadata import ObjectRow
from nos_ec.settings import Settings, write_settings
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service

SPACE_FACTOR = 3
"""The demo needs space for landing copies (1x), stripes with coding chunks (1.4x), and rewritten survivors while their
old blocks still exist. 3x is enough."""

HOLE_RATIO_MIN = 0.45
"""GC collects blocks with at least this share of dead bytes, which is near break-even with 3 replicas (docs/CONFIG.md).
With a value near the share of deleted objects, it would depend on chance whether a block with one big survivor is
collected."""

LOG_SHARE_MAX = 0.75
"""The maximum share of the landing log that the demo fills. The end of a segment stays empty if no batch fits."""

PUBLISHED_LINGER_WINDOWS = 2
"""Deadline of the published policy, in windows of arrivals (one arrival per millisecond). It limits how long the policy
waits for its 80 % threshold."""

PAGE_ROWS = 1000

REPLICAS = 3
"""Copies of every byte in the replicated pool with which the demo compares."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo. `source` is the folder to read; the first path component below it is the bucket.
    `limit_bytes` and `limit_objects` limit what is stored. `delete_share` is the share of objects deleted before GC.
    `sample_objects` are read while shards are lost. `root` is the folder of the embedded parts and of the store's
    configuration; `keep` keeps the store afterwards. `consumers` is the number of processes that pack at the same time;
    1 means this process itself. `s3` stores and reads through an S3 gateway as well, all in one bucket."""

    source: Path
    limit_bytes: int
    limit_objects: int
    delete_share: float
    sample_objects: int
    seed: int
    root: Path
    keep: bool
    consumers: int
    s3: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was PUT, and its size at that time."""

    key: ObjectKey
    path: Path
    size: int


@dataclass(slots=True)
class Verification:
    """Counts of reads that were compared to files. `changed` counts files that have changed since their PUT, so that
    the comparison proves nothing. `unanswered` counts reads that failed for a transient reason, such as a time-out;
    they prove nothing either."""

    reads: int = 0
    bytes: int = 0
    mismatches: int = 0
    changed: int = 0
    unanswered: int = 0
    first_mismatch: str | None = None
    first_unanswered: str | None = None


@dataclass(slots=True)
class Report:
    """All results of the demo, filled in step by step."""

    source: str
    objects: int = 0
    bytes: int = 0
    skipped_files: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    verify: Verification = field(default_factory=Verification)
    seconds: dict[str, float] = field(default_factory=dict)


Tick = Callable[[str, int, int], None]
"""Reports progress, as (step, done, total)."""


class Demo:
    """A run of the demo. `timer` returns seconds since some fixed moment (a monotonic clock)."""

    def __init__(self, settings: Settings, options: DemoOptions, timer: Callable[[], float], tick: Tick) -> None:
        self._options = options
        self._timer = timer
        self._tick = tick
        self._rng = random.Random(options.seed)
        self._raw_before = 0
        self._settings = _demo_settings(settings)
        self.report = Report(source=str(options.source))
        self.access: Access | None = None
        """The access key of the S3 gateway, if there is one."""

    def run(self) -> Report:
        """Run all steps. Raises InvalidInput for an unusable source, and NoSpace before anything is written."""
        if self._options.s3:
            require_client()
        with self._step("scan"):
            files = self._scan()
        self._settings = _with_enough_log(self._settings, files)
        self._check_space(sum(file.size for file in files))
        options = self._options
        try:
            with scratch_store(self._settings, options.root, "demo", keep=options.keep) as settings:
                if options.s3:
                    settings = s3_settings(settings, options.root)
                self._settings = settings
                write_settings(settings, self.config_file)
                with open_system(settings) as system:
                    self._raw_before = self._raw_bytes(system)
                    with self._step("put"):
                        self._put(files)
                    self._run(system, files)
        finally:
            if not options.keep:
                shutil.rmtree(options.root, ignore_errors=True)
        return self.report

    @property
    def s3_port(self) -> int:
        """The port on which the gateway of a kept store listens."""
        return self._settings.s3.port

    @property
    def config_file(self) -> Path:
        """The configuration of the demo's store, for its consumer processes and for a user who keeps the store."""
        return self._options.root / "nos-ec.toml"

    def _run(self, system: System, files: list[SourceFile]) -> None:
        store = system.client.store()
        with self._step("pack"):
            self._pack(system)
        rows = {row.key: row for row in _listed(store)}
        self._measure_packing(system, [rows[file.key] for file in files])
        with self._step("read all"):
            self._read_all(system, store, files)
        if self.access is not None:
            with self._step("read by S3"):
                self._read_by_s3(self.access, files)
        with self._step("delete"):
            survivors = self._delete(store, files)
        with self._step("gc"):
            self._collect(system)
        with self._step("read survivors"):
            self._verify("read survivors", store, survivors)
        with self._step("read with lost shards"):
            self._read_degraded(system, store, survivors)

    # --- steps ------------------------------------------------------------------------------------
    def _scan(self) -> list[SourceFile]:
        files: list[SourceFile] = []
        for path in _regular_files(self._options.source):
            file = _source_file(self._options.source, path, BUCKET if self._options.s3 else None)
            if file is None:
                self.report.skipped_files += 1
            else:
                files.append(file)
        # Real objects do not arrive sorted by folder; a seeded shuffle also makes a limited run a fair sample.
        self._rng.shuffle(files)
        taken: list[SourceFile] = []
        size = 0
        for file in files[: self._options.limit_objects]:
            if size + file.size <= self._options.limit_bytes:
                taken.append(file)
                size += file.size
        if not taken:
            raise InvalidInput(
                f"{self._options.source} has no readable file within the limits; choose another --source"
            )
        return taken

    def _check_space(self, size: int) -> None:
        root = self._options.root
        try:
            root.mkdir(parents=True, exist_ok=True)
            is_empty = not any(root.iterdir())
        except OSError as error:
            raise InvalidInput(f"{root}: {error.strerror}; give another --root") from error
        if not is_empty:
            raise InvalidInput(f"{root} is not empty; the demo creates its own store: give another --root")
        if self._settings.store.backend != "local":
            return
        free = shutil.disk_usage(root).free
        landing = self._settings.landing
        devices_bytes = landing.device_bytes * len(landing.paths(root)) if landing.mode == "log" else 0
        needed = size * SPACE_FACTOR + devices_bytes
        if free < needed:
            raise NoSpace(f"{root} has {free} bytes free, {needed} needed: lower --limit-bytes or give another --root")

    def _put(self, files: Sequence[SourceFile]) -> None:
        def on_file(size: int) -> None:
            self.report.objects += 1
            self.report.bytes += size
            self._tick("put", self.report.objects, len(files))

        pairs = [(file.key, file.path) for file in files]
        if self._options.s3:
            self.access = create_key(self.config_file)
            with s3_gateway(self.config_file, self.access) as objects:
                objects.put_all(pairs, on_file)
        else:
            with open_system(self._settings) as gateway:
                store = gateway.client.store()
                load_tree(lambda _: store, pairs, on_file)

    def _read_by_s3(self, access: Access, files: Sequence[SourceFile]) -> None:
        paths, reads = {file.key: file for file in files}, 0

        def on_file(key: ObjectKey, problem: str | None) -> None:
            nonlocal reads
            file = paths[key]
            reads += 1
            self.report.verify.reads += 1
            self.report.verify.bytes += file.size
            self._count(file, problem)
            self._tick("read by S3", reads, len(files))

        with s3_gateway(self.config_file, access) as objects:
            objects.compare_all([(file.key, file.path) for file in files], on_file)
        self.report.figures["s3"] = {"puts": self.report.objects, "gets": reads}

    def _pack(self, system: System) -> None:
        with producer_service(system) as producer:
            published = producer.drain()
        counters = self._consume(system, published)
        self.report.figures["published"] = published
        self.report.figures["consumer"] = asdict(counters)
        self.report.figures["consumer_processes"] = self._options.consumers
        self.report.figures["landing_copies_left"] = system.metadata.totals().landing_deletions

    def _consume(self, system: System, published: int) -> ConsumerCounters:
        """Pack everything. With a grace period of zero, landing copies are deleted at once, so that all later reads use
        packed stripes."""
        if self._options.consumers == 1:
            return drain(system, lambda counters: self._tick("pack", counters.packed, published))

        def watch() -> None:
            self._tick("pack", system.metadata.totals().packed_objects, published)

        counters = pack_in_processes(self.config_file, self._options.consumers, watch)
        system.worker.housekeeping().run_once()
        return counters

    def _read_all(self, system: System, store: Store, files: Sequence[SourceFile]) -> None:
        """Read small objects first, so that their shard reads can be counted separately."""
        chunk_size = system.geometry.chunk_size
        small = [file for file in files if 0 < file.size <= chunk_size]
        others = [file for file in files if not 0 < file.size <= chunk_size]
        before = system.blocks.counters()
        self._verify("read all", store, small)
        after = system.blocks.counters()
        self.report.figures["small_get"] = _read_cost(before, after, small)
        self._verify("read all", store, others)

    def _delete(self, store: Store, files: Sequence[SourceFile]) -> list[SourceFile]:
        doomed: list[ObjectKey] = []
        survivors: list[SourceFile] = []
        for file in files:
            if self._rng.random() < self._options.delete_share:
                doomed.append(file.key)
            else:
                survivors.append(file)
        for first in range(0, len(doomed), DELETE_BATCH_OBJECTS):
            batch = doomed[first : first + DELETE_BATCH_OBJECTS]
            store.delete_many(batch)
            self._tick("delete", first + len(batch), len(doomed))
        self.report.figures["deleted_objects"] = len(doomed)
        return survivors

    def _collect(self, system: System) -> None:
        before = system.metadata.totals()
        raw_before = self._raw_bytes(system)
        result = gc_service(system).run_once()
        after = system.metadata.totals()
        self.report.figures["gc"] = {
            **_gc_figures(result),
            "stripes_before": before.stripes,
            "stripes_after": after.stripes,
            "raw_bytes_before": raw_before,
            "raw_bytes_after": self._raw_bytes(system),
            "utilisation_before": rounded(before.utilisation(system.geometry)),
            "utilisation_after": rounded(after.utilisation(system.geometry)),
        }

    def _read_degraded(self, system: System, store: Store, survivors: Sequence[SourceFile]) -> None:
        sample = self._rng.sample(list(survivors), min(self._options.sample_objects, len(survivors)))
        with shards_lost(self._settings, self._rng) as shards:
            if shards is None:
                self.report.figures["lost_shards"] = None
                return
            before = system.blocks.counters()
            self._verify("read with lost shards", store, sample)
            degraded = system.blocks.counters().degraded_reads - before.degraded_reads
        counted = degraded if self._settings.store.backend == "local" else None
        self.report.figures["lost_shards"] = {"shards": shards, "reads": len(sample), "degraded_reads": counted}

    # --- measuring --------------------------------------------------------------------------------
    def _measure_packing(self, system: System, rows: Sequence[ObjectRow]) -> None:
        geometry = system.geometry
        packed = [row for row in rows if row.state is ObjectState.PACKED and row.extent is not None]
        totals = system.metadata.totals()
        large_stripes = sum(_large_stripes(system, row) for row in rows if row.state is ObjectState.LARGE)
        packed_stripes = totals.stripes - large_stripes
        packed_bytes = sum(row.size for row in packed)
        small = [row for row in packed if row.size <= geometry.chunk_size]
        in_one = [row for row in small if row.extent and geometry.chunks_touched(row.extent.offset, row.size) == 1]
        raw_bytes = self._raw_bytes(system)
        user_bytes = sum(row.size for row in rows)
        records = [(row.size, name_record_size(row.key.bucket, row.key.name)) for row in packed]
        consumer = self._settings.consumer
        price = split_price(consumer.policy, geometry, consumer.split_bytes)
        self.report.figures.update(
            objects_by_state={state.value: sum(row.state is state for row in rows) for state in ObjectState},
            packed_bytes=packed_bytes,
            packed_stripes=packed_stripes,
            large_stripes=large_stripes,
            utilisation=rounded(geometry.share(packed_bytes, packed_stripes)),
            utilisation_with_large_objects=rounded(totals.utilisation(geometry)),
            single_chunk_ratio=rounded(ratio(len(in_one), len(small))),
            raw_bytes=raw_bytes,
            raw_bytes_per_user_byte=rounded(ratio(raw_bytes, user_bytes)),
            replicas=REPLICAS,
            mean_name_bytes=rounded(ratio(sum(name_size for _, name_size in records), len(records))),
            bound=rounded(utilisation_max([row.size for row in packed], geometry, price)),
            utilisation_nos_policy=self._published_utilisation(records),
        )

    def _raw_bytes(self, system: System) -> int:
        """Return the bytes allocated for the demo's objects."""
        return allocated_bytes(self._settings, system, self._timer) - self._raw_before

    def _published_utilisation(self, records: Sequence[tuple[int, int]]) -> float | None:
        """Return the utilisation of the published policy with the same objects, including names and last stripes."""
        geometry, window = self._settings.geometry.value(), self._settings.consumer.window_objects
        linger_ms = PUBLISHED_LINGER_WINDOWS * window
        published: MergeList[None] = merge_list("nos", geometry, window, linger_ms, self._rng)
        stripes = 0
        for now_ms, (size, name_size) in enumerate(records):
            published.add(Candidate(size, name_size, None, now_ms))
            while (plan := published.plan(now_ms)) is not None:
                stripes += plan.stripe_count
        while (plan := published.plan(len(records), flush=True)) is not None:
            stripes += plan.stripe_count
        return rounded(geometry.share(sum(size for size, _ in records), stripes))

    def _verify(self, step: str, store: Store, files: Sequence[SourceFile]) -> None:
        verify = self.report.verify
        for done, file in enumerate(files, 1):
            verify.reads += 1
            try:
                problem = _difference(store, file)
            except Transient as error:
                verify.unanswered += 1
                verify.first_unanswered = verify.first_unanswered or f"{file.key}: {error}"
            else:
                verify.bytes += file.size
                self._count(file, problem)
            self._tick(step, done, len(files))

    def _count(self, file: SourceFile, problem: str | None) -> None:
        verify = self.report.verify
        if problem == "changed":
            verify.changed += 1
        elif problem is not None:
            verify.mismatches += 1
            verify.first_mismatch = verify.first_mismatch or f"{file.key}: {problem}"

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        start = self._timer()
        yield
        self.report.seconds[name] = round(self._timer() - start, 3)


def _demo_settings(settings: Settings) -> Settings:
    """Return the settings with grace periods of zero, and with a GC that collects blocks of any age without a space
    target, so that one run shows everything."""
    return settings.model_copy(
        update={
            "put": settings.put.model_copy(update={"min_age_ms": 0}),
            "reaper": settings.reaper.model_copy(update={"landing_grace_ms": 0}),
            "gc": settings.gc.model_copy(
                update={"block_grace_ms": 0, "policy": "threshold", "hole_ratio_min": HOLE_RATIO_MIN}
            ),
        }
    )


def _with_enough_log(settings: Settings, files: Sequence[SourceFile]) -> Settings:
    """Return the settings with a landing log that is large enough for all files, because packing begins after the last
    PUT. Each file takes up to a page more than its bytes, because a batch fills whole pages."""
    landing = settings.landing
    stored = sum(file.size + PAGE for file in files) * landing.copies / LOG_SHARE_MAX
    device_bytes = math.ceil(stored / len(landing.paths(settings.store.root)) / PAGE) * PAGE
    room = {"device_bytes": max(landing.device_bytes, device_bytes)}
    return settings.model_copy(update={"landing": landing.model_copy(update=room)})


def _listed(store: Store) -> Iterator[ObjectRow]:
    """Yields every object, in pages, because a look-up by name would cost one transaction per object."""
    bucket_after = ""
    while buckets := store.list_buckets(bucket_after, PAGE_ROWS):
        for bucket in buckets:
            after = ""
            while page := store.list_objects(bucket, "", after, PAGE_ROWS):
                yield from page
                after = page[-1].key.name
        bucket_after = buckets[-1]


def _regular_files(source: Path) -> Iterator[Path]:
    try:
        is_folder = source.is_dir()
    except OSError as error:
        raise InvalidInput(f"--source {source}: {error.strerror}") from error
    if not is_folder:
        raise InvalidInput(f"--source {source} is not a folder")
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            yield Path(folder, name)


def _source_file(source: Path, path: Path, bucket: str | None) -> SourceFile | None:
    """Return the file as an object, or None if it is not a regular file, is unreadable or has no valid name.

    `bucket` is the bucket of all files; None makes a bucket of each folder.
    """
    try:
        if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
            return None
        parts = path.relative_to(source).parts
        if bucket is not None:
            key = ObjectKey(bucket, "/".join(parts))
        elif len(parts) > 1:
            key = ObjectKey(parts[0], "/".join(parts[1:]))
        else:
            key = ObjectKey(source.resolve().name or "root", parts[0])
        return SourceFile(key, path, path.stat().st_size)
    except (OSError, InvalidInput):
        return None


def _difference(store: Store, file: SourceFile) -> str | None:
    """Return None if the object equals the file, "changed" if the file has changed since its PUT, or else the problem.
    Raises Transient if the store did not answer."""
    try:
        with file.path.open("rb") as stream:
            row, segments = store.open(file.key)
            same = all(segment == stream.read(len(segment)) for segment in segments) and not stream.read(1)
        if same:
            return None
        return "bytes differ" if _md5(file.path) == row.md5 else "changed"
    except OSError:
        return "changed"
    except Transient:
        raise
    except NosError as error:
        return str(error)


def _md5(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).digest()


def _large_stripes(system: System, row: ObjectRow) -> int:
    segments = system.metadata.segments(row.object_id, row.version)
    return sum(system.metadata.block(segment.extent.block_id).stripes for segment in segments)


def _read_cost(before: ReadCounters, after: ReadCounters, files: Sequence[SourceFile]) -> dict[str, Any]:
    user_bytes = sum(file.size for file in files)
    return {
        "objects": len(files),
        "shard_reads_mean": rounded(ratio(after.shard_reads - before.shard_reads, len(files))),
        "shard_bytes_per_user_byte": rounded(ratio(after.shard_bytes - before.shard_bytes, user_bytes)),
        "degraded_reads": after.degraded_reads - before.degraded_reads,
    }


def _gc_figures(result: CollectionResult) -> dict[str, Any]:
    figures = asdict(result)
    figures["header_share"] = rounded(ratio(result.header_bytes_read, result.block_bytes_examined))
    return figures
