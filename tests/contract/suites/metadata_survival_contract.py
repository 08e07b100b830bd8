"""Contract of `Survival`: counts are added and decay, one survey wins, and deaths are told once they are durable."""

from __future__ import annotations

import pytest

from nos_ec.core.errors import NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.lifetimes import AGE_RANGES, HALF_LIFE_DAYS, OTHERS, Counts
from nos_ec.ports.metadata import LivingObject, Metadata, ObjectRow
from tests.rig.fakes.metadata_bench import MetadataBench

DAY_MS = 86_400_000


def counts(deaths: float, exposure_days: float, at: int = 3) -> Counts:
    """Counts of one range of ages."""
    found = Counts()
    found.deaths[at], found.exposure_days[at] = deaths, exposure_days
    return found


def table(metadata: Metadata) -> dict[str, tuple[int, float, float]]:
    """By bucket: its time, and the sums of its deaths and exposure."""
    return {
        row.bucket: (row.counted_ms, sum(row.counts.deaths), sum(row.counts.exposure_days))
        for row in metadata.survival()
    }


class SurvivalContract:
    """All of `Survival`."""

    def test_counts_of_many_buckets_are_added(self, bench: MetadataBench) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        assert metadata.survival() == []
        metadata.count_deaths({}, now_ms)
        metadata.count_deaths({"a": counts(1, 0), "b\u00e4": counts(2.5, 1e30, AGE_RANGES - 1)}, now_ms)
        metadata.count_deaths({"b\u00e4": counts(1, 0.5, 0), "c": counts(0, 0.125)}, now_ms)
        found = {row.bucket: row for row in metadata.survival()}
        assert set(found) == {"a", "b\u00e4", "c"}
        assert found["a"].counts == counts(1, 0)
        both = counts(2.5, 1e30, AGE_RANGES - 1)
        both.add(counts(1, 0.5, 0))
        assert found["b\u00e4"].counts == both, "every number, to the last bit"
        assert {row.counted_ms for row in found.values()} == {now_ms}

    def test_old_counts_lose_half_their_weight_in_a_half_life(self, bench: MetadataBench) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        later_ms = now_ms + int(HALF_LIFE_DAYS * DAY_MS)
        metadata.count_deaths({"a": counts(8, 4), "b": counts(8, 4)}, now_ms)
        metadata.count_deaths({"a": counts(1, 1)}, later_ms)
        assert table(metadata) == {"a": (later_ms, 5, 3), "b": (now_ms, 8, 4)}
        metadata.count_deaths({"a": counts(1, 1)}, now_ms)
        assert table(metadata)["a"] == (later_ms, 6, 4), "a clock that is set back makes nothing heavier"

    def test_one_of_several_surveys_wins(self, bench: MetadataBench) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        assert not metadata.count_survey({"a": counts(0, 1)}, now_ms, now_ms + 1), "there was none"
        assert metadata.survival() == []
        assert metadata.count_survey({"a": counts(0, 1)}, None, now_ms)
        assert not metadata.count_survey({"a": counts(0, 1)}, None, now_ms)
        assert table(metadata) == {OTHERS: (now_ms, 0, 0), "a": (now_ms, 0, 1)}
        assert metadata.count_survey({}, now_ms, now_ms + 5)
        assert not metadata.count_survey({"a": counts(0, 1)}, now_ms, now_ms + 6)
        assert metadata.count_survey({OTHERS: counts(0, 3)}, now_ms + 5, now_ms - 1), "the clock was set back"
        assert table(metadata)[OTHERS][0] == now_ms - 1
        assert table(metadata)[OTHERS][2] == pytest.approx(3)

    def test_deaths_of_other_buckets_leave_the_time_of_the_survey(self, bench: MetadataBench) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        metadata.count_deaths({OTHERS: counts(1, 0), "a": counts(1, 0)}, now_ms)
        assert table(metadata) == {"a": (now_ms, 1, 0)}
        assert metadata.count_survey({}, None, now_ms)
        metadata.count_deaths({OTHERS: counts(1, 0)}, now_ms + DAY_MS)
        assert table(metadata)[OTHERS] == (now_ms, 1, 0)

    def test_a_survey_folds_buckets(self, bench: MetadataBench) -> None:
        metadata, now_ms = bench.metadata, bench.now_ms
        metadata.count_deaths({"a": counts(1, 2), "b": counts(4, 8), "c": counts(16, 32)}, now_ms)
        surveyed = {"c": counts(0, 1), OTHERS: counts(0, 1)}
        assert metadata.count_survey(surveyed, None, now_ms, ["a", "b", "unknown"])
        assert table(metadata) == {OTHERS: (now_ms, 5, 11), "c": (now_ms, 16, 33)}
        assert surveyed[OTHERS] == counts(0, 1), "a transaction that is run again would add the folded counts twice"

    def test_deaths_are_told_when_versions_are_gone(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        told: list[tuple[list[ObjectRow], int]] = []
        first, second, third = bench.put("first"), bench.packed("second"), bench.put("third")
        metadata.watch_deaths(lambda rows, now_ms: told.append((list(rows), now_ms)))
        bench.put("new")
        assert told == [], "nothing died"
        bench.put("first", 7)
        assert told.pop() == ([first], bench.now_ms)
        metadata.delete(second.key, bench.now_ms + 1)
        assert told.pop() == ([second], bench.now_ms + 1)
        with pytest.raises(NotFound):
            metadata.delete(second.key, bench.now_ms + 2)
        metadata.delete(third.key, bench.now_ms, bench.now_ms + DAY_MS)
        assert told == [], "what is in the trash takes space"
        rows = metadata.expired_trash(bench.now_ms + DAY_MS, 9)
        metadata.purge_trash(rows, bench.now_ms + DAY_MS)
        (purged, at_ms), *others = told
        assert ([row.key for row in purged], at_ms, others) == ([third.key], bench.now_ms + DAY_MS, [])
        told.clear()
        lease = bench.lease()
        metadata.record_large(bench.large("new", lease), lease, bench.now_ms)
        assert [row.key.name for row in told.pop()[0]] == ["new"]
        metadata.watch_deaths(None)
        metadata.delete_many([ObjectKey("bucket", "new"), ObjectKey("bucket", "first")], bench.now_ms)
        assert told == []

    def test_the_living_are_read_by_their_ids(self, bench: MetadataBench) -> None:
        metadata = bench.metadata
        assert metadata.last_object_id() == 0
        rows = [bench.put(name) for name in ("a", "b", "c", "d")]
        empty = bench.put("empty", 0)
        assert metadata.last_object_id() == empty.object_id
        metadata.delete(rows[1].key, bench.now_ms)
        metadata.delete(rows[2].key, bench.now_ms, bench.now_ms + DAY_MS)
        first, last = rows[0].object_id, empty.object_id
        living = [LivingObject(row.key, row.created_ms, row.size) for row in (rows[0], rows[2], rows[3])]
        assert metadata.living_between(first, last) == living, "in the trash too, but not empty"
        assert metadata.living_between(first + 1, last - 2) == living[1:2]
        assert metadata.living_between(last + 1, last + 9) == []
