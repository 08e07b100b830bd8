"""Daemons as separate processes, with their log and their metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from nos_ec.settings import without_settings
from tests.rig import waiting
from tests.rig.dev_servers import free_port

STOP_S_MAX = 120.0
ANSWER_S_MAX = 60.0
until = partial(waiting.until, wait_s=180)


class DaemonProcess:
    """A running producer or consumer. Its log goes to a file next to the configuration."""

    def __init__(self, config: Path, kind: str, name: str, **environment: str) -> None:
        self.port = free_port()
        self.log = config.parent / f"{name}.log"
        settings = {
            "NOS_EC_LOGGING__FORMAT": "json",
            "NOS_EC_MONITORING__PORT": str(self.port),
            **environment,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nos_ec", "--config", str(config), kind],
                env=without_settings(os.environ) | settings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def require_alive(self) -> None:
        """Raise AssertionError with the end of the log if the process has ended."""
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log.read_text()[-4000:]}"

    def metrics(self) -> dict[str, float]:
        """Its metrics without labels, by name. Empty while its endpoint does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=ANSWER_S_MAX) as reply:
                text = reply.read().decode()
        except OSError:
            self.require_alive()
            return {}
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {sample.name: sample.value for sample in samples if not sample.labels}

    def partitions(self) -> set[int]:
        """The partitions that this consumer held when it last logged them."""
        self.require_alive()
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if '"partitions held"' in line)
        held: set[int] = set()
        for line in lines:
            held = set(line["partitions"])
        return held

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it as an operator does, or kill it if that takes too long. Does nothing if it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=STOP_S_MAX)
            finally:
                self.process.kill()
                self.process.wait()
