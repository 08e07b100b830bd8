"""The contract of a medium, on the one in memory that tests of the landing log use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nos_ec.ports.segment_medium import SegmentMedium
from tests.contract.suites.segment_medium_contract import SegmentMediumContract
from tests.rig.fakes.memory_medium import JOINED, MemoryMedium


class TestMemoryMedium(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self) -> Callable[[], SegmentMedium]:
        first = MemoryMedium()
        return first.reopened


class TestMemoryMediumOfJoinedWrites(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self) -> Callable[[], SegmentMedium]:
        first = MemoryMedium(limits=JOINED)
        return first.reopened
