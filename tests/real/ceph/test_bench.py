"""`nos-ec bench` on Ceph, Kafka and MySQL measures and leaves nothing. Of its figures, those that no clock makes."""

from __future__ import annotations

import json
import shlex
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from nos_ec.cli.app import run
from nos_ec.core.errors import Transient
from tests.real.conftest import or_skip
from tests.rig.ceph_cluster import CephCluster
from tests.rig.dev_servers import MISSING, SCRIPTS, ServerFailed, ServerMissing

pytestmark = pytest.mark.real

SHARDS_OVER_DATA = 11 / 8
TRIES = 5
LISTED = ("pool", "erasure-code-profile", "crush rule")


@pytest.fixture(autouse=True)
def _leaves_nothing(ceph: CephCluster, mysql_url: str) -> Any:
    def left() -> tuple[list[str], ...]:
        engine = create_engine(mysql_url)
        with engine.connect() as connection:
            databases = sorted(connection.scalars(text("SHOW DATABASES")))
        engine.dispose()
        return databases, *(sorted(ceph.admin.command(f"osd {what} ls")) for what in LISTED)

    before = left()
    yield
    assert left() == before


def figures(config: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["--config", str(config), "bench", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


@pytest.mark.parametrize("landing", ["store", "log"])
def test_bench_pipeline(stack_config: Path, capfd: pytest.CaptureFixture[str], landing: str) -> None:
    options = ["--workload", "W2", "--landing", landing, "--objects", "300", "--rounds", "1"]
    found = figures(stack_config, capfd, "pipeline", *options)
    assert found["landing"] == landing
    floor, ours, naive = (found[way] for way in ("floor", "ours", "naive"))
    assert [len(way["rounds_objects_per_s"]) for way in (floor, ours, naive)] == [1, 1, 1]
    assert naive["client_write_ops_per_object"] == 1
    for way in (floor, ours):
        assert 0 < way["client_write_ops_per_object"] < 0.3
        assert SHARDS_OVER_DATA <= way["raw_bytes_per_user_byte"] < naive["raw_bytes_per_user_byte"] / 4
    assert ours["cpu_ms_per_object"].keys() == {"client", "osds", "kafka", "sql", "total"}
    assert all(value > 0 for value in ours["cpu_ms_per_object"].values())
    assert found["ours_over_floor"] == pytest.approx(ours["objects_per_s"] / floor["objects_per_s"])
    assert found["ours_over_naive"] == pytest.approx(ours["objects_per_s"] / naive["objects_per_s"])
    parts = found["lifetimes"]
    per_object_us = parts["stream_us_per_object"] + parts["death_us_per_object"]
    assert min(parts.values()) > 0
    assert parts["share_of_consumer"] * ours["cpu_ms_per_object"]["client"] * 1000 > per_object_us


def test_bench_pipeline_of_one_size_in_long_groups(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A group of 31 objects is one of 32 stripes, which the floor appends in as many windows."""
    options = ["--size", "1MiB", "--objects", "124", "--rounds", "1", "--no-naive"]
    found = figures(stack_config, capfd, "pipeline", *options)
    assert (found["workload"], found["size"]) == (None, 1 << 20)
    assert found["floor"]["raw_bytes_per_user_byte"] == pytest.approx(SHARDS_OVER_DATA * 32 / 31, rel=0.01)
    for way in ("floor", "ours"):
        assert found[way]["client_write_ops_per_object"] == pytest.approx(8 / 31, rel=0.3)


def test_bench_life(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--size", "20000", "--objects", "100", "--rounds", "1", "--reads", "10", "--callers", "4"]
    found = figures(stack_config, capfd, "life", *options)
    assert found["ways"] == ["single", "store", "log"]
    replicas = found["replicas"]
    assert replicas == 3
    for way in found["ways"]:
        assert all(rate > 0 for rate in found[way]["objects_per_s"].values())
        for cpu in found[way]["cpu_ms_per_object"].values():
            assert cpu.keys() == {"client", "osds", "kafka", "sql", "total"}
        assert min(found[way]["cpu_ms_per_object"]["put"].values()) > 0
        writes = found[way]["osd_write_ops_per_object"]
        assert writes["pack"] < 1
        if way == "log":
            assert writes["put"] < replicas, "PUTs share writes"
            assert writes["reap"] < 1, "segments go as wholes"
            assert found[way]["osd_writes_over_replicas"] < replicas, "a batch is one write"
        else:
            assert writes["put"] >= replicas
            assert writes["reap"] >= replicas
    assert found["single"]["put_batch"] == 1 < found["log"]["put_batch"]
    assert found["log_over_single"]["whole_life_cpu_ms_per_object"] > 0


@pytest.mark.usefixtures("xfail_unless_pages_are_read")
def test_bench_read(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """OSDs read for themselves now and then, which their counters do not tell apart: so the least of a few runs."""
    for _ in range(TRIES):
        found = figures(stack_config, capfd, "read", "--objects", "200", "--reads", "50", "--sample", "10")
        if found["read_bytes_over_pages"] == 1:
            break
    assert found["osds_per_get"] == 1
    assert found["read_bytes_over_pages"] == 1
    assert found["p50_over_bare"] == pytest.approx(found["ours_ms"]["p50"] / found["bare_ms"]["p50"])


def test_bench_read_of_split_objects(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = figures(stack_config, capfd, "read", "--size", "70000", "--objects", "200", "--reads", "40")
    assert (found["size"], found["objects"]) == (70_000, 200)
    assert 0 < found["split_objects"] < 200
    cpu_ms = found["client_cpu_ms_per_get"]
    assert found["split_over_whole"] == pytest.approx(cpu_ms["split"] / cpu_ms["whole"])
    assert found["osds_per_get_mean"] > 1, "chunks of a split object lie on two OSDs"


def install_radosgw(programs: str) -> None:
    """Raises ServerMissing, with the reason, where it cannot be installed."""
    done = subprocess.run(
        [*shlex.split(programs), "radosgw", "--version"], capture_output=True, text=True, timeout=1000
    )
    if done.returncode == MISSING:
        raise ServerMissing(done.stderr.strip())
    if done.returncode:
        raise ServerFailed(done.stderr.strip())


def test_bench_s3(stack_config: Path, ceph: CephCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """Beside radosgw, whose pool and objects are removed, too."""
    if not ceph.owned():
        pytest.skip("the programs of another cluster are not known")
    programs = f"env NOS_EC_DEV_DIR={ceph.folder.parent} {SCRIPTS / 'ceph.sh'} run"
    or_skip(partial(install_radosgw, programs))
    few = ["--objects", "16", "--small-objects", "1001", "--reads", "20", "--pages", "2", "--sample", "10"]
    callers = ["--put-callers", "4", "--get-callers", "2", "--rounds", "1"]
    found = figures(stack_config, capfd, "s3", "--radosgw", "--ceph-programs", programs, *few, *callers)
    assert found["ways"] == ["gateway", "engine", "radosgw", "radosgw_as_shipped"]
    for way in found["ways"]:
        groups = {"client", "osds", "kafka", "sql", "total"} | (set() if way == "engine" else {"server"})
        assert all(cpu.keys() == groups for cpu in found[way]["cpu_ms_per_object"].values())
        assert found[way]["osd_reads_per_get"] >= 1
    assert found["gateway_over_radosgw"]["cpu"]["put"] > 0
    assert found["radosgw"]["put_and_pack_cpu_ms_per_object"] == pytest.approx(
        found["radosgw"]["cpu_ms_per_object"]["put"]["total"]
    )


def test_bench_gc(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = figures(stack_config, capfd, "gc", "--objects", "200", "--rounds", "1", "--reads", "20")
    rates = found["live_mb_per_s"]
    assert found["ours_over_floor"] == pytest.approx(rates["ours"] / rates["floor"])
    for way in ("safe", "same_io"):
        assert found[f"ours_over_{way}"] == pytest.approx(rates["ours"] / rates[way])
    assert found["safe_over_floor"] == pytest.approx(rates["safe"] / rates["floor"])
    assert 0 < found["header_bytes_over_block_bytes"] <= 1 / 200
    assert found["gets"] > 0


@pytest.fixture
def _optimizations(ceph: CephCluster) -> None:
    if not ceph.reads_pages():
        pytest.skip("this Ceph has no allow_ec_optimizations")


SPACE = ["--sizes", "16KiB,43700", "--bytes", "4MiB"]


@pytest.mark.usefixtures("_optimizations")
def test_bench_space(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What BlueStore allocates for an object each is known: whole units for the data, and as much for each coding chunk
    as the longest data chunk of its stripe takes."""
    found = figures(stack_config, capfd, "space", *SPACE)
    assert found["ways"] == ["ours", "each_4096", "each_16384", "replicas"]
    assert found["osds"] >= 11
    small, odd = (found["cells"][size]["raw_bytes_per_user_byte"] for size in ("16384", "43700"))
    assert small["each_4096"] == pytest.approx((4 + 3) * 4096 / 16384, rel=0.02)
    assert small["each_16384"] == pytest.approx((1 + 3) * 16384 / 16384, rel=0.02)
    assert small["replicas"] == pytest.approx(3, rel=0.02)
    assert odd["replicas"] == pytest.approx(3 * 45_056 / 43_700, rel=0.02)
    for cell in found["cells"].values():
        raw = cell["raw_bytes_per_user_byte"]
        assert raw["ours"] > SHARDS_OVER_DATA
        assert 0.98 < cell["ours_over_simulation"] < 1.3, "the last of some 4 stripes may be nearly empty"
        assert cell["each_least"] == min(raw["each_4096"], raw["each_16384"])
    assert found["database_bytes_per_object"].keys() == set(found["ways"])


def test_bench_space_without_pools(stack_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = figures(stack_config, capfd, "space", *SPACE, "--no-pools")
    assert (found["ways"], found["database_bytes_per_object"]) == (["ours"], None)


@pytest.mark.usefixtures("_optimizations")
def test_bench_space_removes_what_it_wrote_also_when_it_fails(
    stack_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pools and profiles are gone, as after every test of this module."""

    def fails(pool: Any, names: list[str], *_: object) -> None:
        pool.write_full(names[0], b"written before it fails")
        raise Transient("bench: an operation failed")

    monkeypatch.setattr("nos_ec.bench.space.put_all", fails)
    assert run(["--config", str(stack_config), "bench", "space", *SPACE]) == 7
