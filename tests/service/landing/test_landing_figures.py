"""What operators see of a landing log: status, the API, metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nos_ec.api.readings import Readings
from nos_ec.cli.app import run
from nos_ec.composition.wiring import System, initialise
from nos_ec.core.states import SegmentState
from nos_ec.engine.landing.landing_log import LandingLog
from nos_ec.engine.landing.log_bypass import LogBypass
from nos_ec.monitoring.sources import batch_samples, housekeeping_samples, store_samples
from nos_gc.assemble import gc_collector
from tests.rig.at_rest import end_log
from tests.service.conftest import STORE_CONFIG, Bench, damage_slots

KIB, MIB = 1 << 10, 1 << 20
Figures = dict[tuple[str, ...], float]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("nos_ec.composition.landing.BYPASS_BYTES", 64 * KIB)
    bench = Bench(tmp_path)
    initialise(bench.settings())
    return bench


@pytest.fixture
def system(bench: Bench) -> Iterator[System]:
    with bench.open() as opened:
        yield opened


def status(bench: Bench, capfd: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """What the command shows, as JSON and as text."""
    shown = []
    for options in (["--json"], []):
        capfd.readouterr()
        assert run(["--config", str(bench.config), "status", *options]) == 0
        shown.append(capfd.readouterr().out)
    return json.loads(shown[0].splitlines()[-1])["landing_log"], " ".join(shown[1].split())


def of_store(system: System) -> Figures:
    samples = store_samples(system.operator.figures(), system.clock.now_ms())
    return {(one.metric.name, *one.labels): one.value for one in samples if isinstance(one.value, int | float)}


def of_process(system: System) -> Figures:
    samples = batch_samples(system.client.puts)
    return {(one.metric.name,): one.value for one in samples if isinstance(one.value, int | float)}


def test_an_empty_log_is_shown(bench: Bench, system: System, capfd: pytest.CaptureFixture[str]) -> None:
    data, text = status(bench, capfd)
    assert system.medium is not None
    free = system.medium.free_bytes()
    assert 14 * MIB < free < 16 * MIB
    none = [{"state": state.value, "count": 0, "bytes": 0} for state in SegmentState]
    assert data == {"segments": none, "free_bytes": free, "devices": {"working": 1, "lost": [], "unreadable_slots": 0}}
    assert "landing log devices" not in text
    assert "landing segments none; 1" in text
    assert "MiB free for further segments" in text


def test_a_store_without_a_log_shows_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tmp_path, STORE_CONFIG)
    initialise(bench.settings())
    data, text = status(bench, capfd)
    assert data is None
    assert "landing segments" not in text
    with bench.open() as system:
        assert system.operator.figures().landing_log is None
        assert not any("landing_segment" in name or "landing_log" in name for name, *_ in of_store(system))
        assert set(of_process(system)) == set()


def test_segments_are_shown_by_state(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        bench.put_some(system, 20, size_max=16 * KIB)
        opened = of_store(system)["nos_ec_store_landing_segments", "open"]
        assert opened >= 1
        assert of_store(system)["nos_ec_store_landing_segment_bytes", "open"] == 0, "where they end is not known yet"
    with bench.open() as system:
        figures = of_store(system)
        assert system.medium is not None
        assert figures["nos_ec_store_landing_segments", "open"] == 0
        assert figures["nos_ec_store_landing_segments", "sealed"] == opened, "their log was closed"
        sealed_bytes = figures["nos_ec_store_landing_segment_bytes", "sealed"]
        assert sealed_bytes > sum(map(len, bench.acknowledged.values()))
        assert figures["nos_ec_store_landing_log_free_bytes",] == system.medium.free_bytes()
        data, text = status(bench, capfd)
        assert {"state": "sealed", "count": opened, "bytes": sealed_bytes} in data["segments"]
        assert f"landing segments {opened:.0f} sealed with " in text
        told = Readings(system, gc_collector(system), 0).status().landing_log
        assert told is not None
        assert told.model_dump(mode="json") == data


def test_a_process_tells_what_its_log_did(bench: Bench, system: System) -> None:
    before = of_process(system)
    assert set(before.values()) == {0}
    bench.put(system, "first, passes by", bench.data(4 * KIB))
    for index in range(5):
        bench.put(system, f"o{index}", bench.data(4 * KIB))
    bench.put(system, "passes by", bench.data(64 * KIB))
    found = of_process(system)
    assert found["nos_ec_landing_log_batches",] == found["nos_ec_landing_log_records",] == 5
    assert 5 * 4 * KIB < found["nos_ec_landing_log_bytes",] < 5 * 16 * KIB
    assert found["nos_ec_landing_log_opened_segments",] >= 1
    assert found["nos_ec_landing_log_passed_full",] == found["nos_ec_landing_log_failed_appends",] == 0


def test_a_full_log_is_told(bench: Bench, system: System) -> None:
    bench.put(system, "first", bench.data(1))
    total = 0
    while not of_process(system)["nos_ec_landing_log_passed_full",]:
        bench.put(system, f"o{total}", bench.data(60 * KIB))
        total += 1
        assert total < 1000
    assert of_process(system)["nos_ec_landing_log_records",] == total - 1
    assert of_store(system)["nos_ec_store_landing_log_free_bytes",] == 0
    assert len(list(system.landing.list_ids())) == 2
    bench.assert_readable(system)


def test_a_lost_device_is_named(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    devices = [bench.folder / f"device{number}" for number in range(2)]
    bench.config.write_text(bench.config.read_text() + f'devices = "{devices[0]}, {devices[1]}"\n')
    initialise(bench.settings())
    with bench.open() as system:
        assert of_store(system)["nos_ec_store_landing_log_devices", "working"] == 2
        devices[1].rename(bench.folder / "away")
    with bench.open() as system:
        figures = of_store(system)
        assert figures["nos_ec_store_landing_log_devices", "working"] == 1
        assert figures["nos_ec_store_landing_log_devices", "lost"] == 1
        data, text = status(bench, capfd)
        assert data["devices"] == {"working": 1, "lost": [f"{devices[1]} is missing"], "unreadable_slots": 0}
        assert "landing log devices 1 work, 1 lost: " in text
        told = Readings(system, gc_collector(system), 0).status().landing_log
        assert told is not None
        assert told.model_dump(mode="json") == data
        (bench.folder / "away").rename(devices[1])
        assert of_store(system)["nos_ec_store_landing_log_devices", "lost"] == 0


def test_slots_that_cannot_be_read_are_counted(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        end_log(system)
        assert of_store(system)["nos_ec_store_landing_log_unreadable_slots",] == 0
        segments = [row.segment for row in system.metadata.list_segments(None, 100)]
    damage_slots(bench, segments)
    with bench.open() as system:
        assert of_store(system)["nos_ec_store_landing_log_unreadable_slots",] == len(segments)
        data, text = status(bench, capfd)
        assert data["devices"] == {"working": 1, "lost": [], "unreadable_slots": len(segments)}
        assert f"landing log slots {len(segments)} cannot be read: " in text
        told = Readings(system, gc_collector(system), 0).status().landing_log
        assert told is not None
        assert told.model_dump(mode="json") == data


def test_housekeeping_tells_what_it_gave_back(bench: Bench) -> None:
    with bench.open() as system:
        bench.put_some(system, 20)
        lander = system.client.puts.batches.lander
        assert isinstance(lander, LogBypass)
        assert isinstance(lander.log, LandingLog)
        opened = lander.log.counters.opened
    assert lander.log.counters.sealed == opened >= 1
    with bench.open() as system:
        sealed_bytes = of_store(system)["nos_ec_store_landing_segment_bytes", "sealed"]
        bench.produce(system)
        bench.consume(system)
        housekeeping = system.worker.housekeeping()
        housekeeping.run_once()
        samples = housekeeping_samples(housekeeping, system.clock.now_ms())
        found = {one.metric.name: one.value for one in samples}
        assert found["nos_ec_trimmer_released_segments"] == opened
        assert found["nos_ec_trimmer_released_bytes"] == sealed_bytes > 0
        assert found["nos_ec_recovery_landing_segments_sealed"] == found["nos_ec_copy_forward_objects"] == 0
        assert of_store(system)["nos_ec_store_landing_segments", "sealed"] == 0
