"""The contract of a medium, on the one in a folder that tests of the landing log use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nos_ec.ports.segment_medium import SegmentMedium
from tests.contract.suites.segment_medium_contract import SegmentMediumContract
from tests.rig.fakes.folder_medium import FolderMedium
from tests.rig.fakes.memory_medium import JOINED


class TestFolderMedium(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path) -> Callable[[], SegmentMedium]:
        return lambda: FolderMedium(tmp_path)


class TestFolderMediumOfJoinedWrites(SegmentMediumContract):
    @pytest.fixture
    def open_medium(self, tmp_path: Path) -> Callable[[], SegmentMedium]:
        return lambda: FolderMedium(tmp_path, JOINED)
