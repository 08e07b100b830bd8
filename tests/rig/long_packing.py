"""The consumer, or GC, with a packer that plans groups of up to a whole block: a program for the crash matrix.

usage: long_packing.py CONFIG consumer|gc
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from nos_consumer.assemble import drain
from nos_ec.composition import packing
from nos_ec.composition.wiring import open_system
from nos_ec.core.geometry import Geometry
from nos_ec.core.packing import best_fit
from nos_ec.core.packing.merge_list import merge_list
from nos_ec.settings import load_settings
from nos_gc.assemble import gc_service


@contextmanager
def packing_long_groups() -> Iterator[None]:
    """While it is open, consumers and GC runs that begin plan groups of up to `stripes_per_block` stripes."""

    def long_list(policy: str, geometry: Geometry, *rest: Any, **named: Any) -> Any:
        return merge_list(policy, replace(geometry, stripes_per_group_max=geometry.stripes_per_block), *rest, **named)

    with mock.patch.object(best_fit, "GROUP_STRIPES", 1024), mock.patch.object(packing, "merge_list", long_list):
        yield


def main(config: str, action: str) -> None:
    """Do all that there is to do."""
    with packing_long_groups(), open_system(load_settings(Path(config), os.environ)) as system:
        if action == "consumer":
            drain(system)
        else:
            gc_service(system).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
