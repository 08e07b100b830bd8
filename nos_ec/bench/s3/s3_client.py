"""A lean S3 client with a socket for each caller and its own signer, so that benchmarks measure the servers.

It signs with Signature Version 4, with the SHA-256 of the body, as clients do over plain HTTP.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import httptools

from nos_ec.core.errors import Transient
from nos_ec.s3.signing import sign, signing_key

REGION = "us-east-1"
ANSWER_S_MAX = 60.0
_RECEIVE_BYTES = 1 << 18
_SIGNED = "host;x-amz-content-sha256;x-amz-date"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of an account of any S3 server."""

    access_key: str
    secret: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def signed_headers(
    credentials: Credentials, now_s: float, host: str, method: str, path: str, query: str, body: bytes
) -> str:
    """Return the header lines of a request. `path` and `query` are as sent, in canonical encoding and order.

    Source: S3 API reference, "Transferring Payload in a Single Chunk" (sig-v4-header-based-auth).
    """
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    digest = hashlib.sha256(body).hexdigest()
    lines = f"host:{host}\nx-amz-content-sha256:{digest}\nx-amz-date:{date}\n"
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{_SIGNED}\n{digest}"
    scope = f"{date[:8]}/{REGION}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = sign(signing_key(credentials.secret, date[:8], REGION), to_sign)
    return (
        f"host: {host}\r\nx-amz-content-sha256: {digest}\r\nx-amz-date: {date}\r\ncontent-length: {len(body)}\r\n"
        f"authorization: AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope},SignedHeaders={_SIGNED},"
        f"Signature={signature}\r\n\r\n"
    )


class S3Client:
    """Sends requests to one or more servers of the same store. Each thread has a connection, to the next server in
    turn."""

    def __init__(self, urls: Sequence[str], credentials: Credentials, now_s: Callable[[], float] = time.time) -> None:
        self._hosts = [urlsplit(url).netloc for url in urls]
        self._credentials = credentials
        self._now_s = now_s
        self._own = threading.local()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()

    def create_bucket(self, bucket: str) -> None:
        """Create a bucket, unless it exists. Raises Transient."""
        answer = self.send("PUT", f"/{bucket}")
        if answer.status != 200 and b"BucketAlreadyOwnedByYou" not in answer.body:
            raise _refused(answer, f"PUT /{bucket}")

    def put(self, bucket: str, name: str, body: bytes) -> None:
        """Store an object; durable on return. Raises Transient."""
        self._expect(200, "PUT", f"/{bucket}/{quote(name)}", "", body)

    def get(self, bucket: str, name: str) -> bytes:
        """Read an object. Raises Transient."""
        return self._expect(200, "GET", f"/{bucket}/{quote(name)}")

    def head(self, bucket: str, name: str) -> None:
        """Look up an object. Raises Transient."""
        self._expect(200, "HEAD", f"/{bucket}/{quote(name)}")

    def delete(self, bucket: str, name: str) -> None:
        """Delete an object. Raises Transient."""
        self._expect(204, "DELETE", f"/{bucket}/{quote(name)}")

    def page(self, bucket: str, after: str, limit: int) -> bytes:
        """Return the XML of a page of at most `limit` names after `after`. Raises Transient."""
        query = f"list-type=2&max-keys={limit}&start-after={quote(after, safe='')}"
        return self._expect(200, "GET", f"/{bucket}", query)

    def _expect(self, status: int, method: str, path: str, query: str = "", body: bytes = b"") -> bytes:
        answer = self.send(method, path, query, body)
        if answer.status != status:
            raise _refused(answer, f"{method} {path}")
        return answer.body

    def send(self, method: str, path: str, query: str = "", body: bytes = b"") -> Answer:
        """Send a request on the thread's connection, and return the answer. If a used connection fails, the server may
        have closed it, so the request is repeated on a new one; all requests here can be repeated safely. Raises
        Transient."""
        while True:
            was_used = getattr(self._own, "connection", None) is not None
            try:
                return self._send(method, path, query, body)
            except OSError as error:
                self._forget()
                if not was_used:
                    raise Transient(f"bench: no answer to {method} {path}: {error}") from error

    def _send(self, method: str, path: str, query: str, body: bytes) -> Answer:
        connection, host = self._connection()
        head = signed_headers(self._credentials, self._now_s(), host, method, path, query, body)
        target = f"{path}?{query}" if query else path
        connection.sendall(f"{method} {target} HTTP/1.1\r\n{head}".encode() + body)
        answer = read_answer(connection, has_body=method != "HEAD")
        if answer.headers.get("connection", "").lower() == "close":
            self._forget()
        return answer

    def _connection(self) -> tuple[socket.socket, str]:
        found: tuple[socket.socket, str] | None = getattr(self._own, "connection", None)
        if found is None:
            with self._lock:
                host = self._hosts[len(self._open) % len(self._hosts)]
                name, _, port = host.rpartition(":")
                connection = socket.create_connection((name, int(port)), ANSWER_S_MAX)
                self._open.append(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found = self._own.connection = (connection, host)
        return found

    def _forget(self) -> None:
        found = getattr(self._own, "connection", None)
        self._own.connection = None
        if found is not None:
            found[0].close()
            with self._lock, suppress(ValueError):
                self._open.remove(found[0])


class _Parsed:
    """Collects an answer while httptools parses it."""

    def __init__(self, *, has_body: bool) -> None:
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.complete = False
        self._has_body = has_body

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.complete = not self._has_body

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = True


def read_answer(connection: socket.socket, *, has_body: bool = True) -> Answer:
    """Read the answer to a request. That to a HEAD has no body, whatever its headers say. Raises OSError."""
    parsed = _Parsed(has_body=has_body)
    parser = httptools.HttpResponseParser(parsed)
    while not parsed.complete:
        piece = connection.recv(_RECEIVE_BYTES)
        if not piece:
            raise ConnectionError("the connection was closed")
        try:
            parser.feed_data(piece)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"the answer is not HTTP: {error}") from error
    return Answer(parser.get_status_code(), parsed.headers, b"".join(parsed.pieces))


def _refused(answer: Answer, what: str) -> Transient:
    return Transient(f"bench: {what} was answered with {answer.status}: {answer.body[:300]!r}")
