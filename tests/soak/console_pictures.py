"""Takes the pictures of docs/CONSOLE.md: each page of the console in a real browser, light and dark.

Makes an embedded store in a temporary folder that looks as if it had been used for some weeks. Needs chromium.

    .venv/bin/python tests/soak/console_pictures.py docs/console
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from contextlib import closing
from pathlib import Path

from nos_ec.adapters.system_clock import SystemClock
from nos_ec.composition.wiring import System, initialise
from nos_ec.console.app import Server, cells_app, create_app
from nos_ec.console.panels import Panels
from nos_ec.core.expiry import DAY_MS
from nos_ec.engine.figures.cost_history import note_cost
from tests.rig.at_rest import LaterClock
from tests.rig.browser import Visit, running_browser, visiting
from tests.rig.waiting import until
from tests.service.conftest import Bench

SETTINGS = """
[geometry]
chunk_size = 16384
stripes_per_block = 8
[gc]
block_grace_ms = 0
[landing]
device_bytes = "16MiB"
segment_bytes = "1MiB"
"""
CONFIG = f'[store]\nroot = "store"\n{SETTINGS}'
CELLS = f"""[store]
directory = "berlin"
{SETTINGS}
[cells.berlin]
store.root = "store"
[cells.oslo]
weight = 2
store.root = "oslo"
[cells.rome]
weight = 0
store.root = "rome"
"""
"""The store as the first of three cells, of which the last one is away."""
DAYS = range(40, 0, -1)
OBJECTS_A_DAY = 90
SIZE_MEDIAN = 12_000
SIZE_MAX = 200_000
BUCKETS = ("backups", "mail", "photos", "thumbnails")
DIED = (0.02, 0.45, 0.15, 0.7)
"""The share of the objects of each bucket that is deleted in the end."""
WAITING = 60
SIZE = {"width": 1200, "height": 900}


def main() -> None:
    """Make the store, and write the pictures into the folder that is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(Path(made), CONFIG)
        initialise(bench.settings())
        use_for_weeks(bench)
        with (
            bench.open() as system,
            closing(Panels(system.clock, wait_s_max=60)) as panels,
            Server(create_app(system, panels, None, os.urandom), "127.0.0.1", 0) as server,
            running_browser() as browser,
        ):
            for scheme in ("light", "dark"):
                with visiting(browser, server.url, color_scheme=scheme, viewport=SIZE) as visit:
                    take(visit, system, folder, scheme)
        take_cells(Path(made), folder)


def take_cells(made: Path, folder: Path) -> None:
    """Write a picture of the page of all cells in each colour scheme. The store in `made` becomes one of them."""
    bench = Bench(made, CONFIG.replace('store"', 'oslo"'))
    initialise(bench.settings())
    with bench.open() as system:
        put(bench, system, random.Random(42), OBJECTS_A_DAY, "2026")
        bench.pack(system)
    settings = Bench(made, CELLS).settings()
    with (
        closing(Panels(SystemClock(), wait_s_max=60)) as panels,
        cells_app(settings, SystemClock(), panels, None, os.urandom) as (app, cells),
        Server(app, "127.0.0.1", 0) as server,
        running_browser() as browser,
    ):
        until(lambda: len(cells.opened()) == 2)
        for scheme in ("light", "dark"):
            with visiting(browser, server.url, color_scheme=scheme, viewport=SIZE) as visit:
                visit.page.goto(visit.url, wait_until="networkidle")
                visit.page.screenshot(path=folder / f"cells-{scheme}.png")


def use_for_weeks(bench: Bench) -> None:
    """Put and pack objects on each day, delete some at the end, and leave some that wait to be packed."""
    rng = random.Random(41)
    for days in DAYS:
        with bench.open() as system:
            system.clock = LaterClock(-days * DAY_MS)
            put(bench, system, rng, OBJECTS_A_DAY, f"2026/{days:02}")
            bench.pack(system)
            note_cost(system.metadata, system.metadata.totals(), system.clock.now_ms())
    with bench.open() as system:
        for key in list(bench.acknowledged):
            if rng.random() < DIED[BUCKETS.index(key.bucket)]:
                bench.delete(system, key)
        put(bench, system, rng, WAITING, "new")
        system.worker.housekeeping().run_once()
        note_cost(system.metadata, system.metadata.totals(), system.clock.now_ms())


def put(bench: Bench, system: System, rng: random.Random, count: int, folder: str) -> None:
    """Put objects of mixed sizes into all buckets."""
    for number in range(count):
        size = min(SIZE_MAX, int(rng.lognormvariate(0, 1.2) * SIZE_MEDIAN) + 1)
        bench.put(system, f"{folder}/{number:04}", bench.data(size), rng.choice(BUCKETS))


def take(visit: Visit, system: System, folder: Path, scheme: str) -> None:
    """Write a picture of each page in one colour scheme."""
    block = max(system.metadata.list_blocks(None, 1000), key=lambda one: one.dead_bytes)
    key = next(row.key for row in system.client.store().list_objects("photos", "", "", 1))
    pages = {
        "overview": "/",
        "blocks": "/blocks",
        "tiles": "/blocks/tiles?colour=holes&order=price",
        "block": f"/blocks/{block.block_id.hex()}",
        "space": "/space",
        "flow": "/flow",
        "objects": "/objects?bucket=photos",
        "buckets": "/buckets",
        "bucket": "/buckets/one?bucket=photos",
        "simulator": "/simulator?bucket=photos",
        "last-night": "/last-night",
        "object": f"/objects/one?bucket={key.bucket}&name={key.name}",
    }
    for name, path in pages.items():
        visit.page.goto(visit.url + path, wait_until="networkidle")
        visit.page.screenshot(path=folder / f"{name}-{scheme}.png")


if __name__ == "__main__":
    main()
