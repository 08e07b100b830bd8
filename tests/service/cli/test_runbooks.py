"""The runbooks of docs/RUNBOOKS.md for the embedded store, and the example of docs/CELLS.md, run command by command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.rig.documents import DOCS
from tests.rig.runbook import run_section, sections, unmet

REPOSITORY = DOCS.parent
SECTIONS = sections("embedded")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An initialised store, a folder of samples and one for backups."""
    store, backup = tmp_path / "store", tmp_path / "backup"
    backup.mkdir()
    config = tmp_path / "nos-ec.toml"
    config.write_text(f'[store]\nroot = "{store}"\n[gc]\nreserve_bytes = "32MiB"\n[log]\nsession_ms = 1000\n')
    given = {name: value for name, value in os.environ.items() if not name.startswith("NOS_EC_")}
    environment = given | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NOS_EC_CONFIG": str(config),
        "STORE": str(store),
        "BACKUP": str(backup),
        "SAMPLES": str(REPOSITORY),
    }
    samples = tmp_path / "samples"
    samples.mkdir()
    (samples / "README.md").write_bytes((REPOSITORY / "README.md").read_bytes())
    environment["SAMPLES"] = str(samples)
    run_section(["nos-ec init"], REPOSITORY, environment)
    return environment


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.timed
def test_the_runbook_works(section: str, environment: dict[str, str]) -> None:
    run_section(SECTIONS[section], REPOSITORY, environment)


@pytest.mark.timed
def test_the_example_of_two_cells_works(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if not name.startswith("NOS_EC_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run_section(sections("embedded", "CELLS.md")["Try it"], tmp_path, given | {"PATH": path})


def test_the_important_runbooks_are_among_them() -> None:
    assert {"A disk of the embedded store is lost", "Backup and restore of the metadata"} <= SECTIONS.keys()
    assert "An application deleted objects by mistake" in SECTIONS
    assert {"An OSD is lost", "Backup and restore of the metadata", "Rotating keys"} <= sections("stack").keys()


@pytest.mark.parametrize(
    ("text", "said", "missing"),
    [
        ("ls\n#> a ... c", "first\na b c\n", None),
        ("ls\n#> a ... c", "a b\nc\n", "a ... c"),
        ("ls\n#> first\n#> second", "second\nfirst\n", "second"),
    ],
)
def test_output_that_differs_is_found(text: str, said: str, missing: str | None) -> None:
    assert unmet(text, said) == missing


@pytest.mark.parametrize("text", ["false", "true | false", "echo one\n#> two", "echo $undefined_variable"])
def test_a_runbook_that_does_not_work_is_found(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_section(["true", text], tmp_path, {"PATH": os.environ["PATH"]})
