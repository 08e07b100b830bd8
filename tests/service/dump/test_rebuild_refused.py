"""The database is lost after PUTs were refused: a rebuild neither makes any of them current nor keeps them."""

from __future__ import annotations

import hashlib
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from nos_ec.adapters.local.devices.device_log import DeviceLog
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.composition.wiring import System
from nos_ec.core.attributes import encode_attributes
from nos_ec.core.conditions import ABSENT, PRESENT, Condition
from nos_ec.core.deadlines import EMPTY_COPY_MS
from nos_ec.core.errors import Corrupt, NosError, NoSuchUpload, NotFound, PreconditionFailed, Transient
from nos_ec.core.formats.landing_format import TYPE_PUT, is_void, scan
from nos_ec.core.ids import ObjectKey
from nos_ec.core.versions import Versioning
from nos_ec.engine.dump.rebuilder import TRASHED_MS_MIN
from nos_ec.engine.objects.uploads import MultipartUploads
from nos_ec.ports.metadata import AddMarker, PutRequest, UploadRow
from tests.rig.at_rest import LaterClock, end_log
from tests.rig.fakes.clock import SetClock
from tests.service.check.test_check import check
from tests.service.cli.test_cli import Cli
from tests.service.conftest import CHUNK, STRIPE, TTL_OVER_MS, WAIT_S_MAX, Bench
from tests.service.dump.refused_put import KEY, meanwhile, put_first
from tests.service.dump.test_rebuild import lose_database, rebuild

pytestmark = pytest.mark.invariant(7)

SMALL = b"small"
LARGE = 5 * STRIPE + 17
"""The size of an object with blocks of its own, and a tail."""
SIZES = pytest.mark.parametrize("size", [0, 1000, 3 * CHUNK, LARGE], ids=["empty", "small", "chunks", "large"])
LANDING = pytest.mark.parametrize(
    "landing", [pytest.param("log"), pytest.param("store", marks=pytest.mark.landing("store"))]
)
REFUSED_POINTS = ["put.refused", "put.voided"]
REFUSED_LARGE_POINTS = ["large.refused", "large.voided"]
UNRECORDED_POINTS = ["recovery.segment_recorded", "segment_seal.record_voided", "segment_seal.voided"]
"""Kill points while recovery voids the record of a PUT that was being refused when its process was killed."""


