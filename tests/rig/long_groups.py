"""Groups of more stripes than a window has, and stores for them; as a program, it writes one.

usage: python -m tests.rig.long_groups CONFIG new|used      to a new block, or after a group in it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nos_ec.composition.wiring import System, initialise, open_system
from nos_ec.core.ids import ObjectKey
from nos_ec.core.packing.packer import GroupLayout, Row
from nos_ec.core.packing.plan import GroupPlan
from nos_ec.core.states import BlockKind
from nos_ec.engine.packable import Packable
from nos_ec.settings import load_settings
from tests.rig.preloaded import Preloaded
from tests.service.conftest import CHUNK, STORE_CONFIG, Bench

WINDOW = 4
"""Stripes."""
STRIPES = 16
"""Of a block: four windows."""
LONG_CONFIG = STORE_CONFIG.replace("stripes_per_block = 8", f"stripes_per_block = {STRIPES}")
TINY_CONFIG = STORE_CONFIG.replace(
    "stripes_per_block = 8", "stripes_per_block = 64\nstripes_per_group_max = 1\nk = 1\nm = 1"
)
"""A window is a chunk, and shorter than the front of some 500 objects."""


def long_bench(folder: Path, preloaded: Preloaded, config: str = LONG_CONFIG) -> Bench:
    """A new store, without a landing log."""
    bench = Bench(folder, config, preloaded)
    initialise(bench.settings())
    return bench


def put_for(bench: Bench, system: System, stripes: int, prefix: str = "long") -> list[ObjectKey]:
    """Objects of up to 12 chunks, and then small ones: somewhat more than this many stripes hold."""
    sizes: list[int] = []
    while sum(sizes) < stripes * system.geometry.stripe_size:
        sizes.append(bench.rng.randint(1, 12 * CHUNK))
    sizes += [CHUNK - 1] * 12
    return [bench.put(system, f"{prefix}/{number:05}", bench.data(size)) for number, size in enumerate(sizes)]


def packable_of(system: System, key: ObjectKey) -> Packable:
    """The object, as the consumer packs it."""
    row = system.client.store().head(key)
    source = row.landing_id or row.extent
    assert source is not None
    return Packable(row.object_id, key, row.version, row.size, row.crc32c, source, attributes=row.attributes)


def long_plan(system: System, keys: Sequence[ObjectKey], stripes: int) -> GroupPlan[Packable]:
    """A group of at most this many stripes with these objects, in order, as far as they fit."""
    layout = GroupLayout[Packable](system.geometry, stripes, names=True)
    into: Row[Packable] | None = None
    for key in keys:
        one = packable_of(system, key).candidate(0)
        if into is not None and one.size <= system.geometry.chunk_size:
            allowed = layout.allowance(into)
            if one.size <= allowed.room and allowed.entries and one.name_size <= allowed.names:
                layout.extend(into, [one], one.size, one.name_size)
                continue
        into = layout.open(one) or into
    return layout.seal()


def main(config: str, where: str) -> None:
    """Write all objects that wait, in one long group."""
    with open_system(load_settings(Path(config), os.environ)) as system:
        keys = [row.key for row in system.metadata.objects_after(0, 10_000) if row.landing_id is not None]
        lease = system.metadata.acquire_lease("writer", system.clock.now_ms(), 60_000)
        writer = system.worker.writer(lease, BlockKind.FRESH)
        if where == "used":
            assert writer.write(long_plan(system, keys[:3], 1)).packed
        assert writer.write(long_plan(system, keys[3:], STRIPES - 1)).packed
        writer.close()
        system.metadata.release_lease(lease)


if __name__ == "__main__":
    main(*sys.argv[1:])
