"""The runbooks of docs/RUNBOOKS.md for Ceph, Kafka and MariaDB, run command by command, one after the other, on one
stack of their own with a producer and a consumer. Each leaves the stack as the next one needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import Stack
from tests.rig.documents import DOCS
from tests.rig.runbook import run_section, sections

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs daemons that it may kill"),
]
REPOSITORY = DOCS.parent
BINARY_LOG = "--log-bin=binlog --server-id=1 --binlog-format=ROW"
CONFIG = """
[store]
backend = "ceph"
[ceph]
user = "client.nos-ec-front"
[log]
backend = "kafka"
partitions = 8
session_ms = 6000
[kafka]
replication = 1
in_sync_min = 1
[consumer]
linger_ms = 0
linger_max_ms = 0
"""


def environment_of(stack: Path, folder: Path) -> dict[str, str]:
    """What an administrator of the stack in `stack` has: programs, addresses, a login to the database, and the folders
    in `folder` that the document's variables name."""
    addresses = dict(line.split("=", 1) for line in (stack / "stack" / "nos-ec.env").read_text().splitlines())
    url = addresses["NOS_EC_STORE__METADATA_URL"]
    address, _, database = url.partition("@")[2].partition("/")
    host, _, port = address.partition(":")
    for name in ("backup", "state", "roles/consumer", "roles/front"):
        (folder / name).mkdir(parents=True)
    (folder / "nos-ec.toml").write_text(CONFIG)
    (folder / ".my.cnf").write_text(f"[client]\nhost={host}\nport={port}\nuser=root\nprotocol=tcp\n")
    tools = REPOSITORY / "var" / "dev" / "kafka-tools-4.0.0" / "bin"
    first = [REPOSITORY / "tests" / "rig" / "bin", Path(sys.executable).parent, tools]
    given = {name: value for name, value in os.environ.items() if not name.startswith("NOS_EC_")}
    return (
        given
        | addresses
        | {
            "PATH": ":".join([*map(str, first), os.environ["PATH"]]),
            "HOME": str(folder),
            "NOS_EC_CONFIG": str(folder / "nos-ec.toml"),
            "NOS_EC_DEV_DIR": str(stack),
            "BACKUP": str(folder / "backup"),
            "BROKER": addresses["NOS_EC_KAFKA__SERVERS"],
            "TOPIC": "nos-ec",
            "DATABASE": database,
            "DATABASE_ADDRESS": address,
            "ROLES": str(folder / "roles"),
            "RUNBOOK_UNITS": str(folder / "state"),
        }
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.up(NOS_EC_DEV_CEPH_OSDS="12", NOS_EC_DEV_DATABASE_OPTIONS=BINARY_LOG)
    try:
        environment = environment_of(stack.folder, tmp_path_factory.mktemp("administrator"))
        begin = "nos-ec init; nos-ec put demo/before README.md; systemctl start nos-ec-producer nos-ec-consumer@1"
        run_section([begin], REPOSITORY, environment)
        yield environment
        stop_daemons(environment)
    finally:
        assert stack.script("down").returncode == 0


def stop_daemons(environment: dict[str, str]) -> None:
    units = [path.stem for path in Path(environment["RUNBOOK_UNITS"]).glob("*.pid")]
    run_section([f"systemctl stop {' '.join(units)}"], REPOSITORY, environment)


@pytest.mark.parametrize("section", sections("stack"))
def test_the_runbook_works(section: str, environment: dict[str, str]) -> None:
    run_section(sections("stack")[section], REPOSITORY, environment)
