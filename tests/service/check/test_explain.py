"""`nos-ec explain`: for each place that an object can be in, the reason and what the sentences must say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from io import BytesIO
from math import log
from typing import NoReturn, cast

import pytest
from sqlalchemy import delete

from nos_consumer.assemble import consumer_service
from nos_ec.adapters.sql.metadata import SqlMetadata
from nos_ec.adapters.sql.tables.schema import WAITING
from nos_ec.composition.explaining import object_explainer
from nos_ec.composition.wiring import System
from nos_ec.core.errors import NotFound, Transient
from nos_ec.core.formats.messages import partition_for
from nos_ec.core.ids import LandingId, ObjectKey, in_log
from nos_ec.core.packing.lifetimes import AGE_RANGES, Counts
from nos_ec.core.parts import part_key, parts_bucket
from nos_ec.core.publishing.republish import Publication
from nos_ec.core.publishing.slots import bucket_slot
from nos_ec.core.states import ObjectState, SegmentState
from nos_ec.engine.explain.object_facts import ItsParts
from nos_ec.engine.explain.object_reasons import ObjectReason as Why
from nos_ec.engine.explain.objects import ObjectExplanation
from nos_ec.ports.landing_store import LandingStore
from nos_ec.ports.message_log import GroupProgress
from nos_ec.ports.metadata import ObjectRow
from nos_gc.assemble import gc_service
from nos_producer.assemble import producer_service
from tests.rig.at_rest import end_log
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.sql.sql_plans import caught
from tests.service.conftest import STRIPE, Bench
from tests.service.gc.test_gc import configure

HOUR_MS = 3_600_000
"""The geometry of CONFIG."""


def explained(system: System, key: ObjectKey) -> ObjectExplanation:
    return object_explainer(system).explain(key)


def put(bench: Bench, system: System, name: str = "x", size: int = 5000) -> ObjectKey:
    """An object in the landing log, if there is one: the first object of a process passes by."""
    bench.put(system, "first", b"x")
    return bench.put(system, name, bench.data(size))


def row_of(system: System, key: ObjectKey) -> ObjectRow:
    return system.metadata.get(key)


# --- how long it will live ---------------------------------------------------------------------------
def test_how_long_an_object_is_expected_to_live(bench: Bench, system: System) -> None:
    key = put(bench, system)
    unknown = explained(system, key)
    assert unknown.half_life_days is not None
    assert (unknown.half_life_days > 2048, unknown.stream) == (True, 3)
    counts = Counts([1e7 / 20] * AGE_RANGES, [1e7] * AGE_RANGES)
    system.metadata.count_deaths({"b": counts}, system.clock.now_ms())
    known = explained(system, key)
    assert known.half_life_days == pytest.approx(20 * log(2), rel=0.05)
    assert known.stream == 1
    shown = bench.run("explain", str(key)).stdout.decode()
    assert re.search(r"half of such objects are dead in 1[34]\.?\d* days; stream 1", shown)
    large = bench.put(system, "large", bench.data(9 * STRIPE))
    assert (explained(system, large).half_life_days, explained(system, large).stream) == (None, None)


# --- parts ----------------------------------------------------------------------------------------
def test_an_object_in_parts(bench: Bench) -> None:
    key, sizes = ObjectKey("b", "composed"), (9 * STRIPE, 5000, 300)
    with bench.open() as system:
        uploads = system.client.uploads()
        assert explained(system, put(bench, system)).its_parts is None
        upload = uploads.create(key, "ann", b"")
        for number in (1, 2):
            uploads.put_part(upload, number, BytesIO(bench.data(sizes[number - 1])), b"")
        bench.pack(system)
    with bench.open() as system:
        uploads = system.client.uploads()
        uploads.put_part(upload, 3, BytesIO(bench.data(sizes[2])), b"")
        uploads.complete(upload, lambda stored: (stored, {}))
        found = explained(system, key)
        assert (found.size, found.state) == (sum(sizes), ObjectState.LANDED)
        third = f"{parts_bucket('b')}/{upload.upload_id.hex()}/00003"
        assert found.its_parts == ItsParts(parts=3, there=3, landed=1, queued=0, packed=1, large=1, waiting=third)
        shown = " ".join(bench.run("explain", str(key)).stdout.decode().split())
        assert "3, stored as separate objects: 1 packed, 1 large, 1 landed; `nos-ec explain" in shown
        assert "landed (" in bench.run("explain", third).stdout.decode()
        bench.pack(system)
        system.metadata.delete(part_key("b", upload.upload_id, 2), system.clock.now_ms())
        left = explained(system, key).its_parts
        assert left == ItsParts(parts=3, there=2, landed=0, queued=0, packed=1, large=1, waiting=None)
        assert "at least 1 of them gone" in " ".join(bench.run("explain", str(key)).stdout.decode().split())


# --- waiting to be published ----------------------------------------------------------------------
def test_an_object_that_is_too_young(bench: Bench) -> None:
    configure(bench, "put", f"min_age_ms = {HOUR_MS}")
    with bench.open() as system:
        key = put(bench, system)
        found = explained(system, key)
        assert (found.reason, found.state) == (Why.TOO_YOUNG, ObjectState.LANDED)
        assert found.next_ms is not None
        assert 0 <= row_of(system, key).created_ms + HOUR_MS - found.next_ms < 30_000, "it is due by when its PUT began"
        assert "put.min_age_ms" in found.why
        assert f"producer that holds slot {bucket_slot('b')} publishes it" in found.next
        assert "in 59 min" in found.next
        assert found.advice is not None, "no producer runs"
        with producer_service(system, shares=True) as producer:
            producer.turn()
            found = explained(system, key)
            assert (found.reason, found.advice) == (Why.TOO_YOUNG, None)
            assert found.publishing is not None
            assert found.publishing.slot_held_until_ms is not None
            (alive,) = found.publishing.producers
            assert alive.startswith("producer-")


def test_an_object_that_no_producer_publishes(bench: Bench, system: System) -> None:
    found = explained(system, put(bench, system))
    assert found.reason is Why.NO_PRODUCER
    assert f"no producer holds slot {bucket_slot('b')}" in found.why
    assert found.advice == "Start `nos-ec producer`."
    assert found.publishing is not None
    assert (found.publishing.producers, found.publishing.slot_held_until_ms) == ([], None)
    assert [one.partition for one in found.publishing.holders] == [partition_for("b", 3)]


def test_an_object_that_is_due_and_one_that_is_late(bench: Bench, system: System, clock: FakeClock) -> None:
    with producer_service(system) as producer:
        producer.turn()
        key = put(bench, system)
        found = explained(system, key)
        assert (found.reason, found.advice) == (Why.DUE, None)
        for _ in range(20):
            clock.advance(20_000)
            producer._held_slots.keep()
        found = explained(system, key)
        assert found.reason is Why.DUE
        assert "for 6 min 40 s" in found.why
        assert found.advice is not None
        assert "log" in found.advice


def test_an_object_whose_producer_died(bench: Bench, system: System) -> None:
    with producer_service(system) as producer:
        producer.turn()
        key = put(bench, system)
        bench.end_leases()
        assert explained(system, key).reason is Why.NO_PRODUCER


def test_an_object_whose_event_was_refused(bench: Bench, system: System) -> None:
    key = put(bench, system)
    due_ms = system.clock.now_ms() + 20_000
    system.metadata.mark_published([row_of(system, key)], due_ms)
    found = explained(system, key)
    assert (found.reason, found.state, found.next_ms) == (Why.REFUSED, ObjectState.QUEUED, due_ms)
    assert "not in the message log" in found.why
    assert found.publishing is not None
    assert found.publishing.published_ms is None


# --- published ------------------------------------------------------------------------------------
def test_an_object_that_no_consumer_takes(bench: Bench, system: System) -> None:
    key = put(bench, system)
    assert bench.produce(system) == 2
    found = explained(system, key)
    assert (found.reason, found.state) == (Why.NO_CONSUMER, ObjectState.QUEUED)
    assert f"partition {partition_for('b', 3)}, which no consumer holds" in found.why
    assert found.advice is not None
    assert "nos-ec consumer" in found.advice
    assert found.publishing is not None
    assert found.publishing.published_ms is not None
    assert abs(found.publishing.published_ms - system.clock.now_ms()) < 60_000
    assert found.landing_copy is not None
    assert found.landing_copy.readable


def test_an_object_on_the_merge_list_of_a_consumer(bench: Bench, system: System, clock: FakeClock) -> None:
    key = put(bench, system)
    bench.produce(system)
    with consumer_service(system) as consumer:
        while not consumer.waiting_objects:
            consumer.turn(flush=False)
        found = explained(system, key)
        assert (found.reason, found.advice) == (Why.EVENT_WAITS, None)
        assert found.publishing is not None
        (holder,) = found.publishing.holders
        assert holder.member is not None
        assert holder.member in found.why
        assert "consumer.linger_ms" in found.next
        clock.advance(2 * HOUR_MS)
        found = explained(system, key)
        assert found.reason is Why.EVENT_WAITS
        assert found.advice is not None
        assert "parked" in found.advice


def test_an_object_whose_event_was_passed_over(bench: Bench, system: System) -> None:
    key = put(bench, system)
    published_ms = system.clock.now_ms() - 200_000
    due_ms = published_ms + system.settings.producer.republish_ms
    system.metadata.mark_published([row_of(system, key)], due_ms, Publication(published_ms, False))
    found = explained(system, key)
    assert (found.reason, found.next_ms) == (Why.EVENT_PASSED, due_ms)
    assert "has passed it without packing" in found.why
    assert "published 3 min" in found.why


def test_a_spread_object_may_wait_in_any_partition(bench: Bench, system: System) -> None:
    configure(bench, "log", "spread = 3")
    with bench.open() as system:
        names = [ObjectKey("b", f"n{i}") for i in range(9)]
        for key in names:
            bench.put(system, key.name, b"data")
        bench.produce(system)
        spread = [found for key in names if (found := explained(system, key)).publishing and found.publishing.spread]
        assert spread
        assert all(len(found.publishing.holders) == 3 for found in spread if found.publishing)
        assert all("one of the partitions" in found.why for found in spread)


class Away:
    """The progress of a group on a message log that does not answer."""

    def passed_until(self) -> Mapping[int, int]:
        raise Transient("message log: no answer")

    def holders(self) -> Mapping[int, str]:
        raise Transient("message log: no answer either")

    def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("opens", [True, False])
def test_a_message_log_that_does_not_answer_leaves_the_other_facts(
    bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    key = put(bench, system)
    bench.produce(system)

    def refuse() -> NoReturn:
        raise Transient("message log: no answer")

    explainer = object_explainer(system)
    explainer._new_progress = cast(Callable[[], GroupProgress], Away if opens else refuse)
    found = explainer.explain(key)
    assert found.reason is Why.PROGRESS_UNKNOWN
    assert len(found.unknown) == 1 + opens
    assert "no answer" in found.unknown[0]
    assert found.publishing is not None
    assert not found.publishing.members_known
    assert found.landing_copy is not None


def test_an_object_that_cannot_be_packed_for_lack_of_space(bench: Bench, system: System) -> None:
    key = put(bench, system)
    bench.produce(system)
    configure(bench, "gc", "reserve_bytes = 1000000000000000")
    with bench.open() as full:
        found = explained(full, key)
    assert found.reason is Why.NO_SPACE
    assert "kept in reserve" in found.why
    assert found.advice is not None
    assert "gc run --apply" in found.advice


# --- the copy of an object that waits -------------------------------------------------------------
@pytest.mark.landing("store")
def test_an_object_whose_only_copy_is_lost(bench: Bench, system: System) -> None:
    key = put(bench, system)
    landing_id = row_of(system, key).landing_id
    assert landing_id is not None
    system.landing.delete(landing_id)
    found = explained(system, key)
    assert found.reason is Why.COPY_LOST
    assert found.landing_copy is not None
    assert (found.landing_copy.readable, found.landing_copy.landing, found.landing_copy.medium) == (
        False,
        landing_id.hex(),
        "store",
    )
    assert found.advice is not None


def test_an_object_whose_only_copy_is_damaged_or_does_not_answer(bench: Bench, system: System) -> None:
    key = put(bench, system)
    good, faults = system.landing, Faults()
    faults.before["read_range"] = [Transient("osd.3 does not answer")]
    system.landing = faulty(good, faults)
    found = explained(system, key)
    assert found.reason is Why.COPY_UNREADABLE
    assert "osd.3" in found.why
    assert found.landing_copy is not None
    assert found.landing_copy.readable is None

    class Flipped:
        def read_range(self, _landing_id: LandingId, _offset: int, length: int) -> bytes:
            return bytes(length)

    system.landing = cast(LandingStore, Flipped())
    found = explained(system, key)
    assert found.reason is Why.COPY_LOST
    assert "CRC32C" in found.why


def test_an_object_that_is_packed_while_it_is_looked_at(bench: Bench, system: System) -> None:
    key = put(bench, system)
    bench.produce(system)
    good = system.landing
    packed: list[LandingId] = []

    class Late:
        """Packs and reaps everything before the first read."""

        def __getattr__(self, name: str) -> object:
            return getattr(good, name)

        def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
            if not packed:
                packed.append(landing_id)
                with bench.open() as other:
                    end_log(system)
                    bench.pack(other)
                raise NotFound("the copy is gone")
            return good.read_range(landing_id, offset, length)

    explainer = object_explainer(system)
    explainer._landing = cast(LandingStore, Late())
    assert explainer.explain(key).reason is Why.PACKED


def test_an_object_that_the_metadata_forgot(bench: Bench, system: System) -> None:
    key = put(bench, system)
    metadata = cast(SqlMetadata, system.metadata)
    metadata._transactions.write(lambda connection: connection.execute(delete(WAITING)))
    found = explained(system, key)
    assert found.reason is Why.NOT_WAITING
    assert found.why.startswith("The metadata is damaged")
    assert found.publishing is not None
    assert found.publishing.due_ms is None


# --- the landing copy of a packed object ----------------------------------------------------------
@pytest.mark.parametrize("mode", ["log", "drain"])
def test_the_record_of_a_packed_object(bench: Bench, system: System, mode: str) -> None:
    """It is in its grace period, then waits to be verified, is verified in an open segment, and is gone. The same holds
    while the log is drained."""
    key = put(bench, system)
    copy = row_of(system, key).landing_id
    assert copy is not None
    assert in_log(copy)
    bench.produce(system)
    configure(bench, "reaper", f"landing_grace_ms = {HOUR_MS}")
    if mode == "drain":
        configure(bench, "landing", 'mode = "drain"')
    with bench.open() as patient:
        bench.consume(patient)
        found = explained(patient, key)
        assert (found.reason, found.state) == (Why.COPY_IN_GRACE, ObjectState.PACKED)
        assert "reaper.landing_grace_ms" in found.why
        assert "removes the record's entry" in found.next
        assert found.landing_copy is not None
        assert (found.landing_copy.landing, found.landing_copy.medium, found.landing_copy.queued) == (
            copy.hex(),
            "log",
            True,
        )
        assert found.landing_copy.segment_state is SegmentState.OPEN
        assert found.landing_copy.segment is not None
        assert found.landing_copy.segment in found.why
        assert found.next_ms == found.landing_copy.delete_after_ms
    system.metadata.postpone_deletion([copy], system.clock.now_ms() - HOUR_MS)
    found = explained(system, key)
    assert found.reason is Why.COPY_TO_VERIFY
    assert "for 1 h" in found.why
    assert found.advice is not None
    block = system.metadata.get(key).extent
    assert block is not None
    assert system.metadata.doom_landing({copy: block.block_id}) == {copy}
    found = explained(system, key)
    assert found.reason is Why.COPY_HELD
    assert "still open" in found.why
    end_log(system)
    found = explained(system, key)
    assert found.reason is Why.COPY_VERIFIED
    assert found.landing_copy is not None
    assert found.landing_copy.segment_state is SegmentState.SEALED
    system.metadata.postpone_deletion([copy], 0)
    system.worker.housekeeping().run_once()
    found = explained(system, key)
    assert (found.reason, found.landing_copy) == (Why.PACKED, None)
    assert found.block is not None
    assert block.block_id.hex() in found.why
    assert [(one.block, one.offset) for one in found.places] == [(found.block.block, block.offset)]


@pytest.mark.landing("store")
def test_the_copy_of_a_packed_object_in_the_landing_store(bench: Bench, system: System) -> None:
    key = put(bench, system)
    bench.produce(system)
    bench.consume(system)
    found = explained(system, key)
    assert (found.reason, found.advice) == (Why.COPY_TO_VERIFY, None)
    assert "deletes the copy" in found.next
    assert found.landing_copy is not None
    assert (found.landing_copy.medium, found.landing_copy.segment) == ("store", None)
    system.worker.housekeeping().run_once()
    assert explained(system, key).reason is Why.PACKED


def test_an_object_that_went_back_to_its_landing_copy(bench: Bench, system: System, clock: FakeClock) -> None:
    key = put(bench, system)
    assert "came due" not in explained(system, key).why
    bench.produce(system)
    bench.consume(system)
    clock.advance(HOUR_MS)
    (deletion,) = (one for one in system.metadata.due_deletions(clock.now_ms(), 9) if one.row and one.row.key == key)
    assert system.metadata.revert_to_landing(deletion, clock.now_ms())
    found = explained(system, key)
    assert (found.reason, found.state) == (Why.NO_PRODUCER, ObjectState.LANDED)
    assert "It came due 1 h after its PUT: either the reaper has set it back to its landing copy" in found.why


# --- other objects --------------------------------------------------------------------------------
def test_an_object_that_is_overwritten_while_it_is_packed(bench: Bench, system: System) -> None:
    key = put(bench, system)
    bench.produce(system)
    before = row_of(system, key)
    put(bench, system)
    found = explained(system, key)
    assert (found.reason, found.state) == (Why.NO_PRODUCER, ObjectState.LANDED)
    assert found.version > before.version
    assert before.landing_id is not None
    assert found.landing_copy is not None
    assert found.landing_copy.landing != before.landing_id.hex()


def test_large_empty_and_absent_objects(bench: Bench, system: System) -> None:
    found = explained(system, bench.put(system, "empty", b""))
    assert (found.reason, found.landing_copy, found.publishing, found.places) == (Why.EMPTY, None, None, [])
    found = explained(system, bench.put(system, "large", bench.data(20 * STRIPE)))
    assert (found.reason, found.landing_copy, found.publishing) == (Why.LARGE, None, None)
    assert f"{len(found.places)} blocks of its own" in found.why
    assert "it is landed" in found.why
    bench.pack(system)
    found = explained(system, ObjectKey("b", "large"))
    assert sum(one.length for one in found.places) == 20 * STRIPE
    assert f"{len(found.places) - 1} blocks of its own" in found.why
    assert "it is packed" in found.why
    bench.delete(system, ObjectKey("b", "large"))
    for name in ("large", "never"):
        with pytest.raises(NotFound, match=f"object b/{name} does not exist: .* or it was deleted") as refusal:
            explained(system, ObjectKey("b", name))
        assert refusal.value.key == ObjectKey("b", name)


def test_an_object_moved_by_gc_lies_in_a_survivor_block(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 200)
    bench.pack(system)
    for index, key in enumerate(keys):
        if index % 8:
            bench.delete(system, key)
    gc_service(system).run_once()
    found = explained(system, keys[0])
    assert found.reason is Why.PACKED
    assert found.block is not None
    assert found.block.kind.value == "survivor"


# --- cost -----------------------------------------------------------------------------------------
def test_an_explanation_takes_few_statements_however_much_is_stored(bench: Bench, system: System) -> None:
    def statements(key: ObjectKey) -> int:
        with caught(cast(SqlMetadata, system.metadata)) as run:
            explained(system, key)
        return len(run)

    key = put(bench, system, "one")
    large = bench.put(system, "large", bench.data(20 * STRIPE))
    counts: list[tuple[int, int, int]] = []
    for _ in range(2):
        landed = statements(put(bench, system, f"landed{len(counts)}"))
        bench.produce(system)
        queued = statements(key) if not counts else 0
        bench.consume(system)
        counts.append((landed, statements(key), statements(large)))
        assert queued <= 4
        bench.put_some(system, 500, size_max=100)  # few bytes: the next one, too, finds room in the log
    assert counts[0] == counts[1]
    assert max(counts[0]) <= 6
