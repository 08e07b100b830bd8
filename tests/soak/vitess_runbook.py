"""The commands of docs/VITESS.md, run as they stand there, one section after the other, on a Vitess of their own and a
store whose blocks are embedded. Each leaves Vitess as the next one needs it. `make vitess` runs this."""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import start
from tests.rig.documents import DOCS
from tests.rig.prometheus import VITESS_RULES
from tests.rig.runbook import run_section, sections
from tests.rig.vitess_server import VitessServer

pytestmark = pytest.mark.real

REPOSITORY = DOCS.parent
SECTIONS = sections("vitess", "VITESS.md")
PROGRAMS = ("vtctldclient", "mysql", "mysqldump", "mysqlbinlog")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VitessServer]:
    server = VitessServer(tmp_path_factory.mktemp("vitess"))
    start(server)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def environment(server: VitessServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    environment = environment_of(server, tmp_path_factory.mktemp("administrator"))
    run_section(["nos-ec init"], REPOSITORY, environment)
    return environment


def environment_of(server: VitessServer, folder: Path) -> dict[str, str]:
    """What an administrator has: programs, sockets, and the folders that the document's variables name."""
    for name in ("bin", "backup", "sockets"):
        (folder / name).mkdir()
    script = REPOSITORY / "deploy" / "dev" / "vitess.sh"
    for program in PROGRAMS:
        path = folder / "bin" / program
        path.write_text(f'#!/bin/sh\nexec "{script}" run {program} "$@"\n')
        path.chmod(0o755)
    sockets = Path(os.environ.get("TMPDIR", "/tmp"))
    for line in server.control("GetTablets", "--keyspace=nos_ec").splitlines():
        alias, _, _, _, _, address, *_ = line.split()
        (folder / "sockets" / alias).symlink_to(sockets / f"nos-ec-vitess-{address.rpartition(':')[2]}.sock")
    config = folder / "nos-ec.toml"
    config.write_text(
        f'[store]\nroot = "{folder}/store"\nmetadata_url = "{server.url}"\n[gc]\nreserve_bytes = "32MiB"\n'
    )
    return server.environment | {
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NOS_EC_CONFIG": str(config),
        "BACKUP": str(folder / "backup"),
        "SOCKETS": str(folder / "sockets"),
    }


@pytest.mark.parametrize("section", SECTIONS)
def test_the_commands_work(section: str, environment: dict[str, str]) -> None:
    run_section(SECTIONS[section], REPOSITORY, environment)


def test_vitess_exports_what_the_alerts_ask_for(server: VitessServer) -> None:
    """vtorc exports a problem once it has seen one: that there was no primary, when the servers were new."""
    ports = dict(line.split() for line in (server.folder / "ports").read_text().splitlines())
    exported = ""
    for process in ("vtgate", "vtorc", "vttablet-1"):
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[process]}/metrics", timeout=30) as answer:
            exported += answer.read().decode()
    asked = set(re.findall(r"\b(?:vtgate|vtorc|vttablet)_\w+", VITESS_RULES.read_text()))
    assert len(asked) >= 6
    assert asked <= set(re.findall(r"^\w+", exported, re.MULTILINE))
