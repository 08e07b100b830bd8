"""Work on a landing log on two files, which a test kills or whose power it cuts, and what must hold afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c

from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.core.formats.landing_format import NONCE_SIZE, LaidBatch, lay_out, lay_out_footer, new_record
from nos_ec.core.ids import ObjectKey, SegmentId, new_segment_id
from nos_ec.ports.segment_medium import SegmentMedium

KILL_POINTS = [
    "device_log.file_written",
    "device_log.file_written:2",
    "device_log.superblock_written",
    "device_log.superblock_written:2",
    "device_log.superblock_written:3",
    "device_log.header_written",
    "device_log.header_written:2",
    "device_log.header_written:6",
    "device_log.appended",
    "device_log.appended:4",
    "device_log.footer_written",
    "device_log.sealed",
    "device_log.sealed:2",
    "device_log.header_zeroed",
    "device_log.header_zeroed:2",
]
"""Every step of `work` that changes something durable."""

STORE = "00112233445566778899aabbccddeeff"
SLOT = 64 << 10
SLOTS = 4
FILE = (1 << 20) + SLOTS * SLOT
KEY = ObjectKey("bucket", "name")


def paths(root: Path) -> list[Path]:
    """The two files."""
    return [root / "device-a", root / "device-b"]


def initialise(root: Path) -> None:
    """Create the log, or complete it."""
    DeviceLog.initialise(root / "shared" / "log", paths(root), STORE, slot_bytes=SLOT, file_bytes=FILE)


def open_log(root: Path) -> DeviceLog:
    """Open it, with two copies of each segment."""
    return DeviceLog(root / "shared" / "log", paths(root), STORE, copies=2)


def batch(segment: SegmentId, offset: int, size: int = 5000) -> LaidBatch:
    """A batch of one record; always the same at the same place."""
    random = Random(f"{segment.hex()} {offset}")
    data = random.randbytes(size)
    record = new_record(KEY, data, google_crc32c.value(data))
    return lay_out(segment, offset, offset, 1, [record], random.randbytes(NONCE_SIZE), 4096)


@dataclass(frozen=True)
class Step:
    """One acknowledged thing: what, of which segment, and its end afterwards."""

    what: str
    segment: SegmentId
    end: int


def segment_id(number: int) -> SegmentId:
    """The id of the n-th segment of the work."""
    return new_segment_id(1000 + number, 1)


def work(root: Path, did: Callable[[Step, Callable[[], Any]], Any]) -> None:
    """Write, seal and release segments. `did` does each step, and returns what it returned."""
    none = SegmentId(bytes(8))
    _make_root(root)
    did(Step("init", none, 0), lambda: initialise(root))
    with closing(open_log(root)) as log:
        for number in range(4):
            segment = segment_id(number)
            writer = did(Step("create", segment, 4096), partial(log.create, segment, 1, 0))
            offset, entries = 4096, b""
            for _ in range(2):
                laid = batch(segment, offset)
                step = Step("append", segment, offset + laid.size)
                did(step, partial(writer.append, offset, laid.buffers))
                offset, entries = offset + laid.size, entries + laid.entries
            if number != 3:
                footer = lay_out_footer(segment, offset, 0, 1, entries, bytes(NONCE_SIZE), 4096) if number else None
                did(Step("seal", segment, offset), partial(log.seal, segment, footer, 2))
            if number == 0:
                did(Step("release", segment, offset), partial(log.release, [segment]))


def _make_root(root: Path) -> None:
    """The folders that a store has when its landing log is created, durably."""
    for folder in (root, root / "shared"):
        folder.mkdir(exist_ok=True)
        fd = os.open(folder.parent, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def check(root: Path, begun: list[Step], done: list[Step]) -> None:
    """What must hold after a restart: what was acknowledged is there, what was released is not, and all slots serve."""
    if not any(step.what == "init" for step in done):
        initialise(root)
    with closing(open_log(root)) as log:
        check_open(log, begun, done)


def check_open(log: SegmentMedium, begun: list[Step], done: list[Step]) -> None:
    """As `check`, for an open log. Releases all."""
    there = set(log.segments())
    for number in range(4):
        segment = segment_id(number)
        mine = [step for step in done if step.segment == segment]
        mine_begun = [step for step in begun if step.segment == segment]
        if any(step.what == "release" for step in mine_begun):
            assert not (segment in there and any(step.what == "release" for step in mine)), "a released one is back"
            continue
        assert (segment in there) or not mine, "a created segment is lost"
        assert segment not in there or mine_begun, "a segment from nowhere"
        if segment not in there:
            continue
        acknowledged = max((step.end for step in mine), default=4096)
        end = log.seal(segment, None, 0)
        assert acknowledged <= end <= max(step.end for step in mine_begun)
        at = 4096
        while at < acknowledged:
            laid = batch(segment, at)
            for copy in range(2):
                assert log.read(segment, [(at, laid.size)], copy) == [b"".join(laid.buffers)]
            at += laid.size
        assert log.seal(segment, None, 0) == end
    assert log.release(sorted(there)) == {}
    assert list(log.segments()) == []
    for number in range(SLOTS):
        log.create(segment_id(100 + number), 2, 0).close()
    assert log.free_bytes() == 0
    assert log.release([segment_id(100 + number) for number in range(SLOTS)]) == {}
    log.probe()


def main() -> None:
    """Work below the folder in the first argument; each step is printed when it begins and when it is done."""

    def did(step: Step, act: Callable[[], Any]) -> Any:
        print("begun", step.what, step.segment.hex(), step.end, flush=True)
        answer = act()
        print("done", step.what, step.segment.hex(), step.end, flush=True)
        return answer

    work(Path(sys.argv[1]), did)


def told(output: str) -> tuple[list[Step], list[Step]]:
    """The steps that `main` began, and those that it did."""
    found: dict[str, list[Step]] = {"begun": [], "done": []}
    for line in output.splitlines():
        when, what, segment, end = line.split()
        found[when].append(Step(what, SegmentId(bytes.fromhex(segment)), int(end)))
    return found["begun"], found["done"]


if __name__ == "__main__":
    main()
