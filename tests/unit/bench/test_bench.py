"""Parts of the bench that need no servers: figures, bars, planning of the floor. Measuring needs the real stack."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from inspect import signature
from pathlib import Path

import pytest

from nos_ec.bench.bars import PIPELINE, life_bars, missed, space_bars
from nos_ec.bench.callers import call_all
from nos_ec.bench.figures import Run, percentile, ratio, summary
from nos_ec.bench.life.life_bench import Life, life_figures
from nos_ec.bench.objects import Piece
from nos_ec.bench.pipeline import planned, warmed_up
from nos_ec.bench.servers.processes import Processes, listeners
from nos_ec.bench.space import drawn_sizes, space_figures
from nos_ec.bench.stack import ADMIN_KEYRING, AdminKey, admin_options
from nos_ec.cli.measure.bench import pipeline
from nos_ec.core.errors import ConfigError, InvalidInput, Transient
from nos_ec.core.geometry import Geometry
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.streams import read_up_to
from nos_ec.settings import Settings
from nos_ec.settings.sections import CephSettings, ConsumerSettings
from tests.contract.suites.landing_store_contract import new_landing_id
from tests.rig.waiting import WAIT_S_MAX


def run(objects: int = 10, seconds: float = 1.0, allocated_bytes: int = 1400, kafka_s: float | None = 0.5) -> Run:
    return Run(objects, 1000, seconds, {"client": 0.1, "kafka": kafka_s}, 20, 200, allocated_bytes)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_summary_has_medians_of_rates_and_costs_over_all_rounds() -> None:
    found = summary([run(seconds=1.0), run(seconds=2.0), run(seconds=4.0)])
    assert found["objects_per_s"] == 5.0
    assert found["mb_per_s"] == 1000 / 2 / 1e6
    assert found["raw_bytes_per_user_byte"] == 1.4
    assert found["client_write_ops_per_object"] == 2
    assert found["osd_write_ops_per_object"] == 20
    assert found["cpu_ms_per_object"] == pytest.approx({"client": 10.0, "kafka": 50.0, "total": 60.0})


def test_cpu_of_processes_elsewhere_is_unknown_and_not_zero() -> None:
    assert summary([run(kafka_s=None)])["cpu_ms_per_object"] == pytest.approx(
        {"client": 10.0, "kafka": None, "total": 10.0}
    )


def test_ratios_compare_rounds_with_each_other() -> None:
    ours, floor = [run(seconds=2.0), run(seconds=8.0)], [run(seconds=1.0), run(seconds=4.0)]
    assert ratio(ours, floor) == 0.5


def test_the_first_round_warms_up_and_does_not_count() -> None:
    seconds = iter([100.0, 1.0, 2.0, 4.0])
    ticks: list[tuple[str, int, int]] = []

    def one_round() -> dict[str, Run]:
        took_s = next(seconds)
        return {"floor": run(seconds=took_s), "ours": run(seconds=2 * took_s)}

    found = warmed_up(one_round, 3, lambda *tick: ticks.append(tick))
    assert {way: [one.seconds for one in runs] for way, runs in found.items()} == {
        "floor": [1.0, 2.0, 4.0],
        "ours": [2.0, 4.0, 8.0],
    }
    assert ticks == [("rounds", done, 4) for done in range(4)]


def test_a_round_has_enough_objects_to_make_its_start_and_end_negligible() -> None:
    assert signature(pipeline).parameters["objects"].default == 4000


def test_bars_name_what_is_missed_and_what_was_not_measured() -> None:
    good = {"ours_over_floor": 0.8, "ours_over_naive": 1.8, "ours": {"raw_bytes_per_user_byte": 1.4}}
    good["lifetimes"] = {"share_of_consumer": 0.02}
    assert missed(PIPELINE["W1"], good) == []
    assert missed(PIPELINE["W2"], good) == ["ours_over_naive is 1.800, the bar is at least 5"]
    assert missed(PIPELINE["W1"], {"ours_over_floor": 0.79}) == [
        "ours_over_floor is 0.790, the bar is at least 0.8",
        "ours_over_naive was not measured",
        "ours.raw_bytes_per_user_byte was not measured",
        "lifetimes.share_of_consumer was not measured",
    ]


def test_the_floor_reads_every_copy_once_in_the_groups_of_the_packer() -> None:
    geometry = Geometry(8, 3, 128 << 10, 32, 4)
    copies = [(new_landing_id(), 1 + number * 977 % (128 << 10)) for number in range(3000)]
    groups = planned(geometry, ConsumerSettings(window_objects=100), copies)
    expected = sorted((landing_id.hex(), 0, size) for landing_id, size in copies)
    windows = [window for group in groups for window in group]
    assert len(windows) == len(groups)
    assert sorted(read for window in windows for read in window.reads) == expected
    for window in windows:
        assert sum(size for _, _, size in window.reads) < window.stripe_count * geometry.stripe_size
    full = sum(size for _, size in copies) / sum(window.stripe_count * geometry.stripe_size for window in windows)
    assert full > 0.97


def test_the_floor_writes_a_long_group_window_by_window_and_reads_an_object_for_the_one_it_begins_in() -> None:
    geometry = Geometry()
    copies = [(new_landing_id(), 1 << 20) for _ in range(31)]
    (group,) = planned(geometry, ConsumerSettings(), copies)
    assert [window.stripe_count for window in group] == [4] * 8
    assert [len(window.reads) for window in group] == [4] * 7 + [3]
    reads = [read for window in group for read in window.reads]
    assert sorted(reads) == sorted((landing_id.hex(), 0, size) for landing_id, size in copies)


def test_space_is_measured_with_as_many_objects_as_have_these_bytes() -> None:
    assert drawn_sizes(300, 1000, random.Random(1), 4096) == [300] * 4
    assert drawn_sizes(5000, 1000, random.Random(1), 8192) == [5000]
    drawn = drawn_sizes("W2", 1 << 20, random.Random(1), 1 << 20)
    assert sum(drawn[:-1]) < 1 << 20 <= sum(drawn)
    assert len(set(drawn)) > 10
    assert drawn == drawn_sizes("W2", 1 << 20, random.Random(1), 1 << 20)
    with pytest.raises(InvalidInput, match="unknown workload"):
        drawn_sizes("W9", 1000, random.Random(1), 4096)


def test_ours_is_compared_with_the_better_of_the_pools_that_take_an_object_each() -> None:
    raw = {"ours": 1.4, "each_4096": 1.75, "each_16384": 4.0, "replicas": 1.0}
    found = space_figures([100, 300], raw, 1.25)
    assert (found["objects"], found["bytes"], found["each_least"]) == (2, 400, 1.75)
    assert found["ours_over_simulation"] == pytest.approx(1.12)
    assert found["ours_over_each"] == pytest.approx(0.8)
    assert "ours_over_each" not in space_figures([100], {"ours": 1.4}, 1.4)


@pytest.mark.parametrize(
    ("ours", "each", "not_met"),
    [(1.43, 1.375, False), (1.44, 1.375, True), (1.5, 1.45, False), (1.46, 1.46, False), (1.47, 1.46, True)],
)
def test_ours_may_take_a_little_more_than_an_object_each_only_where_that_wastes_nothing(
    ours: float, each: float, not_met: bool
) -> None:
    figures = {"cells": {"70000": space_figures([70_000], {"ours": ours, "each_4096": each, "replicas": 3.0}, ours)}}
    sentences = missed(space_bars(figures), figures)
    assert len(sentences) == not_met
    assert all(sentence.startswith("cells.70000.ours_over_each is") for sentence in sentences)


def test_ours_must_be_near_its_simulation() -> None:
    figures = {
        "cells": {"W1": space_figures([7], {"ours": 1.44}, 1.38), "W2": space_figures([7], {"ours": 1.42}, 1.38)}
    }
    assert missed(space_bars(figures), figures) == ["cells.W1.ours_over_simulation is 1.043, the bar is at most 1.03"]


def test_cpu_time_is_found_by_the_port_a_process_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners([port]) == [os.getpid()]
    assert listeners([port]) == []
    processes = Processes({"client": [os.getpid()], "elsewhere": [], "gone": [2**22 + 1]})
    used = processes.cpu_s()
    assert used["client"] is not None
    assert used["client"] > 0
    assert (used["elsewhere"], used["gone"]) == (None, 0.0)


def test_cpu_time_is_measured_however_short_a_run_is() -> None:
    """A server may need less than a tick of 10 ms for it."""
    processes = Processes({"client": [os.getpid()]})
    assert len({processes.cpu_s()["client"] for _ in range(10)}) == 10


def test_the_administrators_key_comes_from_the_option_then_the_setting_then_beside_ceph_conf(
    tmp_path: Path,
) -> None:
    beside, configured, named = (tmp_path / name for name in (ADMIN_KEYRING, "configured.keyring", "named.keyring"))
    for keyring in (beside, configured, named):
        keyring.touch()

    def chosen(setting: Path | None, option: Path | None) -> Path | None:
        ceph = CephSettings(conf_file=tmp_path / "ceph.conf", admin_keyring_file=setting)
        return admin_options(Settings(ceph=ceph), AdminKey("client.admin", option)).keyring_file

    assert chosen(configured, named) == named
    assert chosen(configured, None) == configured
    assert chosen(None, None) == beside
    with pytest.raises(ConfigError, match=r"absent.*--admin-keyring or ceph.admin_keyring_file"):
        chosen(tmp_path / "absent", None)


# --- callers ------------------------------------------------------------------------------------------
def test_every_item_is_called_once_by_as_many_callers_at_once() -> None:
    together = threading.Barrier(4, timeout=WAIT_S_MAX)
    called: list[int] = []

    def call(item: int) -> None:
        if item < 4:
            together.wait()
        called.append(item)

    seconds = call_all(4, range(20), call, time.perf_counter)
    assert sorted(called) == list(range(20))
    assert len(seconds) == 20
    assert min(seconds) >= 0


def test_the_first_error_ends_all_callers() -> None:
    called: list[int] = []

    def call(item: int) -> None:
        called.append(item)
        if item == 5:
            raise Transient("five")

    with pytest.raises(Transient, match="five"):
        call_all(2, range(10**7), call, time.perf_counter)
    assert len(called) < 10**7, "more than the other caller makes before this one is heard"


def test_pieces_are_sent_as_streams() -> None:
    piece = Piece(ObjectKey("bucket", "name"), memoryview(b"abcdef"))
    assert read_up_to(piece.stream(), 4) == b"abcd"
    assert read_up_to(piece.stream(), 10) == b"abcdef"


# --- life ---------------------------------------------------------------------------------------------
def life(put_s: float, client_s: float, latency_s: float = 0.001) -> Life:
    def step(seconds: float, cpu_s: float) -> Run:
        return Run(10, 1000, seconds, {"client": cpu_s, "osds": None}, 0, 12, 0)

    runs = {"put": step(put_s, client_s)} | {name: step(1.0, 0.01) for name in ("publish", "pack", "reap", "delete")}
    return Life(runs, {"put": [latency_s, 2 * latency_s]}, batches=4)


def test_a_whole_life_is_the_sum_of_its_steps_and_figures_are_medians_of_rounds() -> None:
    found = life_figures({"store": [life(1.0, 0.1), life(2.0, 0.2), life(4.0, 0.9)]}, 3)["store"]
    assert found["objects_per_s"]["put"] == 5.0
    assert found["cpu_ms_per_object"]["put"] == pytest.approx({"client": 20.0, "osds": None, "total": 20.0})
    assert found["whole_life_cpu_ms_per_object"] == pytest.approx(20.0 + 3 * 1.0)
    assert found["osd_write_ops_per_object"]["put"] == 1.2
    assert found["osd_writes_over_replicas"] == 1
    assert found["put_ms"] == pytest.approx({"p50": 1.0, "p90": 2.0, "p99": 2.0})
    assert found["put_batch"] == 10 / 4


def test_ratios_of_ways_are_medians_of_rounds_too() -> None:
    store, log = [life(1.0, 0.1), life(9.0, 0.2)], [life(0.5, 0.05, 0.0005), life(3.0, 0.05, 0.0005)]
    found = life_figures({"store": store, "log": log}, 0)
    assert found["log_over_store"]["objects_per_s"] == pytest.approx(
        {"put": 2.5, "publish": 1.0, "pack": 1.0, "reap": 1.0, "delete": 1.0}
    )
    assert found["log_over_store"]["cpu_ms_per_object"]["put"] == pytest.approx((0.5 + 0.25) / 2)
    assert found["log_over_store"]["whole_life_cpu_ms_per_object"] == pytest.approx((8 / 13 + 8 / 23) / 2)
    assert found["log_over_store"]["put_ms"]["p99"] == pytest.approx(0.5)
    three = life_figures({"single": [life(8.0, 0.1)], "store": store[:1], "log": log[:1]}, 0)
    rates = {name: three[name]["objects_per_s"]["put"] for name in three if "_over_" in name}
    assert rates == pytest.approx({"store_over_single": 8.0, "log_over_single": 16.0, "log_over_store": 2.0})


def test_the_servers_parts_of_a_put_are_compared_where_there_are_servers() -> None:
    def with_servers(osds_s: float, sql_s: float) -> Life:
        one = life(1.0, 0.1)
        one.runs["put"] = Run(10, 1000, 1.0, {"client": 0.1, "osds": osds_s, "sql": sql_s}, 0, 30, 0)
        return one

    found = life_figures({"single": [with_servers(0.09, 0.04)], "log": [with_servers(0.03, 0.01)]}, 3)
    assert found["log_over_single"]["put_sql_cpu_ms_per_object"] == pytest.approx(0.25)
    assert found["log_over_single"]["put_osds_cpu_ms_per_object"] == pytest.approx(1 / 3)
    embedded = life_figures({"single": [life(1.0, 0.1)], "log": [life(1.0, 0.1)]}, 0)
    assert not [name for name in embedded["log_over_single"] if name.startswith("put_") and "cpu" in name]
    assert "osd_writes_over_replicas" not in embedded["log"]


def test_the_bars_of_a_life_depend_on_objects_callers_and_servers() -> None:
    def limits(*ways: str, drawn: str | int, callers: int, on_ceph: bool = True) -> dict[str, float]:
        return {bar.figure: bar.limit for bar in life_bars(ways, drawn, callers, on_ceph=on_ceph)}

    assert limits("store", drawn="W1", callers=16) == {
        "store.whole_life_cpu_ms_per_object": 6.0,
        "store.cpu_ms_per_object.put.sql": 0.4,
    }
    assert limits("log", drawn=65536, callers=64) == {
        "log.whole_life_cpu_ms_per_object": 2.0,
        "log.osd_writes_over_replicas": 1.05,
    }
    assert limits("single", "store", "log", drawn=65536, callers=64) == {
        "log_over_single.whole_life_cpu_ms_per_object": pytest.approx(2.0 / 6.9),
        "log.osd_writes_over_replicas": 1.05,
        "log_over_single.put_osds_cpu_ms_per_object": 1 / 3.5,
        "log_over_single.put_ms.p99": 0.7,
        "log_over_single.objects_per_s.put": 3.0,
    }
    assert limits("single", "store", "log", drawn="W1", callers=16) == {
        "log_over_single.whole_life_cpu_ms_per_object": pytest.approx(6.0 / 11.9),
        "log.cpu_ms_per_object.put.sql": 0.4,
        "log_over_single.put_sql_cpu_ms_per_object": pytest.approx(0.4 / 1.1),
        "log_over_single.put_osds_cpu_ms_per_object": 1 / 1.6,
        "log_over_single.put_ms.p99": 0.7,
        "log_over_single.objects_per_s.put": 2.0,
    }
    assert limits("store", "log", drawn=4096, callers=16, on_ceph=False) == {
        "log_over_store.objects_per_s.put": 4.0,
        "log_over_store.put_ms.p50": 1 / 3,
    }
    assert limits("single", "store", "log", drawn=4096, callers=64, on_ceph=False) == {
        "log_over_single.objects_per_s.put": 7.0
    }
    assert limits("store", drawn="W2", callers=1) == {}
    assert limits("log", drawn=1 << 20, callers=1) == {}, "objects of 1 MiB pass by the log"
