"""The database is lost: all rows are rebuilt from a dump and from what blocks and the landing log tell."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from google_crc32c import value

from nos_ec.composition.wiring import System
from nos_ec.core.deadlines import QUARANTINE_MS
from nos_ec.core.errors import InvalidInput
from nos_ec.core.findings import FindingKind
from nos_ec.core.formats.copy_label import CopyLabel, encode_label
from nos_ec.core.formats.dump_format import DumpHead, DumpPage, PackedPage, decode_page, dump_frames
from nos_ec.core.ids import ACCESS_BUCKET, RESERVED_BUCKET, ObjectKey
from nos_ec.core.notifications.configuration import Notification, encode
from nos_ec.core.publishing.slots import ALL_SLOTS
from nos_ec.core.versions import Versioning
from nos_ec.engine.check.quarantine import HeldKind, held
from nos_ec.engine.dump import access_records, bucket_rows, rebuilder, rows
from nos_ec.engine.dump.dumper import dump_pages
from nos_ec.engine.dump.uncertain import KINDS
from nos_ec.ports.metadata import (
    ROOT_ACCOUNT,
    AccessKey,
    AccessOf,
    CannedAcl,
    DocumentKind,
    KeyState,
    PutRequest,
    Rights,
    VersionEntry,
)
from tests.rig.at_rest import end_log
from tests.rig.fakes.audit import all_objects
from tests.rig.fakes.clock import SetClock
from tests.rig.sampling import sampled
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, Bench
from tests.service.objects.test_attributes import given_to, put, put_all, told_by_rows

pytestmark = pytest.mark.invariant(7)

OBJECTS = int(os.environ.get("DRILL_OBJECTS", sampled("5000", "20000")))
"""In the drill, about."""


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def lose_database(bench: Bench) -> None:
    for part in (bench.folder / "store").glob("metadata.db*"):
        part.unlink()


def listed(path: Path) -> dict[str, set[str]]:
    """What is to be looked at, by kind."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        found[one["what"]].add(one["about"])
    return found


def rebuild(bench: Bench, cli: Cli, *arguments: str) -> tuple[Any, dict[str, set[str]]]:
    """Returns what the command prints, and its list."""
    to_look_at = bench.folder / "list"
    return cli("metadata", "rebuild", "--list", str(to_look_at), *arguments)["rebuilt"], listed(to_look_at)


def there(system: System) -> set[str]:
    """All keys of users."""
    store = system.client.store()
    buckets = [bucket for bucket in store.list_buckets("", 1000) if bucket != RESERVED_BUCKET]
    return {str(row.key) for bucket in buckets for row in store.list_objects(bucket, "", "", 1_000_000)}


