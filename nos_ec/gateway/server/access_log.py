"""Writes the access log: one line for each request, among the other log lines of the process. A line never contains a
query, a header of the client's signature or a secret, so it cannot be used to repeat a request."""

from __future__ import annotations

import structlog

from nos_ec.gateway.server.record import Record

AGENT_CHARS_MAX = 200

_log = structlog.get_logger(__name__)


def log_access(record: Record) -> None:
    """Write the line of a request. Times are in milliseconds, sizes in bytes."""
    _log.info(
        "access",
        request_id=record.request_id,
        remote=record.remote,
        account=record.account,
        method=record.method,
        operation=record.operation,
        bucket=_printable(record.bucket),
        key=_printable(record.key),
        status=record.status,
        code=record.code,
        received=record.received,
        sent=record.sent,
        first_byte_ms=round(record.first_byte_s * 1000, 1),
        ms=round(record.whole_s * 1000, 1),
        agent=_printable(record.agent[:AGENT_CHARS_MAX]),
    )


def _printable(text: str) -> str:
    """Return the text with characters that could end the line or garble a terminal escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
