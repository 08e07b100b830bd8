"""Power cuts at every step of the embedded stores (see tests.rig.power_cut).

Each case does some work on one store, then makes a folder of what the disk may hold after a power cut at any of its
steps, opens the store on it and checks: what was acknowledged is there, what was begun is there in whole or not at
all, and work can continue. And for each sync in the code of these stores: without it, one of these cuts loses
something.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest

import nos_ec.adapters.local as adapters
from nos_ec.adapters.local import landing_store
from nos_ec.adapters.local.audit_files import FILES, AuditFiles, TrailLimits, TrailReader, rotated
from nos_ec.adapters.local.blocks import block_locks
from nos_ec.adapters.local.blocks.block_store import LocalBlockStore
from nos_ec.adapters.local.blocks.shard_rebuild import LocalShards
from nos_ec.adapters.local.files.durable import make_folder
from nos_ec.adapters.local.landing_store import LocalLandingStore
from nos_ec.adapters.local.message_log import LocalConsumer, LocalMessageLog
from nos_ec.adapters.local.notification_files import NotificationFiles
from nos_ec.adapters.local.store_mark import claim_root, require_root_of
from nos_ec.core.errors import ConfigError, Conflict, Corrupt, NotFound
from nos_ec.core.formats.audit_trail import AuditEntry, AuditKind
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import BlockId, LandingId
from nos_ec.ports.message_log import Message
from tests.rig import device_log_work
from tests.rig.device_log_work import Step
from tests.rig.fakes.clock import FakeClock
from tests.rig.power_cut import FATES, Operation, Recorder, Site, cuts, memory_folder, points
from tests.rig.sql import sqlite_files

pytestmark = pytest.mark.invariant(1)

SMALL = Geometry(k=2, m=1, chunk_size=16 * 1024, stripes_per_block=3, stripes_per_group_max=2)
STRIPE = SMALL.stripe_size
FOLDERS = 8
"""Few folders of landing copies and few locks of blocks, instead of hundreds that are all alike."""


class Case(Protocol):
    """Work on one store, and what must hold after a power cut."""

    @property
    def history(self) -> History:
        """What it did, and when."""
        ...

    def work(self, recorder: Recorder, root: Path) -> None:
        """Do the work below `root`, which does not exist yet, and record what was acknowledged when."""
        ...

    def check(self, root: Path, position: int) -> None:
        """Check the store after a cut behind `position` operations."""
        ...


@dataclass
class History:
    """When each step was begun and when it was acknowledged, in operations of the recorder."""

    recorder: Recorder | None = None
    begun: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def did(self, name: str, act: Callable[[], object]) -> None:
        assert self.recorder is not None
        self.begun[name] = self.recorder.position
        act()
        self.done[name] = self.recorder.position

    def was_begun(self, name: str, position: int) -> bool:
        return self.begun[name] < position

    def was_done(self, name: str, position: int) -> bool:
        return self.done[name] <= position

    @property
    def acknowledgements(self) -> list[int]:
        return sorted(set(self.done.values()))


class Blocks:
    """Blocks that are created, appended to, filled, sealed and deleted."""

    def __init__(self) -> None:
        self.history = History()
        self.data = {name: Random(name).randbytes(3 * STRIPE) for name in ("full", "sealed", "gone", "empty")}
        self.ids = {name: BlockId(Random(name + "id").randbytes(16)) for name in self.data}

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        did, ids, data = self.history.did, self.ids, self.data
        did("init", lambda: LocalBlockStore.initialise(root, SMALL))
        with closing(LocalBlockStore(root, SMALL)) as blocks:
            did("full/1", lambda: blocks.create(ids["full"], data["full"][:STRIPE]))
            did("full/3", lambda: blocks.append(ids["full"], 1, data["full"][STRIPE:]))
            did("gone/2", lambda: blocks.create(ids["gone"], data["gone"][: 2 * STRIPE]))
            did("empty/0", lambda: blocks.create(ids["empty"]))
            did("gone/deleted", lambda: blocks.delete(ids["gone"]))
            did("sealed/1", lambda: blocks.create(ids["sealed"], data["sealed"][:STRIPE]))
            did("sealed/2", lambda: blocks.append(ids["sealed"], 1, data["sealed"][STRIPE : 2 * STRIPE]))
            did("sealed/sealed", lambda: blocks.seal(ids["sealed"]))

    def check(self, root: Path, position: int) -> None:
        if not self.history.was_done("init", position):
            with suppress(ConfigError):
                _use(root)  # it is complete as soon as it counts as a store
            LocalBlockStore.initialise(root, SMALL)
            _use(root)
            return
        with closing(LocalBlockStore(root, SMALL)) as blocks:
            for name in self.ids:
                self._check_block(blocks, root, name, position)
        LocalBlockStore.initialise(root, SMALL)
        _use(root)

    def _check_block(self, blocks: LocalBlockStore, root: Path, name: str, position: int) -> None:
        block_id, history = self.ids[name], self.history
        counts = [int(key.partition("/")[2]) for key in history.begun if key.startswith(name) and key[-1].isdigit()]
        acknowledged = max((n for n in counts if history.was_done(f"{name}/{n}", position)), default=None)
        begun = max((n for n in counts if history.was_begun(f"{name}/{n}", position)), default=None)
        listed = block_id in set(blocks.list_blocks())
        if name == "gone" and history.was_begun("gone/deleted", position):
            assert not (listed and history.was_done("gone/deleted", position)), "a deleted block is back"
            blocks.delete(block_id)
            assert block_id not in set(blocks.list_blocks())
            return
        if begun is None:
            assert not listed
        elif acknowledged is None:
            with suppress(NotFound):
                self._check_stripes(blocks, name, 0, begun)
        else:
            assert listed
            self._check_stripes(blocks, name, acknowledged, begun)
        for mark, stripes in (("full/3", 3), ("sealed/sealed", 2)):
            if mark.startswith(name) and history.was_done(mark, position):
                assert _marks(root, block_id) == {stripes}
                with pytest.raises((Conflict, ValueError)):
                    blocks.append(block_id, stripes, bytes(STRIPE))

    def _check_stripes(self, blocks: LocalBlockStore, name: str, least: int, most: int) -> None:
        stripes = blocks.stripes(self.ids[name])
        assert least <= stripes <= most
        assert blocks.read(self.ids[name], 0, least * STRIPE) == self.data[name][: least * STRIPE]
        for start in range(least * STRIPE, stripes * STRIPE, STRIPE):
            with suppress(Corrupt):  # of a torn append any stripe may be lost
                assert blocks.read(self.ids[name], start, STRIPE) == self.data[name][start : start + STRIPE]


class RebuiltShards:
    """A shard of a sealed block and one of an open block, which are lost and rebuilt."""

    def __init__(self) -> None:
        self.history = History()
        self.data = {name: Random(name).randbytes(2 * STRIPE) for name in ("sealed", "open")}
        self.ids = {name: BlockId(Random(name + "id").randbytes(16)) for name in self.data}
        self.lost: dict[str, bytes] = {}

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        self.history.did("init", lambda: LocalBlockStore.initialise(root, SMALL))
        with closing(LocalBlockStore(root, SMALL)) as blocks:
            for name, block_id in self.ids.items():
                blocks.create(block_id, self.data[name])
            blocks.seal(self.ids["sealed"])
        for name in self.ids:
            self.lost[name] = _without_mark(self._file(root, name))
        self.history.did("stored", lambda: None)
        for name in self.ids:
            self._file(root, name).unlink()
        for name, block_id in self.ids.items():
            self.history.did(name, partial(self._rebuild, root, block_id))

    def check(self, root: Path, position: int) -> None:
        if not self.history.was_done("stored", position):
            with nullcontext() if self.history.was_done("init", position) else suppress(ConfigError):
                _use(root)
            return
        for name, block_id in self.ids.items():
            file = self._file(root, name)
            if file.exists():
                assert _without_mark(file) == self.lost[name], "what has the name of a shard is whole"
            if self.history.was_done(name, position):
                assert file.exists()
                assert _marks(root, block_id) == {2}
            self._rebuild(root, block_id)
            assert _without_mark(file) == self.lost[name]
            with closing(LocalBlockStore(root, SMALL)) as blocks:
                assert blocks.read(block_id, 0, 2 * STRIPE) == self.data[name]
        assert not list(root.glob("*/*/*.new"))
        _use(root)

    def _rebuild(self, root: Path, block_id: BlockId) -> None:
        shards = LocalShards(root, SMALL)
        with shards.alone():
            shards.rebuild(block_id, lambda _: None)

    def _file(self, root: Path, name: str) -> Path:
        text = self.ids[name].hex()
        return root / "shard-01" / text[-1] / text


def _without_mark(file: Path) -> bytes:
    data = file.read_bytes()
    return data[:512] + bytes(12) + data[524:]


def _use(root: Path) -> None:
    """A new block can be written and read. Raises ConfigError when there is no store."""
    with closing(LocalBlockStore(root, SMALL)) as blocks:
        block_id = BlockId(b"afterwards" + bytes(6))
        blocks.create(block_id, bytes(STRIPE))
        assert blocks.read(block_id, 0, STRIPE) == bytes(STRIPE)
        blocks.delete(block_id)


def _marks(root: Path, block_id: BlockId) -> set[int | None]:
    from nos_ec.adapters.local.blocks.shard_file import ShardLayout
    from nos_ec.adapters.local.blocks.shard_folders import ShardFolders

    with ExitStack() as stack:
        files, _ = ShardFolders(root, ShardLayout(SMALL)).open(stack, block_id, write=False)
        marks = [file.mark() for file in files.values()]
    return {None if mark is None else mark.stripes for mark in marks}


class Copies:
    """Landing copies that are put and deleted."""

    def __init__(self) -> None:
        self.history = History()
        sizes = {"a": 100, "b": 10_000, "empty": 0, "gone": 5000, "gone2": 70_000, "gone3": 1}
        self.data = {name: Random(name).randbytes(size) for name, size in sizes.items()}
        self.ids = {name: LandingId(Random(name + "id").randbytes(15) + b"\x07") for name in sizes}

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        did, ids, data = self.history.did, self.ids, self.data
        did("init", lambda: LocalLandingStore.initialise(root))
        landing = LocalLandingStore(root)
        for name in self.ids:
            did(name, partial(landing.put, ids[name], data[name]))
        did("-gone", lambda: landing.delete(ids["gone"]))
        did("-gone2", lambda: landing.delete_many([ids["gone2"], ids["gone3"]]))
        self.history.begun["-gone3"], self.history.done["-gone3"] = (
            self.history.begun["-gone2"],
            self.history.done["-gone2"],
        )

    def check(self, root: Path, position: int) -> None:
        history = self.history
        if not history.was_done("init", position):
            with suppress(ConfigError):
                self._use(root)
            LocalLandingStore.initialise(root)
            self._use(root)
            return
        landing = LocalLandingStore(root)
        listed = set(landing.list_ids())
        for name, landing_id in self.ids.items():
            if landing_id in listed:
                assert landing.read(landing_id) == self.data[name], "a copy that is listed is whole"
            if f"-{name}" in history.begun and history.was_begun(f"-{name}", position):
                assert not (landing_id in listed and history.was_done(f"-{name}", position)), "it is back"
            elif history.was_done(name, position):
                assert landing_id in listed
            elif not history.was_begun(name, position):
                assert landing_id not in listed
        assert landing.delete_many(list(self.ids.values())) == {}
        assert list(landing.list_ids()) == []
        assert landing.raw_bytes() == 0, "what a put left is gone as well"
        self._use(root)

    def _use(self, root: Path) -> None:
        landing = LocalLandingStore(root)
        for last in range(FOLDERS):
            landing.put(LandingId(bytes(15) + bytes([last])), b"afterwards")
            landing.delete(LandingId(bytes(15) + bytes([last])))


class Log:
    """Messages that are published and committed."""

    def __init__(self) -> None:
        self.history = History()

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        did, path = self.history.did, root / "deep" / "log.db"
        did("init", lambda: LocalMessageLog.initialise(path, 1))
        log = LocalMessageLog(path)
        with closing(log.publisher(FakeClock())) as publisher, closing(_member(log, 0)) as consumer:
            for number in range(MESSAGES):
                did(f"publish {number}", partial(publisher.publish, [(b"k", b"%d" % number)]))
                if number % 3 == 2:
                    assert _taken(consumer)
                    did(f"commit {number}", partial(consumer.commit, {0: number}))

    def check(self, root: Path, position: int) -> None:
        history, path = self.history, root / "deep" / "log.db"
        if not history.was_done("init", position):
            LocalMessageLog.initialise(path, 1)
        log = LocalMessageLog(path)
        published = [n for n in range(MESSAGES) if history.was_done(f"publish {n}", position)]
        begun = [n for n in range(MESSAGES) if history.was_begun(f"publish {n}", position)]
        commits = range(2, MESSAGES, 3)
        committed = max((n for n in commits if history.was_done(f"commit {n}", position)), default=0)
        committed_max = max((n for n in commits if history.was_begun(f"commit {n}", position)), default=0)
        with closing(_member(log, 60_000)) as consumer:
            values = [int(message.value) for message in _taken(consumer)]
        first = values[0] if values else committed
        assert committed <= first <= committed_max
        assert values in (published[first:], begun[first:])


MESSAGES = 12


def _member(log: LocalMessageLog, now_ms: int) -> LocalConsumer:
    clock = FakeClock(now_ms)
    return log.consumer(group="g", member="m", clock=clock, session_ms=30_000)


def _taken(consumer: LocalConsumer) -> list[Message]:
    """All messages: a member's first poll may have to wait for its share."""
    return [message for _ in range(3) for message in consumer.poll(100, 0)]


