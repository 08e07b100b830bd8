"""A store on Ceph with embedded metadata and message log, and its daemons: for faults of Ceph alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nos_ec.composition.wiring import initialise
from nos_ec.settings import Settings, load_settings, without_settings
from tests.rig.ceph_cluster import POOL_BLOCKS, CephCluster
from tests.rig.dev_servers import free_port
from tests.rig.patience import patient
from tests.rig.waiting import until

COMMANDS = {"gc": ["gc", "run", "--apply", "--loop"]}
"""The commands of daemons whose name differs from their command."""
WAIT_S_MAX = 120.0
END_S_MAX = 60.0
"""Two thirds of what systemd waits for (deploy/systemd)."""


class CephStore:
    """A configuration in `folder`, and the store it describes."""

    def __init__(self, folder: Path, ceph: CephCluster, namespace: str, **limits: int) -> None:
        """limits: `ceph.op_timeout_ms` and others of that section."""
        self.folder = folder
        self.config = folder / "nos-ec.toml"
        client = self._client = ceph.options("consumer")
        self._admin = str(ceph.folder / "admin.keyring")
        self._text = f"""
store = {{ backend = "ceph", root = "{folder / "store"}" }}
log = {{ partitions = 2 }}
producer = {{ republish_ms = 5000 }}
consumer = {{ linger_ms = 200, linger_max_ms = 200, lanes = 2 }}
reaper = {{ landing_grace_ms = 0 }}
gc = {{ policy = "threshold", reserve_bytes = 0 }}
geometry = {{ stripes_per_block = 2, stripes_per_group_max = 1 }}
logging = {{ format = "json" }}
[ceph]
conf_file = "{client.conf_file}"
user = "{client.user}"
keyring_file = "{client.keyring_file}"
namespace = "{namespace}"
"""
        self._text += "".join(f"{name} = {value}\n" for name, value in limits.items())

    def compress(self, *, reserve_bytes: int) -> None:
        """Make GC turn within seconds, and set gc.reserve_bytes."""
        gc = f'gc = {{ policy = "threshold", reserve_bytes = {reserve_bytes}, wait_ms = 2000, block_grace_ms = 0 }}'
        self._text = self._text.replace('gc = { policy = "threshold", reserve_bytes = 0 }', gc)

    def initialise(self, blocks_pool: str = POOL_BLOCKS) -> Settings:
        """Write the configuration and create the store. Clients have no rights on unusual pools, so these need an
        administrator."""
        text = self._text + f'blocks_pool = "{blocks_pool}"\n'
        if blocks_pool != POOL_BLOCKS:
            text = text.replace(str(self._client.keyring_file), self._admin).replace(self._client.user, "client.admin")
        self.config.write_text(text)
        settings = self.settings()
        initialise(patient(settings))
        return settings

    def settings(self) -> Settings:
        """The settings of the configuration."""
        return load_settings(self.config, {})

    @contextmanager
    def daemon(self, name: str, port: int | None = None, **environment: str) -> Iterator[Daemon]:
        """A daemon that says it is ready; killed at the end if it still runs. port: that of its endpoint, or any."""
        daemon = Daemon(self, name, port or free_port(), environment)
        try:
            until(lambda: daemon.ready()[0] == 200, f"the {name} is ready", daemon.log)
            yield daemon
        finally:
            daemon.process.kill()
            daemon.process.wait()


class Daemon:
    """A process of `nos-ec NAME` with an endpoint."""

    def __init__(self, store: CephStore, name: str, port: int, environment: Mapping[str, str]) -> None:
        self._port = port
        self._log = store.folder / f"{name}.log"
        soon = {"NOS_EC_DEV_FIGURES_MS": "500", "NOS_EC_DEV_HOUSEKEEPING_MS": "500"}
        own = {"NOS_EC_MONITORING__PORT": str(port), **soon, **environment}
        command = [sys.executable, "-m", "nos_ec", "--config", str(store.config), *COMMANDS.get(name, [name])]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, env=without_settings(os.environ) | own, stdout=log, stderr=log)

    def ready(self) -> tuple[int, dict[str, Any]]:
        """The answer of /readyz: status and body; (0, {}) without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=WAIT_S_MAX) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, {}

    def log(self) -> str:
        """All of its log."""
        return self._log.read_text()

    def said(self) -> list[dict[str, Any]]:
        """Its log, line by line."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def complaints(self) -> list[str]:
        """Warnings and errors in its log, without their fields."""
        return [line["event"] for line in self.said() if line.get("level") in ("warning", "error")]

    def stop(self) -> None:
        """Ask it to end, and check that it ends with exit code 0."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=END_S_MAX) == 0, self.log()
