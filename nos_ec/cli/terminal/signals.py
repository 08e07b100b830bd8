"""Handles SIGINT (Ctrl-C) and SIGTERM during the whole life of a command's process.

While modules are loaded, and after the command has ended, there is nothing to clean up: the process ends at once. In
between, the first signal raises KeyboardInterrupt in the main thread, so that files and leases are cleaned up; a second
signal ends the process at once. Daemons replace these handlers by their own.

Python drops a KeyboardInterrupt that is raised inside a callback of the interpreter (a finalizer, for example), so it
is raised again shortly afterwards. It is delayed in callbacks of C code (core/callbacks.py), and while the standard
library takes or releases a lock: otherwise the lock would never be released, and cleaning up would wait for it for
ever.

This module imports nothing that takes long to load, because the handlers must be installed first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nos_ec.core.callbacks import CALLED_BACK

EXIT_INTERRUPTED = 130
"""The exit code that a shell reports for a command that SIGINT has ended."""
EXIT_TERMINATED = 143
"""The exit code that a shell reports for a command that SIGTERM has ended."""

_AGAIN_S = 0.02

_LOCKING = {
    function.__code__
    for function in (
        threading.Condition.__enter__,
        threading.Condition.__exit__,
        threading.Condition._release_save,  # type: ignore[attr-defined]
        threading.Condition._acquire_restore,  # type: ignore[attr-defined]
    )
}
"""Events, futures and queues are built on these. Other locks are taken by C code, which no signal interrupts between
taking the lock and entering the `with` block."""


class _Ended:
    """Holds the number of the signal that interrupted the command last, if any."""

    by: int | None = None


def end_quietly() -> None:
    """Let SIGINT and SIGTERM end this process at once from now on, without a stack trace. A signal that is ignored (as
    SIGINT is in background jobs of a shell) stays ignored."""
    _handle(signal.SIGINT, _end_at_once)
    _handle(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupting() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt in the block, and end the process at once after it."""
    try:
        sys.unraisablehook = _raised_again
        _handle(signal.SIGINT, interrupt)
        _handle(signal.SIGTERM, interrupt)
        yield
    finally:
        end_quietly()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the command (a signal handler). From then on the same signal ends the process at once."""
    _Ended.by = number
    signal.signal(number, _end_at_once if number == signal.SIGINT else signal.SIG_DFL)
    raise_unless_lost(number, frame)


def raise_unless_lost(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt (a signal handler), or delay it for a moment where it would be lost or do harm."""
    if frame is not None and (frame.f_code in CALLED_BACK or frame.f_code in _LOCKING):
        _raise_soon()
    else:
        raise KeyboardInterrupt


def ended_by_sigterm() -> bool:
    """Return whether SIGTERM has interrupted the command."""
    return _Ended.by == signal.SIGTERM


def die_of_sigterm() -> None:
    """End this process by SIGTERM, so that its parent sees this as the cause."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(EXIT_TERMINATED)  # the kernel does not kill the first process of a container by default


def _handle(number: int, handler: signal.Handlers | signal._HANDLER) -> None:
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


def _raised_again(unraisable: sys.UnraisableHookArgs) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _raise_soon()
    else:
        sys.__unraisablehook__(unraisable)


def _raise_soon() -> None:
    signal.signal(signal.SIGALRM, raise_unless_lost)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