class Marks:
    """The file that says which store a folder belongs to."""

    def __init__(self) -> None:
        self.history = History()

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        make_folder(root)
        self.history.did("claim", lambda: claim_root(root, "one"))
        self.history.did("again", lambda: claim_root(root, "one"))

    def check(self, root: Path, position: int) -> None:
        if self.history.was_done("claim", position):
            require_root_of(root, "one")


class Segments:
    """Segments of the landing log that are written, sealed and released, two copies of each."""

    def __init__(self) -> None:
        self.history = History()
        self.steps: list[Step] = []

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder

        def did(step: Step, act: Callable[[], Any]) -> Any:
            answers: list[Any] = []
            self.history.did(str(step), lambda: answers.append(act()))
            self.steps.append(step)
            return answers[0]

        device_log_work.work(root, did)

    def check(self, root: Path, position: int) -> None:
        history = self.history
        begun = [step for step in self.steps if history.was_begun(str(step), position)]
        done = [step for step in self.steps if history.was_done(str(step), position)]
        device_log_work.check(root, begun, done)


class Trail:
    """Entries of the audit trail, with a full file now and then."""

    def __init__(self) -> None:
        self.history = History()

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        trail = _trail(root)
        for number in range(8):
            self.history.did(str(number), partial(trail.record, [_entry(number)]))
        assert trail.failures == 0
        assert len(rotated(root / "deep")) == 2

    def check(self, root: Path, position: int) -> None:
        done = [number for number in range(8) if self.history.was_done(str(number), position)]
        begun = [number for number in range(8) if self.history.was_begun(str(number), position)]
        assert _numbers(root) in (done, begun)
        trail = _trail(root)
        trail.record([_entry(8)])
        assert trail.failures == 0
        assert _numbers(root) in ([*done, 8], [*begun, 8])


