"""The facts about one request that the counters and the access log need, and the line of the access log."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from nos_ec.engine.texts import printable
from nos_ec.gateway.auth.access import BucketAccess

UNKNOWN = "Unknown"
"""The operation of a request that was refused before its operation was known."""
CLIENT_CLOSED = "ClientClosed"
"""The code of a request whose client disconnected before it received the whole answer."""
AGENT_CHARS_MAX = 200

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Record:
    """A record of one request, filled while the request is served.

    `operation` is its name in the S3 API reference. `code` is the code of the error, empty without one. `status` is 500
    if the request failed after its answer had begun. `received` and `sent` are bytes of the bodies. `remote` is the
    address of the client, which trusted proxies may report. `logged` is its bucket if that has an access log.
    `is_website`: it is a request to the website of a bucket. `paid_by` is the account whose rates the request was taken
    from.
    """

    request_id: str
    method: str
    remote: str = ""
    agent: str = ""
    operation: str = UNKNOWN
    bucket: str = ""
    key: str = ""
    account: str | None = None
    status: int = 0
    code: str = ""
    received: int = 0
    sent: int = 0
    first_byte_s: float = 0.0
    whole_s: float = 0.0
    logged: BucketAccess | None = None
    is_website: bool = False
    paid_by: str | None = None


def log_access(record: Record) -> None:
    """Write the line of a request, among the other log lines of the process. Times are in milliseconds, sizes in bytes.
    A line never contains a query, a header of the client's signature or a secret, so it cannot be used to repeat a
    request."""
    _log.info(
        "access",
        request_id=record.request_id,
        remote=record.remote,
        account=record.account,
        method=record.method,
        operation=record.operation,
        bucket=printable(record.bucket),
        key=printable(record.key),
        status=record.status,
        code=record.code,
        received=record.received,
        sent=record.sent,
        first_byte_ms=round(record.first_byte_s * 1000, 1),
        ms=round(record.whole_s * 1000, 1),
        agent=printable(record.agent[:AGENT_CHARS_MAX]),
    )
