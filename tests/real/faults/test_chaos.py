"""Clients, daemons and GC on Ceph, Kafka and MySQL while all of them are killed: nothing is lost, corrupt or leaked.

PUTs begin in landing.mode store, change to log, and drain. The store has one cell, or three, of which the last one has
its own MySQL and loses it for a minute, while an operator moves buckets from cell to cell.

NOS_EC_DEV_CHAOS_SEED repeats the choices of a run. `make chaos` runs longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nos_ec.composition.backends import remove_log, remove_objects
from tests.real.conftest import run
from tests.rig.chaos.chaos_cells import stores_of
from tests.rig.chaos.chaos_run import run_chaos
from tests.rig.chaos.chaos_strikes import Servers
from tests.rig.dev_servers import DevServer
from tests.rig.sampling import sampled

pytestmark = [pytest.mark.real, pytest.mark.invariant(1)]

SEED = int(os.environ.get("NOS_EC_DEV_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SECONDS = sampled(45.0, 90.0)
EVERY_S = 7.3
"""In 90 seconds, every kind of strike on a store of one cell comes once; in 45, half of them. The seed chooses them."""


@pytest.fixture
def servers(ceph_server: DevServer, kafka: DevServer, durable_mysql: DevServer) -> Servers:
    return Servers(ceph_server, kafka, durable_mysql)


@pytest.fixture
def servers_of_cells(servers: Servers, tmp_path: Path) -> Iterator[Servers]:
    for server in run("mysql", tmp_path / "last-cell", fast=False):
        yield replace(servers, cells=("a", "b", "c"), last_database=server)


@pytest.mark.every_time
def test_chaos(servers: Servers, tmp_path: Path, say: Callable[[str], None]) -> None:
    find_nothing(servers, tmp_path, say)


@pytest.mark.invariant(12)
def test_chaos_of_three_cells(servers_of_cells: Servers, tmp_path: Path, say: Callable[[str], None]) -> None:
    find_nothing(servers_of_cells, tmp_path, say)


def find_nothing(servers: Servers, tmp_path: Path, say: Callable[[str], None]) -> None:
    say(f"\nchaos of {SECONDS:.0f} s on real servers, NOS_EC_DEV_CHAOS_SEED={SEED}")
    try:
        report = run_chaos(tmp_path, servers, seed=SEED, seconds=SECONDS, every_s=EVERY_S, say=say)
        say(report.as_json())
    finally:
        _hand_back(servers, tmp_path / "nos-ec.toml")
    assert report.problems == []
    assert (report.verdict.lost, report.verdict.corrupt, report.leaked) == ([], [], [])


def _hand_back(servers: Servers, config: Path) -> None:
    """Other tests use these servers too: they must be intact and without this store."""
    for server in servers.all():
        server.start()
    if config.exists():
        for settings in stores_of(config).values():
            remove_objects(settings)
            remove_log(settings)