def _trail(root: Path) -> AuditFiles:
    return AuditFiles(root / "deep", FakeClock(1), "run", TrailLimits(FILES * 16 * 1024, 1))


def _entry(number: int) -> AuditEntry:
    return AuditEntry(AuditKind.REPAIR, "x" * 6_000, seen={"number": number})


def _numbers(root: Path) -> list[int]:
    return [entry.seen["number"] for entry in TrailReader(root / "deep").entries(0, lambda _: True)]


class Notifications:
    """Messages of one topic, in a file that a crash may cut short."""

    def __init__(self) -> None:
        self.history = History()

    def work(self, recorder: Recorder, root: Path) -> None:
        self.history.recorder = recorder
        files = NotificationFiles(root / "deep")
        for number in range(4):
            self.history.did(str(number), partial(_publish, files, number))

    def check(self, root: Path, position: int) -> None:
        done = {_message(number) for number in range(4) if self.history.was_done(str(number), position)}
        begun = {_message(number) for number in range(4) if self.history.was_begun(str(number), position)}
        file = root / "deep" / "topic.jsonl"
        whole = set(file.read_bytes().split(b"\n")[:-1]) if file.exists() else set()
        assert done <= whole
        assert len(whole - begun) <= 1, "more than the line of the last message is damaged"
        _publish(NotificationFiles(root / "deep"), 4)
        assert file.read_bytes().endswith(b"\n" + _message(4) + b"\n") or file.read_bytes() == _message(4) + b"\n"


