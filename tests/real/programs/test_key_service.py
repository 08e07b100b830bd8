"""SSE-KMS with a real key service: OpenBao, over TLS, with a token that may do only what gateways need."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from nos_ec.composition.wiring import initialise
from nos_ec.settings import load_settings
from tests.real.conftest import start
from tests.rig.dev_servers import DevServer
from tests.rig.s3.embedded_gateway import CONFIG
from tests.rig.s3.s3_gateway import Access, GatewayProcess, client_of, create_key, environment

POLICY = "".join(
    f'path "transit/{operation}/+" {{ capabilities = ["update"] }}\n' for operation in ("encrypt", "decrypt", "rewrap")
)
RED = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "red"}
DATA = os.urandom(200_000)
HANG_S_MAX = 15


class Bao:
    """The server, and what its operator does."""

    def __init__(self, server: DevServer) -> None:
        self.server = server
        self.ca_file = server.folder / "data" / "certificate.pem"
        self._root = (server.folder / "data" / "root.token").read_text().strip()

    def call(self, path: str, **fields: Any) -> dict[str, Any]:
        headers = {"X-Vault-Token": self._root}
        request = Request(f"{self.server.url}/v1/{path}", json.dumps(fields).encode(), headers, method="POST")
        with urlopen(request, timeout=30, context=ssl.create_default_context(cafile=self.ca_file)) as answer:
            found: dict[str, Any] = json.loads(answer.read() or b"{}")
        return found

    def new_token(self) -> str:
        self.call("sys/policies/acl/gateways", policy=POLICY)
        token: str = self.call("auth/token/create", policies=["gateways"], no_default_policy=True)["auth"][
            "client_token"
        ]
        return token


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bao]:
    server = DevServer("openbao", tmp_path_factory.mktemp("openbao"))
    start(server)
    try:
        yield Bao(server)
    finally:
        server.stop()


class KmsStore:
    """An embedded store with a bucket, whose gateways use the key service."""

    def __init__(self, folder: Path, bao: Bao) -> None:
        self.config, self.token_file = folder / "nos-ec.toml", folder / "token"
        self._log = folder / "gateway.log"
        self.config.write_text(CONFIG)
        initialise(load_settings(self.config, {}))
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(bao.new_token())
        self.settings = {
            "NOS_EC_S3__KMS_URL": bao.server.url,
            "NOS_EC_S3__KMS_TOKEN_FILE": str(self.token_file),
            "NOS_EC_S3__KMS_CA_FILE": str(bao.ca_file),
        }
        self._key = create_key(self.config, "ann")

    def gateway(self) -> GatewayProcess:
        return GatewayProcess(self.config, self._log, **self.settings)

    def client(self, gateway: GatewayProcess) -> Any:
        return client_of(Access(gateway.url, *self._key))

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nos_ec", "--config", str(self.config), "s3", "encryption-key", *words]
        settings = environment(**(self.settings | more))
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def store(tmp_path: Path, bao: Bao) -> KmsStore:
    """A store with a key of the KMS key red, and an object that it encrypted."""
    bao.call("transit/keys/red")
    made = KmsStore(tmp_path, bao)
    added = made.command("add", "--kms-key", "red", "--json")
    assert json.loads(added.stdout) == {"number": 1}, added.stderr
    with made.gateway() as gateway:
        client = made.client(gateway)
        client.create_bucket(Bucket="photos")
        assert client.put_object(Bucket="photos", Key="a", Body=DATA, **RED)["SSEKMSKeyId"] == "red"
        assert read(client) == DATA
    return made


def read(client: Any) -> bytes:
    found: bytes = client.get_object(Bucket="photos", Key="a")["Body"].read()
    return found


def unavailable(call: Any, **arguments: Any) -> None:
    """The call must be refused with 503."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503, caught.value.response


def reads_again(client: Any) -> bool:
    """Whether the object can be read within the longest wait for a further call."""
    deadline_s = time.monotonic() + 40
    while time.monotonic() < deadline_s:
        try:
            return read(client) == DATA
        except ClientError:
            time.sleep(0.2)
    return False


def test_a_rotated_key(bao: Bao, store: KmsStore) -> None:
    bao.call("transit/keys/red/rotate")
    assert json.loads(store.command("rewrap", "--json").stdout) == {"rewrapped": 1}
    assert json.loads(store.command("rewrap", "--json").stdout) == {"rewrapped": 0}
    latest = bao.call("transit/encrypt/red", plaintext="")["data"]["key_version"]
    bao.call("transit/keys/red/config", min_decryption_version=latest)  # versions before it cannot decrypt any more
    with store.gateway() as gateway:
        client = store.client(gateway)
        assert read(client) == DATA
        client.put_object(Bucket="photos", Key="b", Body=b"data", **RED)


def test_a_server_that_is_stopped_or_hangs(bao: Bao, store: KmsStore) -> None:
    with store.gateway() as knows, store.gateway() as new:
        old_client, client = store.client(knows), store.client(new)
        assert read(old_client) == DATA
        bao.server.stop()
        try:
            assert read(old_client) == DATA
            old_client.put_object(Bucket="photos", Key="b", Body=b"data", **RED)
            assert client.head_object(Bucket="photos", Key="a")["SSEKMSKeyId"] == "red"
            unavailable(client.get_object, Bucket="photos", Key="a")
            unavailable(client.put_object, Bucket="photos", Key="c", Body=b"data", **RED)
            client.put_object(Bucket="photos", Key="plain", Body=b"data")
            assert len(client.list_objects_v2(Bucket="photos")["Contents"]) == 3
        finally:
            start(bao.server)
        assert reads_again(client)
    with store.gateway() as gateway:
        client = store.client(gateway)
        bao.server.put_to_sleep()
        try:
            began_s = time.monotonic()
            unavailable(client.get_object, Bucket="photos", Key="a")
            assert time.monotonic() - began_s < HANG_S_MAX
        finally:
            bao.server.wake()
        assert reads_again(client)


def test_a_revoked_token(bao: Bao, store: KmsStore) -> None:
    with store.gateway() as knows, store.gateway() as new:
        old_client, client = store.client(knows), store.client(new)
        assert read(old_client) == DATA
        bao.call("auth/token/revoke", token=store.token_file.read_text())
        assert read(old_client) == DATA
        unavailable(client.get_object, Bucket="photos", Key="a")
        assert "status 403" in store.command("rewrap").stderr
        store.token_file.write_text(bao.new_token())
        assert reads_again(client)


def test_what_is_refused(bao: Bao, store: KmsStore) -> None:
    bao.call("transit/keys/blue")
    refused = store.command("add", "--kms-key", "blue", NOS_EC_S3__KMS_URL=f"{bao.server.url}/elsewhere")
    assert refused.returncode != 0
    assert "the key service answered with status 403" in refused.stderr
    refused = store.command("add", "--kms-key", "blue", NOS_EC_S3__KMS_CA_FILE=str(store.token_file))
    assert refused.returncode != 0
    assert "cannot be used" in refused.stderr
    other = store.config.parent / "other.pem"
    other.write_text(Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt").read_text())
    refused = store.command("add", "--kms-key", "blue", NOS_EC_S3__KMS_CA_FILE=str(other))
    assert refused.returncode != 0
    assert "certificate verify failed" in refused.stderr
    refused = store.command("add", "--kms-key", "blue", NOS_EC_S3__KMS_URL="http://10.0.0.1:8200")
    assert refused.returncode != 0
    assert "use an https:// URL" in refused.stderr
