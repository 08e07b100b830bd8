"""Noncurrent versions and delete markers go by the rules of their bucket, and nothing that is needed does."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import pytest

from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import Conflict, NosError, Transient
from nos_ec.core.expiry import DAY_MS, TAGS_ATTRIBUTE, BucketRules, ExpiryRule, encode_rules
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning, as_null_version, as_version
from nos_ec.engine.expiry import lifecycle_bucket, lifecycle_walk
from nos_ec.engine.expiry.lifecycle_bucket import START, BucketWalk, WalkCounts, WalkPosition
from nos_ec.engine.expiry.lifecycle_walk import RETRY_MS_MAX, LifecycleWalk
from nos_ec.ports.metadata import (
    AddMarker,
    CannedAcl,
    DeleteVersion,
    DocumentKind,
    ExpireVersion,
    ObjectRow,
    VersionDeletion,
    VersionEntry,
)
from tests.rig.at_rest import LaterClock
from tests.rig.fakes.metadata_bench import MetadataBench, asking
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import TTL_OVER_MS, Bench
from tests.service.s3.test_version_kills import put as put_version

ENABLED, SUSPENDED = Versioning.ENABLED, Versioning.SUSPENDED
VERSION_LIFECYCLE_POINTS = ["lifecycle.deleted", "lifecycle.saved", "metadata.delete_versions.before_commit"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "meta.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def metadata(template: Path, tmp_path: Path) -> Iterator[SqlMetadata]:
    shutil.copy(template, tmp_path / "meta.db")
    opened = open_metadata(f"sqlite:///{tmp_path / 'meta.db'}")
    yield opened
    opened.close()


class Hands:
    """A bucket with versions and rules, and a clock that is set by hand: midnight at first."""

    def __init__(self, metadata: SqlMetadata, *rules: ExpiryRule, versioning: Versioning = ENABLED) -> None:
        self.bench = MetadataBench(metadata)
        self.metadata = metadata
        self.bench.now_ms = self.bench.now_ms // DAY_MS * DAY_MS
        metadata.create_bucket("bucket", "ann", CannedAcl.PRIVATE, 1)
        self.rule(*rules)
        self.versioning = versioning
        metadata.set_bucket_document("bucket", DocumentKind.VERSIONING, versioning.encode(), 1)

    def rule(self, *rules: ExpiryRule) -> None:
        assert self.metadata.set_bucket_document("bucket", DocumentKind.LIFECYCLE, encode_rules(rules), 1)

    def now_ms(self) -> int:
        """See Clock."""
        return self.bench.now_ms

    def wait(self, stop: Event, _wait_ms: int) -> bool:
        """See Clock."""
        return stop.is_set()

    def days(self, count: float) -> None:
        """Let this many days pass."""
        self.bench.now_ms += round(count * DAY_MS)

    def put(self, name: str = "k", size: int = 1000, **tags: str) -> ObjectRow:
        """PUT an object."""
        attributes = encode_attributes({TAGS_ATTRIBUTE: urlencode(tags)}) if tags else b""
        attributes = as_version(attributes) if self.versioning is ENABLED else as_null_version(attributes)
        new = asking(self.bench.new(name, size), versioning=self.versioning, attributes=attributes)
        return self.bench.record([new])[0]

    def delete(self, name: str = "k") -> VersionEntry:
        """DELETE an object, without a version id."""
        (marker,) = self.metadata.delete_versions(
            [AddMarker(ObjectKey("bucket", name), self.versioning)], self.now_ms()
        )
        assert isinstance(marker, VersionEntry)
        return marker

    def walk(self, trash_ms: int = 0, metadata: Any = None) -> WalkCounts:
        """GC's walk of today."""
        return LifecycleWalk(metadata or self.metadata, self, DAY_MS, trash_ms).run_once()

    def left(self) -> list[tuple[str, int]]:
        """The numbers of all versions and markers, as listed."""
        return [(one.key.name, one.version) for one in self.entries()]

    def entries(self) -> list[VersionEntry]:
        """All versions and markers."""
        page = self.metadata.list_versions("bucket", "", "", ("", None), 9999, 10_000)
        return [one for one in page.entries if isinstance(one, VersionEntry)]


