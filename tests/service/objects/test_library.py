"""The Python API on an embedded store: what it promises, and what happens when it is used wrongly."""

from __future__ import annotations

import io
import logging
import random
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import nos_ec
from nos_ec import (
    ConfigError,
    Conflict,
    Corrupt,
    InvalidInput,
    NotFound,
    ObjectInfo,
    ObjectKey,
    ObjectState,
    ObjectStore,
    Transient,
    open_store,
)
from nos_ec.composition.wiring import System
from nos_ec.library.object_reader import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from nos_ec.monitoring.declarations.library_metrics import LIBRARY
from tests.rig.at_rest import LaterClock
from tests.rig.open_files import open_files
from tests.service.cli.test_endpoints import expected_names
from tests.service.conftest import CHUNK, STRIPE, TTL_OVER_MS, WAIT_S_MAX, Bench

LARGE = 20 * STRIPE
BLOCK = 8 * STRIPE


@pytest.fixture
def store(bench: Bench) -> Iterator[ObjectStore]:
    with open_store(bench.config) as store:
        yield store


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


# --- opening and closing -------------------------------------------------------------------------------------------
def test_a_store_is_opened_by_folder_file_or_settings(bench: Bench, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "one"), create=True) as store:
        store.put("b/n", b"1")
    with open_store(tmp_path / "one", create=True) as store:
        assert store.get("b/n") == b"1"
    for where in (bench.config, str(bench.config), bench.settings()):
        with open_store(where) as store:
            store.put("b/n", b"2")


def test_a_store_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-store does not exist; open_store\(\.\.\., create=True\)"):
        open_store(tmp_path / "no-store")
    assert not (tmp_path / "no-store").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="nos-ec init"):
        open_store(tmp_path / "empty")
    with pytest.raises(ConfigError, match="no-file"):
        open_store(tmp_path / "no-file.toml", create=True)


def test_a_store_that_is_closed_refuses_everything(bench: Bench) -> None:
    with open_store(bench.config) as store:
        store.put("b/n", b"data")
        small = store.open_read("b/n")
        store.put("b/large", bytes(LARGE))
        large = store.open_read("b/large")
        page = store.list("b")
        assert next(page).key.name == "large"
    store.close()
    calls = (
        lambda: store.put("b/n", b""),
        lambda: store.put_many([]),
        lambda: store.get("b/n"),
        lambda: store.head("b/n"),
        lambda: store.open_read("b/n"),
        lambda: store.delete("b/n"),
        lambda: store.delete_many([]),
        lambda: list(store.list("b")),
        lambda: list(store.buckets()),
        lambda: large.read(1),
    )
    for call in calls:
        with pytest.raises(InvalidInput, match="the store is closed"):
            call()
    assert small.read() == b"data", "it is in memory"
    small.close()
    for reader in (small,):
        with pytest.raises(ValueError, match="the reader is closed"):
            reader.read()
    large.close()


def test_an_exception_inside_closes_the_store_and_goes_on(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), open_store(bench.config) as store, store.open_read(store.put("b/n", b"x")):
        1 / 0  # noqa: B018
    with pytest.raises(InvalidInput, match="closed"):
        store.get("b/n")


def test_closing_waits_for_calls_of_other_threads(bench: Bench) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        yield b"a"
        begun.set()
        assert go_on.wait(WAIT_S_MAX)
        yield b"b"

    with open_store(bench.config) as store:
        putter = threading.Thread(target=lambda: store.put("b/slow", slow()))
        putter.start()
        assert begun.wait(WAIT_S_MAX)
        threading.Timer(0.2, go_on.set).start()
    assert go_on.is_set(), "closed while the PUT was under way"
    putter.join(WAIT_S_MAX)
    with open_store(bench.config) as store:
        assert store.get("b/slow") == b"ab"


