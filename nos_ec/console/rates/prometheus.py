"""Asks Prometheus by its HTTP API, in a limited time and for a limited number of bytes.

Nothing that the server sends can lead to another address: redirects are errors. A watchdog ends the connection after
ANSWER_S_MAX, because time-outs of a socket only limit how long each of its reads may take.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from nos_ec.core.errors import Transient

ANSWER_S_MAX = 2.0
BYTES_MAX = 4 << 20
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Prometheus:
    """A server at the URL of console.prometheus_url. Safe to call from several threads."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and the value of each series now. Raises Transient."""
        found = self._ask("query", {"query": expression})
        return [(labels, _number(value)) for labels, (_, value) in _series(found, "value")]

    def query_range(
        self, expression: str, start_s: int, end_s: int, step_s: int
    ) -> list[tuple[Mapping[str, str], list[tuple[int, float]]]]:
        """Return the labels of each series and its values: (time in ms, value). Raises Transient."""
        asked = {"query": expression, "start": str(start_s), "end": str(end_s), "step": str(step_s)}
        found = self._ask("query_range", asked)
        return [
            (labels, [(round(1000 * _number(at_s)), _number(value)) for at_s, value in values])
            for labels, values in _series(found, "values")
        ]

    def rules(self) -> list[dict[str, Any]]:
        """Return all alert rules with the alerts that they have made. Raises Transient."""
        groups = self._ask("rules?type=alert")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _ask(self, what: str, form: Mapping[str, str] | None = None) -> Any:
        """Return the data of an answer."""
        path = f"{self._url.path.rstrip('/')}/api/v1/{what}"
        body = fetch(self._url, path, None if form is None else urlencode(form))
        try:
            answer = json.loads(body)
            if answer["status"] == "success":
                return answer["data"]
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise Transient(f"Prometheus at {self._url.netloc} did not answer as Prometheus does")


@contextmanager
def reading_answers() -> Iterator[None]:
    """Raise Transient if the data of an answer have another form than those of Prometheus."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise Transient("Prometheus sent data of an unknown form") from error


def _series(found: Any, what: str) -> list[tuple[Mapping[str, str], Any]]:
    return [(one["metric"], one[what]) for one in found["result"]]


def _number(value: Any) -> float:
    return float(value)


def fetch(url: SplitResult, path: str, form: str | None) -> bytes:
    """Return the body of an answer to a GET, or with a form to a POST. Raises Transient for anything but an answer with
    status 200 and at most BYTES_MAX bytes within ANSWER_S_MAX. Looking up and connecting may take that long as well."""
    late = threading.Event()
    try:
        with closing(_connected(url)) as connected, _watched(connected, late):
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            body = _exchange(connected, url, path, form)
    except (OSError, HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise Transient(f"Prometheus at {url.netloc} did not answer within {ANSWER_S_MAX:g} s") from error
        raise Transient(f"Prometheus at {url.netloc} does not answer: {error or type(error).__name__}") from error
    if late.is_set():
        raise Transient(f"Prometheus at {url.netloc} did not answer within {ANSWER_S_MAX:g} s")
    if len(body) > BYTES_MAX:
        raise Transient(f"Prometheus at {url.netloc} answers with more than {BYTES_MAX >> 20} MiB")
    return body


def _exchange(connected: socket.socket, url: SplitResult, path: str, form: str | None) -> bytes:
    connection = HTTPConnection(url.hostname or "", _port(url))
    connection.sock = connected
    headers = {"Accept": "application/json", "Connection": "close"}
    connection.request("GET" if form is None else "POST", path, form, headers | (_FORM if form is not None else {}))
    answer = connection.getresponse()
    if answer.status != 200:
        raise HTTPException(f"its answer has the status {answer.status}")
    return answer.read(BYTES_MAX + 1)


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _connected(url: SplitResult) -> socket.socket:
    context = ssl.create_default_context() if url.scheme == "https" else None
    plain = socket.create_connection((url.hostname or "", _port(url)), ANSWER_S_MAX)
    if context is None:
        return plain
    return context.wrap_socket(plain, server_hostname=url.hostname, do_handshake_on_connect=False)


@contextmanager
def _watched(connected: socket.socket, late: threading.Event) -> Iterator[None]:
    """End the connection after ANSWER_S_MAX, and set `late`."""

    def end() -> None:
        late.set()
        with suppress(OSError):
            # Not SSLSocket.shutdown, which would let the other thread read what is encrypted.
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    watchdog = threading.Timer(ANSWER_S_MAX, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
