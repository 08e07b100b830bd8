"""Simulations: one at a time, in a process that can be cancelled and killed, with the results of `nos-ec simulate`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from nos_ec.bench.simulate import simulate
from nos_ec.console.simulator import jobs, page
from nos_ec.console.simulator.child import CPU_S_MAX, Order, run
from nos_ec.console.simulator.jobs import COMMAND, Simulation, Simulations, Stage, Work
from nos_ec.console.simulator.page import command_lines, gc_chart, packing_chart
from nos_ec.core.errors import Conflict, InvalidInput, NotFound
from nos_ec.core.geometry import Geometry
from nos_ec.settings.sections import ConsumerSettings
from tests.rig.fakes.clock import FakeClock

GEOMETRY = (8, 3, 16_384, 32, 4)
CONSUMER = ConsumerSettings()
SIZES = [100 + 37 * number % 3000 for number in range(4000)]
LIST = "".join(f"{size}\n" for size in SIZES).encode()
SLEEPS = 'import time; print(\'{"percent": 5, "step": "s"}\', flush=True); time.sleep(99)'
WAIT_S_MAX = 120.0


def order(targets: tuple[float, ...] = (), blocks: int = 20, nice: int = 0) -> Order:
    return Order(
        GEOMETRY, CONSUMER.model_dump(mode="json"), [("best", 100), ("nos", 50)], "A", targets, blocks, 0, nice
    )


@pytest.fixture
def make() -> Iterator[Callable[..., Simulations]]:
    made: list[Simulations] = []

    def new(program: str | None = None, **options: Any) -> Simulations:
        command = COMMAND if program is None else (sys.executable, "-c", program)
        made.append(Simulations(FakeClock(), os.urandom, command, **options))
        return made[-1]

    yield new
    for one in made:
        one.close()


def begun(simulations: Simulations, data: bytes = LIST) -> Work:
    work = simulations.reserve("a list", "A")
    simulations.start(work, order((1.5,)), lambda _: data)
    return work


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < ends, "too late"
        time.sleep(0.02)


def ended(work: Work) -> Simulation:
    until(lambda: work.shown.is_over)
    return work.shown


# --- what is computed ------------------------------------------------------------------------------
def test_the_child_computes_what_the_command_line_does(make: Callable[..., Simulations]) -> None:
    found = ended(begun(make()))
    assert (found.stage, found.error, found.count, found.percent) == (Stage.DONE, "", len(SIZES), 100)
    for one, (policy, window) in zip(found.packing, order().packing, strict=True):
        consumer = CONSUMER.model_copy(update={"policy": policy, "window_objects": window})
        expected = asdict(simulate(SIZES, consumer, Geometry(*GEOMETRY), timer=lambda: 0.0, seed=1, names=False))
        assert {name: one[name] for name in expected if name != "objects_per_s"} == {
            name: value for name, value in expected.items() if name != "objects_per_s"
        }
        assert one["raw"] == pytest.approx(11 / 8 / expected["utilisation"])
    (gc,) = found.gc
    assert (gc["target"], gc["space_amplification"] <= 1.6, gc["write_amplification"] > 1) == (1.5, True, True)


def test_progress_rises_to_the_end() -> None:
    told: list[dict[str, Any]] = []
    run(order((1.5,)), LIST, told.append)
    percents = [one["percent"] for one in told if "percent" in one]
    assert percents == sorted(percents)
    assert len(percents) > 20
    assert {one["step"] for one in told if "step" in one} == {
        "packing with policy best and window 100",
        "packing with policy nos and window 50",
        "GC at a target of 1.5",
    }


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "contains no sizes"),
        (b"# nothing\n\n", "contains no sizes"),
        (b"12\nabc\n", "line 2: 'abc' is not a size"),
        (b"-5\n", "is not a size"),
        (b"\xff\xfe", "it is not text"),
        (b"0\n", "nothing to pack"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_the_reason(data: bytes, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        run(order(), data, lambda _: None)


def test_the_child_reports_a_wrong_list(make: Callable[..., Simulations]) -> None:
    simulations = make()
    found = ended(begun(simulations, b"12\nabc\n"))
    assert (found.stage, found.packing) == (Stage.FAILED, ())
    assert "line 2: 'abc' is not a size" in found.error
    assert ended(begun(simulations)).stage is Stage.DONE, "the next one can run"


# --- its process -----------------------------------------------------------------------------------
def test_only_one_runs_at_a_time_and_it_can_be_cancelled(make: Callable[..., Simulations]) -> None:
    simulations = make(SLEEPS)
    work = begun(simulations)
    until(lambda: work.shown.percent == 5)
    with pytest.raises(Conflict, match="another simulation is running"):
        simulations.reserve("another", "")
    simulations.cancel(work.shown.id)
    found = ended(work)
    assert (found.stage, found.error) == (Stage.CANCELLED, "")
    until(lambda: simulations._under_way is None)
    other = simulations.reserve("another", "")
    assert [one.title for one in simulations.all()] == ["another", "a list"]
    simulations.drop(other)
    assert [one.title for one in simulations.all()] == ["a list"]
    with pytest.raises(NotFound):
        simulations.find(other.shown.id)


def test_a_simulation_whose_sizes_are_read_ends_at_once_when_it_is_cancelled(make: Callable[..., Simulations]) -> None:
    """The thread that reads them waits for a store that does not answer. Meanwhile, there is no other simulation."""
    simulations, asked, answered = make(SLEEPS), threading.Event(), threading.Event()

    def read(work: Work) -> bytes:
        asked.set()
        assert answered.wait(WAIT_S_MAX)
        work.show(step="7 sizes in 1 of 2 ranges")
        return b""

    work = simulations.reserve("bucket b", "")
    simulations.start(work, order(), read)
    assert asked.wait(WAIT_S_MAX)
    simulations.cancel(work.shown.id)
    assert (work.shown.stage, work.shown.is_over) == (Stage.CANCELLED, True)
    with pytest.raises(Conflict, match="was cancelled still waits for the store"):
        simulations.reserve("another", "")
    answered.set()
    until(lambda: simulations._under_way is None)
    assert work.shown.stage is Stage.CANCELLED
    simulations.drop(simulations.reserve("another", ""))


def test_an_upload_ends_when_its_simulation_is_cancelled(make: Callable[..., Simulations]) -> None:
    simulations = make(SLEEPS)
    work = simulations.reserve("a list that was uploaded", "")
    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    scope = {"type": "http", "method": "POST", "headers": headers}

    async def upload() -> None:
        begun = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if begun.is_set():
                await asyncio.sleep(WAIT_S_MAX)  # the browser has stopped sending
            begun.set()
            return {"type": "http.request", "body": b"--b\r\n", "more_body": True}

        reading = asyncio.create_task(page.read_upload(Request(scope, receive), work))
        await begun.wait()
        await asyncio.to_thread(simulations.cancel, work.shown.id)
        await asyncio.wait_for(reading, WAIT_S_MAX / 2)

    with pytest.raises(HTTPException, match="The simulation was cancelled"):
        asyncio.run(upload())
    simulations.drop(work)
    assert [one.stage for one in simulations.all()] == [Stage.CANCELLED]
    simulations.drop(simulations.reserve("another", ""))


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGXCPU)})", f"more than {CPU_S_MAX // 60} minutes of CPU"),
        ("print('{\"sizes\": 7}'); print('{\"si', end='')", "ended with status 0"),
        ("raise SystemExit(3)", "ended with status 3"),
    ],
)
def test_a_process_that_ends_early_is_reported(make: Callable[..., Simulations], program: str, error: str) -> None:
    found = ended(begun(make(program), b"1\n" * 1_000_000))
    assert found.stage is Stage.FAILED
    assert error in found.error


def test_a_simulation_that_takes_too_long_is_ended(make: Callable[..., Simulations]) -> None:
    found = ended(begun(make(SLEEPS, wall_s_max=0.6)))
    assert (found.stage, "longer than 0.01 minutes" in found.error) == (Stage.FAILED, True)


def test_a_mistake_while_sizes_are_read_ends_only_that_simulation(make: Callable[..., Simulations]) -> None:
    simulations = make()

    def fail(_: Work) -> bytes:
        raise ValueError("secret")

    work = simulations.reserve("b", "")
    simulations.start(work, order(), fail)
    assert ended(work).error == jobs.BUG


def test_closing_ends_the_process(make: Callable[..., Simulations]) -> None:
    simulations = make(SLEEPS)
    work = begun(simulations)
    until(lambda: work.process is not None)
    process = work.process
    assert process is not None
    simulations.close()
    assert process.poll() is not None
    with pytest.raises(Conflict):
        simulations.reserve("after the end", "")


def test_the_child_ends_with_its_parent_and_is_limited() -> None:
    """The parent closes the pipe as its own death would."""
    many = json.dumps(asdict(order((1.05,) * 9, 300, nice=19)) | {"size_bytes": len(LIST)}).encode() + b"\n" + LIST
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(many)
            process.stdin.flush()
            assert "sizes" in json.loads(process.stdout.readline())
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
            with open(f"/proc/{process.pid}/limits") as limits:
                found = {line[:26].strip(): line[26:].split()[0] for line in limits}
            assert (found["Max cpu time"], found["Max address space"]) == (str(CPU_S_MAX), str(1 << 30))
            process.stdin.close()
            drain = threading.Thread(target=process.stdout.read)
            drain.start()
            assert process.wait(WAIT_S_MAX) == 1
            drain.join()
        finally:
            process.kill()


def test_the_last_results_are_kept(make: Callable[..., Simulations], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KEPT_MAX", 2)
    simulations = make("raise SystemExit(3)")
    for _ in range(4):
        ended(begun(simulations))
        until(lambda: simulations._under_way is None)
    assert len(simulations.all()) == 2


# --- what is shown ---------------------------------------------------------------------------------
def packed(policy: str, window: int, utilisation: float) -> dict[str, Any]:
    return {"policy": policy, "window": window, "utilisation": utilisation, "bound": 0.99}


def test_drawings_have_a_line_for_each_policy_and_the_bound() -> None:
    assert packing_chart([packed("best", 100, 0.9)]) is None
    found = packing_chart([packed("best", 100, 0.9), packed("best", 1000, 0.95), packed("nos", 100, 0.89)])
    assert found is not None
    lines = {name: points for _, name, points in found.lines}
    assert lines["the bound"] == "0.0,0.0 320.0,0.0"
    assert lines["policy nos"] == "0.0,220.0"
    assert [text for _, text in found.up] == ["99.00 %", "89.00 %"]
    points = [{"space_amplification": space, "write_amplification": 2, "bound": None} for space in (1.1, 1.3)]
    assert gc_chart(points[:1]) is None
    drawn = gc_chart(points)
    assert drawn is not None
    assert drawn.lines[0][2] == "0.0,0.0 640.0,0.0"
    assert drawn.lines[1][2] == "", "no bound is known"


def test_command_lines_name_what_was_computed() -> None:
    shown = Simulation("0", "bucket b", "C", 0)
    lines = command_lines(shown)
    assert "nos-ec simulate packing --sizes sizes.txt --policy nos --window 1000" in lines
    assert f"nos-ec simulate gc --workload C --space-amp 1.2 --blocks {page.GC_BLOCKS}" in lines
    assert len(lines) == len(page.POLICIES) * len(page.WINDOWS) + len(page.TARGETS)
