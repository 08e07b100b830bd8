"""How many open segments the landing log of a process has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.composition.landing import APPENDS, open_segments_of
from tests.rig.fakes.memory_medium import SMALL, MemoryMedium


@pytest.mark.parametrize(("writes_max", "wanted"), [(1, 2), (2, 1), (4, 1)])
def test_open_segments_are_chosen_by_the_medium(writes_max: int, wanted: int) -> None:
    assert open_segments_of(MemoryMedium(limits=replace(SMALL, writes_max=writes_max))) == wanted
    if writes_max <= APPENDS:
        assert wanted * writes_max == APPENDS
