"""The parts of the chaos runs: a run that cannot fail would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
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
from tests.rig.chaos.chaos_fleet import Actor, Fleet
from tests.rig.chaos.chaos_gateway import plan_of_modes, set_mode
from tests.rig.chaos.chaos_moves import Moves
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


def test_a_process_that_has_ended_is_not_put_to_sleep(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "nos-ec.toml", {}, restart_wait_s=1)
    process = fleet._processes["mover-0"] = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    fleet.put_to_sleep("mover-0", 60)
    assert fleet.asleep() == set()
    assert chaos_fleet._children(process.pid) == []


class _Errands:
    """Runs `nos-ec --version`, and then a command that there is not."""

    def __init__(self) -> None:
        self.left = [("--version",), ("nothing",)]
        self.ended_with: list[tuple[int, bool]] = []

    def next_command(self) -> tuple[str, ...] | None:
        return self.left[0] if self.left else None

    def ended(self, code: int, said: str) -> bool:
        self.left.pop(0)
        self.ended_with.append((code, "nothing" in said))
        return True

    may_be_struck = True

    def struck(self) -> None:
        self.ended_with.append((0, False))


def test_the_commands_of_errands_run_one_after_another(tmp_path: Path) -> None:
    errands = _Errands()
    fleet = Fleet(tmp_path / "nos-ec.toml", {"mover-0": Actor(errands)}, restart_wait_s=3600)

    def both_have_run() -> bool:
        fleet.mend()
        return len(errands.ended_with) == 2

    try:
        until(both_have_run, "both have run")
        assert not fleet.may_be_struck("mover-0")
    finally:
        fleet.abandon()
    assert errands.ended_with == [(0, False), (2, True)]
    assert fleet.codes == {}
    assert fleet.misbehaviour({0}) == []


ROUND = [
    "cells move b-2 --to c --bytes-per-s 2MiB",
    "--cell c metadata dump",
    "cells purge b-2 --from a",
    "--cell a metadata dump",
]


def moves_of(chance: float = 1.0, now_s: Callable[[], float] = lambda: 0.0) -> Moves:
    """The operator who begins to move a bucket from a to c, and who gives up moves that were interrupted if this number
    is small."""
    moves = Moves({"b-2": "a"}, ["a", "c"], 1, now_s)
    moves._random = cast(Any, SimpleNamespace(choice=lambda cells: cells[0], random=lambda: chance))
    assert moves.next_command() is None
    moves.begin()
    return moves


def run_all(moves: Moves, codes: Mapping[int, int]) -> list[str]:
    """Run the commands of a round and of what follows from it, without a further round. codes: how the commands with
    these numbers end, if not with success. Returns all commands."""
    ran: list[str] = []
    while (command := moves.next_command()) is not None:
        moves.finish()
        ran.append(" ".join(command))
        moves.ended(codes.get(len(ran) - 1, 0), "what it said")
    assert moves.unfinished == ""
    return ran


def test_a_bucket_is_moved_and_its_way_back_is_prepared() -> None:
    moves = moves_of()
    assert run_all(moves, {}) == ROUND
    assert (moves.homes, moves.counts, moves.problems) == ({"b-2": "c"}, {"completed": 1}, [])


def test_what_did_not_succeed_is_repeated() -> None:
    moves = moves_of()
    killed, database_away, another_dumps = -signal.SIGKILL, 7, 5
    ran = run_all(moves, {0: killed, 1: database_away, 3: another_dumps, 5: killed})
    assert ran == [ROUND[0], ROUND[0], ROUND[0], ROUND[1], ROUND[1], ROUND[2], ROUND[2], ROUND[3]]
    assert (moves.homes, moves.counts, moves.problems) == ({"b-2": "c"}, {"interrupted": 2, "completed": 1}, [])


def test_a_move_that_was_interrupted_may_be_given_up() -> None:
    moves = moves_of(0.0)
    ran = run_all(moves, {0: -signal.SIGKILL, 1: -signal.SIGKILL})
    give_up = "cells move b-2 --to a"
    assert ran == [ROUND[0], give_up, give_up, "--cell a metadata dump", "cells purge b-2 --from c", ROUND[1]]
    assert (moves.homes, moves.counts, moves.problems) == ({"b-2": "a"}, {"interrupted": 1, "given up": 1}, [])


@pytest.mark.parametrize("refused", [2, 5])
def test_a_move_that_cannot_be_given_up_is_completed(refused: int) -> None:
    moves = moves_of(0.0)
    ran = run_all(moves, {0: -signal.SIGKILL, 1: refused})
    assert ran == [ROUND[0], "cells move b-2 --to a", "--cell c metadata dump", *ROUND]
    assert (moves.homes, moves.counts, moves.problems) == ({"b-2": "c"}, {"interrupted": 1, "completed": 1}, [])


def test_moves_are_struck_while_they_copy_and_only_after_a_command_has_succeeded() -> None:
    now_s = [0.0]
    moves = moves_of(0.5, lambda: now_s[0])

    def command(code: int, took_s: float = 10.0) -> list[float]:
        """Run a command of this length. Returns when it may be struck."""
        began_s = now_s[0]
        moves.next_command()
        found = []
        while now_s[0] < began_s + took_s:
            now_s[0] += 1.0
            found += [now_s[0] - began_s] if moves.may_be_struck else []
        moves.ended(code, "")
        return found

    assert [command(0) for _ in ROUND] == 4 * [[]]  # the first move shows how long one takes
    assert command(-signal.SIGKILL) == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    moves.struck()
    assert command(0, 30.0) == []
    assert [command(0) for _ in ROUND[1:]] == 3 * [[]]
    assert command(0, 30.0)[0] == 15.0


def test_a_move_that_is_taken_for_dead_again_and_again_is_repeated() -> None:
    moves = moves_of()
    moves.next_command()
    assert not moves.ended(5, "error: cell a serves bucket b-2 again: it took this process for dead")
    assert (moves.unfinished, moves.problems) == (ROUND[0], [])


@pytest.mark.parametrize(("number", "code"), [(0, 2), (0, 5), (0, 1), (1, 2), (2, 5)])
def test_a_command_that_ends_as_it_must_not_is_found(number: int, code: int) -> None:
    moves = moves_of()
    run_all(moves, {number: code})
    assert moves.problems == [f"{ROUND[number]} ended with exit code {code}: what it said"]


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
