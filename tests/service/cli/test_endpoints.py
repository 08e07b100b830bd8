"""The daemons as an operator watches them: real processes, real HTTP, a real notification socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nos_ec import __version__
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.composition.wiring import System
from nos_ec.engine.figures.store_totals import CHEAP_ROWS_MAX
from nos_ec.monitoring.declarations.metric import Kind
from nos_ec.monitoring.declarations.metrics import (
    BUCKET_BYTES,
    BUCKET_OBJECTS,
    GC_WORKER_RUNNING,
    GC_WORKER_SEEN,
    METRICS,
    STORE_PLACEMENT_GROUPS,
    STORE_STALLED_MOVES,
)
from nos_ec.monitoring.endpoint import Endpoint
from nos_ec.settings import without_settings
from tests.rig.at_rest import LaterClock, end_log
from tests.rig.dev_servers import free_port
from tests.rig.fakes.audit import counted_totals
from tests.rig.notify_socket import NotifySocket
from tests.rig.readiness import await_ready
from tests.rig.sql.full_store import Shape, fill
from tests.rig.waiting import until
from tests.service.conftest import SHORT, SHORT_OVER_MS, STRIPE, WAIT_S_MAX, Bench

pytestmark = pytest.mark.timed

COMMANDS = {"producer": ["producer"], "consumer": ["consumer"], "gc": ["gc", "run", "--apply", "--loop"]}
UNEQUAL = "left: what the service exports (its samples); right: what metrics.py declares for it"


class Daemon:
    """A running daemon and its endpoint."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WAIT_S_MAX) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def health(self, path: str) -> tuple[int, dict[str, Any]]:
        status, body = self.get(path)
        return status, json.loads(body)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """{(name, label values...): value}"""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=WAIT_S_MAX)


