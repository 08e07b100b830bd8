"""How fast readable objects are packed beside copies that cannot be read, against a store where all can be read.

Packs the same backlog on the embedded store: with all copies readable, with a share of them failing at once, and with
that share failing only when a time limit is over. Prints JSON: readable objects packed a second, from the first one
on, and the ratio to the first figure.

    python tests/soak/unreadable_copies.py --objects 8000 --share 0.08 --limit 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import structlog

from nos_consumer.assemble import consumer_service
from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.errors import Transient
from nos_ec.core.ids import LandingId
from nos_ec.ports.landing_store import LandingStore
from nos_ec.settings import load_settings
from tests.rig.backlog import Backlog

CONFIG = """
[store]
root = "store"
"""
SIZE_MIN, SIZE_MAX = 1000, 60_000
SECONDS_MAX = 120


class SomeUnreadable:
    """A landing store that fails to read some copies, after `limit_s`."""

    def __init__(self, landing: LandingStore, unreadable: frozenset[LandingId], limit_s: float) -> None:
        self._landing = landing
        self._unreadable = unreadable
        self._limit_s = limit_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._landing, name)

    def read_range(self, landing_id: LandingId, offset: int, length: int) -> bytes:
        if landing_id in self._unreadable:
            time.sleep(self._limit_s)
            raise Transient(f"landing copy {landing_id.hex()}: no answer")
        return self._landing.read_range(landing_id, offset, length)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _options(arguments)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    rates = {"all readable": _measured(options, 0.0, 0.0), "failing at once": _measured(options, options.share, 0.0)}
    rates[f"failing after {options.limit:g} s"] = _measured(options, options.share, options.limit)
    full = rates["all readable"]
    print(json.dumps({name: {"per_s": round(rate), "ratio": round(rate / full, 2)} for name, rate in rates.items()}))
    return 0


def _measured(options: argparse.Namespace, share: float, limit_s: float) -> float:
    with tempfile.TemporaryDirectory(prefix="nos-ec-unreadable-", dir=options.folder) as folder:
        config = Path(folder) / "nos-ec.toml"
        config.write_text(CONFIG)
        settings = load_settings(config, {})
        initialise(settings)
        backlog = Backlog(settings.store.url(), settings.store.root / "landing", time.time_ns() // 1_000_000)
        with open_system(settings) as system:
            publisher = system.worker.publisher()
            backlog.land(options.objects, SIZE_MIN, SIZE_MAX, publisher)
            publisher.close()
            backlog.close()
            copies = sorted(system.landing.list_ids())
            unreadable = frozenset(random.Random(1).sample(copies, round(share * len(copies))))
            system.landing = cast(LandingStore, SomeUnreadable(system.landing, unreadable, limit_s))
            return _rate(system, options.objects - len(unreadable))


def _rate(system: System, readable: int) -> float:
    """Readable objects packed per second, until all are packed or SECONDS_MAX have passed."""
    with consumer_service(system) as service:
        started = time.perf_counter()
        while service.counters.packed < readable and time.perf_counter() - started < SECONDS_MAX:
            service.turn(flush=True)
        return service.counters.packed / (time.perf_counter() - started)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--objects", type=int, default=8000, help="objects in all (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.08, help="share that cannot be read (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds a read takes to fail (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the temporary folders are made")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
