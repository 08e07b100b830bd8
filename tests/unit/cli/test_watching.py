"""A daemon that its storage cluster has shut out, without a cluster."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.cli.terminal import watching
from nos_ec.cli.terminal.errors import exit_code
from nos_ec.cli.terminal.watching import end_when_shut_out, keeping_presence, keeping_totals, settle
from nos_ec.composition.wiring import System
from nos_ec.core.errors import Blocklisted, NosError, Transient
from nos_ec.monitoring.monitor import Monitor

WAIT_S_MAX = 60.0


class Cluster:
    """What a `System` reports about its cluster: each check takes the next answer, and then the last one for ever."""

    def __init__(self, *answers: NosError | None, backend: str = "ceph") -> None:
        self.clock = SystemClock()
        self.settings = SimpleNamespace(store=SimpleNamespace(backend=backend))
        self.looked = threading.Event()
        self._answers = list(answers)

    def shut_out(self) -> NosError | None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if len(self._answers) == 1:
            self.looked.set()
        return answer


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SHUT_OUT_LOOK_MS", 1)


def test_a_daemon_that_is_shut_out_ends_even_when_idle() -> None:
    stop = threading.Event()
    system = cast(System, Cluster(None, None, Blocklisted("on the blocklist")))
    with pytest.raises(Blocklisted) as ended, end_when_shut_out(system, stop):
        assert stop.wait(WAIT_S_MAX)
    assert exit_code(ended.value) == 11


def test_figures_are_kept_while_the_loop_runs() -> None:
    started, ended = threading.Event(), threading.Event()

    def run(stop: threading.Event) -> None:
        started.set()
        assert stop.wait(WAIT_S_MAX)
        ended.set()

    operator = SimpleNamespace(store_totals=lambda: SimpleNamespace(run=run))
    system = cast(System, SimpleNamespace(operator=operator))
    with keeping_totals(system):
        assert started.wait(WAIT_S_MAX)
        assert not ended.is_set()
    assert ended.is_set()


def test_a_failure_during_shutdown_does_not_replace_the_cause() -> None:
    stop = threading.Event()
    system = cast(System, Cluster(Blocklisted("on the blocklist")))

    def close() -> None:
        assert stop.wait(WAIT_S_MAX)
        raise Transient("a block cannot be sealed")

    with pytest.raises(Blocklisted), end_when_shut_out(system, stop):
        close()


def test_a_daemon_that_is_not_shut_out_ends_on_request() -> None:
    stop, cluster = threading.Event(), Cluster(None)
    with end_when_shut_out(cast(System, cluster), stop):
        assert cluster.looked.wait(WAIT_S_MAX)
    assert not stop.is_set()


def test_embedded_stores_shut_out_no_process() -> None:
    with end_when_shut_out(cast(System, Cluster(Blocklisted("never asked"), backend="local")), threading.Event()):
        assert not any(thread.name == "shut-out" for thread in threading.enumerate())


def test_what_is_there_at_the_start_is_not_looked_at_again() -> None:
    gc.unfreeze()
    settle()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 1_000


def test_a_daemon_does_not_wait_long_for_the_metadata_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    class HangingNotes:
        def note(self, name: str) -> str | None:
            answered.wait(WAIT_S_MAX)
            return None

        def store_note(self, *_: object) -> bool:
            return True

    system = cast(System, SimpleNamespace(metadata=HangingNotes(), clock=SystemClock()))
    monitor = cast(Monitor, SimpleNamespace(service="consumer", parked=[]))
    monkeypatch.setattr(watching, "PRESENCE_END_S", 0.1)
    started = time.monotonic()
    try:
        with keeping_presence(system, monitor):
            pass
        assert time.monotonic() - started < WAIT_S_MAX / 2
    finally:
        answered.set()
