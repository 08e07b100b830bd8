"""Docker's registry with a bucket as its storage. Debian's package would start a service, so it is only unpacked."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.rig.dev_servers import free_port
from tests.rig.s3.s3_gateway import Access

START_S_MAX = 60.0
POLL_S = 0.05
CONFIG = """
version: 0.1
log:
  level: warn
storage:
  s3:
    regionendpoint: {url}
    accesskey: {access_key}
    secretkey: {secret}
    region: us-east-1
    bucket: {bucket}
    secure: false
    v4auth: true
  delete:
    enabled: true
http:
  addr: 127.0.0.1:{port}
"""


class Registry:
    """A running registry."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream"
    ) -> tuple[int, bytes, str]:
        """Status, body and location of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.getheader("location") or ""
        connection.close()
        return found

    @property
    def answers(self) -> bool:
        """Return whether it takes requests."""
        try:
            return self._ask("GET", "/v2/")[0] == 200
        except OSError:
            return False

    def push(self, name: str, blob: bytes) -> str:
        """Store a blob as `docker push` does. Returns its digest."""
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        status, said, location = self._ask("POST", f"/v2/{name}/blobs/uploads/")
        assert status == 202, said
        status, said, location = self._ask("PATCH", _target(location), blob)
        assert status == 202, said
        target = _target(location)
        status, said, _ = self._ask("PUT", f"{target}{'&' if '?' in target else '?'}digest={digest}")
        assert status == 201, said
        return digest

    def push_image(self, name: str, tag: str, layer: bytes) -> None:
        """Store an image of one layer."""
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        configuration = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers"}}).encode()
        described = [
            {"mediaType": media, "size": len(blob), "digest": self.push(name, blob)}
            for media, blob in (
                ("application/vnd.docker.container.image.v1+json", configuration),
                ("application/vnd.docker.image.rootfs.diff.tar.gzip", layer),
            )
        ]
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": described[0], "layers": described[1:]}
        status, said, _ = self._ask("PUT", f"/v2/{name}/manifests/{tag}", json.dumps(manifest).encode(), kind)
        assert status == 201, said

    def pull_layer(self, name: str, tag: str) -> bytes:
        """The bytes of the layer. The registry redirects to the gateway, with a presigned URL."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        connection.request("GET", f"/v2/{name}/manifests/{tag}", headers={"Accept": kind})
        answer = connection.getresponse()
        manifest = json.loads(answer.read())
        connection.close()
        status, said, location = self._ask("GET", f"/v2/{name}/blobs/{manifest['layers'][0]['digest']}")
        assert status == 307, (status, said[:1000])
        parts = urlsplit(location)
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data[:1000]
        connection.close()
        return data


def _target(location: str) -> str:
    parts = urlsplit(location)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


@contextmanager
def registry(program: Path, access: Access, bucket: str, folder: Path) -> Iterator[Registry]:
    """Yield a registry with this bucket, which must exist."""
    port = free_port()
    config, log = folder / "registry.yml", folder / "registry.log"
    config.write_text(CONFIG.format(**_fields(access), bucket=bucket, port=port))
    with log.open("ab") as output:
        process = subprocess.Popen(
            [program, "serve", config],
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
        )
    try:
        running, deadline_s = Registry(port), time.monotonic() + START_S_MAX
        while not running.answers:
            said = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, f"the registry has ended: {said}"
            assert time.monotonic() < deadline_s, f"the registry does not answer: {said}"
            time.sleep(POLL_S)
        yield running
    finally:
        process.terminate()
        process.wait(START_S_MAX)


def _fields(access: Access) -> dict[str, str]:
    return {"url": access.url, "access_key": access.access_key, "secret": access.secret}
