"""Landing copies in two places: what passes by the log, and how both are read."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from random import Random

import google_crc32c
import pytest

from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.core.errors import Corrupt, NosError, NoSpace, NotFound, Transient
from nos_ec.core.ids import Extent, LandingId, ObjectKey, in_log, segment_of
from nos_ec.engine.landing.lander import NewCopy
from nos_ec.engine.landing.landing_log import LandingLog, LogOptions
from nos_ec.engine.landing.layered_landing import LayeredLanding
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.engine.packable import Packable
from nos_ec.engine.packing.source_reader import SourceReader
from nos_ec.ports.landing_store import LandingPut
from tests.rig.fakes.clock import SetClock
from tests.rig.fakes.faulty import Faults, faulty
from tests.rig.fakes.memory_medium import MemoryMedium
from tests.rig.fakes.memory_segments import MemorySegments
from tests.rig.fakes.read_threads import LateByRequest
from tests.rig.waiting import WAIT_S_MAX

pytestmark = pytest.mark.invariant(1)

LARGE = 4000


class Copies:
    """A `Lander` over a landing store."""

    batches_max, batch_bytes_max, batch_objects_max = 3, 1 << 20, 9

    def __init__(self, landing: LocalLandingStore) -> None:
        self._landing = landing
        self._chance = Random(1)
        self.error: NosError | None = None
        self.full = False
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.settled: list[tuple[set[LandingId], set[LandingId]]] = []

    def land(self, batch: Sequence[NewCopy]) -> LandedCopies:
        self.entered.set()
        assert self.go.wait(WAIT_S_MAX)
        if self.error is not None:
            raise self.error
        if self.full:
            return LandedCopies(self, [NoSpace("full") for _ in batch])
        landed = LandedCopies(self, [LandingId(b"\x01" + self._chance.randbytes(15)) for _ in batch])
        for landing_id, copy in zip(ids_of(landed.outcomes), batch, strict=True):
            self._landing.put(landing_id, copy.data)
        return landed


class LandedCopies:
    def __init__(self, lander: Copies, outcomes: Sequence[LandingId | NosError]) -> None:
        self.outcomes = outcomes
        self._lander = lander

    def void(self, refused: Collection[LandingId]) -> list[LandingId]:
        return []

    def settle(self, not_recorded: Collection[LandingId]) -> None:
        landed = {outcome for outcome in self.outcomes if not isinstance(outcome, NosError)}
        self._lander.settled.append((landed, set(not_recorded)))


class Rig:
    def __init__(self, root: Path) -> None:
        LocalLandingStore.initialise(root)
        self.medium = MemoryMedium(segments_max=4)
        self.segments = MemorySegments()
        self.store = LocalLandingStore(root)
        self.copies = Copies(self.store)
        options = LogOptions(open_segments=2, segment_age_ms=60_000, lease_ttl_ms=30_000, wait_ms=10_000)
        self.log = LandingLog(self.segments, self.medium, SetClock(), Random(2).randbytes, options)
        self.lander = LogBypass(self.log, self.copies, LARGE)
        self.landing = LayeredLanding(self.medium, self.store)

    def close(self) -> None:
        self.copies.go.set()
        self.log.close()
        self.lander.close()
        self.landing.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "landing")
    yield rig
    rig.close()


def new(*sizes: int) -> list[NewCopy]:
    data = [Random(f"{number} {size}").randbytes(size) for number, size in enumerate(sizes)]
    return [NewCopy(ObjectKey("b", str(i)), one, google_crc32c.value(one)) for i, one in enumerate(data)]


def ids_of(outcomes: Sequence[LandingId | NosError]) -> list[LandingId]:
    ids = [outcome for outcome in outcomes if not isinstance(outcome, NosError)]
    assert len(ids) == len(outcomes)
    return ids


# --- what passes by -----------------------------------------------------------------------------------


def test_large_objects_pass_by_the_log_in_the_same_batch(rig: Rig) -> None:
    batch = new(10, LARGE, LARGE - 1, LARGE + 1, 20)
    landed = rig.lander.land(batch)
    ids = ids_of(landed.outcomes)
    assert [in_log(landing_id) for landing_id in ids] == [True, False, True, False, True]
    assert [rig.landing.read(landing_id) for landing_id in ids] == [copy.data for copy in batch]
    landed.settle([ids[0], ids[1]])
    assert rig.copies.settled == [({ids[1], ids[3]}, {ids[1]})]
    rig.log.close()
    assert not rig.segments.leases, "the part in the log was settled, too"


def test_batches_of_one_kind_go_to_one_place(rig: Rig) -> None:
    small = ids_of(rig.lander.land(new(1, 2)).outcomes)
    large = ids_of(rig.lander.land(new(LARGE, LARGE)).outcomes)
    assert [in_log(landing_id) for landing_id in small + large] == [True, True, False, False]
    assert rig.medium.appends == 1
    limits = rig.medium.limits
    assert (rig.lander.batch_bytes_max, rig.lander.batch_objects_max) == (
        limits.batch_bytes_max,
        limits.batch_records_max,
    )
    assert rig.lander.batches_max == 4


@pytest.mark.parametrize("size", [1, LARGE])
def test_the_first_batch_passes_by_if_it_is_one_object(rig: Rig, size: int) -> None:
    """A process that PUTs nothing else takes no lease and no segment."""
    assert [in_log(one) for one in ids_of(rig.lander.land(new(size)).outcomes)] == [False]
    assert (rig.segments.leases, rig.segments.rows, rig.medium.appends) == ({}, {}, 0)
    assert [in_log(one) for one in ids_of(rig.lander.land(new(1)).outcomes)] == [True]
    assert [in_log(one) for one in ids_of(rig.lander.land(new(1)).outcomes)] == [True]
    assert len(rig.segments.leases) == 1


def test_a_first_batch_of_several_objects_is_for_the_log(rig: Rig) -> None:
    assert [in_log(one) for one in ids_of(rig.lander.land(new(1, 2)).outcomes)] == [True, True]


def test_the_first_object_lands_in_the_log_when_the_store_is_full(rig: Rig) -> None:
    rig.copies.full = True
    landed = rig.lander.land(new(10))
    assert [in_log(one) for one in ids_of(landed.outcomes)] == [True]
    assert rig.copies.settled == [(set(), set())]
    large = LogBypass(rig.log, rig.copies, LARGE)
    assert isinstance(large.land(new(LARGE)).outcomes[0], NoSpace)
    large.close()


def test_all_pass_by_a_log_that_is_full_and_come_back(rig: Rig) -> None:
    seen = []
    for _ in range(30):
        landed = rig.lander.land(new(3000, 3000))
        seen += [in_log(landing_id) for landing_id in ids_of(landed.outcomes)]
        landed.settle(())
    assert seen == sorted(seen, reverse=True)
    assert rig.lander.passed_full == seen.count(False) > 0
    rig.copies.error = NoSpace("the store is full as well")
    with pytest.raises(NoSpace, match="as well"):
        rig.lander.land(new(3000, 3000))


def test_one_place_that_fails_does_not_fail_the_other(rig: Rig) -> None:
    rig.copies.error = Transient("away")
    landed = rig.lander.land(new(10, LARGE))
    assert in_log(ids_of(landed.outcomes[:1])[0])
    assert isinstance(landed.outcomes[1], Transient)
    landed.settle(())
    rig.log.close()
    with pytest.raises(Transient, match="closed"):
        rig.lander.land(new(10, LARGE))
    rig.copies.error = None
    landed = rig.lander.land(new(10, LARGE))
    assert isinstance(landed.outcomes[0], Transient)
    assert not in_log(ids_of(landed.outcomes[1:])[0])


def test_both_places_work_at_once(rig: Rig) -> None:
    rig.copies.go.clear()
    appended = threading.Event()
    rig.medium.on_append = lambda segment: appended.set()
    done = threading.Thread(target=lambda: rig.lander.land(new(10, LARGE)).settle(()))
    done.start()
    assert rig.copies.entered.wait(WAIT_S_MAX)
    assert appended.wait(WAIT_S_MAX)
    rig.copies.go.set()
    done.join(WAIT_S_MAX)
    assert not done.is_alive()


def test_an_interrupted_batch_is_given_up_in_both_places(rig: Rig) -> None:
    def interrupt(segment: object) -> None:
        rig.medium.on_append = lambda segment: None
        assert rig.copies.entered.wait(WAIT_S_MAX)
        raise KeyboardInterrupt

    rig.copies.go.clear()
    rig.medium.on_append = interrupt
    with pytest.raises(KeyboardInterrupt):
        rig.lander.land(new(10, LARGE))
    rig.copies.go.set()
    rig.lander.close()
    ((landed, given_up),) = rig.copies.settled
    assert landed == given_up
    rig.log.close()
    assert not rig.segments.leases


# --- both are one store -------------------------------------------------------------------------------


def test_both_are_one_landing_store(rig: Rig) -> None:
    batch = new(10, LARGE)
    landed = rig.lander.land(batch)
    record, copy = ids_of(landed.outcomes)
    landing = rig.landing
    assert landing.read_range(record, 2, 5) == batch[0].data[2:7]
    assert landing.read_range(copy, 2, 5) == batch[1].data[2:7]
    assert list(landing.list_ids()) == [copy]
    assert landing.raw_bytes() == rig.medium.raw_bytes() + rig.store.raw_bytes()
    in_one_pool = LayeredLanding(rig.medium, rig.store, one_pool=True)
    assert 0 < in_one_pool.raw_bytes() == rig.store.raw_bytes() < landing.raw_bytes(), "each reports all of the pool"
    assert abs(landing.free_bytes() - rig.store.free_bytes()) < 1 << 30
    landing.probe()
    for landing_id in (record, copy):
        landing.delete(landing_id)
    assert landing.read(record) == batch[0].data, "its bytes go with the segment"
    with pytest.raises(NotFound):
        landing.read(copy)
    other = LandingId(b"\x01" + bytes(15))
    assert landing.put_many([LandingPut(other, b"abc")]) == {}
    assert landing.delete_many([record, other]) == {}
    assert list(landing.list_ids()) == []
    assert landing.delete_many([record]) == {}
    with pytest.raises(ValueError, match="is a record"):
        landing.put(record, b"x")
    with pytest.raises(ValueError, match="is a record"):
        landing.put_many([LandingPut(other, b"abc"), LandingPut(record, b"x")])
    assert list(landing.list_ids()) == []


# --- packing ------------------------------------------------------------------------------------------


class NoBlocks:
    """Nothing is read from blocks here."""


def packable(copy: NewCopy, source: LandingId | Extent, *, crc32c: int | None = None) -> Packable:
    return Packable(1, copy.key, 1, len(copy.data), copy.crc32c if crc32c is None else crc32c, source)


def test_records_of_a_plan_are_read_together_and_judged_each(rig: Rig) -> None:
    batches = [new(*[300] * 10), new(*[400] * 10), new(LARGE)]
    copies = [copy for batch in batches for copy in batch]
    ids = [landing_id for batch in batches for landing_id in ids_of(rig.lander.land(batch).outcomes)]
    packables = [packable(copy, landing_id) for copy, landing_id in zip(copies, ids, strict=True)]
    packables[3] = packable(copies[3], ids[3], crc32c=1)
    gone = LandingId(ids[4][:7] + b"\xff" + ids[4][8:])
    packables[4] = packable(copies[4], gone)
    faults = Faults()
    landing = LayeredLanding(faulty(rig.medium, faults), rig.store)
    threads = LateByRequest(4)
    reader = SourceReader(landing, NoBlocks(), threads, landing.records)  # type: ignore[arg-type]
    found = reader.read(packables)
    for index, outcome in enumerate(found):
        if index == 3:
            assert isinstance(outcome, Corrupt)
        elif index == 4:
            assert isinstance(outcome, NotFound)
        else:
            assert outcome == copies[index].data
    assert faults.calls["read"] == len({segment_of(one) for one in [*ids[:4], gone, *ids[5:20]]}) == 2
    assert reader.read_one(packables[0]) == copies[0].data
    threads.close()


def test_a_segment_that_does_not_answer_is_left_behind_alone(rig: Rig) -> None:
    one = new(100)
    first, _ = ids_of(rig.lander.land(one + new(1)).outcomes)
    rig.log.close()
    (second,) = ids_of(rig.lander.land(new(LARGE)).outcomes)
    go, threads = threading.Event(), LateByRequest(2)

    class Hanging:
        def read_records(self, wanted: Sequence[tuple[LandingId, int]]) -> list[bytes | NosError]:
            threads.hang()
            assert go.wait(WAIT_S_MAX)
            return rig.landing.records.read_records(wanted)

    reader = SourceReader(rig.landing, NoBlocks(), threads, Hanging())  # type: ignore[arg-type]
    large = new(LARGE)[0]
    found = reader.read([packable(one[0], first), packable(large, second)])
    assert isinstance(found[0], Transient)
    assert found[1] == large.data
    go.set()
    threads.close()
