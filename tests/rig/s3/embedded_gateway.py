"""An S3 gateway of an embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings
from tests.rig.certificates import make_certificate
from tests.rig.chaos.chaos_fleet import CODES, Actor, Fleet
from tests.rig.s3.s3_gateway import Access, GatewayProcess, create_key

CONFIG = """
[store]
root = "store"
[put]
min_age_ms = 0
[consumer]
linger_ms = 100
[landing]
device_bytes = "64MiB"
"""


@contextmanager
def embedded_gateway(folder: Path, *, secure: bool = False) -> Iterator[Access]:
    """Yield it, on a new store, with daemons that pack. secure: over HTTPS. Afterwards all of them must end well."""
    config = folder / "nos-ec.toml"
    config.write_text(CONFIG)
    initialise(load_settings(config, {}))
    key, secret = create_key(config, "ann")
    files: dict[str, str] = {}
    if secure:
        certificate, key_file = map(str, make_certificate(folder, "gateway"))
        files = {"NOS_EC_S3__CERTIFICATE_FILE": certificate, "NOS_EC_S3__KEY_FILE": key_file}
    fleet = Fleet(config, {"producer-0": Actor(("producer",)), "consumer-0": Actor(("consumer",))}, restart_wait_s=1)
    try:
        with GatewayProcess(config, folder / "gateway.log", **files) as gateway:
            yield Access(gateway.url, key, secret, files.get("NOS_EC_S3__CERTIFICATE_FILE"))
        fleet.stop()
        assert fleet.misbehaviour(CODES) == []
        assert "Traceback" not in (folder / "gateway.log").read_text()
    finally:
        fleet.abandon()
