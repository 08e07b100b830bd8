"""S3 gateways as processes, as an operator runs them: `nos-ec s3 serve`."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from botocore.config import Config
from botocore.session import Session

from nos_ec.settings import without_settings
from tests.rig.dev_servers import free_port

START_S_MAX = 60.0
STOP_S_MAX = 60.0
POLL_S = 0.02
MASTER_KEY = "5a" * 32


@dataclass(frozen=True, slots=True)
class Access:
    """A gateway and how to sign what is sent to it. certificate: a file with its certificate, over HTTPS."""

    url: str
    access_key: str
    secret: str
    certificate: str | None = None


def client_of(access: Access, **options: Any) -> Any:
    """A client of a gateway that tries once. options: further configuration of the client. Safe to use from several
    threads."""
    config = Config(retries={"max_attempts": 0, "mode": "standard"}, s3={"addressing_style": "path"}, **options)
    return Session().create_client(
        "s3",
        region_name="eu-north-1",
        endpoint_url=access.url,
        verify=access.certificate,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret,
        config=config,
    )


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a gateway, and of the commands that manage its access keys."""
    return without_settings(os.environ) | {"NOS_EC_S3__MASTER_KEY": MASTER_KEY} | more


def create_key(config: Path, account: str, **more: str) -> tuple[str, str]:
    """A new access key and its secret, from `nos-ec s3 key create`."""
    command = [sys.executable, "-m", "nos_ec", "--config", str(config), "s3", "key", "create", account, "--json"]
    made = subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    return found["access_key"], found["secret"]


class GatewayProcess:
    """A gateway that can be killed and started again at the same address."""

    def __init__(self, config: Path, log: Path, **more: str) -> None:
        """config: of its store. log: what it writes on stderr is added to it. more: environment. With a certificate, it
        serves HTTPS."""
        self._config = config
        self._log = log
        self.port = free_port()
        certificate = more.get("NOS_EC_S3__CERTIFICATE_FILE")
        self._tls = None if certificate is None else ssl.create_default_context(cafile=certificate)
        self.url = f"http://127.0.0.1:{self.port}" if self._tls is None else f"https://localhost:{self.port}"
        self._environment = environment(NOS_EC_S3__PORT=str(self.port), PYTHONFAULTHANDLER="1", **more)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        self.start()
        self.await_start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it as an operator does."""
        self.stop()

    def start(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "nos_ec", "--config", str(self._config), "s3", "serve"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )

    def await_start(self) -> None:
        """Wait until it answers. Raises AssertionError when it has ended instead."""
        deadline_s = time.monotonic() + START_S_MAX
        while not self._answers():
            assert self.running, f"the gateway has ended: {self._log.read_text()[-3000:]}"
            assert time.monotonic() < deadline_s, f"the gateway does not answer: {self._log.read_text()[-3000:]}"
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        """Whether it refuses, as it must, a request that is not signed."""
        try:
            urlopen(self.url, timeout=5, context=self._tls).close()
        except OSError as error:
            return getattr(error, "code", None) == 403
        return False

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """How it ended; negative for a signal. None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """As a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As an operator does. Raises AssertionError when it does not end, or not well."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            code = process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # the fault handler logs where each thread is
            process.wait()
            raise AssertionError(f"the gateway does not end: {self._log.read_text()[-3000:]}") from None
        assert code == 0, f"the gateway ended with {code}: {self._log.read_text()[-3000:]}"

    def abandon(self) -> None:
        """End it, however the test ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()


def as_environment(access: Access) -> Mapping[str, str]:
    """For clients that read AWS's variables."""
    found = {
        "AWS_ACCESS_KEY_ID": access.access_key,
        "AWS_SECRET_ACCESS_KEY": access.secret,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return found if access.certificate is None else {**found, "AWS_CA_BUNDLE": access.certificate}