class Watched:
    """The metadata, with something before each delete."""

    def __init__(self, metadata: SqlMetadata, before: Callable[[Sequence[VersionDeletion]], None]) -> None:
        self._metadata = metadata
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def delete_versions(self, deletions: Sequence[VersionDeletion], *when: Any) -> Any:
        self._before(deletions)
        return self._metadata.delete_versions(deletions, *when)


def test_noncurrent_versions_go_days_after_they_were_overwritten(metadata: SqlMetadata) -> None:
    """Counted from the PUT of the successor, rounded up to midnight; the current version stays for ever."""
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=3))
    first = hands.put(size=500)
    hands.days(100)
    second = hands.put(size=700)
    hands.days(0.5)
    third = hands.put()
    hands.days(2.4)
    assert hands.walk() == WalkCounts(3)
    hands.days(0.1)
    assert hands.walk() == WalkCounts(3, versions=1, bytes=500)
    assert hands.left() == [("k", third.version), ("k", second.version)]
    hands.days(1)
    assert hands.walk() == WalkCounts(2, versions=1, bytes=700), "half a day later, so a day later"
    hands.days(1000)
    assert hands.walk() == WalkCounts(1)
    assert metadata.get(first.key) == third
    hands.bench.check_counters()


def test_what_was_deleted_goes_in_the_end_with_all_that_it_left(metadata: SqlMetadata) -> None:
    """An object expires, then its versions, then its marker."""
    cleaning = ExpiryRule("markers", markers=True)
    hands = Hands(metadata, ExpiryRule("r", days=10, noncurrent_days=5), cleaning)
    hands.put()
    hands.days(10)
    assert hands.walk() == WalkCounts(1, objects=1, bytes=1000)
    hands.days(4)
    assert hands.walk() == WalkCounts(2)
    hands.days(1)
    assert hands.walk() == WalkCounts(2, versions=1, bytes=1000)
    assert len(hands.left()) == 1
    hands.days(1)
    assert hands.walk() == WalkCounts(1, markers=1)
    assert hands.left() == []
    assert metadata.delete_bucket("bucket", hands.now_ms())


@pytest.mark.parametrize(
    ("rule", "after_days"),
    [
        (ExpiryRule("r", days=7), 7),
        (ExpiryRule("r", days=7, size_below=1), 7),
        (ExpiryRule("r", days=7, size_above=0), None),
        (ExpiryRule("r", days=7, tags=(("a", "1"),)), None),
        (ExpiryRule("r", days=7, prefix="l"), None),
        (ExpiryRule("r", markers=True), 0),
        (ExpiryRule("r", markers=False, noncurrent_days=1), None),
        (ExpiryRule("r", markers=True, enabled=False), None),
        (ExpiryRule("r", date_ms=1_700_000_000_000 // DAY_MS * DAY_MS + 4 * DAY_MS), 4),
    ],
)
def test_a_marker_that_is_alone_goes(metadata: SqlMetadata, rule: ExpiryRule, after_days: int | None) -> None:
    """By the rule of markers it goes at any age; by other rules, when it is as old as objects must be."""
    hands = Hands(metadata, rule)
    marker = hands.delete()
    gone = []
    for day in range(12):
        gone += [day] * hands.walk().markers
        hands.days(1)
    assert gone == ([] if after_days is None else [after_days])
    assert hands.left() == ([] if gone else [("k", marker.version)])


def test_the_newest_ones_are_kept(metadata: SqlMetadata) -> None:
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1, newer_versions=2))
    rows = [hands.put() for _ in range(5)]
    hands.days(2)
    assert hands.walk() == WalkCounts(5, versions=2, bytes=2000)
    assert [version for _, version in hands.left()] == [row.version for row in rows[:1:-1]]
    marker = hands.delete()
    hands.days(2)
    assert hands.walk() == WalkCounts(4, versions=1, bytes=1000), "what was current is one of the two"
    assert [version for _, version in hands.left()] == [marker.version, rows[4].version, rows[3].version]