class Drill:
    """A life of objects around a dump. `deleted`: objects of the dump that were deleted since; `fleeting`: those that
    were put and deleted since; `unpacked`: those put since that were not packed."""

    def __init__(self, bench: Bench, cli: Cli, objects: int) -> None:
        self.bench = bench
        self.dump = bench.folder / "dump"
        self.deleted: set[str] = set()
        self.fleeting: set[str] = set()
        self.unpacked: set[str] = set()
        part = objects // 4
        self.size_max = min(2 * CHUNK, 64_000_000 // objects)  # what waits must fit into the landing log
        with bench.open() as system:
            packed = bench.put_some(system, part, self.size_max, prefix="packed")
            large = [bench.put(system, f"large-{n}", bench.data(5 * STRIPE + n), "large") for n in range(8)]
            bench.put(system, "empty", b"")
            self.overwrite(system, packed[::10])
            self.delete(system, packed[1::10])
            self.delete(system, large[:1])
            bench.pack(system)
            self.delete(system, packed[2::10])
            self.overwrite(system, packed[3::10])
            waiting = bench.put_some(system, part, self.size_max, prefix="waits")
            self.delete(system, waiting[::10])
            bench.put(system, "alone", bench.data(3 * STRIPE), "large")
            cli("metadata", "dump", "--to", str(self.dump))
            self.stored = cli("metadata", "dump")["dumped"]["name"]
            self.after(system, packed, waiting, large, part)

    def after(
        self, system: System, packed: list[ObjectKey], waiting: list[ObjectKey], large: list[ObjectKey], part: int
    ) -> None:
        gone = [*packed[4::10], *waiting[1::10], large[1], packed[3]]
        self.delete(system, gone)
        self.deleted = {str(key) for key in gone}
        self.overwrite(system, packed[5::10] + waiting[2::10])
        self.bench.put(system, "large-2", self.bench.data(4 * STRIPE), "large")
        self.bench.put(system, "large-3", b"now small", "large")
        new = self.bench.put_some(system, part, self.size_max, prefix="new")
        self.overwrite(system, new[::10])
        fleeting = new[1::10] + waiting[3::10]
        self.delete(system, new[1::10])
        self.delete(system, waiting[3::10])
        self.fleeting = {str(key) for key in new[1::10]}
        self.deleted |= {str(key) for key in waiting[3::10]}
        assert fleeting
        self.bench.pack(system)
        with_gc = packed[6::10] + packed[7::10]
        self.delete(system, with_gc)
        self.deleted |= {str(key) for key in with_gc}
        self.bench.run("gc", "run", "--apply")
        late = self.bench.put_some(system, part, self.size_max, prefix="late")
        self.overwrite(system, [*late[::10], *packed[8::10]])
        self.bench.put(system, "large-new", self.bench.data(9 * STRIPE + 1), "large")
        self.unpacked = {str(key) for key in [*late, *packed[8::10]]}
        end_log(system)

    def overwrite(self, system: System, keys: list[ObjectKey]) -> None:
        pairs = [(key, self.bench.data(self.bench.rng.randint(1, self.size_max))) for key in keys]
        system.client.store().put_many(pairs)
        self.bench.acknowledged.update(pairs)

    def delete(self, system: System, keys: list[ObjectKey]) -> None:
        system.client.store().delete_many(keys)
        for key in keys:
            del self.bench.acknowledged[key]


def assert_rebuilt(drill: Drill, system: System, to_look_at: dict[str, set[str]]) -> None:
    bench = drill.bench
    store = system.client.store()
    for key, data in bench.acknowledged.items():
        assert store.get(key) == data, str(key)
    back = there(system) - {str(key) for key in bench.acknowledged}
    assert back <= drill.deleted | drill.fleeting
    assert to_look_at["gone"] == drill.deleted - back
    assert back & drill.fleeting <= to_look_at["since"]
    for name in back:
        store.get(ObjectKey(*name.split("/", 1)))


def test_drill(bench: Bench, cli: Cli) -> None:
    """The dump is in the store itself."""
    drill = Drill(bench, cli, OBJECTS)
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli)
    assert said["dump"]["name"] == drill.stored
    assert said["to_look_at"] == {kind: len(found) for kind, found in to_look_at.items()}
    assert (said["nameless"], said["unreadable"]) == (0, [])
    assert to_look_at["gone"]
    assert drill.unpacked <= to_look_at["since"]
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        assert_rebuilt(drill, system, to_look_at)
        for name in there(system) - {str(key) for key in bench.acknowledged}:
            system.client.store().delete(ObjectKey(*name.split("/", 1)))
        bench.put_some(system, 50, prefix="afterwards")
        end_log(system)
        system.client.store().delete(ObjectKey(*drill.stored.split("/", 1)))
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


