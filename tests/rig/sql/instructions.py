"""Counts the instructions that SQLite's virtual machine runs for metadata: what a statement does, whatever else the
machine does. Looking up a key is one instruction, however deep the index is."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from sqlalchemy import event

from nos_ec.adapters.sql.metadata import SqlMetadata


class Instructions:
    """The instructions of connections that are taken from their pool after `start`. Counting makes statements many
    times as slow."""

    def __init__(self) -> None:
        self._by_thread: dict[int, int] = defaultdict(int)
        self._counts = False

    def watch(self, metadata: SqlMetadata) -> None:
        """Count those of this metadata, too. It is on SQLite."""
        for engine in metadata._transactions.engines:
            event.listen(engine.pool, "checkout", self._set_up)

    def start(self) -> None:
        """Count from now on."""
        self._counts = True

    def in_all(self) -> int:
        """The number of all threads so far."""
        return sum(self._by_thread.copy().values())

    def in_thread(self) -> int:
        """The number of this thread so far."""
        return self._by_thread[threading.get_ident()]

    def _set_up(self, driver: Any, _record: object, _proxy: object) -> None:
        driver.set_progress_handler(self._count if self._counts else None, 1)

    def _count(self) -> None:
        self._by_thread[threading.get_ident()] += 1
