"""What the figures of a store and a page of a listing cost on MariaDB, in a small store and in large ones.

Starts a MariaDB server of its own in a folder, makes the rows of each store on it, and times what `status`, a scrape
and `ls` ask of the metadata store. Prints JSON, in milliseconds. Cold: once, when the server was just started, so that
its buffer pool of 128 MiB is empty (the pages are in the cache of the operating system). Warm: the lower
quartile of more calls, for listings of the same page. Also the bytes of all tables for each object.

    python tests/soak/cost_of_figures.py --objects 100000 10000000 --folder /var/tmp
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import text

from nos_ec.adapters.sql.driver.databases import create_database
from nos_ec.adapters.sql.driver.engine import make_engine
from nos_ec.adapters.sql.metadata import SqlMetadata, open_metadata
from nos_ec.adapters.sql.tables.migrate import migrate
from nos_ec.adapters.system_clock import SystemClock
from nos_ec.core.geometry import Geometry
from nos_ec.engine.figures.store_totals import StoreTotals
from nos_ec.monitoring.sources import StoreFigures, store_samples
from tests.rig.dev_servers import DevServer
from tests.rig.sql.full_store import Shape, fill

PAGE_ROWS = 1000
PAGE_FOLDERS = 100
WARM_CALLS = 60
BUCKET = "bucket-3"
_TABLE_BYTES = text(
    "SELECT sum(data_length + index_length) FROM information_schema.tables WHERE table_schema = DATABASE()"
)


def main(arguments: list[str] | None = None) -> int:
    """Measure each store, print, and return the exit code."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="nos-ec-figures-", dir=options.folder) as folder:
        server = DevServer("mariadb", Path(folder))
        server.start()
        try:
            stores = {name: measure(server, name, shape) for name, shape in _shapes(options).items()}
        finally:
            server.stop()
    small, large = (stores[str(objects)] for objects in (options.objects[0], options.objects[-1]))
    ratios = {name: round(large["warm"][name] / small["warm"][name], 2) for name in small["warm"]}
    print(json.dumps({"stores": stores, "warm ratios of the objects' stores": ratios}, indent=1))
    return 0


def _shapes(options: argparse.Namespace) -> dict[str, Shape]:
    shapes = {str(n): Shape(n, n // 100, n // 100, n // 1000) for n in options.objects}
    if options.backlog:
        shapes["backlog"] = Shape(options.objects[0], options.backlog, options.backlog, options.backlog)
    return shapes


def measure(server: DevServer, name: str, shape: Shape) -> dict[str, Any]:
    """Make the store in a database of its own and measure it. Milliseconds."""
    url = f"{server.url.rpartition('/')[0]}/nos_ec_scratch_{name}"
    create_database(url)
    migrate(url)
    engine = make_engine(url)
    started_s = time.monotonic()
    fill(engine, shape)
    with engine.connect() as connection:
        table_bytes = int(connection.execute(_TABLE_BYTES).scalar_one())
    engine.dispose()
    print(f"{name}: {shape}, made in {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)
    _restart(server)
    with closing(open_metadata(url)) as metadata:
        computed = _timed(metadata.totals), min(_timed(metadata.totals) for _ in range(3))
        StoreTotals(metadata, SystemClock(), 15_000).keep()
    _restart(server)
    with closing(open_metadata(url)) as metadata:
        metadata.list_buckets("", 1)  # opens the connection
        calls = _calls(metadata)
        cold = {what: _timed(call) for what, call in calls.items()}
        warm = {what: _lower_quartile(call) for what, call in calls.items()}
        rows = metadata.totals().rows
    return {
        "rows summed up": rows,
        "bytes an object": round(table_bytes / (shape.packed + shape.waiting + shape.large)),
        "computed sums": {"cold": round(computed[0], 1), "warm": round(computed[1], 1)},
        "cold": {what: round(ms, 2) for what, ms in cold.items()},
        "warm": {what: round(ms, 2) for what, ms in warm.items()},
    }


def _restart(server: DevServer) -> None:
    """Start the server again with an empty buffer pool."""
    engine = make_engine(server.url)
    with engine.connect() as connection:
        connection.execute(text("SET GLOBAL innodb_buffer_pool_dump_at_shutdown = OFF"))
    engine.dispose()
    server.stop()
    server.start()


def _calls(metadata: SqlMetadata) -> dict[str, Callable[[], object]]:
    totals, geometry, clock = StoreTotals(metadata, SystemClock(), 3_600_000), Geometry(), SystemClock()

    def scrape() -> object:
        dated = totals.read()
        return list(store_samples(StoreFigures(dated.totals, dated.at_ms, geometry, 0, 0, 0), clock.now_ms()))

    return {
        "status": totals.read,
        "scrape": scrape,
        "page of names": lambda: metadata.list_names(BUCKET, "", "4", PAGE_ROWS),
        "page of rows": lambda: metadata.list_objects(BUCKET, "", "8", PAGE_ROWS),
        "page of folders": lambda: metadata.list_entries(BUCKET, "", "/", "", PAGE_FOLDERS, 10**9),
        "buckets": lambda: metadata.list_buckets("", PAGE_ROWS),
    }


def _timed(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return (time.perf_counter() - started_s) * 1000


def _lower_quartile(call: Callable[[], object]) -> float:
    """In milliseconds. Other work on the machine disturbs it less than the median."""
    return statistics.quantiles([_timed(call) for _ in range(WARM_CALLS)], n=4)[0]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, nargs="+", default=[100_000, 10_000_000], help="packed objects")
    parser.add_argument(
        "--backlog", type=int, default=0, help="another store, with this many waiting, queued and large objects"
    )
    parser.add_argument("--folder", default=None, help="where the server keeps its data: 0.4 KB an object")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
