"""Real S3 clients with large files and their own thresholds, which upload them in parts: on an embedded store, and
through two gateways on all servers. Every byte is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.conftest import or_skip
from tests.rig.s3.s3_clients import Gateways, clients_python
from tests.rig.s3.s3_gateway import Access
from tests.rig.s3.s3_multipart import CLIENTS
from tests.rig.s3.two_gateways import TwoGateways

pytestmark = pytest.mark.real


@pytest.mark.parametrize("client", CLIENTS)
def test_on_an_embedded_store(s3_access: Access, client: str, tmp_path: Path) -> None:
    or_skip(lambda: CLIENTS[client](Gateways(s3_access, s3_access, tmp_path)))


@pytest.mark.parametrize("client", CLIENTS)
def test_through_two_gateways(gateways: TwoGateways, client: str, tmp_path: Path) -> None:
    or_skip(clients_python)
    write, read = gateways.accesses
    or_skip(lambda: CLIENTS[client](Gateways(write, read, tmp_path)))
