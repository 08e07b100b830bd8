"""How many open segments the landing log of a process has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nos_ec.composition.landing import APPENDS, open_segments_of
from nos_ec.settings import Settings
from tests.rig.fakes.memory_medium import SMALL, MemoryMedium


@pytest.mark.parametrize(("lanes", "writes_max", "wanted"), [(0, 1, 2), (0, 2, 1), (0, 4, 1), (1, 1, 1), (3, 2, 3)])
def test_open_segments_are_chosen_by_the_medium_unless_they_are_set(lanes: int, writes_max: int, wanted: int) -> None:
    settings = Settings.model_validate({"landing": {"lanes": lanes}})
    assert open_segments_of(settings, MemoryMedium(limits=replace(SMALL, writes_max=writes_max))) == wanted
    if not lanes and writes_max <= APPENDS:
        assert wanted * writes_max == APPENDS
