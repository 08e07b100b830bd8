"""`nos-ec scrub` on Ceph, Kafka and MySQL: it leaves the coding to Ceph, and mends objects from landing copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from nos_consumer.assemble import consumer_service
from nos_ec.composition.scratch import scratch_store
from nos_ec.composition.wiring import System, open_system
from nos_ec.core.findings import FindingKind
from nos_ec.core.ids import ObjectKey
from nos_ec.core.states import BlockState, ObjectState
from nos_ec.engine.scrub.mending import Scrubbed
from nos_ec.engine.scrub.scrubber import ScrubResult
from nos_ec.ports.metadata import BlockRow
from nos_ec.settings import load_settings
from nos_producer.assemble import producer_service
from tests.rig.at_rest import end_log, settle
from tests.rig.fakes.audit import all_blocks

pytestmark = pytest.mark.real

SETTINGS = {
    "NOS_EC_PUT__MIN_AGE_MS": "0",
    "NOS_EC_REAPER__LANDING_GRACE_MS": "0",
    "NOS_EC_GC__BLOCK_GRACE_MS": "0",
    "NOS_EC_GC__POLICY": "threshold",
    "NOS_EC_GC__RESERVE_BYTES": "0",
    "NOS_EC_LANDING__MODE": "log",
}


@pytest.fixture
def system(stack_config: Path, tmp_path: Path) -> Iterator[System]:
    with (
        scratch_store(load_settings(stack_config, SETTINGS), tmp_path / "root", "scrub") as scratch,
        open_system(scratch) as system,
    ):
        yield system


def scrub(system: System) -> tuple[list[tuple[FindingKind, str, bool]], ScrubResult]:
    """A whole pass, without a limit."""
    told: list[Scrubbed] = []
    result = system.operator.scrubber(0).run_once(Event(), report=told.append)
    assert result.whole
    assert result.unfinished == ()
    return [(one.finding.kind, one.finding.what, one.mended) for one in told], result


def rewrite(system: System, row: BlockRow, at: int) -> None:
    """Exchange a byte of a block. All OSDs agree on it."""
    data = bytearray(system.blocks.read(row.block_id, 0, row.size_bytes))
    data[at] ^= 0xFF
    system.blocks.delete(row.block_id)
    system.blocks.create(row.block_id, data)
    system.blocks.seal(row.block_id)


def test_a_pass_on_ceph(system: System) -> None:
    """Landing copies are kept until the end."""
    assert system.shards is None
    objects = {ObjectKey("bucket", f"{number:03}"): bytes([number]) * 30_000 for number in range(100)}
    system.client.store().put_many(list(objects.items()))
    end_log(system)
    with producer_service(system) as producer:
        producer.drain()
    with consumer_service(system) as consumer:
        consumer.drain(make_room=lambda: False)
    rows = [row for row in all_blocks(system.metadata) if row.live_objects]
    assert {row.state for row in rows} == {BlockState.SEALED}
    told, result = scrub(system)
    assert told == []
    assert (result.objects, result.read_bytes) == (100, 100 * 30_000)

    victim = system.metadata.placed_in(rows[0].block_id)[3]
    rewrite(system, rows[0], victim.extent.offset + 7)
    damaged = (FindingKind.DATA_DAMAGED, f"object {victim.key}", True)
    assert scrub(system)[0] == [damaged]
    assert system.metadata.get(victim.key).state is ObjectState.LANDED
    assert scrub(system)[0] == []
    assert all(system.client.store().get(key) == data for key, data in objects.items())
    settle(system)
    assert system.metadata.get(victim.key).state is ObjectState.PACKED

    packed = system.metadata.get(victim.key).extent
    assert packed is not None
    row = system.metadata.block(packed.block_id)
    rewrite(system, row, packed.offset)
    told, result = scrub(system)
    assert told == [(FindingKind.DATA_DAMAGED, f"object {victim.key}", False)], "its landing copy is gone"
    state = system.metadata.scrub_state()
    assert state is not None
    assert state.last == result.of_pass
    assert (result.of_pass.found, result.of_pass.left) == (1, 1)