def test_a_forked_child_leaves_the_store_alone(bench: Bench) -> None:
    """It is refused, and ending its `with` block closes nothing of the parent's."""
    program = """
import os, sys
import nos_ec
with nos_ec.open_store(sys.argv[1]) as store:
    store.put("b/n", b"data")
    reader = store.open_read(store.put("b/large", bytes(3_000_000)))
    child = os.fork()
    if not child:
        for call in (lambda: store.get("b/n"), lambda: reader.read(5)):
            try:
                call()
            except nos_ec.InvalidInput as error:
                assert "forked" in str(error)
            else:
                os._exit(5)
        store.close()
        with nos_ec.open_store(sys.argv[1]) as own:
            assert own.get("b/n") == b"data"
    else:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.get("b/n") == b"data"
        assert len(reader.read()) == 3_000_000
        print("parent")
"""
    command = [sys.executable, "-W", "error", "-c", program, str(bench.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent\n", "")


def test_log_messages_go_to_logging_and_not_to_stdout(bench: Bench, caplog: Any, capfd: Any) -> None:
    import structlog

    with open_store(bench.config), caplog.at_level(logging.WARNING):
        structlog.get_logger("nos_ec.engine.objects.store").warning("something odd", error="why")
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("nos_ec.engine.objects.store", "WARNING")
    ]
    assert "event='something odd' error='why'" in caplog.text
    assert capfd.readouterr() == ("", "")


# --- PUT -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 1, CHUNK, STRIPE, BLOCK, LARGE])
def test_what_is_put_in_any_form_reads_back_in_any_form(store: ObjectStore, size: int) -> None:
    data = random.Random(size).randbytes(size)
    pieces = [data[at : at + 100_001] for at in range(0, size, 100_001)]
    forms: list[Any] = [data, bytearray(data), memoryview(data), io.BytesIO(data), pieces, iter(pieces)]
    for form in forms:
        info = store.put("b/it", form)
        assert (info.size, info.key) == (size, ObjectKey("b", "it"))
        assert store.get("b/it") == store.get(info) == data
        with store.open_read("b/it") as reader:
            assert (reader.info, reader.name) == (info, "b/it")
            assert reader.read() == data
    assert store.get("b/it", size // 2) == data[size // 2 :]
    assert store.get(info, size // 3, 77) == data[size // 3 :][:77]
    assert store.get("b/it", size, 5) == b""
    for start, length in ((-1, None), (0, -1), (size + 1, None)):
        for key in ("b/it", info):
            with pytest.raises(InvalidInput, match="range"):
                store.get(key, start, length)


@pytest.mark.parametrize("size", [CHUNK, LARGE])
def test_a_put_that_fails_leaves_the_old_version_and_nothing_else(bench: Bench, size: int) -> None:
    """A source that raises in the middle, ends early, or yields something that is not bytes."""

    def raises() -> Iterator[bytes]:
        yield bytes(size // 2)
        yield bytes(size // 3)
        raise OSError("the client is gone")

    def text() -> Iterator[Any]:
        yield bytes(size // 2)
        yield "text"

    cases: list[tuple[Callable[[], Any], int | None, type[Exception]]] = [
        (raises, None, OSError),
        (text, None, TypeError),
        (lambda: io.BytesIO(bytes(size)), size + 1, InvalidInput),
        (lambda: [bytes(size)], size + 1, InvalidInput),
        (lambda: [bytes(size)], size - 1, InvalidInput),
        (lambda: bytes(size), size + 1, InvalidInput),
        (lambda: io.StringIO("text"), None, TypeError),
        (lambda: "text", None, TypeError),
    ]
    with open_store(bench.config) as store:
        old = store.put("b/it", b"old")
        bench.acknowledged[old.key] = b"old"
        for make, length, error in cases:
            for name in ("b/it", "b/new"):
                with pytest.raises(error):
                    store.put(name, make(), length)
        assert store.head("b/it").version == old.version
        assert [info.key.name for info in store.list("b")] == ["it"]
    with bench.open() as system:
        system.clock = LaterClock(2 * TTL_OVER_MS)
        bench.settle(system)
        bench.assert_readable(system)
        bench.assert_at_rest(system)


def test_names_that_are_not_allowed_are_refused(store: ObjectStore) -> None:
    for name in ("no-slash", "b/", "/n", "b/..", "b/a\0", "b/" + "n" * 1025):
        for call in (store.get, store.head, store.delete, store.open_read, lambda name: store.put(name, b"")):
            with pytest.raises(InvalidInput):
                call(name)


def test_several_small_objects_at_once(store: ObjectStore) -> None:
    infos = store.put_many([("b/1", b"one"), (ObjectKey("b", "2"), b"")])
    assert [(info.key.name, info.state) for info in infos] == [("1", ObjectState.LANDED), ("2", ObjectState.EMPTY)]
    with pytest.raises(InvalidInput, match="put_many takes"):
        store.put_many([("b/3", b"three"), ("b/large", bytes(store.small_bytes_max + 1))])
    assert [info.key.name for info in store.list("b")] == ["1", "2"]


# --- reading -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [5 * CHUNK, LARGE])
def test_a_reader_is_a_binary_file(store: ObjectStore, size: int) -> None:
    """Compared with BytesIO over random reads and seeks."""
    rng = random.Random(size)
    data = rng.randbytes(size)
    store.put("b/it", data)
    with store.open_read("b/it") as reader:
        assert (reader.readable(), reader.seekable(), reader.writable()) == (True, True, False)
        same = io.BytesIO(data)
        for _ in range(300):
            at, count = rng.randrange(size + 10), rng.choice([0, 1, 100, CHUNK, STRIPE, -1])
            action = rng.randrange(5)
            if action == 0:
                assert reader.seek(at) == same.seek(at)
            elif action == 1:
                assert reader.seek(-min(at, size), 2) == same.seek(-min(at, size), 2)
            elif action == 2:
                assert reader.seek(rng.randrange(100), 1) == same.seek(reader.tell())
            else:
                assert reader.read(count) == same.read(count)
            assert reader.tell() == same.tell()
        reader.seek(0)
        assert reader.readline() == data[: data.index(b"\n") + 1]
        buffer = bytearray(100)
        place = reader.tell()
        assert reader.peek()[:50] == data[place:][:50]
        assert reader.readinto(buffer) == 100
        assert bytes(buffer) == data[place:][:100]
        assert 1 <= len(reader.read1(10**9)) <= size
        for bad in ((-1, 0), (0, 3), (-size - 1, 2)):
            with pytest.raises(ValueError, match=r"position|whence"):
                reader.seek(*bad)
        with pytest.raises(io.UnsupportedOperation):
            reader.write(b"x")


def test_programs_of_the_library_of_python_read_it(store: ObjectStore) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("one", "two"):
            member = tarfile.TarInfo(name)
            member.size = LARGE // 2
            tar.addfile(member, io.BytesIO(name.encode() * (LARGE // 6) + b"xx"))
    store.put("b/it.tar", io.BytesIO(file.getvalue()))
    with store.open_read("b/it.tar") as reader, tarfile.open(fileobj=reader) as tar:
        two = tar.extractfile("two")
        assert two is not None
        assert two.read(6) == b"twotwo"
    store.put("b/text", "é\nzwei\n".encode())
    with io.TextIOWrapper(store.open_read("b/text"), encoding="utf-8") as text:
        assert text.readlines() == ["é\n", "zwei\n"]


@pytest.mark.invariant(4)
def test_a_reader_and_an_info_stay_with_their_version(bench: Bench, store: ObjectStore) -> None:
    """They stay with it while the object is packed, too. When the bytes are gone, a read raises Conflict."""
    for size in (CHUNK, LARGE):
        old = store.put("b/it", bytes(size))
        reader, half_read = store.open_read("b/it"), store.open_read(old)
        half_read.read(10)
        with bench.open() as system:
            bench.pack(system)
        assert store.get(old) == bytes(size)
        assert reader.read() == bytes(size)
        store.put("b/it", b"new")
        with bench.open() as system:
            system.clock = LaterClock(2 * TTL_OVER_MS)
            bench.settle(system)
        reads: list[Callable[[ObjectInfo], bytes]] = [store.get, lambda info: store.open_read(info).read()]
        for read in reads:
            with suppress(Conflict):  # unless its bytes are still there
                assert read(old) == bytes(size)
        if size == CHUNK:
            assert half_read.read() == bytes(size - 10), "it is in memory"
        store.delete("b/it")


def test_a_reader_of_blocks_that_are_gone_says_so(bench: Bench, store: ObjectStore) -> None:
    info = store.put("b/it", random.Random(1).randbytes(LARGE))
    reader = store.open_read("b/it")
    assert len(reader.read(10)) == 10
    store.delete("b/it")
    with bench.open() as system:
        for block in list(system.blocks.list_blocks()):
            system.blocks.delete(block)
    with pytest.raises(Conflict, match="deleted or overwritten while it was being read"):
        reader.read()
    with pytest.raises(Conflict):
        store.get(info)
    assert reader.tell() == 10
    reader.close()


def test_a_read_that_fails_for_a_while_goes_on_where_it_was(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(2).randbytes(LARGE)
    store.put("b/it", data)
    assert isinstance(store._system, System)
    blocks = store._system.blocks
    read, away = blocks.read, False

    def sometimes(*asked: Any) -> bytes:
        if away:
            raise Transient("away")
        return read(*asked)

    monkeypatch.setattr(blocks, "read", sometimes)
    found = b""
    with store.open_read("b/it") as reader:
        for _ in range(LARGE):
            away = not away
            try:
                part = reader.read1()
            except Transient:
                assert reader.tell() == len(found)
                continue
            found += part
            if not part:
                break
    assert found == data


def test_a_read_that_fails_halfway_loses_nothing(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(4).randbytes(LARGE)
    store.put("b/it", data)
    assert isinstance(store._system, System)
    blocks = store._system.blocks
    read, reads = blocks.read, 0

    def second_fails(*asked: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise Transient("away")
        return read(*asked)

    monkeypatch.setattr(blocks, "read", second_fails)
    with store.open_read("b/it") as reader:
        assert reader.read(10) == data[:10]
        with pytest.raises(Transient):
            reader.read()
        assert reader.tell() == 10
        assert reader.read() == data[10:]


def test_damage_is_told_again_and_again(bench: Bench, store: ObjectStore) -> None:
    store.put("b/it", random.Random(3).randbytes(LARGE))
    for path in (bench.folder / "store" / "blocks").rglob("shard-*/**/*"):
        if path.is_file() and path.stat().st_size > CHUNK:
            data = bytearray(path.read_bytes())
            data[-600:-100] = bytes(500)
            path.write_bytes(data)
    with store.open_read("b/it") as reader:
        for _ in range(2):
            with pytest.raises(Corrupt) as error:
                reader.read()
        assert error.value.key == ObjectKey("b", "it")


def test_a_read_after_a_seek_does_not_read_a_whole_block(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", create=True) as store:
        info = store.put("b/it", iter([bytes(1 << 20)] * 70))
        assert isinstance(store._system, System)
        counters = store._system.blocks.counters
        with store.open_read(info) as reader:
            reader.seek(-5, 2)
            before = counters().shard_bytes
            assert reader.read() == bytes(5)
            reader.seek(1000)
            assert reader.read(10) == bytes(10)
            assert counters().shard_bytes - before <= 2 * WINDOW_BYTES_MIN + (1 << 20)
            before = counters().shard_reads
            assert len(reader.read(40 << 20)) == 40 << 20
            assert len(reader._buffer) == WINDOW_BYTES_MAX, "windows grow while reading continues"


def test_a_reader_that_is_dropped_in_the_middle_holds_nothing(bench: Bench, store: ObjectStore) -> None:
    store.put("b/it", bytes(LARGE))
    threads, files = set(threading.enumerate()), open_files(bench.folder)
    for _ in range(20):
        store.open_read("b/it").read(10)
    assert set(threading.enumerate()) <= threads
    assert open_files(bench.folder) == files


# --- LIST, DELETE --------------------------------------------------------------------------------------------------
def test_lists_go_on_page_by_page(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.library.object_store.PAGE_OBJECTS", 7)
    names = [f"p/{number:03}" for number in range(28)]
    store.put_many([(f"b/{name}", b"x") for name in names] + [("b/q", b""), ("b/o", b"")])
    store.put_many([(f"bucket-{number:02}/n", b"") for number in range(14)])
    assert [info.key.name for info in store.list("b", "p/")] == names
    assert [info.key.name for info in store.list("b", "p/", after="p/013")] == names[14:]
    assert [info.key.name for info in store.list("b")] == ["o", *names, "q"]
    assert list(store.buckets()) == ["b", *(f"bucket-{number:02}" for number in range(14))]
    assert list(store.list("empty")) == []
    for info in store.list("b", "p/"):
        store.delete(info.key)
    assert [info.key.name for info in store.list("b")] == ["o", "q"]


def test_folders_are_listed_page_by_page(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nos_ec.library.object_store.PAGE_OBJECTS", 2)
    store.put_many([(f"b/p/{folder}/{name}", b"x") for folder in "acdef" for name in range(5)] + [("b/p/b", b"x")])
    found = list(store.list_folder("b", "p/"))
    assert found == ["p/a/", store.head("b/p/b"), "p/c/", "p/d/", "p/e/", "p/f/"]
    assert list(store.list_folder("b", "p/", after="p/c/3")) == found[3:]
    assert list(store.list_folder("b", delimiter="/b")) == [
        *store.list("b", "p/a"),
        "p/b",
        *store.list("b", after="p/b"),
    ]
    assert list(store.list_folder("b", delimiter="")) == list(store.list("b"))


def test_deleting(store: ObjectStore) -> None:
    info = store.put("b/it", b"data")
    assert store.delete(info.key) == info
    for call in (store.delete, store.head, store.get, store.open_read):
        with pytest.raises(NotFound) as error:
            call("b/it")
        assert error.value.key == info.key
    store.put("b/1", b"")
    assert [info.key.name for info in store.delete_many(["b/1", "b/2", "b/1"])] == ["1"]


# --- several threads -----------------------------------------------------------------------------------------------
@pytest.mark.invariant(1)
def test_threads_share_a_store(store: ObjectStore) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for turn in range(15):
                data = rng.randbytes(rng.choice([0, 10, CHUNK, BLOCK]))
                store.put(f"t{number}/{turn % 4}", data)
                store.put("shared/it", bytes([number]) * 5000)
                assert store.get(f"t{number}/{turn % 4}") == data
                with store.open_read("shared/it") as reader:
                    found = reader.read()
                assert len(found) == 5000
                assert len(set(found)) == 1, "bytes of two versions"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert failures == []


# --- metrics -------------------------------------------------------------------------------------------------------
def test_a_program_exports_what_is_declared_for_the_library(store: ObjectStore) -> None:
    registry = CollectorRegistry()
    store.register(registry)
    found = samples(registry)
    assert {name[0] for name in found if name[0].startswith("nos_ec_")} == expected_names(LIBRARY)
    assert found[("nos_ec_info", LIBRARY, nos_ec.__version__)] == 1
    with pytest.raises(ValueError, match="registered already"):
        store.register(registry)
    store.close()
    assert samples(registry) == {}


def test_requests_are_counted(store: ObjectStore) -> None:
    registry = CollectorRegistry()
    store.register(registry)
    store.put("b/it", b"12345")
    store.put_many([("b/2", bytes(100)), ("b/3", bytes(200))])
    store.put("b/large", iter([bytes(LARGE)]))
    store.get("b/it")
    store.get("b/it", 1, 2)
    with store.open_read("b/large") as reader:
        reader.seek(100)
        reader.read(40)
        reader.read(60)
    with store.open_read("b/2") as reader:
        reader.read()
    store.head("b/it")
    list(store.list("b"))
    store.delete("b/it")
    for call in (store.get, store.head, store.delete):
        with pytest.raises(NotFound):
            call("b/it")
    with pytest.raises(ZeroDivisionError):
        store.put("b/bad", (1 / 0 for _ in [1]))  # type: ignore[misc]
    found = samples(registry)
    counts = {"put": 3, "get": 4, "head": 1, "list": 1, "delete": 1}
    for operation, count in counts.items():
        assert found[("nos_ec_request_seconds_count", operation)] == count, operation
        assert 0 < found[("nos_ec_request_seconds_sum", operation)] < 60 * count
    assert found[("nos_ec_request_object_bytes_count", "put")] == 4
    assert found[("nos_ec_request_object_bytes_sum", "put")] == 305 + LARGE
    assert found[("nos_ec_request_object_bytes_count", "get")] == 4
    assert found[("nos_ec_request_object_bytes_sum", "get")] == 5 + 2 + 100 + 100
    failures = {
        name[1:]: value for name, value in found.items() if name[0] == "nos_ec_request_failures_total" and value
    }
    assert failures == {
        ("not_found", "get"): 1,
        ("not_found", "head"): 1,
        ("not_found", "delete"): 1,
        ("other", "put"): 1,
    }
    assert found[("nos_ec_requests_under_way",)] == 0


def test_time_that_the_source_takes_is_not_latency(store: ObjectStore) -> None:
    waits = threading.Event()

    def slow() -> Iterator[bytes]:
        for _ in range(3):
            waits.wait(0.3)
            yield b"x"

    registry = CollectorRegistry()
    store.register(registry)
    store.put("b/warm", b"x")
    before = samples(registry)[("nos_ec_request_seconds_sum", "put")]
    started_s = time.perf_counter()
    store.put("b/slow", slow())
    elapsed_s = time.perf_counter() - started_s
    found = samples(registry)
    assert found[("nos_ec_request_seconds_count", "put")] == 2
    assert found[("nos_ec_request_seconds_sum", "put")] - before < elapsed_s - 0.89


def test_two_stores_need_two_registries(bench: Bench, tmp_path: Path) -> None:
    registry = CollectorRegistry(auto_describe=True)
    with open_store(bench.config) as one, open_store(tmp_path / "two", create=True) as two:
        one.register(registry)
        with pytest.raises(ValueError, match="Duplicated"):
            two.register(registry)
        two.register(CollectorRegistry(auto_describe=True))
