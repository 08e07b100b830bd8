"""Ends the process of a command.

A daemon thread may still be inside a call to a driver, for example while no Kafka broker answers. Such a driver has
threads of its own that call back into Python. A callback during the finalization of the interpreter crashes the process
(SIGSEGV). Finalization also crashes when it destroys a client of librdkafka that a thread still uses. Therefore a
process with daemon threads ends without finalization. Python warns of them: "Daemon threads are abruptly stopped at
shutdown" (documentation of the module threading).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from nos_ec.cli.terminal.signals import EXIT_INTERRUPTED, die_of_sigterm, ended_by_sigterm, interrupting


def end_with(run: Callable[[], int]) -> None:
    """Call `run`, and end the process with the exit code that it returns. Only the main thread may call this.

    Other threads that are not daemons are waited for, as at any exit, and the exit handlers registered by `run` are
    called.

    SIGINT and SIGTERM interrupt `run`, which then returns EXIT_INTERRUPTED or lets the KeyboardInterrupt through. After
    SIGTERM the process dies of that signal, unless `run` has installed a handler of its own.
    """
    code = 1

    def end() -> None:
        if code == EXIT_INTERRUPTED and ended_by_sigterm():
            _flush()
            die_of_sigterm()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # during finalization it would change the exit code
        if any(thread.daemon for thread in threading.enumerate()):
            _flush()
            os._exit(code)

    atexit.register(end)  # handlers run in reverse order, so those that `run` registers come first
    try:
        with interrupting():
            code = run()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # its reader is gone, or it is closed
            stream.flush()
