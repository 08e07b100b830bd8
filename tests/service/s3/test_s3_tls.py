"""The gateway over HTTPS: real handshakes, certificates that are wrong, and one that is renewed."""

from __future__ import annotations

import itertools
import os
import socket
import ssl
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.session import Session
from cryptography import x509
from cryptography.x509.oid import NameOID

from nos_ec.composition.wiring import System
from nos_ec.core.errors import ConfigError
from nos_ec.gateway.auth.accounts import Accounts
from nos_ec.gateway.server.certificate import Certificate, find_certificate
from nos_ec.gateway.server.connection_counts import ConnectionCounts
from nos_ec.gateway.server.http_server import GatewayServer, make_service, open_gateway_listener
from nos_ec.settings import S3Settings
from tests.rig.certificates import make_certificate
from tests.service.conftest import CHUNK, STRIPE, WAIT_S_MAX, Bench
from tests.service.s3.s3_gateway import MASTERS, SETTINGS, health_of

LARGE = 5 * STRIPE
"""More than a stripe group of the test's geometry."""


def settings_with(file: Path | None, key_file: Path | None) -> S3Settings:
    return SETTINGS.model_copy(update={"certificate_file": file, "key_file": key_file})


class Secure:
    """A gateway with the certificate of `folder`."""

    def __init__(self, system: System, folder: Path, share: tuple[ConnectionCounts, int] | None) -> None:
        self.system = system
        self.file, self.key_file = make_certificate(folder, "first")
        found = find_certificate(settings_with(self.file, self.key_file))
        assert found is not None
        self.certificate = found
        ids = itertools.count(1)
        self.server = GatewayServer(
            make_service(system, MASTERS, SETTINGS),
            SETTINGS,
            lambda: f"{next(ids):016X}",
            open_gateway_listener(SETTINGS),
            health_of(system),
            self.certificate,
            share=share,
        )
        self.port = int(self.server.url.rsplit(":", 1)[1])

    def name_of_served(self, **options: Any) -> str:
        """The name in the certificate that a new connection is shown."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for name, value in options.items():
            setattr(context, name, value)
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S_MAX) as raw,
            context.wrap_socket(raw) as connection,
        ):
            der = connection.getpeercert(binary_form=True)
        assert der is not None
        (common,) = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(common.value)


@pytest.fixture(params=["alone", "one of two"])
def secure(request: pytest.FixtureRequest, system: System, tmp_path: Path) -> Iterator[Secure]:
    with ConnectionCounts.create(2) as counts:
        counts.set_count(1, 0)
        made = Secure(system, tmp_path, None if request.param == "alone" else (counts, 0))
        with made.server:
            yield made


def test_a_client_stores_and_reads_over_https(bench: Bench, secure: Secure) -> None:
    assert secure.server.url.startswith("https://127.0.0.1:")
    key = Accounts(secure.system.metadata, secure.system.clock, os.urandom).create_key(MASTERS, "ann")
    client = Session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"https://localhost:{secure.port}",
        aws_access_key_id=key.key.access_key,
        aws_secret_access_key=key.secret,
        verify=str(secure.file),
        config=Config(retries={"max_attempts": 0, "mode": "standard"}, s3={"addressing_style": "path"}),
    )
    sent: list[bytes] = []
    client.meta.events.register(
        "before-send.s3.PutObject", lambda request, **_: sent.append(request.headers.get("x-amz-content-sha256"))
    )
    client.create_bucket(Bucket="photos")
    for size in (0, CHUNK, LARGE, 9 << 20):
        data = bench.data(size)
        client.put_object(Bucket="photos", Key="k", Body=BytesIO(data))
        assert client.get_object(Bucket="photos", Key="k")["Body"].read() == data
    assert set(sent) == {b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    upload = client.create_multipart_upload(Bucket="photos", Key="k")["UploadId"]
    of_part = {"Bucket": "photos", "Key": "k", "UploadId": upload}
    parts = [{"PartNumber": 1, "ETag": client.upload_part(**of_part, PartNumber=1, Body=b"x")["ETag"]}]
    done = client.complete_multipart_upload(**of_part, MultipartUpload={"Parts": parts})
    assert done["Location"] == f"https://localhost:{secure.port}/photos/k"
    listed = client.list_objects_v2(Bucket="photos")
    assert [row["Key"] for row in listed["Contents"]] == ["k"]


def test_old_protocols_and_plain_http_are_not_served(secure: Secure) -> None:
    assert secure.name_of_served() == "first"
    with pytest.raises(ssl.SSLError), pytest.warns(DeprecationWarning, match="TLSv1"):
        secure.name_of_served(minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
    with socket.create_connection(("127.0.0.1", secure.port), timeout=WAIT_S_MAX) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            found = plain.recv(1000)
        except ConnectionError:
            found = b""
    assert b"HTTP" not in found
    assert secure.name_of_served() == "first"


def test_a_renewed_certificate_is_served_without_a_restart(secure: Secure, tmp_path: Path) -> None:
    file, key_file = make_certificate(tmp_path, "second")
    secure.certificate.renew()
    assert secure.name_of_served() == "first"
    file.replace(secure.file)
    secure.certificate.renew()
    assert secure.name_of_served() == "first", "its key is not there yet"
    key_file.replace(secure.key_file)
    secure.certificate.renew()
    assert secure.name_of_served() == "second"
    secure.key_file.unlink()
    secure.certificate.renew()
    secure.certificate.renew()
    assert secure.name_of_served() == "second"


def test_a_certificate_that_cannot_be_used_is_refused_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, key_file = make_certificate(tmp_path, "good")
    other, _ = make_certificate(tmp_path, "other")
    _, locked = make_certificate(tmp_path, "locked", b"secret")
    garbage = tmp_path / "garbage"
    garbage.write_text("no certificate")
    garbage.chmod(0o600)
    for pair, words in (
        ((other, key_file), ("the key belongs to another certificate", str(other), str(key_file))),
        ((garbage, key_file), ("PEM", str(garbage))),
        ((file, garbage), ("PEM", str(garbage))),
        ((tmp_path / "none", key_file), ("s3.certificate_file", "none cannot be read")),
        ((file, tmp_path / "none"), ("s3.key_file", "none cannot be read")),
        ((tmp_path, key_file), ("s3.certificate_file", "cannot be read")),
        ((file, locked), ("s3.key_file", "passphrase")),
    ):
        with pytest.raises(ConfigError) as caught:
            Certificate(*pair)
        for word in words:
            assert word in str(caught.value)
    key_file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"s3.key_file .*can be read by every user"):
        Certificate(file, key_file)


def test_both_files_are_needed(tmp_path: Path) -> None:
    file, key_file = make_certificate(tmp_path, "good")
    assert find_certificate(settings_with(None, None)) is None
    for pair in ((file, None), (None, key_file)):
        with pytest.raises(ConfigError, match="set both for HTTPS"):
            find_certificate(settings_with(*pair))
