"""The settings of a store that is divided into cells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nos_ec.composition.wiring import initialise, open_system
from nos_ec.core.errors import ConfigError
from nos_ec.settings import check_settings, load_settings, shown_settings, write_settings

TWO = """
[store]
directory = "a"
root = "common"
[gc]
workers = 3
[cells.a]
store.root = "a"
[cells.b]
weight = 0
store.root = "/srv/b"
gc.workers = 1
geometry = { k = 4, m = 2 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nos-ec.toml"


def test_a_cell_has_its_own_values_and_those_that_are_common(file: Path) -> None:
    file.write_text(TWO)
    settings = load_settings(file, {"NOS_EC_GC__WORKERS": "2"})
    assert list(settings.cells) == ["a", "b"]
    assert settings.cell is None
    a, b = settings.of_cell("a"), settings.of_cell("b")
    assert (a.cell, a.store.root, a.gc.workers, a.geometry.k) == ("a", file.parent / "a", 2, 8)
    assert (b.cell, b.store.root, b.gc.workers, b.geometry.k) == ("b", Path("/srv/b"), 1, 4)
    assert [cell.weight for cell in settings.cells.values()] == [1, 0]
    assert a.cells == b.cells == {}


def test_a_store_without_cells_has_none(file: Path) -> None:
    settings = load_settings(None, {})
    assert settings.cells == {}
    why = "is set, but there are no cells; add their tables [cells.NAME], or remove it"
    with pytest.raises(ConfigError, match=re.escape(f"NOS_EC_STORE__DIRECTORY: {why}")):
        load_settings(None, {"NOS_EC_STORE__DIRECTORY": "a"})
    file.write_text("[store]\ndirectory = 'a'\n")
    (problem,) = check_settings(file, {})
    assert problem.text == f"{file}: store.directory: {why}"
    with pytest.raises(ConfigError, match=r"no cell 'a', because the settings have no \[cells.a\]"):
        settings.of_cell("a")
    file.write_text(TWO)
    with pytest.raises(ConfigError, match="the settings have the cells a, b"):
        load_settings(file, {}).of_cell("c")


def test_a_cell_that_names_its_database_does_not_use_the_common_one(file: Path) -> None:
    text = TWO.replace('store.root = "/srv/b"', 'store.root = "/srv/b"\nstore.metadata_url_file = "b.url"')
    file.write_text(text)
    settings = load_settings(file, {"NOS_EC_STORE__METADATA_URL": "mysql+pymysql://u:p@h/a"})
    assert settings.of_cell("a").store.url() == "mysql+pymysql://u:p@h/a"
    assert settings.of_cell("b").store.metadata_url is None
    assert settings.of_cell("b").store.metadata_url_file == file.parent / "b.url"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('directory = "a"', "", "store.directory: is not set; name the cell whose database holds the directory: a, b"),
        ('directory = "a"', 'directory = "c"', "store.directory: 'c' is not one of the cells; name the cell"),
        ("/srv/b", "a", "the cells a and b have the same store.root; set it in [cells.a] or [cells.b]"),
        ("/srv/b", "a/inner", "cells.b.store.root: the folder of cell b, "),
        ("/srv/b", ".", "is inside that of cell b, "),
        ("weight = 0", "weight = -1", "cells.b.weight: -1 is not allowed; use a whole number, 0 to 1000"),
        ("weight = 0", "wieght = 0", "[cells.b.wieght]: no such section"),
        (
            "[cells.b]",
            "[cells.B]",
            "[cells.B]: name a cell with 1 to 32 of the characters a-z and 0-9, and single hyphens",
        ),
        ("[cells.b]", "[cells.a--b]", "[cells.a--b]: name a cell with"),
        ("[cells.b]", "[cells.-b]", "[cells.-b]: name a cell with"),
        ("[cells.b]", f"[cells.{'b' * 33}]", "name a cell with"),
        ("gc.workers = 1", "gc.worker = 1", "cells.b.gc.worker: no such setting; did you mean gc.workers?"),
        ("gc.workers = 1", 'logging.level = "debug"', "all cells have this setting in common; set it in [logging]"),
        ("gc.workers = 1", "gc.workers = 0", "cells.b.gc.workers: 0 is not allowed; use a whole number"),
        ("gc.workers = 1", "gc.copy_bytes_max = 1", "cells.b.gc.copy_bytes_max: 1 is less than a block"),
        ("gc.workers = 1", "producer.republish_ms = 1000", "cells.b.producer.republish_ms: 1000 is not more than"),
    ],
)
def test_what_is_wrong_with_a_cell_is_named(file: Path, old: str, new: str, says: str) -> None:
    assert old in TWO
    file.write_text(TWO.replace(old, new))
    assert any(says in problem.text for problem in check_settings(file, {})), check_settings(file, {})