@contextmanager
def daemon(bench: Bench, service: str, **environment: str) -> Iterator[Daemon]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "nos_ec", "--config", str(bench.config), *COMMANDS[service]],
        env={**without_settings(os.environ), "NOS_EC_MONITORING__PORT": str(port), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_ready(port, wait_s=WAIT_S_MAX, look=lambda: alive(process))
        yield Daemon(process, port)
    finally:
        process.kill()
        process.wait()


def alive(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, "the daemon ended"


ABSENT = (STORE_PLACEMENT_GROUPS, GC_WORKER_RUNNING, GC_WORKER_SEEN, BUCKET_BYTES, BUCKET_OBJECTS, STORE_STALLED_MOVES)
"""Metrics of a store on Ceph, of one with several GC workers (test_gc_workers.py), and of metered buckets
(test_usage.py)."""


def expected_names(service: str) -> set[str]:
    """Return the names of metrics of a store without Ceph."""
    names = set()
    for metric in METRICS:
        if service in metric.services and metric not in ABSENT:
            suffixes = ("_bucket", "_count", "_sum") if metric.kind is Kind.HISTOGRAM else ("",)
            names |= {metric.exposed_name + suffix for suffix in suffixes}
    return names


def shown_names(found: dict[tuple[str, ...], float]) -> set[str]:
    return {name[0] for name in found if name[0].startswith("nos_ec_")}


def rests(found: dict[tuple[str, ...], float], system: System) -> bool:
    """True when nothing is in flight: all that is packed is counted, and the rest waits on the merge list."""
    packed, waiting = found[("nos_ec_consumer_packed_objects_total",)], found[("nos_ec_consumer_merge_list_objects",)]
    totals = system.metadata.totals()
    return packed == totals.packed_objects and waiting == totals.queued_objects + totals.landed_objects


def test_consumer(bench: Bench, system: System) -> None:
    keys = bench.put_some(system, 200)
    end_log(system)
    bench.produce(system)
    with daemon(bench, "consumer") as consumer:
        until(lambda: consumer.metrics()[("nos_ec_consumer_packed_objects_total",)] >= 100, "it packs")
        until(lambda: rests(consumer.metrics(), system), "it rests")
        found = consumer.metrics()
        assert shown_names(found) == expected_names("consumer"), UNEQUAL
        totals = system.metadata.totals()
        assert found[("nos_ec_consumer_messages_total",)] == 200
        assert found[("nos_ec_consumer_packed_objects_total",)] == totals.packed_objects
        assert found[("nos_ec_consumer_packed_bytes_total",)] == totals.live_bytes
        assert found[("nos_ec_consumer_stripes_written_total",)] == totals.stripes
        assert found[("nos_ec_consumer_written_bytes_total",)] == totals.stripes * STRIPE
        utilisation = totals.live_bytes / totals.stripes / STRIPE
        assert found[("nos_ec_consumer_written_utilisation_ratio",)] == pytest.approx(utilisation)
        waiting = found[("nos_ec_consumer_merge_list_objects",)]
        assert waiting == 200 - totals.packed_objects
        assert (
            found[("nos_ec_consumer_merge_list_bytes",)]
            == sum(len(data) for data in bench.acknowledged.values()) - totals.live_bytes
        )
        writes = sum(value for name, value in found.items() if name[0] == "nos_ec_consumer_group_write_seconds_count")
        assert writes == found[("nos_ec_consumer_groups_written_total",)] > 0
        assert 0 < found[("nos_ec_lease_left_seconds", "consumer")] <= 30
        until(
            lambda: consumer.metrics()[("nos_ec_reaper_deleted_copies_total",)] == len(keys) - waiting, "it cleans up"
        )
        assert consumer.metrics()[("nos_ec_reaper_verified_bytes_total",)] == totals.live_bytes
        assert consumer.health("/readyz") == (200, {"ok": True, "problems": {}})
        assert consumer.get("/other")[0] == 404
        assert consumer.stop() == 0


def test_an_idle_consumer_whose_lease_was_fenced_exits_to_be_restarted(bench: Bench, system: System) -> None:
    """It could no longer commit anything, and no commit would ever reveal it."""
    with daemon(bench, "consumer", **SHORT) as consumer:
        system.clock = LaterClock(2 * SHORT_OVER_MS)  # for the others it is as if this one had stalled for so long
        assert system.worker.housekeeping().run_once().recovery.leases_fenced == 1
        assert consumer.process.wait(timeout=WAIT_S_MAX) == 9


def look_for_lost_shards(system: System) -> None:
    """What it finds is exported only once somebody has looked."""
    rebuild = system.operator.shard_rebuild()
    assert rebuild is not None
    rebuild.run_once(Event())


def store_figures(daemon: Daemon, names: Iterable[str]) -> dict[str, float]:
    found = daemon.metrics()
    return {name: found[(f"nos_ec_store_{name}",)] for name in names}


def test_producer_and_gc(bench: Bench, system: System) -> None:
    put_s = [time.time()]
    bench.put_some(system, 120)
    put_s.append(time.time())
    size = sum(len(data) for data in bench.acknowledged.values())
    look_for_lost_shards(system)
    with daemon(bench, "producer", NOS_EC_DEV_FIGURES_MS="0") as producer:
        until(lambda: producer.metrics()[("nos_ec_producer_published_objects_total",)] == 120, "it publishes")
        found = producer.metrics()
        assert shown_names(found) == expected_names("producer"), UNEQUAL
        assert found[("nos_ec_producer_published_bytes_total",)] == size
        assert found[("nos_ec_info", "producer", system.metadata.find_store_id() or "", __version__)] == 1
        # Figures of the whole store are kept for ten times as long as they took, which is long on a slow machine.
        expected = {"queued_objects": 120, "queued_bytes": size, "lag_messages": 120}
        until(lambda: store_figures(producer, expected) == expected, "the figures of the store follow")
        limits = {"reserve_bytes": 0, "waiting_seconds_max": 3600}
        assert store_figures(producer, limits) == limits
        asked_s = time.time()
        (oldest_s,) = store_figures(producer, ["oldest_waiting_seconds"]).values()
        assert asked_s - put_s[1] - 0.002 <= oldest_s <= time.time() - put_s[0] + 0.002, "ids have milliseconds"
        assert producer.health("/readyz")[0] == 200
        assert producer.stop() == 0
    bench.pack(system)
    for key in list(bench.acknowledged)[10:]:
        bench.delete(system, key)
    with daemon(bench, "gc", NOS_EC_DEV_FIGURES_MS="0", NOS_EC_GC__WAIT_MS="50") as gc:
        until(lambda: gc.metrics()[("nos_ec_gc_runs_total",)] >= 2, "it collects")
        until(lambda: shown_names(gc.metrics()) == expected_names("gc"), f"during a run, {UNEQUAL}")
        found = gc.metrics()
        shown = shown_names(found) | {"nos_ec_lease_left_seconds"}
        assert shown == expected_names("gc"), f"GC has a lease only while it runs; {UNEQUAL}"
        assert found[("nos_ec_gc_deleted_blocks_total",)] > 0
        assert found[("nos_ec_gc_moved_objects_total",)] == 10
        assert found[("nos_ec_gc_moved_bytes_total",)] == sum(len(data) for data in bench.acknowledged.values())
        assert found[("nos_ec_gc_header_read_bytes_total",)] < found[("nos_ec_gc_examined_bytes_total",)] / 4
        assert abs(found[("nos_ec_gc_last_run_timestamp_seconds",)] - time.time()) < WAIT_S_MAX
        until(lambda: gc.metrics()[("nos_ec_store_blocks", "survivor", "sealed")] == 1, "the store's figures follow")
        assert gc.stop() == 0
    bench.settle(system)
    bench.assert_readable(system)
    bench.assert_at_rest(system)


def test_gc_and_scrubs_from_cron_have_metrics(bench: Bench, system: System) -> None:
    """A short run that cannot be scraped itself is exported by a daemon that is scraped."""
    bench.put_some(system, 120)
    bench.pack(system)
    for key in list(bench.acknowledged)[10:]:
        bench.delete(system, key)
    with daemon(bench, "producer") as producer:
        before = producer.metrics()
        assert before[("nos_ec_gc_runs_total",)] == before[("nos_ec_gc_last_run_timestamp_seconds",)] == 0
        assert ("nos_ec_rebuild_failed_blocks",) not in before, "nobody has looked for lost shards yet"
        for runs in (1, 2):
            assert bench.run("gc", "run", "--apply").returncode == 0
            assert producer.metrics()[("nos_ec_gc_runs_total",)] == runs
        assert bench.run("scrub").returncode == 0
        found = producer.metrics()
        assert found[("nos_ec_gc_moved_objects_total",)] == 10
        assert found[("nos_ec_gc_deleted_blocks_total",)] > 0
        blocks = len(system.metadata.list_blocks(None, 1000))
        assert found[("nos_ec_scrub_blocks_total",)] == blocks > 0
        assert found[("nos_ec_scrub_bytes_total", "read")] > 0
        for name in ("gc_last_run", "scrub_last_pass"):
            assert abs(found[(f"nos_ec_{name}_timestamp_seconds",)] - time.time()) < WAIT_S_MAX
        assert found[("nos_ec_gc_wait_seconds",)] == 600
        with daemon(bench, "gc", NOS_EC_GC__WAIT_MS="60000") as gc:
            until(lambda: gc.metrics()[("nos_ec_gc_runs_total",)] == 3, "a daemon counts on")
            assert gc.stop() == 0
        assert producer.metrics()[("nos_ec_gc_runs_total",)] == 3
        lost = bench.folder / "store" / "blocks" / "shard-03"
        shutil.rmtree(lost)
        assert bench.run("init", "--new-shard", "3").returncode == 0
        assert bench.run("shards", "rebuild").returncode == 0
        assert producer.metrics()[("nos_ec_blocks_short", "1")] == 0
        assert producer.metrics()[("nos_ec_rebuild_failed_blocks",)] == 0
        for name in ("shard-02", "shard-05", "shard-07", "shard-09"):
            for block in (bench.folder / "store" / "blocks" / name).glob("?/*"):
                block.unlink()
        assert bench.run("shards", "rebuild").returncode == 6
        found = producer.metrics()
        assert found[("nos_ec_blocks_short", "4")] == found[("nos_ec_rebuild_failed_blocks",)] > 0
    assert not expected_names("gc") - expected_names("producer") - expected_names("consumer")


@pytest.mark.parametrize("service", ["producer", "consumer", "gc"])
def test_every_daemon_that_writes_keeps_the_sums_of_a_large_store(bench: Bench, system: System, service: str) -> None:
    engine = make_engine(system.settings.store.url())
    fill(engine, Shape(packed=0, waiting=0, deletions=0, large=CHEAP_ROWS_MAX + 1))
    engine.dispose()
    assert system.metadata.stored_totals() is None
    with daemon(bench, service) as running:
        until(lambda: system.metadata.stored_totals() is not None, "they are stored")
        stored, counted = system.operator.store_totals().read().totals, counted_totals(system.metadata)
        assert replace(stored, leases=0) == replace(counted, leases=0)
        assert stored.large_objects == CHEAP_ROWS_MAX + 1
        assert running.stop() == 0


def test_a_daemon_is_alive_but_not_ready_while_a_shard_is_missing(bench: Bench, system: System) -> None:
    shard = bench.folder / "store" / "blocks" / "shard-03"
    with daemon(bench, "consumer") as consumer:
        shard.rename(shard.with_name("gone"))
        status, body = consumer.health("/readyz")
        assert status == 503
        assert "shard-03" in body["problems"]["block store"]
        assert consumer.health("/livez") == (200, {"ok": True, "problems": {}})
        shard.with_name("gone").rename(shard)
        assert consumer.health("/readyz")[0] == 200
        assert consumer.stop() == 0


def test_a_lost_lease_shows(bench: Bench, system: System) -> None:
    """The lease is fenced by the test: the consumer is not ready, and ends at its next write."""
    from nos_consumer.assemble import consumer_service

    monitor = system.operator.monitor("consumer", writes=True)
    with consumer_service(system, monitor), Endpoint(monitor, "127.0.0.1", 0) as endpoint:
        assert monitor.health.ready().problems == {"process": "starting"}
        monitor.health.started()
        assert monitor.health.ready().good
        (lease,) = system.metadata.expired_leases(system.clock.now_ms() + 3_600_000)
        assert system.metadata.fence_lease(lease, lease.expires_ms + 3_600_000)
        until(lambda: not monitor.health.ready().good, "the renewal notices")
        assert "lease" in monitor.health.ready().problems
        with pytest.raises(urllib.error.HTTPError) as reply:
            urllib.request.urlopen(f"{endpoint.url}/readyz", timeout=WAIT_S_MAX)
        reply.value.close()
        assert reply.value.code == 503
        assert b"nos_ec_lease_left_seconds" in monitor.metrics.text()


@pytest.mark.parametrize("service", list(COMMANDS))
def test_systemd_is_notified(bench: Bench, tmp_path: Path, service: str) -> None:
    with (
        NotifySocket(str(tmp_path / "notify")) as systemd,
        daemon(bench, service, **systemd.environment, WATCHDOG_USEC="300000") as running,
    ):
        assert systemd.heard() == "READY=1"
        assert systemd.heard() == "WATCHDOG=1"
        assert systemd.heard() == "WATCHDOG=1"
        assert running.stop() == 0
        heard = [systemd.heard()]
        while heard[-1] == "WATCHDOG=1":
            heard.append(systemd.heard())
        assert heard[-1] == "STOPPING=1"


def test_a_taken_port_is_refused_and_named(bench: Bench) -> None:
    """Two consumers on one host need a port each; the second one must not run unmonitored."""
    with daemon(bench, "consumer") as first:
        second = subprocess.run(
            [sys.executable, "-m", "nos_ec", "--config", str(bench.config), "consumer", "--json"],
            env={**without_settings(os.environ), "NOS_EC_MONITORING__PORT": str(first.port)},
            capture_output=True,
            timeout=WAIT_S_MAX,
            check=False,
        )
        assert second.returncode == 3
        assert "monitoring.port" in json.loads(second.stderr.splitlines()[-1])["message"]
        assert first.stop() == 0
