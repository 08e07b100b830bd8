"""The consumer, or a PUT of a large object, on a block store that fails some appends: a program for the crash matrix.

usage: ailing_store.py CONFIG consumer|put|full      put reads the object b/victim from standard input; full is the
       consumer on a store that refuses the first block it is to create
"""

from __future__ import annotations

import os
import sys
from io import BytesIO
from pathlib import Path

from nos_consumer.assemble import drain
from nos_ec.composition.wiring import open_system
from nos_ec.core.errors import NoSpace, Transient
from nos_ec.core.ids import BlockId, ObjectKey
from nos_ec.ports.placement import Placement
from nos_ec.settings import load_settings
from tests.rig.fakes.faulty import Faults, faulty


class Wearing:
    """A `Placement` that lets every place go bad after its third group."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._asked: dict[BlockId, int] = {}
        self.alternatives = True  # as if blocks lay in different places

    def new_block_id(self) -> BlockId:
        return self._placement.new_block_id()

    def healthy(self, block_id: BlockId) -> bool:
        self._asked[block_id] = self._asked.get(block_id, 0) + 1
        return self._asked[block_id] < 3


def main(config: str, action: str) -> None:
    faults = Faults()
    if action == "full":
        faults.before["create"] = [NoSpace("over a quota")]
    else:
        # The first append fails; the next one, of the same group to another block, is done and its answer lost.
        faults.before["append"] = [Transient("no answer")]
        faults.after["append"] = [Transient("no answer")]
    with open_system(load_settings(Path(config), os.environ)) as system:
        system.blocks = faulty(system.blocks, faults)
        system.placement = Wearing(system.placement)
        if action != "put":
            drain(system)
        else:
            system.client.store().put(ObjectKey("b", "victim"), BytesIO(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main(*sys.argv[1:])
