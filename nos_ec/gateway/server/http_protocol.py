"""The HTTP/1.1 of the gateway: uvicorn's protocol on httptools, with limits that uvicorn leaves to a proxy.

llhttp, the parser in httptools, refuses requests that two parsers could understand differently: both Content-Length and
Transfer-Encoding, two Content-Lengths, invalid chunk sizes, line ends without CR. This module also refuses heads that
are too long and requests with no Host or several, and it never treats trailers as headers.

Source: RFC 9112 (HTTP/1.1), sections 3.2, 5 and 6.
"""

from __future__ import annotations

import re
from typing import Any

import httptools

from nos_ec.monitoring.web_server import CONNECTIONS_MAX, LeavingProtocol

HEAD_BYTES_MAX = 64 << 10
"""Maximum size of request line and headers together; also of trailers, and of the extensions of a chunk."""
PIPELINE_MAX = 8
"""Maximum number of pipelined requests that wait on a connection. Clients of S3 do not pipeline."""
IDLE_WAIT_S = 60
CROWD_MAX = 100
"""Connections above the maximum that still get an answer. Further ones are closed at once."""
DISCARDED_BYTES_MAX = 1 << 20
DISCARD_WAIT_S = 2.0

_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)([/?].*|)", re.IGNORECASE)
_REFUSAL = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>BadRequest</Code>'
    b"<Message>Malformed HTTP request, or its headers are too long.</Message></Error>"
)


class _Refused(Exception):
    """Stops the parsing of a request that must be refused."""


class GatewayProtocol(LeavingProtocol):
    """One connection."""

    _idle_since: object = None
    _was_idle = False
    _refused = False
    _discarded_bytes = 0
    _in_head = True
    _head_bytes = 0
    _unused_bytes = 0
    """Bytes received since the parser last completed an element. The parser keeps them in memory."""

    is_crowded = False
    """Whether there are more than CONNECTIONS_MAX connections. The application then answers SlowDown and closes this
    one."""

    def connection_made(self, transport: Any) -> None:
        self._joined = JoinedWrites(transport)
        super().connection_made(self._joined)  # type: ignore[arg-type]
        self._watch()
        self.is_crowded = len(self.connections) > CONNECTIONS_MAX
        if len(self.connections) > CONNECTIONS_MAX + CROWD_MAX:
            transport.abort()

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def tls(self) -> tuple[str, str] | None:
        found = self.transport.get_extra_info("ssl_object")
        cipher = None if found is None else found.cipher()
        return None if cipher is None else (cipher[0], found.version())

    def join_head(self) -> None:
        self._joined.keep_next()

    def abort(self) -> None:
        self._disconnect()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    # --- reading --------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        self._unused_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse()
        else:
            if self._unused_bytes > HEAD_BYTES_MAX:
                self._refuse()

    def _feed(self, data: bytes) -> None:
        """Parse bytes, ignoring an Upgrade header, as a server may (RFC 9110, section 7.8). The parser itself would
        treat everything after the head as the other protocol, so a new parser reads the head again without that
        header."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
                line = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
                data = b"%b %b HTTP/%b\r\n%b\r\n" % (*line, b"".join(kept)) + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise _Refused
        if self.parser.should_upgrade():
            return  # see `_feed`
        self._take_absolute_form()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0") or len(self.pipeline) >= PIPELINE_MAX:
            raise _Refused
        super().on_headers_complete()
        # The path and the query as they were sent, because the client has signed them in that form.
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        self.scope["raw_path"], _, self.scope["query_string"] = self.url.partition(b"?")
        self._in_head, self._head_bytes, self._unused_bytes = False, 0, 0

    def _take_absolute_form(self) -> None:
        """Handle a target such as `http://host/path`, whose host replaces the Host header (RFC 9112, section 3.2.2)."""
        match = _ABSOLUTE.fullmatch(self.url)
        if match is not None:
            self.url = match[2] if match[2].startswith(b"/") else b"/" + match[2]
            self.headers[:] = [(name, match[1] if name == b"host" else value) for name, value in self.headers]

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head, self._unused_bytes = True, 0
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _Refused

    # --- refusing -------------------------------------------------------------------------------------
    def _refuse(self) -> None:
        """Answer 400 to a malformed request and close the connection. If an answer is being sent, just close, because
        the client would read the refusal as a part of that answer."""
        self._refused = True
        is_free = self._served is None or self._served.response_complete or not self._served.response_started
        is_free = is_free and not self.pipeline
        self._disconnect()
        if self.transport.is_closing():
            return
        if is_free:
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/xml\r\ncontent-length: %d\r\n"
            self.transport.write(head % len(_REFUSAL) + b"connection: close\r\n\r\n" + _REFUSAL)
        if is_free and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(DISCARD_WAIT_S, self.transport.close)
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        """Discard what arrives after a refusal for a while. If bytes were left unread, the kernel would reset the
        connection, and the client might lose the answer."""
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self.transport.close()

    # --- idle clients ---------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Close the connection if no complete request arrives for IDLE_WAIT_S. uvicorn's own limit covers only the time
        between two requests, until the first byte of the next one."""
        self._timer = self.loop.call_later(IDLE_WAIT_S / 2, self._look)

    def _look(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._was_idle and self._idle_since is self.cycle:
            self.transport.close()
            return
        self._was_idle, self._idle_since = is_idle, self.cycle
        self._watch()


class JoinedWrites:
    """A transport that can hold back one write until the next one, to send the head of an answer together with its
    body. Other calls go to the wrapped transport.

    uvicorn writes them separately, and uvloop passes each write to the kernel at once. So a small answer would need two
    system calls and two TCP segments, and wake the client twice.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._keeps = False
        self._kept = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def keep_next(self) -> None:
        """Hold back the next write, and send it together with the write after it. Call this only if one follows."""
        self._keeps = True

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        if self._keeps:
            self._keeps, self._kept = False, data
        elif self._kept:
            kept, self._kept = self._kept, b""
            self._transport.writelines((kept, data))
        else:
            self._transport.write(data)
