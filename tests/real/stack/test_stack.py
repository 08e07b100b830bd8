"""deploy/dev/stack.sh: the whole stack at once, in a separate folder and on separate ports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nos_ec.settings import without_settings
from tests.rig.waiting import until

if TYPE_CHECKING:
    from tests.real.conftest import Stack

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("NOS_EC_DEV_CEPH_CONF" in os.environ, reason="needs daemons that it may kill"),
]
NOT_RUNNING = 3
IN_PART = 1


@pytest.mark.every_time
def test_the_whole_stack(stack: Stack) -> None:
    """A single test, because starting the stack takes most of the time."""
    assert stack.script("status").returncode == NOT_RUNNING

    said = stack.up()
    assert "nos-ec --config deploy/dev/nos-ec.toml init" in said
    pids = stack.pids()
    assert pids.keys() == {"mon", "mgr", "kafka", "mariadb", *(f"osd.{osd}" for osd in range(11))}
    assert stack.processes() == set(pids.values())

    stack.up()
    assert stack.pids() == pids, "what runs already is left alone"
    assert "ceph is installed\nkafka is installed\nmariadb is installed\n" in stack.script("install").stdout
    assert stack.pids() == pids, "only programs are installed"
    found = await_running(stack)
    assert [line.split()[0] for line in found.stdout.splitlines()] == ["ceph", "kafka", "mariadb"]
    assert "11 osds: 11 up, HEALTH_" in re.sub(r" +", " ", found.stdout.replace(" ,", ","))
    assert_environment_fits(stack, found.stdout)

    killed = ("osd.7", "kafka", "mariadb")
    for daemon in killed:
        os.kill(pids[daemon], signal.SIGKILL)
    await_gone(stack, {pids[daemon] for daemon in killed})
    found = stack.script("status")
    assert found.returncode == IN_PART
    assert "osd.7" in found.stdout
    assert "kafka is not running" in found.stdout
    assert "mariadb is not running" in found.stdout
    stack.up()
    repaired = stack.pids()
    assert {daemon for daemon in pids if repaired[daemon] != pids[daemon]} == set(killed)
    await_running(stack)

    other = stack.script("up", NOS_EC_DEV_DATABASE="mysql")
    assert other.returncode == IN_PART
    assert "run `down` before" in other.stderr

    assert stack.script("down").returncode == 0
    assert stack.processes() == set()
    assert stack.script("status").returncode == NOT_RUNNING
    assert stack.script("clean").returncode == 0
    assert list(stack.folder.iterdir()) == []


def await_running(stack: Stack) -> subprocess.CompletedProcess[str]:
    """On a machine that stalls, a running OSD may be marked down for a moment. Returns the final output of `status`."""
    deadline = time.monotonic() + 60
    while (found := stack.script("status")).returncode != 0:
        assert time.monotonic() < deadline, found.stdout
        time.sleep(0.5)
    return found


def await_gone(stack: Stack, pids: set[int]) -> None:
    """A process that is killed takes a moment to end."""
    deadline = time.monotonic() + 30
    while stack.processes() & pids:
        assert time.monotonic() < deadline, "they do not end"
        time.sleep(0.05)


def assert_environment_fits(stack: Stack, status: str) -> None:
    """nos-ec.env names exactly what the servers report about themselves."""
    lines = (stack.folder / "stack" / "nos-ec.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines)
    for name in ("NOS_EC_STORE__METADATA_URL", "NOS_EC_CEPH__CONF_FILE", "NOS_EC_KAFKA__SERVERS"):
        assert f": {given[name]}\n" in status
    assert Path(given["NOS_EC_CEPH__KEYRING_FILE"]).is_file()


def test_a_missing_database(stack: Stack) -> None:
    refused = stack.script("up", NOS_EC_DEV_DATABASE="sqlite")
    assert refused.returncode == 1
    assert "must be one of: mysql mariadb vitess" in refused.stderr


def test_a_store_of_three_cells(stack: Stack, tmp_path: Path) -> None:
    """Each cell has a database, a namespace and a topic; an object of the same name lies in each."""
    assert "one of them" in stack.script("up", NOS_EC_DEV_CELLS="3", NOS_EC_DEV_DATABASE="vitess").stderr
    assert "cells.toml init" in stack.up(NOS_EC_DEV_CELLS="3", NOS_EC_DEV_DATABASE="mysql")
    config = stack.folder / "stack" / "cells.toml"

    def cells(*words: str) -> Any:
        command = [sys.executable, "-m", "nos_ec", "--config", str(config), *words]
        return json.loads(subprocess.check_output(command, timeout=300, env=without_settings(os.environ)))

    assert list(cells("init", "--json")["cells"]) == ["a", "b", "c"]
    assert list(cells("config", "check", "--connect", "--json")["cells"]) == ["a", "b", "c"]
    for name in ("a", "c"):
        (tmp_path / name).write_bytes(name.encode() * 100_000)
        cells("--cell", name, "put", f"photos-{name}/cat.jpg", str(tmp_path / name), "--json")
    published = cells("producer", "--once", "--json")["cells"]
    assert {name: one["published"] for name, one in published.items()} == {"a": 1, "b": 0, "c": 1}
    packed = cells("consumer", "--once", "--json")["cells"]
    assert {name: one["packed"] for name, one in packed.items()} == {"a": 1, "b": 0, "c": 1}
    for name in ("a", "c"):
        cells("--cell", name, "get", f"photos-{name}/cat.jpg", "-o", str(tmp_path / "copy"), "--json")
        assert (tmp_path / "copy").read_bytes() == (tmp_path / name).read_bytes()
    status = cells("status", "--exact", "--json")["cells"]
    assert {name: one["packed_objects"] for name, one in status.items()} == {"a": 1, "b": 0, "c": 1}
    assert [one["kinds"] for one in cells("check", "--json")["cells"].values()] == [{}, {}, {}]
    at_once = {f"NOS_EC_{name}_MS": "0" for name in ("PUT__MIN_AGE", "CONSUMER__LINGER", "CONSUMER__LINGER_MAX")}
    daemons = [
        subprocess.Popen(
            [sys.executable, "-m", "nos_ec", "--config", str(config), name],
            env=without_settings(os.environ) | at_once,
        )
        for name in ("producer", "consumer")
    ]
    try:
        cells("--cell", "b", "put", "photos-b/cat.jpg", str(tmp_path / "a"), "--json")
        until(lambda: cells("--cell", "b", "status", "--exact", "--json")["packed_objects"] == 1, "the daemons pack it")
    finally:
        for daemon in daemons:
            daemon.terminate()
        assert [daemon.wait(timeout=120) for daemon in daemons] == [0, 0]
    more = stack.script("up", NOS_EC_DEV_CELLS="4")
    assert more.returncode == IN_PART
    assert "run `down` first" in more.stderr
