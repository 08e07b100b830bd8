"""A process whose conditional PUT is refused because another process stores an object after its condition was judged: a
program for the crash matrix.

usage: refused_put.py CONFIG SIZE

Both PUTs have SIZE bytes and the condition that no object exists. The refused one lands last.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from nos_ec.composition.wiring import System, open_system
from nos_ec.core.conditions import ABSENT
from nos_ec.core.errors import PreconditionFailed
from nos_ec.core.ids import ObjectKey
from nos_ec.settings import load_settings

KEY = ObjectKey("b", "lock")


@contextmanager
def meanwhile(system: System, change: Callable[[], object]) -> Iterator[None]:
    """Let `change` happen once: after the next condition was judged, before the bytes of its PUT are written."""
    changes = [change]

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if changes:
                changes.pop()()
            return call(*arguments, **named)

        return called

    lander, blocks = system.client.store()._puts.batches.lander, system.blocks
    land, create = lander.land, blocks.create
    lander.land, blocks.create = before(land), before(create)  # type: ignore[method-assign]
    try:
        yield
    finally:
        lander.land, blocks.create = land, create  # type: ignore[method-assign]
    assert not changes


def put_first(system: System) -> None:
    """Store an object, since the first one of a process bypasses the landing log."""
    system.client.store().put(ObjectKey("others", "first"), BytesIO(b"first"))


def main(config: str, size: int) -> None:
    """Put both."""
    settings = load_settings(Path(config), {})
    with open_system(settings) as system, open_system(settings) as other:
        put_first(system)
        put_first(other)
        # It lies in the landing segment of the refused one, which is not given back therefore.
        system.client.store().put(ObjectKey("others", "second"), BytesIO(b"second"))
        theirs = BytesIO(b"a" * size)
        try:
            with meanwhile(system, lambda: other.client.store().put(KEY, theirs, condition=ABSENT)):
                system.client.store().put(KEY, BytesIO(b"r" * size), condition=ABSENT)
        except PreconditionFailed:
            return
    raise AssertionError("it was not refused")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
