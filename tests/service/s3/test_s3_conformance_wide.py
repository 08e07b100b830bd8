"""The cases of conformance in wide buckets: half of the objects are in the cell with the directory, and half in another
one, which has the documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nos_ec.composition.wiring import System
from tests.service.s3.cell_stores import WideCells, serving_beside
from tests.service.s3.s3_gateway import Gateway
from tests.service.s3.test_s3_conformance import *  # noqa: F403


@pytest.fixture
def gateway(system: System, tmp_path: Path) -> Iterator[Gateway]:
    with serving_beside(system, tmp_path, WideCells) as running:
        yield running
