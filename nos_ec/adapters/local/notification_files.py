"""Notifications of buckets in a store without Kafka: a file for each topic, with a message in each line."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from nos_ec.adapters.local.files.durable import make_folder, sync_folder, write_at
from nos_ec.core.errors import NosError, Transient


class NotificationFiles:
    """A `NotificationPublisher`. A message is a line of JSON in `FOLDER/TOPIC.jsonl`, durable on return.

    Nothing removes lines. A reader may move the file away: the next message begins another one. A crash may cut the
    last line short or damage it. Then it is not valid JSON, and the next line repeats the message.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def publish_to(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> Mapping[int, NosError]:
        """See NotificationPublisher."""
        path = self._folder / f"{topic}.jsonl"
        try:
            with self._lock:
                self._append(path, b"".join(value + b"\n" for _, value in messages))
        except OSError as error:
            failure = Transient(f"notifications: {path} cannot be written: {error.strerror}")
            return dict.fromkeys(range(len(messages)), failure)
        return {}

    def close(self) -> None:
        """Do nothing: files are open only while they are written."""

    def _append(self, path: Path, lines: bytes) -> None:
        make_folder(self._folder)
        is_new = not path.exists()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            write_at(fd, [lines], size)
            os.fsync(fd)
        finally:
            os.close(fd)
        if is_new:
            sync_folder(self._folder)
