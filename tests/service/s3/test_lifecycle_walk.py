"""What has expired is deleted, once a day, whatever fails or is killed, and nothing else is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from io import BytesIO
from threading import Event
from typing import Any

import pytest

from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.errors import Conflict, Transient
from nos_ec.core.expiry import DAY_MS, TAGS_ATTRIBUTE, ExpiryRule, encode_rules
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import FLOOR_MS, Versioning
from nos_ec.engine.expiry import lifecycle_bucket, lifecycle_walk
from nos_ec.engine.expiry.lifecycle_bucket import WalkCounts
from nos_ec.engine.expiry.lifecycle_walk import (
    FAILED_MAX,
    LIFECYCLE_NOTE,
    RETRY_MS_FIRST,
    RETRY_MS_MAX,
    LifecycleWalk,
    WalkState,
    read_walk,
)
from nos_ec.ports.metadata import NOTE_CHARS_MAX, AddMarker, CannedAcl, DocumentKind, ObjectRow, UploadState
from nos_gc.assemble import gc_service
from tests.rig.at_rest import LaterClock
from tests.service.cli.test_cli import Cli
from tests.service.conftest import TTL_OVER_MS, Bench

LIFECYCLE_POINTS = ["lifecycle.aborted", "lifecycle.deleted", "lifecycle.deleted:2", "lifecycle.saved"]
LATER_MS = 2 * DAY_MS
"""When what a test has stored is older than a day, whatever the time of day."""


def ruled(system: System, bucket: str, *rules: ExpiryRule) -> None:
    system.metadata.create_bucket(bucket, "root", CannedAcl.PRIVATE, 1)
    body = encode_rules(rules or [ExpiryRule("r", days=1)])
    assert system.metadata.set_bucket_document(bucket, DocumentKind.LIFECYCLE, body, 1)


def walk_at(system: System, late_ms: int = LATER_MS, metadata: Any = None) -> LifecycleWalk:
    """One that walks so much later."""
    return LifecycleWalk(metadata or system.metadata, LaterClock(late_ms), DAY_MS, 0)


def names(system: System, bucket: str = "b") -> list[str]:
    return system.metadata.list_names(bucket, "", "", 99_999)


def test_in_a_bucket_with_versions_what_expires_gets_a_marker(bench: Bench, system: System) -> None:
    ruled(system, "b")
    old = bench.put(system, "old", b"stored before")
    store = system.client.store()
    assert system.metadata.set_bucket_document("b", DocumentKind.VERSIONING, b"Enabled", 1)
    new = store.put(ObjectKey("b", "new"), BytesIO(b"has an id"), versioning=Versioning.ENABLED)

    def overwrite(rows: Sequence[ObjectRow]) -> None:
        assert [row.key.name for row in rows] == ["old", "new"]
        store.put(ObjectKey("b", "new"), BytesIO(b"meanwhile"), versioning=Versioning.ENABLED)

    walk_at(system, metadata=Watched(system, overwrite)).run_once()
    assert names(system) == ["new"]
    page = system.metadata.list_versions("b", "", "", ("", None), 100, 10_000)
    versions = [one for one in page.entries if not isinstance(one, str)]
    found = [(one.key.name, one.row is None, one.version == new.version) for one in versions]
    assert found == [("new", False, False), ("new", False, True), ("old", True, False), ("old", False, False)]
    assert store.version(old, None).row is not None
    walk_at(system).run_once()
    assert names(system) == ["new"]


class Hands:
    """A clock that is set by hand."""

    def __init__(self, now_at_ms: int) -> None:
        self.now_at_ms = now_at_ms

    def now_ms(self) -> int:
        return self.now_at_ms

    def wait(self, stop: Event, _wait_ms: int) -> bool:
        return stop.is_set()


class Watched:
    """The metadata, with something between a page and the delete of what is on it, or a failure of some buckets."""

    def __init__(
        self, system: System, before_delete: Callable[[Sequence[ObjectRow]], None] = lambda _rows: None
    ) -> None:
        self._metadata = system.metadata
        self._before_delete = before_delete
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    def list_objects(self, *place: Any) -> list[ObjectRow]:
        self.pages += 1
        return self._metadata.list_objects(*place)

    def delete_unchanged(self, rows: Sequence[ObjectRow], now_ms: int, until_ms: int | None) -> list[ObjectRow]:
        self._before_delete(rows)
        return self._metadata.delete_unchanged(rows, now_ms, until_ms)

    def delete_versions(self, markers: Sequence[AddMarker], now_ms: int, until_ms: int | None) -> Any:
        self._before_delete([self._metadata.get(one.key) for one in markers])
        return self._metadata.delete_versions(markers, now_ms, until_ms)


def test_gc_deletes_what_has_expired_and_nothing_else(bench: Bench, system: System) -> None:
    ruled(system, "b", ExpiryRule("r", prefix="logs/", days=1), ExpiryRule("big", size_above=1000, days=1))
    ruled(system, "tagged", ExpiryRule("r", tags=(("k", "v"),), days=1))
    for name in ("logs/1", "logs/2", "log", "logs0", "a"):
        bench.put(system, name, b"small")
    bench.put(system, "big", bytes(1001))
    bench.put(system, "logs/3", b"unruled", "other")
    for name, value in (("yes", "v"), ("no", "w")):
        key = bench.put(system, name, b"data", "tagged")
        row = system.metadata.get(key)
        assert system.metadata.set_attributes(row, encode_attributes({TAGS_ATTRIBUTE: f"k={value}"}))
    bench.pack(system)
    gc_service(system).run_once()
    bench.assert_readable(system)
    system.clock = LaterClock(LATER_MS)
    gc = gc_service(system)
    gc.run_once()
    assert gc.lifecycle.total == WalkCounts(8, 4, 5 + 5 + 1001 + 4)
    for name, bucket in (("logs/1", "b"), ("logs/2", "b"), ("big", "b"), ("yes", "tagged")):
        del bench.acknowledged[ObjectKey(bucket, name)]
    bench.assert_readable(system)
    bench.assert_balanced(system)


def test_a_bucket_is_walked_once_a_day(bench: Bench, system: System) -> None:
    ruled(system, "b", ExpiryRule("far", days=100), *[ExpiryRule(f"r{n}", prefix=f"{n}", days=90) for n in range(9)])
    for number in range(9):
        bench.put(system, f"{number}", b"x")
    clock = Hands(system.clock.now_ms())
    walk = LifecycleWalk(system.metadata, clock, DAY_MS, 0)
    assert walk.run_once() == WalkCounts(9), "each object once, whatever the number of rules"
    assert walk.run_once() == WalkCounts()
    clock.now_at_ms = (clock.now_ms() // DAY_MS + 1) * DAY_MS
    other = LifecycleWalk(system.metadata, clock, DAY_MS, 0)
    assert (other.run_once(), walk.run_once()) == (WalkCounts(9), WalkCounts())
    clock.now_at_ms -= DAY_MS
    assert walk.run_once() == WalkCounts(9), "a walk of the future was made by a wrong clock"


def test_a_walk_forgets_numbers_that_no_clock_gives_again(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = system.clock.now_ms()
    recent = ObjectKey("b", "recent"), (now_ms - FLOOR_MS // 2) * 1000
    old = [(ObjectKey("b", f"old-{number}"), (now_ms - FLOOR_MS) * 1000 - number) for number in range(1, 6)]
    system.metadata.restore_floors([recent, *old])
    monkeypatch.setattr(lifecycle_walk, "FLOORS_PAGE", 2)
    LifecycleWalk(system.metadata, Hands(now_ms), DAY_MS, 0).run_once()
    assert system.metadata.floors_after(None, 9) == [recent]


def test_what_changes_meanwhile_stays(bench: Bench, system: System) -> None:
    ruled(system, "b")
    for name in ("kept", "tagged", "gone", "expired"):
        bench.put(system, name, b"old")

    def change(_: Sequence[ObjectRow]) -> None:
        bench.put(system, "kept", b"new")
        row = system.metadata.get(ObjectKey("b", "tagged"))
        assert system.metadata.set_attributes(row, encode_attributes({"a": "b"}))
        bench.delete(system, ObjectKey("b", "gone"))

    assert walk_at(system, metadata=Watched(system, change)).run_once() == WalkCounts(4, 1, 3)
    del bench.acknowledged[ObjectKey("b", "expired")]
    bench.assert_readable(system)


def test_a_walk_goes_on_where_it_ended(bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_bucket, "PAGE_ROWS", 10)
    monkeypatch.setattr(lifecycle_walk, "RUN_MS_MAX", 1)
    for bucket in ("a", "b", "c"):
        ruled(system, bucket, ExpiryRule("r", prefix="1", days=1), ExpiryRule("s", prefix="3", days=1))
        for number in range(100, 140):
            bench.put(system, f"{number}", b"x", bucket)
            bench.put(system, f"{number + 100}", b"x", bucket)
            bench.put(system, f"{number + 200}", b"x", bucket)

    class Passing(Hands):
        """Each look takes a millisecond."""

        def now_ms(self) -> int:
            self.now_at_ms += 1
            return super().now_ms()

    walk = LifecycleWalk(system.metadata, Passing(system.clock.now_ms() + LATER_MS), DAY_MS, 0)
    runs = 0
    while walk.state is None or walk.state.ended_ms is None:
        found = walk.run_once()
        assert found.examined <= 10
        runs += 1
        assert runs < 50
    assert walk.total == WalkCounts(240, 240, 240)
    assert runs > 20
    for bucket in ("a", "b", "c"):
        assert names(system, bucket) == [f"{number}" for number in range(200, 240)]


def test_a_bucket_that_fails_stops_no_other(bench: Bench, system: System) -> None:
    for bucket in ("a", "b", "c"):
        ruled(system, bucket)
        bench.put(system, "n", b"x", bucket)
    system.metadata.set_bucket_document("a", DocumentKind.LIFECYCLE, b"damaged", 1)
    fails = True

    def fail(rows: Sequence[ObjectRow]) -> None:
        if fails and rows[0].key.bucket == "b":
            raise Transient("no answer")

    clock = Hands(system.clock.now_ms() // DAY_MS * DAY_MS + LATER_MS)
    metadata: Any = Watched(system, fail)
    walk = LifecycleWalk(metadata, clock, DAY_MS, 0)
    assert walk.run_once() == WalkCounts(2, 1, 1, 0, 2)
    assert (names(system, "a"), names(system, "b"), names(system, "c")) == (["n"], ["n"], [])
    assert walk.run_once() == WalkCounts(), "they wait"
    clock.now_at_ms += RETRY_MS_FIRST
    assert walk.run_once().failed == 2
    assert walk.state is not None
    assert {tries for tries, _ in walk.state.failed.values()} == {2}
    clock.now_at_ms += RETRY_MS_FIRST
    assert walk.run_once() == WalkCounts(), "they wait longer"
    fails = False
    ruled(system, "a")
    clock.now_at_ms += RETRY_MS_MAX
    assert walk.run_once() == WalkCounts(2, 2, 2)
    assert walk.state.failed == {}
    assert (names(system, "a"), names(system, "b")) == ([], [])


def test_a_bucket_that_failed_before_the_clock_was_set_back_is_tried_again(bench: Bench, system: System) -> None:
    ruled(system, "a")
    bench.put(system, "n", b"x", "a")
    system.metadata.set_bucket_document("a", DocumentKind.LIFECYCLE, b"damaged", 1)
    noon_ms = system.clock.now_ms() // DAY_MS * DAY_MS + LATER_MS + DAY_MS // 2
    clock = Hands(noon_ms)
    walk = LifecycleWalk(system.metadata, clock, DAY_MS, 0)
    assert walk.run_once().failed == 1
    ruled(system, "a")
    clock.now_at_ms -= 3 * RETRY_MS_MAX
    assert walk.run_once().failed == 0
    assert walk.state is not None
    assert walk.state.failed == {}


def test_a_store_that_does_not_answer_ends_the_run(bench: Bench, system: System) -> None:
    for number in range(9):
        ruled(system, f"b{number}")
        bench.put(system, "n", b"x", f"b{number}")
    tried = []

    def fail(rows: Sequence[ObjectRow]) -> None:
        tried.append(rows[0].key.bucket)
        raise Transient("no answer")

    with pytest.raises(Transient):
        walk_at(system, metadata=Watched(system, fail)).run_once()
    assert tried == ["b0", "b1", "b2"]
    assert walk_at(system).run_once().objects == 7, "the others, and the first two later"


def test_an_object_that_fails_stops_no_other(bench: Bench, system: System) -> None:
    ruled(system, "b")
    for name in ("a", "b", "c"):
        bench.put(system, name, b"x")

    def fail(rows: Sequence[ObjectRow]) -> None:
        if any(row.key.name == "b" for row in rows):
            raise Conflict("damaged")

    assert walk_at(system, metadata=Watched(system, fail)).run_once() == WalkCounts(3, 2, 2)
    assert names(system) == ["b"]


def test_what_expires_goes_into_the_trash(bench: Bench) -> None:
    bench.config.write_text(bench.config.read_text() + "[trash]\nkeep_days = 7\n")
    with bench.open() as system:
        ruled(system, "b")
        key = bench.put(system, "n", b"data")
        system.clock = LaterClock(LATER_MS)
        assert system.worker.lifecycle_walk().run_once().objects == 1
        can = system.client.trash()
        can.undelete(can.find(key))
        bench.assert_readable(system)


def test_uploads_are_aborted(bench: Bench, system: System) -> None:
    ruled(system, "b", ExpiryRule("r", prefix="u/", abort_days=1))
    uploads = system.client.uploads()
    made = [uploads.create(ObjectKey("b", name), "ann", b"") for name in ("u/1", "u/2", "v")]
    assert walk_at(system, 0).run_once() == WalkCounts()
    assert walk_at(system).run_once() == WalkCounts(uploads=2)
    states = [row.state for row in map(system.metadata.upload, [row.upload_id for row in made]) if row]
    assert states == [UploadState.DOOMED, UploadState.DOOMED, UploadState.OPEN]


def test_only_one_of_two_walks_goes_on(bench: Bench, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle_walk, "SAVE_WAIT_MS", 0)
    for bucket in ("a", "b", "c"):
        ruled(system, bucket)
        bench.put(system, "n", b"x", bucket)
    others: list[WalkCounts] = []

    def walk_too(_: Sequence[ObjectRow]) -> None:
        if not others:
            others.append(WalkCounts())
            others[0] = walk_at(system).run_once()

    watched = Watched(system, walk_too)
    assert walk_at(system, metadata=watched).run_once() == WalkCounts(1)
    assert (watched.pages, others) == (1, [WalkCounts(3, 3, 3)])


def test_a_note_that_cannot_be_read_begins_the_walk_anew(system: System) -> None:
    for text in ("", "[]", "{}", '{"failed":{}}', '{"failed":[],"done":{}}', "x"):
        assert system.metadata.store_note(LIFECYCLE_NOTE, text, system.metadata.note(LIFECYCLE_NOTE))
        assert read_walk(system.metadata) is None
        assert walk_at(system).run_once() == WalkCounts()
        assert read_walk(system.metadata) is not None


def test_the_note_has_room_for_the_longest_names(system: System) -> None:
    long = "\U0001f600" * 63
    state = WalkState(1, 2, long, long, "n" * 1024, failed={f"{n:03}{long}": (9, 10**13) for n in range(FAILED_MAX)})
    assert len(lifecycle_walk._dumped(state)) < NOTE_CHARS_MAX


@pytest.mark.timed
@pytest.mark.invariant(1)
@pytest.mark.parametrize("point", LIFECYCLE_POINTS)
def test_gc_killed_while_it_walks(bench: Bench, point: str) -> None:
    with bench.open() as system:
        system.clock = LaterClock(-3 * DAY_MS)
        ruled(system, "a", ExpiryRule("r", prefix="gone", days=1), ExpiryRule("u", abort_days=1))
        ruled(system, "b", ExpiryRule("r", prefix="gone", days=1))
        system.client.uploads().create(ObjectKey("a", "u"), "ann", b"")
        for bucket in ("a", "b"):
            for number in range(20):
                bench.put(system, f"kept/{number}", bench.data(3000), bucket)
                bench.put(system, f"gone/{number}", bench.data(3000), bucket)
        bench.pack(system)
    done = bench.run("gc", "run", "--apply", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    for key in [key for key in bench.acknowledged if key.name.startswith("gone/")]:
        del bench.acknowledged[key]
    with bench.open() as system:
        system.clock = LaterClock(TTL_OVER_MS)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def test_the_commands(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    cli = Cli(bench, capfd)
    assert "no bucket has lifecycle rules" in cli.text("s3", "lifecycle", "list")
    assert cli("s3", "lifecycle", "run") == {"dry_run": False, "buckets": []}
    with bench.open() as system:
        system.clock = LaterClock(-3 * DAY_MS)
        ruled(system, "b", ExpiryRule("r", prefix="n", days=1), ExpiryRule("off", enabled=False, abort_days=2))
        bench.put(system, "n", b"data")
        bench.put(system, "m", b"data")
    listed = cli("s3", "lifecycle", "list")
    assert [rule["rule_id"] for rule in listed["buckets"][0]["rules"]] == ["r", "off"]
    assert listed["walk"] is None
    told = {"bucket": "b", "examined": 1, "objects": 1, "bytes": 4, "uploads": 0, "failed": 0, "error": None}
    told |= {"versions": 0, "markers": 0}
    assert cli("s3", "lifecycle", "run", "--dry-run") == {"dry_run": True, "buckets": [told]}
    assert "1 of 1 object (4 B) to be deleted" in cli.text("s3", "lifecycle", "run", "b", "--dry-run")
    cli("s3", "lifecycle", "run", "c", exits=4)
    assert "1 of 1 object (4 B) deleted, 0 uploads aborted" in cli.text("s3", "lifecycle", "run")
    with bench.open() as system:
        assert names(system) == ["m"]
        system.worker.lifecycle_walk().run_once()
        system.metadata.set_bucket_document("b", DocumentKind.LIFECYCLE, b"damaged", 1)
    text = cli.text("s3", "lifecycle", "list")
    assert "b  cannot be read" in text
    assert "0 objects examined" in text
    cli("s3", "lifecycle", "run", exits=7)
