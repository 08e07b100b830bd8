"""Counting deaths and exposure in a store, and the streams that follow from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from nos_ec.adapters.sql.metadata import open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import NosError, Transient
from nos_ec.core.expiry import TAGS_ATTRIBUTE, ExpiryRule, encode_rules
from nos_ec.core.ids import LandingId, ObjectKey
from nos_ec.core.packing.lifetimes import BUCKETS_MAX, OTHERS, STREAM_CUTS_DAYS, UNKNOWN, Counts, is_sampled
from nos_ec.engine.expiry import known_expiry, survival
from nos_ec.engine.expiry.known_expiry import KnownExpiry
from nos_ec.engine.expiry.lifecycle_rules import OtherCells
from nos_ec.engine.expiry.survival import (
    COUNT_WAIT_MS,
    DAY_MS,
    REFRESH_MS,
    SURVEY_IDS,
    SURVEY_WAIT_MS,
    Deaths,
    ExpectedLifetimes,
    StreamSorting,
    Survey,
    lifetimes_of,
)
from nos_ec.engine.packable import Packable
from nos_ec.ports.metadata import (
    BucketState,
    Directory,
    DirectoryRow,
    DocumentKind,
    LivingObject,
    Metadata,
    SurvivalRow,
)
from nos_ec.ports.metadata.directory import decode_slices, encode_slices
from nos_ec.ports.metadata.survival import SURVIVAL_ROWS_MAX
from tests.rig.fakes.clock import FakeClock
from tests.rig.fakes.metadata_bench import MetadataBench

CUTS = STREAM_CUTS_DAYS[3]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[MetadataBench]:
    url = f"sqlite:///{tmp_path / 'metadata.db'}"
    migrate(url)
    with closing(open_metadata(url)) as metadata:
        yield MetadataBench(metadata)


def watched(count: int) -> list[str]:
    """Names of `bucket` whose deaths are counted."""
    names = (f"n{number}" for number in range(100 * count))
    return [name for name in names if is_sampled(ObjectKey("bucket", name).md5)][:count]


def row_of(metadata: Metadata, bucket: str) -> SurvivalRow:
    return next(row for row in metadata.survival() if row.bucket == bucket)


# --- deaths -------------------------------------------------------------------------------------------------
def test_deaths_are_added_from_time_to_time_and_at_the_end(bench: MetadataBench) -> None:
    clock = FakeClock(bench.now_ms)
    deaths = Deaths(bench.metadata, clock)
    bench.metadata.watch_deaths(deaths.died)
    names = watched(6)
    other = next(f"m{n}" for n in range(99) if not is_sampled(ObjectKey("bucket", f"m{n}").md5))
    bench.put_all([*names, other])

    def delete(name: str, after_days: float) -> None:
        bench.metadata.delete(ObjectKey("bucket", name), bench.now_ms + int(after_days * DAY_MS))

    for name in names[:3]:
        delete(name, 10)
    delete(other, 10)
    assert bench.metadata.survival() == [], "not one by one"
    clock.advance(COUNT_WAIT_MS)
    delete(names[3], 0.01)
    found = row_of(bench.metadata, "bucket").counts
    assert (found.deaths[0], found.deaths[8], sum(found.deaths)) == (1, 3, 4), "by age, of watched keys"
    assert sum(found.exposure_days) == 0
    delete(names[4], 10)
    assert sum(row_of(bench.metadata, "bucket").counts.deaths) == 4
    deaths.flush()
    assert sum(row_of(bench.metadata, "bucket").counts.deaths) == pytest.approx(5)
    deaths.flush()
    bench.put(names[5], 5)
    deaths.flush()
    assert sum(row_of(bench.metadata, "bucket").counts.deaths) == pytest.approx(6), "an overwrite is a death"


def test_a_failure_to_count_fails_no_delete(bench: MetadataBench) -> None:
    class Failing:
        def count_deaths(self, counts: Mapping[str, Counts], now_ms: int) -> None:
            assert counts
            assert now_ms
            raise Transient("away")

    clock = FakeClock(bench.now_ms)
    deaths = Deaths(cast(Metadata, Failing()), clock)
    bench.metadata.watch_deaths(deaths.died)
    (name,) = watched(1)
    bench.put(name)
    clock.advance(COUNT_WAIT_MS)
    assert bench.metadata.delete(ObjectKey("bucket", name), bench.now_ms).key.name == name


# --- surveys ------------------------------------------------------------------------------------------------
class Population:
    """Living objects at one id each, and the counts of surveys, as `Survival` has them."""

    def __init__(self, living: Mapping[int, LivingObject]) -> None:
        self.living = living
        self.rows: dict[str, SurvivalRow] = {}
        self.looked_at: list[tuple[int, int]] = []

    def survival(self) -> list[SurvivalRow]:
        return list(self.rows.values())

    def last_object_id(self) -> int:
        return max(self.living, default=0)

    def living_between(self, first: int, last: int) -> list[LivingObject]:
        self.looked_at.append((first, last))
        return [self.living[one] for one in range(first, last + 1) if one in self.living]

    def count_survey(
        self, counts: Mapping[str, Counts], previous_ms: int | None, now_ms: int, folded: list[str]
    ) -> bool:
        assert previous_ms == (self.rows[OTHERS].counted_ms if OTHERS in self.rows else None)
        assert not folded
        for bucket, more in {OTHERS: Counts(), **counts}.items():
            sums = self.rows[bucket].counts if bucket in self.rows else Counts()
            sums.add(more)
            self.rows[bucket] = SurvivalRow(bucket, now_ms, sums)
        return True


def test_exposure_is_right_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "SURVEY_IDS", 64)
    clock = FakeClock()
    rng = random.Random(4)
    born_ms = clock.now_ms() - 3 * DAY_MS
    keys = [ObjectKey(rng.choice("ab"), f"n{number}") for number in range(20_000)]
    living = {7 * number + 1: LivingObject(key, born_ms, 1) for number, key in enumerate(keys) if is_sampled(key.md5)}
    population = Population(living)
    survey = Survey(cast(Metadata, population), clock, rng)
    assert survey.run_once(), "the first one only begins to measure time"
    days = 0.0
    while days < 8:
        clock.advance(SURVEY_WAIT_MS)
        assert survey.run_once()
        days += SURVEY_WAIT_MS / DAY_MS
    assert all(last - first == 63 for first, last in population.looked_at), "whatever the size of the store"
    for bucket in "ab":
        exact = days * sum(one.key.bucket == bucket for one in living.values())
        assert sum(population.rows[bucket].counts.exposure_days) == pytest.approx(exact, rel=0.1)
    ages = population.rows["a"].counts.exposure_days
    assert sum(ages) == sum(ages[6:9]), "at 3 to 11 days of age"


def test_a_survey_is_made_once_in_a_while_by_one_process(bench: MetadataBench) -> None:
    clock = FakeClock(bench.now_ms)
    names = watched(5)
    rows = bench.put_all(names)
    one, two = (Survey(bench.metadata, clock, random.Random(seed)) for seed in (1, 2))
    assert one.run_once()
    assert not one.run_once()
    assert not two.run_once()
    assert [row.bucket for row in bench.metadata.survival()] == [OTHERS]
    clock.advance(SURVEY_WAIT_MS)
    assert two.run_once()
    assert not one.run_once()
    found = row_of(bench.metadata, "bucket")
    assert rows[-1].object_id <= SURVEY_IDS
    assert found.counts.exposure_days[0] == pytest.approx(5 * SURVEY_WAIT_MS / DAY_MS)
    clock.advance(400 * DAY_MS)
    assert one.run_once()
    assert row_of(bench.metadata, "bucket").counts.weight < 5 * 31, "a clock that jumps counts for a month at most"


def test_buckets_of_which_little_is_known_are_folded(bench: MetadataBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "BUCKETS_MAX", 8)
    for number in range(12):
        one = Counts()
        one.deaths[0] = number + 1
        bench.metadata.count_deaths({f"b{number:02}": one}, bench.now_ms)
    assert Survey(bench.metadata, FakeClock(bench.now_ms), random.Random(1)).run_once()
    rows = {row.bucket: sum(row.counts.deaths) for row in bench.metadata.survival()}
    assert rows == {OTHERS: 1 + 2 + 3 + 4 + 5} | {f"b{number:02}": number + 1 for number in range(5, 12)}


# --- what packers go by ---------------------------------------------------------------------------------------
def history(bucket: str, mean_days: float, now_ms: int) -> SurvivalRow:
    counts = Counts()
    counts.exposure_days = [1e7] * len(counts.exposure_days)
    counts.deaths = [1e7 / mean_days] * len(counts.deaths)
    return SurvivalRow(bucket, now_ms, counts)


class Table:
    """Returns what the test sets."""

    def __init__(self, rows: list[SurvivalRow]) -> None:
        self.rows = rows
        self.documents: dict[str, bytes] = {}
        self.marks: dict[str, bytes] = {}
        self.failure: NosError | None = None
        self.reads = 0

    def documents_of(self, kind: DocumentKind, after: str, limit: int) -> list[tuple[str, bytes]]:
        if self.failure is not None:
            raise self.failure
        found = {DocumentKind.LIFECYCLE: self.documents, DocumentKind.WIDE: self.marks}[kind]
        return [one for one in sorted(found.items()) if one[0] > after][:limit]

    def survival(self) -> list[SurvivalRow]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return [SurvivalRow(row.bucket, row.counted_ms, Counts.load(row.counts.dump())) for row in self.rows]


def packable(bucket: str, name: str, born_ms: int, expires_ms: int | None = None) -> Packable:
    return Packable(1, ObjectKey(bucket, name), born_ms * 1000, 5, 5, LandingId(bytes(16)), expires_ms=expires_ms)


def test_the_table_decides_the_stream_and_a_known_expiry_beats_it() -> None:
    now_ms = FakeClock().now_ms()
    table = Table([history("short", 2, now_ms), history("long", 3000, now_ms)])
    known = KnownExpiry(cast(Metadata, table), DAY_MS)
    sorting = StreamSorting(ExpectedLifetimes(cast(Metadata, table)), CUTS, known)
    assert sorting(packable("short", "x/y/z", now_ms - 5), now_ms) == (0, "short", "x/y", now_ms - 5)
    assert sorting(packable("long", "z", now_ms), now_ms) == (3, "long", "", now_ms)
    assert sorting(packable("long", "z", now_ms, now_ms + 7 * DAY_MS), now_ms)[0] == 0
    assert sorting(packable("short", "z", now_ms, now_ms + 9 * DAY_MS), now_ms)[0] == 1
    assert sorting(packable("short", "z", now_ms, now_ms - DAY_MS), now_ms)[0] == 0, "it should be gone already"
    assert sorting(packable("short", "z", now_ms + DAY_MS), now_ms)[0] == 0, "born in the future, by another clock"
    assert table.reads == 1


def test_rules_of_a_bucket_say_when_its_objects_expire() -> None:
    now_ms = FakeClock().now_ms()
    table = Table([history("long", 3000, now_ms), history("short", 2, now_ms)])
    table.documents = {
        "bad": b"damaged",
        "long": encode_rules([ExpiryRule("r", prefix="logs/", days=3), ExpiryRule("t", tags=(("a", "b"),), days=30)]),
        "short": encode_rules([ExpiryRule("r", days=3000)]),
    }
    known = KnownExpiry(cast(Metadata, table), DAY_MS)
    sorting = StreamSorting(ExpectedLifetimes(cast(Metadata, table)), CUTS, known)
    for bucket, name, stream in (("long", "logs/a", 0), ("long", "a", 3), ("short", "a", 3)):
        assert sorting(packable(bucket, name, now_ms), now_ms)[0] == stream, bucket
    assert known.expires_ms(packable("bad", "a", now_ms), now_ms, now_ms) is None
    tagged = replace(packable("long", "a", now_ms), attributes=encode_attributes({TAGS_ATTRIBUTE: "a=b"}))
    assert sorting(tagged, now_ms)[0] == 1
    old = packable("short", "a", now_ms - 2995 * DAY_MS)
    assert sorting(old, now_ms)[0] == 0, "it expires soon"
    table.documents = {}
    table.failure = Transient("away")
    later_ms = now_ms + known_expiry.REFRESH_MS
    assert sorting(old, later_ms)[0] == 0, "by the rules known before"
    table.failure = None
    assert sorting(packable("short", "a", later_ms), later_ms + known_expiry.REFRESH_MS)[0] == 0, "there is no rule now"


def test_rules_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = FakeClock().now_ms()
    table = Table([])
    table.documents = {f"b{n}": encode_rules([ExpiryRule("r", days=1), ExpiryRule("s", days=2)]) for n in range(50)}
    monkeypatch.setattr(known_expiry, "RULES_KNOWN_MAX", 60)
    known = KnownExpiry(cast(Metadata, table), DAY_MS)
    told = [known.expires_ms(packable(bucket, "a", now_ms), now_ms, now_ms) for bucket in sorted(table.documents)]
    assert [one is not None for one in told] == [True] * 30 + [False] * 20


class FirstCell:
    """The documents of wide buckets in their first cell, which may be away, and hangs until `answers` is set."""

    def __init__(self, marks: dict[str, bytes], **rules: list[ExpiryRule]) -> None:
        self.marks = marks
        self.rules = rules
        self.failure: NosError | None = None
        self.answers = Event()
        self.answers.set()
        self.reads = 0

    @contextmanager
    def documents_in(self, cell: str) -> Iterator[BucketState]:
        assert cell == "a"
        self.reads += 1
        assert self.answers.wait(60)
        if self.failure is not None:
            raise self.failure
        yield cast(BucketState, self)

    def bucket_document(self, name: str, kind: DocumentKind) -> bytes | None:
        assert kind is DocumentKind.LIFECYCLE
        rules = self.rules.get(name, [])
        return encode_rules(rules) if rules else None

    def directory_row(self, bucket: str) -> DirectoryRow:
        return DirectoryRow(bucket, "a", "ann", 5, slices=decode_slices(self.marks[bucket]))


@pytest.fixture
def first_cell() -> Iterator[FirstCell]:
    """The first cell of two wide buckets that also have a slice in cell b."""
    cell = FirstCell({name: encode_slices(("a", "b")) for name in ("wide", "wide-too")}, wide=[ExpiryRule("r", days=3)])
    yield cell
    cell.answers.set()


def expiring(known: KnownExpiry, now_ms: int) -> list[str]:
    """The buckets whose new objects will expire."""
    buckets = ("plain", "wide", "wide-too")
    return [one for one in buckets if known.expires_ms(packable(one, "a", now_ms), now_ms, now_ms) is not None]


def of_cell_b(first_cell: FirstCell) -> KnownExpiry:
    """Return what packers of cell b know. That cell also has a plain bucket with rules of its own."""
    table = Table([])
    table.documents, table.marks = {"plain": encode_rules([ExpiryRule("r", days=1)])}, first_cell.marks
    return KnownExpiry(
        cast(Metadata, table),
        DAY_MS,
        OtherCells("b", first_cell.documents_in, lambda: nullcontext(cast(Directory, first_cell))),
    )


def end_of_reading(known: KnownExpiry) -> None:
    thread = known._elsewhere._thread
    assert thread is not None
    thread.join()


def test_rules_of_wide_buckets_are_read_in_their_first_cell(
    first_cell: FirstCell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(known_expiry, "FIRST_WAIT_S", 60)
    now_ms, known = FakeClock().now_ms(), of_cell_b(first_cell)
    for _ in range(2):
        assert expiring(known, now_ms) == ["plain", "wide"], "the first refresh waits for the other cell"
    assert first_cell.reads == 2, "each bucket is read once in a refresh"
    first_cell.failure = Transient("away")
    now_ms += known_expiry.REFRESH_MS
    expiring(known, now_ms)
    end_of_reading(known)
    assert expiring(known, now_ms) == ["plain", "wide"], "by the rules known before"
    assert capsys.readouterr().out.count("not read in their first cells") == 1
    first_cell.failure = None
    first_cell.rules = {"wide-too": [ExpiryRule("r", days=3)]}
    now_ms += known_expiry.REFRESH_MS
    expiring(known, now_ms)
    end_of_reading(known)
    assert expiring(known, now_ms) == ["plain", "wide-too"]
    known.close()


def test_packing_does_not_wait_for_a_first_cell_that_hangs(
    first_cell: FirstCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_expiry, "FIRST_WAIT_S", 0)
    monkeypatch.setattr(known_expiry, "END_WAIT_S", 0)
    now_ms, known, closed = FakeClock().now_ms(), of_cell_b(first_cell), of_cell_b(first_cell)
    first_cell.answers.clear()
    for refresh in range(3):
        assert expiring(known, now_ms + refresh * known_expiry.REFRESH_MS) == ["plain"]
    assert first_cell.reads <= 1, "one read hangs, and no other one begins"
    assert expiring(closed, now_ms) == ["plain"]
    closed.close()
    first_cell.answers.set()
    end_of_reading(known)
    end_of_reading(closed)
    assert expiring(known, now_ms + 2 * known_expiry.REFRESH_MS) == ["plain", "wide"]
    assert first_cell.reads <= 3, "what was closed reads no further bucket"


def test_rules_of_other_cells_count_for_the_bound(first_cell: FirstCell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_expiry, "FIRST_WAIT_S", 60)
    monkeypatch.setattr(known_expiry, "RULES_KNOWN_MAX", 2)
    first_cell.rules["wide-too"] = [ExpiryRule("r", days=3)]
    assert expiring(of_cell_b(first_cell), FakeClock().now_ms()) == ["plain", "wide"]


def test_the_table_is_read_every_few_minutes_and_may_be_away() -> None:
    now_ms = FakeClock().now_ms()
    table = Table([history("a", 2, now_ms)])
    lifetimes = ExpectedLifetimes(cast(Metadata, table))
    table.failure = Transient("away")
    assert lifetimes.at(now_ms) is UNKNOWN
    table.failure = None
    assert lifetimes.at(now_ms + REFRESH_MS - 1) is UNKNOWN
    known = lifetimes.at(now_ms + REFRESH_MS)
    assert known.half_life_days("a", 0) < 3
    table.failure = Transient("away")
    assert lifetimes.at(now_ms + 2 * REFRESH_MS) is known
    assert table.reads == 3


def test_what_is_old_decays_in_what_packers_go_by() -> None:
    now_ms = FakeClock().now_ms()
    rows = [history("a", 2, now_ms), history("b", 1000, now_ms)]
    before = lifetimes_of([SurvivalRow(*row[:2], Counts.load(row.counts.dump())) for row in rows], now_ms)
    much_later = lifetimes_of(rows, now_ms + 180 * 60 * DAY_MS)
    assert before.half_life_days("a", 0) < 3
    assert much_later.half_life_days("a", 0) > 1000, "hardly anything is known any more"
    assert BUCKETS_MAX < SURVIVAL_ROWS_MAX
