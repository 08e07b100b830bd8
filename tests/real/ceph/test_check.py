"""`nos-ec check` on Ceph, Kafka and MySQL: nothing is wrong in a sound store, and each damage is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.findings import FindingKind
from nos_ec.core.ids import ObjectKey, in_log, new_segment_id
from nos_ec.core.states import BlockKind
from nos_ec.engine.check.blocks import ReadShare
from nos_ec.engine.check.checker import Checked, Checker
from nos_ec.settings import load_settings
from tests.rig.at_rest import end_log, settle
from tests.rig.fakes.audit import all_blocks

pytestmark = pytest.mark.real

SETTINGS = {
    "NOS_EC_REAPER__LANDING_GRACE_MS": "0",
    "NOS_EC_GC__BLOCK_GRACE_MS": "0",
    "NOS_EC_GC__POLICY": "threshold",
    "NOS_EC_GC__RESERVE_BYTES": "0",
    "NOS_EC_LANDING__MODE": "log",
}


@pytest.fixture
def system(stack_config: Path, tmp_path: Path) -> Iterator[System]:
    with (
        scratch_store(load_settings(stack_config, SETTINGS), tmp_path / "root", "check") as scratch,
        open_system(scratch) as system,
    ):
        yield system


def found(system: System, read_share: float = 0.0) -> Counter[FindingKind]:
    """What a complete check finds."""
    checked = Checked(system.metadata, system.blocks, system.landing, system.medium, system.clock)
    checker = Checker(checked, ReadShare(read_share), wait_ms=100)
    kinds = Counter(finding.kind for finding in checker.findings())
    assert checker.unfinished == []
    return kinds


def put(system: System, name: str, size: int) -> None:
    system.client.store().put(ObjectKey("bucket", name), BytesIO((name.encode() * size)[:size]))


def test_each_damage_is_named(system: System) -> None:
    stripe = system.geometry.stripe_size
    many = [(ObjectKey("bucket", f"{number:03}"), bytes([number]) * 30_000) for number in range(100)]
    system.client.store().put_many(many)
    put(system, "large", 5 * stripe)
    assert found(system, 1.0) == {}
    settle(system)
    for key, _ in many[::3]:
        system.client.store().delete(key)
    system.client.store().put_many([(ObjectKey("waits", f"{number}"), bytes(5000)) for number in range(10)])
    put(system, "alone", 3 * stripe)
    end_log(system)
    assert found(system, 1.0) == {}
    waiting = [one.landing_id for one in system.metadata.waiting_after(None, 100)]
    assert Counter(map(in_log, waiting)) == {True: 10, False: 1}

    system.blocks.create(system.new_block_id(), bytes(stripe))
    assert found(system) == {FindingKind.BLOCK_WITHOUT_ROW: 1}
    system.landing.put(system.new_landing_id(), b"nobody's")
    assert found(system) == {FindingKind.BLOCK_WITHOUT_ROW: 1, FindingKind.COPY_WITHOUT_OWNER: 1}
    assert system.medium is not None
    writer = system.medium.create(new_segment_id(system.clock.now_ms(), 7), 1, 0)
    writer.append(system.medium.limits.start, [bytes(system.medium.limits.align)])
    writer.close()
    system.landing.delete(next(copy for copy in waiting if not in_log(copy)))
    large = next(row for row in all_blocks(system.metadata) if row.kind is BlockKind.LARGE)
    system.blocks.delete(large.block_id)
    assert found(system) == {
        FindingKind.BLOCK_WITHOUT_ROW: 1,
        FindingKind.COPY_WITHOUT_OWNER: 1,
        FindingKind.LANDING_SEGMENT_WITHOUT_ROW: 1,
        FindingKind.COPY_MISSING: 1,
        FindingKind.BLOCK_MISSING: 1,
    }