def _message(number: int) -> bytes:
    return b'{"number": %d, "text": "%s"}' % (number, b"x" * 3_000)


def _publish(files: NotificationFiles, number: int) -> None:
    assert files.publish_to("topic", [(b"key", _message(number))]) == {}


# --- cutting --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recorded:
    """A case that has done its work, and the operations it recorded."""

    case: Case
    operations: list[Operation]
    sites: list[Site]


def record(case: Case, folder: Path) -> Recorded:
    """Let a case do its work. Every operation must be accounted for."""
    folder.mkdir()
    recorder = Recorder(folder)
    with recorder, sqlite_files.recorded(recorder):
        case.work(recorder, recorder.root / "store")
        recorder.check()
    return Recorded(case, recorder.operations, recorder.sites())


def cut(recorded: Recorded, folder: Path, ignoring: Site | None = None) -> None:
    """Cut the power wherever it can make a difference, first after each acknowledgement. Raises what the check of the
    case raises."""
    case, operations = recorded.case, recorded.operations

    def check(image: Path, position: int) -> None:
        case.check(image / "store", position)

    acknowledged = sorted(set(case.history.done.values()))
    cuts(operations, acknowledged, FATES[:2], folder / "image", check, ignoring)
    cuts(operations, points(operations), FATES, folder / "image", check, ignoring)