def test_a_table_of_cells_that_is_no_table_is_refused(file: Path) -> None:
    file.write_text("cells = 3")
    (problem,) = check_settings(file, {})
    assert "cells: write [cells.NAME] for each cell" in problem.text
    file.write_text("[cells]\na = 3")
    assert "write [cells.a], and the settings of the cell below" in check_settings(file, {})[0].text


def test_what_is_wrong_with_the_common_settings_is_named_once(file: Path) -> None:
    file.write_text(TWO + "[consumer]\nlanes = 0\n")
    (problem,) = check_settings(file, {})
    assert "consumer.lanes" in problem.text


def test_cells_on_servers_need_their_own_namespace_topic_and_database(file: Path) -> None:
    common = """
[store]
backend = "ceph"
directory = "a"
metadata_url = "mysql+pymysql://u:p@h/one"
[ceph]
conf_file = "ceph.conf"
[log]
backend = "kafka"
[kafka]
servers = "h:9092"
"""
    file.write_text(common + "[cells.a]\n[cells.b]\n")
    texts = "\n".join(problem.text for problem in check_settings(file, {}))
    for setting in ("store.metadata_url", "ceph.namespace", "kafka.topic"):
        assert f"the cells a and b have the same {setting}" in texts
    database = 'store.metadata_url = "mysql+pymysql://u:p@h/two"'
    own = f'[cells.a]\n[cells.b]\n{database}\nceph.namespace = "b"\nkafka.topic = "b"\n'
    file.write_text(common + own)
    assert check_settings(file, {}) == []


def test_written_settings_are_read_back_with_their_cells(file: Path, tmp_path: Path) -> None:
    file.write_text(TWO)
    settings = load_settings(file, {})
    write_settings(settings, tmp_path / "copy.toml")
    again = load_settings(tmp_path / "copy.toml", {})
    write_settings(settings.of_cell("b"), tmp_path / "b.toml")
    assert load_settings(tmp_path / "b.toml", {}).gc.workers == 1
    assert again == settings
    assert shown_settings(again) == shown_settings(settings)
    assert shown_settings(again)["cells"]["b"]["weight"] == 0


def test_one_cell_is_opened_like_a_store_and_the_whole_is_not(file: Path) -> None:
    file.write_text(TWO)
    settings = load_settings(file, {})
    for use in (initialise, open_system):
        with pytest.raises(ConfigError, match="choose one with --cell: a, b"):
            use(settings)
    initialise(settings.of_cell("a"))
    with open_system(settings.of_cell("a")) as system:
        assert system.settings.cell == "a"


def test_the_environment_has_values_of_a_cell(file: Path) -> None:
    text = TWO.replace("[cells.b]", '[cells.a-b]\nstore.root = "c"\n[cells.b]\nstore.metadata_url = "sqlite:///b"')
    file.write_text(text)
    environment = {
        "NOS_EC_CELLS__B__STORE__METADATA_URL_FILE": "/run/credentials/b",
        "NOS_EC_CELLS__B__GC__WORKERS": "5",
        "NOS_EC_CELLS__A_B__GC__WORKERS": "6",
        "NOS_EC_GC__WORKERS": "2",
    }
    settings = load_settings(file, environment)
    assert [settings.of_cell(name).gc.workers for name in ("a", "a-b", "b")] == [2, 6, 5]
    store = settings.of_cell("b").store
    assert (store.metadata_url, store.metadata_url_file) == (None, Path("/run/credentials/b"))
    assert settings.of_cell("a").store.metadata_url_file is None


@pytest.mark.parametrize(
    "variable",
    ["NOS_EC_CELLS__C__GC__WORKERS", "NOS_EC_CELLS__B__STORE__DIRECTORY", "NOS_EC_CELLS__B__GC__WORKER"],
)
def test_a_wrong_variable_of_a_cell_is_named(file: Path, variable: str) -> None:
    file.write_text(TWO)
    (problem,) = check_settings(file, {variable: "3"})
    assert problem.text.startswith(f"environment variable {variable}: no such setting")
