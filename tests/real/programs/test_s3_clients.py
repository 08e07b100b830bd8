"""Real S3 clients on an embedded store, whose objects are packed meanwhile. Every byte is compared.

They send each file in one piece.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.conftest import or_skip
from tests.rig.s3.s3_clients import CLIENTS, Gateways
from tests.rig.s3.s3_gateway import Access

pytestmark = pytest.mark.real


@pytest.mark.parametrize("client", CLIENTS)
def test_client(s3_access: Access, client: str, tmp_path: Path) -> None:
    or_skip(lambda: CLIENTS[client](Gateways(s3_access, s3_access, tmp_path)))
