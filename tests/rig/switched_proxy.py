"""A TCP address in front of servers, such as a virtual IP or a proxy. After a switch, new connections lead to another
server, and open connections stay where they are."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 65_536


class SwitchedProxy:
    """Listens on 127.0.0.1 at `port` while `running`. New connections go to `target`, which may be set at any time.

    Whatever a client sends arrives `delay_s` later, as at a server far away. Answers are not delayed.
    """

    def __init__(self, target: int, *, delay_s: float = 0) -> None:
        self.target = target
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    @contextmanager
    def running(self) -> Iterator[SwitchedProxy]:
        """Forward until the end of the `with`, and then close all connections."""
        accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        accepting.start()
        try:
            yield self
        finally:
            for one in (self._listener, *self._open):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()  # the target does not run
                continue
            self._open += [client, server]
            for source, sink, delay_s in ((client, server, self._delay_s), (server, client, 0)):
                threading.Thread(target=_forward, args=(source, sink, delay_s), name="proxy", daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            time.sleep(delay_s)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
