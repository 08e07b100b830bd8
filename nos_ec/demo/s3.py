"""The demo's PUTs and GETs through the S3 gateway, with botocore, the client of boto3 and aws."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from nos_ec.core.errors import ConfigError, Transient
from nos_ec.core.ids import ObjectKey
from nos_ec.ports.metadata import ROOT_ACCOUNT
from nos_ec.settings import Settings, without_settings

BUCKET = "demo"
CALLERS = 8
"""Concurrent requests."""
START_S_MAX = 120
STOP_S_MAX = 60
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """An access key of the demo's store."""

    access_key: str
    secret: str


def require_client() -> None:
    """Raise ConfigError if botocore is missing, which only the demo and the tests need."""
    if find_spec("botocore") is None:
        raise ConfigError(
            f"demo --s3 needs botocore, which is not installed: {sys.executable} -m pip install 'botocore>=1.43'"
        )


def s3_settings(settings: Settings, root: Path) -> Settings:
    """Return the settings with a new master key in `root`, and a gateway that only this machine can reach."""
    file = root / "s3-master-key"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(os.urandom(32).hex() + "\n")
    s3 = {"host": "127.0.0.1", "certificate_file": None, "key_file": None, "master_key": None, "master_key_file": file}
    return settings.model_copy(update={"s3": settings.s3.model_copy(update=s3)})


def create_key(config: Path) -> Access:
    """Create an access key of the root account. Raises Transient."""
    command = [*_command(config), "key", "create", ROOT_ACCOUNT, "--json"]
    environment = without_settings(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode:
        raise Transient(f"no access key can be created: {done.stderr.strip()[-500:]}")
    made = json.loads(done.stdout)
    return Access(made["access_key"], made["secret"])


class S3Objects:
    """PUTs and GETs through a running gateway."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put_all(self, files: Sequence[tuple[ObjectKey, Path]], on_file: Callable[[int], object]) -> None:
        """Store all files, and call `on_file` with the size of each in bytes. Raises Transient."""
        self._client.create_bucket(Bucket=BUCKET)

        def put(file: tuple[ObjectKey, Path]) -> int:
            key, path = file
            with path.open("rb") as body:
                size = os.fstat(body.fileno()).st_size
                self._client.put_object(Bucket=key.bucket, Key=key.name, Body=body)
            return size

        for size in _in_threads(put, files):
            on_file(size)

    def compare_all(
        self, files: Sequence[tuple[ObjectKey, Path]], on_file: Callable[[ObjectKey, str | None], object]
    ) -> None:
        """Read all objects, and call `on_file` with each key and its problem: None if it equals its file, "changed" if
        the file has changed since its PUT, or else a description. Raises Transient."""

        def compare(file: tuple[ObjectKey, Path]) -> tuple[ObjectKey, str | None]:
            key, path = file
            answer = self._client.get_object(Bucket=key.bucket, Key=key.name)
            try:
                with path.open("rb") as stream:
                    same = all(piece == stream.read(len(piece)) for piece in answer["Body"].iter_chunks(_READ_BYTES))
                    if same and not stream.read(1):
                        return key, None
                    stream.seek(0)
                    md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            except OSError:
                return key, "changed"
            return key, "bytes differ" if answer["ETag"].strip('"') == md5 else "changed"

        for key, problem in _in_threads(compare, files):
            on_file(key, problem)


def _in_threads(call: Callable[[Any], Any], files: Sequence[Any]) -> Iterator[Any]:
    """Yields the results, in order. Raises Transient."""
    from botocore.exceptions import BotoCoreError, ClientError

    with ThreadPoolExecutor(CALLERS) as threads:
        try:
            yield from threads.map(call, files)
        except (BotoCoreError, ClientError) as error:
            threads.shutdown(wait=False, cancel_futures=True)
            raise Transient(f"a request to the S3 gateway failed: {error}") from error


@contextmanager
def s3_gateway(config: Path, access: Access) -> Iterator[S3Objects]:
    """Start a gateway on a free port, and yield a client of it. Raises Transient if it does not start within
    START_S_MAX."""
    from botocore.config import Config
    from botocore.session import Session

    log = config.with_name("s3-gateway.log")
    environment = without_settings(os.environ) | {"NOS_EC_S3__PORT": "0"}
    with log.open("ab") as errors:
        command = [*_command(config), "serve", "--json"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors)  # noqa: S603 - our own
    try:
        assert process.stdout is not None
        with DefaultSelector() as selector:  # select.select refuses descriptors above 1023
            selector.register(process.stdout, EVENT_READ)
            line = process.stdout.readline() if selector.select(START_S_MAX) else b""
        if not line:
            reason = log.read_text(errors="replace")[-500:].strip() or f"it printed nothing within {START_S_MAX} s"
            raise Transient(f"the S3 gateway did not start: {reason}")
        yield S3Objects(
            Session().create_client(
                "s3",
                region_name="us-east-1",
                endpoint_url=json.loads(line)["url"],
                aws_access_key_id=access.access_key,
                aws_secret_access_key=access.secret,
                config=Config(s3={"addressing_style": "path"}, max_pool_connections=CALLERS),
            )
        )
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _command(config: Path) -> list[str]:
    return [sys.executable, "-m", "nos_ec", "--config", str(config), "s3"]
