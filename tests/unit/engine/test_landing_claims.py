"""What the landing log does of what published systems claim, in counts of bytes and operations.

The rows are those of docs/MEASUREMENTS.md, "The landing log and published systems".
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import google_crc32c
import pytest

from nos_ec.core.formats.landing_format import (
    FOOTER_ENTRY_SIZE,
    RECORD_HEADER_SIZE,
    NewRecord,
    batch_size,
    footer_size,
    new_record,
)
from nos_ec.core.ids import LandingId, ObjectKey, SegmentId
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.log_reader import LogReader
from nos_ec.ports.segment_medium import Buffer, Seal
from tests.rig.fakes.clock import SetClock
from tests.rig.fakes.memory_medium import SMALL, MemoryMedium
from tests.rig.fakes.memory_segments import MemorySegments

ROOT = Path(__file__).parents[3]
KIB = 1 << 10
PAGE = 4 * KIB
LARGE = replace(SMALL, segment_bytes=64 << 20, start=PAGE, align=PAGE, batch_bytes_max=1 << 20, batch_records_max=256)
"""As on devices."""


class Counted(MemoryMedium):
    """Counts the ranges of reads."""

    ranges = 0

    def read(self, segment: SegmentId, ranges: Sequence[tuple[int, int]], copy: int = 0) -> list[bytes]:
        self.ranges += len(ranges)
        return super().read(segment, ranges, copy)


class Forgetful(MemoryMedium):
    """Keeps nothing of what is appended."""

    def _put(self, segment: SegmentId, kept: object, offset: int, data: bytes, seal: Seal | None = None) -> bool:
        return True

    def seal(self, segment: SegmentId, footer: Sequence[Buffer] | None, records: int) -> int:
        self._disk.pop(segment, None)
        return self.limits.start


def log_over(medium: MemoryMedium, segments: MemorySegments) -> LandingLog:
    options = LogOptions(open_segments=1, segment_age_ms=60_000, lease_ttl_ms=30_000, wait_ms=10_000)
    return LandingLog(segments, medium, SetClock(), Random(1).randbytes, options)


def landed(log: LandingLog, batch: Sequence[NewCopy]) -> list[LandingId]:
    found = log.land(batch)
    found.settle(())
    ids = [outcome for outcome in found.outcomes if isinstance(outcome, bytes)]
    assert len(ids) == len(batch)
    return ids


def copies(size: int, number: int, buckets: int = 32) -> list[NewCopy]:
    data = bytes(size)
    return [
        NewCopy(ObjectKey(f"bucket-{index % buckets}", f"{index:09}.bin"), data, google_crc32c.value(data))
        for index in range(number)
    ]


def records(size: int, number: int) -> list[NewRecord]:
    return [new_record(copy.key, copy.data, copy.crc32c) for copy in copies(size, number)]


@pytest.mark.parametrize(("batch", "most"), [(5, 0.25), (8, 0.25), (20, 0.06), (32, 0.05)])
def test_headers_names_and_padding_add_little(batch: int, most: float) -> None:
    """A7: to batches of 4 KiB that 16 callers make (5 as measured, 8 when half of them always wait) and 64 (20, 32)."""
    assert batch_size(records(PAGE, batch), PAGE) <= (1 + most) * batch * PAGE


def test_the_index_is_written_with_the_data() -> None:
    """U2: its 64 bytes a record need no write of their own, and its copy in the footer 40."""
    medium, segments = MemoryMedium(limits=LARGE), MemorySegments()
    log = log_over(medium, segments)
    for _ in range(10):
        landed(log, copies(100, 8))
    assert (RECORD_HEADER_SIZE, FOOTER_ENTRY_SIZE) == (64, 40)
    assert (medium.appends, log.counters.records) == (10, 80)
    log.close()
    (row,) = (row for row in segments.rows.values() if row.records)
    assert (medium.appends, row.records) == (10, 80), "the seal writes the footer"
    (footer,) = medium.read(row.segment, [(row.end, LARGE.segment_bytes)])
    assert len(footer) == footer_size(80, PAGE) == PAGE


def test_footers_are_a_hundredth_of_the_records() -> None:
    """U3: so much less is read to list what a segment holds."""
    number = 15_000
    assert 100 * footer_size(number, PAGE) < batch_size(records(PAGE, number), PAGE)


def test_memory_grows_neither_with_records_nor_with_buckets() -> None:
    """Q1, Q4: what a log keeps of a record is its entry in the footer of an open segment."""
    medium, segments = (
        Forgetful(limits=replace(LARGE, segment_bytes=256 * KIB, batch_bytes_max=64 * KIB)),
        MemorySegments(),
    )
    log = log_over(medium, segments)

    def kept_bytes(first: int, number: int) -> int:
        for start in range(first, first + number, 16):
            data = b"%058d" % start
            crc32c = google_crc32c.value(data)
            landed(log, [NewCopy(ObjectKey(f"bucket-{start + i}", "name"), data, crc32c) for i in range(16)])
        log.seal()
        segments.rows.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        kept_bytes(0, 2_000)
        before = kept_bytes(2_000, 2_000)
        grown = kept_bytes(4_000, 16_000) - before
    finally:
        tracemalloc.stop()
    assert grown < 16_000, f"{grown} bytes for 16,000 records in as many buckets"
    assert log.counters.sealed >= 10
    log.close()


@pytest.mark.parametrize(("size", "most"), [(58, 0.02), (PAGE, 0.1), (64 * KIB, 0.8)])
def test_one_of_four_consumers_reads_in_runs(size: int, most: float) -> None:
    """Q6: reads an object. Its records lie among those of the others, and small gaps are read along. With 64 KiB, one
    record of another consumer is too much: lanes do not go by partition."""
    medium = Counted(limits=LARGE)
    log = log_over(medium, MemorySegments())
    new = copies(size, 640)
    ids = [one for first in range(0, len(new), 16) for one in landed(log, new[first : first + 16])]
    chance = Random(6)
    mine = [landing_id for landing_id in ids if chance.randrange(4) == 0]
    reader = LogReader(medium)
    for first in range(0, len(mine), 64):
        assert reader.read_records([(one, size) for one in mine[first : first + 64]]) == [bytes(size)] * len(
            mine[first : first + 64]
        )
    assert medium.ranges / len(mine) <= most
    log.close()


def test_the_table_has_every_row_and_names_tests_that_exist() -> None:
    section = (ROOT / "docs" / "MEASUREMENTS.md").read_text().split("## The landing log and published systems")[1]
    section = section.split("\n## ")[0]
    wanted = [
        f"{seed}{number}" for seed, last in (("A", 11), ("U", 9), ("Q", 6), ("L", 4)) for number in range(1, last + 1)
    ]
    assert re.findall(r"^\| ([A-Z]\d+) \|", section, re.MULTILINE) == wanted
    modules = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.name for path in modules} | set(
        re.findall(r"def (test_\w+)\(", "".join(path.read_text() for path in modules))
    )
    named = set(re.findall(r"`(test_\w+(?:\.py)?)`", section))
    assert len(named) > 15
    assert named <= there
