"""Named places in the write paths where a test can kill the process, to prove that every step is crash-safe.

`NOS_EC_KILL_AT=name` kills the process with SIGKILL when it first passes that point; `name:3` kills it at the third
pass. When the variable is unset (always, in production), a kill point costs one comparison. Reading the environment
once, at import, is the one impurity of this package; the crash matrix runs each case in its own process.
"""

from __future__ import annotations

import os
import signal
import threading

_NAME, _, _COUNT = os.environ.get("NOS_EC_KILL_AT", "").partition(":")
_left = int(_COUNT) if _COUNT else 1
_lock = threading.Lock()


def kill_point(name: str) -> None:
    """Kill the process here, at once and without any clean-up, if the environment asks for it."""
    if name == _NAME:
        _count_down()


def _count_down() -> None:
    global _left
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
