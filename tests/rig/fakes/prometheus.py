"""A server in place of Prometheus, which gives the answers of Prometheus or broken ones."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from nos_ec.console.rates import prometheus as client
from tests.rig.waiting import WAIT_S_MAX

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
Reply = Callable[[bytes, socket.socket], bytes]
"""Returns the answer to a request, or sends it itself."""


def answer(data: object) -> bytes:
    """Return a successful answer with these data."""
    return HEAD + json.dumps({"status": "success", "data": data}).encode()


def vector(*figures: tuple[dict[str, str], str]) -> bytes:
    """Return the answer to a query. figures: labels and value of each series."""
    return answer({"result": [{"metric": labels, "value": [1, value]} for labels, value in figures]})


def rules_of(*found: tuple[str, str, list[dict[str, Any]]]) -> bytes:
    """Return the list of rules, in two groups. found: name, health and alerts of each."""
    rules = [{"name": name, "health": health, "alerts": made} for name, health, made in found]
    return answer({"groups": [{"rules": rules[:1]}, {"rules": rules[1:]}]})


def alert(state: str, **labels: str) -> dict[str, Any]:
    """Return an alert of a rule, as Prometheus lists it."""
    return {"labels": labels, "state": state}


@contextmanager
def fake_prometheus(*answers: bytes | Reply, answer_s_max: float = WAIT_S_MAX) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of a server, and the list of the requests that it has received. Each connection gets the next of
    the answers; when only one is left, all further connections get it. The console waits `answer_s_max` for each."""
    asked: list[bytes] = []
    left = list(answers)

    def serve(connection: socket.socket, given: bytes | Reply) -> None:
        with connection, suppress(OSError):
            asked.append(_request(connection))
            connection.sendall(given(asked[-1], connection) if callable(given) else given)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                given = left.pop(0) if len(left) > 1 else left[0]
                threading.Thread(target=serve, args=(connection, given), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "ANSWER_S_MAX", answer_s_max)
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/under/", asked
        listener.shutdown(socket.SHUT_RDWR)


def _request(connection: socket.socket) -> bytes:
    """Read a request with its body."""
    found = b""
    while (head := found.partition(b"\r\n\r\n"))[1] == b"" or len(head[2]) < _length(head[0]):
        found += connection.recv(65_536)
    return found


def _length(head: bytes) -> int:
    given = re.search(rb"Content-Length: (\d+)", head)
    return 0 if given is None else int(given[1])


def hang(_: bytes, connection: socket.socket) -> bytes:
    """Never answer."""
    return connection.recv(1)
