"""What the console costs, compared with its bars: pages of a small and of a large store, sessions, pictures, assets.

Makes two embedded stores in a temporary folder, and asks the console without a browser. Every bar is a ratio of one run
or a count, so that it holds on a busy machine. Prints JSON; the exit code is 1 if a bar is missed. What needs a browser
is in tests/service/console/test_blocks_seen.py: a page is there before its tiles, and takes at most 4 requests.

    .venv/bin/python tests/soak/console_bars.py
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import text

from nos_ec.composition.developer_values import FIGURES_MS
from nos_ec.composition.wiring import System, initialise
from nos_ec.console.access.login_token import LoginTokens
from nos_ec.console.app import create_app
from nos_ec.console.panels import GOOD_MS_MAX, Panels
from nos_ec.console.snapshot import Cells, take_snapshot
from nos_ec.core.states import BlockState
from nos_ec.engine.figures.store_totals import NEXT_MS_MAX
from tests.rig.fakes.clock import SetClock
from tests.rig.sql.sql_plans import caught, scans
from tests.service.conftest import CONFIG, Bench
from tests.service.gc.test_gc_costs import MADE_UP
from tests.unit.console.test_console_security import TOKEN, Client, log_in

STATIC = Path(__file__).parents[2] / "nos_ec" / "console" / "static"
WAIT_S_MAX = 600.0
SESSIONS_AT_ONCE, SESSIONS = 20, 100
MIB = 1 << 20
BARS = {
    "CPU of a page, large / small store": 1.2,
    "CPU a block of a picture / of list_blocks": 1.5,
    "walks of twenty sessions": 1,
    "MiB more of 100 sessions than of one": 10,
    "MiB of a picture": 64,
    "KB of assets": 80,
    "statements that read all blocks": 0,
}


class Store:
    """A store with many blocks, and a console for it whose clock only moves when it is told to."""

    def __init__(self, stack: ExitStack, folder: Path, blocks: int) -> None:
        folder.mkdir()
        bench = Bench(folder, CONFIG)
        initialise(bench.settings())
        self.system: System = stack.enter_context(bench.open())
        bench.put_some(self.system, 60)
        bench.pack(self.system)
        self.block = next(
            one for one in self.system.metadata.list_blocks(None, 100) if one.state is not BlockState.CONDEMNED
        )
        key = next(key for key in bench.acknowledged if self.system.metadata.get(key).extent is not None)
        with self.system.metadata._transactions.engines[0].begin() as connection:  # type: ignore[attr-defined]
            now_ms = self.system.clock.now_ms()
            connection.execute(MADE_UP, {"count": blocks, "size": self.system.geometry.block_size, "now_ms": now_ms})
            connection.execute(text("ANALYZE"))
        self.clock = SetClock(now_ms)
        self.system.clock = self.clock
        self.system.operator.store_totals().keep()
        self.panels = stack.enter_context(closing(Panels(self.clock, WAIT_S_MAX)))
        self.client = Client(create_app(self.system, self.panels, None, os.urandom))
        self.pages = {
            "Flow": "/flow",
            "Tiles": "/blocks/tiles",
            "A block": f"/blocks/{self.block.block_id.hex()}",
            "Buckets of objects": "/objects",
            "Objects": f"/objects?bucket={key.bucket}",
            "An object": f"/objects/one?bucket={key.bucket}&name={key.name}",
        }

    def age(self) -> None:
        """Make all that the console has read too old, and keep the sums over all rows for the next hour.

        In a store in use, daemons compute the sums in other processes. Here they must not be computed between measured
        pages: after 0.1 s or more of work on a large store, the caches of the processor are cold and others may use it
        first, so that even a page that reads nothing seems to cost more.
        """
        self.clock.advance(GOOD_MS_MAX)
        self.system.operator.store_totals().keep()
        stored = self.system.metadata.stored_totals()
        if stored is not None:
            later = replace(stored, next_ms=self.clock.now_ms() + NEXT_MS_MAX)
            assert self.system.metadata.store_totals(later, stored)

    def get(self, path: str) -> None:
        """Ask for a page."""
        assert self.client.get(path).status_code == 200

    def cpu_s(self, path: str) -> float:
        """The CPU time of a page that reads the store, in all threads."""
        self.clock.advance(FIGURES_MS)
        begun_s = time.process_time()
        self.get(path)
        return time.process_time() - begun_s

    def statements(self, path: str) -> tuple[int, list[str]]:
        """How many statements a page takes, and the plans of those that read all blocks."""
        self.age()
        with caught(self.system.metadata) as found:  # type: ignore[arg-type]
            self.get(path)
        with self.system.metadata._transactions.engines[0].connect() as connection:  # type: ignore[attr-defined]
            plans = [line for one, its in found for line in scans(connection, one, its)]
        return len(found), [line for line in plans if line.startswith("SCAN blocks")]


def pages(small: Store, large: Store, repeats: int) -> dict[str, Any]:
    """Compare the pages of both stores. Calls alternate, and so does their order, so that both stores meet the same
    noise; the fastest count."""
    found: dict[str, Any] = {}
    for name in small.pages:
        least = [float("inf")] * 2
        for store in (small, large):
            store.age()
            store.get(store.pages[name])
        for turn in range(repeats):
            for number, store in list(enumerate((small, large)))[:: 1 if turn % 2 else -1]:
                least[number] = min(least[number], store.cpu_s(store.pages[name]))
        (few, _), (many, scanned) = (store.statements(store.pages[name]) for store in (small, large))
        found[name] = {
            "statements": [few, many],
            "that read all blocks": scanned,
            "CPU in ms": [round(1000 * one, 2) for one in least],
            "ratio": round(least[1] / least[0], 2),
        }
    return found


def walks(store: Store) -> int:
    """How often all blocks are read for twenty sessions that ask for them."""
    count, metadata, whole = 0, store.system.metadata, store.system.metadata.list_block_figures

    def counted(after: Any, limit: int) -> Any:
        nonlocal count
        count += after is None
        return whole(after, limit)

    metadata.list_block_figures = counted  # type: ignore[method-assign]
    store.clock.advance(GOOD_MS_MAX)
    for _ in range(SESSIONS_AT_ONCE):
        client = Client(store.client.app)
        assert client.get("/blocks").status_code == client.get("/blocks/tiles.bin").status_code == 200
    return count


def picture(store: Store, repeats: int) -> dict[str, float]:
    """The cost of a picture of all blocks."""
    metadata = store.system.metadata

    def list_all() -> None:
        after = None
        while page := metadata.list_blocks(after, 2000):
            after = page[-1].block_id

    def cpu_s(call: Callable[[], object]) -> float:
        begun_s = time.process_time()
        call()
        return time.process_time() - begun_s

    calls = (list_all, lambda: take_snapshot(metadata, store.clock.now_ms()))
    listed_s, taken_s = (
        min(times) for times in zip(*([cpu_s(one) for one in calls] for _ in range(repeats)), strict=True)
    )
    gc.collect()
    tracemalloc.start()
    kept = take_snapshot(metadata, store.clock.now_ms())
    now_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "blocks": kept.blocks,
        "CPU ratio to list_blocks": round(taken_s / listed_s, 2),
        "MiB": round(now_bytes / MIB, 1),
        "MiB at most": round(peak_bytes / MIB, 1),
        "bytes of a tile": round(len(kept.tiles(Cells(), by_price=False, limit=kept.blocks)) / kept.blocks, 1),
    }


def sessions(store: Store, folder: Path) -> float:
    """The MiB that the console uses more for 100 sessions, each of which has looked at pages, than for one."""
    file = folder / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    app = create_app(store.system, store.panels, LoginTokens(file), os.urandom)

    def visits(count: int) -> Iterator[Client]:
        for number in range(count):
            client = Client(app, f"10.0.0.{number}")
            assert log_in(client) == 303
            assert client.get("/blocks").status_code == client.get("/flow").status_code == 200
            yield client

    list(visits(1))
    gc.collect()
    tracemalloc.start()
    for client in visits(SESSIONS):
        client.app = app
    gc.collect()
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(used_bytes / MIB, 2)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs=2, default=[1000, 300_000], help="of the small and the large store")
    parser.add_argument("--repeats", type=int, default=15, help="of each measurement; the fastest one counts")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="nos-ec-console-") as made, ExitStack() as stack:
        folder = Path(made)
        small, large = (Store(stack, folder / str(blocks), blocks) for blocks in options.blocks)
        of_pages, of_picture = pages(small, large, options.repeats), picture(large, 3)
        measured = {
            "CPU of a page, large / small store": max(one["ratio"] for one in of_pages.values()),
            "CPU a block of a picture / of list_blocks": of_picture["CPU ratio to list_blocks"],
            "walks of twenty sessions": walks(large),
            "MiB more of 100 sessions than of one": sessions(large, folder),
            "MiB of a picture": of_picture["MiB at most"],
            "KB of assets": round(sum(file.stat().st_size for file in STATIC.iterdir()) / 1000, 1),
            "statements that read all blocks": sum(len(one["that read all blocks"]) for one in of_pages.values()),
        }
    missed = [name for name, most in BARS.items() if measured[name] > most]
    missed += [f"statements of {name}" for name, one in of_pages.items() if one["statements"][1] > one["statements"][0]]
    print(json.dumps({"pages": of_pages, "picture": of_picture, "measured": measured, "missed": missed}, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