def test_conditions_are_those_of_the_noncurrent_version(metadata: SqlMetadata) -> None:
    hands = Hands(
        metadata,
        ExpiryRule("tagged", tags=(("old", "1"),), noncurrent_days=1),
        ExpiryRule("large", prefix="k", size_above=5000, noncurrent_days=1),
    )
    kept = [hands.put(old="2"), hands.put(size=5000)]
    hands.put(size=5001)
    hands.put(old="1", other="x")
    hands.delete()
    kept.append(hands.put(old="1"))
    hands.put("other", 9000)
    hands.put("other")
    hands.days(2)
    assert hands.walk() == WalkCounts(8, versions=2, bytes=6001)
    left = [version for name, version in hands.left() if name == "k"]
    assert set(left) > {row.version for row in kept}
    assert len(left) == 4, "a marker has neither bytes nor tags"
    assert len(hands.left()) == 6


def test_suspended_buckets(metadata: SqlMetadata) -> None:
    hands = Hands(metadata, ExpiryRule("r", days=3, noncurrent_days=1), ExpiryRule("m", markers=True))
    own = hands.put()
    hands.versioning = SUSPENDED
    metadata.set_bucket_document("bucket", DocumentKind.VERSIONING, SUSPENDED.encode(), 1)
    null = hands.put()
    hands.put("n")
    hands.days(1)
    assert hands.walk() == WalkCounts(3, versions=1, bytes=1000)
    assert metadata.get(own.key) == null
    hands.days(2)
    assert hands.walk() == WalkCounts(2, objects=2, bytes=2000)
    assert [(one.is_null, one.row) for one in hands.entries()] == [(True, None)] * 2, (
        "null markers replace null versions"
    )
    hands.days(1)
    assert hands.walk() == WalkCounts(2, markers=2)
    assert hands.left() == []
    hands.bench.check_counters()


def test_versions_that_expire_go_into_the_trash(metadata: SqlMetadata) -> None:
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1))
    first, _ = hands.put(), hands.put()
    hands.days(1)
    assert hands.walk(trash_ms=DAY_MS).versions == 1
    (row,) = metadata.trash_page(None, 9).rows
    assert (row.object_id, row.trash_until_ms) == (first.object_id, hands.now_ms() + DAY_MS)


def test_what_happens_between_the_page_and_the_delete(metadata: SqlMetadata) -> None:
    """Each key has a noncurrent version that is due, until somebody changes it."""
    names = ("deleted", "emptied", "marked", "promoted", "retagged", "stays", "undeleted")
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1, newer_versions=1), ExpiryRule("m", markers=True))
    rows = {name: [hands.put(name) for _ in range(3)] for name in names}
    lone = hands.delete("lone")
    revived = hands.delete("revived")
    hands.days(2)

    def change(_: Sequence[VersionDeletion]) -> None:
        bench, keys = hands.bench, {name: ObjectKey("bucket", name) for name in names}
        first, second, third = (tuple(rows[name][number].version for name in names) for number in range(3))
        at = {name: number for number, name in enumerate(names)}
        metadata.delete_versions(
            [
                DeleteVersion(keys["deleted"], first[at["deleted"]]),
                DeleteVersion(keys["emptied"], second[at["emptied"]]),
                AddMarker(keys["marked"], ENABLED),
                DeleteVersion(keys["promoted"], third[at["promoted"]]),
                DeleteVersion(keys["promoted"], second[at["promoted"]]),
            ],
            bench.now_ms,
        )
        tagged = encode_attributes({TAGS_ATTRIBUTE: "keep=1"})
        assert metadata.set_attributes(rows["retagged"][0], as_version(tagged))
        late = bench.now_ms + DAY_MS
        metadata.delete_versions([DeleteVersion(keys["undeleted"], first[at["undeleted"]])], bench.now_ms, late)
        metadata.delete_versions([DeleteVersion(keys["undeleted"], second[at["undeleted"]])], bench.now_ms, late)
        metadata.delete_versions([DeleteVersion(keys["undeleted"], third[at["undeleted"]])], bench.now_ms, late)
        assert metadata.undelete([rows["undeleted"][0]]).rows != []
        hands.put("revived")

    expired = hands.walk(metadata=Watched(metadata, change))
    assert expired == WalkCounts(23, versions=2, bytes=2000, markers=1)
    found = hands.left()
    assert not any(name == "lone" and version == lone.version for name, version in found)
    assert ("revived", revived.version) in found
    for name, numbers in {
        "deleted": (1, 2),
        "emptied": (0, 2),
        "promoted": (0,),
        "retagged": (0, 1, 2),
        "stays": (1, 2),
        "undeleted": (0,),
    }.items():
        assert {version for key, version in found if key == name} == {rows[name][one].version for one in numbers}, name
    assert metadata.get(ObjectKey("bucket", "promoted")).version == rows["promoted"][0].version
    assert len([one for one in found if one[0] == "marked"]) == 3
    hands.bench.check_counters()


