"""The demo on Ceph, Kafka and MySQL: the same steps as on the embedded default, with consumers in processes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from nos_ec.adapters.rados.client.cluster import RadosCluster, RadosOptions
from nos_ec.cli.app import run
from tests.rig.ceph_cluster import POOL_BLOCKS, POOL_LANDING, CephCluster

pytestmark = pytest.mark.real

KIB = 1 << 10
ALL_NAMESPACES = "\x01"
"""LIBRADOS_ALL_NSPACES of librados.h."""


def _folder(path: Path, rng: random.Random) -> Path:
    for index in range(400):
        file = path / f"bucket{index % 5}" / f"file{index}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(rng.randint(0, 130 * KIB)))
    (path / "top").write_bytes(rng.randbytes(6 << 20))
    return path


def _objects(ceph: CephCluster) -> set[str]:
    """Names of everything in both pools, all namespaces together. By a connection that knows where the OSDs are now:
    tests before this one may have restarted them."""
    names: set[str] = set()
    with RadosCluster(RadosOptions(ceph.conf_file, "client.admin", ceph.folder / "admin.keyring")) as cluster:
        for pool_name in (POOL_BLOCKS, POOL_LANDING):
            with cluster.open_pool(pool_name, ALL_NAMESPACES) as pool:
                names |= set(pool.names())
    return names


def test_demo_on_the_real_stack(
    tmp_path: Path, stack_config: Path, ceph: CephCluster, mysql_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = _folder(tmp_path / "source", random.Random(1))
    before = _objects(ceph)
    capfd.readouterr()  # what connecting logs
    arguments = ["demo", "--source", str(source), "--root", str(tmp_path / "demo"), "--json"]
    assert run(["--config", str(stack_config), *arguments]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["objects"] == 401
    assert report["consumer_processes"] == 3
    assert report["verify"]["mismatches"] == report["verify"]["changed"] == 0
    assert report["single_chunk_ratio"] >= 0.999
    states = report["objects_by_state"]
    assert states["large"] == 1
    assert states["packed"] + states["empty"] == 400
    assert report["landing_copies_left"] == 0
    assert report["gc"]["bytes_reclaimed"] > 0
    assert len(report["lost_shards"]["shards"]) == 2
    assert report["raw_bytes_per_user_byte"] > 1.375
    # What it made is gone again: objects, database and folder.
    assert _objects(ceph) <= before
    assert not (tmp_path / "demo").exists()
    engine = create_engine(mysql_url)
    with engine.connect() as connection:
        assert connection.scalars(text("SHOW DATABASES LIKE '%scratch%'")).all() == []
    engine.dispose()
