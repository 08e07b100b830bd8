"""The Python library and the object commands on a store of several cells."""

from __future__ import annotations

import io
import json
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from nos_ec import InvalidInput, NotFound, ObjectStore, open_store
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.app import run
from nos_ec.cli.commands.cell_moves import open_directory
from nos_ec.composition import cells as cells_module
from nos_ec.composition.cells import begin_entering, open_cells, open_home
from nos_ec.composition.ownership import CELL_NOTE
from nos_ec.composition.wiring import open_system
from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from nos_ec.ports.metadata import CannedAcl
from nos_ec.settings import Settings, load_settings
from tests.service.conftest import Bench
from tests.service.s3.cell_stores import SPREADING, cells_config, new_cells

pytestmark = pytest.mark.invariant(12)

NAMES = [f"bucket-{number}" for number in range(10)]

CELL_POINTS = ["cells.home_claimed"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return new_cells(tmp_path, a=1, b=1, c=1)


@pytest.fixture
def store(settings: Settings) -> Iterator[ObjectStore]:
    with open_store(settings) as opened:
        opened._cells._random.seed(SPREADING)
        yield opened


def test_objects_lie_in_the_cell_of_their_bucket(settings: Settings, store: ObjectStore) -> None:
    for name in NAMES:
        store.put(f"{name}/k", name.encode(), attributes={"of": name})
    assert list(store.buckets()) == sorted(NAMES)
    for name in NAMES:
        assert store.get(f"{name}/k") == name.encode()
        assert store.head(f"{name}/k").attributes == {"of": name}
        assert [info.key.name for info in store.list(name)] == ["k"]
        assert next(store.list_folder(name)).key.name == "k"  # type: ignore[union-attr]
        with store.open_read(f"{name}/k") as reader:
            assert reader.read() == name.encode()
        assert store.get(store.head(f"{name}/k")) == name.encode()
        store.set_attributes(f"{name}/k", {"new": "1"})
    cells = {name: open_home(settings, name).settings.cell for name in NAMES}
    assert set(cells.values()) == {"a", "b", "c"}
    deleted = store.delete_many([f"{name}/k" for name in NAMES] + ["bucket-0/none"])
    assert [info.key.bucket for info in deleted] == NAMES
    assert list(store.buckets()) == []


def test_the_trash_of_a_bucket_is_that_of_its_cell(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    config = cells_config(tmp_path, a=1, b=1, c=1)
    config.write_text(config.read_text().replace("[store]", "[trash]\nkeep_days = 3\n[store]"))
    source = tmp_path / "source"
    source.write_bytes(b"x")

    def call(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(["--config", str(config), *words]) == code, capsys.readouterr().err
        return capsys.readouterr().out

    for name in NAMES[:4]:
        call("put", f"{name}/k", str(source))
        call("rm", f"{name}/k")
        assert json.loads(call("trash", "list", name, "--json"))["total_objects"] == 1
        call("undelete", f"{name}/k")
        assert call("ls", name).split() == [f"{name}/k"]
        call("rm", f"{name}/k")
        call("undelete", "-r", name)
        call("rm", f"{name}/k")
        call("trash", "empty", name, "--yes")
        assert json.loads(call("trash", "list", name, "--json"))["total_objects"] == 0
    call("trash", "empty", "--yes", code=2)


def test_cells_are_created_by_init_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `nos-ec init`"):
        open_store(str(cells_config(tmp_path, a=1, b=1)), create=True)


def test_put_many_stores_together_only_what_is_in_one_cell(store: ObjectStore) -> None:
    made = store.put_many([("one/a", b"1"), ("one/b", b"2")])
    assert [info.key.name for info in made] == ["a", "b"]
    new = [info.key.bucket for info in store.put_many([(f"new-{number}/a", b"1") for number in range(8)])]
    assert len({store._cells.home(name) for name in new}) == 1
    store.put_many([("one/c", b"3"), ("more/c", b"3")])
    assert store._cells.home("more") == store._cells.home("one")
    for name in NAMES:
        store.put(f"{name}/a", b"1")
    with pytest.raises(InvalidInput, match="these buckets are in several cells"):
        store.put_many([(f"{name}/a", b"1") for name in NAMES])
    assert store.small_bytes_max > 0
    assert store.put_many([]) == []


def test_what_is_refused_gives_no_bucket_a_cell(store: ObjectStore) -> None:
    small = b"1"
    for name in NAMES:
        store.put(f"{name}/a", small)
    with pytest.raises(InvalidInput, match="put_many takes"):
        store.put_many([("none/a", small), ("none/b", bytes(store.small_bytes_max + 1))])
    with pytest.raises(InvalidInput, match="these buckets are in several cells"):
        store.put_many([("none/a", small), *((f"{name}/a", small) for name in NAMES)])
    with pytest.raises(NotFound):
        store.put("none/a", small, if_match=bytes(16))
    with pytest.raises(NotFound):
        store.put("none/a", io.BytesIO(small), if_match=store.head(f"{NAMES[0]}/a"))
    with pytest.raises(InvalidInput, match="size is 2"):
        store.put("none/a", small, size=2)
    assert store._cells.directory.metadata.directory_row("none") is None
    old = store.head(f"{NAMES[0]}/a")
    assert store.put(f"{NAMES[0]}/a", b"2", if_match=old).version > old.version


def test_while_the_directory_lacks_buckets_it_is_said_what_to_run(
    tmp_path: Path, settings: Settings, store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    put = ["--config", str(cells_config(tmp_path, a=1, b=1, c=1, d=1)), "put", "unknown/k", str(source)]
    more = load_settings(cells_config(tmp_path, a=1, b=1, c=1, d=1), {})
    with open_store(more) as with_new_cell:
        why = "the buckets of these cells are not in the directory yet: d; run `nos-ec init`"
        with pytest.raises(Transient, match=why):
            with_new_cell.put("unknown/k", b"1")
        assert run(put) == 3
        assert why in capsys.readouterr().err
    begin_entering(store._cells.directory, ["b", "c"])
    why = "some buckets of these cells are not in the directory: b, c; run `nos-ec cells rebuild-directory`"
    with pytest.raises(Transient, match=why):
        store.put("unknown/k", b"1")
    cells_config(tmp_path, a=1, b=1, c=1)
    assert run(put) == 3
    assert why in capsys.readouterr().err


def test_without_weights_no_bucket_is_new(tmp_path: Path) -> None:
    new_cells(tmp_path, a=1, b=0)
    with open_store(str(cells_config(tmp_path, a=0, b=0))) as store:
        for put in (lambda: store.put("new/k", b"1"), lambda: store.put_many([("new/k", b"1")])):
            with pytest.raises(ConfigError, match="no cell takes new buckets; give one a weight above 0"):
                put()
        assert store._cells.directory.metadata.directory_row("new") is None


def test_what_is_nowhere_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        store.get("nothing/k")
    with pytest.raises(NotFound):
        store.delete("nothing/k")
    assert list(store.list("nothing")) == []
    assert store.delete_many(["nothing/k"]) == []


def test_metrics_are_the_sums_of_the_cells(store: ObjectStore) -> None:
    registry = CollectorRegistry()
    store.register(registry)
    for name in NAMES:
        store.put(f"{name}/k", b"x")
    assert registry.get_sample_value("nos_ec_put_batch_objects_sum") == len(NAMES)


def test_object_commands(tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(cells_config(tmp_path, a=1, b=1, c=1))
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_bytes(b"data")

    def call(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(["--config", config, *words]) == code
        return capsys.readouterr().out

    for name in NAMES:
        call("put", f"{name}/k", str(source / "deep" / "file"))
        call("put", "-r", name, str(source))
    assert call("ls").split() == sorted(NAMES)
    shown = json.loads(call("ls", "--limit", "3", "--json"))
    assert shown == {"buckets": sorted(NAMES)[:3], "next_after": sorted(NAMES)[2]}
    assert call("ls", "--after", sorted(NAMES)[2]).split() == sorted(NAMES)[3:]
    assert call("ls", NAMES[3]).split() == [f"{NAMES[3]}/deep/file", f"{NAMES[3]}/k"]
    assert json.loads(call("stat", f"{NAMES[3]}/k", "--json"))["size"] == 4
    target = tmp_path / "target"
    call("get", "-r", NAMES[3], str(target))
    assert (target / "deep" / "file").read_bytes() == b"data"
    call("rm", *(f"{name}/k" for name in NAMES), f"{NAMES[0]}/none", "nothing/k", code=4)
    assert [call("ls", name).split() for name in NAMES] == [[f"{name}/deep/file"] for name in NAMES]
    call("stat", "nothing/k", code=4)
    cells = json.loads(call("cells", "list", "--json"))["cells"]
    assert sum(cell["buckets"] for cell in cells) == len(NAMES)
    assert "has the directory" in call("cells", "list")
    call("s3", "bucket", "create", "Made", "--owner", "ann", code=2)
    call("s3", "bucket", "create", "made", "--owner", "a b", code=2)
    with open_directory(settings) as directory:
        taken = [directory.metadata.directory_row(name) for name in ("Made", "made")]
        assert taken == [None, None], "no name is taken for good"
    call("s3", "bucket", "create", "made", "--owner", "ann")
    call("s3", "bucket", "give", "made", "bob")
    call("s3", "grant", "made", "ann", "read")
    with open_home(settings, "made") as home:
        assert home.metadata.grants("made").keys() == {"ann"}
    cell = open_home(settings, "made").settings.cell
    other = next(name for name in "abc" if name != cell)
    call("--cell", other, "put", "made/k", str(source / "deep" / "file"), code=2)
    call("--cell", other, "s3", "bucket", "give", "made", "ann", code=2)
    call("--cell", str(cell), "put", "made/k", str(source / "deep" / "file"))
    with open_store(settings) as store:
        assert [row.name for row in store._cells.buckets_of("bob", "", 10)] == ["made"]


def test_a_store_becomes_the_first_cell_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = cells_config(tmp_path, a=1)
    text = (
        alone.read_text()
        .replace('[cells.a]\nweight = 1\nstore.root = "a"', "")
        .replace('directory = "a"', 'root = "a"')
    )
    single = tmp_path / "single.toml"
    single.write_text(text)
    with open_store(str(single), create=True) as store:
        for name in NAMES:
            store.put(f"{name}/k", name.encode())
    config = cells_config(tmp_path, a=0, b=1)
    with pytest.raises(ConfigError, match="run `nos-ec init`"), open_store(str(config)):
        pass
    assert run(["--config", str(config), "init"]) == 0
    capsys.readouterr()
    with open_store(str(config)) as store:
        assert list(store.buckets()) == sorted(NAMES)
        for name in NAMES:
            assert store.get(f"{name}/k") == name.encode()
            store.put(f"{name}/second", b"2")
        store.put("new/k", b"3")
    assert run(["--config", str(config), "cells", "list", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["cell"], cell["buckets"]) for cell in cells] == [("a", 10), ("b", 1)]


def test_cells_that_were_exchanged_are_refused(tmp_path: Path, settings: Settings) -> None:
    config = cells_config(tmp_path, a=1, b=1, c=1)
    config.write_text(config.read_text().replace('root = "b"', 'root = "x"').replace('root = "c"', 'root = "b"'))
    with open_store(str(config)) as store:
        with pytest.raises(Transient, match="cell c is another store than the one"):
            store._cells.system("c")
        with pytest.raises(Transient, match="cell b is not open yet: there is no metadata store"):
            store._cells.system("b")


def test_commands_refuse_cells_that_were_exchanged_or_are_empty(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    config = cells_config(tmp_path, a=0, b=1, c=0)
    text, source = config.read_text(), tmp_path / "source"
    source.write_bytes(b"x")
    assert run(["--config", str(config), "put", "x/k", str(source)]) == 0
    swapped = text.replace('root = "b"', 'root = "x"').replace('root = "c"', 'root = "b"').replace('"x"', '"c"')
    config.write_text(swapped)
    named = (["ls"], ["get", "x/k", "-o", str(tmp_path / "out")], ["status"], ["gc", "run", "--apply"])
    for words in (
        *(["put", "x/k", str(source)], ["put", "new/k", str(source)], ["init"]),
        *(["--cell", cell, *words] for cell in "bc" for words in named),
    ):
        assert run(["--config", str(config), *words]) == 3, words
    assert run(["--config", str(config), "--cell", "a", "status"]) == 0
    config.write_text(text)
    (tmp_path / "b").rename(tmp_path / "away")
    assert run(["--config", str(config), "init"]) == 3
    assert "cell b is another store" in capsys.readouterr().err
    for words in (["put", "x/k", str(source)], ["cells", "rebuild-directory"]):
        assert run(["--config", str(config), *words]) == 3, words
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "away").rename(tmp_path / "b")
    assert run(["--config", str(config), "cells", "rebuild-directory"]) == 0
    assert run(["--config", str(config), "get", "x/k", "-o", str(tmp_path / "out")]) == 0


def test_the_directory_cannot_move_to_another_cell(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    config = cells_config(tmp_path, a=1, b=1, c=1)
    config.write_text(config.read_text().replace('directory = "a"', 'directory = "b"'))
    assert run(["--config", str(config), "init"]) == 3
    assert "is in another cell; correct store.directory" in capsys.readouterr().err


def test_the_same_store_under_two_names_is_refused(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    config = cells_config(tmp_path, a=1, b=1, d=1)
    config.write_text(config.read_text().replace('root = "d"', 'root = "c"'))
    assert run(["--config", str(config), "init"]) != 0
    why = "cell d is another store than the one of that name: its database is that of cell c"
    assert why in capsys.readouterr().err
    with open_system(settings.of_cell("c")) as system:
        assert system.metadata.store_note(CELL_NOTE, "d", "c")
    assert run(["--config", str(config), "init"]) != 0
    assert "the cells c and d are the same store" in capsys.readouterr().err


def test_a_stream_is_put_into_its_cell(store: ObjectStore) -> None:
    store.put("stream/k", io.BytesIO(b"x" * 100_000), size=100_000)
    assert store.get("stream/k", 5, 10) == b"x" * 10


def buckets_listed(settings: Settings, owner: str) -> list[str]:
    """Return the names that ListBuckets shows to an account."""
    with open_directory(settings) as directory:
        return [row.name for row in directory.metadata.buckets_in_directory(owner, "", 100)]


def create_and_delete(settings: Settings, owner: str, names: Sequence[str]) -> None:
    """Create and delete buckets in another process than the one that is tested."""
    with open_cells(settings, SystemClock()) as cells:
        for name in names:
            metadata = cells.system(cells.claim(name, owner).home).metadata
            assert metadata.create_bucket(name, owner, CannedAcl.PRIVATE, 1)
            assert metadata.delete_bucket(name, cells.system("a").clock.now_ms())


def test_what_the_library_stores_makes_a_deleted_bucket_exist_again(settings: Settings, store: ObjectStore) -> None:
    create_and_delete(settings, "ann", ["one", "many", "stream"])
    assert buckets_listed(settings, "ann") == []
    store.put("one/k", b"1")
    assert buckets_listed(settings, "ann") == ["one"]
    store.put_many([("many/k", b"1"), ("many/l", b"1")])
    assert buckets_listed(settings, "ann") == ["many", "one"]
    store.put("stream/k", io.BytesIO(b"x" * 100_000))
    assert buckets_listed(settings, "ann") == ["many", "one", "stream"]
    assert buckets_listed(settings, "root") == []


def test_a_bucket_without_an_object_is_not_listed(
    settings: Settings, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without cells shows a bucket that was never created while it holds objects."""

    def fail(*_: object) -> None:
        raise Transient("the cell went away")

    for name in NAMES:
        monkeypatch.setattr(Store, "put", fail)
        with pytest.raises(Transient):
            store.put(f"{name}/k", b"1")
        monkeypatch.undo()
    assert buckets_listed(settings, "root") == []
    for name in NAMES[:3]:
        store.put(f"{name}/k", b"1")
    assert buckets_listed(settings, "root") == NAMES[:3]


def test_a_put_succeeds_while_the_directory_cannot_be_told(
    settings: Settings, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Transient("the directory went away")

    monkeypatch.setattr(store._cells.directory.metadata, "record_in_directory", fail)
    store.put("photos/k", b"1")
    assert buckets_listed(settings, "root") == []
    monkeypatch.undo()
    store.put("photos/l", b"1")
    assert buckets_listed(settings, "root") == ["photos"]


@pytest.mark.parametrize("with_cell", [False, True])
def test_commands_make_a_deleted_bucket_exist_again(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], *, with_cell: bool
) -> None:
    config = cells_config(tmp_path, a=1, b=1, c=1)
    config.write_text(config.read_text().replace("[store]", "[trash]\nkeep_days = 3\n[store]"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"x")
    names = ["put", "tree", "undelete", "undelete-tree"]
    for name in names:
        with open_store(settings) as store:
            store.put(f"{name}/first", b"1")
            store.delete(f"{name}/first")
    for name in names[2:]:
        assert run(["--config", str(config), "put", f"{name}/k", str(source / "file")]) == 0
        assert run(["--config", str(config), "rm", f"{name}/k"]) == 0
    create_and_delete(settings, "ann", names)
    assert buckets_listed(settings, "ann") == []
    commands = {
        "put": ["put", "put/k", str(source / "file")],
        "tree": ["put", "-r", "tree", str(source)],
        "undelete": ["undelete", "undelete/k"],
        "undelete-tree": ["undelete", "-r", "undelete-tree"],
    }
    for name, words in commands.items():
        cell = ["--cell", str(open_home(settings, name).settings.cell)] if with_cell else []
        assert run(["--config", str(config), *cell, *words]) == 0, capsys.readouterr().err
        assert name in buckets_listed(settings, "ann"), name


def test_a_command_succeeds_while_the_directory_cannot_be_corrected(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(cells_config(tmp_path, a=1, b=1, c=1))
    source = tmp_path / "source"
    source.write_bytes(b"x")
    create_and_delete(settings, "ann", ["photos"])

    def fail(*_: object) -> None:
        raise Transient("the directory went away")

    monkeypatch.setattr(cells_module, "record_bucket", fail)
    assert run(["--config", config, "put", "photos/k", str(source)]) == 0
    assert "the directory cannot be corrected" in "".join(capsys.readouterr())
    assert buckets_listed(settings, "ann") == []
    monkeypatch.undo()
    assert run(["--config", config, "put", "photos/k", str(source)]) == 0
    assert buckets_listed(settings, "ann") == ["photos"]


def test_a_bucket_that_exists_again_is_moved(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although the directory was not told, as after the crash of a program that put an object into it."""
    config = str(cells_config(tmp_path, a=1, b=1, c=1))
    create_and_delete(settings, "ann", NAMES)
    with open_store(settings) as store:
        for name in NAMES:
            with open_home(settings, name) as system:
                system.client.store().put(ObjectKey(name, "k"), io.BytesIO(b"x"), b"")
        home = store._cells.home(NAMES[0])
    to = "b" if home == "a" else "a"
    assert run(["--config", config, "cells", "move", NAMES[0], "--to", to]) == 0, capsys.readouterr().err
    assert open_home(settings, NAMES[0]).settings.cell == to
    assert run(["--config", config, "cells", "drain", "a"]) == 0, capsys.readouterr().err
    assert {open_home(settings, name).settings.cell for name in NAMES} == {"b", "c"}
    with open_store(settings) as store:
        assert [store.get(f"{name}/k") for name in NAMES] == [b"x"] * len(NAMES)


@pytest.mark.parametrize("point", CELL_POINTS)
def test_kill_the_creation_of_a_bucket(bench: Bench, point: str) -> None:
    """The directory names the home of a bucket that has no row there yet."""
    settings = new_cells(bench.folder, a=1, b=1)
    bench.config = cells_config(bench.folder, a=1, b=1)
    done = bench.run("s3", "bucket", "create", "photos", "--owner", "ann", kill_at=point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert buckets_listed(settings, "ann") == []
    done = bench.run("s3", "bucket", "create", "photos", "--owner", "bob")
    assert done.returncode == 0, done.stderr
    with open_home(settings, "photos") as home:
        assert home.metadata.bucket("photos") is not None
    with open_system(settings.of_cell("a")) as directory:
        assert [row.name for row in directory.metadata.buckets_in_directory("bob", "", 10)] == ["photos"]
        assert directory.metadata.buckets_in_directory("ann", "", 10) == []