def test_a_key_that_is_stuck_stops_no_other(metadata: SqlMetadata) -> None:
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1))
    for name in ("a", "b", "c"):
        hands.put(name), hands.put(name)
    hands.days(2)
    stuck = True

    def fail(deletions: Sequence[VersionDeletion]) -> None:
        if stuck and any(one.key.name == "b" for one in deletions):
            raise Transient("its row is locked")

    watched: Any = Watched(metadata, fail)
    walk = LifecycleWalk(watched, hands, DAY_MS, 0)
    assert walk.run_once() == WalkCounts(6, versions=2, bytes=2000, failed=1)
    assert [name for name, _ in hands.left()] == ["a", "b", "b", "c"]
    assert walk.run_once() == WalkCounts(), "it waits"
    stuck = False
    hands.bench.now_ms += RETRY_MS_MAX
    assert walk.run_once() == WalkCounts(4, versions=1, bytes=1000)
    assert walk.state is not None
    assert walk.state.failed == {}


def test_a_bucket_that_is_walked_again_stops_no_other_day(
    metadata: SqlMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin anew with each run either, however short the runs are."""
    monkeypatch.setattr(lifecycle_bucket, "PAGE_ROWS", 5)
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1))
    for _ in range(18):
        hands.put()
    hands.put("stuck"), hands.put("stuck")
    hands.days(2)
    stuck = True

    def fail(deletions: Sequence[VersionDeletion]) -> None:
        if stuck and any(one.key.name == "stuck" for one in deletions):
            raise Transient("its row is locked")

    watched: Any = Watched(metadata, fail)
    assert hands.walk(metadata=watched) == WalkCounts(20, versions=17, bytes=17_000, failed=1)
    for _ in range(12):
        hands.put()
    monkeypatch.setattr(lifecycle_walk, "RUN_MS_MAX", 0)
    hands.bench.now_ms += RETRY_MS_MAX
    stuck = False
    examined = []
    while (found := hands.walk()).examined:
        examined.append(found.examined)
        assert len(examined) < 9
    assert examined == [5, 5, 5]
    assert len([one for one in hands.left() if one[0] == "stuck"]) == 1
    metadata.set_bucket_document("bucket", DocumentKind.LIFECYCLE, b"damaged", 1)
    hands.days(1)
    assert hands.walk().failed == 1
    hands.rule(ExpiryRule("r", noncurrent_days=1))
    hands.days(1)
    assert hands.walk().examined == 5, "the walk of the day, whatever has failed the day before"


def test_what_was_deleted_before_a_failure_counts(metadata: SqlMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_bucket, "VERSIONS_AT_A_TIME", 4)
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1))
    rows = [hands.put() for _ in range(12)]
    hands.days(2)

    def fail(deletions: Sequence[VersionDeletion]) -> None:
        if any(isinstance(one, ExpireVersion) and one.version == rows[6].version for one in deletions):
            raise Conflict("damaged")

    assert hands.walk(metadata=Watched(metadata, fail)) == WalkCounts(12, versions=10, bytes=10_000)
    assert [version for _, version in hands.left()] == [rows[11].version, rows[6].version]


def test_a_store_that_does_not_answer_is_not_asked_for_each_key(metadata: SqlMetadata) -> None:
    hands = Hands(metadata, ExpiryRule("r", noncurrent_days=1))
    for number in range(50):
        hands.put(f"{number}"), hands.put(f"{number}")
    hands.days(2)
    asked = []

    def fail(deletions: Sequence[VersionDeletion]) -> None:
        asked.append(len(deletions))
        raise Transient("no answer")

    watched: Any = Watched(metadata, fail)
    assert hands.walk(metadata=watched).failed == 1
    assert asked == [50, 1, 1, 1]


def test_a_key_with_many_versions_is_walked_in_runs(metadata: SqlMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short its runs are, the walk makes progress within a key, and another process continues where one
    ended."""
    monkeypatch.setattr(lifecycle_bucket, "PAGE_ROWS", 5)
    monkeypatch.setattr(lifecycle_walk, "RUN_MS_MAX", 0)
    hands = Hands(metadata, ExpiryRule("r", prefix="many", noncurrent_days=1, newer_versions=3))
    rows = [hands.put("many") for _ in range(42)]
    others = [hands.put(name) for name in ("many more", "one")]
    hands.days(2)
    total, runs = WalkCounts(), 0
    walk = LifecycleWalk(metadata, hands, DAY_MS, 0)
    while walk.state is None or walk.state.ended_ms is None:
        walk = LifecycleWalk(metadata, hands, DAY_MS, 0)
        found = walk.run_once()
        assert found.examined <= 5
        total, runs = total + found, runs + 1
        assert runs < 30
    assert total == WalkCounts(43, versions=38, bytes=38_000)
    assert runs >= 9
    kept = [("many", row.version) for row in rows[:-5:-1]]
    assert hands.left() == [*kept, *((row.key.name, row.version) for row in others)]


def naive(entries: list[VersionEntry], rules: list[ExpiryRule], now_ms: int) -> set[tuple[str, int]]:
    """What has expired, by the words of the user guide: the name and number of versions and markers."""
    judge, expired = BucketRules(rules), set()
    for name in {one.key.name for one in entries}:
        mine = [one for one in entries if one.key.name == name]
        for number, one in enumerate(mine):
            row = one.row
            tags = {"t": "1"} if row is not None and b"t=1" in row.attributes else {}
            size = 0 if row is None else row.size
            if number == 0 and row is not None:
                expiry = judge.expiry(name, size, lambda tags=tags: tags, one.created_ms)  # type: ignore[misc]
                due = expiry is not None and expiry.due_ms <= now_ms
            elif number == 0:
                expiry = judge.lone_marker_expiry(name, one.created_ms)
                due = len(mine) == 1 and expiry is not None and expiry.due_ms <= now_ms
            else:
                due = any(
                    rule.noncurrent_days is not None
                    and name.startswith(rule.prefix)
                    and (not rule.tags or tags == dict(rule.tags))
                    and (rule.size_above is None or size > rule.size_above)
                    and number - 1 >= (rule.newer_versions or 0)
                    and -(-mine[number - 1].created_ms // DAY_MS) * DAY_MS + rule.noncurrent_days * DAY_MS <= now_ms
                    for rule in rules
                )
            if due:
                expired.add((name, one.version))
    return expired


@pytest.mark.parametrize("seed", range(24))
def test_any_history(metadata: SqlMetadata, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Pages of any length delete what the user guide says, also when each page is another run. Where rules differ from
    each other, what a page has deleted may keep older versions for a while, and nothing else is deleted."""
    rng = random.Random(seed)
    rules = [
        ExpiryRule(
            f"r{number}",
            prefix=rng.choice(["", "a", "b"]),
            tags=rng.choice([(), (("t", "1"),)]),
            size_above=rng.choice([None, 50]),
            days=rng.choice([None, 4]),
            noncurrent_days=rng.choice([1, 3, None]),
            newer_versions=rng.choice([None, 1, 2]),
        )
        for number in range(1 + seed % 3)
    ]
    if rng.random() < 0.5:
        rules.append(ExpiryRule("m", prefix=rng.choice(["", "b"]), markers=True))
    hands = Hands(metadata, *rules)
    for _ in range(60):
        hands.days(rng.random() / 4)
        name = rng.choice(["a", "aa", "ab", "b", "b/c", "c"])
        if rng.random() < 0.7:
            hands.put(name, rng.choice([10, 100]), **rng.choice([{}, {"t": "1"}]))
        else:
            hands.delete(name)
    for name in ("a!", "b!", "z"):
        hands.delete(name)
    before, at_ms = hands.entries(), hands.now_ms()
    expired = naive(before, rules, at_ms)
    page_rows = rng.choice([2, 3, 5, 1000])
    monkeypatch.setattr(lifecycle_bucket, "PAGE_ROWS", page_rows)
    told = LifecycleWalk(metadata, hands, DAY_MS, 0).walk_bucket("bucket", rules, dry_run=True)
    assert told.objects + told.versions + told.markers == len(expired)
    assert hands.entries() == before

    found, place, pages = WalkCounts(), START, 0
    is_resumed, has_ended = rng.random() < 0.5, False
    while not has_ended:
        pages += 1

        def on_page(last: WalkPosition, _page: WalkCounts) -> bool:
            nonlocal place
            place = last
            return not is_resumed

        part = BucketWalk(metadata, hands, DAY_MS, 0, "bucket", rules).walk(place, on_page)
        has_ended = part.examined == 0 or not is_resumed
        found += part
        assert pages < 100
    hidden = {(one.key.name, one.version) for one in before if one.is_latest and one.row is not None}
    gone = {(one.key.name, one.version) for one in before} - set(hands.left())
    assert gone <= expired - hidden
    assert found.objects == len(expired & hidden)
    assert found.versions + found.markers == len(gone)
    if page_rows == 1000 or sum(rule.noncurrent_days is not None for rule in rules) <= 1:
        assert gone == expired - hidden
    hands.bench.check_counters()


@pytest.mark.timed
@pytest.mark.invariant(1)
@pytest.mark.parametrize("point", VERSION_LIFECYCLE_POINTS)
def test_gc_killed_while_it_walks_versions(bench: Bench, point: str) -> None:
    keys = [ObjectKey("b", f"{number}") for number in range(12)]
    with bench.open() as system:
        system.clock = LaterClock(-3 * DAY_MS)
        system.metadata.create_bucket("b", "root", CannedAcl.PRIVATE, 1)
        rules = [ExpiryRule("r", noncurrent_days=1), ExpiryRule("m", markers=True)]
        system.metadata.set_bucket_document("b", DocumentKind.LIFECYCLE, encode_rules(rules), 1)
        system.metadata.set_bucket_document("b", DocumentKind.VERSIONING, b"Enabled", 1)
        for key in keys:
            for _ in range(3):
                bench.acknowledged[key] = bench.data(3000)
                put_version(system, bench.acknowledged[key], key=key)
        markers = [AddMarker(ObjectKey("b", f"marker {number}"), ENABLED) for number in range(3)]
        assert not any(isinstance(one, NosError) for one in system.client.store().delete_versions(markers))
        bench.pack(system)
    done = bench.run("gc", "run", "--apply", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)
        page = system.metadata.list_versions("b", "", "", ("", None), 999, 10_000)
        assert len(page.entries) == len(keys), "the rest of the walk was made up for"
        assert check(system, read_share=1.0) == []


def test_the_commands_tell_of_versions(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    with bench.open() as system:
        system.clock = LaterClock(-3 * DAY_MS)
        system.metadata.create_bucket("b", "root", CannedAcl.PRIVATE, 1)
        rules = [ExpiryRule("r", noncurrent_days=1, newer_versions=1), ExpiryRule("m", prefix="m", markers=True)]
        system.metadata.set_bucket_document("b", DocumentKind.LIFECYCLE, encode_rules(rules), 1)
        system.metadata.set_bucket_document("b", DocumentKind.VERSIONING, b"Enabled", 1)
        for _ in range(3):
            put_version(system, b"data")
        system.client.store().delete_versions([AddMarker(ObjectKey("b", "m"), ENABLED)])
    text = cli.text("s3", "lifecycle", "list")
    assert "b/  r  delete noncurrent versions after 1 day, but 1" in text
    assert "b/m  m  remove delete markers that are alone" in text
    told = cli("s3", "lifecycle", "run", "--dry-run")["buckets"][0]
    assert (told["versions"], told["markers"], told["bytes"]) == (1, 1, 4)
    assert "1 noncurrent version and 1 delete marker to be removed" in cli.text("s3", "lifecycle", "run", "--dry-run")
    assert "1 noncurrent version and 1 delete marker removed" in cli.text("s3", "lifecycle", "run")
    assert "noncurrent" not in cli.text("s3", "lifecycle", "run"), "nothing more"
