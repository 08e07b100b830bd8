"""The ways of landing that `bench life` compares, each on its own store.

single  the landing store, and each PUT alone: a copy and a transaction of its own, as without the queue of PUTs
store   the landing store; concurrent PUTs share transactions
log     the landing log; concurrent PUTs share transactions and writes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from nos_ec.bench.stack import AdminKey, BenchStores, bench_stores
from nos_ec.engine.landing.lander import LandedBatch, Lander, NewCopy
from nos_ec.settings import Settings

LANDINGS: Mapping[str, Sequence[str]] = {
    "store": ("store",),
    "log": ("log",),
    "both": ("single", "store", "log"),
}
"""The ways that `--landing` chooses. Each is compared with the ways before it."""
ALONE_MAX = 1024
"""More than the number of callers."""
DEVICE_BYTES = 2 << 30
"""Size of an embedded log, which must have space for the PUTs of a round."""


class Alone:
    """A `Lander` with which the queue stores each PUT alone and at once."""

    batches_max = ALONE_MAX
    batch_objects_max = 1

    def __init__(self, lander: Lander) -> None:
        self._lander = lander
        self.batch_bytes_max = lander.batch_bytes_max

    def land(self, batch: Sequence[NewCopy]) -> LandedBatch:
        """See Lander."""
        return self._lander.land(batch)


def landing_settings(settings: Settings, way: str) -> Settings:
    """Return the settings of a store that lands PUTs in this way. The log of an embedded store is one file in its
    folder."""
    mode = "log" if way == "log" else "store"
    size = max(settings.landing.device_bytes, DEVICE_BYTES)
    landing = settings.landing.model_copy(update={"mode": mode, "devices": "", "copies": 1, "device_bytes": size})
    return settings.model_copy(update={"landing": landing})


@contextmanager
def life_stores(settings: Settings, landing: str, admin: AdminKey) -> Iterator[BenchStores]:
    """Yields empty stores for the ways of `landing`. Raises ConfigError, Transient."""
    with bench_stores({way: landing_settings(settings, way) for way in LANDINGS[landing]}, admin) as stores:
        if "single" in stores.systems:
            batches = stores.systems["single"].client.puts.batches
            batches.lander = Alone(batches.lander)
        yield stores
