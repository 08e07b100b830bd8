"""The program that computes a simulation: `python -m nos_ec.console.simulator.child`.

It reads a line of JSON (an Order) and the bytes that the order announces from standard input, and writes a line of JSON
for each step and for each result. It is niced, and has limits for memory and CPU time. It ends when its standard input
is closed, so that it does not outlive the console, however that ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from nos_ec.bench.gc.bound import bound_write_amplification
from nos_ec.bench.gc.options import GcOptions
from nos_ec.bench.gc.simulation import simulate_gc
from nos_ec.bench.gc.workloads import gc_workload
from nos_ec.bench.simulate import parse_sizes, raw_bytes_per_user_byte, simulate
from nos_ec.core.errors import InvalidInput, NosError
from nos_ec.core.gc.gc_policy import SpaceTarget
from nos_ec.core.geometry import Geometry
from nos_ec.settings.sections import ConsumerSettings

MEMORY_BYTES_MAX = 1 << 30
CPU_S_MAX = 600
NICE = 19
SEED = 1
"""The default of `nos-ec simulate`, which computes the same with it."""
NAME = "the list"

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What to compute. `geometry` and `consumer` are settings. `packing` has the (policy, window) of each run, and
    `targets` the space amplifications that GC runs at, in a store of `gc_blocks` blocks and the workload `workload` of
    `nos-ec simulate gc`. `size_bytes` is the length of the list of sizes that follows. `nice` is the niceness of the
    process."""

    geometry: Sequence[int]
    consumer: dict[str, Any]
    packing: Sequence[tuple[str, int]]
    workload: str
    targets: Sequence[float]
    gc_blocks: int
    size_bytes: int
    nice: int = NICE


def main() -> None:
    """Compute what standard input asks for."""
    given = sys.stdin.buffer
    order = Order(**json.loads(given.readline()))
    limit_process(order.nice)
    data = given.read(order.size_bytes)
    threading.Thread(target=_end_with, args=(given.fileno(),), daemon=True).start()
    try:
        run(order, data, _write)
    except MemoryError:
        _write({"failed": f"It needed more than {MEMORY_BYTES_MAX >> 20} MiB of memory. Give fewer sizes."})
    except NosError as error:
        _write({"failed": str(error)})
    else:
        _write({"done": True})


def limit_process(nice: int) -> None:
    """Let other processes go first, and limit memory and CPU time."""
    with suppress(OSError):  # a service manager may forbid it
        os.nice(nice)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # if memory is short, the kernel ends this process first
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
        (resource.RLIMIT_CPU, CPU_S_MAX),
    ):
        _, hard = resource.getrlimit(kind)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (soft, hard))


def _end_with(given: int) -> None:
    """End the process when standard input ends. Not read by `sys.stdin`, whose lock would disturb the end."""
    os.read(given, 1)
    os._exit(1)


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def run(order: Order, data: bytes, tell: Tell) -> None:
    """Compute an order, with `data` as its list of sizes, and pass each step and result to `tell`. Raises
    InvalidInput."""
    sizes = _sizes_of(data)
    geometry = Geometry(*order.geometry)
    consumer = ConsumerSettings.model_validate(order.consumer)
    tell({"sizes": len(sizes)})
    steps = len(order.packing) + len(order.targets)
    for step, (policy, window) in enumerate(order.packing):
        told = _Progress(tell, step, steps, f"packing with policy {policy} and window {window:,}")
        one = consumer.model_copy(update={"policy": policy, "window_objects": window})
        result = simulate(sizes, one, geometry, timer=perf_counter, seed=SEED, names=False, progress=told)
        tell({"packing": asdict(result) | {"raw": raw_bytes_per_user_byte(geometry, result.utilisation)}})
    del sizes
    for step, target in enumerate(order.targets, len(order.packing)):
        told = _Progress(tell, step, steps, f"GC at a target of {target}")
        workload = gc_workload(order.workload, SEED)
        found = simulate_gc(workload, GcOptions(SpaceTarget(target), blocks=order.gc_blocks, seed=SEED), told)
        bound = bound_write_amplification(workload.laws(), found.space_amplification, workload.growth)
        tell(
            {
                "gc": {
                    "target": target,
                    "space_amplification": found.space_amplification,
                    "write_amplification": found.write_amplification,
                    "bound": bound,
                    "raw": (geometry.k + geometry.m) / geometry.k * found.space_amplification,
                }
            }
        )


def _sizes_of(data: bytes) -> list[int]:
    try:
        return parse_sizes(data.decode().split("\n"), NAME)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{NAME}: it is not text; give one size in bytes per line") from error


class _Progress:
    """Passes on a step's share of all steps, whenever it has grown by a percent."""

    def __init__(self, tell: Tell, step: int, steps: int, text: str) -> None:
        self._tell = tell
        self._step = step
        self._steps = steps
        self._text = text
        self._told = -1
        self(0, 1)

    def __call__(self, done: int, total: int) -> None:
        percent = int(100 * (self._step + done / total) / self._steps)
        if percent > self._told:
            self._told = percent
            self._tell({"percent": percent, "step": self._text})


if __name__ == "__main__":
    main()