@pytest.fixture
def cli(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(bench, capfd)


def put(system: System, data: bytes, condition: Condition | None = None) -> None:
    system.client.store().put(KEY, BytesIO(data), condition=condition)


def refused(system: System, data: bytes, condition: Condition) -> None:
    with pytest.raises((PreconditionFailed, NotFound)):
        put(system, data, condition)


def records(system: System) -> tuple[int, int]:
    """Return how many records of PUTs in the landing log are not void, and how many are."""
    medium = system.medium
    assert medium is not None
    void = found = 0
    for segment in medium.segments():
        read = lambda at, size, segment=segment: medium.read(segment, [(at, size)])[0]  # noqa: E731
        for record in scan(read, segment, medium.limits.start, medium.limits.segment_bytes):
            if record.header.type == TYPE_PUT:
                found += 1
                void += is_void(record.names)
    return found - void, void


def dump(bench: Bench, cli: Cli) -> None:
    cli("metadata", "dump", "--to", str(bench.folder / "dump"))


def rebuild_lost(bench: Bench, cli: Cli) -> dict[str, set[str]]:
    """Lose the database and rebuild it, from the dump if one was made. Returns what is to be looked at."""
    lose_database(bench)
    source = bench.folder / "dump"
    return rebuild(bench, cli, *(("--from", str(source)) if source.exists() else ("--without-dump",)))[1]


def rebuilt(bench: Bench, cli: Cli) -> list[bytes]:
    """Return the versions of KEY after the database was lost: the current one, and those in the trash."""
    rebuild_lost(bench, cli)
    with bench.open() as system:
        store = system.client.store()
        current = [store.get(row.key) for row in store.list_objects("b", "", "", 100)]
        trashed = [row for row in system.metadata.trash_page(None, 100).rows if row.key == KEY]
        return current + [b"".join(store.open_version(row)) for row in trashed]


def fail(*_: Any) -> None:
    raise Transient("not now")


def in_turn(system: System, turns: list[tuple[Event | None, Event | None]]) -> None:
    """Let each block that is created wait for an event, and set another one when it is there."""
    create = system.blocks.create

    def created(*arguments: Any) -> None:
        before, after = turns.pop(0)
        assert before is None or before.wait(WAIT_S_MAX)
        create(*arguments)
        if after is not None:
            after.set()

    system.blocks.create = created  # type: ignore[method-assign, assignment]


class TestRefused:
    @LANDING
    @SIZES
    def test_for_another_put(self, bench: Bench, cli: Cli, size: int, landing: str) -> None:
        """Each finds no object, and one is recorded first. The other must be refused."""
        mine, theirs = bench.data(size), bench.data(size + 1)
        with bench.open() as system, bench.open() as other:
            put_first(system)
            put_first(other)
            dump(bench, cli)
            with meanwhile(system, lambda: put(other, theirs, ABSENT)):
                refused(system, mine, ABSENT)
            assert system.client.store().get(KEY) == theirs
            assert landing == "store" or size in (0, LARGE) or records(system)[1] == 1
        assert rebuilt(bench, cli) == [theirs]

    @SIZES
    def test_for_a_deletion(self, bench: Bench, cli: Cli, size: int) -> None:
        with bench.open() as system, bench.open() as other:
            put_first(system)
            put(system, SMALL)
            with meanwhile(system, lambda: other.client.store().delete(KEY)):
                refused(system, bench.data(size), PRESENT)
            end_log(system)
            system.worker.housekeeping().run_once()
            dump(bench, cli)
        assert rebuilt(bench, cli) == []

    @SIZES
    def test_what_is_refused_at_once_is_never_written(self, bench: Bench, cli: Cli, size: int) -> None:
        with bench.open() as system:
            put_first(system)
            dump(bench, cli)
            put(system, SMALL, ABSENT)
            before, blocks = records(system), list(system.blocks.list_blocks())
            refused(system, bench.data(size), ABSENT)
            refused(system, bench.data(size), Condition(bytes(16)))
            assert (records(system), list(system.blocks.list_blocks())) == (before, blocks)
        assert rebuilt(bench, cli) == [SMALL]

    def test_several_of_one_batch(self, bench: Bench, cli: Cli) -> None:
        """The library stores a batch as a whole or not at all."""
        with bench.open() as system, bench.open() as other:
            put_first(system)
            put_first(other)
            dump(bench, cli)
            puts = system.client.store()._puts.batches
            requests = [PutRequest(ObjectKey("b", name), condition=ABSENT) for name in ("a", "lock")]
            new = [(system.client.store()._new_object(request, b"x"), b"x") for request in requests]
            with meanwhile(system, lambda: put(other, SMALL)), pytest.raises(PreconditionFailed):
                puts.store_puts(new, together=True)
        assert rebuilt(bench, cli) == [SMALL]

    @pytest.mark.parametrize("size", [1000, LARGE], ids=["small", "large"])
    def test_what_cannot_be_made_void_is_not_answered_as_refused(
        self, bench: Bench, cli: Cli, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with bench.open() as system, bench.open() as other:
            put_first(system)
            assert system.medium is not None
            with monkeypatch.context() as patched:
                patched.setattr(system.medium, "overwrite", fail)
                patched.setattr(system.blocks, "delete", fail)
                with meanwhile(system, lambda: put(other, SMALL)), pytest.raises(Transient, match="send it again"):
                    put(system, bench.data(size), ABSENT)
            dump(bench, cli)
            refused(system, bench.data(size), ABSENT)
            end_log(system)  # seals the segment, and makes the record void
            assert size == LARGE or records(system)[1] == 1

    @pytest.mark.parametrize("size", [1000, LARGE], ids=["small", "large"])
    def test_a_delete_marker_is_no_reason_to_refuse(self, bench: Bench, size: int) -> None:
        """There never was an object, so the condition always holds. A large one whose version number is below
        that of the marker has to be sent again."""
        with bench.open() as system, bench.open() as other:
            put_first(system)
            data, marker = bench.data(size), AddMarker(KEY, Versioning.ENABLED)
            with meanwhile(system, lambda: other.client.store().delete_versions([marker])):
                expected = pytest.raises(Transient, match="PUT it again") if size == LARGE else nullcontext()
                with expected:
                    system.client.store().put(KEY, BytesIO(data), b"", ABSENT, Versioning.ENABLED)
            if size == LARGE:
                system.client.store().put(KEY, BytesIO(data), b"", ABSENT, Versioning.ENABLED)
            assert system.client.store().get(KEY) == data

    def test_blocks_of_two_large_puts_of_one_version_are_not_mixed(self, bench: Bench, cli: Cli) -> None:
        """Two processes may give the same number in a millisecond. Each object has two blocks, and the first one of the
        PUT that is refused is written between the two of the other."""
        mine, theirs = bench.data(12 * STRIPE), bench.data(12 * STRIPE)
        written, between, recorded = Event(), Event(), Event()
        with bench.open() as system, bench.open() as other, ThreadPoolExecutor(1) as thread:
            system.clock = other.clock = SetClock(system.clock.now_ms())
            dump(bench, cli)
            in_turn(system, [(written, between), (recorded, None)])
            in_turn(other, [(None, written), (between, None)])
            refusal = thread.submit(refused, system, mine, ABSENT)
            put(other, theirs, ABSENT)
            recorded.set()
            refusal.result(WAIT_S_MAX)
        assert rebuilt(bench, cli) == [theirs]

    def test_conditional_puts_are_in_their_order_although_clocks_differ(self, bench: Bench, cli: Cli) -> None:
        """A log of commits, written by two processes, one of which has a clock that is 10 s ahead."""
        with bench.open() as system, bench.open() as other:
            other.clock = SetClock(system.clock.now_ms() + 10_000)
            put_first(system)
            put_first(other)
            dump(bench, cli)
            for number in range(6):
                one = (other, system)[number % 2]
                before = None if not number else hashlib.md5(b"%d" % (number - 1)).digest()
                one.client.store().put(KEY, BytesIO(b"%d" % number), condition=Condition(before))
        assert rebuilt(bench, cli)[0] == b"5"

    def test_check_and_gc_find_nothing_to_say(self, bench: Bench, cli: Cli) -> None:
        with bench.open() as system, bench.open() as other:
            put_first(system)
            with meanwhile(system, lambda: put(other, SMALL)):
                refused(system, bench.data(LARGE), ABSENT)
            with meanwhile(system, lambda: other.client.store().delete(KEY)):
                refused(system, bench.data(1000), PRESENT)
            assert check(system) == []
            bench.acknowledged[ObjectKey("others", "first")] = b"first"
        with bench.open() as system:
            system.clock = LaterClock(TTL_OVER_MS)
            bench.settle(system)
            bench.assert_readable(system)
            bench.assert_at_rest(system)


class TestEmpty:
    """No block ever contains an empty object, so its landing copy is kept for a while."""

    def test_one_that_was_put_since_the_dump_is_there(self, bench: Bench, cli: Cli) -> None:
        with bench.open() as system:
            dump(bench, cli)
            stored = system.client.store().put(KEY, BytesIO(), encode_attributes({"a": "b"}))
            put_first(system)
            bench.pack(system)
            system.worker.housekeeping().run_once()
        lose_database(bench)
        rebuild(bench, cli, "--from", str(bench.folder / "dump"))
        with bench.open() as system:
            row = system.client.store().head(KEY)
            assert (row.size, row.md5, row.state, row.attributes) == (0, stored.md5, stored.state, stored.attributes)
            assert check(system) == []
        assert rebuilt(bench, cli) == [b""], "once more, without another dump"

    def test_one_that_was_deleted_before_the_dump_stays_deleted(self, bench: Bench, cli: Cli) -> None:
        with bench.open() as system:
            put(system, b"")
            system.client.store().delete(KEY)
            dump(bench, cli)
        assert rebuilt(bench, cli) == []

    @pytest.mark.parametrize("sizes", [(0, 7), (7, 0), (0, 0), (LARGE, 0), (0, LARGE)])
    def test_the_last_of_two_is_current(self, bench: Bench, cli: Cli, sizes: tuple[int, int]) -> None:
        with bench.open() as system:
            put_first(system)
            dump(bench, cli)
            for number, size in enumerate(sizes):
                put(system, bytes([number]) * size)
                system.clock.wait(Event(), 2)
        assert rebuilt(bench, cli)[0] == bytes([1]) * sizes[1]

    def test_its_copy_goes_after_a_week(self, bench: Bench) -> None:
        with bench.open() as system:
            put(system, b"")
            assert len(list(system.landing.list_ids())) == 1
            system.clock = LaterClock(EMPTY_COPY_MS - 60_000)
            bench.settle(system)
            assert len(list(system.landing.list_ids())) == 1
            system.clock = LaterClock(EMPTY_COPY_MS + 60_000)
            bench.settle(system)
            assert list(system.landing.list_ids()) == []
            assert system.client.store().get(KEY) == b""
            bench.acknowledged[KEY] = b""
            bench.assert_at_rest(system)


class TestUploads:
    @pytest.mark.parametrize("size", [1000, LARGE], ids=["small", "large"])
    def test_a_part_that_comes_after_the_upload_was_completed(self, bench: Bench, cli: Cli, size: int) -> None:
        with bench.open() as system, bench.open() as other:
            put_first(system)
            dump(bench, cli)
            uploads = system.client.uploads()
            upload = uploads.create(KEY, "ann", b"")
            uploads.put_part(upload, 1, BytesIO(SMALL), b"")
            complete = lambda: other.client.uploads().complete(upload, lambda parts: (parts, {}))  # noqa: E731
            with meanwhile(system, complete), pytest.raises(NoSuchUpload):
                uploads.put_part(upload, 1, BytesIO(bench.data(size)), b"")
            assert size == LARGE or records(system)[1] == 1
        assert rebuilt(bench, cli) == [SMALL]

    def test_an_upload_that_is_completed_against_a_condition(self, bench: Bench, cli: Cli) -> None:
        with bench.open() as system, bench.open() as other:
            put_first(system)
            dump(bench, cli)
            uploads = system.client.uploads()
            upload = uploads.create(KEY, "ann", b"")
            uploads.put_part(upload, 1, BytesIO(b"part"), b"")
            with meanwhile(system, lambda: put(other, SMALL)), pytest.raises(PreconditionFailed):
                uploads.complete(upload, lambda parts: (parts, {}), ABSENT)
            assert records(system)[1] == 1
        assert rebuilt(bench, cli) == [SMALL]


class TestPartsOfAnUpload:
    """Several PUTs of one part are there. The manifest says which one the object has."""

    @LANDING
    @pytest.mark.parametrize("dumped", [True, False])
    @pytest.mark.parametrize("size", [1000, LARGE], ids=["small", "large"])
    def test_one_that_came_too_late_is_not_void(
        self, bench: Bench, cli: Cli, size: int, dumped: bool, landing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its process cannot make it void before the database is lost."""
        first, late = bench.data(size), bench.data(size + 1)
        with monkeypatch.context() as patched, bench.open() as system, bench.open() as other:
            patched.setattr(type(system.blocks), "delete", fail)
            patched.setattr(LocalLandingStore, "delete", fail)
            patched.setattr(DeviceLog, "overwrite", fail)
            put_first(system)
            if dumped:
                dump(bench, cli)
            uploads = system.client.uploads()
            upload = uploads.create(KEY, "ann", b"")
            uploads.put_part(upload, 1, BytesIO(first), b"")
            uploads.put_part(upload, 2, BytesIO(SMALL), b"")
            complete = lambda: other.client.uploads().complete(upload, lambda parts: (parts, {}))  # noqa: E731
            with meanwhile(system, complete), pytest.raises(Transient, match="send it again"):
                uploads.put_part(upload, 1, BytesIO(late), b"")
        assert rebuilt(bench, cli) == [first + SMALL]
        self.assert_sound(bench, [first + SMALL])

    @LANDING
    @pytest.mark.parametrize("dumped", [True, False])
    def test_the_last_one_has_the_earliest_time(self, bench: Bench, cli: Cli, dumped: bool, landing: str) -> None:
        """The clock of the process that stored the other ones, which are superseded, is ahead."""
        with bench.open() as system, bench.open() as other:
            other.clock = SetClock(system.clock.now_ms() + 10_000)
            uploads, others, upload = self.begin(system, other, bench, cli if dumped else None)
            for data in (b"one", b"another"):
                others.put_part(upload, 1, BytesIO(data), b"")
            uploads.put_part(upload, 1, BytesIO(SMALL), b"")
            others.put_part(upload, 2, BytesIO(b"not empty"), b"")
            uploads.put_part(upload, 2, BytesIO(), b"")
            uploads.complete(upload, lambda parts: (parts, {}))
        assert rebuilt(bench, cli) == [SMALL]
        self.assert_sound(bench, [SMALL])

    def test_a_rebuild_that_was_killed_goes_on(self, bench: Bench, cli: Cli) -> None:
        with bench.open() as system, bench.open() as other:
            other.clock = SetClock(system.clock.now_ms() + 10_000)
            upload = system.client.uploads().create(KEY, "ann", b"")
            for one, data in ((other, bench.data(LARGE)), (other, b"one"), (system, SMALL)):
                put_first(one)
                one.client.uploads().put_part(upload, 1, BytesIO(data), b"")
            system.client.uploads().complete(upload, lambda parts: (parts, {}))
        for point in ("rebuild.segments_read", "rebuild.parts_chosen", "rebuild.trash_settled"):
            lose_database(bench)
            done = bench.run("metadata", "rebuild", "--without-dump", kill_at=point)
            assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.stderr.decode()[-2000:]}"
            rebuild(bench, cli, "--without-dump")
            with bench.open() as system:
                assert system.client.store().get(KEY) == SMALL
        self.assert_sound(bench, [SMALL])

    @LANDING
    @pytest.mark.parametrize("dumped", [True, False])
    def test_those_of_the_completion_that_was_not_refused(
        self, bench: Bench, cli: Cli, dumped: bool, landing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The manifest of the other completion is not void: its process cannot make it so before the database is
        lost."""
        with monkeypatch.context() as patched, bench.open() as system, bench.open() as other:
            patched.setattr(LocalLandingStore, "delete", fail)
            patched.setattr(DeviceLog, "overwrite", fail)
            uploads, others, upload = self.begin(system, other, bench, cli if dumped else None)
            uploads.put_part(upload, 1, BytesIO(b"one"), b"")

            land = (lander := system.client.store()._puts.batches.lander).land

            def landed(*arguments: Any, **named: Any) -> Any:
                lander.land = land  # type: ignore[method-assign]
                copies = land(*arguments, **named)
                others.put_part(upload, 1, BytesIO(SMALL), b"")
                others.complete(upload, lambda parts: (parts, {}))
                return copies

            lander.land = landed  # type: ignore[method-assign]
            with pytest.raises(NosError):
                uploads.complete(upload, lambda parts: (parts, {}))
            assert other.client.store().get(KEY) == SMALL
        rebuild_lost(bench, cli)
        with bench.open() as system:
            assert system.client.store().get(KEY) == SMALL
            for row in system.metadata.trash_page(None, 9, KEY.bucket, KEY.name).rows:
                with pytest.raises(Corrupt):  # its part is in the trash, too
                    list(system.client.store().open_version(row))

    def begin(
        self, system: System, other: System, bench: Bench, cli: Cli | None
    ) -> tuple[MultipartUploads, MultipartUploads, UploadRow]:
        """Begin an upload of KEY, after a dump if `cli` is given. Returns the uploads of both processes, and this
        one."""
        put_first(system)
        put_first(other)
        if cli is not None:
            dump(bench, cli)
        uploads = system.client.uploads()
        return uploads, other.client.uploads(), uploads.create(KEY, "ann", b"")

    def assert_sound(self, bench: Bench, expected: list[bytes]) -> None:
        """Nothing is wrong, and the object is there after all is packed and collected."""
        with bench.open() as system:
            assert check(system, read_share=1.0) == []
            system.clock = LaterClock(TRASHED_MS_MIN + 3_600_000)
            bench.settle(system)
            assert [system.client.store().get(KEY)] == expected
            assert check(system, read_share=1.0) == []


class TestKilled:
    """The PUT that is refused has no answer; the other one was acknowledged."""

    @LANDING
    @pytest.mark.parametrize("point", REFUSED_POINTS)
    def test_when_it_is_refused(self, bench: Bench, cli: Cli, point: str, landing: str) -> None:
        dump(bench, cli)
        kill(bench, point, 1000)
        self.recover(bench)
        assert rebuilt(bench, cli) == [b"a" * 1000]

    @pytest.mark.parametrize("point", REFUSED_LARGE_POINTS)
    def test_when_a_large_one_is_refused(self, bench: Bench, cli: Cli, point: str) -> None:
        dump(bench, cli)
        kill(bench, point, LARGE)
        self.recover(bench)
        assert rebuilt(bench, cli) == [b"a" * LARGE]

    @pytest.mark.parametrize("point", UNRECORDED_POINTS)
    def test_while_recovery_makes_its_record_void(self, bench: Bench, cli: Cli, point: str) -> None:
        dump(bench, cli)
        kill(bench, "put.refused", 1000)
        bench.end_leases()
        done = bench.run("consumer", "--once", kill_at=point)
        assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.stderr.decode()[-2000:]}"
        with bench.open() as system:
            system.clock = LaterClock(TTL_OVER_MS)
            system.worker.housekeeping().run_once()
            assert records(system) == (2, 1), "nothing is packed yet, so the landing segments are there"
        assert rebuilt(bench, cli) == [b"a" * 1000]

    def test_after_its_log_was_sealed_and_its_record_was_not_made_void(
        self, bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process ends before it can try again."""
        dump(bench, cli)
        with bench.open() as system, bench.open() as other:
            put_first(system)
            put_first(other)
            system.client.store().put(ObjectKey("others", "second"), BytesIO(b"second"))
            with monkeypatch.context() as patched:
                patched.setattr(system.medium, "overwrite", fail)
                with meanwhile(system, lambda: put(other, SMALL)), pytest.raises(Transient, match="send it again"):
                    put(system, bench.data(1000), ABSENT)
                end_log(system)
            end_log(other)
            assert records(system) == (3, 0)
        with bench.open() as system:
            system.worker.housekeeping().run_once()
            assert records(system) == (2, 1)
        assert rebuilt(bench, cli) == [SMALL]

    @LANDING
    @pytest.mark.parametrize("dumped", [True, False])
    @pytest.mark.parametrize(("point", "size"), [("put.refused", 1000), ("put.refused", 0), ("large.refused", LARGE)])
    def test_before_recovery_and_the_database_is_lost(
        self, bench: Bench, cli: Cli, point: str, size: int, dumped: bool, landing: str
    ) -> None:
        """Nothing shows which of both PUTs was acknowledged: both versions are kept, and the object is listed."""
        if dumped:
            dump(bench, cli)
        kill(bench, point, size)
        to_look_at = rebuild_lost(bench, cli)
        assert to_look_at["doubt"] == ({str(KEY)} if size else set()), "equal bytes are not in doubt"
        with bench.open() as system:
            store = system.client.store()
            current = store.get(KEY)
            if not size:
                return
            store.delete(KEY)
            older = [row for row in system.metadata.trash_page(None, 100).rows if row.key == KEY]
            assert system.metadata.undelete(older).rows
            assert sorted([current, store.get(KEY)]) == [b"a" * size, b"r" * size]

    def recover(self, bench: Bench) -> None:
        with bench.open() as system:
            system.clock = LaterClock(TTL_OVER_MS)
            bench.settle(system)


def kill(bench: Bench, point: str, size: int) -> None:
    program = str(Path(__file__).with_name("refused_put.py"))
    done = bench.run_python(program, str(bench.config), str(size), kill_at=point)
    assert done.returncode == -signal.SIGKILL, f"{point} never fired: {done.returncode} {done.stderr.decode()[-2000:]}"
