"""Asks /readyz of daemons under test, and waits until they are ready."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException

READY = 200
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """status: the HTTP status, or None if there is no answer. text: the body, or why there is none."""

    status: int | None
    text: str

    @property
    def ready(self) -> bool:
        """Whether the daemon is ready."""
        return self.status == READY


def readyz(port: int, *, timeout_s: float) -> Answer:
    """Return the answer of a daemon on this machine, or why there is none. The daemon may end meanwhile."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=timeout_s) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(errors="replace"))
    except (OSError, HTTPException) as error:
        return Answer(None, str(error) or type(error).__name__)


def await_ready(port: int, *, wait_s: float, look: Callable[[], None]) -> None:
    """Wait until a daemon is ready. `look` is called before each probe: it raises if the daemon has ended, or restarts
    it. Raises AssertionError with the last answer after `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    while True:
        look()
        answer = readyz(port, timeout_s=wait_s)
        if answer.ready:
            return
        assert time.monotonic() < deadline_s, f"not ready after {wait_s:.0f} s: {answer}"
        time.sleep(POLL_S)
