"""The receiving end of NOTIFY_SOCKET, which is systemd's in production: it receives the states that services report."""

from __future__ import annotations

import socket
import threading
from queue import Queue
from types import TracebackType
from typing import Self


class NotifySocket:
    """Receives all the time, because a socket holds only a few datagrams (net.unix.max_dgram_qlen); then senders wait.

    address: a path, or a name of the abstract namespace after an @.
    """

    def __init__(self, address: str) -> None:
        self.environment = {"NOTIFY_SOCKET": address}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._states: Queue[str] = Queue()
        self._thread = threading.Thread(target=self._listen, name="notify-socket", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def heard(self, wait_s: float = 120) -> str:
        """The next state that was sent. Raises queue.Empty."""
        return self._states.get(timeout=wait_s)

    def _listen(self) -> None:
        while state := self._socket.recv(4096):
            self._states.put(state.decode())
