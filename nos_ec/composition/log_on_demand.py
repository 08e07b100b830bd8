"""Opens the message log of a store when it is first needed."""

from __future__ import annotations

import threading

from nos_ec.composition.backends import Log, open_log
from nos_ec.core.errors import Transient
from nos_ec.ports.clock import Clock
from nos_ec.ports.message_log import MessageConsumer
from nos_ec.settings import Settings

_LAG_WAIT_S_MAX = 1.0
"""Longer than a look-up takes while brokers answer."""


class LogOnDemand:
    """The message log, which is opened and checked when it is first needed: PUT and GET work without it. Safe to call
    from several threads."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._messages: Log | None = None

    def get(self) -> Log:
        """Return the open log. Raises ConfigError, Corrupt, Transient; the next call then tries again."""
        with self._lock:
            if self._messages is None:
                self._messages = open_log(self._settings, self._clock)
            return self._messages


class LagProbe:
    """Reports the lag of the group without joining it. Safe to call from several threads; connects on first use."""

    def __init__(self, log: LogOnDemand) -> None:
        self._messages = log
        self._lock = threading.Lock()
        self._consumer: MessageConsumer | None = None
        self._closed = False

    def value(self) -> int:
        """Return the number of messages that the group has not committed yet. Raises Transient."""
        with self._lock:
            if self._closed:
                raise Transient("message log: the process is ending")
            if self._consumer is None:
                self._consumer = self._messages.get().consumer("lag", "")
            return self._consumer.lag()

    def close(self) -> None:
        """Release all open resources. Idempotent. Does not wait for a look-up in progress if brokers do not answer; the
        look-up then ends with the process."""
        self._closed = True
        if not self._lock.acquire(timeout=_LAG_WAIT_S_MAX):
            return
        try:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
        finally:
            self._lock.release()