def loses(recorded: Recorded, folder: Path, ignoring: Site) -> bool:
    """Whether some power cut loses something when the syncs of this site are left out."""
    try:
        cut(recorded, folder, ignoring)
    except Exception:
        return True
    return False


CASES: list[Callable[[], Case]] = [Blocks, RebuiltShards, Copies, Log, Marks, Segments, Trail, Notifications]


@pytest.fixture(autouse=True)
def few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_locks, "_COUNT", FOLDERS)
    monkeypatch.setattr(landing_store, "_FAN_OUT", landing_store._FAN_OUT[:FOLDERS])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with memory_folder(tmp_path) as made:
        yield made


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_power_cut_loses_nothing(folder: Path, make: Callable[[], Case]) -> None:
    recorded = record(make(), folder / "recorded")
    cut(recorded, folder)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_power_cut_loses_something_when_any_one_sync_is_left_out(folder: Path, make: Callable[[], Case]) -> None:
    recorded = record(make(), folder / "recorded")
    assert recorded.sites
    wanted = [site for site in recorded.sites if site not in OF_SQLITE_ALONE]
    needless = [site for site in wanted if not loses(recorded, folder, site)]
    assert not needless, "no power cut missed these syncs:\n" + "\n".join(" > ".join(site) for site in needless)


OF_SQLITE_ALONE = [("SQLite:journal",)]
"""The file of the log is created under another name and is not opened before it is complete, so no journal is ever
read."""


def test_every_sync_in_the_code_is_left_out_once(folder: Path) -> None:
    """A sync that is added in a path that no case takes needs a new case."""
    called = {
        call
        for number, make in enumerate(CASES)
        for site in record(make(), folder / str(number)).sites
        for call in site
    }
    seen = {(module, int(line)) for module, _, line in (call.split(":") for call in called if call.count(":") == 2)}
    assert not [f"{module}:{line}" for module, line in sorted(set(_syncs_in_code()) - seen)]


def _syncs_in_code() -> Iterator[tuple[str, int]]:
    for path in sorted(Path(adapters.__file__).parent.rglob("*.py")):
        if path.name in NOTHING_TO_KEEP:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                if name in SYNCS:
                    yield path.name, node.lineno


NOTHING_TO_KEEP = {"probe.py"}
"""This sync only finds out whether the disk accepts one. The file has no name, and is gone when it is closed."""

SYNCS = {"fsync", "fdatasync", "sync_folder", "_sync", "_sync_folders", "sync", "O_DSYNC"}
"""The places that sync, and their callers, in nos_ec.adapters.local."""
