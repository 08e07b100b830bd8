"""Parts of the bench that need no servers: figures, bars, planning of the floor. Measuring needs the real stack."""

from __future__ import annotations

import os
import socket
from inspect import signature
from pathlib import Path

import pytest

from nos_ec.bench.bars import PIPELINE, missed
from nos_ec.bench.figures import Run, percentile, ratio, summary
from nos_ec.bench.pipeline import planned, warmed_up
from nos_ec.bench.processes import Processes, listeners
from nos_ec.bench.stack import ADMIN_KEYRING, AdminKey, admin_options
from nos_ec.cli.bench import pipeline
from nos_ec.core.errors import ConfigError
from nos_ec.core.geometry import Geometry
from nos_ec.settings import Settings
from nos_ec.settings.sections import CephSettings, ConsumerSettings


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
    assert missed(PIPELINE["W1"], good) == []
    assert missed(PIPELINE["W2"], good) == ["ours_over_naive is 1.800, the bar is at least 5"]
    assert missed(PIPELINE["W1"], {"ours_over_floor": 0.79}) == [
        "ours_over_floor is 0.790, the bar is at least 0.8",
        "ours_over_naive was not measured",
        "ours.raw_bytes_per_user_byte was not measured",
    ]


def test_the_floor_reads_every_copy_once_in_the_groups_of_the_packer() -> None:
    geometry = Geometry(8, 3, 128 << 10, 32, 4)
    copies = [(str(number), 1 + number * 977 % (128 << 10)) for number in range(3000)]
    groups = planned(geometry, ConsumerSettings(window_objects=100), copies)
    assert sorted(copy for group in groups for copy in group.copies) == sorted(copies)
    for group in groups:
        assert sum(size for _, size in group.copies) < group.stripe_count * geometry.stripe_size
    full = sum(size for _, size in copies) / sum(group.stripe_count * geometry.stripe_size for group in groups)
    assert full > 0.97


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