@pytest.mark.landing("store")
def test_drill_without_landing_log(bench: Bench, cli: Cli) -> None:
    """Copies of the landing store say what they are. Those that later versions have replaced go into quarantine."""
    drill = Drill(bench, cli, OBJECTS // 10)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(drill.dump))
    with bench.open() as system:
        assert to_look_at["copy"] == set()
        assert drill.unpacked <= to_look_at["since"]
        assert check(system, read_share=1.0) == []
        assert_rebuilt(drill, system, to_look_at)
        assert {one.kind for one in held(system.metadata)} <= {HeldKind.COPY}
        bench.settle(system)
        assert check(system, read_share=1.0) == []
        assert_rebuilt(drill, system, to_look_at)


@pytest.mark.landing("store")
def test_a_copy_that_a_later_version_has_replaced_goes_into_quarantine(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        key = bench.put(system, "overwritten", b"the new one")
        bench.settle(system)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        old = system.new_landing_id()
        system.landing.put(old, b"old", encode_label(old, CopyLabel(key.bucket, key.name, 1, 3, value(b"old"), b"")))
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["held"] == {old.hex()}
    with bench.open() as system:
        assert [(one.kind, one.id) for one in held(system.metadata)] == [(HeldKind.COPY, old)]
        assert check(system, read_share=1.0) == []
        bench.assert_readable(system)


@pytest.mark.landing("store")
def test_a_copy_that_does_not_say_what_it_is_is_kept(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        (unlabelled, damaged, nameless) = (system.new_landing_id() for _ in range(3))
        system.landing.put(unlabelled, b"an older release put this")
        label = encode_label(damaged, CopyLabel("b", "damaged", 1, 5, 7, b""))
        system.landing.put(damaged, b"other", label)
        label = encode_label(nameless, CopyLabel("a/b", "no key", 1, 5, 7, b""))
        system.landing.put(nameless, b"again", label)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["copy"] == {unlabelled.hex(), damaged.hex(), nameless.hex()}
    with bench.open() as system:
        assert {finding.kind for finding in check(system)} == {FindingKind.COPY_WITHOUT_OWNER}
        bench.assert_readable(system)


def test_a_record_whose_entry_is_forgotten_during_the_dump_stays_dead(bench: Bench, cli: Cli) -> None:
    """Its segment is OPEN in the dump, and sealed and reaped before the dump reads the deletion queue."""
    dump = bench.folder / "dump"
    with bench.open() as system:
        keys = bench.put_some(system, 20)
        for key in keys[:5]:
            bench.delete(system, key)
        pages = []
        for page in dump_pages(system.metadata):
            pages.append(page)
            if page.table == rows.LANDING_SEGMENTS:
                end_log(system)
                system.worker.housekeeping().run_once()
                assert system.metadata.deletions_after(None, 10) == []
        head = DumpHead(system.store_id, system.clock.now_ms(), asdict(system.geometry))
        dump.write_bytes(b"".join(dump_frames(head, pages)))
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(dump))
    assert not any(to_look_at.values())
    with bench.open() as system:
        bench.assert_readable(system)


def test_an_empty_object_that_is_put_during_the_dump_is_there(bench: Bench, cli: Cli) -> None:
    """The dump has the entry of its landing copy, and perhaps not its row."""
    dump = bench.folder / "dump"
    with bench.open() as system:
        key = bench.put(system, "lock", b"before")
        bench.put(system, "deleted", b"")
        bench.delete(system, ObjectKey("b", "deleted"))
        head = DumpHead(system.store_id, system.clock.now_ms(), asdict(system.geometry))
        pages, changed = [], False
        for page in dump_pages(system.metadata):
            pages.append(page)
            if page.table == rows.OBJECTS and not changed:
                changed = True
                system.clock.wait(Event(), 2)
                bench.put(system, "lock", b"")
                bench.put(system, "new", b"")
        assert changed
        dump.write_bytes(b"".join(dump_frames(head, pages)))
    lose_database(bench)
    rebuild(bench, cli, "--from", str(dump))
    with bench.open() as system:
        assert system.client.store().get(key) == b""
        for each in bench.acknowledged:
            assert system.client.store().get(each) == b"", str(each)
        assert check(system) == []


@pytest.mark.landing("store")
def test_what_was_in_quarantine_is_so_again(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 5)
        copy = system.new_landing_id()
        system.landing.put(copy, b"nobody's")
        assert system.metadata.quarantine_copy(copy, system.clock.now_ms() + 3_600_000)
        found = list(held(system.metadata))
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert to_look_at["held"] == {copy.hex()}
    with bench.open() as system:
        (again,) = held(system.metadata)
        assert again == replace(found[0], delete_after_ms=again.delete_after_ms)
        left_ms = again.delete_after_ms - system.clock.now_ms()
        assert QUARANTINE_MS - 600_000 < left_ms <= QUARANTINE_MS, "it may have been released since the dump"
        assert check(system) == []


def test_records_that_were_copied_forward_since_the_dump(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        end_log(system)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        bench.copy_forward(system)
    bench.end_leases()
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert not any(to_look_at.values())
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        bench.assert_readable(system)
        bench.settle(system)
        bench.assert_readable(system)
        assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("copied_forward", [False, True])
def test_objects_go_back_to_their_landing_copies_when_their_block_is_gone(
    bench: Bench, cli: Cli, copied_forward: bool
) -> None:
    """The reaper found what was packed damaged and set the rows back to the landing copies, and GC deleted the block.
    In the dump the objects are packed, and their copies queued for deletion."""
    with bench.open() as system:
        bench.put_some(system, 20)
        end_log(system)
        bench.produce(system)
        bench.consume(system)
        cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        blocks = {row.extent.block_id for row in all_objects(system.metadata) if row.extent}
        if copied_forward:
            for deletion in system.metadata.due_deletions(system.clock.now_ms(), 100):
                assert system.metadata.revert_to_landing(deletion, system.clock.now_ms())
            bench.copy_forward(system)
        for block_id in blocks:
            system.blocks.delete(block_id)
    bench.end_leases()
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli, "--from", str(bench.folder / "dump"))
    assert not any(to_look_at.values())
    assert said["returned"] == 20
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        bench.assert_readable(system)
        bench.settle(system)
        bench.assert_readable(system)
        assert check(system, read_share=1.0) == []


@pytest.mark.parametrize("dumped", ["before", "between", "never"])
def test_attributes_come_back(bench: Bench, cli: Cli, dumped: str) -> None:
    dump = bench.folder / "dump"
    with bench.open() as system:
        if dumped == "before":
            cli("metadata", "dump", "--to", str(dump))
        given = put_all(bench, system)
        bench.pack(system)
        given[put(bench, system, "waits", STRIPE, given_to(1))] = given_to(1)
        if dumped == "between":
            cli("metadata", "dump", "--to", str(dump))
        for n in range(1, 8):
            given[put(bench, system, f"late-{n}", 9 * STRIPE * (n % 2) + n, given_to(n))] = given_to(n)
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli, *(["--without-dump"] if dumped == "never" else ["--from", str(dump)]))
    with bench.open() as system:
        assert told_by_rows(system) == given
        bench.settle(system)
        bench.assert_readable(system)
        assert told_by_rows(system) == given


def test_buckets_and_access_keys_come_back(bench: Bench, cli: Cli) -> None:
    dump = bench.folder / "dump"
    key = AccessKey("AK", "ann", b"secret", KeyState.DISABLED, 5, "note")
    with bench.open() as system:
        put(bench, system, "object", STRIPE, b"")
        metadata = system.metadata
        for name in ("one", "two", "gone"):
            assert metadata.create_bucket(name, "ann", CannedAcl.PUBLIC_READ, 5)
        metadata.set_bucket_document("one", DocumentKind.TAGS, b"tags", 5)
        told = Notification("all", "changes", ("s3:ObjectCreated:*",))
        metadata.set_bucket_document("two", DocumentKind.NOTIFICATION, encode([told]), 5)
        metadata.grant("two", "bob", Rights.READ | Rights.LIST, 5)
        metadata.delete_bucket("gone", 6)
        metadata.add_access_key(key)
        records = metadata.bucket_records("", 9)
        assert [record.row.name for record in records] == ["one", "two"]
        cli("metadata", "dump", "--to", str(dump))
        end_log(system)
    lose_database(bench)
    rebuild(bench, cli, "--from", str(dump))
    with bench.open() as system:
        assert system.metadata.bucket_records("", 9) == records
        assert system.metadata.access_keys("", 9) == [key]
        (queue,) = system.metadata.outbox_queues(ALL_SLOTS)
        (gap,) = system.metadata.outbox_events(*queue, 9)
        assert (queue[0], gap.key) == ("changes", b"two/")
        assert b"nos_ec:Gap" in gap.body
        bench.assert_readable(system)


def change_access(system: System) -> None:
    """Make every kind of change."""
    metadata = system.metadata
    for name, account in (("AK", "ann"), ("AB", "bob"), ("AC", "cid")):
        metadata.add_access_key(AccessKey(name, account, b"secret", KeyState.ACTIVE, 5, "note"))
    for name in ("open", "shared", "emptied"):
        assert metadata.create_bucket(name, "ann", CannedAcl.PRIVATE, 5)
    assert metadata.grant("shared", "bob", Rights.READ | Rights.LIST, 5)
    assert metadata.set_bucket_document("open", DocumentKind.TAGS, b"tags", 5)


def change_access_again(system: System) -> None:
    metadata = system.metadata
    assert metadata.change_access_key("AK", KeyState.DISABLED)
    assert metadata.change_access_key("AB", KeyState.ACTIVE, b"new secret")
    assert metadata.remove_access_key("AC")
    metadata.add_access_key(AccessKey("AD", "dan", b"secret", KeyState.ACTIVE, 6, ""))
    assert metadata.grant("shared", "bob", Rights.NONE, 6)
    assert metadata.set_bucket_acl("open", CannedAcl.GRANTS, 6, b"grants")
    assert metadata.set_bucket_document("open", DocumentKind.TAGS, None, 6)
    assert metadata.delete_bucket("emptied", 6)
    assert metadata.create_bucket("new", "bob", CannedAcl.PUBLIC_READ, 6)


def test_an_object_that_was_stored_twice_is_not_in_doubt(bench: Bench, cli: Cli) -> None:
    """Both PUTs are under way at about the same time, with the same bytes."""
    with bench.open() as system:
        for _ in range(3):
            bench.put(system, "k", b"body")
            bench.put(system, "other", bench.data(100))
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--without-dump")
    assert to_look_at["doubt"] == {"b/other"}


@pytest.mark.parametrize("versioning", [None, Versioning.ENABLED])
@pytest.mark.parametrize("dumped", [True, False])
@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("at_a_time", [1, 2, 3])
def test_puts_of_one_millisecond_have_different_numbers(
    bench: Bench,
    cli: Cli,
    versioning: Versioning | None,
    dumped: bool,
    stores: int,
    at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their records have the same time. The last one may come later, and be read later."""
    monkeypatch.setattr(rebuilder, "RECORDS_AT_A_TIME", at_a_time)
    key, bodies = ObjectKey("b", "k"), [b"one", b"two", b"three"]
    with ExitStack() as stack:
        systems = [stack.enter_context(bench.open()) for _ in range(stores)]
        clock = SetClock(systems[0].clock.now_ms())
        for system in systems:
            system.clock = clock
            system.client.store().put(ObjectKey("b", "first"), BytesIO(b"bypasses the landing log"))
        if dumped:
            cli("metadata", "dump", "--to", str(bench.folder / "dump"))
        for number, body in enumerate(bodies):
            clock.advance(50 * (number == 2 and at_a_time == 2))
            systems[number % stores].client.store().put(key, BytesIO(body), versioning=versioning)
    lose_database(bench)
    rebuild(bench, cli, *(["--from", str(bench.folder / "dump")] if dumped else ["--without-dump"]))
    with bench.open() as system:
        store = system.client.store()
        assert store.get(key) == bodies[-1] or stores == 2  # nothing tells the order of two segments in a millisecond
        entries = system.metadata.list_versions("b", "k", "", ("", None), 9, 10_000).entries
        versions = [one for one in entries if isinstance(one, VersionEntry)]
        assert len({one.version for one in versions}) == len(versions) == (3 if versioning else 1)
        for one in versions if versioning else ():
            assert system.metadata.version(key, one.version).row == one.row
        store.put(key, BytesIO(b"later"), versioning=versioning)
        assert store.get(key) == b"later"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dumped", [True, False])
def test_changes_of_access_since_the_dump_come_back(bench: Bench, cli: Cli, packed: bool, dumped: bool) -> None:
    """Disabled keys stay disabled, revoked grants stay revoked, and a new bucket has its owner."""
    with bench.open() as system:
        change_access(system)
        if packed:
            bench.pack(system)
        cli("metadata", "dump")
        change_access_again(system)
        put(bench, system, "object", STRIPE, b"")
        if packed:
            bench.pack(system)
        buckets, keys = system.metadata.bucket_records("", 9), system.metadata.access_keys("", 9)
        assert [record.row.name for record in buckets] == ["new", "open", "shared"]
        end_log(system)
    lose_database(bench)
    said, to_look_at = rebuild(bench, cli, *([] if dumped else ["--without-dump"]))
    assert said["access_records"] == 8
    assert to_look_at["access"] == {f"bucket b: its owner is unknown, so it belongs to {ROOT_ACCOUNT}"}
    with bench.open() as system:
        assert (system.metadata.bucket_records("", 9), system.metadata.access_keys("", 9)) == (buckets, keys)
        assert check(system, read_share=1.0) == []
        bench.settle(system)
        bench.assert_readable_besides_dumps(system)
        assert system.metadata.change_access_key("AK", KeyState.ACTIVE)
        record = decode_page(system.client.store().get(ObjectKey(ACCESS_BUCKET, "key/AK")))
        assert record.columns["state"] == ["active"], "new records continue the numbers of those that were rebuilt"


@pytest.mark.parametrize("after", [rows.OBJECTS, bucket_rows.BUCKETS, bucket_rows.ACCESS_KEYS])
@pytest.mark.parametrize("earlier", [False, True], ids=["", "earlier_release"])
def test_changes_of_access_while_the_dump_is_made_come_back(bench: Bench, cli: Cli, after: str, earlier: bool) -> None:
    """This holds whenever they are made, and although the clock of the dump's machine is an hour ahead. Dumps of
    earlier releases had the access first, so they may have the records of changes that they do not have."""
    dump = bench.folder / "dump"
    with bench.open() as system:
        change_access(system)
        metadata, changed = system.metadata, list[str]()

        def access() -> Iterator[DumpPage]:
            yield from bucket_rows.bucket_pages(metadata)
            yield from bucket_rows.access_key_pages(metadata)

        def in_order() -> Iterator[DumpPage | PackedPage]:
            if earlier:
                yield from access()
            for page in dump_pages(metadata):
                if not (earlier and page.table in (bucket_rows.BUCKETS, bucket_rows.ACCESS_KEYS)):
                    yield page

        def pages() -> Iterator[DumpPage | PackedPage]:
            for page in in_order():
                yield page
                if page.table == after and not changed:
                    change_access_again(system)
                    system.client.store().put_record(
                        PutRequest(ObjectKey(ACCESS_BUCKET, "key/odd")), BytesIO(b"no page")
                    )
                    changed.append(page.table)

        head = DumpHead(system.store_id, system.clock.now_ms() + 3_600_000, asdict(system.geometry))
        dump.write_bytes(b"".join(dump_frames(head, pages())))
        assert changed
        assert len(metadata.list_objects(ACCESS_BUCKET, "", "", 99)) == 9
        buckets, keys = metadata.bucket_records("", 9), metadata.access_keys("", 9)
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(dump))
    is_known = after == rows.OBJECTS and not earlier  # access was read after the record
    odd = "key odd: it was changed since the dump, and its record cannot be read"
    assert to_look_at["access"] == (set() if is_known else {odd})
    with bench.open() as system:
        assert (system.metadata.bucket_records("", 9), system.metadata.access_keys("", 9)) == (buckets, keys)


def test_records_of_before_the_dump_are_not_loaded_again(bench: Bench, cli: Cli) -> None:
    dump = bench.folder / "dump"
    with bench.open() as system:
        change_access(system)
        head = DumpHead(system.store_id, system.clock.now_ms(), asdict(system.geometry))
        dump.write_bytes(b"".join(dump_frames(head, dump_pages(system.metadata))))
        end_log(system)
    lose_database(bench)
    assert rebuild(bench, cli, "--from", str(dump))[0]["access_records"] == 0


def test_what_is_not_known_of_access_is_listed(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        change_access(system)
        bench.put(system, "k", b"body", "emptied")
        cli("metadata", "dump")
        system.client.store().delete(ObjectKey("emptied", "k"))
        assert system.metadata.delete_bucket("emptied", 6)
        damaged = ObjectKey(ACCESS_BUCKET, "key/AK")
        system.client.store().put_record(PutRequest(damaged), BytesIO(b"no page"))
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli)
    assert to_look_at["access"] == {
        "key AK: it was changed since the dump, and its record cannot be read",
        "bucket emptied: it was deleted since the dump, and holds objects again",
    }
    with bench.open() as system:
        assert system.client.store().get(ObjectKey("emptied", "k")) == b"body"
        assert {row.name for row in system.metadata.buckets_of("ann", "", 9)} == {"emptied", "open", "shared"}


def test_a_bucket_that_is_deleted_while_its_objects_are_dumped_is_listed(bench: Bench, cli: Cli) -> None:
    dump = bench.folder / "dump"
    with bench.open() as system:
        change_access(system)
        key = bench.put(system, "k", b"body", "emptied")

        def pages() -> Iterator[DumpPage | PackedPage]:
            for page in dump_pages(system.metadata):
                yield page
                if page.table == rows.OBJECTS:
                    system.client.store().delete(key)
                    assert system.metadata.delete_bucket("emptied", 6)

        head = DumpHead(system.store_id, system.clock.now_ms(), asdict(system.geometry))
        dump.write_bytes(b"".join(dump_frames(head, pages())))
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(dump))
    assert to_look_at["access"] == {"bucket emptied: it was deleted since the dump, and holds objects again"}
    with bench.open() as system:
        assert (row := system.metadata.bucket("emptied")) is not None
        assert row.owner == ROOT_ACCOUNT


def test_the_record_of_a_bucket_has_its_last_state(bench: Bench) -> None:
    """This holds whatever other processes have changed meanwhile."""
    with bench.open() as one, bench.open() as other:
        assert one.metadata.create_bucket("b", "ann", CannedAcl.PRIVATE, 5)

        def change(number: int) -> None:
            system = (one, other)[number % 2]
            kind = (DocumentKind.TAGS, DocumentKind.CORS)[number % 3 % 2]
            assert system.metadata.set_bucket_document("b", kind, b"%d" % number, 6)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(change, range(40)))
        page = decode_page(one.client.store().get(ObjectKey(ACCESS_BUCKET, "bucket/b")))
        (record,) = one.metadata.bucket_records("", 9)
        assert list(bucket_rows.buckets_of(page)) == [record]


@pytest.mark.parametrize("first", [KeyState.DISABLED, None])
def test_the_record_of_a_key_that_was_changed_and_changed_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, first: KeyState | None
) -> None:
    """A process accepts a key and stops before it writes the record. Meanwhile another one disables or removes the key
    again, so that its state is as before. The first process continues, and dies after its try to write."""

    class Died(Exception):
        pass

    with bench.open() as one, bench.open() as other:

        def set_state(system: System, state: KeyState | None) -> None:
            if state is None:
                assert system.metadata.remove_access_key("AK")
            elif system.metadata.access_key("AK") is None:
                system.metadata.add_access_key(AccessKey("AK", "ann", b"secret", state, 5, ""))
            else:
                assert system.metadata.change_access_key("AK", state)

        def stop_after(of: AccessOf, name: str, metadata: bucket_rows.AccessMetadata) -> DumpPage:
            page = bucket_rows.page_of(of, name, metadata)
            if metadata is one.metadata:
                if stops:
                    raise Died
                stops.append(name)
                set_state(other, first)
            return page

        stops: list[str] = []
        set_state(one, KeyState.ACTIVE)
        set_state(one, first)
        monkeypatch.setattr(access_records, "page_of", stop_after)
        with pytest.raises(Died):
            set_state(one, KeyState.ACTIVE)
        record = decode_page(one.client.store().get(ObjectKey(ACCESS_BUCKET, "key/AK")))
        assert [key.state for key in bucket_rows.access_keys_of(record)] == ([] if first is None else [first])


def test_a_dump_in_the_store_is_found_and_the_last_ones_are_kept(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 200)
        bench.pack(system)
        names = [cli("metadata", "dump", "--keep", "2")["dumped"]["name"] for _ in range(4)]
        assert [dump["name"] for dump in cli("metadata", "dumps")["dumps"]] == names[2:]
        assert cli.text("metadata", "dumps").splitlines()[-1].endswith(names[-1])
        assert check(system, read_share=1.0) == []
        with pytest.raises(InvalidInput, match="the store's own"):
            bench.put(system, "mine", b"data", RESERVED_BUCKET)
        with pytest.raises(InvalidInput, match="the store's own"):
            system.client.store().put_many([(ObjectKey(RESERVED_BUCKET, "mine"), b"data")])
        end_log(system)
    lose_database(bench)
    outlook = cli("metadata", "rebuild", "--dry-run")["would_read"]
    assert (outlook["dump"], outlook["objects of the dump"]) == (names[-1], 202)
    said, to_look_at = rebuild(bench, cli)
    assert said["dump"]["name"] == names[-1]
    assert not any(to_look_at.values())
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        assert {str(key) for key in bench.acknowledged} == there(system)


def test_dumps_of_a_clock_that_was_ahead_count_as_the_oldest(bench: Bench, cli: Cli) -> None:
    """Otherwise each later one would be deleted as soon as it is made, and deleted objects would come back."""
    with bench.open() as system:
        key = bench.put(system, "deleted", b"soon")
        bench.put(system, "kept", b"k")
        ahead_ms = system.clock.now_ms() + 40 * 86_400_000
        for number in range(3):
            head = DumpHead(system.store_id, ahead_ms + number, asdict(system.geometry))
            system.client.dumps().write(head, dump_pages(system.metadata, lambda _: None))
        bench.delete(system, key)
        bench.pack(system)
        assert [cli("metadata", "dump")["dumped"]["removed"] for _ in range(2)] == [1, 1]
        dumps = cli("metadata", "dumps")["dumps"]
        assert [one["begun_ms"] >= ahead_ms for one in dumps] == [True, False, False]
        assert "(from the future: a clock was ahead)" in cli.text("metadata", "dumps").splitlines()[0]
        assert cli("status")["newest_dump_ms"] == dumps[-1]["begun_ms"]
    lose_database(bench)
    rebuild(bench, cli)
    with bench.open() as system:
        assert there(system) == {"b/kept"}


def test_a_damaged_dump_is_passed_over_for_the_one_before(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        bench.put_some(system, 50)
        older = cli("metadata", "dump")["dumped"]["name"]
        newer = ObjectKey(*cli("metadata", "dump")["dumped"]["name"].split("/", 1))
        row = system.client.store().head(newer)
        (segment,) = system.metadata.segments(row.object_id, row.version)
        end_log(system)
    for path in (bench.folder / "store" / "blocks").glob(f"shard-*/*/{segment.extent.block_id.hex()}"):
        raw = bytearray(path.read_bytes())
        raw[-CHUNK + 5000 :] = bytes(len(raw[-CHUNK + 5000 :]))
        path.write_bytes(raw)
    lose_database(bench)
    said, _ = rebuild(bench, cli)
    assert said["dump"]["name"] == older
    with bench.open() as system:
        assert {str(key) for key in bench.acknowledged} == there(system)


def test_what_does_not_fit_is_refused(bench: Bench, cli: Cli, tmp_path: Path) -> None:
    dump = tmp_path / "a.dump"
    with bench.open() as system:
        bench.put_some(system, 20)
        cli("metadata", "dump", "--to", str(dump))
        assert "exists" in cli("metadata", "dump", "--to", str(dump), exits=2)["message"]
        cli("metadata", "dump", "--to", str(tmp_path / "b"), "--keep", "2", exits=2)
        end_log(system)
    assert "has the metadata of a store" in cli("metadata", "rebuild", "--from", str(dump), exits=3)["message"]
    lose_database(bench)
    cli("metadata", "rebuild", "--from", str(dump), "--without-dump", exits=2)
    assert "--without-dump" in cli("metadata", "rebuild", exits=4)["message"]
    raw = dump.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(raw[:-20])
    assert "use an older dump" in cli("metadata", "rebuild", "--from", str(cut), exits=6)["message"]
    foreign = tmp_path / "foreign"
    other = DumpHead("ff" * 16, 1, {})
    foreign.write_bytes(b"".join(dump_frames(other, [])))
    assert "a dump of store ffff" in cli("metadata", "rebuild", "--from", str(foreign), exits=2)["message"]
    rebuild(bench, cli, "--from", str(dump))
    with bench.open() as system:
        bench.assert_readable(system)


def test_without_any_dump_all_that_is_there_comes_back(bench: Bench, cli: Cli) -> None:
    with bench.open() as system:
        keys = bench.put_some(system, 100)
        bench.put(system, "large", bench.data(9 * STRIPE), "large")
        bench.pack(system)
        bench.delete(system, keys[0])
        bench.put_some(system, 30, prefix="waits")
        end_log(system)
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--without-dump")
    assert to_look_at["since"] == {str(key) for key in bench.acknowledged} | {str(keys[0])}
    with bench.open() as system:
        assert check(system, read_share=1.0) == []
        for key, data in bench.acknowledged.items():
            assert system.client.store().get(key) == data


def test_new_ids_are_above_all_ids_of_the_dump(bench: Bench, cli: Cli) -> None:
    """In a dump, the large objects of a page follow its small ones, so the greatest id is not always the last."""
    first, second = bench.folder / "first", bench.folder / "second"
    with bench.open() as system:
        bench.put(system, "small", b"a" * 500)
        bench.put(system, "big", bench.data(5 * STRIPE), "large")
        bench.pack(system)
        cli("metadata", "dump", "--to", str(first))
        bench.put(system, "later", b"b" * 600)
        bench.pack(system)
    lose_database(bench)
    rebuild(bench, cli, "--from", str(first))
    with bench.open() as system:
        cli("metadata", "dump", "--to", str(second))
        bench.put(system, "latest", b"c" * 700)
        bench.pack(system)
        known = {row.object_id for row in system.metadata.objects_after(0, 100)}
    lose_database(bench)
    _, to_look_at = rebuild(bench, cli, "--from", str(second))
    assert to_look_at["since"] == {"b/latest"}
    with bench.open() as system:
        (new,) = {row.object_id for row in system.metadata.objects_after(0, 100)} - known
        assert new > max(known)
