"""The parts of the chaos runs: a run that cannot fail would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nos_ec.core.errors import Corrupt, NotFound
from nos_ec.core.ids import ObjectKey
from nos_ec.engine.objects.store import Store
from tests.rig import dev_servers
from tests.rig.chaos import chaos_fleet
from tests.rig.chaos.chaos_clients import History, judge, value_of
from tests.rig.chaos.chaos_fleet import Fleet
from tests.rig.chaos.chaos_gateway import plan_of_modes, set_mode
from tests.rig.chaos.chaos_run import CONFIG
from tests.rig.chaos.chaos_strikes import CELL_DAEMONS, CELL_KINDS, KINDS, OSDS_DOWN_MAX, VITESS_KINDS, schedule
from tests.rig.dev_servers import WHOLE, beside, free_port
from tests.rig.waiting import WAIT_S_MAX, until

KEY = ObjectKey("b", "o")


def store_of(found: bytes | Exception | None, *, listed: bool) -> Store:
    """A store that answers a GET of any key with `found`, and lists KEY or nothing."""

    def get(key: ObjectKey) -> bytes:
        if found is None:
            raise NotFound(str(key))
        if isinstance(found, Exception):
            raise found
        return found

    store: Any = SimpleNamespace(
        get=get,
        list_buckets=lambda after, limit: ["b"],
        list_objects=lambda bucket, prefix, after, limit: [SimpleNamespace(key=KEY)] if listed else [],
    )
    return cast(Store, store)


def verdict_on(
    found: bytes | Exception | None, *values: bytes | None, acknowledged: int, listed: bool
) -> tuple[int, int]:
    """(lost, corrupt) of one key for which `values` were asked."""
    history = History([None, *(None if value is None else value_of(value) for value in values)], acknowledged)
    verdict = judge(store_of(found, listed=listed), {KEY: history})
    return len(verdict.lost), len(verdict.corrupt)


def test_every_kind_of_strike_comes_once_a_round_and_the_seed_decides() -> None:
    strikes = list(schedule(7, 600, 20, KINDS, 12))
    assert strikes == list(schedule(7, 600, 20, KINDS, 12))
    assert strikes != list(schedule(8, 600, 20, KINDS, 12))
    counts = Counter(strike.kind for strike in strikes)
    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(later.at_s - earlier.at_s == 20 for earlier, later in pairwise(strikes))
    assert strikes[-1].at_s + 10 <= 600


def test_no_more_osds_are_killed_than_the_pool_can_do_without() -> None:
    strikes = [strike for strike in schedule(1, 6000, 20, KINDS, 12) if strike.what == "osd"]
    assert {len(set(strike.targets)) for strike in strikes} == {1, OSDS_DOWN_MAX}


def test_strikes_on_vitess_name_its_part() -> None:
    strikes = list(schedule(1, 600, 20, VITESS_KINDS, 0))
    assert {strike.targets for strike in strikes} == {("primary",), ("vtgate",), ("etcd",)}


def test_with_several_cells_strikes_are_on_the_daemons_there_are() -> None:
    strikes = list(schedule(1, 6000, 20, [*KINDS, *CELL_KINDS], 12, CELL_DAEMONS))
    assert {strike.targets for strike in strikes if strike.what in ("mysql", "cell")} == {(WHOLE,)}
    whom = {target for strike in strikes for target in strike.targets if not target.startswith("osd.")}
    assert whom == {*CELL_DAEMONS, WHOLE}


def test_the_processes_of_all_cells_of_a_daemon_sleep_and_wake(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "nos-ec.toml", {}, restart_wait_s=1)
    command = ["sh", "-c", "sleep 60 & echo; wait"]
    process = fleet._processes["consumer-0"] = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    (child,) = chaos_fleet._children(process.pid)
    try:
        fleet.put_to_sleep("consumer-0", 60)
        until(lambda: {state_of(process.pid), state_of(child)} == {"T"}, "both are stopped")
        fleet.wake()
        until(lambda: {state_of(process.pid), state_of(child)} == {"S"}, "both run")
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
        process.wait(WAIT_S_MAX)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_every_run_changes_to_the_log_and_back() -> None:
    assert plan_of_modes(90) == [(90 * 0.2, "log"), (90 * 0.7, "drain")]
    plan = plan_of_modes(600)
    assert [mode for _, mode in plan] == ["log", "drain", "store"] * 2 + ["log", "drain"]
    assert [at_s for at_s, _ in plan] == sorted(at_s for at_s, _ in plan)


def test_a_change_of_the_mode_changes_nothing_else(tmp_path: Path) -> None:
    config = tmp_path / "nos-ec.toml"
    config.write_text(CONFIG)
    set_mode(config, "log")
    assert config.read_text() == CONFIG.replace('mode = "store"', 'mode = "log"') != CONFIG
    set_mode(config, "store")
    assert config.read_text() == CONFIG


def test_no_port_is_handed_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is opened some time after it was chosen: in one of 700 runs, two of six daemons would share one."""
    monkeypatch.setattr(dev_servers, "_given", set[int]())  # none of these ports is opened: others may have them
    ports = [free_port() for _ in range(300)]
    assert len({*ports, *map(beside, ports)}) == 600


def test_an_operation_that_was_not_acknowledged_may_have_happened_or_not() -> None:
    history = History()
    history.asked.append(value_of(b"old"))
    history.acknowledged = 1
    history.asked.append(value_of(b"new"))
    assert history.allowed(history.acknowledged) == [value_of(b"old"), value_of(b"new")]


def test_deviations_from_what_was_acknowledged_are_found() -> None:
    assert verdict_on(b"old", b"old", acknowledged=1, listed=True) == (0, 0)
    assert verdict_on(None, b"old", acknowledged=1, listed=False) == (1, 0)
    assert verdict_on(b"bad", b"old", acknowledged=1, listed=True) == (0, 1)
    assert verdict_on(Corrupt("damaged"), b"old", acknowledged=1, listed=True) == (0, 1)
    assert verdict_on(b"old", b"old", None, acknowledged=2, listed=True) == (0, 1)
    assert verdict_on(b"older", b"older", b"old", acknowledged=2, listed=True) == (0, 1)


def test_listings_have_to_agree() -> None:
    assert verdict_on(None, b"old", None, acknowledged=2, listed=True) == (0, 1)
    assert verdict_on(b"old", b"old", acknowledged=1, listed=False) == (1, 0)


def test_either_outcome_of_an_unacknowledged_operation_is_right() -> None:
    for found in (b"old", b"new", None):
        verdict = verdict_on(found, b"old", b"new", None, acknowledged=1, listed=found is not None)
        assert verdict == (0, 0), found
